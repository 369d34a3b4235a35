"""Write a model of a gigabyte without a second copy of it in memory.

``SerializeToString`` builds the whole file as one string, and grows it by doubling. Here the file is written field by
field instead, each initializer on its own. The bytes come out the same.
"""

from __future__ import annotations

import math
from typing import IO, Any

from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import GraphProto, ModelProto, TensorProto

LARGE_BYTES = 1 << 29
"""From here on a model is worth streaming."""

LIMIT_BYTES = (1 << 31) - 1
"""No protobuf message can be longer."""

_LENGTH_BYTES = 5
"""What the length of a graph takes as a varint: 5 bytes from 2**28 on, which every large graph passes."""


def is_large(model: ModelProto) -> bool:
    """Whether the model's own file has to hold :data:`LARGE_BYTES` or more, going by its initializers."""
    inline = (tensor for tensor in model.graph.initializer if tensor.data_location != TensorProto.EXTERNAL)
    size = sum(len(tensor.raw_data) for tensor in inline if math.prod(tensor.dims) > 1024)
    return size >= LARGE_BYTES


def write_model(model: ModelProto, file: IO[bytes]) -> None:
    """Write a large model to a seekable file; ValueError where it passes :data:`LIMIT_BYTES`.

    A field that this version of onnx doesn't know, at the top of the model or of its graph, is written by protobuf
    itself, in one piece.
    """
    if len(UnknownFieldSet(model)) or len(UnknownFieldSet(model.graph)):
        file.write(model.SerializeToString())
        return
    graph_number = ModelProto.DESCRIPTOR.fields_by_name["graph"].number
    initializer_number = GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
    file.write(_fields(model, 0, graph_number))
    file.write(_tag(graph_number) + bytes(_LENGTH_BYTES))
    start = file.tell()
    file.write(_fields(model.graph, 0, initializer_number))
    for tensor in model.graph.initializer:
        data = tensor.SerializeToString()
        file.write(_tag(initializer_number) + _varint(len(data)))
        file.write(data)
    file.write(_fields(model.graph, initializer_number, 1 << 29))
    length = _varint(file.tell() - start)
    if len(length) != _LENGTH_BYTES:
        raise AssertionError(f"a large graph has {file.tell() - start} bytes")
    file.write(_fields(model, graph_number, 1 << 29))
    if file.tell() > LIMIT_BYTES:
        raise ValueError(f"the model has {file.tell()} bytes")
    file.seek(start - _LENGTH_BYTES)
    file.write(length)


def _fields(message: Any, after: int, before: int) -> bytes:
    """The message's fields with numbers strictly between these two, as they stand in its serialised form."""
    part = type(message)()
    for field, value in message.ListFields():
        if after < field.number < before:
            target = getattr(part, field.name)
            if hasattr(value, "MergeFrom") or hasattr(value, "extend"):
                target.MergeFrom(value)
            else:
                setattr(part, field.name, value)
    return bytes(part.SerializeToString())


def _tag(number: int) -> bytes:
    """Of a field that is written with its length."""
    return _varint(number << 3 | 2)


def _varint(value: int) -> bytes:
    groups = []
    while True:
        value, low = value >> 7, value & 0x7F
        groups.append(low | (0x80 if value else 0))
        if not value:
            return bytes(groups)
