"""The plugins, driven by somebody in TensorRT's place: all that needs neither TensorRT nor a GPU."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from driver import (
    BF16,
    BOOL,
    FIELD_FLOAT64,
    FIELD_INT8,
    FIELD_INT32,
    FLOAT,
    HALF,
    INT32,
    INT64,
    Driver,
    Field,
    Plugin,
    RefusedError,
    Tensor,
    destroying,
)

from ortflash.graph_tools import op_schema

SPEC = op_schema.schema()
INPUTS = SPEC.inputs[:-1]
"""All but the last, the seed of dropout, which TensorRT has none of."""
EXTRA = ["neutral_inputs", "workspace_bytes"]
ODD: dict[str, Any] = {
    "num_heads": 6,
    "kv_num_heads": 3,
    "scale": 0.25,
    "is_causal": 1,
    "causal_alignment": "bottom_right",
    "window_left": 1 << 40,
    "window_right": 5,
    "softcap": 2.5,
    "mask_fill": -10000.0,
    "block_size": 64,
    "dropout_p": 0.0,
    "return_lse": 1,
    "plugin_version": "1",
    "plugin_namespace": "ortflash",
}
"""Every attribute, each with another value than its default where there is one."""

QKV = [Tensor(HALF, (2, 4, 5, 64)), Tensor(HALF, (2, 2, 7, 64)), Tensor(HALF, (2, 2, 7, 32))]
PACKED = [Tensor(FLOAT, (2, 5, 6 * 8)), Tensor(FLOAT, (2, 7, 3 * 8)), Tensor(FLOAT, (2, 7, 3 * 4))]
ALL = [
    *QKV,
    Tensor(FLOAT, (1, 4, 5, 7)),
    Tensor(BOOL, (2, 1, 1, 7)),
    Tensor(INT32, (2,)),
    Tensor(BOOL, (1, 1, 1, 1)),
    Tensor(FLOAT, (4,)),
]


@pytest.fixture
def v3(driver_v3: Driver) -> Driver:
    driver_v3.set_version(100000)
    driver_v3.log()
    return driver_v3


@pytest.fixture
def v2(driver_v2: Driver) -> Driver:
    driver_v2.log()
    return driver_v2


@pytest.fixture(params=["v3", "v2"])
def either(request: pytest.FixtureRequest) -> Driver:
    driver: Driver = request.getfixturevalue(request.param)
    return driver


def values(plugin: Plugin) -> dict[str, Any]:
    return {field.name: field.value for field in plugin.fields()}


# ------------------------------------------------------------------------------------------------- what it says it is
def test_the_creator_lists_the_schemas_attributes(v3: Driver, v2: Driver) -> None:
    names = [one.name for one in SPEC.attributes]
    identity = [SPEC.name, str(SPEC.version), SPEC.domain]
    assert v3.describe() == [*identity, "PLUGIN CREATOR_V3ONE 1.0", *names, "neutral_inputs"]
    assert v2.describe() == [*identity, "8600", *names, "neutral_inputs"]


@pytest.mark.parametrize(
    ("name", "symbols"),
    [("plugin_v3", {"getCreators", "setLoggerFinder"}), ("plugin_v2", {"getPluginCreators", "setLoggerFinder"})],
)
def test_nothing_else_is_exported_and_no_tensorrt_is_linked(
    name: str, symbols: set[str], request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    listed = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    assert {line.split()[-1] for line in listed.splitlines()} == symbols
    needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    libraries = [line.split("[")[1].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line]
    assert libraries
    assert not [one for one in libraries if "nvinfer" in one or "cuda" in one or "stdc++" in one]


# ----------------------------------------------------------------------------------------------------------- attributes
def test_absent_attributes_get_the_schemas_defaults(v3: Driver) -> None:
    with v3.create([]) as plugin:
        found = values(plugin)
    expected = {one.name: float(one.default) if one.type == "float" else one.default for one in SPEC.attributes}
    assert found == {**expected, "neutral_inputs": 0, "workspace_bytes": -1}


@pytest.mark.parametrize("int_bits", [32, 64])
def test_attributes_go_into_an_engine_and_come_back(v3: Driver, int_bits: int) -> None:
    given = {**ODD, "window_left": 77} if int_bits == 32 else ODD
    kind = FIELD_INT32 if int_bits == 32 else Field.of("", 0).type
    plugin = v3.create([Field.of(name, value, int_type=kind) for name, value in given.items()])
    stored = plugin.fields()
    loaded = v3.create(stored, from_engine=True)
    with destroying(plugin, loaded):
        assert {**values(loaded)} == pytest.approx({**given, "neutral_inputs": 0, "workspace_bytes": -1})
        assert [field.data for field in loaded.fields()] == [field.data for field in stored]
        assert loaded.metadata() == plugin.metadata()
        told = loaded.metadata().split()
        assert {"num_heads=6", "scale=0.25", "mask_fill=-10000", "causal_alignment=bottom_right"} <= set(told)


def test_attributes_go_into_an_engine_of_tensorrt_8_and_come_back(v2: Driver) -> None:
    plugin = v2.create_from(ODD)
    loaded = v2.restore(plugin.store())
    with destroying(plugin, loaded):
        assert loaded.store() == plugin.store()
        assert loaded.output_count == 2


def test_attributes_go_into_an_engine_and_come_back_in_another_process(v3: Driver, tmp_path: Path) -> None:
    """The other process has nothing but the plugin's library."""
    with v3.create_from(ODD) as plugin:
        expected = plugin.metadata()
        fields = plugin.fields()
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from driver import Driver, Field
driver = Driver({v3._c._name!r}, sys.argv[1], tensorrt_version=100000)
with driver.create({fields!r}, from_engine=True) as plugin:
    print(plugin.metadata(), end="")
