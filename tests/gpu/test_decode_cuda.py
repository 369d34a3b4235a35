"""The decoding kernels by name: how keys are sliced and put together again, which the shared cases hardly reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pycuda.driver as cuda
import pytest
from cases import AttentionCase
from compare import check, expect
from device import Buffer, run

from ortflash import core

LONG = AttentionCase("long", batch=2, num_heads=8, kv_num_heads=2, q_len=1, kv_len=3001, head_size=128, dtype="float16")


def check_decode(case: AttentionCase) -> None:
    """With a second kernel that puts parts together, and with thread blocks that wait for each other's parts."""
    for implementation in ("decode", "decode-fused"):
        for actual, expected in zip(run(case, implementation=implementation), expect(case), strict=True):
            check(actual, expected)


def describe(case: AttentionCase, implementation: str = "decode") -> str:
    views = {name: core.TensorView.of_array(array) for name, array in case.make_inputs().items()}
    views["output"] = views["query"]
    return core.library().describe(core.make_params(views, **case.attributes()), "cuda", implementation)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_size", [40, 64, 128, 200, 256])
@pytest.mark.parametrize(("group", "q_len"), [(1, 1), (5, 3), (8, 4), (4, 16), (61, 1)])
def test_rows_of_several_heads_share_tiles(dtype: str, head_size: int, group: int, q_len: int) -> None:
    """One tile of 16 rows, one of 32, several."""
    case = replace(
        LONG, num_heads=2 * group, q_len=q_len, kv_len=700, head_size=head_size, dtype=dtype, is_causal=1,
        causal_alignment="bottom_right", sinks="N", bias="1NST", mask="B11T",
    )  # fmt: skip
    if head_size > 128 and group * q_len > 32:
        with pytest.raises(core.CoreUnsupportedError, match="decode takes up to"):
            run(case, implementation="decode")
    else:
        check_decode(case)


@pytest.mark.parametrize("batch", [1, 3, 33, 70])
@pytest.mark.parametrize("kv_len", [1, 16, 63, 64, 65, 1000])
def test_slices_of_any_batch(batch: int, kv_len: int) -> None:
    """Lengths of all kinds, none among them: parts begin and end anywhere, and some slices have several elements."""
    lengths = tuple(int(x) for x in np.random.default_rng(batch * kv_len).integers(-1, kv_len + 2, batch))
    case = replace(LONG, batch=batch, kv_len=kv_len, head_size=64)
    check_decode(case)
    check_decode(replace(case, key_lengths=lengths))
    check_decode(replace(case, key_lengths=(kv_len // 2,), sinks="1"))


def test_more_lengths_than_are_added_up() -> None:
    lengths = tuple(int(x) for x in np.random.default_rng(0).integers(0, 300, 2100))
    check_decode(replace(LONG, batch=2100, num_heads=1, kv_num_heads=1, kv_len=300, head_size=32, key_lengths=lengths))


def test_windows_and_blocks_leave_keys_out() -> None:
    window = replace(LONG, q_len=4, window_left=300, window_right=2, causal_alignment="bottom_right")
    check_decode(window)
    check_decode(replace(window, key_lengths=(2000, 77), softcap=5.0))
    check_decode(replace(LONG, blocks="BNRC", block_size=16))
    check_decode(replace(LONG, blocks="1NRC", block_size=256, key_lengths=(2500, 100)))


def test_keys_past_the_length_are_never_read() -> None:
    """NaN in them would reach the output through 0 * NaN."""
    case = replace(LONG, key_lengths=(1234, 17))
    inputs = case.make_inputs()
    for name in ("key", "value"):
        inputs[name][0, :, 1234:] = np.nan
        inputs[name][1, :, 17:] = np.nan
    check(run(case, inputs, implementation="decode")[0], expect(case)[0])


@pytest.mark.parametrize("implementation", ["decode", "decode-fused"])
def test_one_workspace_serves_call_after_call(implementation: str) -> None:
    """Flags that stay up, and parts that are read too early or come from the call before, would show."""
    case = replace(LONG, batch=7, key_lengths=(3001, 0, 1500, 64, 2999, 1, 700))
    expected = expect(case)[0]
    inputs = {name: Buffer(array) for name, array in case.make_inputs().items()}
    output = Buffer(np.zeros(case.shape("BNSE"), np.float16))
    views = {**{name: buffer.view for name, buffer in inputs.items()}, "output": output.view}
    params, library = core.make_params(views, **case.attributes()), core.library()
    size = library.workspace_size(params, "cuda", implementation=implementation)
    workspace = Buffer(np.full(size, 0xFF, np.uint8))
    first = None
    for _ in range(30):
        cuda.memset_d8(output.view.pointer, 0xFF, output.array.nbytes)
        for _ in range(3):  # one behind the other
            library.forward(params, "cuda", workspace=workspace.view.pointer, implementation=implementation)
        cuda.Context.synchronize()
        found = output.read().copy()
        first = found if first is None else first
        np.testing.assert_array_equal(found.view(np.uint16), first.view(np.uint16))
    check(output.array, expected)


def test_long_keys_are_sliced_and_short_ones_need_no_workspace() -> None:
    assert "decode-16x128-d128" in describe(LONG)
    assert "in 1 slices" not in describe(LONG)
    one_turn = replace(LONG, kv_len=64)
    views = {name: core.TensorView.of_array(array) for name, array in one_turn.make_inputs().items()}
    views["output"] = views["query"]
    params = core.make_params(views, **one_turn.attributes())
    assert core.library().workspace_size(params, "cuda", implementation="decode") == 0


def test_longer_queries_and_many_short_problems_are_left_to_others() -> None:
    with pytest.raises(core.CoreUnsupportedError, match="17"):
        run(replace(LONG, q_len=17), implementation="decode")
    assert describe(LONG, "").startswith("decode")
    assert not describe(replace(LONG, batch=4000, kv_len=16, head_size=8), "").startswith("decode")
