"""`ortflash verify --backend trt`: the comparison with a model in an engine's place, and the refusals for real."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from attention import attention_feed, plain_attention
from typer.testing import CliRunner

import ortflash
from ortflash.cli import app
from ortflash.engine import execution, verify
from ortflash.engine.device import Device
from ortflash.engine.execution import EngineTensor, TensorrtEngine
from ortflash.engine.profiles import Range
from ortflash.errors import OrtflashError
from ortflash.graph_tools.rewrite import flash_calls
from ortflash.inputs import input_specs
from ortflash.runner import Values, run_model

LEAST, TYPICAL, MOST = 5, 40, 90


class Played:
    """An engine that is a model in ONNX Runtime, with a profile of one batch and some lengths."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        lengths = {"batch": (1, 1, 1), "length": (LEAST, TYPICAL, MOST), "q_length": (LEAST, TYPICAL, MOST)}
        inputs = []
        for spec in input_specs(model):
            columns = [(dim,) * 3 if isinstance(dim, int) else lengths[dim] for dim in spec.dims]
            sizes = Range(*zip(*columns, strict=True))
            inputs.append(EngineTensor(spec.name, True, np.dtype(np.float16), opened(spec.dims), sizes))
        outputs = [EngineTensor(v.name, False, np.dtype(np.float16), (-1, 12, -1, 64)) for v in model.graph.output]
        self.tensors = (*inputs, *outputs)
        self.fed: list[dict[str, tuple[int, ...]]] = []

    def run(self, feed: Mapping[str, Any]) -> Values:
        self.fed.append({name: array.shape for name, array in feed.items()})
        return run_model(self.model, feed)


def opened(dims: tuple[int | str, ...]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else -1 for dim in dims)


def rewritten(**attributes: float) -> onnx.ModelProto:
    model = ortflash.rewrite(plain_attention(), verify=False).model
    for name, value in attributes.items():
        next(a for a in flash_calls(model)[0].attribute if a.name == name).f = value
    return model


# ------------------------------------------------------------------------------------------------------ the comparison
def test_an_engine_with_the_models_numbers_passes_at_its_typical_sizes() -> None:
    engine = Played(rewritten())
    result = verify.compare_engine(plain_attention(), engine)
    assert result.passed
    assert [check.output for check in result.outputs] == ["output"]
    assert 0 < result.largest_error < 1e-2
    assert {shape for fed in engine.fed for shape in fed.values()} == {(1, 12, TYPICAL, 64)}


def test_given_inputs_and_shapes_are_used() -> None:
    engine = Played(rewritten())
    assert verify.compare_engine(plain_attention(), engine, inputs=attention_feed(7)).passed
    assert verify.compare_engine(
        plain_attention(), engine, shapes={"query": (1, 12, 11, 64), "key": (1, 12, 21, 64)}
    ).passed
    assert [fed["query"][2] for fed in engine.fed] == [7, 11]


@pytest.mark.parametrize("mutant", [{"scale": 0.25}, {"softcap": 0.5}])
def test_an_engine_that_computes_something_else_differs(mutant: dict[str, float]) -> None:
    feed = attention_feed(60)
    for name in ("query", "key"):
        feed[name] = feed[name] * np.float16(2)  # peaked, so that it shows
    assert verify.compare_engine(plain_attention(), Played(rewritten()), inputs=feed).passed
    result = verify.compare_engine(plain_attention(), Played(rewritten(**mutant)), inputs=feed)
    assert not result.passed
    assert "is off by" in result.outputs[0].comparison.problem


# --------------------------------------------------------------------------------------------------------- what is off
@pytest.mark.parametrize("length", [LEAST - 1, MOST + 1])
def test_sizes_outside_the_profile(length: int) -> None:
    message = (
        rf"Input 'query' has shape \(1, 12, {length}, 64\), and the engine was built for \(1, 12, 5, 64\) to "
        r"\(1, 12, 90, 64\): give --shape or --inputs within that\."
    )
    with pytest.raises(OrtflashError, match=message):
        verify.compare_engine(plain_attention(), Played(rewritten()), inputs=attention_feed(length))


