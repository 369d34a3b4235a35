"""Rewriting a file: what an edit adds and removes, and that every other byte stays."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from blocks import Block, feed_for, model_of
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import ortflash
from ortflash import api
from ortflash.errors import InvalidModelError, OrtflashError
from ortflash.graph_tools import op_schema
from ortflash.graph_tools.edits import SiteEdit
from ortflash.graph_tools.rewrite import apply_edits, flash_calls
from ortflash.graph_tools.scopes import all_names, all_scopes
from ortflash.runner import run_model

BLOCKS = (Block("a_", bias=True), Block("b_", mask=True), Block("c_", softcap=3.0), Block("d_", bias=True, mask=True))
ELEM_TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16}
TOLERANCE = {TensorProto.FLOAT: 1e-5, TensorProto.FLOAT16: 1e-2}


def rewritten(model: ModelProto, *edits: SiteEdit) -> ModelProto:
    result = ModelProto()
    result.CopyFrom(model)
    apply_edits(result, edits)
    onnx.checker.check_model(result, full_check=True)
    return result


def op_types(model: ModelProto) -> Counter[str]:
    """Of every node but those of the operator's own function."""
    scopes = [scope for scope in all_scopes(model) if scope.path != "function ortflash::FlashAttention"]
    return Counter(node.op_type for scope in scopes for node in scope.container.node)


def assert_same_outputs(left: ModelProto, right: ModelProto, tolerance: float = 1e-5, **sizes: int) -> None:
    feed = feed_for(left, **sizes)
    expected, actual = run_model(left, feed), run_model(right, feed)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name].astype(float), array.astype(float), rtol=0, atol=tolerance)


@pytest.mark.parametrize("opset", [13, 14, 15, 17, 18, 20, 22])
@pytest.mark.parametrize("kind", ELEM_TYPES)
def test_every_site_becomes_one_node(opset: int, kind: str) -> None:
    elem_type = ELEM_TYPES[kind]
    model = model_of(*BLOCKS, opset=opset, elem_type=elem_type)
    fused = rewritten(model, *(block.edit(elem_type) for block in BLOCKS))
    assert [node.op_type for node in fused.graph.node] == ["FlashAttention"] * 4
    assert_same_outputs(model, fused, TOLERANCE[elem_type])


def test_calls_of_a_file_pass_the_same_inputs_and_spell_out_every_attribute() -> None:
    fused = rewritten(model_of(*BLOCKS), *(block.edit() for block in BLOCKS))
    calls = flash_calls(fused)
    assert {len(call.input) for call in calls} == {5}  # nobody has key_lengths, block_mask or sinks
    assert all(all(call.input) for call in calls)
    for call in calls:
        assert [a.name for a in call.attribute] == [a.name for a in op_schema.schema().attributes]
        op_schema.check_node(call)
    assert list(fused.functions[0].input) == [one.name for one in op_schema.schema().inputs[:5]]
    assert len(fused.functions) == 1


def test_a_site_without_optional_inputs_has_none() -> None:
    block = Block()
    fused = rewritten(model_of(block), block.edit())
    assert [list(call.input) for call in flash_calls(fused)] == [["query", "key", "value"]]
    assert not fused.graph.initializer  # the scale went with the Mul that read it


def test_import_and_ir_version_are_raised_where_they_must_be() -> None:
    model = model_of(BLOCKS[0], ir_version=7)
    fused = rewritten(model, BLOCKS[0].edit())
    assert fused.ir_version == 8
    assert [(entry.domain, entry.version) for entry in fused.opset_import] == [("", 17), ("ortflash", 1)]
    newer = model_of(BLOCKS[0], ir_version=10)
    assert rewritten(newer, BLOCKS[0].edit()).ir_version == 10


def test_names_stay_unique() -> None:
    """The file has taken the names that we would have liked."""
    model = model_of(*BLOCKS[:2])
    taken = numpy_helper.from_array(np.ones(3, np.float32), "flash_attention_no_attn_mask")
    model.graph.initializer.append(taken)
    model.graph.node.append(helper.make_node("Identity", [taken.name], ["kept"], name="flash_attention_no_attn_bias"))
    fused = rewritten(model, *(block.edit() for block in BLOCKS[:2]))
    written = [name for node in fused.graph.node for name in node.output]
    written += [tensor.name for tensor in fused.graph.initializer]
    assert len(written) == len(set(written))
    assert taken.SerializeToString() in [tensor.SerializeToString() for tensor in fused.graph.initializer]
    assert_same_outputs(model, fused)


