"""The operator in NumPy, twice: exactly, and as an unfused graph of the same type would compute it.

:func:`attention` evaluates everything in float64. :func:`reordered` is the yardstick for rounding: the same operator
in the inputs' own type with the operations in another order (keys scaled instead of scores, weights normalised and
rounded before the second product). An implementation is right where its error against :func:`attention` is at most
twice :func:`reordered`'s plus a floor (:func:`rounding_floor`).

Both take the operator's inputs and attributes by their names in flash_attention.toml, so a caller can write
``attention(**inputs, **attributes)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import dropout
from .attributes import UNBOUNDED, Attributes

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Problem(Attributes):
    """One call, with its inputs as 4-D arrays and its defaults filled in; ``scale`` is never 0."""

    query: Array  # (B,N,S,D)
    key: Array  # (B,M,T,D)
    value: Array  # (B,M,T,E)
    attn_bias: Array | None  # broadcastable to (B,N,S,T)
    attn_mask: Array | None  # bool, likewise
    key_lengths: Array | None  # (B,) or (1,)
    block_mask: Array | None  # bool, broadcastable to (B,N,ceil(S/block_size),ceil(T/block_size))
    sinks: Array | None  # (N,) or (1,)
    dropout_seed: Array | None  # (2,)
    packed: bool  # the inputs were 3-D, and so is the output

    @property
    def full_shape(self) -> tuple[int, int, int, int]:
        """(B,N,S,T)."""
        return (*self.query.shape[:3], self.key.shape[2])

    def keys_in_batch(self, batch: int) -> int:
        """``key_lengths[batch]`` clamped to [0, T], or T."""
        kv_len = int(self.key.shape[2])
        if self.key_lengths is None:
            return kv_len
        length = int(np.broadcast_to(self.key_lengths, self.query.shape[:1])[batch])
        return min(max(length, 0), kv_len)

    def takes_part(self, batch: int, head: int) -> Array:
        """Which keys each row sees, before ``attn_mask``: bool (S,T)."""
        _, _, q_len, kv_len = self.full_shape
        keys = self.keys_in_batch(batch)
        offset = keys - q_len if self.causal_alignment == "bottom_right" else 0
        diagonal = np.arange(q_len)[:, None] + offset
        column = np.arange(kv_len)[None, :]
        seen = np.broadcast_to(column < keys, (q_len, kv_len))
        if self.is_causal:
            seen = seen & (column <= diagonal)
        if self.window_left != UNBOUNDED:
            seen = seen & (diagonal - column <= self.window_left)
        if self.window_right != UNBOUNDED:
            seen = seen & (column - diagonal <= self.window_right)
        if self.block_mask is not None:
            blocks = (-(-q_len // self.block_size), -(-kv_len // self.block_size))
            mask = np.broadcast_to(self.block_mask, (*self.full_shape[:2], *blocks))[batch, head]
            mask = mask.repeat(self.block_size, 0)[:q_len].repeat(self.block_size, 1)[:, :kv_len]
            seen = seen & mask
        return np.asarray(seen)

    def heads(self) -> Iterator[tuple[int, int, int]]:
        """(batch, query head, key/value head) of every head."""
        batch, heads = self.query.shape[:2]
        for b in range(batch):
            for n in range(heads):
                yield b, n, n // (heads // self.key.shape[1])

    def slice_of(self, tensor: Array | None, batch: int, head: int) -> Array | None:
        """The (S,T) part of a broadcastable tensor."""
        return None if tensor is None else np.broadcast_to(tensor, self.full_shape)[batch, head]

    def sink(self, head: int) -> float:
        """The extra logit of a head; -inf where there is none."""
        if self.sinks is None:
            return -math.inf
        return float(np.broadcast_to(self.sinks, self.query.shape[1:2])[head])

    def dropout(self, batch: int, head: int) -> Array | float:
        """What each weight is multiplied by: 0 or 1/(1-p), float64 (S,T); 1 without dropout."""
        if not self.dropout_p or self.dropout_seed is None:
            return 1.0
        seed, offset = (int(x) for x in self.dropout_seed)
        keep = dropout.keep_mask(seed, offset, self.dropout_p, batch, head, *self.full_shape[2:])
        return np.asarray(keep / (1 - float(np.float32(self.dropout_p))))

    def in_layout(self, output: Array) -> Array:
        """(B,N,S,E) -> the layout of the inputs."""
        if not self.packed:
            return output
        batch, heads, q_len, size = output.shape
        packed: Array = output.transpose(0, 2, 1, 3).reshape(batch, q_len, heads * size)
        return packed


def problem(
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None = None,
    attn_mask: Array | None = None,
    key_lengths: Array | None = None,
    block_mask: Array | None = None,
    sinks: Array | None = None,
    dropout_seed: Array | None = None,
    **attributes: Any,
) -> Problem:
    """Bring a call's inputs to 4-D and fill in its defaults.

    Raises:
        ValueError: A 3-D input without its number of heads, or an attribute that there isn't.
    """
    wrong = Attributes.problem(attributes)
    if wrong:
        raise ValueError(wrong)
    given = Attributes.of(attributes)
    query4, key4, value4 = (
        _as_heads(name, array, heads)
        for name, array, heads in (
            ("query", query, given.num_heads),
            ("key", key, given.kv_num_heads),
            ("value", value, given.kv_num_heads),
        )
    )
    return Problem(
        **asdict(given) | {"scale": given.scale or 1.0 / math.sqrt(query4.shape[-1])},
        query=query4,
        key=key4,
        value=value4,
        attn_bias=attn_bias,
        attn_mask=attn_mask,
        key_lengths=key_lengths,
        block_mask=block_mask,
        sinks=sinks,
        dropout_seed=dropout_seed,
        packed=query.ndim == 3,
    )


def _as_heads(name: str, array: Array, heads: int) -> Array:
    """(B,rows,heads*size) -> (B,heads,rows,size); 4-D passes."""
    if array.ndim == 4:
        return array
    if array.ndim != 3 or heads <= 0 or array.shape[2] % heads:
        raise ValueError(f"{name} {list(array.shape)} can't be split into {heads} heads")
    batch, rows, packed = array.shape
    split: Array = array.reshape(batch, rows, heads, packed // heads).transpose(0, 2, 1, 3)
    return split


def attention(*inputs: Any, **named: Any) -> tuple[Array, Array]:
    """The operator in float64.

    Args:
        *inputs: As :func:`problem`.
        **named: As :func:`problem`.

    Returns:
        output, float64 in the inputs' layout, and softmax_lse (B,N,S) float64. A row in which nothing takes part is 0
        and -inf (or the sink).
    """
    p = problem(*inputs, **named)
    return _evaluate(p, p.query.astype(np.float64))


def _evaluate(p: Problem, query: Array) -> tuple[Array, Array]:
    """float64 :func:`attention` of ``p`` with its query replaced by a float64 one of the same shape."""
    output = np.zeros((*query.shape[:3], p.value.shape[3]))
    softmax_lse = np.full(query.shape[:3], -np.inf)
    for b, n, m in p.heads():
        score = p.scale * (query[b, n] @ p.key[b, m].astype(np.float64).T)
        if p.softcap:
            score = p.softcap * np.tanh(score / p.softcap)
        if (bias := p.slice_of(p.attn_bias, b, n)) is not None:
            score = score + bias.astype(np.float64)
        if (mask := p.slice_of(p.attn_mask, b, n)) is not None:
            score = np.where(mask, score, np.float64(np.float32(p.mask_fill)))
        score = np.where(p.takes_part(b, n), score, -np.inf)
        weight, total, top = softmax(score, p.sink(n))
        value = p.value[b, m].astype(np.float64)
        output[b, n] = ((weight * p.dropout(b, n)) @ value) / np.where(total == 0, 1, total)
        softmax_lse[b, n] = _log_sum(total, top)[:, 0]
    return p.in_layout(output), softmax_lse


def softmax(score: Array, sink: float) -> tuple[Array, Array, Array]:
    """exp(score - top), its sum with the sink (S,1), and top (S,1), in the scores' type; all 0 for a row of -inf."""
    kv_top = score.max(axis=1, keepdims=True, initial=-np.inf)
    top = np.maximum(kv_top, score.dtype.type(sink))
    top = np.where(np.isneginf(top), score.dtype.type(0), top)
    with np.errstate(under="ignore", over="ignore"):
        weight = np.exp(score - top)
        total = weight.sum(axis=1, keepdims=True) + np.exp(score.dtype.type(sink) - top)
    return weight, total, top


