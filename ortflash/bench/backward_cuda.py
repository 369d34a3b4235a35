"""The gradients of one attention call on a GPU: our core through its C interface, PyTorch's backends and flash-attn-4.

Peers are the operators that autograd calls, called directly: their host code is in no figure, for every
candidate is captured in a CUDA graph (:func:`kernel_cuda.captured`). Errors are those of the first and the last head's
three gradients, each over the largest gradient of its tensor there, against fp32 autograd without TF32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .. import core
from . import flash_attn_4
from .grids import Shape
from .kernel_cuda import (
    captured,
    draw_inputs,
    exact_output,
    first_line,
    launches_for,
    mask_of_lengths,
    tensor_views,
    terms_of_head,
)
from .machine import clocks
from .race import Protocol, race
from .results import OURS, Figure, Row

BACKWARD_WORK = 2.5
"""Operations of the gradients over those of the forward: five products instead of two."""

Gradients = tuple[Any, Any, Any]
"""Tensors like query, key and value."""
Call = Callable[[], Gradients]
_Maker = Callable[[Shape, dict[str, Any]], tuple[Call, str]]
"""Makes a call, and the name of the kernel where it is known."""


def race_shape(shape: Shape, protocol: Protocol, implementation: str = "", peers: Sequence[str] = ()) -> Row:
    """Time ours (the preferred implementation, or the one that is named) and every peer that takes the shape."""
    import torch

    tensors = draw_inputs(shape, seed=0)
    tensors["d_output"] = torch.randn_like(tensors["query"])
    expected = _expected(shape, tensors)
    figures: dict[str, Figure] = {}
    runs: dict[str, Callable[[], float]] = {}
    makers = {name: PEERS[name] for name in peers or PEERS}
    candidates: dict[str, _Maker] = {OURS: partial(_ours, implementation=implementation), **makers}
    for name, make in candidates.items():
        try:
            call, kernel = make(shape, tensors)
            gradients = call()
            torch.cuda.synchronize()
            figures[name] = Figure(math.nan, error=_error(gradients, expected), note=kernel)
            runs[name] = captured([call], launches_for(shape, BACKWARD_WORK * shape.flops))
        except Exception as error:  # peers raise what they like, and none of them ends the run
            figures[name] = Figure(math.nan, note=first_line(error))
    for name, time_ms in race(runs, protocol).items():
        tflops = BACKWARD_WORK * shape.flops / time_ms / 1e9
        figures[name] = Figure(time_ms, tflops, figures[name].error, note=figures[name].note)
    return Row(f"backward, {shape.label}", figures, {**vars(shape), "clocks": clocks()})


def _expected(shape: Shape, tensors: dict[str, Any]) -> dict[int, Gradients]:
    """fp32 gradients (S,D), (T,D), (T,E) of batch 0's first and batch -1's last head, which have keys of their own."""
    import torch

    found = {}
    for index in (0, -1):
        q, k, v = (tensors[name][index, index].float().requires_grad_() for name in ("query", "key", "value"))
        bias, mask = terms_of_head(shape, tensors, index)
        output = exact_output(shape, q, k, v, bias, mask)
        found[index] = torch.autograd.grad(output, (q, k, v), tensors["d_output"][index, index].float())
    return found


def _error(gradients: Gradients, expected: dict[int, Gradients]) -> float:
    return max(
        float((found[index, index].float() - exact).abs().max() / exact.abs().max())
        for index, head in expected.items()
        for found, exact in zip(gradients, head, strict=True)
    )


# ---------------------------------------------------------------------------------------------------- candidates
def _ours(shape: Shape, tensors: dict[str, Any], implementation: str) -> tuple[Call, str]:
    import torch

    library = core.library()
    lse = torch.empty(tensors["query"].shape[:3], dtype=torch.float32, device="cuda")
    given = {**tensors, "output": torch.empty_like(tensors["d_output"]), "softmax_lse": lse}
    forward = core.make_params(tensor_views(given), is_causal=int(shape.is_causal))
    forward_size = library.workspace_size(forward, "cuda")
    workspace = torch.empty(max(1, forward_size), dtype=torch.uint8, device="cuda")
    library.forward(forward, "cuda", workspace=workspace.data_ptr(), stream=torch.cuda.current_stream().cuda_stream)

    given.update({f"d_{name}": torch.empty_like(tensors[name]) for name in ("query", "key", "value")})
    params = core.make_grad_params(tensor_views(given), is_causal=int(shape.is_causal))
    library.supports(params, "cuda", implementation)
    size = library.workspace_size(params, "cuda", implementation=implementation)
    workspace = torch.empty(max(1, size), dtype=torch.uint8, device="cuda")

    def call() -> Gradients:
        stream = torch.cuda.current_stream().cuda_stream
        library.backward(params, "cuda", workspace=workspace.data_ptr(), stream=stream, implementation=implementation)
        return given["d_query"], given["d_key"], given["d_value"]

    return call, library.describe(params, "cuda", implementation)


def _additive(shape: Shape, tensors: dict[str, Any]) -> Any:
    """What PyTorch adds to the scores, (B,N,S,T) in the query's type, or None; a mask as 0 and -inf."""
    import torch

    full = shape.axes("BNST")
    if shape.bias:
        return tensors["attn_bias"].expand(full)
    if not (shape.mask or shape.key_lengths):
        return None
    kept = tensors["attn_mask"] if shape.mask else mask_of_lengths(shape, tensors)
    added = torch.zeros(kept.shape, dtype=tensors["query"].dtype, device="cuda").masked_fill_(~kept, -math.inf)
    return added.expand(full)


