"""The CUDA core through its C interface: every case on every implementation, and what only GPUs get wrong."""

from __future__ import annotations

import ctypes
import statistics
import time
from typing import Any

import numpy as np
import pycuda.driver as cuda
import pytest
from cases import CASES, DROPOUT, DTYPES, Array, AttentionCase
from compare import check, expect
from device import Buffer, random_half, run
from hypothesis import given
from memory import assert_surroundings_untouched, guarded, with_unread_keys
from strategies import attention_cases

from ortflash import core, reference

IMPLEMENTATIONS = core.library().implementations("cuda")


def supported(case: AttentionCase, implementation: str, precise: bool = False) -> bool:
    """Whether the implementation takes the case; the preferred ones leave some to the general one."""
    try:
        run(case, precise=precise, implementation=implementation)
    except core.CoreUnsupportedError:
        return False
    return True


def check_case(case: AttentionCase, **options: Any) -> None:
    tf32 = case.dtype == "float32" and not options.get("precise", False)
    for actual, expected in zip(run(case, **options), expect(case, tf32=tf32), strict=True):
        check(actual, expected)
    if case.dtype != "float32":  # other kernels, where the tensor cores sum the rows
        check(run(case, return_lse=False, **options)[0], expect(case)[0])


def test_the_mma_kernels_are_there() -> None:
    assert "sm80" in IMPLEMENTATIONS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_case(case: AttentionCase, implementation: str) -> None:
    if implementation != "sm80" and not supported(case, implementation):
        pytest.skip(f"{implementation} leaves it to sm80")
    check_case(case, implementation=implementation)


@pytest.mark.parametrize("case", DROPOUT, ids=lambda case: case.name)
def test_dropout_case(case: AttentionCase) -> None:
    check_case(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.dtype == "float32"], ids=lambda case: case.name)
def test_precise_case(case: AttentionCase) -> None:
    check_case(case, precise=True)


@given(case=attention_cases())
def test_any_mixture_of_features(case: AttentionCase) -> None:
    for implementation in IMPLEMENTATIONS:
        if implementation == "sm80" or supported(case, implementation):
            check_case(case, implementation=implementation)


@given(case=attention_cases())
def test_runs_repeat_bit_for_bit(case: AttentionCase) -> None:
    for first, second in zip(run(case), run(case), strict=True):
        np.testing.assert_array_equal(first.view(np.uint8), second.view(np.uint8))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_d6_is_exact(implementation: str) -> None:
    case = next(case for case in CASES if case.name == "d6-scores-beyond-fp16")
    if implementation != "sm80" and not supported(case, implementation):
        pytest.skip(f"{implementation} leaves it to sm80")
    output, _ = run(case, implementation=implementation)
    np.testing.assert_array_equal(output[0, 0, :, 0], [0, 0, 1, 1, 2, 2])


# ------------------------------------------------------------------------------------------------ split keys, packing
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 5000), (3, 4097), (16, 2500)])
def test_short_queries_split_their_keys(dtype: str, q_len: int, kv_len: int) -> None:
    case = AttentionCase(
        "split", batch=2, num_heads=6, kv_num_heads=2, q_len=q_len, kv_len=kv_len, dtype=dtype, is_causal=1,
        causal_alignment="bottom_right", key_lengths=(kv_len, 77), bias="1NST", mask="B11T", sinks="N",
    )  # fmt: skip
    check_case(case)
    views = {name: core.TensorView.of_array(array) for name, array in case.make_inputs().items()}
    views["output"] = views["query"]
    params = core.make_params(views, **case.attributes())
    assert core.library().workspace_size(params, "cuda", implementation="sm80") > 0


# ------------------------------------------------------------------------------------------------------------- sizes
def attend_rows(inputs: dict[str, Array], batch: int, head: int, rows: slice) -> Array:
    """float64 output rows of one head, from (B,S,N,D) arrays; no mask."""
    q, k, v = (inputs[name][batch, :, head].astype(np.float64) for name in ("query", "key", "value"))
    scores = q[rows] @ k.T / np.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)


