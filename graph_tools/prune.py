"""Replace nodes of a graph, and remove those nodes and initializers that lost their last reader by it.

Only what became unread through a replacement goes: a node that nobody read before stays where it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from onnx import GraphProto, NodeProto

from .errors import GraphToolsError
from .scopes import Scope, descendants


@dataclass
class _State:
    """What is known of one scope, and what is to change in it."""

    scope: Scope
    producers: dict[str, int]
    """Tensor -> index of the node that writes it."""
    given: set[str]
    """Inputs and initializers."""
    readers: Counter[str] = field(default_factory=Counter)
    """Tensor -> how often nodes and outputs, subgraphs' included, read it."""
    removed: set[int] = field(default_factory=set)
    inserted: dict[int, list[NodeProto]] = field(default_factory=dict)
    """Index of a removed node -> the nodes that take its place."""
    unread: set[str] = field(default_factory=set)
    """Initializers that lost their last reader."""


class Pruner:
    """Edits one root scope (the main graph or a function) with everything inside it; ``commit`` writes the changes."""

    def __init__(self, root: Scope) -> None:
        self._states: dict[int, _State] = {}
        self._children: dict[tuple[int, int], list[Scope]] = {}
        self._order = list(descendants(root))
        for scope in self._order:
            self._states[id(scope)] = _state_of(scope)
            if scope.parent is not None:
                self._children.setdefault((id(scope.parent), scope.owner_index), []).append(scope)
        for scope in self._order:
            for name in scope.outputs:
                self._count(scope, name, 1)
            for node in scope.container.node:
                for name in node.input:
                    self._count(scope, name, 1)

    def replace(self, scope: Scope, tensor: str, nodes: Sequence[NodeProto]) -> None:
        """Let ``nodes`` write ``tensor`` (and whatever else is read of it) instead of the node that does now."""
        state = self._states[id(scope)]
        index = state.producers[tensor]
        old = scope.container.node[index]
        written = {tensor, *(name for node in nodes for name in node.output)}
        others = [name for name in old.output if name and name not in written and state.readers[name]]
        if others:
            raise GraphToolsError(f"Node {old.name!r} can't be replaced: its output {others[0]!r} is read elsewhere.")
        for node in nodes:
            for name in node.input:
                self._count(scope, name, 1)
        state.inserted[index] = list(nodes)
        self._remove(scope, index)

    def is_produced(self, scope: Scope, tensor: str) -> bool:
        """Whether the node that writes ``tensor`` is still there."""
        state = self._states[id(scope)]
        return tensor in state.producers and state.producers[tensor] not in state.removed

    def commit(self) -> None:
        """Write the changes into the protos, innermost graphs first."""
        for scope in reversed(self._order):
            state = self._states[id(scope)]
            nodes = scope.container.node
            gone: set[str] = set()
            for index in sorted(state.removed, reverse=True):
                gone.update(nodes[index].output)
                del nodes[index]
                for offset, node in enumerate(state.inserted.get(index, ())):
                    nodes.insert(index + offset, node)
                    gone.difference_update(node.output)
            if state.removed and isinstance(scope.container, GraphProto):
                _drop(scope.container, gone, {name for name in state.unread if not state.readers[name]})

    def _count(self, scope: Scope, name: str, step: int) -> tuple[Scope, int]:
        """Change the number of readers of ``name`` as seen from ``scope``; where it is defined, and the new number."""
        at: Scope | None = scope
        while at is not None:
            state = self._states[id(at)]
            if name in state.producers or name in state.given:
                state.readers[name] += step
                return at, state.readers[name]
            at = at.parent
        return scope, 1  # a name that nobody defines: an empty optional input, or one of the new nodes' own

    def _remove(self, scope: Scope, index: int) -> None:
        """Remove a node, then whatever that leaves unread."""
        todo = [(scope, index)]
        while todo:
            at, number = todo.pop()
            state = self._states[id(at)]
            if number in state.removed:
                continue
            state.removed.add(number)
            for home, name in self._reads(at, number):
                home_at, readers = self._count(home, name, -1)
                if readers:
                    continue
                home_state = self._states[id(home_at)]
                producer = home_state.producers.get(name)
                if producer is None:
                    home_state.unread.add(name)
                elif not any(home_state.readers[out] for out in home_at.container.node[producer].output if out):
                    todo.append((home_at, producer))

    def _reads(self, scope: Scope, index: int) -> list[tuple[Scope, str]]:
        """What a node reads, its subgraphs included, each with the scope that reads it."""
        reads = [(scope, name) for name in scope.container.node[index].input]
        for child in self._children.get((id(scope), index), ()):
            for inner in descendants(child):
                reads += [(inner, name) for name in inner.outputs]
                reads += [(inner, name) for node in inner.container.node for name in node.input]
        return reads


def _state_of(scope: Scope) -> _State:
    container = scope.container
    given = set(scope.inputs)
    if isinstance(container, GraphProto):
        given.update(tensor.name for tensor in container.initializer)
        given.update(tensor.values.name for tensor in container.sparse_initializer)
    producers = {name: index for index, node in enumerate(container.node) for name in node.output if name}
    return _State(scope, producers, given)


def _drop(graph: GraphProto, gone: set[str], unread: set[str]) -> None:
    """Drop value_info and annotations of tensors that are gone, and initializers that lost their last reader."""
    unread = unread - {value.name for value in graph.input}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in unread:
            del graph.initializer[index]
    for index in reversed(range(len(graph.sparse_initializer))):
        if graph.sparse_initializer[index].values.name in unread:
            del graph.sparse_initializer[index]
    for index in reversed(range(len(graph.value_info))):
        if graph.value_info[index].name in gone:
            del graph.value_info[index]
    for index in reversed(range(len(graph.quantization_annotation))):
        if graph.quantization_annotation[index].tensor_name in gone | unread:
            del graph.quantization_annotation[index]
