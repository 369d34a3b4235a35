"""Where attention can sit: every Softmax of the standard domain, and the ways to spell one out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .const_eval import axes_of
from .graph_view import NodeView, Scope


@dataclass(frozen=True)
class Anchor:
    """A softmax: what goes in, what comes out, and the nodes that it is made of."""

    scope: Scope
    node: NodeView
    scores: str
    """Its input."""
    axes: tuple[int, ...]
    """The axes that it runs over, not negative."""
    probabilities: str
    nodes: tuple[NodeView, ...]
    late_sum: str = ""
    """The sum that divides the output after the product with the values; "" where it divides before."""

    @property
    def name(self) -> str:
        """The site's name."""
        return self.node.label


def anchors(scope: Scope) -> Iterator[Anchor]:
    """Every softmax of ``scope``, in the file's order."""
    for node in scope.nodes:
        if node.is_op("Softmax"):
            yield Anchor(scope, node, node.input(0), _softmax_axes(scope, node), node.output, (node,))
        elif node.is_op("Exp"):
            found = _from_log_softmax(scope, node) or _spelled_out(scope, node)
            if found is not None:
                yield found


def _softmax_axes(scope: Scope, node: NodeView) -> tuple[int, ...]:
    """``()`` where the axis isn't known. Before opset 13 a Softmax runs over all axes from ``axis`` on."""
    rank = scope.rank(node.input(0))
    legacy = 0 < scope.opset < 13
    axis = node.int_attribute("axis", 1 if legacy else -1)
    if rank is None or axis is None or not -rank <= axis < rank:
        return ()
    axis %= rank
    return tuple(range(axis, rank)) if legacy else (axis,)


def _from_log_softmax(scope: Scope, node: NodeView) -> Anchor | None:
    """``Exp(LogSoftmax(s))``."""
    log = scope.producer(node.input(0))
    if log is None or not log.is_op("LogSoftmax") or log.scope is not scope:
        return None
    return Anchor(scope, node, log.input(0), _softmax_axes(scope, log), node.output, (log, node))


def _spelled_out(scope: Scope, node: NodeView) -> Anchor | None:
    """``e = Exp(s)``; ``Div(e, ReduceSum(e))``, or ``Div(MatMul(e, v), ReduceSum(e))``."""
    readers = scope.consumers(node.output)
    total = next((reader for reader in readers if reader.is_op("ReduceSum")), None)
    if total is None or len(readers) != 2 or total.int_attribute("keepdims", 1) != 1:
        return None
    rank = scope.rank(node.output)
    axes = axes_of(total, [scope.fact(name) for name in total.inputs])
    if rank is None or not axes:
        return None
    over = tuple(sorted(axis % rank for axis in axes))
    other = next(reader for reader in readers if reader is not total)
    if other.is_op("Div") and other.inputs == (node.output, total.output):
        return Anchor(scope, node, node.input(0), over, other.output, (node, total, other))
    inverse = scope.consumers(total.output)
    if other.is_op("Mul") and len(inverse) == 1 and inverse[0].is_op("Reciprocal"):
        if set(other.inputs) == {node.output, inverse[0].output}:
            return Anchor(scope, node, node.input(0), over, other.output, (node, total, inverse[0], other))
    return Anchor(scope, node, node.input(0), over, node.output, (node, total), late_sum=total.output)
