"""Rules that walk from the softmax's input back to the product of query and key.

Each rule takes the state of the walk and the node that wrote the current tensor. It returns the states to go on from
(more than one where it can't tell which operand is the score), or a refusal. What is peeled becomes a fact: a scale, a
cap, a bias, a mask. ``state.coeff`` is the product of the scales passed so far, so ``(QK + bias) * 0.35`` gives the
bias the coefficient 0.35 with no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from onnx import TensorProto

from . import rules_operands, symbolic
from .absorbing import LOWEST_ABSORBING, absorbs, scaled
from .const_eval import axes_of, is_float, scalar
from .graph_view import NodeView, Scope
from .indicators import constant_fill, is_indicator, rests_on_inputs
from .layout import Atom, Layout, broadcast_operand, finest, size_of
from .normal_form import Refusal
from .rule_table import RuleTable
from .symbolic import Value
from .walk_state import WalkState


@dataclass(frozen=True)
class RawTerm:
    """A bias or mask as it was met: its tensor with a layout over the site's atoms."""

    kind: Literal["bias", "mask"]
    node: NodeView
    tensor: str
    layout: Layout
    coeff: Value
    fill: float | None = None
    inverted: bool = False
    floor: float | None = None
    unless: RawTerm | None = None
    """mask only: a bias; where it isn't 0, the score is left as it is."""
    note: str = ""
    multiplied: bool = False
    """mask only: the score is multiplied by it, so an infinite score below it would be NaN."""


@dataclass(frozen=True)
class RawFactor:
    """A tensor that multiplies the scores and doesn't vary along the keys: a temperature a head."""

    node: NodeView
    tensor: str
    layout: Layout
    divides: bool


@dataclass(frozen=True)
class RawSink:
    """One more logit a row, in the denominator only."""

    tensor: str
    layout: Layout
    value: float | None
    """The logit, where it is one number."""
    first: bool = False
    """Whether its column stands before the keys."""


@dataclass(frozen=True)
class ScoreState(WalkState):
    """Where the walk back from the softmax stands."""

    coeff: Value = 1
    cap: Value | None = None
    """The factor outside a Tanh; ``None`` until one is passed."""
    terms: tuple[RawTerm, ...] = ()
    factors: tuple[RawFactor, ...] = ()
    floor: float | None = None
    """What the sum is clamped to from below between here and the next term."""
    sinks: RawSink | None = None
    shifted: tuple[int, NodeView] | None = None
    """The innermost shift by the row's maximum, and how many terms are outside it."""


ScoreResult: TypeAlias = "Sequence[ScoreState] | Refusal"
ScoreRule = Callable[[ScoreState, NodeView], ScoreResult]

rule: RuleTable[ScoreRule] = RuleTable()


def refuse(node: NodeView, name: str, reason: str, hint: str = "") -> Refusal:
    """A refusal at ``node``."""
    return Refusal(name, node.label, reason, hint)


def step(state: ScoreState, node: NodeView) -> ScoreResult:
    """Apply the rule for ``node``, which writes ``state.tensor``."""
    found = rule.find(node) if state.tensor == node.output else None
    if found is None:
        return refuse(
            node,
            "scores",
            f"between the product of query and key and the softmax stands {node.kind}, which no rule knows",
        )
    return found(state, node)


# ------------------------------------------------------------------------------------------- movement and no-ops


@rule("Cast", "CastLike")
def cast(state: ScoreState, node: NodeView) -> ScoreResult:
    """``Cast(s) -> s`` between float types: the op accumulates scores in fp32."""
    if not is_float(state.scope.elem_type(node.input(0))) or not is_float(state.scope.elem_type(node.output)):
        return refuse(node, "cast", "a Cast on the scores that isn't between floating point types")
    return [state.at(node, node.input(0), "accumulated in fp32", "cast")]


