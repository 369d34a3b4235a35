"""What is said about a model's attention: one entry a site, as data, JSON and Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onnx import TensorProto

from .normal_form import AttentionForm, Refusal, Site
from .plan import site_sizes

Decision = Literal["fusable", "fused", "refused", "skipped", "rolled back"]

_ITEM_BYTES: Mapping[int, int] = {
    TensorProto.FLOAT: 4,
    TensorProto.FLOAT16: 2,
    TensorProto.BFLOAT16: 2,
    TensorProto.DOUBLE: 8,
}
_TYPE_NAMES: Mapping[int, str] = {TensorProto.FLOAT: "fp32", TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}


@dataclass(frozen=True)
class Amount:
    """A product of numbers and dimensions that the model leaves open."""

    number: int
    symbols: tuple[str, ...] = ()

    def at(self, sizes: Mapping[str, int]) -> int | None:
        """The value where every open dimension has a size; None where one is missing."""
        value = self.number
        for symbol in self.symbols:
            if symbol not in sizes:
                return None
            value *= sizes[symbol]
        return value

    def __str__(self) -> str:
        powers = [
            s if self.symbols.count(s) == 1 else f"{s}^{self.symbols.count(s)}" for s in dict.fromkeys(self.symbols)
        ]
        return " * ".join([_grouped(self.number), *powers])


@dataclass(frozen=True)
class SiteReport:
    """One attention of the model."""

    name: str
    graph: str
    anchor: str
    decision: Decision
    dtype: str
    sizes: Mapping[str, int | str]
    """By the schema's letters; empty for a site that isn't fusable."""
    features: tuple[str, ...]
    """What was found: ``scale 0.125``, ``bias``, ``causal`` ..."""
    nodes: int
    """Nodes of the model that were recognised as part of the site."""
    flops: Amount | None
    """Operations of the two products: 2*B*N*S*T*(D+E)."""
    scores_bytes: Amount | None
    """Bytes of the (B,N,S,T) scores that fusing never stores."""
    rule: str = ""
    node: str = ""
    reason: str = ""
    hint: str = ""
    error: float | None = None
    """Largest error at the border against float64, where it was verified."""
    bound: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        data = {key: value for key, value in self.__dict__.items() if value not in (None, "", (), math.inf)}
        for key in ("flops", "scores_bytes"):
            if key in data:
                data[key] = data[key].number if not data[key].symbols else str(data[key])
        return data | {"sizes": dict(self.sizes), "features": list(self.features)}


@dataclass(frozen=True)
class ModelReport:
    """A whole model."""

    model: str
    opset: int
    target: Literal["ort", "ort-trt", "onnx"]
    sites: tuple[SiteReport, ...]
    already_fused: int = 0
    """FlashAttention nodes that were in the file before."""
    notes: tuple[str, ...] = ()

    def count(self, *decisions: Decision) -> int:
        """How many sites were decided so."""
        return sum(site.decision in decisions for site in self.sites)

    @property
    def summary(self) -> str:
        """One sentence."""
        if not self.sites:
            if self.already_fused:
                return f"All attention of {self.model} is fused already ({self.already_fused} FlashAttention nodes)."
            return f"{self.model} contains no attention: no Softmax, or what computes one, between two matrix products."
        parts = [f"{self.count('fusable', 'fused')} of {len(self.sites)} attention sites of {self.model}"]
        parts.append("fused" if self.count("fused") or not self.count("fusable") else "can be fused")
        for decision in ("refused", "skipped", "rolled back"):
            number = self.count(decision)
            if number:
                parts.append(f"({number} {decision})")
        return " ".join(parts) + "."

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "model": self.model,
            "opset": self.opset,
            "target": self.target,
            "summary": self.summary,
            "found": len(self.sites),
            "fused": self.count("fused", "fusable"),
            "already_fused": self.already_fused,
            "notes": list(self.notes),
            "sites": [site.to_dict() for site in self.sites],
        }

    def to_markdown(self) -> str:
        """A summary and a table."""
        lines = [f"# Attention in {self.model}", "", self.summary, ""]
        if self.sites:
            lines += ["| site | type | sizes | found | decision | operations | bytes of scores | error | why |"]
            lines += ["|---|---|---|---|---|---|---|---|---|"]
        for site in self.sites:
            error = "" if site.error is None else f"{site.error:.1e}"
            cells = (
                f"`{site.name}`",
                site.dtype,
                sizes_text(site.sizes),
                ", ".join(site.features),
                site.decision,
                str(site.flops or ""),
                str(site.scores_bytes or ""),
                error,
                reason_text(site),
            )
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines += ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join(lines) + "\n"


def describe_site(site: Site, refusal: Refusal | None = None) -> SiteReport:
    """The entry for one site: "fusable", or "refused" where it or ``refusal`` (its lowering's) says so."""
    refusal = refusal or site.refusal
    form = site.form
    sizes = site_sizes(site) if form else {}
    elem_type = form.elem_type if form else 0
    return SiteReport(
        name=site.name,
        graph=site.graph,
        anchor=site.anchor,
        decision="refused" if refusal else "fusable",
        dtype=_TYPE_NAMES.get(elem_type, ""),
        sizes=sizes,
        features=features_of(form) if form else (),
        nodes=len({peel.node for peel in form.peels}) if form else 0,
        flops=_flops(sizes) if form else None,
        scores_bytes=_amount(_ITEM_BYTES.get(elem_type, 4), *(sizes[letter] for letter in "BNST")) if form else None,
        rule=refusal.rule if refusal else "",
        node=refusal.node if refusal else "",
        reason=refusal.reason if refusal else "",
        hint=refusal.hint if refusal else "",
    )


def features_of(form: AttentionForm) -> tuple[str, ...]:
    """What a form has beside Q, K and V, in the operator's words."""
    found = [f"scale {form.scale:.6g}" if form.scale else "scale 1/sqrt(D)"]
    if form.kv_num_heads and form.kv_num_heads != form.query.num_heads:
        found.append(f"{form.kv_num_heads} key/value heads")
    if form.softcap:
        found.append(f"softcap {form.softcap:g}")
    for term in form.terms:
        fill = f" (fill {term.fill:.4g})" if term.kind == "mask" and term.fill is not None else ""
        axes = f" ({term.axes})" if term.axes else ""
        found.append(f"{term.kind}{axes}{fill}")
    if form.is_causal:
        found.append(f"causal ({form.causal_alignment})")
    if form.window_left >= 0 or form.window_right >= 0:
        found.append(f"window {form.window_left}, {form.window_right}")
    if form.key_lengths:
        found.append("key lengths")
    if form.block_mask is not None:
        found.append(f"block mask ({form.block_size})")
    if form.sinks:
        found.append("sinks")
    if form.dropout_p:
        found.append(f"dropout {form.dropout_p:g} (random: can't be verified)")
    if form.guard != "none":
        found.append("NaN guard")
    return tuple(found)


def sizes_text(sizes: Mapping[str, int | str]) -> str:
    """``Q (2, 12, S, 64), K (2, 12, T, 64)``."""
    if not sizes:
        return ""
    query = ", ".join(str(sizes[letter]) for letter in "BNSD")
    key = ", ".join(str(sizes[letter]) for letter in "BMTD")
    return f"Q ({query}), K ({key})"


def reason_text(site: SiteReport) -> str:
    """Why a site is not fused: the node if it isn't the one that names the site, the reason, and what to change."""
    where = f"{site.node}: " if site.node not in ("", site.name) else ""
    hint = f"; {site.hint}" if site.hint else ""
    return f"{where}{site.reason}{hint}" if site.reason else ""


def total(amounts: Sequence[Amount | None]) -> Amount | None:
    """The sum, where all amounts are in the same open dimensions."""
    known = [amount for amount in amounts if amount is not None]
    if not known or len({tuple(sorted(amount.symbols)) for amount in known}) > 1:
        return None
    return Amount(sum(amount.number for amount in known), known[0].symbols)


def _flops(sizes: Mapping[str, int | str]) -> Amount:
    """2*B*N*S*T*(D+E)."""
    width, value_width = sizes["D"], sizes["E"]
    if isinstance(width, int) and isinstance(value_width, int):
        return _amount(2 * (width + value_width), *(sizes[letter] for letter in "BNST"))
    return _amount(4, *(sizes[letter] for letter in "BNST"), width)


_TIMES = re.compile(r"\*(?![^(]*\))")
"""A product's sign outside of parentheses: ``floor(a*b)`` is one symbol."""


def _amount(*factors: int | str) -> Amount:
    number, symbols = 1, []
    for factor in factors:
        for part in _TIMES.split(str(factor)):
            if part.strip().isdigit():
                number *= int(part)
            else:
                symbols.append(part.strip())
    return Amount(number, tuple(symbols))


def _grouped(number: int) -> str:
    return f"{number:,}"
