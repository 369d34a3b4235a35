"""A GPU's memory through CUDA's driver alone, so that running an engine needs no package but TensorRT's."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OrtflashError

Array = npt.NDArray[Any]


class Device:
    """The first GPU, its primary context (the one that TensorRT uses) and a stream; one thread at a time.

    Raises:
        OrtflashError: there is no GPU, or the driver reports an error.
    """

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise OrtflashError(_NO_GPU.format("NVIDIA's driver, libcuda.so.1, is not installed")) from None
        if self._cuda.cuInit(0) != 0:
            raise OrtflashError(_NO_GPU.format("NVIDIA's driver finds none"))
        device, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuStreamCreate", ctypes.byref(stream), 0)
        self.stream = int(stream.value or 0)
        """For TensorRT; a plain number."""

    def allocate(self, size_bytes: int) -> int:
        """A pointer to device memory; at least one byte."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(1, size_bytes)))
        return pointer.value

    def free(self, pointer: int) -> None:
        """Give back what :meth:`allocate` gave."""
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def write(self, pointer: int, array: Array) -> None:
        """Copy a contiguous array to the device; done when this returns."""
        if array.nbytes:
            self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), _address(array), ctypes.c_size_t(array.nbytes))

    def read(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A copy of an array that lies on the device."""
        array = np.empty(shape, dtype)
        if array.nbytes:
            self._call("cuMemcpyDtoH_v2", _address(array), ctypes.c_uint64(pointer), ctypes.c_size_t(array.nbytes))
        return array

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(self.stream))

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._cuda, name)(*arguments))
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorString(code, ctypes.byref(text))
        reason = text.value.decode() if text.value else f"error {code}"
        raise OrtflashError(f"The GPU's driver refuses {name}: {reason}.")


_NO_GPU = "Running an engine needs an NVIDIA GPU, and this machine has none: {}."


def _address(array: Array) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)
