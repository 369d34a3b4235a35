"""The cases of real bug reports (D1 to D4, D7, D8) at the level of forms and edits, each with its numbers."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import SCALE, assert_same_numbers, edit_of, form_of, model
from onnx import ModelProto

D1_INPUTS = "float[B,4,S,64] q, float[B,4,S,64] k, float[B,4,S,64] v"
D1_OUTPUT = "float[B,4,S,64] y"
D1_REST = "p = Softmax<axis=-1>(s) y = MatMul(p, v)"
HIDDEN_SCALES = {
    "square root from the shape, on both": """n = Shape(q) m1 = Constant<value_ints=[-1]>()
        big = Constant<value_ints=[9223372036854775807]>() d = Slice(n, m1, big) f = Cast<to=1>(d) r0 = Sqrt(f)
        one = Constant<value_float=1.0>() i = Div(one, r0) r = Sqrt(i) qs = Mul(q, r)
        kt = Transpose<perm=[0,1,3,2]>(k) ks = Mul(kt, r) s = MatMul(qs, ks)""",
    "on the query": "qs = Mul(q, eighth) kt = Transpose<perm=[0,1,3,2]>(k) s = MatMul(qs, kt)",
    "divided": "kt = Transpose<perm=[0,1,3,2]>(k) raw = MatMul(q, kt) s = Div(raw, eight)",
    "einsum": 'raw = Einsum<equation="bhid,bhjd->bhij">(q, k) s = Mul(raw, eighth)',
}


@pytest.mark.parametrize("spelling", HIDDEN_SCALES.values(), ids=HIDDEN_SCALES.keys())
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 128), (3, 77)])
def test_d1_where_the_scale_hides(spelling: str, batch: int, length: int) -> None:
    constants = "float eighth = {0.125}, float eight = {8.0}"
    graph = model(f"{spelling} {D1_REST}", inputs=D1_INPUTS, outputs=D1_OUTPUT, constants=constants)
    assert form_of(graph).scale == pytest.approx(0.125)
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal((batch, 4, length, 64)).astype(np.float32) for name in "qkv"}
    assert_same_numbers(graph, **feed)


def test_d1_keys_transposed_from_sequence_first_heads() -> None:
    body = """qh = Transpose<perm=[0,2,1,3]>(q) kt = Transpose<perm=[0,2,3,1]>(k) vh = Transpose<perm=[0,2,1,3]>(v)
        raw = MatMul(qh, kt) s = Mul(raw, scale) p = Softmax<axis=-1>(s) o = MatMul(p, vh)
        y = Transpose<perm=[0,2,1,3]>(o)"""
    inputs = "float[B,S,4,64] q, float[B,S,4,64] k, float[B,S,4,64] v"
    graph = model(body, inputs=inputs, outputs="float[B,S,4,64] y")
    assert form_of(graph).layout == "BSNH"
    assert all(node.op_type == "Reshape" for node in (*edit_of(graph).before, *edit_of(graph).after))
    assert_same_numbers(graph)


def test_d2_the_nan_guard() -> None:
    rest = "b = Where(keep, zero, inf) m = Add(s, b) p = Softmax<axis=-1>(m)"
    body = "kt = Transpose<perm=[0,1,3,2]>(k) raw = MatMul(q, kt) s = Mul(raw, scale)"
    guard = "n = IsNaN(p) w = Where(n, zero, p) y = MatMul(w, v)"
    inputs = "float[2,4,8,16] q, float[2,4,8,16] k, float[2,4,8,16] v, bool[2,1,8,8] keep"
    constants = f"{SCALE}, float zero = {{0.0}}, float inf = {{-inf}}"
    keep = np.random.default_rng(1).random((2, 1, 8, 8)) < 0.7
    keep[..., 0] = True
    keep[1, 0, 5] = False
    for end, expected in ((guard, "nan_to_zero"), ("y = MatMul(p, v)", "none")):
        graph = model(f"{body} {rest} {end}", inputs=inputs, outputs="float[2,4,8,16] y", constants=constants)
        assert form_of(graph).guard == expected
        rewritten = assert_same_numbers(graph, keep=keep)
        assert {node.op_type for node in rewritten.graph.node} == {"FlashAttention"}


@pytest.mark.parametrize("factor", [0.125, 100.0])
def test_d3_the_cast_sandwich(factor: float) -> None:
    body = """raw = MatMul(q, k) wide = Cast<to=1>(raw) s = Mul(wide, c) p = Softmax<axis=-1>(s) h = Cast<to=10>(p)
        y = MatMul(h, v)"""
    inputs = "float16[1,2,32,64] q, float16[1,2,64,32] k, float16[1,2,32,64] v"
    graph = model(body, inputs=inputs, outputs="float16[1,2,32,64] y", constants=f"float c = {{{factor}}}")
    assert form_of(graph).scale == pytest.approx(factor)
    assert [node.op_type for node in edit_of(graph).before] == ["Transpose"]


D4_BIASES = ["3,1,5,13", "1,1,1,13", "5,13", "1,4,5,13", "3,1,1,13", "3,4,5,13", "13"]


def d4(steps: str, inputs: str) -> ModelProto:
    body = f"kt = Transpose<perm=[0,1,3,2]>(k) raw = MatMul(q, kt) s = Mul(raw, half) {steps} p = Softmax<axis=-1>(m)"
    return model(
        f"{body} y = MatMul(p, v)",
        inputs=f"float[3,4,5,32] q, float[3,4,13,32] k, float[3,4,13,32] v, {inputs}",
        outputs="float[3,4,5,32] y",
        constants="float half = {0.5}, float zero = {0.0}, float inf = {-inf}",
    )


@pytest.mark.parametrize("shape", D4_BIASES)
def test_d4_a_bias_of_any_shape(shape: str) -> None:
    graph = d4("m = Add(s, bias)", f"float[{shape}] bias")
    edit = edit_of(graph)
    assert edit.before == ()
    assert edit.call.attributes["scale"] == 0.5
    assert_same_numbers(graph)


@pytest.mark.parametrize("shape", D4_BIASES)
def test_d4_a_bool_mask_of_any_shape(shape: str) -> None:
    graph = d4("b = Where(keep, zero, inf) m = Add(s, b)", f"bool[{shape}] keep")
    edit = edit_of(graph)
    assert edit.before == ()
    assert edit.call.inputs["attn_mask"] == "keep"
    assert_same_numbers(graph)


def test_d4_bias_and_mask_without_their_sum() -> None:
    graph = d4("b = Where(keep, zero, inf) a = Add(bias, b) m = Add(s, a)", "float[1,4,5,13] bias, bool[3,1,1,13] keep")
    assert edit_of(graph).before == ()
    assert_same_numbers(graph)


def d7(repeat: str, constants: str) -> ModelProto:
    key, value = (repeat.replace("#", name) for name in "kv")
    body = f"{key} {value} kt = Transpose<perm=[0,1,3,2]>(k8) raw = MatMul(q, kt) s = Mul(raw, scale)"
    return model(
        f"{body} p = Softmax<axis=-1>(s) y = MatMul(p, v8)",
        inputs="float[2,8,16,64] q, float[2,2,16,64] k, float[2,2,16,64] v",
        outputs="float[2,8,16,64] y",
        constants=f"{SCALE}, {constants}",
    )


def test_d7_grouped_heads() -> None:
    repeat = "#u = Unsqueeze(#, two) #e = Expand(#u, wide) #8 = Reshape(#e, flat)"
    graph = d7(repeat, "int64[1] two = {2}, int64[5] wide = {2,2,4,16,64}, int64[4] flat = {2,8,16,64}")
    edit = edit_of(graph)
    assert (edit.call.inputs["key"], edit.call.inputs["value"]) == ("k", "v")
    assert form_of(graph).kv_num_heads == 2
    assert_same_numbers(graph)


def test_d7_the_tile_order_is_not_grouped() -> None:
    graph = d7("#8 = Tile(#, times)", "int64[4] times = {1,4,1,1}")
    assert form_of(graph).kv_num_heads == 0
    assert_same_numbers(graph)
