"""Rules for operators that are an attention already: read as the products, masks and facts that they stand for.

A fused node gives its facts away without a walk. What comes out is the same :class:`~.peel.Match` that a Softmax gives,
so transposes round the node vanish all the same. What a node does beside attention (adding a bias to its inputs,
rotating, splitting, handing out keys) becomes nodes of their own, the prelude. Their semantics are those of ONNX's
reference and of ONNX Runtime 1.32, tried out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from . import symbolic
from .anchors import Anchor
from .facts import Fact, Shape
from .graph_view import NodeView, Scope
from .layout import Atom, Axis, Layout, broadcast_operand
from .normal_form import Peel, Prelude, Refusal
from .peel import Match, operand_points, output_points
from .rule_table import RuleTable
from .rules_scores import RawSink, RawTerm, refuse
from .structure import Lengths, Window
from .symbolic import Value

MICROSOFT = "com.microsoft"

FusedRule = Callable[["Fused"], Match | Refusal]

rule: RuleTable[FusedRule] = RuleTable()


def is_fused(node: NodeView) -> bool:
    """Whether a node is an attention by itself."""
    return rule.find(node) is not None and bool(node.output)


def fused_anchors(scope: Scope) -> Iterator[Anchor]:
    """Every node of ``scope`` that is an attention by itself."""
    for node in scope.nodes:
        if is_fused(node):
            yield Anchor(scope, node, "", (), node.output, (node,))


def match_fused(anchor: Anchor) -> Match | Refusal:
    """The site of a node that :func:`is_fused`, taken apart."""
    found = rule.find(anchor.node)
    assert found is not None
    return found(Fused(anchor))


@dataclass
class Fused:
    """A fused node being taken apart: its atoms, and the nodes that have to be added for it."""

    anchor: Anchor
    prelude: list[Prelude] = field(default_factory=list)

    @property
    def scope(self) -> Scope:
        """The scope that the node lies in."""
        return self.anchor.scope

    @property
    def node(self) -> NodeView:
        """The fused node."""
        return self.anchor.node

    def refuse(self, name: str, reason: str, hint: str = "") -> Refusal:
        """A refusal at the fused node."""
        return refuse(self.node, name, reason, hint)

    def shape(self, index: int) -> Shape | None:
        """The shape of an input, ``None`` where it is absent or unknown."""
        return self.scope.shape(self.node.input(index)) if self.node.input(index) else None

    def is_read(self, index: int) -> bool:
        """Whether somebody reads the output ``index``."""
        if index >= len(self.node.outputs) or not self.node.outputs[index]:
            return False
        name = self.node.outputs[index]
        return bool(self.scope.consumers(name)) or self.scope.is_output(name)

    # ---------------------------------------------------------------------------------------------------- the prelude

    def add(self, op: str, inputs: Sequence[str], role: str, fact: Fact, domain: str = "", **attributes: Any) -> str:
        """One more node before the op; returns the placeholder that stands for its output."""
        return self.add_many(op, inputs, [role], [fact], domain, **attributes)[0]

    def add_many(
        self,
        op: str,
        inputs: Sequence[str],
        roles: Sequence[str],
        facts: Sequence[Fact],
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        """The same for a node with several outputs."""
        outputs = [f"@{self.node.output}/{role}" for role in roles]
        for output, fact in zip(outputs, facts, strict=False):
            self.scope.facts[output] = fact
        self.prelude.append(Prelude(op, tuple(inputs), tuple(outputs), attributes, domain))
        return outputs

    def take_over(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        """A node that writes a further output of the fused node."""
        self.prelude.append(Prelude(op, tuple(inputs), (output,), attributes))

    def constant(self, values: np.ndarray, role: str) -> str:
        """A constant of the prelude."""
        output = f"@{self.node.output}/{role}"
        elem_type = int(helper.np_dtype_to_tensor_dtype(values.dtype))
        self.scope.facts[output] = Fact(elem_type, tuple(values.shape))
        self.prelude.append(Prelude("Constant", (), (output,), constant=values))
        return output

    def split_width(self, tensor: str, widths: Sequence[Value], roles: Sequence[str]) -> list[str]:
        """The last axis of a tensor cut into parts of these widths."""
        fact = self.scope.fact(tensor)
        outer = () if fact.shape is None else fact.shape[:-1]
        sizes = self.constant(np.array([int(width) for width in widths if isinstance(width, int)]), f"{roles[0]}_sizes")
        facts = [Fact(fact.elem_type, (*outer, width)) for width in widths]
        return self.add_many("Split", [tensor, sizes], roles, facts, axis=-1)

    def picked(self, tensor: str, axis: int, place: int, role: str) -> str:
        """One slice along an axis."""
        fact = self.scope.fact(tensor)
        shape = fact.shape or ()
        index = self.constant(np.array(place, dtype=np.int64), f"{role}_index")
        rest = (*shape[:axis], *shape[axis + 1 :])
        return self.add("Gather", [tensor, index], role, Fact(fact.elem_type, rest), axis=axis)

    # ------------------------------------------------------------------------------------------------------ the match

    def match(
        self,
        sides: Sides,
        operands: Sequence[tuple[str, Layout]],
        output: Layout,
        *,
        scale: Value,
        softcap: float = 0.0,
        terms: Sequence[RawTerm] = (),
        window: Window | None = None,
        lengths: Lengths | None = None,
        sinks: RawSink | None = None,
    ) -> Match | Refusal:
        """A match of a node whose query, key and value are these tensors with these layouts."""
        scope, node = self.scope, self.node
        outputs = output_points(self.anchor, node.output, output)
        if isinstance(outputs, Refusal):
            return outputs
        query, key, value = operands
        return Match(
            anchor=self.anchor,
            keys=sides.keys,
            order=(*sides.batch, *sides.heads, *sides.rows),
            rows=sides.rows,
            head=sides.head,
            value_head=sides.value_head,
            query=operand_points(scope, *query),
            key=operand_points(scope, *key),
            value=operand_points(scope, *value),
            output=outputs,
            coeff=symbolic.real_divide(scale, softcap) or scale if softcap else scale,
            cap=softcap if softcap else None,
            terms=tuple(terms),
            factors=(),
            sinks=sinks,
            output_factor=1,
            guard="none",
            score_type=scope.elem_type(query[0]),
            output_type=scope.elem_type(node.output) or scope.elem_type(query[0]),
            peels=(Peel("fused op", node.label, f"{node.kind} is an attention"),),
            nodes=(node,),
            window=window,
            lengths=lengths,
            prelude=tuple(self.prelude),
        )


class Sides:
    """The atoms of a fused attention, made from its sizes."""

    def __init__(
        self, batch: Value, heads: Value, kv_heads: Value, rows: Value, keys: Value, head: Value, value_head: Value
    ) -> None:
        groups = 1 if heads == kv_heads else symbolic.divide_exactly(heads, kv_heads)
        self.fits = groups is not None
        self.batch, self.kv_heads, self.rows = _axis(batch), _axis(kv_heads), _axis(rows)
        self.heads = (*self.kv_heads, *_axis(1 if groups is None else groups))
        self.keys = (Atom(keys),)
        self.head, self.value_head = _axis(head), _axis(value_head)

    def scores(self) -> Layout:
        """The layout of the scores that the node never shows."""
        return (self.batch, self.heads, self.rows, self.keys)

    def flat_query(self) -> Layout:
        """(B,S,N*D)."""
        return (self.batch, self.rows, (*self.heads, *self.head))

    def flat_key(self) -> Layout:
        """(B,T,M*D)."""
        return (self.batch, self.keys, (*self.kv_heads, *self.head))

    def flat_value(self) -> Layout:
        """(B,T,M*E)."""
        return (self.batch, self.keys, (*self.kv_heads, *self.value_head))

    def flat_output(self) -> Layout:
        """(B,S,N*E)."""
        return (self.batch, self.rows, (*self.heads, *self.value_head))

    def headed(self) -> tuple[Layout, Layout, Layout, Layout]:
        """Query, key, value and output as (B,N,S,D) and its kin."""
        return (
            (self.batch, self.heads, self.rows, self.head),
            (self.batch, self.kv_heads, self.keys, self.head),
            (self.batch, self.kv_heads, self.keys, self.value_head),
            (self.batch, self.heads, self.rows, self.value_head),
        )


def _axis(size: Value) -> Axis:
    return () if size == 1 else (Atom(size),)


def _scale(node: NodeView, head: Value, unset: float | None = None) -> Value | None:
    """The scale attribute, or 1/sqrt of the head size; ``unset`` is a value that stands for the latter."""
    given = node.float_attribute("scale")
    if "scale" in node.attributes and given is None:
        return None
    return symbolic.power(head, -0.5) if given is None or given == unset else given


# --------------------------------------------------------------------------------------------------- the standard op


@rule("Attention")
def standard_attention(fused: Fused) -> Match | Refusal:
    """``Attention(Q, K, V, mask, past)`` of opset 23 and later: scale, then softcap, then mask; rows may be empty."""
    _scope, node = fused.scope, fused.node
    if fused.is_read(3):
        return fused.refuse("shared", f"'{node.outputs[3]}', the scores of the Attention, are read")
    shapes = [fused.shape(index) for index in range(3)]
    if any(shape is None for shape in shapes):
        return fused.refuse("shape", "the shapes of query, key and value aren't known")
    query, key, value = (shape for shape in shapes if shape is not None)
    if len(query) not in (3, 4) or len(key) != len(query) or len(value) != len(query):
        return fused.refuse("shape", "query, key and value of an Attention have to be all 3-D or all 4-D")
    causal, softcap = node.int_attribute("is_causal", 0), node.float_attribute("softcap", 0.0)
    left, right = node.int_attribute("left_window_size", -1), node.int_attribute("right_window_size", -1)
    if None in (causal, softcap, left, right):
        return fused.refuse("attribute", "an attribute of the Attention is given by a function's caller")
    tensors = [node.input(index) for index in range(3)]
    past: Value = 0
    if node.input(4) or node.input(5) or fused.is_read(1) or fused.is_read(2):
        grown = _with_past(fused, tensors, (query, key, value))
        if isinstance(grown, Refusal):
            return grown
        tensors, (key, value), past = grown
    sides = _standard_sides(fused, query, key, value)
    if isinstance(sides, Refusal):
        return sides
    layouts = (
        list(sides.headed())
        if len(query) == 4
        else [sides.flat_query(), sides.flat_key(), sides.flat_value(), sides.flat_output()]
    )
    if len(query) == 3 and len(key) == 4:
        layouts[1:3] = sides.headed()[1:3]
    terms = _mask_terms(fused, sides)
    if isinstance(terms, Refusal):
        return terms
    scale = _scale(node, symbolic.product(atom.size for atom in sides.head))
    if scale is None:
        return fused.refuse("scale", "the scale of the Attention isn't known")
    lengths = _lengths(fused, node.input(6), sides) if node.input(6) else None
    window = _window(bool(causal), left or 0, right or 0, bottom=past != 0 or lengths is not None)
    operands = list(zip(tensors, layouts[:3], strict=False))
    return fused.match(
        sides, operands, layouts[3], scale=scale, softcap=softcap or 0.0, terms=terms, window=window, lengths=lengths
    )


def _window(causal: bool, left: int, right: int, *, bottom: bool) -> Window | None:
    if not causal and left < 0 and right < 0:
        return None
    return Window(causal, "bottom_right" if bottom else "top_left", left, right)


def _standard_sides(fused: Fused, query: Shape, key: Shape, value: Shape) -> Sides | Refusal:
    node = fused.node
    heads, kv_heads = node.int_attribute("q_num_heads"), node.int_attribute("kv_num_heads")
    if len(query) == 4:
        sides = Sides(query[0], query[1], key[1], query[2], key[2], query[3], value[3])
    elif not heads or not kv_heads:
        return fused.refuse("shape", "the Attention has 3-D inputs and doesn't say how many heads they hold")
    else:
        head = symbolic.divide_exactly(query[2], heads)
        value_head = value[3] if len(value) == 4 else symbolic.divide_exactly(value[2], kv_heads)
        if head is None or value_head is None:
            return fused.refuse("shape", "the number of heads doesn't divide the width of query or value")
        sides = Sides(query[0], heads, kv_heads, query[1], key[2] if len(key) == 4 else key[1], head, value_head)
    if not sides.fits:
        return fused.refuse("shape", "the heads of key and value don't divide those of the query")
    return sides


def _with_past(
    fused: Fused, tensors: list[str], shapes: tuple[Shape, Shape, Shape]
) -> tuple[list[str], tuple[Shape, Shape], Value] | Refusal:
    """Past keys and values put before the new ones; the node's outputs that hold both are written on the way."""
    node, scope = fused.node, fused.scope
    kv_heads = node.int_attribute("kv_num_heads")
    grown, results = list(tensors), []
    length: Value = 0
    for index, role in ((1, "key"), (2, "value")):
        tensor, shape = tensors[index], shapes[index]
        kind = scope.elem_type(tensor)
        if len(shape) == 3:
            width = symbolic.divide_exactly(shape[2], kv_heads) if kv_heads else None
            if not isinstance(width, int) or not kv_heads:
                return fused.refuse("cache", "the head size of an Attention with a cache isn't known")
            target = fused.constant(np.array([0, 0, kv_heads, width], dtype=np.int64), f"{role}_heads")
            split = fused.add("Reshape", [tensor, target], f"{role}_split", Fact(kind, (*shape[:2], kv_heads, width)))
            shape = (shape[0], kv_heads, shape[1], width)
            tensor = fused.add("Transpose", [split], f"{role}_headed", Fact(kind, shape), perm=[0, 2, 1, 3])
        past = node.input(3 + index)
        if past:
            past_shape = scope.shape(past)
            if past_shape is None:
                return fused.refuse("cache", f"the shape of '{past}' isn't known")
            length = past_shape[2]
            shape = (*shape[:2], symbolic.add(past_shape[2], shape[2]), shape[3])
        present = node.outputs[index] if fused.is_read(index) else ""
        if past and present:
            fused.take_over("Concat", [past, tensor], present, axis=2)
            scope.facts[present] = Fact(kind, shape)
            tensor = present
        elif past:
            tensor = fused.add("Concat", [past, tensor], f"{role}_grown", Fact(kind, shape), axis=2)
        elif present:
            fused.take_over("Identity", [tensor], present)
        grown[index] = tensor
        results.append(shape)
    return grown, (results[0], results[1]), length


