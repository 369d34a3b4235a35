"""`import ortflash`: what it exports, and that it stays cheap."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ortflash
from ortflash import errors

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ortflash.__all__)
def test_every_export_is_there(name: str) -> None:
    assert getattr(ortflash, name) is not None
    assert name in dir(ortflash)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'ortflash' has no attribute 'rewite'"):
        _ = ortflash.rewite


def test_importing_it_loads_nothing_heavy() -> None:
    script = "import sys, ortflash; print([m for m in ('onnx', 'onnxruntime', 'numpy', 'typer') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_errors_have_one_base() -> None:
    raised = [getattr(errors, name) for name in errors.__all__]
    assert all(issubclass(error, ortflash.OrtflashError) for error in raised)


def test_a_missing_extra_is_named_with_its_command() -> None:
    script = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "import ortflash\n"
        "try: ortflash.InferenceSession\n"
        "except ortflash.OrtflashError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "onnxruntime is not installed; install it with: pip install 'ortflash[cpu]'"


def test_the_version_is_the_project_s() -> None:
    declared = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared
    assert ortflash.__version__ == declared[1]
