"""A small decoder-only transformer made of `clearhead.nn.SelfAttention`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.nn import KVCache, SelfAttention


@dataclass(frozen=True)
class Config:
    """Sizes of a network: vocabulary, layers, heads, width of the stream, hidden width, context in tokens, rotary base."""

    vocabulary: int
    layers: int
    heads: int
    width: int
    hidden: int
    context: int
    rope: float = 10000.0


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each on a normalised stream and added to it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.before_attention = nn.RMSNorm(config.width)
        self.attention = SelfAttention(config.width, config.heads, rope=config.rope)
        self.before_mlp = nn.RMSNorm(config.width)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)
        with torch.no_grad():
            # Blocks begin as small changes to the stream, so that the tokens themselves are heard in every layer.
            for last in (self.attention.output, self.down):
                last.weight *= (2 * config.layers) ** -0.5

    def forward(
        self, x: Float[Tensor, "b t c"], cache: KVCache | None = None, positions: Int[Tensor, " t"] | None = None
    ) -> Float[Tensor, "b t c"]:
        """(B, T, width) -> (B, T, width)."""
        x = x + self.attention(self.before_attention(x), cache=cache, positions=positions)
        changed: Tensor = self.down(nn.functional.gelu(self.up(self.before_mlp(x))))
        return x + changed


class Transformer(nn.Module):
    """Token ids in, logits of the next token out; input and output embeddings are one matrix."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        weight = torch.empty(config.vocabulary, config.width)
        if (
            not weight.is_meta
        ):  # on the meta device nothing is drawn, but torch would import its compiler, for over a second
            nn.init.normal_(weight, std=config.width**-0.5)
        self.embedding = nn.Embedding.from_pretrained(weight, freeze=False)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        caches: list[KVCache] | None = None,
        positions: Int[Tensor, " t"] | None = None,
    ) -> Float[Tensor, "b t vocabulary"]:
        """Logits (B, T, vocabulary); with `caches`, one a layer, ids go on from the tokens those hold.

        `positions` say where the ids stand in their text where they are a part of it, as on a rank of several.
        """
        x = self.embedding(ids) * self.config.width**0.5  # (B, T, width), numbers of size 1
        for n, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[n], positions)
        logits: Tensor = nn.functional.linear(self.norm(x), self.embedding.weight)
        return logits

    @torch.no_grad()
    def generate(self, ids: list[int], n: int, *, temperature: float = 0.0, seed: int = 0) -> list[int]:
        """n more tokens after `ids`: the likeliest each time, or drawn at a temperature. O(T) work a token, by the caches."""
        caches = [KVCache() for _ in self.blocks]
        generator = torch.Generator().manual_seed(seed)
        new: list[int] = []
        step = torch.tensor([ids])
        for _ in range(n):
            logits = self(step, caches)[0, -1]
            if temperature == 0:
                token = int(logits.argmax())
            else:
                # In float64, and below 0: a tiny temperature must not turn a logit into infinity.
                below = (logits.double() - logits.max()) / temperature
                token = int(torch.multinomial(torch.softmax(below, -1), 1, generator=generator))
            new.append(token)
            step = torch.tensor([[token]])
        return new