"""
    from ortflash.engine.runtime import get_trt_plugin_path

    command = [sys.executable, "-c", script, get_trt_plugin_path()]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == expected


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ([Field.of("window_left", -2)], "attribute 'window_left' is -2 but must be at least -1"),
        ([Field.of("softcap", -1.0)], "attribute 'softcap' is -1 but must be in [0, inf]"),
        ([Field.of("scale", float("nan"))], "attribute 'scale' is nan"),
        ([Field.of("block_size", 48)], "attribute 'block_size' is 48 but must be one of 16, 32, 64, 128, 256"),
        ([Field.of("is_causal", 2)], "attribute 'is_causal' is 2 but must be one of 0, 1"),
        ([Field.of("causal_alignment", "left")], "attribute 'causal_alignment' is 'left' but must be one of top_left"),
        ([Field.of("plugin_version", "2")], "attribute 'plugin_version' is '2' but must be one of 1"),
        ([Field.of("dropout_p", 0.5)], "attribute 'dropout_p' is 0.5, and TensorRT computes no dropout: export the"),
        ([Field.of("scale", 1)], "attribute 'scale' must be of type float"),
        ([Field.of("num_heads", 1.0)], "attribute 'num_heads' must be of type int"),
        ([Field.of("causal_alignment", 0)], "attribute 'causal_alignment' must be of type string"),
        ([Field.of("is_casual", 1)], "there is no attribute 'is_casual'"),
        ([Field.of("scale", 1.0), Field.of("scale", 1.0)], "attribute 'scale' is there twice"),
        ([Field("scale", FIELD_FLOAT64 - 1, b"\0" * 8, 2)], "attribute 'scale' has 2 values but must have one"),
        ([Field("scale", FIELD_INT8, b"\0")], "attribute 'scale' must be an int, a float or a string"),
        ([Field("scale", FIELD_FLOAT64, b"", 1)], "attribute 'scale' has no value"),
        ([Field.of("plugin_namespace", "x" * 64)], "has 64 characters, more than the 63 that fit"),
        ([Field.of("neutral_inputs", 1)], "attribute 'neutral_inputs' is 1, which names inputs that can't be left out"),
        ([Field.of("neutral_inputs", 1 << len(SPEC.inputs))], "which names inputs that can't be left out"),
        ([Field.of("neutral_inputs", -1)], "attribute 'neutral_inputs' is -1, which names inputs"),
    ],
)
def test_broken_attributes_are_refused_in_tensorrts_log(either: Driver, fields: list[Field], sentence: str) -> None:
    with pytest.raises(RefusedError) as refused:
        either.create(fields, name="layer.0/attn")
    assert str(refused.value).startswith("1 FlashAttention node 'layer.0/attn': ")
    assert sentence in str(refused.value)


def test_pythons_floats_are_taken(v3: Driver) -> None:
    """TensorRT's Python makes FLOAT64 fields of NumPy's default floats."""
    import struct

    with v3.create([Field("softcap", FIELD_FLOAT64, struct.pack("d", 2.5))]) as plugin:
        assert values(plugin)["softcap"] == 2.5


def test_an_engine_that_lacks_an_attribute_is_refused(v3: Driver) -> None:
    with v3.create_from(ODD) as plugin:
        fields = plugin.fields()
    for index, field in enumerate(fields):
        if field.name in EXTRA:
            continue
        with pytest.raises(RefusedError, match=f"the engine has no attribute '{field.name}'"):
            v3.create(fields[:index] + fields[index + 1 :], from_engine=True)


def test_what_tensorrt_8_stored_is_checked(v2: Driver) -> None:
    with v2.create_from(ODD) as plugin:
        stored = plugin.store()
    with pytest.raises(RefusedError, match=f"holds {len(stored) - 1} bytes for this node, not {len(stored)}"):
        v2.restore(stored[:-1])
    with pytest.raises(RefusedError, match="holds 0 bytes"):
        v2.restore(b"")
    for position in (0, 8):  # the mark, and the number of values
        broken = bytearray(stored)
        broken[position] ^= 0x40
        with pytest.raises(RefusedError, match="was not written by ortflash"):
            v2.restore(bytes(broken))


def test_no_byte_that_tensorrt_8_stored_can_crash_it(v2: Driver) -> None:
    """Each byte replaced by 0xff: another value, or a sentence."""
    with v2.create_from(ODD) as plugin:
        stored = plugin.store()
    refused = unexplained = 0
    for position in range(len(stored)):
        broken = stored[:position] + b"\xff" + stored[position + 1 :]
        try:
            v2.restore(broken).destroy()
        except RefusedError as error:
            refused += "FlashAttention node 'attn'" in str(error)
            unexplained += "FlashAttention node 'attn'" not in str(error)
    assert refused > 100
    assert unexplained == 0


# ------------------------------------------------------------------------------------------------------- TensorRT's log
@pytest.mark.parametrize("version", [8600, 100000, 101600, 110000, 110401, 10701])
def test_every_layout_of_the_logger_is_met(driver_v3: Driver, version: int) -> None:
    driver_v3.set_version(version)
    with pytest.raises(RefusedError, match=r"1 FlashAttention node 'attn': attribute 'softcap' is -1"):
        driver_v3.create([Field.of("softcap", -1.0)])


@pytest.mark.parametrize("version", [0, 10600])
def test_without_a_known_log_it_is_stderr(driver_v3: Driver, version: int, capfd: pytest.CaptureFixture[str]) -> None:
    driver_v3.set_version(version)
    with pytest.raises(RefusedError, match=r"^$"):
        driver_v3.create([Field.of("softcap", -1.0)])
    assert "ortflash: FlashAttention node 'attn': attribute 'softcap' is -1" in capfd.readouterr().err


# ----------------------------------------------------------------------------------------------------- types and shapes
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("inputs", "attributes", "shapes"),
    [
        (QKV, {}, [(2, 4, 5, 32)]),
        (QKV, {"return_lse": 1}, [(2, 4, 5, 32), (2, 4, 5)]),
        (PACKED, {"num_heads": 6, "kv_num_heads": 3, "return_lse": 1}, [(2, 5, 6 * 4), (2, 6, 5)]),
        (PACKED[:1] * 3, {"num_heads": 6, "kv_num_heads": 6}, [(2, 5, 6 * 8)]),
    ],
)
def test_output_shapes(
    either: Driver, inputs: list[Tensor], attributes: dict[str, Any], shapes: list[tuple[int, ...]], constant: bool
) -> None:
    with either.create_from(attributes) as plugin:
        assert plugin.output_shapes(inputs, constant=constant) == shapes


@pytest.mark.parametrize(
    ("inputs", "attributes", "sentence"),
    [
        (QKV[:2], {}, "there are 2 inputs, but 3 to 8 are possible"),
        (QKV * 3, {}, "there are 9 inputs, but 3 to 8 are possible"),
        ([QKV[0], PACKED[1], QKV[2]], {}, "input 'key' "),
        ([Tensor(HALF, (4, 64))] * 3, {}, "input 'query' "),
        (PACKED, {}, "'num_heads'"),
    ],
)
def test_ranks_are_checked_before_sizes_are_known(
    v3: Driver, inputs: list[Tensor], attributes: dict[str, Any], sentence: str
) -> None:
    with v3.create_from(attributes) as plugin, pytest.raises(RefusedError) as refused:
        plugin.output_shapes(inputs)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("position", "shape", "sentence"),
    [
        (0, (2, 3, 5, 64), "the number of query heads must be a multiple of the number of key heads"),
        (1, (2, 2, 7, 60), "the head sizes differ"),
        (2, (2, 2, 8, 32), "the numbers of keys differ"),
        (
            3,
            (1, 4, 5, 6),
            "input 'attn_bias' has shape (1,4,5,6) but must be broadcastable to (B,N,S,T), here (2,4,5,7)",
        ),
        (4, (2, 5, 3), "input 'attn_mask' has shape (2,5,3) but must be broadcastable to (B,N,S,T), here (2,4,5,7)"),
        (5, (3,), "input 'key_lengths' has shape (3,) but must be (B,) or (1,), here (2,)"),
        (7, (5,), "input 'sinks' has shape (5,) but must be (N,) or (1,), here (4,)"),
    ],
)
def test_sizes_are_checked_once_they_are_known(
    v3: Driver, position: int, shape: tuple[int, ...], sentence: str
) -> None:
    broken = list(ALL)
    broken[position] = Tensor(ALL[position].type, shape)
    with v3.create([]) as plugin:
        plugin.configure(ALL)
        for ask in (lambda: plugin.output_shapes(broken, constant=True), lambda: plugin.configure(broken)):
            with pytest.raises(RefusedError) as refused:
                ask()
            assert sentence in str(refused.value)
        with pytest.raises(RefusedError) as refused:
            plugin.shape_change(broken)
        assert sentence in str(refused.value)


def test_tensorrt_8_learns_of_refused_shapes_before_it_builds(v2: Driver) -> None:
    broken = [QKV[0], Tensor(HALF, (2, 2, 7, 60)), QKV[2]]
    with v2.create([]) as plugin:
        plugin.configure(QKV)
        with pytest.raises(RefusedError, match="the head sizes differ"):
            plugin.configure(broken)
        with pytest.raises(RefusedError, match="the head sizes differ"):
            plugin.output_shapes(broken, constant=True)


def test_a_head_size_past_the_limit_is_refused(v3: Driver) -> None:
    large = [Tensor(HALF, (1, 1, 5, 513))] * 3
    with v3.create([]) as plugin, pytest.raises(RefusedError, match=r"head sizes 513 .* must be from 1 to 512"):
        plugin.configure(large)


@pytest.mark.parametrize("query", [FLOAT, HALF, BF16])
def test_types(v3: Driver, query: int) -> None:
    """Each position takes what the schema says, given what stands before it."""
    names = {FLOAT: "float32", HALF: "float16", BF16: "bfloat16", BOOL: "bool", INT32: "int32", INT64: "int64"}
    specs = [*INPUTS, *SPEC.outputs]
    tensors = [Tensor(query, (1, 1, 1, 1))] * len(specs)
    with v3.create_from({"return_lse": 1}) as plugin:
        for position, spec in enumerate(specs):
            allowed = {names[query] if one == "query" else one for one in spec.types}
            for kind, name in names.items():
                tensors[position] = Tensor(kind, (1, 1, 1, 1))
                expected = name in allowed
                assert plugin.supports(position, tensors, len(INPUTS)) == expected, (spec.name, name)
                assert not plugin.supports(position, tensors, len(INPUTS), format=1)
            tensors[position] = Tensor(query, (1, 1, 1, 1))


def test_types_of_tensorrt_8(v2: Driver) -> None:
    """No bfloat16, and masks as int32."""
    tensors = [*ALL, Tensor(HALF, (2, 4, 5, 32))]
    with v2.create([]) as plugin:
        assert not plugin.supports(0, [Tensor(BF16, (1, 1, 1, 1))] * 4, 3)
        assert not plugin.supports(4, tensors, 8)
        tensors[4] = tensors[6] = Tensor(INT32, (2, 1, 1, 7))
        assert all(plugin.supports(i, tensors, 8) for i in range(9))


def test_output_types(either: Driver) -> None:
    with either.create_from({"return_lse": 1}) as plugin:
        assert plugin.output_types(QKV) == [HALF, FLOAT]


def test_input_types_are_told_by_name(v3: Driver) -> None:
    with v3.create([]) as plugin, pytest.raises(RefusedError, match="input 'key' has a type that FlashAttention does"):
        plugin.output_types([QKV[0], Tensor(FLOAT, QKV[1].shape), QKV[2]])


def test_neutral_inputs_are_not_looked_at(v3: Driver) -> None:
    """One that doesn't fit would be refused."""
    wrong = list(ALL)
    wrong[3] = Tensor(FLOAT, (9, 9))
    with v3.create_from({"neutral_inputs": 1 << 3}) as plugin:
        plugin.configure(wrong)
    with v3.create([]) as plugin, pytest.raises(RefusedError, match="attn_bias"):
        plugin.configure(wrong)


