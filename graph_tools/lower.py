"""From an ``AttentionForm`` to the nodes of one ``ortflash::FlashAttention`` call.

Biases and masks go in as they are, un-broadcast. Two biases are added up before the op, in the smallest shape that
both broadcast to; two masks with the same fill are And-ed. A mask that a bias follows becomes an additive term of the
same numbers where its fill swallows any score, and otherwise the site is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from .absorbing import absorbs
from .edits import FlashCall, SideEdit, SiteEdit
from .names import Names
from .normal_form import AttentionForm, Operand, Refusal, ScoreTerm, ShapeRead, Site, TensorRef
from .op_schema import schema
from .rearrange import Axes, broadcast_axes, from_pattern, plan, score_axes
from .rearrange_nodes import Builder, UnknownSizeError

MIN_OPSET = 13
"""The first opset of which the function body is written."""


@dataclass(frozen=True)
class _Part:
    """A term on its way into the op."""

    tensor: str
    elem_type: int
    axes: Axes
    floor: float | None = None


def lower(site: Site, form: AttentionForm, names: Names, opset: int) -> SiteEdit | Refusal:
    """The edit that fuses ``site``, or why this form has no fused op."""
    if opset < MIN_OPSET:
        return Refusal(
            "opset",
            site.name,
            f"the model's opset is {opset}, and the fused op's function body needs {MIN_OPSET} or more",
            "convert the model with onnx.version_converter first",
        )
    misfit = _head_size_misfit(form)
    if misfit:
        return Refusal("head size", site.name, misfit)
    builder = Builder(names, names.fresh(f"{_stem(site.name)}_flash"), form.sizes, opset)
    for operand in (form.query, form.key, form.value):
        builder.provide(operand.tensor, operand.axes)
    for term in form.terms:
        builder.provide(term.tensor, term.axes)
    try:
        return _lowered(site, form, builder)
    except UnknownSizeError as error:
        return Refusal(
            "layout",
            site.name,
            f"the size of axis '{error}' is needed to bring the operands into the op's layout, and no tensor has it",
            "export with fixed shapes",
        )


def _head_size_misfit(form: AttentionForm) -> str:
    """Why the op doesn't take these head sizes; "" where it does."""
    largest = schema().max_head_size
    for axis, what in (("D", "query and key"), ("E", "value")):
        size = 1
        for letter in form.op_axes.get(axis, "").split():
            known = form.sizes.get(letter)
            if not isinstance(known, int):
                if form.scale == 0:  # provably 1/sqrt(D): that is a head size
                    break
                return f"the head size of {what} isn't known ({known}); the fused op takes up to {largest}"
            size *= known
        if size > largest:
            return f"the head size {size} of {what} is past {largest}, the largest that the fused op takes"
    return ""


def _stem(name: str) -> str:
    return name.strip("/").replace("/", ".") or "attention"


def _lowered(site: Site, form: AttentionForm, builder: Builder) -> SiteEdit | Refusal:
    for step in form.prelude:
        builder.prelude(step)
    inputs = {
        "query": _operand(builder, form, form.query, "query"),
        "key": _operand(builder, form, form.key, "key"),
        "value": _operand(builder, form, form.value, "value"),
    }
    attributes: dict[str, int | float | str] = {}
    terms = _terms(builder, form, site)
    if isinstance(terms, Refusal):
        return terms
    inputs.update(terms[0])
    attributes.update(terms[1])
    if form.layout == "BSNH":
        attributes["num_heads"] = form.query.num_heads
        attributes["kv_num_heads"] = form.kv_num_heads or form.query.num_heads
    if form.scale:
        attributes["scale"] = form.scale
    if form.softcap:
        attributes["softcap"] = form.softcap
    attributes.update(_structure(form))
    sinks = _sinks(builder, form)
    if sinks:
        inputs["sinks"] = sinks
    if form.key_lengths is not None:
        inputs["key_lengths"] = _lengths(builder, form)
    if form.dropout_p:
        attributes["dropout_p"] = form.dropout_p
        inputs["dropout_seed"] = _dropout_seed(builder, form)
    if form.block_mask is not None:
        inputs["block_mask"] = builder.constant(form.block_mask, "block_mask")
        attributes["block_size"] = form.block_size
    before, builder.nodes = builder.nodes, []
    output = _after(builder, form)
    also = tuple(_shape_read(builder, form, read) for read in form.shape_reads)
    return SiteEdit(
        site=site,
        call=FlashCall(
            builder.fresh_name("node"),
            dict(zip(inputs, builder.named(list(inputs.values())), strict=False)),
            attributes,
            output,
            form.elem_type,
        ),
        before=tuple(before),
        after=tuple(builder.nodes),
        initializers=tuple(builder.initializers),
        replaces=form.output.name,
        border=_border(form),
        also=also,
    )


