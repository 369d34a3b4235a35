"""What masks are proved to say, and what stays a mask because it can't be proved."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import QKV, SCALE, SCORES, assert_same_numbers, edit_of, form_of, model
from onnx import ModelProto, numpy_helper

from ortflash.graph_tools.normal_form import AttentionForm

INF = (
    f"{SCALE}, float low = {{-inf}}, float none = {{0.0}}, int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}},"
    "int64 three = {3}"
)
LOWEST = INF.replace("{-inf}", "{-3.4028234663852886e38}")
POSITIONS = """
    ns = Shape(q) nt = Shape(k) S = Gather<axis=0>(ns, two) T = Gather<axis=0>(nt, two)
    i0 = Range(zero, S, one) j = Range(zero, T, one) last = Constant<value_ints=[1]>() i = Unsqueeze(i0, last)
    past = Sub(T, S) ip = Add(i, past)
"""
"""Row ``i`` as a column, key ``j`` as a row, and ``ip``, the row's position among the keys."""

ADD = "b = Where(keep, none, low) m = Add(s, b)"
WHERE = "m = Where(keep, s, low)"
SQUARE = "float[B,4,S,16] q, float[B,4,S,16] k, float[B,4,S,16] v"


def masked(keep: str, apply: str = ADD, inputs: str = SQUARE, constants: str = INF) -> ModelProto:
    """Attention in which ``keep``, a bool, says which keys take part."""
    body = f"{SCORES} {POSITIONS} {keep} {apply} p = Softmax<axis=-1>(m) y = MatMul(p, v)"
    return model(body, inputs=inputs, constants=constants)


def structure(form: AttentionForm) -> tuple[bool, str, int, int]:
    return form.is_causal, form.causal_alignment, form.window_left, form.window_right


CAUSAL = (True, "top_left", -1, -1)
PLAIN = (False, "top_left", -1, -1)


@pytest.mark.parametrize(
    "keep",
    [
        "keep = LessOrEqual(j, i)",
        "keep = GreaterOrEqual(i, j)",
        "g = Greater(j, i) keep = Not(g)",
        "n = Add(i, one) keep = Less(j, n)",
        "d = Sub(i, j) keep = GreaterOrEqual(d, zero)",
        "a = LessOrEqual(j, i) t = GreaterOrEqual(i, zero) keep = And(a, t)",
        "a = LessOrEqual(j, i) f = Cast<to=1>(a) keep = Cast<to=9>(f)",
        "a = LessOrEqual(j, i) x = Constant<value_ints=[0,1]>() u = Unsqueeze(a, x) keep = Identity(u)",
        "zax = Constant<value_ints=[0]>() Sv = Unsqueeze(S, zax) n2 = Concat<axis=0>(Sv, Sv)"
        " o = ConstantOfShape<value=int64[1] {1}>(n2) t = Trilu<upper=0>(o) keep = Cast<to=9>(t)",
    ],
)
@pytest.mark.parametrize("apply", [ADD, WHERE], ids=["added", "where"])
def test_causal_masks(keep: str, apply: str) -> None:
    graph = masked(keep, apply)
    form = form_of(graph)
    assert structure(form) == CAUSAL
    assert form.terms == ()
    assert_same_numbers(graph)


def test_an_upper_triangle_of_minus_infinity_is_causal() -> None:
    """torch.triu(full(-inf), 1), added."""
    keep = """zax = Constant<value_ints=[0]>() Sv = Unsqueeze(S, zax) n2 = Concat<axis=0>(Sv, Sv)
        o = Expand(low, n2) b = Trilu<upper=1>(o, one)"""
    graph = masked(keep, "m = Add(s, b)")
    assert structure(form_of(graph)) == CAUSAL
    assert_same_numbers(graph)


