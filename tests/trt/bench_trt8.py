"""Race TensorRT 8.6 engines: a model rewritten by us beside the original file, built and timed in one process.

    python models/full_width.py export bert-base gpt2 vit-base sd-block --out build/trt8
    python models/full_width.py fill build/trt8/*.onnx --deviation 0.07
    TRT8_LIB=/opt/TensorRT-8.6/lib python tests/trt/bench_trt8.py attention build/trt8/*.onnx

``attention`` instead of a file is one attention with nothing around it. Needs a GPU, PyTorch and patience: an engine
may take TensorRT minutes. Errors are against the original in fp32, in ONNX Runtime: the batch's first and last row.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import torch
import typer

sys.path.append(str(Path(__file__).resolve().parent))

from attention import Array, plain_attention
from trt8 import Engine, Tensorrt8, Tensorrt8Error, open_tensorrt8

import ortflash
from ortflash.bench.kernel_cuda import captured
from ortflash.bench.machine import clocks, describe_machine
from ortflash.bench.race import Protocol, race
from ortflash.bench.results import OURS, Benchmark, Figure, Row
from ortflash.engine.prepare import prepare
from ortflash.engine.profiles import Range
from ortflash.graph_tools.rewrite import flash_calls
from ortflash.inputs import generate_feeds, input_specs
from ortflash.widen import in_float32

LAUNCHES = 3
"""Timed runs in one graph."""
LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 16384)
"""The last has more scores than a tensor of TensorRT may have elements, so that only ours can be built."""
LONGEST_REFERENCE = 8192
"""On a GPU; a longer sequence's scores don't fit in fp32. A quarter of it on the CPU, where more takes minutes."""


def make_feed(model: onnx.ModelProto, batch: int, length: int) -> dict[str, Array]:
    """Inputs whose open dimensions are the batch and the length; of an image, height * width is the length."""
    width = 2 ** (int(math.log2(length)) // 2)
    sizes = {"batch": batch, "height": length // width, "width": width}
    shapes = {
        spec.name: tuple(dim if isinstance(dim, int) else sizes.get(dim, length) for dim in spec.dims)
        for spec in input_specs(model)
    }
    return generate_feeds(model, shapes=shapes)[0]


class Run:
    """An engine with its inputs and outputs in device memory."""

    def __init__(self, engine: Engine, feed: Mapping[str, Array], outputs: Mapping[str, torch.dtype]) -> None:
        self.engine = engine
        self.inputs = {name: torch.from_numpy(to_tensorrt(array)).cuda() for name, array in feed.items()}
        for name, tensor in self.inputs.items():
            engine.bind(name, tensor.data_ptr(), tuple(tensor.shape))
        self.outputs = {
            name: torch.full(engine.shape(name), math.nan, dtype=dtype, device="cuda")
            for name, dtype in outputs.items()
        }
        for name, tensor in self.outputs.items():
            engine.bind(name, tensor.data_ptr())
        torch.cuda.synchronize()

    def once(self) -> dict[str, Array]:
        """The outputs of one run."""
        self.enqueue()
        torch.cuda.synchronize()
        return {name: tensor.cpu().numpy() for name, tensor in self.outputs.items()}

    def enqueue(self) -> None:
        """On PyTorch's current stream."""
        self.engine.enqueue(torch.cuda.current_stream().cuda_stream)


def to_tensorrt(array: Array) -> Array:
    """TensorRT 8 reads 64-bit integers as 32-bit ones."""
    return np.ascontiguousarray(array.astype(np.int32) if array.dtype == np.int64 else array)


def output_types(model: onnx.ModelProto) -> dict[str, torch.dtype]:
    """Of the float outputs, all that these models have."""
    types = {onnx.TensorProto.FLOAT16: torch.float16, onnx.TensorProto.FLOAT: torch.float32}
    return {value.name: types[value.type.tensor_type.elem_type] for value in model.graph.output}


@dataclass(frozen=True)
class Bench:
    """TensorRT, and a model as it was and as rewritten."""

    trt8: Tensorrt8
    label: str
    models: Mapping[str, onnx.ModelProto]
    """Candidate -> model; ours and one other."""
    level: int
    """TensorRT's optimization level."""
    protocol: Protocol

    @cached_property
    def reference(self) -> Reference:
        """Of the original."""
        return Reference(self.original)

    @property
    def original(self) -> onnx.ModelProto:
        """The model as it was."""
        return next(model for name, model in self.models.items() if name != OURS)

    def build(self, name: str, batch: int, length: int) -> bytes:
        """The engine of a candidate for one shape."""
        feed = make_feed(self.original, batch, length)
        profile = {name: Range(array.shape, array.shape, array.shape) for name, array in feed.items()}
        started = time.monotonic()
        print(f"building {name}, B {batch}, S {length}", flush=True)
        model = self.models[name].SerializeToString()
        plan = self.trt8.build(model, profile, fp16=True, optimization_level=self.level)
        print(f"built in {time.monotonic() - started:.1f} s", flush=True)
        return plan

    def race(self, batch: int, length: int) -> Row:
        """Both engines at one length; a candidate that can't be built or run says why."""
        feed = make_feed(self.original, batch, length)
        expected = self.reference.outputs(feed, length)
        figures: dict[str, Figure] = {}
        runs: dict[str, Callable[[], float]] = {}
        with ExitStack() as engines:
            for name in self.models:
                try:
                    engine = engines.enter_context(self.trt8.load(self.build(name, batch, length)))
                    run = Run(engine, feed, output_types(self.original))
                    error = largest_error(run.once(), expected)
                    figures[name] = Figure(math.nan, error=error, peak_bytes=engine.device_bytes())
                    runs[name] = captured([run.enqueue], LAUNCHES)
                except (Tensorrt8Error, torch.cuda.OutOfMemoryError) as problem:
                    figures[name] = Figure(math.nan, note=" ".join(str(problem).split())[:300])
                    continue
                if name == OURS:
                    check_layers(engine, self.models[name])
            for name, time_ms in race(runs, self.protocol).items():
                figures[name] = Figure(time_ms, error=figures[name].error, peak_bytes=figures[name].peak_bytes)
            sizes = {"batch": batch, "length": length, "clocks": clocks()}
            runs.clear()
        torch.cuda.empty_cache()
        return Row(f"{self.label}, B {batch}, S {length}", figures, sizes)


