"""What `ortflash doctor` looks at: versions, the libraries, and calls whose numbers are checked.

Each check answers one question and never raises; :func:`diagnose` runs them all.
"""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from . import core, library
from .errors import OrtflashError
from .graph_tools import op_schema

Status = Literal["ok", "warning", "error"]

_DEVICES: tuple[core.Device, ...] = ("cpu", "cuda")


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    subject: str
    status: Status
    detail: str
    """What was seen and, where it is not ok, what to do: one sentence."""


@dataclass(frozen=True)
class Diagnosis:
    """The whole report."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is in the way of running a fused model."""
        return all(finding.status != "error" for finding in self.findings)


def diagnose() -> Diagnosis:
    """Look at this installation, make real calls, and report."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (_versions, _onnxruntime, _libraries, _kernels, _calls)
    return Diagnosis(tuple(finding for check in checks for finding in _guarded(check)))


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The check's findings; an error that it raises is its last one."""
    try:
        yield from check()
    except OrtflashError as error:
        yield Finding(check.__name__.strip("_"), "error", str(error))
    except Exception as error:  # a diagnosis that crashes is no diagnosis
        yield Finding(check.__name__.strip("_"), "error", f"{type(error).__name__}: {error}")


def _versions() -> Iterator[Finding]:
    """Python, the machine, and the packages that the tool works with."""
    python = f"{platform.python_implementation()} {platform.python_version()} on {sys.platform} {platform.machine()}"
    yield Finding("python", "ok", f"{python}, {' '.join(platform.libc_ver())}")
    for name in ("ortflash", "onnx", "onnx-graphsurgeon", "numpy"):
        yield Finding(name, "ok", metadata.version(name))


def _onnxruntime() -> Iterator[Finding]:
    """Which onnxruntime there is, and whether two of them are in each other's way."""
    installed = library.onnxruntime_distributions()
    if len(installed) > 1:
        names = " and ".join(f"{name} {version}" for name, version in installed.items())
        yield Finding(
            "onnxruntime",
            "error",
            f"{names} are both installed and overwrite each other's files: uninstall both "
            f"(pip uninstall {' '.join(installed)}), then install one",
        )
    onnxruntime = library.import_onnxruntime()
    providers = ", ".join(onnxruntime.get_available_providers())
    name = next(iter(installed), "onnxruntime")
    yield Finding(name, "ok", f"{onnxruntime.__version__} with {providers}")


def _libraries() -> Iterator[Finding]:
    """Where the library lies, and what was built into it."""
    path = library.get_library_path()
    built = library.build_info()
    gpu = f"CUDA ({', '.join(built.cuda)})" if built.cuda else "no CUDA part"
    yield Finding("library", "ok", f"{path}: CPU ({', '.join(built.cpu)}), {gpu}; {built.compiler}")
    if "CUDAExecutionProvider" in library.import_onnxruntime().get_available_providers() and not built.cuda:
        yield Finding(
            "library",
            "warning",
            "onnxruntime has CUDA but this build of ortflash does not: rebuild it where nvcc is found (pip install .)",
        )


def _kernels() -> Iterator[Finding]:
    """Which kernel would run what, on each device that is there."""
    for device in _DEVICES:
        if not core.library().implementations(device):
            continue
        for dtype in op_schema.schema().query_types:
            chosen: dict[str, list[str]] = {}
            for head_size in (64, 128, 256, op_schema.schema().max_head_size):
                chosen.setdefault(_kernel(device, dtype, head_size), []).append(str(head_size))
            detail = ", ".join(f"{name} (head size {', '.join(sizes)})" for name, sizes in chosen.items())
            yield Finding(f"{device} {dtype}", "ok", detail)


def _kernel(device: core.Device, dtype: str, head_size: int) -> str:
    """Name of the kernel that would run a plain call of this type and head size, or why none would."""
    shape = (1, 8, 1024, head_size)
    nowhere = core.TensorView.contiguous(0, dtype, shape)
    params = core.make_params(dict.fromkeys(("query", "key", "value", "output"), nowhere))
    try:
        return core.library().describe(params, device)
    except core.CoreError as error:
        return f"none: {error}"


def _calls() -> Iterator[Finding]:
    """A small attention through ONNX Runtime on each provider, against float64."""
    from .session import CPU, CUDA, default_providers

    yield _call(CPU, "float32", tolerance=1e-5)
    if CUDA in default_providers():
        yield _call(CUDA, "float16", tolerance=5e-3)


def _call(provider: str, dtype: str, *, tolerance: float) -> Finding:
    """One causal call with a bias, on `provider`; an error where its numbers are off by more than `tolerance`."""
    from .session import InferenceSession

    generator = np.random.default_rng(0)
    query, key, value = (generator.standard_normal((2, 4, 37, 64)).astype(dtype) for _ in range(3))
    attn_bias = generator.standard_normal((37, 37)).astype(dtype)
    try:
        session = InferenceSession(_call_model(dtype).SerializeToString(), providers=[provider])
        inputs = {"query": query, "key": key, "value": value, "attn_bias": attn_bias}
        (output,) = session.run(None, inputs)
    except Exception as error:  # whatever onnxruntime raises is what the user has to see
        return Finding(f"call ({provider})", "error", f"failed: {error}")
    worst = float(np.abs(output - _expected(query, key, value, attn_bias)).max())
    status: Status = "ok" if worst <= tolerance else "error"
    return Finding(f"call ({provider})", status, f"{dtype}, largest error {worst:.1e} (allowed {tolerance:.0e})")


def _call_model(dtype: str) -> onnx.ModelProto:
    """A model of one FlashAttention node."""
    elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = ["query", "key", "value", "attn_bias"]
    node = op_schema.make_node(
        dict(zip(names, names, strict=True)),
        "output",
        name="doctor",
        input_count=len(names),
        attributes={"is_causal": 1},
    )
    graph = onnx.helper.make_graph(
        [node],
        "doctor",
        [onnx.helper.make_tensor_value_info(name, elem_type, None) for name in names],
        [onnx.helper.make_tensor_value_info("output", elem_type, None)],
    )
    schema = op_schema.schema()
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(schema.domain, schema.version)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _expected(query: Any, key: Any, value: Any, attn_bias: Any) -> NDArray[np.float64]:
    """softmax(query @ key^T / sqrt(D) + attn_bias, causal) @ value, in float64."""
    query, key, value, attn_bias = (array.astype(np.float64) for array in (query, key, value, attn_bias))
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1]) + attn_bias
    scores = np.where(np.tril(np.ones(scores.shape[-2:], dtype=bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True) @ value
    return result