def _lengths(fused: Fused, name: str, sides: Sides) -> Lengths | None:
    shape = fused.scope.shape(name)
    if shape is None or len(shape) != 1:
        return None
    return Lengths(name, (() if shape[0] == 1 else sides.batch,), None)


def _mask_terms(fused: Fused, sides: Sides) -> list[RawTerm] | Refusal:
    name, scope = fused.node.input(3), fused.scope
    if not name:
        return []
    shape = scope.shape(name)
    layout = None if shape is None else broadcast_operand(sides.scores(), shape)
    if shape is None or layout is None:
        return fused.refuse("mask", f"the shape of the mask '{name}' isn't known, or doesn't fit")
    keys = scope.view.resolve(symbolic.product(atom.size for atom in sides.keys))
    if shape[-1] != keys and isinstance(shape[-1], int) and isinstance(keys, int):
        return fused.refuse("mask", f"the mask '{name}' is shorter than the keys")
    if scope.elem_type(name) == TensorProto.BOOL:
        return [RawTerm("mask", fused.node, name, layout, 1, -math.inf)]
    return [RawTerm("bias", fused.node, name, layout, 1)]


# --------------------------------------------------------------------------------------------- ONNX Runtime's own ops


@rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(fused: Fused) -> Match | Refusal:
    """``MultiHeadAttention(q, k, v, bias, key_padding_mask, attention_bias)``, packed or not, without a cache."""
    node, _scope = fused.node, fused.scope
    heads = node.int_attribute("num_heads")
    query = fused.shape(0)
    if not heads or query is None:
        return fused.refuse("shape", "the number of heads or the shape of the query isn't known")
    if any(node.input(index) for index in range(6, len(node.inputs))) or fused.is_read(1) or fused.is_read(3):
        return fused.refuse("cache", "the MultiHeadAttention has a cache, which the fused op doesn't take")
    unpacked = _unpacked(fused, query, heads)
    if isinstance(unpacked, Refusal):
        return unpacked
    tensors, sides, layouts = unpacked
    if node.input(3):
        biased = _biased(fused, tensors, sides, heads)
        if isinstance(biased, Refusal):
            return biased
        tensors = biased
    terms = _padding(fused, node.input(4), sides)
    if isinstance(terms, Refusal):
        return terms
    more = _attention_bias(fused, node.input(5), sides)
    if isinstance(more, Refusal):
        return more
    scale = _scale(node, symbolic.product(atom.size for atom in sides.head), unset=0.0)
    causal = _unidirectional(fused, sides)
    if scale is None or isinstance(causal, Refusal):
        return causal if isinstance(causal, Refusal) else fused.refuse("scale", "the scale isn't known")
    return fused.match(
        sides,
        list(zip(tensors, layouts, strict=False)),
        sides.flat_output(),
        scale=scale,
        terms=[*more, *terms],
        window=causal,
    )


