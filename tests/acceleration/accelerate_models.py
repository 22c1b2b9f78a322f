"""Small models of random weights that call `scaled_dot_product_attention` in their own ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WORDS = 97


def llama() -> nn.Module:
    """Rotary positions, two query heads on each key head; (B, T, H, D) seen as (B, H, T, D)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": WORDS}
    return LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, attn_implementation="sdpa", pad_token_id=0)
    )


def gpt2() -> nn.Module:
    """Query, key and value cut from one projection. No dropout: with it PyTorch takes its math path."""
    from transformers import GPT2Config, GPT2LMHeadModel

    off = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS, "n_positions": 64}
    ends = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **off, **ends, attn_implementation="sdpa"))


def bert() -> nn.Module:
    """Sees both ways."""
    from transformers import BertConfig, BertForMaskedLM

    off = dict.fromkeys(("attention_probs_dropout_prob", "hidden_dropout_prob"), 0.0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertForMaskedLM(BertConfig(**sizes, **off, vocab_size=WORDS, attn_implementation="sdpa"))


class Encoder(nn.Module):
    """PyTorch's own layers, causal, between an embedding and a vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.vocabulary = nn.Linear(32, WORDS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        T = input_ids.shape[1]
        past = torch.ones(T, T, dtype=torch.bool).triu(1)  # True hides, here
        padding = None if attention_mask is None else attention_mask == 0
        return self.vocabulary(self.layers(self.embed(input_ids), mask=past, src_key_padding_mask=padding))


MODELS: dict[str, Callable[[], nn.Module]] = {"llama": llama, "gpt2": gpt2, "bert": bert, "torch": Encoder}


def logits(model: nn.Module, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    out: Any = model(input_ids=ids, attention_mask=attention_mask)
    return out if isinstance(out, Tensor) else out.logits


def losses(model: nn.Module, ids: Tensor, steps: int = 50) -> Tensor:
    """The loss at each of `steps` steps of learning one text by heart."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(logits(model, ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    return torch.stack(seen)
