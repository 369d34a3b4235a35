"""What a match is made of: immutable facts about one attention site, with no reference to how they were found.

    S = softcap(scale * Q K^T) ; terms in order (bias adds, mask replaces) ; P = softmax(S) ; O = P V

A :class:`Site` is one Softmax (or its spelled-out equivalent, or a fused attention op) of the model. It carries either
an :class:`AttentionForm` (fusable) or a :class:`Refusal` (and why not).

Axes are written as in einops: ``"b s (n d)"`` is a 3-D tensor whose last axis holds heads and head size side by side.
``b`` batch, ``n`` key/value heads, ``g`` query heads that share one of those, ``s`` queries, ``t`` keys, ``d`` head
size of query and key, ``e`` head size of value, ``1`` an axis of size 1 (or one that is broadcast). A number behind a
letter tells apart several of a kind (``"b1 b2 n s d"``); the op's axis is then their product, in that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Dim: TypeAlias = "int | str | None"
"""A dimension: known, symbolic, or unknown."""


@dataclass(frozen=True)
class TensorRef:
    """A tensor of the graph: its name, and what is known of its type and shape."""

    name: str
    elem_type: int
    """``onnx.TensorProto.DataType``; 0 where unknown."""
    shape: tuple[Dim, ...] | None
    """``None`` where not even the rank is known."""


@dataclass(frozen=True)
class Factor:
    """A tensor that multiplies (or divides) the scores and is the same for all keys."""

    tensor: TensorRef
    axes: str
    divides: bool = False


@dataclass(frozen=True)
class Operand:
    """Query, key or value: a tensor of the user's graph, and what each of its axes is."""

    tensor: TensorRef
    axes: str
    """Such as ``"b n s d"``, ``"b s (n d)"`` or, a key that is already transposed, ``"b n d t"``."""
    num_heads: int
    """0 where it can only be read from the shape at run time."""
    head_size: int
    """0 where unknown."""
    factors: tuple[Factor, ...] = ()
    """What multiplies the operand before the op: a temperature a head. Query only."""


@dataclass(frozen=True)
class ScoreTerm:
    """One thing done to the score, in the order in which the model does it."""

    kind: Literal["bias", "mask"]
    """bias: ``+ coeff * tensor``; mask: ``where(tensor, score, fill)``."""
    tensor: TensorRef
    axes: str = ""
    """Axes of ``tensor``, aligned to nothing: as many as it has."""
    coeff: float = 1.0
    """Product of the scales met between this term and the softmax."""
    fill: float | None = None
    """mask only: what a False leaves, already multiplied by the scales outside the term."""
    inverted: bool = False
    """mask only: the tensor says True where the score is *replaced*."""
    floor: float | None = None
    """bias only: the sum with the score is clamped from below here (``Max(score + bias, lowest)``)."""
    unless: TensorRef | None = None
    """mask only: where this bias isn't 0, the score is left as it is."""
    unless_axes: str = ""
    note: str = ""
    """What was assumed or given up, in words; "" where nothing was."""


@dataclass(frozen=True)
class Peel:
    """One rule that applied: provenance for the report, and what the site may leave unused."""

    rule: str
    node: str
    fact: str
    """The algebra, filled in: ``scale *= 0.125``."""


@dataclass(frozen=True)
class Refusal:
    """Why a site stays as it is. A result, not an error."""

    rule: str
    node: str
    reason: str
    hint: str = ""
    """What the user could change at export, where there is something."""


@dataclass(frozen=True)
class ShapeRead:
    """A Shape of a value that the fused op doesn't make (the scores): read off query and key instead."""

    output: TensorRef
    """What the Shape node writes."""
    axes: str
    """The axes whose sizes it holds."""


@dataclass(frozen=True)
class Prelude:
    """A node that has to be added before the op: an addition or a split that a fused node did inside."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """Names of the graph that the node takes over, or placeholders that start with ``@``."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    constant: Any = None
    """op "Constant" only: an array."""


@dataclass(frozen=True)
class AttentionForm:
    """A whole attention, as mathematics over tensors of the user's graph."""

    query: Operand
    key: Operand
    value: Operand
    scale: float
    """0: provably ``1/sqrt(d)`` of a head size that isn't known."""
    softcap: float = 0.0
    terms: tuple[ScoreTerm, ...] = ()
    is_causal: bool = False
    causal_alignment: Literal["top_left", "bottom_right"] = "top_left"
    window_left: int = -1
    window_right: int = -1
    key_lengths: TensorRef | None = None
    key_lengths_axes: str = ""
    block_mask: Any = None
    """A constant bool array (..., ceil(S/block_size), ceil(T/block_size)); blocks that are False are never loaded."""
    block_size: int = 128
    sinks: TensorRef | None = None
    sinks_axes: str = ""
    sinks_value: float | None = None
    """The logit, where it is one number."""
    guard: Literal["none", "nan_to_zero", "masked_row_to_zero"] = "none"
    dropout_p: float = 0.0
    """Of a Dropout in training mode; 0 = none."""
    dropout_seed: int | None = None
    """Of the model's own generator, where it names one."""
    kv_num_heads: int = 0
    """0: as many as query heads."""
    layout: Literal["BSNH", "BNSH"] = "BNSH"
    """The op's: 3-D with the heads side by side, or 4-D."""
    op_axes: Mapping[str, str] = field(default_factory=dict)
    """Which letters make up the op's axes: ``{"B": "b", "N": "n g", "M": "n", "S": "s", ...}``."""
    sizes: Mapping[str, Dim] = field(default_factory=dict)
    """Size of each letter."""
    output: TensorRef = field(default_factory=lambda: TensorRef("", 0, None))
    output_axes: str = "b n s e"
    """Axes of ``output`` as the model wants it."""
    output_scale: float = 1.0
    """A number that multiplies the output: scales met between the softmax and the second product."""
    elem_type: int = 0
    """``onnx.TensorProto.DataType`` of the op's query, key, value and output."""
    shape_reads: tuple[ShapeRead, ...] = ()
    prelude: tuple[Prelude, ...] = ()
    peels: tuple[Peel, ...] = ()


@dataclass(frozen=True)
class Site:
    """One attention in the model, fusable or not."""

    name: str
    """Stable from run to run: the anchor node's name, or its output's where it has none."""
    graph: str
    """"" for the main graph; otherwise a path such as ``"If_3/then_branch"`` or ``"function domain::Name"``."""
    anchor: str
    """Name of the tensor that holds the probabilities (or the output of a fused attention op)."""
    form: AttentionForm | None
    refusal: Refusal | None
