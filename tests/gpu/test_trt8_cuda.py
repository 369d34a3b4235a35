"""TensorRT 8.6 on a GPU: real engines of rewritten models, through libortflash_trt8.so, beside TensorRT's own.

TRT8_LIB names the folder that has TensorRT's libraries (tests/trt/trt8.py). Its Python isn't needed.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pycuda.driver as cuda
import pytest
from cases import Array
from corpus import find_corpus
from device import Buffer, free_bytes

import ortflash
from ortflash.engine.device import Device
from ortflash.engine.execution import TensorrtEngine
from ortflash.engine.prepare import prepare
from ortflash.engine.profiles import Range
from ortflash.engine.verify import compare_engine
from ortflash.errors import LibraryError, OrtflashError
from ortflash.graph_tools.rewrite import flash_calls
from ortflash.inputs import generate_feeds, input_specs
from ortflash.runner import run_model

sys.path.append(str(Path(__file__).resolve().parents[1] / "trt"))

from attention import attention_feed, plain_attention, reference
from trt8 import AsPython, Engine, Tensorrt8, Tensorrt8Error, open_tensorrt8

TESTS = Path(__file__).resolve().parents[1]

MODELS = (
    "bert-ts-eager-op14",
    "bert-ts-eager-op17-fp16",
    "bart-ts-eager-op17",
    "gpt2-ts-eager-op14",
    "t5enc-ts-eager-op17",
    "vit-ts-eager-op14",
    "clipvision-ts-eager-op17",
)
"""Of the corpus: exported at opsets that TensorRT 8.6 reads."""
SHIPPED = ("sdunet-ts-eager-op17",)

FASTEST = 0
"""TensorRT's optimization level where only numbers count: a whole model then builds in seconds."""


@pytest.fixture(scope="session")
def trt8() -> Tensorrt8:
    try:
        return open_tensorrt8()
    except LibraryError as error:
        pytest.skip(str(error))


def to_tensorrt(array: Array) -> Array:
    """TensorRT 8 reads 64-bit integers as 32-bit ones."""
    return np.ascontiguousarray(array.astype(np.int32) if array.dtype == np.int64 else array)


class Run:
    """An engine with its inputs bound."""

    def __init__(self, engine: Engine, feed: Mapping[str, Array], outputs: Mapping[str, Any]) -> None:
        self.engine = engine
        self.stream = cuda.Stream()
        self.inputs = {name: Buffer(to_tensorrt(array)) for name, array in feed.items()}
        for name, buffer in self.inputs.items():
            engine.bind(name, buffer.view.pointer, buffer.array.shape)
        self.outputs = {}
        for name, dtype in outputs.items():
            empty = np.zeros(engine.shape(name), np.int32 if dtype == np.int64 else dtype)
            self.outputs[name] = Buffer(empty)
            engine.bind(name, self.outputs[name].view.pointer)

    def once(self) -> dict[str, Array]:
        """The outputs of one run."""
        self.engine.enqueue(self.stream.handle)
        self.stream.synchronize()
        return {name: buffer.read() for name, buffer in self.outputs.items()}


def ranges_of(model: onnx.ModelProto, feed: Mapping[str, Array]) -> dict[str, Range]:
    specs = {spec.name: spec for spec in input_specs(model)}
    return {
        name: Range(array.shape, array.shape, array.shape)
        for name, array in feed.items()
        if any(isinstance(dim, str) for dim in specs[name].dims)
    }


def load_models() -> Iterator[Any]:
    folder = find_corpus()
    for name in MODELS:
        yield pytest.param(folder / f"{name}.onnx" if folder else None, id=name)
    for name in SHIPPED:
        yield pytest.param(TESTS.parent / "models" / f"{name}.onnx", id=name)


