"""Tiny models with random weights, one an architecture, built in a moment."""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers as hf

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}

DECODERS = {
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2)
    ),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, sliding_window=5)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**GROUPED, sliding_window=5, attn_logit_softcapping=2.0, query_pre_attn_scalar=8,
                        initializer_range=0.4)
    ),
    "gemma3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(
            **GROUPED,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention"],
            query_pre_attn_scalar=8,
        )
    ),
    "gpt_oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(
            **GROUPED,
            sliding_window=5,
            num_local_experts=2,
            num_experts_per_tok=1,
            layer_types=["sliding_attention", "full_attention"],
        )
    ),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**{**GROUPED, "sliding_window": None})),
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(vocab_size=64, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
                     max_position_embeddings=128, word_embed_proj_dim=32, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    ),
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL)),
    "deepseek_v3": lambda: hf.DeepseekV3ForCausalLM(
        hf.DeepseekV3Config(
            **{**SMALL, "num_key_value_heads": 4}, kv_lora_rank=8, q_lora_rank=12, qk_rope_head_dim=4, qk_nope_head_dim=8,
            v_head_dim=6, n_routed_experts=2, num_experts_per_tok=1, n_group=1, topk_group=1, moe_intermediate_size=16,
            n_shared_experts=1, first_k_dense_replace=1,
        )
    ),
}  # fmt: skip


def bert():
    return hf.BertModel(hf.BertConfig(**SMALL))


def t5():
    return hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
                    pad_token_id=0, eos_token_id=1)
    )  # fmt: skip


def vit():
    return hf.ViTModel(
        hf.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=24,
                     patch_size=8)
    )  # fmt: skip


def whisper():
    return hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                         decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8,
                         max_source_positions=20, max_target_positions=32, pad_token_id=0, bos_token_id=1,
                         eos_token_id=2, decoder_start_token_id=3, suppress_tokens=None, begin_suppress_tokens=None)
    )  # fmt: skip


def bloom():
    return hf.BloomForCausalLM(hf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4))


def falcon():
    return hf.FalconForCausalLM(
        hf.FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, bos_token_id=1,
                        eos_token_id=2)
    )  # fmt: skip
