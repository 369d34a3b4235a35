"""Engines built by pip's TensorRT-RTX, without a GPU: parse with the plugin, build, look at what came out.

It is another TensorRT than the one on most servers, but the same plugin interface, and the real thing.
"""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from corpus import find_corpus
from driver import Driver, destroying
from hypothesis import settings
from op_model import make_model
from plans import stored_fields
from typer.testing import CliRunner

import ortflash
from ortflash.cli import app
from ortflash.engine import build as engine_build
from ortflash.engine import runtime
from ortflash.engine.build import EngineResult, build_engine
from ortflash.engine.profiles import Range
from ortflash.errors import OrtflashError
from ortflash.inputs import generate_feeds, input_specs

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
F16, F32, BF16, BOOL, I32 = (
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.BOOL,
    onnx.TensorProto.INT32,
)
QKV_SHAPES = {"query": ["B", 4, "S", 64], "key": ["B", 2, "T", 64], "value": ["B", 2, "T", 32]}
QKV_RANGES = {
    "query": Range((1, 4, 1, 64), (2, 4, 128, 64), (8, 4, 512, 64)),
    "key": Range((1, 2, 1, 64), (2, 2, 128, 64), (8, 2, 512, 64)),
}
FAMILIES = (
    "bert-dy-sdpa-op18",
    "bart-ts-eager-op17",
    "clipvision-dy-sdpa-op18",
    "gpt2-ts-eager-op17-fp16",
    "gpt2kv-dy-sdpa-op18",
    "llama-dy-sdpa-op18",
    "t5enc-ts-eager-op17",
    "vit-dy-sdpa-op18",
    "whisperdec-dy-sdpa-op18",
)
"""One model of each kind in the corpus."""


@pytest.fixture(autouse=True)
def _rtx_here(rtx: ModuleType) -> None:
    """Every test of this file needs it."""


