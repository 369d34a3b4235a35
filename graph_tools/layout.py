"""What each axis of a tensor is made of, and how that changes when a tensor is reshaped, transposed or repeated.

An :class:`Atom` is an index that attention runs over: a batch, a head, a row, a key. An axis is a product of atoms,
outermost first, and a layout is one such axis after the other; an axis of size 1, or one along which a tensor repeats
itself, has no atoms. ``(B,S,N*D)`` is ``[[b], [s], [n, d]]``. Atoms are shared between the tensors of a site, so when a
Reshape shows that one of them is a product of two, all tensors know.

All functions here go *backwards*: given the layout of a node's output, they return the layout of its input. A Reshape
is its own inverse and serves in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import symbolic
from .symbolic import Value


class Atom:
    """One index with its size. Refining it replaces it by a product of finer ones, everywhere."""

    __slots__ = ("parts", "size")

    def __init__(self, size: Value) -> None:
        self.size = size
        self.parts: tuple[Atom, ...] = ()

    def __repr__(self) -> str:
        return f"<{'*'.join(map(repr, self.parts)) if self.parts else symbolic.to_text(self.size)}>"

    def leaves(self) -> list[Atom]:
        """The finest atoms that this one is a product of; itself where it wasn't refined."""
        if not self.parts:
            return [self]
        return [leaf for part in self.parts for leaf in part.leaves()]


Axis = tuple[Atom, ...]
Layout = tuple[Axis, ...]
Same = Callable[[Value, Value], bool]
"""Decides whether two dimensions are equal; knows the names that stand for one dimension."""


def finest(axis: Sequence[Atom]) -> list[Atom]:
    """The leaves of an axis."""
    return [leaf for atom in axis for leaf in atom.leaves()]


def flat(layout: Sequence[Sequence[Atom]]) -> list[Atom]:
    """The leaves of all axes, in memory order."""
    return [leaf for axis in layout for leaf in finest(axis)]


def from_shape(shape: Sequence[Value], keep: Sequence[int] = ()) -> Layout:
    """A fresh layout: one new atom for each axis whose size isn't 1, and for those that ``keep`` names."""
    return tuple(() if dim == 1 and axis not in keep else (Atom(dim),) for axis, dim in enumerate(shape))


def size_of(axis: Sequence[Atom]) -> Value:
    """The product of the sizes."""
    return symbolic.product(leaf.size for leaf in finest(axis))


def regroup(
    layout: Sequence[Sequence[Atom]], shape: Sequence[Value], resolve: Callable[[Value], Value]
) -> Layout | None:
    """The same elements in the same order under another shape, atoms refined where an axis splits one.

    ``None`` where the new axes cut across the old ones (a reshape that isn't a split or a merge), or where the sizes
    can't be proved to fit.
    """
    pending = flat(layout)
    position = 0
    axes: list[Axis] = []
    for dim in shape:
        remaining = resolve(dim)
        axis: list[Atom] = []
        if remaining == 1 and position < len(pending) and pending[position].size == 1:
            axis.append(pending[position])
            position += 1
        while remaining != 1:
            if position == len(pending):
                return None
            atom = pending[position]
            size = resolve(atom.size)
            rest = symbolic.divide_exactly(remaining, size)
            if rest is not None:
                axis.append(atom)
                position += 1
                remaining = rest
                continue
            inner = symbolic.divide_exactly(size, remaining)
            if inner is None:
                return None
            atom.parts = (Atom(remaining), Atom(inner))
            axis.append(atom.parts[0])
            pending[position : position + 1] = atom.parts
            position += 1
            remaining = 1
        axes.append(tuple(axis))
    return tuple(axes) if position == len(pending) else None


def split_axis(axis: Sequence[Atom], outer: Value, resolve: Callable[[Value], Value]) -> tuple[Axis, Axis] | None:
    """An axis as (outer, inner) with the outer part of the given size."""
    total = resolve(size_of(axis))
    inner = symbolic.divide_exactly(total, resolve(outer))
    if inner is None:
        return None
    grouped = regroup([axis], [outer, inner], resolve)
    return None if grouped is None else (grouped[0], grouped[1])


def transposed(layout: Layout, perm: Sequence[int]) -> Layout:
    """The layout of the input of a Transpose."""
    result: list[Axis] = [()] * len(layout)
    for position, axis in enumerate(perm):
        result[axis] = layout[position]
    return tuple(result)


def align_right(layout: Layout, rank: int) -> Layout | None:
    """The layout of an operand of ``rank`` axes that broadcasts against ``layout``.

    Axes that the operand doesn't have, or has with size 1, carry no atoms; the caller blanks the latter.
    """
    if rank > len(layout):
        extra = rank - len(layout)
        return ((),) * extra + layout
    return layout[len(layout) - rank :]


def broadcast_operand(layout: Layout, shape: Sequence[Value]) -> Layout | None:
    """The layout of an operand of this shape that is broadcast to ``layout``; ``None`` where it is the larger one."""
    aligned = align_right(layout, len(shape))
    if aligned is None:
        return None
    axes: list[Axis] = []
    for axis, dim in zip(aligned, shape, strict=False):
        if dim != 1 and not axis:
            return None
        axes.append(() if dim == 1 and size_of(axis) != 1 else axis)
    return tuple(axes)
