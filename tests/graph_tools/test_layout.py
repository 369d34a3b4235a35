"""What axes are made of, and how that survives reshapes."""

from __future__ import annotations

import pytest

from ortflash.graph_tools.layout import Atom, Layout, finest, from_shape, regroup, size_of, split_axis, transposed
from ortflash.graph_tools.rearrange import Axes, broadcast_axes, cost, from_pattern, plan, score_axes, to_pattern
from ortflash.graph_tools.symbolic import Value, product, symbol

B, S = symbol("B"), symbol("S")


def same(value: Value) -> Value:
    return value


def sizes(layout: Layout) -> list[list[Value]]:
    return [[atom.size for atom in finest(axis)] for axis in layout]


def test_a_head_split_refines_the_axis_everywhere() -> None:
    flat = from_shape([B, S, 64])
    headed = regroup(flat, [B, S, 4, 16], same)
    assert headed is not None
    assert sizes(headed) == [[B], [S], [4], [16]]
    assert sizes(flat) == [[B], [S], [4, 16]], "the tensor before the split knows of it too"


def test_a_merge_is_the_inverse() -> None:
    layout = from_shape([B, 4, S, 16])
    merged = regroup(layout, [product([B, 4]), S, 16], same)
    assert merged is not None
    assert sizes(merged) == [[B, 4], [S], [16]]
    assert [list(map(id, finest(axis))) for axis in regroup(merged, [B, 4, S, 16], same) or ()] == [
        list(map(id, finest(axis))) for axis in layout
    ]


@pytest.mark.parametrize("shape", [[4, S, 16], [B, S, 4, 8], [B, 64, 3]])
def test_what_is_no_split_and_no_merge_is_refused(shape: list[Value]) -> None:
    assert regroup(from_shape([B, S, 64]), shape, same) is None


def test_a_reshape_across_axes_is_refused() -> None:
    assert regroup(from_shape([6, 4]), [8, 3], same) is None


def test_unit_axes_come_and_go() -> None:
    layout = regroup(from_shape([B, S]), [1, B, 1, S, 1], same)
    assert layout is not None
    assert sizes(layout) == [[], [B], [], [S], []]


def test_transposed_gives_the_layout_before_the_transpose() -> None:
    after = from_shape([B, 4, S, 16])
    before = transposed(after, [0, 2, 1, 3])
    assert sizes(before) == [[B], [S], [4], [16]]


def test_split_axis() -> None:
    parts = split_axis((Atom(12),), 3, same)
    assert parts is not None
    assert [size_of(part) for part in parts] == [3, 4]
    assert split_axis((Atom(S),), 3, same) is None


@pytest.mark.parametrize("pattern", ["b s (n d)", "1 1 s t", "(b1 b2) n t e", "1"])
def test_patterns_round_trip(pattern: str) -> None:
    assert to_pattern(from_pattern(pattern)) == pattern


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        ("b n s d", "b n s d", []),
        ("(b s) (n d)", "b s (n d)", ["reshape"]),
        ("b s (n d)", "b n s d", ["reshape", "transpose"]),
        ("b n d t", "b n t d", ["transpose"]),
        ("1 n d t", "1 n t d", ["transpose"]),
        ("(b1 b2) n d t", "(b1 b2) n t d", ["transpose"]),
        ("b 1 t d", "b t d", ["reshape"]),
        ("t d", "b t d", ["reshape", "expand"]),
        ("1 1 n 1 b", "b n", ["reshape", "transpose"]),
    ],
)
def test_plans(source: str, target: str, kinds: list[str]) -> None:
    moves = plan(from_pattern(source), from_pattern(target))
    assert moves is not None
    assert [move.kind for move in moves] == kinds
    assert (cost(moves) == 0) is (not kinds)


def test_a_plan_never_drops_an_axis() -> None:
    assert plan(from_pattern("b n s"), from_pattern("b s")) is None


def test_terms_broadcast_like_numpy() -> None:
    scores: Axes = from_pattern("b n s t")
    assert to_pattern(broadcast_axes(from_pattern("n t"), scores)) == "1 n 1 t"
    assert to_pattern(score_axes(from_pattern("s t"), scores)) == "s t"
    assert to_pattern(score_axes(from_pattern("b t"), scores)) == "b 1 1 t"
    assert to_pattern(score_axes(from_pattern("1 1 s t"), scores)) == "1 1 s t"
