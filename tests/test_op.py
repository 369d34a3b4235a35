"""The operator in ONNX Runtime on the CPU: numbers, shape inference, optional inputs and outputs, errors, threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cases import CASES, DROPOUT, DTYPES, Array, AttentionCase
from compare import check, expect
from hypothesis import given
from op_model import ELEM_TYPES, Shape, make_model, make_session, run, run_once
from strategies import attention_cases

FLOAT = onnx.TensorProto.FLOAT
QKV = {"query": FLOAT, "key": FLOAT, "value": FLOAT}


def check_case(case: AttentionCase) -> None:
    for actual, expected in zip(run_once(case.make_inputs(), case.attributes()), expect(case), strict=True):
        check(actual, expected)


@pytest.mark.parametrize("case", [*CASES, *DROPOUT], ids=lambda case: case.name)
def test_case(case: AttentionCase) -> None:
    check_case(case)


@given(case=attention_cases())
def test_any_mixture_of_features(case: AttentionCase) -> None:
    check_case(case)


# ------------------------------------------------------------------------------------------ optional inputs, outputs
OPTIONAL = AttentionCase(
    "optional", batch=2, q_len=9, kv_len=20, bias="1NST", mask="B11T", key_lengths=(20, 7), sinks="N"
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", ["attn_bias", "attn_mask", "key_lengths", "block_mask", "sinks", "dropout_seed"])
def test_neutral_constants_change_nothing(dtype: str, last: str) -> None:
    """A call with nothing but neutral constants up to `last` gives the bits of the plain call."""
    inputs = AttentionCase("plain", q_len=33, kv_len=40, dtype=dtype).make_inputs()
    plain = run_once(inputs, {})
    elem_types = {name: ELEM_TYPES[array.dtype] for name, array in inputs.items()}
    model = make_model({**elem_types, last: onnx.TensorProto.FLOAT}, return_lse=True)
    neutral = _neutral(last, elem_types["query"])
    model.graph.input.pop()
    model.graph.initializer.append(neutral)
    for actual, expected in zip(run(make_session(model), inputs), plain, strict=True):
        np.testing.assert_array_equal(actual, expected)


def _neutral(name: str, elem_type: int) -> onnx.TensorProto:
    from ortflash.graph_tools import op_schema

    return op_schema.neutral_constant(name, name, elem_type)


def test_one_element_that_is_not_neutral_counts() -> None:
    """A single -inf, False or 3 is a bias, mask or length like any other."""
    inputs = AttentionCase("plain", q_len=5, kv_len=7).make_inputs()
    output, lse = run_once({**inputs, "attn_bias": np.array([-np.inf], np.float32)}, {})
    assert (output == 0).all()
    assert np.isneginf(lse).all()
    output, lse = run_once({**inputs, "attn_mask": np.array([False])}, {})
    assert (output == 0).all()
    shorter = {**inputs, "key": inputs["key"][:, :, :3], "value": inputs["value"][:, :, :3]}
    output, lse = run_once({**inputs, "key_lengths": np.array([3], np.int32)}, {})
    for actual, expected in zip((output, lse), run_once(shorter, {}), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_second_output_that_nobody_reads() -> None:
    inputs = OPTIONAL.make_inputs()
    elem_types = {name: ELEM_TYPES[array.dtype] for name, array in inputs.items()}
    model = make_model(elem_types, OPTIONAL.attributes(), return_lse=True)
    both = run(make_session(model), inputs)
    del model.graph.output[1]
    (unread,) = run(make_session(model), inputs)
    model.graph.node[0].output[1] = ""
    (absent,) = run(make_session(model), inputs)
    np.testing.assert_array_equal(unread, both[0])
    np.testing.assert_array_equal(absent, both[0])


# -------------------------------------------------------------------------------------------------- shape inference
@pytest.mark.parametrize(
    ("query", "value", "attributes", "output", "lse"),
    [
        ((2, 3, 5, 16), (2, 3, 7, 8), {}, [2, 3, 5, 8], [2, 3, 5]),
        (("B", 4, "S", 16), ("B", 2, "T", 24), {}, ["B", 4, "S", 24], ["B", 4, "S"]),
        (("B", "S", 48), ("B", "T", 48), {"num_heads": 3, "kv_num_heads": 3}, ["B", "S", 48], ["B", 3, "S"]),
        (("B", "S", 64), ("B", "T", 16), {"num_heads": 8, "kv_num_heads": 2}, ["B", "S", 64], ["B", 8, "S"]),
        (("B", "S", "C"), ("B", "T", "C"), {"num_heads": 8, "kv_num_heads": 8}, ["B", "S", "C"], ["B", 8, "S"]),
        (("B", 4, None, 16), ("B", 4, None, 16), {}, ["B", 4, ..., 16], ["B", 4, ...]),
        (("B", "S", 64), ("B", "T", "W"), {"num_heads": 8, "kv_num_heads": 2}, ["B", "S", ...], ["B", 8, "S"]),
    ],
)
def test_output_shapes_are_inferred(
    query: Shape, value: Shape, attributes: dict[str, Any], output: list[Any], lse: list[Any]
) -> None:
    model = make_model(QKV, attributes, shapes={"query": query, "value": value}, return_lse=True)
    inferred = [one.shape for one in make_session(model).get_outputs()]
    for shape, expected in zip(inferred, (output, lse), strict=True):
        assert [... if e is ... else axis for axis, e in zip(shape, expected, strict=True)] == expected
        named = [axis for axis, e in zip(shape, expected, strict=True) if e is ...]
        assert all(str(axis).startswith("ortflash_axis_") for axis in named)


def test_unknown_ranks_are_left_open() -> None:
    model = make_model(QKV, {})
    inputs = AttentionCase("open").make_inputs()
    (output,) = run(make_session(model), inputs)
    assert output.shape == inputs["query"].shape


def test_unknown_axes_cause_no_warning_when_run(capfd: pytest.CaptureFixture[str]) -> None:
    options = onnxruntime.SessionOptions()
    inputs = AttentionCase("open").make_inputs()
    unknown = (None, 2, None, 64)
    model = make_model(QKV, {}, shapes={"query": unknown, "key": unknown, "value": unknown})
    session = make_session(model, options)
    run_options = onnxruntime.RunOptions()
    run_options.log_severity_level = 2
    session.run(None, inputs, run_options)
    assert capfd.readouterr().err == ""


# ----------------------------------------------------------------------------------------------------------- errors
def shaped(**shapes: tuple[int, ...]) -> dict[str, Array]:
    """Zeros of these shapes; query, key and value are (2,4,5,16), (2,2,7,16), (2,2,7,8) unless told otherwise."""
    usual = {"query": (2, 4, 5, 16), "key": (2, 2, 7, 16), "value": (2, 2, 7, 8)}
    types = {"attn_mask": np.bool_, "block_mask": np.bool_, "key_lengths": np.int32}
    return {name: np.zeros(shape, types.get(name, np.float32)) for name, shape in {**usual, **shapes}.items()}


WRONG_SHAPES = [
    (shaped(query=(4, 5)), {}, r"'query' has shape \(4,5\) but must be \(B,N,S,D\) or"),
    (shaped(key=(2, 7, 32)), {}, r"'key' has shape \(2,7,32\).* 'query' of shape \(2,4,5,16\): both must be 4-D"),
    (shaped(key=(3, 2, 7, 16)), {}, r"'key' has shape \(3,2,7,16\).*\(2,4,5,16\): the batch sizes"),
    (shaped(value=(1, 2, 7, 8)), {}, r"'value' has shape \(1,2,7,8\).*\(2,4,5,16\): the batch sizes"),
    (
        shaped(value=(2, 2, 6, 8)),
        {},
        r"'value' has shape \(2,2,6,8\).* 'key' of shape \(2,2,7,16\): the numbers of keys",
    ),
    (
        shaped(value=(2, 4, 7, 8)),
        {},
        r"'value' has shape \(2,4,7,8\).* 'key' of shape \(2,2,7,16\): the numbers of heads",
    ),
    (shaped(key=(2, 2, 7, 15)), {}, r"'key' has shape \(2,2,7,15\).*: the head sizes differ"),
    (shaped(key=(2, 3, 7, 16), value=(2, 3, 7, 8)), {}, r"'key' has shape \(2,3,7,16\).* must be a multiple"),
    (shaped(key=(2, 0, 7, 16), value=(2, 0, 7, 8)), {}, r"'key' has shape \(2,0,7,16\).* must be a multiple"),
    (shaped(query=(2, 4, 5, 0), key=(2, 2, 7, 0)), {}, r"head sizes 0 \('query'\) and 8 .* must be from 1 to 512"),
    (shaped(query=(2, 4, 5, 513), key=(2, 2, 7, 513)), {}, r"head sizes 513 \('query'\) .* must be from 1 to 512"),
    (shaped(value=(2, 2, 7, 600)), {}, r"and 600 \('value'\) must be from 1 to 512"),
    (shaped(), {"num_heads": 3}, r"'num_heads' is 3 but input 'query' of shape \(2,4,5,16\) has 4"),
    (shaped(), {"kv_num_heads": 4}, r"'kv_num_heads' is 4 but input 'key' of shape \(2,2,7,16\) has 2"),
    (
        shaped(query=(2, 5, 64), key=(2, 7, 32), value=(2, 7, 16)),
        {},
        r"'num_heads' is needed, since input 'query' of shape \(2,5,64\) is 3-D",
    ),
    (
        shaped(query=(2, 5, 64), key=(2, 7, 32), value=(2, 7, 16)),
        {"num_heads": 5, "kv_num_heads": 2},
        r"last axis of input 'query' of shape \(2,5,64\) does not divide into 5",
    ),
    (shaped(attn_bias=(6,)), {}, r"'attn_bias' has shape \(6,\) but must be broadcastable .* here \(2,4,5,7\)"),
    (shaped(attn_bias=(1, 2, 4, 5, 7)), {}, r"'attn_bias' has shape \(1,2,4,5,7\) but must be broadcastable"),
    (shaped(attn_mask=(2, 1, 7, 5)), {}, r"'attn_mask' has shape \(2,1,7,5\) but .* here \(2,4,5,7\)"),
    (shaped(key_lengths=(3,)), {}, r"'key_lengths' has shape \(3,\) but must be \(B,\) or \(1,\), here \(2,\)"),
    (shaped(key_lengths=(1, 1)), {}, r"'key_lengths' has shape \(1,1\) but"),
    (shaped(block_mask=(2, 2)), {"block_size": 16}, r"'block_mask' has shape \(2,2\) but .* here \(2,4,1,1\)"),
    (shaped(sinks=(2,)), {}, r"'sinks' has shape \(2,\) but must be \(N,\) or \(1,\), here \(4,\)"),
]


@pytest.mark.parametrize(("inputs", "attributes", "message"), WRONG_SHAPES)
def test_wrong_shapes_name_input_shapes_and_node(
    inputs: dict[str, Array], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=r"FlashAttention node 'attn': .*" + message):
        run_once(inputs, attributes, return_lse=False)


WRONG_ATTRIBUTES = [
    ({"is_causal": 2}, "'is_causal' is 2 but must be one of 0, 1"),
    ({"causal_alignment": "middle"}, "'causal_alignment' is 'middle' but must be one of top_left, bottom_right"),
    ({"window_left": -2}, "'window_left' is -2 but must be at least -1"),
    ({"num_heads": -1}, "'num_heads' is -1 but must be at least 0"),
    ({"softcap": -1.0}, r"'softcap' is -1 but must be in \[0, inf\]"),
    ({"scale": float("nan")}, "'scale' is -?nan but must be"),
    ({"mask_fill": float("nan")}, "'mask_fill' is -?nan but must be"),
    ({"block_size": 100}, "'block_size' is 100 but must be one of 16, 32, 64, 128, 256"),
    ({"plugin_version": "2"}, "'plugin_version' is '2' but must be one of 1"),
    ({"plugin_version": "x" * 300}, "'plugin_version' is '.300 characters.' but must be"),
    ({"scale": 1}, "'scale' must be of type float"),
    ({"is_causal": 1.0}, "'is_causal' must be of type int"),
    ({"causal_alignment": 1}, "'causal_alignment' must be of type string"),
    ({"window_left": [3]}, "'window_left' must be of type int"),
]


@pytest.mark.parametrize(("attributes", "message"), WRONG_ATTRIBUTES)
def test_wrong_attributes_stop_the_session(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=f"FlashAttention node 'attn': attribute {message}"):
        make_session(make_model(QKV, attributes))


def test_second_output_without_return_lse_stops_the_session() -> None:
    model = make_model(QKV, {}, return_lse=True)
    next(one for one in model.graph.node[0].attribute if one.name == "return_lse").i = 0
    with pytest.raises(Exception, match="output 'softmax_lse' is there although attribute 'return_lse' is 0"):
        make_session(model)


@pytest.mark.parametrize(
    ("name", "dtype"), [("attn_bias", np.int32), ("attn_bias", np.int64), ("attn_bias", np.float16)]
)
def test_wrong_bias_types_name_the_input(name: str, dtype: Any) -> None:
    inputs: dict[str, Array] = {**shaped(), name: np.zeros((5, 7), dtype)}
    with pytest.raises(Exception, match=rf"'{name}' has type .*, where 'query' is float32"):
        run_once(inputs, {})


@pytest.mark.parametrize("name", ["key", "attn_mask", "key_lengths", "sinks"])
def test_types_that_the_schema_fixes_are_refused_at_loading(name: str) -> None:
    elem_types = {**QKV, name: onnx.TensorProto.DOUBLE}
    with pytest.raises(Exception, match=r"FlashAttention|Type Error|tensor\(double\)"):
        make_session(make_model(elem_types))


def test_a_node_s_long_name_does_no_harm() -> None:
    with pytest.raises(Exception, match=r"FlashAttention node '\(a name of 500 characters\)': attribute"):
        make_session(make_model(QKV, {"is_causal": 2}, node_name="n" * 500))


# ---------------------------------------------------------------------------------------------------------- threads
def test_many_threads_on_one_session_give_the_same_bits() -> None:
    """8 threads x 25 runs with changing lengths."""
    case = AttentionCase("threads", num_heads=4, is_causal=1, bias="1NST")
    elem_types = {name: ELEM_TYPES[array.dtype] for name, array in case.make_inputs().items()}
    session = make_session(make_model(elem_types, {"is_causal": 1}, return_lse=True))
    problems = [
        AttentionCase("threads", num_heads=4, q_len=length, is_causal=1, bias="1NST").make_inputs(seed=length)
        for length in (1, 7, 33, 65, 130)
    ]
    alone = [run(session, inputs) for inputs in problems]
    differing: list[int] = []

    def work(first: int) -> None:
        for turn in range(25):
            index = (first + turn) % len(problems)
            outputs = run(session, problems[index])
            if not all(np.array_equal(a, b) for a, b in zip(outputs, alone[index], strict=True)):
                differing.append(index)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert differing == []


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_the_size_of_the_pool_does_not_change_the_bits(threads: int) -> None:
    case = AttentionCase("pool", batch=2, num_heads=3, q_len=130, kv_len=200, is_causal=1)
    inputs = case.make_inputs()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    (output,) = run(make_session(make_model(QKV, {"is_causal": 1}), options), inputs)
    (expected,) = run(make_session(make_model(QKV, {"is_causal": 1})), inputs)
    np.testing.assert_array_equal(output, expected)
