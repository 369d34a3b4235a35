"""Operators that are an attention already: the facts they stand for, and what becomes a node of its own."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import QKV, assert_same_numbers, draw, edit_of, form_of, fused, model, refusal_of, run

import ortflash

ATTENTION = "y = Attention<{}>(q, k, v{})"
FLAT = "float[B,S,64] q, float[B,T,64] k, float[B,T,64] v"
FLAT_OUT = "float[B,S,64] y"
GROUPED = "float[B,S,64] q, float[B,S,32] k, float[B,S,32] v, int32[B] lengths, int32 total"
MICROSOFT = ("com.microsoft",)


@pytest.mark.parametrize(
    ("attributes", "inputs", "more", "expected"),
    [
        ("scale=0.5", "", "", {"scale": 0.5}),
        ("is_causal=1", "", "", {"is_causal": True, "causal_alignment": "top_left"}),
        ("softcap=3.0", "", "", {"softcap": 3.0}),
        ("softcap=3.0", ", float[S,T] m", ", m", {"softcap": 3.0}),
        ("is_causal=0", ", bool[B,1,S,T] m", ", m", {}),
        ("is_causal=0", ", float[B,4,S,T] m", ", m", {}),
        ("is_causal=1", ", bool[S,T] m", ", m", {"is_causal": True}),
    ],
)
def test_the_standard_attention(attributes: str, inputs: str, more: str, expected: dict[str, object]) -> None:
    graph = model(ATTENTION.format(attributes, more), inputs=QKV + inputs, constants="", opset=23)
    form = form_of(graph)
    for name, value in expected.items():
        assert getattr(form, name) == value
    assert edit_of(graph).before == ()
    assert_same_numbers(graph)


def test_transposes_round_a_standard_attention_disappear() -> None:
    body = """q4 = Reshape(q, heads) qh = Transpose<perm=[0,2,1,3]>(q4) k4 = Reshape(k, heads)
        kh = Transpose<perm=[0,2,1,3]>(k4) v4 = Reshape(v, heads) vh = Transpose<perm=[0,2,1,3]>(v4)
        o = Attention(qh, kh, vh) ot = Transpose<perm=[0,2,1,3]>(o) y = Reshape(ot, merged)"""
    constants = "int64[4] heads = {0,0,4,16}, int64[3] merged = {0,0,64}"
    graph = model(body, inputs=FLAT, outputs=FLAT_OUT, constants=constants, opset=23)
    assert form_of(graph).layout == "BSNH"
    assert {node.op_type for node in fused(graph).graph.node} == {"FlashAttention"}


def test_three_dimensional_standard_attention_with_grouped_heads() -> None:
    body = "y = Attention<q_num_heads=8, kv_num_heads=2>(q, k, v)"
    inputs = "float[B,S,64] q, float[B,T,16] k, float[B,T,16] v"
    graph = model(body, inputs=inputs, outputs=FLAT_OUT, constants="", opset=23)
    form = form_of(graph)
    assert (form.query.num_heads, form.kv_num_heads) == (8, 2)
    assert_same_numbers(graph)


def test_a_cache_of_the_standard_attention_is_concatenated_before() -> None:
    body = "y, pk, pv = Attention<is_causal=1>(q, k, v, , past_k, past_v)"
    inputs = f"{QKV}, float[B,4,L,16] past_k, float[B,4,L,16] past_v".replace("T", "S")
    outputs = "float[B,4,S,16] y, float[B,4,A,16] pk, float[B,4,A,16] pv"
    graph = model(body, inputs=inputs, outputs=outputs, constants="", opset=23)
    assert form_of(graph).causal_alignment == "bottom_right"
    rewritten = assert_same_numbers(graph)
    assert sorted(node.op_type for node in rewritten.graph.node) == ["Concat", "Concat", "FlashAttention"]


def test_key_lengths_of_the_standard_attention() -> None:
    graph = model("y = Attention<is_causal=1>(q, k, v, , , , n)", inputs=f"{QKV}, int64[B] n", constants="", opset=24)
    form = form_of(graph)
    assert form.key_lengths is not None
    assert form.causal_alignment == "bottom_right"
    assert_same_numbers(graph, n=np.array([6, 7]))


def test_scores_of_the_standard_attention_that_are_read_refuse() -> None:
    body = "y, pk, pv, y2 = Attention(q, k, v)"
    graph = model(body, constants="", opset=23, outputs="float[B,4,S,16] y, float[B,4,S,T] y2")
    assert refusal_of(graph).rule == "shared"


@pytest.mark.parametrize(
    ("attributes", "inputs", "more"),
    [
        ("num_heads=4", "", ""),
        ("num_heads=4, scale=0.2", "", ""),
        ("num_heads=4", ", float[192] b", ", b"),
        ("num_heads=4", ", int32[B,T] m", ", , m"),
        ("num_heads=4, mask_filter_value=-3.0", ", int32[B,T] m", ", , m"),
        ("num_heads=4", ", int32[B] m", ", , m"),
        ("num_heads=4", ", float[B,4,S,T] a", ", , , a"),
        ("num_heads=4", ", int32[B,T] m, float[1,4,S,T] a", ", , m, a"),
    ],
)
def test_multi_head_attention(attributes: str, inputs: str, more: str) -> None:
    body = f"y = com.microsoft.MultiHeadAttention<{attributes}>(q, k, v{more})"
    graph = model(body, inputs=FLAT + inputs, outputs=FLAT_OUT, constants="", domains=MICROSOFT)
    lengths = {"m": np.array([3, 7], np.int32)} if "int32[B] m" in inputs else {}
    assert_same_numbers(graph, **lengths)


def test_causal_multi_head_attention() -> None:
    body = "y = com.microsoft.MultiHeadAttention<num_heads=4, unidirectional=1>(q, k, v)"
    graph = model(body, inputs=FLAT.replace("T", "S"), outputs=FLAT_OUT, constants="", domains=MICROSOFT)
    assert form_of(graph).is_causal
    assert_same_numbers(graph)
    other = model(body, inputs=FLAT, outputs=FLAT_OUT, constants="", domains=MICROSOFT)
    assert refusal_of(other).rule == "causal"


@pytest.mark.parametrize("keys_only", [False, True])
def test_packed_multi_head_attention(keys_only: bool) -> None:
    """ONNX Runtime's CPU has no kernel for packed inputs, so the fused graph is held against the unpacked node."""
    packed = "float[B,S,64] q, float[B,T,4,2,16] kv" if keys_only else "float[B,S,4,3,16] qkv"
    names = "q, kv" if keys_only else "qkv"
    graph = model(
        f"y = com.microsoft.MultiHeadAttention<num_heads=4>({names})",
        inputs=packed,
        outputs=FLAT_OUT,
        constants="",
        domains=MICROSOFT,
    )
    plain = model(
        "y = com.microsoft.MultiHeadAttention<num_heads=4>(q, k, v)",
        inputs=FLAT,
        outputs=FLAT_OUT,
        constants="",
        domains=MICROSOFT,
    )
    feed = draw(graph)
    parts = feed["kv" if keys_only else "qkv"]
    unpacked = [parts[:, :, :, place].reshape(*parts.shape[:2], 64) for place in range(parts.shape[3])]
    query = [feed["q"]] if keys_only else []
    expected = run(plain, dict(zip("qkv", [*query, *unpacked], strict=True)))
    np.testing.assert_allclose(run(fused(graph), feed)[0], expected[0], rtol=1e-4, atol=2e-5)


