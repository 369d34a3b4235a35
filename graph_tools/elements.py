"""One element of a tensor as an expression of its index: what masks say about row ``i`` and key ``j``.

``Where(LessOrEqual(Unsqueeze(Range(T), 0), Unsqueeze(Range(S), 1)), 0, -inf)`` at index ``(i, j)`` is ``0 if i - j >= 0
else -inf``. Every operator that mask arithmetic is made of is followed exactly; where it ends (a graph input, an
operator without a rule), the element stays a named unknown, ``attention_mask[b, j]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from onnx import TensorProto

from . import symbolic
from .const_eval import axes_of, fill_of, is_float, is_integer, scalar, slice_bounds
from .graph_view import NodeView, Scope
from .symbolic import Expr, Value

MAX_DEPTH = 64
MAX_TABLE = 1 << 26
"""Elements of a constant that is looked at for a band."""

Index = tuple[Value, ...]


@dataclass(frozen=True)
class Number:
    """A number, maybe of indices and dimensions."""

    value: Value


@dataclass(frozen=True)
class Choice:
    """``yes`` where the condition holds, else ``no``."""

    condition: Condition
    yes: Element
    no: Element


@dataclass(frozen=True)
class Absolute:
    """The absolute value of an expression."""

    value: Value


@dataclass(frozen=True)
class Unknown:
    """An element that nothing more is known of."""

    tensor: str
    index: Index


Element: TypeAlias = "Number | Choice | Absolute | Unknown"


@dataclass(frozen=True)
class Truth:
    """Always or never."""

    value: bool


@dataclass(frozen=True)
class AtLeastZero:
    """``value >= 0``, an integer expression of indices and dimensions."""

    value: Value
    origin: Holds | None = field(default=None, compare=False)
    """The bool tensor of the graph that says so, where there is one."""


@dataclass(frozen=True)
class Holds:
    """An element of a bool tensor is True, or of a number tensor isn't 0."""

    tensor: str
    index: Index


@dataclass(frozen=True)
class Negation:
    """The part doesn't hold."""

    part: Holds


@dataclass(frozen=True)
class Both:
    """All parts hold."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Either:
    """At least one part holds."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = "Truth | AtLeastZero | Holds | Negation | Both | Either"


def negated(condition: Condition) -> Condition:
    """The opposite, with the negation moved down to the leaves."""
    if isinstance(condition, Truth):
        return Truth(not condition.value)
    if isinstance(condition, AtLeastZero):
        return AtLeastZero(symbolic.add(symbolic.mul(condition.value, -1), -1))
    if isinstance(condition, Holds):
        return Negation(condition)
    if isinstance(condition, Negation):
        return condition.part
    parts = tuple(negated(part) for part in condition.parts)
    return either(parts) if isinstance(condition, Both) else both(parts)


def both(parts: Sequence[Condition]) -> Condition:
    """The conjunction, simplified."""
    flat: list[Condition] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Both) else (part,))
    if any(isinstance(part, Truth) and not part.value for part in flat):
        return Truth(False)
    kept = tuple(dict.fromkeys(part for part in flat if not isinstance(part, Truth)))
    return Truth(True) if not kept else kept[0] if len(kept) == 1 else Both(kept)


def either(parts: Sequence[Condition]) -> Condition:
    """The disjunction, simplified."""
    flat: list[Condition] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Either) else (part,))
    if any(isinstance(part, Truth) and part.value for part in flat):
        return Truth(True)
    kept = tuple(dict.fromkeys(part for part in flat if not isinstance(part, Truth)))
    return Truth(False) if not kept else kept[0] if len(kept) == 1 else Either(kept)