def run_bsnd(inputs: dict[str, Array]) -> Array:
    """Output of fp16 inputs that lie as (B,S,N,D)."""
    output = Buffer(np.full_like(inputs["query"], np.nan))
    buffers = {name: Buffer(array) for name, array in inputs.items()}
    views = {}
    for name, buffer in {**buffers, "output": output}.items():
        batch, length, heads, size = buffer.array.shape
        strides = (length * heads * size, size, heads * size, 1)
        views[name] = core.TensorView(buffer.view.pointer, "float16", (batch, heads, length, size), strides)
    library, params = core.library(), core.make_params(views)
    size = library.workspace_size(params, "cuda")
    workspace = Buffer(np.zeros(size, np.uint8))
    library.forward(params, "cuda", workspace=workspace.view.pointer if size else 0)
    cuda.Context.synchronize()
    return output.read()


def test_d13_many_small_problems() -> None:
    """46,080 windows of 25 rows: more than a grid's second axis could hold."""
    rng = np.random.default_rng(0)
    inputs = {name: random_half(rng, 46080, 25, 1, 64) for name in ("query", "key", "value")}
    output = run_bsnd(inputs)
    for batch in (0, 1, 32767, 32768, 46079):
        expected = attend_rows(inputs, batch, 0, slice(None))
        np.testing.assert_allclose(output[batch, :, 0].astype(np.float64), expected, atol=4e-3)
    assert np.isfinite(output).all()


def test_d14_one_head_of_512_in_little_memory() -> None:
    rng = np.random.default_rng(1)
    inputs = {name: random_half(rng, 1, 16384, 1, 512) for name in ("query", "key", "value")}
    views = {
        name: core.TensorView(0, "float16", (1, 1, 16384, 512), (16384 * 512, 16384 * 512, 512, 1))
        for name in ("query", "key", "value", "output")
    }
    held = 4 * 16384 * 512 * 2
    assert held + core.library().workspace_size(core.make_params(views), "cuda") < 1 << 30
    output = run_bsnd(inputs)
    rows = slice(8000, 8064)
    np.testing.assert_allclose(output[0, rows, 0].astype(np.float64), attend_rows(inputs, 0, 0, rows), atol=1e-3)
    assert np.isfinite(output).all()


