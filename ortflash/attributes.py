"""What a call of the operator has beside its tensors: the one list of it in Python, with types and defaults.

flash_attention.toml is where the operator is written down; a test holds this list against it. The attributes that only
a node in a file has (``return_lse`` and TensorRT's) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

import numpy as np

UNBOUNDED = -1
"""``window_left`` and ``window_right``: no limit."""

_LARGEST = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """The attributes of a call, by their names in flash_attention.toml."""

    num_heads: int = 0
    """Query heads; needed for 3-D tensors."""
    kv_num_heads: int = 0
    """Key/value heads; needed for 3-D tensors."""
    scale: float = 0.0
    """Factor on query @ key^T; 0 = 1/sqrt(D)."""
    is_causal: int = field(default=0, metadata={"choices": (0, 1)})
    """1: row i sees keys up to i + offset."""
    causal_alignment: str = field(default="top_left", metadata={"choices": ("top_left", "bottom_right")})
    """The offset of the diagonal: 0, or ``key_lengths[b] - S`` where there are key lengths, else ``T - S``."""
    window_left: int = UNBOUNDED
    """Keys before the diagonal that a row sees; -1 = unbounded."""
    window_right: int = UNBOUNDED
    """Keys after the diagonal that a row sees; -1 = unbounded."""
    softcap: float = 0.0
    """cap * tanh(score / cap), before bias and mask; 0 = off."""
    mask_fill: float = -math.inf
    """The score that a False in ``attn_mask`` leaves."""
    block_size: int = field(default=128, metadata={"choices": (16, 32, 64, 128, 256)})
    """Rows and columns of one element of ``block_mask``."""
    dropout_p: float = 0.0
    """Rate at which weights are dropped, by ``dropout_seed``; 0 = off."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Attributes:
        """The given attributes, which have no :meth:`problem`, as Python's own numbers; the others have defaults."""
        converters = {one.name: _KINDS[str(one.type)][1] for one in fields(cls)}
        return cls(**{name: converters[name](value) for name, value in given.items()})

    @classmethod
    def problem(cls, given: Mapping[str, Any]) -> str:
        """What is wrong with given names or values, as a sentence without its full stop; "" where nothing is.

        Bounds that depend on the kernels are the core's to check.
        """
        known = {one.name: one for one in fields(cls)}
        for name, value in given.items():
            if name not in known:
                return f"there is no attribute {name!r}; there are {', '.join(known)}"
            kind = str(known[name].type)
            expected, convert, words = _KINDS[kind]
            choices = known[name].metadata.get("choices", ())
            if not isinstance(value, expected):
                return f"{name} is {value!r}; it must be {words}"
            if choices and value not in choices:
                return f"{name} is {value!r}; it must be {_either(choices)}"
            if kind == "int" and not -_LARGEST <= convert(value) <= _LARGEST:
                return f"{name} is {value}; it must fit into 64 bits"
        return ""


_KINDS: Mapping[str, tuple[tuple[type, ...], Callable[[Any], Any], str]] = {
    "int": ((Integral, np.bool_), int, "a whole number"),
    "float": ((Real,), float, "a number"),
    "str": ((str,), str, "a name"),
}
"""Annotation -> what is taken, NumPy's numbers included, what it becomes, and how that is called."""


def _either(choices: tuple[object, ...]) -> str:
    """``1, 2 or 3``."""
    texts = list(map(str, choices))
    return f"{', '.join(texts[:-1])} or {texts[-1]}"