# ------------------------------------------------------------------------------------------------------------ workspace
def operands(q_len: int, kv_len: int = 4096, batch: int = 2, dtype: int = HALF) -> list[Tensor]:
    return [
        Tensor(dtype, (batch, 8, q_len, 64)),
        Tensor(dtype, (batch, 2, kv_len, 64)),
        Tensor(dtype, (batch, 2, kv_len, 64)),
    ]


def test_workspace_covers_the_whole_profile_and_grows_with_no_score_matrix(either: Driver) -> None:
    """The largest call of a profile needs none, a short query between its ends does: the bound covers both."""
    with either.create([]) as plugin:
        plugin.configure(operands(128), operands(17, 1), operands(8192, 65536))
        assert plugin.workspace() == 0  # longer queries than any whose keys are split
    with either.create([]) as plugin:
        plugin.configure(operands(128), operands(1, 1), operands(8192, 65536))
        mixed = plugin.workspace()
    with either.create([]) as plugin:
        plugin.configure(operands(16), operands(1, 1), operands(16, 65536))
        assert plugin.workspace() == mixed
    assert 0 < mixed < 64 << 20
    with either.create([]) as plugin:
        plugin.configure(operands(1, 64), operands(1, 64), operands(1, 64))
        assert plugin.workspace() == 0  # too few keys to split