def _unidirectional(fused: Fused, sides: Sides) -> Window | Refusal | None:
    """Causal, where rows and keys are as many: what ONNX Runtime does otherwise differs between its kernels."""
    flag = fused.node.int_attribute("unidirectional", 0)
    if not flag:
        return fused.refuse("attribute", "unidirectional is given by a function's caller") if flag is None else None
    rows = symbolic.product(atom.size for atom in sides.rows)
    if not fused.scope.view.same(rows, symbolic.product(atom.size for atom in sides.keys)):
        return fused.refuse("causal", f"a unidirectional {fused.node.op} with other keys than queries")
    return Window(True, "top_left", -1, -1)


def _unpacked(fused: Fused, query: Shape, heads: int) -> tuple[list[str], Sides, list[Layout]] | Refusal:
    """Query, key and value of a MultiHeadAttention, taken out of a packed input where they are in one."""
    node = fused.node
    key, value = fused.shape(1), fused.shape(2)
    name = node.input(0)
    if len(query) == 5:  # (B,S,N,3,D)
        parts = [fused.picked(name, 3, place, role) for place, role in enumerate(("query", "key", "value"))]
        sides = Sides(query[0], query[2], query[2], query[1], query[1], query[4], query[4])
        rows, keys = (sides.batch, sides.rows, sides.heads), (sides.batch, sides.keys, sides.kv_heads)
        return parts, sides, [(*rows, sides.head), (*keys, sides.head), (*keys, sides.value_head)]
    head = symbolic.divide_exactly(query[-1], heads)
    if len(query) != 3 or head is None or key is None:
        return fused.refuse("shape", "the shapes of query and key don't fit the number of heads")
    if len(key) == 5:  # (B,T,N,2,D)
        parts = [fused.picked(node.input(1), 3, place, role) for place, role in enumerate(("key", "value"))]
        sides = Sides(query[0], heads, heads, query[1], key[1], head, key[4])
        keys = (sides.batch, sides.keys, sides.kv_heads)
        return [name, *parts], sides, [sides.flat_query(), (*keys, sides.head), (*keys, sides.value_head)]
    if value is None:
        return fused.refuse("shape", "the shape of the value isn't known")
    value_head = value[3] if len(value) == 4 else symbolic.divide_exactly(value[-1], heads)
    if value_head is None or len(key) not in (3, 4) or len(value) != len(key):
        return fused.refuse("shape", "the shapes of key and value don't fit the number of heads")
    sides = Sides(query[0], heads, heads, query[1], key[2] if len(key) == 4 else key[1], head, value_head)
    tensors = [name, node.input(1), node.input(2)]
    if len(key) == 4:
        return tensors, sides, [sides.flat_query(), *sides.headed()[1:3]]
    return tensors, sides, [sides.flat_query(), sides.flat_key(), sides.flat_value()]