def save(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def build(model: Path, folder: Path, **options: Any) -> EngineResult:
    """For SM89, by RTX."""
    options = {"compute_capabilities": ("8.9",), "flavour": "rtx", "verify": False} | options
    return build_engine(model, folder / "model.plan", **options)


def ranges_of(path: Path) -> dict[str, Range]:
    """Generated sizes up to twice those, for every open dimension; the same size for all lengths."""
    model = onnx.load(path, load_external_data=False)
    ranges = {}
    for spec in input_specs(model):
        shape = generate_feeds(model, attempt=1)[0][spec.name].shape
        if any(isinstance(dim, str) for dim in spec.dims):
            most = tuple(2 * n if isinstance(dim, str) else n for n, dim in zip(shape, spec.dims, strict=True))
            ranges[spec.name] = Range(shape, shape, most)
    return ranges


def check_complete(result: EngineResult) -> None:
    assert result.fused
    assert result.complete, f"{result.plugin_layers} are plugin layers, {result.fused} are fused"
    assert result.layer_count > 0
    assert result.output.stat().st_size == result.size_bytes > 0
    stored = stored_fields(result.output.read_bytes())
    assert len(stored) == len(result.fused)


# --------------------------------------------------------------------------------------------------------- whole models
@pytest.mark.parametrize("name", ["bert4096-dy-sdpa-op18", "sdunet-ts-eager-op17"])
def test_a_shipped_model_becomes_an_engine_of_fused_sites(name: str, tmp_path: Path) -> None:
    path = MODELS / f"{name}.onnx"
    result = build(path, tmp_path, shapes=ranges_of(path))
    check_complete(result)
    assert result.rewrite is not None
    assert len(result.fused) == len(result.rewrite.report.sites)
    assert result.softmaxes == ()
    assert result.exit_code == 0


@pytest.mark.corpus
@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_of_each_family(name: str, tmp_path: Path) -> None:
    folder = find_corpus()
    if folder is None:
        pytest.skip("no corpus beside the checkout")
    path = folder / f"{name}.onnx"
    result = build(path, tmp_path, shapes=ranges_of(path))
    check_complete(result)
    assert result.softmaxes == ()


def test_a_softmax_that_is_no_attention_is_left_and_told(tmp_path: Path) -> None:
    model = make_model(dict.fromkeys(("query", "key", "value"), F32), shapes=dict.fromkeys(QKV_SHAPES, (1, 4, 8, 64)))
    model.graph.node.append(onnx.helper.make_node("Softmax", ["output"], ["probabilities"], name="head/softmax"))
    model.graph.output[0].name = "probabilities"
    result = build(save(model, tmp_path), tmp_path)
    check_complete(result)
    assert result.softmaxes == ("head/softmax",)


@pytest.mark.parametrize("capability", ["SM80", "8.6", "89", "12.0"])
def test_every_gpu_that_it_knows(capability: str, tmp_path: Path) -> None:
    model = make_model(dict.fromkeys(("query", "key", "value"), F16), shapes=QKV_SHAPES, return_lse=True)
    result = build(save(model, tmp_path), tmp_path, shapes=QKV_RANGES, compute_capabilities=(capability,))
    check_complete(result)
    assert f"sm{capability.removeprefix('SM').replace('.', '')}".encode() in result.output.read_bytes()


ALL_TYPES = {
    "query": F16,
    "key": F16,
    "value": F16,
    "attn_bias": F32,
    "attn_mask": BOOL,
    "key_lengths": I32,
    "block_mask": BOOL,
    "sinks": F32,
}
ALL_SHAPES = {
    "query": [2, 40, 6 * 16],
    "key": [2, 70, 3 * 16],
    "value": [2, 70, 3 * 16],
    "attn_bias": [1, 6, 40, 70],
    "attn_mask": [2, 1, 1, 70],
    "key_lengths": [2],
    "block_mask": [1, 1, 3, 5],
    "sinks": [6],
}
ALL_ATTRIBUTES = {
    "num_heads": 6,
    "kv_num_heads": 3,
    "scale": 0.25,
    "is_causal": 1,
    "causal_alignment": "bottom_right",
    "window_left": 1 << 40,
    "window_right": 3,
    "softcap": 2.5,
    "mask_fill": -10000.0,
    "block_size": 16,
}


@pytest.mark.parametrize("query", [F16, BF16, F32])
def test_every_input_and_attribute_arrives_and_is_stored(query: int, driver_v3: Driver, tmp_path: Path) -> None:
    types = {**ALL_TYPES, **dict.fromkeys(("query", "key", "value"), query)}
    model = make_model(types, ALL_ATTRIBUTES, shapes=ALL_SHAPES, return_lse=True)
    result = build(save(model, tmp_path), tmp_path)
    check_complete(result)
    (fields,) = stored_fields(result.output.read_bytes())
    expected = {
        **ALL_ATTRIBUTES,
        "window_left": 2**31 - 1,
        "return_lse": 1,
        "neutral_inputs": 0,
        "plugin_namespace": "ortflash",
    }
    assert expected.items() <= {field.name: field.value for field in fields}.items()
    loaded = driver_v3.create(fields, from_engine=True)
    with destroying(loaded):
        assert [(field.name, field.data) for field in loaded.fields()] == [(f.name, f.data) for f in fields]
        assert loaded.output_count == 2


def test_an_engine_loads_in_a_process_that_has_only_the_plugin(driver_v3: Driver, tmp_path: Path) -> None:
    model = make_model(dict.fromkeys(("query", "key", "value"), F16), ALL_ATTRIBUTES, shapes=QKV_SHAPES)
    model.graph.node[0].attribute.remove(next(a for a in model.graph.node[0].attribute if a.name == "num_heads"))
    model.graph.node[0].attribute.remove(next(a for a in model.graph.node[0].attribute if a.name == "kv_num_heads"))
    result = build(save(model, tmp_path), tmp_path, shapes=QKV_RANGES)
    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from driver import Driver
from plans import stored_fields
driver = Driver({driver_v3._c._name!r}, sys.argv[1], tensorrt_version=10701)
for fields in stored_fields(Path(sys.argv[2]).read_bytes()):
    with driver.create(fields, from_engine=True) as plugin:
        print(plugin.metadata())
"""
    command = [sys.executable, "-c", script, runtime.get_trt_plugin_path(), str(result.output)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {"num_heads=0", "scale=0.25", "causal_alignment=bottom_right", "mask_fill=-10000"} <= set(told)


@pytest.mark.slow
def test_building_storing_and_loading_over_and_over_leaks_nothing(driver_v3: Driver, tmp_path: Path) -> None:
    """1,000 engines in the nightly tests, 100 elsewhere; what is loaded is what the engine holds for the plugin."""
    model = save(make_model(dict.fromkeys(("query", "key", "value"), F16), shapes=QKV_SHAPES), tmp_path)

    def live() -> None:
        result = build(model, tmp_path, shapes=QKV_RANGES)
        for fields in stored_fields(result.output.read_bytes()):
            with driver_v3.create(fields, from_engine=True) as loaded, loaded.attach() as context:
                assert context.output_count == 1
        gc.collect()

    for _ in range(5):
        live()
    count = 1000 if settings().max_examples > 1000 else 100
    before = driver_v3.allocated_bytes()
    for _ in range(count):
        live()
    grown = driver_v3.allocated_bytes() - before
    assert grown < 1000 * count, f"{grown} bytes are left of {count} engines"  # a plugin has over 1,000 bytes


def test_a_neutral_constant_is_no_input(tmp_path: Path) -> None:
    types = {"query": F32, "key": F32, "value": F32, "attn_mask": BOOL}
    model = make_model(types, shapes={**QKV_SHAPES, "attn_mask": ["B", 1, 1, "T"]})
    result = build(save(model, tmp_path), tmp_path, shapes=QKV_RANGES)
    (fields,) = stored_fields(result.output.read_bytes())
    assert {field.name: field.value for field in fields}["neutral_inputs"] == 1 << 3


def test_one_shape_profile_is_as_good(tmp_path: Path) -> None:
    model = make_model(dict.fromkeys(("query", "key", "value"), F16), shapes=QKV_SHAPES)
    fixed = {name: Range(one.opt, one.opt, one.opt) for name, one in QKV_RANGES.items()}
    check_complete(build(save(model, tmp_path), tmp_path, shapes=fixed))


def test_an_embedded_library_makes_the_engine_larger_by_itself(tmp_path: Path) -> None:
    model = save(make_model(dict.fromkeys(("query", "key", "value"), F16), shapes=QKV_SHAPES), tmp_path)
    plain = build(model, tmp_path, shapes=QKV_RANGES)
    contents = plain.output.read_bytes()
    embedded = build(model, tmp_path, shapes=QKV_RANGES, embed_plugin=True)
    library = Path(runtime.get_trt_plugin_path()).read_bytes()
    assert library not in contents
    assert library in embedded.output.read_bytes()
    assert embedded.size_bytes >= plain.size_bytes + len(library)


def test_rtx_has_no_timing_cache(tmp_path: Path) -> None:
    model = make_model(dict.fromkeys(("query", "key", "value"), F16), shapes=QKV_SHAPES)
    told = refusal(model, tmp_path, shapes=QKV_RANGES, timing_cache=tmp_path / "cache")
    assert "TensorRT-RTX 1.7.1.116 measures nothing while it builds" in told
    assert not (tmp_path / "cache").exists()


def test_progress_is_told(tmp_path: Path) -> None:
    model = save(make_model(dict.fromkeys(("query", "key", "value"), F16), shapes=QKV_SHAPES), tmp_path)
    steps: list[tuple[str, int, int]] = []
    build(model, tmp_path, shapes=QKV_RANGES, progress=lambda *step: steps.append(step))
    assert steps
    assert {stage for stage, _, _ in steps} == {"building"}
    assert steps[-1][1] == steps[-1][2]


# ------------------------------------------------------------------------------------------------- plugin and function
def parse(rtx: ModuleType, model: onnx.ModelProto) -> tuple[list[Any], str]:
    """Kinds of the layers of the network, and the log."""
    log = engine_build.logger_of(rtx)
    builder = rtx.Builder(log)
    network = engine_build._network(rtx, builder, None)
    parser = rtx.OnnxParser(network, log)
    assert parser.parse(model.SerializeToString()), engine_build.error_lines(log)
    return [network.get_layer(i).type for i in range(network.num_layers)], str(log.messages)


def test_a_rewritten_file_is_parsed_with_the_plugin_though_it_has_the_function(rtx: ModuleType) -> None:
    result = ortflash.rewrite(MODELS / "bert4096-dy-sdpa-op18.onnx", verify=False)
    assert result.model.functions
    kinds, _ = parse(rtx, result.model)
    assert kinds.count(rtx.LayerType.PLUGIN_V3) == result.fused > 0
    assert rtx.LayerType.SOFTMAX not in kinds


def test_without_the_plugin_the_function_is_parsed(rtx: ModuleType, rtx_folder: Path, tmp_path: Path) -> None:
    """In a process of its own, since a loaded plugin stays."""
    path = tmp_path / "model.onnx"
    ortflash.rewrite(MODELS / "bert4096-dy-sdpa-op18.onnx", path, verify=False)
    script = """
import sys
sys.path.append(sys.argv[1])
from ortflash.engine import build, runtime
trt = runtime.import_tensorrt("rtx")
log = build.logger_of(trt)
builder = trt.Builder(log)
network = build._network(trt, builder, None)
parser = trt.OnnxParser(network, log)
assert parser.parse_from_file(sys.argv[2])
kinds = [network.get_layer(i).type for i in range(network.num_layers)]
print(kinds.count(trt.LayerType.PLUGIN_V3), len(kinds))
"""
    command = [sys.executable, "-c", script, str(rtx_folder), str(path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    plugins, layers = map(int, told)
    assert plugins == 0
    kinds, _ = parse(rtx, onnx.load(path))
    assert kinds.count(rtx.LayerType.PLUGIN_V3) > 0
    assert layers > len(kinds) + 10  # the function's body for each node


def test_loading_twice_is_loading_once(rtx: ModuleType) -> None:
    creators = len(rtx.get_plugin_registry().all_creators)
    assert ortflash.load_trt_plugin(rtx) is rtx
    assert len(rtx.get_plugin_registry().all_creators) == creators


# ------------------------------------------------------------------------------------------------------------- refusals
def refusal(model: onnx.ModelProto, folder: Path, **options: Any) -> str:
    """The sentence; and no engine is there."""
    with pytest.raises(OrtflashError) as refused:
        build(save(model, folder), folder, **options)
    assert not (folder / "model.plan").exists()
    return str(refused.value)


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"softcap": -1.0}, "FlashAttention node 'attn': attribute 'softcap' is -1 but must be in [0, inf]."),
        ({"block_size": 48}, "FlashAttention node 'attn': attribute 'block_size' is 48 but must be one of 16, 32, 64"),
        ({"scale": 1}, "FlashAttention node 'attn': attribute 'scale' must be of type float."),
        ({"causal_alignment": "left"}, "attribute 'causal_alignment' is 'left' but must be one of top_left, bottom"),
    ],
)
def test_broken_attributes(attributes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    model = make_model(dict.fromkeys(("query", "key", "value"), F32), attributes, shapes=QKV_SHAPES)
    told = refusal(model, tmp_path, shapes=QKV_RANGES)
    assert told.startswith("TensorRT-RTX 1.")
    assert sentence in told


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        (
            {"key": [1, 2, 7, 60]},
            "input 'key' has shape (1,2,7,60), which does not go with 'query' of shape (1,4,5,64)",
        ),
        (
            {"query": [1, 4, 5, 640], "key": [1, 2, 7, 640]},
            "head sizes 640 ('query') and 32 ('value') must be from 1 to",
        ),
        ({"query": [1, 5, 64], "key": [1, 7, 64], "value": [1, 7, 64]}, "attribute 'num_heads' is needed"),
        ({"query": [4, 64]}, "input 'query' has shape (4,64) but must be (B,N,S,D) or (B,S,N*D)"),
    ],
)
def test_broken_shapes(shapes: dict[str, list[int]], sentence: str, tmp_path: Path) -> None:
    fixed = {"query": [1, 4, 5, 64], "key": [1, 2, 7, 64], "value": [1, 2, 7, 32]}
    model = make_model(dict.fromkeys(fixed, F32), shapes={**fixed, **shapes})
    told = refusal(model, tmp_path)
    assert "FlashAttention node 'attn': " in told
    assert sentence in told


def test_shapes_that_break_only_in_the_profile(tmp_path: Path) -> None:
    shapes = {"query": ["B", 4, "S", "D"], "key": ["B", 2, "T", "K"], "value": ["B", 2, "T", 32]}
    model = make_model(dict.fromkeys(shapes, F32), shapes=shapes)
    ranges = {
        "query": Range((1, 4, 8, 64), (1, 4, 8, 64), (1, 4, 8, 64)),
        "key": Range((1, 2, 8, 32), (1, 2, 8, 32), (1, 2, 8, 32)),
    }
    told = refusal(model, tmp_path, shapes=ranges)
    assert "FlashAttention node 'attn': input 'key' has shape (1,2,8,32), which does not go with 'query'" in told


def test_types_that_do_not_go_together(tmp_path: Path) -> None:
    model = make_model({"query": F16, "key": F32, "value": F16}, shapes=QKV_SHAPES)
    assert "FlashAttention node 'attn': input 'key' has a type that" in refusal(model, tmp_path, shapes=QKV_RANGES)


def test_what_this_tensorrt_does_not_have(tmp_path: Path) -> None:
    model = make_model(dict.fromkeys(("query", "key", "value"), F32), shapes=QKV_SHAPES)
    told = refusal(model, tmp_path, shapes=QKV_RANGES, compute_capabilities=("9.0",))
    assert "does not build for compute capability '9.0', only for SM120, " in told
    assert "has no fp16 switch" in refusal(model, tmp_path, shapes=QKV_RANGES, precision="fp16")


def test_an_op_that_tensorrt_does_not_know(tmp_path: Path) -> None:
    model = make_model(dict.fromkeys(("query", "key", "value"), F32), shapes=QKV_SHAPES)
    model.graph.node.append(onnx.helper.make_node("Nonsense", ["output"], ["other"], name="odd", domain="ortflash"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("other", F32, None))
    told = refusal(model, tmp_path, shapes=QKV_RANGES)
    assert "does not parse model.onnx" in told
    assert "Nonsense" in told


def test_a_missing_plugin_library_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORTFLASH_LIBRARY_DIR", str(tmp_path))
    with pytest.raises(ortflash.OrtflashError, match=r"libortflash_trt8\.so is missing: .* where nvcc is"):
        runtime.get_trt_plugin_path(tensorrt_major=8)


# --------------------------------------------------------------------------------------------------------- command line
def test_the_command_line(tmp_path: Path) -> None:
    """Rewrites, verifies, builds and tells."""
    path = tmp_path / "bert.onnx"
    shutil.copy(MODELS / "bert4096-dy-sdpa-op18.onnx", path)
    names = [spec.name for spec in input_specs(onnx.load(path))]
    command = ["build", str(path), "--compute-capability", "8.9", "--tensorrt", "rtx"]
    for name in names:
        command += ["--shapes", f"{name}:1x8:2x64:4x256"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert re.search(r"^(\d+) of \1 fused nodes are layers of the engine", result.output, re.MULTILINE)
    assert "Softmaxes left: none" in result.output
    assert (tmp_path / "bert.plan").is_file()


def test_the_command_line_without_shapes_names_the_input(tmp_path: Path) -> None:
    path = save(make_model(dict.fromkeys(("query", "key", "value"), F32), shapes=QKV_SHAPES), tmp_path)
    result = CliRunner().invoke(app, ["build", str(path), "--compute-capability", "8.9"])
    assert result.exit_code == 2
    assert "Input 'query' has shape (B, 4, S, 64)" in result.output
    assert "give --shapes query:min:opt:max" in result.output


def test_a_model_without_attention_is_built_and_told(tmp_path: Path) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"], name="relu")],
        "plain",
        [onnx.helper.make_tensor_value_info("x", F32, [2, 3])],
        [onnx.helper.make_tensor_value_info("y", F32, [2, 3])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    result = build(save(model, tmp_path), tmp_path)
    assert result.exit_code == 1
    assert result.fused == ()
    assert result.output.is_file()


def test_weights_in_another_file_are_found(tmp_path: Path) -> None:
    model = make_model(dict.fromkeys(("query", "key", "value"), F32), shapes=dict.fromkeys(QKV_SHAPES, (1, 4, 8, 64)))
    weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    model.graph.initializer.append(weight)
    model.graph.node.append(onnx.helper.make_node("MatMul", ["output", "w"], ["projected"], name="project"))
    model.graph.output[0].name = "projected"
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").stat().st_size >= 64 * 64 * 4
    check_complete(build(path, tmp_path))