def test_float32_keeps_a_copy_of_its_operands(either: Driver) -> None:
    """Query, key and value as two bf16 numbers an element; short queries are not copied."""
    with either.create([]) as plugin:
        plugin.configure(operands(65, dtype=FLOAT))
        assert plugin.workspace() == 4 * (2 * 8 * 65 * 64 + 2 * 2 * 2 * 4096 * 64)
    with either.create([]) as plugin:
        plugin.configure(operands(64, dtype=FLOAT))
        assert plugin.workspace() == 0


def test_the_workspace_travels_with_the_engine(v3: Driver) -> None:
    with v3.create([]) as plugin:
        plugin.configure(operands(1))
        reserved = plugin.workspace()
        plugin.configure(operands(1, 128))  # a second profile, which needs less
        assert plugin.workspace() == reserved
        fields = plugin.fields()
    with v3.create(fields, from_engine=True) as loaded:
        assert values(loaded)["workspace_bytes"] == reserved


def test_running_without_a_gpu_is_an_error_and_not_a_crash(v3: Driver) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    with v3.create([]) as plugin:
        plugin.shape_change(QKV)
        with pytest.raises(RefusedError, match="FlashAttention node 'attn': "):
            plugin.enqueue(QKV, [4096] * 3, [4096])


def test_running_before_the_shapes_are_told_is_an_error(v3: Driver) -> None:
    with v3.create([]) as plugin, pytest.raises(RefusedError, match="there are 0 inputs, but 3 to 8 are possible"):
        plugin.enqueue(QKV, [4096] * 3, [4096])