@dataclass
class Reader:
    """Looks elements up in one scope. ``extents`` gives each index symbol its range: it runs from 0 up to, not with."""

    scope: Scope
    extents: Mapping[str, Value]
    _known: dict[tuple[str, Index], Element] = field(default_factory=dict)
    _filled: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Note the symbols that are an index's range, and so at least 1."""
        extents = [self.scope.view.resolve(extent) for extent in self.extents.values()]
        single = [extent for extent in extents if isinstance(extent, Expr) and len(extent.terms) == 1]
        self._filled = frozenset(name for extent in single for name in extent.symbols())

    # ------------------------------------------------------------------------------------------------- arithmetic

    def always_nonnegative(self, value: Value) -> bool:
        """Whether ``value >= 0`` for every index in its range and every dimension."""
        value = self.scope.view.resolve(value)
        if isinstance(value, Expr) and any("[" in name for name in value.symbols()):
            return False  # an unknown element of some tensor, which may be negative
        for name, extent in self.extents.items():
            if not isinstance(value, Expr) or name not in value.symbols():
                continue
            coefficients = [c for monomial, c in value.terms.items() if any(symbol == name for symbol, _ in monomial)]
            linear = all(dict(monomial).get(name, 0) in (0, 1) for monomial in value.terms)
            if not linear or (min(coefficients) < 0 < max(coefficients)):
                return False
            extreme: Value = 0 if min(coefficients) > 0 else symbolic.add(extent, -1)
            value = symbolic.substitute(value, {name: extreme}.get)
            value = self.scope.view.resolve(value)
        # An axis that an index runs over has at least one element; any other dimension may be 0 (an empty cache).
        raised = {name: symbolic.add(symbolic.symbol(name), 1) for name in self._filled}
        value = symbolic.substitute(value, raised.get)
        return symbolic.is_nonnegative(value)

    def at_least_zero(self, value: Value) -> Condition:
        """The condition ``value >= 0``, decided where it can be."""
        value = self.scope.view.resolve(value)
        if self.always_nonnegative(value):
            return Truth(True)
        if self.always_nonnegative(symbolic.add(symbolic.mul(value, -1), -1)):
            return Truth(False)
        return AtLeastZero(value)

    # ---------------------------------------------------------------------------------------------------- elements

    def condition(self, name: str, index: Index, depth: int = 0) -> Condition:
        """Whether an element of a tensor is True (or not 0)."""
        return self.as_condition(self.element(name, index, depth), name, index)

    def as_condition(self, element: Element, name: str, index: Index) -> Condition:
        """An element read as a truth value; ``name`` and ``index`` say where it stands."""
        if isinstance(element, Number):
            if isinstance(element.value, Expr):
                return Holds(name, index)
            return Truth(bool(element.value))
        if isinstance(element, Choice):
            yes = self.as_condition(element.yes, name, index)
            no = self.as_condition(element.no, name, index)
            return either((both((element.condition, yes)), both((negated(element.condition), no))))
        if isinstance(element, Unknown):
            return Holds(element.tensor, element.index)
        return Holds(name, index)

    def element(self, name: str, index: Index, depth: int = 0) -> Element:
        """The element of ``name`` at ``index``."""
        key = (name, index)
        if key not in self._known:
            self._known[key] = self._element(name, index, depth)
        return self._known[key]

    def _element(self, name: str, index: Index, depth: int) -> Element:
        fact = self.scope.fact(name)
        shape = self.scope.shape(name)
        if shape is None or len(shape) != len(index) or depth > MAX_DEPTH:
            return Unknown(name, index)
        index = tuple(0 if dim == 1 else entry for dim, entry in zip(shape, index, strict=False))
        if fact.value is not None and all(isinstance(entry, int) for entry in index):
            item = fact.value.item(*(entry for entry in index if isinstance(entry, int)))
            if isinstance(item, (bool, np.bool_)):
                return Number(int(item))
            if isinstance(item, (int, float, Expr)):
                return Number(item)
        producer = self.scope.producer(name)
        if producer is None or producer.is_op("Constant"):
            table = self.scope.constant(name)
            return Unknown(name, index) if table is None else self._table(name, table, index)
        rule = _RULES.get(producer.op) if not producer.domain else None
        try:
            found = None if rule is None else rule(self, producer, index, depth + 1)
        except (IndexError, ValueError, TypeError):  # a node with too few inputs, or of impossible shapes
            found = None
        return Unknown(name, index) if found is None else found

    def _table(self, name: str, table: np.ndarray, index: Index) -> Element:
        """A constant: a number where the index is known or all elements agree, a band of a matrix, or unknown."""
        if table.size == 0 or table.size > MAX_TABLE or table.dtype.kind not in "biuf":
            return Unknown(name, index)
        fixed = tuple(entry if isinstance(entry, int) else slice(None) for entry in index)
        rest = table[fixed]
        free = [entry for entry in index if not isinstance(entry, int)]
        first = rest.ravel()[0]
        if (rest == first).all():
            return _number(first)
        if rest.ndim != 2:
            return Unknown(name, index)
        for value in (first, rest[-1, 0], rest[0, -1]):
            inside = rest == value
            band = _band(inside)
            if band is None:
                continue
            others = rest[~inside]
            if (others == others[0]).all():
                lower, upper = band
                step = symbolic.add(free[1], symbolic.mul(free[0], -1))
                parts = []
                if lower is not None:
                    parts.append(self.at_least_zero(symbolic.add(step, -lower)))
                if upper is not None:
                    parts.append(self.at_least_zero(symbolic.add(upper, symbolic.mul(step, -1))))
                return choice(both(parts), _number(value), _number(others[0]))
        return Unknown(name, index)

    def inputs(self, node: NodeView, index: Index, depth: int) -> list[Element] | None:
        """The elements of the operands of an elementwise node."""
        elements = []
        for name in node.inputs:
            shape = self.scope.shape(name)
            if shape is None or len(shape) > len(index):
                return None
            elements.append(self.element(name, index[len(index) - len(shape) :], depth))
        return elements


