"""One attention call on the CPU, in ONNX Runtime: our op, the unfused graph, and ONNX Runtime's own fused op.

All three take (B,S,N*D) tensors, as the projections before an attention write them, so the unfused graph pays for its
head-split Transposes like any exported model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from .. import reference
from ..graph_tools import op_schema
from ..library import import_onnxruntime
from ..session import register
from .grids import Shape
from .race import Protocol, race, wall_clock
from .results import OURS, Figure, Row

_ELEM_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]


def race_shape(shape: Shape, protocol: Protocol, threads: int) -> Row:
    """Time every candidate that takes the shape; errors against the float64 reference (up to S = 2,048)."""
    feed = _inputs(shape)
    sessions: dict[str, Any] = {}
    figures: dict[str, Figure] = {}
    for name, build in _CANDIDATES.items():
        try:
            session = _session(build(shape), threads)
            outputs = session.run_with_ort_values(["output"], feed)
            sessions[name], figures[name] = session, Figure(np.nan, error=_error(shape, feed, outputs[0]))
        except Exception as error:  # onnxruntime's exceptions have no common base
            figures[name] = Figure(np.nan, note=str(error).splitlines()[0][:200])
    runs: dict[str, Callable[[], float]] = {
        name: wall_clock(lambda session=session: session.run_with_ort_values(["output"], feed))  # type: ignore[misc]
        for name, session in sessions.items()
    }
    for name, time_ms in race(runs, protocol).items():
        figures[name] = Figure(time_ms, shape.flops / time_ms / 1e9, figures[name].error)
    return Row(shape.label, figures, vars(shape))


def _inputs(shape: Shape) -> dict[str, Any]:
    onnxruntime = import_onnxruntime()
    rng = np.random.default_rng(0)
    feed = {}
    for name, length, width in (
        ("query", shape.q_len, shape.num_heads * shape.head_size),
        ("key", shape.keys, shape.kv_heads * shape.head_size),
        ("value", shape.keys, shape.kv_heads * shape.v_size),
    ):
        array = rng.standard_normal((shape.batch, length, width), np.float32)
        if shape.dtype == "bfloat16":
            bits = (array.view(np.uint32) >> 16).astype(np.uint16)
            feed[name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
        else:
            feed[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array.astype(shape.dtype))
    return feed


def _error(shape: Shape, feed: dict[str, Any], output: Any) -> float | None:
    if shape.dtype == "bfloat16" or shape.q_len > 2048:
        return None
    arrays = [feed[name].numpy() for name in ("query", "key", "value")]
    heads = {"num_heads": shape.num_heads, "kv_num_heads": shape.kv_heads}
    expected, _ = reference.attention(*arrays, **heads, is_causal=int(shape.is_causal))
    return float(np.max(np.abs(output.numpy() - expected)))


def _session(nodes: list[onnx.NodeProto], threads: int) -> Any:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    register(options)
    return onnxruntime.InferenceSession(
        _to_model(nodes).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def candidate_model(name: str, shape: Shape) -> onnx.ModelProto:
    """The model of a candidate: ours, ``"unfused graph"`` or ``"MultiHeadAttention"``."""
    return _to_model(_CANDIDATES[name](shape))


def _to_model(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    """A model of nodes that read query, key and value and write output, all of the type that the nodes' doc names."""
    elem_type = int(nodes[0].doc_string)
    values = [helper.make_tensor_value_info(name, elem_type, None) for name in ("query", "key", "value", "output")]
    schema = op_schema.schema()
    opsets = [*_OPSETS, helper.make_opsetid(schema.domain, schema.version)]
    graph = helper.make_graph(nodes, "attention", values[:3], values[3:])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _ours(shape: Shape) -> list[onnx.NodeProto]:
    attributes = {"num_heads": shape.num_heads, "kv_num_heads": shape.kv_heads, "is_causal": int(shape.is_causal)}
    inputs = {name: name for name in ("query", "key", "value")}
    node = op_schema.make_node(inputs, "output", name="attention", input_count=3, attributes=attributes)
    node.doc_string = str(_ELEM_TYPES[shape.dtype])
    return [node]


def _contrib(shape: Shape) -> list[onnx.NodeProto]:
    node = helper.make_node(
        "MultiHeadAttention",
        ["query", "key", "value"],
        ["output"],
        domain="com.microsoft",
        num_heads=shape.num_heads,
        unidirectional=int(shape.is_causal),
        doc_string=str(_ELEM_TYPES[shape.dtype]),
    )
    return [node]


def _unfused(shape: Shape) -> list[onnx.NodeProto]:
    if shape.is_causal or shape.kv_heads != shape.num_heads:
        raise ValueError("the unfused graph of this benchmark is neither causal nor grouped")
    elem_type = _ELEM_TYPES[shape.dtype]
    sizes = helper.make_tensor("", TensorProto.INT64, [4], [0, 0, shape.num_heads, -1])
    merged = helper.make_tensor("", TensorProto.INT64, [3], [0, 0, -1])
    scale = helper.make_tensor("", TensorProto.FLOAT, [], [shape.head_size**-0.5])
    nodes = [
        helper.make_node("Constant", [], ["sizes"], value=sizes, doc_string=str(elem_type)),
        helper.make_node("Constant", [], ["merged"], value=merged),
        helper.make_node("Constant", [], ["scale32"], value=scale),
        helper.make_node("Cast", ["scale32"], ["scale"], to=elem_type),
    ]
    for name, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        nodes.append(helper.make_node("Reshape", [name, "sizes"], [f"{name}_heads"]))
        nodes.append(helper.make_node("Transpose", [f"{name}_heads"], [f"{name}_t"], perm=perm))
    return [
        *nodes,
        helper.make_node("MatMul", ["query_t", "key_t"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "value_t"], ["heads"]),
        helper.make_node("Transpose", ["heads"], ["rows"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["rows", "merged"], ["output"]),
    ]


_CANDIDATES: dict[str, Callable[[Shape], list[onnx.NodeProto]]] = {
    OURS: _ours,
    "unfused graph": _unfused,
    "MultiHeadAttention": _contrib,
}