def _shape_read(builder: Builder, form: AttentionForm, read: ShapeRead) -> SideEdit:
    """The sizes of a tensor that the op doesn't make, as those of query and key."""
    side = builder.beside(form.sizes)
    side.aliases = builder.aliases
    for operand in (form.query, form.key, form.value):
        side.provide(operand.tensor, operand.axes)
    side.sizes_of(from_pattern(read.axes), read.output.name)
    return SideEdit(read.output.name, tuple(side.nodes), tuple(side.initializers))


def _sinks(builder: Builder, form: AttentionForm) -> str:
    """The sinks as fp32 of (N,) or (1,); "" where there are none."""
    if form.sinks_value is not None:
        return builder.constant(np.array([form.sinks_value], dtype=np.float32), "sinks")
    if form.sinks is None:
        return ""
    tensor = form.sinks.name
    if form.sinks.elem_type != TensorProto.FLOAT:
        tensor = builder.add("Cast", [tensor], "sinks_cast", to=TensorProto.FLOAT)
    axes = from_pattern(form.sinks_axes)
    return builder.rearranged(tensor, axes, broadcast_axes(axes, (tuple(form.op_axes["N"].split()),)), "sinks")


def _dropout_seed(builder: Builder, form: AttentionForm) -> str:
    """Two numbers of 24 bits, drawn anew in each run, as the model's own Dropout draws its mask."""
    attributes: dict[str, Any] = {"shape": [2], "low": 0.0, "high": float(1 << 24)}
    if form.dropout_seed is not None:
        attributes["seed"] = float(form.dropout_seed)
    drawn = builder.add("RandomUniform", [], "dropout_draw", **attributes)
    return builder.add("Cast", [drawn], "dropout_seed", to=TensorProto.INT64)


def _lengths(builder: Builder, form: AttentionForm) -> str:
    """The key lengths as int32 of (B,) or (1,)."""
    assert form.key_lengths is not None
    tensor = form.key_lengths.name
    if form.key_lengths.elem_type != TensorProto.INT32:
        tensor = builder.add("Cast", [tensor], "key_lengths_cast", to=TensorProto.INT32)
    axes = from_pattern(form.key_lengths_axes)
    return builder.rearranged(tensor, axes, broadcast_axes(axes, (tuple(form.op_axes["B"].split()),)), "key_lengths")


def _structure(form: AttentionForm) -> dict[str, int | float | str]:
    attributes: dict[str, int | float | str] = {}
    if form.is_causal:
        attributes["is_causal"] = 1
    if form.causal_alignment != "top_left":
        attributes["causal_alignment"] = form.causal_alignment
    if form.window_left >= 0:
        attributes["window_left"] = form.window_left
    if form.window_right >= 0:
        attributes["window_right"] = form.window_right
    return attributes


def _border(form: AttentionForm) -> dict[str, str]:
    border = {"query": form.query.tensor.name, "key": form.key.tensor.name, "value": form.value.tensor.name}
    for index, term in enumerate(form.terms):
        border[f"term{index}"] = term.tensor.name
    for index, factor in enumerate(form.query.factors):
        border[f"factor{index}"] = factor.tensor.name
    for role, tensor in (("sinks", form.sinks), ("key_lengths", form.key_lengths)):
        if tensor is not None:
            border[role] = tensor.name
    for index, term in enumerate(form.terms):
        if term.unless is not None:
            border[f"unless{index}"] = term.unless.name
    made = {name for step in form.prelude for name in step.outputs}
    read = dict.fromkeys(name for step in form.prelude for name in step.inputs if name and name not in made)
    border = {role: name for role, name in border.items() if name not in made}
    return {**border, **{f"source{index}": name for index, name in enumerate(read)}}


# ---------------------------------------------------------------------------------------------------------- operands


