"""From a match to a form: which atoms are batch, heads and rows of the fused op, and where each operand is cut off.

The mathematics leaves this open. Rows of a product may be heads that share their keys (grouped heads folded into
rows); a batch axis may as well be heads (windows with a bias of their own). Every sensible choice is priced by the
nodes that would have to stay or be added, and the cheapest is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from onnx import TensorProto

from . import symbolic
from .graph_view import NodeView, Scope
from .layout import Atom, Layout, finest, size_of
from .normal_form import AttentionForm, Dim, Factor, Operand, Refusal, ScoreTerm, ShapeRead, TensorRef
from .peel import Match, OutPoint, Point, operand_points
from .rearrange import Axes, broadcast_axes, cost, from_pattern, plan, score_axes, to_pattern
from .rules_operands import UPCASTS
from .rules_scores import refuse
from .symbolic import Expr, Value
from .terms import Refined, refine

SUPPORTED = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""Types that the op computes in."""

CAST = 4.1
"""Cost of a new Cast, beside those of :mod:`.rearrange`."""

_LAYOUTS: tuple[Literal["BSNH", "BNSH"], ...] = ("BSNH", "BNSH")


@dataclass(frozen=True)
class _Roles:
    """One way to see the atoms as the op's axes."""

    batch: tuple[Atom, ...]
    heads: tuple[Atom, ...]
    """Those that key and value have too."""
    groups: tuple[Atom, ...]
    rows: tuple[Atom, ...]
    keys: tuple[Atom, ...]
    head: tuple[Atom, ...]
    value_head: tuple[Atom, ...]


@dataclass(frozen=True)
class _Choice:
    price: float
    roles: _Roles
    layout: Literal["BSNH", "BNSH"]
    elem_type: int
    query: Point
    key: Point
    value: Point
    output: OutPoint
    terms: tuple[Point, ...]
    unless: tuple[Point | None, ...]
    sinks: Point | None
    factors: tuple[Point, ...]
    scale: float


def assemble(found: Match) -> AttentionForm | Refusal:
    """The cheapest form of a match."""
    refined = refine(found)
    unknown = _unknown_number(found, refined)
    if unknown is not None:
        return unknown
    elem_types = _elem_types(found)
    if isinstance(elem_types, Refusal):
        return elem_types
    reason: Refusal | None = None
    for elem_type in elem_types:  # the model's own first, fp32 where an operand doesn't fit that
        best: _Choice | None = None
        for roles in _candidates(found):
            for layout in _LAYOUTS:
                choice = _choose(found, refined, roles, layout, elem_type)
                if isinstance(choice, Refusal):
                    reason = reason or choice
                elif best is None or choice.price < best.price - 1e-9:
                    best = choice
        if best is not None:
            return _form(found, refined, best)
    return reason or refuse(found.anchor.node, "layout", "no arrangement of the axes fits the fused op")


def _unknown_number(found: Match, refined: Refined) -> Refusal | None:
    """Refuses where a bias or the output is multiplied by something that depends on a dimension."""
    for term in refined.terms:
        if not isinstance(term.raw.coeff, (int, float)):
            text = symbolic.to_text(term.raw.coeff)
            return refuse(term.raw.node, "scale", f"a bias is multiplied by {text}, which isn't known")
    if not isinstance(found.output_factor, (int, float)):
        text = symbolic.to_text(found.output_factor)
        return refuse(found.anchor.node, "scale", f"the probabilities are multiplied by {text}, which isn't known")
    return None


def _elem_types(found: Match) -> list[int] | Refusal:
    if found.output_type not in SUPPORTED:
        known = TensorProto.DataType.Name(found.output_type).lower() if found.output_type else "unknown"
        return refuse(
            found.anchor.node, "type", f"attention in {known} isn't supported", "export in fp32, fp16 or bf16"
        )
    wider = [kind for kind in (TensorProto.FLOAT,) if kind != found.output_type]
    return [found.output_type, *wider]