def test_causal_at_the_end_of_a_cache() -> None:
    graph = masked("keep = LessOrEqual(j, ip)", inputs=QKV)
    assert structure(form_of(graph)) == (True, "bottom_right", -1, -1)
    assert edit_of(graph).call.attributes["causal_alignment"] == "bottom_right"
    assert_same_numbers(graph)


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ("a = LessOrEqual(j, i) f = Sub(i, three) g = Greater(j, f) keep = And(a, g)", (True, "top_left", 2, -1)),
        ("d = Sub(i, j) e = Abs(d) keep = LessOrEqual(e, two)", (False, "top_left", 2, 2)),
        ("d = Sub(i, j) e = Abs(d) f = Greater(e, two) keep = Not(f)", (False, "top_left", 2, 2)),
        ("n = Add(i, two) keep = LessOrEqual(j, n)", (False, "top_left", -1, 2)),
        ("n = Sub(i, two) keep = GreaterOrEqual(j, n)", (False, "top_left", 2, -1)),
    ],
)
def test_windows(keep: str, expected: tuple[bool, str, int, int]) -> None:
    graph = masked(keep)
    form = form_of(graph)
    assert structure(form) == expected
    assert form.terms == ()
    assert_same_numbers(graph)


@pytest.mark.parametrize("keep", ["n = Sub(i, one) keep = LessOrEqual(j, n)",
                                  "h = Div(i, two) g = Div(j, two) keep = Equal(h, g)",
                                  "e = Mod(j, two) keep = Equal(e, zero)"])  # fmt: skip
def test_what_is_no_window_stays_a_mask(keep: str) -> None:
    """Strictly below the diagonal, blocks, every second key."""
    graph = masked(keep)
    form = form_of(graph)
    assert structure(form) == PLAIN
    assert [term.kind for term in form.terms] == ["mask"]
    assert_same_numbers(graph)


def tables(values: np.ndarray) -> ModelProto:
    """Attention with a constant bias or mask of 8 x 8, of which the model takes the last S rows and first S keys."""
    graph = model(
        f"""{SCORES} ns = Shape(q) a = Constant<value_ints=[2]>() b = Constant<value_ints=[3]>()
        n = Slice(ns, a, b) two = Constant<value_ints=[0,1]>() zz = Constant<value_ints=[0,0]>()
        nn = Concat<axis=0>(n, n) part = Slice(table, zz, nn, two) m = Add(s, part)
        p = Softmax<axis=-1>(m) y = MatMul(p, v)""",
        inputs=SQUARE,
    )
    graph.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), "table"))
    return graph


def test_a_constant_triangle_is_causal_whatever_part_is_taken() -> None:
    graph = tables(np.where(np.tril(np.ones((8, 8))) == 1, 0, -np.inf))
    assert structure(form_of(graph)) == CAUSAL
    assert_same_numbers(graph)


def test_a_constant_band_is_a_window() -> None:
    step = np.arange(8)[None, :] - np.arange(8)[:, None]
    graph = tables(np.where((step <= 0) & (step >= -2), 0, -np.inf))
    assert structure(form_of(graph)) == (True, "top_left", 2, -1)
    assert_same_numbers(graph)


def test_a_triangle_with_one_wrong_element_stays_a_bias() -> None:
    table = np.where(np.tril(np.ones((8, 8))) == 1, 0, -np.inf)
    table[1, 6] = 0
    graph = tables(table)
    form = form_of(graph)
    assert structure(form) == PLAIN
    assert [term.kind for term in form.terms] == ["bias"]
    assert_same_numbers(graph)


def test_a_mask_that_always_holds_goes() -> None:
    graph = masked("keep = GreaterOrEqual(j, zero)", constants=LOWEST)
    assert form_of(graph).terms == ()
    assert edit_of(graph).before == ()


PADDING = f"{SQUARE}, int64[B,S] attention"


def test_padding_is_not_broadcast_to_the_rows() -> None:
    """Transformers 5: a (B,1,S,S) mask that only says which keys are padding."""
    keep = """c = Cast<to=9>(attention) x = Constant<value_ints=[1,2]>() u = Unsqueeze(c, x) t = GreaterOrEqual(i, zero)
        a = And(t, u) n = Shape(a) keep = Expand(a, n)"""
    graph = masked(keep, inputs=PADDING, constants=LOWEST)
    form = form_of(graph)
    [term] = form.terms
    assert (term.tensor.name, term.axes) == ("c", "b t")
    assert structure(form) == PLAIN
    assert_same_numbers(graph)


