"""The TensorRT plugins on a GPU, driven by somebody in TensorRT's place: shared cases, contexts, streams, workspace.

No TensorRT is needed: tests/trt/driver.py calls the plugin objects as TensorRT does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pycuda.driver as cuda
import pytest
from cases import CASES, DTYPES, Array, AttentionCase
from compare import check, expect
from device import Buffer
from hypothesis import given
from strategies import attention_cases

from ortflash import core
from ortflash.engine import runtime
from ortflash.errors import LibraryError
from ortflash.graph_tools import op_schema

sys.path.append(str(Path(__file__).resolve().parents[1] / "trt"))

from driver import BF16, BOOL, FLOAT, HALF, INT32, Driver, Plugin, RefusedError, Tensor, build_driver, destroying

TRT_TYPES = {"float32": FLOAT, "float16": HALF, "bfloat16": BF16, "bool": BOOL, "int32": INT32}
SPEC = op_schema.schema()
VERSIONS = (3, 2)


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Driver]:
    folder = tmp_path_factory.mktemp("driver")
    try:
        plugins = {3: runtime.get_trt_plugin_path(), 2: runtime.get_trt_plugin_path(tensorrt_major=8)}
    except LibraryError as error:
        pytest.skip(str(error))
    tensorrt = {3: 100000, 2: 8600}
    return {v: Driver(build_driver(v, folder), plugins[v], tensorrt_version=tensorrt[v]) for v in VERSIONS}


def filled_inputs(case: AttentionCase) -> tuple[dict[str, Array], int]:
    """Inputs without gaps, and the bits of those that are neutral constants: as a rewritten file has them."""
    inputs = case.make_inputs()
    names = [spec.name for spec in SPEC.inputs]
    count = 1 + max(names.index(name) for name in inputs)
    elem_type = {"float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16}.get(
        case.dtype, onnx.TensorProto.BFLOAT16
    )
    filled, bits = {}, 0
    for index, name in enumerate(names[:count]):
        if name not in inputs:
            bits |= 1 << index
            tensor = op_schema.neutral_constant(name, name, elem_type)
            inputs[name] = onnx.numpy_helper.to_array(tensor)
        filled[name] = inputs[name]
    return filled, bits


class Call:
    """One case in device memory, ready for any number of contexts."""

    def __init__(self, case: AttentionCase, version: int) -> None:
        self.case = case
        arrays, self.neutral_bits = filled_inputs(case)
        if version == 2:  # as `ortflash build` casts them for TensorRT 8
            arrays = {name: a.astype(np.int32) if a.dtype == np.bool_ else a for name, a in arrays.items()}
        self.inputs = [Buffer(np.ascontiguousarray(array)) for array in arrays.values()]
        self.tensors = [Tensor(TRT_TYPES[array.dtype.name], array.shape) for array in arrays.values()]
        packed = (case.batch, case.q_len, case.num_heads * case.sizes["E"])
        self.shape = packed if case.packed else case.shape("BNSE")

    def make(self, driver: Driver, **attributes: Any) -> Plugin:
        return driver.create_from({**self.case.attributes(), "return_lse": 1, **attributes})

    def enqueue(self, plugin: Plugin, stream: Any = None) -> tuple[Buffer, Buffer, Buffer]:
        """Output, softmax_lse and workspace; the first two start out as NaN."""
        output = Buffer(np.full(self.shape, np.nan, DTYPES[self.case.dtype]))
        lse = Buffer(np.full(self.case.shape("BNS"), np.nan, np.float32))
        workspace = Buffer(np.full(plugin.workspace(), 0xFF, np.uint8))
        pointers = [buffer.view.pointer for buffer in self.inputs]
        results = [output.view.pointer, lse.view.pointer]
        handle = stream.handle if stream is not None else 0
        plugin.enqueue(self.tensors, pointers, results, workspace.view.pointer, handle)
        return output, lse, workspace


def run(driver: Driver, version: int, case: AttentionCase, **attributes: Any) -> tuple[Array, Array]:
    """From a node to numbers, by way of an engine."""
    call = Call(case, version)
    built = call.make(driver, **attributes)
    built.configure(call.tensors)
    if version == 3:
        loaded = driver.create(built.fields(), from_engine=True)
        context = loaded.attach()
        context.shape_change(call.tensors)
        reserved = built.workspace()
    else:
        loaded = driver.restore(built.store())
        context = loaded.clone()
        context.configure(call.tensors)  # TensorRT 8 does so when sizes change
        reserved = built.workspace()
    with destroying(built, loaded, context):
        assert context.workspace() == reserved
        output, lse, workspace = call.enqueue(context)
        cuda.Context.synchronize()
        workspace.read()
        return output.read(), lse.read()


def check_case(drivers: dict[int, Driver], version: int, case: AttentionCase, **attributes: Any) -> None:
    actual = run(drivers[version], version, case, **attributes)
    for one, expected in zip(actual, expect(case, tf32=case.dtype == "float32"), strict=True):
        check(one, expected)


def cases_of(version: int) -> list[Any]:
    """TensorRT 8 has no bfloat16."""
    return [
        pytest.param(version, case, id=f"v{version}-{case.name}")
        for case in CASES
        if version == 3 or "bfloat16" not in (case.dtype, case.bias_dtype)
    ]


@pytest.mark.parametrize(("version", "case"), [*cases_of(3), *cases_of(2)])
def test_case(drivers: dict[int, Driver], version: int, case: AttentionCase) -> None:
    check_case(drivers, version, case)


@given(case=attention_cases())
def test_any_mixture_of_features(drivers: dict[int, Driver], case: AttentionCase) -> None:
    check_case(drivers, 3, case)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_neutral_input_that_is_told_gives_the_same_numbers(drivers: dict[int, Driver], version: int) -> None:
    case = AttentionCase("neutral", q_len=70, kv_len=130, dtype="float16", mask="B11T", mask_kind="padding", sinks="N")
    bits = Call(case, version).neutral_bits
    assert bits
    check_case(drivers, version, case)
    check_case(drivers, version, case, neutral_inputs=bits)


@pytest.mark.parametrize("version", VERSIONS)
def test_contexts_on_streams_of_their_own(drivers: dict[int, Driver], version: int) -> None:
    """Eight contexts of one engine at once, each with its own call; all enqueued before any is waited for."""
    driver = drivers[version]
    cases = [
        AttentionCase(f"stream{i}", batch=2, num_heads=4, q_len=(1, 90)[i % 2], kv_len=3000 + 37 * i, dtype="float16")
        for i in range(8)
    ]
    calls = [Call(case, version) for case in cases]
    built = calls[0].make(driver)
    built.configure(calls[1].tensors, calls[0].tensors, calls[-1].tensors)
    contexts = [built.attach() if version == 3 else built.clone() for _ in calls]
    streams = [cuda.Stream() for _ in calls]
    with destroying(built, *contexts):
        pending = []
        for call, context, stream in zip(calls, contexts, streams, strict=True):
            if version == 3:
                context.shape_change(call.tensors)
            else:
                context.configure(call.tensors)
            pending.append(call.enqueue(context, stream))
        for case, stream, (output, lse, workspace) in zip(cases, streams, pending, strict=True):
            stream.synchronize()
            workspace.read()
            for actual, expected in zip((output.read(), lse.read()), expect(case), strict=True):
                check(actual, expected)


def test_the_reserved_workspace_is_enough_for_every_size_in_between(drivers: dict[int, Driver]) -> None:
    """The bound knows no GPU; what the core asks for on this one never passes it."""
    library = core.library()
    for heads, kv_heads, head_size in ((1, 1, 64), (8, 8, 128), (32, 4, 128), (64, 1, 256)):
        sizes = [(b, s, t) for b in (1, 3) for s in (1, 2, 15, 16, 17, 200) for t in (1, 64, 65, 4097, 70000)]

        def tensors(batch: int, q_len: int, kv_len: int, n: int = heads, m: int = kv_heads, d: int = head_size) -> Any:
            return [Tensor(HALF, (batch, n, q_len, d)), *[Tensor(HALF, (batch, m, kv_len, d))] * 2]

        with drivers[3].create([]) as plugin:
            plugin.configure(tensors(1, 16, 4097), tensors(1, 1, 1), tensors(3, 200, 70000))
            reserved = plugin.workspace()
        for batch, q_len, kv_len in sizes:
            views = {
                name: core.TensorView.contiguous(4096, "float16", shape)
                for name, shape in (
                    ("query", (batch, heads, q_len, head_size)),
                    ("key", (batch, kv_heads, kv_len, head_size)),
                    ("value", (batch, kv_heads, kv_len, head_size)),
                    ("output", (batch, heads, q_len, head_size)),
                )
            }
            params = core.make_params(views)
            assert library.workspace_size(params, "cuda") <= reserved, (heads, kv_heads, batch, q_len, kv_len)


def test_too_small_a_workspace_is_an_error(drivers: dict[int, Driver]) -> None:
    """An engine that was built for fewer keys than it is given, as no TensorRT would do."""
    small = Call(AttentionCase("small", q_len=1, kv_len=64, dtype="float16"), 3)
    large = Call(AttentionCase("large", q_len=1, kv_len=60000, dtype="float16"), 3)
    with small.make(drivers[3]) as plugin:
        plugin.configure(small.tensors)
        plugin.shape_change(large.tensors)
        with pytest.raises(RefusedError, match="bytes of workspace are needed on this GPU, and the engine has 0"):
            large.enqueue(plugin)
