"""Releases of TensorRT from the package index, each in a folder of its own, so that no environment changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[2] / ".cache"


def installed(name: str, version: str, *requirements: str) -> Path:
    """A folder with these requirements for this Python, downloaded once; skips the test where they can't be had."""
    folder = CACHE / name / f"{version}-py{sys.version_info.major}.{sys.version_info.minor}"
    if (folder / "complete").is_file():
        return folder
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", str(unfinished)]
    result = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        pytest.skip(f"{name} {version} can't be installed here: {result.stderr.strip().splitlines()[-1]}")
    (unfinished / "complete").touch()
    if folder.exists():  # another worker was faster
        shutil.rmtree(unfinished)
    else:
        unfinished.rename(folder)
    return folder
