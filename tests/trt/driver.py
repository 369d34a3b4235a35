"""Drivers that play TensorRT's part for the plugins, called through ctypes: see driver_v3.cc and driver_v2.cc.

Built with the C++ compiler at hand, against our own declarations of TensorRT's interfaces, once a run.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# nvinfer1::DataType
FLOAT, HALF, INT8, INT32, BOOL, BF16, INT64 = 0, 1, 2, 3, 4, 7, 8
# nvinfer1::PluginFieldType
FIELD_FLOAT32, FIELD_FLOAT64, FIELD_INT32, FIELD_CHAR, FIELD_INT64, FIELD_INT8 = 1, 2, 5, 6, 10, 3

Value = int | float | str
Shape = Sequence[int]


class _Field(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("length", ctypes.c_int32),
    )


class _Tensor(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("rank", ctypes.c_int32), ("dims", ctypes.c_int64 * 8))


@dataclass(frozen=True)
class Tensor:
    """Type (``nvinfer1::DataType``) and shape of an input."""

    type: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Field:
    """One PluginField: a name, its ``nvinfer1::PluginFieldType`` and its bytes."""

    name: str
    type: int
    data: bytes
    length: int = 1

    @classmethod
    def of(cls, name: str, value: Value, *, int_type: int = FIELD_INT64) -> Field:
        """As TensorRT's parser passes an attribute: integers in 64 bits (in 32, up to 10.1), strings with their end."""
        if isinstance(value, str):
            text = value.encode() + b"\0"
            return cls(name, FIELD_CHAR, text, len(text))
        if isinstance(value, float):
            return cls(name, FIELD_FLOAT32, bytes(ctypes.c_float(value)))
        made = ctypes.c_int64(value) if int_type == FIELD_INT64 else ctypes.c_int32(value)
        return cls(name, int_type, bytes(made))

    @property
    def value(self) -> Value:
        """What it says."""
        if self.type == FIELD_CHAR:
            return self.data.rstrip(b"\0").decode()
        kind = {FIELD_INT64: ctypes.c_int64, FIELD_INT32: ctypes.c_int32, FIELD_FLOAT32: ctypes.c_float}[self.type]
        value: Value = kind.from_buffer_copy(self.data).value
        return value


class RefusedError(Exception):
    """The plugin said no; the message is what it logged."""


def compile_library(source: str, target: Path, *options: str, major: int) -> Path:
    """Compile a C++ file of this folder, with our declarations of that TensorRT's interfaces, into a shared library."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    assert compiler is not None, "no C++ compiler"
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    command += [f"-DORTFLASH_TENSORRT_MAJOR={major}", f"-I{ROOT / 'plugin_src'}", str(HERE / source), "-o", str(target)]
    subprocess.run([*command, *options, "-ldl"], check=True)
    return target


def build_driver(version: int, folder: Path) -> Path:
    """The driver for IPluginV3 (3) or IPluginV2DynamicExt (2)."""
    return compile_library(f"driver_v{version}.cc", folder / f"driver_v{version}.so", major=10 if version == 3 else 8)


class Driver:
    """A plugin library, and somebody in TensorRT's place."""

    def __init__(self, driver: Path, plugin: str | Path, *, tensorrt_version: int) -> None:
        self._c = ctypes.CDLL(str(driver))
        for name in ("open", "create", "clone", "attach", "restore"):
            self._result(name, ctypes.c_void_p)
        for name in ("log", "describe", "metadata"):
            self._result(name, ctypes.c_char_p)
        for name in ("allocated_bytes", "workspace", "stored_bytes"):
            self._result(name, ctypes.c_size_t)
        self.library = self._c.driver_open(str(plugin).encode())
        assert self.library, self.log()
        self.set_version(tensorrt_version)

    def set_version(self, version: int) -> None:
        """Give the plugin a logger finder as this TensorRT has it (10.0.0 is 100000); none for 0."""
        self._c.driver_set_version(ctypes.c_void_p(self.library), version)

    def use_registry(self, infer: str | Path, plugin: str | Path) -> bool:
        """Take creators from TensorRT 8.6.0's own registry, which loads ``plugin`` (version 2); whether it did."""
        return bool(self._c.driver_use_registry(str(infer).encode(), str(plugin).encode()))

    def log(self) -> str:
        """What was logged since the last call: lines led by their severity, 1 for errors."""
        text: bytes = self._c.driver_log()
        return text.decode(errors="replace")

    def describe(self) -> list[str]:
        """Name, version, namespace and interface of the creator, then the names of its fields."""
        text: bytes = self._c.driver_describe(ctypes.c_void_p(self.library))
        return text.decode().split("|")

    def allocated_bytes(self) -> int:
        """On the heap, at this moment."""
        return int(self._c.driver_allocated_bytes())

    def create(self, fields: Sequence[Field], *, name: str = "attn", from_engine: bool = False) -> Plugin:
        """Raises RefusedError."""
        made = (_Field * len(fields))()
        kept = [ctypes.create_string_buffer(field.data, max(1, len(field.data))) for field in fields]
        for one, field, data in zip(made, fields, kept, strict=True):
            address = ctypes.cast(data, ctypes.c_void_p) if field.data else None
            one.name, one.data, one.type, one.length = field.name.encode(), address, field.type, field.length
        library = ctypes.c_void_p(self.library)
        return self._plugin(self._c.driver_create(library, name.encode(), made, len(fields), int(from_engine)))

    def create_from(self, attributes: Mapping[str, Value], **options: Any) -> Plugin:
        """From the attributes of a node."""
        return self.create([Field.of(name, value) for name, value in attributes.items()], **options)

    def restore(self, data: bytes, *, name: str = "attn") -> Plugin:
        """From what :meth:`Plugin.store` gave (version 2); raises RefusedError."""
        library = ctypes.c_void_p(self.library)
        return self._plugin(self._c.driver_restore(library, name.encode(), data, ctypes.c_size_t(len(data))))

    def _plugin(self, handle: int | None) -> Plugin:
        if not handle:
            raise RefusedError(self.log())
        return Plugin(self, handle)

    def _result(self, name: str, kind: Any) -> None:
        function = getattr(self._c, f"driver_{name}", None)
        if function is not None:
            function.restype = kind


