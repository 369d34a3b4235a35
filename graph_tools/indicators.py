"""Tensors whose values are known to be of a kind: 0 or 1 throughout, or 0 or so large that they swallow any score."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from .absorbing import LOWEST_ABSORBING
from .const_eval import fill_of, is_float, is_integer, scalar
from .graph_view import NodeView, Scope

MAX_DEPTH = 24

_VIEWS = frozenset(
    [
        "Identity",
        "Cast",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Expand",
        "Tile",
        "Slice",
        "Gather",
        "GatherND",
        "GatherElements",
        "Flatten",
        "Trilu",
    ]
)
"""Operators whose output holds nothing but values of their first input (or 0)."""


def is_indicator(scope: Scope, name: str, *, trust_inputs: bool = True, depth: int = 0) -> bool:
    """Whether every value is 0 or 1.

    With ``trust_inputs`` an integer input of the graph is taken to be a mask of zeros and ones, as every exporter means
    it; the caller says so in the site's notes.
    """
    if depth > MAX_DEPTH:
        return False
    if scope.elem_type(name) == TensorProto.BOOL:
        return True
    array = scope.constant(name)
    if array is not None:
        return bool(((array == 0) | (array == 1)).all())
    value = scope.fact(name).value
    if value is not None and all(isinstance(item, (int, float)) for item in value.flat):
        return all(item in (0, 1) for item in value.flat)
    producer = scope.producer(name)
    if producer is None:
        return trust_inputs and is_integer(scope.elem_type(name))

    def inner(item: str) -> bool:
        return is_indicator(scope, item, trust_inputs=trust_inputs, depth=depth + 1)

    if producer.domain:
        return False
    if producer.op in _VIEWS:
        return inner(producer.input(0))
    if producer.op in ("Mul", "Min", "Max"):
        return all(inner(item) for item in producer.inputs)
    if producer.op == "Sub":
        return scalar(scope.fact(producer.input(0))) == 1 and inner(producer.input(1))
    if producer.op == "Where":
        return inner(producer.input(1)) and inner(producer.input(2))
    if producer.op == "ConstantOfShape":
        return fill_of(producer) in (0, 1)
    if producer.op == "Concat":
        return all(inner(item) for item in producer.inputs)
    return False


def rests_on_inputs(scope: Scope, name: str) -> bool:
    """Whether that a tensor is an indicator holds only because an integer input is trusted to be one."""
    return is_indicator(scope, name) and not is_indicator(scope, name, trust_inputs=False)


def is_whole(scope: Scope, name: str, depth: int = 0) -> bool:
    """Whether every value is an integer, whatever the type says."""
    kind = scope.elem_type(name)
    if kind == TensorProto.BOOL or is_integer(kind):
        return True
    if depth > MAX_DEPTH:
        return False
    value = scope.fact(name).value
    if value is not None and all(isinstance(item, (int, float)) for item in value.flat):
        return all(float(item).is_integer() for item in value.flat if math.isfinite(item))
    producer = scope.producer(name)
    if producer is None or producer.domain:
        return False
    if producer.op in _VIEWS:
        return is_whole(scope, producer.input(0), depth + 1)
    if producer.op in ("Mul", "Add", "Sub", "Min", "Max", "Neg", "Abs"):
        return all(is_whole(scope, item, depth + 1) for item in producer.inputs)
    return False


def zero_or_absorbing(scope: Scope, name: str, depth: int = 0) -> bool:
    """Whether every value is 0, or so large that adding a score changes nothing: a whole number times a huge one."""
    producer = scope.producer(name)
    if depth > MAX_DEPTH or producer is None or producer.domain or not is_float(scope.elem_type(name)):
        return False
    if producer.op in ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Slice"):
        return zero_or_absorbing(scope, producer.input(0), depth + 1)
    if producer.op == "Mul":
        return any(
            _huge(scope, producer.input(index)) and is_whole(scope, producer.input(1 - index)) for index in (0, 1)
        )
    if producer.op == "Where":
        return all(_zero_or_huge(scope, producer, index) for index in (1, 2))
    return False


def _huge(scope: Scope, name: str) -> bool:
    number = scalar(scope.fact(name))
    return isinstance(number, (int, float)) and abs(number) >= -LOWEST_ABSORBING and math.isfinite(number)


def _zero_or_huge(scope: Scope, where: NodeView, index: int) -> bool:
    fill = constant_fill(scope, where.input(index))
    if fill is not None:
        return fill == 0 or abs(fill) >= -LOWEST_ABSORBING
    test = scope.producer(where.input(0))
    same = index == 2 and test is not None and test.is_op("Cast") and test.input(0) == where.input(2)
    return same or zero_or_absorbing(scope, where.input(index), 1)


def may_mask(scope: Scope, name: str, depth: int = 0, seen: set[str] | None = None) -> bool:
    """Whether a bias may hold values so low that they mask: not where it provably comes from ordinary weights.

    Followed back through arithmetic and movement: a float input of the graph may hold anything, a constant is looked
    at, and what a product or a table of weights gives is taken to be an ordinary number.
    """
    seen = set() if seen is None else seen
    if name in seen:
        return False
    seen.add(name)
    if depth > 2 * MAX_DEPTH or len(seen) > 400:
        return True
    array = scope.constant(name)
    if array is not None:
        return array.dtype.kind == "f" and array.size > 0 and bool((array.astype(np.float64) <= LOWEST_ABSORBING).any())
    value = scope.fact(name).value
    if value is not None and all(isinstance(item, (int, float)) for item in value.flat):
        return any(item <= LOWEST_ABSORBING for item in value.flat)
    producer = scope.producer(name)
    if producer is None:
        home = scope.home(name)
        large_weight = home is not None and name in home.constants
        return is_float(scope.elem_type(name)) and not large_weight
    if producer.is_op("MatMul", "Gemm", "Einsum", "Conv", "LayerNormalization", "Sigmoid", "Tanh", "Softmax"):
        return False
    if producer.is_op("Shape", "Size", "Range", "Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual", "Not"):
        return False
    if producer.is_op("ConstantOfShape"):
        fill = fill_of(producer)
        return fill is None or fill <= LOWEST_ABSORBING
    sources = producer.inputs[:1] if producer.is_op("Gather", "Slice", "Reshape", "Expand") else producer.inputs
    return any(may_mask(scope, source, depth + 1, seen) for source in sources if source)


def constant_fill(scope: Scope, name: str) -> float | None:
    """The one number that a tensor of any size holds throughout, seen through Expand and Cast."""
    for _ in range(6):
        value = scope.fact(name).value
        if value is not None and value.size and all(item == value.flat[0] for item in value.flat):
            item = value.flat[0]
            return float(item) if isinstance(item, (int, float)) else None
        producer = scope.producer(name)
        if producer is None:
            array = scope.constant(name)
            if array is None or not array.size or not (array == array.flat[0]).all():
                return None
            return float(array.flat[0])
        if producer.is_op("Expand", "Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Tile"):
            name = producer.input(0)
        elif producer.is_op("ConstantOfShape"):
            fill = fill_of(producer)
            return None if fill is None else float(fill)
        else:
            return None
    return None