def _biased(fused: Fused, tensors: Sequence[str], sides: Sides, heads: int) -> list[str] | Refusal:
    """The projections' bias (N*D + N*D + N*E) added to query, key and value."""
    scope = fused.scope
    head = symbolic.product(atom.size for atom in sides.head)
    value_head = symbolic.product(atom.size for atom in sides.value_head)
    shapes = [scope.shape(tensor) for tensor in tensors]
    if not isinstance(head, int) or not isinstance(value_head, int) or any(s is None or len(s) != 3 for s in shapes):
        return fused.refuse("bias", "a MultiHeadAttention with a bias whose inputs aren't 3-D with a known head size")
    parts = fused.split_width(
        fused.node.input(3), [heads * head, heads * head, heads * value_head], ["bias_q", "bias_k", "bias_v"]
    )
    return [
        fused.add("Add", [tensor, part], f"{role}_biased", scope.fact(tensor))
        for tensor, part, role in zip(tensors, parts, ("query", "key", "value"), strict=False)
    ]


def _padding(fused: Fused, name: str, sides: Sides) -> list[RawTerm] | Refusal:
    """A key_padding_mask or mask_index as the bias that it is: ``mask_filter_value`` is added, so a row never empties.

    (B,T) and (B,S,T) keep where the value is positive; (B,) counts the keys that are kept.
    """
    if not name:
        return []
    scope = fused.scope
    shape = scope.shape(name)
    fill = fused.node.float_attribute("mask_filter_value", -10000.0)
    kind = scope.elem_type(fused.node.input(0))
    if shape is None or fill is None or len(shape) > 3:
        return fused.refuse("mask", f"the mask '{name}' has a shape for which there is no rule")
    view, batch = scope.view, symbolic.product(atom.size for atom in sides.batch)
    rows, keys = (symbolic.product(atom.size for atom in atoms) for atoms in (sides.rows, sides.keys))
    boolean = TensorProto.BOOL
    layout: Layout
    if len(shape) == 1:
        if not view.same(shape[0], batch):
            return fused.refuse("mask", f"the mask index '{name}' holds more than one length for each batch")
        keep, layout = _before(fused, name, sides), (sides.batch, sides.keys)
    elif len(shape) == 2 or view.same(shape[1], rows):
        zero = fused.constant(np.array(0, dtype=np.int32), "zero")
        keep = fused.add("Greater", [name, zero], "keep", Fact(boolean, shape))
        layout = (sides.batch, sides.keys) if len(shape) == 2 else (sides.batch, sides.rows, sides.keys)
        if not view.same(shape[-1], keys) and isinstance(shape[-1], int) and isinstance(keys, int):
            return fused.refuse("mask", f"the mask '{name}' doesn't have as many keys as the key")
    else:
        return fused.refuse("mask", f"the mask '{name}' has a shape for which there is no rule")
    kept = fused.constant(_numbers(0.0, kind), "kept")
    filled = fused.constant(_numbers(fill, kind), "filled")
    fact = Fact(kind, scope.shape(keep))
    tensor = fused.add("Where", [keep, kept, filled], "padding", fact)
    return [RawTerm("bias", fused.node, tensor, layout, 1)]


