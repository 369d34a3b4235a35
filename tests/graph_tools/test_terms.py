"""Several biases and masks at once: the order, the numbers, and no sum that needn't be made."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import QKV, SCALE, SCORES, assert_same_numbers, edit_of, form_of, model, refusal_of
from onnx import ModelProto

LOW = (
    f"{SCALE}, float lowest = {{-3.4028234663852886e38}}, float inf = {{-inf}}, float zero = {{0.0}},"
    "float one = {1.0}, float ten = {-10000.0}"
)
BOTH = f"{QKV}, float[1,4,S,T] rel, bool[B,1,1,T] keep"


def scores(steps: str, inputs: str = BOTH, constants: str = LOW) -> ModelProto:
    return model(f"{SCORES} {steps} p = Softmax<axis=-1>(m) y = MatMul(p, v)", inputs=inputs, constants=constants)


def ops(graph: ModelProto) -> list[str]:
    return [node.op_type for node in edit_of(graph).before]


@pytest.mark.parametrize(
    "steps",
    [
        "b = Where(keep, zero, lowest) a = Add(s, rel) m = Add(a, b)",
        "b = Where(keep, zero, lowest) r = Add(rel, b) m = Add(s, r)",
        "a = Add(s, rel) m = Where(keep, a, lowest)",
        "b = Where(keep, zero, inf) c = Add(s, b) m = Add(c, rel)",
    ],
)
def test_bias_and_mask_stay_apart(steps: str) -> None:
    graph = scores(steps)
    assert sorted(term.kind for term in form_of(graph).terms) == ["bias", "mask"]
    edit = edit_of(graph)
    assert dict(edit.call.inputs) | {"query": "", "key": "", "value": ""} == {
        "query": "", "key": "", "value": "", "attn_bias": "rel", "attn_mask": "keep"
    }  # fmt: skip
    assert edit.before == ()
    assert_same_numbers(graph)


def test_a_mask_that_is_scaled_stays_apart_too() -> None:
    """T5 of transformers 4: ``(1 - mask) * lowest`` beside a relative bias; integers are taken to be 0 and 1."""
    steps = "f = Cast<to=1>(keep) g = Sub(one, f) h = Mul(g, lowest) r = Add(rel, h) m = Add(s, r)"
    graph = scores(steps, inputs=BOTH.replace("bool", "int64"))
    [bias, mask] = form_of(graph).terms
    assert (bias.kind, mask.kind) == ("bias", "mask")
    assert "0 and 1" in mask.note
    assert "Add" not in ops(graph)
    assert_same_numbers(graph)


def test_the_same_mask_alone_stays_additive() -> None:
    steps = "f = Cast<to=1>(keep) g = Sub(one, f) h = Mul(g, lowest) m = Add(s, h)"
    graph = scores(steps, inputs=BOTH.replace("bool", "int64"))
    [term] = form_of(graph).terms
    assert term.kind == "bias"


def test_two_biases_are_added_in_their_smallest_shape() -> None:
    graph = scores("a = Add(s, rel) m = Add(a, other)", inputs=f"{QKV}, float[1,4,S,T] rel, float[S,T] other")
    assert len(form_of(graph).terms) == 2
    assert ops(graph).count("Add") == 1
    assert "Expand" not in ops(graph)
    assert_same_numbers(graph)


def test_two_additive_masks_of_the_lowest_value_add_up() -> None:
    """-3.4e38 twice is -inf: a key that both masks hide is lower than one that one of them does."""
    steps = "a = Where(rows, zero, lowest) b = Where(keep, zero, lowest) c = Add(s, a) m = Add(c, b)"
    graph = scores(steps, inputs=f"{BOTH}, bool[1,1,S,T] rows")
    rows, keep = np.ones((1, 1, 5, 7), bool), np.ones((2, 1, 1, 7), bool)
    rows[..., 1, :5] = False
    keep[1, ..., 3:] = False
    assert_same_numbers(graph, rows=rows, keep=keep)


def test_two_masks_of_one_fill_are_joined() -> None:
    graph = scores("a = Where(rows, s, inf) m = Where(keep, a, inf)", inputs=f"{BOTH}, bool[1,1,S,T] rows")
    assert "And" in ops(graph)
    assert_same_numbers(graph)


def test_two_masks_of_different_fills_keep_their_order() -> None:
    graph = scores("a = Where(rows, s, lowest) m = Where(keep, a, inf)", inputs=f"{BOTH}, bool[1,1,S,T] rows")
    rows, keep = np.ones((1, 1, 5, 7), bool), np.ones((2, 1, 1, 7), bool)
    rows[..., 1, :] = False
    keep[1, ..., 3:] = False
    assert_same_numbers(graph, rows=rows, keep=keep)


def test_a_mask_before_a_bias_of_padding() -> None:
    """GPT-2 of transformers 4: the causal Where, then the padding added; a left-padded row has to come out the same."""
    steps = "a = Where(rows, s, lowest) f = Cast<to=1>(pad) g = Sub(one, f) h = Mul(g, lowest) m = Add(a, h)"
    graph = scores(steps, inputs=f"{QKV}, bool[1,1,S,T] rows, int64[B,1,1,T] pad")
    rows = np.tril(np.ones((1, 1, 5, 7), bool))
    pad = np.ones((2, 1, 1, 7), np.int64)
    pad[1, ..., :2] = 0
    assert_same_numbers(graph, rows=rows, pad=pad)


def test_a_small_fill_before_a_bias_of_padding() -> None:
    """GPT-1: -10000 where masked, and the lowest value added for padding. The padding wins wherever it stands."""
    steps = "a = Where(rows, s, ten) f = Cast<to=1>(pad) g = Sub(one, f) h = Mul(g, lowest) m = Add(a, h)"
    graph = scores(steps, inputs=f"{QKV}, bool[1,1,S,T] rows, int64[B,1,1,T] pad")
    bias, mask = form_of(graph).terms
    assert (bias.kind, mask.kind, mask.fill) == ("bias", "mask", -10000.0)
    assert mask.unless is not None
    rows = np.tril(np.ones((1, 1, 5, 7), bool))
    pad = np.ones((2, 1, 1, 7), np.int64)
    pad[1, ..., :2] = 0
    pad[0, ..., 5:] = 0
    assert_same_numbers(graph, rows=rows, pad=pad)


def test_a_small_fill_before_any_bias_refuses() -> None:
    graph = scores("a = Where(keep, s, ten) m = Add(a, rel)")
    refusal = refusal_after_lowering(graph)
    assert refusal == "mask"


def refusal_after_lowering(graph: ModelProto) -> str:
    from ortflash.graph_tools.find import Analysis
    from ortflash.graph_tools.normal_form import Refusal

    analysis = Analysis(graph)
    edit = analysis.edit(analysis.sites[0])
    assert isinstance(edit, Refusal)
    return edit.rule


def test_a_minus_infinity_mask_moves_behind_a_bias() -> None:
    graph = scores("a = Where(keep, s, inf) m = Add(a, rel)")
    assert [term.kind for term in form_of(graph).terms] == ["bias", "mask"]
    assert_same_numbers(graph)


@pytest.mark.parametrize(
    "steps",
    [
        "n = Shape(s) z = ConstantOfShape(n) b = Mul(z, one) m = Add(s, b)",
        "b = Mul(zero, one) m = Add(s, b)",
        "n = Shape(s) b = Expand(zero, n) m = Add(s, b)",
    ],
)
def test_a_bias_of_zeros_goes(steps: str) -> None:
    """Baddbmm with beta 0, as diffusers has it."""
    graph = scores(steps)
    assert form_of(graph).terms == ()
    assert_same_numbers(graph)


def test_zero_times_an_unknown_tensor_stays() -> None:
    """It is NaN where the tensor is infinite."""
    graph = scores("b = Mul(rel, zero) m = Add(s, b)")
    assert [term.kind for term in form_of(graph).terms] == ["bias"]


def test_a_bias_is_not_expanded() -> None:
    graph = scores("n = Shape(s) b = Expand(row, n) m = Add(s, b)", inputs=f"{QKV}, float[B,1,1,T] row")
    [term] = form_of(graph).terms
    assert (term.tensor.name, term.axes) == ("row", "b 1 1 t")
    assert_same_numbers(graph)


def test_an_fp16_fill_stays_additive() -> None:
    """-65504 doesn't swallow a score: half the spacing there is 16."""
    half = "scale = Cast<to=10>(wide) lowest = Cast<to=10>(low) zero = Cast<to=10>(none)"
    body = f"{half} {SCORES} b = Where(keep, zero, lowest) m = Add(s, b) p = Softmax<axis=-1>(m) y = MatMul(p, v)"
    inputs = "float16[B,4,S,16] q, float16[B,4,T,16] k, float16[B,4,T,16] v, bool[B,1,1,T] keep"
    constants = "float wide = {0.25}, float low = {-65504.0}, float none = {0.0}"
    graph = model(body, inputs=inputs, constants=constants, outputs="float16[B,4,S,16] y")
    assert [term.kind for term in form_of(graph).terms] == ["bias"]
    assert_same_numbers(graph, 5e-3)


@pytest.mark.parametrize("place", ["bias", "probabilities"])
def test_an_unknown_number_on_a_bias_or_on_the_probabilities_refuses(place: str) -> None:
    """A scale of 1/sqrt(T) can't be an attribute."""
    number = "n = Shape(k) two = Constant<value_int=2>() t = Gather<axis=0>(n, two) f = Cast<to=1>(t) r = Sqrt(f)"
    body = {
        "bias": "a = Add(s, rel) m = Div(a, r) p = Softmax<axis=-1>(m) y = MatMul(p, v)",
        "probabilities": "p = Softmax<axis=-1>(s) w = Mul(p, r) y = MatMul(w, v)",
    }[place]
    assert refusal_of(model(f"{number} {SCORES} {body}", inputs=BOTH, constants=LOW)).rule == "scale"
