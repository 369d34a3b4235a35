"""Shapes of matrix products, einsums and fused attention."""

from __future__ import annotations

from collections.abc import Sequence

from . import symbolic
from .facts import Fact, Shape, unknown_dimension
from .graph_view import NodeView
from .shape_rules import broadcast, broadcast_dim, shape_rule
from .symbolic import Value


@shape_rule("MatMul")
def _matmul(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    return [Fact(inputs[0].elem_type or inputs[1].elem_type, matmul_shape(node, inputs[0].shape, inputs[1].shape))]


def matmul_shape(node: NodeView, a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of a matrix product as NumPy has it."""
    if not a or not b:
        return None
    view = node.scope.view
    view.assume_equal(a[-1], b[-2] if len(b) > 1 else b[-1])
    batch = broadcast(view, a[:-2], b[:-2]) or ()
    rows = (a[-2],) if len(a) > 1 else ()
    columns = (b[-1],) if len(b) > 1 else ()
    return (*batch, *rows, *columns)


@shape_rule("FusedGemm", "com.microsoft")
@shape_rule("Gemm")
def _gemm(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    a, b = inputs[0].shape, inputs[1].shape
    if a is None or b is None:
        return [Fact(inputs[0].elem_type)]
    rows = a[1] if node.int_attribute("transA", 0) else a[0]
    columns = b[0] if node.int_attribute("transB", 0) else b[1]
    return [Fact(inputs[0].elem_type, (rows, columns))]


def einsum_labels(node: NodeView, inputs: Sequence[Fact]) -> tuple[list[str], str] | None:
    """The label of each axis of the operands and of the result of an Einsum without ellipsis."""
    equation = node.text_attribute("equation")
    if equation is None:
        return None
    equation = equation.replace(" ", "")
    if "..." in equation:
        equation = _spell_ellipsis(equation, inputs)
        if not equation:
            return None
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        joined = "".join(terms)
        right = "".join(sorted(letter for letter in set(joined) if joined.count(letter) == 1))
    return terms, right


def _spell_ellipsis(equation: str, inputs: Sequence[Fact]) -> str:
    """``...`` replaced by letters that the equation doesn't use; "" where the operands' ranks aren't known."""
    left, arrow, right = equation.partition("->")
    free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in equation]
    terms, widest = left.split(","), 0
    spelled = []
    for term, fact in zip(terms, inputs, strict=False):
        if fact.shape is None or not arrow:
            return ""
        count = len(fact.shape) - len(term.replace("...", "")) if "..." in term else 0
        widest = max(widest, count)
        spelled.append((term, count))
    names = "".join(free[:widest])
    parts = [term.replace("...", names[widest - count :]) for term, count in spelled]
    return f"{','.join(parts)}->{right.replace('...', names)}"


@shape_rule("Einsum")
def _einsum(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    labels = einsum_labels(node, inputs)
    if labels is None:
        return [Fact(inputs[0].elem_type)]
    sizes: dict[str, Value] = {}
    view = node.scope.view
    for term, fact in zip(labels[0], inputs, strict=False):
        if fact.shape is None or len(fact.shape) != len(term):
            continue
        for letter, dim in zip(term, fact.shape, strict=False):
            sizes[letter] = broadcast_dim(view, sizes[letter], dim) if letter in sizes else dim
    dims = [sizes.get(letter, unknown_dimension(node.output, axis)) for axis, letter in enumerate(labels[1])]
    return [Fact(inputs[0].elem_type, tuple(dims))]


@shape_rule("FusedMatMul", "com.microsoft")
def _fused_matmul(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    swapped = []
    for fact, attribute in zip(inputs, ("transA", "transB"), strict=False):
        shape = fact.shape
        if shape is not None and node.int_attribute(attribute, 0):
            shape = (*shape[:-2], shape[-1], shape[-2])
        swapped.append(Fact(fact.elem_type, shape))
    return _matmul(node, swapped)


@shape_rule("Attention")
def _attention(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """The standard Attention: (B,N,S,E) or (B,S,N*E)."""
    query, value = inputs[0].shape, inputs[2].shape
    if query is None or value is None:
        return [Fact(inputs[0].elem_type)]
    if len(query) == 4:
        return [Fact(inputs[0].elem_type, (*query[:3], value[3]))]
    heads, kv_heads = node.int_attribute("q_num_heads"), node.int_attribute("kv_num_heads")
    if not heads or not kv_heads:
        return [Fact(inputs[0].elem_type)]
    width = symbolic.floor_divide(symbolic.mul(value[2], heads), kv_heads)
    return [Fact(inputs[0].elem_type, (*query[:2], width))]


@shape_rule("MultiHeadAttention", "com.microsoft")
def _multi_head_attention(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    query = inputs[0].shape
    value = inputs[2].shape if len(inputs) > 2 and node.input(2) else None
    if query is None or len(query) != 3:
        return [Fact(inputs[0].elem_type)]
    width = query[2] if value is None else value[2] if len(value) == 3 else symbolic.mul(value[1], value[3])
    return [Fact(inputs[0].elem_type, (*query[:2], width))]


@shape_rule("Attention", "com.microsoft")
def _packed_attention(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """The projections included: (B,S,N*E)."""
    data, weights = inputs[0].shape, inputs[1].shape
    sizes = node.ints_attribute("qkv_hidden_sizes")
    if data is None or weights is None or len(data) != 3:
        return [Fact(inputs[0].elem_type)]
    width = sizes[2] if sizes else symbolic.divide_exactly(weights[1], 3)
    dim = unknown_dimension(node.output, 2) if width is None else width
    return [Fact(inputs[0].elem_type, (*data[:2], dim))]


@shape_rule("GroupQueryAttention", "com.microsoft")
def _group_query_attention(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    """(B,S,N*D), and the keys and values that it hands out as (B,M,T,D)."""
    query, heads, kv_heads = inputs[0].shape, node.int_attribute("num_heads"), node.int_attribute("kv_num_heads")
    kind = inputs[0].elem_type
    if query is None or not heads or not kv_heads or len(query) != 3:
        return [Fact(kind) for _ in node.outputs]
    head = symbolic.divide_exactly(query[2], heads if node.input(1) else heads + 2 * kv_heads)
    if head is None:
        return [Fact(kind) for _ in node.outputs]
    keys: Value = unknown_dimension(node.output, 2) if node.input(3) else query[1]
    present = Fact(kind, (query[0], kv_heads, keys, head))
    return [Fact(kind, (*query[:2], symbolic.mul(head, heads))), present, present]
