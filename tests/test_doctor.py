"""What `ortflash doctor` sees, and that it would see what is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ortflash import doctor, library


def findings(subject: str) -> list[doctor.Finding]:
    return [finding for finding in doctor.diagnose().findings if finding.subject.startswith(subject)]


def test_this_installation_is_healthy() -> None:
    diagnosis = doctor.diagnose()
    assert diagnosis.healthy, diagnosis
    subjects = [finding.subject for finding in diagnosis.findings]
    assert {"python", "ortflash", "onnx", "library", "call (CPUExecutionProvider)"} <= set(subjects)


def test_it_says_which_kernel_runs_what() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        (finding,) = findings(f"cpu {dtype}")
        assert finding.detail.startswith("cpu-")
        assert "head size 64" in finding.detail


def test_two_onnxruntimes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.1"}
    monkeypatch.setattr(library, "onnxruntime_distributions", lambda: both)
    diagnosis = doctor.diagnose()
    assert not diagnosis.healthy
    clash = next(finding for finding in diagnosis.findings if finding.status == "error")
    assert "onnxruntime 1.32.0 and onnxruntime-gpu 1.31.1 are both installed" in clash.detail
    assert "pip uninstall onnxruntime onnxruntime-gpu" in clash.detail


def test_an_old_onnxruntime_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(__version__="1.20.1", get_available_providers=list)
    monkeypatch.setattr("importlib.import_module", lambda _: old)
    errors = [finding.detail for finding in doctor.diagnose().findings if finding.status == "error"]
    assert any("needs onnxruntime 1.21 or newer, and this is 1.20.1" in detail for detail in errors)


def test_an_emptied_onnxruntime_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninstalling one of two distributions takes files of the other with it."""
    monkeypatch.setattr("importlib.import_module", lambda _: SimpleNamespace())
    errors = [finding.detail for finding in doctor.diagnose().findings if finding.status == "error"]
    assert any("the package onnxruntime has no contents" in detail for detail in errors)


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("ORTFLASH_LIBRARY_DIR", str(tmp_path))
    diagnosis = doctor.diagnose()
    assert not diagnosis.healthy
    assert any(str(tmp_path) in f.detail and "pip install" in f.detail for f in diagnosis.findings)


def test_onnxruntime_with_cuda_beside_a_build_without_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cuda = SimpleNamespace(__version__="1.32.0", get_available_providers=lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(library, "import_onnxruntime", lambda: with_cuda)
    monkeypatch.setattr(library, "build_info", lambda: library.BuildInfo("gcc", ("portable",), ()))
    assert any(f.status == "warning" and "ortflash does not" in f.detail for f in findings("library"))


def test_wrong_numbers_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_expected", lambda *inputs: np.full(inputs[0].shape, 0.5))
    (finding,) = findings("call (CPU")
    assert finding.status == "error"
    assert "largest error" in finding.detail
