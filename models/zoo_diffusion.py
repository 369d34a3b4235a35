"""UNets, autoencoders and diffusion transformers from diffusers, tiny."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from zoo_family import Example, example, family, padding_mask


def _diffusers_attention(model: nn.Module, attention: str) -> nn.Module:
    """Give every attention of a diffusers model its eager or its SDPA processor."""
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    model.set_attn_processor(AttnProcessor() if attention == "eager" else AttnProcessor2_0())
    return model


@family()
def sdunet(attention: str) -> Example:
    """A Stable-Diffusion UNet: self and cross attention in 4 transformer blocks."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        cross_attention_dim=24,
        attention_head_dim=2,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )
    inputs = {
        "sample": torch.randn(2, 4, 16, 16),
        "timestep": torch.tensor([7, 300]),
        "encoder_hidden_states": torch.randn(2, 9, 24),
    }
    dynamic = {"sample": {0: "batch"}, "timestep": {0: "batch"}, "encoder_hidden_states": {0: "batch", 1: "text"}}
    return example(
        _diffusers_attention(model, attention), inputs, dynamic, 8, note="self and cross attention", return_dict=False
    )


class VaeDecoder(nn.Module):
    """The decoder half of an autoencoder."""

    def __init__(self, vae: nn.Module) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, sample: Tensor) -> Tensor:
        out: Tensor = self.vae.decode(sample, return_dict=False)[0]
        return out


@family()
def vaedecoder(attention: str) -> Example:
    from diffusers import AutoencoderKL

    vae = AutoencoderKL(
        block_out_channels=(16, 32),
        norm_num_groups=4,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    module = VaeDecoder(_diffusers_attention(vae, attention))
    return Example(
        module,
        {"sample": torch.randn(2, 4, 8, 8)},
        {"sample": {0: "batch", 2: "height", 3: "width"}},
        1,
        1,
        "one head, all channels",
    )


@family("sdpa")
def sd3(attention: str) -> Example:
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=24,
        caption_projection_dim=64,
        pooled_projection_dim=32,
        out_channels=4,
        pos_embed_max_size=8,
        qk_norm="rms_norm",
    )
    inputs = {
        "hidden_states": torch.randn(2, 4, 16, 16),
        "encoder_hidden_states": torch.randn(2, 9, 24),
        "pooled_projections": torch.randn(2, 32),
        "timestep": torch.tensor([7, 300]),
    }
    dynamic = {n: {0: "batch"} for n in inputs}
    return example(model, inputs, dynamic, 2, note="joint attention of text and image, qk norm", return_dict=False)


@family("sdpa")
def flux(attention: str) -> Example:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=24,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )
    inputs = {
        "hidden_states": torch.randn(2, 12, 16),
        "encoder_hidden_states": torch.randn(2, 5, 24),
        "pooled_projections": torch.randn(2, 32),
        "timestep": torch.tensor([0.2, 0.9]),
        "img_ids": torch.rand(12, 3).mul(5).floor(),
        "txt_ids": torch.zeros(5, 3),
    }
    dynamic = {n: {0: "batch"} for n in ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep")}
    return example(model, inputs, dynamic, 2, note="joint and single blocks, 3-axis rotary", return_dict=False)


@family()
def pixart(attention: str) -> Example:
    from diffusers import PixArtTransformer2DModel

    model = PixArtTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        out_channels=8,
        num_layers=1,
        cross_attention_dim=64,
        sample_size=8,
        patch_size=2,
        caption_channels=24,
        use_additional_conditions=False,
    )
    inputs = {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "encoder_hidden_states": torch.randn(2, 9, 24),
        "timestep": torch.tensor([7, 300]),
        "encoder_attention_mask": padding_mask(length=9),
    }
    dynamic = {n: {0: "batch"} for n in inputs}
    return example(
        _diffusers_attention(model, attention), inputs, dynamic, 2, note="self, masked cross", return_dict=False
    )


@family()
def dit(attention: str) -> Example:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
    )
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    for module in model.modules():
        if hasattr(module, "set_processor"):
            module.set_processor(AttnProcessor() if attention == "eager" else AttnProcessor2_0())
    inputs = {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([7, 300]),
        "class_labels": torch.tensor([1, 3]),
    }
    return example(model, inputs, {n: {0: "batch"} for n in inputs}, 2, return_dict=False)