@rule("Identity", "Dropout")
def identity(state: ScoreState, node: NodeView) -> ScoreResult:
    """``Identity(s) -> s``, ``Dropout(s) -> s`` in inference."""
    if node.op == "Dropout" and not rules_operands.is_inference(state.scope, node):
        return refuse(node, "dropout", "a Dropout in training mode drops scores at random", "export in eval mode")
    return [state.at(node, node.input(0), "nothing in inference", "identity")]


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")
def move(state: ScoreState, node: NodeView) -> ScoreResult:
    """``Reshape(s) -> s``, ``Transpose(s) -> s``: only the layout changes."""
    moved = rules_operands.step(state.scope, node, state.layout, state.tensor)
    if moved is None:
        return refuse(
            node,
            "reshape",
            f"a {node.op} on the scores whose axes can't be followed: it isn't provably a split or merge of axes",
            "export with the shapes of the inputs given, or fixed",
        )
    return [state.at(node, moved.tensor, moved.fact, "reshape", layout=moved.layout)]


# ------------------------------------------------------------------------------------------------------------ scales


def _scaled(state: ScoreState, node: NodeView, data: int, factor: Value, fact: str) -> ScoreResult:
    return [state.at(node, node.input(data), fact, "scale", coeff=symbolic.mul(state.coeff, factor))]


def _number(scope: Scope, name: str) -> Value | None:
    """The one number that a tensor holds: a single element, or a constant that is the same throughout."""
    single = scalar(scope.fact(name))
    return single if single is not None or scope.producer(name) is not None else constant_fill(scope, name)


@rule("Mul")
def multiply(state: ScoreState, node: NodeView) -> ScoreResult:
    """``Mul(s, c) -> s; scale *= c``; ``Mul(s, t) -> s; query *= t`` for a tensor that is the same for all keys."""
    for data, other in ((0, 1), (1, 0)):
        factor = _number(state.scope, node.input(other))
        if factor is not None and _keeps(state, node.input(data)):
            return _scaled(state, node, data, factor, f"scale *= {symbolic.to_text(factor)}")
    return _temperature(state, node, ((0, 1), (1, 0)), divides=False)


@rule("Div")
def divide(state: ScoreState, node: NodeView) -> ScoreResult:
    """``Div(s, c) -> s; scale /= c``."""
    divisor = _number(state.scope, node.input(1))
    if divisor is not None and _keeps(state, node.input(0)):
        factor = symbolic.real_divide(1.0, divisor)
        if factor is None:
            what = symbolic.to_text(divisor) if divisor else "0"
            return refuse(node, "scale", f"the scores are divided by {what}, which gives no factor")
        return _scaled(state, node, 0, factor, f"scale /= {symbolic.to_text(divisor)}")
    return _temperature(state, node, ((0, 1),), divides=True)


@rule("Neg")
def negate(state: ScoreState, node: NodeView) -> ScoreResult:
    """``Neg(s) -> s; scale *= -1``."""
    return _scaled(state, node, 0, -1, "scale *= -1")


def _temperature(state: ScoreState, node: NodeView, orders: Sequence[tuple[int, int]], *, divides: bool) -> ScoreResult:
    """A factor that varies along batch, heads or rows can multiply the query instead; along the keys it can't."""
    if state.cap is not None:
        return refuse(node, "scale", "the scores are multiplied by a tensor inside a softcap")
    states = []
    for data, other in orders:
        if not _keeps(state, node.input(data)):
            continue
        shape = state.scope.shape(node.input(other))
        layout = None if shape is None else broadcast_operand(state.layout, shape)
        if layout is None or _varies_along_keys(state, layout):
            continue
        factor = RawFactor(node, node.input(other), layout, divides)
        verb = "/=" if divides else "*="
        fact = f"query {verb} {node.input(other)}"
        states.append(state.at(node, node.input(data), fact, "temperature", factors=(*state.factors, factor)))
    if not states:
        return refuse(
            node,
            "scale",
            f"the scores are {'divided' if divides else 'multiplied'} by a tensor that isn't one number",
            "a factor for each key can't be expressed by an attention op",
        )
    return states


def _varies_along_keys(state: ScoreState, layout: Layout) -> bool:
    keys = {id(atom) for atom in finest(state.keys)}
    return any(id(atom) in keys for axis in layout for atom in finest(axis))


