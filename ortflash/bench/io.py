"""Device memory that attention moves, forward and backward: the table of the FlashAttention paper's Figure 2.

A process of its own runs every candidate under ncu (:mod:`.io_target`), with a kernel of no work between two of them;
this module starts it and adds up what ncu wrote.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import OrtflashError
from .results import Figure, Row

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum")
SEPARATOR = "spin_kernel"
"""Part of the name of the kernel that stands before each step (torch.cuda._sleep)."""
PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Traffic:
    """What one step moved between the chip and its memory, and for how long its kernels ran."""

    read_bytes: int = 0
    written_bytes: int = 0
    time_ns: int = 0
    kernels: int = 0

    def plus(self, other: Traffic) -> Traffic:
        """Both, one after the other."""
        return Traffic(
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
            self.time_ns + other.time_ns,
            self.kernels + other.kernels,
        )


def measure(batch: int, heads: int, length: int, head_size: int, candidates: Sequence[str]) -> list[Row]:
    """Rows forward, backward and both, with a figure a candidate.

    Raises:
        OrtflashError: ncu is missing or failed.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise OrtflashError("ncu was not found: install NVIDIA Nsight Compute, which comes with the CUDA toolkit.")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [ncu, "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off",
                   "--metrics", ",".join(METRICS), "--csv", "--page", "raw", "--print-units", "base",
                   "--log-file", str(log), sys.executable, "-m", "ortflash.bench.io_target",
                   *map(str, (batch, heads, length, head_size)), *candidates]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0 or not log.is_file():
            last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise OrtflashError(f"ncu did not measure anything: {last}")
        steps = list(steps_of(log.read_text(encoding="utf-8").splitlines()))
    return rows_of(steps, candidates, f"B {batch}, {heads} heads of {head_size}, S {length}, float16")


def steps_of(lines: Iterable[str]) -> Iterator[Traffic]:
    """The traffic between each separator and the next, from ncu's CSV of raw metrics in base units."""
    table = csv.reader(line for line in lines if line.startswith('"'))
    header = next(table, [])
    missing = [name for name in ("Kernel Name", *METRICS) if name not in header]
    if missing:
        raise OrtflashError(f"ncu's output has no column {missing[0]!r}.")
    name_column, *columns = (header.index(name) for name in ("Kernel Name", *METRICS))
    next(table, None)  # units
    step: Traffic | None = None
    for record in table:
        if SEPARATOR in record[name_column]:
            if step is not None:
                yield step
            step = Traffic()
        elif step is not None:
            read, written, time = (round(float(record[column].replace(",", ""))) for column in columns)
            step = step.plus(Traffic(read, written, time, 1))
    if step is not None:
        yield step


def rows_of(steps: Sequence[Traffic], candidates: Sequence[str], label: str) -> list[Row]:
    """Steps in the order of the target: forward and backward of each candidate.

    Raises:
        OrtflashError: There are more or fewer.
    """
    if len(steps) != len(PASSES) * len(candidates):
        raise OrtflashError(f"ncu saw {len(steps)} steps instead of {len(PASSES) * len(candidates)}.")
    found = {name: dict(zip(PASSES, steps[2 * i : 2 * i + 2], strict=True)) for i, name in enumerate(candidates)}
    for both in found.values():
        both["both"] = both["forward"].plus(both["backward"])
    return [
        Row(f"{what}, {label}", {name: _figure(by_pass[what]) for name, by_pass in found.items()})
        for what in (*PASSES, "both")
    ]


def _figure(traffic: Traffic) -> Figure:
    if traffic.kernels == 0:
        return Figure(float("nan"), note="ran no kernel")
    note = f"{traffic.read_bytes / 1e9:.3f} GB read, {traffic.written_bytes / 1e9:.3f} GB written"
    return Figure(
        traffic.time_ns / 1e6,
        moved_bytes=traffic.read_bytes + traffic.written_bytes,
        note=f"{note}, {traffic.kernels} kernels",
    )
