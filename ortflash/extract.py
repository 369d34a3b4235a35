"""Cut a piece out of a model so that it can run alone.

A piece reaches from given border tensors to some outputs. What else it needs is taken along: constants as they are,
other tensors as inputs (:attr:`Piece.extra_inputs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    ValueInfoProto,
)

from .graph_tools.external_data import load_data
from .graph_tools.scopes import all_scopes, subgraphs

_SHAPE_OPS = ("Shape", "Size")


@dataclass(frozen=True)
class Piece:
    """The nodes between a border and some outputs, in the order of the graph."""

    nodes: tuple[NodeProto, ...]
    initializers: tuple[TensorProto, ...]
    border: tuple[str, ...]
    extra_inputs: tuple[str, ...]
    """Tensors outside the border that the piece reads: inputs of the scope, and shapes."""
    outputs: tuple[str, ...]
    opset_import: tuple[OperatorSetIdProto, ...]


class Cutter:
    """Cuts pieces out of one model; looks at each of its graphs once."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.scopes = {scope.path: scope for scope in all_scopes(model)}
        self._tables: dict[str, _Table] = {}

    def cut(self, path: str, border: Iterable[str], outputs: Iterable[str], *, shapes: bool = True) -> Piece:
        """The piece of the scope at ``path``, and of those around it, that computes ``outputs`` from ``border``.

        With ``shapes`` the piece begins at the results of Shape ops that look at something outside the border; without,
        it reaches back to the inputs of the model, or of the function, Loop or Scan body.
        """
        table = self._table(path)
        border, outputs = tuple(dict.fromkeys(border)), tuple(dict.fromkeys(outputs))
        is_outside = _Outside(table, border)
        nodes: dict[int, NodeProto] = {}
        used: dict[str, TensorProto] = {}
        extra: list[str] = []
        todo, seen = list(outputs), {*border, ""}
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in table.constants:
                used[name] = table.constants[name]
            elif name not in table.producers:
                extra.append(name)
            else:
                index, node = table.producers[name]
                if shapes and node.op_type in _SHAPE_OPS and is_outside(node.input[0]):
                    extra.append(name)
                else:
                    nodes[index] = node
                    todo += _reads(node)
        root = self.scopes[path].root.container
        return Piece(
            nodes=tuple(nodes[index] for index in sorted(nodes)),
            initializers=tuple(used.values()),
            border=border,
            extra_inputs=tuple(extra),
            outputs=outputs,
            opset_import=tuple(root.opset_import if isinstance(root, FunctionProto) else self.model.opset_import),
        )

    def sources(self, path: str, names: Iterable[str]) -> set[str]:
        """The tensors that ``names`` are computed from, themselves included; without constants and sizes."""
        table = self._table(path)
        found: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            entry = table.producers.get(name)
            is_size = entry is not None and entry[1].op_type in _SHAPE_OPS
            if not name or name in found or is_size or name in table.constants:
                continue
            found.add(name)
            todo += _reads(entry[1]) if entry is not None else []
        return found

    def follows_inputs(self, path: str, name: str) -> bool:
        """Whether the tensor's values depend on those of an input, rather than on constants and sizes alone."""
        producers = self._table(path).producers
        return any(source not in producers for source in self.sources(path, [name]))

    def _table(self, path: str) -> _Table:
        if path not in self._tables:
            levels = [self.scopes[path]]
            while levels[0].parent is not None:
                levels.insert(0, levels[0].parent)
            table = _Table({}, {})
            for level in levels:
                for node in level.container.node:
                    entry = (len(table.producers), node)
                    table.producers.update({name: entry for name in node.output if name})
                if isinstance(level.container, GraphProto):
                    table.constants.update({tensor.name: tensor for tensor in level.container.initializer})
            self._tables[path] = table
        return self._tables[path]


def standalone(
    piece: Piece,
    model: ModelProto,
    feed: Mapping[str, npt.NDArray[np.generic]],
    *,
    folder: Path | None = None,
) -> ModelProto:
    """A model that runs the piece on ``feed``, which must hold its border and extra inputs.

    ``folder`` is where the model's external data lies; what the piece needs of it is read.
    """
    graph = GraphProto(name="piece")
    graph.node.extend(piece.nodes)
    graph.initializer.extend(piece.initializers)
    for tensor in graph.initializer:
        load_data(tensor, folder)
    for name in dict.fromkeys((*piece.border, *piece.extra_inputs)):
        elem_type = onnx.helper.np_dtype_to_tensor_dtype(feed[name].dtype)
        graph.input.append(onnx.helper.make_tensor_value_info(name, elem_type, feed[name].shape))
    graph.output.extend(ValueInfoProto(name=name) for name in piece.outputs)
    return ModelProto(
        ir_version=model.ir_version,
        opset_import=piece.opset_import,
        functions=model.functions,
        graph=graph,
    )


@dataclass(frozen=True)
class _Table:
    """What a scope sees, the scopes around it included."""

    producers: dict[str, tuple[int, NodeProto]]
    """Tensor -> the node that writes it, and its place in the order of all nodes."""
    constants: dict[str, TensorProto]


class _Outside:
    """Whether a tensor depends on something that is neither constant nor on the border."""

    def __init__(self, table: _Table, border: Iterable[str]) -> None:
        self._producers = table.producers
        self._known = dict.fromkeys([*table.constants, *border, ""], False)

    def __call__(self, name: str) -> bool:
        todo = [name]
        while todo:
            current = todo[-1]
            entry = self._producers.get(current)
            if current in self._known:
                todo.pop()
            elif entry is None:
                self._known[current] = True
            else:
                reads = _reads(entry[1])
                missing = [read for read in reads if read not in self._known]
                if missing:
                    todo += missing
                else:
                    self._known[current] = any(self._known[read] for read in reads)
        return self._known[name]


def _reads(node: NodeProto) -> list[str]:
    """What a node reads, its bodies' captures included."""
    reads = list(node.input)
    for _, graph in subgraphs(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        own |= {name for inner in graph.node for name in inner.output}
        reads += [name for inner in graph.node for name in _reads(inner) if name not in own]
        reads += [value.name for value in graph.output if value.name not in own]
    return reads