@rule("Tanh")
def softcap(state: ScoreState, node: NodeView) -> ScoreResult:
    """``c * Tanh(s) -> s; softcap = c``. Inside, only scales are allowed."""
    if state.cap is not None:
        return refuse(node, "softcap", "one softcap inside another")
    if state.factors or state.floor is not None:
        return refuse(node, "softcap", "a softcap whose size isn't one number, or a clamp round one")
    return [
        state.at(node, node.input(0), f"softcap = {symbolic.to_text(state.coeff)}", "softcap", cap=state.coeff, coeff=1)
    ]


# ---------------------------------------------------------------------------------------------------- biases, masks


def _keeps(state: ScoreState, data: str) -> bool:
    """Whether ``data`` has the full shape of the current tensor: it isn't broadcast up by the other operand."""
    return _data_layout(state, data) is not None


def _data_layout(state: ScoreState, data: str) -> Layout | None:
    shape = state.scope.shape(data)
    if shape is None or len(shape) > len(state.layout):
        return None
    missing = state.layout[: len(state.layout) - len(shape)]
    aligned = state.layout[len(state.layout) - len(shape) :]
    if any(axis for axis in missing) or any(
        dim == 1 and size_of(axis) != 1 for axis, dim in zip(aligned, shape, strict=False)
    ):
        return None
    return aligned


@rule("Add")
def add(state: ScoreState, node: NodeView) -> ScoreResult:
    """``Add(s, b) -> s; bias += coeff * b``. Which operand is the score, only the walk behind it shows.

    ``Add(s, s) -> s; scale *= 2``.
    """
    if node.input(0) == node.input(1):
        return _scaled(state, node, 0, 2, "scale *= 2")
    blended = _blend(state, node)
    return blended if blended is not None else _added(state, node, ((0, 1, 1), (1, 0, 1)))


@rule("Sub")
def subtract(state: ScoreState, node: NodeView) -> ScoreResult:
    """``Sub(s, b) -> s; bias -= coeff * b``; ``Sub(s, ReduceMax(s)) -> s``, for softmax(s - c) = softmax(s)."""
    if node.input(0) == node.input(1):
        return refuse(node, "scale", "the scores are taken off themselves")
    special = _shift(state, node) or _blend(state, node)
    if special is not None:
        return special
    return _added(state, node, ((0, 1, -1),))


def _blend(state: ScoreState, node: NodeView) -> ScoreResult | None:
    """``s * m + c * (1 - m) -> where(m, s, c)`` for a mask ``m`` of zeros and ones; with a Sub likewise."""
    scope = state.scope
    if state.cap is not None or state.factors or not isinstance(state.coeff, (int, float)) or state.coeff <= 0:
        return None
    for kept, filled in ((0, 1), (1, 0)) if node.op == "Add" else ((0, 1),):
        product, fill = scope.producer(node.input(kept)), scope.producer(node.input(filled))
        if product is None or fill is None or not product.is_op("Mul") or not fill.is_op("Mul"):
            continue
        for data, mask in ((0, 1), (1, 0)):
            name = product.input(mask)
            factor = _complement_factor(scope, fill, name)
            aligned, shape = _data_layout(state, product.input(data)), scope.shape(name)
            layout = None if shape is None else broadcast_operand(state.layout, shape)
            if factor is None or aligned is None or layout is None or not is_indicator(scope, name):
                continue
            sign = 1 if node.op == "Add" else -1
            number = scaled(factor, sign * float(state.coeff), scope.elem_type(node.output))
            number = number if state.floor is None else max(number, state.floor)
            note = f"'{name}' is taken to hold only 0 and 1" if rests_on_inputs(scope, name) else ""
            term = RawTerm("mask", node, name, layout, 1, number, note=note, multiplied=True)
            fact = f"where({name}, s, {number:g})"
            after = state.at(node, node.input(kept), fact, "multiplied mask", terms=(*state.terms, term))
            return [after.at(product, product.input(data), fact, "multiplied mask", layout=aligned)]
    return None


