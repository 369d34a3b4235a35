"""How to bring a tensor from one arrangement of axes into another: reshape, transpose, expand, in that order.

An arrangement is a sequence of axes, and an axis a sequence of labels (letters of a form, or atoms of a match),
outermost first; an axis of size 1 has none. ``plan("b s (n d)" -> "b n s d")`` is a Reshape and a Transpose.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

Label = Hashable
Axes = tuple[tuple[Label, ...], ...]

TRANSPOSE, RESHAPE, EXPAND = 10.1, 1.1, 101.0
"""What a new node costs. A node that is in the graph already costs a little less: 10, 1, 100."""


@dataclass(frozen=True)
class Move:
    """One node: the arrangement that it makes, and for a Transpose its permutation."""

    kind: Literal["reshape", "transpose", "expand"]
    axes: Axes
    perm: tuple[int, ...] = ()


def plan(source: Axes, target: Axes) -> list[Move] | None:
    """The nodes that turn ``source`` into ``target``; ``None`` where source has a label that target lacks.

    Labels that only target has are expanded.
    """
    if source == target:
        return []
    have = [label for axis in source for label in axis]
    want = [label for axis in target for label in axis]
    if not set(have) <= set(want):
        return None
    kept = [label for label in want if label in set(have)]
    if have == want:
        return [Move("reshape", target)]
    perm = _permutation(source, target)
    if perm is not None:
        return [Move("transpose", target, perm)]
    moves: list[Move] = []
    current = source
    single: Axes = tuple((label,) for label in have)
    if kept != have:
        if current != single:
            moves.append(Move("reshape", single))
        current = tuple((label,) for label in kept)
        moves.append(Move("transpose", current, tuple(have.index(label) for label in kept)))
    if len(kept) != len(want):
        present = set(kept)
        open_axes: Axes = tuple((label,) if label in present else () for label in want)
        if current != open_axes:
            moves.append(Move("reshape", open_axes))
        current = tuple((label,) for label in want)
        moves.append(Move("expand", current))
    if current != target:
        moves.append(Move("reshape", target))
    return moves


def _permutation(source: Axes, target: Axes) -> tuple[int, ...] | None:
    """The permutation that is all there is to do, axes of size 1 included; ``None`` where more is."""
    if len(source) != len(target):
        return None
    free = list(range(len(source)))
    perm = []
    for axis in target:
        place = next((index for index in free if source[index] == axis), None)
        if place is None:
            return None
        free.remove(place)
        perm.append(place)
    return tuple(perm)


def broadcast_axes(source: Axes, target: Axes) -> Axes:
    """``target`` with size 1 where ``source`` has nothing of the axis."""
    present = {label for axis in source for label in axis}
    return tuple(axis if any(label in present for label in axis) else () for axis in target)


def score_axes(axes: Axes, scores: Axes) -> Axes:
    """How a bias or mask has to look to broadcast to the scores; leading axes of size 1 that it lacks are dropped."""
    wanted = broadcast_axes(axes, scores)
    start = 0
    while start < len(wanted) and len(wanted) - start > max(len(axes), 1) and not wanted[start]:
        start += 1
    return wanted[start:]


def cost(moves: Sequence[Move]) -> float:
    """What the nodes of a plan cost."""
    prices = {"reshape": RESHAPE, "transpose": TRANSPOSE, "expand": EXPAND}
    return sum(prices[move.kind] for move in moves)


def to_pattern(axes: Sequence[Sequence[str]]) -> str:
    """Axes as text: ``"b s (n d)"``."""
    return " ".join("1" if not axis else axis[0] if len(axis) == 1 else f"({' '.join(axis)})" for axis in axes)


def from_pattern(pattern: str) -> tuple[tuple[str, ...], ...]:
    """The inverse of :func:`to_pattern`."""
    axes: list[tuple[str, ...]] = []
    group: list[str] | None = None
    for token in pattern.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            group = []
        elif token == ")":
            axes.append(tuple(group or ()))
            group = None
        elif group is not None:
            group.append(token)
        else:
            axes.append(() if token == "1" else (token,))
    return tuple(axes)
