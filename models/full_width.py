"""Export well-known architectures at their real width, in fp16 with random weights, for `ortflash bench model`.

    python models/full_width.py export bert-large gpt2-medium --out DIR    # graphs of a few MB, without large weights
    python models/full_width.py fill DIR/*.onnx                            # draws the weights beside them

Every model has 6 layers (Swin 2, 2, 6 and 2): layers are alike, so more of them would only take longer.

Exporting wants the extra ``ortflash[export]``; filling only numpy and onnx, so graphs that were exported on a small
machine can be filled and measured on a machine with a GPU. Each model is written twice: `NAME.onnx` in opset 18, with
attention as products and softmax, and `NAME-op23.onnx`, where the exporter writes ONNX's own Attention.

Those of OLD_MODELS are written once, as `NAME-op17.onnx`, by the older exporter and with eager attention, which is the
plainest spelling: bert-large-eager for ONNX Runtime's optimizer, which fuses attention in no other spelling here; the
others, of two layers, for TensorRT 8.6, whose builder is slow and reads no opset after 17.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import onnx
import typer
from onnx.external_data_helper import set_external_data

if TYPE_CHECKING:
    from torch import nn
    from zoo_family import Example

sys.path.insert(0, str(Path(__file__).parent))

INLINE_BYTES = 1 << 16
"""Smaller tensors (biases, norms, tables of positions) keep their values."""
LAYERS = 6
OLD_LAYERS = 2
OLD_LONGEST = 16384
"""Positions of the models in OLD_MODELS that count them."""
_DEVIATION = 0.02
_BLOCK = 1_048_573
"""Values that are drawn for a weight; larger ones repeat them. A prime: rows start at different places."""


def _text(config: str, attention: str = "sdpa", **values: Any) -> Callable[[], Example]:
    def build() -> Example:
        from zoo_family import SEQ, auto, config_of, example, padding_mask, token_ids

        settings = config_of(config, **values)
        model = auto(settings, attention, "T5EncoderModel" if config == "T5Config" else "AutoModel")
        inputs = {"input_ids": token_ids(2, 40), "attention_mask": padding_mask(2, 40)}
        fixed = {} if config in ("BertConfig", "T5Config") else {"use_cache": False}
        return example(model, inputs, dict.fromkeys(inputs, SEQ), settings.num_hidden_layers, **fixed)

    return build


def _image(config: str, layers: int, size: int, **values: Any) -> Callable[[], Example]:
    def build() -> Example:
        import torch
        from zoo_family import auto, config_of, example

        model = auto(config_of(config, image_size=size, **values), "sdpa")
        return example(model, {"pixel_values": torch.randn(2, 3, size, size)}, {"pixel_values": {0: "batch"}}, layers)

    return build


def _sdxl_block() -> Example:
    """A transformer block of Stable Diffusion XL: 640 channels in 10 heads, 77 tokens of text."""
    import torch
    from diffusers.models.attention import BasicTransformerBlock
    from torch import Tensor, nn
    from zoo_family import Example

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = BasicTransformerBlock(640, 10, 64, cross_attention_dim=2048)

        def forward(self, hidden_states: Tensor, text: Tensor) -> Any:
            return self.block(hidden_states, encoder_hidden_states=text)

    inputs = {"hidden_states": torch.randn(2, 256, 640), "text": torch.randn(2, 77, 2048)}
    return Example(Block(), inputs, {"hidden_states": {0: "batch", 1: "sequence"}, "text": {0: "batch"}}, 2, 2)


def _vit_encoder() -> Example:
    """ViT base on the embeddings of patches, any number of them: nothing stands between the two products."""
    import torch
    from torch import Tensor, nn
    from zoo_family import SEQ, Example, auto, config_of

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            model = auto(config_of("ViTConfig", num_hidden_layers=OLD_LAYERS), "eager")
            self.layers, self.norm = getattr(model, "layers", None) or model.encoder.layer, model.layernorm

        def forward(self, patches: Tensor) -> Any:
            for layer in self.layers:
                made = layer(patches)
                patches = made if isinstance(made, Tensor) else made[0]
            return self.norm(patches)

    return Example(Encoder(), {"patches": torch.randn(2, 10, 768)}, {"patches": SEQ}, OLD_LAYERS, OLD_LAYERS)


def _sd_block() -> Example:
    """A transformer of Stable Diffusion 1.5's UNet: 320 channels, 8 heads of 40, self and cross attention."""
    import torch
    from diffusers import Transformer2DModel
    from diffusers.models.attention_processor import AttnProcessor
    from zoo_family import example

    model = Transformer2DModel(8, 40, in_channels=320, cross_attention_dim=768)
    for block in model.transformer_blocks:
        block.attn1.set_processor(AttnProcessor())
        block.attn2.set_processor(AttnProcessor())
    inputs = {"hidden_states": torch.randn(2, 320, 8, 8), "encoder_hidden_states": torch.randn(2, 77, 768)}
    dynamic = {"hidden_states": {0: "batch", 2: "height", 3: "width"}, "encoder_hidden_states": {0: "batch"}}
    return example(model, inputs, dynamic, 2, return_dict=False)


