"""Run a model in a process of its own: how long it takes, and the most memory that it ever held.

The process imports nothing but onnxruntime and NumPy, so that what it holds is the model's.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import OrtflashError

_RUNS = 5


@dataclass(frozen=True)
class Measurement:
    """One model on one set of inputs."""

    time_ms: float
    """Median of several runs after a warm-up."""
    peak_bytes: int
    """Largest resident set of the process, interpreter and weights included."""


def measure(model: Path, feed: Path, output: Path) -> Measurement:
    """Run ``model`` on the arrays of ``feed`` (.npz) on the CPU; its outputs go to ``output`` (.npz).

    Raises OrtflashError where the run fails, with the last line that it said.
    """
    command = [sys.executable, "-m", "ortflash.measure", str(model), str(feed), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise OrtflashError(f"Running {model.name} failed: {last[0]}")
    data = json.loads(done.stdout)
    return Measurement(data["time_ms"], data["peak_bytes"])


def _run(model: str, feed: str, output: str) -> None:
    """What the process does."""
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
    print(json.dumps({"time_ms": statistics.median(times), "peak_bytes": peak_bytes()}))
    np.savez(output, **{value.name: array for value, array in zip(session.get_outputs(), results, strict=True)})


def peak_bytes() -> int:
    """Largest resident set of this process so far.

    From /proc, because ``getrusage`` counts what the parent held before this process became its own.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except FileNotFoundError:
        import resource

        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


if __name__ == "__main__":
    _run(*sys.argv[1:])