def test_multi_head_attention_with_a_cache_refuses() -> None:
    body = "y = com.microsoft.MultiHeadAttention<num_heads=4>(q, k, v, , , , past_k, past_v)"
    inputs = f"{FLAT}, float[B,4,L,16] past_k, float[B,4,L,16] past_v"
    assert refusal_of(model(body, inputs=inputs, outputs=FLAT_OUT, constants="", domains=MICROSOFT)).rule == "cache"


@pytest.mark.parametrize(
    ("inputs", "more"),
    [("", ""), (", int32[B,S] m", ", m"), (", int32[B] m", ", m"), (", int32[B,S,S] m", ", m")],
)
def test_packed_attention_projects_before(inputs: str, more: str) -> None:
    body = f"y = com.microsoft.Attention<num_heads=4>(x, w, b{more})"
    graph = model(
        body,
        inputs=f"float[B,S,64] x, float[64,192] w, float[192] b{inputs}",
        outputs=FLAT_OUT,
        constants="",
        domains=MICROSOFT,
    )
    lengths = {"m": np.array([3, 5], np.int32)} if "int32[B] m" in inputs else {}
    assert_same_numbers(graph, 2e-4, **lengths)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("num_heads=4, kv_num_heads=2", {"is_causal": True, "kv_num_heads": 2}),
        ("num_heads=4, kv_num_heads=2, local_window_size=3", {"window_left": 2}),
        ("num_heads=4, kv_num_heads=2, softcap=4.0", {"softcap": 4.0}),
        ("num_heads=4, kv_num_heads=2, smooth_softmax=1", {"sinks_value": 0.0}),
        ("num_heads=4, kv_num_heads=2, scale=0.3", {}),
    ],
)
def test_group_query_attention_of_a_prompt(attributes: str, expected: dict[str, object]) -> None:
    body = f"y, pk, pv = com.microsoft.GroupQueryAttention<{attributes}>(q, k, v, , , lengths, total)"
    outputs = f"{FLAT_OUT}, float[B,2,S,16] pk, float[B,2,S,16] pv"
    graph = model(body, inputs=GROUPED, outputs=outputs, constants="", domains=MICROSOFT)
    form = form_of(graph)
    for name, value in expected.items():
        assert getattr(form, name) == value
    lengths, total = np.array([4, 2], np.int32), np.array(5, np.int32)
    assert_same_numbers(graph, 5e-5, lengths=lengths, total=total)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_group_query_attention_that_rotates(interleaved: int) -> None:
    attributes = f"num_heads=4, kv_num_heads=2, do_rotary=1, rotary_interleaved={interleaved}"
    body = f"y, pk, pv = com.microsoft.GroupQueryAttention<{attributes}>(x, , , , , lengths, total, cos, sin)"
    inputs = "float[B,S,128] x, int32[B] lengths, int32 total, float[8,8] cos, float[8,8] sin"
    outputs = f"{FLAT_OUT}, float[B,2,S,16] pk, float[B,2,S,16] pv"
    graph = model(body, inputs=inputs, outputs=outputs, constants="", domains=MICROSOFT)
    lengths, total = np.array([4, 4], np.int32), np.array(5, np.int32)
    assert_same_numbers(graph, 5e-5, lengths=lengths, total=total)


def test_group_query_attention_with_a_past_refuses() -> None:
    body = "y, pk, pv = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2>(q, k, v, a, b, lengths, total)"
    inputs = f"{GROUPED}, float[B,2,L,16] a, float[B,2,L,16] b"
    outputs = f"{FLAT_OUT}, float[B,2,M,16] pk, float[B,2,M,16] pv"
    assert refusal_of(model(body, inputs=inputs, outputs=outputs, constants="", domains=MICROSOFT)).rule == "cache"


def test_a_file_without_the_import_of_its_fused_nodes() -> None:
    """As ONNX Runtime's optimizer writes it, and ONNX Runtime runs it; one such node stays."""
    graph = model(
        "a = com.microsoft.Gelu(q) kt = Transpose<perm=[0,1,3,2]>(k) s = MatMul(a, kt)"
        " p = Softmax<axis=-1>(s) y = MatMul(p, v)",
        domains=MICROSOFT,
    )
    del graph.opset_import[1]
    assert ortflash.rewrite(graph).exit_code == 0
    assert_same_numbers(graph)