class Plugin:
    """One plugin object; destroyed by :meth:`destroy`, or at the end of a ``with``."""

    def __init__(self, driver: Driver, handle: int) -> None:
        self.driver = driver
        self._c = driver._c
        self._handle = ctypes.c_void_p(handle)

    def __enter__(self) -> Plugin:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def destroy(self) -> None:
        """Once."""
        self._c.driver_destroy(self._handle)
        self._handle = ctypes.c_void_p()

    def clone(self) -> Plugin:
        """As for another builder or runtime."""
        return Plugin(self.driver, self._c.driver_clone(self._handle))

    def attach(self) -> Plugin:
        """As for another execution context (version 3)."""
        return Plugin(self.driver, self._c.driver_attach(self._handle))

    def metadata(self) -> str:
        """The text for engine inspectors (version 3)."""
        text: bytes = self._c.driver_metadata(self._handle)
        return text.decode()

    def fields(self) -> list[Field]:
        """What goes into an engine (version 3)."""
        made = (_Field * 64)()
        count = self._c.driver_fields(self._handle, made, len(made))
        size = {FIELD_CHAR: 1, FIELD_FLOAT32: 4, FIELD_INT64: 8}
        return [
            Field(one.name.decode(), one.type, ctypes.string_at(one.data, one.length * size[one.type]), one.length)
            for one in made[:count]
        ]

    def store(self) -> bytes:
        """What goes into an engine (version 2)."""
        data = ctypes.create_string_buffer(self._c.driver_stored_bytes(self._handle))
        self._c.driver_store(self._handle, data)
        return data.raw

    @property
    def output_count(self) -> int:
        """Of the node."""
        return int(self._c.driver_output_count(self._handle))

    def output_types(self, inputs: Sequence[Tensor]) -> list[int]:
        """Raises RefusedError."""
        types = (ctypes.c_int32 * self.output_count)()
        self._check(self._c.driver_output_types(self._handle, _tensors(inputs), len(inputs), types, len(types)))
        return list(types)

    def output_shapes(self, inputs: Sequence[Tensor], *, constant: bool = False) -> list[tuple[int, ...]]:
        """Shapes for these inputs; ``constant``: as where TensorRT knows all sizes already. Raises RefusedError."""
        made = (_Tensor * self.output_count)()
        given = _tensors(inputs)
        self._check(self._c.driver_output_shapes(self._handle, given, len(inputs), int(constant), made, len(made)))
        return [tuple(one.dims[: one.rank]) for one in made]

    def supports(self, position: int, tensors: Sequence[Tensor], input_count: int, *, format: int = 0) -> bool:
        """Whether the tensor at ``position`` of inputs and outputs may have its type, and that format."""
        made = _tensors(tensors)
        answer = self._c.driver_supports(self._handle, position, made, input_count, len(tensors) - input_count, format)
        return bool(answer)

    def configure(
        self, typical: Sequence[Tensor], least: Sequence[Tensor] | None = None, most: Sequence[Tensor] | None = None
    ) -> None:
        """One profile; raises RefusedError."""
        low, high = _tensors(least or typical), _tensors(most or typical)
        self._check(self._c.driver_configure(self._handle, low, _tensors(typical), high, len(typical)))

    def workspace(self) -> int:
        """Bytes, after :meth:`configure`."""
        return int(self._c.driver_workspace(self._handle))

    def shape_change(self, inputs: Sequence[Tensor]) -> None:
        """Before :meth:`enqueue` (version 3); raises RefusedError."""
        self._check(self._c.driver_shape_change(self._handle, _tensors(inputs), len(inputs)))

    def enqueue(
        self,
        inputs: Sequence[Tensor],
        data: Sequence[int],
        outputs: Sequence[int],
        workspace: int = 0,
        stream: int = 0,
    ) -> None:
        """On device pointers; raises RefusedError."""
        pointers = (ctypes.c_void_p * len(data))(*data)
        results = (ctypes.c_void_p * len(outputs))(*outputs)
        scratch, queue = ctypes.c_void_p(workspace), ctypes.c_void_p(stream)
        self._check(
            self._c.driver_enqueue(self._handle, _tensors(inputs), len(inputs), pointers, results, scratch, queue)
        )

    def _check(self, result: int) -> None:
        if result != 0:
            raise RefusedError(self.driver.log())


@contextmanager
def destroying(*plugins: Plugin) -> Iterator[None]:
    """Destroys them at the end."""
    try:
        yield
    finally:
        for plugin in plugins:
            plugin.destroy()


def _tensors(tensors: Sequence[Tensor]) -> Any:
    made = (_Tensor * max(1, len(tensors)))()
    for one, tensor in zip(made, tensors, strict=False):
        one.type, one.rank = tensor.type, len(tensor.shape)
        one.dims[: len(tensor.shape)] = tensor.shape
    return made
