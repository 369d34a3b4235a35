"""TensorRT 8.6 without its Python: engines built, loaded and run through trt8.cc. For tests on a GPU.

``TRT8_LIB`` names the folder that has ``libnvinfer.so.8`` and ``libnvonnxparser.so.8``. A build can take minutes; with
``ORTFLASH_DRIVER_LOG=1`` TensorRT's messages go to stderr as they come.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driver import Tensor, _Tensor, _tensors, compile_library

from ortflash.engine.profiles import Range
from ortflash.engine.runtime import get_trt_plugin_path
from ortflash.errors import LibraryError

FOLDER_VARIABLE = "TRT8_LIB"
WORKSPACE_BYTES = 8 << 30


class Tensorrt8Error(Exception):
    """What TensorRT logged as errors."""


def library_folder() -> Path | None:
    """Where TensorRT 8.6 lies, or None."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder) if folder and (Path(folder) / "libnvinfer.so.8").is_file() else None


@functools.cache
def open_tensorrt8() -> Tensorrt8:
    """With our plugin, once a process: creating a builder unpacks a gigabyte of kernels.

    Raises LibraryError where there is no TensorRT 8.6, or no plugin was built.
    """
    folder = library_folder()
    if folder is None:
        raise LibraryError(f"no TensorRT 8.6: {FOLDER_VARIABLE} does not name a folder with libnvinfer.so.8")
    with tempfile.TemporaryDirectory() as work:
        return Tensorrt8(folder, get_trt_plugin_path(tensorrt_major=8), Path(work))


class Tensorrt8:
    """The libraries, with our plugin loaded; or without any, where only TensorRT's own engines are wanted."""

    def __init__(self, folder: Path, plugin: str | None, work: Path) -> None:
        self._c = ctypes.CDLL(str(compile_library("trt8.cc", work / "trt8.so", major=8)))
        for name in ("build", "measured_data", "plan_data", "runtime", "load", "context"):
            getattr(self._c, f"trt8_{name}").restype = ctypes.c_void_p
        for name in ("measured_bytes", "plan_bytes", "device_bytes"):
            getattr(self._c, f"trt8_{name}").restype = ctypes.c_size_t
        for name in ("trt8_layers", "trt8_tensor_name", "driver_log"):
            getattr(self._c, name).restype = ctypes.c_char_p
        soname = "libnvinfer_plugin.so.8"
        standin = compile_library("nvinfer_plugin_standin.cc", work / soname, "-Wl,-soname," + soname, major=8)
        infer, parser = (str(folder / f"lib{name}.so.8").encode() for name in ("nvinfer", "nvonnxparser"))
        if self._c.trt8_open(infer, str(standin).encode(), parser) != 0:
            raise Tensorrt8Error(self.log())
        if plugin is not None and self._c.trt8_load_plugin(plugin.encode()) != 0:
            raise Tensorrt8Error(self.log())
        self.version = int(self._c.trt8_version())
        self._runtime: ctypes.c_void_p | None = None

    def log(self) -> str:
        """Everything logged since the last call, a line each, led by its severity."""
        text: bytes = self._c.driver_log()
        return text.decode(errors="replace")

    def errors(self) -> str:
        """The errors of :meth:`log`, or all of it where TensorRT calls nothing an error."""
        lines = self.log().splitlines()
        return "\n".join([line for line in lines if line[:2] in ("0 ", "1 ")] or lines)

    @property
    def measured(self) -> bytes:
        """What TensorRT has measured in earlier builds, as a timing cache; good for GPUs of the same kind."""
        return ctypes.string_at(self._c.trt8_measured_data(), self._c.trt8_measured_bytes())

    @measured.setter
    def measured(self, data: bytes) -> None:
        self._c.trt8_set_measured(data, ctypes.c_size_t(len(data)))

    def build(
        self, model: bytes, profile: Mapping[str, Range], *, fp16: bool = False, optimization_level: int = 3
    ) -> bytes:
        """A serialized engine; raises Tensorrt8Error. Level 3 is TensorRT's default; 0 builds fastest."""
        self.log()
        names = (ctypes.c_char_p * max(1, len(profile)))(*(name.encode() for name in profile))
        shapes = [
            _tensors([Tensor(0, getattr(one, kind)) for one in profile.values()]) for kind in ("min", "opt", "max")
        ]
        plan = ctypes.c_void_p(
            self._c.trt8_build(
                model,
                ctypes.c_size_t(len(model)),
                names,
                *shapes,
                len(profile),
                int(fp16),
                optimization_level,
                ctypes.c_size_t(WORKSPACE_BYTES),
            )
        )
        if not plan:
            raise Tensorrt8Error(self.errors())
        data = ctypes.string_at(self._c.trt8_plan_data(plan), self._c.trt8_plan_bytes(plan))
        self._c.trt8_destroy(plan)
        return data

    def load(self, plan: bytes) -> Engine:
        """Raises Tensorrt8Error."""
        if self._runtime is None:
            self._runtime = ctypes.c_void_p(self._c.trt8_runtime())
        handle = self._c.trt8_load(self._runtime, plan, ctypes.c_size_t(len(plan)))
        if not handle:
            raise Tensorrt8Error(self.errors())
        return Engine(self, handle)


