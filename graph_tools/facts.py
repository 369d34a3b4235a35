"""What is known of one tensor: element type, dimensions, and for small ones the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .symbolic import Value, symbol

Shape = tuple[Value, ...]

MAX_VALUE_ELEMENTS = 64
"""Values are tracked for tensors up to this size: shapes, sizes, scales, permutations."""

MAX_RANK = 64
"""A tensor of more axes than this is a broken file."""


@dataclass(frozen=True, eq=False)
class Fact:
    """Knowledge of one tensor."""

    elem_type: int = 0
    """``onnx.TensorProto.DataType``; 0 where unknown."""
    shape: Shape | None = None
    """``None`` where the rank is unknown."""
    value: np.ndarray | None = None
    """Known values of a small tensor: an object array of numbers, expressions, and ``None`` for single unknowns."""

    @classmethod
    def declared(cls, name: str, elem_type: int, shape: Sequence[Any] | None) -> Fact:
        """What a ValueInfoProto says; an axis without a name gets one of its own."""
        if shape is None:
            return cls(elem_type)
        return cls(elem_type, tuple(_dimension(dim, name, axis) for axis, dim in enumerate(shape)))


def unknown_dimension(name: str, axis: int) -> Value:
    """A symbol for an axis about which nothing is known."""
    return symbol(f"?{name}.{axis}")


def _dimension(dim: Any, name: str, axis: int) -> Value:
    if isinstance(dim, str) and dim:
        return symbol(dim)
    if isinstance(dim, int) and dim >= 0:
        return dim
    return unknown_dimension(name, axis)


def rank_of_target(target: Fact) -> int | None:
    """How many axes a shape given as a 1-D tensor has; ``None`` where that isn't known, or absurd."""
    if target.shape is None or len(target.shape) != 1:
        return None
    count = target.shape[0]
    return count if isinstance(count, int) and 0 <= count <= MAX_RANK else None
