"""The CPU's gradients through the C interface: every case on every instruction set that this machine has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import CASES, DROPOUT, DTYPES, LOWEST, Array, AttentionCase
from compare import check, draw_d_output, expect_gradients
from hypothesis import given
from strategies import attention_cases

from ortflash import core, reference, reference_gradients

GRADIENT_CASES = [case for case in [*CASES, *DROPOUT] if case.q_len * case.sizes["T"] <= 300_000]
IMPLEMENTATIONS = core.library().implementations("cpu", backward=True)


def run(case: AttentionCase, implementation: str = "", threads: int = 1, **attributes: Any) -> dict[str, Array]:
    """Every gradient of a case, from the core's own forward."""
    inputs = case.make_inputs()
    output, lse = core.attention(**inputs, **case.attributes(), return_lse=1)
    assert lse is not None
    return core.gradients(
        draw_d_output(case, output),
        output,
        lse,
        inputs,
        bias_gradient="attn_bias" in inputs,
        sinks_gradient="sinks" in inputs,
        implementation=implementation,
        threads=threads,
        **{**case.attributes(), **attributes},
    )


def check_case(case: AttentionCase, implementation: str) -> None:
    expected = expect_gradients(case)
    actual = run(case, implementation)
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        check(gradient, expected[name])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)  # the inner loop, so that what is expected is computed once
@pytest.mark.parametrize("case", GRADIENT_CASES, ids=lambda case: case.name)
def test_case(case: AttentionCase, implementation: str) -> None:
    check_case(case, implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@given(case=attention_cases())
def test_any_mixture_of_features(implementation: str, case: AttentionCase) -> None:
    check_case(case, implementation)


# ------------------------------------------------------------------------------------------ finite differences
SMALL = AttentionCase(
    "small",
    batch=2,
    num_heads=4,
    kv_num_heads=2,
    q_len=5,
    kv_len=7,
    head_size=3,
    v_head_size=2,
    is_causal=1,
    causal_alignment="bottom_right",
    query_gain=1.0,
    softcap=3.0,
    bias="1NST",
    mask="B11T",
    sinks="N",
    dropout_p=0.3,
)


@pytest.mark.parametrize(
    "case",
    [
        SMALL,
        replace(SMALL, mask_fill=-2.0, bias="BN11"),
        replace(SMALL, sinks="1", bias="T", softcap=0.0, dropout_p=0.0),
        replace(SMALL, packed=True, is_causal=0, window_left=1, window_right=2, bias="1", key_lengths=(7, 3)),
        replace(SMALL, blocks="BNRC", block_size=16, q_len=20, kv_len=18, bias="B1S1"),
    ],
    ids=["everything", "finite-fill", "one-sink", "window", "blocks"],
)
def test_the_reference_agrees_with_finite_differences(case: AttentionCase) -> None:
    inputs: dict[str, Array] = case.make_inputs()
    for name in ("query", "key", "value", "attn_bias", "sinks"):
        inputs[name] = inputs[name].astype(np.float64)
    d_output = np.random.default_rng(1).standard_normal(reference.attention(**inputs, **case.attributes())[0].shape)
    gradients = reference_gradients.gradients(d_output, **inputs, **case.attributes())
    step = 1e-5
    for name in ("query", "key", "value", "attn_bias", "sinks"):
        tensor, gradient = inputs[name], gradients[f"d_{name}"]
        assert gradient.shape == tensor.shape
        for place in np.random.default_rng(2).permutation(tensor.size)[:25]:
            position = np.unravel_index(int(place), tensor.shape)
            sums = []
            for sign in (1, -1):
                moved = tensor.copy()
                moved[position] += sign * step
                output = reference.attention(**{**inputs, name: moved}, **case.attributes())[0]
                sums.append(float((output * d_output).sum()))
            assert gradient[position] == pytest.approx((sums[0] - sums[1]) / (2 * step), rel=1e-5, abs=1e-7), name


# ---------------------------------------------------------------------------------------------- empty and masked
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_rows_that_see_nothing_have_zero_gradients(implementation: str, dtype: str) -> None:
    case = AttentionCase(
        "masked", batch=2, q_len=70, kv_len=90, mask="BNST", mask_kind="rows", bias="BNST", dtype=dtype
    )
    gradients = run(case, implementation)
    assert not any(np.isnan(gradient.astype(np.float32)).any() for gradient in gradients.values())
    np.testing.assert_array_equal(gradients["d_query"][:, :, 1::3].astype(np.float32), 0)
    np.testing.assert_array_equal(gradients["d_attn_bias"][:, :, 1::3].astype(np.float32), 0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_row_of_the_lowest_value_passes_a_uniform_share(implementation: str) -> None:
    case = AttentionCase("lowest", num_heads=1, q_len=1, kv_len=100, head_size=8, bias="11ST", bias_kind="lowest")
    inputs = case.make_inputs()
    inputs["attn_bias"] = np.full((1, 1, 1, 100), LOWEST["float32"], np.float32)
    output, lse = core.attention(**inputs, **case.attributes(), return_lse=1)
    assert lse is not None
    d_output = np.ones_like(output)
    gradients = core.gradients(d_output, output, lse, inputs, implementation=implementation, **case.attributes())
    np.testing.assert_allclose(gradients["d_value"], 0.01, rtol=1e-5)


# --------------------------------------------------------------------------------------------------- repeatable
def test_no_rounding_depends_on_the_number_of_threads() -> None:
    case = AttentionCase(
        "threads", batch=2, num_heads=4, kv_num_heads=2, q_len=200, kv_len=1300, is_causal=1, bias="1NS1", sinks="N",
        causal_alignment="bottom_right", dropout_p=0.2,
    )  # fmt: skip
    one = run(case)
    for threads in (2, 5):
        for name, gradient in run(case, threads=threads).items():
            np.testing.assert_array_equal(gradient, one[name], name)


# ------------------------------------------------------------------------------------------ the tests can fail
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("d_query", {"scale": 0.127}),
        ("d_query", {"softcap": 0.0}),
        ("d_key", {"is_causal": 0}),
        ("d_attn_bias", {"dropout_p": 0.0}),
        ("d_value", {"dropout_p": 0.25}),
        ("d_value", {"mask_fill": -5.0}),
    ],
)
def test_a_wrong_attribute_is_caught(name: str, wrong: dict[str, Any]) -> None:
    case = AttentionCase(
        "mutated",
        q_len=70,
        kv_len=90,
        is_causal=1,
        softcap=6.0,
        bias="1NST",
        mask="B11T",
        mask_fill=-4.0,
        dropout_p=0.2,
    )
    check(run(case)[name], expect_gradients(case)[name])
    with pytest.raises(AssertionError):
        check(run(case, **wrong)[name], expect_gradients(case)[name])


