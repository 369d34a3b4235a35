"""Element types and dimensions of every tensor, worked out from the graph's inputs and constants alone.

TorchScript exports carry no value_info for the tensors round an attention, and a file's value_info may be wrong, so it
is used for one thing only: the outputs of operators that have no rule here. One pass over the nodes in topological
order; weights are never read. The cost is a few ten microseconds a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from . import (
    const_eval,
    shape_rules_elementwise,
    shape_rules_images,
    shape_rules_makers,
    shape_rules_movement,
    shape_rules_products,
    shape_rules_quantised,
    symbolic,
)
from .const_eval import as_value, scalar
from .facts import MAX_VALUE_ELEMENTS, Fact, unknown_dimension
from .graph_view import GraphView, NodeView, Scope
from .shape_rules import RULES

__all__ = [
    "infer",
    "shape_rules_elementwise",
    "shape_rules_images",
    "shape_rules_makers",
    "shape_rules_movement",
    "shape_rules_products",
    "shape_rules_quantised",
]

_LOOP_ROUNDS = 4
"""How often a Loop or Scan body is looked at again when a carried tensor turns out to change its shape."""


def infer(view: GraphView) -> None:
    """Fill in the facts of every scope of ``view``."""
    calls: dict[tuple[str, str], list[list[Fact]]] = {}
    _Pass(view, calls).run(view.main)
    for key, scope in view.functions.items():
        # A function's own calls were recorded before it runs only if it was reached; run in call order.
        seen = calls.get(key, [])
        for position, name in enumerate(scope.inputs):
            facts = [call[position] for call in seen if position < len(call)]
            scope.facts[name] = _join(name, facts)
        _Pass(view, calls).run(scope)


def _join(name: str, facts: Sequence[Fact]) -> Fact:
    """What holds for all of ``facts``."""
    if not facts:
        return Fact()
    elem_types = {fact.elem_type for fact in facts}
    elem_type = elem_types.pop() if len(elem_types) == 1 else 0
    shapes = [fact.shape for fact in facts]
    first = shapes[0]
    if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
        return Fact(elem_type)
    dims = tuple(
        dim if all(shape is not None and shape[axis] == dim for shape in shapes) else unknown_dimension(name, axis)
        for axis, dim in enumerate(first)
    )
    return Fact(elem_type, dims, facts[0].value if len(facts) == 1 else None)


class _Pass:
    """One walk over a scope's nodes."""

    def __init__(self, view: GraphView, calls: dict[tuple[str, str], list[list[Fact]]]) -> None:
        self.view = view
        self.calls = calls

    def run(self, scope: Scope) -> None:
        """Infer every node of ``scope``; facts of its inputs that are set already stay."""
        for name in scope.inputs:
            if name not in scope.facts:
                scope.facts[name] = scope.declared(name) or Fact()
        for name, tensor in scope.constants.items():
            dims = tuple(tensor.dims)
            value = None
            if math.prod(dims) <= MAX_VALUE_ELEMENTS:
                array = self.view.load(tensor)
                value = None if array is None else as_value(array)
            scope.facts[name] = Fact(tensor.data_type, dims, value)
        for node in scope.nodes:
            self._node(scope, node)

    def _node(self, scope: Scope, node: NodeView) -> None:
        if node.is_op("Constant") and node.output in scope.facts:
            return
        inputs = [scope.fact(name) if name else Fact() for name in node.inputs]
        key = (node.domain, node.op)
        if key in self.view.functions:
            outputs = self._call(key, inputs)
        elif node.is_op("If"):
            outputs = self._if(node, inputs)
        elif node.is_op("Loop", "Scan"):
            outputs = self._loop(node, inputs)
        else:
            outputs = _infer_node(node, inputs)
        for index, name in enumerate(node.outputs):
            if not name:
                continue
            fact = outputs[index] if index < len(outputs) else Fact()
            scope.facts[name] = self._complete(scope, name, fact)

    @staticmethod
    def _complete(scope: Scope, name: str, fact: Fact) -> Fact:
        """Where no rule knew, what the file declares has to do."""
        if fact.elem_type and fact.shape is not None:
            return fact
        declared = scope.declared(name)
        if declared is None:
            return fact
        return replace(
            fact,
            elem_type=fact.elem_type or declared.elem_type,
            shape=declared.shape if fact.shape is None else fact.shape,
        )

    def _call(self, key: tuple[str, str], inputs: list[Fact]) -> list[Fact]:
        self.calls.setdefault(key, []).append(inputs)
        scope = self.view.functions[key]
        if len(self.calls[key]) > 256:
            return [Fact() for _ in scope.outputs]
        kept = dict(scope.facts)
        scope.facts.clear()
        for name, fact in zip(scope.inputs, inputs, strict=False):
            scope.facts[name] = fact
        self.run(scope)
        outputs = [scope.fact(name) for name in scope.outputs]
        scope.facts.clear()
        scope.facts.update(kept)
        return outputs

    def _if(self, node: NodeView, inputs: Sequence[Fact]) -> list[Fact]:
        branches = [node.bodies[key] for key in ("then_branch", "else_branch") if key in node.bodies]
        for branch in branches:
            self.run(branch)
        condition = scalar(inputs[0]) if inputs else None
        if condition is not None and not isinstance(condition, symbolic.Expr) and len(branches) == 2:
            branches = branches[:1] if condition else branches[1:]
        return [
            _join(name, [branch.fact(branch.outputs[index]) for branch in branches if index < len(branch.outputs)])
            for index, name in enumerate(node.outputs)
        ]

    def _loop(self, node: NodeView, inputs: list[Fact]) -> list[Fact]:
        body = node.bodies.get("body")
        if body is None:
            return []
        scan = node.is_op("Scan")
        scanned = node.int_attribute("num_scan_inputs", 0) or 0 if scan else 0
        carried = inputs[: len(inputs) - scanned] if scan else inputs[2:]
        first = 0 if scan else 2
        state = [replace(fact, value=None) for fact in carried]
        for _ in range(_LOOP_ROUNDS):
            body.facts.clear()
            for index, fact in enumerate(state):
                if first + index < len(body.inputs):
                    body.facts[body.inputs[first + index]] = fact
            if scan:
                for index, fact in enumerate(inputs[len(carried) :]):
                    shape = None if fact.shape is None else fact.shape[1:]
                    if len(carried) + index < len(body.inputs):
                        body.facts[body.inputs[len(carried) + index]] = Fact(fact.elem_type, shape)
            self.run(body)
            offset = 0 if scan else 1
            after = [body.fact(name) for name in body.outputs[offset : offset + len(state)]]
            joined = [
                _join(name, [old, new]) if new.shape is not None else Fact(old.elem_type)
                for name, old, new in zip(body.inputs[first:], state, after, strict=False)
            ]
            joined = [replace(fact, value=None) for fact in joined]
            if all(_same_shape(old, new) for old, new in zip(state, joined, strict=False)):
                break
            state = joined
        else:
            state = [Fact(fact.elem_type) for fact in state]
            for index, fact in enumerate(state):
                body.facts[body.inputs[first + index]] = fact
            self.run(body)
        stacked = []
        for index, name in enumerate(body.outputs[(0 if scan else 1) + len(state) :]):
            fact = body.fact(name)
            shape = None if fact.shape is None else (unknown_dimension(name, -1 - index), *fact.shape)
            stacked.append(Fact(fact.elem_type, shape))
        return [*state, *stacked]


def _same_shape(a: Fact, b: Fact) -> bool:
    return a.shape == b.shape and a.elem_type == b.elem_type


def _infer_node(node: NodeView, inputs: list[Fact]) -> list[Fact]:
    rule = RULES.get((node.domain, node.op))
    if rule is None:
        return []
    try:
        facts = rule(node, inputs)
    except (IndexError, ValueError, TypeError, ZeroDivisionError, OverflowError):  # a broken or unusual node
        return []
    if facts and facts[0].shape is not None:
        count = symbolic.product(facts[0].shape)
        if isinstance(count, int) and count <= MAX_VALUE_ELEMENTS:
            values = const_eval.evaluate(node, inputs, facts[0].elem_type)
            if values is not None:
                facts = [
                    replace(fact, value=value, shape=tuple(value.shape))
                    for fact, value in zip(facts, values, strict=False)
                ] + facts[len(values) :]
    return facts
