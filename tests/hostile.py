"""Broken model files, made on the spot: each is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
from blocks import Block, model_of
from onnx import ModelProto, TensorProto, helper

HOSTILE: dict[str, Callable[[Path], None]] = {}


def _hostile(make: Callable[[Path], None]) -> Callable[[Path], None]:
    HOSTILE[make.__name__] = make
    return make


def _save(model: ModelProto, path: Path) -> None:
    path.write_bytes(model.SerializeToString())


def _model() -> ModelProto:
    return model_of(Block(bias=True))


@_hostile
def empty(path: Path) -> None:
    path.write_bytes(b"")


@_hostile
def not_a_model(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(range(256)) * 8)


@_hostile
def text(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 438006864\n")


@_hostile
def truncated(path: Path) -> None:
    data = _model().SerializeToString()
    path.write_bytes(data[: len(data) // 2])


@_hostile
def missing(path: Path) -> None:
    assert not path.exists()


@_hostile
def folder(path: Path) -> None:
    path.mkdir()


@_hostile
def without_a_graph(path: Path) -> None:
    model = _model()
    model.ClearField("graph")
    _save(model, path)


@_hostile
def cyclic(path: Path) -> None:
    model = _model()
    model.graph.node[0].input[0] = "weights"
    _save(model, path)


@_hostile
def two_writers(path: Path) -> None:
    model = _model()
    model.graph.node.append(helper.make_node("Neg", ["query"], ["weights"], name="again"))
    _save(model, path)


@_hostile
def reads_what_nobody_writes(path: Path) -> None:
    model = _model()
    model.graph.node[1].input[0] = "from_nowhere"
    _save(model, path)


@_hostile
def unknown_opset(path: Path) -> None:
    model = _model()
    model.opset_import[0].version = 9999
    _save(model, path)


@_hostile
def no_opset(path: Path) -> None:
    model = _model()
    del model.opset_import[:]
    _save(model, path)


@_hostile
def old_opset(path: Path) -> None:
    model = _model()
    model.opset_import[0].version = 9
    _save(model, path)


@_hostile
def wrong_types(path: Path) -> None:
    """Strings go into a MatMul."""
    model = _model()
    for value in model.graph.input:
        value.type.tensor_type.elem_type = TensorProto.STRING
    _save(model, path)


@_hostile
def negative_sizes(path: Path) -> None:
    model = _model()
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[2].dim_value = -7
    _save(model, path)


@_hostile
def negative_initializer(path: Path) -> None:
    model = _model()
    model.graph.initializer[0].dims[:] = [-3]
    _save(model, path)


@_hostile
def initializer_of_another_size(path: Path) -> None:
    model = _model()
    model.graph.initializer[0].dims[:] = [1000, 1000]
    _save(model, path)


@_hostile
def attribute_of_another_type(path: Path) -> None:
    model = _model()
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    softmax.attribute[0].CopyFrom(helper.make_attribute("axis", "last"))
    _save(model, path)


@_hostile
def node_without_inputs(path: Path) -> None:
    model = _model()
    del model.graph.node[1].input[:]
    _save(model, path)


@_hostile
def weights_outside_the_folder(path: Path) -> None:
    model = _model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    _save(model, path)


@_hostile
def weights_that_are_not_there(path: Path) -> None:
    model = _model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="gone.bin")
    _save(model, path)


@_hostile
def weights_past_the_end_of_their_file(path: Path) -> None:
    weights_that_are_not_there(path)
    (path.parent / "gone.bin").write_bytes(b"\0")
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data.add(key="offset", value="4096")
    _save(model, path)
