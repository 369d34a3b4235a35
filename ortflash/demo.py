"""``ortflash demo``: rewrite a real model and measure both, one process a run."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import api
from .errors import OrtflashError
from .graph_tools.external_data import load_model
from .inputs import generate_feeds, input_specs
from .runner import library_path

_RUNS = 5
_BATCH = 1


@dataclass(frozen=True)
class Measurement:
    """One model at one length, in a process of its own."""

    time_ms: float
    """Median of several runs after a warm-up."""
    peak_bytes: int
    """Largest resident set of the process, interpreter and weights included."""


@dataclass(frozen=True)
class DemoRow:
    """Original and rewritten at one length."""

    batch: int
    length: int
    error: float
    before: Measurement
    after: Measurement


@dataclass(frozen=True)
class DemoResult:
    """What the demo's table shows."""

    rewrite: api.RewriteResult
    rows: tuple[DemoRow, ...]
    runs_on: str


def run_demo(model: Path | None, lengths: Sequence[int], progress: api.Progress | None = None) -> DemoResult:
    """Rewrite ``model`` (the repository's own without one), then run both at each length.

    Raises OrtflashError where there is no model, or a run fails.
    """
    path = model or default_model()
    with tempfile.TemporaryDirectory() as folder:
        fused = Path(folder) / f"{path.stem}.flash.onnx"
        rewritten = api.rewrite(path, fused, copy_data=True, progress=progress)
        rows = []
        for number, length in enumerate(lengths):
            feed_path = Path(folder) / "feed.npz"
            np.savez(feed_path, **_feed(path, length))
            outputs = [Path(folder) / f"{name}.npz" for name in ("before", "after")]
            before = measure(path, feed_path, outputs[0])
            after = measure(fused, feed_path, outputs[1])
            rows.append(DemoRow(_BATCH, length, _largest_error(*outputs), before, after))
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


def measure(model: Path, feed: Path, output: Path) -> Measurement:
    """Run a model in a new process, write its outputs to ``output``, and say how long it took and what it held."""
    command = [sys.executable, "-m", "ortflash.demo", str(model), str(feed), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise OrtflashError(f"Running {model.name} failed: {last[0]}")
    data = json.loads(done.stdout)
    return Measurement(data["time_ms"], data["peak_bytes"])


def _feed(path: Path, length: int) -> dict[str, np.ndarray]:
    """Inputs of one row and ``length`` tokens; OrtflashError where the model has no open length."""
    model = load_model(path)
    shapes = {}
    for spec in input_specs(model):
        sizes = iter((_BATCH, *[length] * len(spec.dims)))
        shapes[spec.name] = tuple(dim if isinstance(dim, int) else next(sizes) for dim in spec.dims)
    return dict(generate_feeds(model, shapes=shapes)[0])


def _largest_error(before: Path, after: Path) -> float:
    with np.load(before) as left, np.load(after) as right:
        return max(float(np.max(np.abs(left[k].astype(np.float64) - right[k]), initial=0.0)) for k in left.files)


def _run_once(model: str, feed: str, output: str) -> None:
    """The body of the measured process."""
    import resource

    from .runner import create_session

    path = Path(model)
    session = create_session(path.read_bytes(), folder=path.parent)
    with np.load(feed) as arrays:
        values = dict(arrays)
    results = session.run(None, values)
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        session.run(None, values)
        times.append(1e3 * (time.perf_counter() - start))
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    np.savez(output, **{value.name: array for value, array in zip(session.get_outputs(), results, strict=True)})
    print(json.dumps({"time_ms": statistics.median(times), "peak_bytes": peak}))


if __name__ == "__main__":
    _run_once(*sys.argv[1:])
