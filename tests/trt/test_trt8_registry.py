"""A plugin's life through TensorRT 8.6's own registry, on a machine without a GPU: TRT8_LIB names its folder.

What needs one, engines, is in tests/gpu/test_trt8_cuda.py. In a process of its own, because TensorRT stays in it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from driver import HERE, build_driver
from trt8 import FOLDER_VARIABLE, library_folder

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from driver import HALF, Driver, Tensor, destroying
driver = Driver(sys.argv[2], sys.argv[4], tensorrt_version=0)
assert driver.use_registry(sys.argv[3], sys.argv[4]), driver.log()
assert driver.describe()[:3] == ["FlashAttention", "1", "ortflash"]

def operands(length):
    return [Tensor(HALF, (2, 4, length, 64))] * 3

def live():
    plugin = driver.create_from({"return_lse": 1, "scale": 0.25})
    copy = plugin.clone()
    copy.output_types(operands(128))
    copy.output_shapes(operands(128), constant=True)
    copy.configure(operands(128), operands(1), operands(512))
    loaded = driver.restore(copy.store())
    context = loaded.clone()
    context.configure(operands(7), operands(1), operands(512))
    with destroying(plugin, copy, loaded, context):
        assert context.store() == copy.store() != plugin.store()
        assert context.workspace() == copy.workspace()
        assert context.output_count == 2

for _ in range(50):
    live()
before = driver.allocated_bytes()
for _ in range(1000):
    live()
print(driver.allocated_bytes() - before)
"""


def test_a_thousand_lives_through_its_registry_leave_nothing(plugin_v2: str, tmp_path: Path) -> None:
    """Create, clone, configure, serialise, deserialise, clone for a context, configure again, destroy."""
    folder = library_folder()
    if folder is None:
        pytest.skip(f"no TensorRT 8.6: {FOLDER_VARIABLE} does not name a folder with libnvinfer.so.8")
    command = [sys.executable, "-c", SCRIPT, HERE, build_driver(2, tmp_path), folder / "libnvinfer.so.8", plugin_v2]
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 64 * 1024  # Python's own; a plugin has over 1,000 bytes
