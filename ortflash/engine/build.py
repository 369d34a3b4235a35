"""A TensorRT engine from an ONNX model, with the fused attention in it."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto

from ..api import RewriteResult
from ..api import rewrite as rewrite_model
from ..errors import OrtflashError
from ..graph_tools import external_data
from ..graph_tools.rewrite import flash_calls
from ..graph_tools.scopes import all_scopes
from ..inputs import input_specs
from . import layers
from .prepare import prepare
from .profiles import Range, make_profile
from .runtime import Flavour, get_trt_plugin_path, import_tensorrt, is_rtx, load_trt_plugin, name_of, tensorrt_version

PathLike = str | os.PathLike[str]
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many steps are done, and how many there are."""


@dataclass(frozen=True)
class EngineResult:
    """What was built."""

    output: Path
    size_bytes: int
    seconds: float
    tensorrt: str
    """Name and version."""
    profile: dict[str, Range]
    fused: tuple[str, ...]
    """FlashAttention nodes of the model."""
    plugin_layers: tuple[str, ...]
    """Those that are a plugin layer of the engine."""
    softmaxes: tuple[str, ...]
    """Softmax nodes that are left."""
    layer_count: int
    """0 where TensorRT doesn't list its layers."""
    rewrite: RewriteResult | None = None
    """None where the model had been rewritten before."""
    warnings: tuple[str, ...] = field(default=(), repr=False)
    """What TensorRT warned of."""

    @property
    def complete(self) -> bool:
        """Whether each fused node is one layer of the engine."""
        return sorted(self.plugin_layers) == sorted(self.fused)

    @property
    def exit_code(self) -> int:
        """0 done; 1 nothing in the model is fused; 3 a site was rolled back, or TensorRT dropped a fused node."""
        if self.rewrite is not None and self.rewrite.exit_code == 3:
            return 3
        if not self.fused:
            return 1
        return 0 if self.complete or self.layer_count == 0 else 3


def build_engine(
    model: PathLike,
    output: PathLike,
    *,
    shapes: Mapping[str, Range] | None = None,
    precision: str | None = None,
    compute_capabilities: Sequence[str] = (),
    embed_plugin: bool = False,
    timing_cache: PathLike | None = None,
    workspace_bytes: int | None = None,
    optimization_level: int | None = None,
    flavour: Flavour = "auto",
    verify: bool = True,
    progress: Progress | None = None,
) -> EngineResult:
    """Rewrite a model where it has no fused attention yet, build an engine of it, and say what became of each site.

    Args:
        model: an ONNX file, rewritten or not.
        output: where the engine is written.
        shapes: least, typical and largest sizes of inputs with open dimensions (:func:`.profiles.make_profile`).
        precision: ``"fp16"`` or ``"bf16"`` lets TensorRT lower a float32 model; TensorRT-RTX and TensorRT 11 take a
            model's own types only.
        compute_capabilities: GPUs to build for, such as ``"8.9"`` or ``"SM89"``, where it isn't this machine's own.
            TensorRT-RTX only; it then needs no GPU.
        embed_plugin: put the plugin library into the engine, so that it runs where ortflash isn't installed.
        timing_cache: a file that TensorRT reads what it measured before from, and writes it to. Not in TensorRT-RTX.
        workspace_bytes: the most scratch memory of one layer.
        optimization_level: TensorRT's, 0 to 5.
        flavour: which TensorRT.
        verify: hold a rewritten model against the original before building.
        progress: called as the work goes on.

    Raises:
        InvalidModelError: the file is missing or broken.
        OrtflashError: shapes that don't fit, an option that this TensorRT doesn't have, or what it refuses.
    """
    path = Path(model)
    proto, rewritten = _fused_model(path, verify=verify, progress=progress)
    profile = make_profile(proto, shapes or {})
    trt = load_trt_plugin(import_tensorrt("rtx" if compute_capabilities and flavour == "auto" else flavour))
    log = logger_of(trt)
    log.messages.clear()
    started = time.monotonic()
    try:
        builder = trt.Builder(log)
    except TypeError:  # what its Python makes of a null pointer
        raise OrtflashError(f"{name_of(trt)} can't build on this machine; its log says: {error_lines(log)}") from None
    network = _network(trt, builder, precision)
    parser = trt.OnnxParser(network, log)
    data = prepare(proto, int32_masks=_is_old(trt)).SerializeToString()
    if not parser.parse(data, str(path)):
        problems = "; ".join(str(parser.get_error(i).desc()) for i in range(parser.num_errors))
        raise OrtflashError(f"{name_of(trt)} does not parse {path.name}; its log says: {error_lines(log) or problems}")
    config = builder.create_builder_config()
    _set_precision(trt, config, proto, precision)
    _configure(trt, config, workspace_bytes, optimization_level)
    _target(trt, config, compute_capabilities)
    _add_profile(builder, config, network, profile)
    if embed_plugin:
        _embed(trt, config)
    if progress is not None:
        config.progress_monitor = _make_monitor(trt, progress)
    with _timing_cache(trt, config, timing_cache):
        plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise OrtflashError(f"{name_of(trt)} builds no engine of {path.name}; its log says: {error_lines(log)}")
    contents = bytes(plan)
    _write(Path(output), contents)
    found = layers.read_layers(text for _, text in log.messages)
    fused = [node.name for node in flash_calls(proto)]
    return EngineResult(
        output=Path(output),
        size_bytes=len(contents),
        seconds=time.monotonic() - started,
        tensorrt=name_of(trt),
        profile=profile,
        fused=tuple(fused),
        plugin_layers=tuple(layers.plugin_nodes(found, fused)),
        softmaxes=tuple(layers.remaining_nodes(found, _softmaxes(proto))),
        layer_count=len(found),
        rewrite=rewritten,
        warnings=tuple(text for severity, text in log.messages if severity == "WARNING"),
    )


