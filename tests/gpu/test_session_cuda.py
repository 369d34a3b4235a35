"""The operator in ONNX Runtime's CUDA provider: numbers, streams, bindings, graphs, threads, memory, loading."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pycuda.driver as cuda
import pytest
from cases import CASES, DROPOUT, Array, AttentionCase
from compare import check, draw_d_output, expect, expect_gradients
from device import free_bytes
from op_model import ELEM_TYPES, make_gradient_model, make_model, run

import ortflash
from ortflash import core
from ortflash.session import CPU, CUDA

pytestmark = pytest.mark.skipif(
    CUDA not in onnxruntime.get_available_providers(), reason="this onnxruntime has no CUDA provider"
)


def make_cuda_session(
    model: onnx.ModelProto, provider_options: dict[str, Any] | None = None, entries: dict[str, str] | None = None
) -> Any:
    """A session that may not put any node on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what these tests provoke is told by the exception
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    ortflash.register(options)
    providers = [(CUDA, provider_options or {})]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    assert CUDA in session.get_providers()
    return session


def model_of(case: AttentionCase, *, return_lse: bool = True) -> onnx.ModelProto:
    elem_types = {name: ELEM_TYPES[array.dtype] for name, array in case.make_inputs().items()}
    return make_model(elem_types, case.attributes(), return_lse=return_lse)


def half_case(**sizes: Any) -> AttentionCase:
    return AttentionCase("half", **{"batch": 2, "q_len": 100, "dtype": "float16", "is_causal": 1, **sizes})


# ----------------------------------------------------------------------------------------------------------- numbers
@pytest.mark.parametrize("case", [*CASES, *DROPOUT], ids=lambda case: case.name)
def test_case(case: AttentionCase) -> None:
    actual = run(make_cuda_session(model_of(case)), case.make_inputs())
    for output, expected in zip(actual, expect(case, tf32=case.dtype == "float32"), strict=True):
        check(output, expected)


@pytest.mark.parametrize(
    "case",
    [
        half_case(),
        half_case(num_heads=4, kv_num_heads=2, bias="1NST", sinks="N", packed=True),
        half_case(key_lengths=(70, 100), blocks="BNRC"),
        half_case(dropout_p=0.2),
    ],
    ids=["causal", "bias and sinks", "padded", "dropout"],
)
def test_the_gradient_s_operator(case: AttentionCase) -> None:
    inputs = dict(case.make_inputs())
    output, lse = core.attention(**inputs, **case.attributes(), return_lse=1)
    assert lse is not None
    inputs |= {"output": output, "softmax_lse": lse, "d_output": draw_d_output(case, output)}
    names = [name for name in ("query", "key", "value", "attn_bias", "sinks") if name in inputs]
    model = make_gradient_model(inputs, [f"d_{name}" for name in names], case.attributes())
    for name, gradient in zip(names, run(make_cuda_session(model), inputs), strict=True):
        check(gradient, expect_gradients(case)[f"d_{name}"])


def test_precise_is_a_session_config_entry() -> None:
    case = AttentionCase("precise", q_len=300, head_size=128)
    inputs = case.make_inputs()
    rough = run(make_cuda_session(model_of(case)), inputs)
    exact = run(make_cuda_session(model_of(case), entries={"ortflash.precise": "1"}), inputs)
    for output, expected in zip(exact, expect(case), strict=True):
        check(output, expected)
    assert not np.array_equal(rough[0], exact[0])


def test_wrong_shapes_are_named() -> None:
    case = half_case()
    inputs = case.make_inputs()
    inputs["key"] = inputs["key"][..., :32]
    with pytest.raises(Exception, match=r"key"):
        run(make_cuda_session(model_of(case)), inputs)


# --------------------------------------------------------------------------------------------- bindings and captures
def bind(session: Any, inputs: dict[str, Array], shapes: dict[str, tuple[int, ...]]) -> tuple[Any, dict[str, Any]]:
    """A binding with inputs and outputs in device memory, at addresses that stay."""
    binding = session.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0) for name, array in inputs.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name, shape in shapes.items():
        element = np.float16 if name == "output" else np.float32
        values[name] = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, element, "cuda", 0)
        binding.bind_ortvalue_output(name, values[name])
    return binding, values


def test_io_binding_keeps_everything_on_the_gpu() -> None:
    case = half_case()
    binding, values = bind(
        session := make_cuda_session(model_of(case)),
        case.make_inputs(),
        {"output": case.shape("BNSE"), "softmax_lse": case.shape("BNS")},
    )
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    assert values["output"].device_name().lower() == "cuda"
    for name, expected in zip(("output", "softmax_lse"), expect(case), strict=True):
        check(values[name].numpy(), expected)


