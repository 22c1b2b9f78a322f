"""What watching is tested with: a model written without this library, and weights computed from what attention was given."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class Block(nn.Module):
    """A decoder block as lectures write it."""

    def __init__(self, width: int = 32, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attend(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.heads, C // self.heads).transpose(1, 2) for part in self.qkv(x).split(C, dim=2))
        y = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        return self.out(y.transpose(1, 2).contiguous().view(B, T, C))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Decoder(nn.Module):
    """Token ids in, logits out; knows nothing of this library."""

    def __init__(self, layers: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.h = nn.ModuleList(Block(dropout=dropout) for _ in range(layers))
        self.head = nn.Linear(32, 50, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(x)


class Overhear(TorchFunctionMode):
    """Keeps the weights of every `scaled_dot_product_attention`, by definition and in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self.weights.append(weights(*args, **kwargs))
        return func(*args, **kwargs)


def weights(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """The T×T weights that `scaled_dot_product_attention` forms, before dropout; 0 in rows that see nothing."""
    q, k = query.double(), key.double()
    if k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    z = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        z = z.masked_fill(~torch.ones(z.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if attn_mask is not None:
        z = z.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else z + attn_mask
    return torch.softmax(z, -1).nan_to_num(0.0)


def check_seen(observation, p: Tensor, *, atol: float = 2e-6) -> None:
    """An observation agrees with the T×T weights p (B, Hq, Tq, Tk) on every row that is not padding."""
    B, Hq, Tq, Tk = p.shape
    first_key = getattr(observation, "first_key", 0)
    real = torch.ones(B, Tq, dtype=torch.bool)
    if observation.padded is not None:
        real = ~observation.padded.expand(B, Tq)
    p = p * real[:, None, :, None]
    torch.testing.assert_close(observation.received.double(), p.sum(2), atol=20 * atol, rtol=1e-5)
    rows = real[:, None].expand(B, Hq, Tq)
    entropy = torch.special.entr(p).sum(-1)
    if "sink" in observation.values:  # one more key
        sink = 1 - p.sum(-1)
        torch.testing.assert_close(observation.sink.double()[rows], sink[rows], atol=atol, rtol=1e-5)
        entropy = entropy + torch.special.entr(sink)
    torch.testing.assert_close(observation.entropy.double()[rows], entropy[rows], atol=20 * atol, rtol=1e-5)
    largest = p.max(-1).values
    torch.testing.assert_close(observation.top_weights[..., 0].double()[rows], largest[rows], atol=atol, rtol=1e-5)
    keys = observation.top_keys
    found = p.gather(-1, (keys - first_key).clamp(min=0)) * (keys >= 0)
    torch.testing.assert_close(observation.top_weights.double()[rows], found[rows], atol=atol, rtol=1e-5)
    a = torch.arange(Tq) + observation.offset - first_key
    own = torch.where((a >= 0) & (a < Tk), p.gather(-1, a.clamp(0, Tk - 1).expand(B, Hq, Tq)[..., None])[..., 0], 0.0)
    torch.testing.assert_close(observation.self_weight.double()[rows], own[rows], atol=atol, rtol=1e-5)