def _fused_model(path: Path, *, verify: bool, progress: Progress | None) -> tuple[ModelProto, RewriteResult | None]:
    """The model with its attention fused; the rewrite's result where that happened now."""
    proto = external_data.load_model(path)
    if flash_calls(proto):
        return proto, None
    result = rewrite_model(path, verify=verify, progress=progress)
    return result.model, result


def _softmaxes(model: ModelProto) -> list[str]:
    nodes: list[NodeProto] = [node for scope in all_scopes(model) for node in scope.container.node]
    return [node.name for node in nodes if node.op_type == "Softmax"]


# ------------------------------------------------------------------------------------------------ TensorRT's objects
def _is_old(trt: ModuleType) -> bool:
    return not is_rtx(trt) and tensorrt_version(trt) < (10, 0)


@functools.cache
def logger_of(trt: ModuleType) -> Any:
    """The one logger of this process: it keeps what it hears, as (severity's name, text), in ``messages``.

    TensorRT goes on using the logger that it was first given, whatever it is given later, so there is only one here and
    it stays.
    """

    class Logger(trt.ILogger):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.messages: list[tuple[str, str]] = []

        def log(self, severity: Any, text: str) -> None:
            self.messages.append((str(severity).rpartition(".")[2], text))

    return Logger()


def error_lines(log: Any) -> str:
    """The errors of a log in one line: ours, where there are any, since TensorRT's own only follow from them."""
    errors = [" ".join(text.split()) for severity, text in log.messages if severity.endswith("ERROR")]
    own = [text for text in errors if text.startswith("FlashAttention")]
    return " ".join(dict.fromkeys(own or errors))


def _network(trt: ModuleType, builder: Any, precision: str | None) -> Any:
    """An empty network whose tensors have the model's own types, unless TensorRT is to choose."""
    flags = trt.NetworkDefinitionCreationFlag
    if _is_old(trt):
        return builder.create_network(1 << int(flags.EXPLICIT_BATCH))
    typed = getattr(flags, "STRONGLY_TYPED", None) if precision is None else None
    return builder.create_network(0 if typed is None else 1 << int(typed))


def _set_precision(trt: ModuleType, config: Any, model: ModelProto, precision: str | None) -> None:
    """Let TensorRT use half types: where the user says so, and in TensorRT 8 where the model has them."""
    if precision is None and _is_old(trt) and _has_fp16(model):
        precision = "fp16"
    if precision is None:
        return
    flag = getattr(trt.BuilderFlag, precision.upper(), None)
    if flag is None:
        raise OrtflashError(
            f"{name_of(trt)} takes a model's own types and has no {precision} switch: convert the model instead."
        )
    config.set_flag(flag)


