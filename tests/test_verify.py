"""Verification must be able to fail: each kind of wrong edit is caught at its site, and rolled back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from blocks import Block, feed_for, model_of
from onnx import ModelProto, TensorProto, helper, numpy_helper

import ortflash
from ortflash import api
from ortflash.criterion import compare
from ortflash.errors import OrtflashError
from ortflash.extract import Cutter
from ortflash.graph_tools.edits import SiteEdit
from ortflash.graph_tools.find import Analysis
from ortflash.graph_tools.rewrite import apply_edits, flash_calls
from ortflash.inputs import generate_feeds, load_feed, longer_feeds, parse_shape
from ortflash.verify import Verifier, draw, run_in_float64
from ortflash.widen import in_float64

ELEM_TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16}


def changed(edit: SiteEdit, *, without: str = "", **attributes: float) -> SiteEdit:
    """The edit with an input left out, or other attributes."""
    inputs = {name: tensor for name, tensor in edit.call.inputs.items() if name != without}
    call = dataclasses.replace(edit.call, inputs=inputs, attributes=dict(edit.call.attributes) | attributes)
    return dataclasses.replace(edit, call=call)


def swapped_polarity(edit: SiteEdit) -> SiteEdit:
    """True and False of the mask are mixed up."""
    mask = edit.call.inputs["attn_mask"]
    swap = helper.make_node("Not", [mask], ["swapped"], name="swap")
    call = dataclasses.replace(edit.call, inputs=dict(edit.call.inputs) | {"attn_mask": "swapped"})
    return dataclasses.replace(edit, call=call, before=(swap,))


MUTANTS: dict[str, tuple[Block, Any]] = {
    "scale * 1.5": (Block(), lambda edit: changed(edit, scale=0.35 * 1.5)),
    "scale * 1.01": (Block(), lambda edit: changed(edit, scale=0.35 * 1.01)),
    "dropped bias": (Block(bias=True), lambda edit: changed(edit, without="attn_bias")),
    "dropped mask": (Block(mask=True), lambda edit: changed(edit, without="attn_mask")),
    "swapped mask": (Block(mask=True), swapped_polarity),
    "dropped softcap": (Block(softcap=3.0), lambda edit: changed(edit, softcap=0.0)),
    "dropped softcap of 50": (Block(softcap=50.0), lambda edit: changed(edit, softcap=0.0)),
    "added causal": (Block(), lambda edit: changed(edit, is_causal=1)),
    "added window": (Block(), lambda edit: changed(edit, window_left=3)),
    "another mask fill": (Block(mask=True), lambda edit: changed(edit, mask_fill=-2.0)),
    "key for value": (
        Block(),
        lambda edit: dataclasses.replace(
            edit, call=dataclasses.replace(edit.call, inputs=dict(edit.call.inputs) | {"value": "key"})
        ),
    ),
}


def check(model: ModelProto, edit: SiteEdit, feed: dict[str, Any]) -> Any:
    rewritten = ModelProto()
    rewritten.CopyFrom(model)
    apply_edits(rewritten, [edit])
    (result,) = Verifier(model, [feed]).check_sites([edit], rewritten)
    return result


@pytest.mark.parametrize("kind", ELEM_TYPES)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, kind: str) -> None:
    """Also where the model's own values hide them: nearly uniform attention, a bias of 0 and a mask of True."""
    block, mutate = MUTANTS[name]
    elem_type = ELEM_TYPES[kind]
    model = model_of(block, elem_type=elem_type)
    feed = {key: np.zeros_like(array) for key, array in feed_for(model).items()}
    if "mask" in feed:
        feed["mask"] = np.ones_like(feed["mask"])
    right = block.edit(elem_type)
    assert check(model, right, feed).passed
    wrong = check(model, mutate(right), feed)
    assert not wrong.passed
    assert wrong.site in wrong.sentence


