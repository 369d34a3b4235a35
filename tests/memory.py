"""Calls that show by their memory what was read or written that mustn't be."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases import DTYPES, Array, AttentionCase
from compare import Expected, expect


def in_poison(array: Array, *, row_gap: int, poison: float = np.nan) -> Array:
    """A copy of a 4-D array whose rows lie `row_gap` elements apart, in memory full of `poison`."""
    batch, heads, rows, columns = array.shape
    memory = np.full((batch + 2, heads + 2, rows + 2, columns + row_gap), poison, array.dtype)
    view = memory[1:-1, 1:-1, 1:-1, row_gap // 2 : row_gap // 2 + columns]
    view[...] = array
    return view


def guarded(case: AttentionCase, row_gap: int) -> tuple[dict[str, Array], Array]:
    """A case's inputs, and memory for its output, each surrounded by poison."""
    inputs = case.make_inputs()
    for name in ("query", "key", "value", "attn_bias"):
        inputs[name] = in_poison(inputs[name], row_gap=row_gap)
    inputs["attn_mask"] = in_poison(inputs["attn_mask"], row_gap=row_gap, poison=True)
    return inputs, in_poison(np.zeros(case.shape("BNSE"), DTYPES[case.dtype]), row_gap=row_gap)


def assert_surroundings_untouched(out: Array, row_gap: int) -> None:
    """The poison round an output of :func:`guarded` is still there."""
    assert isinstance(out.base, np.ndarray)
    untouched = np.ones(out.base.shape, bool)
    untouched[1:-1, 1:-1, 1:-1, row_gap // 2 : row_gap // 2 + out.shape[-1]] = False
    assert np.isnan(out.base.astype(np.float32)[untouched]).all()


def with_unread_keys(dtype: str, window_left: int = -1) -> tuple[AttentionCase, dict[str, Any], Expected]:
    """A call with NaN in the keys and values that take no part, from which it would reach the output as 0 * NaN."""
    case = AttentionCase(
        "unread", batch=2, q_len=100, kv_len=200, key_lengths=(77, 200), blocks="C", block_size=16, dtype=dtype,
        window_left=window_left,
    )  # fmt: skip
    inputs = case.make_inputs()
    blocks = inputs["block_mask"]
    assert 3 < blocks.sum() < len(blocks)
    expected = expect(case)[0]
    for name in ("key", "value"):
        inputs[name][0, :, 77:] = np.nan
        inputs[name][:, :, ~blocks.repeat(16)[:200]] = np.nan
    return case, inputs, expected
