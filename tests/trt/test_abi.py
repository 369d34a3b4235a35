"""tensorrt/abi against NVIDIA's own headers, where an SDK is at hand: sizes, offsets, slots and values are the same.

TENSORRT_ROOT names an SDK of TensorRT 10 or newer, TENSORRT8_ROOT one of TensorRT 8.6; each may hold just ``include``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "plugin_src"
CUDA = os.environ.get("CUDA_HOME", "/usr/local/cuda")
VARIABLES = {10: "TENSORRT_ROOT", 8: "TENSORRT8_ROOT"}


def compile_program(source: str, target: Path, *options: str) -> Path:
    """A C++ file of this folder as a program."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    assert compiler is not None
    command = [compiler, "-std=c++17", "-w", *options, str(HERE / source), "-o", str(target)]
    subprocess.run(command, check=True)
    return target


def layout(major: int, folder: Path, *options: str) -> list[str]:
    """What abi_layout.cc prints: a line for each fact."""
    defines = [f"-DORTFLASH_TENSORRT_MAJOR={major}", f"-I{SOURCES}"]
    program = compile_program("abi_layout.cc", folder / f"layout{len(options)}", *defines, *options)
    return subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("major", [10, 8])
def test_every_virtual_function_has_a_slot(major: int, tmp_path: Path) -> None:
    lines = layout(major, tmp_path)
    assert len(lines) > 70
    slots = [line for line in lines if line.startswith("slot ")]
    assert slots
    assert not [line for line in slots if line.endswith(" -1")]


def test_what_the_gpu_tests_call_lies_where_nvidias_headers_have_it(tmp_path: Path) -> None:
    root = os.environ.get(VARIABLES[8])
    if not root:
        pytest.skip(f"no TensorRT headers: {VARIABLES[8]} is not set")
    program = compile_program("trt8_layout.cc", tmp_path / "slots", f"-I{root}/include", f"-I{CUDA}/include")
    result = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert result.stdout == ""
    assert result.returncode == 0


@pytest.mark.parametrize("major", [10, 8])
def test_the_layout_is_that_of_nvidias_headers(major: int, tmp_path: Path) -> None:
    root = os.environ.get(VARIABLES[major])
    if not root:
        pytest.skip(f"no TensorRT headers: {VARIABLES[major]} is not set")
    options = ["-DORTFLASH_TENSORRT_SDK", f"-I{root}/include", f"-I{CUDA}/include"]
    assert layout(major, tmp_path, *options) == layout(major, tmp_path)
