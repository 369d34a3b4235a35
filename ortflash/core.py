"""The attention core called directly, without ONNX Runtime or TensorRT, through ctypes.

For tests, benchmarks and ``ortflash doctor``. NumPy arrays go in and come out on the CPU (:func:`attention`); on CUDA
the caller owns the memory and passes :class:`TensorView` objects (:meth:`CoreLibrary.forward`).

The structs mirror ``plugin_src/core/c_api.h``; each carries its own size, so a stale library refuses the call.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .attributes import Attributes
from .errors import OrtflashError

Array = NDArray[Any]
Device = Literal["cpu", "cuda"]

LIBRARY_NAME = "libortflash_core.so"
LIBRARY_DIR_VARIABLE = "ORTFLASH_LIBRARY_DIR"

_DEVICES: dict[str, int] = {"cpu": 0, "cuda": 1}
_DTYPES: dict[str, int] = {"float32": 0, "float16": 1, "bfloat16": 2}
_ALIGNMENTS: dict[str, int] = {"top_left": 0, "bottom_right": 1}
_WORKSPACE_ALIGNMENT = 256


class CoreError(OrtflashError):
    """The core refused a call or could not be loaded; the message is its sentence."""


class CoreUnsupportedError(CoreError):
    """The call is valid, but no implementation on this machine takes it."""


# ------------------------------------------------------------------------------------------------------ C structs
_Strides = ctypes.c_int64 * 4
_Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_Run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, _Body, ctypes.c_void_p)


class Params(ctypes.Structure):
    """``OrtflashParams`` of c_api.h; made by :func:`make_params`."""

    tensors: Mapping[str, TensorView]
    """What the struct has addresses of; their owners live as long as it."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        ("dtype", ctypes.c_int32),
        ("bias_dtype", ctypes.c_int32),
        ("is_causal", ctypes.c_int32),
        ("causal_alignment", ctypes.c_int32),
        ("precise", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("mask_fill", ctypes.c_float),
        ("batch", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("kv_num_heads", ctypes.c_int64),
        ("q_len", ctypes.c_int64),
        ("kv_len", ctypes.c_int64),
        ("head_size", ctypes.c_int64),
        ("v_head_size", ctypes.c_int64),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("query", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("softmax_lse", ctypes.c_void_p),
        ("attn_bias", ctypes.c_void_p),
        ("attn_mask", ctypes.c_void_p),
        ("key_lengths", ctypes.c_void_p),
        ("block_mask", ctypes.c_void_p),
        ("sinks", ctypes.c_void_p),
        ("query_strides", _Strides),
        ("key_strides", _Strides),
        ("value_strides", _Strides),
        ("output_strides", _Strides),
        ("bias_strides", _Strides),
        ("mask_strides", _Strides),
        ("block_mask_strides", _Strides),
        ("key_lengths_stride", ctypes.c_int64),
        ("sinks_stride", ctypes.c_int64),
        ("dropout_seed", ctypes.c_void_p),
        ("dropout_p", ctypes.c_float),
        ("reserved", ctypes.c_int32),
    )


class GradParams(ctypes.Structure):
    """``OrtflashGradParams`` of c_api.h; made by :func:`make_grad_params`."""

    tensors: Mapping[str, TensorView]
    """As :attr:`Params.tensors`."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        ("deterministic", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("forward", Params),
        ("d_output", ctypes.c_void_p),
        ("d_query", ctypes.c_void_p),
        ("d_key", ctypes.c_void_p),
        ("d_value", ctypes.c_void_p),
        ("d_attn_bias", ctypes.c_void_p),
        ("d_sinks", ctypes.c_void_p),
        ("d_output_strides", _Strides),
        ("d_query_strides", _Strides),
        ("d_key_strides", _Strides),
        ("d_value_strides", _Strides),
        ("d_bias_strides", _Strides),
    )


@dataclass(frozen=True)
class _Entries:
    """Names of the C functions for one kind of call, without ``ortflash_``."""

    supports: str
    workspace_size: str
    run: str
    describe: str
    implementations: str


_ENTRIES: dict[type[ctypes.Structure], _Entries] = {
    Params: _Entries("supports", "workspace_size", "forward", "describe", "implementations"),
    GradParams: _Entries(
        "supports_backward",
        "backward_workspace_size",
        "backward",
        "describe_backward",
        "backward_implementations",
    ),
}


class _Execution(ctypes.Structure):
    """``OrtflashExecution`` of c_api.h."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        ("device", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("workspace", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("run", _Run),
        ("threads", ctypes.c_int64),
    )


# -------------------------------------------------------------------------------------------------------- tensors
@dataclass(frozen=True)
class TensorView:
    """A tensor in somebody's memory: address, element type, shape, and strides in elements."""

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    owner: object = dataclasses.field(default=None, repr=False, compare=False)
    """What holds the memory, which lives for as long as the view; None where somebody else sees to that."""

    @classmethod
    def of_array(cls, array: Array) -> TensorView:
        """View a NumPy array.

        NumPy leaves the stride of an axis of length 1 open; here it is what a row-major array has.
        """
        own = dataclasses.replace(cls.contiguous(array.ctypes.data, array.dtype.name, array.shape), owner=array)
        if array.size == 0:
            return own
        strides = [0] * array.ndim
        following = 1
        for axis in reversed(range(array.ndim)):
            strides[axis] = array.strides[axis] // array.itemsize if array.shape[axis] > 1 else following
            following = strides[axis] * array.shape[axis]
        return dataclasses.replace(own, strides=tuple(strides))

    @classmethod
    def of_tensor(cls, tensor: Any) -> TensorView:
        """View a torch.Tensor, on any device."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(tensor.data_ptr(), dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor)

    @classmethod
    def contiguous(cls, pointer: int, dtype: str, shape: tuple[int, ...]) -> TensorView:
        """View row-major memory."""
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return cls(pointer, dtype, shape, strides)


def make_params(tensors: Mapping[str, TensorView], *, precise: bool = False, **attributes: Any) -> Params:
    """Translate views and the operator's attributes to the C struct.

    Args:
        tensors: ``query``, ``key``, ``value``, ``output`` in 4-D (B,N,S,D) or 3-D (B,S,N*D) layout, and any of
            ``attn_bias``, ``attn_mask``, ``key_lengths``, ``block_mask``, ``sinks``, ``dropout_seed``,
            ``softmax_lse``.
        precise: fp32-accurate products on GPUs; otherwise they have 16 bits, or TF32's 11 for short queries.
        **attributes: The operator's (:class:`~.attributes.Attributes`).

    Raises:
        CoreError: Shapes or types that don't belong together, with the input's name and both shapes; attributes that
            there aren't, or of another type.
    """
    given = read_attributes(attributes)
    query = _as_heads("query", tensors["query"], given.num_heads)
    key = _as_heads("key", tensors["key"], given.kv_num_heads)
    value = _as_heads("value", tensors["value"], given.kv_num_heads)
    output = _as_heads("output", tensors["output"], given.num_heads)
    batch, heads, q_len, head_size = query.shape
    kv_heads, kv_len = key.shape[1:3]
    v_head_size = value.shape[3]
    if query.dtype not in _DTYPES:
        raise CoreError(f"query is {query.dtype}; it must be one of {', '.join(_DTYPES)}.")
    for name, view, shape in (
        ("key", key, (batch, kv_heads, kv_len, head_size)),
        ("value", value, (batch, kv_heads, kv_len, v_head_size)),
        ("output", output, (batch, heads, q_len, v_head_size)),
    ):
        if view.shape != shape or view.dtype != query.dtype:
            raise CoreError(
                f"{name} is {view.dtype} {list(view.shape)} (B,heads,rows,size); beside query {query.dtype} "
                f"{list(query.shape)} it must be {query.dtype} {list(shape)}."
            )

    params = Params(
        struct_bytes=ctypes.sizeof(Params),
        dtype=_DTYPES[query.dtype],
        precise=int(precise),
        batch=batch,
        num_heads=heads,
        kv_num_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_size=head_size,
        v_head_size=v_head_size,
        query=query.pointer,
        key=key.pointer,
        value=value.pointer,
        output=output.pointer,
        query_strides=_Strides(*query.strides),
        key_strides=_Strides(*key.strides),
        value_strides=_Strides(*value.strides),
        output_strides=_Strides(*output.strides),
    )
    for name, number in dataclasses.asdict(given).items():
        if name not in ("num_heads", "kv_num_heads"):  # the tensors say how many
            setattr(params, name, _ALIGNMENTS[number] if name == "causal_alignment" else number)
    full = (batch, heads, q_len, kv_len)
    if (bias := tensors.get("attn_bias")) is not None:
        if bias.dtype not in (query.dtype, "float32"):
            allowed = dict.fromkeys((query.dtype, "float32"))
            raise CoreError(f"attn_bias is {bias.dtype}; it must be {' or '.join(allowed)}.")
        params.attn_bias, params.bias_dtype = bias.pointer, _DTYPES[bias.dtype]
        params.bias_strides = _broadcast("attn_bias", bias, full)
    if (mask := tensors.get("attn_mask")) is not None:
        params.attn_mask = _checked("attn_mask", mask, "bool").pointer
        params.mask_strides = _broadcast("attn_mask", mask, full)
    if (blocks := tensors.get("block_mask")) is not None:
        params.block_mask = _checked("block_mask", blocks, "bool").pointer
        shape = (batch, heads, -(-q_len // given.block_size), -(-kv_len // given.block_size))
        params.block_mask_strides = _broadcast("block_mask", blocks, shape)
    if (lengths := tensors.get("key_lengths")) is not None:
        params.key_lengths = _checked("key_lengths", lengths, "int32").pointer
        params.key_lengths_stride = _vector_stride("key_lengths", lengths, batch)
    if (sinks := tensors.get("sinks")) is not None:
        params.sinks = _checked("sinks", sinks, "float32").pointer
        params.sinks_stride = _vector_stride("sinks", sinks, heads)
    if (seed := tensors.get("dropout_seed")) is not None:
        if seed.shape != (2,):
            raise CoreError(f"dropout_seed {list(seed.shape)} must be [2]: the seed and the offset.")
        params.dropout_seed = _checked("dropout_seed", seed, "int64").pointer
    if (lse := tensors.get("softmax_lse")) is not None:
        expected = TensorView.contiguous(lse.pointer, "float32", (batch, heads, q_len))
        if lse.dtype != expected.dtype or lse.shape != expected.shape or lse.strides != expected.strides:
            raise CoreError(f"softmax_lse is {lse.dtype} {list(lse.shape)}; it must be contiguous float32 "
                            f"{list(expected.shape)}.")  # fmt: skip
        params.softmax_lse = lse.pointer
    params.tensors = dict(tensors)
    return params


def make_grad_params(
    tensors: Mapping[str, TensorView], *, deterministic: bool = False, **attributes: Any
) -> GradParams:
    """Translate a call's gradients to the C struct.

    Args:
        tensors: The forward's, with ``output`` and ``softmax_lse``; ``d_output`` like ``output``; ``d_query``,
            ``d_key`` and ``d_value``, which are written, like the inputs that they belong to; and, where they are
            asked for, ``d_attn_bias`` and ``d_sinks``, likewise.
        deterministic: The same bits every time, also on a GPU.
        **attributes: The forward's (:class:`~.attributes.Attributes`).

    Raises:
        CoreError: Shapes or types that don't belong together, with the tensor's name and both shapes.
    """
    forward = make_params(tensors, **attributes)
    params = GradParams(struct_bytes=ctypes.sizeof(GradParams), deterministic=int(deterministic), forward=forward)
    heads = {"query": "num_heads", "output": "num_heads", "key": "kv_num_heads", "value": "kv_num_heads"}
    for name, of in (("d_output", "output"), ("d_query", "query"), ("d_key", "key"), ("d_value", "value")):
        view = _like(name, tensors[name], of, tensors[of])
        split = _as_heads(name, view, int(getattr(forward, heads[of])))
        setattr(params, name, split.pointer)
        setattr(params, f"{name}_strides", _Strides(*split.strides))
    if (bias := tensors.get("d_attn_bias")) is not None:
        _like("d_attn_bias", bias, "attn_bias", tensors["attn_bias"])
        params.d_attn_bias = bias.pointer
        full = (forward.batch, forward.num_heads, forward.q_len, forward.kv_len)
        params.d_bias_strides = _broadcast("d_attn_bias", bias, full)
    if (sinks := tensors.get("d_sinks")) is not None:
        params.d_sinks = _like("d_sinks", sinks, "sinks", tensors["sinks"]).pointer
    params.tensors = dict(tensors)
    return params


def _like(name: str, view: TensorView, of: str, other: TensorView) -> TensorView:
    """``view``, which must have the other's shape and type."""
    if view.shape != other.shape or view.dtype != other.dtype:
        raise CoreError(
            f"{name} is {view.dtype} {list(view.shape)}; it must be {other.dtype} {list(other.shape)} like {of}."
        )
    return view


def output_shape(query: tuple[int, ...], value: tuple[int, ...], given: Attributes) -> tuple[int, ...]:
    """Shape of the output for these shapes of query and value: query's layout with the values' size last.

    Raises:
        CoreError: They don't have 3 or 4 axes, or can't be split into the heads that the attributes say.
    """
    batch, heads, rows, _ = _heads_shape("query", query, given.num_heads)
    size = _heads_shape("value", value, given.kv_num_heads)[3]
    return (batch, heads, rows, size) if len(query) == 4 else (batch, rows, heads * size)


def _heads_shape(name: str, shape: tuple[int, ...], heads: int) -> tuple[int, int, int, int]:
    """(B,rows,heads*size) or (B,heads,rows,size) -> (B,heads,rows,size)."""
    if len(shape) == 4:
        if heads not in (0, shape[1]):
            raise CoreError(f"{name} {list(shape)} has {shape[1]} heads, but the attribute says {heads}.")
        return (shape[0], shape[1], shape[2], shape[3])
    if len(shape) != 3:
        raise CoreError(f"{name} {list(shape)} has {len(shape)} axes; it must have 3 or 4.")
    if heads <= 0 or shape[2] % heads != 0:
        raise CoreError(f"{name} {list(shape)} cannot be split into {heads} heads along its last axis.")
    return (shape[0], heads, shape[1], shape[2] // heads)


def _as_heads(name: str, view: TensorView, heads: int) -> TensorView:
    """The view as (B,heads,rows,size)."""
    shape = _heads_shape(name, view.shape, heads)
    if len(view.shape) == 4:
        return view
    batch_stride, row_stride, column_stride = view.strides
    strides = (batch_stride, shape[3] * column_stride, row_stride, column_stride)
    return TensorView(view.pointer, view.dtype, shape, strides)


def read_attributes(given: Mapping[str, Any]) -> Attributes:
    """The given attributes, the others by default; CoreError where there is no such, or not of such a value."""
    problem = Attributes.problem(given)
    if problem:
        raise CoreError(f"{problem}.")
    return Attributes.of(given)


def _broadcast(name: str, view: TensorView, shape: tuple[int, int, int, int]) -> Any:
    """Strides with which ``view`` reads as ``shape``: 0 along the axes it broadcasts."""
    if len(view.shape) > 4:
        raise CoreError(f"{name} {list(view.shape)} has more than 4 axes.")
    lead = 4 - len(view.shape)
    own = (1,) * lead + view.shape
    strides = (0,) * lead + view.strides
    if any(size not in (1, target) for size, target in zip(own, shape, strict=True)):
        raise CoreError(f"{name} {list(view.shape)} does not broadcast to {list(shape)}.")
    return _Strides(*(0 if size == 1 else stride for size, stride in zip(own, strides, strict=True)))


def _checked(name: str, view: TensorView, dtype: str) -> TensorView:
    if view.dtype != dtype:
        raise CoreError(f"{name} is {view.dtype}; it must be {dtype}.")
    return view


def _vector_stride(name: str, view: TensorView, size: int) -> int:
    if view.shape not in ((size,), (1,)):
        raise CoreError(f"{name} {list(view.shape)} must be [{size}] or [1].")
    return 0 if view.shape == (1,) else view.strides[0]


# -------------------------------------------------------------------------------------------------------- library
class CoreLibrary:
    """A loaded ``libortflash_core.so``. Safe from many threads."""

    def __init__(self, path: Path) -> None:
        """Load the library.

        Raises:
            CoreError: It can't be loaded; the message has the loader's reason.
        """
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise CoreError(f"{path} can't be loaded: {error}.") from error
        name, text, capacity = ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t
        execution = ctypes.POINTER(_Execution)
        for struct, entries in _ENTRIES.items():
            params = ctypes.POINTER(struct)
            self._entry(entries.supports).argtypes = [params, ctypes.c_int32, name, text, capacity]
            self._entry(entries.run).argtypes = [params, execution, name, text, capacity]
            self._entry(entries.describe).argtypes = [params, execution, name, text, capacity]
            self._entry(entries.workspace_size).argtypes = [params, execution, name]
            self._entry(entries.workspace_size).restype = ctypes.c_size_t
            self._entry(entries.implementations).argtypes = [ctypes.c_int32, text, capacity]
            self._entry(entries.implementations).restype = None
        self._library.ortflash_build_info.argtypes = []
        self._library.ortflash_build_info.restype = ctypes.c_char_p

    def build_info(self) -> dict[str, str]:
        """What the library was built as: ``compiler``, ``cpu`` and ``cuda`` (architectures, or ``none``)."""
        info: bytes = self._library.ortflash_build_info()
        return dict(pair.split("=", 1) for pair in info.decode().split("; "))

    def _entry(self, name: str) -> Any:
        return getattr(self._library, f"ortflash_{name}")

    def implementations(self, device: Device = "cpu", *, backward: bool = False) -> list[str]:
        """Names of the implementations (of the gradients) that this machine can run, the preferred one first."""
        names = ctypes.create_string_buffer(1024)
        entries = _ENTRIES[GradParams if backward else Params]
        self._entry(entries.implementations)(_DEVICES[device], names, len(names))
        return [name for name in names.value.decode().split(",") if name]

    def supports(self, params: Params | GradParams, device: Device = "cpu", implementation: str = "") -> None:
        """Return where the call is taken.

        Raises:
            CoreUnsupportedError: It isn't; the message says what is missing.
            CoreError: The call is invalid.
        """
        message = ctypes.create_string_buffer(512)
        supports = self._entry(_ENTRIES[type(params)].supports)
        code = supports(params, _DEVICES[device], implementation.encode(), message, len(message))
        _raise_unless_ok(code, message)

    def describe(self, params: Params | GradParams, device: Device = "cpu", implementation: str = "") -> str:
        """Name of the implementation, and its tile, that would run."""
        message = ctypes.create_string_buffer(512)
        describe = self._entry(_ENTRIES[type(params)].describe)
        code = describe(params, _execution(device), implementation.encode(), message, len(message))
        _raise_unless_ok(code, message)
        return message.value.decode()

    def workspace_size(
        self, params: Params | GradParams, device: Device = "cpu", *, threads: int = 1, implementation: str = ""
    ) -> int:
        """Bytes of workspace that :meth:`forward` or :meth:`backward` wants."""
        execution = _execution(device)
        if threads > 1:
            execution.threads, execution.run = threads, _Run(_run_in_this_thread)
        workspace_size = self._entry(_ENTRIES[type(params)].workspace_size)
        return int(workspace_size(params, execution, implementation.encode()))

    def forward(
        self,
        params: Params,
        device: Device = "cpu",
        *,
        workspace: int = 0,
        stream: int = 0,
        threads: int = 1,
        implementation: str = "",
    ) -> None:
        """Run the call; on CUDA, enqueue it on ``stream``.

        Args:
            params: From :func:`make_params`; on CUDA the caller keeps it until the stream is done with its tensors.
            device: Where the tensors are.
            workspace: Address of :meth:`workspace_size` bytes on the device, aligned to 256.
            stream: A ``cudaStream_t`` as a number.
            threads: CPU only: how many threads of a pool work on the call.
            implementation: One of :meth:`implementations`, or "" for the preferred one.

        Raises:
            CoreError: The call was refused or failed.
        """
        self._run(params, _execution(device, workspace=workspace, stream=stream), threads, implementation)

    def backward(
        self,
        params: GradParams,
        device: Device = "cpu",
        *,
        workspace: int = 0,
        stream: int = 0,
        threads: int = 1,
        implementation: str = "",
    ) -> None:
        """Compute the gradients; arguments and errors as :meth:`forward`'s, params from :func:`make_grad_params`."""
        self._run(params, _execution(device, workspace=workspace, stream=stream), threads, implementation)

    def _run(self, params: Params | GradParams, execution: _Execution, threads: int, implementation: str) -> None:
        message = ctypes.create_string_buffer(512)
        name = implementation.encode()
        entry = self._entry(_ENTRIES[type(params)].run)
        if threads <= 1:
            code = entry(params, execution, name, message, len(message))
        else:
            with ThreadPoolExecutor(threads) as pool:

                def run(_pool: int, count: int, body: Any, argument: int) -> None:
                    for done in [pool.submit(body, argument, index) for index in range(count)]:
                        done.result()

                execution.threads, execution.run = threads, _Run(run)
                code = entry(params, execution, name, message, len(message))
        _raise_unless_ok(code, message)


def _run_in_this_thread(_pool: int, count: int, body: Any, argument: int) -> None:
    for index in range(count):
        body(argument, index)


def _execution(device: Device, *, workspace: int = 0, stream: int = 0) -> _Execution:
    return _Execution(
        struct_bytes=ctypes.sizeof(_Execution),
        device=_DEVICES[device],
        workspace=workspace or None,
        stream=stream or None,
        threads=1,
    )


def _raise_unless_ok(code: int, message: ctypes.Array[ctypes.c_char]) -> None:
    if code != 0:
        raise (CoreUnsupportedError if code == 2 else CoreError)(f"{message.value.decode()}.")


def library_path() -> Path:
    """Where ``libortflash_core.so`` is.

    Looks into the folder that ``ORTFLASH_LIBRARY_DIR`` names, if it is set, and otherwise into ``lib/`` beside this
    file, where a wheel and an editable install have it.

    Raises:
        CoreError: It is not there; the message says what to do.
    """
    override = os.environ.get(LIBRARY_DIR_VARIABLE)
    folder = Path(override) if override else Path(__file__).parent / "lib"
    path = folder / LIBRARY_NAME
    if not path.is_file():
        raise CoreError(
            f"{LIBRARY_NAME} is not in {folder}; install ortflash (pip install .) or set {LIBRARY_DIR_VARIABLE} to the "
            "folder of a build."
        )
    return path


@functools.cache
def library() -> CoreLibrary:
    """The library at :func:`library_path`, loaded once."""
    return CoreLibrary(library_path())


# ---------------------------------------------------------------------------------------------------------- NumPy
def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_bias: Array | None = None,
    attn_mask: Array | None = None,
    key_lengths: Array | None = None,
    block_mask: Array | None = None,
    sinks: Array | None = None,
    dropout_seed: Array | None = None,
    *,
    return_lse: int = 0,
    out: Array | None = None,
    threads: int = 1,
    implementation: str = "",
    **attributes: Any,
) -> tuple[Array, Array | None]:
    """Compute the operator on the CPU; inputs and attributes as in flash_attention.toml.

    Args:
        query: float32, float16 or ml_dtypes.bfloat16, 4-D (B,N,S,D) or 3-D (B,S,N*D); any strides as long as the last
            axis is contiguous, which holds for key and value too.
        key: (B,M,T,D) or (B,T,M*D).
        value: (B,M,T,E) or (B,T,M*E).
        attn_bias: Broadcastable to (B,N,S,T), of query's type or float32.
        attn_mask: Broadcastable to (B,N,S,T), bool.
        key_lengths: (B,) or (1,), int32.
        block_mask: Broadcastable to (B,N,ceil(S/block_size),ceil(T/block_size)), bool.
        sinks: (N,) or (1,), float32.
        dropout_seed: (2,) int64, the seed and the offset; where ``dropout_p`` is not 0.
        return_lse: 1 to compute ``softmax_lse`` as well.
        out: Where to write the output; of its shape and type, any strides. Default: a new array.
        threads: How many threads work on the call.
        implementation: One of ``library().implementations()``, or "" for the preferred one.
        **attributes: The operator's other attributes (:class:`~.attributes.Attributes`).

    Returns:
        The output, and softmax_lse (B,N,S) float32 or None.

    Raises:
        CoreError: The call is invalid or not supported.
    """
    given = {
        "query": query,
        "key": key,
        "value": value,
        "attn_bias": attn_bias,
        "attn_mask": attn_mask,
        "key_lengths": key_lengths,
        "block_mask": block_mask,
        "sinks": sinks,
        "dropout_seed": dropout_seed,
    }
    required = ("query", "key", "value")
    views = {name: _view(name, array) for name, array in given.items() if array is not None or name in required}
    read = read_attributes(attributes)
    if out is None:
        out = np.empty(output_shape(query.shape, value.shape, read), query.dtype)
    views["output"] = _view("out", out)
    if not out.flags.writeable:
        raise CoreError("out is read-only; pass an array that can be written to.")
    lse: Array | None = None
    if return_lse:
        lse = np.empty(_heads_shape("query", query.shape, read.num_heads)[:3], np.float32)
        views["softmax_lse"] = TensorView.of_array(lse)
    params = make_params(views, **attributes)

    run_on_cpu(params, threads=threads, implementation=implementation)
    return out, lse


def gradients(
    d_output: Array,
    output: Array,
    softmax_lse: Array,
    inputs: Mapping[str, Array],
    *,
    bias_gradient: bool = False,
    sinks_gradient: bool = False,
    threads: int = 1,
    implementation: str = "",
    **attributes: Any,
) -> dict[str, Array]:
    """Compute the gradients of :func:`attention` on the CPU.

    Args:
        d_output: Of output's shape and type.
        output: What :func:`attention` gave.
        softmax_lse: Likewise, with ``return_lse=1``.
        inputs: The call's inputs by their names in flash_attention.toml.
        bias_gradient: Whether ``d_attn_bias`` is wanted.
        sinks_gradient: Whether ``d_sinks`` is wanted.
        threads: How many threads work on the call.
        implementation: One of ``library().implementations(backward=True)``, or "" for the preferred one.
        **attributes: The call's attributes (:class:`~.attributes.Attributes`).

    Returns:
        ``d_query``, ``d_key``, ``d_value`` and those asked for, each like its input.

    Raises:
        CoreError: The call is invalid or not supported.
    """
    wanted = ["query", "key", "value"] + ["attn_bias"] * bias_gradient + ["sinks"] * sinks_gradient
    results = {f"d_{name}": np.empty(inputs[name].shape, inputs[name].dtype) for name in wanted}
    arrays = {**inputs, "output": output, "softmax_lse": softmax_lse, "d_output": d_output, **results}
    params = make_grad_params({name: _view(name, array) for name, array in arrays.items()}, **attributes)
    run_on_cpu(params, threads=threads, implementation=implementation)
    return results


def _view(name: str, array: object) -> TensorView:
    """The view of an argument; CoreError where it isn't an array of numbers as this machine writes them."""
    if not isinstance(array, np.ndarray):
        raise CoreError(f"{name} is of type {type(array).__name__}; it must be a NumPy array.")
    if not array.dtype.isnative:
        raise CoreError(f"{name} is of type {array.dtype.str}, whose bytes are in the other order: convert it first.")
    return TensorView.of_array(array)


def run_on_cpu(params: Params | GradParams, *, threads: int = 1, implementation: str = "") -> None:
    """Run a call whose tensors lie in this process's memory, with a workspace of its own.

    Raises:
        CoreError: The call is invalid or not supported.
    """
    core = library()
    core.supports(params, "cpu", implementation)
    size = core.workspace_size(params, "cpu", threads=threads, implementation=implementation)
    memory = np.empty(size + _WORKSPACE_ALIGNMENT, np.uint8)
    aligned = -(-memory.ctypes.data // _WORKSPACE_ALIGNMENT) * _WORKSPACE_ALIGNMENT
    if isinstance(params, GradParams):
        core.backward(params, "cpu", workspace=aligned, threads=threads, implementation=implementation)
    else:
        core.forward(params, "cpu", workspace=aligned, threads=threads, implementation=implementation)
