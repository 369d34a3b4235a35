"""TensorRT 8.6's own parser creates the plugin, on a machine without a GPU: see trt8_parser.cc.

TRT8_LIB names the folder that has its libraries. Each model is parsed in a process of its own, because TensorRT stays
in a process, and other tests want one without it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from attention import plain_attention
from driver import Driver, compile_library
from op_model import make_model
from trt8 import FOLDER_VARIABLE, library_folder

import ortflash
from ortflash.engine.prepare import prepare

F16, F32, BOOL, I32 = (
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.BOOL,
    onnx.TensorProto.INT32,
)
SHAPES: dict[str, Any] = {
    "query": ["B", 4, "S", 64],
    "key": ["B", 2, "T", 64],
    "value": ["B", 2, "T", 32],
    "attn_bias": ["B", 1, 1, "T"],
    "attn_mask": ["B", 1, 1, "T"],
    "key_lengths": ["B"],
    "block_mask": ["B", 1, 1, 1],
    "sinks": [4],
}
TYPES = {"attn_bias": F16, "attn_mask": BOOL, "key_lengths": I32, "block_mask": BOOL, "sinks": F32}
ATTRIBUTES: dict[str, Any] = {
    "num_heads": 4,
    "kv_num_heads": 2,
    "scale": 0.25,
    "is_causal": 1,
    "causal_alignment": "bottom_right",
    "window_left": 1 << 40,
    "window_right": 5,
    "softcap": 2.5,
    "mask_fill": -10000.0,
    "block_size": 64,
}
SCRIPT = """
import ctypes, sys
from pathlib import Path
parser = ctypes.CDLL(sys.argv[1])
parser.driver_log.restype = ctypes.c_char_p
parser.parser_stored.restype = ctypes.c_void_p
parser.parser_stored_bytes.restype = ctypes.c_size_t
model = Path(sys.argv[6]).read_bytes()
count = parser.parser_parse(*(one.encode() for one in sys.argv[2:6]), model, ctypes.c_size_t(len(model)))
for index in range(count):
    print(ctypes.string_at(parser.parser_stored(index), parser.parser_stored_bytes(index)).hex())
if count < 0:
    sys.exit(parser.driver_log().decode())
"""


@pytest.fixture(scope="module")
def parser(plugin_v2: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that parses a file."""
    folder = library_folder()
    if folder is None:
        pytest.skip(f"no TensorRT 8.6: {FOLDER_VARIABLE} does not name a folder with libnvinfer.so.8")
    work = tmp_path_factory.mktemp("parser")
    library = compile_library("trt8_parser.cc", work / "trt8_parser.so", major=8)
    soname = "libnvinfer_plugin.so.8"
    standin = compile_library("nvinfer_plugin_standin.cc", work / soname, "-Wl,-soname," + soname, major=8)
    files = [library, folder / "libnvinfer.so.8", standin, folder / "libnvonnxparser.so.8", plugin_v2]
    return [sys.executable, "-c", SCRIPT, *map(str, files)]


def parse(parser: list[str], model: onnx.ModelProto, folder: Path) -> list[bytes]:
    """What each plugin of the network would store in an engine."""
    onnx.save(model, folder / "model.onnx")
    result = subprocess.run([*parser, str(folder / "model.onnx")], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return [bytes.fromhex(line) for line in result.stdout.split()]


def model_with(attributes: dict[str, Any], *inputs: str, return_lse: bool = False) -> onnx.ModelProto:
    types = dict.fromkeys(("query", "key", "value"), F16) | {name: TYPES[name] for name in inputs}
    return make_model(types, attributes, shapes=SHAPES, return_lse=return_lse)


@pytest.mark.parametrize("return_lse", [False, True])
def test_every_attribute_arrives(parser: list[str], driver_v2: Driver, return_lse: bool, tmp_path: Path) -> None:
    (stored,) = parse(parser, prepare(model_with(ATTRIBUTES, return_lse=return_lse), int32_masks=True), tmp_path)
    expected = {**ATTRIBUTES, "window_left": 2**31 - 1, "return_lse": int(return_lse), "neutral_inputs": 0}
    with driver_v2.create_from(expected) as plugin:
        assert stored == plugin.store()
    with driver_v2.restore(stored) as loaded:
        assert loaded.output_count == 1 + return_lse


def test_every_input_is_passed_and_masks_are_cast(parser: list[str], driver_v2: Driver, tmp_path: Path) -> None:
    (stored,) = parse(parser, prepare(model_with({}, *TYPES), int32_masks=True), tmp_path)
    with driver_v2.create_from({"neutral_inputs": 0}) as plugin:
        assert stored == plugin.store()


def test_neutral_constants_are_told(parser: list[str], driver_v2: Driver, tmp_path: Path) -> None:
    (stored,) = parse(parser, prepare(model_with({}, "key_lengths"), int32_masks=True), tmp_path)
    with driver_v2.create_from({"neutral_inputs": 0b11000}) as plugin:
        assert stored == plugin.store()


@pytest.mark.parametrize("mask", [False, True])
def test_a_rewritten_attention(parser: list[str], driver_v2: Driver, mask: bool, tmp_path: Path) -> None:
    rewritten = ortflash.rewrite(plain_attention(mask=mask), verify=False).model
    (stored,) = parse(parser, prepare(rewritten, int32_masks=True), tmp_path)
    with driver_v2.create_from({"scale": 0.125, "neutral_inputs": 0b1000 if mask else 0}) as plugin:
        assert stored == plugin.store()


def test_a_refusal_fails_the_parse(parser: list[str], tmp_path: Path) -> None:
    onnx.save(prepare(model_with({"softcap": -1.0})), tmp_path / "model.onnx")
    result = subprocess.run([*parser, str(tmp_path / "model.onnx")], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "FlashAttention node 'attn': attribute 'softcap' is -1 but must be in [0, inf]" in result.stderr