_LARGE = {"hidden_size": 1024, "num_hidden_layers": LAYERS, "num_attention_heads": 16, "intermediate_size": 4096}
MODELS: dict[str, Callable[[], Example]] = {
    "bert-large": _text("BertConfig", **_LARGE, max_position_embeddings=4096),
    "gpt2-medium": _text("GPT2Config", n_embd=1024, n_layer=LAYERS, n_head=16, n_positions=4096),
    "llama-1b": _text(
        "LlamaConfig",
        hidden_size=2048,
        num_hidden_layers=LAYERS,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
        vocab_size=32000,
        max_position_embeddings=8192,
    ),
    "t5-large-encoder": _text("T5Config", d_model=1024, num_layers=LAYERS, num_heads=16, d_ff=4096, d_kv=64),
    "vit-large-224": _image("ViTConfig", LAYERS, 224, **_LARGE),
    "vit-large-518": _image("ViTConfig", LAYERS, 518, patch_size=14, **_LARGE),
    "swin-large": _image("SwinConfig", 12, 224, embed_dim=192, depths=[2, 2, LAYERS, 2], num_heads=[6, 12, 24, 48]),
    "sdxl-block": _sdxl_block,
}
_SMALL_TABLE = {"vocab_size": 512}  # the lookup isn't what is timed
OLD_MODELS: dict[str, Callable[[], Example]] = {
    "bert-large-eager": _text("BertConfig", "eager", **_LARGE, max_position_embeddings=4096),
    "bert-base": _text(
        "BertConfig", "eager", **_SMALL_TABLE, num_hidden_layers=OLD_LAYERS, max_position_embeddings=OLD_LONGEST
    ),
    "gpt2": _text("GPT2Config", "eager", **_SMALL_TABLE, n_layer=OLD_LAYERS, n_positions=OLD_LONGEST),
    "vit-base": _vit_encoder,
    "sd-block": _sd_block,
}
EXPORTS = {"": ("dy", "sdpa", 18), "-op23": ("dy", "sdpa", 23)}
"""Suffix of the file -> exporter, attention and opset."""
OLD_EXPORTS = {"-op17": ("ts", "eager", 17)}
"""The same for OLD_MODELS."""

app = typer.Typer(add_completion=False, help=__doc__)


@app.command("export")
def export_models(
    names: Annotated[list[str], typer.Argument(help=f"Some of: {', '.join((*MODELS, *OLD_MODELS))}.")],
    out: Annotated[Path, typer.Option(help="Folder to write into.")],
) -> None:
    """Write the graphs of each model, without their large weights."""
    import torch
    from export_zoo import Variant, drop_source_paths, export_model

    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        torch.manual_seed(0)
        with _cheap_initialisation():
            case = (MODELS | OLD_MODELS)[name]()
        module: nn.Module = case.module.eval().to(torch.float16)
        _draw_small_weights(module)
        inputs = {n: t.half() if t.is_floating_point() else t for n, t in case.inputs.items()}
        for suffix, variant in (EXPORTS if name in MODELS else OLD_EXPORTS).items():
            model = export_model(module, inputs, case.dynamic, Variant(name, *variant))
            drop_source_paths(model)
            take_out_weights(model, f"{name}{suffix}.weights")
            onnx.save(model, out / f"{name}{suffix}.onnx")
            typer.echo(f"{name}{suffix}: {(out / f'{name}{suffix}.onnx').stat().st_size} bytes")


def _cheap_initialisation() -> Any:
    """The library's random initialisation takes minutes; the values are thrown away."""
    from transformers.initialization import no_init_weights

    return no_init_weights()


def _draw_small_weights(module: nn.Module) -> None:
    """Norms become 1, biases 0, small matrices normal; large ones differ, because an exporter merges equal ones."""
    import torch

    with torch.no_grad():
        for index, (name, parameter) in enumerate(module.named_parameters()):
            if parameter.dim() == 1:
                parameter.fill_(float(name.endswith("weight")))
            elif parameter.numel() * parameter.element_size() < INLINE_BYTES:
                parameter.normal_(0, _DEVIATION)
            else:
                parameter.zero_()[0] = index


def take_out_weights(model: onnx.ModelProto, location: str) -> None:
    """Make initializers of ``INLINE_BYTES`` and more refer to a file that :func:`fill_weights` can write."""
    offset = 0
    for tensor in model.graph.initializer:
        size = len(tensor.raw_data)
        if size >= INLINE_BYTES and tensor.data_type == onnx.TensorProto.FLOAT16:
            set_external_data(tensor, location, offset, size)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.ClearField("raw_data")
            offset += size


def fill_weights(path: Path, deviation: float = _DEVIATION) -> int:
    """Draw the weights that a graph refers to, normal, the same for the same file; their bytes."""
    model = onnx.load(path, load_external_data=False)
    block = (np.random.default_rng(0).standard_normal(_BLOCK, np.float32) * deviation).astype(np.float16)
    total = 0
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if not entries:
            continue
        offset, length = int(entries["offset"]), int(entries["length"])
        with (path.parent / entries["location"]).open("r+b" if total else "wb") as file:
            file.seek(offset)
            # Where a tensor starts in the block depends on its place: no two are alike.
            file.write(np.resize(np.roll(block, -(offset // 2)), length // 2).tobytes())
        total += int(entries["length"])
    return total


@app.command("fill")
def fill(
    paths: Annotated[list[Path], typer.Argument(help="Graphs written by `export`.", exists=True)],
    deviation: Annotated[float, typer.Option(help="Of the weights; larger ones make attention peaked.")] = _DEVIATION,
) -> None:
    """Draw the large weights of graphs."""
    for path in paths:
        typer.echo(f"{path.name}: {fill_weights(path, deviation)} bytes")


if __name__ == "__main__":
    app()