class Reference:
    """The original in fp32, in ONNX Runtime: first and last row of a batch, on the GPU (no TF32) where it has that."""

    def __init__(self, original: onnx.ModelProto) -> None:
        model = in_float32(original, None)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        providers: list[Any] = ["CPUExecutionProvider"]
        if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            providers.insert(0, ("CUDAExecutionProvider", {"use_tf32": "0"}))
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
        on_gpu = "CUDAExecutionProvider" in self._session.get_providers()
        self._longest = LONGEST_REFERENCE if on_gpu else LONGEST_REFERENCE // 4

    def outputs(self, feed: Mapping[str, Array], length: int) -> dict[str, Array] | None:
        """None where the sequence is too long."""
        if length > self._longest:
            return None
        rows = {name: ends(array) for name, array in feed.items()}
        rows = {name: array.astype(np.float32) if array.dtype == np.float16 else array for name, array in rows.items()}
        names = [value.name for value in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, rows), strict=True))


def ends(array: Array) -> Array:
    """First and last row."""
    return array[[0, -1]] if len(array) > 1 else array


def largest_error(outputs: Mapping[str, Array], expected: Mapping[str, Array] | None) -> float | None:
    """Over all outputs, of the rows that were computed in fp32."""
    if expected is None:
        return None
    differences = (np.abs(ends(outputs[name]).astype(np.float64) - array) for name, array in expected.items())
    return max(float(difference.max(initial=0.0)) for difference in differences)


def describe(row: Row) -> str:
    """One line for people."""
    parts = [
        f"{name} {figure.time_ms:.3f} ms, error {figure.error}, {(figure.peak_bytes or 0) / 2**20:.0f} MiB"
        if figure.ran
        else f"{name}: {figure.note}"
        for name, figure in row.figures.items()
    ]
    ratio = "" if row.ratio is None else f"; {row.ratio:.2f}x"
    return f"{row.case}: {'; '.join(parts)}{ratio}"


def check_layers(engine: Engine, model: onnx.ModelProto) -> None:
    """Fails unless every fused node is a layer."""
    plugins = [layer for layer in engine.layers() if layer["LayerType"] == "PluginV2"]
    assert len(plugins) == len(flash_calls(model)) > 0


def save(row: Row, benchmark: Benchmark, folder: Path) -> None:
    """Put a row into its file, in the place of an earlier one of the same case."""
    path = folder / f"{benchmark.name}.json"
    rows = {one.case: one for one in (Benchmark.load(path).rows if path.exists() else ())} | {row.case: row}
    in_order = sorted(rows.values(), key=lambda one: int(one.sizes["length"]))
    replace(benchmark, rows=tuple(in_order)).save(folder)


def main(
    models: Annotated[list[str], typer.Argument(help="ONNX files of opset 17 or older, or `attention`.")],
    length: Annotated[list[int] | None, typer.Option(help="Sequence length. Again for more.")] = None,
    tokens: Annotated[int, typer.Option(help="The batch is as large as makes this many tokens.")] = 8192,
    repetitions: Annotated[int, typer.Option(help="Runs of each engine; the median counts.")] = 7,
    level: Annotated[int, typer.Option(help="TensorRT's optimization level, 0 to 5; its default is 3.")] = 3,
    timing_cache: Annotated[Path | None, typer.Option(help="What TensorRT measured before, and measures now.")] = None,
    seconds: Annotated[float, typer.Option(help="After so many, no further engine is begun.")] = math.inf,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the JSON.")] = Path("docs/benchmarks"),
) -> None:
    """Build, compare and time, one length of all models after another; each row is written at once."""
    began = time.monotonic()
    trt8 = open_tensorrt8()
    if timing_cache and timing_cache.exists():
        trt8.measured = timing_cache.read_bytes()
    version = f"{trt8.version // 1000}.{trt8.version // 100 % 10}.{trt8.version % 100}"
    described = f"{version}, optimization level {level}, without cuBLAS and cuDNN"
    machine = describe_machine("cuda") | {"TensorRT": described}
    protocol = Protocol(repetitions, 40.0)
    sentence = protocol.sentence(f"{LAUNCHES} runs in a CUDA graph, after one that isn't timed,")
    benches = []
    for model in models:
        original = plain_attention() if model == "attention" else onnx.load(model)
        rewritten = prepare(ortflash.rewrite(original, verify=False).model, int32_masks=True)
        label = Path(model).stem
        benches.append(Bench(trt8, label, {OURS: rewritten, f"TensorRT {version}": original}, level, protocol))
    for one in length or LENGTHS:
        for model, bench in zip(models, benches, strict=True):
            if time.monotonic() - began > seconds:
                print(f"{bench.label}, S {one}: no time left", flush=True)
                continue
            row = bench.race(max(1, tokens // one), one)
            print(describe(row), flush=True)
            command = f"python tests/trt/bench_trt8.py {model}"
            save(row, Benchmark(f"trt8-{bench.label}", command, machine, sentence, ()), output)
            if timing_cache:
                timing_cache.write_bytes(trt8.measured)


if __name__ == "__main__":
    typer.run(main)
