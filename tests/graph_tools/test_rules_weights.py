"""Each rule between the softmax and the product with the values, and each way to spell a softmax."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import QKV, SCALE, SCORES, assert_same_numbers, form_of, model, refusal_of
from onnx import ModelProto

ZERO = f"{SCALE}, float zero = {{0.0}}"


def weights(steps: str, inputs: str = QKV, constants: str = ZERO, opset: int = 17) -> ModelProto:
    """Attention whose probabilities ``p`` go through ``steps`` to ``w``."""
    return model(
        f"{SCORES} p = Softmax<axis=-1>(s) {steps} y = MatMul(w, v)", inputs=inputs, constants=constants, opset=opset
    )


@pytest.mark.parametrize(
    ("steps", "guard", "factor"),
    [
        ("w = Identity(p)", "none", 1.0),
        ("a = Cast<to=1>(p) w = Cast<to=1>(a)", "none", 1.0),
        ("n = IsNaN(p) w = Where(n, zero, p)", "nan_to_zero", 1.0),
        ("w = Mul(p, two)", "none", 2.0),
        ("w = Div(p, two)", "none", 0.5),
        ("w, m = Dropout(p)", "none", 1.0),
        ("a = Transpose<perm=[0,1,3,2]>(p) w = Transpose<perm=[0,1,3,2]>(a)", "none", 1.0),
        ("a = Unsqueeze(p, axis) w = Squeeze(a, axis)", "none", 1.0),
    ],
)
def test_what_happens_to_probabilities(steps: str, guard: str, factor: float) -> None:
    graph = weights(steps, constants=f"{ZERO}, float two = {{2.0}}, int64[1] axis = {{0}}")
    form = form_of(graph)
    assert (form.guard, form.output_scale) == (guard, factor)
    assert_same_numbers(graph)


@pytest.mark.parametrize(
    ("steps", "rule", "says"),
    [
        ("w = Mul(p, keep)", "probabilities", "no longer sums to 1"),
        ("w = Mul(p, p)", "probabilities", "read by|multiplied"),
        ("w = Where(bools, p, zero)", "probabilities", "wasn't in the scores"),
        ("w = Pow(p, two)", "probabilities", "Pow"),
        ("w = Add(p, keep)", "probabilities", "Add"),
        ("t = Constant<value_float=0.5>() on = Cast<to=9>(two) w, m = Dropout(p, t, on)", "dropout", "training mode"),
        ("w = Slice(p, start, end)", "probabilities", "sliced"),
        ("n = IsNaN(p) w = Where(n, two, p)", "probabilities", "read by 2 nodes"),
    ],
)
def test_what_is_no_attention_refuses(steps: str, rule: str, says: str) -> None:
    constants = f"{ZERO}, float two = {{2.0}}, int64[1] start = {{0}}, int64[1] end = {{1}}"
    graph = weights(steps, f"{QKV}, float[B,1,S,T] keep, bool[B,1,S,T] bools", constants)
    refusal = refusal_of(graph)
    assert refusal.rule == rule
    assert any(part in refusal.reason for part in says.split("|")), refusal.reason


def test_a_mask_repeated_after_the_softmax_empties_rows() -> None:
    """DeBERTa: the fill makes a row that is masked throughout uniform, the second mask makes it 0."""
    body = """kt = Transpose<perm=[0,1,3,2]>(k) raw = MatMul(q, kt) s = Mul(raw, scale) m = Where(keep, s, low)
        p = Softmax<axis=-1>(m) w = Where(keep, p, zero) y = MatMul(w, v)"""
    constants = f"{ZERO}, float low = {{-3.4028234663852886e38}}"
    graph = model(body, inputs=f"{QKV}, bool[B,1,S,T] keep", constants=constants)
    form = form_of(graph)
    assert form.guard == "masked_row_to_zero"
    keep = np.ones((2, 1, 5, 7), bool)
    keep[1, 0, 3] = False
    keep[0, 0, :, 4:] = False
    assert_same_numbers(graph, keep=keep)


SOFTMAXES = {
    "positive axis": "p = Softmax<axis=3>(s)",
    "default axis": "p = Softmax(s)",
    "spelled out": "t = ReduceMax<axes=[-1], keepdims=1>(s) d = Sub(s, t) e = Exp(d)"
    " n = ReduceSum<keepdims=1>(e, last) p = Div(e, n)",
    "without the maximum": "e = Exp(s) n = ReduceSum<keepdims=1>(e, last) p = Div(e, n)",
    "reciprocal": "e = Exp(s) n = ReduceSum<keepdims=1>(e, last) r = Reciprocal(n) p = Mul(e, r)",
    "log softmax": "l = LogSoftmax<axis=-1>(s) p = Exp(l)",
    "log sum exp": "n = ReduceLogSumExp<axes=[-1], keepdims=1>(s) d = Sub(s, n) p = Exp(d)",
}


@pytest.mark.parametrize("spelling", SOFTMAXES.values(), ids=SOFTMAXES.keys())
def test_ways_to_spell_a_softmax(spelling: str) -> None:
    graph = model(f"{SCORES} {spelling} y = MatMul(p, v)", constants=f"{SCALE}, int64[1] last = {{-1}}")
    assert form_of(graph).scale == 0.25
    assert_same_numbers(graph)


def test_dividing_by_the_sum_after_the_product() -> None:
    body = f"{SCORES} e = Exp(s) n = ReduceSum<keepdims=1>(e, last) o = MatMul(e, v) y = Div(o, n)"
    graph = model(body, constants=f"{SCALE}, int64[1] last = {{-1}}")
    assert form_of(graph).output.name == "y"
    assert_same_numbers(graph)


def test_a_sum_that_divides_something_else_refuses() -> None:
    body = f"{SCORES} e = Exp(s) n = ReduceSum<keepdims=1>(e, last) o = MatMul(e, v) y = Div(o, other)"
    graph = model(body, inputs=f"{QKV}, float[B,4,S,1] other", constants=f"{SCALE}, int64[1] last = {{-1}}")
    assert refusal_of(graph).rule == "late sum"


def test_softmax_with_one_more_logit_of_zero() -> None:
    body = f"""{SCORES} t = ReduceMax<axes=[-1], keepdims=1>(s) top = Max(t, zero) d = Sub(s, top) e = Exp(d)
        n = ReduceSum<keepdims=1>(e, last) m = Neg(top) x = Exp(m) all = Add(n, x) p = Div(e, all) y = MatMul(p, v)"""
    graph = model(body, constants=f"{ZERO}, int64[1] last = {{-1}}")
    assert form_of(graph).sinks_value == 0.0
    assert_same_numbers(graph)


@pytest.mark.parametrize(("axis", "opset"), [(3, 11), (-1, 12)])
def test_an_old_softmax_over_its_last_axis(axis: int, opset: int) -> None:
    body = f"{SCORES} p = Softmax<axis={axis}>(s) y = MatMul(p, v)"
    assert form_of(model(body, opset=opset)).scale == 0.25


def test_an_old_softmax_runs_over_all_axes_from_its_own_on() -> None:
    body = f"{SCORES} p = Softmax<axis=2>(s) y = MatMul(p, v)"
    assert refusal_of(model(body, opset=11)).rule == "product"


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_softmax_over_another_axis_refuses(axis: int) -> None:
    refusal = refusal_of(model(f"{SCORES} p = Softmax<axis={axis}>(s) y = MatMul(p, v)"))
    assert refusal.rule == "product"


def test_a_softmax_over_one_key() -> None:
    graph = model(
        f"{SCORES} p = Softmax<axis=-1>(s) y = MatMul(p, v)",
        inputs="float[B,4,S,16] q, float[B,4,1,16] k, float[B,4,1,16] v",
    )
    assert form_of(graph).sizes["t"] == 1
    assert_same_numbers(graph)


def test_a_cast_like_the_values() -> None:
    graph = model(f"{SCORES} p = Softmax<axis=-1>(s) n = CastLike(p, v) y = MatMul(n, v)")
    assert form_of(graph).terms == ()
    assert_same_numbers(graph)


def test_values_cast_like_the_probabilities_refuse() -> None:
    graph = model(f"{SCORES} p = Softmax<axis=-1>(s) n = CastLike(v, p) y = MatMul(s, n)")
    assert refusal_of(graph).rule == "cast"