def test_offsets_of_more_than_32_bits() -> None:
    """2^31 elements of value: 1 in the first half, 3 in the second, all weights equal."""
    kv_len, size = 1 << 24, 128
    elements = kv_len * size
    memory = {name: cuda.mem_alloc(2 * elements) for name in ("key", "value")}
    cuda.memset_d32(memory["key"], 0, elements // 2)
    one, three = 0x3C003C00, 0x42004200
    cuda.memset_d32(memory["value"], one, elements // 4)
    cuda.memset_d32(int(memory["value"]) + elements, three, elements // 4)
    query, output = Buffer(np.ones((1, 1, 1, size), np.float16)), Buffer(np.zeros((1, 1, 1, size), np.float16))
    views = {"query": query.view, "output": output.view}
    for name, allocation in memory.items():
        views[name] = core.TensorView.contiguous(int(allocation), "float16", (1, 1, kv_len, size))
    library, params = core.library(), core.make_params(views)
    workspace = Buffer(np.zeros(library.workspace_size(params, "cuda"), np.uint8))
    library.forward(params, "cuda", workspace=workspace.view.pointer)
    cuda.Context.synchronize()
    np.testing.assert_allclose(output.read().astype(np.float32), 2.0, atol=2e-3)


def test_an_unsupported_head_size_names_itself_and_the_gpu() -> None:
    case = AttentionCase("big", head_size=513, q_len=2)
    with pytest.raises(core.CoreUnsupportedError, match=r"513") as caught:
        run(case)
    assert cuda.Device(0).name() in str(caught.value)


# ------------------------------------------------------------------------------------------------------------ memory
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row_gap", [6, 8, 16])
@pytest.mark.parametrize(("q_len", "kv_len", "head_size"), [(1, 1, 1), (17, 67, 37), (65, 130, 64), (130, 65, 80)])
def test_nothing_outside_the_tensors_is_read_or_written(
    dtype: str, row_gap: int, q_len: int, kv_len: int, head_size: int
) -> None:
    case = AttentionCase(
        "guarded", batch=2, q_len=q_len, kv_len=kv_len, head_size=head_size, dtype=dtype, bias="BNST", mask="BNST",
        is_causal=1, causal_alignment="bottom_right",
    )  # fmt: skip
    inputs, out = guarded(case, row_gap)
    run(case, inputs, out=out)
    check(np.ascontiguousarray(out), expect(case, tf32=dtype == "float32")[0])
    assert_surroundings_untouched(out, row_gap)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_keys_that_take_no_part_are_never_read(implementation: str) -> None:
    case, inputs, expected = with_unread_keys("float16", window_left=1000)
    if implementation != "sm80" and not supported(case, implementation):
        pytest.skip(f"{implementation} leaves it to sm80")
    check(run(case, inputs, implementation=implementation)[0], expected)


# ----------------------------------------------------------------------------------------------------------- streams
def test_streams_run_side_by_side() -> None:
    """Two streams, each with its own data: nothing is shared between calls, and nothing waits for the whole device."""
    cases = [AttentionCase(f"stream{i}", q_len=200 + i, dtype="float16", is_causal=1) for i in range(4)]
    streams = [cuda.Stream() for _ in range(2)]
    for index, case in enumerate(cases):
        for actual, expected in zip(run(case, stream=streams[index % 2]), expect(case), strict=True):
            check(actual, expected)


@pytest.mark.parametrize("form", ["plain", "causal", "bias", "padding"])
def test_a_captured_graph_follows_its_inputs(form: str) -> None:
    """What the host prepares for a call (tensor maps among it) is kept in the graph; the data isn't."""
    torch = pytest.importorskip("torch")
    q, k, v, output = (torch.zeros(2, 300, 4, 64, device="cuda", dtype=torch.float16).transpose(1, 2) for _ in range(4))
    bias = torch.zeros(1, 1, 300, 304, device="cuda", dtype=torch.float16)[..., :300]
    mask = torch.ones(2, 1, 1, 300, device="cuda", dtype=torch.bool)
    tensors = {"query": q, "key": k, "value": v, "output": output}
    tensors |= {"bias": {"attn_bias": bias}, "padding": {"attn_mask": mask}}.get(form, {})
    views = {name: core.TensorView.of_tensor(tensor) for name, tensor in tensors.items()}
    library, params = core.library(), core.make_params(views, is_causal=int(form == "causal"))
    assert library.workspace_size(params, "cuda") == 0

    def call() -> None:
        library.forward(params, "cuda", stream=torch.cuda.current_stream().cuda_stream)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for x in (q, k, v, bias):
        x.normal_()
    mask[:, ..., 200:] = False
    given = {"bias": bias.expand(2, 4, 300, 300), "padding": mask}.get(form)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), given if form != "bias" else given.double(), is_causal=form == "causal"
    )
    graph.replay()
    torch.cuda.synchronize()
    assert (output.double() - expected).abs().max() < 4e-3


@pytest.mark.alone
def test_a_call_takes_little_of_the_host() -> None:
    """Under 8 us for the C function as called from Python, tensor maps included: median of 10,000."""
    case = AttentionCase("host", batch=2, num_heads=4, q_len=128, head_size=64, dtype="float16", is_causal=1)
    inputs = case.make_inputs()
    buffers = {name: Buffer(array) for name, array in inputs.items()}
    buffers["output"] = Buffer(np.zeros(case.shape("BNSE"), np.float16))
    params = core.make_params({name: buffer.view for name, buffer in buffers.items()}, is_causal=1)
    forward, execution = core.library()._library.ortflash_forward, core._execution("cuda")
    message, times = ctypes.create_string_buffer(512), []
    for index in range(10_000):
        start = time.perf_counter_ns()
        code = forward(params, execution, b"", message, len(message))
        times.append(time.perf_counter_ns() - start)
        assert code == 0, message.value
        if index % 100 == 99:
            cuda.Context.synchronize()
    assert statistics.median(times) < 8_000


@pytest.mark.slow
def test_random_calls_are_near_float64() -> None:
    """fuzz.py for ten seconds; by itself it runs as long as one likes."""
    pytest.importorskip("torch")
    from fuzz import search

    if "sm90" not in IMPLEMENTATIONS:
        pytest.skip("no Hopper GPU, or a build without its kernels")
    assert search(10.0, 0, ["sm90"]) == 0


# --------------------------------------------------------------------------------------------------------- precision
@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("length", [256, 4096])
def test_precise_is_as_exact_as_pytorch(head_size: int, length: int) -> None:
    """max|o - o64| / max|o64| at most 1.5 times that of PyTorch's memory-efficient backend."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(head_size + length)
    inputs = {name: rng.standard_normal((1, 2, length, head_size), np.float32) for name in ("query", "key", "value")}
    case = AttentionCase("precise", q_len=length, head_size=head_size)
    output, _ = run(case, inputs, precise=True)
    tensors = [torch.from_numpy(array).cuda() for array in inputs.values()]
    attention = torch.nn.functional.scaled_dot_product_attention
    exact = attention(*(tensor.double() for tensor in tensors)).cpu().numpy()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        peer = attention(*tensors).cpu().numpy()
    assert np.abs(output - exact).max() <= 1.5 * np.abs(peer - exact).max()


def fp32_problem(length: int, head_size: int) -> tuple[AttentionCase, dict[str, Array]]:
    case = AttentionCase("fp32", q_len=length, head_size=head_size, num_heads=2, kv_num_heads=1)
    return case, case.make_inputs()


@pytest.mark.parametrize("head_size", [40, 64, 128, 256])
def test_fp32_has_sixteen_bits(head_size: int) -> None:
    """As the sum of two bf16 numbers; TF32 has eleven."""
    case, inputs = fp32_problem(700, head_size)
    exact = reference.attention(**inputs, **case.attributes())[0]
    assert np.abs(run(case, inputs)[0] - exact).max() <= 5e-5 * np.abs(exact).max()


@pytest.mark.parametrize("precise", [False, True])
def test_fp32_keeps_its_range(precise: bool) -> None:
    """Numbers that fp16 has no room for, tiny ones beside huge ones, and some above bf16's largest."""
    case, inputs = fp32_problem(130, 64)
    largest = np.finfo(np.float32).max
    inputs["query"] *= np.float32(1e-30)
    inputs["key"] *= np.float32(1e30)
    inputs["value"][..., :32] *= np.float32(1e-30)
    inputs["value"][..., 32:48] *= np.float32(1e30)
    inputs["key"][..., 7:8], inputs["query"][..., 7:8] = largest, 1e-38
    exact = reference.attention(**inputs, **case.attributes())[0]
    output, _ = run(case, inputs, precise=precise)
    tolerance = 1e-5 if precise else 1e-4
    for columns in (slice(0, 32), slice(32, 48), slice(48, 64)):
        part = exact[..., columns]
        assert np.abs(output[..., columns] - part).max() <= tolerance * np.abs(part).max()


@pytest.mark.parametrize("precise", [False, True])
def test_fp32_needs_memory_in_proportion_to_its_operands(precise: bool) -> None:
    def size(q_len: int, kv_len: int) -> int:
        case = AttentionCase("memory", q_len=q_len, kv_len=kv_len, head_size=64, num_heads=12)
        views = {
            name: core.TensorView.contiguous(0, "float32", case.shape(axes))
            for name, axes in {"query": "BNSD", "key": "BMTD", "value": "BMTE", "output": "BNSE"}.items()
        }
        return core.library().workspace_size(core.make_params(views, precise=precise), "cuda")

    pieces = 3 if precise else 2
    assert size(4096, 1024) == 2 * pieces * 64 * 12 * (4096 + 2 * 1024)
    assert size(65536, 65536) == 16 * size(4096, 4096)
