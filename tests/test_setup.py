"""Setting up: one sentence where something is missing, and where ONNX Runtime's headers come from."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


# ------------------------------------------------------------------------------------------------------ setup_venv.sh
def set_up(folder: Path, **environment: str) -> str:
    """The message of setup_venv.sh, run with a PATH of its few needs and a stand-in for Python; it must fail."""
    for name in ("sh", "tr", "sed", "dirname", "cksum", "cat"):
        (folder / name).symlink_to(str(shutil.which(name)))
    result = subprocess.run(
        [ROOT / "scripts/setup_venv.sh"],
        env={"PATH": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def stand_in(path: Path, script: str) -> str:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path.name


def test_no_python(tmp_path: Path) -> None:
    assert set_up(tmp_path, PYTHON="python7") == (
        "ortflash: python7 was not found: install Python 3.10 or newer, or set PYTHON to one."
    )


def test_old_python(tmp_path: Path) -> None:
    old = stand_in(tmp_path / "old", 'case "$1" in --version) echo Python 3.8.2;; *) exit 1;; esac')
    assert set_up(tmp_path, PYTHON=old) == (
        "ortflash: Python 3.8.2 is too old: install Python 3.10 or newer, or set PYTHON to one."
    )


def test_python_without_venv(tmp_path: Path) -> None:
    bare = stand_in(tmp_path / "bare", 'case "$2" in *venv*) exit 1;; esac')
    assert set_up(tmp_path, PYTHON=bare) == (
        "ortflash: bare has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv)."
    )


def test_no_compiler(tmp_path: Path) -> None:
    fine = stand_in(tmp_path / "fine", "exit 0")
    assert set_up(tmp_path, PYTHON=fine) == (
        "ortflash: no C++ compiler was found: install one (Debian, Ubuntu: apt-get install g++), or set CXX."
    )


# ------------------------------------------------------------------------------------- fetch_onnxruntime_headers.py
@pytest.fixture
def fetcher() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("fetcher", ROOT / "cmake/fetch_onnxruntime_headers.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_header(folder: Path, version: int) -> None:
    (folder / "onnxruntime_c_api.h").write_text(f"#pragma once\n#define ORT_API_VERSION {version}\n")


def test_headers_that_are_there_are_kept(tmp_path: Path) -> None:
    write_header(tmp_path, 21)
    script = ROOT / "cmake/fetch_onnxruntime_headers.py"
    result = subprocess.run([sys.executable, script, tmp_path], env={"PATH": ""}, check=False)
    assert result.returncode == 0
    assert os.listdir(tmp_path) == ["onnxruntime_c_api.h"]


def test_the_first_place_that_works_is_taken(
    fetcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_: Path) -> None:
        raise fetcher.UnavailableError("no network")

    monkeypatch.setattr(fetcher, "from_release_archive", unreachable)
    monkeypatch.setattr(fetcher, "from_debian_mirror", lambda out: write_header(out, 21))
    assert fetcher.fetch(tmp_path / "out") is None
    assert fetcher.api_version(tmp_path / "out") == 21


def test_what_is_missing_is_one_sentence(fetcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(_: Path) -> None:
        raise fetcher.UnavailableError("no network")

    monkeypatch.setattr(fetcher, "from_release_archive", unreachable)
    monkeypatch.setattr(fetcher, "from_debian_mirror", lambda out: write_header(out, 20))
    sentence = fetcher.fetch(tmp_path / "out")
    assert sentence == (
        "ONNX Runtime's C headers (API version 21, release 1.21.0) were not found: no network; Debian's package has "
        "headers of API version 20: install libonnxruntime-dev 1.21.0 or set ONNXRUNTIME_INCLUDE_DIR to the folder "
        "that has onnxruntime_c_api.h."
    )
    assert not (tmp_path / "out").exists()


def test_a_machine_without_apt_is_told(fetcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(fetcher.UnavailableError, match="this machine has no apt"):
        fetcher.from_debian_mirror(tmp_path)