def decorated() -> ModelProto:
    """Two sites and everything that a careless tool loses."""
    model = model_of(*BLOCKS[:2])
    model.doc_string = "a model"
    model.producer_name = "somebody"
    model.metadata_props.add(key="author", value="someone")
    model.graph.doc_string = "a graph"
    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "weight")
    weight.doc_string = "a weight"
    model.graph.initializer.append(weight)
    model.graph.node.insert(0, helper.make_node("Identity", ["weight"], ["unread"], name="dead", doc_string="a node"))
    model.graph.value_info.append(helper.make_tensor_value_info("unread", TensorProto.FLOAT, [2, 3]))
    model.graph.value_info.append(helper.make_tensor_value_info("nowhere", TensorProto.FLOAT, [1]))
    model.graph.value_info.append(helper.make_tensor_value_info("a_scores", TensorProto.FLOAT, None))
    annotation = model.graph.quantization_annotation.add(tensor_name="b_weights")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="weight")
    return model


def test_what_is_not_matched_stays_byte_for_byte() -> None:
    """Site a is fused; what is left of the file, put back together, is the original."""
    model = decorated()
    fused = rewritten(model, BLOCKS[0].edit())
    was_removed = {node.name for node in BLOCKS[0].nodes()}
    kept = [node for node in model.graph.node if node.name not in was_removed]
    assert [n.SerializeToString() for n in fused.graph.node if not op_schema.schema().matches(n)] == [
        n.SerializeToString() for n in kept
    ]
    expected = ModelProto()
    expected.CopyFrom(model)
    back = ModelProto()
    back.CopyFrom(fused)
    del back.functions[:], back.opset_import[1:], back.graph.node[:], expected.graph.node[:]
    del expected.graph.initializer[0]  # a_scale, which nobody else reads
    assert back.graph.initializer == expected.graph.initializer
    del expected.graph.value_info[2]  # a_scores is gone
    assert back.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


def test_what_others_read_stays() -> None:
    """A shared scale, an initializer that is a graph input, and an inner tensor that feeds something else."""
    model = model_of(*BLOCKS[:2])
    for node in model.graph.node:
        node.input[:] = ["a_scale" if name == "b_scale" else name for name in node.input]
    model.graph.input.append(helper.make_tensor_value_info("b_fill", TensorProto.FLOAT, []))
    model.graph.node.append(helper.make_node("Neg", ["a_key_t"], ["other"], name="other"))
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, None))
    model.graph.output[-1].type.tensor_type.shape.CopyFrom(
        onnx.TensorShapeProto(dim=[{"dim_param": d} for d in "bhds"])
    )
    fused = rewritten(model, BLOCKS[0].edit())
    assert "a_scale" in {tensor.name for tensor in fused.graph.initializer}
    assert "a_key_t" in {name for node in fused.graph.node for name in node.output}
    both = rewritten(model, BLOCKS[0].edit(), BLOCKS[1].edit())
    assert "a_scale" not in {tensor.name for tensor in both.graph.initializer}
    assert "b_fill" in {tensor.name for tensor in both.graph.initializer}
    assert_same_outputs(model, both)


def test_a_node_whose_other_output_is_read_is_not_removed() -> None:
    block = Block()
    model = model_of(block)
    model.graph.node[-1].op_type = "Split"
    model.graph.node[-1].input[:] = ["weights"]
    model.graph.node[-1].output.append("second")
    model.graph.node.append(helper.make_node("Neg", ["second"], ["third"], name="third"))
    model.graph.output.append(onnx.ValueInfoProto(name="third"))
    with pytest.raises(OrtflashError, match="is read elsewhere"):
        apply_edits(model, [block.edit()])


def test_a_second_rewrite_extends_the_first() -> None:
    """A site is fused into a file that has fused ones: all calls get the inputs that the new one brings."""
    model = model_of(*BLOCKS)
    once = rewritten(model, BLOCKS[2].edit())
    assert [len(call.input) for call in flash_calls(once)] == [3]
    twice = rewritten(once, *(block.edit() for block in (*BLOCKS[:2], BLOCKS[3])))
    assert [len(call.input) for call in flash_calls(twice)] == [5] * 4
    assert len(twice.functions) == 1
    assert_same_outputs(model, twice)