def op_axes(form: AttentionForm, role: str) -> Axes:
    """The arrangement that the op wants for ``query``, ``key``, ``value`` or ``output``."""
    letters = {axis: tuple(words.split()) for axis, words in form.op_axes.items()}
    batch = letters["B"]
    rows = letters["T"] if role in ("key", "value") else letters["S"]
    heads = letters["M"] if role in ("key", "value") else letters["N"]
    width = letters["E"] if role in ("value", "output") else letters["D"]
    if form.layout == "BSNH":
        return (batch, rows, (*heads, *width))
    return (batch, heads, rows, width)


def _operand(builder: Builder, form: AttentionForm, operand: Operand, role: str) -> str:
    tensor = operand.tensor.name
    if operand.tensor.elem_type not in (0, form.elem_type):
        tensor = builder.add("Cast", [tensor], f"{role}_cast", to=form.elem_type)
    source, target = from_pattern(operand.axes), op_axes(form, role)
    if not operand.factors:
        return builder.rearranged(tensor, source, target, role)
    letters = {axis: tuple(words.split()) for axis, words in form.op_axes.items()}
    order = "BSND" if form.layout == "BSNH" else "BNSD"
    spread: Axes = tuple(letters[axis] for axis in order)
    tensor = builder.rearranged(tensor, source, spread, role)
    for factor in operand.factors:
        other = factor.tensor.name
        if factor.tensor.elem_type != form.elem_type:
            other = builder.add("Cast", [other], "factor_cast", to=form.elem_type)
        axes = from_pattern(factor.axes)
        other = builder.rearranged(other, axes, broadcast_axes(axes, spread), "factor")
        tensor = builder.add("Div" if factor.divides else "Mul", [tensor, other], f"{role}_scaled")
    return builder.rearranged(tensor, spread, target, role)


def _after(builder: Builder, form: AttentionForm) -> str:
    """The nodes behind the call; returns the name of the call's own output."""
    source, target = op_axes(form, "output"), from_pattern(form.output_axes)
    moves = plan(source, target) or []
    casts = form.output.elem_type not in (0, form.elem_type)
    scaled = form.output_scale != 1
    if not moves and not casts and not scaled:
        return form.output.name
    result = builder.fresh_name("output")
    steps = [bool(scaled), casts, bool(moves)]
    current = result
    if scaled:
        last = form.output.name if not any(steps[1:]) else ""
        factor = builder.number(form.output_scale, form.elem_type, "output_scale")
        current = builder.add("Mul", [current, factor], "output_scaled", last)
    if casts:
        last = form.output.name if not moves else ""
        current = builder.add("Cast", [current], "output_cast", last, to=form.output.elem_type)
    if moves:
        builder.moves(current, source, moves, "output", form.output.name)
    return result


# ------------------------------------------------------------------------------------------------------------- terms


def _terms(
    builder: Builder, form: AttentionForm, site: Site
) -> tuple[dict[str, str], dict[str, int | float | str]] | Refusal:
    """attn_bias, attn_mask and mask_fill for the terms of a form."""
    tail: list[ScoreTerm] = []
    early = list(form.terms)
    while early and early[-1].kind == "mask" and (not tail or early[-1].fill == tail[0].fill):
        tail.insert(0, early.pop())
    additive = [term for term in early if term.kind == "mask"]
    for term in additive:
        if term.fill is None or not absorbs(term.fill, TensorProto.FLOAT):
            return Refusal(
                "mask",
                site.name,
                f"the mask '{term.tensor.name}' with fill {term.fill} is followed by another term, and the sum of both"
                " isn't a mask",
            )
    for term in form.terms:
        if term.fill == math.inf:
            reason = f"the mask '{term.tensor.name}' fills with inf, and the op takes finite numbers and -inf"
            return Refusal("mask", site.name, reason)
    inputs: dict[str, str] = {}
    attributes: dict[str, int | float | str] = {}
    scores: Axes = tuple(tuple(form.op_axes[axis].split()) for axis in "BNST")
    if early:
        inputs["attn_bias"] = _bias(builder, form, early, scores)
    if tail:
        inputs["attn_mask"] = _mask(builder, tail, scores)
        fill = tail[0].fill
        if fill is not None and fill != -math.inf:
            attributes["mask_fill"] = fill
    return inputs, attributes


def _placed(builder: Builder, tensor: str, axes: Axes, scores: Axes, role: str) -> str:
    return builder.rearranged(tensor, axes, score_axes(axes, scores), role)


