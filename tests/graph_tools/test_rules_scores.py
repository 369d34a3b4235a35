"""Each rule between the softmax and the product of query and key: the graph before, the form after."""

from __future__ import annotations

import math

import numpy as np
import pytest
from graphs import QKV, SCALE, SCORES, assert_same_numbers, edit_of, form_of, model, refusal_of
from onnx import ModelProto, numpy_helper

import ortflash

END = "p = Softmax<axis=-1>(m) y = MatMul(p, v)"
MASK = f"{QKV}, bool[B,1,S,T] keep"
LOW = f"{SCALE}, float low = {{-10000.0}}, float zero = {{0.0}}"


def scores(steps: str, inputs: str = QKV, constants: str = SCALE) -> ModelProto:
    """Attention whose scores ``s`` go through ``steps`` to ``m``."""
    return model(f"{SCORES} {steps} {END}", inputs=inputs, constants=constants)


@pytest.mark.parametrize(
    ("steps", "scale"),
    [
        ("m = Identity(s)", 0.25),
        ("m = Mul(two, s)", 0.5),
        ("m = Div(s, two)", 0.125),
        ("m = Neg(s)", -0.25),
        ("m = Add(s, s)", 0.5),
        ("a = Mul(s, two) b = Div(a, four) m = Identity(b)", 0.125),
        ("a = Cast<to=10>(s) m = Cast<to=1>(a)", 0.25),
        ("m = CastLike(s, q)", 0.25),
        ("a = Reshape(s, flat) m = Reshape(a, back)", 0.25),
        ("a = Transpose<perm=[0,1,3,2]>(s) m = Transpose<perm=[0,1,3,2]>(a)", 0.25),
        ("a = Unsqueeze(s, axis) m = Squeeze(a, axis)", 0.25),
        ("m = Mul(s, same)", 0.5),
    ],
)
def test_scales_and_movement(steps: str, scale: float) -> None:
    constants = (
        f"{SCALE}, float two = {{2.0}}, float four = {{4.0}}, int64[3] flat = {{0,0,-1}}, int64[4] back = {{2,4,5,7}},"
        "int64[1] axis = {0}, float[1,4,1,1] same = {2.0,2.0,2.0,2.0}"
    )
    inputs = "float[2,4,5,16] q, float[2,4,7,16] k, float[2,4,7,16] v"
    graph = model(f"{SCORES} {steps} {END}", inputs=inputs, outputs="float[2,4,5,16] y", constants=constants)
    form = form_of(graph)
    assert form.scale == pytest.approx(scale)
    assert form.terms == ()
    assert_same_numbers(graph, 2e-3 if "Cast" in steps else 2e-5)


def test_an_unprovable_reshape_refuses() -> None:
    steps = "n = Shape(x) a = Reshape(s, n) m = Reshape(a, n2)"
    graph = scores(steps, inputs=f"{QKV}, float[P,R,W,U] x", constants=f"{SCALE}, int64[4] n2 = {{2,4,5,7}}")
    assert refusal_of(graph).rule == "reshape"


def with_number(steps: str, number: float) -> ModelProto:
    """Steps with a constant ``c`` that ONNX's text can't write."""
    graph = scores(steps, constants=f"{SCALE}, float c = {{1.0}}")
    [tensor] = [tensor for tensor in graph.graph.initializer if tensor.name == "c"]
    tensor.CopyFrom(numpy_helper.from_array(np.array(number, np.float32), "c"))
    return graph


