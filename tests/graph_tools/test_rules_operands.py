"""Each rule between an operand and its product: where the operand is cut off, and what the op is told."""

from __future__ import annotations

import pytest
from graphs import QKV, SCALE, SCORES, K, V, assert_same_numbers, edit_of, form_of, model
from onnx import ModelProto

FLAT = "float[B,S,64] q, float[B,T,64] k, float[B,T,64] v"
HEADS = "int64[4] heads = {0,0,4,16}, int64[3] merged = {0,0,64}, float scale = {0.25}"
SPLIT = """
    q4 = Reshape(q, heads) qh = Transpose<perm=[0,2,1,3]>(q4)
    v4 = Reshape(v, heads) vh = Transpose<perm=[0,2,1,3]>(v4)
"""
MERGE = "o4 = Transpose<perm=[0,2,1,3]>(o) y = Reshape(o4, merged)"
REST = "raw = MatMul(q, kt) s = Mul(raw, scale) p = Softmax<axis=-1>(s) y = MatMul(p, v)"


def key_graph(
    key: str, inputs: str = QKV, constants: str = "float scale = {0.25}", outputs: str = "float[B,4,S,16] y"
) -> ModelProto:
    """Attention with the key brought into shape by ``key``, which writes ``kt``."""
    return model(f"{key} {REST}", inputs=inputs, constants=constants, outputs=outputs)


def test_head_split_and_merge_disappear_into_the_three_dimensional_layout() -> None:
    body = f"""{SPLIT} k4 = Reshape(k, heads) kt = Transpose<perm=[0,2,3,1]>(k4)
        raw = MatMul(qh, kt) s = Mul(raw, scale) p = Softmax<axis=-1>(s) o = MatMul(p, vh) {MERGE}"""
    graph = model(body, inputs=FLAT, constants=HEADS, outputs="float[B,S,64] y")
    form = form_of(graph)
    assert form.layout == "BSNH"
    assert (form.query.axes, form.key.axes, form.value.axes) == ("b s (n d)", "b t (n d)", "b t (n e)")
    assert (form.output.name, form.output_axes, form.query.num_heads) == ("y", "b s (n e)", 4)
    edit = edit_of(graph)
    assert edit.before == ()
    assert edit.after == ()
    assert dict(edit.call.inputs) == {"query": "q", "key": "k", "value": "v"}
    rewritten = assert_same_numbers(graph)
    assert {node.op_type for node in rewritten.graph.node} == {"FlashAttention"}


@pytest.mark.parametrize(
    ("key", "axes", "scale"),
    [
        ("kt = Transpose<perm=[0,1,3,2]>(k)", "b n t d", 0.25),
        ("r = Reshape(k, folded) x = Transpose<perm=[0,2,1]>(r) kt = Reshape(x, unfolded)", "b n t d", 0.25),
        ("a = Mul(k, half) kt = Transpose<perm=[0,1,3,2]>(a)", "b n t d", 0.125),
        ("x = Transpose<perm=[0,1,3,2]>(k) kt = Mul(half, x)", "b n t d", 0.125),
        ("x = Transpose<perm=[0,1,3,2]>(k) kt = Div(x, half)", "b n t d", 0.5),
        ("x = Transpose<perm=[0,1,3,2]>(k) kt = Neg(x)", "b n t d", -0.25),
        ("i = Identity(k) kt = Transpose<perm=[0,1,3,2]>(i)", "b n t d", 0.25),
        ("u = Unsqueeze(k, axis) x = Transpose<perm=[0,1,2,4,3]>(u) kt = Squeeze(x, axis)", "b n t d", 0.25),
    ],
)
def test_keys_are_followed_to_their_source(key: str, axes: str, scale: float) -> None:
    constants = (
        "float scale = {0.25}, float half = {0.5}, int64[3] folded = {8,7,16}, int64[4] unfolded = {2,4,16,7},"
        "int64[1] axis = {0}"
    )
    inputs = "float[2,4,5,16] q, float[2,4,7,16] k, float[2,4,7,16] v"
    graph = key_graph(key, inputs, constants, "float[2,4,5,16] y")
    form = form_of(graph)
    assert (form.key.tensor.name, form.key.axes) == ("k", axes)
    assert form.scale == pytest.approx(scale)
    assert_same_numbers(graph)


def test_a_key_that_comes_transposed_gets_a_transpose() -> None:
    graph = key_graph("kt = Identity(k)", "float[B,4,S,16] q, float[B,4,16,T] k, float[B,4,T,16] v")
    assert form_of(graph).key.axes == "b n d t"
    assert [node.op_type for node in edit_of(graph).before] == ["Transpose"]
    assert_same_numbers(graph)


