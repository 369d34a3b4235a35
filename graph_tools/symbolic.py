"""Arithmetic on dimensions: polynomials over named symbols, as small as shape computations need them.

A dimension is an ``int`` where it is known and an :class:`Expr` where it isn't. Two dimensions that were computed on
different paths through a graph (``Shape -> Gather -> Mul`` here, ``Reshape`` with ``-1`` there) compare equal when
their polynomials do. Operations that a polynomial can't hold (a division with a remainder, a maximum) become new
symbols named after their operands, so equal computations still give equal symbols.

The same expressions carry the scales that exporters compute from shapes: ``Sqrt(D)`` is the monomial ``D^(1/2)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TypeAlias

Monomial = tuple[tuple[str, int | Fraction], ...]
"""Symbols and their exponents, sorted by symbol; ``()`` is the constant term."""

Number: TypeAlias = "int | float"
Value: TypeAlias = "int | float | Expr"
"""A number, or what stands for one."""


class Expr:
    """A polynomial ``sum(coefficient * product(symbol ** exponent))`` that isn't a plain number. Immutable."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: dict[Monomial, Number]) -> None:
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms

    def __repr__(self) -> str:
        return to_text(self)

    def __add__(self, other: Value) -> Value:
        return add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Value) -> Value:
        return add(self, mul(other, -1))

    def __rsub__(self, other: Value) -> Value:
        return add(other, mul(self, -1))

    def __mul__(self, other: Value) -> Value:
        return mul(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Value:
        return mul(self, -1)

    def symbols(self) -> set[str]:
        """Every symbol that occurs."""
        return {name for monomial in self.terms for name, _ in monomial}


def symbol(name: str) -> Expr:
    """The expression that is just ``name``, taken to be a dimension: an integer that isn't negative."""
    return Expr({((name, 1),): 1})


def _make(terms: dict[Monomial, Number]) -> Value:
    terms = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient != 0}
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    return Expr(terms)


def _terms(value: Value) -> dict[Monomial, Number]:
    return value.terms if isinstance(value, Expr) else {(): value}


def _times(a: Monomial, b: Monomial, sign: int = 1) -> Monomial:
    exponents = dict(a)
    for name, exponent in b:
        exponents[name] = exponents.get(name, 0) + sign * exponent
    return tuple(sorted((name, exponent) for name, exponent in exponents.items() if exponent != 0))


def add(a: Value, b: Value) -> Value:
    """``a + b``."""
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        return a + b
    terms = dict(_terms(a))
    for monomial, coefficient in _terms(b).items():
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return _make(terms)


def mul(a: Value, b: Value) -> Value:
    """``a * b``."""
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        return a * b
    terms: dict[Monomial, Number] = {}
    for left, x in _terms(a).items():
        for right, y in _terms(b).items():
            monomial = _times(left, right)
            terms[monomial] = terms.get(monomial, 0) + x * y
    return _make(terms)


def product(values: Iterable[Value]) -> Value:
    """The product of all; 1 of none."""
    result: Value = 1
    for value in values:
        result = mul(result, value)
    return result


