"""What biases and masks are, once they have been met: split into parts, un-broadcast, recognised.

A bias that is a sum becomes several; one that is 0 or a number that swallows any score becomes a mask; a mask that is
provably causal, windowed or a key length becomes structure; one that never masks goes. The numbers never change: an
additive -10000 stays additive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from . import symbolic
from .absorbing import LOWEST_ABSORBING, absorbs, scaled
from .block_sparse import Blocks, blocks_of
from .const_eval import scalar
from .graph_view import Scope
from .indicators import constant_fill, is_indicator, may_mask, rests_on_inputs, zero_or_absorbing
from .layout import broadcast_operand, finest
from .mask_kinds import Finding, MaskReader
from .normal_form import Peel
from .peel import Match, Point, operand_points
from .rules_scores import RawTerm
from .structure import Diagonals, Lengths, Window

MAX_TERMS = 16


@dataclass(frozen=True)
class Term:
    """A bias or mask with every place where its chain may be cut."""

    raw: RawTerm
    points: tuple[Point, ...]
    unless: tuple[Point, ...] = ()
    """mask only: where this bias isn't 0, the score is left as it is."""


@dataclass(frozen=True)
class Refined:
    """All terms of a site in their final kinds."""

    terms: tuple[Term, ...]
    window: Window | None
    lengths: Lengths | None
    blocks: Blocks | None
    peels: tuple[Peel, ...]


def refine(found: Match) -> Refined:
    """The terms of a site, simplified as far as the numbers stay what they are."""
    return _Refining(found).result()


