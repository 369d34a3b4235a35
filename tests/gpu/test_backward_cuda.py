"""The CUDA gradients through the C interface: every case on every implementation, from the CPU's own forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pycuda.driver as cuda
import pytest
from cases import CASES, DROPOUT, DTYPES, PLAIN, Array, AttentionCase
from compare import check, draw_d_output, expect_gradients
from device import Buffer
from hypothesis import given
from memory import in_poison
from strategies import attention_cases

from ortflash import core

IMPLEMENTATIONS = core.library().implementations("cuda", backward=True)
MAX_HEAD_SIZE = 256
GRADIENT_CASES = [
    case
    for case in [*CASES, *DROPOUT]
    if case.q_len * case.sizes["T"] <= 300_000 and max(case.sizes["D"], case.sizes["E"]) <= MAX_HEAD_SIZE
]


def run(
    case: AttentionCase,
    implementation: str = "",
    *,
    outputs: dict[str, Array] | None = None,
    inputs: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Array]:
    """Every gradient of a case; what isn't written stays NaN.

    ``outputs`` are where gradients go, by the names of their inputs; by default arrays like those.
    """
    given = case.make_inputs()
    output, lse = core.attention(**given, **case.attributes(), return_lse=1)
    assert lse is not None
    inputs = inputs or given
    names = [name for name in ("query", "key", "value", "attn_bias", "sinks") if name in inputs]
    fresh = {name: np.full(given[name].shape, np.nan, given[name].dtype) for name in names}
    arrays = {**inputs, "output": output, "softmax_lse": lse, "d_output": draw_d_output(case, output)}
    buffers = {name: Buffer(array) for name, array in arrays.items()}
    gradients = {f"d_{name}": Buffer(array) for name, array in {**fresh, **(outputs or {})}.items()}
    views = {name: buffer.view for name, buffer in {**buffers, **gradients}.items()}
    params = core.make_grad_params(views, **case.attributes(), **options)
    library = core.library()
    library.supports(params, "cuda", implementation)
    size = library.workspace_size(params, "cuda", implementation=implementation)
    workspace = Buffer(np.full(size, 0xFF, np.uint8))
    library.backward(params, "cuda", workspace=workspace.view.pointer if size else 0, implementation=implementation)
    cuda.Context.synchronize()
    workspace.read()
    return {name: buffer.read() for name, buffer in gradients.items()}


def check_case(case: AttentionCase, implementation: str = "", **options: Any) -> None:
    """Hold every gradient against the reference; skips what only the general implementation takes."""
    tf32 = case.dtype == "float32" and not options.get("precise", False)
    expected = expect_gradients(case, tf32)
    try:
        actual = run(case, implementation, **options)
    except core.CoreUnsupportedError:
        if implementation == "sm80":
            raise
        pytest.skip(f"{implementation} leaves it to sm80")
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        check(gradient, expected[name])


def test_the_mma_kernels_are_there() -> None:
    assert "sm80" in IMPLEMENTATIONS


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)  # the inner loop, so that what is expected is computed once
@pytest.mark.parametrize("case", GRADIENT_CASES, ids=lambda case: case.name)
def test_case(case: AttentionCase, implementation: str) -> None:
    check_case(case, implementation)


@pytest.mark.parametrize(
    "case", [case for case in GRADIENT_CASES if case.dtype == "float32"], ids=lambda case: case.name
)
def test_precise_case(case: AttentionCase) -> None:
    check_case(case, precise=True)


@given(case=attention_cases())
def test_any_mixture_of_features(case: AttentionCase) -> None:
    check_case(case, "sm80")


@pytest.mark.parametrize("head_size", [8, 40, 64, 96, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_plain_attention(implementation: str, case: AttentionCase, dtype: str, head_size: int) -> None:
    check_case(replace(case, dtype=dtype, head_size=head_size), implementation)


# ------------------------------------------------------------------------------------------------------ repeatable
@given(case=attention_cases())
def test_deterministic_runs_repeat_bit_for_bit(case: AttentionCase) -> None:
    first, second = (run(case, deterministic=True) for _ in range(2))
    for name, gradient in first.items():
        np.testing.assert_array_equal(gradient.view(np.uint8), second[name].view(np.uint8))


def test_many_thread_blocks_repeat_bit_for_bit() -> None:
    case = AttentionCase("repeat", batch=4, num_heads=16, q_len=1000, head_size=128, dtype="float16", is_causal=1)
    first, second = (run(case, deterministic=True) for _ in range(2))
    for name, gradient in first.items():
        np.testing.assert_array_equal(gradient.view(np.uint8), second[name].view(np.uint8))


# ---------------------------------------------------------------------------------------------------------- memory
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row_gap", [6, 8, 16])
@pytest.mark.parametrize(("q_len", "kv_len", "head_size"), [(1, 1, 1), (17, 67, 37), (65, 130, 64), (130, 65, 80)])
def test_nothing_outside_the_tensors_is_read_or_written(
    dtype: str, row_gap: int, q_len: int, kv_len: int, head_size: int
) -> None:
    case = AttentionCase("guarded", batch=2, q_len=q_len, kv_len=kv_len, head_size=head_size, dtype=dtype, is_causal=1)
    inputs = {name: in_poison(array, row_gap=row_gap) for name, array in case.make_inputs().items()}
    outputs = {name: in_poison(np.zeros_like(array), row_gap=row_gap) for name, array in case.make_inputs().items()}
    expected = expect_gradients(case, tf32=dtype == "float32")
    for name, gradient in run(case, inputs=inputs, outputs=outputs).items():
        check(np.ascontiguousarray(gradient), expected[name])
        assert isinstance(gradient.base, np.ndarray)
        untouched = np.ones(gradient.base.shape, bool)
        untouched[1:-1, 1:-1, 1:-1, row_gap // 2 : row_gap // 2 + head_size] = False
        assert np.isnan(gradient.base.astype(np.float32)[untouched]).all()


def test_keys_that_take_no_part_are_never_read() -> None:
    """NaN in them would reach the gradients through 0 * NaN; their own gradients are 0."""
    case = AttentionCase(
        "unread", batch=2, q_len=100, kv_len=200, key_lengths=(77, 200), blocks="C", block_size=16, dtype="float16"
    )
    inputs = case.make_inputs()
    blocks = inputs["block_mask"].repeat(16)[:200]
    assert 0 < blocks.sum() < 200
    expected = expect_gradients(case)
    for name in ("key", "value"):
        inputs[name][0, :, 77:] = np.nan
        inputs[name][:, :, ~blocks] = np.nan
    for name, gradient in run(case, inputs=inputs).items():
        check(gradient, expected[name])


@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_keys_past_the_end_or_in_blocks_that_are_off_are_never_read(implementation: str, head_size: int) -> None:
    case = AttentionCase(
        "unread", batch=3, num_heads=4, kv_num_heads=2, q_len=300, kv_len=400, key_lengths=(77, 400, 0), blocks="C",
        head_size=head_size, dtype="float16", is_causal=1, causal_alignment="bottom_right",
    )  # fmt: skip
    inputs = case.make_inputs()
    off = ~inputs["block_mask"].repeat(128)[:400]
    assert 0 < off.sum() < 400
    for name in ("key", "value"):
        inputs[name][0, :, 77:] = np.nan
        inputs[name][2] = np.nan
        inputs[name][:, :, off] = np.nan
    check_case(case, implementation, inputs=inputs)


PADDED = [
    AttentionCase("lengths", batch=3, q_len=300, kv_len=390, key_lengths=(390, 1, 200)),
    AttentionCase("padding-mask", batch=3, num_heads=4, kv_num_heads=2, q_len=300, mask="B11T", mask_kind="padding"),
    AttentionCase("masked-keys", batch=2, q_len=260, kv_len=500, mask="BN1T", is_causal=1),
    AttentionCase("blocks", batch=2, q_len=700, kv_len=900, blocks="BNRC"),
    AttentionCase("large-blocks", q_len=700, kv_len=900, blocks="1NRC", block_size=256, is_causal=1),
]
"""Keys that batches don't have, as training has them."""