def test_a_vector_is_no_scale() -> None:
    """The weight of a query norm: it stays in the graph."""
    key = "a = Mul(k, gamma) kt = Transpose<perm=[0,1,3,2]>(a)"
    graph = key_graph(key, f"{QKV}, float[16] gamma")
    form = form_of(graph)
    assert form.key.tensor.name == "a"
    assert form.scale == 0.25
    assert_same_numbers(graph)


def test_an_upcast_is_peeled_where_the_result_is_narrow() -> None:
    """Scores in fp32, the rest in fp16: the op accumulates in fp32 whatever its inputs."""
    body = """qf = Cast<to=1>(q) kf = Cast<to=1>(k) kt = Transpose<perm=[0,1,3,2]>(kf) raw = MatMul(qf, kt)
        s = Mul(raw, scale) p = Softmax<axis=-1>(s) ph = Cast<to=10>(p) y = MatMul(ph, v)"""
    inputs = "float16[B,4,S,16] q, float16[B,4,T,16] k, float16[B,4,T,16] v"
    graph = model(body, inputs=inputs, outputs="float16[B,4,S,16] y")
    form = form_of(graph)
    assert (form.query.tensor.name, form.key.tensor.name) == ("q", "k")
    assert edit_of(graph).before == ()
    assert_same_numbers(graph, 5e-3)


def test_an_upcast_stays_where_the_result_is_wide() -> None:
    body = """qf = Cast<to=1>(q) kf = Cast<to=1>(k) vf = Cast<to=1>(v) kt = Transpose<perm=[0,1,3,2]>(kf)
        raw = MatMul(qf, kt) s = Mul(raw, scale) p = Softmax<axis=-1>(s) y = MatMul(p, vf)"""
    graph = model(body, inputs="float16[B,4,S,16] q, float16[B,4,T,16] k, float16[B,4,T,16] v")
    form = form_of(graph)
    assert (form.query.tensor.name, form.key.tensor.name, form.value.tensor.name) == ("qf", "kf", "vf")
    assert_same_numbers(graph, 1e-5)


GROUPED = "float[B,8,S,16] q, float[B,2,T,16] k, float[B,2,T,16] v"


def grouped(repeat: str, constants: str) -> ModelProto:
    """``repeat`` makes KEY8 of KEY; it is spelled for key and value."""
    key, value = (repeat.replace("#", letter) for letter in "kv")
    body = f"""{key} {value} kt = Transpose<perm=[0,1,3,2]>(k8) raw = MatMul(q, kt) s = Mul(raw, scale)
        p = Softmax<axis=-1>(s) y = MatMul(p, v8)"""
    return model(body, inputs=GROUPED, constants=f"float scale = {{0.25}}, {constants}", outputs="float[B,8,S,16] y")


TO_FIVE = "#n = Shape(#) #b = Slice(#n, zero, one) #l = Slice(#n, two, three)"
NUMBERS = (
    "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] four = {4},"
    "int64[1] d = {16}, int64[1] eight = {8}"
)


@pytest.mark.parametrize(
    "repeat",
    [
        f"{TO_FIVE} #u = Unsqueeze(#, two) #s = Concat<axis=0>(#b, two, four, #l, d) #e = Expand(#u, #s)"
        " #r = Concat<axis=0>(#b, eight, #l, d) #8 = Reshape(#e, #r)",
        f"{TO_FIVE} #u = Unsqueeze(#, two) #c = Concat<axis=2>(#u, #u, #u, #u)"
        " #r = Concat<axis=0>(#b, eight, #l, d) #8 = Reshape(#c, #r)",
        "#8 = Gather<axis=1>(#, each)",
    ],
)
def test_repeated_heads_become_grouped_heads(repeat: str) -> None:
    graph = grouped(repeat, f"{NUMBERS}, int64[8] each = {{0,0,0,0,1,1,1,1}}")
    form = form_of(graph)
    assert form.kv_num_heads == 2
    assert (form.query.axes, form.key.axes, form.value.axes) == ("b (n g) s d", "b n t d", "b n t e")
    assert (form.key.tensor.name, form.value.tensor.name) == ("k", "v")
    assert edit_of(graph).before == ()
    assert_same_numbers(graph)


@pytest.mark.parametrize("repeat", ["#8 = Tile(#, times)", "#8 = Concat<axis=1>(#, #, #, #)"])
def test_heads_in_the_order_of_a_tile_are_not_grouped(repeat: str) -> None:
    """Head order 0,1,0,1,...: query head 1 reads key head 1, which no grouping gives."""
    graph = grouped(repeat, "int64[4] times = {1,4,1,1}")
    form = form_of(graph)
    assert form.kv_num_heads == 0
    assert form.key.tensor.name == "k8"
    assert_same_numbers(graph)


