"""Every list of nodes in a model: the main graph, the bodies of If, Loop and Scan, and the model-local functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto


@dataclass
class Scope:
    """One list of nodes, and where it lies."""

    path: str
    """As in ``Site.graph``: "" for the main graph, ``If_3/then_branch``, ``function domain::Name``."""
    container: GraphProto | FunctionProto
    parent: Scope | None = None
    owner_index: int = -1
    """Index, in the parent, of the node whose attribute this graph is."""
    children: list[Scope] = field(default_factory=list)

    @property
    def is_function(self) -> bool:
        """Whether this is a model-local function's own list of nodes."""
        return isinstance(self.container, FunctionProto)

    @property
    def outputs(self) -> list[str]:
        """Names that are read from outside."""
        if isinstance(self.container, FunctionProto):
            return list(self.container.output)
        return [value.name for value in self.container.output]

    @property
    def inputs(self) -> list[str]:
        """Names that come from outside."""
        if isinstance(self.container, FunctionProto):
            return list(self.container.input)
        return [value.name for value in self.container.input]

    @property
    def root(self) -> Scope:
        """The main graph or function that this lies in."""
        return self if self.parent is None else self.parent.root


def root_scopes(model: ModelProto) -> list[Scope]:
    """The main graph and the functions, each with its subgraphs as children."""
    roots = [Scope("", model.graph)]
    roots += [Scope(function_path(function), function) for function in model.functions]
    for root in roots:
        _add_children(root)
    return roots


def all_scopes(model: ModelProto) -> list[Scope]:
    """Every scope of the model, a parent before its children."""
    return [scope for root in root_scopes(model) for scope in descendants(root)]


def descendants(scope: Scope) -> Iterator[Scope]:
    """``scope`` itself and everything inside it."""
    yield scope
    for child in scope.children:
        yield from descendants(child)


def function_path(function: FunctionProto) -> str:
    """How ``Site.graph`` names a model-local function."""
    return f"function {function.domain}::{function.name}"


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """The node's graph attributes, each with its name; an attribute that holds several numbers them."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.name, attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            for index, graph in enumerate(attribute.graphs):
                yield f"{attribute.name}[{index}]", graph


def all_names(model: ModelProto) -> set[str]:
    """Every tensor and node name that occurs anywhere in the model."""
    names: set[str] = set()
    for scope in all_scopes(model):
        names.update(scope.inputs, scope.outputs)
        for node in scope.container.node:
            names.update(node.input, node.output, (node.name,))
        if isinstance(scope.container, GraphProto):
            names.update(tensor.name for tensor in scope.container.initializer)
            names.update(tensor.values.name for tensor in scope.container.sparse_initializer)
    return names


def default_opset(imports: Sequence[object]) -> int:
    """Version of the standard domain among ``opset_import`` entries; 0 where it isn't imported."""
    return next((entry.version for entry in imports if entry.domain in ("", "ai.onnx")), 0)  # type: ignore[attr-defined]


def _add_children(scope: Scope) -> None:
    for index, node in enumerate(scope.container.node):
        for name, graph in subgraphs(node):
            label = f"{node.name or next(filter(None, node.output), node.op_type)}/{name}"
            path = f"{scope.path}/{label}" if scope.path else label
            child = Scope(path, graph, scope, index)
            scope.children.append(child)
            _add_children(child)