def _candidates(found: Match) -> Iterator[_Roles]:
    """Ways to see the atoms, the plainest first."""
    order = [leaf for atom in found.order for leaf in atom.leaves()]
    rows = [leaf for atom in found.rows for leaf in atom.leaves()]
    keyed = _present(found.key) | _present(found.value)
    choices: list[tuple[Atom, ...]] = [tuple(rows)]
    if len(rows) > 1:
        choices += [(row,) for row in reversed(rows)]
    for chosen in choices:
        taken = {id(atom) for atom in chosen}
        outer = [atom for atom in order if id(atom) not in taken]
        splits = sorted(range(len(outer) + 1), key=lambda index: abs(index - (len(outer) - 1)))
        for split in splits:
            heads, groups = _grouped(outer[split:], keyed)
            yield _Roles(
                tuple(outer[:split]),
                tuple(heads),
                tuple(groups),
                chosen,
                tuple(leaf for atom in found.keys for leaf in atom.leaves()),
                tuple(finest(found.head)),
                tuple(finest(found.value_head)),
            )


def _present(points: Sequence[Point]) -> set[int]:
    """The atoms that the deepest point of an operand still has."""
    return {id(atom) for axis in points[-1].layout for atom in finest(axis)}


def _grouped(heads: Sequence[Atom], keyed: set[int]) -> tuple[list[Atom], list[Atom]]:
    """Trailing heads that key and value don't have share one key/value head; any before them are repeated."""
    split = len(heads)
    while split and id(heads[split - 1]) not in keyed:
        split -= 1
    return list(heads[:split]), list(heads[split:])


def _axes(layout: Layout) -> Axes:
    return tuple(tuple(finest(axis)) for axis in layout)


def _choose(
    found: Match, refined: Refined, roles: _Roles, layout: Literal["BSNH", "BNSH"], elem_type: int
) -> _Choice | Refusal:
    """The cheapest points for one way to see the axes."""
    node, scope = found.anchor.node, found.anchor.scope
    if layout == "BSNH" and not _heads_known(roles):
        return refuse(node, "layout", "the number of heads isn't known")
    q_axes, k_axes, v_axes, o_axes = _op_axes(roles, layout)
    pair = _query_and_key(found, roles, q_axes, k_axes, elem_type)
    if isinstance(pair, Refusal):
        return pair
    values = [item for item in _priced(scope, found.value, v_axes, elem_type, found.output_type) if item[1].factor == 1]
    if not values:
        return refuse(node, "layout", f"the values '{found.value[0].tensor}' can't be brought into the op's layout")
    outputs = [
        (cost(moves) + point.kept, point)
        for point in found.output
        if (moves := plan(o_axes, _axes(point.layout))) is not None
    ]
    if not outputs:
        return refuse(node, "layout", "the op's output can't be brought into the layout that the model wants")
    scores: Axes = (roles.batch, (*roles.heads, *roles.groups), roles.rows, roles.keys)
    terms = _term_points(refined, scores)
    if isinstance(terms, Refusal):
        return terms
    sinks = _sink_point(found, scores)
    if isinstance(sinks, Refusal):
        return sinks
    factors = _factor_points(found, scores[:3])
    if isinstance(factors, Refusal):
        return factors
    if refined.lengths is not None and plan(_axes(refined.lengths.layout), (roles.batch,)) is None:
        return refuse(node, "mask", f"the key lengths '{refined.lengths.tensor}' vary along more than the batch")
    value, output = min(values, key=_price), min(outputs, key=_price)
    price = pair[0] + value[0] + output[0] + terms[0] + (CAST if elem_type != found.output_type else 0)
    return _Choice(
        price,
        roles,
        layout,
        elem_type,
        pair[1],
        pair[2],
        value[1],
        output[1],
        terms[1],
        terms[2],
        sinks,
        factors,
        pair[3],
    )


def _price(item: tuple[float, object]) -> float:
    return item[0]


def _heads_known(roles: _Roles) -> bool:
    sizes = [symbolic.product(atom.size for atom in (*roles.heads, *group)) for group in ((), roles.groups)]
    return all(isinstance(size, int) for size in sizes)


def _op_axes(roles: _Roles, layout: str) -> tuple[Axes, Axes, Axes, Axes]:
    """The arrangement of query, key, value and output that the op wants."""
    heads = (*roles.heads, *roles.groups)
    if layout == "BSNH":
        return (
            (roles.batch, roles.rows, (*heads, *roles.head)),
            (roles.batch, roles.keys, (*roles.heads, *roles.head)),
            (roles.batch, roles.keys, (*roles.heads, *roles.value_head)),
            (roles.batch, roles.rows, (*heads, *roles.value_head)),
        )
    return (
        (roles.batch, heads, roles.rows, roles.head),
        (roles.batch, roles.heads, roles.keys, roles.head),
        (roles.batch, roles.heads, roles.keys, roles.value_head),
        (roles.batch, heads, roles.rows, roles.value_head),
    )