def test_a_term_is_drawn_beside_data_that_it_does_not_follow_from() -> None:
    """The piece reads another input, of which nothing is left; a bias that is lost shows all the same."""
    block = Block(bias=True)
    model = model_of(block)
    far = helper.make_tensor_value_info("far", TensorProto.FLOAT, ["batch", 1, "sequence", "sequence"])
    model.graph.input.append(far)
    at = next(index for index, node in enumerate(model.graph.node) if node.op_type == "Add")
    model.graph.node[at].output[0] = "plain"
    model.graph.node.insert(at + 1, helper.make_node("Sub", ["far", "far"], ["nothing"]))
    model.graph.node.insert(at + 2, helper.make_node("Add", ["plain", "nothing"], ["biased"]))
    feed = {name: np.zeros_like(array) for name, array in feed_for(model).items()}
    assert check(model, block.edit(), feed).passed
    assert not check(model, changed(block.edit(), without="attn_bias"), feed).passed


def test_a_term_that_follows_from_what_else_is_read_is_not_drawn() -> None:
    """The mask and its opposite: drawing one of them would make the original another model."""
    block = Block(mask=True)
    model = model_of(block)
    at = next(index for index, node in enumerate(model.graph.node) if node.op_type == "Where")
    nodes = list(model.graph.node)
    model.graph.input[3].name = "given"
    nodes[at].input[2] = "filled"
    filled = [
        helper.make_node("Not", ["given"], ["mask_off"]),
        helper.make_node("Not", ["mask_off"], ["mask"]),
        helper.make_node("Where", ["given", "scores", "fill"], ["filled"]),
    ]
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:at], *filled, *nodes[at:]])
    feed = feed_for(model)
    assert check(model, block.edit(), feed).passed


def test_a_fill_that_only_an_empty_row_shows_is_caught() -> None:
    """The type's lowest value leaves an empty row the mean of the values, and -inf leaves it 0."""
    model = model_of(Block(mask=True))
    [fill] = [tensor for tensor in model.graph.initializer if tensor.name == "fill"]
    fill.CopyFrom(numpy_helper.from_array(np.array(np.finfo(np.float32).min), "fill"))
    rewritten = ortflash.rewrite(model).model
    assert api.verify(model, rewritten).passed
    next(one for one in flash_calls(rewritten)[0].attribute if one.name == "mask_fill").f = -np.inf
    result = api.verify(model, rewritten)
    assert not result.sites[0].passed


