"""The gradient's operator in ONNX Runtime on the CPU: numbers, shape inference, optional outputs, errors."""

from __future__ import annotations

import numpy as np
import pytest
from cases import DTYPES, Array, AttentionCase
from op_model import make_gradient_model, make_session, run

from ortflash import core


def make_inputs(case: AttentionCase) -> dict[str, Array]:
    """Everything that the gradient of a case reads."""
    inputs = dict(case.make_inputs())
    output, lse = core.attention(**inputs, **case.attributes(), return_lse=1)
    assert lse is not None
    d_output = np.random.default_rng(3).standard_normal(output.shape).astype(output.dtype)
    return {**inputs, "output": output, "softmax_lse": lse, "d_output": d_output}


def expect(case: AttentionCase, inputs: dict[str, Array]) -> dict[str, Array]:
    """What the core gives."""
    own = ("d_output", "output", "softmax_lse")
    return core.gradients(
        inputs["d_output"],
        inputs["output"],
        inputs["softmax_lse"],
        {name: array for name, array in inputs.items() if name not in own},
        bias_gradient="attn_bias" in inputs,
        sinks_gradient="sinks" in inputs,
        **case.attributes(),
    )


EVERYTHING = AttentionCase(
    "everything", batch=2, num_heads=4, kv_num_heads=2, q_len=33, kv_len=50, is_causal=1, softcap=5.0, bias="1NST",
    mask="B11T", sinks="N", dropout_p=0.2, packed=True,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "case",
    [
        AttentionCase("plain", q_len=33, kv_len=50),
        AttentionCase("causal", q_len=70, kv_len=70, is_causal=1, packed=True, num_heads=6, kv_num_heads=2),
        AttentionCase("blocks", q_len=70, kv_len=70, blocks="BNRC", block_size=16, key_lengths=(60,)),
        EVERYTHING,
    ],
    ids=lambda case: case.name,
)
def test_the_operator_gives_the_core_s_bits(case: AttentionCase, dtype: str) -> None:
    case = AttentionCase(**{**case.__dict__, "dtype": dtype})
    inputs = make_inputs(case)
    expected = expect(case, inputs)
    outputs = ["d_query", "d_key", "d_value"]
    if "attn_bias" in inputs:
        outputs += ["d_attn_bias", "d_sinks"]
    results = run(make_session(make_gradient_model(inputs, outputs, case.attributes())), inputs)
    for name, result in zip(outputs, results, strict=True):
        np.testing.assert_array_equal(result, expected[name], name)


def test_outputs_that_nobody_asks_for_are_left_out() -> None:
    inputs = make_inputs(EVERYTHING)
    plain = run(
        make_session(make_gradient_model(inputs, ["d_query", "d_key", "d_value"], EVERYTHING.attributes())), inputs
    )
    assert len(plain) == 3
    outputs = ["d_query", "d_key", "d_value", "", "d_sinks"]
    results = run(make_session(make_gradient_model(inputs, outputs, EVERYTHING.attributes())), inputs)
    np.testing.assert_array_equal(results[3], expect(EVERYTHING, inputs)["d_sinks"])


def test_shapes_are_inferred() -> None:
    inputs = make_inputs(EVERYTHING)
    outputs = ["d_query", "d_key", "d_value", "d_attn_bias", "d_sinks"]
    session = make_session(make_gradient_model(inputs, outputs, EVERYTHING.attributes(), with_shapes=True))
    shapes = {one.name: tuple(one.shape) for one in session.get_outputs()}
    assert shapes == {f"d_{name}": inputs[name].shape for name in ("query", "key", "value", "attn_bias", "sinks")}


@pytest.mark.parametrize(
    ("replaced", "outputs", "message"),
    [
        ({"output": (1, 2, 9, 63)}, 3, r"input 'output' has shape \(1,2,9,63\) but must be \(1,2,9,64\)"),
        ({"d_output": (1, 2, 8, 64)}, 3, r"input 'd_output' has shape \(1,2,8,64\) but must be \(1,2,9,64\)"),
        ({"softmax_lse": (1, 2, 9, 1)}, 3, r"input 'softmax_lse' has shape .* must be \(1,2,9\)"),
        ({"key": (1, 2, 12, 32)}, 3, r"input 'key' has shape .* the head sizes differ"),
        ({}, 4, r"output 'd_attn_bias' is there, but input 'attn_bias' is not"),
    ],
    ids=["output", "d_output", "lse", "key", "bias"],
)
def test_wrong_shapes_name_input_and_node(replaced: dict[str, tuple[int, ...]], outputs: int, message: str) -> None:
    inputs = make_inputs(AttentionCase("small", q_len=9, kv_len=12))
    for name, shape in replaced.items():
        inputs[name] = np.zeros(shape, np.float32)
    session = make_session(make_gradient_model(inputs, ["d_query", "d_key", "d_value", "d_attn_bias"][:outputs], {}))
    with pytest.raises(Exception, match=message) as error:
        run(session, inputs)
    assert "FlashAttentionGrad node 'grad'" in str(error.value)


def test_a_float32_bias_of_a_half_query_has_no_gradient_here() -> None:
    case = AttentionCase("mixed", q_len=9, kv_len=12, dtype="float16", bias="11ST", bias_dtype="float32")
    inputs = make_inputs(case)
    session = make_session(
        make_gradient_model(inputs, ["d_query", "d_key", "d_value", "d_attn_bias"], case.attributes())
    )
    with pytest.raises(Exception, match="output 'd_attn_bias' is there, but input 'attn_bias' is float32"):
        run(session, inputs)
