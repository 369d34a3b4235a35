"""Errors that graph_tools raises; ``ortflash.errors`` re-exports and extends them.

::

    GraphToolsError
      └── InvalidModelError      the model file, or what it says about itself, is broken

Each message is one sentence: what is wrong, where, and what to do.
"""

from __future__ import annotations


class GraphToolsError(Exception):
    """Base of everything that graph_tools raises on purpose."""


class InvalidModelError(GraphToolsError):
    """The model can't be read, or breaks a rule of ONNX or of ``ortflash::FlashAttention``."""
