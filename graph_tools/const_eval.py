"""The values of small tensors where they can be known: shapes, sizes, scales, permutations, indices.

A value is an object array of Python numbers, :class:`~.symbolic.Expr` for what depends on the input's shape, and
``None`` for an element that isn't known. Nothing of the user's graph is folded: values are only looked at.

``Shape -> Slice -> Cast -> Sqrt -> Div`` on a head size of 64 gives 0.125; on a symbolic one it gives ``D^(-1/2)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from . import symbolic
from .facts import MAX_VALUE_ELEMENTS, Fact
from .graph_view import NodeView
from .symbolic import Expr

Array = np.ndarray
"""An object array as described above."""

_INTEGERS = frozenset(
    (
        TensorProto.INT8,
        TensorProto.INT16,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT8,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
    )
)
_FLOATS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16))


def is_float(elem_type: int) -> bool:
    """Whether this is a floating point type that attention may be computed in."""
    return elem_type in _FLOATS


def is_integer(elem_type: int) -> bool:
    """Whether this is an integer type."""
    return elem_type in _INTEGERS


def as_value(array: np.ndarray) -> Array:
    """An ordinary array as a value."""
    result = np.empty(array.shape, dtype=object)
    if not array.size:
        return result
    flat = array.astype(np.float64) if array.dtype.kind not in "iubfO" else array
    result[...] = flat.tolist() if array.ndim else flat.item()
    return result


def evaluate(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> list[Array] | None:
    """The values of the outputs of ``node`` given what is known of its inputs; ``None`` where nothing is."""
    rule = _RULES.get(node.op) if not node.domain else None
    if rule is None:
        return None
    try:
        result = rule(node, inputs, elem_type)
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError):  # a broken or unusual node
        return None
    if result is None:
        return None
    outputs = [_boxed(item) for item in (result if isinstance(result, list) else [result])]
    return outputs if all(output.size <= MAX_VALUE_ELEMENTS for output in outputs) else None


def _boxed(item: Any) -> Array:
    """Numpy hands a single element out bare; a value is always an array."""
    if isinstance(item, np.ndarray):
        return item
    result = np.empty((), dtype=object)
    result[()] = item
    return result


def known_ints(fact: Fact) -> list[int] | None:
    """The values of an integer tensor, flattened, where every one is a plain number."""
    if fact.value is None:
        return None
    flat = fact.value.ravel().tolist()
    return [int(item) for item in flat] if all(isinstance(item, (int, float)) for item in flat) else None


def scalar(fact: Fact) -> symbolic.Value | None:
    """The one value of a tensor that has a single element."""
    if fact.value is None or fact.value.size != 1:
        return None
    item = fact.value.item()
    return item if isinstance(item, (int, float, Expr)) else None


# ------------------------------------------------------------------------------------------------------ elementwise

Binary = Callable[[Any, Any], Any]


def _lift(function: Callable[..., Any]) -> Callable[..., Array]:
    """Apply ``function`` to each element; an unknown operand gives an unknown element."""

    def guarded(*items: Any) -> Any:
        return None if any(item is None for item in items) else function(*items)

    def apply(*arrays: Array) -> Array:
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        if math.prod(shape) > MAX_VALUE_ELEMENTS:
            raise ValueError("too large to track")
        result = np.empty(shape, dtype=object)
        columns = [np.broadcast_to(array, shape).ravel().tolist() for array in arrays]
        result[...] = np.array([guarded(*row) for row in zip(*columns, strict=False)] or [], dtype=object).reshape(
            shape
        )
        return result

    return apply


def _values(inputs: Sequence[Fact]) -> list[Array] | None:
    values = [fact.value for fact in inputs]
    return None if any(value is None for value in values) else [value for value in values if value is not None]


def _elementwise(function: Callable[..., Any]) -> Callable[[NodeView, Sequence[Fact], int], Array | None]:
    lifted = _lift(function)

    def rule(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
        values = _values(inputs)
        return None if values is None else lifted(*values)

    return rule


def _divide(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    values = _values(inputs)
    if values is None:
        return None
    if not is_integer(inputs[0].elem_type or inputs[1].elem_type or elem_type):
        return _lift(symbolic.real_divide)(*values)

    def truncated(a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            return math.trunc(a / b) if abs(a) < 2**50 else a // b
        return symbolic.floor_divide(a, b)

    return _lift(truncated)(*values)


def _compare(decide: Callable[[Any, Any], bool | None]) -> Callable[[NodeView, Sequence[Fact], int], Array | None]:
    return _elementwise(decide)


def _equal(a: Any, b: Any) -> bool | None:
    if a == b:
        return True
    if isinstance(a, Expr) or isinstance(b, Expr):
        difference = symbolic.add(a, symbolic.mul(b, -1))
        apart = symbolic.less_equal(difference, -1) is True or symbolic.less_equal(1, difference) is True
        return False if apart or not isinstance(difference, Expr) else None
    return False


def _less(a: Any, b: Any) -> bool | None:
    if isinstance(a, Expr) or isinstance(b, Expr):
        return symbolic.less_equal(symbolic.add(a, 1), b)
    return bool(a < b)


def _less_equal(a: Any, b: Any) -> bool | None:
    if isinstance(a, Expr) or isinstance(b, Expr):
        return symbolic.less_equal(a, b)
    return bool(a <= b)


def _where(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    values = _values(inputs)
    if values is None:
        return None
    shape = np.broadcast_shapes(*(value.shape for value in values))
    if math.prod(shape) > MAX_VALUE_ELEMENTS:
        return None
    columns = [np.broadcast_to(value, shape).ravel().tolist() for value in values]
    chosen = [
        (yes if condition else no) if condition is not None else (yes if yes == no else None)
        for condition, yes, no in zip(*columns, strict=False)
    ]
    result = np.empty(shape, dtype=object)
    result[...] = np.array(chosen, dtype=object).reshape(shape)
    return result


def _cast(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    value = inputs[0].value
    if value is None:
        return None

    def convert(item: Any) -> Any:
        if isinstance(item, Expr):
            if elem_type == TensorProto.BOOL:
                return None
            return symbolic.whole("int", item) if is_integer(elem_type) else item
        if elem_type == TensorProto.BOOL:
            return bool(item)
        if is_integer(elem_type):
            return int(item) if math.isfinite(item) else None
        if elem_type == TensorProto.FLOAT16:
            return float(np.float16(item))
        return float(np.float32(item)) if elem_type == TensorProto.FLOAT else float(item)

    return _lift(convert)(value)


def _sqrt(a: Any) -> Any:
    return symbolic.power(a, 0.5)


def _power(a: Any, b: Any) -> Any:
    return None if isinstance(b, Expr) else symbolic.power(a, float(b))


def _fold(function: Binary) -> Callable[[NodeView, Sequence[Fact], int], Array | None]:
    """A variadic operator such as Max."""
    lifted = _lift(function)

    def rule(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
        values = _values(inputs)
        if not values:
            return None
        result = values[0]
        for value in values[1:]:
            result = lifted(result, value)
        return result

    return rule


# -------------------------------------------------------------------------------------------------------- structure


def _shape(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    shape = inputs[0].shape
    if shape is None:
        return None
    start, end = node.int_attribute("start", 0), node.int_attribute("end", len(shape))
    if start is None or end is None:
        return None
    dims = [node.scope.view.resolve(dim) for dim in shape[slice(*slice(start, end).indices(len(shape)))]]
    result = np.empty((len(dims),), dtype=object)
    result[...] = dims
    return result


def _size(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    shape = inputs[0].shape
    if shape is None:
        return None
    result = np.empty((), dtype=object)
    result[()] = symbolic.product(shape)
    return result


def _gather(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    value, indices = inputs[0].value, inputs[1]
    axis = node.int_attribute("axis", 0)
    picked = known_ints(indices)
    if value is None or axis is None or picked is None or indices.value is None:
        return None
    return np.take(value, np.array(picked, dtype=np.int64).reshape(indices.value.shape), axis=axis)


def _slice(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    value = inputs[0].value
    bounds = slice_bounds(node, inputs)
    if value is None or bounds is None:
        return None
    index: list[slice] = [slice(None)] * value.ndim
    for axis, start, end, step in bounds:
        if not isinstance(start, int) or not isinstance(end, int):
            return None
        axis %= value.ndim
        size = value.shape[axis]
        stop: int | None = end
        if step < 0:
            start = min(start + size if start < 0 else start, size - 1)
            stop = None if end < -size else end
        index[axis] = slice(start, stop, step)
    return value[tuple(index)]


def slice_bounds(node: NodeView, inputs: Sequence[Fact]) -> list[tuple[int, Any, Any, int]] | None:
    """(axis, start, end, step) of each sliced axis of a Slice; start and end may be symbolic."""
    if len(inputs) < 3:
        starts, ends = node.ints_attribute("starts"), node.ints_attribute("ends")
        if starts is None or ends is None:
            return None
        axes = node.ints_attribute("axes") or list(range(len(starts)))
        return [(axis, start, end, 1) for axis, start, end in zip(axes, starts, ends, strict=False)]
    if inputs[1].value is None or inputs[2].value is None:
        return None
    first, last = inputs[1].value.ravel().tolist(), inputs[2].value.ravel().tolist()
    named = known_ints(inputs[3]) if len(inputs) > 3 and node.input(3) else list(range(len(first)))
    steps = known_ints(inputs[4]) if len(inputs) > 4 and node.input(4) else [1] * len(first)
    if named is None or steps is None or None in first or None in last:
        return None
    return list(zip(named, first, last, steps, strict=False))


def _concat(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    axis = node.int_attribute("axis")
    if axis is None:
        return None
    parts = []
    for fact in inputs:
        if fact.value is not None:
            parts.append(fact.value)
        elif fact.shape is not None and len(fact.shape) == 1 and isinstance(fact.shape[0], int):
            if fact.shape[0] > MAX_VALUE_ELEMENTS:
                return None
            parts.append(np.full((fact.shape[0],), None, dtype=object))
        else:
            return None
    return np.concatenate(parts, axis=axis)


def axes_of(node: NodeView, inputs: Sequence[Fact], position: int = 1) -> list[int] | None:
    """The axes of a Squeeze, Unsqueeze or Reduce: an attribute in old opsets, an input since 13 or 18."""
    listed = node.ints_attribute("axes")
    if listed is not None:
        return listed
    if node.input(position) and len(inputs) > position:
        return known_ints(inputs[position])
    return None


def _unsqueeze(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    value, axes = inputs[0].value, axes_of(node, inputs)
    if value is None or axes is None:
        return None
    rank = value.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        value = np.expand_dims(value, axis)
    return value


def _squeeze(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    value = inputs[0].value
    if value is None:
        return None
    axes = axes_of(node, inputs)
    return value.squeeze() if axes is None else value.squeeze(tuple(axes))


def _reshape(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    value, shape = inputs[0].value, known_ints(inputs[1])
    if value is None or shape is None:
        return None
    if not node.int_attribute("allowzero", 0):
        shape = [value.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    return value.reshape(shape)


def _expand(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    value, shape = inputs[0].value, known_ints(inputs[1])
    if value is None or shape is None or math.prod(shape) > MAX_VALUE_ELEMENTS:
        return None
    return np.broadcast_to(value, np.broadcast_shapes(value.shape, tuple(shape)))


def _constant_of_shape(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    shape = known_ints(inputs[0])
    if shape is None or math.prod(shape) > MAX_VALUE_ELEMENTS:
        return None
    return np.full(shape, fill_of(node), dtype=object)


def fill_of(node: NodeView) -> int | float | bool | None:
    """The value that a ConstantOfShape fills with; ``None`` where a function's caller gives it."""
    attribute = node.attributes.get("value")
    if attribute is None:
        return 0.0
    tensor = getattr(getattr(attribute, "_values", None), "tensor", None)
    array = node.scope.view.load(tensor) if tensor is not None else None
    return None if array is None or array.size != 1 else as_value(array).ravel()[0]


