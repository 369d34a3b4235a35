"""A read-only view of a model: who produces a tensor, who reads it, and what is known of its type, shape and value.

Built on onnx-graphsurgeon's import, which leaves weights where they lie. One :class:`Scope` holds one list of nodes:
the main graph, the body of an If, Loop or Scan, or a model-local function. Scopes nest as the bodies do, and a name is
looked up from the inside out. Nothing here changes the model.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto, numpy_helper
from onnx_graphsurgeon.logger import G_LOGGER

from .errors import InvalidModelError
from .facts import Fact, Shape
from .symbolic import Value, solve, substitute

STANDARD = ("", "ai.onnx")
"""The names of the standard operator domain."""

MAX_CONSTANT_BYTES = 64 << 20
"""A constant past this size is a weight, not a mask or a shape: its values are never read."""


class NodeView:
    """One node: its operator, attributes, and the names that it reads and writes."""

    __slots__ = ("attributes", "bodies", "domain", "inputs", "name", "op", "outputs", "scope")

    def __init__(self, node: gs.Node, scope: Scope) -> None:
        self.scope = scope
        self.op: str = node.op
        self.domain: str = "" if node.domain in (None, *STANDARD) else node.domain
        self.name: str = node.name
        self.inputs: tuple[str, ...] = tuple(tensor.name for tensor in node.inputs)
        self.outputs: tuple[str, ...] = tuple(tensor.name for tensor in node.outputs)
        self.attributes: Mapping[str, Any] = node.attrs
        self.bodies: dict[str, Scope] = {}

    def __repr__(self) -> str:
        return f"<{self.kind} {self.label}>"

    @property
    def kind(self) -> str:
        """The operator with its domain, as in ``Softmax`` or ``com.microsoft::MultiHeadAttention``."""
        return f"{self.domain}::{self.op}" if self.domain else self.op

    @property
    def label(self) -> str:
        """The node's name, or its first output's where it has none."""
        return self.name or next((name for name in self.outputs if name), self.op)

    @property
    def output(self) -> str:
        """The first output; "" where there is none."""
        return self.outputs[0] if self.outputs else ""

    def input(self, index: int) -> str:
        """The name of an input, "" where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def is_op(self, *ops: str) -> bool:
        """Whether this is one of these operators of the standard domain."""
        return not self.domain and self.op in ops

    def int_attribute(self, name: str, default: int | None = None) -> int | None:
        """An integer attribute; ``None`` where it is absent without a default, or given by a function's caller."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else None

    def float_attribute(self, name: str, default: float | None = None) -> float | None:
        """A float attribute; ``None`` as for :meth:`int_attribute`."""
        value = self.attributes.get(name, default)
        return float(value) if isinstance(value, (int, float)) else None

    def ints_attribute(self, name: str) -> list[int] | None:
        """A list of integers; ``None`` as for :meth:`int_attribute`."""
        value = self.attributes.get(name)
        return [int(item) for item in value] if isinstance(value, (list, tuple)) else None

    def text_attribute(self, name: str, default: str = "") -> str | None:
        """A string attribute; ``None`` as for :meth:`int_attribute`."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, str) else None


