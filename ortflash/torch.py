"""The operator for PyTorch, with gradients: ``ortflash.torch.flash_attention(query, key, value, ...)``.

CPU tensors go through the core library on torch's number of threads, CUDA tensors on the current stream. torch.onnx
exports a call as one ``ortflash::FlashAttention`` node, with ``dynamo=True`` and without, so what was fine-tuned with
this function needs no rewriting. Needs the extra ``torch``: ``pip install 'ortflash[torch]'``.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import core
from .attributes import Attributes

_INPUTS = (
    "query",
    "key",
    "value",
    "attn_bias",
    "attn_mask",
    "key_lengths",
    "block_mask",
    "sinks",
    "dropout_seed",
)
"""In the order of flash_attention.toml."""

_ALIGNMENT = 256  # of a workspace


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None = None,
    attn_mask: torch.Tensor | None = None,
    key_lengths: torch.Tensor | None = None,
    block_mask: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    *,
    num_heads: int = 0,
    kv_num_heads: int = 0,
    scale: float = 0.0,
    is_causal: bool = False,
    causal_alignment: str = "top_left",
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    mask_fill: float = -math.inf,
    block_size: int = 128,
    dropout_p: float = 0.0,
    dropout_seed: torch.Tensor | None = None,
    deterministic: bool | None = None,
) -> torch.Tensor:
    """Compute attention without ever storing the S x T scores, forward or backward.

    Args:
        query: (B,N,S,D), or (B,S,N*D) with ``num_heads``; float32, float16 or bfloat16.
        key: (B,M,T,D) or (B,T,M*D); N is a multiple of M.
        value: (B,M,T,E) or (B,T,M*E).
        attn_bias: Added to the scores; broadcastable to (B,N,S,T), of query's type or float32.
        attn_mask: True takes part; bool, broadcastable to (B,N,S,T).
        key_lengths: Keys at or past the length take no part; int32 (B,) or (1,).
        block_mask: False blocks are never loaded; bool, broadcastable to (B,N,ceil(S/block_size),ceil(T/block_size)).
        sinks: One more logit a row, in the denominator only; float32 (N,) or (1,).
        num_heads: For 3-D inputs.
        kv_num_heads: For 3-D inputs.
        scale: Factor on query @ key^T; 0 = 1/sqrt(D).
        is_causal: Row i sees keys up to i, or up to i + T - S with ``bottom_right``.
        causal_alignment: ``top_left`` or ``bottom_right``.
        window_left: Keys before the diagonal that a row sees; -1 = all.
        window_right: Keys after the diagonal; -1 = all.
        softcap: cap * tanh(score / cap), before bias and mask; 0 = off.
        mask_fill: The score that a False in ``attn_mask`` leaves.
        block_size: Rows and columns of one element of ``block_mask``: 16, 32, 64, 128 or 256.
        dropout_p: Rate in [0, 1) at which weights are dropped. Pass 0 outside training.
        dropout_seed: Seed and offset of dropout's mask, int64 (2,) on query's device; by default drawn from torch's
            generator for the CPU, so that ``torch.manual_seed`` repeats a run.
        deterministic: The same gradients bit for bit every time; by default as
            ``torch.are_deterministic_algorithms_enabled()`` says. The CPU always is.

    Returns:
        query's layout and type, with the values' size last. A row in which nothing takes part is 0. Differentiable once
        in query, key, value, attn_bias and sinks.

    Raises:
        ortflash.core.CoreError: What isn't a dense tensor, tensors on several devices, attributes out of bounds,
            shapes, types or features that this machine's kernels don't take; the message says which. Also for dropout
            in an export.
    """
    tensors = (query, key, value, attn_bias, attn_mask, key_lengths, block_mask, sinks)
    _check((*tensors, dropout_seed))
    attributes = core.read_attributes(
        {
            "num_heads": num_heads or _heads(query),
            "kv_num_heads": kv_num_heads or _heads(key),
            "scale": scale,
            "is_causal": is_causal,
            "causal_alignment": causal_alignment,
            "window_left": window_left,
            "window_right": window_right,
            "softcap": softcap,
            "mask_fill": mask_fill,
            "block_size": block_size,
            "dropout_p": dropout_p,
        }
    )
    if torch.onnx.is_in_onnx_export():
        if dropout_p:
            raise core.CoreError("flash_attention is exported with dropout; export model.eval(), or pass dropout_p=0.")
        if not torch.jit.is_tracing():
            return _export_symbolic(tensors, attributes)
    elif dropout_p and dropout_seed is None:
        dropout_seed = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64).to(query.device)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    output: torch.Tensor = _FlashAttention.apply(attributes, deterministic, *tensors, dropout_seed)
    return output


def _check(tensors: tuple[object, ...]) -> None:
    """CoreError where an input isn't a dense tensor, or on another device than query."""
    query = tensors[0]
    for name, tensor in zip(_INPUTS, tensors, strict=True):
        if tensor is None and name not in ("query", "key", "value"):
            continue
        if not isinstance(tensor, torch.Tensor):
            raise core.CoreError(f"{name} is of type {type(tensor).__name__}; it must be a torch.Tensor.")
        if tensor.layout != torch.strided or tensor.is_nested:
            raise core.CoreError(f"{name} is a sparse or nested tensor; it must be a dense one.")
        assert isinstance(query, torch.Tensor)
        if tensor.device != query.device:
            raise core.CoreError(
                f"{name} is on {tensor.device} and query on {query.device}; they must be on one device."
            )


