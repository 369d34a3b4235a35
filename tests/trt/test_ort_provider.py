"""``rewrite --target ort-trt``: nodes and function in the domain of ONNX Runtime's TensorRT provider.

The provider itself needs a GPU, TensorRT and a build of ONNX Runtime that has it; here the file runs without it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

import ortflash
from ortflash import api
from ortflash.cli import app
from ortflash.graph_tools.op_schema import node_attributes
from ortflash.inputs import generate_feeds

MODEL = Path(__file__).resolve().parents[2] / "models" / "bert4096-dy-sdpa-op18.onnx"


@pytest.fixture(scope="module")
def moved() -> onnx.ModelProto:
    return ortflash.rewrite(MODEL, target="ort-trt", verify=False).model


def test_nodes_function_and_imports_are_in_the_providers_domain(moved: onnx.ModelProto) -> None:
    plain = ortflash.rewrite(MODEL, verify=False).model
    nodes = [node for node in moved.graph.node if node.op_type == "FlashAttention"]
    assert nodes
    assert {node.domain for node in nodes} == {"trt.plugins"}
    assert [(one.domain, one.name) for one in moved.functions] == [("trt.plugins", "FlashAttention")]
    assert sorted(one.domain for one in moved.opset_import) == sorted(
        "trt.plugins" if one.domain == "ortflash" else one.domain for one in plain.opset_import
    )
    assert all(node_attributes(node)["plugin_namespace"] == "ortflash" for node in nodes)
    onnx.checker.check_model(moved)


def test_without_the_provider_the_function_runs(moved: onnx.ModelProto) -> None:
    original = onnx.load(MODEL)
    feed = generate_feeds(original)[0]
    expected, actual = (
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)
        for model in (original, moved)
    )
    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_it_is_verified_like_any_rewrite(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    result = CliRunner().invoke(app, ["rewrite", str(MODEL), "-o", str(target), "--target", "ort-trt"])
    assert result.exit_code == 0, result.output
    assert "trt.plugins" in {one.domain for one in onnx.load(target).opset_import}


def test_an_unknown_target_names_those_that_there_are() -> None:
    with pytest.raises(ortflash.OrtflashError, match="The target is ort, ort-trt or onnx, not 'trt'"):
        ortflash.rewrite(MODEL, target="trt")  # type: ignore[arg-type]


def test_such_files_are_known_again(moved: onnx.ModelProto, tmp_path: Path) -> None:
    before = moved.SerializeToString(deterministic=True)
    assert api.inspect(moved).already_fused == 3
    assert api.verify(MODEL, moved).passed
    name = next(node.name for node in moved.graph.node if node.op_type == "FlashAttention")
    some, count = api.restore(moved, only=[name])
    assert count == 1
    assert [node.domain for node in some.graph.node if node.op_type == "FlashAttention"] == ["trt.plugins"] * 2
    assert [one.domain for one in some.functions] == ["trt.plugins"]
    onnx.checker.check_model(some)
    whole, count = api.restore(some, tmp_path / "plain.onnx")
    assert count == 2
    assert not whole.functions
    assert {one.domain for one in whole.opset_import} == {one.domain for one in onnx.load(MODEL).opset_import}
    assert moved.SerializeToString(deterministic=True) == before


def test_such_a_file_can_be_rewritten_further() -> None:
    first = ortflash.rewrite(MODEL, target="ort-trt", only=["node_Softmax_138"], verify=False).model
    second = ortflash.rewrite(first, target="ort-trt")
    assert (second.report.already_fused, second.fused, second.exit_code) == (1, 2, 0)
    assert [(one.domain, one.name) for one in second.model.functions] == [("trt.plugins", "FlashAttention")]


def test_a_window_is_seen_in_such_a_file(moved: onnx.ModelProto) -> None:
    tampered = onnx.ModelProto()
    tampered.CopyFrom(moved)
    node = next(node for node in tampered.graph.node if node.op_type == "FlashAttention")
    next(attribute for attribute in node.attribute if attribute.name == "window_left").i = 300
    assert not api.verify(MODEL, tampered).passed
