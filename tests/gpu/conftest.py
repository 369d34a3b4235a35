"""Everything here needs an NVIDIA GPU, PyCUDA and a library built for that GPU; elsewhere it isn't collected."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # device; cases, compare, strategies


def _missing() -> str:
    """What is not here, or nothing."""
    try:
        if int(ctypes.CDLL("libcuda.so.1").cuInit(0)) != 0:
            return "an NVIDIA GPU"
    except OSError:
        return "an NVIDIA GPU"
    return "" if importlib.util.find_spec("pycuda") else "PyCUDA"


collect_ignore_glob = ["test_*.py"] if _missing() else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder, and let PyTorch's threads find out that PyCUDA has made the context."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"))


@pytest.fixture(scope="session", autouse=True)
def _cuda_context() -> Iterator[None]:
    """The device's primary context, which PyCUDA, the CUDA runtime in our library and ONNX Runtime share."""
    import pycuda.driver as cuda

    cuda.init()
    context = cuda.Device(0).retain_primary_context()
    context.push()
    yield
    context.pop()