def _number(value: np.generic) -> Number:
    item = value.item()
    return Number(int(item) if isinstance(item, bool) else item)


def _band(inside: np.ndarray) -> tuple[int | None, int | None] | None:
    """``(lower, upper)`` where ``inside`` is exactly ``lower <= column - row <= upper``; ``None`` for an open side."""
    rows, columns = np.nonzero(inside)
    if rows.size == 0:
        return None
    steps = columns - rows
    lower, upper = int(steps.min()), int(steps.max())
    all_steps = np.arange(inside.shape[1])[None, :] - np.arange(inside.shape[0])[:, None]
    if int(((all_steps >= lower) & (all_steps <= upper)).sum()) != rows.size:
        return None
    return (
        None if lower <= -(inside.shape[0] - 1) else lower,
        None if upper >= inside.shape[1] - 1 else upper,
    )


def choice(condition: Condition, yes: Element, no: Element) -> Element:
    """A Choice, decided where it can be."""
    if isinstance(condition, Truth):
        return yes if condition.value else no
    return yes if yes == no else Choice(condition, yes, no)


# ------------------------------------------------------------------------------------------------------------- rules

Rule = Callable[[Reader, NodeView, Index, int], "Element | None"]


def _combine(a: Element, b: Element, function: Callable[[Value, Value], Value | None]) -> Element | None:
    """``function`` of two elements, choices carried outwards."""
    if isinstance(a, Choice):
        yes, no = _combine(a.yes, b, function), _combine(a.no, b, function)
        return None if yes is None or no is None else choice(a.condition, yes, no)
    if isinstance(b, Choice):
        yes, no = _combine(a, b.yes, function), _combine(a, b.no, function)
        return None if yes is None or no is None else choice(b.condition, yes, no)
    left, right = _plain(a), _plain(b)
    if left is None or right is None:
        return None
    result = function(left, right)
    if result is None or (isinstance(result, float) and math.isnan(result)):
        return None
    return Number(result)


def _plain(element: Element) -> Value | None:
    """An element as a value; an unknown one as a symbol of its own."""
    if isinstance(element, Number):
        return element.value
    if isinstance(element, Unknown):
        return symbolic.symbol(unknown_symbol(element))
    return None


def unknown_symbol(element: Unknown) -> str:
    """The symbol that stands for an unknown element in arithmetic."""
    return f"{element.tensor}[{','.join(symbolic.to_text(entry) for entry in element.index)}]"


