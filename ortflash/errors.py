"""Everything that ortflash raises on purpose.

::

    OrtflashError                    catches all of these; also known as GraphToolsError
      ├── InvalidModelError          the model file, or what it says about itself, is broken
      ├── MissingExtraError          a package of an extra is not installed; names the command that installs it
      ├── LibraryError               the operator library is missing, or ONNX Runtime does not take it
      │     └── OnnxRuntimeError     ONNX Runtime is missing, too old, or two distributions of it clash
      └── ProviderError              an execution provider that was asked for is not to be had

Each message is one sentence: what is wrong, where, and what to do.
"""

from __future__ import annotations

from .graph_tools.errors import GraphToolsError, InvalidModelError

OrtflashError = GraphToolsError
"""Base of everything that ortflash raises on purpose; ``graph_tools``, which ortflash is built on, defines it."""


class MissingExtraError(OrtflashError):
    """A package that is not installed; the message names the command that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'ortflash[{extra}]'")


class LibraryError(OrtflashError):
    """The operator library is missing, or ONNX Runtime does not take it."""


class OnnxRuntimeError(LibraryError):
    """ONNX Runtime is missing, too old, or two distributions of it clash."""


class ProviderError(OrtflashError):
    """An execution provider that was asked for is not to be had."""


__all__ = [
    "GraphToolsError",
    "InvalidModelError",
    "LibraryError",
    "MissingExtraError",
    "OnnxRuntimeError",
    "OrtflashError",
    "ProviderError",
]
