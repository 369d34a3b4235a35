"""D10 on the CPU: loading the library in every order, beside each ONNX Runtime that is supported, and beside others."""

from __future__ import annotations

import functools
import gc
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from cases import Array, AttentionCase
from op_model import make_model, make_session

import ortflash
from ortflash import errors, library, session

ROOT = Path(__file__).resolve().parents[1]
FLOAT = onnx.TensorProto.FLOAT
QKV = {"query": FLOAT, "key": FLOAT, "value": FLOAT}
INPUTS = AttentionCase("loading", q_len=5, kv_len=9).make_inputs()
MODEL = make_model(QKV).SerializeToString()

SUPPORTED = ("1.21.1", "1.26.0")
"""The oldest and one in between; the newest is the one that is installed."""
TOO_OLD = "1.20.1"


# -------------------------------------------------------------------------------------------- sessions and options
def test_registering_twice_is_registering_once() -> None:
    options = onnxruntime.SessionOptions()
    ortflash.register(options)
    ortflash.register(options)
    options.register_custom_ops_library(ortflash.get_library_path())
    assert onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"]).run(None, INPUTS)


def test_two_sessions_of_the_same_options_and_of_others() -> None:
    options = onnxruntime.SessionOptions()
    sessions = [make_session(make_model(QKV), options), make_session(make_model(QKV), options)]
    sessions += [make_session(make_model(QKV)), ortflash.InferenceSession(MODEL)]
    outputs = [one.run(None, INPUTS)[0] for one in sessions]
    for output in outputs[1:]:
        np.testing.assert_array_equal(output, outputs[0])


def test_a_session_outlives_its_options_and_other_sessions() -> None:
    first = make_session(make_model(QKV))
    expected = first.run(None, INPUTS)[0]
    second = make_session(make_model(QKV))
    del first
    gc.collect()
    np.testing.assert_array_equal(second.run(None, INPUTS)[0], expected)


def test_a_hundred_sessions_come_and_go_without_leaking() -> None:
    def make_and_drop(count: int) -> None:
        for _ in range(count):
            make_session(make_model(QKV)).run(None, INPUTS)
        gc.collect()

    make_and_drop(20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    make_and_drop(100)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024  # KiB


def test_sessions_are_made_from_many_threads_at_once() -> None:
    outputs: list[Array] = []

    def work() -> None:
        for _ in range(5):
            outputs.append(make_session(make_model(QKV)).run(None, INPUTS)[0])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outputs) == 40
    for output in outputs:
        np.testing.assert_array_equal(output, outputs[0])


@pytest.mark.parametrize("value", ["0", "1"])
def test_precise_is_taken(value: str) -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("ortflash.precise", value)
    assert make_session(make_model(QKV), options).run(None, INPUTS)


def test_precise_is_zero_or_one() -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("ortflash.precise", "yes")
    with pytest.raises(errors.LibraryError, match='"0" or "1"'):
        ortflash.register(options)


# ------------------------------------------------------------------------------------------------------- providers
def test_the_default_is_what_is_there() -> None:
    assert ortflash.InferenceSession(MODEL).get_providers() == ["CPUExecutionProvider"]


def test_explicit_cpu() -> None:
    assert ortflash.InferenceSession(MODEL, providers=["CPUExecutionProvider"]).run(None, INPUTS)


@pytest.mark.parametrize("providers", [[session.CUDA], [session.CUDA, session.CPU], [(session.CUDA, {"device_id": 0})]])
def test_cuda_without_cuda_is_an_error(providers: list[session.Provider]) -> None:
    if session.CUDA in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    with pytest.raises(
        errors.ProviderError, match=r"has no CUDAExecutionProvider, only .* pip install 'ortflash\[gpu\]'"
    ):
        ortflash.InferenceSession(MODEL, providers=providers)