def _refuse_terms(shape: Shape, name: str) -> None:
    if shape.bias or shape.mask or shape.key_lengths:
        raise NotImplementedError(f"{name} has no backward with bias, mask or key lengths")


def _cudnn(shape: Shape, tensors: dict[str, Any]) -> tuple[Call, str]:
    import torch

    operands = [tensors[name] for name in ("query", "key", "value")]
    added = _additive(shape, tensors)
    operators = torch.ops.aten
    output, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = operators._scaled_dot_product_cudnn_attention(
        *operands, added, True, 0.0, shape.is_causal, False
    )

    def call() -> Gradients:
        gradients: Gradients = operators._scaled_dot_product_cudnn_attention_backward(
            tensors["d_output"], *operands, output, lse, seed, offset, added, cum_q, cum_k, max_q, max_k, 0.0,
            shape.is_causal,
        )  # fmt: skip
        return gradients

    return call, ""


def _memory_efficient(shape: Shape, tensors: dict[str, Any]) -> tuple[Call, str]:
    import torch

    operands = [tensors[name] for name in ("query", "key", "value")]
    added = _additive(shape, tensors)
    operators = torch.ops.aten
    output, lse, seed, offset = operators._scaled_dot_product_efficient_attention(
        *operands, added, True, 0.0, shape.is_causal
    )

    def call() -> Gradients:
        d_query, d_key, d_value, _ = operators._scaled_dot_product_efficient_attention_backward(
            tensors["d_output"], *operands, added, output, lse, seed, offset, 0.0, [True, True, True, False],
            shape.is_causal,
        )  # fmt: skip
        return d_query, d_key, d_value

    return call, ""


def _flash_attention_2(shape: Shape, tensors: dict[str, Any]) -> tuple[Call, str]:
    import torch

    _refuse_terms(shape, "FlashAttention-2")
    operands = [tensors[name] for name in ("query", "key", "value")]
    operators = torch.ops.aten
    output, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = operators._scaled_dot_product_flash_attention(
        *operands, 0.0, shape.is_causal, False
    )

    def call() -> Gradients:
        gradients: Gradients = operators._scaled_dot_product_flash_attention_backward(
            tensors["d_output"], *operands, output, lse, cum_q, cum_k, max_q, max_k, 0.0, shape.is_causal, seed, offset
        )
        return gradients

    return call, ""


def _flash_attn_4(shape: Shape, tensors: dict[str, Any]) -> tuple[Call, str]:
    _refuse_terms(shape, "flash-attn-4's interface, as it is called here,")
    return flash_attn_4.backward(shape, tensors), ""


PEERS: dict[str, _Maker] = {
    "cuDNN": _cudnn,
    "FlashAttention-2": _flash_attention_2,
    "memory-efficient": _memory_efficient,
    "flash-attn-4": _flash_attn_4,
}
"""Every peer of a backward call, by the name that tables show."""
