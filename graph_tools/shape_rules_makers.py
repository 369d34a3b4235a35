"""Shapes of operators that make tensors (shapes, ranges, constants) or reduce them."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from . import symbolic
from .const_eval import as_value, axes_of, scalar
from .facts import MAX_VALUE_ELEMENTS, Fact, Shape, rank_of_target, unknown_dimension
from .graph_view import NodeView
from .shape_rules import shape_rule
from .symbolic import Value


@shape_rule("Shape")
def _shape(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape = inputs[0].shape
    if shape is None:
        return [Fact(TensorProto.INT64, (unknown_dimension(node.output, 0),))]
    start, end = node.int_attribute("start", 0), node.int_attribute("end", len(shape))
    if start is None or end is None:
        return [Fact(TensorProto.INT64, (unknown_dimension(node.output, 0),))]
    return [Fact(TensorProto.INT64, (len(range(*slice(start, end).indices(len(shape)))),))]


@shape_rule("Size")
def _size(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(TensorProto.INT64, ())]


@shape_rule("Constant")
def _constant(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """A Constant without a tensor: value_int, value_floats and their like."""
    for name, elem_type in (("value_int", TensorProto.INT64), ("value_float", TensorProto.FLOAT)):
        item = node.attributes.get(name)
        if isinstance(item, (int, float)):
            value = as_value(_array(item, elem_type))
            return [Fact(elem_type, (), value)]
        items = node.attributes.get(name + "s")
        if isinstance(items, (list, tuple)):
            value = as_value(_array(items, elem_type))
            return [Fact(elem_type, (len(items),), value if value.size <= MAX_VALUE_ELEMENTS else None)]
        if item is not None:  # a function's attribute, which each call gives a value of its own
            return [Fact(elem_type, ())]
        if items is not None:
            return [Fact(elem_type, (unknown_dimension(node.output, 0),))]
    return []


def _array(items: object, elem_type: int) -> np.ndarray:
    return np.array(items, dtype=np.int64 if elem_type == TensorProto.INT64 else np.float32)


@shape_rule("ConstantOfShape")
def _constant_of_shape(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    attribute = node.attributes.get("value")
    tensor = getattr(getattr(attribute, "_values", None), "tensor", None)
    elem_type = TensorProto.FLOAT if attribute is None else getattr(tensor, "data_type", 0)
    return [Fact(elem_type, _dims_of_value(node, inputs[0]))]


def _dims_of_value(node: NodeView, target: Fact) -> Shape | None:
    if target.value is not None:
        items = target.value.ravel().tolist()
        return tuple(unknown_dimension(node.output, axis) if dim is None else dim for axis, dim in enumerate(items))
    rank = rank_of_target(target)
    return None if rank is None else tuple(unknown_dimension(node.output, axis) for axis in range(rank))


@shape_rule("Range")
def _range(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    start, end, step = (scalar(fact) for fact in inputs)
    length: Value | None = None
    if start is not None and end is not None and step == 1:
        length = symbolic.add(end, symbolic.mul(start, -1))
        if not symbolic.is_nonnegative(length):
            length = symbolic.maximum(length, 0)
    elif all(isinstance(item, (int, float)) for item in (start, end, step)) and step:
        length = max(0, math.ceil((end - start) / step))  # type: ignore[operator]
    return [Fact(inputs[0].elem_type, (unknown_dimension(node.output, 0) if length is None else length,))]


@shape_rule("OneHot")
def _one_hot(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, axis = inputs[0].shape, node.int_attribute("axis", -1)
    if shape is None or axis is None:
        return [Fact(inputs[2].elem_type)]
    depth = scalar(inputs[1])
    axis = axis + len(shape) + 1 if axis < 0 else axis
    dim = unknown_dimension(node.output, axis) if depth is None else depth
    return [Fact(inputs[2].elem_type, (*shape[:axis], dim, *shape[axis:]))]


@shape_rule("NonZero")
def _non_zero(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    rank = unknown_dimension(node.output, 0) if inputs[0].shape is None else max(len(inputs[0].shape), 1)
    return [Fact(TensorProto.INT64, (rank, unknown_dimension(node.output, 1)))]


@shape_rule(
    "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare"
)
def _reduce(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    axes = axes_of(node, inputs)
    if axes is None and node.input(1):
        return [Fact(inputs[0].elem_type)]
    if not axes and node.int_attribute("noop_with_empty_axes", 0):
        return [Fact(inputs[0].elem_type, inputs[0].shape)]
    return [_reduced(node, inputs[0], inputs[0].elem_type, axes)]


@shape_rule("ArgMax ArgMin")
def _arg_reduce(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    axis = node.int_attribute("axis", 0)
    return [Fact(TensorProto.INT64) if axis is None else _reduced(node, inputs[0], TensorProto.INT64, [axis])]


def _reduced(node: NodeView, data: Fact, elem_type: int, axes: list[int] | None) -> Fact:
    """All axes go where none are named."""
    keep = node.int_attribute("keepdims", 1)
    if data.shape is None or keep is None:
        return Fact(elem_type)
    rank = len(data.shape)
    gone = {axis % rank for axis in axes} if axes else set(range(rank))
    dims = [1 if axis in gone else dim for axis, dim in enumerate(data.shape) if keep or axis not in gone]
    return Fact(elem_type, tuple(dims))


@shape_rule("TopK")
def _top_k(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, axis = inputs[0].shape, node.int_attribute("axis", -1)
    if shape is None or axis is None:
        return [Fact(inputs[0].elem_type), Fact(TensorProto.INT64)]
    count = scalar(inputs[1])
    dims = list(shape)
    dims[axis] = unknown_dimension(node.output, axis) if count is None else count
    return [Fact(inputs[0].elem_type, tuple(dims)), Fact(TensorProto.INT64, tuple(dims))]