@dataclass
class _Refining:
    found: Match
    diagonals: list[Diagonals] = field(default_factory=list)
    lengths: list[Lengths] = field(default_factory=list)
    blocks: Blocks | None = None
    peels: list[Peel] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scope = self.found.anchor.scope
        self.reader = MaskReader(self.scope, self.found.order, self.found.rows, self.found.keys)
        if self.found.lengths is not None:
            self.lengths.append(self.found.lengths)

    def result(self) -> Refined:
        leaves = self._leaves(self.found.terms)
        kept: list[RawTerm] = []
        for position, term in enumerate(leaves):
            kept.extend(self._sorted_out(term, leaves[:position], leaves[position + 1 :]))
        kept = self._last_indicator(self._reordered(kept))
        terms = tuple(
            Term(term, self._points(term), self._points(term.unless) if term.unless is not None else ())
            for term in kept
        )
        window = self.reader.window(self.diagonals) if self.diagonals else self.found.window
        return Refined(terms, window, self.lengths[0] if self.lengths else None, self.blocks, tuple(self.peels))

    def _points(self, term: RawTerm) -> tuple[Point, ...]:
        points = operand_points(self.scope, term.tensor, term.layout)
        return tuple(point for point in points if point.factor == 1)

    # --------------------------------------------------------------------------------------------------- splitting

    def _leaves(self, terms: Sequence[RawTerm]) -> list[RawTerm]:
        """Sums taken apart, in the order in which the model applies the terms."""
        pending = list(terms)
        done: list[RawTerm] = []
        while pending:
            term = pending.pop(0)
            parts = None
            if term.kind == "bias" and term.floor is None and len(done) + len(pending) < MAX_TERMS:
                parts = self._summands(term)
            if parts is None:
                done.append(term)
            else:
                pending[:0] = parts
        return done

    def _summands(self, term: RawTerm) -> list[RawTerm] | None:
        """``s + coeff * (a + b)`` as two biases."""
        for point in reversed(self._points(term)):
            producer = self.scope.producer(point.tensor)
            if producer is None or not producer.is_op("Add", "Sub"):
                continue
            if is_indicator(self.scope, point.tensor):
                return None  # 1 - mask: one thing, not two
            parts = []
            for index, name in enumerate(producer.inputs[:2]):
                shape = self.scope.shape(name)
                layout = None if shape is None else broadcast_operand(point.layout, shape)
                if layout is None:
                    return None
                sign = -1 if index == 1 and producer.op == "Sub" else 1
                parts.append(RawTerm("bias", producer, name, layout, symbolic.mul(term.coeff, sign)))
            self.peels.append(Peel("sum of biases", producer.label, "each is taken by itself"))
            return parts
        return None

    # ----------------------------------------------------------------------------------------------------- sorting

    def _sorted_out(self, term: RawTerm, inner: Sequence[RawTerm], outer: Sequence[RawTerm]) -> list[RawTerm]:
        """What one term becomes."""
        if term.kind == "bias" and self._is_zero(term):
            self.peels.append(Peel("zero bias", term.node.label, f"{term.tensor} adds nothing"))
            return []
        finding = self.reader.read(term, LOWEST_ABSORBING)
        if finding is not None and not finding.structural and not finding.masks:
            self.peels.append(Peel("always true mask", term.node.label, f"{term.tensor} masks nothing"))
            return []
        alone = not any(self._may_mask(other) for other in (*inner, *outer))
        clean = not any(self._may_mask(other) for other in inner) and term.floor is None
        clean = clean or (term.floor is not None and alone)
        if finding is not None and self._is_exact(term, finding, clean, alone):
            if self._take_blocks(term, finding, alone):
                return []
            taken = self._take(finding)
            if taken is not None:
                self.peels.append(Peel("mask", term.node.label, self._describe(term, finding)))
                return taken
        if term.kind == "bias" and clean:
            masked = self._where_mask(term)
            if masked is not None:
                self.peels.append(Peel("additive mask", term.node.label, f"where({masked.tensor}, s, {masked.fill:g})"))
                return [masked]
        return [term]

    def _is_exact(self, term: RawTerm, finding: Finding, clean: bool, alone: bool) -> bool:
        """Whether the parts of a finding give the numbers that the term gives.

        ``s + where(keep, 0, fill)`` is ``where(keep, s, fill)`` where nothing below has masked already. Structure takes
        keys out for good: with a finite fill only where this is all the masking that there is.
        """
        if finding.fill == -math.inf:
            return True
        if finding.structural and (not alone or finding.masks):
            return False
        return term.kind == "mask" or (clean and absorbs(finding.fill, self.found.score_type))

    def _may_mask(self, term: RawTerm) -> bool:
        """Whether a term may hold numbers so low that they mask.

        A bias that is an input of the graph may hold anything, but one that differs from head to head is taken to be a
        bias of positions: masks are the same for all heads.
        """
        if term.kind == "mask":
            return True
        given = self.scope.producer(term.tensor) is None and self.scope.constant(term.tensor) is None
        if given and self._varies_along_heads(term):
            return False
        return may_mask(self.scope, term.tensor)

    def _varies_along_heads(self, term: RawTerm) -> bool:
        outer = finest(self.found.order)[1:]
        rows = {id(atom) for atom in finest(self.found.rows)}
        heads = {id(atom) for atom in outer if id(atom) not in rows}
        return any(id(atom) in heads for axis in term.layout for atom in finest(axis))

    def _take(self, finding: Finding) -> list[RawTerm] | None:
        """Note the structure of a finding; returns the masks that remain, or ``None`` where it doesn't fit."""
        if finding.structural and self.found.window is not None:
            return None
        diagonals = [*self.diagonals, *finding.diagonals]
        masks = list(finding.masks)
        window = self.reader.window(diagonals) if diagonals else None
        if diagonals and window is None:
            return None
        lengths = list(self.lengths)
        bottom = window is not None and window.alignment == "bottom_right"
        if bottom and self.lengths:
            return None  # key lengths would move the diagonal
        for length in finding.lengths:
            if not lengths and not bottom:
                lengths.append(length)
                continue
            return None
        if finding.fill != -math.inf and finding.structural:
            if lengths or window is None or not self.reader.every_row_sees_a_key(window):
                return None
            if not absorbs(finding.fill, self.found.score_type):
                return None
        self.diagonals, self.lengths = diagonals, lengths
        return masks

    def _take_blocks(self, term: RawTerm, finding: Finding, alone: bool) -> bool:
        """Note which blocks a constant mask leaves out whole; returns whether that says all that the mask says."""
        if self.blocks is not None or finding.structural or len(finding.masks) != 1:
            return False
        [mask] = finding.masks
        keep = self._constant_mask(mask)
        if keep is None:
            return False
        never_empty = bool(keep.any(axis=-1).all())
        swallows = alone and never_empty and absorbs(finding.fill, self.found.score_type)
        blocks = blocks_of(keep) if finding.fill == -math.inf or swallows else None
        if blocks is None:
            return False
        self.blocks = blocks
        left = 1 - float(blocks.taken.mean())
        self.peels.append(
            Peel("block mask", term.node.label, f"{left:.0%} of the {blocks.size} x {blocks.size} blocks go")
        )
        return blocks.whole

    def _constant_mask(self, mask: RawTerm) -> np.ndarray | None:
        """A constant bool (..., S, T) as large as the scores, True where a key takes part."""
        table = self.scope.constant(mask.tensor)
        rows, keys = self.reader.sizes()
        if table is None or table.ndim < 2 or table.shape[-2:] != (rows, keys):
            return None
        order = [axis for axis in mask.layout if axis]
        if len(order) != 2 or table.size != rows * keys:
            return None  # one mask for all heads and batches is the only kind that exporters write
        keep = table.astype(np.bool_)
        return ~keep if mask.inverted else keep

    def _describe(self, term: RawTerm, finding: Finding) -> str:
        facts = []
        for diagonal in finding.diagonals:
            if diagonal.upper is not None:
                facts.append(f"j <= i + {symbolic.to_text(diagonal.upper)}")
            if diagonal.lower is not None:
                facts.append(f"j >= i - {symbolic.to_text(diagonal.lower)}")
        facts += [f"j < {length.tensor}" for length in finding.lengths]
        facts += [f"{'not ' if mask.inverted else ''}{mask.tensor}" for mask in finding.masks]
        return f"{term.tensor} says: {', '.join(facts)}"

    def _is_zero(self, term: RawTerm) -> bool:
        return any(_is_zero(self.scope, point.tensor) for point in self._points(term))

    def _where_mask(self, term: RawTerm) -> RawTerm | None:
        """``s + coeff * Where(keep, 0, fill)`` as ``where(keep, s, coeff * fill)``."""
        for point in reversed(self._points(term)):
            producer = self.scope.producer(point.tensor)
            if producer is None or not producer.is_op("Where") or not isinstance(term.coeff, (int, float)):
                continue
            sides = [constant_fill(self.scope, producer.input(index)) for index in (1, 2)]
            test = self.scope.producer(producer.input(0))
            if test is not None and test.is_op("Cast") and test.input(0) == producer.input(2):
                sides[1] = 0.0  # Where(x != 0, fill, x): what is left of x is 0
            fills = [side for side in sides if side is not None and side != 0]
            if None in sides or len(fills) != 1:
                continue
            fill = scaled(fills[0], float(term.coeff), self.scope.elem_type(point.tensor))
            fill = fill if term.floor is None else max(fill, term.floor)
            if not absorbs(fill, self.found.score_type):
                continue
            shape = self.scope.shape(producer.input(0))
            layout = None if shape is None else broadcast_operand(point.layout, shape)
            if layout is not None:
                return RawTerm("mask", producer, producer.input(0), layout, 1, fill, inverted=sides[0] != 0)
        return None

    # ------------------------------------------------------------------------------------------------------- order

    def _reordered(self, terms: Sequence[RawTerm]) -> list[RawTerm]:
        """Masks behind the biases that follow them, where the numbers allow it: the op adds first and masks then.

        ``where(keep, s, -inf) + b`` is ``where(keep, s + b, -inf)``. With a finite fill it is ``where(keep or b != 0,
        s + b, fill)`` for a bias that is 0 or swallows both score and fill, where the score is an ordinary number.
        """
        result = list(terms)
        for position in reversed(range(len(result))):
            term = result[position]
            behind = result[position + 1 :]
            if term.kind != "mask" or term.fill is None or not behind or any(item.kind == "mask" for item in behind):
                continue
            if term.fill == -math.inf:
                result[position:] = [*behind, term]
            elif len(behind) == 1 and not absorbs(term.fill, self.found.score_type):
                bias, plain = behind[0], not any(self._may_mask(item) for item in result[:position])
                if plain and bias.floor is None and bias.coeff == 1 and zero_or_absorbing(self.scope, bias.tensor):
                    result[position:] = [bias, replace(term, unless=bias)]
        return result

    def _last_indicator(self, terms: list[RawTerm]) -> list[RawTerm]:
        """The last of several biases, ``(1 - mask) * lowest``, as a mask: so that they needn't be added up."""
        if len(terms) < 2 or any(term.kind != "bias" for term in terms):
            return terms
        last = terms[-1]
        if last.floor is not None or any(self._may_mask(term) for term in terms[:-1]):
            return terms
        for point in reversed(self._points(last)):
            masked = self._scaled_indicator(last, point)
            if masked is not None:
                self.peels.append(Peel("additive mask", last.node.label, f"where({masked.tensor}, s, {masked.fill:g})"))
                return [*terms[:-1], masked]
        return terms

    def _scaled_indicator(self, term: RawTerm, point: Point) -> RawTerm | None:
        producer = self.scope.producer(point.tensor)
        if producer is None or not producer.is_op("Mul") or not isinstance(term.coeff, (int, float)):
            return None
        for data, other in ((0, 1), (1, 0)):
            factor = scalar(self.scope.fact(producer.input(other)))
            dropped = complement(self.scope, producer.input(data))
            if not isinstance(factor, (int, float)) or dropped is None or not is_indicator(self.scope, dropped):
                continue
            fill = scaled(float(factor), float(term.coeff), self.scope.elem_type(point.tensor))
            shape = self.scope.shape(dropped)
            layout = None if shape is None else broadcast_operand(point.layout, shape)
            if layout is None or not absorbs(fill, self.found.score_type):
                continue
            note = f"'{dropped}' is taken to hold only 0 and 1" if rests_on_inputs(self.scope, dropped) else ""
            return RawTerm("mask", producer, dropped, layout, 1, fill, note=note)
        return None


def complement(scope: Scope, name: str) -> str | None:
    """``x`` where ``name`` is ``1 - x``."""
    producer = scope.producer(name)
    if producer is not None and producer.is_op("Sub") and scalar(scope.fact(producer.input(0))) == 1:
        return producer.input(1)
    return None


def _is_zero(scope: Scope, name: str) -> bool:
    if constant_fill(scope, name) == 0:
        return True
    producer = scope.producer(name)
    if producer is None or not producer.is_op("Mul"):
        return False
    first, second = producer.inputs
    return _is_zero_times(scope, first, second) or _is_zero_times(scope, second, first)


def _is_zero_times(scope: Scope, zero: str, other: str) -> bool:
    """Whether this is 0 times one finite number: 0 times anything else could be NaN."""
    fill = constant_fill(scope, other)
    return scalar(scope.fact(zero)) == 0 and fill is not None and math.isfinite(fill)