def test_cuda_without_our_cuda_part_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session._ort, "get_available_providers", lambda: [session.CUDA, session.CPU])
    monkeypatch.setattr(session, "build_info", lambda: library.BuildInfo("gcc", ("portable",), ()))
    assert session.default_providers() == [session.CPU]
    with pytest.raises(errors.ProviderError, match="no CUDA part"):
        ortflash.InferenceSession(MODEL, providers=[session.CUDA, session.CPU])


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
def test_a_provider_that_onnxruntime_drops_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime-gpu on a machine without a driver logs an error and goes on without the provider."""
    monkeypatch.setattr(session._ort, "get_available_providers", lambda: [session.CUDA, session.CPU])
    monkeypatch.setattr(session, "build_info", lambda: library.BuildInfo("gcc", ("portable",), ("80-real",)))
    with pytest.raises(errors.ProviderError, match="could not start CUDAExecutionProvider"):
        ortflash.InferenceSession(MODEL, providers=[session.CUDA, session.CPU])
    with pytest.warns(RuntimeWarning, match="could not start CUDAExecutionProvider"):
        ortflash.InferenceSession(MODEL)


def test_a_misspelled_attribute_is_found(tmp_path: Path) -> None:
    model = make_model(QKV, {"is_casual": 1})
    with pytest.raises(errors.InvalidModelError, match="no attribute 'is_casual'"):
        ortflash.InferenceSession(model.SerializeToString())
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    with pytest.raises(errors.InvalidModelError, match="no attribute 'is_casual'"):
        ortflash.InferenceSession(path)


def test_a_missing_library_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORTFLASH_LIBRARY_DIR", str(tmp_path))
    with pytest.raises(errors.LibraryError, match="pip install"):
        ortflash.get_library_path()


# -------------------------------------------------------------------------------------------- other ONNX Runtimes
@functools.cache
def other_onnxruntime(version: str) -> Path:
    """A folder with that release of onnxruntime, downloaded once; skips where it can't be had."""
    folder = ROOT / ".cache" / "onnxruntime" / version
    if not (folder / "onnxruntime" / "__init__.py").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
        result = subprocess.run([*command, f"onnxruntime=={version}"], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            pytest.skip(f"onnxruntime {version} can't be installed here: {result.stderr.strip().splitlines()[-1]}")
    return folder


def run_python(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """This Python with the onnxruntime of `folder` before the installed one."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("version", SUPPORTED)
def test_the_operator_on_other_releases(version: str) -> None:
    """All of test_op.py, in a process of its own."""
    folder = other_onnxruntime(version)
    seen = run_python(["-c", "import onnxruntime; print(onnxruntime.__version__)"], folder)
    assert seen.stdout.strip() == version
    result = run_python(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "tests/test_op.py"], folder)
    assert result.returncode == 0, result.stdout[-5000:]
    assert re.search(r"\d{3} passed", result.stdout)


@pytest.mark.slow
def test_an_onnxruntime_that_is_too_old_is_told() -> None:
    folder = other_onnxruntime(TOO_OLD)
    script = """
import onnxruntime, sys
from ortflash import errors, library
try:
    library.import_onnxruntime()
except errors.OnnxRuntimeError as error:
    print(error)
options = onnxruntime.SessionOptions()
try:
    options.register_custom_ops_library(library.get_library_path())
except Exception as error:
    print(error)
"""
    result = run_python(["-c", script], folder)
    first, second = result.stdout.strip().splitlines()
    assert re.search(r"needs onnxruntime 1\.21 or newer, and this is 1\.20\.1.*pip install", first)
    assert re.search(r"needs ONNX Runtime 1\.21 or newer, and this is 1\.20\.1", second)
    assert result.returncode == 0
    assert "API version" not in result.stderr


# ----------------------------------------------------------------------------------------------- the library itself
LIBRARIES = {"libortflash_ort.so": r"^RegisterCustomOps$", "libortflash_core.so": r"^ortflash_\w+$"}


def tool(*command: str) -> str:
    """What a tool of the compiler's prints; skips where it is not there."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not there")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def library_file(name: str) -> str:
    return str(Path(ortflash.get_library_path()).parent / name)


@pytest.mark.parametrize("name", LIBRARIES)
def test_nothing_but_the_entry_points_is_exported(name: str) -> None:
    lines = tool("nm", "-D", "--defined-only", library_file(name)).splitlines()
    symbols = [line.split()[-1] for line in lines]
    assert symbols
    assert [symbol for symbol in symbols if not re.match(LIBRARIES[name], symbol)] == []


@pytest.mark.parametrize("name", LIBRARIES)
def test_only_the_c_library_is_needed_to_load(name: str) -> None:
    """No libcuda, no libcudart, no libstdc++."""
    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", tool("readelf", "-d", library_file(name)))
    assert needed
    allowed = r"(libc|libm|libdl|librt|libpthread)\.so\.\d|ld-linux.*"
    assert [one for one in needed if not re.fullmatch(allowed, one)] == []


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_symbol_resolves(name: str) -> None:
    assert "undefined symbol" not in tool("ldd", "-r", library_file(name))
