"""Run a ModelProto in ONNX Runtime on the CPU, with the fused op where its library is built."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import LibraryError, OrtflashError
from .library import get_library_path, import_onnxruntime

if TYPE_CHECKING:
    from onnx import ModelProto

Values = dict[str, npt.NDArray[Any]]

_FATAL_ONLY = 4


def run_model(
    model: ModelProto,
    feed: Mapping[str, npt.NDArray[np.generic]],
    outputs: Sequence[str] | None = None,
    *,
    folder: Path | None = None,
    optimise: bool = True,
) -> Values:
    """Run a model once; output name -> array.

    ``folder`` is where its external data lies. Raises OrtflashError where ONNX Runtime doesn't take the model or the
    inputs, with the first line of what it says.
    """
    return run_session(create_session(model, folder=folder, optimise=optimise), feed, outputs)


def run_session(
    session: Any, feed: Mapping[str, npt.NDArray[np.generic]], outputs: Sequence[str] | None = None
) -> Values:
    """The same with a session, which can be run again."""
    names = list(outputs) if outputs is not None else [output.name for output in session.get_outputs()]
    known = {value.name for value in session.get_inputs()}
    try:
        results = session.run(names, {name: array for name, array in feed.items() if name in known})
    except Exception as error:  # its exceptions share no base but Exception
        raise OrtflashError(f"ONNX Runtime can't run the model on these inputs: {first_line(error)}") from None
    return dict(zip(names, results, strict=True))


def create_session(model: ModelProto | bytes, *, folder: Path | None = None, optimise: bool = True) -> Any:
    """An ``onnxruntime.InferenceSession`` on the CPU."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if folder is not None and not isinstance(model, bytes):
        from .graph_tools.external_data import links_followed

        model, folder = links_followed(model, folder)
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    library = library_path()
    if library is not None:
        options.register_custom_ops_library(library)
    with _loadable(model) as path_or_bytes:
        try:
            return onnxruntime.InferenceSession(path_or_bytes, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions share no base but Exception
            raise OrtflashError(f"ONNX Runtime doesn't load the model: {first_line(error)}") from None


@contextmanager
def _loadable(model: ModelProto | bytes) -> Iterator[bytes | str]:
    """The model as ONNX Runtime takes it: as bytes, or where it is large in a file, so that it isn't held twice."""
    if isinstance(model, bytes):
        yield model
        return
    from .graph_tools.stream import is_large, write_model

    if not is_large(model):
        yield model.SerializeToString()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        with path.open("wb") as file:
            write_model(model, file)
        yield str(path)


def library_path() -> str | None:
    """The built operator library; None where there is none, and the file's own function body does the work."""
    try:
        return get_library_path()
    except LibraryError:
        return None


def first_line(error: BaseException) -> str:
    """What an error says, without its stack of notes."""
    text = str(error).strip().splitlines()
    return text[0][:500] if text else type(error).__name__
