"""Dropout's mask in NumPy, bit for bit as ``plugin_src/core/dropout.h`` defines it for every implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_COLUMNS = 8  # that share one Philox call


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """Philox4x32-10 of counters (four broadcastable arrays of 32-bit words) under one key of two 32-bit words."""
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    low, high = key
    for _ in range(10):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ np.uint64(low),
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ np.uint64(high),
            product0 & _LOW,
        )
        low, high = (low + _STEPS[0]) & 0xFFFFFFFF, (high + _STEPS[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def keep_mask(seed: int, offset: int, dropout_p: float, batch: int, head: int, rows: int, columns: int) -> Array:
    """Which weights of one head are kept.

    Args:
        seed: First number of ``dropout_seed``; any int64.
        offset: The second.
        dropout_p: Rate in [0, 1).
        batch: Index of the batch.
        head: Index of the query head.
        rows: S.
        columns: T.

    Returns:
        bool (S,T), True = kept.
    """
    words = philox(
        (offset & 0xFFFFFFFF, (offset >> 32) & 0xFFFFFFFF, 0, 0), (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    )
    group = np.arange(-(-columns // _COLUMNS))[None, :]
    drawn = np.stack(philox((group, np.arange(rows)[:, None], head, batch), (int(words[0]), int(words[1]))), axis=-1)
    halves = np.stack((drawn & np.uint64(0xFFFF), drawn >> np.uint64(16)), axis=-1)  # (S, groups, 4, 2)
    # The rate as the core has it: a float.
    threshold = int(np.float32(dropout_p) * np.float32(65536) + np.float32(0.5))
    keep: Array = halves.reshape(rows, -1)[:, :columns] >= threshold
    return keep
