"""Scales, masks, biases and softmaxes: everything that is done to the scores."""

from __future__ import annotations

import numpy as np
from graph_text import QKV
from spelling import END, RANGES, SCALE, SCORES, SINKS, SPELLINGS, add, masked

# where the scale sits

add(
    "scale_pow",
    """
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(q, kt)
    c = Pow(d, e)
    s = Mul(raw, c)
    """
    + END,
    constants="float d = {16.0}, float e = {-0.5}",
)
add(
    "scale_reciprocal",
    """
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(q, kt)
    r = Sqrt(d)
    c = Reciprocal(r)
    s = Mul(c, raw)
    """
    + END,
    constants="float d = {16.0}",
)
add(
    "scale_shape_slice",
    """
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(q, kt)
    n = Shape<start=-1>(q)
    d = Cast<to=1>(n)
    r = Sqrt(d)
    s = Div(raw, r)
    """
    + END,
    constants="",
)
add(
    "scale_shape_gather",
    """
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(q, kt)
    n = Shape(k)
    h = Gather<axis=0>(n, last)
    d = Cast<to=1>(h)
    r = Sqrt(d)
    s = Div(raw, r)
    """
    + END,
    constants="int64 last = {3}",
)
add("scale_four_ones", SCORES.replace("scale", "c") + END, constants="float[1,1,1,1] c = {0.25}")
add("scale_uniform_vector", SCORES.replace("scale", "c") + END, constants="float[1,4,1,1] c = {0.25,0.25,0.25,0.25}")
add("scale_node_constant", "c = Constant<value_float=0.25>()\n" + SCORES.replace("scale", "c") + END, constants="")
add(
    "scale_twice_and_identity",
    """
    a = Mul(q, half)
    b = Identity(a)
    kt = Transpose<perm=[0,1,3,2]>(k)
    kh = Mul(half, kt)
    raw = MatMul(b, kh)
    s = Div(raw, half)
    """
    + END,
    constants="float half = {0.5}",
)
add(
    "scale_negated",
    """
    n = Neg(q)
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(n, kt)
    s = Mul(raw, c)
    """
    + END,
    constants="float c = {-0.25}",
)
add("scale_on_value_side", SCORES + "p = Softmax<axis=-1>(s)  u = MatMul(p, v)  y = Mul(u, scale)")

# masks

