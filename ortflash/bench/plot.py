"""Results as a picture: TFLOP/s by sequence length, or time by the density of a block mask; a panel a kind of call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError, OrtflashError
from .results import OURS, Benchmark, Row

_COLUMNS = 2
_PANEL_INCHES = (4.8, 3.0)


def plot_lengths(benchmark: Benchmark, output: Path, dtype: str = "float16") -> None:
    """Draw S against TFLOP/s, a panel for each head size and mask of rows of ``dtype``; the suffix says the format.

    Raises:
        MissingExtraError: matplotlib isn't installed.
        OrtflashError: No rows of that type at more than one length.
    """
    panels = _panels(benchmark, dtype)
    if not panels:
        raise OrtflashError(f"{benchmark.name} has no calls in {dtype} at several lengths to draw.")
    with _canvas(
        len(panels), output, f"{benchmark.machine.get('GPU', '')}, {dtype}: TFLOP/s by sequence length"
    ) as axes:
        for axis, (title, rows) in zip(axes, panels.items(), strict=True):
            _draw(axis, title, rows)


@contextmanager
def _canvas(panels: int, output: Path, title: str) -> Iterator[list[Any]]:
    """Axes for so many panels; saved in the end."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise MissingExtraError("matplotlib", "bench") from None
    lines = -(-panels // _COLUMNS)
    with matplotlib.rc_context({"svg.hashsalt": "ortflash", "font.size": 9}):
        canvas = Canvas(figsize=(_COLUMNS * _PANEL_INCHES[0], lines * _PANEL_INCHES[1]), layout="constrained")
        axes = list(canvas.subplots(lines, _COLUMNS, squeeze=False).flat)
        for axis in axes[panels:]:
            axis.set_visible(False)
        yield axes[:panels]
        canvas.suptitle(title)
        canvas.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None)


def plot_densities(benchmark: Benchmark, output: Path) -> None:
    """Draw time against the density of the block mask, a panel for forward and backward, with the proportional line.

    Raises:
        MissingExtraError: matplotlib isn't installed.
        OrtflashError: No rows of several densities at one length.
    """
    panels: dict[str, list[Row]] = {}
    for row in benchmark.rows:
        if "density" in row.sizes and row.figures[OURS].ran:
            panels.setdefault(f"{row.sizes['pass']}, S {row.sizes['length']}", []).append(row)
    panels = {title: rows for title, rows in panels.items() if len(rows) > 1}
    if not panels:
        raise OrtflashError(f"{benchmark.name} has no calls of several densities to draw.")
    with _canvas(len(panels), output, f"{benchmark.machine.get('GPU', '')}: time by density of the block mask") as axes:
        for axis, (title, rows) in zip(axes, panels.items(), strict=True):
            densities = [row.sizes["density"] for row in rows]
            dense = rows[0].figures[OURS].time_ms / densities[0]
            axis.plot(densities, [row.figures[OURS].time_ms for row in rows], label=OURS, linewidth=2.5, marker="o")
            axis.plot(densities, [dense * share for share in densities], label="proportional", linestyle=":")
            for name in dict.fromkeys(name for row in rows for name, figure in row.figures.items() if figure.ran):
                if name != OURS:
                    axis.plot(densities, [row.figures[name].time_ms for row in rows], label=name, marker=".")
            axis.set_title(title)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(densities, [f"1/{round(1 / share)}" for share in densities])
            axis.set_ylabel("ms")
            axis.grid(alpha=0.3)
            axis.legend(fontsize=7)


def _panels(benchmark: Benchmark, dtype: str) -> dict[str, list[Row]]:
    panels: dict[str, list[Row]] = {}
    for row in benchmark.rows:
        if row.sizes.get("dtype") == dtype:
            mask = "causal" if row.sizes["is_causal"] else "full"
            panels.setdefault(f"head {row.sizes['head_size']}, {mask}", []).append(row)
    return {title: rows for title, rows in panels.items() if len({row.sizes["q_len"] for row in rows}) > 1}


def _draw(axis: Any, title: str, rows: list[Row]) -> None:
    names = sorted({name for row in rows for name, figure in row.figures.items() if figure.ran}, key=_ours_first)
    for name in names:
        points = [
            (row.sizes["q_len"], row.figures[name].tflops)
            for row in rows
            if name in row.figures and row.figures[name].ran
        ]
        style = {"linewidth": 2.5, "marker": "o"} if name == OURS else {"linewidth": 1.2, "marker": "."}
        axis.plot(*zip(*points, strict=True), label=name, **style)
    axis.set_title(title)
    axis.set_xscale("log", base=2)
    axis.set_xticks([row.sizes["q_len"] for row in rows], [str(row.sizes["q_len"]) for row in rows])
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)


def _ours_first(name: str) -> tuple[bool, str]:
    return name != OURS, name
