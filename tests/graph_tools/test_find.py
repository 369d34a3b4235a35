"""Sites wherever they lie, what they are called, and what the analysis leaves alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import QKV, SCORES, Y, assert_same_numbers, fused, model
from onnx import ModelProto, numpy_helper

from ortflash.graph_tools.edits import SiteEdit
from ortflash.graph_tools.errors import InvalidModelError
from ortflash.graph_tools.find import Analysis
from ortflash.graph_tools.normal_form import Refusal

PLAIN = f"{SCORES} p = Softmax<axis=-1>(s) y = MatMul(p, v)"


def inner(output: str) -> str:
    """Attention in a body, on tensors of the graph around it."""
    body = "kt_# = Transpose<perm=[0,1,3,2]>(k) raw_# = MatMul(q, kt_#) s_# = Mul(raw_#, scale)"
    return f"{body} p_# = Softmax<axis=-1>(s_#) # = MatMul(p_#, v)".replace("#", output)


def test_both_branches_of_an_if() -> None:
    body = f"""y = If(c) <then_branch = t () => (float[A,D,E,F] a) {{ {inner("a")} }},
        else_branch = e () => (float[A,D,E,F] b) {{ {inner("b")} }}>"""
    graph = model(body, inputs=f"{QKV}, bool c")
    sites = Analysis(graph).sites
    assert [site.graph for site in sites] == ["y/then_branch", "y/else_branch"]
    assert_same_numbers(graph)


def test_the_body_of_a_loop() -> None:
    body = """n = Constant<value_int=2>() c = Constant<value_int=1>() d = Cast<to=9>(c)
        y = Loop(n, d, q) <body = b (int64 i, bool go, float[P,R,U,W] x) => (bool on, float[P,R,U,W] z) {
            on = Identity(go) kt = Transpose<perm=[0,1,3,2]>(k) raw = MatMul(x, kt) s = Mul(raw, scale)
            p = Softmax<axis=-1>(s) z = MatMul(p, v)
        }>"""
    graph = model(body)
    [site] = Analysis(graph).sites
    assert site.graph.endswith("/body")
    assert_same_numbers(graph)


FUNCTION = """<domain: "local", opset_import: ["" : 17]>
attend (q, k, v) => (y) {
    scale = Constant<value_float=0.25>() kt = Transpose<perm=[0,1,3,2]>(k) raw = MatMul(q, kt) s = Mul(raw, scale)
    p = Softmax<axis=-1>(s) y = MatMul(p, v)
}"""


def test_a_local_function_knows_its_shapes_from_its_callers() -> None:
    graph = model("a = local.attend(q, k, v) y = local.attend(a, k, v)", functions=FUNCTION, domains=("local",))
    [site] = Analysis(graph).sites
    assert site.graph == "function local::attend"
    assert site.form is not None
    assert site.form.sizes["n"] == 4
    assert_same_numbers(graph)


def test_a_function_that_nobody_calls_with_known_shapes_is_no_error() -> None:
    graph = model(PLAIN, functions=FUNCTION, domains=("local",))
    sites = Analysis(graph).sites
    assert [site.refusal is None for site in sites] == [True, False]


def test_names_are_stable_and_fall_back_to_the_output() -> None:
    graph = model(PLAIN)
    [unnamed] = Analysis(graph).sites
    assert unnamed.name == "p"
    next(node for node in graph.graph.node if node.op_type == "Softmax").name = "my softmax"
    [named] = Analysis(graph).sites
    assert named.name == "my softmax"


def test_new_names_are_unique_across_edits_and_the_model() -> None:
    second = "kt2 = Identity(kt) r2 = MatMul(o, kt2) p2 = Softmax(r2) y = MatMul(p2, v)"
    body = f"{SCORES} p = Softmax<axis=-1>(s) o = MatMul(p, v) {second}"
    graph = model(body, inputs="float[B,4,S,16] q, float[B,4,S,16] k, float[B,4,S,16] v")
    graph.graph.node[0].name = "p_flash_node"
    analysis = Analysis(graph)
    made: list[str] = []
    for site in analysis.sites:
        edit = analysis.edit(site)
        assert isinstance(edit, SiteEdit)
        made += [edit.call.name, *(node.name for node in (*edit.before, *edit.after))]
        made += [output for node in (*edit.before, *edit.after) for output in node.output]
    taken = {name for node in graph.graph.node for name in (node.name, *node.output)}
    assert len(made) == len(set(made))
    assert not taken & set(made) - {"o", "y"}


def test_the_model_is_never_changed() -> None:
    graph = model(PLAIN)
    before = graph.SerializeToString(deterministic=True)
    analysis = Analysis(graph)
    for site in analysis.sites:
        analysis.edit(site)
    assert graph.SerializeToString(deterministic=True) == before


def test_a_second_run_finds_nothing() -> None:
    assert Analysis(fused(model(PLAIN))).sites == ()


def test_a_model_without_attention_has_no_sites() -> None:
    assert Analysis(model("y = Neg(q)", constants="")).sites == ()


@pytest.mark.parametrize("opset", [7, 12])
def test_old_opsets_are_found_and_refused_with_the_way_out(opset: int) -> None:
    graph = model(PLAIN.replace("axis=-1", "axis=3"), opset=opset)
    analysis = Analysis(graph)
    edit = analysis.edit(analysis.sites[0])
    assert isinstance(edit, Refusal)
    assert "version_converter" in edit.hint


@pytest.mark.parametrize(("width", "says"), [("513", "513"), ("D", "isn't known")])
def test_head_sizes_that_the_op_does_not_take(width: str, says: str) -> None:
    """Too large, or as large as the input: attention over channels has its tokens there."""
    inputs = ", ".join(f"float[B,4,{rows},{width}] {name}" for name, rows in (("q", "S"), ("k", "T"), ("v", "T")))
    analysis = Analysis(model(PLAIN, inputs=inputs, outputs=f"float[B,4,S,{width}] y"))
    edit = analysis.edit(analysis.sites[0])
    assert isinstance(edit, Refusal)
    assert says in edit.reason


def shared(outputs: str, extra: str) -> ModelProto:
    return model(f"{PLAIN} {extra}", outputs=outputs)


@pytest.mark.parametrize(
    ("outputs", "extra", "rule"),
    [
        (f"{Y}, float[B,4,S,T] p", "", "probabilities"),
        (f"{Y}, float[A,C,D,E] r", "r = ReduceMean<axes=[1]>(p)", "probabilities"),
        (f"{Y}, float[B,4,S,T] s", "", "shared"),
        (f"{Y}, float[B,4,S,T] raw", "", "shared"),
        (f"{Y}, float[A,C,D,E] r", "r = ReduceMax<axes=[1]>(raw)", "shared"),
    ],
)
def test_values_that_somebody_else_reads_refuse(outputs: str, extra: str, rule: str) -> None:
    [site] = Analysis(shared(outputs, extra)).sites
    assert site.refusal is not None
    assert site.refusal.rule == rule


def test_the_shape_of_the_scores_may_be_read() -> None:
    graph = shared(f"{Y}, int64[A] n", "n = Shape(s)")
    rewritten = assert_same_numbers(graph)
    assert "MatMul" not in {node.op_type for node in rewritten.graph.node}


def test_keys_may_be_an_output_too() -> None:
    assert_same_numbers(shared(f"{Y}, float[B,4,16,T] kt", ""))


def test_a_clean_site_beside_a_refused_one_is_fused() -> None:
    body = f"{PLAIN} r2 = MatMul(y, kt) p2 = Softmax(r2) z = MatMul(p2, v)"
    graph = model(body, outputs="float[B,4,S,16] z, float[B,4,S,T] p")
    analysis = Analysis(graph)
    assert [site.form is not None for site in analysis.sites] == [False, True]
    assert_same_numbers(graph)


def test_double_precision_refuses_by_name() -> None:
    inputs = "double[B,4,S,16] q, double[B,4,T,16] k, double[B,4,T,16] v"
    [site] = Analysis(model("kt = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, kt) p = Softmax(s) y = MatMul(p, v)",
                            inputs=inputs, outputs="double[B,4,S,16] y", constants="")).sites  # fmt: skip
    assert site.refusal is not None
    assert "double" in site.refusal.reason


def test_a_projection_is_no_attention() -> None:
    body = "l = MatMul(x, w) p = Softmax(l) y = MatMul(p, m)"
    graph = model(body, inputs="float[B,S,16] x", outputs="float[B,S,16] y", constants="")
    for name in ("w", "m"):
        graph.graph.initializer.append(numpy_helper.from_array(np.ones((16, 16), np.float32), name))
    [site] = Analysis(graph).sites
    assert site.refusal is not None
    assert "projection" in site.refusal.reason


def test_external_data_outside_the_folder_is_refused(tmp_path: Path) -> None:
    graph = model(PLAIN, constants="")
    tensor = onnx.TensorProto(name="scale", data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", "../outside.bin"), ("offset", "0"), ("length", "4")):
        tensor.external_data.add(key=key, value=value)
    graph.graph.initializer.append(tensor)
    with pytest.raises(InvalidModelError, match="outside"):
        Analysis(graph, model_dir=tmp_path)


def test_small_external_constants_are_read(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"\0" * 64 + np.float32(0.25).tobytes())
    graph = model(PLAIN, constants="")
    tensor = onnx.TensorProto(name="scale", data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", "data.bin"), ("offset", "64"), ("length", "4")):
        tensor.external_data.add(key=key, value=value)
    graph.graph.initializer.append(tensor)
    [site] = Analysis(graph, model_dir=tmp_path).sites
    assert site.form is not None
    assert site.form.scale == 0.25