def test_a_constant_mask_is_not_drawn() -> None:
    """Causal but for one key: the edit says causal, and the constant says the rest."""
    block = Block(mask=True)
    model = model_of(block)
    keep = np.tril(np.ones((1, 1, 33, 33), bool))
    keep[..., 7, 3] = False
    del model.graph.input[3]
    model.graph.initializer.append(numpy_helper.from_array(keep, "mask"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[2].dim_value = 33
    result = ortflash.rewrite(model)
    assert [site.decision for site in result.report.sites] == ["fused"], result.report.sites


def test_a_constant_that_is_scale_and_bias_is_not_drawn() -> None:
    model = model_of(Block())
    model.graph.node.insert(3, helper.make_node("Add", ["scores", "scale"], ["shifted"]))
    next(node for node in model.graph.node if node.op_type == "Softmax").input[0] = "shifted"
    result = ortflash.rewrite(model)
    assert [site.decision for site in result.report.sites] == ["fused"], result.report.sites


def mutate_site(monkeypatch: pytest.MonkeyPatch, site_name: str, mutate: Any) -> None:
    """Let the matcher make a mistake at one site."""
    right = Analysis.edit
    monkeypatch.setattr(
        Analysis,
        "edit",
        lambda self, site: mutate(right(self, site)) if site.name == site_name else right(self, site),
    )


def test_a_wrong_site_is_rolled_back_and_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = model_of(Block("a_"), Block("b_", bias=True))
    mutate_site(monkeypatch, "b_weights_node", lambda edit: changed(edit, without="attn_bias"))
    result = ortflash.rewrite(model, tmp_path / "out.onnx")
    assert result.exit_code == 3
    assert [site.decision for site in result.report.sites] == ["fused", "rolled back"]
    assert "b_weights_node" in result.report.sites[1].reason
    written = onnx.load(tmp_path / "out.onnx")
    ops = [node.op_type for node in written.graph.node]
    assert ops.count("FlashAttention") == 1
    assert ops.count("Softmax") == 1
    assert result.verification is not None
    assert result.verification.model_passed


def test_json_has_no_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site whose output has the wrong shape is infinitely far off; JSON knows no such number."""
    model = model_of(Block("a_"))
    mutate_site(monkeypatch, "a_weights_node", lambda edit: changed(edit, num_heads=0, kv_num_heads=0, scale=np.inf))
    result = ortflash.rewrite(model)
    assert result.exit_code == 3
    json.dumps(result.to_dict(), allow_nan=False)


def test_when_every_site_is_rolled_back_the_file_is_the_original(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    onnx.save(model_of(Block("a_")), tmp_path / "model.onnx")
    mutate_site(monkeypatch, "a_weights_node", lambda edit: changed(edit, scale=2.0))
    result = ortflash.rewrite(tmp_path / "model.onnx", tmp_path / "out.onnx")
    assert result.exit_code == 3
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()


def test_a_whole_model_that_differs_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every site is right, and something else was broken on the way."""
    model = model_of(Block("a_"))
    model.graph.node[-1].output[0] = "before_bias"
    model.graph.initializer.append(numpy_helper.from_array(np.array(1.0, np.float32), "one"))
    model.graph.node.append(helper.make_node("Add", ["before_bias", "one"], ["a_output"], name="add"))

    def careless(target: ModelProto, edits: Any, **keywords: Any) -> None:
        apply_edits(target, edits, **keywords)
        next(node for node in target.graph.node if node.name == "add").op_type = "Sub"

    monkeypatch.setattr(api, "apply_edits", careless)
    result = ortflash.rewrite(model, tmp_path / "out.onnx")
    assert result.exit_code == 3
    assert result.verification is not None
    assert all(site.passed for site in result.verification.sites)
    assert not result.verification.model_passed
    assert not (tmp_path / "out.onnx").exists()


def test_rows_that_are_nan_in_the_original_are_listed(tmp_path: Path) -> None:
    """D2 without its guard: a row that is masked throughout is NaN in the original and 0 in ours."""
    model = model_of(Block(mask=True))
    feed = feed_for(model)
    feed["mask"][1, :, 5] = False
    np.savez(tmp_path / "feed.npz", **feed)  # type: ignore[arg-type]
    result = ortflash.rewrite(model, inputs=tmp_path / "feed.npz")
    assert result.exit_code == 0
    assert any("2 of 28 rows are NaN in the original and 0 in ours" in note for note in result.report.notes)
    assert any("Output 'output'" in note for note in result.report.notes), result.report.notes


def test_a_model_that_does_not_run_is_not_called_verified() -> None:
    model = model_of(Block())
    model.graph.node.append(helper.make_node("NoSuchOp", ["output"], ["more"], domain="nobody", name="unknown"))
    model.opset_import.append(helper.make_opsetid("nobody", 1))
    with pytest.raises(OrtflashError, match="ONNX Runtime doesn't load the model"):
        ortflash.rewrite(model)
    assert ortflash.rewrite(model, verify=False).exit_code == 0


def test_bf16_is_compared_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime has no bf16 MatMul on the CPU; a mistake is found nevertheless."""
    model = model_of(Block("a_", bias=True), Block("b_", mask=True), elem_type=TensorProto.BFLOAT16)
    result = ortflash.rewrite(model)
    assert result.exit_code == 0
    assert any("Compared in fp32" in note for note in result.report.notes)
    mutate_site(monkeypatch, "a_weights_node", lambda edit: changed(edit, scale=0.5))
    assert [site.decision for site in ortflash.rewrite(model).report.sites] == ["rolled back", "fused"]


def test_verify_of_an_unfused_copy_finds_no_site() -> None:
    model = model_of(Block())
    result = api.verify(model, model)
    assert result.passed
    assert not result.sites
    assert result.largest_error == 0.0


# ----------------------------------------------------------------------------------------------------- longer sequences


def with_window(model: ModelProto, keys: int) -> ModelProto:
    """The model rewritten, and its fused node tampered with: it looks back ``keys`` keys only."""
    rewritten = ortflash.rewrite(model, verify=False).model
    (call,) = flash_calls(rewritten)
    next(attribute for attribute in call.attribute if attribute.name == "window_left").i = keys
    return rewritten


@pytest.mark.parametrize("keys", [22, 63, 200, 1000])
def test_a_window_that_no_short_sequence_shows_is_caught(keys: int) -> None:
    model = model_of(Block())
    assert api.verify(model, ortflash.rewrite(model, verify=False).model).passed
    result = api.verify(model, with_window(model, keys))
    assert not result.sites[0].passed
    assert not result.model_passed


def test_a_window_that_no_run_reaches_is_said() -> None:
    """Longer sequences than its lengths allow would take a machine of its own."""
    model = model_of(Block())
    result = api.verify(model, with_window(model, 100_000))
    assert result.passed
    [note] = result.notes
    assert note.startswith("Site 'weights_node': no run was long enough to show its window of 100000 keys; the longest")
    [note] = api.verify(model, with_window(model, 12), shapes={"query": (2, 2, 13, 8)}).notes
    assert "its window of 12 keys; the longest had 13 queries and 13 keys" in note


def test_a_window_that_few_queries_never_feel_is_said() -> None:
    """Cross attention of 5 queries, counted from the first key on."""
    model = model_of(Block())
    for value in (*model.graph.input, *model.graph.output):
        dim = value.type.tensor_type.shape.dim[2]
        if value.name in ("query", "output"):
            dim.dim_value = 5
    result = api.verify(model, with_window(model, 20))
    assert result.passed
    [note] = result.notes
    assert "its window of 20 keys; the longest had 5 queries and 291 keys" in note


def positions_added(rows: int) -> ModelProto:
    """A model with a table of ``rows`` positions, as BERT has one of 512."""
    model = model_of(Block())
    table = numpy_helper.from_array(np.ones((1, 1, rows, 1), np.float32), "table")
    model.graph.initializer.extend([table, numpy_helper.from_array(np.array(0), "zero")])
    model.graph.initializer.extend([numpy_helper.from_array(np.array(n), name) for n, name in ((2, "two"), (1, "one"))])
    model.graph.node[-1].output[0] = "plain"
    nodes = [
        helper.make_node("Shape", ["query"], ["shape"]),
        helper.make_node("Gather", ["shape", "two"], ["rows"]),
        helper.make_node("Range", ["zero", "rows", "one"], ["positions"]),
        helper.make_node("Gather", ["table", "positions"], ["embedded"], axis=2),
        helper.make_node("Add", ["plain", "embedded"], ["output"]),
    ]
    model.graph.node.extend(nodes)
    return model


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (40, "Only short sequences were compared: "),
        (128, "No sequences much longer than 103 were compared: "),
        (512, ""),
    ],
)
def test_what_a_model_can_t_take_is_said(rows: int, note: str) -> None:
    result = ortflash.rewrite(positions_added(rows))
    assert result.exit_code == 0
    notes = [text for text in result.report.notes if "compared" in text]
    assert [text.startswith(note) and "can't run" in text for text in notes] == ([True] if note else [])


def test_given_inputs_and_fixed_sizes_have_no_longer_run() -> None:
    model = model_of(Block())
    assert ortflash.rewrite(model, inputs=feed_for(model)).report.notes == ()
    assert longer_feeds(model, shapes={"query": (1, 2, 5, 8)}) == []
    lengths = [(length, feed["query"].shape) for length, feed in longer_feeds(model)]
    assert lengths == [(length, (2, 2, first, 8)) for length, first in ((271, 271), (103, 113), (43, 61))]


# ------------------------------------------------------------------------------------------------------ the criterion


def test_compare_is_strict_about_inf_and_nan() -> None:
    truth = np.array([[1.0, np.inf], [2.0, 3.0]])
    good = truth.astype(np.float32)
    assert compare(good, good, truth).passed
    assert not compare(np.where(np.isinf(good), 3e38, good).astype(np.float32), good, truth).passed
    assert not compare(np.where(good == 2, np.nan, good).astype(np.float32), good, truth).passed
    assert not compare(good[:1], good, truth).passed
    undefined = np.where(truth == 2, np.nan, truth)
    listed = compare(np.where(np.isnan(undefined), 0, truth).astype(np.float32), good, undefined)
    assert listed.passed
    assert listed.empty_rows == 1
    seven = np.where(np.isnan(undefined), 7, truth).astype(np.float32)
    assert not compare(seven, good, undefined).passed
    assert compare(seven, good, undefined, nan_is_open=True).passed


def test_compare_looks_past_the_overflow_of_the_model_s_own_type() -> None:
    """Two planes of -65504 add up to -inf in fp16, and a row of them to NaN; ours is held against float64."""
    truth = np.array([[0.5, 0.25]])
    own = np.array([[np.nan, 0.25]], np.float16)
    assert compare(truth.astype(np.float16), own, truth).passed
    assert not compare((truth + 0.1).astype(np.float16), own, truth).passed


def test_compare_allows_twice_the_reordered_error() -> None:
    truth = np.full((4,), 1.0)
    reordered = np.float32(truth + 1e-3)
    assert compare(np.float32(truth + 1.9e-3), reordered, truth).passed
    worse = compare(np.float32(truth + np.array([0, 0, 2.1e-3, 0])), reordered, truth)
    assert not worse.passed
    assert worse.worst == (2,)


def test_compare_of_nothing_passes() -> None:
    empty = np.zeros((0, 3))
    assert compare(empty.astype(np.float32), empty.astype(np.float32), empty).passed


# --------------------------------------------------------------------------------------------------------- the pieces


def test_a_piece_begins_at_shapes_of_what_lies_outside() -> None:
    """A Reshape whose target comes from a far away tensor: the piece asks for the shape, not for that tensor."""
    model = model_of(Block())
    graph = model.graph
    graph.input.append(helper.make_tensor_value_info("far", TensorProto.FLOAT, ["batch", 2, "sequence", 8]))
    graph.node[-1].output[0] = "heads"
    graph.node.append(helper.make_node("Neg", ["far"], ["farther"], name="neg"))
    graph.node.append(helper.make_node("Shape", ["farther"], ["target"], name="shape"))
    graph.node.append(helper.make_node("Reshape", ["heads", "target"], ["output"], name="reshape"))
    piece = Cutter(model).cut("", ["query", "key", "value"], ["output"])
    assert piece.extra_inputs == ("target",)
    assert "neg" not in [node.name for node in piece.nodes]
    assert Cutter(model).cut("", ["query", "key", "value"], ["output"], shapes=False).extra_inputs == ("far",)


def test_float64_reaches_every_constant_and_cast() -> None:
    shape = numpy_helper.from_array(np.array([2]), "shape")
    nodes = [
        helper.make_node("Constant", [], ["third"], value_float=1 / 3),
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Add", ["half", "zeros"], ["sum"]),
        helper.make_node("Mul", ["sum", "third"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    exact = np.array([1.0001, 70000.0], np.float32)  # past fp16's precision, and past its range
    third = float(np.float32(1 / 3))
    np.testing.assert_array_equal(run_in_float64(model, {"x": exact})["y"], exact.astype(np.float64) * third)
    assert in_float64(model).graph.node[1].attribute[0].i == TensorProto.DOUBLE


def test_drawn_attention_is_peaked() -> None:
    block = Block()
    values = {name: np.zeros((2, 2, 64, 8), np.float32) for name in ("query", "key", "value")}
    drawn = draw(block.edit(), values, np.random.default_rng(0), terms=False)
    assert drawn is not None
    scores = 0.35 * drawn["query"].astype(float) @ drawn["key"].astype(float).swapaxes(-1, -2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    largest = (weights / weights.sum(-1, keepdims=True)).max(-1)
    assert np.median(largest) > 0.4
    assert draw(block.edit(), values, np.random.default_rng(0), terms=True) is None


# --------------------------------------------------------------------------------------------------------- the inputs


def text_model(batch: int | str = "batch") -> ModelProto:
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, [batch, "length"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [batch, "length"]),
        helper.make_tensor_value_info("position_ids", TensorProto.INT64, [batch, "length"]),
        helper.make_tensor_value_info("past", TensorProto.FLOAT, [batch, 4, "past", 8]),
        helper.make_tensor_value_info("cache_mask", TensorProto.BOOL, [batch, "past + length"]),
    ]
    table = numpy_helper.from_array(np.zeros((11, 4), np.float32), "table")
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [table])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_generated_text_is_padded_on_both_sides() -> None:
    (feed,) = generate_feeds(text_model())
    mask = feed["attention_mask"]
    assert mask[0].all()
    assert (mask[1, 0], mask[1, -1]) == (1, 0)
    assert (mask[2, 0], mask[2, -1]) == (0, 1)
    assert feed["input_ids"].max() < 11
    assert feed["input_ids"].max() > 1
    assert feed["position_ids"][0].tolist() == list(range(mask.shape[1]))
    assert feed["cache_mask"].shape == (3, feed["past"].shape[2] + mask.shape[1])
    assert {name: array.dtype.name for name, array in feed.items()} == {
        "input_ids": "int64",
        "attention_mask": "int64",
        "position_ids": "int64",
        "past": "float32",
        "cache_mask": "bool",
    }


def test_a_cache_s_lengths_fit_together_whatever_they_are_called() -> None:
    dims = {"past_key_0": "s15", "past_value_0": "s95", "past_cross_key_0": "source"}
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["s2", "s70"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["s43", "s53"]),
        *(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["s2", 4, dim, 8]) for name, dim in dims.items()),
    ]
    model = helper.make_model(helper.make_graph([], "g", inputs, []))

    feed = generate_feeds(model)[0]
    given = generate_feeds(model, shapes={"past_value_0": (3, 4, 5, 8), "input_ids": (3, 2)})[0]

    assert feed["past_key_0"].shape == feed["past_value_0"].shape
    assert feed["attention_mask"].shape[1] == feed["past_key_0"].shape[2] + feed["input_ids"].shape[1]
    assert feed["past_cross_key_0"].shape != feed["past_key_0"].shape
    assert given["past_key_0"].shape == (3, 4, 5, 8)
    assert given["attention_mask"].shape == (3, 7)


def test_a_batch_of_one_is_padded_in_two_feeds() -> None:
    right, left = generate_feeds(text_model(1))
    assert (right["attention_mask"][0, 0], right["attention_mask"][0, -1]) == (1, 0)
    assert (left["attention_mask"][0, 0], left["attention_mask"][0, -1]) == (0, 1)


def test_shapes_and_arrays_that_do_not_fit_are_refused() -> None:
    model = text_model()
    assert generate_feeds(model, shapes={"input_ids": (4, 6)})[0]["attention_mask"].shape == (4, 6)
    for shapes in ({"nobody": (1,)}, {"input_ids": (1,)}, {"past": (1, 5, 2, 8)}):
        with pytest.raises(OrtflashError):
            generate_feeds(model, shapes=shapes)
    with pytest.raises(OrtflashError, match="both 2 and 3"):
        generate_feeds(model, shapes={"input_ids": (2, 5), "attention_mask": (3, 5)})
    feed = generate_feeds(model)[0]
    with pytest.raises(OrtflashError, match="'past'"):
        load_feed(model, {name: array for name, array in feed.items() if name != "past"})
    with pytest.raises(OrtflashError, match="has shape"):
        load_feed(model, feed | {"past": np.zeros((1, 5, 2, 8), np.float32)})
    assert load_feed(model, feed | {"input_ids": feed["input_ids"].astype(np.int32)})["input_ids"].dtype == np.int64


def test_parse_shape() -> None:
    assert parse_shape("a:b:2x77") == ("a:b", (2, 77))
    for text in ("2x77", "a:", "a:2x", "a:-1"):
        with pytest.raises(OrtflashError, match="2x77"):
            parse_shape(text)
