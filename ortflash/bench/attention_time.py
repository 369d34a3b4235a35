"""What a model's attention takes on a GPU: the kernels that its attention nodes launch, without the gaps between them.

ONNX Runtime's profile knows when the host was at which node, PyTorch's profiler which kernel was launched when and for
how long it ran; their clocks are brought together by moving one against the other until the launches fall into nodes.
A node's time in ONNX Runtime's profile alone is the host's: nodes only queue their kernels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

OPERATORS = frozenset({"FlashAttention", "Attention", "MultiHeadAttention", "PackedMultiHeadAttention"})
RUNS = 3
"""Profiled runs at a length, after one that isn't."""
_LEAST_INSIDE = 0.9
_STEP_US, _REACH_US = 1.0, 3000.0


@dataclass(frozen=True)
class Launch:
    """A kernel or copy that the host queued."""

    at_us: float
    takes_us: float


@dataclass(frozen=True)
class Node:
    """Where the host was."""

    operator: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class GpuTime:
    """Of one run."""

    all_ms: float
    attention_ms: float | None
    """None where the file has no attention node, or where launches and nodes could not be matched."""


def measure(session: Any, runs: Iterable[Callable[[], object]]) -> list[GpuTime]:
    """Times for each bound run in turn; the session was made with profiling on, and its profile ends here."""
    launches = []
    for run in runs:
        run()
        launches.append(_profiled(run))
    path = Path(session.end_profiling())
    events = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    by_run = nodes_by_run(events)[-len(launches) * (1 + RUNS) :]
    found = []
    for index, queued in enumerate(launches):
        nodes = [node for each in by_run[index * (1 + RUNS) + 1 : (index + 1) * (1 + RUNS)] for node in each]
        found.append(gpu_time(queued, nodes))
    return found


def gpu_time(launches: Sequence[Launch], nodes: Sequence[Node]) -> GpuTime:
    """The times of one of ``RUNS`` runs."""
    total = sum(launch.takes_us for launch in launches) / RUNS / 1e3
    owners = owners_of(launches, nodes) if any(node.operator in OPERATORS for node in nodes) else None
    if owners is None:
        return GpuTime(total, None)
    attention = sum(
        launch.takes_us
        for launch, owner in zip(launches, owners, strict=True)
        if owner is not None and nodes[owner].operator in OPERATORS
    )
    return GpuTime(total, attention / RUNS / 1e3)


def owners_of(launches: Sequence[Launch], nodes: Sequence[Node]) -> list[int | None] | None:
    """The node that each launch belongs to; None where no shift of the clocks brings them together.

    Both come in the order of time. The first guess lets both end together.
    """
    if not launches or not nodes:
        return None
    at = np.array([launch.at_us for launch in launches])
    starts = np.array([node.start_us for node in nodes])
    ends = np.array([node.end_us for node in nodes])
    guess = ends[-1] - at[-1]
    shifts = guess + np.arange(-_REACH_US, _REACH_US + _STEP_US, _STEP_US)
    inside = np.array([np.count_nonzero(_index(at + shift, starts, ends) >= 0) for shift in shifts])
    best = np.flatnonzero(inside == inside.max())
    if inside.max() < _LEAST_INSIDE * len(launches):
        return None
    found = _index(at + shifts[best[len(best) // 2]], starts, ends)
    return [int(index) if index >= 0 else None for index in found]


def _index(at: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The interval that holds each time, or -1."""
    found = np.searchsorted(starts, at, side="right") - 1
    return np.where((found >= 0) & (at <= ends[found]), found, -1)


def nodes_by_run(events: Iterable[Mapping[str, Any]]) -> list[list[Node]]:
    """ONNX Runtime's profile as the nodes of each run, in the order of time."""
    listed = sorted(events, key=lambda event: float(event.get("ts", 0)))
    ends = [float(e["ts"]) + float(e["dur"]) for e in listed if e.get("name") == "model_run"]
    found: list[list[Node]] = [[] for _ in ends]
    run = 0
    for event in listed:
        if event.get("cat") != "Node" or not str(event["name"]).endswith("_kernel_time"):
            continue
        start = float(event["ts"])
        while run < len(ends) and start > ends[run]:
            run += 1
        if run < len(ends):
            found[run].append(Node(event["args"]["op_name"], start, start + float(event["dur"])))
    return found


def _profiled(run: Callable[[], object]) -> list[Launch]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(RUNS):
            run()
        torch.cuda.synchronize()
    events = profiler.profiler.kineto_results.events()
    gpu = torch.autograd.DeviceType.CUDA
    queued = {event.correlation_id(): event.start_ns() / 1e3 for event in events if event.device_type() != gpu}
    launches = [
        Launch(queued[event.correlation_id()], event.duration_ns() / 1e3)
        for event in events
        if event.device_type() == gpu and event.correlation_id() in queued
    ]
    return sorted(launches, key=lambda launch: launch.at_us)
