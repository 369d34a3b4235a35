"""Graphs that look like attention and must be left alone, each with what the refusal has to speak of.

python models/traps.py OUT      writes them as .onnx with inputs as .npz
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from graph_text import QKV, Y, draw_inputs, parse
from numpy.typing import NDArray
from onnx import ModelProto


@dataclass(frozen=True)
class Trap:
    """One graph whose attention must stay as it is."""

    name: str
    model: ModelProto
    inputs: dict[str, NDArray[np.generic]]
    why: str
    """What makes fusing it wrong."""
    says: str
    """Regular expression that the refusal's reason has to match; empty where there is no softmax to refuse."""
    fused: int
    """Clean sites beside the trap, which are fused all the same."""


TRAPS: dict[str, Trap] = {}

SCORES = "kt = Transpose<perm=[0,1,3,2]>(k)  raw = MatMul(q, kt)  s = Mul(raw, scale)\n"


def trap(
    name: str,
    body: str,
    *,
    why: str,
    says: str,
    fused: int = 0,
    inputs: str = QKV,
    outputs: str = Y,
    constants: str = "float scale = {0.25}",
    functions: str = "",
    opset: int = 17,
    domains: tuple[str, ...] = (),
    **given: NDArray[np.generic],
) -> None:
    """Register a trap; see :func:`graph_text.parse` for the text's parts."""
    model = parse(
        body, inputs=inputs, outputs=outputs, constants=constants, functions=functions, opset=opset, domains=domains
    )
    TRAPS[name] = Trap(name, model, draw_inputs(model, **given), why, says, fused)