def test_one_key_head_for_all() -> None:
    inputs = "float[B,8,S,16] q, float[B,1,T,16] k, float[B,1,T,16] v"
    graph = key_graph("kt = Transpose<perm=[0,1,3,2]>(k)", inputs, outputs="float[B,8,S,16] y")
    form = form_of(graph)
    assert form.op_axes["N"] == "g"
    assert form.op_axes["M"] == ""
    assert_same_numbers(graph)


def test_heads_folded_into_rows() -> None:
    """Multi-query attention as one product of (N*S, D) rows, the mask on (N, S) again."""
    body = """kt = Transpose<perm=[0,2,1]>(k) qf = Reshape(q, folded) raw = MatMul(qf, kt) s = Mul(raw, scale)
        s4 = Reshape(s, unfolded) m = Add(s4, bias) p = Softmax<axis=-1>(m) pf = Reshape(p, refolded)
        o = MatMul(pf, v) y = Reshape(o, out)"""
    inputs = "float[2,8,5,16] q, float[2,7,16] k, float[2,7,16] v, float[2,1,5,7] bias"
    constants = (
        "float scale = {0.25}, int64[3] folded = {2,40,16}, int64[4] unfolded = {2,8,5,7},"
        "int64[3] refolded = {2,40,7}, int64[4] out = {2,8,5,16}"
    )
    graph = model(body, inputs=inputs, constants=constants, outputs="float[2,8,5,16] y")
    form = form_of(graph)
    assert (form.op_axes["S"], form.op_axes["N"]) == ("s", "g")
    assert [node.op_type for node in edit_of(graph).before if node.op_type == "Expand"] == []
    assert_same_numbers(graph)


def test_batches_folded_into_heads() -> None:
    """Products of (B*N, S, D): what diffusers and bmm give."""
    body = f"kt = Transpose<perm=[0,2,1]>(k) {REST}"
    graph = model(body, inputs="float[B,S,16] q, float[B,T,16] k, float[B,T,16] v", outputs="float[B,S,16] y")
    form = form_of(graph)
    assert (form.layout, form.query.axes, form.query.num_heads) == ("BSNH", "b s d", 1)
    assert_same_numbers(graph)


@pytest.mark.parametrize(
    ("shape", "query"),
    [("2,1,4,6,16", "b 1 n s d"), ("2,3,4,6,16", "b1 b2 n s d")],
)
def test_more_than_four_axes_are_reshaped_round_the_op(shape: str, query: str) -> None:
    body = f"kt = Transpose<perm=[0,1,2,4,3]>(k) {REST}"
    graph = model(body, inputs=f"float[{shape}] q, float[{shape}] k, float[{shape}] v", outputs=f"float[{shape}] y")
    assert form_of(graph).query.axes == query
    assert_same_numbers(graph)


def test_windows_with_a_bias_of_their_own_become_heads() -> None:
    """Swin: (B*W) batches, a mask for each of the W windows; no copy of the mask for each batch is made."""
    body = """kt = Transpose<perm=[0,1,3,2]>(k) raw = MatMul(q, kt) s = Mul(raw, scale) a = Add(s, rel)
        s5 = Reshape(a, five) m = Add(s5, shift) s4 = Reshape(m, four) p = Softmax<axis=-1>(s4) y = MatMul(p, v)"""
    inputs = "float[8,2,5,16] q, float[8,2,5,16] k, float[8,2,5,16] v, float[1,2,5,5] rel, float[1,4,1,5,5] shift"
    constants = "float scale = {0.25}, int64[5] five = {2,4,2,5,5}, int64[4] four = {8,2,5,5}"
    graph = model(body, inputs=inputs, constants=constants, outputs="float[8,2,5,16] y")
    assert all(node.op_type != "Expand" for node in edit_of(graph).before)
    assert_same_numbers(graph)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("bnsd,bntd->bnst", "bnst,bnte->bnse"),
        (" b n s d , b n t d -> b n s t", "bnst,bnte->bnse"),
        ("bntd,bnsd->bnst", "bnte,bnst->bnse"),
    ],
)
def test_einsum(first: str, second: str) -> None:
    operands = ("k, q", "v, p") if first.startswith("bnt") else ("q, k", "p, v")
    body = f"""raw = Einsum<equation="{first}">({operands[0]}) s = Mul(raw, scale) p = Softmax<axis=-1>(s)
        y = Einsum<equation="{second}">({operands[1]})"""
    graph = model(body)
    assert form_of(graph).key.axes == "b n t d"
    assert_same_numbers(graph)


