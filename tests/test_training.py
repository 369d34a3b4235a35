"""`rewrite --training`: a live Dropout of the probabilities becomes dropout_p, and says that it can't be verified."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import ortflash
from ortflash import api
from ortflash.cli import app
from ortflash.errors import OrtflashError
from ortflash.graph_tools.op_schema import check_node, node_attributes

HEADS, LENGTH, SIZE = 2, 48, 48


def make_model(
    dropout: str = "d, kept = Dropout <seed = 7> (p, ratio, live)", scores: str = "s = MatMul(q, k)", inputs: str = ""
) -> onnx.ModelProto:
    """Softmax(q k) with a Dropout, times v; then a plain attention of the same operands."""
    shape = f"float[1,{HEADS},{LENGTH},{SIZE}]"
    constants = "" if inputs else ", bool live = {1}"
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        training ({shape} q, {shape} k, {shape} v{inputs}) => ({shape} y, {shape} z)
            <float ratio = {{0.25}}{constants}>
        {{
            {scores}
            p = Softmax <axis = -1> (s)
            {dropout}
            y = MatMul(d, v)
            raw = MatMul(q, k)
            plain = Softmax <axis = -1> (raw)
            z = MatMul(plain, v)
        }}
    """)


def feeds() -> dict[str, np.ndarray]:
    """Equal scores and the unit matrix as values: y is the weights."""
    zeros = np.zeros((1, HEADS, LENGTH, SIZE), np.float32)
    return {"q": zeros, "k": zeros, "v": np.broadcast_to(np.eye(LENGTH, SIZE, dtype=np.float32), zeros.shape).copy()}


def test_a_live_dropout_is_refused_unless_training_is_asked_for() -> None:
    report = ortflash.rewrite(make_model()).report
    assert [site.decision for site in report.sites] == ["refused", "fused"]
    assert "Dropout in training mode" in str(report.sites[0].reason)
    assert "--training" in str(report.to_dict())


def test_verify_refuses_what_is_drawn_at_random(tmp_path: Path) -> None:
    onnx.save(make_model(), tmp_path / "model.onnx")
    ortflash.rewrite(tmp_path / "model.onnx", tmp_path / "fused.onnx", training=True)
    result = CliRunner().invoke(app, ["verify", str(tmp_path / "model.onnx"), str(tmp_path / "fused.onnx")])
    assert result.exit_code == 2
    assert "draws dropout" in result.output


def test_it_becomes_the_operator_s_dropout() -> None:
    result = ortflash.rewrite(make_model(), training=True)
    assert [site.decision for site in result.report.sites] == ["fused", "fused"]
    nodes = [node for node in result.model.graph.node if node.op_type == "FlashAttention"]
    for node in nodes:
        check_node(node)
    assert [node_attributes(node)["dropout_p"] for node in nodes] == [0.25, 0.0]
    assert not result.model.functions  # standard ops can't draw the mask
    (draw,) = (node for node in result.model.graph.node if node.op_type == "RandomUniform")
    assert node_attributes(draw)["seed"] == 7.0
    assert all(len(node.input) == 9 for node in nodes)


def test_it_says_that_it_can_not_be_verified() -> None:
    result = ortflash.rewrite(make_model(), training=True)
    assert result.verification is not None
    assert result.verification.passed
    assert len(result.verification.sites) == 1  # the plain one
    assert not result.verification.outputs
    assert any("drops probabilities at random" in note for note in result.verification.notes)
    assert any("can't be verified" in feature for feature in result.report.sites[0].features)
    assert not any("can't be verified" in feature for feature in result.report.sites[1].features)


def test_each_run_drops_other_weights_at_the_rate_of_the_model(tmp_path: Path) -> None:
    ortflash.rewrite(make_model(dropout="d, kept = Dropout(p, ratio, live)"), tmp_path / "model.onnx", training=True)
    session = ortflash.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    runs = [session.run(None, feeds()) for _ in range(4)]
    kept = np.array([y != 0 for y, _ in runs])
    assert abs(kept.mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / kept.size)
    assert 0.5 < (kept[0] == kept[1]).mean() < 0.75  # 0.625 where they are independent
    np.testing.assert_allclose(runs[0][0][runs[0][0] != 0], 1 / LENGTH / 0.75, rtol=1e-5)
    np.testing.assert_allclose(runs[0][1], 1 / LENGTH, rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (make_model(inputs=", bool live"), "whether the Dropout is live"),
        (make_model(scores="raw_s = MatMul(q, k) s, dropped = Dropout(raw_s, ratio, live)"), "drops scores at random"),
        (make_model("e, a = Dropout(p, ratio, live) d, b = Dropout(e, ratio, live)"), "dropped twice"),
    ],
    ids=["unknown mode", "scores", "twice"],
)
def test_what_is_refused_all_the_same(model: onnx.ModelProto, reason: str) -> None:
    refused = [site for site in api.inspect(model, training=True).sites if site.decision == "refused"]
    assert len(refused) == 1
    assert reason in str(refused[0].reason)


@pytest.mark.parametrize("target", ["onnx", "ort-trt"])
def test_other_targets_have_no_dropout(target: api.Target) -> None:
    with pytest.raises(OrtflashError, match=f"Training is for --target ort: {target} has no dropout"):
        api.inspect(make_model(), target=target, training=True)


def test_the_command_has_the_option(tmp_path: Path) -> None:
    onnx.save(make_model(), tmp_path / "model.onnx")
    done = CliRunner().invoke(app, ["rewrite", str(tmp_path / "model.onnx"), "--training", "--no-verify"])
    assert done.exit_code == 0, done.output
    rewritten = onnx.load(tmp_path / "model.flash.onnx")
    assert sum(node.op_type == "FlashAttention" for node in rewritten.graph.node) == 2