def _numbers(value: float, kind: int) -> np.ndarray:
    return np.array(value, dtype=helper.tensor_dtype_to_np_dtype(kind or TensorProto.FLOAT))


def _before(fused: Fused, lengths: str, sides: Sides) -> str:
    """``j < lengths[b]`` as a bool of (B,T)."""
    scope = fused.scope
    batch, keys = (symbolic.product(atom.size for atom in atoms) for atoms in (sides.batch, sides.keys))
    int64 = TensorProto.INT64
    if isinstance(keys, int):
        positions = fused.constant(np.arange(keys, dtype=np.int64), "positions")
    else:
        source = fused.node.input(0 if fused.node.op == "Attention" else 1)  # what has the keys as an axis
        rank = scope.rank(source) or 3
        sizes = fused.add("Shape", [source], "key_shape", Fact(int64, (rank,)))
        place = fused.constant(np.array(2 if rank == 4 else 1, dtype=np.int64), "key_axis")
        count = fused.add("Gather", [sizes, place], "key_count", Fact(int64, ()), axis=0)
        ends = [fused.constant(np.array(number, dtype=np.int64), f"number{number}") for number in (0, 1)]
        positions = fused.add("Range", [ends[0], count, ends[1]], "positions", Fact(int64, (keys,)))
    wide = fused.add("Cast", [lengths], "lengths", Fact(int64, (batch,)), to=int64)
    axes = fused.constant(np.array([1], dtype=np.int64), "last")
    column = fused.add("Unsqueeze", [wide, axes], "lengths_column", Fact(int64, (batch, 1)))
    return fused.add("Less", [positions, column], "keep", Fact(TensorProto.BOOL, (batch, keys)))


