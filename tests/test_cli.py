"""The command line: exit codes, one-sentence errors, no half-written file, and what is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from blocks import Block, feed_for, model_of
from hostile import HOSTILE
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

from ortflash.cli import app

BLOCKS = (Block("a_", bias=True), Block("b_", mask=True))


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(model_of(*BLOCKS), path)
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A model without attention."""
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    path = tmp_path / "plain.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_rewrite_verifies_and_writes_beside_the_model(model: Path) -> None:
    result = run("rewrite", model)
    assert result.exit_code == 0
    assert "2 of 2 attention sites of model.onnx fused" in result.output
    assert "largest error" in result.output
    written = model.parent / "model.flash.onnx"
    assert str(written) in result.output.replace("\n", "")
    assert [node.op_type for node in onnx.load(written).graph.node] == ["FlashAttention"] * 2


def test_dry_run_writes_nothing(model: Path) -> None:
    before = sorted(model.parent.iterdir())
    result = run("rewrite", model, "--dry-run", "-o", model.parent / "out.onnx")
    assert result.exit_code == 0
    assert "Nothing was written" in result.output
    assert sorted(model.parent.iterdir()) == before


def test_nothing_to_fuse_copies_the_file(plain: Path, tmp_path: Path) -> None:
    result = run("rewrite", plain, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 1
    assert (tmp_path / "out.onnx").read_bytes() == plain.read_bytes()
    assert run("rewrite", plain).exit_code == 1
    assert not (tmp_path / "plain.flash.onnx").exists()


def test_inspect_of_a_model_without_attention_is_one_sentence(plain: Path) -> None:
    result = run("inspect", plain)
    assert result.exit_code == 0
    assert result.output.strip() == (
        "plain.onnx contains no attention: no Softmax, or what computes one, between two matrix products."
    )


def test_inspect_says_what_fusing_saves(model: Path) -> None:
    data = json.loads(run("inspect", model, "--json").output)
    assert (data["found"], data["fused"]) == (2, 2)
    site = data["sites"][0]
    assert site["decision"] == "fusable"
    assert site["flops"] == "64 * batch * sequence^2"  # 4 * 2 heads * 8
    assert site["scores_bytes"] == "8 * batch * sequence^2"  # 2 heads, 4 bytes
    text = run("inspect", model).output
    assert "128 * batch * sequence^2 operations, 16 * batch * sequence^2 bytes" in text


def test_inspect_names_the_node_and_the_reason(tmp_path: Path) -> None:
    watched = model_of(Block())
    watched.graph.output.append(helper.make_tensor_value_info("weights", TensorProto.FLOAT, ["b", "h", "s", "t"]))
    onnx.save(watched, tmp_path / "watched.onnx")
    site = json.loads(run("inspect", tmp_path / "watched.onnx", "--json").output)["sites"][0]
    assert site["decision"] == "refused"
    assert site["node"]
    text = run("inspect", tmp_path / "watched.onnx").output.replace("\n", " ")
    assert f"{site['name']} (refused): {site['reason']}; {site['hint']}" in text


def test_plan_goes_out_edited_and_back(model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert run("inspect", model, "--plan", plan).exit_code == 0
    text = plan.read_text()
    data = json.loads(text)
    assert [entry["fuse"] for entry in data["sites"]] == [True, True]
    plan.write_text(text.replace("true", "false", 1))
    result = run("rewrite", model, "--plan", plan, "--json")
    assert [site["decision"] for site in json.loads(result.output)["sites"]] == ["skipped", "fused"]
    for broken in ("{", "[]", text.replace("a_weights_node", "nobody", 1)):
        plan.write_text(broken)
        assert run("rewrite", model, "--plan", plan).exit_code == 2, broken


@pytest.mark.parametrize("suffix", ["json", "md"])
def test_reports(model: Path, tmp_path: Path, suffix: str) -> None:
    report = tmp_path / f"report.{suffix}"
    assert run("rewrite", model, "--report", report).exit_code == 0
    assert "a_weights_node" in report.read_text()
    assert "fused" in report.read_text()


def test_a_report_of_another_kind_is_refused(model: Path, tmp_path: Path) -> None:
    result = run("inspect", model, "--report", tmp_path / "report.pdf")
    assert result.exit_code == 2
    assert "report.pdf" in result.output


def test_a_report_that_cannot_be_written_is_refused_before_the_model_is_written(model: Path, tmp_path: Path) -> None:
    result = run("rewrite", model, "-o", tmp_path / "out.onnx", "--report", tmp_path / "nowhere" / "report.md")
    assert result.exit_code == 2
    assert "nowhere" in result.output
    assert not (tmp_path / "out.onnx").exists()


def test_verify(model: Path, tmp_path: Path) -> None:
    run("rewrite", model)
    fused = tmp_path / "model.flash.onnx"
    result = run("verify", model, fused)
    assert result.exit_code == 0
    assert "a_weights_node" in result.output
    wrong = onnx.load(fused)
    for attribute in wrong.graph.node[0].attribute:
        if attribute.name == "scale":
            attribute.f *= 1.5
    onnx.save(wrong, tmp_path / "wrong.onnx")
    result = run("verify", model, tmp_path / "wrong.onnx", "--json")
    assert result.exit_code == 3
    data = json.loads(result.output)
    assert [site["passed"] for site in data["sites"]] == [False, True]
    assert [output["passed"] for output in data["outputs"]] == [False, True]


def test_verify_of_models_that_do_not_belong_together(model: Path, plain: Path) -> None:
    result = run("verify", model, plain)
    assert result.exit_code == 2
    assert "don't belong together" in result.output


def test_given_inputs_and_shapes(model: Path, tmp_path: Path) -> None:
    feed = tmp_path / "feed.npz"
    np.savez(feed, **feed_for(onnx.load(model)))  # type: ignore[arg-type]
    assert run("rewrite", model, "--inputs", feed).exit_code == 0
    assert run("rewrite", model, "--shape", "a_query:1x2x5x8", "--shape", "a_key:1x2x5x8").exit_code == 0
    for wrong in ("a_query", "a_query:1x2", "a_query:1x3x5x8", "a_query:0x0", "nobody:1x2"):
        assert run("rewrite", model, "--shape", wrong).exit_code == 2, wrong
    np.savez(feed, a_query=np.zeros(3))
    assert run("rewrite", model, "--inputs", feed).exit_code == 2
    refused = run("rewrite", model, "--inputs", model)
    assert refused.exit_code == 2
    assert "it isn't an .npz file" in refused.output


def test_restore(model: Path, tmp_path: Path) -> None:
    run("rewrite", model)
    fused, restored = tmp_path / "model.flash.onnx", tmp_path / "restored.onnx"
    result = run("restore", fused, "-o", restored)
    assert result.exit_code == 0
    assert "2 fused nodes swapped back" in result.output
    assert run("verify", model, restored).exit_code == 0
    assert run("restore", model, "-o", restored).exit_code == 1


def test_doctor(tmp_path: Path) -> None:
    result = run("doctor")
    assert "onnxruntime" in result.output
    assert isinstance(json.loads(run("doctor", "--json").output), list)


def test_demo_on_a_small_model(model: Path) -> None:
    result = run("demo", model, "--lengths", "5,9")
    assert result.exit_code == 0
    assert "2 attention sites found, 2 fused" in result.output
    assert "peak memory" in result.output
    assert "1 x 9" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("rewrite",),
        ("rewrite", "m.onnx", "--target", "tpu"),
        ("rewrite", "m.onnx", "--min-length", "-1"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize("name", HOSTILE)
def test_broken_files_end_in_one_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    HOSTILE[name](path)
    before = sorted(tmp_path.iterdir())
    result = run("rewrite", path, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 2
    assert result.output.startswith("ortflash: ")
    assert "bug" not in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_output_that_cannot_be_written_leaves_nothing(model: Path, tmp_path: Path) -> None:
    assert run("rewrite", model, "-o", tmp_path / "no" / "such" / "folder.onnx").exit_code == 2
    (tmp_path / "folder").mkdir()
    assert run("rewrite", model, "-o", tmp_path / "folder").exit_code == 2
    assert list((tmp_path / "folder").iterdir()) == []
    assert not list(tmp_path.glob(".*"))


def test_the_entry_point_starts_without_heavy_imports() -> None:
    """Help, and errors of usage, don't wait for onnx, graphsurgeon and onnxruntime."""
    heavy = {"onnx", "numpy", "onnxruntime", "onnx_graphsurgeon"}
    code = f"import sys, ortflash.cli; print(sorted(set(sys.modules) & {heavy}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