def divide_exactly(a: Value, b: Value) -> Value | None:
    """``a / b`` where ``b`` divides ``a`` as a polynomial over the integers, otherwise ``None``.

    A symbol in ``b`` is taken to be nonzero, as a dimension that is divided by has to be.
    """
    if b == 0:
        return None
    if a == b:
        return 1
    if not isinstance(b, Expr):
        quotient: dict[Monomial, Number] = {}
        for monomial, coefficient in _terms(a).items():
            if not isinstance(coefficient, int) or not isinstance(b, int) or coefficient % b:
                return None
            quotient[monomial] = coefficient // b
        return _make(quotient)
    if a == 0:
        return 0
    remainder: Value = a
    result: Value = 0
    lead, lead_coefficient = max(_terms(b).items(), key=lambda item: _order(item[0]))
    for _ in range(16):  # a quotient of more terms than this does not occur in shapes
        top, coefficient = max(_terms(remainder).items(), key=lambda item: _order(item[0]))
        monomial = _times(top, lead, -1)
        if any(exponent < 0 for _, exponent in monomial):
            return None
        if not isinstance(coefficient, int) or not isinstance(lead_coefficient, int) or coefficient % lead_coefficient:
            return None
        step = _make({monomial: coefficient // lead_coefficient})
        result = add(result, step)
        remainder = add(remainder, mul(mul(step, b), -1))
        if remainder == 0:
            return result
    return None


def _order(monomial: Monomial) -> tuple[float, list[tuple[str, float]]]:
    return float(sum(exponent for _, exponent in monomial)), [(name, float(exponent)) for name, exponent in monomial]


_SIGNED = ("min(", "at(", "int(")
"""Operations whose result may be negative."""


def opaque(operation: str, *operands: Value) -> Expr:
    """A new symbol for an operation that a polynomial can't express; equal operands give the same symbol."""
    return symbol(f"{operation}({','.join(to_text(operand) for operand in operands)})")


_FLOORS: dict[str, tuple[Value, int]] = {}
"""What a symbol made by :func:`floor_divide` stands for: numerator and divisor."""


def floor_divide(a: Value, b: Value) -> Value:
    """``a // b``, exact where it can be.

    Divisions by a number are brought to one form, so that a chain of strided convolutions and the exporter's own
    arithmetic agree: ``floor((a + k b) / b) = floor(a / b) + k`` and ``floor((floor(x / a) + c) / b) =
    floor((x + a c) / (a b))``.
    """
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a // b if b else opaque("floor", a, b)
    exact = divide_exactly(a, b)
    if exact is not None:
        return exact
    if not isinstance(b, int) or b <= 0 or any(not isinstance(item, int) for item in _terms(a).values()):
        return opaque("floor", a, b)
    outside: Value = 0
    inside: Value = 0
    for monomial, coefficient in _terms(a).items():
        quotient, rest = divmod(int(coefficient), b)
        outside = add(outside, _make({monomial: quotient}))
        inside = add(inside, _make({monomial: rest}))
    nested = _nested_floor(inside)
    if nested is not None:
        numerator, divisor = nested
        return add(outside, floor_divide(numerator, divisor * b))
    if not isinstance(inside, Expr):
        return outside
    floor = opaque("floor", inside, b)
    _FLOORS[next(iter(floor.symbols()))] = (inside, b)
    return add(outside, floor)


def _nested_floor(value: Value) -> tuple[Value, int] | None:
    """``floor(x / a) + c`` as ``(x + a c, a)``."""
    if not isinstance(value, Expr):
        return None
    rest = {monomial: coefficient for monomial, coefficient in value.terms.items() if monomial != ()}
    if len(rest) != 1:
        return None
    [(monomial, coefficient)] = rest.items()
    if coefficient != 1 or len(monomial) != 1 or monomial[0][1] != 1 or monomial[0][0] not in _FLOORS:
        return None
    numerator, divisor = _FLOORS[monomial[0][0]]
    return add(numerator, value.terms.get((), 0) * divisor), divisor


def modulo(a: Value, b: Value) -> Value:
    """``a % b`` for a positive ``b``."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a % b if b else opaque("mod", a, b)
    return 0 if divide_exactly(a, b) is not None else opaque("mod", a, b)


def real_divide(a: Value, b: Value) -> Value | None:
    """``a / b`` of real numbers; ``None`` where ``b`` is zero or a sum."""
    if not isinstance(b, Expr):
        return mul(a, 1.0 / b) if b else None
    if len(b.terms) != 1:
        return None
    [(monomial, coefficient)] = b.terms.items()
    inverse = tuple((name, -exponent) for name, exponent in monomial)
    return mul(a, _make({inverse: 1.0 / coefficient}))


def power(a: Value, exponent: float | Fraction) -> Value | None:
    """``a ** exponent`` for a number or a single monomial with a coefficient that isn't negative."""
    if not isinstance(a, Expr):
        if (a < 0 and not float(exponent).is_integer()) or (a == 0 and exponent < 0):
            return None
        return float(float(a) ** float(exponent))
    if len(a.terms) != 1:
        return None
    [(monomial, coefficient)] = a.terms.items()
    if coefficient < 0:
        return None
    rational = Fraction(exponent).limit_denominator(64)
    if rational != exponent:
        return None
    raised: Monomial = tuple((name, _plain(Fraction(old) * rational)) for name, old in monomial)
    return _make({raised: float(coefficient) ** float(exponent)})


def _plain(value: Fraction) -> int | Fraction:
    return int(value) if value.denominator == 1 else value


def whole(operation: str, value: Value) -> Value:
    """``value`` as an integer: itself where it provably is one, else a symbol for ``operation`` (floor, ceil, int)."""
    if not isinstance(value, Expr):
        return {"floor": math.floor, "ceil": math.ceil}.get(operation, int)(value)
    integral = all(
        float(coefficient).is_integer() and all(isinstance(exponent, int) and exponent > 0 for _, exponent in monomial)
        for monomial, coefficient in value.terms.items()
    )
    if not integral:
        return opaque(operation, value)
    return _make({monomial: int(coefficient) for monomial, coefficient in value.terms.items()})


def is_nonnegative(value: Value) -> bool:
    """Whether ``value`` is provably at least 0, every symbol being a dimension (or made of such)."""
    return all(
        coefficient >= 0 and not any(name.startswith(_SIGNED) for name, _ in monomial)
        for monomial, coefficient in _terms(value).items()
    )


def less_equal(a: Value, b: Value) -> bool | None:
    """Whether ``a <= b`` for all dimensions, ``None`` where that depends on them."""
    if is_nonnegative(add(b, mul(a, -1))):
        return True
    if is_nonnegative(add(a, add(mul(b, -1), -1))):
        return False
    return None


def maximum(a: Value, b: Value) -> Value:
    """``max(a, b)``."""
    order = less_equal(a, b)
    if order is None:
        return opaque("max", *sorted((a, b), key=to_text))
    return b if order else a


def minimum(a: Value, b: Value) -> Value:
    """``min(a, b)``."""
    order = less_equal(a, b)
    if order is None:
        return opaque("min", *sorted((a, b), key=to_text))
    return a if order else b


def substitute(value: Value, lookup: Callable[[str], Value | None]) -> Value:
    """``value`` with every symbol that ``lookup`` knows replaced (only whole, positive powers)."""
    if not isinstance(value, Expr):
        return value
    replaced = {name: new for name in value.symbols() if (new := lookup(name)) is not None}
    if not replaced:
        return value
    total: Value = 0
    for monomial, coefficient in value.terms.items():
        term: Value = coefficient
        for name, exponent in monomial:
            base = replaced.get(name, symbol(name))
            factor = power(base, exponent) if isinstance(exponent, Fraction) or exponent < 0 else None
            if factor is None:
                if isinstance(exponent, Fraction) or exponent < 0:
                    return value
                factor = product([base] * exponent)
            term = mul(term, factor)
        total = add(total, term)
    return total


def solve(a: Value, b: Value) -> tuple[str, Value] | None:
    """A symbol and what it has to be for ``a == b``; one whose value is a sum of dimensions, where there is one."""
    difference = add(a, mul(b, -1))
    found: tuple[str, Value] | None = None
    for monomial, coefficient in _terms(difference).items():
        if len(monomial) != 1 or monomial[0][1] != 1 or coefficient not in (1, -1):
            continue
        name = monomial[0][0]
        rest = _make({other: value for other, value in _terms(difference).items() if other != monomial})
        if isinstance(rest, Expr) and name in rest.symbols():
            continue
        value = mul(rest, -coefficient)
        if is_nonnegative(value) and (not isinstance(value, Expr) or _is_placeholder(name) or found is None):
            found = (name, value)
    return found


def _is_placeholder(name: str) -> bool:
    """Whether a symbol stands for a dimension that nobody named."""
    return name.startswith("?")


def to_text(value: Value) -> str:
    """A short text such as ``4*batch*seq + 1``."""
    if not isinstance(value, Expr):
        return str(value)
    parts = []
    for monomial, coefficient in sorted(value.terms.items(), key=lambda item: _order(item[0]), reverse=True):
        factors = [name if exponent == 1 else f"{name}^{exponent}" for name, exponent in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, str(coefficient))
        parts.append("*".join(factors))
    return " + ".join(parts)