def _log_sum(total: Array, top: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(total) + top)


def reordered(*inputs: Any, tf32: bool = False, **named: Any) -> tuple[Array, Array]:
    """The operator as an unfused graph of the inputs' own type computes it, with the operations in another order.

    Scores and softmax are fp32 whatever the type, as the operator promises; the weights are normalised and rounded to
    the inputs' type before the second product, which a tiled implementation does not do.

    Args:
        *inputs: As :func:`problem`.
        tf32: Round the operands of both products as TF32 tensor cores do; for fp32 inputs on GPUs.
        **named: As :func:`problem`.

    Returns:
        output in the inputs' type and layout, and softmax_lse (B,N,S) float32.
    """
    p = problem(*inputs, **named)
    dtype = p.query.dtype
    operand = rounded_to_tf32 if tf32 else _as_float32
    output = np.zeros((*p.query.shape[:3], p.value.shape[3]), dtype)
    softmax_lse = np.full(p.query.shape[:3], -np.inf, np.float32)
    for b, n, m in p.heads():
        with np.errstate(over="ignore"):
            score = _dot_products(operand(p.query[b, n]), operand(_as_float32(p.key[b, m]) * np.float32(p.scale)))
            if p.softcap:
                score = np.float32(p.softcap) * np.tanh(score / np.float32(p.softcap))
            if (bias := p.slice_of(p.attn_bias, b, n)) is not None:
                score = score + bias.astype(np.float32)
        if (mask := p.slice_of(p.attn_mask, b, n)) is not None:
            score = np.where(mask, score, np.float32(p.mask_fill))
        score = np.where(p.takes_part(b, n), score, np.float32(-np.inf))
        weight, total, top = softmax(score, p.sink(n))
        weight = weight / np.where(total == 0, 1, total).astype(np.float32)
        weight = (weight * np.asarray(p.dropout(b, n), np.float32)).astype(dtype)
        output[b, n] = (operand(weight) @ operand(p.value[b, m])).astype(dtype)
        softmax_lse[b, n] = _log_sum(total, top)[:, 0]
    return p.in_layout(output), softmax_lse


