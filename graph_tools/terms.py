"""What biases and masks are, once they have been met: split into parts, un-broadcast, recognised.

A bias that is a sum becomes several biases; one that is ``Where(keep, 0, fill)`` with a fill that swallows any score
becomes a mask; one that is 0 throughout, or a mask that is always true, goes. The numbers never change: an additive
-10000 stays additive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from . import symbolic
from .const_eval import scalar
from .graph_view import NodeView, Scope
from .layout import broadcast_operand
from .normal_form import Peel
from .peel import Point, operand_points
from .rules_scores import LOWEST_ABSORBING, RawTerm, constant_fill

MAX_TERMS = 16


@dataclass(frozen=True)
class Term:
    """A bias or mask with every place where its chain may be cut."""

    raw: RawTerm
    points: tuple[Point, ...]
    note: str = ""


def refine(scope: Scope, terms: Sequence[RawTerm], score_type: int) -> tuple[list[Term], list[Peel]]:
    """The terms of a site, simplified as far as the numbers stay what they are."""
    pending = list(terms)
    done: list[Term] = []
    peels: list[Peel] = []
    while pending:
        term = pending.pop(0)
        points = tuple(point for point in operand_points(scope, term.tensor, term.layout) if point.factor == 1)
        if len(done) + len(pending) < MAX_TERMS:
            parts = _parts(scope, term, points, score_type)
            if parts is not None:
                new, peel = parts
                pending[:0] = new
                peels.append(peel)
                continue
        done.append(Term(term, points))
    return done, peels


def _parts(
    scope: Scope, term: RawTerm, points: Sequence[Point], score_type: int
) -> tuple[list[RawTerm], Peel] | None:
    """What one term is made of; ``None`` where it can't be taken further apart."""
    for point in reversed(points):
        producer = scope.producer(point.tensor)
        if term.kind == "mask":
            if _always(scope, point.tensor, not term.inverted):
                return [], Peel("always true mask", term.node.label, f"{point.tensor} masks nothing")
            if producer is not None and producer.is_op("Not"):
                inner = replace(term, tensor=producer.input(0), layout=point.layout, inverted=not term.inverted)
                return [inner], Peel("not", producer.label, "the mask's polarity changes")
            continue
        if _is_zero(scope, point.tensor):
            return [], Peel("zero bias", term.node.label, f"{point.tensor} adds nothing")
        if producer is None:
            continue
        if producer.is_op("Where"):
            masked = _where_mask(scope, term, point, producer, score_type)
            if masked is not None:
                return [masked], Peel("additive mask", producer.label, f"where({masked.tensor}, s, {masked.fill:g})")
        if producer.is_op("Add", "Sub"):
            parts = _summands(scope, term, point, producer)
            if parts is not None:
                return parts, Peel("sum of biases", producer.label, "each is taken by itself")
    return None


def _always(scope: Scope, name: str, wanted: bool) -> bool:
    """Whether a bool tensor is ``wanted`` throughout."""
    value = scope.fact(name).value
    if value is not None and value.size:
        return all(item is wanted for item in value.flat)
    array = scope.constant(name)
    if array is not None and array.dtype == np.bool_ and array.size:
        return bool((array == wanted).all())
    producer = scope.producer(name)
    if producer is not None and producer.is_op("ConstantOfShape"):
        return constant_fill(scope, name) == float(wanted)
    if producer is not None and producer.is_op("Expand"):
        return _always(scope, producer.input(0), wanted)
    return False


def _is_zero(scope: Scope, name: str) -> bool:
    if constant_fill(scope, name) == 0:
        return True
    producer = scope.producer(name)
    if producer is None or not producer.is_op("Mul"):
        return False
    return any(scalar(scope.fact(item)) == 0 and _finite_constant(scope, other) for item, other in
               (producer.inputs, producer.inputs[::-1]))


def _finite_constant(scope: Scope, name: str) -> bool:
    """Whether a tensor holds one finite number throughout: 0 times anything else could be NaN."""
    fill = constant_fill(scope, name)
    return fill is not None and math.isfinite(fill)


def absorbs(fill: float, score_type: int) -> bool:
    """Whether ``score + fill`` is ``fill`` for any score that a model computes, in the type that it computes in.

    -inf always; at or below -1e30 in fp32 and bf16, for scores up to 1e22. In fp16 nothing finite does: half the
    spacing at -65504 is 16, which scores reach.
    """
    if fill == -math.inf:
        return True
    return fill <= LOWEST_ABSORBING and score_type in (TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def _where_mask(
    scope: Scope, term: RawTerm, point: Point, producer: NodeView, score_type: int
) -> RawTerm | None:
    """``s + coeff * Where(keep, 0, fill)`` as ``where(keep, s, coeff * fill)``."""
    if not isinstance(term.coeff, (int, float)) or term.floor is not None and not absorbs(term.floor, score_type):
        return None
    values = [constant_fill(scope, producer.input(index)) for index in (1, 2)]
    if None in values or values.count(0.0) != 1:
        return None
    inverted = values[0] != 0
    fill = float(term.coeff) * float(values[0] if inverted else values[1])  # type: ignore[arg-type]
    if term.floor is not None:
        fill = max(fill, term.floor)
    if not absorbs(fill, score_type):
        return None
    shape = scope.shape(producer.input(0))
    layout = None if shape is None else broadcast_operand(point.layout, shape)
    if layout is None:
        return None
    return RawTerm("mask", producer, producer.input(0), layout, 1, fill, inverted)


def _summands(scope: Scope, term: RawTerm, point: Point, producer: NodeView) -> list[RawTerm] | None:
    """``s + coeff * (a + b)`` as two biases, where neither is clamped together with the other."""
    if term.floor is not None:
        return None
    parts = []
    for index, name in enumerate(producer.inputs[:2]):
        shape = scope.shape(name)
        layout = None if shape is None else broadcast_operand(point.layout, shape)
        if layout is None:
            return None
        sign = -1 if index == 1 and producer.op == "Sub" else 1
        parts.append(RawTerm("bias", producer, name, layout, symbolic.mul(term.coeff, sign)))
    return parts


