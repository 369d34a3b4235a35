"""Shapes of operators that move, cut, repeat or join."""

from __future__ import annotations

from collections.abc import Sequence

from . import symbolic
from .const_eval import axes_of, known_ints, scalar, slice_bounds
from .facts import Fact, Shape, rank_of_target, unknown_dimension
from .graph_view import GraphView, NodeView
from .shape_rules import broadcast, shape_rule
from .symbolic import Value


@shape_rule("Transpose")
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


@shape_rule("Reshape")
def _reshape(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    data, target = inputs[0], inputs[1] if len(inputs) > 1 else Fact()
    if target.value is None:
        legacy = node.ints_attribute("shape")
        if legacy is not None and data.shape is not None:
            return [Fact(data.elem_type, reshaped(node.scope.view, data.shape, legacy, False, node.output))]
        rank = rank_of_target(target)
        if rank is not None:
            return [Fact(data.elem_type, tuple(unknown_dimension(node.output, axis) for axis in range(rank)))]
        return [Fact(data.elem_type)]
    wanted = target.value.ravel().tolist()
    if data.shape is None:
        return [Fact(data.elem_type, tuple(_plain_or_unknown(dim, node.output, i) for i, dim in enumerate(wanted)))]
    allow_zero = bool(node.int_attribute("allowzero", 0))
    return [Fact(data.elem_type, reshaped(node.scope.view, data.shape, wanted, allow_zero, node.output))]


def _plain_or_unknown(dim: Value | None, name: str, axis: int) -> Value:
    return unknown_dimension(name, axis) if dim is None or dim in (0, -1) else dim


@shape_rule("Flatten")
def _flatten(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, axis = inputs[0].shape, node.int_attribute("axis", 1)
    if shape is None or axis is None:
        return [Fact(inputs[0].elem_type)]
    axis = axis + len(shape) if axis < 0 else axis
    return [Fact(inputs[0].elem_type, (symbolic.product(shape[:axis]), symbolic.product(shape[axis:])))]


@shape_rule("Squeeze")
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


@shape_rule("Unsqueeze")
def _unsqueeze(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, axes = inputs[0].shape, axes_of(node, inputs)
    if shape is None or axes is None:
        return [Fact(inputs[0].elem_type)]
    rank = len(shape) + len(axes)
    new = {axis % rank for axis in axes}
    dims = iter(shape)
    return [Fact(inputs[0].elem_type, tuple(1 if axis in new else next(dims) for axis in range(rank)))]


@shape_rule("Concat")
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


@shape_rule("Split")
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


@shape_rule("SequenceAt")
def _sequence_at(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """One part of a SplitToSequence."""
    source = node.scope.producer(node.input(0))
    position = scalar(inputs[1])
    if source is None or not source.is_op("SplitToSequence") or not isinstance(position, int):
        return []
    data, axis = node.scope.fact(source.input(0)), source.int_attribute("axis", 0)
    if data.shape is None or axis is None or source.int_attribute("keepdims", 1) != 1 or not source.input(1):
        return []
    sizes = node.scope.fact(source.input(1)).value
    dims = list(data.shape)
    axis %= len(dims)
    whole = dims[axis]
    if sizes is None or any(not isinstance(item, int) for item in sizes.flat):
        return []
    if sizes.ndim:
        dims[axis] = sizes.ravel().tolist()[position]
    else:
        part = int(sizes.item())
        last = symbolic.divide_exactly(whole, part)
        if last is None:
            return []
        dims[axis] = part
    return [Fact(data.elem_type, tuple(dims))]


@shape_rule("Slice")
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
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(*slice(start, None if step < 0 and end < -size else end, step).indices(size)))
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
    if position == 1:
        return 1  # an axis that is sliced has at least one element
    if not symbolic.is_nonnegative(position):
        negative = symbolic.is_nonnegative(symbolic.mul(position, -1))
        return symbolic.maximum(symbolic.add(size, position), 0) if negative else symbolic.opaque("at", size, position)
    return symbolic.minimum(position, size)


@shape_rule("Gather")
def _gather(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    data, indices, axis = inputs[0].shape, inputs[1].shape, node.int_attribute("axis", 0)
    if data is None or indices is None or axis is None:
        return [Fact(inputs[0].elem_type)]
    axis %= len(data)
    return [Fact(inputs[0].elem_type, (*data[:axis], *indices, *data[axis + 1 :]))]


@shape_rule("GatherElements")
def _gather_elements(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(inputs[0].elem_type, inputs[1].shape)]


@shape_rule("GatherND")
def _gather_nd(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    data, indices, batch = inputs[0].shape, inputs[1].shape, node.int_attribute("batch_dims", 0)
    if data is None or indices is None or batch is None or not isinstance(indices[-1], int):
        return [Fact(inputs[0].elem_type)]
    return [Fact(inputs[0].elem_type, (*indices[:-1], *data[batch + indices[-1] :]))]


@shape_rule("Expand")
def _expand(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, target = inputs[0].shape, inputs[1]
    if shape is None:
        return [Fact(inputs[0].elem_type)]
    if target.value is None:
        given = rank_of_target(target)
        if given is None:
            return [Fact(inputs[0].elem_type)]
        rank = max(given, len(shape))
        return [Fact(inputs[0].elem_type, tuple(unknown_dimension(node.output, axis) for axis in range(rank)))]
    wanted: list[Value] = [
        unknown_dimension(node.output, axis) if dim is None else dim
        for axis, dim in enumerate(target.value.ravel().tolist())
    ]
    return [Fact(inputs[0].elem_type, broadcast(node.scope.view, shape, tuple(wanted)))]


@shape_rule("Tile")
def _tile(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    shape, repeats = inputs[0].shape, inputs[1].value
    if shape is None:
        return [Fact(inputs[0].elem_type)]
    if repeats is None:
        return [Fact(inputs[0].elem_type, tuple(unknown_dimension(node.output, i) for i in range(len(shape))))]
    dims = [
        unknown_dimension(node.output, axis) if times is None else symbolic.mul(dim, times)
        for axis, (dim, times) in enumerate(zip(shape, repeats.ravel().tolist(), strict=False))
    ]
    return [Fact(inputs[0].elem_type, tuple(dims))]


@shape_rule("Pad")
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
