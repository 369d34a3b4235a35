"""Shapes of quantised operators: what stands in front of an attention in int8 and int4 models."""

from __future__ import annotations

from onnx import TensorProto

from .facts import Fact
from .graph_view import NodeView
from .shape_rules import broadcast, shape_rule
from .shape_rules_products import matmul_shape


@shape_rule("QuantizeLinear", "com.microsoft")
@shape_rule("QuantizeLinear")
def _quantise(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """Of the zero point's type, where there is one."""
    given = inputs[2].elem_type if len(inputs) > 2 and node.input(2) else node.int_attribute("output_dtype")
    return [Fact(given or TensorProto.UINT8, inputs[0].shape)]


@shape_rule("DequantizeLinear", "com.microsoft")
@shape_rule("DequantizeLinear")
def _dequantise(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """Of the scale's type."""
    return [Fact(node.int_attribute("output_dtype") or inputs[1].elem_type, inputs[0].shape)]


@shape_rule("DynamicQuantizeLinear")
def _quantise_by_range(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(TensorProto.UINT8, inputs[0].shape), Fact(TensorProto.FLOAT, ()), Fact(TensorProto.UINT8, ())]


@shape_rule("MatMulInteger")
def _integer_product(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(TensorProto.INT32, matmul_shape(node, inputs[0].shape, inputs[1].shape))]


@shape_rule("DynamicQuantizeMatMul MatMulIntegerToFloat", "com.microsoft")
def _float_product(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """Of the type of A, or of its scale where A is quantised."""
    elem_type = inputs[0 if node.op == "DynamicQuantizeMatMul" else 2].elem_type
    return [Fact(elem_type, matmul_shape(node, inputs[0].shape, inputs[1].shape))]


@shape_rule("QLinearMatMul")
def _quantised_product(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """``a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point``."""
    return [Fact(inputs[7].elem_type, matmul_shape(node, inputs[0].shape, inputs[3].shape))]


@shape_rule("QLinearAdd QLinearMul", "com.microsoft")
def _quantised_elementwise(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """Likewise with two operands that broadcast."""
    return [Fact(inputs[0].elem_type, broadcast(node.scope.view, inputs[0].shape, inputs[3].shape))]


@shape_rule("MatMulNBits MatMulBnb4", "com.microsoft")
def _packed_product(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """(..., K) and packed weights of (N, K) give (..., N)."""
    shape, columns = inputs[0].shape, node.int_attribute("N")
    return [Fact(inputs[0].elem_type, None if not shape or columns is None else (*shape[:-1], columns))]