# -------------------------------------------------------------------------------------------------------- whole models
@pytest.mark.parametrize("path", [*load_models()])
def test_a_rewritten_model_is_as_exact_as_tensorrts_own_engine(trt8: Tensorrt8, path: Path | None) -> None:
    if path is None:
        pytest.skip("no corpus beside the checkout")
    original = onnx.load(path)
    rewritten = ortflash.rewrite(original, verify=False).model
    feed = generate_feeds(original, attempt=1)[0]
    expected = run_model(original, feed)
    half = any(spec.elem_type == onnx.TensorProto.FLOAT16 for spec in input_specs(original)) or "fp16" in path.name
    dtypes = {name: array.dtype for name, array in expected.items()}
    profile = ranges_of(original, feed)

    ours = trt8.load(
        trt8.build(
            prepare(rewritten, int32_masks=True).SerializeToString(), profile, fp16=half, optimization_level=FASTEST
        )
    )
    layers = ours.layers()
    plugins = [layer for layer in layers if layer["LayerType"] == "PluginV2"]
    assert len(plugins) == len(flash_calls(rewritten)) > 0, [layer["LayerType"] for layer in layers]
    assert not [layer for layer in layers if "softmax" in layer["LayerType"].lower()]
    actual = Run(ours, feed, dtypes).once()
    ours.close()

    theirs = trt8.load(trt8.build(original.SerializeToString(), profile, fp16=half, optimization_level=FASTEST))
    own = Run(theirs, feed, dtypes).once()
    theirs.close()
    for name, array in expected.items():
        exact = array.astype(np.float64)
        finite = np.isfinite(exact)
        error, bound = (float(np.abs(one[name] - exact)[finite].max(initial=0.0)) for one in (actual, own))
        floor = (2e-3 if half else 5e-4) * float(np.abs(exact[finite]).max(initial=0.0))
        assert error <= 2 * bound + floor, f"{name}: ours is off by {error:.3g}, TensorRT's own by {bound:.3g}"


# ------------------------------------------------------------------------------------- ortflash verify --backend trt
def test_verification_of_an_engine_on_the_gpu(trt8: Tensorrt8) -> None:
    """Device memory, one run and the comparison are those of `ortflash verify`; only TensorRT's Python is played."""
    original = onnx.load(TESTS.parent / "models" / "sdunet-ts-eager-op17.onnx")
    rewritten = prepare(ortflash.rewrite(original, verify=False).model, int32_masks=True)
    profile = ranges_of(original, generate_feeds(original)[0])
    device = Device()
    with trt8.load(trt8.build(rewritten.SerializeToString(), profile, optimization_level=FASTEST)) as engine:
        result = compare_engine(original, TensorrtEngine(AsPython(engine), device))
        assert result.passed
        assert len(result.outputs) == len(original.graph.output)
        assert result.largest_error > 0
        with pytest.raises(OrtflashError, match=r"the engine was built for \(3,"):
            compare_engine(original, TensorrtEngine(AsPython(engine), device), shapes={"sample": (2, 4, 16, 16)})


def test_verification_finds_an_engine_that_computes_something_else(trt8: Tensorrt8) -> None:
    original = plain_attention()
    rewritten = ortflash.rewrite(original, verify=False).model
    next(a for a in flash_calls(rewritten)[0].attribute if a.name == "scale").f = 0.25
    feed = attention_feed(99)
    with trt8.load(
        trt8.build(prepare(rewritten).SerializeToString(), profile_of(feed), optimization_level=FASTEST)
    ) as engine:
        result = compare_engine(original, TensorrtEngine(AsPython(engine), Device()), inputs=feed)
    assert not result.passed


# ---------------------------------------------------------------------------------------------------- attention alone
def profile_of(feed: Mapping[str, Array], most: Mapping[str, Array] | None = None) -> dict[str, Range]:
    return {name: Range(a.shape, a.shape, (most or feed)[name].shape) for name, a in feed.items()}


@pytest.mark.parametrize("mask", [False, True])
def test_one_engine_serves_every_length_of_its_profile(trt8: Tensorrt8, mask: bool) -> None:
    original = plain_attention(mask=mask)
    rewritten = ortflash.rewrite(original, verify=False).model
    least, most = attention_feed(1, mask=mask), attention_feed(1500, batch=3, mask=mask)
    engine = trt8.load(
        trt8.build(
            prepare(rewritten, int32_masks=True).SerializeToString(),
            profile_of(least, most),
            optimization_level=FASTEST,
        )
    )
    for length, batch in ((1, 1), (2, 3), (16, 1), (17, 2), (77, 1), (512, 3), (1500, 3)):
        feed = attention_feed(length, batch, mask=mask)
        exact = reference(feed)
        actual = Run(engine, feed, {"output": np.float16}).once()["output"]
        np.testing.assert_allclose(actual.astype(np.float64), exact, atol=4e-3, rtol=2e-3)
    engine.close()


