"""Hold a TensorRT engine against the ONNX model that it was built from: the outputs, on a GPU.

The truth is the model in fp32 in ONNX Runtime. What rounding alone does is measured there by the model in its own type,
and :mod:`ortflash.criterion` judges, as for rewritten models. TensorRT computes fp32 products in TF32, whose mantissa
is as long as fp16's; so an engine of an fp32 model may be as far off as one in fp16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from onnx import ModelProto, TensorProto

from ..api import Arrays, PathLike, given_feed
from ..criterion import Comparison
from ..errors import OrtflashError
from ..graph_tools import external_data
from ..inputs import Feed, generate_feeds, input_specs
from ..runner import Values, run_model
from ..verify import (
    WHOLE_MODEL_FLOOR,
    OutputCheck,
    Verification,
    as_float32,
    compare_outputs,
    float_types,
    margin,
)
from ..widen import in_float32
from .build import error_lines, logger_of
from .device import Device
from .execution import Engine, EngineTensor, TensorrtEngine
from .runtime import Flavour, import_tensorrt, load_trt_plugin, name_of

_PRECISIONS = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


def verify_engine(
    original: PathLike,
    plan: PathLike,
    *,
    inputs: PathLike | Arrays | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    precision: str | None = None,
    flavour: Flavour = "auto",
) -> Verification:
    """Run an engine and the model that it was built from, and compare their outputs.

    Args:
        original: the ONNX file before rewriting.
        plan: the engine, built on a GPU of this kind by the same TensorRT.
        inputs: arrays by name, or an .npz file; generated without it.
        shapes: sizes of inputs to generate; without them, those that the engine was tuned for.
        precision: ``"fp16"`` or ``"bf16"`` where the engine was built with it.
        flavour: which TensorRT.

    Raises:
        MissingExtraError: TensorRT isn't installed.
        OrtflashError: no GPU, an engine that TensorRT doesn't load, an engine of another model, sizes outside the
            engine's profile, or a model that ONNX Runtime doesn't run.
    """
    path = Path(original)
    model = external_data.load_model(path)
    trt = import_tensorrt(flavour)
    device = Device()
    engine = TensorrtEngine(load_engine(trt, Path(plan)), device)
    return compare_engine(model, engine, folder=path.parent, inputs=inputs, shapes=shapes, precision=precision)


def load_engine(trt: ModuleType, plan: Path) -> object:
    """The engine of a file, with our plugin in reach; OrtflashError where TensorRT doesn't load it."""
    try:
        contents = plan.read_bytes()
    except OSError as error:
        raise OrtflashError(f"Can't read the engine {plan}: {error.strerror}.") from None
    load_trt_plugin(trt)
    log = logger_of(trt)
    log.messages.clear()
    runtime = trt.Runtime(log)
    if hasattr(runtime, "engine_host_code_allowed"):
        runtime.engine_host_code_allowed = True  # the plugin that `ortflash build --embed-plugin` stored
    engine = runtime.deserialize_cuda_engine(contents)
    if engine is None:
        raise OrtflashError(f"{name_of(trt)} does not load {plan}; its log says: {error_lines(log)}")
    return engine


def compare_engine(
    model: ModelProto,
    engine: Engine,
    *,
    folder: Path | None = None,
    inputs: PathLike | Arrays | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    precision: str | None = None,
) -> Verification:
    """The same for an engine that is loaded already. ``folder`` is where the model's external data lies."""
    check_interface(model, engine.tensors)
    feeds = _feeds(model, engine.tensors, inputs, shapes)
    for feed in feeds:
        check_profile(feed, engine.tensors)
    types = {TensorProto.FLOAT16, *float_types(model), *([_PRECISIONS[precision]] if precision else [])}
    floor = max(WHOLE_MODEL_FLOOR[elem_type] for elem_type in types)
    wide = in_float32(model, folder)
    worst: dict[str, Comparison] = {}
    for feed in feeds:
        truth = run_model(wide, {name: as_float32(array) for name, array in feed.items()}, folder=folder)
        reordered = _in_own_type(model, feed, folder, truth)
        for name, actual in engine.run(feed).items():
            found = compare_outputs(_as_in(actual, reordered[name]), reordered[name], truth[name], floor)
            if name not in worst or margin(found) > margin(worst[name]):
                worst[name] = found
    return Verification(outputs=tuple(OutputCheck(name, comparison) for name, comparison in worst.items()))


def check_interface(model: ModelProto, tensors: Sequence[EngineTensor]) -> None:
    """OrtflashError where the engine was not built from this model: names or known sizes differ.

    An engine lacks the inputs that nothing reads.
    """
    given = {spec.name: spec.dims for spec in input_specs(model)}
    for tensor in tensors:
        if tensor.is_input and tensor.name not in given:
            known = ", ".join(map(repr, given))
            raise OrtflashError(
                f"The engine was not built from this model: it wants input {tensor.name!r}, and the model has {known}."
            )
        if tensor.is_input and not _fits(tensor, given[tensor.name]):
            raise OrtflashError(
                f"The engine was not built from this model: its input {tensor.name!r} has shape {tensor.shape}, and "
                f"the model's ({', '.join(map(str, given[tensor.name]))})."
            )
    outputs = sorted(tensor.name for tensor in tensors if not tensor.is_input)
    expected = sorted(value.name for value in model.graph.output)
    if outputs != expected:
        raise OrtflashError(f"The engine was not built from this model: their outputs are {outputs} and {expected}.")


def check_profile(feed: Feed, tensors: Sequence[EngineTensor]) -> None:
    """OrtflashError where an input is smaller or larger than the engine was built for."""
    for tensor in tensors:
        sizes = tensor.range
        if sizes is None:
            continue
        shape = feed[tensor.name].shape
        if not all(low <= size <= high for low, size, high in zip(sizes.min, shape, sizes.max, strict=True)):
            raise OrtflashError(
                f"Input {tensor.name!r} has shape {shape}, and the engine was built for {sizes.min} to {sizes.max}: "
                "give --shape or --inputs within that."
            )


def _fits(tensor: EngineTensor, dims: Sequence[int | str]) -> bool:
    pairs = zip(tensor.shape, dims, strict=False)
    return len(tensor.shape) == len(dims) and all(
        size == dim for size, dim in pairs if size >= 0 and isinstance(dim, int)
    )


def _feeds(
    model: ModelProto,
    tensors: Sequence[EngineTensor],
    inputs: PathLike | Arrays | None,
    shapes: Mapping[str, Sequence[int]] | None,
) -> list[Feed]:
    """The given inputs, or generated ones of the given sizes, or of those that the engine was tuned for."""
    if inputs is not None:
        return [given_feed(model, inputs, shapes)]
    typical = {tensor.name: tensor.range.opt for tensor in tensors if tensor.range is not None}
    return generate_feeds(model, shapes=typical if shapes is None else shapes)


def _in_own_type(model: ModelProto, feed: Feed, folder: Path | None, truth: Values) -> Values:
    """The original in its own type; in fp32 where ONNX Runtime has no kernels for that (bf16)."""
    try:
        return run_model(model, feed, folder=folder, optimise=False)
    except OrtflashError:
        if TensorProto.BFLOAT16 not in float_types(model):
            raise
        return truth


def _as_in(actual: np.ndarray, original: np.ndarray) -> np.ndarray:
    """TensorRT 8 gives 64-bit integers as 32-bit ones, and an engine may give floats of another type."""
    return actual.astype(original.dtype) if actual.dtype.kind == original.dtype.kind else actual