def _query_and_key(
    found: Match, roles: _Roles, q_axes: Axes, k_axes: Axes, elem_type: int
) -> tuple[float, Point, Point, float] | Refusal:
    """The cheapest pair of points whose scales multiply to a number that is known."""
    scope = found.anchor.scope
    best: tuple[float, Point, Point, float] | None = None
    for query_price, query in _priced(scope, found.query, q_axes, elem_type, found.score_type):
        for key_price, key in _priced(scope, found.key, k_axes, elem_type, found.score_type):
            scale = _scale(found, query, key, roles)
            total = query_price + key_price
            if scale is not None and (best is None or total < best[0] - 1e-9):
                best = (total, query, key, scale)
    return best if best is not None else _no_operands(found, q_axes, k_axes, elem_type)


def _term_points(refined: Refined, scores: Axes) -> tuple[float, tuple[Point, ...], tuple[Point | None, ...]] | Refusal:
    """Where each bias and mask is cut off. Several biases are added up axis by axis, so they are priced together."""
    price = 0.0
    points: list[Point] = []
    unless: list[Point | None] = []
    single: Axes = tuple((label,) for axis in scores for label in axis)
    biases = [term for term in refined.terms if term.raw.kind == "bias"]
    for term in refined.terms:
        summed = term.raw.kind == "bias" and len(biases) > 1
        best = _cheapest(term.points, scores, single if summed else None)
        other = _cheapest(term.unless, scores, None) if term.unless else None
        if best is None or (term.unless and other is None):
            what = f"the axes of '{term.raw.tensor}' can't be brought into the op's order"
            return refuse(term.raw.node, "bias", what)
        price += best[0] + (other[0] if other is not None else 0)
        points.append(best[1])
        unless.append(None if other is None else other[1])
    if len(biases) > 1:
        chosen = [point for term, point in zip(refined.terms, points, strict=False) if term.raw.kind == "bias"]
        together = tuple(
            axis for axis in single if any(axis[0] in finest(part) for point in chosen for part in point.layout)
        )
        moves = plan(together, score_axes(together, scores))
        price += 5.0 * (len(biases) - 1) + (cost(moves) if moves is not None else 0.0)
    return price, tuple(points), tuple(unless)


def _cheapest(points: Sequence[Point], scores: Axes, spread: Axes | None) -> tuple[float, Point] | None:
    """The cheapest point of a term: brought to where it broadcasts, or with ``spread`` to one axis for every label."""
    found = []
    for point in points:
        axes = _axes(point.layout)
        moves = plan(axes, score_axes(axes, scores) if spread is None else broadcast_axes(axes, spread))
        if moves is not None:
            found.append((cost(moves) + point.kept, point))
    return min(found, key=_price) if found else None


def _factor_points(found: Match, rows: Axes) -> tuple[Point, ...] | Refusal:
    """Where each factor on the scores is cut off; it has to fit batch, heads and rows."""
    chosen = []
    for factor in found.factors:
        points = operand_points(found.anchor.scope, factor.tensor, factor.layout)
        plain = [point for point in points if point.factor == 1]
        best = _cheapest(plain, rows, None)
        if best is None:
            return refuse(factor.node, "temperature", f"the factor '{factor.tensor}' doesn't fit the query")
        chosen.append(best[1])
    return tuple(chosen)


def _sink_point(found: Match, scores: Axes) -> Point | Refusal | None:
    sinks = found.sinks
    if sinks is None or sinks.value is not None:
        return None
    for point in reversed(operand_points(found.anchor.scope, sinks.tensor, sinks.layout)):
        axes = _axes(point.layout)
        if point.factor == 1 and plan(axes, broadcast_axes(axes, (scores[1],))) is not None:
            return point
    return refuse(found.anchor.node, "sinks", f"the sink '{sinks.tensor}' varies along more than the heads")


