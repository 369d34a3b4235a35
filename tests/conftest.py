"""Shared by all tests: hypothesis profiles, and the skips that markers stand for."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import HealthCheck, settings

_SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile(
    "default", max_examples=30, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile("nightly", max_examples=2000, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.load_profile("default")


def has_gpu() -> bool:
    """Whether an NVIDIA driver is here and starts."""
    try:
        return int(ctypes.CDLL("libcuda.so.1").cuInit(0)) == 0
    except OSError:
        return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if has_gpu():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))