# ------------------------------------------------------------------------------------------------------------- lifetime
def test_clones_outlive_what_they_were_made_of(v3: Driver) -> None:
    first = v3.create_from(ODD)
    expected = [(field.name, field.data) for field in first.fields()]
    second = first.clone()
    third = second.attach()
    first.destroy()
    second.destroy()
    with third:
        assert [(field.name, field.data) for field in third.fields()] == expected


def test_a_clone_of_tensorrt_8_outlives_what_it_was_made_of(v2: Driver) -> None:
    first = v2.create_from(ODD)
    expected = first.store()
    second = first.clone()
    first.destroy()
    with second:
        assert second.store() == expected


def live_and_die(driver: Driver) -> None:
    """One engine's worth of a plugin's life in TensorRT 10: build, store, load, two contexts."""
    plugin = driver.create_from({"return_lse": 1})
    copy = plugin.clone()
    copy.output_types(QKV)
    copy.output_shapes(QKV, constant=True)
    copy.configure(operands(128), operands(1, 1), operands(512))
    loaded = driver.create(copy.fields(), from_engine=True)
    contexts = [loaded.attach(), loaded.attach()]
    for context in contexts:
        context.shape_change(operands(7))
    with destroying(plugin, copy, loaded, *contexts):
        assert loaded.output_count == 2


def live_and_die_8(driver: Driver) -> None:
    """The same in TensorRT 8.6."""
    plugin = driver.create_from({"return_lse": 1})
    copy = plugin.clone()
    copy.output_types(QKV)
    copy.output_shapes(QKV, constant=True)
    copy.configure(operands(128), operands(1, 1), operands(512))
    loaded = driver.restore(copy.store())
    with destroying(plugin, copy, loaded):
        assert loaded.output_count == 2


@pytest.mark.parametrize(("driver", "life"), [("v3", live_and_die), ("v2", live_and_die_8)])
def test_a_thousand_engines_leak_nothing(driver: str, life: Any, request: pytest.FixtureRequest) -> None:
    one: Driver = request.getfixturevalue(driver)
    kept = one.create([])  # so that what a first plugin sets up once is there
    for _ in range(50):
        life(one)
    before = one.allocated_bytes()
    for _ in range(1000):
        life(one)
    grown = one.allocated_bytes() - before
    kept.destroy()
    assert grown < 64 * 1024, f"{grown} bytes are left of 1000 engines"  # Python's own; a plugin has over 1,000 bytes


def test_many_threads_at_once(v3: Driver) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(40):
                live_and_die(v3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