def test_causal_and_padding_come_apart_where_the_fill_is_minus_infinity() -> None:
    keep = """c = Cast<to=9>(attention) x = Constant<value_ints=[1,2]>() u = Unsqueeze(c, x) a = LessOrEqual(j, i)
        keep = And(a, u)"""
    graph = masked(keep, inputs=PADDING)
    form = form_of(graph)
    [term] = form.terms
    assert structure(form) == CAUSAL
    assert (term.tensor.name, term.axes, term.fill) == ("c", "b t", -np.inf)
    left = np.ones((2, 5), np.int64)
    left[1, :2] = 0
    assert_same_numbers(graph, attention=left)


def test_causal_and_padding_stay_together_where_the_fill_is_finite() -> None:
    """Left padding makes rows that are masked throughout: with a finite fill they average over all keys."""
    keep = """c = Cast<to=9>(attention) x = Constant<value_ints=[1,2]>() u = Unsqueeze(c, x) a = LessOrEqual(j, i)
        keep = And(a, u)"""
    graph = masked(keep, inputs=PADDING, constants=LOWEST)
    form = form_of(graph)
    assert structure(form) == PLAIN
    assert len(form.terms) == 1
    left = np.ones((2, 5), np.int64)
    left[1, :2] = 0
    assert_same_numbers(graph, attention=left)


def test_a_finite_fill_becomes_causal_where_every_row_sees_a_key() -> None:
    graph = masked("keep = LessOrEqual(j, i)", constants=LOWEST)
    assert structure(form_of(graph)) == CAUSAL
    assert_same_numbers(graph)


def test_a_finite_fill_stays_where_some_row_may_see_none() -> None:
    """At the end of the keys, with more rows than keys, the first rows see nothing."""
    graph = masked("keep = LessOrEqual(j, ip)", inputs=QKV, constants=LOWEST)
    assert structure(form_of(graph)) == PLAIN


def test_a_small_finite_fill_stays_a_mask() -> None:
    """-100 is a score like any other."""
    graph = masked("keep = LessOrEqual(j, i)", WHERE, constants=INF.replace("{-inf}", "{-5.0}"))
    form = form_of(graph)
    assert structure(form) == PLAIN
    assert form.terms[0].fill == -5.0
    assert_same_numbers(graph)


def test_a_small_additive_fill_stays_a_bias() -> None:
    graph = masked("keep = LessOrEqual(j, i)", ADD, constants=INF.replace("{-inf}", "{-5.0}"))
    assert [term.kind for term in form_of(graph).terms] == ["bias"]
    assert_same_numbers(graph)


def test_lengths_become_key_lengths() -> None:
    keep = """x = Constant<value_ints=[1]>() l = Unsqueeze(lengths, x) a = Less(j, l) h = Constant<value_ints=[1,2]>()
        keep = Unsqueeze(a, h)"""
    graph = masked(keep, inputs=f"{SQUARE}, int64[B] lengths")
    form = form_of(graph)
    assert form.key_lengths is not None
    assert (form.key_lengths.name, form.key_lengths_axes) == ("lengths", "b")
    assert form.terms == ()
    assert_same_numbers(graph, lengths=np.array([5, 2]))


def test_a_comparison_with_an_unknown_number_is_not_decided() -> None:
    """``ids >= 0`` looks always true to whoever takes every symbol for a size."""
    keep = "x = Constant<value_ints=[1,2]>() u = Unsqueeze(attention, x) keep = GreaterOrEqual(u, zero)"
    graph = masked(keep, inputs=PADDING)
    assert len(form_of(graph).terms) == 1
    ids = np.array([[1, -1, 1, -1, 1], [0, 0, -1, 0, 0]])
    assert_same_numbers(graph, attention=ids)


def test_a_padding_mask_gathered_by_position_is_found() -> None:
    """The TorchScript export of transformers 5: Flatten, then Gather at ``b * S + j``."""
    keep = """zax = Constant<value_ints=[0]>() B = Gather<axis=0>(ns, zero) r = Range(zero, B, one)
        x3 = Constant<value_ints=[1,2,3]>() b4 = Unsqueeze(r, x3)
        x0 = Constant<value_ints=[0,1,2]>() j4 = Unsqueeze(j, x0)
        c = Cast<to=9>(attention) flat = Flatten<axis=2>(c) f1 = Constant<value_ints=[-1]>() line = Reshape(flat, f1)
        at = Mul(b4, S) place = Add(at, j4) keep = Gather<axis=0>(line, place)"""
    graph = masked(keep, inputs=PADDING)
    [term] = form_of(graph).terms
    assert (term.tensor.name, term.axes) == ("c", "b t")
    assert_same_numbers(graph)


