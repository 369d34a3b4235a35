"""How close is close enough, for every implementation: the twice-the-reordered-error criterion.

1. inf and NaN stand where the float64 reference has them.
2. The largest error is at most twice that of the same operator in the inputs' own type with its operations reordered
   (:func:`ortflash.reference.reordered`), plus a measured rounding floor. So no tolerance is tuned for any case.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from cases import DTYPES, Array, AttentionCase

from ortflash import reference, reference_gradients


@dataclass(frozen=True)
class Expected:
    """What one output should be, and how far from it counts as rounding."""

    name: str
    exact: Array  # float64
    reordered: Array  # the type that the operator gives
    floor: float

    def tolerance(self) -> float:
        """The largest error that passes."""
        with np.errstate(invalid="ignore"):
            error = np.abs(self.reordered.astype(np.float64) - self.exact)
        return 2 * float(error[np.isfinite(error)].max(initial=0.0)) + self.floor


@functools.lru_cache(maxsize=256)
def expect(case: AttentionCase, seed: int = 0, tf32: bool = False) -> tuple[Expected, Expected]:
    """What output and softmax_lse of a case should be.

    Args:
        case: The problem; its inputs are ``case.make_inputs(seed)``.
        seed: Of its data.
        tf32: Whether products may be rounded as TF32 tensor cores do.
    """
    inputs, attributes = case.make_inputs(seed), case.attributes()
    exact = reference.attention(**inputs, **attributes)
    reordered = reference.reordered(**inputs, **attributes, tf32=tf32)
    floors = reference.rounding_floor(**inputs, **attributes)
    return (
        Expected("output", exact[0], reordered[0], floors[0]),
        Expected("softmax_lse", exact[1], reordered[1], floors[1]),
    )


def draw_d_output(case: AttentionCase, output: Array) -> Array:
    """The gradient that comes in, of the output's shape and type."""
    drawn: Array = np.random.default_rng(7).standard_normal(output.shape).astype(DTYPES[case.dtype])
    return drawn


@functools.lru_cache(maxsize=4)
def expect_gradients(case: AttentionCase, tf32: bool = False) -> dict[str, Expected]:
    """What each gradient of a case should be, of its first inputs and :func:`draw_d_output`'s gradient."""
    inputs, attributes = case.make_inputs(), case.attributes()
    d_output = draw_d_output(case, reference.attention(**inputs, **attributes)[0])
    exact = reference_gradients.gradients(d_output, **inputs, **attributes)
    reordered = reference_gradients.reordered(d_output, **inputs, **attributes, tf32=tf32)
    floors = reference_gradients.rounding_floor(d_output, **inputs, **attributes, tf32=tf32)
    return {name: Expected(name, exact[name], reordered[name], floors[name]) for name in exact}


def check(actual: Array, expected: Expected) -> None:
    """Hold an output against what it should be.

    Raises:
        AssertionError: It isn't that; the message has the worst position and both values there.
    """
    name, exact = expected.name, expected.exact
    assert actual.shape == exact.shape, f"{name} has shape {actual.shape}, not {exact.shape}"
    assert actual.dtype == expected.reordered.dtype, f"{name} is {actual.dtype}, not {expected.reordered.dtype}"
    wide = actual.astype(np.float64)
    for kind, test in (("NaN", np.isnan), ("+inf", np.isposinf), ("-inf", np.isneginf)):
        differ = np.argwhere(test(wide) != test(exact))
        if len(differ):
            where = tuple(int(axis) for axis in differ[0])
            raise AssertionError(
                f"{name} and its reference disagree on {kind} in {len(differ)} places, first at {where}: "
                f"{wide[where]} where {exact[where]} should be"
            )
    finite = np.isfinite(exact)
    error = np.abs(np.where(finite, wide, 0) - np.where(finite, exact, 0))
    if error.size == 0:
        return
    tolerance = expected.tolerance()
    worst = np.unravel_index(int(error.argmax()), error.shape)
    assert error[worst] <= tolerance, (
        f"{name} is off by {error[worst]:.3g} at {tuple(int(axis) for axis in worst)} ({wide[worst]} where "
        f"{exact[worst]} should be); {tolerance:.3g} is allowed and {int((error > tolerance).sum())} of {error.size} "
        f"elements pass it"
    )
