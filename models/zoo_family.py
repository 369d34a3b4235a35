"""What a family of models is, and how a tiny one is built for export.

Nothing is downloaded: every model is built from its configuration with random weights. transformers and diffusers are
imported only by the family that needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Example:
    """A module ready to export, inputs for it, and what is known of its attention."""

    module: nn.Module
    inputs: dict[str, Tensor]
    dynamic: dict[str, dict[int, str]]
    """Input name -> axis -> dimension name; what a static export ignores."""
    sites: int
    fusable: int
    note: str = ""


@dataclass(frozen=True)
class Family:
    """How to build one architecture with ``eager`` or ``sdpa`` attention."""

    build: Callable[[str], Example]
    attentions: tuple[str, ...] = field(default=("eager", "sdpa"))


FAMILIES: dict[str, Family] = {}


class Positional(nn.Module):
    """Calls ``inner`` by keyword with the inputs in their order and returns one tensor, or a flat tuple of them."""

    def __init__(self, inner: nn.Module, names: list[str], pick: Callable[[Any], Any], fixed: dict[str, Any]) -> None:
        super().__init__()
        self.inner, self.names, self.pick, self.fixed = inner, names, pick, fixed

    def forward(self, *inputs: Tensor) -> Any:
        return self.pick(self.inner(**dict(zip(self.names, inputs, strict=True)), **self.fixed))


def first(output: Any) -> Any:
    """The first element of a model's output: its last hidden state, or its logits."""
    return output[0]


def example(
    inner: nn.Module,
    inputs: dict[str, Tensor],
    dynamic: dict[str, dict[int, str]],
    sites: int,
    *,
    fusable: int | None = None,
    note: str = "",
    pick: Callable[[Any], Any] = first,
    **fixed: Any,
) -> Example:
    """An :class:`Example` of ``inner`` called by keyword."""
    module = Positional(inner, list(inputs), pick, fixed)
    return Example(module, inputs, dynamic, sites, sites if fusable is None else fusable, note)


def token_ids(batch: int = 2, length: int = 10, vocabulary: int = 99) -> Tensor:
    """(batch, length) int64, never a special token of the tiny vocabularies below."""
    return torch.randint(5, vocabulary - 4, (batch, length))


def padding_mask(batch: int = 2, length: int = 10, padded: int = 3) -> Tensor:
    """(batch, length) int64, the last row padded on the right."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - padded :] = 0
    return mask


SEQ = {0: "batch", 1: "sequence"}


def auto(config: Any, attention: str, kind: str = "AutoModel") -> nn.Module:
    import transformers

    factory = getattr(transformers, kind)
    make = factory.from_config if kind.startswith("Auto") else factory._from_config
    model: nn.Module = make(config, attn_implementation=attention)
    return model


def config_of(name: str, **values: Any) -> Any:
    import transformers

    return getattr(transformers, name)(**values)


def add(name: str, build: Callable[[str], Example], *attentions: str) -> None:
    FAMILIES[name] = Family(build, attentions or ("eager", "sdpa"))


def family(*attentions: str) -> Callable[[Callable[[str], Example]], Callable[[str], Example]]:
    """Register the decorated builder under its own name."""

    def register(build: Callable[[str], Example]) -> Callable[[str], Example]:
        add(build.__name__, build, *attentions)
        return build

    return register


def flat_cache(past: list[Tensor], layers: int, config: Any, cross: bool) -> Any:
    from transformers import DynamicCache, EncoderDecoderCache

    def fill(tensors: list[Tensor]) -> Any:
        cache = DynamicCache()
        for layer in range(layers):
            cache.update(tensors[2 * layer], tensors[2 * layer + 1], layer)
        return cache

    if not cross:
        return fill(past)
    both = EncoderDecoderCache(fill(past[: 2 * layers]), fill(past[2 * layers :]))
    for layer in range(layers):
        both.is_updated[layer] = True
    return both


class WithPast(nn.Module):
    """A decoder step with its key/value cache as plain inputs and outputs."""

    def __init__(self, inner: nn.Module, layers: int, names: list[str], cross: bool = False) -> None:
        super().__init__()
        self.inner, self.layers, self.names, self.cross = inner, layers, names, cross

    def forward(self, *inputs: Tensor) -> Any:
        given = dict(zip(self.names, inputs, strict=False))
        cache = flat_cache(list(inputs[len(self.names) :]), self.layers, None, self.cross)
        output = self.inner(**given, past_key_values=cache, use_cache=True)
        kept = output.past_key_values
        kept = kept.self_attention_cache if self.cross else kept
        return output[0], *[t for layer in kept.layers for t in (layer.keys, layer.values)]


TEXT_CONFIG: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}

CLIP: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
