"""The plugin in the registries of real TensorRTs: pip's lean runtimes, which start without a GPU up to this point.

Each release runs in a process of its own. What they can't do without a GPU is open an engine.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from releases import installed

from ortflash.engine import execution

RELEASES = ("10.16.1.11", "11.4.0.106")
"""The oldest major version with IPluginV3, and the newest, which laid out registry and logger anew."""

pytestmark = pytest.mark.slow


@pytest.fixture(params=RELEASES)
def lean(request: pytest.FixtureRequest) -> Path:
    """A folder with that lean runtime, downloaded once (50 MB); skips where it can't be had."""
    release = request.param
    packages = [f"tensorrt-lean-cu12-{part}=={release}" for part in ("libs", "bindings")]
    return installed("tensorrt-lean", release, "--no-deps", *packages)


COMMON = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import tensorrt_lean_bindings as trt
registry = trt.get_plugin_registry()
def find():
    return registry.get_creator("FlashAttention", "1", "ortflash")
def create(**values):
    fields = [trt.PluginField(name, np.array([value], np.int64), trt.PluginFieldType.INT64)
              for name, value in values.items()]
    return find().create_plugin("attn", trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD)
assert find() is None
"""


def run(lean: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMON + script, str(lean), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_loaded_by_the_registry(lean: Path, plugin_v3: str) -> None:
    script = """
registry.load_library(sys.argv[2])
print([field.name for field in find().field_names][:3], create() is not None, create(window_left=-2) is None)
"""
    result = run(lean, script, plugin_v3)
    assert result.stdout.split("\n")[0] == "['num_heads', 'kv_num_heads', 'scale'] True True"
    assert "FlashAttention node 'attn': attribute 'window_left' is -2 but must be at least -1." in result.stderr


def test_registered_by_a_plain_dlopen(lean: Path, plugin_v3: str) -> None:
    script = """
ctypes.CDLL(sys.argv[2])
print(create() is not None)
"""
    result = run(lean, script, str(Path(plugin_v3).with_name("libortflash_trt_register.so")))
    assert result.stdout.strip() == "True"
    assert "ortflash" not in result.stderr


def test_registering_without_tensorrt_says_so(plugin_v3: str) -> None:
    path = str(Path(plugin_v3).with_name("libortflash_trt_register.so"))
    script = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).ortflash_register_trt_plugin())"
    result = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "0"
    assert (
        result.stderr.splitlines()
        == [
            "ortflash: the TensorRT plugin is not registered: TensorRT must be loaded first, and is not in this process"
        ]
        * 2
    )


def test_what_verify_calls_is_there(lean: Path) -> None:
    """Names of ``ICudaEngine`` and ``IExecutionContext`` that ortflash.engine.execution uses."""
    script = """
have = {*dir(trt.ICudaEngine), *dir(trt.IExecutionContext)}
print([name for name in sys.argv[2].split() if name not in have])
"""
    source = Path(execution.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r"(?:engine|_context)\.(\w+)\(", source)) | {"num_io_tensors"}
    assert {"get_tensor_profile_shape", "execute_async_v3"} <= names
    assert run(lean, script, " ".join(sorted(names))).stdout.splitlines()[-1] == "[]"