def test_einsum_over_sequence_first_tensors() -> None:
    body = """raw = Einsum<equation="ibnd,jbnd->bnij">(q, k) s = Mul(raw, scale) p = Softmax<axis=3>(s)
        y = Einsum<equation="bnij,jbnd->ibnd">(p, v)"""
    graph = model(body, inputs="float[S,B,4,16] q, float[T,B,4,16] k, float[T,B,4,16] v", outputs="float[S,B,4,16] y")
    assert form_of(graph).query.axes == "s b n d"
    assert_same_numbers(graph)


def test_transposed_scores_and_probabilities_on_the_right() -> None:
    body = """qt = Transpose<perm=[0,1,3,2]>(q) raw = MatMul(k, qt) s = Mul(raw, scale) p = Softmax<axis=-2>(s)
        vt = Transpose<perm=[0,1,3,2]>(v) o = MatMul(vt, p) y = Transpose<perm=[0,1,3,2]>(o)"""
    graph = model(body)
    form = form_of(graph)
    assert (form.query.tensor.name, form.key.tensor.name, form.value.tensor.name) == ("q", "k", "v")
    assert edit_of(graph).before == ()
    assert_same_numbers(graph)


def test_a_scale_of_an_unknown_head_size() -> None:
    """No number is known, but it is provably 1/sqrt(D)."""
    body = """n = Shape(q) three = Constant<value_int=3>() d = Gather<axis=0>(n, three) f = Cast<to=1>(d)
        r = Sqrt(f) kt = Transpose<perm=[0,1,3,2]>(k) raw = MatMul(q, kt) s = Div(raw, r)
        p = Softmax<axis=-1>(s) y = MatMul(p, v)"""
    graph = model(body, inputs="float[B,4,S,D] q, float[B,4,T,D] k, float[B,4,T,D] v", outputs="float[B,4,S,D] y")
    form = form_of(graph)
    assert form.scale == 0.0
    assert "scale" not in edit_of(graph).call.attributes


QUANTISED = f"{SCALE}, float step = {{0.05}}, uint8 zero = {{128}}"


def test_quantised_operands_are_read_behind_their_dequantisation() -> None:
    """Their shapes are known without value_info."""
    body = (
        "a = QuantizeLinear(q, step, zero) qq = DequantizeLinear(a, step, zero)"
        " kt = Transpose<perm=[0,1,3,2]>(k) b, bs, bz = DynamicQuantizeLinear(kt) kq = DequantizeLinear(b, bs, bz)"
        " raw = MatMul(qq, kq) s = Mul(raw, scale) p = Softmax<axis=-1>(s) y = MatMul(p, v)"
    )
    graph = model(body, constants=QUANTISED)
    assert form_of(graph).query.tensor.name == "qq"
    assert_same_numbers(graph)


def test_packed_weights_of_a_projection() -> None:
    """int4 weights: MatMulNBits, as quantised language models have it."""
    body = (
        "a = com.microsoft.MatMulNBits<K=64, N=64, bits=4, block_size=32>(x, packed, steps)"
        " h = Reshape(a, heads) n = Transpose<perm=[0,2,1,3]>(h) kt = Transpose<perm=[0,1,3,2]>(k)"
        " raw = MatMul(n, kt) s = Mul(raw, scale) p = Softmax<axis=-1>(s) y = MatMul(p, v)"
    )
    inputs = f"float[B,S,64] x, {K}, {V}, uint8[64,2,16] packed, float[128] steps"
    constants = f"{SCALE}, int64[4] heads = {{0,0,4,16}}"
    graph = model(body, inputs=inputs, constants=constants, domains=("com.microsoft",))
    assert form_of(graph).query.head_size == 16


def test_a_scale_that_each_call_of_a_function_gives() -> None:
    body = " ".join((SCORES.replace("scale", "c"), "p = Softmax<axis=-1>(s) y = MatMul(p, v)"))
    function = (
        '<domain: "local", opset_import: ["" : 17]> attend <factor> (q, k, v) => (y)'
        f" {{ c = Constant<value_float: float = @factor>() {body} }}"
    )
    calls = "a = local.attend<factor=0.25>(q, k, v) y = local.attend<factor=0.5>(a, k, v)"
    graph = model(calls, functions=function, domains=("local",))
    [factor] = form_of(graph).query.factors
    assert not factor.divides
    assert_same_numbers(graph)
