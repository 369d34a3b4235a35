"""Types, shapes and small values, worked out without the file's own value_info."""

from __future__ import annotations

import onnx
import pytest
from graphs import model
from onnx import TensorProto, helper

from ortflash.graph_tools.const_eval import scalar
from ortflash.graph_tools.errors import InvalidModelError
from ortflash.graph_tools.graph_view import GraphView, Scope
from ortflash.graph_tools.shape_infer import infer
from ortflash.graph_tools.symbolic import to_text

X = "float[B,S,64] x"


def scope_of(body: str, **kwargs: object) -> Scope:
    graph = model(body, **{"inputs": X, "outputs": "float[A] y", "constants": ""} | kwargs)  # type: ignore[arg-type]
    view = GraphView(graph)
    infer(view)
    return view.main


def text(scope: Scope, name: str) -> list[str]:
    return [to_text(dim) for dim in scope.shape(name) or ()]


HEADS = "h = Constant<value_ints=[0,-1,4,16]>() r = Reshape(x, h)"
SIZES = (
    "n = Shape(x) one = Constant<value_ints=[1]>() zero = Constant<value_ints=[0]>() two = Constant<value_ints=[2]>()"
)


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (f"{HEADS} y = Transpose<perm=[0,2,1,3]>(r)", ["B", "4", "S", "16"]),
        ("h = Constant<value_ints=[-1,64]>() y = Reshape(x, h)", ["B*S", "64"]),
        (f"{SIZES} b = Slice(n, zero, one) m = Constant<value_ints=[-1]>() t = Concat<axis=0>(b, m) y = Reshape(x, t)",
         ["B", "64*S"]),
        (f"{SIZES} s = Gather<axis=0>(n, one) e = Concat<axis=0>(one, s) y = Expand(one, e)", ["1", "S"]),
        (f"{SIZES} k = Shape<start=-1>(x) f = Cast<to=1>(k) y = Sqrt(f)", ["1"]),
        ("p = Constant<value_ints=[0,1,0,0,2,0]>() y = Pad(x, p)", ["B", "S + 3", "64"]),
        (f"{SIZES} y = Slice(x, one, two, two)", ["B", "S", "1"]),
        (f"{SIZES} y = Concat<axis=1>(x, x)", ["B", "2*S", "64"]),
        ("q, y = Split<axis=-1, num_outputs=2>(x)", ["B", "S", "32"]),
        ("y = ReduceMax<keepdims=1>(x)", ["1", "1", "1"]),
        ("y = Einsum<equation=\"bsd,btd->bst\">(x, x)", ["B", "S", "S"]),
        ("y = Flatten<axis=2>(x)", ["B*S", "64"]),
    ],
)  # fmt: skip
def test_shapes(body: str, shape: list[str]) -> None:
    assert text(scope_of(body, opset=18), "y") == shape


def test_a_scale_computed_from_a_shape_is_known() -> None:
    scope = scope_of(f"{SIZES} k = Gather<axis=0>(n, two) f = Cast<to=1>(k) y = Sqrt(f)")
    assert scalar(scope.fact("y")) == 8.0


def test_a_scale_of_an_unknown_head_size_is_a_power() -> None:
    root = f"{SIZES} k = Gather<axis=0>(n, two) f = Cast<to=1>(k) r = Sqrt(f)"
    body = f"{root} o = Constant<value_float=1.0>() y = Div(o, r)"
    value = scalar(scope_of(body, inputs="float[B,S,D] x").fact("y"))
    assert value is not None
    assert to_text(value) == "D^-1/2"


def test_the_exporters_expand_idiom_is_seen_through() -> None:
    """``Where(Equal(shape, -1), ones, shape)``: a dimension is never -1."""
    body = f"{SIZES} m = Constant<value_ints=[-1,-1,-1]>() i = Equal(n, m) o = Constant<value_ints=[1,1,1]>()"
    scope = scope_of(f"{body} t = Where(i, o, n) y = Expand(x, t)")
    assert text(scope, "y") == ["B", "S", "64"]


def test_wrong_value_info_is_ignored() -> None:
    graph = model(f"{HEADS} y = Transpose<perm=[0,2,1,3]>(r)", inputs=X, outputs="float[A] y", constants="")
    graph.graph.value_info.append(helper.make_tensor_value_info("r", TensorProto.FLOAT16, [1, 2, 3]))
    view = GraphView(graph)
    infer(view)
    assert text(view.main, "r") == ["B", "S", "4", "16"]
    assert view.main.elem_type("r") == TensorProto.FLOAT


def test_value_info_serves_where_no_rule_knows() -> None:
    graph = model("r = custom.Thing(x) y = Neg(r)", inputs=X, outputs="float[A] y", constants="", domains=("custom",))
    graph.graph.value_info.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, ["B", 7]))
    view = GraphView(graph)
    infer(view)
    assert text(view.main, "y") == ["B", "7"]


def test_unsorted_nodes_are_sorted() -> None:
    graph = model("a = Neg(x) y = Abs(a)", inputs=X, outputs="float[B,S,64] y", constants="")
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(graph.graph.node)]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    view = GraphView(graph)
    infer(view)
    assert text(view.main, "y") == ["B", "S", "64"]


def test_a_cycle_is_an_invalid_model() -> None:
    graph = model("a = Neg(x) y = Abs(a)", inputs=X, outputs="float[B,S,64] y", constants="")
    graph.graph.node[0].input[0] = "y"
    with pytest.raises(InvalidModelError, match="cycle"):
        GraphView(graph)


def test_a_tensor_written_twice_is_an_invalid_model() -> None:
    graph = model("a = Neg(x) y = Abs(a)", inputs=X, outputs="float[B,S,64] y", constants="")
    graph.graph.node[1].output[0] = "a"
    with pytest.raises(InvalidModelError, match="written by two nodes"):
        GraphView(graph)


def test_a_branch_that_is_never_taken_does_not_blur_the_shape() -> None:
    taken = "then_branch = t () => (float[A] p) { p = Neg(x) }"
    never = "else_branch = e () => (float[A] r) { r = ReduceMax<keepdims=0>(x) }"
    body = f"c = Constant<value_int=1>() d = Cast<to=9>(c) y = If(d) <{taken}, {never}>"
    assert text(scope_of(body), "y") == ["B", "S", "64"]


def test_a_loop_that_grows_a_tensor_knows_no_more_than_the_rest() -> None:
    body = """
        n = Constant<value_int=3>() c = Constant<value_int=1>() d = Cast<to=9>(c)
        y = Loop(n, d, x) <body = b (int64 i, bool go, float[P] a) => (bool on, float[P] z) {
            on = Identity(go) z = Concat<axis=1>(a, a)
        }>
    """
    scope = scope_of(body)
    shape = text(scope, "y")
    assert shape[0] == "B"
    assert shape[2] == "64"
    assert shape[1] not in ("S", "2*S")