@pytest.mark.parametrize(("head_size", "dtype"), [(40, "bfloat16"), (64, "float16"), (128, "float16")])
@pytest.mark.parametrize("case", PADDED, ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_padded_batches(implementation: str, case: AttentionCase, dtype: str, head_size: int) -> None:
    check_case(replace(case, dtype=dtype, head_size=head_size), implementation)


def _drawn(seed: int) -> AttentionCase:
    """Keys that batches don't have together with all else that the masked Hopper kernels take."""
    rng = np.random.default_rng(seed)
    batch, group, kv_heads = (int(x) for x in rng.integers(1, 4, 3))
    q_len, kv_len = (int(x) for x in rng.choice([1, 63, 64, 127, 128, 129, 200, 257, 384, 513], 2))
    lengths = tuple(int(x) for x in rng.integers(-1, kv_len + 3, rng.choice([1, batch])))
    window = rng.choice([-1, -1, 0, 70, 150], 2)
    return AttentionCase(
        f"drawn-{seed}", batch=batch, num_heads=kv_heads * group, kv_num_heads=kv_heads, q_len=q_len, kv_len=kv_len,
        head_size=int(rng.choice([8, 40, 64, 64, 72, 128, 128])), dtype=str(rng.choice(["float16", "bfloat16"])),
        packed=bool(rng.integers(2)), is_causal=int(rng.integers(2)), window_left=int(window[0]),
        causal_alignment=str(rng.choice(["top_left", "bottom_right"])), window_right=int(window[1]),
        key_lengths=lengths if rng.random() < 0.5 else None, sinks="N" if rng.random() < 0.3 else None,
        mask=str(rng.choice(["B11T", "BN1T", "1N1T", "T"])) if rng.random() < 0.5 else None,
        mask_kind=str(rng.choice(["random", "padding"])),
        blocks=str(rng.choice(["BNRC", "1NRC", "RC", "B11C", "R1"])) if rng.random() < 0.6 else None,
        block_size=int(rng.choice([128, 256])),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_drawn_padded_batches(seed: int) -> None:
    check_case(_drawn(seed))


def test_rows_that_see_nothing_have_zero_gradients() -> None:
    case = AttentionCase(
        "masked", batch=2, q_len=70, kv_len=90, mask="BNST", mask_kind="rows", bias="BNST", dtype="float16"
    )
    gradients = run(case)
    assert not any(np.isnan(gradient.astype(np.float32)).any() for gradient in gradients.values())
    np.testing.assert_array_equal(gradients["d_query"][:, :, 1::3], 0)
    np.testing.assert_array_equal(gradients["d_attn_bias"][:, :, 1::3], 0)


def test_a_head_size_past_the_limit_names_itself() -> None:
    with pytest.raises(core.CoreUnsupportedError, match="257"):
        run(AttentionCase("big", head_size=257, q_len=2))


# --------------------------------------------------------------------------------------------------------- PyTorch
@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("length", [1024, 4096])
def test_long_sequences_are_as_exact_as_pytorch(length: int, is_causal: int, head_size: int) -> None:
    """max|g - g64| of each gradient at most 1.5 times that of PyTorch's FlashAttention-2."""
    torch = pytest.importorskip("torch")
    case = AttentionCase("long", q_len=length, head_size=head_size, dtype="float16", is_causal=is_causal)
    names = ("query", "key", "value")
    operands = [torch.from_numpy(case.make_inputs()[name]).cuda().requires_grad_() for name in names]
    attention = torch.nn.functional.scaled_dot_product_attention
    exact_operands = [operand.detach().double().requires_grad_() for operand in operands]
    exact_output = attention(*exact_operands, is_causal=bool(is_causal))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        output = attention(*operands, is_causal=bool(is_causal))
    d_output = torch.from_numpy(draw_d_output(case, exact_output.detach().cpu().numpy())).cuda()
    exact = torch.autograd.grad(exact_output, exact_operands, d_output.double())
    peer = torch.autograd.grad(output, operands, d_output)
    ours = run(case)
    for name, right, theirs in zip(names, exact, peer, strict=True):
        error = (torch.from_numpy(ours[f"d_{name}"]).cuda().double() - right).abs().max()
        assert error <= 1.5 * (theirs.double() - right).abs().max(), name
