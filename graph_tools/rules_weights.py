"""Rules that walk forward from the softmax to the product with the values: what happens to the probabilities.

Every tensor on the way vanishes when the site is fused, so each may have exactly one reader (or the two readers of a
guard), and none may be a graph output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from onnx import TensorProto

from . import rules_operands, symbolic
from .const_eval import axes_of, is_float, scalar, slice_bounds
from .graph_view import NodeView, Scope
from .indicators import constant_fill
from .layout import Atom, finest, regroup
from .normal_form import Refusal
from .rule_table import RuleTable
from .rules_scores import RawTerm, refuse
from .symbolic import Value
from .walk_state import WalkState

Guard: TypeAlias = Literal["none", "nan_to_zero", "masked_row_to_zero"]


@dataclass(frozen=True)
class LiveDropout:
    """A Dropout in training mode."""

    ratio: float
    seed: int | None
    """Of the model's own generator, where the node names one."""


@dataclass(frozen=True)
class WeightState(WalkState):
    """Where the walk forward from the softmax stands."""

    terms: tuple[RawTerm, ...]
    """Masks and biases of the score walk, for a guard that repeats one of them."""
    sink_keys: tuple[Atom, ...] | None = None
    """The keys without the sink column, while that column is still there."""
    sink_first: bool = False
    factor: Value = 1
    guard: Guard = "none"
    guard_term: int = -1
    """masked_row_to_zero: which of ``terms``."""
    training: bool = False
    """Whether a live Dropout may become the op's."""
    dropout: LiveDropout | None = None


WeightRule = Callable[[WeightState, NodeView], WeightState | Refusal]

rule: RuleTable[WeightRule] = RuleTable()


def step(state: WeightState, readers: Sequence[NodeView]) -> WeightState | Refusal:
    """Apply the rule for the node (or the guard's nodes) that read ``state.tensor``."""
    guarded = nan_guard(state, readers)
    if guarded is not None:
        return guarded
    if len(readers) != 1:
        names = ", ".join(node.label for node in readers[:3])
        return refuse(
            readers[0],
            "probabilities",
            f"the probabilities '{state.tensor}' are read by {len(readers)} nodes ({names}), so they have to exist",
            "export without output_attentions or need_weights",
        )
    node = readers[0]
    found = rule.find(node)
    if found is None:
        return refuse(
            node,
            "probabilities",
            f"between the softmax and the product with the values stands {node.kind}, which no rule knows",
        )
    return found(state, node)


def nan_guard(state: WeightState, readers: Sequence[NodeView]) -> WeightState | None:
    """``Where(IsNaN(p), 0, p) -> p; guard = nan_to_zero``: what scaled_dot_product_attention adds for masked rows."""
    if len(readers) != 2:
        return None
    check = next((node for node in readers if node.is_op("IsNaN")), None)
    choice = next((node for node in readers if node.is_op("Where")), None)
    if check is None or choice is None or choice.input(2) != state.tensor:
        return None
    condition = state.scope.consumers(check.output)
    if choice.input(0) != check.output or len(condition) != 1 or state.scope.is_output(check.output):
        return None
    if constant_fill(state.scope, choice.input(1)) != 0:
        return None
    after = state.at(choice, choice.output, "NaN becomes 0", "nan guard", guard="nan_to_zero")
    return replace(after, nodes=(*after.nodes, check))


@rule("Cast", "CastLike")
def cast(state: WeightState, node: NodeView) -> WeightState | Refusal:
    """``Cast(p) -> p`` between float types."""
    if node.input(0) != state.tensor or not is_float(state.scope.elem_type(node.output)):
        return refuse(node, "cast", "the probabilities are cast to a type that isn't floating point")
    return state.at(node, node.output, "the op keeps probabilities in fp32", "cast")


@rule("Identity")
def identity(state: WeightState, node: NodeView) -> WeightState | Refusal:
    """``Identity(p) -> p``."""
    return state.at(node, node.output, "nothing", "identity")


@rule("Dropout")
def dropout(state: WeightState, node: NodeView) -> WeightState | Refusal:
    """``Dropout(p) -> p`` in inference; where training is asked for, ``Dropout(p, c, True) -> p; dropout_p = c``."""
    inference = rules_operands.is_inference(state.scope, node)
    if not inference and not state.training:
        return refuse(
            node,
            "dropout",
            "a Dropout in training mode drops probabilities at random",
            "export in eval mode, or rewrite with --training",
        )
    if len(node.outputs) > 1 and node.outputs[1] and state.scope.consumers(node.outputs[1]):
        return refuse(node, "dropout", "the mask of a Dropout is read")
    if inference:
        return state.at(node, node.output, "nothing in inference", "dropout")
    live = _live_dropout(state.scope, node)
    if live is None:
        return refuse(node, "dropout", "whether the Dropout is live, or its ratio, isn't a constant in [0, 1)")
    if state.dropout is not None:
        return refuse(node, "dropout", "the probabilities are dropped twice")
    return state.at(node, node.output, f"dropout_p = {live.ratio:g}", "dropout", dropout=live)


