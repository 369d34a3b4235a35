"""What an engine of TensorRT-RTX holds for our plugin, read from the file: opening an engine takes a GPU."""

from __future__ import annotations

import struct

from driver import FIELD_CHAR, FIELD_FLOAT32, FIELD_INT64, Field

_SIZES = {FIELD_CHAR: 1, FIELD_FLOAT32: 4, FIELD_INT64: 8}


def stored_fields(plan: bytes) -> list[list[Field]]:
    """The fields of each plugin, in the order of the file.

    Seen in TensorRT-RTX 1.7.1: a run of records, each the length of the name with its zero (32 bits), the name, the
    type and the number of elements (32 bits each), the elements.
    """
    start = struct.pack("<i", len("num_heads") + 1) + b"num_heads\0"
    found = []
    position = plan.find(start)
    while position >= 0:
        fields, end = _records(plan, position)
        found.append(fields)
        position = plan.find(start, end)
    return found


def _records(plan: bytes, position: int) -> tuple[list[Field], int]:
    fields: list[Field] = []
    while True:
        (length,) = struct.unpack_from("<i", plan, position)
        name = plan[position + 4 : position + 4 + max(0, length)]
        if not 2 <= length <= 32 or not name.endswith(b"\0") or not name[:-1].replace(b"_", b"").isalpha():
            return fields, position
        position += 4 + length
        kind, count = struct.unpack_from("<ii", plan, position)
        size = _SIZES[kind] * count
        position += 8
        fields.append(Field(name[:-1].decode(), kind, plan[position : position + size], count))
        position += size
