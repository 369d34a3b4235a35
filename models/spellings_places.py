"""Where attention hides: subgraphs, local functions, fused ops of other runtimes, shared tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from graph_text import GROUPED, QKV, Q, Y
from spelling import END, add

# subgraphs and functions

add(
    "if_both_branches",
    """y = If (flag) <
        then_branch = then_graph () => (float[B,4,S,16] a) {
            kt1 = Transpose<perm=[0,1,3,2]>(k)
            raw1 = MatMul(q, kt1)
            s1 = Mul(raw1, scale)
            p1 = Softmax<axis=-1>(s1)
            a = MatMul(p1, v) },
        else_branch = else_graph () => (float[B,4,S,16] b) {
            kt2 = Transpose<perm=[0,1,3,2]>(k)
            raw2 = MatMul(q, kt2)
            s2 = Div(raw2, scale)
            p2 = Softmax<axis=-1>(s2)
            b = MatMul(p2, v) }
    >""",
    inputs=f"bool flag, {QKV}",
    fusable=2,
    flag=np.array(True),
)
add(
    "loop_body",
    """y = Loop (trips, yes, q) <body = body (int64 i, bool c, float[B,4,S,16] x) => (bool c1, float[B,4,S,16] x1) {
        c1 = Identity(c)
        kt = Transpose<perm=[0,1,3,2]>(k)
        raw = MatMul(x, kt)
        s = Mul(raw, scale)
        p = Softmax<axis=-1>(s)
        x1 = MatMul(p, v) }>""",
    constants="float scale = {0.25}, int64 trips = {3}, bool yes = {1}",
)
add(
    "scan_body",
    """y = Scan <num_scan_inputs=1, body = body (float[4,S,16] x) => (float[4,S,16] x1) {
        raw = MatMul(x, kt)  s = Mul(raw, scale)  p = Softmax<axis=-1>(s)  x1 = MatMul(p, v) }> (q)""",
    inputs=f"{Q}, float[4,16,T] kt, float[4,T,16] v",
)
LOCAL = '<domain: "local", opset_import: ["" : 17]>\n'
add(
    "local_function",
    "a = local.Attend(q, k, v)  y = local.Attend(a, k, v)",
    domains=("local",),
    constants="",
    functions=LOCAL
    + """
    Attend (x, k, v) => (o) { c = Constant<value_float=0.25>()
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(x, kt)
    s = Mul(raw, c)
    p = Softmax<axis=-1>(s)
    o = MatMul(p, v) }
    """,
)
add(
    "nested_functions",
    "y = local.Outer(q, k, v)",
    domains=("local",),
    constants="",
    functions="""
    <domain: "local", opset_import: ["" : 17, "local" : 1]>Outer (x, k, v) => (o) { i = Identity(x)
    o = local.Attend(i, k, v) }
    """
    + LOCAL
    + """
    Attend (x, k, v) => (o) { c = Constant<value_float=0.25>()
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(x, kt)
    s = Mul(raw, c)
    p = Softmax<axis=-1>(s)
    o = MatMul(p, v) }
    """,
)

# fused ops as inputs

for _name, _inputs, _call, _out in (
    ("plain", QKV, "Attention(q, k, v)", Y),
    ("causal", QKV, "Attention<is_causal=1, scale=0.2>(q, k, v)", Y),
    ("bool_mask", f"{QKV}, bool[B,1,S,T] keep", "Attention(q, k, v, keep)", Y),
    ("float_mask", f"{QKV}, float[S,T] bias", "Attention(q, k, v, bias)", Y),
    ("softcap", QKV, "Attention<softcap=5.0>(q, k, v)", Y),
    (
        "three_dims",
        "float[B,S,64] q, float[B,T,32] k, float[B,T,32] v",
        "Attention<q_num_heads=4, kv_num_heads=2>(q, k, v)",
        "float[B,S,64] y",
    ),
    ("grouped", GROUPED, "Attention(q, k, v)", Y),
    ("precision", QKV, "Attention<softmax_precision=1>(q, k, v)", Y),
):
    add(f"attention23_{_name}", f"y = {_call}", inputs=_inputs, outputs=_out, opset=23, constants="")
add(
    "attention23_past",
    "y, present_k, present_v = Attention<is_causal=0>(q, k, v, , past_k, past_v)",
    opset=23,
    constants="",
    inputs=f"{QKV}, float[B,4,L,16] past_k, float[B,4,L,16] past_v",
    outputs=f"{Y}, float[B,4,M,16] present_k, float[B,4,M,16] present_v",
)
add(
    "attention24_lengths",
    "y = Attention(q, k, v, , , , lengths)",
    opset=24,
    constants="",
    inputs=f"{QKV}, int64[B] lengths",
    lengths=np.array([9, 4]),
)

MS = ("com.microsoft",)
THREE = "float[B,S,64] q, float[B,T,64] k, float[B,T,64] v"
ROWS = "float[B,S,64] y"
add(
    "mha_three_dims",
    "y = com.microsoft.MultiHeadAttention<num_heads=4>(q, k, v)",
    inputs=THREE,
    outputs=ROWS,
    constants="",
    domains=MS,
)
add(
    "mha_scale_causal",
    "y = com.microsoft.MultiHeadAttention<num_heads=4, unidirectional=1, scale=0.2>(q, k, v)",
    inputs="float[B,S,64] q, float[B,S,64] k, float[B,S,64] v",
    outputs=ROWS,
    constants="",
    domains=MS,
)
add(
    "mha_bias",
    "y = com.microsoft.MultiHeadAttention<num_heads=4>(q, k, v, bias)",
    inputs=f"{THREE}, float[192] bias",
    outputs=ROWS,
    constants="",
    domains=MS,
)
add(
    "mha_padding_mask",
    "y = com.microsoft.MultiHeadAttention<num_heads=4>(q, k, v, , keep)",
    inputs=f"{THREE}, int32[B,T] keep",
    outputs=ROWS,
    constants="",
    domains=MS,
)
add(
    "mha_padding_lengths",
    "y = com.microsoft.MultiHeadAttention<num_heads=4>(q, k, v, , lengths)",
    inputs=f"{THREE}, int32[B] lengths",
    outputs=ROWS,
    constants="",
    domains=MS,
    lengths=np.array([9, 4], np.int32),
    runs=False,
)
add(
    "mha_attention_bias",
    "y = com.microsoft.MultiHeadAttention<num_heads=4>(q, k, v, , , bias)",
    inputs=f"{THREE}, float[1,4,S,T] bias",
    outputs=ROWS,
    constants="",
    domains=MS,
)
add(
    "mha_mask_and_bias",
    "y = com.microsoft.MultiHeadAttention<num_heads=4, mask_filter_value=-5000.0>(q, k, v, , keep, bias)",
    inputs=f"{THREE}, int32[B,T] keep, float[B,4,S,T] bias",
    outputs=ROWS,
    constants="",
    domains=MS,
)
add(
    "mha_keys_four_dims",
    "y = com.microsoft.MultiHeadAttention<num_heads=4>(q, k, v)",
    inputs="float[B,S,64] q, float[B,4,T,16] k, float[B,4,T,16] v",
    outputs=ROWS,
    constants="",
    domains=MS,
)
add(
    "mha_packed_qkv",
    "y = com.microsoft.MultiHeadAttention<num_heads=4>(qkv)",
    inputs="float[B,S,4,3,16] qkv",
    outputs=ROWS,
    constants="",
    domains=MS,
    runs=False,
)
add(
    "mha_packed_kv",
    "y = com.microsoft.MultiHeadAttention<num_heads=4>(q, kv)",
    inputs="float[B,S,64] q, float[B,T,4,2,16] kv",
    outputs=ROWS,
    constants="",
    domains=MS,
    runs=False,
)
add(
    "msattention",
    "y = com.microsoft.Attention<num_heads=4>(x, w, b)",
    inputs="float[B,S,64] x, float[64,192] w, float[192] b",
    outputs=ROWS,
    constants="",
    domains=MS,
)
add(
    "msattention_mask",
    "y = com.microsoft.Attention<num_heads=4>(x, w, b, keep)",
    inputs="float[B,S,64] x, float[64,192] w, float[192] b, int32[B,S] keep",
    outputs=ROWS,
    constants="",
    domains=MS,
)
add(
    "msattention_lengths",
    "y = com.microsoft.Attention<num_heads=4>(x, w, b, lengths)",
    inputs="float[B,S,64] x, float[64,192] w, float[192] b, int32[B] lengths",
    outputs=ROWS,
    constants="",
    domains=MS,
    lengths=np.array([7, 4], np.int32),
)
add(
    "msattention_causal_bias",
    "y = com.microsoft.Attention<num_heads=4, unidirectional=1>(x, w, b, , , bias)",
    inputs="float[B,S,64] x, float[64,192] w, float[192] b, float[1,4,S,S] bias",
    outputs=ROWS,
    constants="",
    domains=MS,
)
_gqa: dict[str, Any] = {"seqlens": np.array([6, 6], np.int32), "total": np.array(7, np.int32)}
for _name, _attributes in (
    ("plain", ""),
    ("window", ", local_window_size=3"),
    ("softcap", ", softcap=5.0"),
    ("scale", ", scale=0.2"),
):
    add(
        f"gqa_{_name}",
        f"""y, pk, pv = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2{_attributes}>(
            q, k, v, , , seqlens, total)""",
        inputs="float[B,S,64] q, float[B,S,32] k, float[B,S,32] v, int32[B] seqlens, int32 total",
        outputs=f"{ROWS}, float[B,2,S,16] pk, float[B,2,S,16] pv",
        constants="",
        domains=MS,
        **_gqa,
    )
add(
    "gqa_packed",
    "y, pk, pv = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2>(qkv, , , , , seqlens, total)",
    inputs="float[B,S,128] qkv, int32[B] seqlens, int32 total",
    outputs=f"{ROWS}, float[B,2,S,16] pk, float[B,2,S,16] pv",
    constants="",
    domains=MS,
    **_gqa,
)
add("fused_matmul", "s = com.microsoft.FusedMatMul<alpha=0.25, transB=1>(q, k)\n" + END, constants="", domains=MS)

# awkward files

add(
    "two_sites_share_keys",
    """
    kt = Transpose<perm=[0,1,3,2]>(k)
    r1 = MatMul(q, kt)
    s1 = Mul(r1, scale)
    p1 = Softmax(s1)
    a = MatMul(p1, v)
    r2 = MatMul(a, kt)
    s2 = Mul(r2, scale)
    p2 = Softmax(s2)
    y = MatMul(p2, v)
    """,
    fusable=2,
)
add(
    "two_sites_share_mask",
    """
    f = Where(keep, zero, low)
    kt = Transpose<perm=[0,1,3,2]>(k)
    r1 = MatMul(q, kt)
    s1 = Mul(r1, scale)
    m1 = Add(s1, f)
    p1 = Softmax(m1)
    a = MatMul(p1, v)
    r2 = MatMul(a, kt)
    s2 = Mul(r2, scale)
    m2 = Add(s2, f)
    p2 = Softmax(m2)
    y = MatMul(p2, v)
    """,
    inputs=f"{QKV}, bool[B,1,S,T] keep",
    constants="float scale = {0.25}, float zero = {0.0}, float low = {-1e4}",
    fusable=2,
)
add(
    "output_feeds_key_of_next",
    """
    kt = Transpose<perm=[0,1,3,2]>(k)
    r1 = MatMul(q, kt)
    s1 = Mul(r1, scale)
    p1 = Softmax(s1)
    a = MatMul(p1, v)
    at = Transpose<perm=[0,1,3,2]>(a)
    r2 = MatMul(q, at)
    s2 = Mul(r2, scale)
    p2 = Softmax(s2)
    y = MatMul(p2, a)
    """,
    fusable=2,
)
add(
    "key_is_also_an_output",
    """
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(q, kt)
    s = Mul(raw, scale)
    """
    + END,
    outputs=f"{Y}, float[B,4,16,T] kt",
)
add(
    "gqa_without_cache_outputs",
    "y = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2>(q, k, v, , , seqlens, total)",
    inputs="float[B,S,64] q, float[B,S,32] k, float[B,S,32] v, int32[B] seqlens, int32 total",
    outputs=ROWS,
    constants="",
    domains=MS,
    **_gqa,
)
