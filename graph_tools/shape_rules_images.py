"""Shapes of convolutions, poolings and resizings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnx import TensorProto

from . import symbolic
from .facts import Fact, unknown_dimension
from .graph_view import NodeView
from .shape_rules import shape_rule
from .symbolic import Value


@shape_rule("FusedConv", "com.microsoft")
@shape_rule("Conv")
def _conv(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    data, weight = inputs[0].shape, inputs[1].shape
    if data is None:
        return [Fact(inputs[0].elem_type)]
    channels = weight[0] if weight is not None else unknown_dimension(node.output, 1)
    kernel: Sequence[Value] | None = node.ints_attribute("kernel_shape") or (weight[2:] if weight is not None else None)
    return [Fact(inputs[0].elem_type, (data[0], channels, *_windows(node, data[2:], kernel)))]


@shape_rule("MaxPool AveragePool LpPool")
def _pool(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    data = inputs[0].shape
    if data is None:
        return [Fact(inputs[0].elem_type)]
    fact = Fact(inputs[0].elem_type, (*data[:2], *_windows(node, data[2:], node.ints_attribute("kernel_shape"))))
    return [fact, Fact(TensorProto.INT64, fact.shape)]


def _windows(node: NodeView, sizes: Sequence[Value], kernel: Sequence[Value] | None) -> list[Value]:
    """How many positions a kernel takes along each spatial axis."""
    unknown = [unknown_dimension(node.output, axis + 2) for axis in range(len(sizes))]
    if kernel is None or node.int_attribute("ceil_mode", 0):
        return unknown
    count = len(sizes)
    strides = node.ints_attribute("strides") or [1] * count
    dilations = node.ints_attribute("dilations") or [1] * count
    pads = node.ints_attribute("pads") or [0] * 2 * count
    auto = node.text_attribute("auto_pad", "NOTSET")
    result: list[Value] = []
    for axis, size in enumerate(sizes):
        span = symbolic.add(symbolic.mul(symbolic.add(kernel[axis], -1), dilations[axis]), 1)
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            room = symbolic.add(size, strides[axis] - 1)
        elif auto == "VALID":
            room = symbolic.add(symbolic.add(size, symbolic.mul(span, -1)), strides[axis])
        elif auto == "NOTSET":
            padded = symbolic.add(size, pads[axis] + pads[axis + count])
            room = symbolic.add(symbolic.add(padded, symbolic.mul(span, -1)), strides[axis])
        else:
            return unknown
        result.append(symbolic.floor_divide(room, strides[axis]))
    return result


@shape_rule("ConvTranspose")
def _conv_transpose(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    data, weight = inputs[0].shape, inputs[1].shape
    if data is None or weight is None:
        return [Fact(inputs[0].elem_type)]
    count = len(data) - 2
    group = node.int_attribute("group", 1) or 1
    strides = node.ints_attribute("strides") or [1] * count
    pads = node.ints_attribute("pads") or [0] * 2 * count
    extra = node.ints_attribute("output_padding") or [0] * count
    dilations = node.ints_attribute("dilations") or [1] * count
    dims: list[Value] = [data[0], symbolic.mul(weight[1], group)]
    for axis in range(count):
        span = symbolic.add(symbolic.mul(symbolic.add(weight[axis + 2], -1), dilations[axis]), 1)
        grown = symbolic.add(symbolic.mul(symbolic.add(data[axis + 2], -1), strides[axis]), span)
        dims.append(symbolic.add(grown, extra[axis] - pads[axis] - pads[axis + count]))
    if node.text_attribute("auto_pad", "NOTSET") != "NOTSET" or node.ints_attribute("output_shape"):
        dims[2:] = [unknown_dimension(node.output, axis + 2) for axis in range(count)]
    return [Fact(inputs[0].elem_type, tuple(dims))]


@shape_rule("GlobalAveragePool GlobalMaxPool GlobalLpPool")
def _global_pool(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape = inputs[0].shape
    dims = None if shape is None else (*shape[:2], *(1 for _ in shape[2:]))
    return [Fact(inputs[0].elem_type, dims)]


@shape_rule("Resize Upsample")
def _resize(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape = inputs[0].shape
    if shape is None:
        return [Fact(inputs[0].elem_type)]
    dims: list[Value] = [unknown_dimension(node.output, axis) for axis in range(len(shape))]
    plain = node.ints_attribute("axes") is None and not node.attributes.get("keep_aspect_ratio_policy")
    sizes = inputs[3].value if len(inputs) > 3 and node.input(3) else None
    scales = inputs[2].value if len(inputs) > 2 and node.input(2) else None
    if node.op == "Upsample":
        scales = inputs[1].value if len(inputs) > 1 else None
    if plain and sizes is not None and sizes.size == len(shape):
        dims = [dims[axis] if size is None else size for axis, size in enumerate(sizes.ravel().tolist())]
    elif plain and scales is not None and scales.size == len(shape):
        for axis, factor in enumerate(scales.ravel().tolist()):
            if isinstance(factor, float) and factor.is_integer():
                dims[axis] = symbolic.mul(shape[axis], int(factor))
            elif isinstance(factor, (int, float)) and isinstance(size := shape[axis], int):
                dims[axis] = math.floor(size * factor)
    return [Fact(inputs[0].elem_type, tuple(dims))]


@shape_rule("DepthToSpace SpaceToDepth")
def _depth_to_space(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, block = inputs[0].shape, node.int_attribute("blocksize")
    if shape is None or not block:
        return [Fact(inputs[0].elem_type)]
    batch, channels, height, width = shape
    if node.op == "DepthToSpace":
        dims = (batch, symbolic.floor_divide(channels, block * block), height * block, width * block)
    else:
        sides = (symbolic.floor_divide(height, block), symbolic.floor_divide(width, block))
        dims = (batch, channels * block * block, *sides)
    return [Fact(inputs[0].elem_type, dims)]
