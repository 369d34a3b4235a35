"""``ortflash demo``: rewrite a real model, then run original and rewritten at several lengths."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import api
from .errors import OrtflashError
from .graph_tools.external_data import load_model
from .inputs import feed_of_length
from .measure import Measurement, measure
from .runner import library_path

_BATCH = 1


@dataclass(frozen=True)
class DemoRow:
    """Original and rewritten at one length."""

    batch: int
    length: int
    error: float
    """Largest absolute difference of an output."""
    before: Measurement
    after: Measurement


@dataclass(frozen=True)
class DemoResult:
    """What the demo's table shows."""

    rewrite: api.RewriteResult
    rows: tuple[DemoRow, ...]
    runs_on: str


def run_demo(model: Path | None, lengths: Sequence[int], progress: api.Progress | None = None) -> DemoResult:
    """Rewrite ``model`` (the repository's own without one), then measure both at each length.

    Raises OrtflashError where there is no model, or a run fails.
    """
    path = model or default_model()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fused, feed = folder / f"{path.stem}.flash.onnx", folder / "feed.npz"
        rewritten = api.rewrite(path, fused, copy_data=True, progress=progress)
        rows = []
        for number, length in enumerate(lengths):
            np.savez(feed, **feed_of_length(load_model(path), _BATCH, length))  # type: ignore[arg-type]
            before = measure(path, feed, folder / "before.npz")
            after = measure(fused, feed, folder / "after.npz")
            error = _largest_error(folder / "before.npz", folder / "after.npz")
            rows.append(DemoRow(_BATCH, length, error, before, after))
            if progress:
                progress("measuring", number + 1, len(lengths))
    runs_on = "the built library's" if library_path() else "the function body in the file (no library is built)"
    return DemoResult(rewritten, tuple(rows), runs_on)


def default_model() -> Path:
    """The BERT-type encoder of the checkout's ``models/``."""
    folder = Path(__file__).resolve().parent.parent / "models"
    found = sorted(folder.glob("bert4096-*.onnx"))
    if not found:
        raise OrtflashError(f"There is no demo model in {folder}; name a model: ortflash demo MODEL.")
    return found[0]


def _largest_error(before: Path, after: Path) -> float:
    with np.load(before) as left, np.load(after) as right:
        return max(float(np.max(np.abs(left[k].astype(np.float64) - right[k]), initial=0.0)) for k in left.files)
