"""The two products: operand layouts, Einsum, grouped heads."""

from __future__ import annotations

from graph_text import GROUPED, K, Q, V
from spelling import END, SCORES, add

# products and layouts

add(
    "key_already_transposed", "raw = MatMul(q, kt)  s = Mul(raw, scale)\n" + END, inputs=f"{Q}, float[B,4,16,T] kt, {V}"
)
add(
    "bsnh_operands",
    """
    q1 = Transpose<perm=[0,2,1,3]>(q)
    kt = Transpose<perm=[0,2,3,1]>(k)
    v1 = Transpose<perm=[0,2,1,3]>(v)
    raw = MatMul(q1, kt)
    s = Mul(raw, scale)
    p = Softmax<axis=-1>(s)
    u = MatMul(p, v1)
    y = Transpose<perm=[0,2,1,3]>(u)
    """,
    inputs="float[B,S,4,16] q, float[B,T,4,16] k, float[B,T,4,16] v",
    outputs="float[B,S,4,16] y",
)
add(
    "seq_first_operands",
    """
    q1 = Transpose<perm=[1,2,0,3]>(q)
    kt = Transpose<perm=[1,2,3,0]>(k)
    v1 = Transpose<perm=[1,2,0,3]>(v)
    raw = MatMul(q1, kt)
    s = Mul(raw, scale)
    p = Softmax<axis=-1>(s)
    u = MatMul(p, v1)
    y = Transpose<perm=[2,0,1,3]>(u)
    """,
    inputs="float[S,B,4,16] q, float[T,B,4,16] k, float[T,B,4,16] v",
    outputs="float[S,B,4,16] y",
)
add(
    "scores_transposed",
    """
    qt = Transpose<perm=[0,1,3,2]>(q)
    raw = MatMul(k, qt)
    s = Mul(raw, scale)
    p = Softmax<axis=2>(s)
    vt = Transpose<perm=[0,1,3,2]>(v)
    u = MatMul(vt, p)
    y = Transpose<perm=[0,1,3,2]>(u)
    """,
)
add(
    "scores_transposed_back",
    """
    qt = Transpose<perm=[0,1,3,2]>(q)
    raw = MatMul(k, qt)
    st = Transpose<perm=[0,1,3,2]>(raw)
    s = Mul(st, scale)
    """
    + END,
)
add(
    "probabilities_on_the_right",
    SCORES
    + """
    p = Softmax<axis=-1>(s)
    pt = Transpose<perm=[0,1,3,2]>(p)
    vt = Transpose<perm=[0,1,3,2]>(v)
    y = MatMul(vt, pt)
    """,
    outputs="float[B,4,16,S] y",
)
add(
    "three_dims",
    """
    kt = Transpose<perm=[0,2,1]>(k)
    raw = MatMul(q, kt)
    s = Mul(raw, scale)
    """
    + END,
    inputs="float[B,S,16] q, float[B,T,16] k, float[B,T,16] v",
    outputs="float[B,S,16] y",
)
add(
    "two_dims",
    "kt = Transpose(k)  raw = MatMul(q, kt)  s = Mul(raw, scale)\n" + END,
    inputs="float[S,16] q, float[T,16] k, float[T,16] v",
    outputs="float[S,16] y",
)
add(
    "two_dims_gemm",
    """
    s = Gemm<transB=1, alpha=0.25>(q, k)
    p = Softmax<axis=-1>(s)
    y = Gemm(p, v)
    """,
    inputs="float[S,16] q, float[T,16] k, float[T,16] v",
    outputs="float[S,16] y",
    constants="",
)
add(
    "five_dims",
    """
    kt = Transpose<perm=[0,1,2,4,3]>(k)
    raw = MatMul(q, kt)
    s = Mul(raw, scale)
    """
    + END,
    inputs="float[B,3,4,S,16] q, float[B,3,4,T,16] k, float[B,3,4,T,16] v",
    outputs="float[B,3,4,S,16] y",
)
add(
    "batch_broadcast",
    """
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(q, kt)
    s = Mul(raw, scale)
    """
    + END,
    inputs=f"{Q}, float[1,4,T,16] k, float[1,4,T,16] v",
)
add(
    "query_broadcast",
    """
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(q, kt)
    s = Mul(raw, scale)
    """
    + END,
    inputs=f"float[1,4,S,16] q, {K}, {V}",
)
add(
    "multi_query_broadcast",
    """
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(q, kt)
    s = Mul(raw, scale)
    """
    + END,
    inputs=f"{Q}, float[B,1,T,16] k, float[B,1,T,16] v",
)
for _name, _in, _scores, _out, _result in (
    (
        "bhid",
        "float[B,4,S,16] q, float[B,4,T,16] k, float[B,4,T,16] v",
        "bhid,bhjd->bhij",
        "bhij,bhjd->bhid",
        "float[B,4,S,16] y",
    ),
    (
        "bqhd",
        "float[B,S,4,16] q, float[B,T,4,16] k, float[B,T,4,16] v",
        "bqhd,bkhd->bhqk",
        "bhqk,bkhd->bqhd",
        "float[B,S,4,16] y",
    ),
    (
        "ibnd",
        "float[S,B,4,16] q, float[T,B,4,16] k, float[T,B,4,16] v",
        "ibnd,jbnd->bnij",
        "bnij,jbnd->ibnd",
        "float[S,B,4,16] y",
    ),
    (
        "swapped",
        "float[B,4,S,16] q, float[B,4,T,16] k, float[B,4,T,16] v",
        "bhjd,bhid->bhij",
        "bhjd,bhij->bhid",
        "float[B,4,S,16] y",
    ),
    (
        "channels",
        "float[B,4,16,S] q, float[B,4,16,T] k, float[B,4,16,T] v",
        "bhdi,bhdj->bhij",
        "bhij,bhdj->bhdi",
        "float[B,4,16,S] y",
    ),
    (
        "spaces",
        "float[B,4,S,16] q, float[B,4,T,16] k, float[B,4,T,16] v",
        "b h i d, b h j d -> b h i j",
        "b h i j, b h j d -> b h i d",
        "float[B,4,S,16] y",
    ),
    (
        "upper",
        "float[B,4,S,16] q, float[B,4,T,16] k, float[B,4,T,16] v",
        "BHID,BHJD->BHIJ",
        "BHIJ,BHJD->BHID",
        "float[B,4,S,16] y",
    ),
):
    _order = "k, q" if _name == "swapped" else "q, k"
    _late = "v, p" if _name == "swapped" else "p, v"
    add(
        f"einsum_{_name}",
        f"""
    raw = Einsum<equation="{_scores}">({_order})
    s = Mul(raw, scale)
    p = Softmax<axis=-1>(s)
    y = Einsum<equation="{_out}">({_late})
    """,
        inputs=_in,
        outputs=_result,
    )
