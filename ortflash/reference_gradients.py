"""The gradients of :mod:`ortflash.reference` in NumPy, twice: exactly, and as an unfused graph of the type has them.

The equations stand in ``plugin_src/core/attention_grad.h``. An implementation is right where its error against
:func:`gradients` is at most twice :func:`reordered`'s plus :func:`rounding_floor`. All three take ``d_output`` and then
inputs and attributes as :func:`ortflash.reference.problem`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import reference

Array = NDArray[Any]
_LARGE_LSE = 4096.0  # kLargeLse of attention_grad.h: past it, P is divided by its own sum
Gradients = dict[str, Array]
"""``d_query``, ``d_key``, ``d_value``, and ``d_attn_bias`` and ``d_sinks`` where there are a bias and sinks."""


def gradients(d_output: Array, *inputs: Any, **named: Any) -> Gradients:
    """Every gradient in float64, in the layout of its input."""
    p = reference.problem(*inputs, **named)
    return _evaluate(p, _exact, np.dtype(np.float64), p.query.astype(np.float64), d_output)


def reordered(d_output: Array, *inputs: Any, tf32: bool = False, **named: Any) -> Gradients:
    """Every gradient as an unfused graph of the inputs' type computes it: P, dP and dS rounded to that type.

    Each in its input's type. With ``tf32``, every operand of a product is rounded as TF32 tensor cores do; for fp32
    inputs on GPUs.
    """
    p = reference.problem(*inputs, **named)
    dtype = p.query.dtype
    if tf32:
        to_tf32 = reference.rounded_to_tf32
        p = replace(p, query=to_tf32(p.query), key=to_tf32(p.key), value=to_tf32(p.value))
        return _evaluate(p, to_tf32, np.dtype(np.float32), p.query, to_tf32(d_output))
    return _evaluate(p, lambda x: x.astype(dtype).astype(np.float32), np.dtype(np.float32), p.query, d_output)


def rounding_floor(d_output: Array, *inputs: Any, seed: int = 0, tf32: bool = False, **named: Any) -> dict[str, float]:
    """Errors of each gradient below which a difference says nothing, measured as :func:`reference.rounding_floor` does.

    Query elements and those of d_output are off by the rounding of an fp32 sum of their products, and rowsum(P * dP)
    comes from an output that is rounded to its type and off likewise: the difference of two such sums has an error even
    where it should be exactly 0, as with a single key. softmax_lse is a rounded fp32 number, too, and P = exp(S - lse).
    With ``tf32`` both are off by what TF32 leaves of the two factors instead, up to 2^-11 of each. How far that moves a
    gradient counts twice, because tensor cores truncate where these sums round.
    """
    p = reference.problem(*inputs, **named)
    query = p.query.astype(np.float64)
    exact = _evaluate(p, _exact, np.dtype(np.float64), query, d_output)
    rng = np.random.default_rng(seed)

    def moved(array: Array, terms: int) -> Array:
        signs = rng.choice([-1.0, 1.0], size=array.shape)
        step = 2.0**-10 if tf32 else math.sqrt(terms) * 2.0**-24
        return np.asarray(array.astype(np.float64) * (1 + signs * step))

    size = p.value.shape[-1]
    output = _as_heads(p, reference.attention(*inputs, **named)[0]).astype(p.query.dtype)
    near = _evaluate(
        p,
        _exact,
        np.dtype(np.float64),
        moved(query, query.shape[-1]),
        moved(d_output, size),
        moved(output, size),
    )
    epsilon = float(np.finfo(np.float32).eps)
    floors = {}
    for name, value in exact.items():
        dtype = np.dtype(np.float32) if name == "d_sinks" else p.query.dtype
        largest = _largest(value)
        rounding, products = _largest(value.astype(dtype) - value), _largest(near[name] - value)
        floors[name] = 2 * rounding + 2 * products + 4 * epsilon * largest
    return floors


def _exact(array: Array) -> Array:
    return array


def _largest(array: Array) -> float:
    return float(np.abs(array.astype(np.float64)).max(initial=0.0))


def _as_heads(p: reference.Problem, output: Array) -> Array:
    """The output's layout -> (B,N,S,E)."""
    if not p.packed:
        return output
    batch, heads, q_len, _ = p.full_shape
    split: Array = output.reshape(batch, q_len, heads, -1).transpose(0, 2, 1, 3)
    return split


