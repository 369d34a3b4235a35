"""Where a number is so low that it swallows any score."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

LOWEST_ABSORBING = -1e30
"""A fill at or below this absorbs any score in fp32 and bf16: ``score + fill == fill`` while ``|score| < 1e22``.

The spacing of fp32 numbers at 1e30 is 2^76, about 7.6e22, and half of that is what rounding swallows.
"""


def absorbs(fill: float, score_type: int) -> bool:
    """Whether ``score + fill`` is ``fill`` for any score that a model computes, in the type that it computes in.

    -inf always; at or below -1e30 in fp32 and bf16, for scores up to 1e22. In fp16 nothing finite does: half the
    spacing at -65504 is 16, which scores reach.
    """
    if fill == -math.inf:
        return True
    return fill <= LOWEST_ABSORBING and score_type in (TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def scaled(fill: float, factor: float, elem_type: int) -> float:
    """``fill * factor`` as the model computes it: past the type's range it is infinite."""
    product = fill * factor if fill else fill
    kind = np.float16 if elem_type == TensorProto.FLOAT16 else np.float32
    with np.errstate(over="ignore"):
        rounded = float(kind(product))
    return rounded if math.isinf(rounded) else product
