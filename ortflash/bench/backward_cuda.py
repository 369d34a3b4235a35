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
from .kernel_cuda import captured, draw_inputs, exact_output, first_line, launches_for, tensor_views
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
        operands = [tensors[name][index, index].float().requires_grad_() for name in ("query", "key", "value")]
        output = exact_output(shape, *operands)
        found[index] = torch.autograd.grad(output, operands, tensors["d_output"][index, index].float())
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


def _cudnn(shape: Shape, tensors: dict[str, Any]) -> tuple[Call, str]:
    import torch

    operands = [tensors[name] for name in ("query", "key", "value")]
    operators = torch.ops.aten
    output, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = operators._scaled_dot_product_cudnn_attention(
        *operands, None, True, 0.0, shape.is_causal, False
    )

    def call() -> Gradients:
        gradients: Gradients = operators._scaled_dot_product_cudnn_attention_backward(
            tensors["d_output"], *operands, output, lse, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0,
            shape.is_causal,
        )  # fmt: skip
        return gradients

    return call, ""


def _flash_attention_2(shape: Shape, tensors: dict[str, Any]) -> tuple[Call, str]:
    import torch

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
    return flash_attn_4.backward(shape, tensors), ""


PEERS: dict[str, _Maker] = {
    "cuDNN": _cudnn,
    "FlashAttention-2": _flash_attention_2,
    "flash-attn-4": _flash_attn_4,
}
"""Every peer of a backward call, by the name that tables show."""
