"""Attention cases in GPU memory, through the core's C interface and PyCUDA; no framework in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pycuda.driver as cuda
from cases import DTYPES, Array, AttentionCase

from ortflash import core

CANARY = 4096
"""Bytes of a known pattern behind every buffer that a call may write."""


class Buffer:
    """A copy of an array in device memory, with the array's own strides; what it is a view of comes along."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.memory = array if array.base is None or array.flags.c_contiguous else _root(array)
        offset = array.ctypes.data - self.memory.ctypes.data
        self.allocation = cuda.mem_alloc(max(1, self.memory.nbytes) + CANARY)
        cuda.memset_d8(int(self.allocation) + self.memory.nbytes, 0xA5, CANARY)
        if self.memory.nbytes:
            cuda.memcpy_htod(self.allocation, np.ascontiguousarray(self.memory).view(np.uint8).reshape(-1))
        view = core.TensorView.of_array(array)
        if array.flags.c_contiguous:  # NumPy gives empty arrays any strides
            view = core.TensorView.contiguous(view.pointer, view.dtype, view.shape)
        self.view = replace(view, pointer=int(self.allocation) + offset)

    def read(self) -> Array:
        """Bring the memory back into ``self.array``; fails where something was written behind its end."""
        flat = np.empty(self.memory.nbytes + CANARY, np.uint8)
        cuda.memcpy_dtoh(flat, self.allocation)
        assert (flat[self.memory.nbytes :] == 0xA5).all(), "something was written past the end of the buffer"
        self.memory.reshape(-1).view(np.uint8)[...] = flat[: self.memory.nbytes]
        return self.array


def _root(array: Array) -> Array:
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert base.flags.c_contiguous
    return base


def run(
    case: AttentionCase,
    inputs: dict[str, Any] | None = None,
    *,
    out: Array | None = None,
    precise: bool = False,
    return_lse: bool = True,
    implementation: str = "",
    stream: Any = None,
) -> tuple[Array, Array]:
    """Output and softmax_lse of a case; buffers start out as NaN, so that what isn't written shows.

    ``return_lse=False`` asks for no softmax_lse, and leaves NaN there.
    """
    inputs = inputs or case.make_inputs()
    library = core.library()
    buffers = {name: Buffer(array) for name, array in inputs.items()}
    dtype = DTYPES[case.dtype]
    if out is None:
        shape = case.shape("BNSE") if not case.packed else (case.batch, case.q_len, case.num_heads * case.sizes["E"])
        out = np.full(shape, np.nan, dtype)
    buffers["output"] = Buffer(out)
    softmax_lse = Buffer(np.full(case.shape("BNS"), np.nan, np.float32))
    if return_lse:
        buffers["softmax_lse"] = softmax_lse
    views = {name: buffer.view for name, buffer in buffers.items()}
    params = core.make_params(views, **case.attributes(), precise=precise)
    library.supports(params, "cuda", implementation)
    size = library.workspace_size(params, "cuda", implementation=implementation)
    workspace = Buffer(np.full(size, 0xFF, np.uint8))
    library.forward(
        params,
        "cuda",
        workspace=workspace.view.pointer if size else 0,
        stream=stream.handle if stream is not None else 0,
        implementation=implementation,
    )
    cuda.Context.synchronize()
    workspace.read()
    return buffers["output"].read(), softmax_lse.read()


def free_bytes() -> int:
    """Free memory of the device."""
    return int(cuda.mem_get_info()[0])


def random_half(rng: np.random.Generator, *shape: int) -> Array:
    """fp16 normal numbers."""
    return rng.standard_normal(shape, np.float32).astype(np.float16)


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
