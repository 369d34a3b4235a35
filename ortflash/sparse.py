"""Builders of ``block_mask`` for the block-sparse patterns that models use.

Each gives a bool array (R,C), R = ceil(q_len / block_size) and C = ceil(kv_len / block_size): True blocks take part,
False ones are neither loaded nor computed. Patterns are combined with ``|`` and ``&``; different heads get different
ones by ``np.stack(masks)``, which broadcasts as (N,R,C). Distances are counted in blocks: a pattern that has to be
exact to the token takes the operator's ``window_left``, ``is_causal`` or ``attn_mask`` beside it. Where lengths differ,
rows are aligned with the first keys, as ``causal_alignment="top_left"`` does.

Sizes that make no pattern (negative lengths, a block, step or stride of 0) raise :class:`~.errors.OrtflashError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from .errors import OrtflashError

BlockMask = NDArray[np.bool_]


def sliding_window(q_len: int, kv_len: int, block_size: int = 128, *, left: int, right: int = 0) -> BlockMask:
    """Blocks with any key from ``left`` tokens before a row to ``right`` after it.

    Beltagy, Peters and Cohan, "Longformer", 2020, section 3.1; Mistral's and Gemma's local layers. With the operator's
    ``window_left=left, window_right=right`` beside it, the pattern is exact.
    """
    _check(left=left, right=right)
    rows, columns = _indices(q_len, kv_len, block_size)
    first, last = columns * block_size, np.minimum((columns + 1) * block_size, kv_len) - 1
    top, bottom = rows * block_size, np.minimum((rows + 1) * block_size, q_len) - 1
    mask: BlockMask = (last >= top - left) & (first <= bottom + right)
    return mask


def dilated(q_len: int, kv_len: int, block_size: int = 128, *, window: int, dilation: int) -> BlockMask:
    """Every ``dilation``-th block up to ``window`` such steps before and after the diagonal.

    The dilated sliding window of Beltagy, Peters and Cohan, "Longformer", 2020, section 3.1, by blocks.
    """
    _check(window=window)
    _check(1, dilation=dilation)
    rows, columns = _indices(q_len, kv_len, block_size)
    distance = np.abs(rows - columns)
    mask: BlockMask = (distance % dilation == 0) & (distance <= window * dilation)
    return mask


def bigbird(
    q_len: int,
    kv_len: int,
    block_size: int = 64,
    *,
    window: int = 3,
    global_blocks: int = 2,
    random_blocks: int = 3,
    seed: int = 0,
) -> BlockMask:
    """``window`` blocks round the diagonal, the first ``global_blocks`` rows and columns, ``random_blocks`` a row.

    Zaheer et al., "Big Bird: Transformers for Longer Sequences", 2020, section 2 and appendix D, with the defaults of
    its base models. Random blocks are drawn without repetition among those that the rest leaves open.
    """
    _check(window=window, global_blocks=global_blocks, random_blocks=random_blocks, seed=seed)
    rows, columns = _indices(q_len, kv_len, block_size)
    mask = np.asarray(
        (np.abs(rows - columns) <= window // 2) | (rows < global_blocks) | (columns < global_blocks), np.bool_
    )
    rng = np.random.default_rng(seed)
    for row in mask:
        open_blocks = np.flatnonzero(~row)
        row[rng.permutation(open_blocks)[:random_blocks]] = True
    return mask


def longformer(
    q_len: int, kv_len: int, block_size: int = 128, *, window: int, global_tokens: Sequence[int] = (0,)
) -> BlockMask:
    """A window of ``window`` tokens, half on each side, and rows and columns of the blocks with ``global_tokens``.

    Beltagy, Peters and Cohan, "Longformer", 2020, sections 3.1 and 3.2; the default is the classification token.
    """
    _check(window=window)
    rows, columns = _indices(q_len, kv_len, block_size)
    for token in global_tokens:
        _check(global_tokens=token)
    chosen = np.unique(np.asarray(global_tokens, np.int64) // block_size)
    local = sliding_window(q_len, kv_len, block_size, left=window // 2, right=window // 2)
    mask: BlockMask = local | np.isin(rows, chosen) | np.isin(columns, chosen)
    return mask


def strided(q_len: int, kv_len: int, block_size: int = 128, *, stride: int) -> BlockMask:
    """The ``stride`` blocks up to the diagonal, and every ``stride``-th block before them; causal.

    The strided pattern of Child, Gray, Radford and Sutskever, "Generating Long Sequences with Sparse Transformers",
    2019, section 4.3, by blocks. The diagonal's blocks need the operator's ``is_causal=1`` to be exact.
    """
    _check(1, stride=stride)
    rows, columns = _indices(q_len, kv_len, block_size)
    distance = rows - columns
    mask: BlockMask = (distance >= 0) & ((distance < stride) | (distance % stride == 0))
    return mask


def butterfly(q_len: int, kv_len: int, block_size: int = 128, *, max_stride: int | None = None) -> BlockMask:
    """Blocks (i, j) with i == j, or i and j apart in one bit below ``max_stride`` (default: all bits).

    The flat block butterfly of Chen et al., "Pixelated Butterfly", 2022, which block-sparse FlashAttention uses (Dao et
    al., 2022, section 3.3): the non-zero blocks of I + B2 + B4 + ... in which any product of butterfly factors is
    approximated. About log2(C) / C of the blocks.
    """
    _check(1, max_stride=1 if max_stride is None else max_stride)
    rows, columns = _indices(q_len, kv_len, block_size)
    differing = rows ^ columns
    power_of_two = (differing & (differing - 1)) == 0  # and 0
    mask: BlockMask = power_of_two & (differing < (max_stride or max(rows.size, columns.size) * 2))
    return mask


def density(mask: BlockMask) -> float:
    """Share of the blocks that take part; 0 where there are none."""
    return float(mask.mean()) if mask.size else 0.0


def to_elements(mask: BlockMask, q_len: int, kv_len: int, block_size: int) -> NDArray[np.bool_]:
    """The same pattern as a mask of elements, bool (..., S, T): what a model without block-sparse kernels needs."""
    rows, columns = _indices(q_len, kv_len, block_size)
    if mask.shape[-2:] != (rows.size, columns.size):
        raise OrtflashError(
            f"The mask has shape {mask.shape}; {q_len} rows and {kv_len} keys in blocks of {block_size} need "
            f"(..., {rows.size}, {columns.size})."
        )
    repeated: NDArray[np.bool_] = mask.repeat(block_size, -2).repeat(block_size, -1)[..., :q_len, :kv_len]
    return repeated


def _indices(q_len: int, kv_len: int, block_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Index of each block row (R,1) and of each block column (1,C)."""
    _check(q_len=q_len, kv_len=kv_len)
    _check(1, block_size=block_size)
    rows, columns = np.arange(-(-q_len // block_size)), np.arange(-(-kv_len // block_size))
    return rows[:, None], columns[None, :]


def _check(least: int = 0, **sizes: object) -> None:
    """OrtflashError where a size isn't a whole number of ``least`` or more."""
    for name, size in sizes.items():
        if not isinstance(size, Integral) or int(size) < least:
            raise OrtflashError(f"{name} is {size!r}; it must be a whole number of {least} or more.")
