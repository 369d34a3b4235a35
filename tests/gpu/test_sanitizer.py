"""compute-sanitizer over each kernel and feature: no bad access, no race, nothing read that nobody wrote."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TARGET = Path(__file__).with_name("sanitize_target.py")


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_sanitizer_finds_nothing(tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer isn't installed (it comes with the CUDA toolkit)")
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--kernel-name", "kernel_substring=ortflash"]
    done = subprocess.run([*command, sys.executable, str(TARGET)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout or "RACECHECK SUMMARY: 0 hazards" in done.stdout