def _bias(builder: Builder, form: AttentionForm, terms: Sequence[ScoreTerm], scores: Axes) -> str:
    """What the terms do to a score of 0: exact for any score, as every mask's fill swallows it.

    Several terms are put together with one axis for every letter, so that nothing is expanded but what has to be.
    """
    kinds = {_bias_type(form, term) for term in terms}
    elem_type = kinds.pop() if len(kinds) == 1 else TensorProto.FLOAT
    if len(terms) == 1 and terms[0].kind == "bias":
        part = _floored(builder, _bias_part(builder, terms[0], elem_type))
        return _placed(builder, part.tensor, part.axes, scores, "bias")
    single: Axes = tuple((letter,) for axis in scores for letter in axis)
    total: _Part | None = None
    for term in terms:
        if total is not None and total.floor is not None and term.floor is None:
            total = _floored(builder, total)
        if term.kind == "mask":
            total = _masked(builder, total, term, elem_type, single)
            continue
        part = _bias_part(builder, term, elem_type)
        spread = broadcast_axes(part.axes, single)
        tensor = builder.rearranged(part.tensor, part.axes, spread, "bias")
        if total is not None:
            tensor = builder.add("Add", [total.tensor, tensor], "bias_sum")
            spread = _union(total.axes, spread)
        total = _Part(tensor, elem_type, spread, term.floor)
    assert total is not None
    total = _floored(builder, total)
    return _placed(builder, total.tensor, total.axes, scores, "bias")


def _masked(builder: Builder, total: _Part | None, term: ScoreTerm, elem_type: int, single: Axes) -> _Part:
    """``where(keep, total, fill)``; ``total`` is 0 where there is nothing yet."""
    axes = from_pattern(term.axes)
    spread = broadcast_axes(axes, single)
    keep = builder.rearranged(_as_bool(builder, term.tensor), axes, spread, "mask")
    inside = total.tensor if total is not None else builder.number(0.0, elem_type, "keep")
    fill = builder.number(term.fill if term.fill is not None else -math.inf, elem_type, "fill")
    branches = [fill, inside] if term.inverted else [inside, fill]
    tensor = builder.add("Where", [keep, *branches], "bias_masked")
    return _Part(tensor, elem_type, spread if total is None else _union(total.axes, spread), term.floor)


def _union(a: Axes, b: Axes) -> Axes:
    """The axes of what two arrangements of one rank broadcast to."""
    return tuple(one or other for one, other in zip(a, b, strict=True))


def _bias_type(form: AttentionForm, term: ScoreTerm) -> int:
    """The type of a bias in the op: its own, where the op takes it, else fp32."""
    kind = form.elem_type if term.kind == "mask" else term.tensor.elem_type
    return kind if kind in (form.elem_type, TensorProto.FLOAT) else TensorProto.FLOAT


def _bias_part(builder: Builder, term: ScoreTerm, elem_type: int) -> _Part:
    axes = from_pattern(term.axes)
    tensor = term.tensor.name
    if term.tensor.elem_type != elem_type:
        tensor = builder.add("Cast", [tensor], "bias_cast", to=elem_type)
    if term.coeff != 1:
        tensor = builder.add("Mul", [tensor, builder.number(term.coeff, elem_type, "coeff")], "bias_scaled")
    return _Part(tensor, elem_type, axes, term.floor)


def _floored(builder: Builder, part: _Part) -> _Part:
    if part.floor is None:
        return part
    floor = builder.number(part.floor, part.elem_type, "floor")
    return _Part(builder.add("Max", [part.tensor, floor], "bias_clamped"), part.elem_type, part.axes)


def _mask(builder: Builder, terms: Sequence[ScoreTerm], scores: Axes) -> str:
    result = ""
    for term in terms:
        tensor = _as_bool(builder, term.tensor)
        tensor = _placed(builder, tensor, from_pattern(term.axes), scores, "mask")
        if term.inverted:
            tensor = builder.add("Not", [tensor], "mask_kept")
        if term.unless is not None:
            spared = builder.add("Cast", [term.unless.name], "mask_unless", to=TensorProto.BOOL)
            spared = _placed(builder, spared, from_pattern(term.unless_axes), scores, "mask_unless")
            tensor = builder.add("Or", [tensor, spared], "mask_spared")
        result = builder.add("And", [result, tensor], "mask_both") if result else tensor
    return result


def _as_bool(builder: Builder, tensor: TensorRef) -> str:
    if tensor.elem_type == TensorProto.BOOL:
        return tensor.name
    return builder.add("Cast", [tensor.name], "mask_bool", to=TensorProto.BOOL)
