"""Run a TensorRT engine on NumPy arrays: what it takes and gives, and one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from ..errors import OrtflashError
from ..runner import Values
from .device import Array, Device
from .profiles import Range, Shape


@dataclass(frozen=True)
class EngineTensor:
    """An input or an output of an engine."""

    name: str
    is_input: bool
    dtype: np.dtype[Any]
    shape: Shape
    """-1 where a size is open."""
    range: Range | None = None
    """Of an input: the sizes of the engine's first profile."""


class Engine(Protocol):
    """Something that computes a model's outputs; :class:`TensorrtEngine`, or what a test puts in its place."""

    @property
    def tensors(self) -> tuple[EngineTensor, ...]:
        """Inputs and outputs."""

    def run(self, feed: Mapping[str, Array]) -> Values:
        """Output name -> array; the feed has every input, in its type, within the profile."""


class TensorrtEngine:
    """An ``ICudaEngine`` of TensorRT's Python package with one execution context, on this machine's first GPU.

    Raises:
        OrtflashError: a tensor that this can't give or read: of a type that NumPy lacks, or in the host's memory.
    """

    def __init__(self, engine: Any, device: Device) -> None:
        self._engine = engine
        self._device = device
        self._context = engine.create_execution_context()
        if self._context is None:
            raise OrtflashError("TensorRT makes no execution context of the engine: too little GPU memory?")
        names = [str(engine.get_tensor_name(i)) for i in range(engine.num_io_tensors)]
        self.tensors: tuple[EngineTensor, ...] = tuple(self._describe(name) for name in names)
        """Inputs and outputs."""

    def run(self, feed: Mapping[str, Array]) -> Values:
        """Output name -> array.

        Raises:
            OrtflashError: TensorRT refuses a shape or fails to run; there is too little memory.
        """
        inputs = [tensor for tensor in self.tensors if tensor.is_input]
        arrays = {tensor.name: np.ascontiguousarray(feed[tensor.name].astype(tensor.dtype)) for tensor in inputs}
        for name, array in arrays.items():
            if not self._context.set_input_shape(name, array.shape):
                raise OrtflashError(f"TensorRT does not take shape {array.shape} for input {name!r}.")
        shapes = {tensor.name: self._shape_of(tensor) for tensor in self.tensors if not tensor.is_input}
        sizes = {name: array.nbytes for name, array in arrays.items()}
        dtypes = {tensor.name: tensor.dtype for tensor in self.tensors}
        sizes.update({name: int(np.prod(shape)) * dtypes[name].itemsize for name, shape in shapes.items()})
        with self._memory(sizes) as pointers:
            for name, pointer in pointers.items():
                self._context.set_tensor_address(name, pointer)
            for name, array in arrays.items():
                self._device.write(pointers[name], array)
            if not self._context.execute_async_v3(self._device.stream):
                raise OrtflashError("TensorRT fails to run the engine; its log says why.")
            self._device.synchronize()
            return {name: self._device.read(pointers[name], shape, dtypes[name]) for name, shape in shapes.items()}

    def _describe(self, name: str) -> EngineTensor:
        engine = self._engine
        if engine.is_shape_inference_io(name):
            raise OrtflashError(f"{name!r} holds sizes that TensorRT reads on the host, which ortflash can't give.")
        kind = engine.get_tensor_dtype(name).name
        if kind not in DTYPES:
            raise OrtflashError(f"{name!r} is of type {kind}, which ortflash can't give or read.")
        is_input = engine.get_tensor_mode(name).name == "INPUT"
        sizes = [tuple(shape) for shape in engine.get_tensor_profile_shape(name, 0)] if is_input else []
        shape = tuple(engine.get_tensor_shape(name))
        return EngineTensor(name, is_input, np.dtype(DTYPES[kind]), shape, Range(*sizes) if is_input else None)

    def _shape_of(self, tensor: EngineTensor) -> Shape:
        shape = tuple(self._context.get_tensor_shape(tensor.name))
        if min(shape, default=0) < 0:
            raise OrtflashError(f"The shape of output {tensor.name!r} depends on values, which ortflash can't read.")
        return shape

    @contextmanager
    def _memory(self, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Device memory of these sizes in bytes, for as long as the block lasts."""
        pointers: dict[str, int] = {}
        try:
            for name, size in sizes.items():
                pointers[name] = self._device.allocate(size)
            yield pointers
        finally:
            for pointer in pointers.values():
                self._device.free(pointer)


DTYPES: dict[str, Any] = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "INT32": np.int32,
    "INT64": np.int64,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "BOOL": np.bool_,
}
"""TensorRT's names -> NumPy's types."""
