"""ONNX Runtime's own fused attention as peers on a GPU: a model of one node, bound to PyTorch's memory, on its stream.

A session can't be captured in anybody else's CUDA graph, so its runs follow each other on the stream, between events,
after some that aren't timed; the host is ahead of the GPU where a call takes longer than the 20 to 30 us of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..library import import_onnxruntime
from ..session import CUDA
from .grids import Shape

_ELEM_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_OPERANDS = ("query", "key", "value")
_MASK_VALUE = -65504.0
"""What MultiHeadAttention is given for a key that takes no part: it has no bool mask of full size."""


def multi_head_attention(shape: Shape, tensors: dict[str, Any]) -> Callable[[], Any]:
    """com.microsoft.MultiHeadAttention, (B,S,N*D); a mask becomes a bias, key lengths its key padding mask."""
    if shape.kv_heads != shape.num_heads:
        raise NotImplementedError("MultiHeadAttention has no grouped heads")
    if shape.dtype == "bfloat16":
        raise NotImplementedError("MultiHeadAttention takes no bfloat16 on CUDA")
    given = dict(tensors)
    names = [*_OPERANDS, "", "", ""]
    if shape.bias or shape.mask:
        given["attn_bias"] = _four_axes(shape, tensors)
        names[5] = "attn_bias"
    if shape.key_lengths:
        names[4] = "key_lengths"
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        "MultiHeadAttention",
        names,
        ["output"],
        domain="com.microsoft",
        num_heads=shape.num_heads,
        unidirectional=int(shape.is_causal),
    )
    return _call(shape, given, node, 17)


def attention(shape: Shape, tensors: dict[str, Any]) -> Callable[[], Any]:
    """ONNX's Attention of opset 23, (B,S,N*D), bias and bool mask as they are."""
    given = dict(tensors)
    names = [*_OPERANDS]
    if shape.bias or shape.mask:
        names.append("attn_bias" if shape.bias else "attn_mask")
    if shape.key_lengths:
        import torch

        keys = torch.arange(shape.keys, device="cuda")
        lengths = tensors["key_lengths"][:, None, None, None]
        given["attn_mask"] = (keys < lengths).expand(shape.axes("B1ST")).contiguous()
        names.append("attn_mask")
    node = helper.make_node(
        "Attention",
        names,
        ["output"],
        q_num_heads=shape.num_heads,
        kv_num_heads=shape.kv_heads,
        is_causal=int(shape.is_causal),
    )
    return _call(shape, given, node, 23)


def _four_axes(shape: Shape, tensors: dict[str, Any]) -> Any:
    """The bias, or what adds the mask, of (B or 1, N or 1, S, T)."""
    import torch

    if shape.bias:
        return tensors["attn_bias"]
    mask = tensors["attn_mask"]
    added = torch.zeros(mask.shape, dtype=tensors["query"].dtype, device="cuda").masked_fill(~mask, _MASK_VALUE)
    return added.expand(*mask.shape[:2], shape.q_len, shape.keys).contiguous()


def _call(shape: Shape, given: dict[str, Any], node: onnx.NodeProto, opset: int) -> Callable[[], Any]:
    import torch

    onnxruntime = import_onnxruntime()
    bound = {name: _as_bound(given[name], name) for name in node.input if name}
    elem_type = _ELEM_TYPES[shape.dtype]
    types = {name: _elem_type(tensor, elem_type) for name, tensor in bound.items()}
    values = [helper.make_tensor_value_info(name, types[name], tensor.shape) for name, tensor in bound.items()]
    width = shape.num_heads * shape.v_size
    output = torch.empty((shape.batch, shape.q_len, width), dtype=given["query"].dtype, device="cuda")
    result = helper.make_tensor_value_info("output", elem_type, output.shape)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "attention", values, [result])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)

    stream = torch.cuda.Stream()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    provider = {"user_compute_stream": str(stream.cuda_stream), "arena_extend_strategy": "kSameAsRequested"}
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[(CUDA, provider)])
    binding = session.io_binding()
    for name, tensor in bound.items():
        binding.bind_input(name, "cuda", 0, _numpy_type(types[name]), tensor.shape, tensor.data_ptr())
    binding.bind_output("output", "cuda", 0, _numpy_type(elem_type), output.shape, output.data_ptr())
    run_options = onnxruntime.RunOptions()
    run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    heads = output.view(shape.batch, shape.q_len, shape.num_heads, shape.v_size).transpose(1, 2)

    def call(_kept: Any = bound) -> Any:  # the binding has addresses only
        session.run_with_iobinding(binding, run_options)
        return heads

    call.stream = stream  # type: ignore[attr-defined]  # where `queued` times it
    torch.cuda.synchronize()
    return call


def _as_bound(tensor: Any, name: str) -> Any:
    """Operands as (B,S,N*D), which is how they lie in memory; the others as they are."""
    if name not in _OPERANDS:
        return tensor
    return tensor.transpose(1, 2).flatten(2)


def _elem_type(tensor: Any, operands: int) -> int:
    import torch

    return {torch.bool: TensorProto.BOOL, torch.int32: TensorProto.INT32}.get(tensor.dtype, operands)


def _numpy_type(elem_type: int) -> Any:
    """What a binding calls a type: NumPy's, and ONNX's number for those that NumPy lacks."""
    return elem_type if elem_type == TensorProto.BFLOAT16 else np.dtype(helper.tensor_dtype_to_np_dtype(elem_type)).type


def queued(call: Callable[[], Any], launches: int) -> Callable[[], float]:
    """A candidate that queues ``launches`` runs on the call's stream, and returns ms a run."""
    import torch

    stream = call.stream  # type: ignore[attr-defined]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed() -> float:
        call()
        call()
        start.record(stream)
        for _ in range(launches):
            call()
        end.record(stream)
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / launches

    return timed
