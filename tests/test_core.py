"""The CPU core through its C interface: every case on every instruction set that this machine has."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import CASES, DROPOUT, DTYPES, Array, AttentionCase
from compare import Expected, check, expect
from hypothesis import given
from memory import assert_surroundings_untouched, guarded, with_unread_keys
from strategies import attention_cases

from ortflash import core

IMPLEMENTATIONS = core.library().implementations("cpu")


def run(case: AttentionCase, inputs: dict[str, Any] | None = None, **options: Any) -> tuple[Array, Array]:
    """Give output and softmax_lse of a case."""
    output, lse = core.attention(**(inputs or case.make_inputs()), **case.attributes(), return_lse=1, **options)
    assert lse is not None
    return output, lse


def check_case(case: AttentionCase, **options: Any) -> None:
    for actual, expected in zip(run(case, **options), expect(case), strict=True):
        check(actual, expected)


def test_the_portable_implementation_is_always_there() -> None:
    assert IMPLEMENTATIONS[-1] == "cpu-portable"


def test_params_hold_what_they_have_addresses_of() -> None:
    arrays = {name: np.ones((1, 1, 4, 8), np.float32) for name in ("query", "key", "value", "output")}
    watched = [weakref.ref(array) for array in arrays.values()]
    params = core.make_params({name: core.TensorView.of_array(array) for name, array in arrays.items()})
    arrays.clear()
    assert all(reference() is not None for reference in watched)
    del params
    assert all(reference() is None for reference in watched)


@pytest.mark.parametrize("case", [*CASES, *DROPOUT], ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_case(case: AttentionCase, implementation: str) -> None:
    check_case(case, implementation=implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@given(case=attention_cases())
def test_any_mixture_of_features(implementation: str, case: AttentionCase) -> None:
    check_case(case, implementation=implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_d6_is_exact(implementation: str) -> None:
    case = next(case for case in CASES if case.name == "d6-scores-beyond-fp16")
    output, _ = run(case, implementation=implementation)
    np.testing.assert_array_equal(output[0, 0, :, 0], [0, 0, 1, 1, 2, 2])


# ------------------------------------------------------------------------------------------- the tests can fail
MUTANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "scale": ("float32", {"scale": 0.125 * 1.01}, {}),
    "softcap": ("float32", {"softcap": 0.0}, {}),
    "causal alignment": ("float32", {"causal_alignment": "bottom_right"}, {}),
    "causal off by one": ("float32", {"is_causal": 0, "window_right": 1}, {}),
    "window off by one": ("float16", {"window_left": 21}, {}),
    "mask fill": ("float32", {"mask_fill": -8.0}, {}),
    "dropped bias": ("float16", {}, {"bias": None}),
    "dropped mask": ("float16", {}, {"mask": None}),
    "dropped sink": ("float32", {}, {"sinks": None}),
    "longer keys": ("float16", {}, {"key_lengths": (58, 69)}),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_attribute_or_a_dropped_input_is_caught(mutant: str) -> None:
    dtype, attributes, dropped = MUTANTS[mutant]
    case = AttentionCase(
        "mutated", batch=2, q_len=90, kv_len=120, dtype=dtype, is_causal=1, window_left=20, softcap=6.0, mask_fill=-4.0,
        bias="1NST", mask="B11T", key_lengths=(57, 69), sinks="N",
    )  # fmt: skip
    check_case(case)
    inputs = case.make_inputs()
    for field, value in dropped.items():
        name = {"bias": "attn_bias", "mask": "attn_mask"}.get(field, field)
        if value is None:
            del inputs[name]
        else:
            inputs[name] = np.array(value, np.int32)
    output, lse = core.attention(**inputs, **{**case.attributes(), **attributes}, return_lse=1)
    expected_output, expected_lse = expect(case)
    with pytest.raises(AssertionError):
        check(output, expected_output)
    assert lse is not None
    with pytest.raises(AssertionError):
        check(lse, expected_lse)


def test_the_comparator_sees_misplaced_infinities_first() -> None:
    exact = np.array([0.0, -np.inf])
    expected = Expected("softmax_lse", exact, exact.astype(np.float32), 1e9)
    check(np.array([0.0, -np.inf], np.float32), expected)
    for wrong in ([0.0, -1e30], [np.nan, -np.inf], [-np.inf, 0.0], [0.0, np.inf]):
        with pytest.raises(AssertionError, match=r"disagree on (NaN|[+-]inf) .* at \(\d,\)"):
            check(np.array(wrong, np.float32), expected)


# ------------------------------------------------------------------------------------------------------- memory
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("q_len", "kv_len", "head_size"), [(1, 1, 1), (17, 67, 37), (65, 130, 64)])
def test_nothing_outside_the_tensors_is_read_or_written(
    implementation: str, dtype: str, q_len: int, kv_len: int, head_size: int
) -> None:
    case = AttentionCase(
        "guarded", batch=2, q_len=q_len, kv_len=kv_len, head_size=head_size, dtype=dtype, bias="BNST", mask="BNST",
        is_causal=1, causal_alignment="bottom_right",
    )  # fmt: skip
    inputs, out = guarded(case, row_gap=6)
    run(case, inputs, out=out, implementation=implementation)
    check(np.ascontiguousarray(out), expect(case)[0])
    assert_surroundings_untouched(out, row_gap=6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_keys_that_take_no_part_are_never_read(implementation: str) -> None:
    case, inputs, expected = with_unread_keys("float32", window_left=1000)
    output, _ = run(case, inputs, implementation=implementation)
    check(output, expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nan_in_a_query_stays_in_its_row(implementation: str) -> None:
    case = AttentionCase("nan", q_len=70, kv_len=90)
    inputs = case.make_inputs()
    inputs["query"][0, 1, 33, 5] = np.nan
    output, _ = run(case, inputs, implementation=implementation)
    rows = np.asarray(np.isnan(output).any(axis=-1))
    assert rows[0, 1, 33]
    assert rows.sum() == 1


def test_broadcast_batches_of_keys_are_read_in_place() -> None:
    case = AttentionCase("shared-keys", batch=3, q_len=20, kv_len=50)
    inputs = case.make_inputs()
    for name in ("key", "value"):
        inputs[name] = np.broadcast_to(inputs[name][:1], inputs[name].shape)
    output, _ = run(case, inputs)
    for name in ("key", "value"):
        inputs[name] = np.ascontiguousarray(inputs[name])
    np.testing.assert_array_equal(output, run(case, inputs)[0])


# ------------------------------------------------------------------------------------------------------ threads
@pytest.mark.parametrize(
    "case",
    [
        AttentionCase("prefill", batch=2, num_heads=3, q_len=150, kv_len=333, bias="B1ST", is_causal=1),
        AttentionCase("window", num_heads=1, q_len=600, window_left=70, window_right=9),
        AttentionCase("grouped-decode", num_heads=8, kv_num_heads=2, q_len=1, kv_len=3000),
        AttentionCase("short", num_heads=6, kv_num_heads=2, q_len=5, kv_len=3000, sinks="N"),
    ],
    ids=lambda case: case.name,
)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_result_does_not_depend_on_threads_or_runs(implementation: str, case: AttentionCase) -> None:
    first = run(case, implementation=implementation)
    for threads in (1, 2, 3, 16):
        for again, once in zip(run(case, implementation=implementation, threads=threads), first, strict=True):
            np.testing.assert_array_equal(again, once)


def test_calls_from_many_threads_do_not_meet() -> None:
    cases = [AttentionCase(f"thread{i}", q_len=40 + i, kv_len=90 - i, mask="B1ST") for i in range(6)]
    alone = [run(case)[0] for case in cases]
    inputs = [case.make_inputs() for case in cases]
    problems: list[str] = []

    def work(index: int) -> None:
        for _ in range(20):
            if not np.array_equal(run(cases[index], inputs[index])[0], alone[index]):
                problems.append(cases[index].name)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_workspace_does_not_grow_with_the_square_of_the_length(implementation: str) -> None:
    def size(q_len: int, kv_len: int) -> int:
        case = AttentionCase("memory", q_len=q_len, kv_len=kv_len, num_heads=12)
        views = {
            name: core.TensorView.contiguous(0, "float32", case.shape(axes))
            for name, axes in {"query": "BNSD", "key": "BMTD", "value": "BMTE", "output": "BNSE"}.items()
        }
        return core.library().workspace_size(core.make_params(views), threads=2, implementation=implementation)

    assert size(65536, 65536) == size(4096, 4096) < 2**20
    assert size(1, 65536) < 2**20


# -------------------------------------------------------------------------------------------------------- refusals
def test_a_group_that_does_not_divide_is_refused_with_both_shapes() -> None:
    query, key = np.zeros((1, 3, 4, 8), np.float32), np.zeros((1, 2, 5, 8), np.float32)
    with pytest.raises(core.CoreError, match=r"\(1,3,4,8\) and key .* \(1,2,5,8\): N = 3 is not a multiple of M = 2"):
        core.attention(query, key, key)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"scale": np.inf}, "scale is inf; it must be finite"),
        ({"softcap": -1.0}, "softcap is -1; it must be finite and not negative"),
        ({"window_left": -2}, "window_left is -2; it must be -1 or more"),
        ({"window_right": -7}, "window_right is -7; it must be -1 or more"),
    ],
)
def test_a_bad_attribute_is_refused(attributes: dict[str, Any], message: str) -> None:
    query = np.zeros((1, 1, 2, 8), np.float32)
    with pytest.raises(core.CoreError, match=message):
        core.attention(query, query, query, **attributes)


@pytest.mark.parametrize("block_size", [0, -16, 8, 24, 512])
def test_a_bad_block_size_is_refused(block_size: int) -> None:
    case = AttentionCase("blocks", q_len=20, blocks="1")
    attributes = {**case.attributes(), "block_size": block_size}
    views = {name: core.TensorView.of_array(array) for name, array in case.make_inputs().items()}
    views["output"] = views["query"]
    params = core.make_params(views, **case.attributes())
    params.block_size = attributes["block_size"]
    with pytest.raises(core.CoreError, match=f"block_size is {block_size}; it must be 16, 32, 64, 128 or 256"):
        core.library().supports(params)


@pytest.mark.parametrize("fill", [np.nan, np.inf])
def test_a_bad_mask_fill_is_refused(fill: float) -> None:
    case = AttentionCase("fill", q_len=20, mask="ST")
    with pytest.raises(core.CoreError, match=r"mask_fill is .*; it must be finite or -inf"):
        run(replace(case, mask_fill=fill), case.make_inputs())


def test_a_head_past_512_is_refused_with_its_size() -> None:
    query = np.zeros((1, 1, 2, 513), np.float32)
    with pytest.raises(core.CoreUnsupportedError, match=r"takes head sizes up to 512; this call has .* 513"):
        core.attention(query, query, query)


def test_an_output_that_overlaps_itself_is_refused() -> None:
    query = np.zeros((2, 1, 2, 8), np.float32)
    out = np.lib.stride_tricks.as_strided(np.zeros((1, 1, 2, 8), np.float32), query.shape, (0, 64, 32, 4))
    with pytest.raises(core.CoreError, match="output has batch stride 0, less than its 8 columns"):
        core.attention(query, query, query, out=out)


NO_HEADS = np.zeros((2, 5, 32), np.float32)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"causal_alignment": "middle"}, "causal_alignment is 'middle'; it must be top_left or bottom_right"),
        ({"causal_alignment": 1}, "causal_alignment is 1; it must be a name"),
        ({"is_causal": 2}, "is_causal is 2; it must be 0 or 1"),
        ({"block_size": 0, "block_mask": np.ones((1, 1), bool)}, "block_size is 0; it must be 16, 32, 64, 128 or 256"),
        ({"block_size": 1.5}, "block_size is 1.5; it must be a whole number"),
        ({"window_left": 2.0}, "window_left is 2.0; it must be a whole number"),
        ({"window_left": 2**70}, "window_left is 1180591620717411303424; it must fit into 64 bits"),
        ({"scale": "a"}, "scale is 'a'; it must be a number"),
        ({"sclae": 1.0}, "there is no attribute 'sclae'; there are num_heads, kv_num_heads, scale"),
        ({"query": [[1.0]]}, "query is of type list; it must be a NumPy array"),
        ({"key": None}, "key is of type NoneType; it must be a NumPy array"),
        ({"attn_mask": [True]}, "attn_mask is of type list; it must be a NumPy array"),
        ({"query": np.zeros((), np.float32)}, r"query \[\] has 0 axes; it must have 3 or 4"),
        ({"query": NO_HEADS}, r"query \[2, 5, 32\] cannot be split into 0 heads"),
        ({"query": NO_HEADS, "num_heads": -4}, r"query \[2, 5, 32\] cannot be split into -4 heads"),
        ({"query": np.zeros((2, 4, 5, 8), ">f4")}, "query is of type >f4, whose bytes are in the other order"),
        ({"attn_bias": np.zeros((5, 7), np.float16)}, r"attn_bias is float16; it must be float32\.$"),
        ({"out": np.broadcast_to(np.zeros(8, np.float32), (2, 4, 5, 8))}, "out is read-only"),
    ],
)
def test_arguments_that_make_no_call_are_one_sentence(given: dict[str, Any], message: str) -> None:
    key = np.zeros((2, 2, 7, 8), np.float32)
    arguments = {"query": np.zeros((2, 4, 5, 8), np.float32), "key": key, "value": key} | given
    with pytest.raises(core.CoreError, match=message):
        core.attention(**arguments)


def test_numbers_of_numpy_are_taken() -> None:
    query = np.ones((1, 1, 2, 8), np.float32)
    attributes = {"scale": np.float32(0.5), "window_left": np.int64(1), "is_causal": np.True_}
    output, _ = core.attention(query, query, query, **attributes)
    np.testing.assert_allclose(output, query)


def test_a_column_stride_is_refused() -> None:
    query = np.zeros((1, 1, 2, 16), np.float32)[..., ::2]
    with pytest.raises(core.CoreError, match=r"query .* has column stride 2; its last axis must be contiguous"):
        core.attention(query, np.ascontiguousarray(query), np.ascontiguousarray(query))


def test_an_unknown_implementation_is_refused() -> None:
    query = np.zeros((1, 1, 2, 8), np.float32)
    with pytest.raises(core.CoreUnsupportedError, match="no implementation called cpu-abacus"):
        core.attention(query, query, query, implementation="cpu-abacus")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_describe_names_the_implementation(implementation: str) -> None:
    query = core.TensorView.contiguous(0, "float32", (1, 1, 2, 8))
    params = core.make_params({"query": query, "key": query, "value": query, "output": query})
    assert core.library().describe(params, implementation=implementation).startswith(implementation)
    assert core.library().describe(params).startswith(IMPLEMENTATIONS[0])
