"""Which keys a row sees by position alone, as facts that the kernel can skip by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .elements import Holds
from .layout import Layout
from .symbolic import Value

Alignment: TypeAlias = Literal["top_left", "bottom_right"]


@dataclass(frozen=True)
class Diagonals:
    """Keys ``i - lower <= j <= i + upper`` of row ``i`` take part; ``None`` for an open side."""

    upper: Value | None = None
    lower: Value | None = None

    def __bool__(self) -> bool:
        return self.upper is not None or self.lower is not None


@dataclass(frozen=True)
class Lengths:
    """Keys before ``tensor[b]`` take part."""

    tensor: str
    layout: Layout
    origin: Holds | None


@dataclass(frozen=True)
class Window:
    """Diagonals as the op writes them."""

    is_causal: bool
    alignment: Alignment
    left: int
    right: int