def _evaluate(
    p: reference.Problem,
    rounded: Callable[[Array], Array],
    dtype: np.dtype[Any],
    query: Array,
    d_output: Array,
    output: Array | None = None,
) -> Gradients:
    """The gradients with sums in ``dtype`` and intermediate tensors through ``rounded``.

    Where ``output`` (B,N,S,E) is given, rowsum(P * dP) is computed as rowsum(d_output * output), and P from a
    log-sum-exp that is one rounding of an fp32 number too small.
    """
    heads = p.query.shape[1]
    d_output = _as_heads(p, d_output)
    d_query = np.zeros(p.query.shape, dtype)
    d_key = np.zeros(p.key.shape, dtype)
    d_value = np.zeros(p.value.shape, dtype)
    d_bias = np.zeros(p.full_shape, dtype) if p.attn_bias is not None else None
    d_sinks = np.zeros(heads, dtype)
    scale = dtype.type(p.scale)
    for b, n, m in p.heads():
        q, k, v, d_o = (x.astype(dtype) for x in (query[b, n], p.key[b, m], p.value[b, m], d_output[b, n]))
        score = scale * (q @ k.T)
        slope: Array = np.ones(score.shape, dtype)
        if p.softcap:
            score = np.tanh(score / dtype.type(p.softcap))
            slope, score = 1 - score**2, dtype.type(p.softcap) * score
        if (bias := p.slice_of(p.attn_bias, b, n)) is not None:
            score = score + bias.astype(dtype)
        passes: Array | bool = True  # where the score is not a constant
        if (mask := p.slice_of(p.attn_mask, b, n)) is not None:
            score, passes = np.where(mask, score, dtype.type(np.float32(p.mask_fill))), mask
        score = np.where(p.takes_part(b, n), score, dtype.type(-np.inf))
        weight, total, top = reference.softmax(score, p.sink(n))
        total = np.where(total == 0, dtype.type(1), total)
        weight = weight / total
        if output is not None:  # S - lse with a rounded lse, one rounding off
            weight = weight * (1 + np.minimum(np.abs(np.log(total) + top), _LARGE_LSE) * 2.0**-23)
        factors = np.asarray(p.dropout(b, n), dtype)
        dropped = rounded(weight * factors)
        d_weight = factors * rounded(d_o @ v.T)
        products = weight * d_weight if output is None else d_o * output[b, n].astype(dtype)
        delta = products.sum(axis=1, keepdims=True)
        d_score = np.where(passes, rounded(weight * (d_weight - delta)), 0)
        d_value[b, m] += dropped.T @ d_o
        if d_bias is not None:
            d_bias[b, n] = d_score
        if p.sinks is not None and p.sink(n) > -math.inf:
            d_sinks[n] -= (np.exp(dtype.type(p.sink(n)) - top) / total * delta).sum()
        d_capped = scale * d_score * slope
        d_query[b, n] = d_capped @ k
        d_key[b, m] += d_capped.T @ q
    return _in_the_inputs_shapes(p, d_query, d_key, d_value, d_bias, d_sinks)


def _in_the_inputs_shapes(
    p: reference.Problem, d_query: Array, d_key: Array, d_value: Array, d_bias: Array | None, d_sinks: Array
) -> Gradients:
    exact = d_query.dtype == np.float64
    results = {"d_query": p.in_layout(d_query), "d_key": p.in_layout(d_key), "d_value": p.in_layout(d_value)}
    if not exact:
        results = {name: value.astype(p.query.dtype) for name, value in results.items()}
    if d_bias is not None and p.attn_bias is not None:
        summed = _sum_to_shape(d_bias, p.attn_bias.shape)
        results["d_attn_bias"] = summed if exact else summed.astype(p.attn_bias.dtype)
    if p.sinks is not None:
        results["d_sinks"] = d_sinks if p.sinks.shape == d_sinks.shape else d_sinks.sum(keepdims=True)
    return results


def _sum_to_shape(full: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the axes along which an array of ``shape`` was broadcast."""
    summed: Array = full.sum(axis=tuple(range(full.ndim - len(shape))))
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and summed.shape[axis] != 1)
    return np.asarray(summed.sum(axis=axes, keepdims=True)).reshape(shape)