@pytest.mark.parametrize(
    ("steps", "number", "reason"),
    [
        ("m = Mul(s, c)", math.nan, "multiplied by nan, which isn't a normal number"),
        ("m = Mul(s, c)", math.inf, "multiplied by inf, which isn't a normal number"),
        ("m = Mul(s, c)", 1e-40, "multiplied by 2.49999e-41, which isn't a normal number"),
        ("m = Mul(s, c)", 0.0, "multiplied by 0, which makes all keys count alike"),
        ("m = Div(s, c)", math.nan, "multiplied by nan"),
        ("m = Div(s, c)", math.inf, "multiplied by 0"),
        ("m = Div(s, c)", 0.0, "divided by 0"),
        ("m = Sub(s, s)", 0.0, "taken off themselves"),
        ("d = ReduceMax<axes=[0,1,2,3]>(q) e = Greater(d, scale) m = Where(e, s, c)", math.inf, "fills with inf"),
        ("a = Tanh(s) m = Mul(a, c)", math.nan, "capped by nan"),
        ("a = Tanh(s) m = Mul(a, c)", 0.0, "capped by 0"),
        ("a = Mul(s, c) b = Tanh(a) m = Mul(b, c)", 1e30, "multiplied and capped by 2.5e+59"),
        ("b = Greater(s, s) m = Where(b, s, c)", math.nan, "other branch isn't one number"),
    ],
)
def test_numbers_that_make_no_scale_refuse_their_site(steps: str, number: float, reason: str) -> None:
    """The site only: the rest of the model is rewritten."""
    graph = with_number(steps, number)
    report = ortflash.rewrite(graph, verify=False).report
    assert [site.decision for site in report.sites] == ["refused"]
    assert reason in report.sites[0].reason


def test_a_factor_that_is_no_scale_stays_before_the_op() -> None:
    graph = with_number("a = Mul(q, c) b = MatMul(a, kt) m = Mul(b, scale)", 0.0)
    assert form_of(graph).scale == 0.25
    assert_same_numbers(graph)


def test_a_negative_softcap_turns_the_scale_round() -> None:
    graph = with_number("a = Tanh(s) m = Mul(a, c)", -3.0)
    form = form_of(graph)
    assert (form.scale, form.softcap) == (-0.75, 3.0)
    assert_same_numbers(graph)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ("B,4,S,T", "b n s t"),
        ("1,1,1,T", "1 1 1 t"),
        ("S,T", "s t"),
        ("1,4,S,T", "1 n s t"),
        ("B,1,1,T", "b 1 1 t"),
        ("T", "t"),
    ],
)
def test_a_bias_is_taken_as_it_is(shape: str, axes: str) -> None:
    graph = scores("m = Add(s, bias)", inputs=f"{QKV}, float[{shape}] bias")
    form = form_of(graph)
    [term] = form.terms
    assert (term.kind, term.axes, term.coeff) == ("bias", axes, 1.0)
    assert form.scale == 0.25
    edit = edit_of(graph)
    assert edit.call.inputs["attn_bias"] == "bias"
    assert edit.before == ()
    assert_same_numbers(graph)


@pytest.mark.parametrize(
    ("steps", "coeff"),
    [
        ("m = Add(bias, s)", 1.0),
        ("m = Sub(s, bias)", -1.0),
        ("a = Add(s, bias) m = Mul(a, half)", 0.5),
        ("a = Sub(s, bias) m = Div(a, half)", -2.0),
    ],
)
def test_the_scale_outside_a_bias_multiplies_it(steps: str, coeff: float) -> None:
    graph = scores(steps, inputs=f"{QKV}, float[4,S,T] bias", constants=f"{SCALE}, float half = {{0.5}}")
    [term] = form_of(graph).terms
    assert term.coeff == pytest.approx(coeff)
    assert_same_numbers(graph)


def test_a_bias_that_enlarges_the_scores_refuses() -> None:
    inputs = "float[1,4,S,16] q, float[1,4,T,16] k, float[1,4,T,16] v, float[3,1,S,T] bias"
    graph = model(f"{SCORES} m = Add(s, bias) {END}", inputs=inputs, outputs="float[3,4,S,16] y")
    assert refusal_of(graph).rule == "bias"