# ------------------------------------------------------------------------------------------------------- memory
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_strided_gradients_are_written_and_nothing_beside_them(implementation: str, dtype: str) -> None:
    case = AttentionCase(
        "strided", batch=2, num_heads=4, kv_num_heads=2, q_len=67, kv_len=131, head_size=37, v_head_size=21,
        dtype=dtype, bias="B1ST", sinks="N",
    )  # fmt: skip
    inputs = case.make_inputs()
    output, lse = core.attention(**inputs, **case.attributes(), return_lse=1)
    assert lse is not None
    arrays = {**inputs, "output": output, "softmax_lse": lse, "d_output": draw_d_output(case, output)}
    memory = {}
    for name in ("query", "key", "value", "attn_bias"):
        batch, heads, rows, columns = inputs[name].shape
        memory[name] = np.full((batch + 1, rows + 1, heads + 1, columns + 3), 77, inputs[name].dtype)
        arrays[f"d_{name}"] = memory[name][:batch, :rows, :heads, :columns].transpose(0, 2, 1, 3)
    params = core.make_grad_params(
        {name: core.TensorView.of_array(array) for name, array in arrays.items()}, **case.attributes()
    )
    core.run_on_cpu(params, implementation=implementation)
    expected = run(case, implementation)
    for name, whole in memory.items():
        np.testing.assert_array_equal(arrays[f"d_{name}"], expected[f"d_{name}"], name)
        arrays[f"d_{name}"][...] = 77
        np.testing.assert_array_equal(whole, np.full_like(whole, 77), name)


