"""Encoders and decoders of text from transformers, tiny."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from zoo_family import (
    CLIP,
    SEQ,
    SEQ2SEQ,
    TEXT_CONFIG,
    Example,
    WithPast,
    add,
    auto,
    config_of,
    example,
    family,
    padding_mask,
    token_ids,
)


def text(
    config: str,
    *,
    mask: bool = True,
    sites: int = 2,
    fusable: int | None = None,
    note: str = "",
    kind: str = "AutoModel",
    **values: Any,
) -> Callable[[str], Example]:
    """An encoder or decoder that reads token ids and a padding mask; ``values`` change :data:`TEXT_CONFIG`."""

    def build(attention: str) -> Example:
        merged = {k: v for k, v in {**TEXT_CONFIG, **values}.items() if v is not None}
        model = auto(config_of(config, **merged), attention, kind)
        inputs = {"input_ids": token_ids()}
        if mask:
            inputs["attention_mask"] = padding_mask()
        fixed = {"use_cache": False} if _decodes(model) else {}
        return example(model, inputs, dict.fromkeys(inputs, SEQ), sites, fusable=fusable, note=note, **fixed)

    return build


def _decodes(model: nn.Module) -> bool:
    import inspect

    return "use_cache" in inspect.signature(model.forward).parameters


KV: dict[str, Any] = {"num_key_value_heads": 2}


# Encoders of text
add(
    "bert4096",
    text(
        "BertConfig",
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=4096,
        sites=3,
        note="the model of `make demo`",
    ),
)
add("bert", text("BertConfig"))
add("albert", text("AlbertConfig", embedding_size=32))
add("electra", text("ElectraConfig", embedding_size=32))
add("roberta", text("RobertaConfig", max_position_embeddings=66, pad_token_id=1))
add("xlmroberta", text("XLMRobertaConfig", max_position_embeddings=66, pad_token_id=1))
add("camembert", text("CamembertConfig", max_position_embeddings=66, pad_token_id=1))
add("distilbert", text("DistilBertConfig", dim=64, n_layers=2, n_heads=4, hidden_dim=96))
add("mpnet", text("MPNetConfig", note="relative bias and padding mask", pad_token_id=1), "eager")
add(
    "deberta",
    text(
        "DebertaV2Config",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=8,
        max_relative_positions=16,
        share_att_key=True,
        note="disentangled attention",
    ),
    "eager",
)
add(
    "debertav1",
    text(
        "DebertaConfig",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        max_relative_positions=16,
        note="packed interleaved qkv, disentangled",
    ),
    "eager",
)
add("squeezebert", text("SqueezeBertConfig", embedding_size=64, note="convolution layout"), "eager")
add(
    "mobilebert",
    text("MobileBertConfig", embedding_size=32, true_hidden_size=32, intra_bottleneck_size=32, note="bottleneck"),
)
add("convbert", text("ConvBertConfig", embedding_size=64, head_ratio=2, note="attention beside a convolution"), "eager")
add(
    "funnel",
    text(
        "FunnelConfig",
        block_sizes=[1, 1],
        block_repeats=[1, 1],
        n_head=4,
        d_model=64,
        d_head=16,
        d_inner=96,
        num_decoder_layers=1,
        hidden_size=None,
        num_attention_heads=None,
        num_hidden_layers=None,
        intermediate_size=None,
        max_position_embeddings=None,
        sites=3,
        note="relative attention, pooled queries",
    ),
    "eager",
)
add("roformer", text("RoFormerConfig", embedding_size=64, note="rotary encoder"), "eager")
add("esm", text("EsmConfig", position_embedding_type="rotary", mask_token_id=3, pad_token_id=1))
add("ernie", text("ErnieConfig"))
add("layoutlmtext", text("LayoutLMConfig", note="no boxes given"))
add(
    "modernbert",
    text(
        "ModernBertConfig",
        num_hidden_layers=3,
        sites=3,
        local_attention=4,
        cls_token_id=1,
        sep_token_id=2,
        note="packed qkv, RoPE, local windows",
    ),
)
add("bigbird", text("BigBirdConfig", attention_type="original_full"), "eager")
add(
    "xlnet",
    text(
        "XLNetConfig",
        max_position_embeddings=None,
        d_model=64,
        n_layer=2,
        n_head=4,
        d_inner=96,
        note="relative shift, einsum",
    ),
    "eager",
)
add("nomic", text("NomicBertConfig"))
add("eurobert", text("EuroBertConfig", **KV))
add("ibert", text("IBertConfig", quant_mode=False, max_position_embeddings=66, pad_token_id=1), "eager")
add("megatronbert", text("MegatronBertConfig"), "eager")
add("rembert", text("RemBertConfig", input_embedding_size=32, output_embedding_size=32), "eager")
add("data2vectext", text("Data2VecTextConfig", max_position_embeddings=66, pad_token_id=1))

# Decoders of text
add("gpt2", text("GPT2Config", n_positions=64, n_embd=64, n_layer=2, n_head=4))
add(
    "gptneo",
    text(
        "GPTNeoConfig",
        attention_types=[[["global", "local"], 1]],
        num_layers=2,
        num_heads=4,
        window_size=4,
        num_hidden_layers=None,
        num_attention_heads=None,
        note="no scale, local window",
    ),
    "eager",
)
add(
    "gptj",
    text("GPTJConfig", n_positions=64, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, note="partial interleaved rotary"),
    "eager",
)
add("gptneox", text("GPTNeoXConfig", rotary_pct=0.5))
add(
    "gptbigcode",
    text("GPTBigCodeConfig", n_positions=64, n_embd=64, n_layer=2, n_head=4, multi_query=True, note="one kv head"),
)
add("codegen", text("CodeGenConfig", n_positions=64, n_embd=64, n_layer=2, n_head=4, rotary_dim=8), "eager")
add("opt", text("OPTConfig", ffn_dim=96, word_embed_proj_dim=64))
add("bloom", text("BloomConfig", n_layer=2, n_head=4, note="ALiBi via baddbmm"), "eager")
add(
    "mpt",
    text(
        "MptConfig",
        d_model=64,
        n_heads=4,
        n_layers=2,
        max_seq_len=64,
        hidden_size=None,
        num_attention_heads=None,
        num_hidden_layers=None,
        note="ALiBi",
    ),
    "eager",
)
add("falcon", text("FalconConfig", multi_query=True, alibi=False, note="one kv head"))
add("falconalibi", text("FalconConfig", multi_query=False, alibi=True, new_decoder_architecture=False, note="ALiBi"))
add("falconnew", text("FalconConfig", new_decoder_architecture=True, num_kv_heads=2, alibi=False, note="grouped heads"))
add("llama", text("LlamaConfig", **KV))
add("mistral", text("MistralConfig", sliding_window=4, **KV))
add("ministral", text("Ministral3Config", **KV))
add("stablelm", text("StableLmConfig", qk_layernorm=True, **KV))
add("qwen2", text("Qwen2Config", **KV))
add("qwen3", text("Qwen3Config", head_dim=16, note="qk norm", **KV))
add("gemma", text("GemmaConfig", head_dim=16, num_key_value_heads=1))
add(
    "gemma2",
    text("Gemma2Config", head_dim=16, sliding_window=4, query_pre_attn_scalar=16, note="softcap", **KV),
    "eager",
)
add(
    "gemma3",
    text("Gemma3TextConfig", head_dim=16, sliding_window=4, query_pre_attn_scalar=16, note="qk norm, windows", **KV),
)
add("phi", text("PhiConfig", note="partial rotary", **KV))
add("phi3", text("Phi3Config", note="packed qkv by slices", **KV))
add("cohere", text("CohereConfig", use_qk_norm=True, **KV))
add("cohere2", text("Cohere2Config", sliding_window=4, head_dim=16, **KV))
add("olmo", text("OlmoConfig", clip_qkv=2.0, **KV))
add("olmo2", text("Olmo2Config", **KV))
add("granite", text("GraniteConfig", attention_multiplier=0.2, **KV))
add("starcoder2", text("Starcoder2Config", sliding_window=4, **KV))
add("glm", text("GlmConfig", head_dim=16, partial_rotary_factor=0.5, note="partial interleaved rotary", **KV))
add("smollm3", text("SmolLM3Config", **KV))
add("nemotron", text("NemotronConfig", **KV))
add("persimmon", text("PersimmonConfig", qk_layernorm=True))
add("helium", text("HeliumConfig", head_dim=16, **KV))
add("exaone4", text("Exaone4Config", sliding_window=4, **KV))
add(
    "gptoss",
    text(
        "GptOssConfig",
        head_dim=16,
        sliding_window=4,
        num_local_experts=2,
        num_experts_per_tok=1,
        note="attention sinks",
        **KV,
    ),
    "eager",
)
add(
    "deepseekv2",
    text(
        "DeepseekV2Config",
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=16,
        first_k_dense_replace=2,
        n_routed_experts=2,
        moe_intermediate_size=32,
        note="MLA",
    ),
)
add("xglm", text("XGLMConfig", d_model=64, num_layers=2, attention_heads=4, ffn_dim=96), "eager")
add("ctrl", text("CTRLConfig", n_embd=64, n_layer=2, n_head=4, dff=96), "eager")
add("biogpt", text("BioGptConfig"))
add("openaigpt", text("OpenAIGPTConfig", n_embd=64, n_layer=2, n_head=4, n_positions=64), "eager")
add("jetmoe", text("JetMoeConfig", note="the routers' Softmaxes are no attention"), "eager")
add("diffllama", text("DiffLlamaConfig", fusable=0, note="differential attention", **KV), "eager")


def seq2seq(config: str, **values: Any) -> Callable[[str], Example]:
    """Encoder and decoder: 2 self attentions, 2 causal ones, 2 cross attentions."""

    def build(attention: str) -> Example:
        model = auto(config_of(config, **{**SEQ2SEQ, **values}), attention)
        inputs = {
            "input_ids": token_ids(),
            "attention_mask": padding_mask(),
            "decoder_input_ids": token_ids(length=7),
            "decoder_attention_mask": padding_mask(length=7, padded=2),
        }
        dynamic = {n: {0: "batch", 1: "target" if n.startswith("decoder") else "sequence"} for n in inputs}
        return example(model, inputs, dynamic, 6, note="encoder, causal decoder, cross", use_cache=False)

    return build


add("bart", seq2seq("BartConfig"))
add("mbart", seq2seq("MBartConfig"))
add("marian", seq2seq("MarianConfig"))
add("pegasus", seq2seq("PegasusConfig"))
add("blenderbot", seq2seq("BlenderbotConfig"))
add("m2m100", seq2seq("M2M100Config"))
add("plbart", seq2seq("PLBartConfig"))
add("fsmt", seq2seq("FSMTConfig", langs=["en", "de"], src_vocab_size=99, tgt_vocab_size=99), "eager")


T5: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}


def _t5(config: str, **values: Any) -> Callable[[str], Example]:
    def build(attention: str) -> Example:
        model = auto(config_of(config, **{**T5, **values}), attention)
        inputs = {
            "input_ids": token_ids(),
            "attention_mask": padding_mask(),
            "decoder_input_ids": token_ids(length=7),
        }
        dynamic = {n: {0: "batch", 1: "target" if n.startswith("decoder") else "sequence"} for n in inputs}
        return example(model, inputs, dynamic, 6, note="relative bias, no scale; cross without bias", use_cache=False)

    return build


def _t5encoder(config: str, kind: str, **values: Any) -> Callable[[str], Example]:
    def build(attention: str) -> Example:
        import transformers

        model = getattr(transformers, kind)._from_config(
            config_of(config, **{**T5, **values}), attn_implementation=attention
        )
        inputs = {"input_ids": token_ids(), "attention_mask": padding_mask()}
        return example(model, inputs, dict.fromkeys(inputs, SEQ), 2, note="relative bias, no scale")

    return build


add("t5", _t5("T5Config"), "eager")
add("mt5", _t5("MT5Config"), "eager")
add("umt5", _t5("UMT5Config"), "eager")
add("t5enc", _t5encoder("T5Config", "T5EncoderModel"), "eager")
add("mt5enc", _t5encoder("MT5Config", "MT5EncoderModel", feed_forward_proj="gated-gelu"), "eager")
add("umt5enc", _t5encoder("UMT5Config", "UMT5EncoderModel"), "eager")
add("switchenc", _t5encoder("SwitchTransformersConfig", "SwitchTransformersEncoderModel"), "eager")


@family()
def cliptext(attention: str) -> Example:
    model = auto(
        config_of(
            "CLIPTextConfig",
            vocab_size=99,
            max_position_embeddings=64,
            eos_token_id=2,
            pad_token_id=0,
            bos_token_id=1,
            **CLIP,
        ),
        attention,
    )
    inputs = {"input_ids": token_ids(), "attention_mask": padding_mask()}
    return example(model, inputs, dict.fromkeys(inputs, SEQ), 2, note="causal and padding mask")


@family()
def cliptextsd(attention: str) -> Example:
    model = auto(
        config_of(
            "CLIPTextConfig",
            vocab_size=99,
            max_position_embeddings=77,
            eos_token_id=2,
            pad_token_id=0,
            bos_token_id=1,
            **CLIP,
        ),
        attention,
    )
    return example(
        model, {"input_ids": token_ids(length=77)}, {"input_ids": {0: "batch"}}, 2, note="causal only, 77 tokens"
    )


@family()
def sigliptext(attention: str) -> Example:
    model = auto(
        config_of("SiglipTextConfig", vocab_size=99, max_position_embeddings=64, pad_token_id=0, **CLIP), attention
    )
    inputs = {"input_ids": token_ids(), "attention_mask": padding_mask()}
    return example(model, inputs, dict.fromkeys(inputs, SEQ), 2)


def with_past(config: str, kv_heads: int, *, length: int = 1, **values: Any) -> Callable[[str], Example]:
    """A decoder that reads ``length`` new tokens after 6 cached ones."""

    def build(attention: str) -> Example:
        model = auto(config_of(config, **{**TEXT_CONFIG, **values}), attention)
        inputs = {"input_ids": token_ids(length=length), "attention_mask": padding_mask(length=6 + length).flip(1)}
        dynamic = {"input_ids": SEQ, "attention_mask": {0: "batch", 1: "total"}}
        for layer in range(2):
            for part in ("key", "value"):
                inputs[f"past_{part}_{layer}"] = torch.randn(2, kv_heads, 6, 16)
                dynamic[f"past_{part}_{layer}"] = {0: "batch", 2: "past"}
        module = WithPast(model, 2, ["input_ids", "attention_mask"])
        return Example(
            module, inputs, dynamic, 2, 2, "KV cache: Concat(past, k) is attention's input and a graph output"
        )

    return build


add("gpt2kv", with_past("GPT2Config", 4, length=3, n_positions=64, n_embd=64, n_layer=2, n_head=4))
add("llamakv", with_past("LlamaConfig", 2, length=3, **KV))
add("qwen3kv", with_past("Qwen3Config", 2, length=3, head_dim=16, **KV))
add("mistralkv", with_past("MistralConfig", 2, length=3, sliding_window=32, **KV))
add("gptneoxkv", with_past("GPTNeoXConfig", 4, length=3))
add("optkv", with_past("OPTConfig", 4, length=3, ffn_dim=96, word_embed_proj_dim=64))


@family("eager")
def bertweights(attention: str) -> Example:
    def all_of(output: Any) -> Any:
        return (output[0], *output.attentions)

    inputs = {"input_ids": token_ids(), "attention_mask": padding_mask()}
    return example(
        auto(config_of("BertConfig", **TEXT_CONFIG), attention),
        inputs,
        dict.fromkeys(inputs, SEQ),
        2,
        fusable=0,
        note="probabilities are graph outputs",
        pick=all_of,
        output_attentions=True,
    )


@family()
def bertcross(attention: str) -> Example:
    config = config_of("BertConfig", **TEXT_CONFIG, is_decoder=True, add_cross_attention=True)
    inputs = {
        "input_ids": token_ids(),
        "attention_mask": padding_mask(),
        "encoder_hidden_states": torch.randn(2, 9, 64),
        "encoder_attention_mask": padding_mask(length=9),
    }
    dynamic = {n: SEQ if "encoder" not in n else {0: "batch", 1: "source"} for n in inputs}
    return example(auto(config, attention), inputs, dynamic, 4, note="causal self and masked cross", use_cache=False)
