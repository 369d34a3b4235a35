"""Rules for operators that are an attention already: the standard ``Attention``, read as the products it stands for.

A fused node gives its facts away without a walk: layouts, scale, softcap, masks. What comes out is the same
:class:`~.peel.Match` that a Softmax gives, so transposes round the node vanish all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Union

from onnx import TensorProto

from . import symbolic
from .anchors import Anchor
from .graph_view import NodeView, Scope
from .layout import Atom, Axis, Layout, broadcast_operand, finest
from .normal_form import Peel, Refusal
from .peel import Match, operand_points, output_points
from .rules_scores import RawTerm, refuse
from .symbolic import Value

FusedRule = Callable[[Anchor], Union[Match, Refusal]]

RULES: dict[tuple[str, str], FusedRule] = {}


def rule(op: str, domain: str = "") -> Callable[[FusedRule], FusedRule]:
    """Register a rule for an operator."""

    def register(function: FusedRule) -> FusedRule:
        RULES[(domain, op)] = function
        return function

    return register


def fused_anchors(scope: Scope) -> Iterator[Anchor]:
    """Every node of ``scope`` that is an attention by itself."""
    for node in scope.nodes:
        if (node.domain, node.op) in RULES:
            yield Anchor(scope, node, "", (), node.output, (node,))


def match_fused(anchor: Anchor) -> Match | Refusal:
    """The site of a fused node, taken apart."""
    return RULES[(anchor.node.domain, anchor.node.op)](anchor)


class Sides:
    """The atoms of a fused attention, made from the shapes of its inputs."""

    def __init__(self, batch: Value, heads: Value, kv_heads: Value, rows: Value, keys: Value) -> None:
        self.batch = _axis(batch)
        self.kv_heads = _axis(kv_heads)
        groups = 1 if heads == kv_heads else symbolic.divide_exactly(heads, kv_heads)
        self.fits = groups is not None
        self.heads = (*self.kv_heads, *_axis(1 if groups is None else groups))
        self.rows = _axis(rows)
        self.keys = _axis(keys)

    def scores(self) -> Layout:
        """The layout of the scores that the node never shows."""
        return (self.batch, self.heads, self.rows, self.keys)


def _axis(size: Value) -> Axis:
    return () if size == 1 else (Atom(size),)


@rule("Attention")
def standard_attention(anchor: Anchor) -> Match | Refusal:
    """``Attention(Q, K, V, mask)`` of opset 23 and later: scale, then softcap, then mask."""
    scope, node = anchor.scope, anchor.node
    for index, name in ((4, "past_key"), (5, "past_value"), (6, "nonpad_kv_seqlen")):
        if node.input(index):
            return refuse(node, "cache", f"the Attention has a {name}, which the fused op doesn't take")
    for name in node.outputs[1:]:
        if name and (scope.consumers(name) or scope.is_output(name)):
            return refuse(node, "shared", f"'{name}', a further output of the Attention, is read")
    shapes = [scope.shape(node.input(index)) for index in range(3)]
    if any(shape is None for shape in shapes):
        return refuse(node, "shape", "the shapes of query, key and value aren't known")
    query, key, value = (shape for shape in shapes if shape is not None)
    if len(query) not in (3, 4) or len(key) != len(query) or len(value) != len(query):
        return refuse(node, "shape", "query, key and value of an Attention have to be all 3-D or all 4-D")
    if len(query) == 3:
        heads, kv_heads = node.int_attribute("q_num_heads"), node.int_attribute("kv_num_heads")
        if not heads or not kv_heads:
            return refuse(node, "shape", "the Attention has 3-D inputs and doesn't say how many heads they hold")
        sides = Sides(query[0], heads, kv_heads, query[1], key[1])
        head, value_head = symbolic.divide_exactly(query[2], heads), symbolic.divide_exactly(value[2], kv_heads)
        if head is None or value_head is None or not sides.fits:
            return refuse(node, "shape", "the number of heads doesn't divide the width of query or value")
        d, e = _axis(head), _axis(value_head)
        layouts: list[Layout] = [
            (sides.batch, sides.rows, (*sides.heads, *d)),
            (sides.batch, sides.keys, (*sides.kv_heads, *d)),
            (sides.batch, sides.keys, (*sides.kv_heads, *e)),
            (sides.batch, sides.rows, (*sides.heads, *e)),
        ]
    else:
        sides = Sides(query[0], query[1], key[1], query[2], key[2])
        if not sides.fits:
            return refuse(node, "shape", "the heads of key and value don't divide those of the query")
        d, e = _axis(query[3]), _axis(value[3])
        layouts = [
            (sides.batch, sides.heads, sides.rows, d),
            (sides.batch, sides.kv_heads, sides.keys, d),
            (sides.batch, sides.kv_heads, sides.keys, e),
            (sides.batch, sides.heads, sides.rows, e),
        ]
    terms = _mask_terms(scope, node, sides)
    if isinstance(terms, Refusal):
        return terms
    causal = node.int_attribute("is_causal", 0)
    softcap, scale = node.float_attribute("softcap", 0.0), _scale(node, d)
    if causal is None or softcap is None or scale is None:
        return refuse(node, "attribute", "an attribute of the Attention is given by a function's caller")
    if softcap and terms and scope.opset < 25:
        return refuse(
            node, "softcap", "an Attention with a softcap and a mask: runtimes disagree on which of them comes first"
        )
    for name in ("left_window_size", "right_window_size"):
        if node.int_attribute(name, -1) != -1:
            return refuse(node, "window", f"the Attention has a {name}, for which there is no rule yet")
    return fused_match(
        anchor,
        sides,
        layouts,
        (node.input(0), node.input(1), node.input(2)),
        d,
        e,
        scale=scale,
        softcap=softcap,
        terms=terms,
        causal=bool(causal),
    )


def _scale(node: NodeView, head: Axis) -> Value | None:
    given = node.float_attribute("scale")
    if given is not None or "scale" in node.attributes:
        return given
    return symbolic.power(symbolic.product(atom.size for atom in finest(head)), -0.5)


def _mask_terms(scope: Scope, node: NodeView, sides: Sides) -> list[RawTerm] | Refusal:
    name = node.input(3)
    if not name:
        return []
    shape = scope.shape(name)
    layout = None if shape is None else broadcast_operand(sides.scores(), shape)
    if shape is None or layout is None:
        return refuse(node, "mask", f"the shape of the mask '{name}' isn't known, or doesn't fit")
    keys = symbolic.product(atom.size for atom in sides.keys)
    if shape[-1] != keys and isinstance(shape[-1], int) and isinstance(keys, int):
        return refuse(node, "mask", f"the mask '{name}' is shorter than the keys")
    if scope.elem_type(name) == TensorProto.BOOL:
        return [RawTerm("mask", node, name, layout, 1, -math.inf)]
    return [RawTerm("bias", node, name, layout, 1)]


def fused_match(
    anchor: Anchor,
    sides: Sides,
    layouts: list[Layout],
    operands: tuple[str, str, str],
    head: Axis,
    value_head: Axis,
    *,
    scale: Value,
    softcap: float = 0.0,
    terms: list[RawTerm],
    causal: bool = False,
) -> Match | Refusal:
    """A match of a node whose inputs and output have these layouts."""
    scope, node = anchor.scope, anchor.node
    outputs = output_points(anchor, node.output, layouts[3])
    if isinstance(outputs, Refusal):
        return outputs
    return Match(
        anchor=anchor,
        keys=sides.keys,
        order=(*sides.batch, *sides.heads, *sides.rows),
        rows=sides.rows,
        head=head,
        value_head=value_head,
        query=operand_points(scope, operands[0], layouts[0]),
        key=operand_points(scope, operands[1], layouts[1]),
        value=operand_points(scope, operands[2], layouts[2]),
        output=outputs,
        coeff=symbolic.real_divide(scale, softcap) or scale if softcap else scale,
        cap=softcap if softcap else None,
        terms=tuple(terms),
        factors=(),
        sinks=None,
        output_factor=1,
        guard="none",
        score_type=scope.elem_type(operands[0]),
        output_type=scope.elem_type(node.output) or scope.elem_type(operands[0]),
        peels=(Peel("fused op", node.label, f"{node.kind} is an attention"),),
        nodes=(node,),
        causal=causal,
    )
