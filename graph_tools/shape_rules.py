"""The registry of shape rules, and the shape of an elementwise result."""

from __future__ import annotations

from collections.abc import Callable

from .facts import Fact, Shape
from .graph_view import GraphView, NodeView
from .symbolic import Value

ShapeRule = Callable[[NodeView, list[Fact]], list[Fact]]
"""From what is known of a node's inputs to what is known of its outputs."""

RULES: dict[tuple[str, str], ShapeRule] = {}
"""(domain, operator) -> rule. Filled by the ``shape_rules_*`` modules."""


def shape_rule(ops: str, domain: str = "") -> Callable[[ShapeRule], ShapeRule]:
    """Register a rule for operators, named with spaces between."""

    def register(function: ShapeRule) -> ShapeRule:
        for op in ops.split():
            RULES[(domain, op)] = function
        return function

    return register


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
                dim = broadcast_dim(view, dim, shape[position])
        dims.append(dim)
    return tuple(dims)


def broadcast_dim(view: GraphView, a: Value, b: Value) -> Value:
    """One dimension of an elementwise result."""
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