class Scope:
    """One list of nodes with the tensors that it defines, and the scope around it."""

    def __init__(self, view: GraphView, path: str, parent: Scope | None, opset: int) -> None:
        self.view = view
        self.path = path
        """"" for the main graph, ``"If_3/then_branch"`` for a body, ``"function domain::Name"`` for a function."""
        self.parent = parent
        self.opset = opset
        self.nodes: list[NodeView] = []
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.constants: dict[str, TensorProto] = {}
        self.sparse_constants: set[str] = set()
        self.facts: dict[str, Fact] = {}
        self.memo: dict[Hashable, Any] = {}
        """For whoever looks at one scope many times: what was found already."""
        self._producers: dict[str, NodeView] = {}
        self._consumers: dict[str, list[NodeView]] = {}
        self._declared: dict[str, Fact] = {}
        self._captured: set[str] = set()

    # ------------------------------------------------------------------------------------------------- structure

    def home(self, name: str) -> Scope | None:
        """The scope that defines ``name``: this one or one around it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._producers or name in scope.constants or name in scope._input_set:
                return scope
            scope = scope.parent
        return None

    @property
    def _input_set(self) -> frozenset[str]:
        cached = self.__dict__.get("_inputs_cache")
        if cached is None:
            cached = self.__dict__["_inputs_cache"] = frozenset(self.inputs)
        return cached

    def producer(self, name: str) -> NodeView | None:
        """The node that writes ``name``, in this scope or one around it."""
        found = self._producers.get(name)
        if found is not None or self.parent is None or name in self.constants or name in self._input_set:
            return found
        return self.parent.producer(name)

    def consumers(self, name: str) -> list[NodeView]:
        """Every node that reads ``name``, nodes of inner bodies included."""
        home = self.home(name) or self
        return home._consumers.get(name, [])

    def is_output(self, name: str) -> bool:
        """Whether the scope that defines ``name`` hands it out."""
        home = self.home(name) or self
        return name in home.outputs or name in home._captured

    def declared(self, name: str) -> Fact | None:
        """What the file itself says of ``name`` (a graph input's type, or value_info, which may be wrong)."""
        return self._declared.get(name)

    def walk(self) -> Iterator[Scope]:
        """This scope and every body inside it."""
        yield self
        for node in self.nodes:
            for body in node.bodies.values():
                yield from body.walk()

    # ----------------------------------------------------------------------------------------------------- facts

    def fact(self, name: str) -> Fact:
        """All that is known of ``name``."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.facts.get(name)
            if found is not None:
                return found
            scope = scope.parent
        return Fact()

    def shape(self, name: str) -> Shape | None:
        """The dimensions of ``name``, or ``None`` where not even the rank is known."""
        shape = self.fact(name).shape
        return None if shape is None else tuple(self.view.resolve(dim) for dim in shape)

    def rank(self, name: str) -> int | None:
        """The number of axes of ``name``."""
        shape = self.fact(name).shape
        return None if shape is None else len(shape)

    def elem_type(self, name: str) -> int:
        """The element type as in ``onnx.TensorProto``; 0 where unknown."""
        return self.fact(name).elem_type

    def constant(self, name: str) -> np.ndarray | None:
        """The values of an initializer or Constant node, where they are at hand and not a large weight."""
        home = self.home(name)
        if home is None:
            return None
        tensor = home.constants.get(name)
        return None if tensor is None else self.view.load(tensor)


class GraphView:
    """A model's scopes."""

    def __init__(self, model: onnx.ModelProto, model_dir: Path | None = None) -> None:
        """Raises :class:`InvalidModelError` where the model is no graph at all (cycles, doubly written tensors)."""
        self.model_dir = model_dir
        self.names: set[str] = set()
        """Every tensor and node name of the model."""
        self.functions: dict[tuple[str, str], Scope] = {}
        self._equal: dict[str, Value] = {}
        graph = _import(model)
        opset = _opset(model.opset_import)
        self.main = self._scope(graph, "", None, opset)
        for function in graph.functions:
            path = f"function {function.domain}::{function.name}"
            scope = self._scope(function, path, None, _opset(function.import_domains) or opset)
            self.functions[(function.domain, function.name)] = scope

    def scopes(self) -> Iterator[Scope]:
        """Every scope: the main graph, its bodies, the functions and theirs."""
        yield from self.main.walk()
        for function in self.functions.values():
            yield from function.walk()

    def load(self, tensor: TensorProto) -> np.ndarray | None:
        """A constant's values; ``None`` for a large weight, and for external data that can't be read."""
        count = 1
        for dim in tensor.dims:
            count *= dim
        if count * 8 > MAX_CONSTANT_BYTES or tensor.data_type == TensorProto.STRING:
            return None
        if tensor.data_location != TensorProto.EXTERNAL:
            try:
                return numpy_helper.to_array(tensor)
            except Exception as error:  # onnx raises whatever its parsing hits
                raise InvalidModelError(f"the constant '{tensor.name}' can't be read: {error}") from error
        return self._load_external(tensor, count)

    def _load_external(self, tensor: TensorProto, count: int) -> np.ndarray | None:
        if self.model_dir is None:
            return None
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        path = self.model_dir / location  # maybe a link to elsewhere, as model caches have them
        if not Path(os.path.normpath(path)).is_relative_to(os.path.normpath(self.model_dir)):
            raise InvalidModelError(
                f"the external data of '{tensor.name}' lies outside the model's folder ('{location}')"
            )
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if not path.is_file():
            return None
        try:
            offset = int(entries.get("offset", 0))
            values = np.fromfile(path, dtype=dtype, count=count, offset=offset)
        except (ValueError, OSError, TypeError):
            return None
        return values.reshape(tuple(tensor.dims)) if values.size == count else None

    # ------------------------------------------------------------------------------------- equality of dimensions

    def resolve(self, value: Value) -> Value:
        """``value`` with every symbol that is known to equal something replaced by it."""
        if isinstance(value, (int, float)) or not self._equal:
            return value
        for _ in range(8):
            replaced = substitute(value, self._equal.get)
            if replaced == value:
                break
            value = replaced
        return value

    def same(self, a: Value | None, b: Value | None) -> bool:
        """Whether two dimensions are provably equal."""
        if a is None or b is None:
            return False
        return a == b or self.resolve(a) == self.resolve(b)

    def assume_equal(self, a: Value, b: Value, *, names_only: bool = False) -> None:
        """Take a symbol of one side as another name of the other side (a product's shared dimension).

        With ``names_only`` both sides have to be symbols.
        """
        a, b = self.resolve(a), self.resolve(b)
        if a == b or (names_only and (_single_symbol(a) is None or _single_symbol(b) is None)):
            return
        solved = solve(a, b)
        if solved is not None:
            self._equal[solved[0]] = solved[1]

    # ----------------------------------------------------------------------------------------------- construction

    def _scope(self, graph: Any, path: str, parent: Scope | None, opset: int) -> Scope:
        scope = Scope(self, path, parent, opset)
        scope.inputs = [tensor.name for tensor in graph.inputs]
        scope.outputs = [tensor.name for tensor in graph.outputs]
        nodes = []
        for node in graph.nodes:
            view = NodeView(node, scope)
            nodes.append(view)
            if view.name:
                self.names.add(view.name)
            for name in view.outputs:
                if not name:
                    continue
                if name in scope._producers:
                    raise InvalidModelError(f"the tensor '{name}' is written by two nodes")
                scope._producers[name] = view
        for tensor in _tensors(graph):
            self._declare(scope, tensor)
        scope.nodes = _sorted(nodes, scope)
        for node, view in zip(graph.nodes, nodes, strict=False):
            for key, value in node.attrs.items():
                if isinstance(value, gs.Graph):
                    view.bodies[key] = self._scope(value, f"{_prefix(scope)}{view.label}/{key}", scope, opset)
            if view.is_op("Constant") and isinstance(value := node.attrs.get("value"), gs.Constant):
                scope.constants[view.output] = value._values.tensor
        for view in nodes:
            self._register_reads(scope, view)
        for name in scope.outputs:
            home = scope.home(name)
            if home is not None and home is not scope:
                home._captured.add(name)
        self.names.update(scope._producers, scope.inputs, scope.constants)
        return scope

    def _declare(self, scope: Scope, tensor: gs.Tensor) -> None:
        if scope.parent is not None and tensor.name not in scope.inputs and scope.parent.home(tensor.name) is not None:
            return
        if isinstance(tensor, gs.Constant):
            values = tensor._values
            if isinstance(values, gs.ir.tensor.SparseValues):
                scope.sparse_constants.add(tensor.name)
            elif isinstance(values, gs.ir.tensor.LazyValues):
                scope.constants[tensor.name] = values.tensor
            return
        if (tensor.dtype is None and tensor.shape is None) or getattr(tensor, "type", "") != "tensor_type":
            return
        scope._declared[tensor.name] = Fact.declared(tensor.name, _elem_type(tensor.dtype), tensor.shape)

    def _register_reads(self, scope: Scope, view: NodeView) -> None:
        for name in dict.fromkeys(view.inputs):
            if not name:
                continue
            home = scope.home(name)
            if home is None and scope.path.startswith("function "):
                raise InvalidModelError(f"node '{view.label}' reads '{name}', which nothing in its function produces")
            (home or scope)._consumers.setdefault(name, []).append(view)


def _import(model: onnx.ModelProto) -> gs.Graph:
    severity, G_LOGGER.severity = G_LOGGER.severity, G_LOGGER.CRITICAL + 1
    try:
        return gs.import_onnx(model)
    except Exception as error:  # graphsurgeon raises whatever its parsing hits
        raise InvalidModelError(f"the model can't be read as a graph: {error}") from error
    finally:
        G_LOGGER.severity = severity


def _opset(imports: Any) -> int:
    for entry in imports or ():
        if entry.domain in STANDARD:
            return int(entry.version)
    return 0


def _prefix(scope: Scope) -> str:
    return f"{scope.path}/" if scope.path else ""


def _single_symbol(value: Value) -> str | None:
    if isinstance(value, (int, float)) or len(value.terms) != 1:
        return None
    [(monomial, coefficient)] = value.terms.items()
    return monomial[0][0] if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1 else None


def _elem_type(dtype: Any) -> int:
    if dtype is None:
        return 0
    if isinstance(dtype, int):
        return dtype
    try:
        return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    except (KeyError, TypeError, ValueError):
        return 0


def _tensors(graph: Any) -> Iterator[gs.Tensor]:
    """Every tensor that a graph mentions, once. (graphsurgeon's own listing warns about duplicate names.)."""
    seen: set[int] = set()
    groups = [graph.inputs, graph.outputs, *(node.inputs for node in graph.nodes), *(n.outputs for n in graph.nodes)]
    for group in groups:
        for tensor in group:
            if tensor.name and id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor


def _sorted(nodes: list[NodeView], scope: Scope) -> list[NodeView]:
    """Producers before readers, otherwise in the file's order. A body's reads count as its node's."""
    position = {id(node): index for index, node in enumerate(nodes)}
    state = [0] * len(nodes)
    order: list[NodeView] = []
    reads = [_local_reads(node, scope) for node in nodes]
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            index = stack[-1]
            if state[index] == 2:
                stack.pop()
                continue
            if state[index] == 0:
                state[index] = 1
                for producer in reversed(reads[index]):
                    other = position[id(producer)]
                    if state[other] == 1:
                        raise InvalidModelError(f"the graph has a cycle through node '{nodes[index].label}'")
                    if state[other] == 0:
                        stack.append(other)
            else:
                state[index] = 2
                order.append(nodes[index])
                stack.pop()
    return order


def _local_reads(node: NodeView, scope: Scope) -> list[NodeView]:
    names = list(node.inputs)
    pending = [value for value in node.attributes.values() if isinstance(value, gs.Graph)]
    while pending:
        body = pending.pop()
        for inner in body.nodes:
            names.extend(tensor.name for tensor in inner.inputs)
            pending.extend(value for value in inner.attrs.values() if isinstance(value, gs.Graph))
        names.extend(tensor.name for tensor in body.outputs)
    return [scope._producers[name] for name in dict.fromkeys(names) if name in scope._producers]