def _priced(
    scope: Scope, points: Sequence[Point], target: Axes, elem_type: int, unknown: int
) -> list[tuple[float, Point]]:
    """What each point costs. Where a tensor's type isn't known it has the product's, ``unknown``: casts are."""
    priced = []
    for point in points:
        moves = plan(_axes(point.layout), target)
        source = scope.elem_type(point.tensor) or unknown
        if moves is None or (source != elem_type and elem_type not in UPCASTS.get(source, ())):
            continue
        priced.append((cost(moves) + point.kept + (CAST if source != elem_type else 0), point))
    return priced


def _no_operands(found: Match, q_axes: Axes, k_axes: Axes, elem_type: int) -> Refusal:
    scope, node = found.anchor.scope, found.anchor.node
    for points, axes, name in ((found.query, q_axes, "query"), (found.key, k_axes, "key")):
        if not _priced(scope, points, axes, elem_type, found.score_type):
            return refuse(node, "layout", f"the {name} '{points[0].tensor}' can't be brought into the op's layout")
    together = 1 if found.cap is None else symbolic.mul(found.coeff, found.cap)
    for what, number in (("multiplied", found.coeff), ("capped", found.cap), ("multiplied and capped", together)):
        if isinstance(number, (int, float)) and not _is_normal(number):
            why = "isn't a normal number of fp32" if number else "makes all keys count alike"
            return refuse(node, "scale", f"the scores are {what} by {number:g}, which {why}")
    if found.cap is not None and not isinstance(found.cap, (int, float)):
        return refuse(node, "softcap", f"the softcap is {symbolic.to_text(found.cap)}, which isn't known")
    return refuse(
        node,
        "scale",
        "the scale depends on a dimension that isn't known, and it isn't 1/sqrt of the head size",
        "export with a fixed head size",
    )


def _scale(found: Match, query: Point, key: Point, roles: _Roles) -> float | None:
    """The number that multiplies QK^T; 0 for a provable 1/sqrt(D) of an unknown D; ``None`` where it isn't known.

    With a cap ``c * tanh(s * QK)`` that is ``c * s``, also for a negative one: ``tanh(-x) = -tanh(x)``.
    """
    resolve = found.anchor.scope.view.resolve
    total = symbolic.product((found.coeff, query.factor, key.factor))
    if found.cap is not None:
        if not isinstance(found.cap, (int, float)) or not _is_normal(found.cap):
            return None
        total = symbolic.mul(total, found.cap)
    total = resolve(total)
    if isinstance(total, (int, float)):
        return float(total) if _is_normal(total) else None
    width = symbolic.product(resolve(atom.size) for atom in roles.head)
    default = symbolic.power(width, -0.5)
    return 0.0 if isinstance(default, Expr) and _close(total, default) and found.cap is None else None


def _is_normal(number: float) -> bool:
    """Whether fp32 holds it: neither 0 (the op's word for 1/sqrt(D)) nor infinite nor NaN, there and here."""
    largest, smallest = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
    return smallest <= abs(number) <= largest


def _close(a: Expr, b: Expr) -> bool:
    if set(a.terms) != set(b.terms):
        return False
    return all(abs(a.terms[key] - b.terms[key]) <= 1e-6 * abs(b.terms[key]) for key in a.terms)


# --------------------------------------------------------------------------------------------------------- the form