class Engine:
    """An engine and one context."""

    def __init__(self, tensorrt: Tensorrt8, handle: int) -> None:
        self._tensorrt = tensorrt
        self._c = tensorrt._c
        self._handle = ctypes.c_void_p(handle)
        context = self._c.trt8_context(self._handle)
        if not context:
            raise Tensorrt8Error(tensorrt.errors())
        self._context = ctypes.c_void_p(context)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Once."""
        self._c.trt8_destroy(self._context)
        self._c.trt8_destroy(self._handle)

    def layers(self) -> list[dict[str, Any]]:
        """As TensorRT's inspector describes them."""
        described = json.loads(self._c.trt8_layers(self._handle))
        return list(described["Layers"])

    def device_bytes(self) -> int:
        """Scratch memory of a context."""
        return int(self._c.trt8_device_bytes(self._handle))

    def bind(self, name: str, pointer: int, shape: tuple[int, ...] | None = None) -> None:
        """Give a tensor its memory, and an input its shape."""
        (given,) = _tensors([Tensor(0, shape or ())])
        if shape is not None and self._c.trt8_set_shape(self._context, name.encode(), ctypes.byref(given)) != 0:
            raise Tensorrt8Error(self._tensorrt.errors())
        if self._c.trt8_set_address(self._context, name.encode(), ctypes.c_void_p(pointer)) != 0:
            raise Tensorrt8Error(self._tensorrt.errors())

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor, after all inputs have theirs."""
        made = _Tensor()
        self._c.trt8_shape(self._context, name.encode(), ctypes.byref(made))
        return tuple(made.dims[: made.rank])

    def enqueue(self, stream: int) -> None:
        """Raises Tensorrt8Error."""
        if self._c.trt8_enqueue(self._context, ctypes.c_void_p(stream)) != 0:
            raise Tensorrt8Error(self._tensorrt.errors())


@dataclass(frozen=True)
class Named:
    """In the place of an enumerator of TensorRT's Python package."""

    name: str


class AsPython:
    """An engine, and its context, under the names that TensorRT's Python package gives an ``ICudaEngine``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._c, self._handle = engine._c, engine._handle
        self.num_io_tensors = int(self._c.trt8_tensor_count(self._handle))

    def create_execution_context(self) -> AsPython:
        """The engine's only one."""
        return self

    def get_tensor_name(self, index: int) -> str:
        """Of an input or an output."""
        name: bytes = self._c.trt8_tensor_name(self._handle, index)
        return name.decode()

    def get_tensor_mode(self, name: str) -> Named:
        """INPUT or OUTPUT."""
        return Named("INPUT" if self._c.trt8_is_input(self._handle, name.encode()) else "OUTPUT")

    def is_shape_inference_io(self, name: str) -> bool:
        """Whether it lies on the host."""
        return bool(self._c.trt8_is_on_host(self._handle, name.encode()))

    def get_tensor_dtype(self, name: str) -> Named:
        """FLOAT, HALF, ..."""
        made = _Tensor()
        self._c.trt8_tensor(self._handle, name.encode(), ctypes.byref(made))
        return Named(("FLOAT", "HALF", "INT8", "INT32", "BOOL", "UINT8", "FP8")[made.type])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """In the context, which knows sizes that the engine leaves open (-1) once all inputs have theirs."""
        return self._engine.shape(name)

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        """Least, typical and largest; of the first profile, which is the only one here."""
        assert profile == 0
        shapes = []
        for select in range(3):
            made = _Tensor()
            self._c.trt8_profile_shape(self._handle, name.encode(), select, ctypes.byref(made))
            shapes.append(tuple(made.dims[: made.rank]))
        return shapes

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        """False where it is outside the profile."""
        (given,) = _tensors([Tensor(0, shape)])
        return int(self._c.trt8_set_shape(self._engine._context, name.encode(), ctypes.byref(given))) == 0

    def set_tensor_address(self, name: str, pointer: int) -> None:
        """Device memory of an input or an output."""
        self._c.trt8_set_address(self._engine._context, name.encode(), ctypes.c_void_p(pointer))

    def execute_async_v3(self, stream: int) -> bool:
        """Enqueue one run."""
        return int(self._c.trt8_enqueue(self._engine._context, ctypes.c_void_p(stream))) == 0
