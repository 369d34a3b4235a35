"""What ``ortflash build`` does before and after TensorRT: profiles, the parser's model, the list of layers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from op_model import make_model

from ortflash.engine import layers
from ortflash.engine.prepare import prepare
from ortflash.engine.profiles import Range, make_profile, parse_range
from ortflash.errors import MissingExtraError, OrtflashError
from ortflash.graph_tools.op_schema import node_attributes, schema
from ortflash.graph_tools.rewrite import flash_calls

F32, F16, BOOL, I32 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BOOL, onnx.TensorProto.INT32
QKV = dict.fromkeys(("query", "key", "value"), F32)


# ------------------------------------------------------------------------------------------------------------- profiles
@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("x:1x2:3x4:5x6", "x", Range((1, 2), (3, 4), (5, 6))),
        ("x:3,4", "x", Range((3, 4), (3, 4), (3, 4))),
        ("past.0.key:1:2:3", "past.0.key", Range((1,), (2,), (3,))),
        ("a:0:1x1:2x2:2x2", "a:0", Range((1, 1), (2, 2), (2, 2))),
    ],
)
def test_ranges_are_read(text: str, name: str, expected: Range) -> None:
    assert parse_range(text) == (name, expected)
    assert parse_range(f"{name}:{expected}") == (name, expected)


@pytest.mark.parametrize("text", ["x", "x:", ":1x1", "x:1x1:2x2", "x:1x-1:1x1:1x1", "x:1xa", "x:1x1:2x2:"])
def test_what_is_no_range_is_told(text: str) -> None:
    with pytest.raises(OrtflashError, match="input:min:opt:max, such as input_ids:1x1:4x128:8x512"):
        parse_range(text)


@pytest.mark.parametrize("text", ["x:1x1:2x2:1x4", "x:2:1:3", "x:1:2x2:3x3"])
def test_sizes_must_ascend(text: str) -> None:
    with pytest.raises(OrtflashError, match="equally many sizes, in ascending order"):
        parse_range(text)


def model_with(**shapes: list[int | str | None]) -> onnx.ModelProto:
    inputs = [onnx.helper.make_tensor_value_info(name, F32, shape) for name, shape in shapes.items()]
    return onnx.helper.make_model(onnx.helper.make_graph([], "g", inputs, []))


def test_one_input_tells_the_sizes_of_others() -> None:
    model = model_with(ids=["batch", "length"], mask=["batch", "past + length"], past=["batch", 4, "past", 8], c=[2, 3])
    given = {"ids": Range((1, 1), (2, 8), (4, 16)), "past": Range((1, 4, 0, 8), (2, 4, 5, 8), (4, 4, 9, 8))}
    assert make_profile(model, given) == {**given, "mask": Range((1, 1), (2, 13), (4, 25))}


def test_an_input_that_nothing_tells() -> None:
    model = model_with(ids=["batch", "length"], mask=["batch", None])
    with pytest.raises(OrtflashError, match=r"Input 'mask' has shape \(batch, mask\[1\]\), and nothing says how long"):
        make_profile(model, {"ids": Range((1, 1), (1, 1), (1, 1))})


@pytest.mark.parametrize(
    ("name", "range_", "sentence"),
    [
        ("other", Range((1,), (1,), (1,)), "There is no input 'other'; the model has 'x', 'y'"),
        ("x", Range((1,), (1,), (1,)), "Input 'x' can't have shapes 1:1:1: the model wants (n, 4)"),
        ("x", Range((1, 4), (1, 5), (1, 6)), "Input 'x' can't have shapes 1x4:1x5:1x6: the model wants (n, 4)"),
        ("y", Range((7, 7), (8, 8), (8, 9)), "make the dimension 'n' both (7, 8, 8) and (7, 8, 9)"),
    ],
)
def test_ranges_that_do_not_fit(name: str, range_: Range, sentence: str) -> None:
    with pytest.raises(OrtflashError) as refused:
        make_profile(model_with(x=["n", 4], y=["n", "n"]), {name: range_})
    assert sentence in str(refused.value)


# -------------------------------------------------------------------------------------------------------- the model
def test_the_function_is_left_out_and_the_given_model_stays() -> None:
    model = make_model(QKV)
    model.functions.append(onnx.helper.make_function("ortflash", "FlashAttention", ["query"], ["output"], [], []))
    model.functions.append(onnx.helper.make_function("other", "FlashAttention", ["query"], ["output"], [], []))
    before = model.SerializeToString(deterministic=True)
    assert [one.domain for one in prepare(model).functions] == ["other"]
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("query", [F32, F16, onnx.TensorProto.BFLOAT16])
def test_neutral_constants_are_found_whatever_their_type(query: int) -> None:
    types = {**dict.fromkeys(("query", "key", "value"), query), "sinks": F32}
    (node,) = flash_calls(prepare(make_model(types)))
    names = [spec.name for spec in schema().inputs]
    expected = sum(1 << names.index(name) for name in ("attn_bias", "attn_mask", "key_lengths", "block_mask"))
    assert node_attributes(node)["neutral_inputs"] == expected


def test_a_constant_with_another_value_is_an_input() -> None:
    model = make_model({**QKV, "attn_mask": BOOL})
    bias = next(one for one in model.graph.initializer if one.name == "attn_bias")
    for value, bit in ((0.0, 8), (-0.0, 8), (1.0, 0)):
        bias.CopyFrom(onnx.numpy_helper.from_array(np.array([value], np.float32), "attn_bias"))
        (node,) = flash_calls(prepare(model))
        assert node_attributes(node)["neutral_inputs"] == bit
    bias.CopyFrom(onnx.numpy_helper.from_array(np.zeros(2, np.float32), "attn_bias"))
    assert node_attributes(flash_calls(prepare(model))[0])["neutral_inputs"] == 0


def test_integers_fit_32_bits() -> None:
    (node,) = flash_calls(prepare(make_model(QKV, {"window_left": 1 << 40, "window_right": 7})))
    values = node_attributes(node)
    assert (values["window_left"], values["window_right"]) == (2**31 - 1, 7)


def test_every_attribute_keeps_one_value() -> None:
    """ONNX's own check refuses an attribute that has another type's value beside its own."""
    for node in flash_calls(prepare(make_model(QKV, {"window_left": 1 << 40, "scale": 0.5}))):
        assert {"scale", "causal_alignment", "window_left", "neutral_inputs"} <= node_attributes(node).keys()
        for attribute in node.attribute:
            onnx.checker.check_attribute(attribute, onnx.checker.DEFAULT_CONTEXT)


def test_masks_are_cast_once_for_tensorrt_8() -> None:
    types = {**QKV, "attn_mask": BOOL, "block_mask": BOOL}
    model = make_model(types, shapes=dict.fromkeys(types, (1, 1, 1, 1)))
    second = onnx.NodeProto()
    second.CopyFrom(model.graph.node[0])
    second.name, second.output[0] = "second", "other"
    model.graph.node.append(second)
    prepared = prepare(model, int32_masks=True)
    kinds = [node.op_type for node in prepared.graph.node]
    assert kinds == ["Cast", "Cast", "FlashAttention", "FlashAttention"]
    casts = {node.input[0]: node.output[0] for node in prepared.graph.node[:2]}
    assert set(casts) == {"attn_mask", "block_mask"}
    names = [spec.name for spec in schema().inputs]
    for node in flash_calls(prepared):
        assert node.input[names.index("attn_mask")] == casts["attn_mask"]
        assert node.input[names.index("block_mask")] == casts["block_mask"]
    assert [node.op_type for node in prepare(model).graph.node] == ["FlashAttention"] * 2


def test_constant_masks_become_int32_constants_for_tensorrt_8() -> None:
    prepared = prepare(make_model({**QKV, "sinks": F32}), int32_masks=True)
    (call,) = flash_calls(prepared)
    made = {node.output[0]: node for node in prepared.graph.node if node.op_type == "Constant"}
    for name in ("attn_mask", "block_mask"):
        index = [spec.name for spec in schema().inputs].index(name)
        tensor = made[call.input[index]].attribute[0].t
        assert (tensor.data_type, list(onnx.numpy_helper.to_array(tensor))) == (I32, [1])
        assert node_attributes(call)["neutral_inputs"] & 1 << index


# ----------------------------------------------------------------------------------------------------- layers, packages
LOG = """Layers:
Name: attn_myl0_1, LayerType: custom_layer, Inputs: [ { Name: q, Dimensions: [2] }], TacticName: , Metadata: [ONNX Layer: a/attn]
Name: kgen_2, LayerType: kgen, Inputs: [], Metadata: [ONNX Layer: head/softmax][ONNX Layer: head/add]
Name: b/attn, LayerType: PluginV3, Inputs: [], Metadata:
"""  # noqa: E501


def test_layers_are_read_from_the_log() -> None:
    found = layers.read_layers(["something else", LOG])
    assert [(one.name, one.kind, one.nodes) for one in found] == [
        ("attn_myl0_1", "custom_layer", ("a/attn",)),
        ("kgen_2", "kgen", ("head/softmax", "head/add")),
        ("b/attn", "PluginV3", ()),
    ]
    assert layers.plugin_nodes(found, ["b/attn", "a/attn", "c/attn"]) == ["a/attn", "b/attn"]
    assert layers.remaining_nodes(found, ["head/softmax", "gone/softmax"]) == ["head/softmax"]


def test_layers_are_read_from_the_log_of_tensorrt_8() -> None:
    log = "Engine Layer Information:\nLayer(PluginV2): a/attn, Tactic: 0x0000000000000000, q (Half[2]) -> o (Half[2])\n"
    log += "Layer(SoftMax): head/softmax, Tactic: 0x00000000000003ea, x (Half[2]) -> y (Half[2])"
    found = layers.read_layers([log])
    assert [(one.name, one.kind) for one in found] == [("a/attn", "PluginV2"), ("head/softmax", "SoftMax")]
    assert layers.plugin_nodes(found, ["a/attn"]) == ["a/attn"]
    assert layers.remaining_nodes(found, ["head/softmax"]) == ["head/softmax"]


def test_a_log_without_layers_has_none() -> None:
    assert layers.read_layers(["Name: x, LayerType: y,"]) == []


def test_a_missing_tensorrt_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortflash.engine import runtime

    monkeypatch.setattr(runtime.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"tensorrt_rtx is not installed; .* pip install 'ortflash\[rtx\]'"):
        runtime.import_tensorrt("rtx")
    with pytest.raises(MissingExtraError, match=r"tensorrt is not installed; .* pip install 'ortflash\[tensorrt\]'"):
        runtime.import_tensorrt()
