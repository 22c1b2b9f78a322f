"""Modules that hold their own layers and are right. None of them may ever be rejected."""

from __future__ import annotations

import math

import torch
from tests.mutants.registry import right
from tests.mutants.wrong_modules import BLOCK, N_EMBD, Base, Decoder, Grouped, angles, rotate_half, rotate_pairs
from torch import nn
from torch.nn import functional as F

from clearhead.nn import SelfAttention


@right
class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(N_EMBD, head_size, bias=False)
        self.query = nn.Linear(N_EMBD, head_size, bias=False)
        self.value = nn.Linear(N_EMBD, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(BLOCK, BLOCK)))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ self.value(x)


@right
class SharedQueryKey(nn.Module):
    """One layer makes queries and keys alike, as in the Reformer."""

    def __init__(self, head_size):
        super().__init__()
        self.qk = nn.Linear(N_EMBD, head_size, bias=False)
        self.value = nn.Linear(N_EMBD, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(BLOCK, BLOCK)))

    def forward(self, x):
        B, T, C = x.shape
        both = self.qk(x)
        wei = both @ both.transpose(-2, -1) * both.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


@right
class FusedQueryKey(nn.Module):
    """One layer makes queries and keys side by side."""

    def __init__(self, head_size):
        super().__init__()
        self.to_qk = nn.Linear(N_EMBD, 2 * head_size, bias=False)
        self.to_v = nn.Linear(N_EMBD, head_size, bias=False)

    def forward(self, x):
        q, k = self.to_qk(x).chunk(2, dim=-1)
        return F.scaled_dot_product_attention(q, k, self.to_v(x), is_causal=True)


@right
class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, N_EMBD)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return self.dropout(self.proj(torch.cat([h(x) for h in self.heads], dim=-1)))


@right
class HeadsWithoutProjection(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(head_size) for _ in range(num_heads)])

    def forward(self, x):
        return torch.cat([h(x) for h in self.heads], dim=-1)


@right
class NamedTheOtherWayRound(Head):
    def forward(self, x):
        _, T, _ = x.shape
        wei = self.key(x) @ self.query(x).transpose(-2, -1) * self.key.out_features**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


@right
class Separate(Base):
    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        return self.proj(self.merge(self.weights(q, k) @ v))


@right
class FusedAndFlash(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        p = self.dropout if self.training else 0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


@right
class FusedPerHead(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states):
        B, T, C = hidden_states.shape
        q, k, v = self.query_key_value(hidden_states).view(B, T, self.num_heads, -1).transpose(1, 2).chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.dense(y.transpose(1, 2).reshape(B, T, C))


@right
class ViT(nn.Module):
    def __init__(self, dim, heads=6, dim_head=10, dropout=0.0):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_qkv = nn.Linear(dim, heads * dim_head * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(heads * dim_head, dim), nn.Dropout(dropout))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = self.norm(x)
        b, n, _ = x.shape
        q, k, v = (t.reshape(b, n, self.heads, -1).permute(0, 2, 1, 3) for t in self.to_qkv(x).chunk(3, dim=-1))
        out = (q @ k.transpose(-1, -2) * self.scale).softmax(dim=-1) @ v
        return self.to_out(out.permute(0, 2, 1, 3).reshape(b, n, -1))


@right
class RotaryHalves(Grouped):
    def forward(self, x):
        q, k, v = self.parts(x)
        a = angles(x.shape[1], self.head_dim).repeat(1, 2).to(x.dtype)
        q, k = (t * a.cos() + rotate_half(t) * a.sin() for t in (q, k))
        n = self.n_heads // self.n_kv_heads
        return self.attend(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))


@right
class RotaryPairs(Grouped):
    def forward(self, x):
        q, k, v = self.parts(x)
        a = angles(x.shape[1], self.head_dim).repeat_interleave(2, -1).to(x.dtype)
        q, k = (t * a.cos() + rotate_pairs(t) * a.sin() for t in (q, k))
        n = self.n_heads // self.n_kv_heads
        return self.attend(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))


@right
class Cached(Decoder):
    def forward(self, x, cache=None):
        q, k, v = self.parts(x)
        start = 0 if cache is None else cache[0].shape[2]
        a = angles(x.shape[1], self.head_dim, start).repeat(1, 2).to(x.dtype)
        q, k = (t * a.cos() + rotate_half(t) * a.sin() for t in (q, k))
        k, v = self.grown(k, v, cache)
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return self.weighted(q, k, v, seen), (k, v)


@right
class CachedInADict(Decoder):
    def forward(self, x, cache=None):
        q, k, v = self.parts(x)
        if cache is not None:
            k, v = self.grown(k, v, cache.get("kv"))
            cache["kv"] = (k, v)
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return self.weighted(q, k, v, seen)


@right
class Annotated(nn.Module):
    """query, key and value from outside, and a mask of ones and zeros."""

    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        n = query.size(0)
        query, key, value = (
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        x = self.dropout(scores.softmax(dim=-1)) @ value
        return self.linears[-1](x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k))