def test_the_workspace_grows_with_the_lengths_and_not_with_their_product() -> None:
    def workspace(length: int) -> int:
        view = core.TensorView.contiguous(256, "float16", (1, 16, length, 64))
        lse = core.TensorView.contiguous(256, "float32", (1, 16, length))
        names = ("query", "key", "value", "output", "d_output", "d_query", "d_key", "d_value")
        params = core.make_grad_params({**dict.fromkeys(names, view), "softmax_lse": lse})
        return core.library().workspace_size(params)

    assert workspace(32768) - workspace(16384) == 2 * (workspace(16384) - workspace(8192))
    assert workspace(16384) < 256 << 20


# ------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        (
            {"d_query": np.zeros((1, 2, 3, 9), np.float32)},
            r"d_query is float32 \[1, 2, 3, 9\]; it must be .* like query",
        ),
        ({"d_output": np.zeros((1, 2, 3, 8), np.float16)}, r"d_output is float16 .* like output"),
        ({"d_attn_bias": np.zeros((1, 1, 3, 5), np.float32)}, r"d_attn_bias is .* like attn_bias"),
        ({"softmax_lse": None}, r"softmax_lse is null"),
        (
            {"d_value": np.zeros((1, 1, 5, 8), np.float32)[:, [0, 0]][:, :1].repeat(2, 1)[..., ::-1]},
            r"contiguous|stride",
        ),
    ],
    ids=["shape", "type", "bias", "lse", "stride"],
)
def test_a_wrong_tensor_is_named(replaced: dict[str, Array | None], message: str) -> None:
    case = AttentionCase("wrong", q_len=3, kv_len=5, head_size=8, bias="11S1")
    inputs = case.make_inputs()
    output, lse = core.attention(**inputs, return_lse=1)
    arrays: dict[str, Array | None] = {
        **inputs, "output": output, "softmax_lse": lse, "d_output": output,
        **{f"d_{name}": np.zeros_like(inputs[name]) for name in ("query", "key", "value", "attn_bias")},
        **replaced,
    }  # fmt: skip
    with pytest.raises(core.CoreError, match=message):
        core.run_on_cpu(
            core.make_grad_params(
                {name: core.TensorView.of_array(array) for name, array in arrays.items() if array is not None}
            )
        )


def test_a_gradient_that_is_broadcast_otherwise_than_its_bias_is_refused() -> None:
    case = AttentionCase("wrong", q_len=3, kv_len=5, head_size=8, bias="11ST")
    arrays = dict(case.make_inputs())
    output, lse = core.attention(**arrays, return_lse=1)
    assert lse is not None
    arrays |= {"output": output, "softmax_lse": lse, "d_output": output}
    arrays |= {f"d_{name}": np.zeros_like(arrays[name]) for name in ("query", "key", "value", "attn_bias")}
    params = core.make_grad_params({name: core.TensorView.of_array(array) for name, array in arrays.items()})
    params.d_bias_strides[2] = 0
    with pytest.raises(core.CoreError, match="d_attn_bias has row stride 0 and attn_bias 5; both must be 0"):
        core.run_on_cpu(params)
    params.d_bias_strides[2] = 4
    with pytest.raises(core.CoreError, match=r"d_attn_bias has row stride 4, less than the 5 elements .* overlap"):
        core.run_on_cpu(params)