@pytest.mark.parametrize("q_len", [1, 100], ids=["split keys", "one pass"])
def test_a_captured_graph_follows_its_inputs(q_len: int) -> None:
    case = half_case(q_len=q_len, kv_len=1500, causal_alignment="bottom_right")
    session = make_cuda_session(model_of(case), {"enable_cuda_graph": "1"})
    shapes = {"output": case.shape("BNSE"), "softmax_lse": case.shape("BNS")}
    binding, values = bind(session, case.make_inputs(0), shapes)
    for seed in (0, 1, 2):  # the first run captures, the others replay
        for name, array in case.make_inputs(seed).items():
            values[name].update_inplace(array)
        session.run_with_iobinding(binding)
        for name, expected in zip(shapes, expect(case, seed), strict=True):
            check(values[name].numpy(), expected)


def test_the_users_stream_is_used() -> None:
    """Work that was enqueued on the stream before the run is done before it, and nothing runs on another stream."""
    case = half_case()
    stream = cuda.Stream()
    session = make_cuda_session(
        model_of(case), {"user_compute_stream": str(stream.handle), "do_copy_in_default_stream": "1"}
    )
    inputs = case.make_inputs()
    binding, values = bind(session, {name: np.zeros_like(array) for name, array in inputs.items()},
                           {"output": case.shape("BNSE"), "softmax_lse": case.shape("BNS")})  # fmt: skip
    staged = {name: cuda.to_device(array) for name, array in inputs.items()}
    scratch = cuda.mem_alloc(1 << 30)
    for _ in range(20):
        cuda.memset_d8_async(scratch, 1, 1 << 30, stream)  # keeps the stream busy, so that the copies come late
    for name, allocation in staged.items():
        cuda.memcpy_dtod_async(values[name].data_ptr(), allocation, inputs[name].nbytes, stream)
    session.run_with_iobinding(binding)
    stream.synchronize()
    for name, expected in zip(("output", "softmax_lse"), expect(case), strict=True):
        check(values[name].numpy(), expected)


# ----------------------------------------------------------------------------------------------------------- threads
@pytest.mark.alone
def test_eight_threads_on_one_session_give_the_same_bits_in_flat_memory() -> None:
    lengths = [1, 17, 64, 100, 129, 250, 333, 512]
    cases = [half_case(q_len=length, head_size=64, bias="1NST", mask="B11T") for length in lengths]
    session = make_cuda_session(
        model_of(cases[0], return_lse=False), {"arena_extend_strategy": "kSameAsRequested"}
    )  # the other strategy doubles the arena, whenever that happens to be
    inputs = [case.make_inputs() for case in cases]
    alone = [run(session, each)[0] for each in inputs]
    failures: list[str] = []
    held: list[int] = []

    def work(thread: int, runs: int) -> None:
        for i in range(runs):
            index = (thread + i) % len(cases)
            if not np.array_equal(run(session, inputs[index])[0], alone[index]):
                failures.append(f"thread {thread}, run {i}")

    for runs in (200, 200):  # the arena grows to what eight threads need at once, and then no more
        threads = [threading.Thread(target=work, args=(thread, runs)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held.append(free_bytes())
    assert not failures
    assert held[0] - held[1] <= 32 << 20


@pytest.mark.alone
def test_memory_does_not_grow_with_runs() -> None:
    case = half_case(q_len=1, kv_len=4000, causal_alignment="bottom_right")  # split keys: uses a workspace
    session = make_cuda_session(model_of(case))
    inputs = case.make_inputs()
    run(session, inputs)
    before = free_bytes()
    for _ in range(200):
        run(session, inputs)
    assert before - free_bytes() <= 2 << 20


# ----------------------------------------------------------------------------------------------------- D10: loading
def test_register_twice_and_two_sessions() -> None:
    case = half_case()
    options = onnxruntime.SessionOptions()
    ortflash.register(options)
    ortflash.register(options)
    model = model_of(case).SerializeToString()
    sessions = [onnxruntime.InferenceSession(model, options, providers=[CUDA]) for _ in range(2)]
    outputs = [run(session, case.make_inputs())[0] for session in sessions]
    np.testing.assert_array_equal(*outputs)


@pytest.mark.alone
def test_a_hundred_sessions_come_and_go() -> None:
    case = half_case(q_len=8)
    model, inputs = model_of(case), case.make_inputs()
    run(make_cuda_session(model), inputs)
    before = free_bytes()
    for _ in range(100):
        run(make_cuda_session(model), inputs)
    assert before - free_bytes() <= 64 << 20


@pytest.mark.parametrize("providers", [[CUDA], [CPU], [CUDA, CPU]])
def test_provider_lists(providers: list[str], tmp_path: Path) -> None:
    case = half_case()
    path = tmp_path / "op.onnx"
    onnx.save(model_of(case), path)
    session = ortflash.InferenceSession(path, providers=providers)
    assert session.get_providers()[0] == providers[0]
    for output, expected in zip(run(session, case.make_inputs()), expect(case), strict=True):
        check(output, expected)