def _form(found: Match, refined: Refined, choice: _Choice) -> AttentionForm:
    scope, roles, window = found.anchor.scope, choice.roles, refined.window
    letters = _letters(roles)
    sizes = {letters[atom]: _dim(scope, atom.size) for atom in letters}

    def pattern(layout: Layout) -> str:
        return to_pattern([[letters[atom] for atom in finest(axis)] for axis in layout])

    def words(atoms: Sequence[Atom]) -> str:
        return " ".join(letters[atom] for atom in atoms)

    query_heads = (*roles.heads, *roles.groups)
    heads = _known(symbolic.product(atom.size for atom in query_heads))
    kv_heads = _known(symbolic.product(atom.size for atom in roles.heads))
    head, value_head = _known(size_of(roles.head)), _known(size_of(roles.value_head))
    score_terms = []
    for term, point, unless in zip(refined.terms, choice.terms, choice.unless, strict=False):
        raw = term.raw
        score_terms.append(
            ScoreTerm(
                raw.kind,
                ref(scope, point.tensor),
                pattern(point.layout),
                coeff=float(raw.coeff) if isinstance(raw.coeff, (int, float)) else 1.0,
                fill=raw.fill,
                inverted=raw.inverted,
                floor=raw.floor,
                unless=None if unless is None else ref(scope, unless.tensor),
                unless_axes="" if unless is None else pattern(unless.layout),
                note=raw.note,
            )
        )
    operand_peels = (*choice.query.peels, *choice.key.peels, *choice.value.peels, *choice.output.peels)
    factor = found.output_factor
    return AttentionForm(
        query=Operand(
            ref(scope, choice.query.tensor),
            pattern(choice.query.layout),
            heads,
            head,
            tuple(
                Factor(ref(scope, point.tensor), pattern(point.layout), raw.divides)
                for raw, point in zip(found.factors, choice.factors, strict=False)
            ),
        ),
        key=Operand(ref(scope, choice.key.tensor), pattern(choice.key.layout), kv_heads, head),
        value=Operand(ref(scope, choice.value.tensor), pattern(choice.value.layout), kv_heads, value_head),
        scale=choice.scale,
        softcap=abs(float(found.cap)) if isinstance(found.cap, (int, float)) else 0.0,
        terms=tuple(score_terms),
        is_causal=window is not None and window.is_causal,
        causal_alignment="top_left" if window is None else window.alignment,
        window_left=-1 if window is None else window.left,
        window_right=-1 if window is None else window.right,
        key_lengths=None if refined.lengths is None else ref(scope, refined.lengths.tensor),
        key_lengths_axes="" if refined.lengths is None else pattern(refined.lengths.layout),
        block_mask=None if refined.blocks is None else refined.blocks.taken,
        block_size=128 if refined.blocks is None else refined.blocks.size,
        sinks=None if choice.sinks is None else ref(scope, choice.sinks.tensor),
        sinks_axes="" if choice.sinks is None else pattern(choice.sinks.layout),
        sinks_value=None if found.sinks is None else found.sinks.value,
        guard=found.guard,
        dropout_p=0.0 if found.dropout is None else found.dropout.ratio,
        dropout_seed=None if found.dropout is None else found.dropout.seed,
        kv_num_heads=0 if kv_heads == heads else kv_heads,
        layout=choice.layout,
        op_axes={
            "B": words(roles.batch),
            "N": words(query_heads),
            "M": words(roles.heads),
            "S": words(roles.rows),
            "T": words(roles.keys),
            "D": words(roles.head),
            "E": words(roles.value_head),
        },
        sizes=sizes,
        output=ref(scope, choice.output.tensor),
        output_axes=pattern(choice.output.layout),
        output_scale=float(factor) if isinstance(factor, (int, float)) else 1.0,
        elem_type=choice.elem_type,
        prelude=found.prelude,
        shape_reads=tuple(
            _shape_read(scope, node, pattern(layout)) for node, layout in (*found.shapes, *choice.output.shapes)
        ),
        peels=(*operand_peels, *found.peels, *refined.peels),
    )


def _shape_read(scope: Scope, node: NodeView, axes: str) -> ShapeRead:
    words = from_pattern(axes)
    start, end = node.int_attribute("start", 0), node.int_attribute("end", len(words))
    return ShapeRead(ref(scope, node.output), to_pattern(words[start:end]))


def _letters(roles: _Roles) -> dict[Atom, str]:
    letters: dict[Atom, str] = {}
    groups = (
        ("b", roles.batch),
        ("n", roles.heads),
        ("g", roles.groups),
        ("s", roles.rows),
        ("t", roles.keys),
        ("d", roles.head),
        ("e", roles.value_head),
    )
    for letter, atoms in groups:
        for index, atom in enumerate(atoms):
            letters[atom] = letter if len(atoms) == 1 else f"{letter}{index + 1}"
    return letters


def _known(size: Value) -> int:
    return int(size) if isinstance(size, (int, float)) else 0


def _dim(scope: Scope, size: Value) -> Dim:
    resolved = scope.view.resolve(size)
    return int(resolved) if isinstance(resolved, (int, float)) else symbolic.to_text(resolved)


def ref(scope: Scope, name: str) -> TensorRef:
    """A tensor with what is known of it."""
    shape = scope.shape(name)
    dims = None if shape is None else tuple(_dim(scope, dim) for dim in shape)
    return TensorRef(name, scope.elem_type(name), dims)
