"""Element types and dimensions of every tensor, worked out from the graph's inputs and constants alone.

TorchScript exports carry no value_info for the tensors round an attention, and a file's value_info may be wrong, so it
is used for one thing only: the outputs of operators that have no rule here. One pass over the nodes in topological
order; weights are never read. The cost is a few ten microseconds a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from onnx import TensorProto

from . import const_eval, symbolic
from .const_eval import as_value, axes_of, known_ints, scalar, slice_bounds
from .facts import MAX_VALUE_ELEMENTS, Fact, Shape, unknown_dimension
from .graph_view import GraphView, NodeView, Scope
from .symbolic import Value

_LOOP_ROUNDS = 4
"""How often a Loop or Scan body is looked at again when a carried tensor turns out to change its shape."""


def infer(view: GraphView) -> None:
    """Fill in the facts of every scope of ``view``."""
    calls: dict[tuple[str, str], list[list[Fact]]] = {}
    _Pass(view, calls).run(view.main)
    for key, scope in view.functions.items():
        # A function's own calls were recorded before it runs only if it was reached; run in call order.
        seen = calls.get(key, [])
        for position, name in enumerate(scope.inputs):
            facts = [call[position] for call in seen if position < len(call)]
            scope.facts[name] = _join(name, facts)
        _Pass(view, calls).run(scope)


def _join(name: str, facts: Sequence[Fact]) -> Fact:
    """What holds for all of ``facts``."""
    if not facts:
        return Fact()
    elem_types = {fact.elem_type for fact in facts}
    elem_type = elem_types.pop() if len(elem_types) == 1 else 0
    shapes = [fact.shape for fact in facts]
    first = shapes[0]
    if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
        return Fact(elem_type)
    dims = tuple(
        dim if all(shape is not None and shape[axis] == dim for shape in shapes) else unknown_dimension(name, axis)
        for axis, dim in enumerate(first)
    )
    return Fact(elem_type, dims, facts[0].value if len(facts) == 1 else None)


class _Pass:
    """One walk over a scope's nodes."""

    def __init__(self, view: GraphView, calls: dict[tuple[str, str], list[list[Fact]]]) -> None:
        self.view = view
        self.calls = calls

    def run(self, scope: Scope) -> None:
        """Infer every node of ``scope``; facts of its inputs that are set already stay."""
        for name in scope.inputs:
            if name not in scope.facts:
                scope.facts[name] = scope.declared(name) or Fact()
        for name, tensor in scope.constants.items():
            dims = tuple(tensor.dims)
            value = None
            if math.prod(dims) <= MAX_VALUE_ELEMENTS:
                array = self.view.load(tensor)
                value = None if array is None else as_value(array)
            scope.facts[name] = Fact(tensor.data_type, dims, value)
        for node in scope.nodes:
            self._node(scope, node)

    def _node(self, scope: Scope, node: NodeView) -> None:
        if node.is_op("Constant") and node.output in scope.facts:
            return
        inputs = [scope.fact(name) if name else Fact() for name in node.inputs]
        key = (node.domain, node.op)
        if key in self.view.functions and key not in _KNOWN_DOMAINS:
            outputs = self._call(key, inputs)
        elif node.is_op("If"):
            outputs = self._if(node)
        elif node.is_op("Loop", "Scan"):
            outputs = self._loop(node, inputs)
        else:
            outputs = _infer_node(node, inputs)
        for index, name in enumerate(node.outputs):
            if not name:
                continue
            fact = outputs[index] if index < len(outputs) else Fact()
            scope.facts[name] = self._complete(scope, name, fact)

    @staticmethod
    def _complete(scope: Scope, name: str, fact: Fact) -> Fact:
        """Where no rule knew, what the file declares has to do."""
        if fact.elem_type and fact.shape is not None:
            return fact
        declared = scope.declared(name)
        if declared is None:
            return fact
        return replace(
            fact,
            elem_type=fact.elem_type or declared.elem_type,
            shape=declared.shape if fact.shape is None else fact.shape,
        )

    def _call(self, key: tuple[str, str], inputs: list[Fact]) -> list[Fact]:
        self.calls.setdefault(key, []).append(inputs)
        scope = self.view.functions[key]
        if len(self.calls[key]) > 256:
            return [Fact() for _ in scope.outputs]
        kept = dict(scope.facts)
        scope.facts.clear()
        for name, fact in zip(scope.inputs, inputs):
            scope.facts[name] = fact
        self.run(scope)
        outputs = [scope.fact(name) for name in scope.outputs]
        scope.facts.clear()
        scope.facts.update(kept)
        return outputs

    def _if(self, node: NodeView) -> list[Fact]:
        branches = [node.bodies[key] for key in ("then_branch", "else_branch") if key in node.bodies]
        for branch in branches:
            self.run(branch)
        return [
            _join(name, [branch.fact(branch.outputs[index]) for branch in branches if index < len(branch.outputs)])
            for index, name in enumerate(node.outputs)
        ]

    def _loop(self, node: NodeView, inputs: list[Fact]) -> list[Fact]:
        body = node.bodies.get("body")
        if body is None:
            return []
        scan = node.is_op("Scan")
        scanned = node.int_attribute("num_scan_inputs", 0) or 0 if scan else 0
        carried = inputs[: len(inputs) - scanned] if scan else inputs[2:]
        first = 0 if scan else 2
        state = [replace(fact, value=None) for fact in carried]
        for _ in range(_LOOP_ROUNDS):
            body.facts.clear()
            for index, fact in enumerate(state):
                if first + index < len(body.inputs):
                    body.facts[body.inputs[first + index]] = fact
            if scan:
                for index, fact in enumerate(inputs[len(carried) :]):
                    shape = None if fact.shape is None else fact.shape[1:]
                    if len(carried) + index < len(body.inputs):
                        body.facts[body.inputs[len(carried) + index]] = Fact(fact.elem_type, shape)
            self.run(body)
            offset = 0 if scan else 1
            after = [body.fact(name) for name in body.outputs[offset : offset + len(state)]]
            joined = [
                _join(name, [old, new]) if new.shape is not None else Fact(old.elem_type)
                for name, old, new in zip(body.inputs[first:], state, after)
            ]
            joined = [replace(fact, value=None) for fact in joined]
            if all(_same_shape(old, new) for old, new in zip(state, joined)):
                break
            state = joined
        else:
            state = [Fact(fact.elem_type) for fact in state]
            for index, fact in enumerate(state):
                body.facts[body.inputs[first + index]] = fact
            self.run(body)
        stacked = []
        for index, name in enumerate(body.outputs[(0 if scan else 1) + len(state) :]):
            fact = body.fact(name)
            shape = None if fact.shape is None else (unknown_dimension(name, -1 - index), *fact.shape)
            stacked.append(Fact(fact.elem_type, shape))
        return [*state, *stacked]


