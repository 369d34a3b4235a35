"""A site as a small graph, before and after fusing: nodes in layers, edges between them. No pixels yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from onnx import NodeProto

from .extract import Cutter
from .graph_tools.edits import SiteEdit
from .graph_tools.op_schema import schema

Kind = Literal["input", "node", "fused", "output"]

_SHAPE_OPS = ("Shape", "Size")


@dataclass(frozen=True)
class DrawnNode:
    """One box."""

    label: str
    kind: Kind
    name: str
    """Of the node or tensor in the model."""
    layer: int
    """Its distance from the inputs, on the longest way."""


@dataclass(frozen=True)
class Drawing:
    """Boxes, and arrows between them by index."""

    nodes: tuple[DrawnNode, ...]
    edges: tuple[tuple[int, int], ...]

    @property
    def layers(self) -> list[list[int]]:
        """Indices of the boxes of each layer, from left to right: near what they read."""
        rows: list[list[int]] = [[] for _ in range(1 + max((n.layer for n in self.nodes), default=0))]
        place: dict[int, float] = {}
        for index in sorted(range(len(self.nodes)), key=lambda i: self.nodes[i].layer):
            above = [place[source] for source, target in self.edges if target == index]
            place[index] = sum(above) / len(above) if above else float(len(rows[0]))
            rows[self.nodes[index].layer].append(index)
        for row in rows:
            row.sort(key=lambda i: place[i])
        return rows


@dataclass(frozen=True)
class SiteDrawing:
    """Both states of one site."""

    before: Drawing
    after: Drawing


def draw_site(edit: SiteEdit, cutter: Cutter) -> SiteDrawing:
    """The site as it is in the model that ``cutter`` cuts, and as ``edit`` would make it.

    Constants, and what only computes shapes, are left out.
    """
    piece = cutter.cut(edit.site.graph, edit.border.values(), [edit.replaces])
    call = NodeProto(
        op_type=schema().name, name=edit.call.name, input=list(edit.call.inputs.values()), output=[edit.call.output]
    )
    roles: dict[str, str] = {}
    for role, tensor in edit.border.items():
        roles.setdefault(tensor, role)
    return SiteDrawing(
        _draw(piece.nodes, roles, edit.replaces), _draw((*edit.before, call, *edit.after), roles, edit.replaces)
    )


def _draw(nodes: Sequence[NodeProto], roles: dict[str, str], output: str) -> Drawing:
    boxes = [DrawnNode(role, "input", tensor, 0) for tensor, role in roles.items()]
    writer = {tensor: index for index, tensor in enumerate(roles)}
    edges: list[tuple[int, int]] = []
    for node in nodes:
        sources = list(dict.fromkeys(writer[name] for name in node.input if name in writer))
        if not sources or node.op_type in _SHAPE_OPS:
            continue
        kind: Kind = "fused" if node.op_type == schema().name else "node"
        index = len(boxes)
        layer = 1 + max(boxes[source].layer for source in sources)
        boxes.append(DrawnNode(node.op_type, kind, node.name or node.output[0], layer))
        edges += [(source, index) for source in sources]
        writer.update({name: index for name in node.output if name and name not in roles})
    if output in writer:
        last = writer[output]
        boxes.append(DrawnNode("output", "output", output, boxes[last].layer + 1))
        edges.append((last, len(boxes) - 1))
    return _without_dead_ends(Drawing(tuple(boxes), tuple(edges)))


def _without_dead_ends(drawing: Drawing) -> Drawing:
    """Only what leads to the output, and the inputs."""
    useful = {index for index, node in enumerate(drawing.nodes) if node.kind == "output"}
    for source, target in sorted(drawing.edges, reverse=True):
        if target in useful:
            useful.add(source)
    number = {old: new for new, old in enumerate(sorted(useful))}
    return Drawing(
        tuple(drawing.nodes[old] for old in sorted(useful)),
        tuple((number[a], number[b]) for a, b in drawing.edges if a in number and b in number),
    )