def _has_fp16(model: ModelProto) -> bool:
    tensors = [tensor.data_type for tensor in model.graph.initializer]
    return TensorProto.FLOAT16 in [*tensors, *(spec.elem_type for spec in input_specs(model))]


def _configure(trt: ModuleType, config: Any, workspace_bytes: int | None, optimization_level: int | None) -> None:
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace_bytes)
    if optimization_level is not None:
        config.builder_optimization_level = optimization_level


def _target(trt: ModuleType, config: Any, compute_capabilities: Sequence[str]) -> None:
    """Build for other GPUs than this machine's."""
    if not compute_capabilities:
        return
    if not is_rtx(trt):
        raise OrtflashError(f"{name_of(trt)} builds for the GPU at hand only; --compute-capability needs TensorRT-RTX.")
    known = dict(trt.ComputeCapability.__members__)
    names = [f"SM{one.upper().removeprefix('SM').replace('.', '')}" for one in compute_capabilities]
    for given, name in zip(compute_capabilities, names, strict=True):
        if name not in known:
            choices = ", ".join(sorted(one for one in known if one.startswith("SM")))
            raise OrtflashError(f"{name_of(trt)} does not build for compute capability {given!r}, only for {choices}.")
    config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        config.set_compute_capability(known[name], index)


def _add_profile(builder: Any, config: Any, network: Any, profile: Mapping[str, Range]) -> None:
    if not profile:
        return
    made = builder.create_optimization_profile()
    inputs = {network.get_input(i).name: network.get_input(i) for i in range(network.num_inputs)}
    for name, sizes in profile.items():
        if name not in inputs:
            continue  # the parser leaves out what nothing reads
        if inputs[name].is_shape_tensor:
            raise OrtflashError(
                f"Input {name!r} holds sizes that TensorRT must know while it builds; ortflash build can't give them."
            )
        made.set_shape(name, sizes.min, sizes.opt, sizes.max)
    config.add_optimization_profile(made)


def _embed(trt: ModuleType, config: Any) -> None:
    """Store the plugin library in the engine. TensorRT does that in version-compatible engines only; RTX always."""
    if not hasattr(config, "plugins_to_serialize"):
        raise OrtflashError(f"{name_of(trt)} can't put a plugin into an engine.")
    if not is_rtx(trt):
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    major = 10 if is_rtx(trt) else tensorrt_version(trt)[0]
    config.plugins_to_serialize = [get_trt_plugin_path(tensorrt_major=major)]


def _make_monitor(trt: ModuleType, progress: Progress) -> Any:
    """TensorRT's progress as ours: its outermost phase, which is the whole build."""
    if not hasattr(trt, "IProgressMonitor"):
        return None  # TensorRT before 9.1

    class Monitor(trt.IProgressMonitor):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.phase = ""
            self.steps = 0

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if parent_phase is None:
                self.phase, self.steps = phase_name, num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:
            if phase_name == self.phase:
                progress("building", step + 1, self.steps)
            return True

        def phase_finish(self, phase_name: str) -> None:
            if phase_name == self.phase:
                progress("building", self.steps, self.steps)

    return Monitor()


@contextlib.contextmanager
def _timing_cache(trt: ModuleType, config: Any, path: PathLike | None) -> Iterator[None]:
    """Use a timing cache for one build, and write it back afterwards."""
    if path is None:
        yield
        return
    if is_rtx(trt):
        raise OrtflashError(f"{name_of(trt)} measures nothing while it builds, so it has no timing cache.")
    file = Path(path)
    try:
        before = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise OrtflashError(f"Can't read the timing cache {file}: {error.strerror}.") from None
    cache = config.create_timing_cache(before)
    if cache is None:
        raise OrtflashError(f"{file} is not a timing cache of this TensorRT: name another file, or remove it.")
    config.set_timing_cache(cache, ignore_mismatch=False)
    yield
    _write(file, bytes(config.get_timing_cache().serialize()))


def _write(path: Path, contents: bytes) -> None:
    """Write beside the final place, then rename: a half-written file never stands there."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            file.write(contents)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(file.name, 0o666 & ~umask)
        os.replace(file.name, path)
    except OSError as error:
        raise OrtflashError(f"Can't write {path}: {error.strerror}.") from None