_KNOWN_DOMAINS: frozenset[tuple[str, str]] = frozenset()


def _same_shape(a: Fact, b: Fact) -> bool:
    return a.shape == b.shape and a.elem_type == b.elem_type


def _infer_node(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    rule = _RULES.get((node.domain, node.op))
    if rule is None:
        return []
    try:
        facts = rule(node, inputs)
    except (IndexError, ValueError, TypeError, ZeroDivisionError, OverflowError):  # a broken or unusual node
        return []
    if facts and facts[0].shape is not None:
        count = symbolic.product(facts[0].shape)
        if isinstance(count, int) and count <= MAX_VALUE_ELEMENTS:
            values = const_eval.evaluate(node, inputs, facts[0].elem_type)
            if values is not None:
                facts = [
                    replace(fact, value=value, shape=tuple(value.shape)) for fact, value in zip(facts, values)
                ] + facts[len(values) :]
    return facts


# ------------------------------------------------------------------------------------------------------- dimensions


def broadcast(view: GraphView, *shapes: Shape | None) -> Shape | None:
    """The shape of an elementwise result.

    Two different symbols in one place are taken to be one dimension: a model in which one of them is 1 at run time
    would have to broadcast it, and the fused op then refuses the shapes with a message instead of computing.
    """
    if any(shape is None for shape in shapes):
        return None
    known = [shape for shape in shapes if shape is not None]
    rank = max((len(shape) for shape in known), default=0)
    dims: list[Value] = []
    for axis in range(rank):
        dim: Value = 1
        for shape in known:
            position = axis - rank + len(shape)
            if position >= 0:
                dim = _broadcast_dim(view, dim, shape[position])
        dims.append(dim)
    return tuple(dims)


def _broadcast_dim(view: GraphView, a: Value, b: Value) -> Value:
    if a == 1:
        return b
    if b == 1 or view.same(a, b):
        return a
    if isinstance(a, int):
        return a
    if isinstance(b, int):
        return b
    view.assume_equal(a, b)
    return view.resolve(a)


def _pass_through(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """Every output like the first input."""
    return [Fact(inputs[0].elem_type, inputs[0].shape) for _ in node.outputs]


def _first_like_input(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(inputs[0].elem_type, inputs[0].shape)]


def _to_bool(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(TensorProto.BOOL, broadcast(node.scope.view, *(fact.shape for fact in inputs)))]


def _elementwise(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    elem_type = next((fact.elem_type for fact in inputs if fact.elem_type), 0)
    return [Fact(elem_type, broadcast(node.scope.view, *(fact.shape for fact in inputs)))]


def _where(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    elem_type = inputs[1].elem_type or inputs[2].elem_type
    return [Fact(elem_type, broadcast(node.scope.view, *(fact.shape for fact in inputs)))]


def _cast(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(node.int_attribute("to") or 0, inputs[0].shape)]


def _cast_like(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(inputs[1].elem_type, inputs[0].shape)]


def _dropout(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(inputs[0].elem_type, inputs[0].shape), Fact(TensorProto.BOOL, inputs[0].shape)]


# ------------------------------------------------------------------------------------------------------- movement


def _transpose(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape = inputs[0].shape
    if shape is None:
        return [Fact(inputs[0].elem_type)]
    perm = node.ints_attribute("perm") or list(range(len(shape)))[::-1]
    return [Fact(inputs[0].elem_type, tuple(shape[axis] for axis in perm))]


def reshaped(view: GraphView, shape: Shape, target: Sequence[Value | None], allow_zero: bool, name: str) -> Shape:
    """The result's dimensions of a Reshape; a single unknown one follows from the number of elements."""
    dims: list[Value | None] = []
    for axis, size in enumerate(target):
        if size == 0 and not allow_zero:
            dims.append(shape[axis] if axis < len(shape) else None)
        else:
            dims.append(None if size == -1 else size)
    missing = [axis for axis, dim in enumerate(dims) if dim is None]
    if len(missing) == 1:
        rest = symbolic.product(dim for dim in dims if dim is not None)
        total = view.resolve(symbolic.product(shape))
        found = symbolic.divide_exactly(total, view.resolve(rest))
        first = dims[0]
        if found is None and shape and missing[0] != 0 and first is not None:
            # Two names for the batch, as exporters give to the inputs of an encoder and a decoder.
            view.assume_equal(shape[0], first, names_only=True)
            found = symbolic.divide_exactly(view.resolve(total), view.resolve(rest))
        dims[missing[0]] = found
    return tuple(unknown_dimension(name, axis) if dim is None else dim for axis, dim in enumerate(dims))


def _reshape(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    data, target = inputs[0], inputs[1] if len(inputs) > 1 else Fact()
    if target.value is None:
        legacy = node.ints_attribute("shape")
        if legacy is not None and data.shape is not None:
            return [Fact(data.elem_type, reshaped(node.scope.view, data.shape, legacy, False, node.output))]
        if target.shape is not None and len(target.shape) == 1 and isinstance(target.shape[0], int):
            rank = target.shape[0]
            return [Fact(data.elem_type, tuple(unknown_dimension(node.output, axis) for axis in range(rank)))]
        return [Fact(data.elem_type)]
    wanted = target.value.ravel().tolist()
    if data.shape is None:
        return [Fact(data.elem_type, tuple(_plain_or_unknown(dim, node.output, i) for i, dim in enumerate(wanted)))]
    allow_zero = bool(node.int_attribute("allowzero", 0))
    return [Fact(data.elem_type, reshaped(node.scope.view, data.shape, wanted, allow_zero, node.output))]


def _plain_or_unknown(dim: Value | None, name: str, axis: int) -> Value:
    return unknown_dimension(name, axis) if dim is None or dim in (0, -1) else dim


def _flatten(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, axis = inputs[0].shape, node.int_attribute("axis", 1)
    if shape is None or axis is None:
        return [Fact(inputs[0].elem_type)]
    axis = axis + len(shape) if axis < 0 else axis
    return [Fact(inputs[0].elem_type, (symbolic.product(shape[:axis]), symbolic.product(shape[axis:])))]


def _squeeze(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape = inputs[0].shape
    if shape is None:
        return [Fact(inputs[0].elem_type)]
    axes = axes_of(node, inputs)
    if axes is None:
        if node.input(1) or not all(isinstance(dim, int) for dim in shape):
            return [Fact(inputs[0].elem_type)]
        return [Fact(inputs[0].elem_type, tuple(dim for dim in shape if dim != 1))]
    gone = {axis % len(shape) for axis in axes}
    return [Fact(inputs[0].elem_type, tuple(dim for axis, dim in enumerate(shape) if axis not in gone))]


def _unsqueeze(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, axes = inputs[0].shape, axes_of(node, inputs)
    if shape is None or axes is None:
        return [Fact(inputs[0].elem_type)]
    rank = len(shape) + len(axes)
    new = {axis % rank for axis in axes}
    dims = iter(shape)
    return [Fact(inputs[0].elem_type, tuple(1 if axis in new else next(dims) for axis in range(rank)))]


def _concat(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    axis = node.int_attribute("axis")
    elem_type = next((fact.elem_type for fact in inputs if fact.elem_type), 0)
    shapes = [fact.shape for fact in inputs]
    if axis is None or any(shape is None for shape in shapes):
        return [Fact(elem_type)]
    known = [shape for shape in shapes if shape is not None]
    dims = list(known[0])
    axis %= len(dims)
    total: Value = 0
    for shape in known:
        total = symbolic.add(total, shape[axis])
    for other in range(len(dims)):
        dims[other] = next((shape[other] for shape in known if isinstance(shape[other], int)), dims[other])
    dims[axis] = total
    return [Fact(elem_type, tuple(dims))]


def _split(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, axis = inputs[0].shape, node.int_attribute("axis", 0)
    if shape is None or axis is None:
        return [Fact(inputs[0].elem_type) for _ in node.outputs]
    axis %= len(shape)
    sizes: Sequence[Value | None] | None = node.ints_attribute("split")
    if sizes is None and node.input(1):
        sizes = None if inputs[1].value is None else inputs[1].value.ravel().tolist()
    elif sizes is None:
        part = symbolic.divide_exactly(shape[axis], len(node.outputs))
        sizes = [part] * len(node.outputs)
    facts = []
    for index, name in enumerate(node.outputs):
        size = sizes[index] if sizes is not None and index < len(sizes) else None
        dims = list(shape)
        dims[axis] = unknown_dimension(name, axis) if size is None else size
        facts.append(Fact(inputs[0].elem_type, tuple(dims)))
    return facts


def _slice(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape = inputs[0].shape
    if shape is None:
        return [Fact(inputs[0].elem_type)]
    bounds = slice_bounds(node, inputs)
    dims = list(shape)
    if bounds is None:
        named = known_ints(inputs[3]) if len(inputs) > 3 and node.input(3) else None
        touched = range(len(dims)) if named is None else [axis % len(dims) for axis in named]
        for axis in touched:
            dims[axis] = unknown_dimension(node.output, axis)
        return [Fact(inputs[0].elem_type, tuple(dims))]
    for axis, start, end, step in bounds:
        axis %= len(dims)
        length = _slice_length(dims[axis], start, end, step)
        dims[axis] = unknown_dimension(node.output, axis) if length is None else length
    return [Fact(inputs[0].elem_type, tuple(dims))]


def _slice_length(size: Value, start: Value, end: Value, step: int) -> Value | None:
    if all(isinstance(item, int) for item in (size, start, end)):
        return len(range(*slice(start, None if step < 0 and end < -size else end, step).indices(size)))  # type: ignore
    if step < 0:
        whole = start == -1 and isinstance(end, int) and end < -(1 << 30)
        return size if whole and step == -1 else None
    first, last = _bound(size, start), _bound(size, end)
    if first is None or last is None:
        return None
    length = symbolic.add(last, symbolic.mul(first, -1))
    if step != 1:
        return symbolic.floor_divide(symbolic.add(length, step - 1), step)
    return length if symbolic.is_nonnegative(length) else symbolic.maximum(length, 0)


def _bound(size: Value, position: Value) -> Value | None:
    """A slice's start or end, clamped to [0, size]."""
    if isinstance(position, int) and abs(position) >= 1 << 30:
        return size if position > 0 else 0
    if isinstance(position, int) and position < 0:
        shifted = symbolic.add(size, position)
        return shifted if symbolic.is_nonnegative(shifted) else symbolic.maximum(shifted, 0)
    if not symbolic.is_nonnegative(position):
        negative = symbolic.is_nonnegative(symbolic.mul(position, -1))
        return symbolic.maximum(symbolic.add(size, position), 0) if negative else symbolic.opaque("at", size, position)
    return symbolic.minimum(position, size)


def _gather(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    data, indices, axis = inputs[0].shape, inputs[1].shape, node.int_attribute("axis", 0)
    if data is None or indices is None or axis is None:
        return [Fact(inputs[0].elem_type)]
    axis %= len(data)
    return [Fact(inputs[0].elem_type, (*data[:axis], *indices, *data[axis + 1 :]))]


def _gather_elements(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(inputs[0].elem_type, inputs[1].shape)]


def _gather_nd(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    data, indices, batch = inputs[0].shape, inputs[1].shape, node.int_attribute("batch_dims", 0)
    if data is None or indices is None or batch is None or not isinstance(indices[-1], int):
        return [Fact(inputs[0].elem_type)]
    return [Fact(inputs[0].elem_type, (*indices[:-1], *data[batch + indices[-1] :]))]


def _expand(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, target = inputs[0].shape, inputs[1]
    if shape is None:
        return [Fact(inputs[0].elem_type)]
    if target.value is None:
        if target.shape is None or len(target.shape) != 1 or not isinstance(target.shape[0], int):
            return [Fact(inputs[0].elem_type)]
        rank = max(target.shape[0], len(shape))
        return [Fact(inputs[0].elem_type, tuple(unknown_dimension(node.output, axis) for axis in range(rank)))]
    wanted: list[Value] = [
        unknown_dimension(node.output, axis) if dim is None else dim
        for axis, dim in enumerate(target.value.ravel().tolist())
    ]
    return [Fact(inputs[0].elem_type, broadcast(node.scope.view, shape, tuple(wanted)))]


def _tile(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, repeats = inputs[0].shape, inputs[1].value
    if shape is None:
        return [Fact(inputs[0].elem_type)]
    if repeats is None:
        return [Fact(inputs[0].elem_type, tuple(unknown_dimension(node.output, i) for i in range(len(shape))))]
    dims = [
        unknown_dimension(node.output, axis) if times is None else symbolic.mul(dim, times)
        for axis, (dim, times) in enumerate(zip(shape, repeats.ravel().tolist()))
    ]
    return [Fact(inputs[0].elem_type, tuple(dims))]


def _pad(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape = inputs[0].shape
    if shape is None:
        return [Fact(inputs[0].elem_type)]
    rank = len(shape)
    pads: list[Value | None] | None = list(node.ints_attribute("pads") or []) or None
    if pads is None and len(inputs) > 1 and inputs[1].value is not None:
        pads = inputs[1].value.ravel().tolist()
    axes = list(range(rank))
    if node.input(3):
        named = known_ints(inputs[3])
        if named is None:
            pads = None
        else:
            axes = [axis % rank for axis in named]
    dims = list(shape)
    if pads is None or len(pads) != 2 * len(axes):
        return [Fact(inputs[0].elem_type, tuple(unknown_dimension(node.output, axis) for axis in range(rank)))]
    for index, axis in enumerate(axes):
        before, after = pads[index], pads[index + len(axes)]
        if before is None or after is None:
            dims[axis] = unknown_dimension(node.output, axis)
        else:
            dims[axis] = symbolic.add(dims[axis], symbolic.add(before, after))
    return [Fact(inputs[0].elem_type, tuple(dims))]


# -------------------------------------------------------------------------------------------------- makers of tensors


def _shape(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape = inputs[0].shape
    if shape is None:
        return [Fact(TensorProto.INT64, (unknown_dimension(node.output, 0),))]
    start, end = node.int_attribute("start", 0), node.int_attribute("end", len(shape))
    if start is None or end is None:
        return [Fact(TensorProto.INT64, (unknown_dimension(node.output, 0),))]
    return [Fact(TensorProto.INT64, (len(range(*slice(start, end).indices(len(shape)))),))]


def _size(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(TensorProto.INT64, ())]


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
    return []


def _array(items: object, elem_type: int) -> "const_eval.Array":
    import numpy as np

    return np.array(items, dtype=np.int64 if elem_type == TensorProto.INT64 else np.float32)


def _constant_of_shape(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    attribute = node.attributes.get("value")
    tensor = getattr(getattr(attribute, "_values", None), "tensor", None)
    elem_type = TensorProto.FLOAT if attribute is None else getattr(tensor, "data_type", 0)
    return [Fact(elem_type, _dims_of_value(node, inputs[0]))]


def _dims_of_value(node: NodeView, target: Fact) -> Shape | None:
    if target.value is not None:
        items = target.value.ravel().tolist()
        return tuple(unknown_dimension(node.output, axis) if dim is None else dim for axis, dim in enumerate(items))
    if target.shape is not None and len(target.shape) == 1 and isinstance(target.shape[0], int):
        return tuple(unknown_dimension(node.output, axis) for axis in range(target.shape[0]))
    return None


def _range(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    start, end, step = (scalar(fact) for fact in inputs)
    length: Value | None = None
    if start is not None and end is not None and step == 1:
        length = symbolic.add(end, symbolic.mul(start, -1))
        if not symbolic.is_nonnegative(length):
            length = symbolic.maximum(length, 0)
    elif all(isinstance(item, (int, float)) for item in (start, end, step)) and step:
        length = max(0, math.ceil((end - start) / step))  # type: ignore[operator, arg-type]
    return [Fact(inputs[0].elem_type, (unknown_dimension(node.output, 0) if length is None else length,))]


def _one_hot(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, axis = inputs[0].shape, node.int_attribute("axis", -1)
    if shape is None or axis is None:
        return [Fact(inputs[2].elem_type)]
    depth = scalar(inputs[1])
    axis = axis + len(shape) + 1 if axis < 0 else axis
    dim = unknown_dimension(node.output, axis) if depth is None else depth
    return [Fact(inputs[2].elem_type, (*shape[:axis], dim, *shape[axis:]))]


def _like(elem_default: int | None) -> Callable[[NodeView, list[Fact]], list[Fact]]:
    def rule(node: NodeView, inputs: list[Fact]) -> list[Fact]:
        elem_type = node.int_attribute("dtype") or elem_default or inputs[0].elem_type
        return [Fact(elem_type, inputs[0].shape)]

    return rule


def _non_zero(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    rank = unknown_dimension(node.output, 0) if inputs[0].shape is None else max(len(inputs[0].shape), 1)
    return [Fact(TensorProto.INT64, (rank, unknown_dimension(node.output, 1)))]


def _sequence_free(elem_type: int) -> Callable[[NodeView, list[Fact]], list[Fact]]:
    def rule(node: NodeView, inputs: list[Fact]) -> list[Fact]:
        return [Fact(elem_type, inputs[0].shape)]

    return rule


# ------------------------------------------------------------------------------------------------------ reductions


def _reduce(elem_type: int = 0) -> Callable[[NodeView, list[Fact]], list[Fact]]:
    def rule(node: NodeView, inputs: list[Fact]) -> list[Fact]:
        shape, keep = inputs[0].shape, node.int_attribute("keepdims", 1)
        kind = elem_type or inputs[0].elem_type
        if shape is None or keep is None:
            return [Fact(kind)]
        axes = [node.int_attribute("axis", 0)] if elem_type else axes_of(node, inputs)
        if axes is None and node.input(1):
            return [Fact(kind)]
        if not axes:
            if node.int_attribute("noop_with_empty_axes", 0):
                return [Fact(kind, shape)]
            axes = list(range(len(shape)))
        gone = {axis % len(shape) for axis in axes if axis is not None}
        dims = [1 if axis in gone else dim for axis, dim in enumerate(shape) if keep or axis not in gone]
        return [Fact(kind, tuple(dims))]

    return rule


def _top_k(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, axis = inputs[0].shape, node.int_attribute("axis", -1)
    if shape is None or axis is None:
        return [Fact(inputs[0].elem_type), Fact(TensorProto.INT64)]
    count = scalar(inputs[1])
    dims = list(shape)
    dims[axis] = unknown_dimension(node.output, axis) if count is None else count
    return [Fact(inputs[0].elem_type, tuple(dims)), Fact(TensorProto.INT64, tuple(dims))]


# -------------------------------------------------------------------------------------------------------- products


def _matmul(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    a, b = inputs[0].shape, inputs[1].shape
    elem_type = inputs[0].elem_type or inputs[1].elem_type
    if a is None or b is None or not a or not b:
        return [Fact(elem_type)]
    view = node.scope.view
    view.assume_equal(a[-1], b[-2] if len(b) > 1 else b[-1])
    batch = broadcast(view, a[:-2], b[:-2]) or ()
    rows = (a[-2],) if len(a) > 1 else ()
    columns = (b[-1],) if len(b) > 1 else ()
    return [Fact(elem_type, (*batch, *rows, *columns))]


def _gemm(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    a, b = inputs[0].shape, inputs[1].shape
    if a is None or b is None:
        return [Fact(inputs[0].elem_type)]
    rows = a[1] if node.int_attribute("transA", 0) else a[0]
    columns = b[0] if node.int_attribute("transB", 0) else b[1]
    return [Fact(inputs[0].elem_type, (rows, columns))]


def einsum_labels(node: NodeView, inputs: Sequence[Fact]) -> tuple[list[str], str] | None:
    """The label of each axis of the operands and of the result of an Einsum without ellipsis."""
    equation = node.text_attribute("equation")
    if equation is None:
        return None
    equation = equation.replace(" ", "")
    if "..." in equation:
        equation = _spell_ellipsis(equation, inputs)
        if not equation:
            return None
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        joined = "".join(terms)
        right = "".join(sorted(letter for letter in set(joined) if joined.count(letter) == 1))
    return terms, right


def _spell_ellipsis(equation: str, inputs: Sequence[Fact]) -> str:
    """``...`` replaced by letters that the equation doesn't use; "" where the operands' ranks aren't known."""
    left, arrow, right = equation.partition("->")
    free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in equation]
    terms, widest = left.split(","), 0
    spelled = []
    for term, fact in zip(terms, inputs):
        if fact.shape is None or not arrow:
            return ""
        count = len(fact.shape) - len(term.replace("...", "")) if "..." in term else 0
        widest = max(widest, count)
        spelled.append((term, count))
    names = "".join(free[:widest])
    parts = [term.replace("...", names[widest - count :]) for term, count in spelled]
    return f"{','.join(parts)}->{right.replace('...', names)}"


def _einsum(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    labels = einsum_labels(node, inputs)
    if labels is None:
        return [Fact(inputs[0].elem_type)]
    sizes: dict[str, Value] = {}
    view = node.scope.view
    for term, fact in zip(labels[0], inputs):
        if fact.shape is None or len(fact.shape) != len(term):
            continue
        for letter, dim in zip(term, fact.shape):
            sizes[letter] = _broadcast_dim(view, sizes[letter], dim) if letter in sizes else dim
    dims = [sizes.get(letter, unknown_dimension(node.output, axis)) for axis, letter in enumerate(labels[1])]
    return [Fact(inputs[0].elem_type, tuple(dims))]


def _conv(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    data, weight = inputs[0].shape, inputs[1].shape
    if data is None:
        return [Fact(inputs[0].elem_type)]
    channels = weight[0] if weight is not None else unknown_dimension(node.output, 1)
    kernel = node.ints_attribute("kernel_shape") or (list(weight[2:]) if weight is not None else None)
    return [Fact(inputs[0].elem_type, (data[0], channels, *_windows(node, data[2:], kernel)))]


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


def _global_pool(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape = inputs[0].shape
    dims = None if shape is None else (*shape[:2], *(1 for _ in shape[2:]))
    return [Fact(inputs[0].elem_type, dims)]


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
            elif isinstance(factor, (int, float)) and isinstance(shape[axis], int):
                dims[axis] = math.floor(shape[axis] * factor)
    return [Fact(inputs[0].elem_type, tuple(dims))]


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


# --------------------------------------------------------------------------------------------------- fused attention


def _attention(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """The standard Attention: (B,N,S,E) or (B,S,N*E)."""
    query, value = inputs[0].shape, inputs[2].shape
    if query is None or value is None:
        return [Fact(inputs[0].elem_type)]
    if len(query) == 4:
        return [Fact(inputs[0].elem_type, (*query[:3], value[3]))]
    heads, kv_heads = node.int_attribute("q_num_heads"), node.int_attribute("kv_num_heads")
    if not heads or not kv_heads:
        return [Fact(inputs[0].elem_type)]
    width = symbolic.floor_divide(symbolic.mul(value[2], heads), kv_heads)
    return [Fact(inputs[0].elem_type, (*query[:2], width))]


def _multi_head_attention(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    query = inputs[0].shape
    value = inputs[2].shape if len(inputs) > 2 and node.input(2) else None
    if query is None or len(query) != 3:
        return [Fact(inputs[0].elem_type)]
    width = query[2] if value is None else value[2] if len(value) == 3 else symbolic.mul(value[1], value[3])
    return [Fact(inputs[0].elem_type, (*query[:2], width))]


def _skip_norm(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    facts = [Fact() for _ in node.outputs]
    facts[0] = Fact(inputs[0].elem_type, inputs[0].shape)
    if len(facts) > 3:
        facts[3] = facts[0]
    return facts


def _fused_matmul(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    swapped = []
    for fact, attribute in zip(inputs, ("transA", "transB")):
        shape = fact.shape
        if shape is not None and node.int_attribute(attribute, 0):
            shape = (*shape[:-2], shape[-1], shape[-2])
        swapped.append(Fact(fact.elem_type, shape))
    return _matmul(node, swapped)


NodeRule = Callable[[NodeView, list[Fact]], list[Fact]]

_STANDARD: dict[str, NodeRule] = {
    **dict.fromkeys(
        "Relu Erf Tanh Sqrt Exp Log Neg Abs Not Identity Softmax LogSoftmax Hardmax LayerNormalization Clip Sigmoid "
        "Gelu Softplus Softsign HardSwish HardSigmoid Sin Cos Tan Asin Acos Atan Sinh Cosh Floor Ceil Round Sign "
        "Reciprocal Trilu CumSum BatchNormalization InstanceNormalization GroupNormalization RMSNormalization Elu "
        "LeakyRelu PRelu Selu Celu Mish Swish ThresholdedRelu Shrink ScatterND ScatterElements Scatter LpNormalization "
        "MeanVarianceNormalization LRN BitwiseNot RotaryEmbedding ReverseSequence TensorScatter".split(),
        _first_like_input,
    ),
    **dict.fromkeys("Add Sub Mul Div Pow Mod Min Max Mean Sum BitwiseAnd BitwiseOr BitwiseXor BitShift".split(),
                    _elementwise),
    **dict.fromkeys("And Or Xor Equal Greater Less GreaterOrEqual LessOrEqual".split(), _to_bool),
    **dict.fromkeys("ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
                    "ReduceLogSumExp ReduceSumSquare".split(), _reduce()),
    **dict.fromkeys(("ArgMax", "ArgMin"), _reduce(TensorProto.INT64)),
    **dict.fromkeys(("IsNaN", "IsInf"), _sequence_free(TensorProto.BOOL)),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _global_pool),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _depth_to_space),
    **dict.fromkeys(("RandomNormalLike", "RandomUniformLike", "EyeLike"), _like(None)),
    "Bernoulli": _like(None),
    "Where": _where,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Dropout": _dropout,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "Shape": _shape,
    "Size": _size,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "OneHot": _one_hot,
    "NonZero": _non_zero,
    "TopK": _top_k,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Attention": _attention,
}

_MICROSOFT: dict[str, NodeRule] = {
    **dict.fromkeys("BiasGelu FastGelu Gelu QuickGelu BiasSplitGelu GroupNorm RotaryEmbedding".split(),
                    _first_like_input),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization"),
                    _skip_norm),
    "MultiHeadAttention": _multi_head_attention,
    "FusedMatMul": _fused_matmul,
}

_RULES: dict[tuple[str, str], NodeRule] = {
    **{("", op): rule for op, rule in _STANDARD.items()},
    **{("com.microsoft", op): rule for op, rule in _MICROSOFT.items()},
    ("", "SimplifiedLayerNormalization"): _first_like_input,
}