def _dot_products(rows: Array, columns: Array) -> Array:
    """Multiply fp32 (S,D) and (T,D) -> (S,T), each sum in one fp32 number from the last product to the first.

    Spelled out, because what a BLAS rounds depends on the machine.
    """
    total = np.zeros((rows.shape[0], columns.shape[0]), np.float32)
    for d in reversed(range(rows.shape[1])):
        total += rows[:, d, None] * columns[None, :, d]
    return total


def _as_float32(array: Array) -> Array:
    return array.astype(np.float32)


def rounded_to_tf32(array: Array) -> Array:
    """Round to 10 bits of fraction, to the nearest even, as fp32."""
    bits = array.astype(np.float32).view(np.uint32)
    rounded: Array = (bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
    return rounded.view(np.float32)


def rounding_floor(*inputs: Any, seed: int = 0, **named: Any) -> tuple[float, float]:
    """Errors below which a difference says nothing, measured on this call.

    Two things are measured in float64: what rounding the exact output to its type does, and how far the exact result
    moves when every query element is off by sqrt(D) 2^-24 of itself, up or down. A sum of D products in fp32 has an
    error of just that size: sqrt(D) roundings of partial sums, which are sqrt(D) times a product. It matters where
    scores are large: a score of 1000 has an error of 3e-5 and more before its exponential is taken.

    Args:
        *inputs: As :func:`problem`.
        seed: Of the signs of the perturbation.
        **named: As :func:`problem`.

    Returns:
        The floor for output and the floor for softmax_lse.
    """
    p = problem(*inputs, **named)
    query = p.query.astype(np.float64)
    exact, exact_lse = _evaluate(p, query)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=query.shape)
    moved, moved_lse = _evaluate(p, query * (1 + signs * math.sqrt(query.shape[-1]) * 2.0**-24))
    rounded = _largest_difference(exact.astype(p.query.dtype), exact)
    rounded_lse = _largest_difference(exact_lse.astype(np.float32), exact_lse)
    epsilon = float(np.finfo(np.float32).eps)
    largest = max(_largest_difference(exact, 0), _largest_difference(p.value, 0))
    return (
        2 * rounded + _largest_difference(moved, exact) + epsilon * largest,
        2 * rounded_lse + _largest_difference(moved_lse, exact_lse) + epsilon,
    )


def _largest_difference(a: Array, b: Array | int) -> float:
    """Largest |a - b| where it is finite; 0 where it never is."""
    with np.errstate(invalid="ignore"):
        difference = np.abs(a.astype(np.float64) - b)
    return float(difference[np.isfinite(difference)].max(initial=0.0))
