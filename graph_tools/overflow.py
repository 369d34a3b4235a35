"""Repair masks that a conversion to fp16 broke: ``(1 - mask) * -inf``, which is NaN wherever the mask is 1.

An fp32 model multiplies by a large number, -3.4e38 say; converted to fp16 that number is -inf, and 0 * -inf is NaN for
every token that isn't masked. The repair puts the type's lowest finite value in its place, for these products only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from .edits import SiteEdit
from .external_data import values_of
from .names import Names
from .scopes import Scope, all_names, all_scopes

_MOVES = ("Cast", "CastLike", "Expand", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
"""Operators whose first output has the values of their first input, or some of them."""


def repair_masks(model: ModelProto, edits: Sequence[SiteEdit], *, folder: Path | None = None) -> list[str]:
    """Change ``model`` where a mask that one of ``edits`` reads is such a product; a sentence for each repair.

    ``folder`` is where the model's external data lies.
    """
    scopes = {scope.path: scope for scope in all_scopes(model)}
    repaired: dict[str, str] = {}
    for edit in edits:
        scope = scopes.get(edit.site.graph)
        form = edit.site.form
        if scope is None or form is None or not isinstance(scope.root.container, GraphProto):
            continue
        tables = _tables(scope)
        for term in form.terms:
            node = _source(term.tensor.name, tables[0])
            if node is not None and node.op_type == "Mul" and node.output[0] not in repaired:
                sentence = _repair(model, scope.root.container, node, tables, folder)
                if sentence:
                    repaired[node.output[0]] = sentence
    return list(repaired.values())


def _repair(
    model: ModelProto,
    graph: GraphProto,
    node: NodeProto,
    tables: tuple[Mapping[str, NodeProto], Mapping[str, TensorProto]],
    folder: Path | None,
) -> str:
    """Give one Mul a finite constant where it has an infinite one beside ``1 - mask``; the sentence that says so."""
    producers, constants = tables
    for index, name in enumerate(node.input):
        value = _scalar(name, producers, constants, folder)
        other = _source(node.input[1 - index], producers)
        if value is None or not np.isinf(value.astype(np.float64)) or other is None or other.op_type != "Sub":
            continue
        one = _scalar(other.input[0], producers, constants, folder)
        if one is None or one.astype(np.float64) != 1:
            continue
        limits = ml_dtypes.finfo(value.dtype)  # type: ignore[no-untyped-call]
        finite = np.array(limits.min if value < 0 else limits.max, value.dtype)
        tensor = onnx.numpy_helper.from_array(finite, Names(all_names(model)).fresh(f"{name}_finite"))
        graph.initializer.append(tensor)
        node.input[index] = tensor.name
        return (
            f"Node {node.name or node.output[0]!r} multiplies (1 - mask) by {float(value):g}, which is NaN for every "
            f"token that isn't masked; repaired: it multiplies by {float(finite):g} now."
        )
    return ""


def _tables(scope: Scope) -> tuple[dict[str, NodeProto], dict[str, TensorProto]]:
    """Producers and constants that the scope sees, those of the scopes around it included."""
    producers: dict[str, NodeProto] = {}
    constants: dict[str, TensorProto] = {}
    level: Scope | None = scope
    while level is not None:
        for node in level.container.node:
            for name in node.output:
                producers.setdefault(name, node)
        if isinstance(level.container, GraphProto):
            for tensor in level.container.initializer:
                constants.setdefault(tensor.name, tensor)
        level = level.parent
    return producers, constants


def _source(name: str, producers: Mapping[str, NodeProto]) -> NodeProto | None:
    """The node that computes a tensor's values, past those that only move them."""
    node = producers.get(name)
    while node is not None and node.op_type in _MOVES and node.input:
        node = producers.get(node.input[0])
    return node


def _scalar(
    name: str,
    producers: Mapping[str, NodeProto],
    constants: Mapping[str, TensorProto],
    folder: Path | None,
) -> npt.NDArray[Any] | None:
    """The one element of a constant, in its own type; None where the tensor isn't one."""
    tensor = constants.get(name)
    node = producers.get(name)
    if tensor is None and node is not None and node.op_type == "Constant":
        tensor = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
    if tensor is None or int(np.prod(tensor.dims)) != 1:
        return None
    value = values_of(tensor, folder).reshape(())
    return value if value.dtype.kind == "f" or value.dtype.name == "bfloat16" else None
