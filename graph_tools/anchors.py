"""Where attention can sit: every Softmax of the standard domain, and the ways to spell one out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .const_eval import axes_of, scalar
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
    sink: float | None = None
    """One more logit in the denominator."""

    @property
    def name(self) -> str:
        """The site's name."""
        return self.node.label


def anchors(scope: Scope) -> Iterator[Anchor]:
    """Every softmax of ``scope``, in the file's order."""
    for node in scope.nodes:
        if not node.output or not node.input(0):
            continue
        if node.is_op("Softmax"):
            yield Anchor(scope, node, node.input(0), _softmax_axes(scope, node), node.output, (node,))
        elif node.is_op("Exp"):
            found = _from_log_softmax(scope, node) or _from_log_sum(scope, node) or _spelled_out(scope, node)
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


def _from_log_sum(scope: Scope, node: NodeView) -> Anchor | None:
    """``Exp(s - ReduceLogSumExp(s))``."""
    step = scope.producer(node.input(0))
    if step is None or not step.is_op("Sub") or step.scope is not scope:
        return None
    total = scope.producer(step.input(1))
    if total is None or not total.is_op("ReduceLogSumExp") or total.input(0) != step.input(0):
        return None
    axes = _summed_axes(scope, total)
    return Anchor(scope, node, step.input(0), axes, node.output, (total, step, node)) if axes else None


def _summed_axes(scope: Scope, node: NodeView) -> tuple[int, ...]:
    """The axes of a reduction that keeps its dimensions, not negative; ``()`` where they aren't known."""
    rank = scope.rank(node.input(0))
    axes = axes_of(node, [scope.fact(name) for name in node.inputs])
    if rank is None or not axes or node.int_attribute("keepdims", 1) != 1:
        return ()
    return tuple(sorted(axis % rank for axis in axes))


def _spelled_out(scope: Scope, node: NodeView) -> Anchor | None:
    """``e = Exp(s)``; ``Div(e, ReduceSum(e))``, or ``Div(MatMul(e, v), ReduceSum(e))``.

    The sum may have one more term, ``Exp(-m)`` where ``s = scores - m``: a sink whose logit is 0.
    """
    readers = scope.consumers(node.output)
    total = next((reader for reader in readers if reader.is_op("ReduceSum")), None)
    if total is None or len(readers) != 2:
        return None
    over = _summed_axes(scope, total)
    if not over:
        return None
    other = next(reader for reader in readers if reader is not total)
    nodes: tuple[NodeView, ...] = (node, total)
    scores, bottom, sink = node.input(0), total.output, None
    extra = _sink_of_zero(scope, node, total)
    if extra is not None:
        scores, nodes, bottom, sink = extra[0], (*nodes, *extra[1]), extra[1][-1].output, 0.0
    if other.is_op("Div") and other.inputs == (node.output, bottom):
        return Anchor(scope, node, scores, over, other.output, (*nodes, other), sink=sink)
    inverse = scope.consumers(bottom)
    by_inverse = other.is_op("Mul") and len(inverse) == 1 and inverse[0].is_op("Reciprocal")
    if by_inverse and set(other.inputs) == {node.output, inverse[0].output}:
        return Anchor(scope, node, scores, over, other.output, (*nodes, inverse[0], other), sink=sink)
    return Anchor(scope, node, scores, over, node.output, nodes, late_sum=bottom, sink=sink)


def _sink_of_zero(scope: Scope, node: NodeView, total: NodeView) -> tuple[str, tuple[NodeView, ...]] | None:
    """The scores before ``m`` was taken off, and the nodes of ``Exp(s - m)``'s further term ``Exp(-m)``."""
    readers, step = scope.consumers(total.output), scope.producer(node.input(0))
    if len(readers) != 1 or not readers[0].is_op("Add") or step is None or not step.is_op("Sub"):
        return None
    added = readers[0]
    name = added.input(1) if added.input(0) == total.output else added.input(0)
    power = scope.producer(name)
    negation = None if power is None or not power.is_op("Exp") else scope.producer(power.input(0))
    if power is None or negation is None:
        return None
    is_minus = negation.is_op("Neg") and negation.input(0) == step.input(1)
    is_zero_minus = negation.is_op("Sub") and negation.input(1) == step.input(1)
    if is_zero_minus:
        is_zero_minus = scalar(scope.fact(negation.input(0))) == 0
    if not (is_minus or is_zero_minus) or not _is_row_constant(scope, step, total):
        return None
    top = _producers_up_to(scope, step.input(1), step.input(0))
    return step.input(0), (step, *top, negation, power, added)


def _is_row_constant(scope: Scope, step: NodeView, total: NodeView) -> bool:
    """Whether what a Sub takes off has size 1 along the axes that are summed over."""
    shape = scope.shape(step.input(1))
    rank = scope.rank(step.input(0))
    if shape is None or rank is None or len(shape) != rank:
        return False
    return all(shape[axis] == 1 for axis in _summed_axes(scope, total))


def _producers_up_to(scope: Scope, name: str, source: str) -> tuple[NodeView, ...]:
    """The chain of nodes by first inputs between ``source`` and ``name``; ``()`` where there is none."""
    nodes: list[NodeView] = []
    while name != source:
        producer = scope.producer(name)
        if producer is None or len(nodes) > 4:
            return ()
        nodes.append(producer)
        name = next((item for item in producer.inputs if scope.producer(item) is not None), "")
    return tuple(nodes)
