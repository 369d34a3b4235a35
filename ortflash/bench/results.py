"""What a benchmark found: rows of candidates, as JSON in ``docs/benchmarks`` and as Markdown tables."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import OrtflashError
from . import measures
from .measures import geometric_mean

OURS = "ortflash"


def is_ours(name: str) -> bool:
    """Whether a candidate is ours: a model may have several, such as ``ortflash, opset 23``."""
    return name == OURS or name.startswith(f"{OURS}, ")


@dataclass(frozen=True)
class Figure:
    """One candidate in one case."""

    time_ms: float
    """Median."""
    tflops: float | None = None
    error: float | None = None
    """Largest absolute difference from the fp32 (on the CPU: float64) result."""
    peak_bytes: int | None = None
    moved_bytes: int | None = None
    """Read from and written to the GPU's memory."""
    attention_ms: float | None = None
    """Of a whole model: what its attention nodes take of the time."""
    note: str = ""
    """Which kernel ran, or why the candidate has no time (then ``time_ms`` is NaN) or not all that belongs to it."""

    @property
    def ran(self) -> bool:
        """Whether there is a time."""
        return not math.isnan(self.time_ms)


@dataclass(frozen=True)
class Row:
    """One case: candidate -> figure."""

    case: str
    figures: dict[str, Figure]
    sizes: dict[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> Figure | None:
        """The fastest of our candidates; None where none ran."""
        found = [figure for name, figure in self.figures.items() if is_ours(name) and figure.ran]
        return min(found, key=lambda figure: figure.time_ms, default=None)

    @property
    def peers(self) -> dict[str, Figure]:
        """The candidates that aren't ours and ran."""
        return {name: figure for name, figure in self.figures.items() if not is_ours(name) and figure.ran}

    @property
    def best_peer(self) -> str | None:
        """The fastest candidate that isn't ours; None where no peer takes the case."""
        peers = self.peers
        return min(peers, key=lambda name: peers[name].time_ms, default=None)

    @property
    def ratio(self) -> float | None:
        """Best peer's time over ours: above 1 we are faster."""
        best, ours = self.best_peer, self.ours
        if best is None or ours is None:
            return None
        return self.figures[best].time_ms / ours.time_ms


@dataclass(frozen=True)
class Benchmark:
    """A table with all that is needed to read it."""

    name: str
    command: str
    machine: dict[str, str]
    protocol: str
    rows: tuple[Row, ...]

    def save(self, folder: Path) -> Path:
        """Write ``NAME.json``; the path."""
        path = folder / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_without_nan(dataclasses.asdict(self)), indent=1) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> Benchmark:
        """Read what :meth:`save` wrote; OrtflashError where the file is another."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            rows = tuple(_read_row(row) for row in data["rows"])
            return cls(data["name"], data["command"], data["machine"], data["protocol"], rows)
        except (ValueError, KeyError, TypeError):
            raise OrtflashError(f"{path} isn't a file of results that ortflash bench wrote.") from None

    def markdown(self) -> str:
        """The table, with the machine and the command above it."""
        names = _candidates(self.rows)
        extra = measures.columns(self.rows)
        machine = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        lines = [
            f"**{self.name}**: `{self.command}`",
            "",
            f"{machine}. {self.protocol}",
            "",
            "| case | "
            + " | ".join(names)
            + " | "
            + " | ".join(["ours against the best peer", *extra, "largest error |"]),
            "|---" * (len(names) + len(extra) + 3) + "|",
        ]
        for number, row in enumerate(self.rows):
            cells = [_cell(row.figures.get(name)) for name in names]
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}x ({row.best_peer})"
            ours = row.ours
            error = "" if ours is None or ours.error is None else f"{ours.error:.1e}"
            cells += [ratio, *(column[number] for column in extra.values()), error]
            lines.append(f"| {row.case} | " + " | ".join(cells) + " |")
        ratios = [row.ratio for row in self.rows if row.ratio is not None]
        if len(ratios) > 1:
            lines += ["", f"Geometric mean against the best peer of each row: {geometric_mean(ratios):.2f}x."]
            each = [f"{mean:.2f}x of {name} ({n})" for name, (mean, n) in measures.means_by_peer(self.rows).items()]
            if len(each) > 1:
                lines[-1] += f" Against each peer, where it ran (rows): {', '.join(each)}."
        return "\n".join(lines)


def _read_row(row: dict[str, Any]) -> Row:
    figures = {
        name: Figure(**{**figure, "time_ms": math.nan if figure["time_ms"] is None else figure["time_ms"]})
        for name, figure in row["figures"].items()
    }
    return Row(row["case"], figures, row["sizes"])


def summary(benchmarks: Sequence[Benchmark]) -> str:
    """One line a benchmark: how ours stands against the best peer of each row."""
    lines = ["| what | rows | geometric mean | least | most | command |", "|---" * 6 + "|"]
    for benchmark in benchmarks:
        rated = sorted(((row.ratio, row) for row in benchmark.rows if row.ratio is not None), key=lambda pair: pair[0])
        if not rated:
            continue
        mean = geometric_mean([ratio for ratio, _ in rated])
        ends = [f"{ratio:.2f}x of {row.best_peer}: {row.case}" for ratio, row in (rated[0], rated[-1])]
        lines.append(
            f"| {benchmark.name} | {len(rated)} | {mean:.2f}x | {ends[0]} | {ends[1]} | `{benchmark.command}` |"
        )
    return "\n".join(lines)


def _candidates(rows: Sequence[Row]) -> list[str]:
    """Every candidate that appears, ours first, in order of appearance."""
    names = dict.fromkeys(name for row in rows for name in row.figures)
    return sorted(names, key=lambda name: not is_ours(name))


def _cell(figure: Figure | None) -> str:
    if figure is None or not figure.ran:
        return ""
    memory = "" if figure.peak_bytes is None else f", {figure.peak_bytes / 2**20:.0f} MiB"
    memory += "" if figure.moved_bytes is None else f", {figure.moved_bytes / 1e9:.2f} GB"
    memory += "" if figure.attention_ms is None else f", attention {figure.attention_ms:.3g} ms"
    if figure.tflops is None:
        return f"{figure.time_ms:.3g} ms{memory}"
    rate = f"{figure.tflops:.0f} TFLOP/s" if figure.tflops >= 10 else f"{1e3 * figure.tflops:.0f} GFLOP/s"
    return f"{figure.time_ms:.3g} ms, {rate}{memory}"


def _without_nan(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
