"""Model files whose weights may lie elsewhere: load without the weights, save without moving them.

A tensor with external data names a file beside the model (``location``), an ``offset`` and a ``length``. Nothing here
reads or writes those bytes; a model of any size loads and saves in the time and memory of its graph.
"""

from __future__ import annotations

import filecmp
import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from .errors import InvalidModelError
from .scopes import all_scopes
from .stream import is_large, write_model


def load_model(path: str | os.PathLike[str]) -> ModelProto:
    """Read the graph of a model file; weights in other files stay where they are, and their paths are checked.

    Raises InvalidModelError where the file is missing, isn't a model, or names weights outside its own folder.
    """
    path = Path(path)
    try:
        data = _contents(path)
    except FileNotFoundError:
        raise InvalidModelError(f"There is no file {path}.") from None
    except OSError as error:
        raise InvalidModelError(f"Can't read {path}: {error.strerror}.") from None
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise InvalidModelError(f"{path} is not an ONNX model, or is cut short: its bytes don't parse.") from None
    if not model.HasField("graph"):
        raise InvalidModelError(f"{path} is not an ONNX model: it holds no graph.")
    check_locations(model, path)
    return model


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model whose bytes lie in another file."""
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            yield tensor


def location_of(tensor: TensorProto) -> str:
    """The file name that a tensor with external data gives, relative to the model's folder; "" where it has none."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def load_data(tensor: TensorProto, folder: Path | None) -> None:
    """Take a tensor's external data into it; onnx itself follows no links."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return
    file = ((folder or Path()) / location_of(tensor)).resolve()
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = file.name
    onnx.external_data_helper.load_external_data_for_tensor(tensor, str(file.parent))
    tensor.data_location = TensorProto.DEFAULT
    tensor.ClearField("external_data")


def values_of(tensor: TensorProto, folder: Path | None) -> npt.NDArray[Any]:
    """A tensor's elements, wherever they lie."""
    if tensor.data_location == TensorProto.EXTERNAL:
        copy = TensorProto()
        copy.CopyFrom(tensor)
        load_data(copy, folder)
        tensor = copy
    return onnx.numpy_helper.to_array(tensor)


def check_locations(model: ModelProto, path: Path) -> None:
    """Raise InvalidModelError where external data isn't inside the model's own folder."""
    for tensor in external_tensors(model):
        location = location_of(tensor)
        parts = PurePosixPath(location).parts + PureWindowsPath(location).parts
        absolute = PurePosixPath(location).is_absolute() or bool(PureWindowsPath(location).anchor)
        if not location or absolute or ".." in parts:
            raise InvalidModelError(
                f"{path}: tensor {tensor.name!r} keeps its data in {location!r}, which is outside the model's folder; "
                f"external data must lie beside the model."
            )


def check_data(model: ModelProto, folder: Path) -> None:
    """Raise InvalidModelError where a file of external data isn't in ``folder``, or ends before a tensor does."""
    sizes: dict[str, int | None] = {}
    for tensor in external_tensors(model):
        location = location_of(tensor)
        if location not in sizes:
            file = folder / location
            sizes[location] = file.stat().st_size if file.is_file() else None
        size = sizes[location]
        if size is None:
            raise InvalidModelError(
                f"Tensor {tensor.name!r} keeps its data in {location!r}, and there is no such file in {folder}: "
                "put it beside the model."
            )
        numbers = {entry.key: entry.value for entry in tensor.external_data if entry.value.isdigit()}
        end = int(numbers.get("offset", 0)) + int(numbers.get("length", 0))
        if end > size:
            raise InvalidModelError(
                f"Tensor {tensor.name!r} keeps its data in {location!r} up to byte {end:,}, and the file has {size:,}: "
                "it is cut short, or belongs to another model."
            )