def test_d15_a_saved_engine_gives_the_same_bits_in_a_fresh_process(trt8: Tensorrt8, tmp_path: Path) -> None:
    rewritten = ortflash.rewrite(plain_attention(), verify=False).model
    feed = attention_feed(333)
    plan = trt8.build(
        prepare(rewritten, int32_masks=True).SerializeToString(), profile_of(feed), optimization_level=FASTEST
    )
    engine = trt8.load(plan)
    here = Run(engine, feed, {"output": np.float16}).once()["output"]
    engine.close()
    (tmp_path / "engine.plan").write_bytes(plan)
    np.savez(tmp_path / "feed.npz", **feed)
    script = f"""
import sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS / "gpu")!r}, {str(TESTS / "trt")!r}]
from pathlib import Path
import numpy as np
import pycuda.driver as cuda
cuda.init()
cuda.Device(0).retain_primary_context().push()
from test_trt8_cuda import Run, open_tensorrt8
folder = Path(sys.argv[1])
engine = open_tensorrt8().load((folder / "engine.plan").read_bytes())
np.save(folder / "there.npy", Run(engine, np.load(folder / "feed.npz"), {{"output": np.float16}}).once()["output"])
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "there.npy").view(np.uint16), here.view(np.uint16))


def test_a_thousand_engines_loaded_and_run_leave_nothing(trt8: Tensorrt8) -> None:
    """And as many as there is time for are built, too: twenty."""
    rewritten = prepare(ortflash.rewrite(plain_attention(), verify=False).model)
    feed = attention_feed(3000, batch=1)  # the keys of its one query row are split, so that there is workspace
    feed["query"] = feed["query"][:, :, :1]
    profile = profile_of(feed)
    plan = trt8.build(rewritten.SerializeToString(), profile, optimization_level=FASTEST)

    def live(count: int, *, build: bool = False) -> None:
        for _ in range(count):
            with trt8.load(
                trt8.build(rewritten.SerializeToString(), profile, optimization_level=FASTEST) if build else plan
            ) as engine:
                Run(engine, feed, {"output": np.float16}).once()
        trt8.log()

    live(100)
    live(5, build=True)
    resident, free = resident_bytes(), free_bytes()
    live(1000)
    live(20, build=True)
    assert resident_bytes() - resident < 8 << 20
    assert free - free_bytes() < 8 << 20


def resident_bytes() -> int:
    """Memory that this process holds."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_refusals_are_told_in_tensorrts_log(trt8: Tensorrt8) -> None:
    rewritten = ortflash.rewrite(plain_attention(), verify=False).model
    node = flash_calls(rewritten)[0]
    next(a for a in node.attribute if a.name == "softcap").f = -1.0
    with pytest.raises(Tensorrt8Error, match=r"attribute 'softcap' is -1 but must be in \[0, inf\]"):
        trt8.build(prepare(rewritten).SerializeToString(), profile_of(attention_feed(8)))


@pytest.mark.slow
def test_speed_beside_tensorrts_own_engine(trt8: Tensorrt8, capsys: pytest.CaptureFixture[str]) -> None:
    """At least as fast everywhere, twice from 2,048 on, and a length that its own engine can't be built for."""
    pytest.importorskip("torch")
    from bench_trt8 import LENGTHS, OURS, Bench, describe

    from ortflash.bench.race import Protocol

    original = plain_attention()
    rewritten = prepare(ortflash.rewrite(original, verify=False).model, int32_masks=True)
    bench = Bench(trt8, "attention", {OURS: rewritten, "TensorRT": original}, 3, Protocol(7, 40.0))
    slower = []
    for length in LENGTHS:
        row = bench.race(max(1, 8192 // length), length)
        with capsys.disabled():
            print(f"\n{describe(row)}", end="")
        assert row.figures[OURS].ran, row.figures[OURS].note
        if row.ratio is not None and row.ratio < (2.0 if length >= 2048 else 1.0):
            slower.append(f"S = {length}: {row.ratio:.2f}x")
    assert not slower
    assert not row.figures["TensorRT"].ran
