"""What a figure was measured on: processor, GPU, driver, versions, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import subprocess
from pathlib import Path

_PACKAGES = ("ortflash", "onnxruntime", "onnxruntime-gpu", "torch", "flash-attn-4")


def describe_machine(device: str, threads: int | None = None) -> dict[str, str]:
    """Label -> value, in the order in which a table's caption gives them."""
    found: dict[str, str] = {}
    if device == "cuda":
        found.update(_gpu())
    else:
        found["processor"] = f"{_processor()}, {threads or os.cpu_count()} threads"
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if device == "cuda" and "torch" in found:
        import torch

        found["CUDA"], found["cuDNN"] = str(torch.version.cuda), _dotted(torch.backends.cudnn.version())
    found["date"] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return found


def clocks() -> str:
    """The GPU's SM clock and power right now, such as ``1980 MHz, 410 W``; empty where nvidia-smi isn't there."""
    return ", ".join(_query_gpu("clocks.sm", "power.draw").values())


def _gpu() -> dict[str, str]:
    found = _query_gpu("name", "driver_version")
    return {"GPU": found["name"], "driver": found["driver_version"]} if found else {}


def _query_gpu(*fields: str) -> dict[str, str]:
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, (value.strip() for value in done.stdout.split(",")), strict=True))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def _dotted(version: int | None) -> str:
    """91900 -> 9.19.0."""
    return "none" if version is None else f"{version // 10000}.{version // 100 % 100}.{version % 100}"