def test_before_opset_15_two_element_types_share_one_body() -> None:
    """There is no CastLike to follow the query's type, so the fp16 site is called in fp32."""
    half, single = Block("half_"), Block("single_")
    model = model_of(single, opset=14)
    other = model_of(half, opset=14, elem_type=TensorProto.FLOAT16)
    model.graph.MergeFrom(other.graph)
    model.graph.name = "g"
    fused = rewritten(model, half.edit(TensorProto.FLOAT16), single.edit())
    assert op_types(fused)["FlashAttention"] == 2
    assert_same_outputs(model, fused, 1e-2)


# ------------------------------------------------------------------------------------------------ op or body, and ORT


def kernels_that_ran(model: ModelProto, feed: dict[str, Any], folder: Path, *, library: bool) -> Counter[str]:
    """Op types in ONNX Runtime's own profile of one run."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / f"profile_{library}")
    if library:
        ortflash.register(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, feed)
    events = json.loads(Path(session.end_profiling()).read_text())
    return Counter(e["args"]["op_name"] for e in events if e.get("cat") == "Node" and "op_name" in e.get("args", {}))


def test_the_op_runs_with_the_library_and_the_body_without(tmp_path: Path) -> None:
    fused = rewritten(model_of(*BLOCKS), *(block.edit() for block in BLOCKS))
    feed = feed_for(fused)
    with_library = kernels_that_ran(fused, feed, tmp_path, library=True)
    assert with_library["FlashAttention"] == 4
    assert with_library["MatMul"] == 0
    without = kernels_that_ran(fused, feed, tmp_path, library=False)
    assert without["FlashAttention"] == 0
    assert without["MatMul"] + without["FusedMatMul"] == 8


# -------------------------------------------------------------------------------------------------- through the matcher


@pytest.mark.parametrize("block", BLOCKS, ids=["bias", "mask", "softcap", "both"])
def test_found_fused_and_verified(block: Block) -> None:
    result = ortflash.rewrite(model_of(block))
    assert (result.fused, result.exit_code) == (1, 0)
    assert result.verification is not None
    assert result.verification.passed
    assert op_types(result.model)["Softmax"] == 0


def test_a_model_in_memory_is_left_as_it_is() -> None:
    model = model_of(*BLOCKS)
    before = model.SerializeToString(deterministic=True)
    ortflash.rewrite(model)
    ortflash.rewrite(model, verify=False)
    assert model.SerializeToString(deterministic=True) == before


def test_twice_changes_nothing(tmp_path: Path) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    onnx.save(model_of(*BLOCKS), tmp_path / "model.onnx")
    assert ortflash.rewrite(tmp_path / "model.onnx", first).exit_code == 0
    again = ortflash.rewrite(first, second)
    assert again.exit_code == 1
    assert first.read_bytes() == second.read_bytes()
    assert "fused already" in again.report.summary


def test_somebody_else_reads_the_scores() -> None:
    """D8: the weights are an output, or feed something else, or the scores are an output; the clean site fuses."""
    for reader in ("weights is an output", "weights are averaged", "scores are an output"):
        watched, clean = Block("a_"), Block("b_")
        model = model_of(watched, clean)
        name = "a_scores" if reader.startswith("scores") else "a_weights"
        if "averaged" in reader:
            model.graph.node.append(helper.make_node("ReduceMean", ["a_weights"], ["mean"], name="mean", axes=[1]))
            name = "mean"
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", "h", "s", "t"]))
        result = ortflash.rewrite(model)
        decisions = {site.name: site.decision for site in result.report.sites}
        assert decisions == {"a_weights_node": "refused", "b_weights_node": "fused"}, reader
        refused = result.report.sites[0]
        assert refused.node
        assert refused.reason


def with_padding_mask(fill: float, elem_type: int = TensorProto.FLOAT16) -> ModelProto:
    """The bias is (1 - mask) * fill, computed from a 2-D mask as BERT does."""
    block = Block(bias=True)
    model = model_of(block, elem_type=elem_type)
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    del model.graph.input[3]
    model.graph.input.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "sequence"]))
    constants = {"one": np.array(1, dtype), "overflowed": np.array(fill, dtype), "axes": np.array([1, 2])}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    nodes = [
        helper.make_node("Unsqueeze", ["attention_mask", "axes"], ["mask_4d"], name="unsqueeze"),
        helper.make_node("Cast", ["mask_4d"], ["mask_float"], name="cast", to=elem_type),
        helper.make_node("Sub", ["one", "mask_float"], ["padding"], name="sub"),
        helper.make_node("Mul", ["padding", "overflowed"], ["bias"], name="mul"),
    ]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    return model


def test_a_mask_that_overflowed_in_fp16_is_repaired_and_said() -> None:
    """D11: -3.4e38 became -inf, and 0 * -inf is NaN for every token that isn't masked."""
    broken = with_padding_mask(-np.inf)
    result = ortflash.rewrite(broken)
    assert result.exit_code == 0
    assert any("'mul'" in note and "repaired" in note and "-65504" in note for note in result.report.notes)
    feed = {name: np.zeros_like(array) for name, array in feed_for(broken).items()}
    feed["attention_mask"] = np.array([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
    feed["value"] = np.arange(2 * 2 * 7 * 8, dtype=np.float16).reshape(2, 2, 7, 8) % 7
    assert np.isnan(run_model(broken, feed)["output"]).all()
    sound = run_model(with_padding_mask(-65504.0), feed)["output"]
    np.testing.assert_allclose(run_model(result.model, feed)["output"], sound, rtol=0, atol=1e-2)


def test_a_sound_mask_is_not_touched() -> None:
    result = ortflash.rewrite(with_padding_mask(-65504.0))
    assert result.exit_code == 0
    assert not result.report.notes
    assert "overflowed_finite" not in {tensor.name for tensor in result.model.graph.initializer}


def in_branches() -> ModelProto:
    """If(flag): attention, else: attention with another scale, on outer q, k and v."""
    branches = []
    for scale in (0.3, 0.6):
        block = Block(scale=scale)
        output = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 2, "sequence", 8])
        constants = [c for c in block.constants(TensorProto.FLOAT) if c.name == "scale"]
        branches.append(helper.make_graph(block.nodes(), "branch", [], [output], constants))
    choose = helper.make_node(
        "If", ["flag"], ["chosen"], name="choose", then_branch=branches[0], else_branch=branches[1]
    )
    outer = model_of(Block())
    del outer.graph.node[:], outer.graph.output[:], outer.graph.initializer[:]
    outer.graph.node.append(choose)
    outer.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    outer.graph.output.append(helper.make_tensor_value_info("chosen", TensorProto.FLOAT, ["batch", 2, "sequence", 8]))
    return outer


