"""The Hopper kernels without a Hopper: every shared case on the emulator in plugin_src/core/sm90/emulator.

It proves indices, masks, barriers and the order of loads and products; speed and memory ordering need a GPU
(tests/gpu). The emulated library is built here, once, where cmake and CUDA's headers are.
"""

from __future__ import annotations

import fcntl
import math
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CASES, PLAIN, Array, AttentionCase
from compare import check, draw_d_output, expect, expect_gradients
from hypothesis import assume, given
from memory import with_unread_keys
from strategies import attention_cases

from ortflash import core, reference

ROOT = Path(__file__).resolve().parents[1]
HALF_CASES = [case for case in CASES if case.dtype != "float32"]
MOST_SCORES = 4_000_000
"""What a case may have for the emulator to take seconds and not minutes."""


@pytest.fixture(scope="module", autouse=True)
def emulated() -> Iterator[core.CoreLibrary]:
    """Let core.attention() run in the emulated library."""
    cmake = shutil.which("cmake")
    if cmake is None or shutil.which("nvcc") is None:
        pytest.skip("the emulator needs cmake and CUDA's headers")
    build = ROOT / "build" / "emulated"
    build.mkdir(parents=True, exist_ok=True)
    with (build / "lock").open("w") as lock:  # several test processes, one build
        fcntl.flock(lock, fcntl.LOCK_EX)
        source = ROOT / "plugin_src" / "core" / "sm90" / "emulator"
        subprocess.run([cmake, "-S", source, "-B", build], check=True, capture_output=True)
        subprocess.run([cmake, "--build", build, "-j2"], check=True, capture_output=True)
    library = core.CoreLibrary(build / "libortflash_core.so")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "library", lambda: library)
        yield library


def scores(case: AttentionCase) -> int:
    return case.batch * case.num_heads * case.q_len * (case.q_len if case.kv_len is None else case.kv_len)


def run(case: AttentionCase, return_lse: int = 1) -> tuple[Array, Array | None]:
    inputs: dict[str, Any] = case.make_inputs()
    return core.attention(**inputs, **case.attributes(), return_lse=return_lse)


