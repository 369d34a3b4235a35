"""ONNX Runtime sessions with the operator in them, on the provider that was asked for and on no other."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from .errors import LibraryError, ProviderError
from .graph_tools import op_schema
from .graph_tools.scopes import all_scopes
from .library import build_info, get_library_path, import_onnxruntime

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"

_ort = import_onnxruntime()
_Base: Any = _ort.InferenceSession

Provider = str | tuple[str, dict[str, Any]]


def register(session_options: Any) -> None:
    """Make ``ortflash::FlashAttention`` known to the sessions that are made with these options; twice is once.

    Set the session config entry ``ortflash.precise`` to ``"1"`` beforehand for fp32 accuracy on GPUs.

    Args:
        session_options: an ``onnxruntime.SessionOptions``.

    Raises:
        LibraryError: the library was not built, or ONNX Runtime does not take it.
    """
    try:
        session_options.register_custom_ops_library(get_library_path())
    except Exception as error:  # onnxruntime's exceptions have no common base
        raise LibraryError(f"ONNX Runtime {_ort.__version__} does not take the operator library: {error}") from error


class InferenceSession(_Base):  # type: ignore[misc]  # onnxruntime publishes no types
    """An ``onnxruntime.InferenceSession`` with the operator registered.

    Without ``providers`` it takes CUDA where onnxruntime and this build of ortflash have it, else the CPU. It never
    moves to another provider by itself: where one that was asked for can't be had, it says so instead.

    Args:
        path_or_bytes: the model.
        sess_options: options to add the operator to; new ones by default.
        providers: provider names, or (name, options) pairs, the preferred one first.
        precise: compute fp32 on GPUs to fp32 accuracy; otherwise products have 16 bits, or TF32's 11 for short queries.
        **kwargs: handed on to ``onnxruntime.InferenceSession``.

    Raises:
        InvalidModelError: a FlashAttention node breaks the schema (an attribute's name is misspelled, for example).
        LibraryError: the library was not built, or ONNX Runtime does not take it.
        ProviderError: a provider that was asked for can't be had.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: Any = None,
        providers: Sequence[Provider] | None = None,
        *,
        precise: bool = False,
        **kwargs: Any,
    ) -> None:
        chosen = default_providers() if providers is None else list(providers)
        names = [provider if isinstance(provider, str) else provider[0] for provider in chosen]
        check_providers(names)
        check_nodes(path_or_bytes)
        options = sess_options if sess_options is not None else _ort.SessionOptions()
        if precise:
            options.add_session_config_entry("ortflash.precise", "1")
        register(options)
        model = path_or_bytes if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)
        super().__init__(model, options, providers=chosen, **kwargs)
        self.disable_fallback()  # onnxruntime would rebuild the session on the CPU after a failed run
        self._check_active(names, explicit=providers is not None)

    def _check_active(self, names: Sequence[str], *, explicit: bool) -> None:
        """Fails (or warns, where the caller made no choice) when ONNX Runtime dropped a provider."""
        dropped = [name for name in names if name not in self.get_providers()]
        if not dropped:
            return
        sentence = (
            f"onnxruntime {_ort.__version__} could not start {', '.join(dropped)} on this machine (its log says why) "
            f"and left {', '.join(self.get_providers())}"
        )
        if explicit:
            raise ProviderError(f"{sentence}; `ortflash doctor` checks what is missing")
        warnings.warn(f"{sentence}: running there", RuntimeWarning, stacklevel=3)


def default_providers() -> list[Provider]:
    """CUDA, then the CPU, where onnxruntime and this build of ortflash both have CUDA; else the CPU alone."""
    has_cuda = CUDA in _ort.get_available_providers() and bool(build_info().cuda)
    return [CUDA, CPU] if has_cuda else [CPU]


def check_providers(names: Sequence[str]) -> None:
    """Raises ProviderError where a provider is not part of this onnxruntime, or of this build of ortflash."""
    available = _ort.get_available_providers()
    for name in names:
        if name not in available:
            hint = "; install the GPU build with: pip install 'ortflash[gpu]'" if name == CUDA else ""
            raise ProviderError(f"onnxruntime {_ort.__version__} has no {name}, only {', '.join(available)}{hint}")
    if CUDA in names and not build_info().cuda:
        raise ProviderError(
            f"this build of ortflash has no CUDA part, so {CUDA} would run FlashAttention on the CPU; "
            "rebuild it where nvcc is found (pip install .), or ask for CPUExecutionProvider"
        )


def check_nodes(model: str | bytes | os.PathLike[str]) -> None:
    """Raises InvalidModelError where a FlashAttention node of the model breaks the schema.

    ONNX Runtime takes every attribute of a custom op, also a misspelled one, and shows the op none of their names, so
    this is the one place where ``is_casual`` is found. A model that ONNX can't parse is left to ONNX Runtime.
    """
    if isinstance(model, bytes):
        proto = _parse(model)
    else:
        path = Path(model)
        proto = _parse(path.read_bytes()) if path.is_file() and path.suffix != ".ort" else None
    if proto is None:
        return
    schema = op_schema.schema()
    for scope in all_scopes(proto):
        for node in filter(schema.matches, scope.container.node):
            op_schema.check_node(node)


def _parse(data: bytes) -> onnx.ModelProto | None:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:  # protobuf's DecodeError has moved between its versions
        return None
    return proto