def _complement_factor(scope: Scope, node: NodeView, mask: str) -> float | None:
    """``c`` where ``node`` is ``c * (1 - mask)``."""
    for data, other in ((0, 1), (1, 0)):
        factor = scalar(scope.fact(node.input(other)))
        inverse = scope.producer(node.input(data))
        if not isinstance(factor, (int, float)) or inverse is None or not inverse.is_op("Sub"):
            continue
        if scalar(scope.fact(inverse.input(0))) == 1 and inverse.input(1) == mask:
            return float(factor)
    return None


def _shift(state: ScoreState, node: NodeView) -> ScoreResult | None:
    """What comes after must not tell a score from the same score shifted: a fill that is a number does, a sink too."""
    if state.cap is not None or state.sinks is not None:
        return None
    if any(term.fill is not None and not absorbs(term.fill, TensorProto.FLOAT) for term in state.terms):
        return None
    nodes = _row_maximum(state, node.input(0), node.input(1))
    if nodes is None:
        return None
    after = state.at(node, node.input(0), "softmax(s - c) = softmax(s)", "shift")
    return [replace(after, nodes=(*after.nodes, *nodes), shifted=(len(state.terms), node))]


def _row_maximum(state: ScoreState, data: str, name: str) -> list[NodeView] | None:
    """The nodes between ``data`` and ``name`` where the latter is its maximum over all keys, else ``None``."""
    scope = state.scope
    shape, whole = scope.shape(name), scope.shape(data)
    if shape is None or whole is None or len(shape) != len(whole):
        return None
    keys = {id(atom) for atom in finest(state.keys)}
    over = [axis for axis, part in enumerate(state.layout) if any(id(atom) in keys for atom in finest(part))]
    for axis, (dim, full) in enumerate(zip(shape, whole, strict=True)):
        if dim != 1 if axis in over else not scope.view.same(dim, full):
            return None
    nodes: list[NodeView] = []
    for _ in range(4):
        producer = scope.producer(name)
        if producer is None:
            return None
        nodes.append(producer)
        if producer.is_op("ReduceMax"):
            axes = axes_of(producer, [scope.fact(item) for item in producer.inputs])
            matches = axes is not None and {axis % len(whole) for axis in axes} == set(over)
            return nodes if matches and producer.input(0) == data else None
        if not producer.is_op("Cast", "Identity", "Unsqueeze"):
            return None
        name = producer.input(0)
    return None


def _added(state: ScoreState, node: NodeView, orders: Sequence[tuple[int, int, int]]) -> ScoreResult:
    if state.cap is not None:
        return refuse(node, "softcap", "a bias inside a softcap: tanh(s + b) can't be split")
    if state.factors:
        return refuse(node, "temperature", "a bias inside a factor that isn't one number")
    states = []
    for data, other, sign in orders:
        aligned = _data_layout(state, node.input(data))
        shape = state.scope.shape(node.input(other))
        layout = None if shape is None else broadcast_operand(state.layout, shape)
        if aligned is None or layout is None:
            continue
        coeff = symbolic.mul(state.coeff, sign)
        term = RawTerm("bias", node, node.input(other), layout, coeff, floor=state.floor)
        fact = f"bias += {symbolic.to_text(coeff)} * {node.input(other)}"
        states.append(state.at(node, node.input(data), fact, "bias", terms=(*state.terms, term), layout=aligned))
    if not states:
        shapes = [_shape_text(state, name) for name in node.inputs[:2]]
        return refuse(
            node,
            "bias",
            f"a bias of shape {shapes[1]} on scores of shape {shapes[0]}"
            " makes the scores larger, or a shape isn't known",
        )
    return states