def _heads(tensor: torch.Tensor) -> int:
    """The heads of a 4-D tensor, else 0. A constant of an exported graph, so a tracer's warning of that is no news."""
    if tensor.dim() != 4:
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return int(tensor.shape[1])


# ------------------------------------------------------------------------------------------------------- autograd
class _FlashAttention(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, attributes: Attributes, deterministic: bool, *tensors: torch.Tensor | None) -> torch.Tensor:
        given = {name: _readable(tensor) for name, tensor in zip(_INPUTS, tensors, strict=True) if tensor is not None}
        query, value = given["query"], given["value"]
        output = query.new_empty(core.output_shape(tuple(query.shape), tuple(value.shape), attributes))
        lse = query.new_empty((query.shape[0], attributes.num_heads, query.shape[-2]), dtype=torch.float32)
        views = _views({**given, "output": output, "softmax_lse": lse})
        _run(core.make_params(views, **asdict(attributes)), query.device)
        ctx.attributes, ctx.deterministic, ctx.names = attributes, deterministic, (*given, "output", "softmax_lse")
        ctx.save_for_backward(*given.values(), output, lse)
        return output

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, d_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        needs = dict(zip(_INPUTS, ctx.needs_input_grad[2:], strict=True))
        wanted = ["query", "key", "value", *(name for name in ("attn_bias", "sinks") if needs[name])]
        gradients = {name: torch.empty_like(tensors[name], memory_format=torch.contiguous_format) for name in wanted}
        written = {f"d_{name}": gradient for name, gradient in gradients.items()}
        views = _views({**tensors, "d_output": _readable(d_output), **written})
        params = core.make_grad_params(views, deterministic=ctx.deterministic, **asdict(ctx.attributes))
        _run(params, d_output.device)
        return (None, None, *(gradients[name] if needs[name] else None for name in _INPUTS))

    @staticmethod
    def symbolic(g: Any, attributes: Attributes, _deterministic: bool, *inputs: Any) -> Any:
        """The node of torch.onnx.export(..., dynamo=False)."""
        letters = {int: "i", float: "f", str: "s"}
        values = {f"{name}_{letters[type(value)]}": value for name, value in _node_attributes(attributes).items()}
        count = _input_count(inputs)
        filled = [
            g.op("Constant", value_t=_neutral(name)) if tensor is None else tensor
            for name, tensor in zip(_INPUTS[:count], inputs, strict=False)
        ]
        node = g.op("ortflash::FlashAttention", *filled, **values)
        sizes = inputs[0].type().sizes()
        return node.setType(inputs[0].type()) if sizes == inputs[2].type().sizes() else node


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy where its last axis isn't, or where one is expanded."""
    expanded = any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return tensor.contiguous() if expanded or (tensor.dim() > 0 and tensor.stride(-1) != 1) else tensor


def _views(tensors: Mapping[str, torch.Tensor]) -> dict[str, core.TensorView]:
    return {name: core.TensorView.of_tensor(tensor) for name, tensor in tensors.items()}


def _run(params: core.Params | core.GradParams, device: torch.device) -> None:
    """Run a call with a workspace of torch's, on its threads or its current stream."""
    library = core.library()
    on_gpu = device.type == "cuda"
    kind: core.Device = "cuda" if on_gpu else "cpu"
    if device.type not in ("cuda", "cpu"):
        raise core.CoreError(f"flash_attention takes tensors on the CPU and on CUDA, not on {device.type}.")
    threads = 1 if on_gpu else torch.get_num_threads()
    with torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
        library.supports(params, kind)
        size = library.workspace_size(params, kind, threads=threads)
        workspace = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
        address = -(-workspace.data_ptr() // _ALIGNMENT) * _ALIGNMENT
        stream = torch.cuda.current_stream().cuda_stream if on_gpu else 0
        if isinstance(params, core.GradParams):
            library.backward(params, kind, workspace=address, stream=stream, threads=threads)
        else:
            library.forward(params, kind, workspace=address, stream=stream, threads=threads)


# --------------------------------------------------------------------------------------------------------- export
def _export_symbolic(tensors: tuple[torch.Tensor | None, ...], attributes: Attributes) -> torch.Tensor:
    """The node of torch.onnx.export(..., dynamo=True)."""
    query, value = tensors[0], tensors[2]
    assert query is not None
    assert value is not None
    filled = [
        _neutral(name, query.dtype) if tensor is None else tensor
        for name, tensor in zip(_INPUTS[: _input_count(tensors)], tensors, strict=False)
    ]
    output: torch.Tensor = torch.onnx.ops.symbolic(
        "ortflash::FlashAttention",
        filled,
        _node_attributes(attributes),
        dtype=query.dtype,
        shape=core.output_shape(tuple(query.shape), tuple(value.shape), attributes),
        version=1,
    )
    return output


def _input_count(inputs: tuple[Any, ...]) -> int:
    """How many inputs a node has: up to the last one that is there."""
    return 1 + max(index for index, tensor in enumerate(inputs) if tensor is not None)


def _node_attributes(attributes: Attributes) -> dict[str, Any]:
    """Every attribute of the operator."""
    from .graph_tools.op_schema import schema

    return schema().defaults() | asdict(attributes)


def _neutral(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The constant that stands for an input that is not there."""
    from .graph_tools.op_schema import schema

    spec = schema().input(name)
    types = {"query": dtype, "float32": torch.float32, "int32": torch.int32, "int64": torch.int64, "bool": torch.bool}
    return torch.tensor([spec.neutral], dtype=types[spec.types[0]])
