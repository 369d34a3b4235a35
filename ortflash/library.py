"""Where the built libraries lie, and what they were built for."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

from . import core
from .errors import LibraryError, MissingExtraError, OnnxRuntimeError

LIBRARY_NAME = "libortflash_ort.so"

OLDEST_ONNXRUNTIME = (1, 21)
"""The C interface that the library asks for; ``kApiVersion`` in ``plugin_src/onnxruntime/api.h``."""

ONNXRUNTIME_DISTRIBUTIONS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-training",
)
"""Distributions that all bring the one package ``onnxruntime`` and overwrite each other."""


@dataclass(frozen=True)
class BuildInfo:
    """What the libraries were built as."""

    compiler: str
    cpu: tuple[str, ...]
    """Instruction sets of the CPU implementation, the fastest first."""
    cuda: tuple[str, ...]
    """GPU architectures, such as ``90a-real``; empty where the CUDA part was not built."""


def get_library_path() -> str:
    """Path of the custom-op library, for ``SessionOptions.register_custom_ops_library``.

    It lies beside the core's library, which :func:`ortflash.core.library_path` finds.

    Raises:
        LibraryError: the library was not built.
    """
    folder = Path(os.environ.get(core.LIBRARY_DIR_VARIABLE) or Path(__file__).resolve().parent / "lib")
    path = folder / LIBRARY_NAME
    if not path.is_file():
        raise LibraryError(f"{path} is missing; build it with `pip install .` in the checkout, or reinstall ortflash")
    return str(path)


@cache
def build_info() -> BuildInfo:
    """What the libraries were built as.

    Raises:
        OrtflashError: the core's library was not built, or does not load on this machine.
    """
    facts = core.library().build_info()
    return BuildInfo(
        compiler=facts["compiler"],
        cpu=tuple(facts["cpu"].split(",")),
        cuda=() if facts["cuda"] == "none" else tuple(facts["cuda"].split(",")),
    )


def import_onnxruntime() -> ModuleType:
    """The ``onnxruntime`` package, where it is one that runs our library.

    Raises:
        MissingExtraError: it is not installed.
        OnnxRuntimeError: it is broken, or older than :data:`OLDEST_ONNXRUNTIME`.
    """
    try:
        onnxruntime = importlib.import_module("onnxruntime")
        version: str = onnxruntime.__version__
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise MissingExtraError("onnxruntime", "cpu") from error
    except AttributeError as error:  # a folder with nothing in it is left where one of two distributions is removed
        installed = ", ".join(f"{name} {version}" for name, version in onnxruntime_distributions().items()) or "none"
        raise OnnxRuntimeError(
            f"the package onnxruntime has no contents (distributions installed: {installed}); "
            "uninstall all of them, then install one: pip install 'ortflash[cpu]' or 'ortflash[gpu]'"
        ) from error
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_ONNXRUNTIME:
        oldest = ".".join(map(str, OLDEST_ONNXRUNTIME))
        raise OnnxRuntimeError(
            f"ortflash needs onnxruntime {oldest} or newer, and this is {version}; "
            f"upgrade it with: pip install 'onnxruntime>={oldest}'"
        )
    return onnxruntime


def onnxruntime_distributions() -> dict[str, str]:
    """Installed distributions of the package ``onnxruntime``, name -> version; more than one is a clash."""
    found = {}
    for name in ONNXRUNTIME_DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