def block_table(length: int, size: int) -> np.ndarray:
    """Blocks on the diagonal and in the first column, as BigBird has them."""
    blocks = -(-length // size)
    coarse = np.eye(blocks, dtype=bool)
    coarse[:, 0] = True
    return np.kron(coarse, np.ones((size, size), bool))[:length, :length]


def with_table(keep: np.ndarray, fill: float) -> ModelProto:
    length = keep.shape[0]
    shape = f"1,2,{length},16"
    inputs = ", ".join(f"float[{shape}] {name}" for name in "qkv")
    graph = model(
        f"{SCORES} m = Where(keep, s, low) p = Softmax<axis=-1>(m) y = MatMul(p, v)",
        inputs=inputs,
        outputs=f"float[{shape}] y",
        constants=f"{SCALE}, float low = {{{fill}}}",
    )
    graph.graph.initializer.append(numpy_helper.from_array(keep, "keep"))
    return graph


@pytest.mark.parametrize("fill", [-np.inf, -3.4028234663852886e38])
def test_a_constant_mask_of_whole_blocks_becomes_a_block_mask(fill: float) -> None:
    graph = with_table(block_table(200, 32), fill)
    form = form_of(graph)
    assert form.block_size == 32
    assert form.block_mask.shape == (7, 7)
    assert form.terms == ()
    assert_same_numbers(graph)


def test_a_mask_with_more_to_say_than_its_blocks_stays_beside_them() -> None:
    keep = block_table(128, 16)
    keep[3, 1] = False
    graph = with_table(keep, -np.inf)
    form = form_of(graph)
    assert form.block_mask is not None
    assert len(form.terms) == 1
    assert_same_numbers(graph)


def test_a_finite_fill_with_an_empty_row_stays_a_mask() -> None:
    keep = block_table(128, 16)
    keep[5] = False
    graph = with_table(keep, -3.4028234663852886e38)
    assert form_of(graph).block_mask is None
    assert_same_numbers(graph)


def test_a_scattered_mask_has_no_blocks() -> None:
    keep = np.random.default_rng(0).random((64, 64)) < 0.5
    keep[:, 0] = True
    assert form_of(with_table(keep, -np.inf)).block_mask is None


@pytest.mark.parametrize(
    ("keep", "given"),
    [
        ("keep = Slice(w, start, end, axis1)", "bool[B,4,S,T] w"),
        ("keep = Gather<axis=1>(w, start)", "bool[B,4,S,T] w"),
        ("keep = Slice(w, start, end, axis0)", "bool[B,1,S,T] w"),
        ("keep = Slice(w, start, end, axis2)", "bool[B,1,S,T] w"),
        ("n = Shape<start=3>(kt) keep = Slice(w, start, n, axis3)", "bool[B,1,S,9] w"),
        ("n = Shape<start=3>(kt) h = Slice(w, start, n, axis1) keep = Unsqueeze(h, both)", "bool[B,9] w"),
        (
            "n = Shape<start=3>(kt) h = Slice(w, start, n, axis1) u = Unsqueeze(h, both) keep = Cast<to=9>(u)",
            "int64[B,9] w",
        ),
    ],
)
def test_a_part_of_a_mask_is_not_taken_for_the_whole(keep: str, given: str) -> None:
    """The first head, batch element, row or keys of a larger tensor: its own values would broadcast otherwise."""
    axes = ", ".join(f"int64[1] axis{axis} = {{{axis}}}" for axis in range(4))
    constants = f"{LOWEST}, int64[1] start = {{0}}, int64[1] end = {{1}}, int64[2] both = {{1,2}}, {axes}"
    graph = masked(keep, WHERE, f"{QKV}, {given}", constants)
    [term] = form_of(graph).terms
    assert term.tensor.name != "w"
    assert_same_numbers(graph)
