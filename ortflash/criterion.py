"""When two arrays agree: never a tolerance tuned by hand, always measured against a rounding error.

``actual`` passes where its largest error against float64 is at most twice that of ``reordered``, which computes the
same thing in the same element type in another order, plus a floor of a few roundings of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

_FLOOR_ROUNDINGS = {"float16": 2.0, "bfloat16": 2.0, "float32": 32.0}
"""Roundings of the largest value that are always allowed: fp16 results round once, after sums in fp32; an fp32 result
carries the roundings of its scores, which exp() makes relative errors of about |score| * 2**-24."""


@dataclass(frozen=True)
class Comparison:
    """One array held against the truth."""

    error: float
    """Largest absolute error of ``actual`` where both are finite."""
    bound: float
    worst: tuple[int, ...]
    """Where that error stands."""
    empty_rows: int
    """Rows (last axis) that are NaN in the original and 0 (or let through) in ours: listed, not failed."""
    rows: int
    problem: str
    """"" where the arrays agree, else the end of a sentence."""

    @property
    def passed(self) -> bool:
        """Whether the arrays agree."""
        return not self.problem


def machine_epsilon(dtype: np.dtype[np.generic]) -> float:
    """Distance from 1 to the next number of the type."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def compare(
    actual: Array,
    reordered: Array,
    truth: npt.NDArray[np.float64],
    *,
    relative_floor: float = 0.0,
    nan_is_open: bool = False,
) -> Comparison:
    """Hold ``actual`` against ``truth``, with the bound that ``reordered`` and the element type give.

    ``relative_floor`` raises the floor to that share of the largest value. inf and NaN must stand in the same places,
    but for rows that are NaN in ``truth`` and 0 in ``actual``, or anything where ``nan_is_open``. Where ``reordered``
    alone is NaN or infinite, its type has overflowed and says nothing.
    """
    dtype = actual.dtype
    if actual.shape != truth.shape:
        return Comparison(np.inf, 0.0, (), 0, 0, f"has shape {actual.shape} instead of {truth.shape}")
    if truth.size == 0:
        return Comparison(0.0, 0.0, (), 0, 0, "")
    ours, other = actual.astype(np.float64), reordered.astype(np.float64)
    undefined = np.isnan(truth)
    let_through = undefined & ~np.isnan(ours) & (nan_is_open | (ours == 0))
    empty_rows = int(np.count_nonzero(np.any(let_through, axis=-1 if truth.ndim else ())))
    rows = int(np.prod(truth.shape[:-1], dtype=np.int64)) if truth.ndim else 1
    place = _first(undefined & ~let_through & ~np.isnan(ours))
    if place is not None:
        problem = f"is {ours[place]:g} at {place}, where the original is NaN"
        return Comparison(np.inf, 0.0, place, empty_rows, rows, problem)
    place = _first(~undefined & (np.isnan(ours) | ((np.isinf(ours) | np.isinf(truth)) & (ours != truth))))
    if place is not None and not _overflows(other[place], ours[place]):
        problem = f"is {ours[place]:g} at {place} instead of {truth[place]:g}"
        return Comparison(np.inf, 0.0, place, empty_rows, rows, problem)
    finite = np.isfinite(truth) & np.isfinite(ours)
    if not finite.any():
        return Comparison(0.0, 0.0, (), empty_rows, rows, "")
    difference = _difference(ours, truth, finite)
    noise = float(_difference(other, truth, finite & np.isfinite(other)).max())
    largest = float(np.max(np.abs(truth), where=finite, initial=0.0))
    floor = max(_FLOOR_ROUNDINGS.get(dtype.name, 32.0) * machine_epsilon(dtype), relative_floor) * largest
    bound = 2 * noise + floor
    worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(difference)), difference.shape))
    error = float(difference[worst])
    problem = "" if error <= bound else f"is off by {error:.2g} at {worst}, and {bound:.2g} is allowed"
    return Comparison(error, bound, worst, empty_rows, rows, problem)


def _difference(
    left: npt.NDArray[np.float64], right: npt.NDArray[np.float64], where: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Absolute difference; 0 outside ``where``."""
    difference: npt.NDArray[np.float64] = np.abs(np.where(where, left, 0.0) - np.where(where, right, 0.0))
    return difference


def _overflows(original: float, ours: float) -> bool:
    """Whether the model's own element type overflows to the same infinity at that place."""
    return bool(np.isinf(original) and original == ours)


def _first(where: npt.NDArray[np.bool_]) -> tuple[int, ...] | None:
    """The first True, or None."""
    if not where.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape))
