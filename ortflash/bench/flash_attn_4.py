"""flash-attn-4 as a peer on a GPU: its plain call, its score_mod and mask_mod, its lengths of keys, its backward.

Compiled by its own JIT at the first call of each kind (2 to 6 s), which isn't timed; importing it takes about 12 s.
It launches on PyTorch's current stream, so its calls are captured in CUDA graphs like everybody's.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

from .grids import Shape


class AbsentError(NotImplementedError):
    """flash-attn-4 isn't installed."""


def forward(shape: Shape, tensors: dict[str, Any]) -> Callable[[], Any]:
    """A call that gives (B,N,S,E). A bias goes through score_mod, a mask through mask_mod, as its interface has it."""
    _check(shape)
    from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

    query, key, value = (tensors[name].transpose(1, 2) for name in ("query", "key", "value"))
    full = shape.axes("BNST")
    options: dict[str, Any] = {"causal": shape.is_causal}
    if shape.bias:
        options.update(score_mod=_add_bias(), aux_tensors=[tensors["attn_bias"].expand(full)])
    if shape.mask:
        # bool has no element type that a kernel could load; its bytes have
        mask = tensors["attn_mask"].view(_uint8()).expand(full)
        options.update(mask_mod=_keep(), aux_tensors=[mask])
    if shape.key_lengths:
        options.update(seqused_k=tensors["key_lengths"], max_seqlen_k=shape.keys)
    function = flash_attn_varlen_func if shape.key_lengths else flash_attn_func

    def call() -> Any:
        return function(query, key, value, **options)[0].transpose(1, 2)

    return call


def backward(shape: Shape, tensors: dict[str, Any]) -> Callable[[], tuple[Any, Any, Any]]:
    """A call that gives the gradients, from the output and the log-sum-exp of one forward call that isn't timed."""
    _check(shape)
    from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd

    operands = [tensors[name].transpose(1, 2) for name in ("query", "key", "value")]
    d_output = tensors["d_output"].transpose(1, 2)
    output, lse = _flash_attn_fwd(*operands, causal=shape.is_causal, return_lse=True)[:2]

    def call() -> tuple[Any, Any, Any]:
        found = _flash_attn_bwd(*operands, output, d_output, lse, causal=shape.is_causal)
        d_query, d_key, d_value = (gradient.transpose(1, 2) for gradient in found)
        return d_query, d_key, d_value

    return call


def _check(shape: Shape) -> None:
    if importlib.util.find_spec("flash_attn") is None:
        raise AbsentError("flash-attn-4 isn't installed")
    if shape.dtype == "float32":
        raise NotImplementedError("flash-attn-4 takes no fp32")
    if sum(map(bool, (shape.bias, shape.mask, shape.key_lengths))) > 1:
        raise NotImplementedError("this peer is called with one of bias, mask and key lengths at most")


def _uint8() -> Any:
    import torch

    return torch.uint8


@functools.cache
def _add_bias() -> Any:
    """Give score + bias[batch, head, query, key], two neighbouring keys at a time."""
    import cutlass
    from cutlass import cute

    @cute.jit
    def add_bias(score, batch, head, q_idx, kv_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        bias = aux_tensors[0]
        found = cute.make_rmem_tensor(2, bias.element_type)
        found[0] = bias[batch[0], head[0], q_idx[0], kv_idx[0]]
        found[1] = bias[batch[0], head[0], q_idx[0], kv_idx[1]]
        return score + found.load().to(cutlass.Float32)

    add_bias.__vec_size__ = 2
    return add_bias


@functools.cache
def _keep() -> Any:
    """Tell whether mask[batch, head, query, key]."""
    import cutlass
    from cutlass import cute
    from flash_attn.cute import utils

    @cute.jit
    def keep(batch, head, q_idx, kv_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        found = utils.scalar_to_ssa(aux_tensors[0][batch[0], head[0], q_idx[0], kv_idx[0]], cutlass.Int32)
        return found > utils.scalar_to_ssa(0, cutlass.Int32)

    return keep
