"""Rules that walk from a product's operand, or from a bias, towards the inputs: what only moves or scales elements.

Each rule gets the node that writes a tensor and the layout of that tensor, and returns the node's input with *its*
layout and with the number by which the rest is multiplied, or ``None`` where it doesn't apply. Nothing is refused
here: where no rule applies, the walk has found the tensor that the fused op reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onnx import TensorProto

from . import symbolic
from .const_eval import known_ints, scalar
from .graph_view import NodeView, Scope
from .layout import Axis, Layout, regroup, size_of, split_axis, transposed
from .rule_table import RuleTable
from .symbolic import Value

UPCASTS: Mapping[int, tuple[int, ...]] = {
    TensorProto.FLOAT16: (TensorProto.FLOAT, TensorProto.DOUBLE),
    TensorProto.BFLOAT16: (TensorProto.FLOAT, TensorProto.DOUBLE),
    TensorProto.FLOAT: (TensorProto.DOUBLE,),
}
"""Casts that lose nothing."""


@dataclass(frozen=True)
class OperandStep:
    """One node passed on the way to the inputs."""

    tensor: str
    layout: Layout
    factor: Value
    fact: str
    cost: int
    """What it would cost to leave the node in the graph, in the units of :mod:`.rearrange`."""


OperandRule = Callable[[Scope, NodeView, Layout], "OperandStep | None"]

rule: RuleTable[OperandRule] = RuleTable()


def step(scope: Scope, node: NodeView, layout: Layout, tensor: str) -> OperandStep | None:
    """Apply the rule for ``node``, whose output ``tensor`` has ``layout``."""
    found = rule.find(node) if tensor == node.output else None
    return None if found is None else found(scope, node, layout)


@rule("Transpose")
def transpose(scope: Scope, node: NodeView, layout: Layout) -> OperandStep | None:
    """``Transpose(x, perm) -> x`` with its axes put back."""
    perm = node.ints_attribute("perm")
    if perm is None:
        if "perm" in node.attributes:
            return None
        perm = list(range(len(layout)))[::-1]
    if sorted(perm) != list(range(len(layout))):
        return None
    return OperandStep(node.input(0), transposed(layout, perm), 1, f"axes permuted by {tuple(perm)}", 10)


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(scope: Scope, node: NodeView, layout: Layout) -> OperandStep | None:
    """``Reshape(x) -> x`` where the new shape only splits, merges, adds or drops axes."""
    shape = scope.shape(node.input(0))
    if shape is None or not node.input(0):
        return None
    before = regroup(layout, shape, scope.view.resolve)
    if before is None:
        return None
    return OperandStep(node.input(0), before, 1, f"reshaped from {_text(shape)}", 1)


@rule("Identity")
def identity(scope: Scope, node: NodeView, layout: Layout) -> OperandStep | None:
    """``Identity(x) -> x``."""
    return OperandStep(node.input(0), layout, 1, "nothing", 1)


@rule("Dropout")
def dropout(scope: Scope, node: NodeView, layout: Layout) -> OperandStep | None:
    """``Dropout(x) -> x`` in inference."""
    return OperandStep(node.input(0), layout, 1, "nothing in inference", 1) if is_inference(scope, node) else None


def is_inference(scope: Scope, node: NodeView) -> bool:
    """Whether a Dropout provably does nothing: no training_mode (or False), or a ratio of 0."""
    if scope.opset and scope.opset < 7 and node.int_attribute("is_test", 0) != 1:
        return False
    ratio = node.float_attribute("ratio") if not node.input(1) else scalar(scope.fact(node.input(1)))
    if ratio == 0:
        return True
    return not node.input(2) or scalar(scope.fact(node.input(2))) is False


@rule("Cast", "CastLike")
def cast(scope: Scope, node: NodeView, layout: Layout) -> OperandStep | None:
    """``Cast(x) -> x`` to a wider type: nothing is lost, and the op accumulates in fp32 anyway."""
    source, target = scope.elem_type(node.input(0)), scope.elem_type(node.output)
    if not source or not target or (source != target and target not in UPCASTS.get(source, ())):
        return None
    return OperandStep(node.input(0), layout, 1, "cast to a wider type", 4 if source != target else 1)


@rule("Mul")
def multiply(scope: Scope, node: NodeView, layout: Layout) -> OperandStep | None:
    """``Mul(x, c) -> x; scale *= c`` for one number ``c``. A vector (a norm's weight) is no scale."""
    for data, other in ((0, 1), (1, 0)):
        factor = scalar(scope.fact(node.input(other)))
        if factor is not None and factor is not True and _keeps_shape(scope, node, data):
            return OperandStep(node.input(data), layout, factor, f"scale *= {symbolic.to_text(factor)}", 4)
    return None


@rule("Div")
def divide(scope: Scope, node: NodeView, layout: Layout) -> OperandStep | None:
    """``Div(x, c) -> x; scale /= c`` for one number ``c``."""
    divisor = scalar(scope.fact(node.input(1)))
    factor = None if divisor is None else symbolic.real_divide(1.0, divisor)
    if divisor is None or factor is None or not _keeps_shape(scope, node, 0):
        return None
    return OperandStep(node.input(0), layout, factor, f"scale /= {symbolic.to_text(divisor)}", 4)


@rule("Neg")
def negate(scope: Scope, node: NodeView, layout: Layout) -> OperandStep | None:
    """``Neg(x) -> x; scale *= -1``."""
    return OperandStep(node.input(0), layout, -1, "scale *= -1", 4)


def _keeps_shape(scope: Scope, node: NodeView, data: int) -> bool:
    """Whether the other operand, one element, doesn't add axes to the data."""
    rank, other = scope.rank(node.input(data)), scope.rank(node.input(1 - data))
    return rank is not None and other is not None and rank >= other


@rule("Expand")
def expand(scope: Scope, node: NodeView, layout: Layout) -> OperandStep | None:
    """``Expand(x) -> x``, which repeats along the axes where its size is 1."""
    shape = scope.shape(node.input(0))
    if shape is None or len(shape) > len(layout):
        return None
    return OperandStep(node.input(0), _blanked(layout, shape), 1, f"broadcast from {_text(shape)}", 100)


def _blanked(layout: Layout, shape: tuple[Value, ...]) -> Layout:
    aligned = layout[len(layout) - len(shape) :]
    return tuple(() if dim == 1 and size_of(axis) != 1 else axis for axis, dim in zip(aligned, shape, strict=False))


@rule("Tile")
def tile(scope: Scope, node: NodeView, layout: Layout) -> OperandStep | None:
    """``Tile(x, r) -> x``: the axis is (r, x's axis), and x repeats along the outer part."""
    shape = scope.shape(node.input(0))
    value = scope.fact(node.input(1)).value
    if shape is None or value is None or value.size != len(layout):
        return None
    axes: list[Axis] = []
    for axis, dim, times in zip(layout, shape, value.ravel().tolist(), strict=False):
        if times == 1:
            axes.append(axis)
        elif dim == 1:
            axes.append(())
        else:
            parts = None if times is None else split_axis(axis, times, scope.view.resolve)
            if parts is None:
                return None
            axes.append(parts[1])
    return OperandStep(node.input(0), tuple(axes), 1, "tiled", 100)


@rule("Concat")
def concat_of_one(scope: Scope, node: NodeView, layout: Layout) -> OperandStep | None:
    """``Concat(x, x, ..., x) -> x``: a Tile in other words."""
    axis, shape = node.int_attribute("axis"), scope.shape(node.input(0))
    if axis is None or shape is None or len(set(node.inputs)) != 1:
        return None
    axis %= len(layout)
    axes = list(layout)
    if len(node.inputs) > 1:
        parts = ((), ()) if shape[axis] == 1 else split_axis(layout[axis], len(node.inputs), scope.view.resolve)
        if parts is None:
            return None
        axes[axis] = parts[1]
    return OperandStep(node.input(0), tuple(axes), 1, f"{len(node.inputs)} copies side by side", 100)


@rule("Gather")
def repeat_each(scope: Scope, node: NodeView, layout: Layout) -> OperandStep | None:
    """``Gather(x, [0,0,1,1,...]) -> x``: the axis is (x's axis, r), and x repeats along the inner part."""
    axis, indices = node.int_attribute("axis", 0), known_ints(scope.fact(node.input(1)))
    shape, index_rank = scope.shape(node.input(0)), scope.rank(node.input(1))
    if axis is None or shape is None or not indices or index_rank != 1:
        return None
    axis %= len(shape)
    count = shape[axis]
    if not isinstance(count, int) or len(indices) % count:
        return None
    times = len(indices) // count
    if indices != [index // times for index in range(len(indices))]:
        return None
    parts = split_axis(layout[axis], count, scope.view.resolve)
    if parts is None:
        return None
    axes = (*layout[:axis], parts[0], *layout[axis + 1 :])
    return OperandStep(node.input(0), axes, 1, f"each repeated {times} times", 100)


def _text(shape: tuple[Value, ...]) -> str:
    return f"({', '.join(symbolic.to_text(dim) for dim in shape)})"