@pytest.mark.parametrize("case", HALF_CASES, ids=lambda case: case.name)
def test_case(case: AttentionCase) -> None:
    if scores(case) > MOST_SCORES:
        pytest.skip("too many scores for an emulator")
    try:
        results = run(case)
    except core.CoreUnsupportedError as error:
        pytest.skip(str(error))
    for actual, expected in zip(results, expect(case), strict=True):
        assert actual is not None
        check(actual, expected)
    output, _ = run(case, return_lse=0)  # other kernels, where rows are summed by the tensor cores
    check(output, expect(case)[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("heads", "length", "kernel"),
    [(1, 60, "64x128"), (4, 197, "128x208"), (3, 257, "192x112"), (3, 384, "192x128")],  # for three multiprocessors
)
def test_tiles_are_chosen_by_padding_and_rounds(
    emulated: core.CoreLibrary, heads: int, length: int, kernel: str, dtype: str
) -> None:
    case = AttentionCase("tiles", num_heads=heads, q_len=length, head_size=64, dtype=dtype)
    inputs = case.make_inputs()
    arrays = {**inputs, "output": np.empty_like(inputs["query"])}
    params = core.make_params({name: core.TensorView.of_array(array) for name, array in arrays.items()})
    assert emulated.describe(params) == f"sm90-d64-{kernel}"
    output, _ = run(case, return_lse=0)
    check(output, expect(case)[0])


def check_gradients(case: AttentionCase, implementation: str, inputs: dict[str, Any] | None = None) -> None:
    """Hold the gradients against the reference; skips what the implementation doesn't take."""
    given: dict[str, Any] = case.make_inputs()
    output, lse = reference.attention(**given, **case.attributes())
    output, lse = output.astype(given["query"].dtype), lse.astype(np.float32)
    d_output = draw_d_output(case, output)
    try:
        gradients = core.gradients(
            d_output, output, lse, inputs or given, implementation=implementation, **case.attributes()
        )
    except core.CoreUnsupportedError as error:
        pytest.skip(str(error))
    for name, gradient in gradients.items():
        check(gradient, expect_gradients(case)[name])


@pytest.mark.parametrize(("head_size", "dtype"), [(40, "float16"), (64, "bfloat16"), (128, "float16")])
@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_gradients(case: AttentionCase, dtype: str, head_size: int) -> None:
    check_gradients(replace(case, dtype=dtype, head_size=head_size), "sm90-emulated")


def for_hopper(case: AttentionCase) -> AttentionCase:
    """The case with sizes and a type that the Hopper kernels take."""

    def rounded(size: int | None) -> int | None:
        return None if size is None else min(256, -(-size // 8) * 8)

    return replace(
        case,
        dtype="float16" if case.dtype == "float32" else case.dtype,
        head_size=rounded(case.head_size) or 8,
        v_head_size=rounded(case.v_head_size),
    )


MASKED = [for_hopper(case) for case in CASES if case.key_lengths or case.blocks or case.mask]


@pytest.mark.parametrize("case", MASKED, ids=lambda case: case.name)
def test_gradients_with_masks(case: AttentionCase) -> None:
    if scores(case) > MOST_SCORES:
        pytest.skip("too many scores for an emulator")
    check_gradients(case, "sm90-masked-emulated")


@pytest.mark.parametrize("head_size", [64, 128])
def test_gradients_of_keys_past_the_end_or_in_blocks_that_are_off(head_size: int) -> None:
    """NaN in them would reach the gradients through 0 * NaN."""
    case = AttentionCase(
        "unread", batch=3, num_heads=4, kv_num_heads=2, q_len=300, kv_len=400, key_lengths=(77, 400, 0), blocks="C",
        head_size=head_size, dtype="float16", is_causal=1, causal_alignment="bottom_right",
    )  # fmt: skip
    inputs = case.make_inputs()
    off = ~inputs["block_mask"].repeat(128)[:400]
    assert off.any()
    assert not off.all()
    for name in ("key", "value"):
        inputs[name][0, :, 77:] = np.nan
        inputs[name][2] = np.nan
        inputs[name][:, :, off] = np.nan
    check_gradients(case, "sm90-masked-emulated", inputs)


@given(case=attention_cases().map(for_hopper))
def test_any_mixture_of_features(case: AttentionCase) -> None:
    assume(scores(case) <= MOST_SCORES)
    try:
        results = run(case)
    except core.CoreUnsupportedError:
        assume(False)
    for actual, expected in zip(results, expect(case), strict=True):
        assert actual is not None
        check(actual, expected)


@pytest.mark.parametrize(
    ("bias", "mask", "kernel"),
    [
        (None, None, "sm90-d64-192x128-lse"),
        ((1, 2, 200, 200), None, "sm90-d64-192x128-bias"),
        (None, (1, 1, 200, 208), "sm90-d64-192x128-mask"),
        ((1, 1, 1, 200), (1, 1, 1, 200), "sm90-d64-192x128-keys"),
        ((1, 1, 200, 200), (1, 1, 1, 200), "sm90-d64-128x128-any"),
    ],
)
def test_each_form_of_bias_and_mask_has_its_kernel(
    emulated: core.CoreLibrary, bias: tuple[int, ...] | None, mask: tuple[int, ...] | None, kernel: str
) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        name: rng.standard_normal((1, 2, 200, 64)).astype(np.float16) for name in ("query", "key", "value")
    }
    arrays["output"] = np.empty((1, 2, 200, 64), np.float16)
    arrays["softmax_lse"] = np.empty((1, 2, 200), np.float32)
    if bias is not None:
        arrays["attn_bias"] = rng.standard_normal(bias).astype(np.float16)
    if mask is not None:
        arrays["attn_mask"] = (rng.random(mask) < 0.5)[..., :200]
    params = core.make_params({name: core.TensorView.of_array(array) for name, array in arrays.items()})
    assert emulated.describe(params, "cpu") == kernel


def test_keys_that_take_no_part_are_never_multiplied() -> None:
    case, inputs, expected = with_unread_keys("float16")
    check(core.attention(**inputs, **case.attributes())[0], expected)


@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("block_size", [128, 256])
def test_whole_blocks_have_a_kernel_of_their_own(
    emulated: core.CoreLibrary, head_size: int, is_causal: int, block_size: int
) -> None:
    """Over more than one look at block_mask (128 blocks of keys), rows without blocks, and NaN in unread ones."""
    case = AttentionCase(
        "whole-blocks", batch=2, num_heads=1, q_len=200, kv_len=17000 if head_size == 64 else 700, head_size=head_size,
        key_lengths=(500, 17000), blocks="BNRC", block_size=block_size, dtype="float16", is_causal=is_causal,
        causal_alignment="bottom_right",
    )  # fmt: skip
    inputs: dict[str, Any] = case.make_inputs()
    mask = inputs["block_mask"]
    mask[...] = np.random.default_rng(0).random(mask.shape) < 0.2
    mask[0, 0, 0] = False
    mask[1, :, :, -1] = True
    inputs["key_lengths"][...] = np.minimum(inputs["key_lengths"], inputs["key"].shape[2])
    expected = reference.attention(**inputs, **case.attributes())
    off = ~np.repeat(mask.any((0, 1, 2)), block_size)[: case.kv_len]
    for name in ("key", "value"):
        inputs[name][:, :, off] = np.nan
    views = {name: core.TensorView.of_array(array) for name, array in inputs.items()}
    views["output"] = views["query"]
    kernel = emulated.describe(core.make_params(views, **case.attributes()), "cpu")
    assert kernel == f"sm90-d{head_size}-128x128-blocks"
    results = core.attention(**inputs, **case.attributes(), return_lse=1)
    for actual, exact in zip(results, expected, strict=True):
        assert actual is not None
        finite = np.isfinite(exact)
        np.testing.assert_array_equal(np.isfinite(actual.astype(np.float32)), finite)
        np.testing.assert_allclose(actual[finite].astype(np.float32), exact[finite], atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("fill", [-math.inf, float(np.finfo(np.float32).min), -1e4])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("head_size", [64, 128])
def test_padding_over_many_blocks(fill: float, bias: bool, head_size: int) -> None:
    """35 blocks of 128 keys: some whole, some in part, some with nothing to see, in one batch element all of them."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 1, rows, head_size)).astype(np.float16) for rows in (70, 4400, 4400))
    terms: dict[str, Any] = {"attn_mask": (np.arange(4400) < np.array([1500, 0])[:, None])[:, None, None]}
    if bias:
        terms["attn_bias"] = rng.standard_normal((2, 1, 1, 4400)).astype(np.float16)
        terms["attn_bias"][..., 130:400], terms["attn_bias"][..., 400:] = -np.inf, 0.0
    expected = reference.attention(q, k, v, **terms, mask_fill=fill)
    for return_lse in (0, 1):
        output, lse = core.attention(q, k, v, **terms, mask_fill=fill, return_lse=return_lse)
        np.testing.assert_allclose(output.astype(np.float64), expected[0], atol=1e-3)
        if lse is not None:
            np.testing.assert_allclose(lse, expected[1], rtol=1e-5)


@pytest.mark.parametrize(("head_size", "v_head_size"), [(512, 512), (264, 512), (512, 40)])
@pytest.mark.parametrize("is_causal", [0, 1])
def test_head_sizes_past_256(head_size: int, v_head_size: int, is_causal: int) -> None:
    case = AttentionCase("wide", q_len=130, kv_len=70, head_size=head_size, v_head_size=v_head_size, dtype="bfloat16",
                         is_causal=is_causal)  # fmt: skip
    for actual, expected in zip(run(case), expect(case), strict=True):
        assert actual is not None
        check(actual, expected)
