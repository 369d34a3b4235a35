"""Where a walk along the scores or the probabilities stands, and one step of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from .graph_view import NodeView, Scope
from .layout import Atom, Layout
from .normal_form import Peel

State = TypeVar("State", bound="WalkState")


@dataclass(frozen=True)
class WalkState:
    """The current tensor, and what led to it."""

    scope: Scope
    tensor: str
    layout: Layout
    keys: tuple[Atom, ...]
    """The atoms that the softmax runs over."""
    peels: tuple[Peel, ...] = field(default=(), kw_only=True)
    nodes: tuple[NodeView, ...] = field(default=(), kw_only=True)
    passed: tuple[tuple[str, Layout], ...] = field(default=(), kw_only=True)
    """The tensors that the walk came through, with their layouts."""

    def at(
        self: State, node: NodeView, tensor: str, fact: str, rule: str, layout: Layout | None = None, **changes: Any
    ) -> State:
        """The state one node further."""
        return replace(
            self,
            tensor=tensor,
            layout=self.layout if layout is None else layout,
            peels=(*self.peels, Peel(rule, node.label, fact)),
            nodes=(*self.nodes, node),
            passed=(*self.passed, (self.tensor, self.layout)),
            **changes,
        )