@right
class Matrices(nn.Module):
    """Bare parameters, x @ W."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x):
        keys, queries, values = x @ self.W_key, x @ self.W_query, x @ self.W_value
        return torch.softmax(queries @ keys.mT / keys.shape[-1] ** 0.5, dim=-1) @ values


@right
class Book(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            f(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
            for f in (self.W_query, self.W_key, self.W_value)
        )
        scores = q @ k.transpose(2, 3)
        scores.masked_fill_(self.mask.bool()[:t, :t], -torch.inf)
        weights = self.dropout(torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1))
        return self.out_proj((weights @ v).transpose(1, 2).contiguous().view(b, t, self.d_out))


@right
class Block(nn.Module):
    """A whole layer, its attention inside."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.attn = Separate(n_embd, n_head)
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


@right
def with_matrices(x, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    return F.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


_key, _query, _value = (nn.Linear(24, 10, bias=False) for _ in range(3))


@right
def around_layers(x):
    t = x.shape[1]
    scores = _query(x) @ _key(x).transpose(-2, -1) * 10**-0.5
    scores = scores.masked_fill(torch.tril(torch.ones(t, t)) == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ _value(x)


right(SelfAttention(48, 6, kv_heads=3, rope=10000.0))
right(SelfAttention(48, 6, window=3))
right(nn.MultiheadAttention(48, 6))
right(nn.MultiheadAttention(48, 6, batch_first=True, bias=False))


@right
class MatrixAHead(nn.Module):
    def __init__(self, dim, heads=4, dim_head=12):
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(heads, dim, dim_head)) for _ in range(3))
        self.o = nn.Parameter(torch.randn(heads * dim_head, dim))

    def forward(self, x):
        q, k, v = (torch.einsum("btc,hcd->bhtd", x, w) for w in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ self.o


@right
class NormedQueriesAndKeys(Base):
    def __init__(self, n_embd=48, n_head=6):
        super().__init__(n_embd, n_head)
        self.q_norm, self.k_norm = nn.RMSNorm(n_embd // n_head), nn.RMSNorm(n_embd // n_head)

    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        return self.proj(self.merge(self.weights(self.q_norm(q), self.k_norm(k)) @ v))


@right
class CacheInside(Decoder):
    """Told where a chunk starts."""

    def __init__(self, dim=60, n_heads=6, n_kv_heads=3):
        super().__init__(dim, n_heads, n_kv_heads)
        self.kept = None

    def forward(self, x, start_pos=0):
        q, k, v = self.parts(x)
        if start_pos:
            k, v = (torch.cat([old[:, :, :start_pos], new], dim=2) for old, new in zip(self.kept, (k, v), strict=True))
        self.kept = (k, v)
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return self.weighted(q, k, v, seen)


@right
class Alibi(Base):
    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        T = x.shape[1]
        slopes = 2.0 ** (-8 * torch.arange(1, self.n_head + 1) / self.n_head)
        ahead = torch.arange(T)[None] - torch.arange(T)[:, None]
        scores = q @ k.mT / k.shape[-1] ** 0.5 + slopes[:, None, None] * ahead
        return self.proj(self.merge(F.softmax(scores.masked_fill(self.tril[:T, :T] == 0, float("-inf")), dim=-1) @ v))


@right
class AlibiWoven(Base):
    """Slopes for a number of heads that is no power of two, as they were published."""

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8], dtype=x.dtype)[:, None, None]
        i, j = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1])
        scores = q @ k.mT * q.shape[-1] ** -0.5 - slopes * (i - j)
        scores = scores.masked_fill(j > i, float("-inf"))
        return self.proj(self.merge(F.softmax(scores, dim=-1) @ v))


@right
class FusedSingleHead(nn.Module):
    def __init__(self, emb):
        super().__init__()
        self.qkv = nn.Linear(emb, 3 * emb)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return F.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


@right
class SoftmaxInSingle(Grouped):
    """Scores go through a float32 softmax whatever comes in, as many models do."""

    def forward(self, x):
        q, k, v = self.parts(x)
        n = self.n_heads // self.n_kv_heads
        k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, float("-inf"))
        return self.wo((torch.softmax(scores.float(), dim=-1).type_as(q) @ v).transpose(1, 2).flatten(2))


class EightHeads(nn.Module):
    """A width that must be given, and a number of heads that need not."""

    def __init__(self, dim, num_heads=8, qk_norm=False):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.q_norm, self.k_norm = (nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity() for _ in range(2))

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj(y.transpose(1, 2).reshape(B, N, C))


right(EightHeads)


@right
class NormedHeads(EightHeads):
    def __init__(self, dim=48, num_heads=8):
        super().__init__(dim, num_heads, qk_norm=True)


