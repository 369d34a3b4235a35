"""The kernels for small windows: the shared cases that are small enough, with many times their batch, by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases import CASES, AttentionCase
from compare import check, expect
from device import run

from ortflash import core

WINDOW = AttentionCase("window", batch=130, num_heads=2, q_len=49, head_size=32, dtype="float16")


def check_windows(case: AttentionCase) -> None:
    for actual, expected in zip(run(case, implementation="windows"), expect(case), strict=True):
        check(actual, expected)


def as_windows(case: AttentionCase) -> AttentionCase | None:
    """The case in half precision with 300 windows, or None where it is too large for a window."""
    sizes = case.sizes
    if max(sizes["S"], sizes["T"], sizes["D"], sizes["E"]) > 64 or case.blocks or not min(sizes.values()):
        return None
    batch = -(-300 // case.num_heads)
    lengths = case.key_lengths
    if lengths is not None and len(lengths) > 1:
        lengths = (lengths * batch)[:batch]
    dtype = "float16" if case.dtype == "float32" else case.dtype
    return replace(case, batch=batch, key_lengths=lengths, dtype=dtype)


WINDOWS = [case for case in map(as_windows, CASES) if case]


@pytest.mark.parametrize("case", WINDOWS, ids=lambda case: case.name)
def test_case(case: AttentionCase) -> None:
    check_windows(case)


@pytest.mark.parametrize("length", [1, 16, 25, 32, 33, 49, 64])
@pytest.mark.parametrize("head_size", [32, 37, 64])
def test_lengths_and_heads_of_window_models(length: int, head_size: int) -> None:
    case = replace(WINDOW, q_len=length, head_size=head_size, bias="1NST")
    check_windows(case)
    check_windows(replace(case, bias="BNST", mask="B1ST", dtype="bfloat16"))
    check_windows(replace(case, is_causal=1, key_lengths=tuple(i % (length + 1) for i in range(130)), sinks="N"))


def test_padding_is_never_read() -> None:
    """NaN past the lengths would reach the output through 0 * NaN."""
    case = replace(WINDOW, key_lengths=(20,))
    inputs = case.make_inputs()
    inputs["key"][:, :, 20:] = np.nan
    inputs["value"][:, :, 20:] = np.nan
    check(run(case, inputs, implementation="windows")[0], expect(case)[0])


def test_few_or_large_windows_are_left_to_others() -> None:
    with pytest.raises(core.CoreUnsupportedError, match="256 problems"):
        run(replace(WINDOW, batch=100), implementation="windows")
    with pytest.raises(core.CoreUnsupportedError, match="65 queries"):
        run(replace(WINDOW, q_len=65), implementation="windows")


@pytest.mark.parametrize(
    ("batch", "heads", "taken"), [(256, 4, True), (255, 4, False), (3, 400, False), (4, 400, True)]
)
def test_who_takes_windows_by_itself(batch: int, heads: int, taken: bool) -> None:
    shape = (batch, heads, 49, 32)
    views = {name: core.TensorView.contiguous(256, "float16", shape) for name in ("query", "key", "value", "output")}
    assert core.library().describe(core.make_params(views), "cuda").startswith("windows") == taken
