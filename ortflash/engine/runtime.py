"""Which TensorRT is here, and our plugin in it."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from .. import core
from ..errors import LibraryError, MissingExtraError, OrtflashError
from ..graph_tools.op_schema import schema

Flavour = Literal["auto", "tensorrt", "rtx"]
"""``tensorrt`` is the package of that name; ``rtx`` is TensorRT-RTX; ``auto`` takes the first that is installed."""

PLUGIN_V3 = "libortflash_trt.so"
"""For TensorRT 10 and newer, and TensorRT-RTX."""
PLUGIN_V2 = "libortflash_trt8.so"
"""For TensorRT 8.6."""

_OLDEST = (8, 6)
_RTX = "tensorrt_rtx"


def get_trt_plugin_path(*, tensorrt_major: int = 10) -> str:
    """Path of the plugin library: for ``trtexec``, ONNX Runtime's TensorRT provider, and registries of your own.

    Args:
        tensorrt_major: TensorRT's own major version; TensorRT-RTX counts as 10.

    Raises:
        LibraryError: the library was not built.
    """
    folder = Path(os.environ.get(core.LIBRARY_DIR_VARIABLE) or Path(core.__file__).resolve().parent / "lib")
    path = folder / (PLUGIN_V2 if tensorrt_major < 10 else PLUGIN_V3)
    if not path.is_file():
        raise LibraryError(
            f"{path} is missing: the TensorRT plugin is built where nvcc is (CUDA toolkit 12.8 or newer); install it "
            "and build ortflash again with `pip install .`"
        )
    return str(path)


def load_trt_plugin(tensorrt: ModuleType | None = None) -> ModuleType:
    """Make TensorRT know ``FlashAttention``; models that are parsed and engines that are loaded afterwards find it.

    ::

        trt = ortflash.load_trt_plugin()
        engine = trt.Runtime(trt.Logger()).deserialize_cuda_engine(Path("model.plan").read_bytes())

    Args:
        tensorrt: the package ``tensorrt`` or ``tensorrt_rtx``; without it, the one that is installed.

    Returns:
        That package. A second call changes nothing.

    Raises:
        MissingExtraError: neither package is installed.
        LibraryError: the plugin was not built, or TensorRT doesn't take it.
        OrtflashError: TensorRT is older than 8.6.
    """
    trt = tensorrt or import_tensorrt()
    version = tensorrt_version(trt)
    if not is_rtx(trt) and version < _OLDEST:
        raise OrtflashError(f"ortflash needs TensorRT 8.6 or newer, and this is {trt.__version__}.")
    registry = trt.get_plugin_registry()
    if _is_registered(registry):
        return trt
    path = get_trt_plugin_path(tensorrt_major=10 if is_rtx(trt) else version[0])
    registry.load_library(path)
    if not _is_registered(registry):
        raise LibraryError(f"{name_of(trt)} does not load {path}; what it has against it is in its log above.")
    return trt


def import_tensorrt(flavour: Flavour = "auto") -> ModuleType:
    """The TensorRT package, ready to parse models that have plugins.

    Raises:
        MissingExtraError: it isn't installed.
    """
    candidates = {"auto": ("tensorrt", _RTX), "tensorrt": ("tensorrt",), "rtx": (_RTX,)}[flavour]
    for name in candidates:
        if importlib.util.find_spec(name) is None:
            continue
        if name == _RTX:
            _link_rtx()
        return importlib.import_module(name)
    raise MissingExtraError(candidates[0], "rtx" if flavour == "rtx" else "tensorrt")


def tensorrt_version(trt: ModuleType) -> tuple[int, int]:
    """Major and minor version; TensorRT-RTX counts its own."""
    major, minor = (int(part) for part in trt.__version__.split(".")[:2])
    return major, minor


def is_rtx(trt: ModuleType) -> bool:
    """Whether the package is TensorRT-RTX."""
    return trt.__name__ == _RTX


def name_of(trt: ModuleType) -> str:
    """For people: ``TensorRT-RTX 1.7.1.116``."""
    return f"{'TensorRT-RTX' if is_rtx(trt) else 'TensorRT'} {trt.__version__}"


def _is_registered(registry: Any) -> bool:
    spec = schema()
    lookup = getattr(registry, "get_creator", None) or registry.get_plugin_creator  # the second: TensorRT 8
    return lookup(spec.name, str(spec.version), spec.domain) is not None


def _link_rtx() -> None:
    """Let TensorRT-RTX's parser find ``libtensorrt_rtx.so``, of which its wheel brings only ``libtensorrt_rtx.so.1``.

    At the first plugin of a model the parser looks for the file without the number in its own folder, and ends the
    process where there is none (seen with 1.7.1). Its own folder is the one that it was loaded from: so it is loaded
    first, here, by way of a folder of links that has both. Can go when the wheel brings the link.
    """
    if "tensorrt_rtx_bindings" in sys.modules:
        return
    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    if spec is None or not spec.submodule_search_locations:
        return  # an SDK's libraries, which have the link
    folder = Path(next(iter(spec.submodule_search_locations)))
    if (folder / "libtensorrt_rtx.so").exists():
        return
    links = tempfile.TemporaryDirectory(prefix="ortflash-")
    _KEPT.append(links)
    for library in folder.glob("*.so.*"):
        (Path(links.name) / library.name).symlink_to(library)
        (Path(links.name) / f"{library.name.partition('.so')[0]}.so").symlink_to(library)
    for library in sorted(Path(links.name).glob("*.so.*")):
        ctypes.CDLL(str(library))


_KEPT: list[Any] = []
"""Folders that have to stay until the process ends."""