@pytest.mark.parametrize(
    ("steps", "fill", "inverted"),
    [
        ("m = Where(keep, s, low)", -10000.0, False),
        ("n = Not(keep) m = Where(n, low, s)", -10000.0, False),
        ("m = Where(keep, low, s)", -10000.0, True),
        ("a = Where(keep, s, low) m = Mul(a, half)", -5000.0, False),
        ("n = Shape(s) f = Expand(low, n) m = Where(keep, s, f)", -10000.0, False),
    ],
)
def test_a_where_on_the_scores_is_a_mask(steps: str, fill: float, inverted: bool) -> None:
    graph = scores(steps, inputs=MASK, constants=f"{LOW}, float half = {{0.5}}")
    [term] = form_of(graph).terms
    assert (term.kind, term.fill, term.inverted) == ("mask", fill, inverted)
    assert edit_of(graph).call.attributes["mask_fill"] == fill
    assert_same_numbers(graph)


def test_a_mask_with_a_tensor_in_its_other_branch_refuses() -> None:
    graph = scores("m = Where(keep, s, other)", inputs=f"{MASK}, float[B,1,S,T] other")
    assert refusal_of(graph).rule == "mask"


@pytest.mark.parametrize("steps", ["a = Mul(s, f) g = Sub(one, f) h = Mul(g, low) m = Add(h, a)",
                                   "a = Mul(s, f) g = Sub(one, f) h = Mul(g, high) m = Sub(a, h)"])  # fmt: skip
def test_a_multiplied_mask_is_a_mask(steps: str) -> None:
    """``s * m + c * (1 - m)``, as GPT-1 has it."""
    constants = f"{LOW}, float one = {{1.0}}, float high = {{10000.0}}"
    graph = scores(f"f = Cast<to=1>(keep) {steps}", inputs=MASK, constants=constants)
    [term] = form_of(graph).terms
    assert (term.kind, term.fill) == ("mask", -10000.0)
    assert_same_numbers(graph)


def test_multiplying_by_something_else_than_a_mask_refuses() -> None:
    steps = "a = Mul(s, f) g = Sub(one, f) h = Mul(g, low) m = Add(a, h)"
    graph = scores(steps, inputs=f"{QKV}, float[B,1,S,T] f", constants=f"{LOW}, float one = {{1.0}}")
    assert refusal_of(graph).rule == "scale"


def test_a_softcap_stands_inside_the_terms() -> None:
    steps = "a = Div(s, cap) b = Tanh(a) c = Mul(b, cap) m = Add(c, bias)"
    graph = scores(steps, inputs=f"{QKV}, float[S,T] bias", constants=f"{SCALE}, float cap = {{3.0}}")
    form = form_of(graph)
    assert (form.softcap, form.scale) == (3.0, pytest.approx(0.25))
    assert_same_numbers(graph)


@pytest.mark.parametrize("steps", ["a = Add(s, bias) b = Tanh(a) m = Mul(b, cap)",
                                   "a = Where(keep, s, cap) b = Tanh(a) m = Mul(b, cap)",
                                   "a = Tanh(s) b = Tanh(a) m = Mul(b, cap)"])  # fmt: skip
def test_inside_a_softcap_only_scales_are_peeled(steps: str) -> None:
    graph = scores(steps, inputs=f"{MASK}, float[S,T] bias", constants=f"{SCALE}, float cap = {{3.0}}")
    assert refusal_of(graph).rule == "softcap"


def test_a_temperature_a_head_multiplies_the_query() -> None:
    graph = scores("m = Mul(s, t)", inputs=f"{QKV}, float[4,1,1] t")
    form = form_of(graph)
    [factor] = form.query.factors
    assert (factor.tensor.name, factor.axes, factor.divides) == ("t", "n 1 1", False)
    assert_same_numbers(graph)


def test_a_factor_for_each_key_refuses() -> None:
    refusal = refusal_of(scores("m = Mul(s, t)", inputs=f"{QKV}, float[1,1,1,T] t"))
    assert refusal.rule == "scale"
    assert "isn't one number" in refusal.reason


@pytest.mark.parametrize("steps", ["t = ReduceMax<axes=[-1], keepdims=1>(s) m = Sub(s, t)",
                                   "t = ReduceMax<axes=[3], keepdims=1>(s) c = Identity(t) m = Sub(s, c)"])  # fmt: skip
def test_taking_off_the_row_maximum_changes_nothing(steps: str) -> None:
    graph = scores(steps)
    assert form_of(graph).terms == ()
    assert_same_numbers(graph)