def _range(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    bounds = [scalar(fact) for fact in inputs]
    numbers = [bound for bound in bounds if isinstance(bound, (int, float))]
    if len(numbers) != 3 or abs(numbers[1] - numbers[0]) > MAX_VALUE_ELEMENTS * abs(numbers[2]):
        return None
    return as_value(np.arange(*numbers))


def _transpose(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    value = inputs[0].value
    return None if value is None else np.transpose(value, node.ints_attribute("perm"))


def _split(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> list[Array] | None:
    value, axis = inputs[0].value, node.int_attribute("axis", 0)
    if value is None or axis is None:
        return None
    sizes = node.ints_attribute("split")
    if sizes is None and node.input(1):
        sizes = known_ints(inputs[1])
    if sizes is None:
        size = -(-value.shape[axis] // len(node.outputs))
        sizes = [size] * (len(node.outputs) - 1) + [value.shape[axis] - size * (len(node.outputs) - 1)]
    return list(np.split(value, np.cumsum(sizes)[:-1].tolist(), axis=axis))


def _reduce(function: Binary) -> Callable[[NodeView, Sequence[Fact], int], Array | None]:
    def guarded(a: Any, b: Any) -> Any:
        return None if a is None or b is None else function(a, b)

    def rule(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
        value = inputs[0].value
        if value is None or value.ndim != 1 or not value.size:
            return None
        total = value[0]
        for item in value[1:]:
            total = guarded(total, item)
        result = np.empty((1,) if node.int_attribute("keepdims", 1) else (), dtype=object)
        result[...] = total
        return result

    return rule


def _tile(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    value, repeats = inputs[0].value, known_ints(inputs[1])
    if value is None or repeats is None or value.size * math.prod(repeats) > MAX_VALUE_ELEMENTS:
        return None
    return np.tile(value, repeats)


def _identity(node: NodeView, inputs: Sequence[Fact], elem_type: int) -> Array | None:
    return inputs[0].value


Rule = Callable[[NodeView, Sequence[Fact], int], Any | None]

_RULES: dict[str, Rule] = {
    "Add": _elementwise(symbolic.add),
    "Sub": _elementwise(lambda a, b: symbolic.add(a, symbolic.mul(b, -1))),
    "Mul": _elementwise(symbolic.mul),
    "Div": _divide,
    "Mod": _elementwise(symbolic.modulo),
    "Neg": _elementwise(lambda a: symbolic.mul(a, -1)),
    "Abs": _elementwise(lambda a: abs(a) if not isinstance(a, Expr) else a if symbolic.is_nonnegative(a) else None),
    "Sqrt": _elementwise(_sqrt),
    "Reciprocal": _elementwise(lambda a: symbolic.real_divide(1.0, a)),
    "Pow": _elementwise(_power),
    "Floor": _elementwise(lambda a: symbolic.whole("floor", a)),
    "Ceil": _elementwise(lambda a: symbolic.whole("ceil", a)),
    "Exp": _elementwise(lambda a: math.exp(a) if not isinstance(a, Expr) else None),
    "Log": _elementwise(lambda a: math.log(a) if not isinstance(a, Expr) and a > 0 else None),
    "Max": _fold(symbolic.maximum),
    "Min": _fold(symbolic.minimum),
    "Equal": _compare(_equal),
    "Less": _compare(_less),
    "LessOrEqual": _compare(_less_equal),
    "Greater": _compare(lambda a, b: _less(b, a)),
    "GreaterOrEqual": _compare(lambda a, b: _less_equal(b, a)),
    "And": _elementwise(lambda a, b: bool(a and b)),
    "Or": _elementwise(lambda a, b: bool(a or b)),
    "Not": _elementwise(lambda a: not a),
    "Where": _where,
    "Cast": _cast,
    "CastLike": _cast,
    "Identity": _identity,
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Flatten": lambda node, inputs, elem_type: None if inputs[0].value is None else inputs[0].value.reshape(1, -1),
    "Expand": _expand,
    "Tile": _tile,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Transpose": _transpose,
    "Split": _split,
    "ReduceProd": _reduce(symbolic.mul),
    "ReduceSum": _reduce(symbolic.add),
    "ReduceMax": _reduce(symbolic.maximum),
    "ReduceMin": _reduce(symbolic.minimum),
}