def in_loop() -> ModelProto:
    """Three times: query = attention(query, key, value)."""
    body_block = Block(scale=0.4)
    shape: list[str | int | None] = ["batch", 2, "sequence", 8]
    constants = [c for c in body_block.constants(TensorProto.FLOAT) if c.name == "scale"]
    body = helper.make_graph(
        [*body_block.nodes(), helper.make_node("Identity", ["going"], ["still_going"], name="go")],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("query", TensorProto.FLOAT, shape),
        ],
        [
            helper.make_tensor_value_info("still_going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("output", TensorProto.FLOAT, shape),
        ],
        constants,
    )
    outer = model_of(Block())
    del outer.graph.node[:], outer.graph.output[:], outer.graph.initializer[:]
    outer.graph.input[0].name = "first"
    outer.graph.initializer.append(numpy_helper.from_array(np.array(3), "count"))
    outer.graph.node.append(helper.make_node("Loop", ["count", "", "first"], ["last"], name="loop", body=body))
    outer.graph.output.append(helper.make_tensor_value_info("last", TensorProto.FLOAT, shape))
    return outer


def in_function() -> ModelProto:
    """Two calls of a model-local function that holds the attention; the scale is the calls' attribute."""
    block = Block()
    scale = NodeProto(op_type="Constant", output=["scale"], name="scale_node")
    scale.attribute.append(
        onnx.AttributeProto(name="value_float", ref_attr_name="factor", type=onnx.AttributeProto.FLOAT)
    )
    function = onnx.FunctionProto(
        domain="custom",
        name="Block",
        input=["query", "key", "value"],
        output=["output"],
        attribute=["factor"],
        opset_import=[helper.make_opsetid("", 17)],
        node=[scale, *block.nodes()],
    )
    model = model_of(block)
    del model.graph.node[:], model.graph.initializer[:]
    for index, names in enumerate((("query", "middle"), ("middle", "output"))):
        call = helper.make_node("Block", [names[0], "key", "value"], [names[1]], domain="custom", name=f"call_{index}")
        call.attribute.append(helper.make_attribute("factor", 0.4))
        model.graph.node.append(call)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("custom", 1))
    return model