masked("mask_where", "m = Where(keep, s, low)", mask="bool[B,1,S,T] keep", constants="float low = {-inf}")
masked("mask_where_finite", "m = Where(keep, s, low)", mask="bool[B,1,1,T] keep", constants="float low = {-10000.0}")
masked("mask_where_inverted", "m = Where(drop, low, s)", mask="bool[S,T] drop", constants="float low = {-1e9}")
masked(
    "mask_not", "drop = Not(keep)  m = Where(drop, low, s)", mask="bool[B,1,S,T] keep", constants="float low = {-1e9}"
)
masked(
    "mask_not_not",
    "a = Not(keep)  b = Not(a)  m = Where(b, s, low)",
    mask="bool[B,1,S,T] keep",
    constants="float low = {-1e9}",
)
masked(
    "mask_add_where",
    "f = Where(keep, zero, low)  m = Add(f, s)",
    mask="bool[B,1,S,T] keep",
    constants="float zero = {0.0}, float low = {-inf}",
)
masked(
    "mask_int_equal",
    """
    e = Unsqueeze(keep, axes)
    drop = Equal(e, zero)
    m = Where(drop, low, s)
    """,
    mask="int64[B,T] keep",
    constants="int64[2] axes = {1,2}, int64 zero = {0}, float low = {-1e4}",
)
masked(
    "mask_one_minus",
    """
    e = Unsqueeze(keep, axes)
    f = Cast<to=1>(e)
    g = Sub(one, f)
    h = Mul(g, low)
    m = Add(s, h)
    """,
    mask="int64[B,T] keep",
    constants="int64[2] axes = {1,2}, float one = {1.0}, float low = {-10000.0}",
)
masked(
    "mask_joined_with_its_source",
    """
    e = Unsqueeze(keep, axes)
    f = Cast<to=1>(e)
    g = Sub(one, f)
    drop = Cast<to=9>(g)
    h = Where(drop, low, g)
    m = Add(s, h)
    """,
    mask="int64[B,T] keep",
    constants="int64[2] axes = {1,2}, float one = {1.0}, float low = {-3.4028235e38}",
)
masked(
    "mask_log",
    """
    e = Unsqueeze(keep, axes)
    f = Cast<to=1>(e)
    g = Log(f)
    m = Add(s, g)
    """,
    mask="int64[B,T] keep",
    constants="int64[2] axes = {1,2}",
)
masked(
    "mask_multiplied",
    """
    e = Unsqueeze(keep, axes)
    f = Cast<to=1>(e)
    a = Mul(s, f)
    g = Sub(one, f)
    h = Mul(g, low)
    m = Add(a, h)
    """,
    mask="int64[B,T] keep",
    constants="int64[2] axes = {1,2}, float one = {1.0}, float low = {-10000.0}",
)
masked(
    "mask_multiplied_sub",
    """
    f = Cast<to=1>(keep)
    a = Mul(s, f)
    g = Sub(one, f)
    h = Mul(g, high)
    m = Sub(a, h)
    """,
    mask="bool[B,1,S,T] keep",
    constants="float one = {1.0}, float high = {1e10}",
)
add(
    "mask_outer_product",
    SCORES
    + """
    f = Cast<to=1>(row)
    a = Unsqueeze(f, last)
    b = Unsqueeze(f, mid)
    o = Mul(a, b)
    o4 = Unsqueeze(o, mid)
    g = Sub(one, o4)
    h = Mul(g, low)
    m = Add(s, h)
    p = Softmax(m)
    y = MatMul(p, v)
    """,
    inputs="float[B,4,S,16] q, float[B,4,S,16] k, float[B,4,S,16] v, int64[B,S] row",
    constants=SCALE + ", int64[1] last = {2}, int64[1] mid = {1}, float one = {1.0}, float low = {-10000.0}",
)
masked(
    "mask_and",
    "both = And(keep, other)  m = Where(both, s, low)",
    mask="bool[B,1,1,T] keep, bool[S,T] other",
    constants="float low = {-1e30}",
)
masked(
    "mask_two_wheres",
    "a = Where(keep, s, low)  m = Where(other, a, low)",
    mask="bool[B,1,1,T] keep, bool[S,T] other",
    constants="float low = {-1e4}",
)
masked(
    "mask_add_then_where",
    "a = Add(s, bias)  m = Where(keep, a, low)",
    mask="bool[S,T] keep, float[1,4,S,T] bias",
    constants="float low = {-inf}",
)
masked(
    "mask_expand",
    "n = Shape(s)  f = Expand(keep, n)  m = Where(f, s, low)",
    mask="bool[B,1,1,T] keep",
    constants="float low = {-1e4}",
)
masked(
    "mask_clamped",
    "a = Add(bias, other)  b = Max(a, low)  m = Add(s, b)",
    mask="float[B,1,1,T] bias, float[S,T] other",
    constants="float low = {-3.4028235e38}",
)
masked(
    "mask_sum_of_three",
    "a = Add(bias, other)  b = Add(a, third)  m = Add(b, s)",
    mask="float[B,1,1,T] bias, float[S,T] other, float[1,4,1,1] third",
)
masked("bias_subtracted", "m = Sub(s, bias)", mask="float[1,4,S,T] bias")
masked("bias_negated", "n = Neg(bias)  m = Add(n, s)", mask="float[S,T] bias")
masked("bias_scaled", "b = Mul(bias, c)  m = Add(b, s)", mask="float[1,4,S,T] bias", constants="float c = {3.0}")
masked("bias_vector", "m = Add(s, bias)", mask="float[T] bias")
masked("bias_before_scale", "a = Add(s, bias)  m = Mul(a, c)", mask="float[1,4,S,T] bias", constants="float c = {0.5}")
masked("bias_before_softcap", "a = Add(s, bias)  b = Add(a, bias)  m = Identity(b)", mask="float[B,1,S,T] bias")
masked(
    "always_true",
    "n = Shape(s)  f = Expand(yes, n)  m = Where(f, s, low)",
    constants="bool yes = {1}, float low = {-1e4}",
)
masked("zero_bias", "n = Shape(s)  z = ConstantOfShape(n)  m = Add(s, z)")
masked(
    "causal_trilu",
    """
    n = Shape(s)
    st = Slice(n, two, four)
    ones = ConstantOfShape<value=float[1]{1.0}>(st)
    low1 = Trilu<upper=0>(ones)
    b = Cast<to=9>(low1)
    m = Where(b, s, low)
    """,
    constants="int64[1] two = {2}, int64[1] four = {4}, float low = {-inf}",
)
masked(
    "causal_range",
    """
    n = Shape(s)
    sn = Gather<axis=0>(n, two)
    tn = Gather<axis=0>(n, three)
    i = Range(zero, sn, one)
    j = Range(zero, tn, one)
    i2 = Unsqueeze(i, last)
    b = LessOrEqual(j, i2)
    m = Where(b, s, low)
    """,
    constants=RANGES + ", float low = {-inf}",
)
masked(
    "causal_bottom_right",
    """
    n = Shape(s)
    sn = Gather<axis=0>(n, two)
    tn = Gather<axis=0>(n, three)
    past = Sub(tn, sn)
    i0 = Range(zero, sn, one)
    i = Add(i0, past)
    j = Range(zero, tn, one)
    i2 = Unsqueeze(i, last)
    b = LessOrEqual(j, i2)
    m = Where(b, s, low)
    """,
    constants=RANGES + ", float low = {-inf}",
)
masked(
    "band_abs",
    """
    n = Shape(s)
    sn = Gather<axis=0>(n, two)
    tn = Gather<axis=0>(n, three)
    i = Range(zero, sn, one)
    j = Range(zero, tn, one)
    i2 = Unsqueeze(i, last)
    d = Sub(j, i2)
    a = Abs(d)
    b = Less(a, three)
    m = Where(b, s, low)
    """,
    constants=RANGES + ", float low = {-10000.0}",
)
masked(
    "key_lengths_compare",
    """
    n = Shape(s)
    tn = Gather<axis=0>(n, three)
    j = Range(zero, tn, one)
    l = Unsqueeze(lengths, last)
    b = Less(j, l)
    b4 = Unsqueeze(b, mid)
    m = Where(b4, s, low)
    """,
    mask="int64[B] lengths",
    constants=RANGES + ", int64[2] mid = {1,2}, float low = {-inf}",
)
SPELLINGS["key_lengths_compare"].inputs["lengths"] = np.array([9, 4])