@rule("Where")
def where(state: ScoreState, node: NodeView) -> ScoreResult:
    """``Where(keep, s, fill) -> s; mask(keep, coeff * fill)``, and the other way round."""
    if state.cap is not None:
        return refuse(node, "softcap", "a mask inside a softcap: tanh(-inf) is -1")
    if state.factors:
        return refuse(node, "temperature", "a mask inside a factor that isn't one number")
    for data, other, inverted in ((1, 2, False), (2, 1, True)):
        fill = constant_fill(state.scope, node.input(other))
        if fill is None:
            continue
        aligned = _data_layout(state, node.input(data))
        shape = state.scope.shape(node.input(0))
        layout = None if shape is None else broadcast_operand(state.layout, shape)
        if aligned is None or layout is None or not isinstance(state.coeff, (int, float)):
            return refuse(node, "mask", "a mask that makes the scores larger, or whose shape isn't known")
        if state.coeff <= 0:
            return refuse(node, "mask", "a mask inside a scale that isn't positive")
        filled = scaled(fill, float(state.coeff), state.scope.elem_type(node.output))
        filled = filled if state.floor is None else max(filled, state.floor)
        term = RawTerm("mask", node, node.input(0), layout, 1, filled, inverted)
        fact = f"where({'not ' if inverted else ''}{node.input(0)}, s, {filled:g})"
        return [state.at(node, node.input(data), fact, "mask", terms=(*state.terms, term), layout=aligned)]
    return refuse(node, "mask", "a Where on the scores whose other branch isn't one number")


@rule("Max", "Clip")
def clamp(state: ScoreState, node: NodeView) -> ScoreResult:
    """``Max(s + b, lowest) -> s + Max(b, lowest)``: what OPT does so that two masks don't add up to -inf.

    Exact where ``lowest`` is so low that adding a score to it changes nothing.
    """
    if node.op == "Max" and len(node.inputs) == 2:
        floors = [constant_fill(state.scope, name) for name in node.inputs]
        data = next((index for index, floor in enumerate(floors) if floor is None), None)
        floor = None if data is None else floors[1 - data]
    elif node.op == "Clip" and not node.input(2) and "max" not in node.attributes:
        data, floor = 0, node.float_attribute("min")
        if node.input(1):
            floor = constant_fill(state.scope, node.input(1))
    else:
        data, floor = None, None
    if data is None or floor is None or state.coeff != 1 or state.cap is not None or state.factors:
        return refuse(node, "clamp", f"a {node.op} on the scores that isn't a clamp to a lowest value")
    if floor > LOWEST_ABSORBING:
        return refuse(node, "clamp", f"the scores are clamped to {floor:g}, which a score can reach")
    if not _keeps(state, node.input(data)):
        return refuse(node, "clamp", "a clamp that changes the shape of the scores")
    return [state.at(node, node.input(data), f"bias = max(bias, {floor:g})", "clamp", floor=floor)]


@rule("Concat")
def sink(state: ScoreState, node: NodeView) -> ScoreResult:
    """``Concat(s, sink) -> s; sinks = sink``: one more logit a row, dropped again after the softmax."""
    axis = node.int_attribute("axis")
    if axis is None or len(node.inputs) != 2 or state.sinks is not None or state.terms or state.coeff != 1:
        return refuse(node, "sinks", "a Concat on the scores that isn't one sink column")
    axis %= len(state.layout)
    shapes = [state.scope.shape(name) for name in node.inputs]
    if [id(atom) for atom in state.layout[axis]] != [id(atom) for atom in state.keys]:
        return refuse(node, "sinks", "a Concat on the scores along another axis than the softmax's")
    for data, other in ((0, 1), (1, 0)):
        data_shape, shape = shapes[data], shapes[other]
        if data_shape is None or shape is None or shape[axis] != 1:
            continue
        keys = (Atom(data_shape[axis]),)
        layout = (*state.layout[:axis], keys, *state.layout[axis + 1 :])
        sinks = broadcast_operand(layout, shape)
        if sinks is None:
            continue
        name = node.input(other)
        column = RawSink(name, sinks, constant_fill(state.scope, name), first=other == 0)
        return [state.at(node, node.input(data), f"sinks = {name}", "sinks", layout=layout, keys=keys, sinks=column)]
    return refuse(node, "sinks", "a Concat on the scores whose other part isn't one column of known shape")


def _shape_text(state: ScoreState, name: str) -> str:
    shape = state.scope.shape(name)
    return "unknown" if shape is None else f"({', '.join(symbolic.to_text(dim) for dim in shape)})"
