"""One fused attention operator for ONNX models, and the tool that puts it into them.

::

    result = ortflash.rewrite("model.onnx", output="model.flash.onnx")
    session = ortflash.InferenceSession("model.flash.onnx")
    outputs = session.run(None, inputs)

Names are imported when they are first used, so that ``import ortflash`` stays cheap and asks for no extra.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import RewriteResult, rewrite
    from .engine.build import EngineResult, build_engine
    from .engine.profiles import Range
    from .engine.runtime import get_trt_plugin_path, load_trt_plugin
    from .errors import OrtflashError
    from .library import get_library_path
    from .session import InferenceSession, register

try:
    __version__ = version("ortflash")
except PackageNotFoundError:  # a source tree on PYTHONPATH, where nothing was installed
    __version__ = "0+sources"

_HOME = {
    "EngineResult": "engine.build",
    "InferenceSession": "session",
    "OrtflashError": "errors",
    "Range": "engine.profiles",
    "RewriteResult": "api",
    "build_engine": "engine.build",
    "get_library_path": "library",
    "get_trt_plugin_path": "engine.runtime",
    "load_trt_plugin": "engine.runtime",
    "register": "session",
    "rewrite": "api",
}
"""Exported name -> the module that defines it."""

__all__ = [
    "EngineResult",
    "InferenceSession",
    "OrtflashError",
    "Range",
    "RewriteResult",
    "__version__",
    "build_engine",
    "get_library_path",
    "get_trt_plugin_path",
    "load_trt_plugin",
    "register",
    "rewrite",
]


def __getattr__(name: str) -> Any:
    """Import what ``name`` names, once."""
    if name not in _HOME:
        raise AttributeError(f"module 'ortflash' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