def renamed(kind: str) -> onnx.ModelProto:
    model = plain_attention()
    getattr(model.graph, kind)[0].name = "other"
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["other" if name in ("query", "output")[kind == "output" :][:1] else name for name in names]
    return model


def test_an_engine_of_another_model() -> None:
    engine = Played(rewritten())
    with pytest.raises(OrtflashError, match=r"wants input 'query', and the model has 'other', 'key', 'value'\."):
        verify.compare_engine(renamed("input"), engine)
    with pytest.raises(OrtflashError, match=r"their outputs are \['output'\] and \['other'\]\."):
        verify.compare_engine(renamed("output"), engine)
    smaller = plain_attention()
    smaller.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 32
    with pytest.raises(OrtflashError, match=r"its input 'query' has shape \(-1, 12, -1, 64\), and the model's \("):
        verify.compare_engine(smaller, engine)


# ------------------------------------------------------------------------------------------------------ TensorRT's side
class Memory:
    """A device whose memory is the host's."""

    stream = 7

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}

    def allocate(self, size_bytes: int) -> int:
        buffer = ctypes.create_string_buffer(max(1, size_bytes))
        self.held[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def free(self, pointer: int) -> None:
        del self.held[pointer]

    def write(self, pointer: int, array: Any) -> None:
        ctypes.memmove(pointer, array.ctypes.data, array.nbytes)

    def read(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        size = int(np.prod(shape)) * dtype.itemsize
        return np.frombuffer(ctypes.string_at(pointer, size), dtype).reshape(shape)

    def synchronize(self) -> None:
        pass


class Name:
    """In the place of an enumerator."""

    def __init__(self, name: str) -> None:
        self.name = name


class Doubler:
    """TensorRT's Python objects, engine and context in one, of an engine whose output ``y`` is 2 * ``x``."""

    num_io_tensors = 2

    def __init__(self, *, kind: str = "HALF", on_host: bool = False, output: int | None = None) -> None:
        self.kind, self.on_host, self.output = kind, on_host, output
        self.shape: tuple[int, ...] = ()
        self.pointers: dict[str, int] = {}
        self.works = True

    def create_execution_context(self) -> Doubler:
        return self

    def get_tensor_name(self, index: int) -> str:
        return "xy"[index]

    def get_tensor_mode(self, name: str) -> Name:
        return Name("INPUT" if name == "x" else "OUTPUT")

    def get_tensor_dtype(self, name: str) -> Name:
        return Name(self.kind)

    def is_shape_inference_io(self, name: str) -> bool:
        return self.on_host

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shape if self.output is None or not self.shape else (self.output,)

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        return [(1,), (2,), (3,)]

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shape = shape
        return shape[0] <= 3

    def set_tensor_address(self, name: str, pointer: int) -> None:
        self.pointers[name] = pointer

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == Memory.stream
        size = 2 * self.shape[0]
        doubled = 2 * np.frombuffer(ctypes.string_at(self.pointers["x"], size), np.float16)
        ctypes.memmove(self.pointers["y"], doubled.ctypes.data, size)
        return self.works


def test_one_run_of_an_engine_and_no_memory_left_behind() -> None:
    memory = Memory()
    engine = TensorrtEngine(Doubler(), memory)  # type: ignore[arg-type]
    assert [tensor.name for tensor in engine.tensors if tensor.is_input] == ["x"]
    assert engine.tensors[0].range == Range((1,), (2,), (3,))
    for values in ([1.0, 2.0], [3.0], [4.0, 5.0, 6.0]):
        feed = {"x": np.array(values, np.float32), "unread": np.zeros(3)}
        np.testing.assert_array_equal(engine.run(feed)["y"], 2 * np.array(values, np.float16))
    assert not memory.held


def test_what_an_engine_can_have_against_a_run() -> None:
    memory = Memory()
    with pytest.raises(OrtflashError, match=r"'x' is of type FP8, which ortflash can't give or read\."):
        TensorrtEngine(Doubler(kind="FP8"), memory)  # type: ignore[arg-type]
    with pytest.raises(OrtflashError, match=r"'x' holds sizes that TensorRT reads on the host"):
        TensorrtEngine(Doubler(on_host=True), memory)  # type: ignore[arg-type]
    with pytest.raises(OrtflashError, match=r"The shape of output 'y' depends on values"):
        TensorrtEngine(Doubler(output=-1), memory).run({"x": np.ones(2)})  # type: ignore[arg-type]
    with pytest.raises(OrtflashError, match=r"TensorRT does not take shape \(4,\) for input 'x'\."):
        TensorrtEngine(Doubler(), memory).run({"x": np.ones(4)})  # type: ignore[arg-type]
    failing = Doubler()
    failing.works = False
    with pytest.raises(OrtflashError, match=r"TensorRT fails to run the engine; its log says why\."):
        TensorrtEngine(failing, memory).run({"x": np.ones(2)})  # type: ignore[arg-type]
    assert not memory.held


def test_what_is_called_is_there_in_tensorrt(rtx: Any) -> None:
    """Names of the real package, whose objects take a GPU to make."""
    played = {name for name in vars(Doubler) if not name.startswith("_")}
    real = {*dir(rtx.ICudaEngine), *dir(rtx.IExecutionContext)}
    assert played <= real
    assert {"INPUT", "OUTPUT"} <= set(rtx.TensorIOMode.__members__)
    assert set(execution.DTYPES) <= set(rtx.DataType.__members__)
    assert rtx.DataType.HALF.name == "HALF"


# --------------------------------------------------------------------------------------------------- the command line
def run_cli(*arguments: object, path: str = "") -> subprocess.CompletedProcess[str]:
    """In a process of its own, with ``path`` last in Python's."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH"), path])])}
    command = [sys.executable, "-m", "ortflash.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    onnx.save(plain_attention(), tmp_path / "model.onnx")
    (tmp_path / "model.plan").write_bytes(b"no engine")
    return tmp_path / "model.onnx", tmp_path / "model.plan"


def test_without_tensorrt_one_sentence_says_how_to_get_it(files: tuple[Path, Path]) -> None:
    result = run_cli("verify", *files, "--backend", "trt", "--tensorrt", "tensorrt")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == (
        "ortflash: tensorrt is not installed; install it with: pip install 'ortflash[tensorrt]'"
    )


def test_without_a_gpu_one_sentence_says_so(files: tuple[Path, Path], rtx_folder: Path) -> None:
    with suppress(OrtflashError):
        Device()
        pytest.skip("there is a GPU")
    result = run_cli("verify", *files, "--backend", "trt", "--tensorrt", "rtx", path=str(rtx_folder))
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("ortflash: Running an engine needs an NVIDIA GPU, and this machine has none: ")


def test_a_plan_that_is_not_there_or_no_engine(files: tuple[Path, Path], rtx: Any) -> None:
    with pytest.raises(OrtflashError, match=r"Can't read the engine .*: No such file or directory\."):
        verify.load_engine(rtx, files[1].with_name("missing.plan"))
    with pytest.raises(OrtflashError, match=r"TensorRT-RTX 1\.7\.1\.\d+ does not load .*model\.plan; its log says: \S"):
        verify.load_engine(rtx, files[1])


@pytest.mark.parametrize(("scale", "code"), [(0.125, 0), (0.5, 3)])
def test_the_command_tells_each_output(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, scale: float, code: int
) -> None:
    monkeypatch.setattr(verify, "import_tensorrt", lambda flavour: None)
    monkeypatch.setattr(verify, "load_engine", lambda trt, plan: None)
    monkeypatch.setattr(verify, "Device", Memory)
    monkeypatch.setattr(verify, "TensorrtEngine", lambda engine, device: Played(rewritten(scale=scale)))
    np.savez(files[0].with_suffix(".npz"), **attention_feed(50))  # type: ignore[arg-type]
    result = CliRunner().invoke(
        app, ["verify", *map(str, files), "--backend", "trt", "--inputs", str(files[0].with_suffix(".npz"))]
    )
    assert result.exit_code == code, result.output
    assert result.output.startswith("Output 'output'")
    assert ("is off by" in result.output) == bool(code)
