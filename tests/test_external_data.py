"""Weights in other files: found where they lie, left where they lie, and never more than touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from blocks import Block, feed_for, model_of
from onnx import ModelProto, TensorProto, helper, numpy_helper

import ortflash
from ortflash import api
from ortflash.errors import InvalidModelError
from ortflash.graph_tools.external_data import external_tensors, load_model, save_model
from ortflash.graph_tools.stream import write_model
from ortflash.runner import run_model

BLOCK = Block(bias=True)


def externalise(tensor: TensorProto, folder: Path, location: str, *, offset: int = 0) -> None:
    """Move a tensor's bytes into a file, at an offset."""
    data = numpy_helper.to_array(tensor).tobytes()
    with (folder / location).open("ab") as file:
        file.truncate(max(offset, file.tell()))
        file.seek(0, os.SEEK_END)
        start = file.tell()
        file.write(data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", start), ("length", len(data))):
        tensor.external_data.add(key=key, value=str(value))


def references(model: ModelProto) -> dict[str, dict[str, str]]:
    return {t.name: {e.key: e.value for e in t.external_data} for t in external_tensors(model)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A site whose bias is a constant in an external file, beside a weight that it doesn't touch."""
    proto = model_of(BLOCK)
    bias = np.random.default_rng(0).standard_normal((1, 2, 7, 7)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(bias, "bias"))
    del proto.graph.input[3]
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[2].dim_value = 7
    weight = numpy_helper.from_array(np.arange(25, dtype=np.float32), "weight")
    proto.graph.initializer.append(weight)
    proto.graph.node.append(helper.make_node("Identity", ["weight"], ["other"], name="other"))
    proto.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [25]))
    folder = tmp_path / "model"
    folder.mkdir()
    for tensor in proto.graph.initializer[-2:]:
        externalise(tensor, folder, "weights.bin", offset=4096)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    onnx.checker.check_model(str(folder / "model.onnx"))
    return folder / "model.onnx"


def test_data_stays_where_it_lies(model: Path) -> None:
    before = (model.parent / "weights.bin").read_bytes()
    stamp = (model.parent / "weights.bin").stat().st_mtime_ns
    result = ortflash.rewrite(model, model.parent / "out.onnx")
    assert result.exit_code == 0
    assert result.verification is not None
    assert result.verification.sites
    written = load_model(model.parent / "out.onnx")
    assert references(written) == references(load_model(model))
    assert references(written)["weight"]["offset"] != "0"
    assert (model.parent / "weights.bin").read_bytes() == before
    assert (model.parent / "weights.bin").stat().st_mtime_ns == stamp
    onnx.checker.check_model(str(model.parent / "out.onnx"))
    feed = feed_for(written)
    expected = run_model(load_model(model), feed, folder=model.parent)
    actual = run_model(written, feed, folder=model.parent)
    np.testing.assert_allclose(actual["output"], expected["output"], rtol=0, atol=1e-5)


def test_a_model_in_the_working_directory(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    assert ortflash.rewrite("model.onnx", "out.onnx").exit_code == 0
    onnx.checker.check_model("out.onnx")


def test_an_output_elsewhere_is_refused_unless_data_may_be_copied(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(InvalidModelError, match="--copy-data"):
        ortflash.rewrite(model, other / "out.onnx", verify=False)
    assert not list(other.iterdir())
    assert ortflash.rewrite(model, other / "out.onnx", copy_data=True).exit_code == 0
    assert (other / "weights.bin").read_bytes() == (model.parent / "weights.bin").read_bytes()
    onnx.checker.check_model(str(other / "out.onnx"))
    assert api.verify(model, other / "out.onnx").passed
    assert api.restore(other / "out.onnx", other / "back.onnx")[1] == 1


def test_a_model_behind_links_is_verified_and_written_elsewhere(model: Path, tmp_path: Path) -> None:
    """As model caches keep them: links into a folder of files without meaningful names."""
    blobs, snapshot, other = (tmp_path / name for name in ("blobs", "snapshot", "other"))
    for folder in (blobs, snapshot, other):
        folder.mkdir()
    for name, blob in (("model.onnx", "1f"), ("weights.bin", "2e")):
        (model.parent / name).rename(blobs / blob)
        (snapshot / name).symlink_to(Path("..") / "blobs" / blob)
    linked = snapshot / "model.onnx"

    result = ortflash.rewrite(linked, snapshot / "out.onnx")
    assert result.exit_code == 0
    assert result.verification is not None
    assert "'weights.bin' are a link out of" in result.report.notes[-1]
    assert (snapshot / "weights.bin").is_symlink()
    assert api.verify(linked, snapshot / "out.onnx").passed
    result = ortflash.rewrite(linked, other / "out.onnx", copy_data=True)
    assert (result.exit_code, result.report.notes) == (0, ())
    assert not (other / "weights.bin").is_symlink()
    assert api.verify(linked, other / "out.onnx").passed
    onnxruntime.InferenceSession(other / "out.onnx", providers=["CPUExecutionProvider"])


def test_data_of_another_model_is_never_overwritten(model: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "weights.bin").write_bytes(b"of another model")
    with pytest.raises(InvalidModelError, match="another file has that name"):
        ortflash.rewrite(model, elsewhere / "fused.onnx", verify=False, copy_data=True)
    assert [path.name for path in elsewhere.iterdir()] == ["weights.bin"]


def test_an_output_that_is_no_file_is_refused(model: Path) -> None:
    pipe = model.parent / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidModelError, match="a device or a pipe"):
        ortflash.rewrite(model, pipe, verify=False)
    assert pipe.is_fifo()


def test_nothing_to_fuse_copies_model_and_data(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    fused = model.parent / "out.onnx"
    ortflash.rewrite(model, fused)
    with pytest.raises(InvalidModelError, match="--copy-data"):
        ortflash.rewrite(fused, other / "again.onnx")
    assert ortflash.rewrite(fused, other / "again.onnx", copy_data=True).exit_code == 1
    assert (other / "again.onnx").read_bytes() == fused.read_bytes()
    assert (other / "weights.bin").is_file()


@pytest.mark.parametrize(
    "location", ["../weights.bin", "/etc/passwd", "a/../../b", "", "C:\\secret", "..\\weights.bin"]
)
def test_paths_that_leave_the_folder_are_refused(location: str, tmp_path: Path) -> None:
    proto = model_of(BLOCK)
    tensor = proto.graph.initializer[0]
    externalise(tensor, tmp_path, "weights.bin")
    tensor.external_data[0].value = location
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidModelError, match="outside the model's folder"):
        load_model(tmp_path / "model.onnx")


def test_data_in_a_folder_below(tmp_path: Path) -> None:
    proto = model_of(BLOCK)
    (tmp_path / "data").mkdir()
    externalise(proto.graph.initializer[0], tmp_path, "data/weights.bin")
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / "other").mkdir()
    result = ortflash.rewrite(tmp_path / "model.onnx", tmp_path / "other" / "out.onnx", copy_data=True)
    assert result.exit_code == 0


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.onnx"
    target.write_text("the old one")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InvalidModelError, match="No space left"):
        save_model(model_of(BLOCK), target)
    assert target.read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_large_model_is_written_field_by_field_to_the_same_bytes(tmp_path: Path) -> None:
    model = model_of(BLOCK)
    model.metadata_props.add(key="author", value="someone")
    model.doc_string = ""  # set, and empty
    model.graph.doc_string = "a graph"
    ortflash.rewrite(model, verify=False)
    for index in range(3):
        weight = TensorProto(name=f"weight_{index}", data_type=TensorProto.INT8, dims=[90 << 20])
        weight.raw_data = bytes([index]) * (90 << 20)
        model.graph.initializer.append(weight)
    with (tmp_path / "streamed.onnx").open("wb") as file:
        write_model(model, file)
    assert (tmp_path / "streamed.onnx").read_bytes() == model.SerializeToString()