def in_function_with_constant_scale() -> ModelProto:
    """The same with a scale that the function itself knows."""
    model = in_function()
    model.functions[0].node[0].attribute[0].CopyFrom(helper.make_attribute("value_float", 0.4))
    return model


@pytest.mark.parametrize(("make", "sites"), [(in_branches, 2), (in_loop, 1)])
def test_sites_inside_bodies(make: Any, sites: int) -> None:
    model = make()
    result = ortflash.rewrite(model)
    assert result.fused == sites
    assert result.verification is not None
    assert len(result.verification.sites) == sites
    assert result.verification.passed
    onnx.checker.check_model(result.model)
    assert op_types(result.model)["Softmax"] == 0
    names = [name for scope in all_scopes(result.model) for node in scope.container.node for name in (node.name,)]
    assert len(names) == len(set(names)) or make is in_branches  # the branches' own names may repeat


def test_sites_inside_functions() -> None:
    """A scale that the caller gives can't be known inside: it multiplies the query; a constant is the op's scale."""
    result = ortflash.rewrite(in_function())
    assert result.exit_code == 0
    assert result.verification is not None
    assert result.verification.passed
    assert op_types(result.model)["Mul"] == 1
    result = ortflash.rewrite(in_function_with_constant_scale())
    assert result.fused == 1
    assert result.verification is not None
    assert result.verification.passed
    (custom,) = [function for function in result.model.functions if function.domain == "custom"]
    assert "ortflash" in [entry.domain for entry in custom.opset_import]


def test_neutral_constants_inside_functions() -> None:
    """A function has no initializers: the constant that another call makes necessary is a node of its own."""
    model = in_function_with_constant_scale()
    main = Block("main_", bias=True)
    model.graph.MergeFrom(model_of(main).graph)
    model.graph.name = "g"
    result = ortflash.rewrite(model)
    assert result.fused == 2
    assert result.verification is not None
    assert result.verification.passed
    assert {len(call.input) for call in flash_calls(result.model)} == {4}


# ------------------------------------------------------------------------------------------------------ standard target


def test_target_onnx_emits_attention() -> None:
    for block in BLOCKS[:3]:
        result = ortflash.rewrite(model_of(block, opset=23, ir_version=10), target="onnx")
        assert result.exit_code == 0, result.report.to_dict()
        assert op_types(result.model)["Attention"] == 1
        assert not result.model.functions
        assert [entry.domain for entry in result.model.opset_import] == [""]
        assert len(api.verify(model_of(block, opset=23, ir_version=10), result.model).sites) == 1


def test_target_onnx_refuses_what_attention_cannot_do() -> None:
    result = ortflash.rewrite(model_of(BLOCKS[3], opset=23, ir_version=10), target="onnx")
    assert result.exit_code == 1
    assert "no bias and mask at once" in result.report.sites[0].reason


def test_target_onnx_names_the_way_to_a_newer_opset() -> None:
    with pytest.raises(InvalidModelError, match=r"onnx\.version_converter"):
        ortflash.rewrite(model_of(BLOCKS[0]), target="onnx")


def test_an_old_opset_names_the_way_to_a_newer_one() -> None:
    model = model_of(BLOCKS[0])
    model.opset_import[0].version = 12
    with pytest.raises(InvalidModelError, match=r"onnx\.version_converter"):
        ortflash.rewrite(model)


# -------------------------------------------------------------------------------------------------------------- choices


def test_only_skip_and_min_length() -> None:
    model = model_of(*BLOCKS[:3])
    names = [site.name for site in api.inspect(model).sites]
    only = ortflash.rewrite(model, only=["a_*"], verify=False)
    assert [site.decision for site in only.report.sites] == ["fused", "skipped", "skipped"]
    skip = ortflash.rewrite(model, skip=names[:2], verify=False)
    assert [site.decision for site in skip.report.sites] == ["skipped", "skipped", "fused"]
    with pytest.raises(OrtflashError, match="No site is called 'nothing'"):
        ortflash.rewrite(model, only=["nothing"])
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "sequence":
                dim.dim_value = 16
    short = ortflash.rewrite(model, min_length=17, verify=False)
    assert short.exit_code == 1
    assert "16" in short.report.sites[0].reason
    assert ortflash.rewrite(model, min_length=16, verify=False).fused == 3


def test_all_names_covers_everything() -> None:
    names = all_names(in_branches())
    assert {"flag", "choose", "chosen", "query", "scale", "weights", "output"} <= names
