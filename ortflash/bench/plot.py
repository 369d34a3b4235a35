"""Results of a grid over sequence lengths as a picture: TFLOP/s of ours and of each peer, a panel a kind of call."""

from __future__ import annotations

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
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise MissingExtraError("matplotlib", "bench") from None
    lines = -(-len(panels) // _COLUMNS)
    with matplotlib.rc_context({"svg.hashsalt": "ortflash", "font.size": 9}):
        canvas = Canvas(figsize=(_COLUMNS * _PANEL_INCHES[0], lines * _PANEL_INCHES[1]), layout="constrained")
        axes = canvas.subplots(lines, _COLUMNS, squeeze=False).flat
        for axis, (title, rows) in zip(axes, panels.items(), strict=False):
            _draw(axis, title, rows)
        for axis in list(axes)[len(panels) :]:
            axis.set_visible(False)
        canvas.suptitle(f"{benchmark.machine.get('GPU', '')}, {dtype}: TFLOP/s by sequence length")
        canvas.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None)


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