# ----------------------------------------------------------------------------------------------------------- D9: 2.2 GB

_ROWS, _COLUMNS = 137_500, 4_000
_MEASURED = """
import json, sys
from pathlib import Path
import ortflash
from ortflash.measure import peak_bytes
result = ortflash.rewrite(sys.argv[1], sys.argv[2], verify=False)
print(json.dumps({"exit": result.exit_code, "peak": peak_bytes()}))
"""


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """One small site beside a Gather on 2.2 GB in a sparse file, and 100 bytes at an offset that isn't 0."""
    proto = model_of(BLOCK)
    small = numpy_helper.from_array(np.arange(25, dtype=np.float32), "small")
    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=[_ROWS, _COLUMNS])
    table.data_location = TensorProto.EXTERNAL
    size = _ROWS * _COLUMNS * 4
    for key, value in (("location", "huge.bin"), ("offset", 0), ("length", size)):
        table.external_data.add(key=key, value=str(value))
    with (tmp_path / "huge.bin").open("wb") as file:
        file.truncate(size)
    externalise(small, tmp_path, "huge.bin")
    proto.graph.initializer.extend([table, small])
    proto.graph.input.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"]))
    proto.graph.node.append(helper.make_node("Gather", ["table", "ids"], ["rows"], name="lookup"))
    proto.graph.node.append(helper.make_node("Identity", ["small"], ["same"], name="same"))
    proto.graph.output.append(helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", _COLUMNS]))
    proto.graph.output.append(helper.make_tensor_value_info("same", TensorProto.FLOAT, [25]))
    (tmp_path / "huge.onnx").write_bytes(proto.SerializeToString())
    return tmp_path / "huge.onnx"


def test_beyond_2_gib(huge: Path) -> None:
    data = huge.parent / "huge.bin"
    before = data.stat()
    output = huge.parent / "out.onnx"
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(huge), str(output)], capture_output=True, text=True, check=True
    )
    measured = json.loads(done.stdout)
    assert measured["exit"] == 0
    assert measured["peak"] < 300 * 2**20
    after = data.stat()
    assert (after.st_mtime_ns, after.st_size, after.st_blocks) == (before.st_mtime_ns, before.st_size, before.st_blocks)
    assert references(load_model(output)) == references(load_model(huge))
    onnx.checker.check_model(str(output))
    again = huge.parent / "again.onnx"
    assert ortflash.rewrite(output, again, verify=False).exit_code == 1
    assert again.read_bytes() == output.read_bytes()


def test_data_that_is_missing_or_cut_short_is_one_sentence(model: Path) -> None:
    data = model.parent / "weights.bin"
    data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(InvalidModelError, match=r"'weight' keeps its data in 'weights.bin' up to byte .* cut short"):
        ortflash.rewrite(model, model.parent / "out.onnx", verify=False)
    data.unlink()
    with pytest.raises(InvalidModelError, match=r"'bias' keeps its data in 'weights.bin', and there is no such file"):
        ortflash.rewrite(model, model.parent / "out.onnx")
    assert not (model.parent / "out.onnx").exists()
