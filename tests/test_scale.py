"""Large models: the time grows with the nodes, and memory with what is touched, not with the weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from encoder import write_encoder

_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_MEASURED = """
import json, sys, time
start = time.process_time()
import ortflash
from ortflash import api
from ortflash.measure import peak_bytes
found = api.inspect(sys.argv[1])
inspected = time.process_time()
result = ortflash.rewrite(sys.argv[1], sys.argv[2], verify=False)
print(json.dumps({
    "sites": len(found.sites), "fused": result.fused, "inspect": inspected - start,
    "rewrite": time.process_time() - inspected, "peak": peak_bytes(),
}))
"""


def measured(folder: Path, layers: int, *, inline: bool = False) -> dict[str, Any]:
    """Seconds of processor time (others may use this machine too) and peak memory, in a new process."""
    path = folder / f"encoder_{layers}.onnx"
    write_encoder(path, layers, inline=inline)
    command = [sys.executable, "-c", _MEASURED, str(path), str(folder / f"fused_{layers}.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_24_layers_of_external_data(tmp_path: Path) -> None:
    """1.2 GB of weights: inspected in 2 s, rewritten in 5 s, in 300 MB and what is touched (the mask's constants)."""
    found = measured(tmp_path, 24)
    assert (found["sites"], found["fused"]) == (24, 24)
    assert found["inspect"] < 2
    assert found["rewrite"] < 5
    assert found["peak"] < 300e6


@pytest.mark.slow
@pytest.mark.skipif(_MEMORY < 8e9, reason="needs 4 GB of memory to spare")
def test_24_layers_in_one_file(tmp_path: Path) -> None:
    found = measured(tmp_path, 24, inline=True)
    assert found["fused"] == 24
    assert found["rewrite"] < 15


@pytest.mark.slow
def test_time_grows_linearly(tmp_path: Path) -> None:
    """8 times the layers take about 8 times the time (quadratic would be 64): of the rewrite, which imports nothing."""
    one, eight = measured(tmp_path, 6), measured(tmp_path, 48)
    assert eight["rewrite"] < 2 * 8 * one["rewrite"]
    assert eight["peak"] < 2 * one["peak"]