def _live_dropout(scope: Scope, node: NodeView) -> LiveDropout | None:
    """The ratio and the seed of a Dropout that is provably live; None where either is open."""
    ratio = scalar(scope.fact(node.input(1))) if node.input(1) else 0.5
    if scalar(scope.fact(node.input(2))) is not True or not isinstance(ratio, (int, float)) or not 0 <= ratio < 1:
        return None
    return LiveDropout(float(ratio), node.int_attribute("seed"))


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(state: WeightState, node: NodeView) -> WeightState | Refusal:
    """``Reshape(p) -> p`` where axes are only split or merged."""
    if node.input(0) != state.tensor:
        return refuse(node, "reshape", "the probabilities are used as a shape")
    shape = state.scope.shape(node.output)
    after = None if shape is None else regroup(state.layout, shape, state.scope.view.resolve)
    if after is None:
        return refuse(node, "reshape", "a Reshape of the probabilities whose axes can't be followed")
    return state.at(node, node.output, "reshaped", "reshape", layout=after)


@rule("Transpose")
def transpose(state: WeightState, node: NodeView) -> WeightState | Refusal:
    """``Transpose(p) -> p``."""
    perm = node.ints_attribute("perm")
    if perm is None and "perm" in node.attributes:
        return refuse(node, "transpose", "a Transpose whose perm is given by a function's caller")
    perm = perm or list(range(len(state.layout)))[::-1]
    after = tuple(state.layout[axis] for axis in perm)
    return state.at(node, node.output, f"axes permuted by {tuple(perm)}", "transpose", layout=after)


@rule("Mul")
def multiply(state: WeightState, node: NodeView) -> WeightState | Refusal:
    """``Mul(p, c) -> p; output *= c`` for one number ``c``; ``Mul(p, keep)`` where the same mask was in the scores."""
    other = node.input(1) if node.input(0) == state.tensor else node.input(0)
    factor = scalar(state.scope.fact(other))
    rank = state.scope.rank(other)
    if factor is not None and rank is not None and rank <= len(state.layout) and other != state.tensor:
        fact = f"output *= {symbolic.to_text(factor)}"
        return state.at(node, node.output, fact, "scale", factor=symbolic.mul(state.factor, factor))
    return refuse(
        node,
        "probabilities",
        "the probabilities are multiplied by a tensor after the softmax, so a row no longer sums to 1",
        "mask the scores instead",
    )


@rule("Div")
def divide(state: WeightState, node: NodeView) -> WeightState | Refusal:
    """``Div(p, c) -> p; output /= c`` for one number ``c``."""
    divisor = scalar(state.scope.fact(node.input(1)))
    factor = None if divisor is None else symbolic.real_divide(1.0, divisor)
    if factor is None or divisor is None or node.input(0) != state.tensor:
        return refuse(node, "probabilities", "the probabilities are divided by something that isn't one number")
    fact = f"output /= {symbolic.to_text(divisor)}"
    return state.at(node, node.output, fact, "scale", factor=symbolic.mul(state.factor, factor))


@rule("Where")
def masked_rows(state: WeightState, node: NodeView) -> WeightState | Refusal:
    """``Where(keep, p, 0) -> p; guard = masked_row_to_zero`` where the scores went through the same mask.

    The probability of a masked key is 0 already, except in a row that is masked throughout: there the fill made all
    keys alike, and this Where makes the row 0, which is what the op gives for a fill of -inf.
    """
    for data, other, keep in ((1, 2, True), (2, 1, False)):
        if node.input(data) != state.tensor or constant_fill(state.scope, node.input(other)) != 0:
            continue
        for index, term in enumerate(state.terms):
            source, negated = _through_nots(state.scope, node.input(0))
            masked, inverted = _through_nots(state.scope, term.tensor)
            keeps = keep is not negated
            same = term.kind == "mask" and source == masked and (term.inverted is not inverted) is not keeps
            if same or (term.kind == "mask" and _is_any(state.scope, node.input(0), keep, term)):
                fact = "masked rows become 0"
                after = state.at(node, node.output, fact, "mask guard", guard_term=index)
                return replace(after, guard="masked_row_to_zero")
    return refuse(
        node,
        "probabilities",
        "the probabilities are masked after the softmax by a mask that wasn't in the scores; a row no longer sums to 1",
        "mask the scores instead",
    )


