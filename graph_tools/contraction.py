"""Matrix products in one shape: MatMul, Gemm, Einsum and FusedMatMul as operands with a label for every axis.

``MatMul`` of (B,N,S,D) and (B,N,D,T) has the labels ``0 1 r k`` and ``0 1 k c`` and the result ``0 1 r c``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .graph_view import NodeView, Scope
from .layout import Atom, Axis, Layout, size_of
from .shape_rules_products import einsum_labels
from .symbolic import Value


@dataclass(frozen=True)
class Product:
    """``alpha * a @ b``: tensor names, and for each axis a label."""

    node: NodeView
    a: str
    b: str
    a_labels: tuple[str, ...]
    b_labels: tuple[str, ...]
    out_labels: tuple[str, ...]
    alpha: float

    @property
    def summed(self) -> frozenset[str]:
        """Labels that are summed over."""
        return (frozenset(self.a_labels) | frozenset(self.b_labels)) - frozenset(self.out_labels)


def as_product(scope: Scope, node: NodeView) -> Product | None:
    """``node`` as a product of two tensors; ``None`` where it isn't one, or does more than multiply."""
    if node.is_op("MatMul"):
        return _matmul(scope, node, False, False, 1.0)
    if (node.domain, node.op) == ("com.microsoft", "FusedMatMul"):
        flags = [node.int_attribute(name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB")]
        alpha = node.float_attribute("alpha", 1.0)
        if None in flags or any(flags[2:]) or alpha is None:
            return None
        return _matmul(scope, node, bool(flags[0]), bool(flags[1]), alpha)
    if node.is_op("Gemm") and not node.input(2):
        flags = [node.int_attribute(name, 0) for name in ("transA", "transB")]
        alpha = node.float_attribute("alpha", 1.0)
        if None in flags or alpha is None:
            return None
        return _matmul(scope, node, bool(flags[0]), bool(flags[1]), alpha)
    if node.is_op("Einsum") and len(node.inputs) == 2:
        return _einsum(scope, node)
    return None


def _matmul(scope: Scope, node: NodeView, swap_a: bool, swap_b: bool, alpha: float) -> Product | None:
    a_rank, b_rank = scope.rank(node.input(0)), scope.rank(node.input(1))
    if a_rank is None or b_rank is None or a_rank < 2 or b_rank < 2:
        return None
    batch = [str(axis) for axis in range(max(a_rank, b_rank) - 2)]
    a_batch, b_batch = batch[len(batch) - (a_rank - 2) :], batch[len(batch) - (b_rank - 2) :]
    a_tail = ("k", "r") if swap_a else ("r", "k")
    b_tail = ("c", "k") if swap_b else ("k", "c")
    labels = (*a_batch, *a_tail), (*b_batch, *b_tail), (*batch, "r", "c")
    return Product(node, node.input(0), node.input(1), *labels, alpha)


def _einsum(scope: Scope, node: NodeView) -> Product | None:
    labels = einsum_labels(node, [scope.fact(name) for name in node.inputs])
    if labels is None or len(labels[0]) != 2:
        return None
    (a, b), out = labels
    if any(len(set(term)) != len(term) for term in (a, b, out)):
        return None  # a diagonal
    only_one = (set(a) ^ set(b)) - set(out)
    if only_one or not set(out) <= set(a) | set(b):
        return None  # a sum over one operand alone
    return Product(node, node.input(0), node.input(1), tuple(a), tuple(b), tuple(out), 1.0)


def operand_layouts(
    scope: Scope, product: Product, out: Sequence[Axis]
) -> tuple[Layout, Layout, dict[str, Axis]] | None:
    """Layouts of both operands, given the result's. The summed axes get new atoms, shared by both.

    ``None`` where an operand's shape isn't known, or where it is larger than the result says.
    """
    axes: dict[str, Axis] = dict(zip(product.out_labels, out, strict=False))
    a_shape, b_shape = scope.shape(product.a), scope.shape(product.b)
    if a_shape is None or b_shape is None:
        return None
    shapes = a_shape, b_shape
    for labels, shape in zip((product.a_labels, product.b_labels), shapes, strict=False):
        for label, dim in zip(labels, shape, strict=False):
            if label in product.summed and (label not in axes or axes[label] == ()):
                axes[label] = () if dim == 1 else (Atom(dim),)
    layouts = []
    for labels, shape in zip((product.a_labels, product.b_labels), shapes, strict=False):
        layout = operand_layout(labels, shape, axes)
        if layout is None:
            return None
        layouts.append(layout)
    return layouts[0], layouts[1], axes


def operand_layout(labels: Sequence[str], shape: Sequence[Value], axes: dict[str, Axis]) -> Layout | None:
    """One operand's layout: an axis of size 1 is broadcast, and carries no atoms."""
    layout: list[Axis] = []
    for label, dim in zip(labels, shape, strict=False):
        if dim != 1 and not axes.get(label):
            return None
        layout.append(() if dim == 1 and size_of(axes.get(label, ())) != 1 else axes.get(label, ()))
    return tuple(layout)