add(
    "einsum_ijbn",
    """
    raw = Einsum<equation="ibnd,jbnd->ijbn">(q, k)
    s = Mul(raw, scale)
    p = Softmax<axis=1>(s)
    y = Einsum<equation="ijbn,jbnd->ibnd">(p, v)
    """,
    inputs="float[S,B,4,16] q, float[T,B,4,16] k, float[T,B,4,16] v",
    outputs="float[S,B,4,16] y",
)
add(
    "einsum_grouped",
    """
    raw = Einsum<equation="bkgsd,bktd->bkgst">(q, k)
    s = Mul(raw, scale)
    p = Softmax<axis=-1>(s)
    y = Einsum<equation="bkgst,bktd->bkgsd">(p, v)
    """,
    inputs="float[B,2,3,S,16] q, float[B,2,T,16] k, float[B,2,T,16] v",
    outputs="float[B,2,3,S,16] y",
)
add(
    "einsum_scores_matmul_values",
    """
    raw = Einsum<equation="bhid,bhjd->bhij">(q, k)
    s = Mul(raw, scale)
    """
    + END,
)

# grouped heads

_repeat = """
    {0}5 = Unsqueeze({0}, two)
    {0}e = Expand({0}5, wide)
    {0}r = Reshape({0}e, flat)
    """
add(
    "grouped_expand",
    _repeat.format("k")
    + _repeat.format("v")
    + """
    kt = Transpose<perm=[0,1,3,2]>(kr)
    raw = MatMul(q, kt)
    s = Mul(raw, scale)
    p = Softmax<axis=-1>(s)
    y = MatMul(p, vr)
    """,
    inputs=GROUPED,
    constants="float scale = {0.25}, int64[1] two = {2}, int64[5] wide = {1,1,2,1,1}, int64[4] flat = {0,4,-1,16}",
)
_tile = "{0}r = Tile({0}, times)  "
add(
    "grouped_tile",
    _tile.format("k")
    + _tile.format("v")
    + """
    kt = Transpose<perm=[0,1,3,2]>(kr)
    raw = MatMul(q, kt)
    s = Mul(raw, scale)
    p = Softmax<axis=-1>(s)
    y = MatMul(p, vr)
    """,
    inputs=GROUPED,
    constants="float scale = {0.25}, int64[4] times = {1,2,1,1}",
)
add(
    "grouped_concat",
    """
    ks = Concat<axis=1>(k, k)
    vs = Concat<axis=1>(v, v)
    kt = Transpose<perm=[0,1,3,2]>(ks)
    raw = MatMul(q, kt)
    s = Mul(raw, scale)
    p = Softmax<axis=-1>(s)
    y = MatMul(p, vs)
    """,
    inputs=GROUPED,
)
add(
    "grouped_gather",
    """
    ks = Gather<axis=1>(k, pick)
    vs = Gather<axis=1>(v, pick)
    kt = Transpose<perm=[0,1,3,2]>(ks)
    raw = MatMul(q, kt)
    s = Mul(raw, scale)
    p = Softmax<axis=-1>(s)
    y = MatMul(p, vs)
    """,
    inputs=GROUPED,
    constants="float scale = {0.25}, int64[4] pick = {0,0,1,1}",
)
add(
    "grouped_rows",
    """
    q4 = Reshape(q, fold)
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(q4, kt)
    s = Mul(raw, scale)
    p = Softmax<axis=-1>(s)
    u = MatMul(p, v)
    y = Reshape(u, back)
    """,
    inputs=GROUPED,
    constants="float scale = {0.25}, int64[4] fold = {0,2,-1,16}, int64[4] back = {0,4,-1,16}",
)
add(
    "grouped_five_dims",
    """
    q5 = Reshape(q, fold)
    k5 = Unsqueeze(k, two)
    v5 = Unsqueeze(v, two)
    kt = Transpose<perm=[0,1,2,4,3]>(k5)
    raw = MatMul(q5, kt)
    s = Mul(raw, scale)
    p = Softmax<axis=-1>(s)
    u = MatMul(p, v5)
    y = Reshape(u, back)
    """,
    inputs=GROUPED,
    constants="float scale = {0.25}, int64[1] two = {2}, int64[5] fold = {0,2,2,-1,16}, int64[4] back = {0,4,-1,16}",
)
