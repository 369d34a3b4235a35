"""The border between matching and file editing: what has to change in a graph to fuse one site.

:mod:`.lower` turns an ``AttentionForm`` into a :class:`SiteEdit`; :mod:`.rewrite` carries edits out on a ModelProto.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from .normal_form import Site


@dataclass(frozen=True)
class FlashCall:
    """One call of the fused op, before it is known which inputs the other calls of the file pass."""

    name: str
    """Name of the node to be."""
    inputs: Mapping[str, str]
    """Schema input name -> tensor name; only those that this site has."""
    attributes: Mapping[str, int | float | str]
    """Only those that differ from the schema's default."""
    output: str
    elem_type: int
    """``onnx.TensorProto.DataType`` of query, key, value and output."""


@dataclass(frozen=True)
class SideEdit:
    """Another tensor of the original graph that was computed from a value which the fused op doesn't make.

    The Shape of the scores, say, which a mask is made from. ``nodes`` produce it from what the op reads instead.
    Applied where its producer still has a reader once the site itself is replaced.
    """

    replaces: str
    nodes: tuple[NodeProto, ...]
    initializers: tuple[TensorProto, ...]


@dataclass(frozen=True)
class SiteEdit:
    """One site's change. Applied by replacing the producer of ``replaces``; what nobody reads any more goes."""

    site: Site
    call: FlashCall
    before: tuple[NodeProto, ...]
    """New nodes that bring operands, biases and masks into shape, in topological order."""
    after: tuple[NodeProto, ...]
    """New nodes that bring the output into the layout that the model wants; the last one writes ``replaces``, or the
    call itself does where this is empty."""
    initializers: tuple[TensorProto, ...]
    """New constants that ``before`` and ``after`` read."""
    replaces: str
    """Tensor of the original graph that the edit now produces."""
    border: Mapping[str, str]
    """Role -> tensor of the original graph that the edit reads: ``query``, ``key``, ``value``, and ``term0`` ... The
    original nodes between these tensors and ``replaces`` are what the site computes; verification runs just those."""
    also: tuple[SideEdit, ...] = ()
    """Further tensors that have to be produced in another way."""
