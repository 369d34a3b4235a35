"""Vision models and models of text and image from transformers, tiny."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from zoo_family import (
    CLIP,
    SEQ,
    TEXT_CONFIG,
    Example,
    add,
    auto,
    config_of,
    example,
    family,
    first,
    padding_mask,
    token_ids,
)


def image(
    config: str,
    *,
    size: int = 32,
    channels: int = 3,
    sites: int = 2,
    fusable: int | None = None,
    note: str = "",
    kind: str = "AutoModel",
    pick: Callable[[Any], Any] = first,
    input_name: str = "pixel_values",
    **values: Any,
) -> Callable[[str], Example]:
    """A vision model that reads ``pixel_values`` (batch, channels, size, size)."""

    def build(attention: str) -> Example:
        model = auto(config_of(config, **values), attention, kind)
        inputs = {input_name: torch.randn(2, channels, size, size)}
        return example(model, inputs, {input_name: {0: "batch"}}, sites, fusable=fusable, note=note, pick=pick)

    return build


VIT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": 32,
    "patch_size": 8,
}


# Images
add("vit", image("ViTConfig", **VIT))
add("deit", image("DeiTConfig", **VIT))
add("dinov2", image("Dinov2Config", **VIT))
add("dinov2reg", image("Dinov2WithRegistersConfig", **VIT))
add("dinov3", image("DINOv3ViTConfig", **VIT))
add("vitmsn", image("ViTMSNConfig", **VIT))
add("ijepa", image("IJepaConfig", **VIT))
add("vitmae", image("ViTMAEConfig", mask_ratio=0.0, decoder_num_hidden_layers=1, **VIT))
add("yolos", image("YolosConfig", **{**VIT, "image_size": [32, 32]}, num_detection_tokens=3))
add("beit", image("BeitConfig", use_relative_position_bias=True, **VIT, note="relative position table"))
add("data2vecvision", image("Data2VecVisionConfig", use_shared_relative_position_bias=True, **VIT))
add(
    "dpt",
    image("DPTConfig", **VIT, backbone_out_indices=[0, 1, 1, 1], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8),
)
add("clipvision", image("CLIPVisionConfig", **VIT))
add("siglipvision", image("SiglipVisionConfig", **VIT))
add("blipvision", image("BlipVisionConfig", kind="BlipVisionModel", **VIT))
add(
    "swin",
    image(
        "SwinConfig",
        image_size=32,
        patch_size=4,
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        sites=4,
        note="windows, shift mask, table",
    ),
)
add(
    "swinv2",
    image(
        "Swinv2Config",
        image_size=32,
        patch_size=4,
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        sites=4,
        note="cosine attention with a scale a head",
    ),
)
add(
    "donutswin",
    image(
        "DonutSwinConfig",
        image_size=32,
        patch_size=4,
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        sites=4,
    ),
    "eager",
)
add(
    "maskformerswin",
    image(
        "MaskFormerSwinConfig",
        image_size=32,
        patch_size=4,
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        sites=4,
    ),
    "eager",
)
add(
    "segformer",
    image(
        "SegformerConfig",
        hidden_sizes=[16, 32],
        depths=[1, 1],
        num_encoder_blocks=2,
        num_attention_heads=[1, 2],
        sr_ratios=[4, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
        size=64,
    ),
)
add(
    "pvt",
    image(
        "PvtConfig",
        image_size=64,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        num_encoder_blocks=2,
        num_attention_heads=[1, 2],
        sequence_reduction_ratios=[4, 2],
        patch_sizes=[4, 2],
        strides=[4, 2],
        mlp_ratios=[2, 2],
        size=64,
    ),
    "eager",
)
add(
    "pvtv2",
    image(
        "PvtV2Config",
        image_size=64,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        num_encoder_blocks=2,
        num_attention_heads=[1, 2],
        sr_ratios=[4, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
        size=64,
    ),
    "eager",
)
add(
    "glpn",
    image(
        "GLPNConfig",
        hidden_sizes=[16, 32],
        depths=[1, 1],
        num_encoder_blocks=2,
        num_attention_heads=[1, 2],
        sr_ratios=[4, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
        size=64,
    ),
    "eager",
)
add(
    "mobilevit",
    image(
        "MobileViTConfig",
        image_size=64,
        hidden_sizes=[32, 48, 64],
        num_attention_heads=4,
        neck_hidden_sizes=[8, 8, 16, 24, 32, 40, 48],
        patch_size=2,
        size=64,
        sites=9,
    ),
    "eager",
)
add(
    "levit",
    image(
        "LevitConfig",
        image_size=64,
        hidden_sizes=[16, 32, 48],
        num_attention_heads=[1, 2, 3],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        sites=5,
        note="bias table, subsampled queries",
        size=64,
    ),
    "eager",
)
add(
    "cvt",
    image(
        "CvtConfig",
        embed_dim=[16, 32],
        num_heads=[1, 2],
        depth=[1, 1],
        patch_sizes=[7, 3],
        patch_stride=[4, 2],
        patch_padding=[2, 1],
        mlp_ratio=[2.0, 2.0],
        attention_drop_rate=[0.0, 0.0],
        drop_rate=[0.0, 0.0],
        drop_path_rate=[0.0, 0.0],
        qkv_bias=[True, True],
        num_stages=2,
        cls_token=[False, True],
        qkv_projection_method=["dw_bn", "dw_bn"],
        kernel_qkv=[3, 3],
        padding_kv=[1, 1],
        stride_kv=[2, 2],
        padding_q=[1, 1],
        stride_q=[1, 1],
        size=64,
    ),
    "eager",
)
add(
    "samvision",
    image(
        "SamVisionConfig",
        **{**VIT, "image_size": 64},
        mlp_dim=96,
        output_channels=16,
        window_size=3,
        global_attn_indexes=[1],
        size=64,
        note="decomposed relative position, windows",
    ),
)
add(
    "vitdet",
    image(
        "VitDetConfig",
        **{**VIT, "image_size": 64},
        size=64,
        window_block_indices=[0],
        window_size=4,
        use_relative_position_embeddings=True,
        note="decomposed relative position",
    ),
    "eager",
)
add(
    "hiera",
    image(
        "HieraConfig",
        image_size=[32, 32],
        patch_size=[7, 7],
        patch_stride=[4, 4],
        embed_dim=16,
        depths=[1, 1],
        num_heads=[1, 2],
        masked_unit_size=[4, 4],
        query_stride=[2, 2],
        num_query_pool=1,
        embed_dim_multiplier=2.0,
        initial_batch=2,
        note="unit attention with five axes",
    ),
    "eager",
)
add("focalnet", image("FocalNetConfig", image_size=32, sites=0), "eager")
add("owlvision", image("OwlViTVisionConfig", kind="OwlViTVisionModel", **VIT))


@family()
def clip(attention: str) -> Example:
    config = config_of(
        "CLIPConfig",
        projection_dim=32,
        text_config=dict(
            vocab_size=99, max_position_embeddings=64, eos_token_id=2, pad_token_id=0, bos_token_id=1, **CLIP
        ),
        vision_config=dict(image_size=32, patch_size=8, **CLIP),
    )
    inputs = {"input_ids": token_ids(), "pixel_values": torch.randn(2, 3, 32, 32), "attention_mask": padding_mask()}
    dynamic = {"input_ids": SEQ, "pixel_values": {0: "images"}, "attention_mask": SEQ}
    return example(auto(config, attention), inputs, dynamic, 4, note="both towers")


@family("eager")
def detr(attention: str) -> Example:
    config = config_of(
        "DetrConfig",
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        num_queries=6,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=config_of(
            "ResNetConfig", embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
        ),
    )
    inputs = {"pixel_values": torch.randn(1, 3, 64, 64), "pixel_mask": torch.ones(1, 64, 64, dtype=torch.int64)}
    return example(auto(config, attention), inputs, {}, 6, note="position added to q and k only; cross")


@family("eager")
def perceiver(attention: str) -> Example:
    config = config_of(
        "PerceiverConfig",
        num_latents=6,
        d_latents=32,
        d_model=64,
        num_blocks=1,
        num_self_attends_per_block=2,
        num_self_attention_heads=4,
        num_cross_attention_heads=2,
        qk_channels=32,
        v_channels=32,
    )
    return example(
        auto(config, attention),
        {"inputs": torch.randn(2, 10, 64)},
        {"inputs": SEQ},
        3,
        note="latent queries cross, then self",
    )


@family()
def layoutlmv3(attention: str) -> Example:
    config = config_of(
        "LayoutLMv3Config",
        **{**TEXT_CONFIG, "max_position_embeddings": 66, "pad_token_id": 1},
        coordinate_size=10,
        shape_size=12,
        max_2d_position_embeddings=128,
        visual_embed=False,
        rel_pos_bins=8,
        max_rel_pos=16,
        rel_2d_pos_bins=8,
        max_rel_2d_pos=32,
    )
    box = torch.randint(0, 60, (2, 10, 2))
    inputs = {"input_ids": token_ids(), "bbox": torch.cat([box, box + 20], -1), "attention_mask": padding_mask()}
    return example(
        auto(config, attention), inputs, dict.fromkeys(inputs, SEQ), 2, note="two relative biases, CogView softmax"
    )


@family()
def layoutlm(attention: str) -> Example:
    config = config_of("LayoutLMConfig", **TEXT_CONFIG, max_2d_position_embeddings=128)
    box = torch.randint(0, 60, (2, 10, 2))
    inputs = {"input_ids": token_ids(), "bbox": torch.cat([box, box + 20], -1), "attention_mask": padding_mask()}
    return example(auto(config, attention), inputs, dict.fromkeys(inputs, SEQ), 2)


@family("eager")
def vitweights(attention: str) -> Example:
    def all_of(output: Any) -> Any:
        return (output[0], *output.attentions)

    inputs = {"pixel_values": torch.randn(2, 3, 32, 32)}
    return example(
        auto(config_of("ViTConfig", **VIT), attention),
        inputs,
        {"pixel_values": {0: "batch"}},
        2,
        fusable=0,
        note="probabilities are graph outputs",
        pick=all_of,
        output_attentions=True,
    )


@family()
def blip2qformer(attention: str) -> Example:
    config = config_of("Blip2QFormerConfig", **TEXT_CONFIG, encoder_hidden_size=48, cross_attention_frequency=2)
    import transformers

    model = transformers.Blip2QFormerModel._from_config(config, attn_implementation=attention)
    inputs = {"query_embeds": torch.randn(2, 5, 64), "encoder_hidden_states": torch.randn(2, 9, 48)}
    return example(
        model,
        inputs,
        {"query_embeds": {0: "batch"}, "encoder_hidden_states": {0: "batch", 1: "patches"}},
        3,
        note="query tokens, cross attention",
    )


@family("eager")
def trocrdec(attention: str) -> Example:
    config = config_of(
        "TrOCRConfig",
        vocab_size=99,
        d_model=64,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=96,
        max_position_embeddings=64,
        cross_attention_hidden_size=48,
        pad_token_id=1,
    )
    import transformers

    model = transformers.TrOCRForCausalLM._from_config(config, attn_implementation=attention)
    inputs = {"input_ids": token_ids(), "encoder_hidden_states": torch.randn(2, 9, 48)}
    return example(
        model,
        inputs,
        {"input_ids": SEQ, "encoder_hidden_states": {0: "batch", 1: "patches"}},
        4,
        note="causal self, cross",
        use_cache=False,
    )
