"""What the TensorRT tests share: the built plugins, the drivers, and pip's TensorRT-RTX, which builds without a GPU."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from driver import Driver, build_driver
from releases import installed

from ortflash.engine import runtime
from ortflash.errors import LibraryError

RTX_VERSION = "1.7.1.116"


def _plugin(major: int) -> str:
    try:
        return runtime.get_trt_plugin_path(tensorrt_major=major)
    except LibraryError as error:
        pytest.skip(str(error))


def _copy(library: str, folder: Path) -> Path:
    """A library of the driver's own: one library has one log, and the real TensorRT may be in this process too."""
    return Path(shutil.copy(library, folder))


@pytest.fixture(scope="session")
def plugin_v3() -> str:
    """Path of the plugin for TensorRT 10 and newer."""
    return _plugin(10)


@pytest.fixture(scope="session")
def plugin_v2() -> str:
    """Path of the plugin for TensorRT 8.6."""
    return _plugin(8)


@pytest.fixture(scope="session")
def driver_v3(plugin_v3: str, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """Somebody in the place of TensorRT 10."""
    folder = tmp_path_factory.mktemp("driver")
    return Driver(build_driver(3, folder), _copy(plugin_v3, folder), tensorrt_version=100000)


@pytest.fixture(scope="session")
def driver_v2(plugin_v2: str, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """Somebody in the place of TensorRT 8.6."""
    folder = tmp_path_factory.mktemp("driver")
    return Driver(build_driver(2, folder), _copy(plugin_v2, folder), tensorrt_version=8600)


@pytest.fixture(scope="session")
def rtx_folder() -> Path:
    """A folder with TensorRT-RTX for this Python, downloaded once (95 MB); skips where it can't be had."""
    return installed("tensorrt-rtx", RTX_VERSION, f"tensorrt-rtx=={RTX_VERSION}")


@pytest.fixture(scope="session")
def rtx(rtx_folder: Path, plugin_v3: str) -> Iterator[ModuleType]:
    """TensorRT-RTX in this process, with our plugin loaded."""
    sys.path.append(str(rtx_folder))
    yield runtime.load_trt_plugin(runtime.import_tensorrt("rtx"))
    sys.path.remove(str(rtx_folder))