@right
class TokensFirst(nn.Module):
    """Takes (tokens, batch, width), and says so where it takes them apart."""

    def __init__(self, dim=48, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        T, B, C = x.shape
        q, k, v = (t.reshape(T, B * self.h, C // self.h).transpose(0, 1) for t in self.qkv(x).chunk(3, -1))
        scores = torch.bmm(q, k.mT) / (C // self.h) ** 0.5 + torch.full((T, T), float("-inf")).triu(1)
        return self.out(torch.bmm(scores.softmax(-1), v).transpose(0, 1).reshape(T, B, C))


@right
class RotaryTheOtherWay(Grouped):
    def forward(self, x):
        q, k, v = self.parts(x)
        a = angles(x.shape[1], self.head_dim).repeat(1, 2).to(x.dtype)
        q, k = (t * a.cos() - rotate_half(t) * a.sin() for t in (q, k))
        n = self.n_heads // self.n_kv_heads
        return self.attend(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))


@right
class NormedOverAllHeads(Grouped):
    """The norm comes before heads are split."""

    def __init__(self, dim=60, n_heads=6):
        super().__init__(dim, n_heads, n_heads)
        self.q_norm, self.k_norm = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)

    def forward(self, x):
        q, k, v = self.q_norm(self.wq(x)), self.k_norm(self.wk(x)), self.wv(x)
        return self.attend(*(t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in (q, k, v)))


@right
class OneMatrixAHead(nn.Module):
    """Bare matrices (heads, width, head width) with biases, and one of (heads, head width, width) behind them."""

    def __init__(self, d_model=48, n_heads=4, d_head=10):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.zeros(n_heads, d_model, d_head)) for _ in range(3))
        self.W_O = nn.Parameter(torch.zeros(n_heads, d_head, d_model))
        self.b_Q, self.b_O = nn.Parameter(torch.zeros(n_heads, d_head)), nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        q, k, v = (torch.einsum("btc,hcd->bhtd", x, w) for w in (self.W_Q, self.W_K, self.W_V))
        y = F.scaled_dot_product_attention(q + self.b_Q[:, None], k, v, is_causal=True)
        return torch.einsum("bhtd,hdc->btc", y, self.W_O) + self.b_O


@right
class MaskMustBeGiven(EightHeads):
    def __init__(self, dim=48):
        super().__init__(dim)

    def forward(self, x, mask):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.mT / k.shape[-1] ** 0.5).masked_fill(mask == 0, -1e9).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, N, C))


@right
class WeightsComeFirst(Base):
    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        weights = self.weights(q, k)
        return weights, self.proj(self.merge(weights @ v))


@right
class AroundTheLibrary(nn.Module):
    """Nothing but PyTorch's layer and a mask for it: the mask is what is asked about."""

    def __init__(self, dim=48, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.attn(x, x, x, attn_mask=hidden, need_weights=False)[0]


@right
class FromAnotherText(EightHeads):
    """Keys and values come from a second input, which must be given."""

    def __init__(self, dim=48):
        super().__init__(dim, 4)
        self.qkv, self.to_q, self.to_kv = None, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)

    def forward(self, x, context):
        q, k, v = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for t in (self.to_q(x), *self.to_kv(context).chunk(2, dim=-1))
        )
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@right
class RotaryOfItsOwnBase(Grouped):
    def __init__(self, dim=64, n_heads=4, rope_theta=50000.0):
        super().__init__(dim, n_heads, n_heads)
        self.rates = rope_theta ** (-torch.arange(0, self.head_dim, 2) / self.head_dim)

    def forward(self, x):
        q, k, v = self.parts(x)
        a = torch.outer(torch.arange(x.shape[1]), self.rates).repeat_interleave(2, -1).to(x.dtype)
        return self.attend(*(t * a.cos() + rotate_pairs(t) * a.sin() for t in (q, k)), v)


@right
class RotaryOnHalfAHead(Grouped):
    def __init__(self, dim=64, n_heads=4):
        super().__init__(dim, n_heads, n_heads)

    def forward(self, x):
        q, k, v = self.parts(x)
        n = self.head_dim // 2
        a = angles(x.shape[1], n).repeat(1, 2).to(x.dtype)
        turned = (t[..., :n] * a.cos() + rotate_half(t[..., :n]) * a.sin() for t in (q, k))
        return self.attend(*(torch.cat([t, old[..., n:]], -1) for t, old in zip(turned, (q, k), strict=True)), v)


@right
class TriangleFromOutside(EightHeads):
    """Says that it is causal, and counts on being given the mask that makes it so, to be added."""

    def __init__(self, dim=48):
        super().__init__(dim)
        self.is_causal = True

    def forward(self, x, attention_mask=None):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.mT / k.shape[-1] ** 0.5
        weights = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, N, C))


@right
class ViewsItsInput(EightHeads):
    """Refuses x that is not contiguous, as `view` does: a weakness, not a wrong attention."""

    def __init__(self, dim=48):
        super().__init__(dim)

    def forward(self, x):
        return super().forward(x.view(-1, x.shape[-1]).view(x.shape))