# softmax

add("softmax_axis_3", SCORES + "p = Softmax<axis=3>(s)  y = MatMul(p, v)")
add("softmax_default_axis", SCORES + "p = Softmax(s)  y = MatMul(p, v)")
add("dropout_without_mode", SCORES + "p = Softmax<axis=-1>(s)  d = Dropout(p)  y = MatMul(d, v)")
add(
    "dropout_mode_false",
    SCORES
    + """
    p = Softmax<axis=-1>(s)
    d, unused = Dropout(p, ratio, training)
    y = MatMul(d, v)
    """,
    constants="float scale = {0.25}, float ratio = {0.1}, bool training = {0}",
)
add(
    "nan_guard",
    SCORES
    + """
    m = Where(keep, s, low)
    p = Softmax<axis=-1>(m)
    n = IsNaN(p)
    g = Where(n, zero, p)
    y = MatMul(g, v)
    """,
    inputs=f"{QKV}, bool[B,1,S,T] keep",
    constants="float scale = {0.25}, float low = {-inf}, float zero = {0.0}",
    keep=np.arange(2 * 7 * 9).reshape(2, 1, 7, 9) % 126 >= 9,
)
add(
    "casts_around",
    """
    kt = Transpose<perm=[0,1,3,2]>(k)
    raw = MatMul(q, kt)
    f = Cast<to=1>(raw)
    s = Mul(f, scale)
    p0 = Softmax<axis=-1>(s)
    p = Cast<to=10>(p0)
    y = MatMul(p, v)
    """,
    inputs="float16[B,4,S,16] q, float16[B,4,T,16] k, float16[B,4,T,16] v",
    outputs="float16[B,4,S,16] y",
)
add(
    "casts_before_everything",
    """
    a = Cast<to=1>(q)
    b = Cast<to=1>(k)
    c = Cast<to=1>(v)
    kt = Transpose<perm=[0,1,3,2]>(b)
    raw = MatMul(a, kt)
    s = Mul(raw, scale)
    p = Softmax<axis=-1>(s)
    u = MatMul(p, c)
    y = Cast<to=10>(u)
    """,
    inputs="float16[B,4,S,16] q, float16[B,4,T,16] k, float16[B,4,T,16] v",
    outputs="float16[B,4,S,16] y",
)
add(
    "casts_that_do_nothing",
    SCORES
    + """
    a = Cast<to=1>(s)
    p = Softmax<axis=-1>(a)
    b = Cast<to=1>(p)
    c = Cast<to=1>(b)
    y = MatMul(c, v)
    """,
)
for _version, _sum, _max in (
    (17, "ReduceSum<keepdims=1>(e, axes)", "ReduceMax<axes=[-1], keepdims=1>(s)"),
    (18, "ReduceSum<keepdims=1>(e, axes)", "ReduceMax<keepdims=1>(s, axes)"),
):
    _constants = "float scale = {0.25}, int64[1] axes = {-1}"
    add(
        f"exp_sum_op{_version}",
        SCORES
        + f"""
    t = {_max}
    d = Sub(s, t)
    e = Exp(d)
    z = {_sum}
    p = Div(e, z)
    y = MatMul(p, v)
    """,
        constants=_constants,
        opset=_version,
    )
    add(
        f"exp_sum_late_op{_version}",
        SCORES
        + f"""
    t = {_max}
    d = Sub(s, t)
    e = Exp(d)
    z = {_sum}
    u = MatMul(e, v)
    y = Div(u, z)
    """,
        constants=_constants,
        opset=_version,
    )
