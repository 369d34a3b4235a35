"""Export one or two layers of well-known models in their real width, with random weights: what engines are timed on.

    python models/wide.py bert gpt2 vit sd --out /tmp/wide

Needs the extra ``ortflash[export]``; ``sd`` also needs diffusers. Eager attention, tracing exporter, opset 17, fp16.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import onnx
import torch
import typer

sys.path.insert(0, str(Path(__file__).parent))
from export_zoo import Variant, draw_weights, drop_source_paths, export_model
from zoo_family import Example, example, padding_mask, token_ids

LONGEST = 16384
"""Positions of the models that count them."""
VOCABULARY = 512
"""Small: the lookup isn't what is timed."""
TOKENS = {0: "batch", 1: "sequence"}


def bert() -> Example:
    """Two layers of BERT base: hidden size 768, 12 heads, a padding mask."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY, num_hidden_layers=2, max_position_embeddings=LONGEST, attn_implementation="eager"
    )
    inputs = {"input_ids": token_ids(), "attention_mask": padding_mask()}
    return example(BertModel(config, add_pooling_layer=False), inputs, dict.fromkeys(inputs, TOKENS), 2)


def gpt2() -> Example:
    """Two layers of GPT-2: hidden size 768, 12 heads, causal, with a padding mask."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=VOCABULARY, n_layer=2, n_positions=LONGEST, use_cache=False, attn_implementation="eager"
    )
    inputs = {"input_ids": token_ids(), "attention_mask": padding_mask()}
    return example(GPT2Model(config), inputs, dict.fromkeys(inputs, TOKENS), 2, use_cache=False)


def vit() -> Example:
    """Two layers of ViT base on the patches' embeddings: hidden size 768, 12 heads, nothing between the products."""
    from transformers import ViTConfig, ViTModel

    model = ViTModel(ViTConfig(num_hidden_layers=2, attn_implementation="eager"), add_pooling_layer=False)
    return Example(_Encoder(model), {"patches": torch.randn(2, 10, 768)}, {"patches": TOKENS}, 2, 2)


class _Encoder(torch.nn.Module):
    """What stands behind a vision transformer's embeddings, which fix the number of patches."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.layers, self.norm = getattr(model, "layers", None) or model.encoder.layer, model.layernorm

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            made = layer(patches)
            patches = made if isinstance(made, torch.Tensor) else made[0]
        normed: torch.Tensor = self.norm(patches)
        return normed


def sd() -> Example:
    """A transformer block of Stable Diffusion 1.5's UNet: 320 channels, 8 heads of 40, self and cross attention."""
    from diffusers import Transformer2DModel
    from diffusers.models.attention_processor import AttnProcessor

    model = Transformer2DModel(
        num_attention_heads=8, attention_head_dim=40, in_channels=320, cross_attention_dim=768, norm_num_groups=32
    )
    for block in model.transformer_blocks:
        block.attn1.set_processor(AttnProcessor())
        block.attn2.set_processor(AttnProcessor())
    inputs = {"hidden_states": torch.randn(2, 320, 8, 8), "encoder_hidden_states": torch.randn(2, 77, 768)}
    dynamic = {"hidden_states": {0: "batch", 2: "height", 3: "width"}, "encoder_hidden_states": {0: "batch"}}
    return example(model, inputs, dynamic, 2, return_dict=False)


MODELS: dict[str, Callable[[], Example]] = {made.__name__: made for made in (bert, gpt2, vit, sd)}


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(MODELS)}; all by default.")] = None,
    out: Annotated[Path, typer.Option(help="A folder.")] = Path("."),
) -> None:
    """Write ``wide-NAME.onnx`` for each."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names or MODELS:
        torch.manual_seed(0)
        case = MODELS[name]()
        draw_weights(case.module)
        module = case.module.eval().half()
        inputs = {key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in case.inputs.items()}
        model = export_model(module, inputs, case.dynamic, Variant(name, "ts", "eager", 17, dtype="fp16"))
        drop_source_paths(model)
        onnx.save(model, out / f"wide-{name}.onnx")
        typer.echo(f"{out}/wide-{name}.onnx")


if __name__ == "__main__":
    typer.run(main)