def test_a_maximum_over_the_rows_is_a_real_difference() -> None:
    assert refusal_of(scores("t = ReduceMax<axes=[-2], keepdims=1>(s) m = Sub(s, t)")).rule == "shared"


def test_a_clamp_to_the_lowest_value_moves_to_the_bias() -> None:
    """OPT: two masks of the lowest value don't add up to -inf."""
    constants = f"{SCALE}, float low = {{-3.4028234663852886e38}}"
    graph = scores("a = Add(s, bias) m = Max(a, low)", inputs=f"{QKV}, float[B,1,S,T] bias", constants=constants)
    [term] = form_of(graph).terms
    assert term.floor == pytest.approx(-3.4028234663852886e38)
    bias = np.zeros((2, 1, 5, 7), np.float32)
    bias[:, :, 1] = -np.inf
    bias[:, :, 2, 3:] = -np.inf
    assert_same_numbers(graph, bias=bias)


def test_a_clamp_that_scores_reach_refuses() -> None:
    graph = scores("m = Max(s, low)", constants=f"{SCALE}, float low = {{-5.0}}")
    assert refusal_of(graph).rule == "clamp"


@pytest.mark.parametrize("first", [False, True])
def test_a_sink_column(first: bool) -> None:
    order, start, end = ("c, s", "{1}", "{2147483647}") if first else ("s, c", "{0}", "{-1}")
    body = f"""{SCORES} n = Shape<end=3>(s) n4 = Concat<axis=0>(n, one) c = Expand(sink, n4)
        a = Concat<axis=-1>({order}) p0 = Softmax<axis=-1>(a) p = Slice(p0, start, end, last) y = MatMul(p, v)"""
    constants = (
        f"{SCALE}, float[1,4,1,1] sink = {{0.5,-1.0,2.0,0.0}}, int64[1] one = {{1}}, int64[1] start = {start},"
        f"int64[1] end = {end}, int64[1] last = {{3}}"
    )
    graph = model(body, constants=constants)
    form = form_of(graph)
    assert form.sinks is not None
    assert (form.sinks.name, form.sinks_axes) == ("sink", "1 n 1 1")
    assert_same_numbers(graph)


def test_a_sink_that_takes_part_in_the_second_product_refuses() -> None:
    body = f"{SCORES} a = Concat<axis=-1>(s, c) p = Softmax<axis=-1>(a) y = MatMul(p, w)"
    inputs = f"{QKV}, float[B,4,S,1] c, float[B,4,U,16] w"
    assert refusal_of(model(body, inputs=inputs)).rule == "sinks"


@pytest.mark.parametrize("op", ["Relu", "Sigmoid", "Exp", "Erf"])
def test_an_op_without_a_rule_refuses_and_is_named(op: str) -> None:
    refusal = refusal_of(scores(f"m = {op}(s)"))
    assert op in refusal.reason


def test_neither_operand_is_a_score() -> None:
    """Both operands of the Add are walked; the reason is of the one that came further."""
    refusal = refusal_of(
        model("m = Add(a, b) p = Softmax(m) y = MatMul(p, v)", inputs=f"{QKV}, float[B,4,S,T] a, float[S,T] b")
    )
    assert "no product of query and key" in refusal.reason


def test_a_walk_over_many_sums_ends() -> None:
    steps = " ".join(f"x{i + 1} = Add(x{i}, x{i})" for i in range(40))
    refusal = refusal_of(
        model(f"x0 = Identity(a) {steps} p = Softmax(x40) y = MatMul(p, v)", inputs=f"{QKV}, float[B,4,S,T] a")
    )
    assert refusal.reason


def test_rows_that_the_mask_empties_become_zero() -> None:
    graph = scores("m = Where(keep, s, low)", inputs=MASK, constants=f"{SCALE}, float low = {{-inf}}")
    keep = np.ones((2, 1, 5, 7), bool)
    keep[1, 0, 3] = False
    [term] = form_of(graph).terms
    assert term.fill == -math.inf
    assert_same_numbers(graph, keep=keep)