def _attention_bias(fused: Fused, name: str, sides: Sides) -> list[RawTerm] | Refusal:
    if not name:
        return []
    shape = fused.scope.shape(name)
    layout = None if shape is None else broadcast_operand(sides.scores(), shape)
    if layout is None:
        return fused.refuse("bias", f"the shape of the bias '{name}' isn't known, or doesn't fit")
    return [RawTerm("bias", fused.node, name, layout, 1)]


@rule("Attention", domain=MICROSOFT)
def packed_attention(fused: Fused) -> Match | Refusal:
    """``Attention(x, weights, bias, mask_index, past, attention_bias)``: the projections, then attention."""
    node, scope = fused.node, fused.scope
    heads, data, weights = node.int_attribute("num_heads"), fused.shape(0), fused.shape(1)
    if not heads or data is None or weights is None or len(data) != 3 or len(weights) != 2:
        return fused.refuse("shape", "the shapes of input and weights, or the number of heads, aren't known")
    if node.input(4) or node.input(6) or fused.is_read(1):
        return fused.refuse("cache", "the Attention has a past, which the fused op doesn't take")
    if node.int_attribute("do_rotary", 0) != 0:
        return fused.refuse("rotary", "an Attention that rotates its inputs")
    given = node.ints_attribute("qkv_hidden_sizes")
    third = symbolic.divide_exactly(weights[1], 3)
    widths = given if given else [third, third, third]
    if len(widths) != 3 or any(not isinstance(width, int) or width % heads for width in widths):
        return fused.refuse("shape", "the widths of query, key and value aren't known")
    query, _, value = (int(width) // heads for width in widths if isinstance(width, int))
    kind = scope.elem_type(node.input(0))
    wide = Fact(kind, (*data[:2], weights[1]))
    projected = fused.add("MatMul", [node.input(0), node.input(1)], "projected", wide)
    if node.input(2):
        projected = fused.add("Add", [projected, node.input(2)], "biased", wide)
    parts = fused.split_width(projected, [width or 0 for width in widths], ["query", "key", "value"])
    sides = Sides(data[0], heads, heads, data[1], data[1], query, value)
    terms = _padding(fused, node.input(3), sides)
    if isinstance(terms, Refusal):
        return terms
    more = _attention_bias(fused, node.input(5), sides)
    if isinstance(more, Refusal):
        return more
    scale, causal = _scale(node, query, unset=0.0), _unidirectional(fused, sides)
    if scale is None or isinstance(causal, Refusal):
        return causal if isinstance(causal, Refusal) else fused.refuse("scale", "the scale isn't known")
    layouts = [sides.flat_query(), sides.flat_key(), sides.flat_value()]
    operands = list(zip(parts, layouts, strict=False))
    return fused.match(sides, operands, sides.flat_output(), scale=scale, terms=[*more, *terms], window=causal)


@rule("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(fused: Fused) -> Match | Refusal:
    """``GroupQueryAttention`` of a prompt: causal, keys past ``seqlens_k + 1`` out, no past."""
    node, _scope = fused.node, fused.scope
    heads, kv_heads = node.int_attribute("num_heads"), node.int_attribute("kv_num_heads")
    query = fused.shape(0)
    if not heads or not kv_heads or query is None or len(query) != 3:
        return fused.refuse("shape", "the number of heads or the shape of the query isn't known")
    if node.input(3) or node.input(4):
        return fused.refuse(
            "cache", "the GroupQueryAttention has a past, which the fused op doesn't take", "export the prompt's pass"
        )
    for index, name in ((9, "position_ids"), (10, "attention_bias"), (12, "k_scale"), (13, "v_scale")):
        if node.input(index):
            return fused.refuse("input", f"the GroupQueryAttention has a {name}, for which there is no rule")
    if fused.is_read(3):
        return fused.refuse("shared", f"'{node.outputs[3]}', the scores of the GroupQueryAttention, are read")
    parts = _group_operands(fused, query, heads, kv_heads)
    if isinstance(parts, Refusal):
        return parts
    tensors, head = parts
    rotated = _rotated(fused, tensors, heads, kv_heads)
    if isinstance(rotated, Refusal):
        return rotated
    sides = Sides(query[0], heads, kv_heads, query[1], query[1], head, head)
    for index, tensor in ((1, rotated[1]), (2, rotated[2])):
        if fused.is_read(index):
            _present(fused, tensor, node.outputs[index], kv_heads, head, query)
    scale, softcap = _scale(node, head, unset=0.0), node.float_attribute("softcap", 0.0)
    window, smooth = node.int_attribute("local_window_size", -1), node.int_attribute("smooth_softmax", 0)
    if scale is None or softcap is None or window is None or smooth is None:
        return fused.refuse("attribute", "an attribute of the GroupQueryAttention is given by a function's caller")
    sinks = RawSink("", (), 0.0) if smooth == 1 else None
    if node.input(11):
        sinks = RawSink(node.input(11), (sides.heads,), None)
    layouts = [sides.flat_query(), sides.flat_key(), sides.flat_value()]
    return fused.match(
        sides,
        list(zip(rotated, layouts, strict=False)),
        sides.flat_output(),
        scale=scale,
        softcap=softcap,
        window=Window(True, "top_left", window - 1 if window > 0 else -1, -1),
        lengths=_prompt_lengths(fused, query, sides),
        sinks=sinks,
    )


def _group_operands(fused: Fused, query: Shape, heads: int, kv_heads: int) -> tuple[list[str], int] | Refusal:
    """Query, key and value of a GroupQueryAttention, and the head size."""
    node = fused.node
    packed = not node.input(1)
    width = symbolic.divide_exactly(query[2], heads + 2 * kv_heads if packed else heads)
    if not isinstance(width, int):
        return fused.refuse("shape", "the head size isn't known")
    if packed:
        widths = [heads * width, kv_heads * width, kv_heads * width]
        return fused.split_width(node.input(0), widths, ["query", "key", "value"]), width
    return [node.input(0), node.input(1), node.input(2)], width


def _rotated(fused: Fused, tensors: list[str], heads: int, kv_heads: int) -> list[str] | Refusal:
    """Query and key with rotary embeddings, where the node does that: ONNX Runtime's op for it, from position 0."""
    node = fused.node
    flag = node.int_attribute("do_rotary", 0)
    if not flag:
        return tensors if flag == 0 else fused.refuse("attribute", "do_rotary is given by a function's caller")
    interleaved = node.int_attribute("rotary_interleaved", 0)
    if interleaved is None or not node.input(7) or not node.input(8):
        return fused.refuse("rotary", "a rotating GroupQueryAttention without its tables")
    start = fused.constant(np.array([0], dtype=np.int64), "first_position")
    result = list(tensors)
    for index, count, role in ((0, heads, "query"), (1, kv_heads, "key")):
        fact = fused.scope.fact(tensors[index])
        inputs = [tensors[index], start, node.input(7), node.input(8)]
        result[index] = fused.add(
            "RotaryEmbedding", inputs, f"{role}_rotated", fact, MICROSOFT, interleaved=interleaved, num_heads=count
        )
    return result


def _present(fused: Fused, tensor: str, output: str, kv_heads: int, head: int, query: Shape) -> None:
    """The keys or values as (B,M,T,D), which the node hands out."""
    kind = fused.scope.elem_type(tensor)
    shape = fused.constant(np.array([0, 0, kv_heads, head], dtype=np.int64), "present_heads")
    role = f"present{len(fused.prelude)}"
    split = fused.add("Reshape", [tensor, shape], role, Fact(kind, (*query[:2], kv_heads, head)))
    fused.take_over("Transpose", [split], output, perm=[0, 2, 1, 3])


def _prompt_lengths(fused: Fused, query: Shape, sides: Sides) -> Lengths:
    """``seqlens_k + 1``."""
    one = fused.constant(np.array(1, dtype=np.int32), "one")
    fact = Fact(TensorProto.INT32, (query[0],))
    return Lengths(fused.add("Add", [fused.node.input(5), one], "key_lengths", fact), (sides.batch,), None)