add(
    "exp_sum_reciprocal",
    SCORES
    + """
    e = Exp(s)
    z = ReduceSum<keepdims=1>(e, axes)
    r = Reciprocal(z)
    p = Mul(e, r)
    y = MatMul(p, v)
    """,
    constants="float scale = {0.02}, int64[1] axes = {-1}",
)
add("exp_log_softmax", SCORES + "l = LogSoftmax<axis=-1>(s)  p = Exp(l)  y = MatMul(p, v)")
add(
    "log_sum_exp",
    SCORES
    + """
    l = ReduceLogSumExp<axes=[-1], keepdims=1>(s)
    d = Sub(s, l)
    p = Exp(d)
    y = MatMul(p, v)
    """,
)
add(
    "sink_column",
    SCORES
    + """
    n = Shape<end=3>(s)
    n4 = Concat<axis=0>(n, one)
    c = Expand(sink, n4)
    a = Concat<axis=-1>(s, c)
    p0 = Softmax<axis=-1>(a)
    p = Slice(p0, zero, minus, last)
    y = MatMul(p, v)
    """,
    constants=SINKS,
)
add(
    "sink_column_after_max",
    SCORES
    + """
    n = Shape<end=3>(s)
    n4 = Concat<axis=0>(n, one)
    c = Expand(sink, n4)
    a = Concat<axis=-1>(s, c)
    t = ReduceMax<axes=[-1], keepdims=1>(a)
    d = Sub(a, t)
    p0 = Softmax<axis=-1>(d)
    p = Slice(p0, zero, minus, last)
    y = MatMul(p, v)
    """,
    constants=SINKS,
)
add(
    "softcap",
    SCORES
    + """
    a = Div(s, cap)
    b = Tanh(a)
    c = Mul(b, cap)
    p = Softmax<axis=-1>(c)
    y = MatMul(p, v)
    """,
    constants="float scale = {1.0}, float cap = {5.0}",
)
add(
    "softcap_mul_by_inverse",
    SCORES
    + """
    a = Mul(inverse, s)
    b = Tanh(a)
    c = Mul(cap, b)
    m = Add(c, bias)
    p = Softmax<axis=-1>(m)
    y = MatMul(p, v)
    """,
    inputs=f"{QKV}, float[B,1,1,T] bias",
    constants="float scale = {1.0}, float cap = {5.0}, float inverse = {0.2}",
)
add(
    "shift_by_max_before_softmax",
    SCORES
    + """
    t = ReduceMax<axes=[-1], keepdims=1>(s)
    d = Sub(s, t)
    p = Softmax<axis=-1>(d)
    y = MatMul(p, v)
    """,
)