def save_model(
    model: ModelProto, path: str | os.PathLike[str], *, data_folder: Path | None = None, copy_data: bool = False
) -> None:
    """Write a model beside its final place and rename it, so that a half-written file never stands there.

    ``data_folder`` is where the external data lies. Data stays where it is: a ``path`` in another folder is refused,
    unless ``copy_data`` asks to copy the data files beside it.
    """
    path = Path(path)
    _check_folder(path)
    _move_data(model, data_folder, path, copy_data=copy_data)
    try:
        with _replacing(path) as temporary, temporary.open("wb") as file:
            if is_large(model):
                write_model(model, file)
            else:
                file.write(model.SerializeToString())
    except (EncodeError, ValueError):
        raise InvalidModelError(f"{path} would be larger than 2 GiB, and one ONNX file can't be.") from None


def copy_model(model: ModelProto, source: Path, target: Path, *, copy_data: bool = False) -> None:
    """Copy the file that ``model`` was read from, byte for byte; its external data as in :func:`save_model`."""
    _check_folder(target)
    _move_data(model, source.parent, target, copy_data=copy_data)
    copy_file(source, target)


def _move_data(model: ModelProto, data_folder: Path | None, path: Path, *, copy_data: bool) -> None:
    """Copy external data beside ``path`` where it lies elsewhere, or refuse to leave it behind."""
    locations = _locations(model)
    if not locations or data_folder is None or data_folder.resolve() == path.parent.resolve():
        return
    if not copy_data:
        raise InvalidModelError(
            f"The model's weights lie in {data_folder}, and {path} would be in another folder: write the output into "
            f"{data_folder}, or ask for the data files to be copied (--copy-data)."
        )
    for location in locations:
        source, target = data_folder / location, path.parent / location
        if target.exists() and source.exists() and not filecmp.cmp(source, target, shallow=False):
            raise InvalidModelError(
                f"Can't copy the weights to {target}: another file has that name; write into an empty folder."
            )
    for location in locations:
        copy_file(data_folder / location, path.parent / location)


def links_out(model: ModelProto, folder: Path) -> list[str]:
    """External data of which the file in ``folder`` is a link to another folder, as in model caches."""
    inside = folder.resolve()
    return [name for name in _locations(model) if not (folder / name).resolve().is_relative_to(inside)]


def links_followed(model: ModelProto, folder: Path) -> tuple[ModelProto, Path]:
    """The model with each link in its external data's paths followed, and the folder that the paths are in then.

    ONNX Runtime refuses data that a link leads to outside of the folder. ``model`` itself where there is no such link.
    """
    if not links_out(model, folder):
        return model, folder
    real = {location: (folder / location).resolve() for location in _locations(model)}
    common = Path(os.path.commonpath([path.parent for path in real.values()]))
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in external_tensors(copy):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = str(real[entry.value].relative_to(common))
    return copy, common


def _locations(model: ModelProto) -> list[str]:
    return sorted({location_of(tensor) for tensor in external_tensors(model)})


def copy_file(source: Path, target: Path) -> None:
    """Copy a file as it is, by way of a temporary name; nothing happens where both are the same file."""
    if target.exists() and target.samefile(source):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    _check_folder(target)
    try:
        with _replacing(target) as temporary:
            shutil.copyfile(source, temporary)
    except FileNotFoundError:
        raise InvalidModelError(f"There is no file {source}, which holds weights of the model.") from None


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    for scope in all_scopes(model):
        if isinstance(scope.container, GraphProto):
            yield from scope.container.initializer
            for sparse in scope.container.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in scope.container.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    yield attribute.t
                elif attribute.type == AttributeProto.TENSORS:
                    yield from attribute.tensors


def _contents(path: Path) -> bytes | memoryview:
    """The file's bytes, mapped where there are any, so that a large file isn't held twice."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise InvalidModelError(f"Can't write {path}: there is no folder {path.parent}.")
    if path.is_dir():
        raise InvalidModelError(f"Can't write {path}: it is a folder.")
    if path.exists() and not path.is_file():
        raise InvalidModelError(f"Can't write {path}: it is a device or a pipe, not a file.")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well, and vanishes when it doesn't."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and str(error.filename) != str(temporary):
            raise  # what would be copied isn't there
        raise InvalidModelError(f"Can't write {path}: {error.strerror}.") from None
    finally:
        temporary.unlink(missing_ok=True)
