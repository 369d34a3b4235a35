"""What a mask says, proved: causal and windowed (with which alignment), key padding, always true, or unknown.

A mask is read as a condition on row ``i`` and key ``j`` (:mod:`.elements`). Its parts are sorted: ``j <= i + c`` and
``j >= i - c`` become structure that the kernel can skip by, ``j < length[b]`` becomes key lengths, an element of a
smaller tensor (``attention_mask[b, j]``) becomes a mask that isn't broadcast, and what always holds goes.

A mask whose fill is -inf may be taken apart at will. One with a finite fill keeps rows that are masked throughout
alive (a uniform average), so it becomes structure only where no such row can be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import symbolic
from .absorbing import scaled
from .elements import (
    AtLeastZero,
    Both,
    Choice,
    Condition,
    Element,
    Holds,
    Index,
    Negation,
    Number,
    Reader,
    Truth,
    negated,
)
from .graph_view import Scope
from .layout import Atom, Axis, Layout, finest, size_of
from .rules_scores import RawTerm
from .structure import Alignment, Diagonals, Lengths, Window
from .symbolic import Expr, Value


@dataclass(frozen=True)
class Finding:
    """A term taken apart. All parts together say what it said."""

    diagonals: tuple[Diagonals, ...]
    lengths: tuple[Lengths, ...]
    masks: tuple[RawTerm, ...]
    fill: float

    @property
    def structural(self) -> bool:
        """Whether any part is more than a smaller mask."""
        return bool(self.diagonals or self.lengths)


class MaskReader:
    """Reads the masks of one site. ``order`` and ``keys`` are the atoms of its scores."""

    def __init__(self, scope: Scope, order: Sequence[Atom], rows: Sequence[Atom], keys: Sequence[Atom]) -> None:
        self.scope = scope
        self._given = (order, rows, keys)
        self._number_atoms()

    def _number_atoms(self) -> None:
        """One symbol for each atom. Done again where a walk has found an atom to be a product of finer ones."""
        order, rows, keys = self._given
        self._atoms = finest((*order, *keys))
        self._symbols = {id(atom): f"@{number}" for number, atom in enumerate(self._atoms)}
        self._rows, self._keys = finest(rows), finest(keys)
        extents = {self._symbols[id(atom)]: atom.size for atom in self._atoms}
        key = ("elements", tuple(extents.items()))
        self.reader: Reader = self.scope.memo.setdefault(key, Reader(self.scope, extents))

    def read(self, term: RawTerm, fill_limit: float) -> Finding | None:
        """A term taken apart; ``None`` where some part of it isn't understood.

        A bias counts as a mask where it is 0 or, at or below ``fill_limit``, one number.
        """
        self._number_atoms()
        index = self._index(term.layout)
        if term.kind == "mask":
            keep = self.reader.condition(term.tensor, index)
            if term.inverted:
                keep = negated(keep)
            return self._finding(term, keep, -math.inf if term.fill is None else term.fill)
        masked = self._as_mask(term, self.reader.element(term.tensor, index), fill_limit)
        return None if masked is None else self._finding(term, *masked)

    def _as_mask(self, term: RawTerm, element: Element, fill_limit: float) -> tuple[Condition, float] | None:
        if element == Number(0):
            return Truth(True), -math.inf
        if not isinstance(element, Choice) or not isinstance(term.coeff, (int, float)):
            return None
        sides = [side.value if isinstance(side, Number) else None for side in (element.yes, element.no)]
        if sides[1] == 0 and sides[0] != 0:
            condition, fill = negated(element.condition), sides[0]
        elif sides[0] == 0:
            condition, fill = element.condition, sides[1]
        else:
            return None
        if not isinstance(fill, (int, float)):
            return None
        fill = scaled(float(fill), float(term.coeff), self.scope.elem_type(term.tensor))
        if term.floor is not None:
            fill = max(fill, term.floor)
        return (condition, fill) if fill <= fill_limit else None

    def _finding(self, term: RawTerm, keep: Condition, fill: float) -> Finding | None:
        parts = keep.parts if isinstance(keep, Both) else () if keep == Truth(True) else (keep,)
        diagonals: list[Diagonals] = []
        lengths: list[Lengths] = []
        masks: list[RawTerm] = []
        for part in parts:
            if isinstance(part, AtLeastZero):
                diagonal = self._diagonal(part.value)
                if diagonal is not None:
                    diagonals.append(diagonal)
                    continue
                length = self._length(part)
                if length is not None:
                    lengths.append(length)
                    continue
                if part.origin is None:
                    return None
                part = part.origin
            inverted = isinstance(part, Negation)
            holds = part.part if isinstance(part, Negation) else part
            layout = self._layout(holds.index) if isinstance(holds, Holds) else None
            if layout is None or not isinstance(holds, Holds) or not self._is_whole(holds.tensor, layout):
                return None
            masks.append(
                replace(
                    term,
                    kind="mask",
                    tensor=holds.tensor,
                    layout=layout,
                    coeff=1,
                    fill=fill,
                    inverted=inverted,
                    floor=None,
                )
            )
        return Finding(tuple(diagonals), tuple(lengths), tuple(masks), fill)

    # -------------------------------------------------------------------------------------------------- index algebra

    def _index(self, layout: Layout) -> Index:
        index: list[Value] = []
        for axis in layout:
            place: Value = 0
            for atom in finest(axis):
                place = symbolic.add(symbolic.mul(place, atom.size), symbolic.symbol(self._symbols[id(atom)]))
            index.append(self.scope.view.resolve(place))
        return tuple(index)

    def _layout(self, index: Index) -> Layout | None:
        """The layout of a tensor that is read at ``index``; ``None`` where the index isn't plain."""
        by_symbol = {symbolic.symbol(name): atom for atom in self._atoms for name in [self._symbols[id(atom)]]}
        axes: list[Axis] = []
        for entry in index:
            if entry == 0:
                axes.append(())
            elif isinstance(entry, Expr) and entry in by_symbol:
                axes.append((by_symbol[entry],))
            else:
                return None
        return tuple(axes)

    def _is_whole(self, tensor: str, layout: Layout) -> bool:
        """Whether the tensor has no more elements than are read: a slice or a Gather may have taken some of them."""
        view, shape = self.scope.view, self.scope.shape(tensor)
        if shape is None or len(shape) != len(layout):
            return False
        return all(view.same(dim, size_of(axis)) for dim, axis in zip(shape, layout, strict=True))

    def _diagonal(self, value: Value) -> Diagonals | None:
        """``i - j + c >= 0`` or ``j - i + c >= 0``, where rows and keys are one axis each."""
        if len(self._rows) != 1 or len(self._keys) != 1:
            return None
        row, key = (symbolic.symbol(self._symbols[id(atoms[0])]) for atoms in (self._rows, self._keys))
        for upper in (True, False):
            step = symbolic.add(row, symbolic.mul(key, -1)) if upper else symbolic.add(key, symbolic.mul(row, -1))
            rest = symbolic.add(value, symbolic.mul(step, -1))
            if not self._depends_on_index(rest):
                return Diagonals(upper=rest) if upper else Diagonals(lower=rest)
        return None

    def _depends_on_index(self, value: Value) -> bool:
        return isinstance(value, Expr) and any("@" in name for name in value.symbols())

    def _length(self, part: AtLeastZero) -> Lengths | None:
        """``length[b] - 1 - j >= 0``."""
        if len(self._keys) != 1 or not isinstance(part.value, Expr):
            return None
        key = symbolic.symbol(self._symbols[id(self._keys[0])])
        length = symbolic.add(part.value, symbolic.add(key, 1))
        if not isinstance(length, Expr) or len(length.terms) != 1:
            return None
        [(monomial, coefficient)] = length.terms.items()
        if coefficient != 1 or len(monomial) != 1 or "[" not in monomial[0][0]:
            return None
        tensor, _, inside = monomial[0][0].rpartition("[")
        places = [place for place in inside.rstrip("]").split(",") if place]
        by_name = {self._symbols[id(atom)]: atom for atom in self._atoms}
        axes: list[Axis] = []
        for place in places:
            if place == "0":
                axes.append(())
            elif place in by_name and by_name[place] not in (*self._rows, *self._keys):
                axes.append((by_name[place],))
            else:
                return None
        return Lengths(tensor, tuple(axes), part.origin) if self._is_whole(tensor, tuple(axes)) else None

    # ------------------------------------------------------------------------------------------------------- structure

    def window(self, diagonals: Sequence[Diagonals]) -> Window | None:
        """Diagonals as is_causal and a window round one alignment; ``None`` where they don't fit one."""
        self._number_atoms()
        if len(self._rows) != 1 or len(self._keys) != 1:
            return None
        resolve = self.scope.view.resolve
        rows, keys = resolve(self._rows[0].size), resolve(self._keys[0].size)
        offsets: tuple[tuple[Alignment, Value], ...] = (
            ("top_left", 0),
            ("bottom_right", symbolic.add(keys, symbolic.mul(rows, -1))),
        )
        for alignment, offset in offsets:
            uppers = [
                resolve(symbolic.add(d.upper, symbolic.mul(offset, -1))) for d in diagonals if d.upper is not None
            ]
            lowers = [resolve(symbolic.add(d.lower, offset)) for d in diagonals if d.lower is not None]
            if all(isinstance(bound, int) and bound >= 0 for bound in (*uppers, *lowers)):
                right = min((int(bound) for bound in uppers if isinstance(bound, int)), default=-1)
                left = min((int(bound) for bound in lowers if isinstance(bound, int)), default=-1)
                return Window(right == 0, alignment, left, -1 if right == 0 else right)
        return None

    def sizes(self) -> tuple[Value, Value]:
        """How many rows and keys there are."""
        resolve = self.scope.view.resolve
        return resolve(size_of(self._rows)), resolve(size_of(self._keys))

    def every_row_sees_a_key(self, window: Window) -> bool:
        """Whether no row is masked throughout by these diagonals."""
        resolve = self.scope.view.resolve
        spare = resolve(symbolic.add(self._keys[0].size, symbolic.mul(self._rows[0].size, -1)))
        if window.alignment == "bottom_right":
            return self.reader.always_nonnegative(spare)
        return window.left < 0 or self.reader.always_nonnegative(spare)
