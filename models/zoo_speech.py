"""Speech models from transformers, tiny."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from zoo_family import SEQ, SEQ2SEQ, Example, WithPast, add, auto, config_of, example, family, padding_mask, token_ids

WHISPER: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "num_mel_bins": 16,
    "max_source_positions": 20,
    "max_target_positions": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


@family()
def whisperenc(attention: str) -> Example:
    model = auto(config_of("WhisperConfig", **WHISPER), attention).encoder
    return example(
        model,
        {"input_features": torch.randn(2, 16, 40)},
        {"input_features": {0: "batch"}},
        2,
        note="scale before the head split",
    )


@family()
def whisperdec(attention: str) -> Example:
    model = auto(config_of("WhisperConfig", **WHISPER), attention).decoder
    inputs = {
        "input_ids": token_ids(),
        "encoder_hidden_states": torch.randn(2, 20, 64),
        "attention_mask": padding_mask(),
    }
    dynamic = {"input_ids": SEQ, "encoder_hidden_states": {0: "batch"}, "attention_mask": SEQ}
    return example(model, inputs, dynamic, 4, note="causal self and cross attention", use_cache=False)


@family()
def whisperdecpast(attention: str) -> Example:
    model = auto(config_of("WhisperConfig", **WHISPER), attention).decoder
    inputs = {"input_ids": token_ids(length=1), "encoder_hidden_states": torch.randn(2, 20, 64)}
    dynamic: dict[str, dict[int, str]] = {"input_ids": {0: "batch"}, "encoder_hidden_states": {0: "batch"}}
    for where, length, axis in (("self", 6, {0: "batch", 2: "past"}), ("cross", 20, {0: "batch"})):
        for layer in range(2):
            for part in ("key", "value"):
                inputs[f"past_{where}_{part}_{layer}"] = torch.randn(2, 4, length, 16)
                dynamic[f"past_{where}_{part}_{layer}"] = dict(axis)
    return Example(
        WithPast(model, 2, ["input_ids", "encoder_hidden_states"], True),
        inputs,
        dynamic,
        4,
        4,
        "cross keys and values are graph inputs",
    )


def audio(
    config: str, *, note: str = "", attentions: tuple[str, ...] = ("eager", "sdpa"), **values: Any
) -> Callable[[str], Example]:
    """A speech encoder on raw samples."""

    def build(attention: str) -> Example:
        merged = {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "conv_dim": (16, 16),
            "conv_kernel": (10, 3),
            "conv_stride": (5, 2),
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 4,
            "apply_spec_augment": False,
        }
        model = auto(config_of(config, **{**merged, **values}), attention)
        return example(
            model, {"input_values": torch.randn(2, 200)}, {"input_values": {0: "batch", 1: "samples"}}, 2, note=note
        )

    return build


add("wav2vec2", audio("Wav2Vec2Config"))
add("hubert", audio("HubertConfig"))
add("wavlm", audio("WavLMConfig", note="gated relative bias", num_buckets=16, max_bucket_distance=20), "eager")
add("sew", audio("SEWConfig", squeeze_factor=1), "eager")
add("unispeech", audio("UniSpeechConfig"))
add("data2vecaudio", audio("Data2VecAudioConfig", num_conv_pos_embeddings=2))
add(
    "wav2vec2conformer",
    audio("Wav2Vec2ConformerConfig", position_embeddings_type="relative", note="relative shift"),
    "eager",
)
add("wav2vec2rotary", audio("Wav2Vec2ConformerConfig", position_embeddings_type="rotary"), "eager")


@family()
def audiospectrogram(attention: str) -> Example:
    config = config_of(
        "ASTConfig",
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        patch_size=8,
        max_length=40,
        num_mel_bins=16,
        frequency_stride=8,
        time_stride=8,
    )
    return example(auto(config, attention), {"input_values": torch.randn(2, 40, 16)}, {"input_values": {0: "batch"}}, 2)


@family()
def speech2text(attention: str) -> Example:
    model = auto(
        config_of(
            "Speech2TextConfig",
            **{**SEQ2SEQ, "max_source_positions": 64, "max_target_positions": 32},
            input_feat_per_channel=16,
            input_channels=1,
            conv_channels=32,
            num_conv_layers=2,
            conv_kernel_sizes=(5, 5),
        ),
        attention,
    )
    inputs = {"input_features": torch.randn(2, 40, 16), "decoder_input_ids": token_ids(length=7)}
    return example(
        model,
        inputs,
        {"input_features": {0: "batch"}, "decoder_input_ids": {0: "batch", 1: "target"}},
        6,
        use_cache=False,
    )
