"""How candidates are timed so that the order and the power limit of a GPU don't decide who wins.

A GPU that runs without a pause lowers its clock, and whoever runs after a candidate that drew little power gains. So
each candidate runs briefly after a pause, the order rotates from repetition to repetition, and the median counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Protocol:
    """Repetitions, and the pause in ms before each candidate's turn."""

    repetitions: int = 9
    pause_ms: float = 0.0

    def sentence(self, unit: str) -> str:
        """For a table's caption."""
        pause = f" after {self.pause_ms:.0f} ms of idling" if self.pause_ms else ""
        return f"Median of {self.repetitions} repetitions in rotated order, {unit}{pause}."


def race(candidates: Mapping[str, Callable[[], float]], protocol: Protocol) -> dict[str, float]:
    """Median time in ms of each candidate; a candidate is a call that runs once and returns its own time in ms."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for repetition in range(protocol.repetitions):
        shift = repetition % max(1, len(names))
        for name in names[shift:] + names[:shift]:
            if protocol.pause_ms:
                time.sleep(protocol.pause_ms / 1e3)
            times[name].append(candidates[name]())
    return {name: statistics.median(found) for name, found in times.items()}


def wall_clock(run: Callable[[], object]) -> Callable[[], float]:
    """A candidate out of a synchronous call."""

    def timed() -> float:
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)

    return timed