def _is_any(scope: Scope, name: str, holds: bool, term: RawTerm) -> bool:
    """Whether ``name`` says (with ``holds``) that some key of the row is kept by ``term``, or that none is.

    ``Cast(ReduceMax(Cast(keep)))`` or ``Greater(ReduceSum(Cast(keep)), 0)``, with a Not anywhere.
    """
    kept = _through_nots(scope, term.tensor)
    sees_any = not holds
    reduced = False
    for _ in range(8):
        if (name, reduced) == (kept[0], True):
            return sees_any is False and kept[1] is term.inverted
        producer = scope.producer(name)
        if producer is None or producer.domain:
            return False
        if producer.op == "Not" and not reduced:
            sees_any = not sees_any
        elif producer.op in ("ReduceMax", "ReduceSum") and not reduced:
            axes = axes_of(producer, [scope.fact(item) for item in producer.inputs])
            rank = scope.rank(producer.input(0))
            if rank is None or producer.int_attribute("keepdims", 1) != 1 or axes not in ([-1], [rank - 1]):
                return False
            reduced = True
        elif producer.op == "Greater" and not reduced:
            if scalar(scope.fact(producer.input(1))) != 0:
                return False
        elif producer.op not in ("Cast", "Identity"):
            return False
        name = producer.input(0)
    return False


def _through_nots(scope: Scope, name: str) -> tuple[str, bool]:
    """The tensor behind casts and Nots, and whether it is negated."""
    negated = False
    for _ in range(8):
        producer = scope.producer(name)
        if producer is None or not producer.is_op("Not", "Cast", "Identity"):
            break
        if producer.op == "Cast" and scope.elem_type(producer.input(0)) != TensorProto.BOOL:
            break
        negated = negated is not (producer.op == "Not")
        name = producer.input(0)
    return name, negated


@rule("Slice")
def drop_sink(state: WeightState, node: NodeView) -> WeightState | Refusal:
    """``Slice(p, keys without the last) -> p``: the sink column goes."""
    bounds = slice_bounds(node, [state.scope.fact(name) for name in node.inputs])
    if state.sink_keys is None or bounds is None or len(bounds) != 1:
        return refuse(node, "probabilities", "the probabilities are sliced")
    axis, start, end, stride = bounds[0]
    axis %= len(state.layout)
    keys = state.sink_keys
    whole = symbolic.product(leaf.size for leaf in finest(keys))
    same = state.scope.view.same
    here = [id(atom) for atom in finest(state.layout[axis])] == [id(atom) for atom in finest(state.keys)]
    if state.sink_first:
        kept = start == 1 and (same(end, symbolic.add(whole, 1)) or (isinstance(end, int) and end >= 1 << 30))
    else:
        kept = start == 0 and (end == -1 or same(end, whole))
    if not here or not kept or stride != 1:
        return refuse(
            node, "probabilities", "the probabilities are sliced to something else than the keys without the sink"
        )
    layout = (*state.layout[:axis], keys, *state.layout[axis + 1 :])
    return state.at(node, node.output, "the sink column goes", "sinks", layout=layout, keys=keys, sink_keys=None)


@rule("Split")
def split_sink(state: WeightState, node: NodeView) -> WeightState | Refusal:
    """``Split(p, (keys, sink))[0] -> p``: the sink column goes."""
    axis = node.int_attribute("axis", 0)
    place = 1 if state.sink_first else 0
    if state.sink_keys is None or axis is None or len(node.outputs) != 2:
        return refuse(node, "probabilities", "the probabilities are split")
    kept, dropped = node.outputs[place], node.outputs[1 - place]
    axis %= len(state.layout)
    here = [id(atom) for atom in finest(state.layout[axis])] == [id(atom) for atom in finest(state.keys)]
    last = state.scope.shape(dropped)
    unread = not state.scope.consumers(dropped) and not state.scope.is_output(dropped)
    if not here or not unread or last is None or last[axis] != 1:
        return refuse(node, "probabilities", "the probabilities are split into something else than keys and sink")
    keys = state.sink_keys
    layout = (*state.layout[:axis], keys, *state.layout[axis + 1 :])
    return state.at(node, kept, "the sink column goes", "sinks", layout=layout, keys=keys, sink_keys=None)
