"""The repository's models, rewritten, on the CUDA provider: the original's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ortflash
from ortflash.inputs import feed_of_length
from ortflash.session import CPU, CUDA

pytestmark = pytest.mark.skipif(
    CUDA not in onnxruntime.get_available_providers(), reason="this onnxruntime has no CUDA provider"
)
MODELS = sorted((Path(__file__).parents[2] / "models").glob("*.onnx"))


def outputs(path: Path, feed: dict[str, Any], providers: list[str]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    ortflash.register(options)
    return list(onnxruntime.InferenceSession(str(path), options, providers=providers).run(None, feed))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("length", [33, 256])
def test_rewritten_models_give_the_originals_numbers(path: Path, length: int, tmp_path: Path) -> None:
    fused = tmp_path / "fused.onnx"
    result = ortflash.rewrite(path, fused, verify=False)
    assert result.fused
    feed = feed_of_length(onnx.load(path), 2, length)
    for ours, theirs in zip(outputs(fused, feed, [CUDA, CPU]), outputs(path, feed, [CPU]), strict=True):
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, atol=1e-2 * scale, rtol=0)
