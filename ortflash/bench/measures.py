"""What rows are judged by beyond the best peer's time: ratios that a table shows in columns of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .results import Figure, Row

PYTORCH = ("cuDNN", "FlashAttention-2", "memory-efficient")
FLASH_ATTN_4 = "flash-attn-4"
TERMS = ("bias", "mask", "key_lengths")
"""Sizes of a call that its plain form lacks."""


def columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Title -> a cell a row; only columns in which some row has something."""
    found = {title: [cell(row, rows) for row in rows] for title, cell in _COLUMNS.items()}
    return {title: cells for title, cells in found.items() if any(cells)}


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product."""
    return math.exp(sum(map(math.log, values)) / len(values))


def means_by_peer(rows: Sequence[Row]) -> dict[str, tuple[float, int]]:
    """Peer -> geometric mean of its time over ours, and in how many rows; peers of a single row are left out."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        ours = row.ours
        if ours is None:
            continue
        for name, figure in row.peers.items():
            ratios.setdefault(name, []).append(figure.time_ms / ours.time_ms)
    return {name: (geometric_mean(found), len(found)) for name, found in ratios.items() if len(found) > 1}


def _has_term(row: Row) -> bool:
    return any(row.sizes.get(term) for term in TERMS)


def _against_pytorch(row: Row, _: Sequence[Row]) -> str:
    return _against(row, PYTORCH) if _has_term(row) else ""


def _against_flash_attn_4(row: Row, _: Sequence[Row]) -> str:
    return _against(row, (FLASH_ATTN_4,)) if _has_term(row) else ""


def _against(row: Row, names: Sequence[str]) -> str:
    times = [figure.time_ms for name, figure in row.peers.items() if name in names]
    return f"{min(times) / row.ours.time_ms:.2f}x" if times and row.ours else ""


def _of_plain_speed(row: Row, rows: Sequence[Row]) -> str:
    """TFLOP/s over those of the row of the same sizes without any term."""
    if not _has_term(row) or row.ours is None or not row.ours.tflops:
        return ""
    for other in rows:
        same = all(row.sizes[key] == other.sizes.get(key) for key in row.sizes if key not in (*TERMS, "clocks"))
        if same and not _has_term(other) and other.ours is not None and other.ours.tflops:
            return f"{row.ours.tflops / other.ours.tflops:.0%}"
    return ""


def _of_copy_speed(row: Row, _: Sequence[Row]) -> str:
    speed = row.sizes.get("copy_bytes_per_s")
    return f"{row.sizes['kv_bytes'] / row.ours.time_ms * 1e3 / speed:.0%}" if speed and row.ours else ""


def _attention(row: Row, _: Sequence[Row]) -> str:
    return _least(row, lambda figure: figure.attention_ms)


def _memory(row: Row, _: Sequence[Row]) -> str:
    return _least(row, lambda figure: figure.peak_bytes) if "length" in row.sizes else ""


def _least(row: Row, value: Callable[[Figure], float | None]) -> str:
    """The least of the peers over ours."""
    theirs = [found for figure in row.peers.values() if (found := value(figure))]
    mine = value(row.ours) if row.ours else None
    return f"{min(theirs) / mine:.2f}x" if theirs and mine else ""


_COLUMNS: dict[str, Callable[[Row, Sequence[Row]], str]] = {
    "against the best of PyTorch": _against_pytorch,
    "against flash-attn-4": _against_flash_attn_4,
    "of the speed without": _of_plain_speed,
    "of the speed of a copy": _of_copy_speed,
    "attention's own time, least peer's over ours": _attention,
    "memory, least peer's over ours": _memory,
}