def _arithmetic(function: Callable[[Value, Value], Value | None]) -> Rule:
    def rule(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
        elements = reader.inputs(node, index, depth)
        if elements is None or len(elements) != 2:
            return None
        if any(isinstance(item, Unknown) and is_float(reader.scope.elem_type(item.tensor)) for item in elements):
            return None
        return _combine(elements[0], elements[1], function)

    return rule


def _product(a: Value, b: Value) -> Value | None:
    infinite = [item for item in (a, b) if isinstance(item, float) and math.isinf(item)]
    if infinite and (isinstance(a, Expr) or isinstance(b, Expr)):
        return None
    return symbolic.mul(a, b)


def _sum(a: Value, b: Value) -> Value | None:
    infinite = [item for item in (a, b) if isinstance(item, float) and math.isinf(item)]
    if infinite and (isinstance(a, Expr) or isinstance(b, Expr)):
        return None
    return symbolic.add(a, b)


def _negate(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    return _combine(reader.element(node.input(0), index, depth), Number(-1), _product)


def _absolute(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    element = reader.element(node.input(0), index, depth)
    if isinstance(element, Number):
        return Absolute(element.value) if isinstance(element.value, Expr) else Number(abs(element.value))
    return None


def _comparison(kind: str) -> Rule:
    def compare(reader: Reader, a: Element, b: Element) -> Condition | None:
        if isinstance(a, Choice):
            yes, no = compare(reader, a.yes, b), compare(reader, a.no, b)
            return None if yes is None or no is None else _branch(a.condition, yes, no)
        if isinstance(b, Choice):
            yes, no = compare(reader, a, b.yes), compare(reader, a, b.no)
            return None if yes is None or no is None else _branch(b.condition, yes, no)
        if isinstance(a, Absolute) and isinstance(b, Number):
            return _absolute_comparison(reader, a.value, kind, b.value)
        if isinstance(b, Absolute) and isinstance(a, Number):
            mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}[kind]
            return _absolute_comparison(reader, b.value, mirrored, a.value)
        left, right = _plain(a), _plain(b)
        if left is None or right is None:
            return None
        return _ordered(reader, left, kind, right)

    def rule(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
        elements = reader.inputs(node, index, depth)
        if elements is None:
            return None
        floats = any(is_float(reader.scope.elem_type(name)) for name in node.inputs)
        if any(isinstance(item, Unknown) for item in elements) and floats:
            return None
        condition = compare(reader, elements[0], elements[1])
        return None if condition is None else choice(condition, Number(1), Number(0))

    return rule


def _branch(condition: Condition, yes: Condition, no: Condition) -> Condition:
    return either((both((condition, yes)), both((negated(condition), no))))


def _ordered(reader: Reader, left: Value, kind: str, right: Value) -> Condition | None:
    if not isinstance(left, Expr) and not isinstance(right, Expr):
        decided = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right, "==": left == right}
        return Truth(bool(decided[kind]))
    difference = symbolic.add(right, symbolic.mul(left, -1))
    if isinstance(difference, Expr) and any(not float(c).is_integer() for c in difference.terms.values()):
        return None
    opposite = symbolic.mul(difference, -1)
    if kind == "<=":
        return reader.at_least_zero(difference)
    if kind == "<":
        return reader.at_least_zero(symbolic.add(difference, -1))
    if kind == ">=":
        return reader.at_least_zero(opposite)
    if kind == ">":
        return reader.at_least_zero(symbolic.add(opposite, -1))
    return both((reader.at_least_zero(difference), reader.at_least_zero(opposite)))


def _absolute_comparison(reader: Reader, value: Value, kind: str, bound: Value) -> Condition | None:
    """``|value| <= bound`` and its kin."""
    minus = symbolic.mul(value, -1)
    if kind in ("<=", "<"):
        parts = [_ordered(reader, value, kind, bound), _ordered(reader, minus, kind, bound)]
        return None if None in parts else both([part for part in parts if part is not None])
    if kind in (">=", ">"):
        parts = [_ordered(reader, value, kind, bound), _ordered(reader, minus, kind, bound)]
        return None if None in parts else either([part for part in parts if part is not None])
    return None


def _logic(combine: Callable[[Sequence[Condition]], Condition]) -> Rule:
    def rule(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
        parts = []
        for name in node.inputs:
            shape = reader.scope.shape(name)
            if shape is None or len(shape) > len(index):
                return None
            part = reader.condition(name, index[len(index) - len(shape) :], depth)
            parts.append(_named(reader, part, name, index[len(index) - len(shape) :]))
        return choice(combine(parts), Number(1), Number(0))

    return rule


def _named(reader: Reader, condition: Condition, name: str, index: Index) -> Condition:
    """A part of a conjunction with the graph's own tensor for it: that is at hand where the part can't be proved."""
    if reader.scope.elem_type(name) != TensorProto.BOOL:
        return condition
    shape = reader.scope.shape(name) or ()
    here = Holds(name, tuple(0 if dim == 1 else entry for dim, entry in zip(shape, index, strict=False)))
    if isinstance(condition, AtLeastZero) and condition.origin is None:
        return AtLeastZero(condition.value, here)
    return here if isinstance(condition, Either) else condition


def _not(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    condition = reader.condition(node.input(0), index, depth)
    return choice(negated(condition), Number(1), Number(0))


def _where(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    shapes = [reader.scope.shape(name) for name in node.inputs]
    if any(shape is None or len(shape) > len(index) for shape in shapes):
        return None
    places = [index[len(index) - len(shape) :] for shape in shapes if shape is not None]
    condition = reader.condition(node.input(0), places[0], depth)
    yes, no = (reader.element(node.input(i), places[i], depth) for i in (1, 2))
    test = reader.scope.producer(node.input(0))
    if test is not None and test.is_op("Cast") and test.input(0) == node.input(2):
        no = Number(0)  # Where(x != 0, fill, x): what is left of x is 0
    return choice(condition, yes, no)


def _cast(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    element = reader.element(node.input(0), index, depth)
    target = node.int_attribute("to")
    source = reader.scope.elem_type(node.input(0))
    if target == TensorProto.BOOL:
        condition = reader.as_condition(element, node.input(0), index)
        if isinstance(condition, Holds) and condition.tensor == node.input(0):
            return None  # the bool tensor itself is the better name
        return choice(condition, Number(1), Number(0))
    if source == TensorProto.BOOL or (is_integer(source) and target is not None):
        return element
    if is_float(source) and is_float(target or 0):
        return element if not isinstance(element, Unknown) else None
    return None


def _same(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    return reader.element(node.input(0), index, depth)


def _unsqueeze(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    axes = axes_of(node, [reader.scope.fact(name) for name in node.inputs])
    if axes is None:
        return None
    new = {axis % len(index) for axis in axes}
    return reader.element(node.input(0), tuple(e for axis, e in enumerate(index) if axis not in new), depth)


def _squeeze(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    axes, shape = axes_of(node, [reader.scope.fact(name) for name in node.inputs]), reader.scope.shape(node.input(0))
    if shape is None:
        return None
    gone = {axis for axis, dim in enumerate(shape) if dim == 1} if axes is None else {a % len(shape) for a in axes}
    if len(shape) - len(gone) != len(index):
        return None
    entries = iter(index)
    return reader.element(node.input(0), tuple(0 if a in gone else next(entries) for a in range(len(shape))), depth)


def _transpose(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    perm = node.ints_attribute("perm") or list(range(len(index)))[::-1]
    source: list[Value] = [0] * len(index)
    for position, axis in enumerate(perm):
        source[axis] = index[position]
    return reader.element(node.input(0), tuple(source), depth)


def _expand(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    shape = reader.scope.shape(node.input(0))
    if shape is None or len(shape) > len(index):
        return None
    return reader.element(node.input(0), index[len(index) - len(shape) :], depth)


def _reshape(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    source, target = reader.scope.shape(node.input(0)), reader.scope.shape(node.output)
    if source is None or target is None:
        return None
    moved = reindexed(reader, index, target, source)
    return None if moved is None else reader.element(node.input(0), moved, depth)


def reindexed(reader: Reader, index: Index, target: Sequence[Value], source: Sequence[Value]) -> Index | None:
    """The index into the source of a Reshape, from the one into its result."""
    resolve = reader.scope.view.resolve
    result: list[Value] = []
    to, at = 0, 0
    while at < len(source) or to < len(target):
        if at < len(source) and source[at] == 1:
            result.append(0)
            at += 1
            continue
        if to < len(target) and target[to] == 1:
            to += 1
            continue
        if at == len(source) or to == len(target):
            return None
        left, right = resolve(source[at]), resolve(target[to])
        linear, at_end, to_end = index[to], at + 1, to + 1
        while left != right:
            if symbolic.divide_exactly(left, right) is not None and to_end < len(target):
                right = symbolic.mul(right, resolve(target[to_end]))
                linear = symbolic.add(symbolic.mul(linear, resolve(target[to_end])), index[to_end])
                to_end += 1
            elif at_end < len(source):
                left = symbolic.mul(left, resolve(source[at_end]))
                at_end += 1
            else:
                return None
        split = _digits(reader, linear, [resolve(dim) for dim in source[at:at_end]])
        if split is None:
            return None
        result.extend(split)
        at, to = at_end, to_end
    return tuple(result)


def _digits(reader: Reader, linear: Value, sizes: Sequence[Value]) -> list[Value] | None:
    """``linear`` as an index of several axes of these sizes."""
    digits: list[Value] = []
    for size in reversed(sizes[1:]):
        if isinstance(linear, int) and isinstance(size, int):
            digits.append(linear % size)
            linear = symbolic.floor_divide(linear, size)
            continue
        quotient: Value = 0
        rest: Value = 0
        for monomial, coefficient in (linear.terms if isinstance(linear, Expr) else {(): linear}).items():
            term = Expr({monomial: coefficient}) if monomial else coefficient
            exact = symbolic.divide_exactly(term, size)
            if exact is not None and term != 0:
                quotient = symbolic.add(quotient, exact)
            else:
                rest = symbolic.add(rest, term)
        room = symbolic.add(symbolic.add(size, -1), symbolic.mul(rest, -1))
        if not reader.always_nonnegative(rest) or not reader.always_nonnegative(room):
            return None
        digits.append(rest)
        linear = quotient
    return [linear, *reversed(digits)]


def _slice(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    bounds = slice_bounds(node, [reader.scope.fact(name) for name in node.inputs])
    shape = reader.scope.shape(node.input(0))
    if bounds is None or shape is None:
        return None
    moved = list(index)
    for axis, start, _, step in bounds:
        axis %= len(index)
        if step != 1:
            return None
        if isinstance(start, int) and start < 0:
            start = symbolic.add(shape[axis], start)
        if not reader.always_nonnegative(start):
            return None
        moved[axis] = symbolic.add(moved[axis], start)
    return reader.element(node.input(0), tuple(moved), depth)


def _gather(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    axis, rank = node.int_attribute("axis", 0), reader.scope.rank(node.input(1))
    shape = reader.scope.shape(node.input(0))
    if axis is None or rank is None or shape is None:
        return None
    axis %= len(shape)
    picked = reader.element(node.input(1), index[axis : axis + rank], depth)
    if not isinstance(picked, Number) or isinstance(picked.value, float):
        return None
    place: Value = picked.value
    if isinstance(place, int) and place < 0:
        place = symbolic.add(shape[axis], place)
    if not reader.always_nonnegative(place):
        return None
    return reader.element(node.input(0), (*index[:axis], place, *index[axis + rank :]), depth)


def _gather_nd(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    batch, indices = node.int_attribute("batch_dims", 0), reader.scope.shape(node.input(1))
    if batch != 0 or indices is None or not isinstance(indices[-1], int):
        return None
    outer = index[: len(indices) - 1]
    places: list[Value] = []
    for position in range(indices[-1]):
        picked = reader.element(node.input(1), (*outer, position), depth)
        if not isinstance(picked, Number) or not reader.always_nonnegative(picked.value):
            return None
        places.append(picked.value)
    return reader.element(node.input(0), (*places, *index[len(indices) - 1 :]), depth)


def _concat(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    axis = node.int_attribute("axis")
    if axis is None:
        return None
    axis %= len(index)
    if len(node.inputs) == 1:
        return reader.element(node.input(0), index, depth)
    place = index[axis]
    for name in node.inputs:
        shape = reader.scope.shape(name)
        size = None if shape is None else shape[axis]
        if not isinstance(place, int) or not isinstance(size, int):
            return None
        if place < size:
            return reader.element(name, (*index[:axis], place, *index[axis + 1 :]), depth)
        place -= size
    return None


def _range(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    start, step = (scalar(reader.scope.fact(node.input(position))) for position in (0, 2))
    if start is None or step is None:
        return None
    return Number(symbolic.add(start, symbolic.mul(index[0], step)))


def _constant_of_shape(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    fill = fill_of(node)
    return None if fill is None else Number(int(fill) if isinstance(fill, bool) else fill)


def _trilu(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    """The part of a matrix on and above (or below) its k-th diagonal; 0 elsewhere."""
    offset = 0 if not node.input(1) else scalar(reader.scope.fact(node.input(1)))
    upper = node.int_attribute("upper", 1)
    if offset is None or isinstance(offset, float) or upper is None:
        return None
    step = symbolic.add(symbolic.add(index[-1], symbolic.mul(index[-2], -1)), symbolic.mul(offset, -1))
    inside = reader.at_least_zero(step if upper else symbolic.mul(step, -1))
    return choice(inside, reader.element(node.input(0), index, depth), Number(0))


def _flatten(reader: Reader, node: NodeView, index: Index, depth: int) -> Element | None:
    return _reshape(reader, node, index, depth)


_RULES: dict[str, Rule] = {
    "Add": _arithmetic(_sum),
    "Sub": _arithmetic(lambda a, b: _sum(a, symbolic.mul(b, -1))),
    "Mul": _arithmetic(_product),
    "Neg": _negate,
    "Abs": _absolute,
    "Less": _comparison("<"),
    "LessOrEqual": _comparison("<="),
    "Greater": _comparison(">"),
    "GreaterOrEqual": _comparison(">="),
    "Equal": _comparison("=="),
    "And": _logic(both),
    "Or": _logic(either),
    "Not": _not,
    "Where": _where,
    "Cast": _cast,
    "Identity": _same,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Slice": _slice,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Concat": _concat,
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "Trilu": _trilu,
}