trap(
    "talking_heads_before",
    SCORES
    + """st = Transpose<perm=[0,2,3,1]>(s)  mixed = MatMul(st, mix)  back = Transpose<perm=[0,3,1,2]>(mixed)
    p = Softmax<axis=-1>(back)  y = MatMul(p, v)""",
    inputs=f"{QKV}, float[4,4] mix",
    why="each head's softmax reads the scores of all heads",
    says="heads|MatMul",
)
trap(
    "talking_heads_after",
    SCORES
    + """p = Softmax<axis=-1>(s)  pt = Transpose<perm=[0,2,3,1]>(p)  mixed = MatMul(pt, mix)
    back = Transpose<perm=[0,3,1,2]>(mixed)  y = MatMul(back, v)""",
    inputs=f"{QKV}, float[4,4] mix",
    why="heads are mixed between softmax and values",
    says="sum over the keys|MatMul",
)
trap(
    "probabilities_are_an_output",
    SCORES + "p = Softmax<axis=-1>(s)  y = MatMul(p, v)",
    outputs=f"{Y}, float[B,4,S,T] p",
    why="somebody wants the probabilities, which the fused op never forms",
    says="output of the graph",
)
trap(
    "probabilities_are_read_again",
    SCORES + "p = Softmax<axis=-1>(s)  y = MatMul(p, v)  mean = ReduceMean<axes=[1], keepdims=0>(p)",
    outputs=f"{Y}, float[B,S,T] mean",
    why="a mean over heads reads the probabilities",
    says="read by 2 nodes",
)
trap(
    "clean_layer_beside_a_read_one",
    SCORES
    + """p = Softmax<axis=-1>(s)  a = MatMul(p, v)  mean = ReduceMean<axes=[1], keepdims=0>(p)
    raw2 = MatMul(a, kt)  s2 = Mul(raw2, scale)  p2 = Softmax<axis=-1>(s2)  y = MatMul(p2, v)""",
    outputs=f"{Y}, float[B,S,T] mean",
    why="only the first layer's probabilities are read again",
    says="read by 2 nodes",
    fused=1,
)
trap(
    "scores_are_an_output",
    SCORES + "p = Softmax<axis=-1>(s)  y = MatMul(p, v)",
    outputs=f"{Y}, float[B,4,S,T] s",
    why="somebody wants the scores",
    says="output of the graph",
)
trap(
    "raw_scores_are_read_again",
    SCORES + "p = Softmax<axis=-1>(s)  u = MatMul(p, v)  top = ReduceMax<keepdims=0>(raw)  y = Add(u, top)",
    why="the scores before the scale are read by somebody else",
    says="also read by ReduceMax",
)
trap(
    "training_dropout",
    SCORES + "p = Softmax<axis=-1>(s)  d, kept = Dropout(p, ratio, training)  y = MatMul(d, v)",
    constants="float scale = {0.25}, float ratio = {0.5}, bool training = {1}",
    why="the Dropout is live: training_mode is true",
    says="Dropout",
)
trap(
    "dropout_mode_unknown",
    SCORES + "p = Softmax<axis=-1>(s)  d, kept = Dropout(p, ratio, training)  y = MatMul(d, v)",
    inputs=f"{QKV}, bool training",
    constants="float scale = {0.25}, float ratio = {0.5}",
    training=np.array(False),
    why="whether the Dropout is live is a graph input",
    says="Dropout",
)
trap(
    "masked_after_softmax",
    SCORES + "p = Softmax<axis=-1>(s)  f = Cast<to=1>(keep)  w = Mul(p, f)  y = MatMul(w, v)",
    inputs=f"{QKV}, bool[B,1,1,T] keep",
    why="rows of the masked probabilities no longer sum to one",
    says="no longer sums to 1",
)
trap(
    "gated_after_softmax",
    SCORES + "p = Softmax<axis=-1>(s)  g = Sigmoid(gate)  w = Mul(p, g)  y = MatMul(w, v)",
    inputs=f"{QKV}, float[B,4,S,T] gate",
    why="probabilities are multiplied by a tensor over the keys",
    says="no longer sums to 1",
)
trap(
    "linear_attention",
    """qs = Softmax<axis=-1>(q)  ks = Softmax<axis=-2>(k)  kt = Transpose<perm=[0,1,3,2]>(ks)
    context = MatMul(kt, v)  y = MatMul(qs, context)""",
    why="softmax over features of q and over tokens of k: there are no scores",
    says="no product of query and key",
)
trap(
    "softmax_over_queries",
    SCORES + "p = Softmax<axis=2>(s)  y = MatMul(p, v)",
    why="the softmax runs over the queries, the product sums over the keys",
    says="sum over the keys|axis",
)
trap(
    "softmax_over_heads",
    SCORES + "p = Softmax<axis=1>(s)  y = MatMul(p, v)",
    why="the softmax runs over the heads",
    says="axis",
)
trap(
    "two_values",
    SCORES + "p = Softmax<axis=-1>(s)  y = MatMul(p, v)  z = MatMul(p, w)",
    inputs=f"{QKV}, float[B,4,T,16] w",
    outputs=f"{Y}, float[B,4,S,16] z",
    why="one softmax serves two values; fusing either leaves the scores alive",
    says="read by 2 nodes",
)
trap(
    "difference_of_two_softmaxes",
    SCORES
    + """p1 = Softmax<axis=-1>(s)  raw2 = MatMul(q, k2)  s2 = Mul(raw2, scale)  p2 = Softmax<axis=-1>(s2)
    p2s = Mul(p2, scale)  p = Sub(p1, p2s)  y = MatMul(p, v)""",
    inputs=f"{QKV}, float[B,4,16,T] k2",
    why="differential attention subtracts one softmax from another",
    says="Sub",
)
trap(
    "scores_times_a_matrix",
    SCORES + "m = Mul(s, gate)  p = Softmax<axis=-1>(m)  y = MatMul(p, v)",
    inputs=f"{QKV}, float[B,1,S,T] gate",
    why="the scores are multiplied by a tensor that differs from key to key",
    says="isn't one number",
)
trap(
    "scale_differs_from_key_to_key",
    SCORES.replace("scale", "c") + "p = Softmax<axis=-1>(s)  y = MatMul(p, v)",
    inputs=f"{QKV}, float[T] c",
    constants="",
    why="a vector over the keys is no scale",
    says="isn't one number",
)
trap(
    "router",
    "logits = MatMul(x, w)  p = Softmax<axis=-1>(logits)  y = MatMul(p, experts)",
    inputs="float[B,S,16] x",
    outputs="float[B,S,16] y",
    constants="float[16,4] w = {"
    + ",".join(["0.5,-0.25,1.0,0.0"] * 16)
    + "}, float[4,16] experts = {"
    + ",".join(["0.5"] * 64)
    + "}",
    why="keys and values are constants of the model: a small lookup, not attention",
    says="constant matrix",
)
trap(
    "classifier",
    "p = Softmax<axis=-1>(x)  y = MatMul(p, w)",
    inputs="float[B,10] x, float[10,16] w",
    outputs="float[B,16] y",
    why="a classifier's softmax: its logits are no product",
    says="no product of query and key",
)
trap(
    "no_second_product",
    SCORES + "y = Softmax<axis=-1>(s)",
    outputs="float[B,4,S,T] y",
    why="only the probabilities are computed",
    says="output of the graph",
)
trap(
    "top_k_scores",
    SCORES
    + """best, index = TopK<axis=-1>(s, three)  worst = ReduceMin<axes=[-1], keepdims=1>(best)
    drop = Less(s, worst)  m = Where(drop, low, s)  p = Softmax<axis=-1>(m)  y = MatMul(p, v)""",
    constants="float scale = {0.25}, int64[1] three = {3}, float low = {-inf}",
    why="which keys take part depends on the scores",
    says="also read by TopK",
)
trap(
    "relu_on_scores",
    SCORES + "r = Relu(s)  p = Softmax<axis=-1>(r)  y = MatMul(p, v)",
    why="a function of the score that is no soft cap",
    says="Relu",
)
trap(
    "tanh_without_cap",
    SCORES + "a = Div(s, five)  b = Tanh(a)  c = Mul(b, three)  f = Exp(c)  p = Softmax<axis=-1>(f)  y = MatMul(p, v)",
    constants="float scale = {0.25}, float five = {5.0}, float three = {3.0}",
    why="an Exp between soft cap and softmax",
    says="Exp",
)
trap(
    "entmax_like_power",
    SCORES + "p0 = Softmax<axis=-1>(s)  p = Pow(p0, two)  y = MatMul(p, v)",
    constants="float scale = {0.25}, float two = {2.0}",
    why="probabilities are squared",
    says="Pow",
)
trap(
    "exp_over_another_sum",
    SCORES
    + """t = ReduceMax<axes=[-1], keepdims=1>(s)  d = Sub(s, t)  e = Exp(d)  other = Mul(e, e)
    z = ReduceSum<keepdims=1>(other, axes)  p = Div(e, z)  y = MatMul(p, v)""",
    constants="float scale = {0.25}, int64[1] axes = {-1}",
    why="the divisor isn't the sum of the exponentials",
    says="",
)
trap(
    "sum_over_the_wrong_axis",
    SCORES + "e = Exp(s)  z = ReduceSum<keepdims=1>(e, axes)  p = Div(e, z)  y = MatMul(p, v)",
    constants="float scale = {0.02}, int64[1] axes = {2}",
    why="normalised over the queries",
    says="sum over the keys|axis",
)
trap(
    "double_precision",
    SCORES + "p = Softmax<axis=-1>(s)  y = MatMul(p, v)",
    inputs="double[B,4,S,16] q, double[B,4,T,16] k, double[B,4,T,16] v",
    outputs="double[B,4,S,16] y",
    constants="double scale = {0.25}",
    why="the operator has no fp64",
    says="double",
)
trap(
    "quantised_probabilities",
    SCORES
    + """p0 = Softmax<axis=-1>(s)  pq = QuantizeLinear(p0, step, zero)  p = DequantizeLinear(pq, step, zero)
    y = MatMul(p, v)""",
    constants="float scale = {0.25}, float step = {0.00392}, uint8 zero = {0}",
    why="the probabilities are rounded to eight bits, which the fused op would not do",
    says="Quantize|Dequantize",
)
trap(
    "scores_cut_to_a_window",
    SCORES
    + "w = Slice(s, zero, three, last)  p = Softmax<axis=-1>(w)  vw = Slice(v, zero, three, mid)  y = MatMul(p, vw)",
    constants="float scale = {0.25}, int64[1] zero = {0}, int64[1] three = {3}, int64[1] last={3}, int64[1] mid={2}",
    why="the scores of some keys are cut off after the product",
    says="Slice",
)
trap(
    "values_of_other_heads",
    SCORES
    + """p = Softmax<axis=-1>(s)  order = Constant<value_ints=[1,0,3,2]>()  w = Gather<axis=1>(p, order)
    y = MatMul(w, v)""",
    why="the probabilities are handed to other heads",
    says="Gather",
)
trap(
    "attention_op_with_scores_out",
    "y, pk, pv, scores = Attention(q, k, v)",
    outputs=f"{Y}, float[B,4,S,T] scores",
    constants="",
    opset=23,
    why="the standard op's qk_matmul_output is wanted",
    says="the scores of the Attention",
)
trap(
    "mask_before_a_bias",
    SCORES + "a = Where(keep, s, low)  m = Add(a, bias)  p = Softmax<axis=-1>(m)  y = MatMul(p, v)",
    inputs=f"{QKV}, bool[S,T] keep, float[B,1,1,T] bias",
    constants="float scale = {0.25}, float low = {-10000.0}",
    why="a bias added to a finite mask: the fused op applies its mask after the bias",
    says="followed by another term",
)
trap(
    "softmax_in_a_local_function",
    SCORES + "p = local.Normalize(s)  y = MatMul(p, v)",
    functions='<domain: "local", opset_import: ["" : 17]>\nNormalize (s) => (p) { p = Softmax<axis=-1>(s) }',
    domains=("local",),
    why="the softmax alone is a function of its own: the site crosses the function's border",
    says="no product of query and key",
)


def main(out: Path) -> None:
    """Write every trap into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    for name, case in TRAPS.items():
        onnx.save(case.model, out / f"trap_{name}.onnx")
        np.savez(out / f"trap_{name}.npz", **case.inputs)  # type: ignore[arg-type]
        sys.stdout.write(f"trap_{name}: {case.why}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
