"""Dimension arithmetic: what equals what, and what can be proved of it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from ortflash.graph_tools import symbolic
from ortflash.graph_tools.symbolic import Value, symbol

B, S, T = symbol("B"), symbol("S"), symbol("T")


def test_equal_polynomials_are_equal_whatever_the_order() -> None:
    assert symbolic.mul(S, symbolic.add(B, 1)) == symbolic.add(symbolic.mul(B, S), S)
    assert symbolic.add(S, symbolic.mul(S, -1)) == 0


@pytest.mark.parametrize(
    ("total", "part", "quotient"),
    [
        (symbolic.product([B, S, 64]), symbolic.product([B, S, 16]), 4),
        (symbolic.product([B, S, 64]), 64, symbolic.mul(B, S)),
        (symbolic.product([B, symbolic.add(S, T), 8]), symbolic.add(S, T), symbolic.mul(B, 8)),
        (symbolic.mul(S, 6), 4, None),
        (S, B, None),
    ],
)
def test_exact_division(total: Value, part: Value, quotient: Value | None) -> None:
    assert symbolic.divide_exactly(total, part) == quotient


def test_strided_windows_agree_with_the_exporters_arithmetic() -> None:
    """Two convolutions of stride 5 and 2, and the same length worked out at once."""
    first = symbolic.floor_divide(symbolic.add(S, -5), 5)
    second = symbolic.floor_divide(symbolic.add(first, -1), 2)
    assert second == symbolic.add(symbolic.floor_divide(S, 10), -1)


def test_floor_takes_whole_parts_out() -> None:
    assert symbolic.floor_divide(symbolic.add(symbolic.mul(S, 3), 7), 3) == symbolic.add(S, 2)


def test_scales_from_shapes_are_monomials() -> None:
    root = symbolic.power(S, 0.5)
    assert root is not None
    assert symbolic.mul(root, root) == S
    inverse = symbolic.real_divide(1.0, root)
    assert inverse is not None
    assert symbolic.mul(inverse, inverse) == symbolic.real_divide(1.0, S)
    assert symbolic.power(64, -0.5) == 0.125
    assert symbolic.power(S, Fraction(1, 2)) == root


@pytest.mark.parametrize(
    ("a", "b", "less"),
    [(1, S, None), (0, S, True), (S, symbolic.add(S, T), True), (symbolic.add(S, 1), S, False), (S, T, None)],
)
def test_order(a: Value, b: Value, less: bool | None) -> None:
    assert symbolic.less_equal(a, b) is less


def test_solving_prefers_a_sum_over_a_difference() -> None:
    total = symbol("total")
    assert symbolic.solve(total, symbolic.add(S, T)) == ("total", symbolic.add(S, T))
    assert symbolic.solve(4, 5) is None


def test_a_minimum_is_not_taken_to_be_a_dimension() -> None:
    assert not symbolic.is_nonnegative(symbolic.minimum(symbolic.add(S, -5), 3))
