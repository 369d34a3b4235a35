"""A table of rules by operator, which a decorator fills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from .graph_view import NodeView

Rule = TypeVar("Rule")


class RuleTable(Generic[Rule]):
    """Operator -> rule.

    An instance is the decorator that registers: ``rule: RuleTable[ScoreRule] = RuleTable()``, then ``@rule("Mul")``.
    """

    def __init__(self) -> None:
        self._rules: dict[tuple[str, str], Rule] = {}

    def __call__(self, *ops: str, domain: str = "") -> Callable[[Rule], Rule]:
        """Register a rule for these operators of ``domain``, the standard one by default."""

        def register(function: Rule) -> Rule:
            self._rules.update({(domain, op): function for op in ops})
            return function

        return register

    def find(self, node: NodeView) -> Rule | None:
        """The rule for a node, if there is one."""
        return self._rules.get((node.domain, node.op))
