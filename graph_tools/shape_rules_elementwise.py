"""Shapes of elementwise operators, and of those that keep their first input's shape."""

from __future__ import annotations

from onnx import TensorProto

from .facts import Fact
from .graph_view import NodeView
from .shape_rules import broadcast, shape_rule


@shape_rule(
    "Relu Erf Tanh Sqrt Exp Log Neg Abs Not Identity Softmax LogSoftmax Hardmax LayerNormalization Clip "
    "Sigmoid Gelu Softplus Softsign HardSwish HardSigmoid Sin Cos Tan Asin Acos Atan Sinh Cosh Floor Ceil "
    "Round Sign Reciprocal Trilu CumSum BatchNormalization InstanceNormalization GroupNormalization "
    "RMSNormalization SimplifiedLayerNormalization Elu LeakyRelu PRelu Selu Celu Mish Swish ThresholdedRelu "
    "Shrink ScatterND ScatterElements Scatter LpNormalization MeanVarianceNormalization LRN BitwiseNot "
    "RotaryEmbedding ReverseSequence TensorScatter"
)
def _first_like_input(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(inputs[0].elem_type, inputs[0].shape)]


@shape_rule("And Or Xor Equal Greater Less GreaterOrEqual LessOrEqual")
def _to_bool(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(TensorProto.BOOL, broadcast(node.scope.view, *(fact.shape for fact in inputs)))]


@shape_rule("Add Sub Mul Div Pow Mod Min Max Mean Sum BitwiseAnd BitwiseOr BitwiseXor BitShift")
def _elementwise(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    elem_type = next((fact.elem_type for fact in inputs if fact.elem_type), 0)
    return [Fact(elem_type, broadcast(node.scope.view, *(fact.shape for fact in inputs)))]


@shape_rule("Where")
def _where(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    elem_type = inputs[1].elem_type or inputs[2].elem_type
    return [Fact(elem_type, broadcast(node.scope.view, *(fact.shape for fact in inputs)))]


@shape_rule("Cast")
def _cast(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(node.int_attribute("to") or 0, inputs[0].shape)]


@shape_rule("CastLike")
def _cast_like(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(inputs[1].elem_type, inputs[0].shape)]


@shape_rule("Dropout")
def _dropout(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(inputs[0].elem_type, inputs[0].shape), Fact(TensorProto.BOOL, inputs[0].shape)]


@shape_rule("IsNaN IsInf")
def _tested(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(TensorProto.BOOL, inputs[0].shape)]


@shape_rule("RandomNormalLike RandomUniformLike EyeLike Bernoulli")
def _like(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(node.int_attribute("dtype") or inputs[0].elem_type, inputs[0].shape)]


@shape_rule("BiasGelu FastGelu Gelu QuickGelu BiasSplitGelu GroupNorm RotaryEmbedding", "com.microsoft")
def _microsoft_like_input(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(inputs[0].elem_type, inputs[0].shape)]


@shape_rule("SkipLayerNormalization SkipSimplifiedLayerNormalization", "com.microsoft")
def _skip_norm(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    facts = [Fact() for _ in node.outputs]
    facts[0] = Fact(inputs[0].elem_type, inputs[0].shape)
    if len(facts) > 3:
        facts[3] = facts[0]
    return facts


@shape_rule("EmbedLayerNormalization", "com.microsoft")
def _embed_norm(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """(B,S) of ids and a table (V,H) give (B,S,H)."""
    ids, table = inputs[0].shape, inputs[2].shape
    if ids is None or table is None:
        return [Fact(inputs[2].elem_type)]
    embedded = Fact(inputs[2].elem_type, (*ids, table[1]))
    return [embedded, Fact(TensorProto.INT32, ids[:1]), embedded]
