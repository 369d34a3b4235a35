"""Attention as exporters spell it, and nothing around it: a model for TensorRT tests and timings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

HEADS, HEAD_SIZE = 12, 64

Array = npt.NDArray[Any]


def plain_attention(dtype: int = onnx.TensorProto.FLOAT16, *, mask: bool = False) -> onnx.ModelProto:
    """softmax(Q K^T / 8 [where the mask]) V as exporters spell it, with open batch and lengths."""
    node, value_info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    shapes = {name: ["batch", HEADS, "length", HEAD_SIZE] for name in ("key", "value")}
    shapes["query"] = shapes["output"] = ["batch", HEADS, "q_length", HEAD_SIZE]
    np_type = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    scale = onnx.numpy_helper.from_array(np.array(0.125, np_type), "scale")
    lowest = onnx.numpy_helper.from_array(np.array(-np.inf, np_type), "lowest")
    inputs = [value_info(name, dtype, shapes[name]) for name in ("query", "key", "value")]
    nodes = [
        node("Transpose", ["key"], ["key_t"], name="transpose", perm=[0, 1, 3, 2]),
        node("MatMul", ["query", "key_t"], ["scores"], name="scores"),
        node("Mul", ["scores", "scale"], ["scaled"], name="scale"),
    ]
    last = "scaled"
    if mask:
        inputs.append(value_info("mask", onnx.TensorProto.BOOL, ["batch", 1, 1, "length"]))
        nodes.append(node("Where", ["mask", "scaled", "lowest"], ["masked"], name="where"))
        last = "masked"
    nodes.append(node("Softmax", [last], ["weights"], name="softmax", axis=-1))
    nodes.append(node("MatMul", ["weights", "value"], ["output"], name="output"))
    output = value_info("output", dtype, shapes["output"])
    graph = onnx.helper.make_graph(nodes, "attention", inputs, [output], [scale, lowest] if mask else [scale])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def attention_feed(length: int, batch: int = 1, *, mask: bool = False) -> dict[str, Array]:
    """Normal numbers; the last third of the keys masked."""
    rng = np.random.default_rng(0)
    shape = (batch, HEADS, length, HEAD_SIZE)
    feed: dict[str, Array] = {
        name: rng.standard_normal(shape, np.float32).astype(np.float16) for name in ("query", "key", "value")
    }
    if mask:
        feed["mask"] = np.arange(length) < np.array([[[[length - length // 3]]]] * batch)
    return feed


def reference(feed: Mapping[str, Array]) -> Array:
    """In float64."""
    query, key, value = (feed[name].astype(np.float64) for name in ("query", "key", "value"))
    scores = query @ key.swapaxes(-1, -2) * 0.125
    if "mask" in feed:
        scores = np.where(feed["mask"], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True) @ value)
