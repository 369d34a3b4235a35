"""Constant masks that leave out whole blocks, so that the kernel never loads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .op_schema import schema

MIN_SKIPPED = 0.25
"""A block mask is worth an input where at least this part of the blocks is left out."""

NEARLY_BEST = 0.9
"""Larger blocks are taken where they leave out at least this part of what the smallest do."""


@dataclass(frozen=True)
class Blocks:
    """Which blocks of the scores anything takes part in."""

    size: int
    taken: np.ndarray
    """bool (..., ceil(S/size), ceil(T/size))."""
    whole: bool
    """Whether every block is taken or left out as a whole, so that the mask itself says no more."""


def blocks_of(keep: np.ndarray) -> Blocks | None:
    """The blocks of a bool (..., S, T) mask; ``None`` where too few are left out to bother."""
    found: list[Blocks] = []
    for size in sorted(int(choice) for choice in schema().attribute("block_size").choices):
        if size > min(keep.shape[-2:]):
            continue
        some, every = _reduced(keep, size, every=False), _reduced(keep, size, every=True)
        found.append(Blocks(size, some, bool((some == every).all())))
    skipped = [1.0 - float(blocks.taken.mean()) for blocks in found]
    best = max(skipped, default=0.0)
    if best < MIN_SKIPPED:
        return None
    return next(
        blocks for blocks, part in reversed(list(zip(found, skipped, strict=True))) if part >= NEARLY_BEST * best
    )


def _reduced(keep: np.ndarray, size: int, *, every: bool) -> np.ndarray:
    """Whether anything, or everything, in each block is taken; a block at the edge is smaller."""
    rows, columns = keep.shape[-2:]
    padded = np.full((*keep.shape[:-2], -rows % size + rows, -columns % size + columns), every)
    padded[..., :rows, :columns] = keep
    split = padded.reshape(*keep.shape[:-2], padded.shape[-2] // size, size, padded.shape[-1] // size, size)
    return np.asarray(split.all(axis=(-3, -1)) if every else split.any(axis=(-3, -1)))
