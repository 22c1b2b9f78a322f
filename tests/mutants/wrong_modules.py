"""Modules that hold their own layers and are wrong: a lecture's head, many heads, fused projections, rotary positions."""

from __future__ import annotations

import math

import torch
from tests.mutants.registry import wrong
from torch import nn
from torch.nn import functional as F

N_EMBD, BLOCK = 32, 8


class Base(nn.Module):
    """Four layers and a triangle; what attends is `attend`."""

    def __init__(self, n_embd=30, n_head=6, block_size=16):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_embd, n_embd, bias=False)
        self.key = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(n_embd, n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def split(self, x):
        B, T, C = x.shape
        return x.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

    def merge(self, x):
        B, H, T, D = x.shape
        return x.transpose(1, 2).reshape(B, T, H * D)

    def weights(self, q, k, scale=None):
        T = q.shape[-2]
        scores = q @ k.transpose(-2, -1) * (k.shape[-1] ** -0.5 if scale is None else scale)
        return F.softmax(scores.masked_fill(self.tril[:T, :T] == 0, float("-inf")), dim=-1)


@wrong("scale:1/sqrt(C)")
class Head(nn.Module):
    """The most copied one: the scale is that of the embedding."""

    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(N_EMBD, head_size, bias=False)
        self.query = nn.Linear(N_EMBD, head_size, bias=False)
        self.value = nn.Linear(N_EMBD, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(BLOCK, BLOCK)))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)  # (B,T,hs)
        q = self.query(x)  # (B,T,hs)
        wei = q @ k.transpose(-2, -1) * C**-0.5  # (B, T, hs) @ (B, hs, T) -> (B, T, T)
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        v = self.value(x)
        return wei @ v


@wrong("scale:1/sqrt(C)")
class MultiHeadAttention(nn.Module):
    """The same head, several times."""

    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, N_EMBD)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


@wrong("axis:queries")
class SoftmaxOverQueries(Head):
    def forward(self, x):
        _, T, _ = x.shape
        q, k, v = self.query(x), self.key(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=1) @ v


@wrong("sees:all")
class MaskThrownAway(Head):
    def forward(self, x):
        _, T, _ = x.shape
        q, k, v = self.query(x), self.key(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ v


@wrong("sees:not cropped")
class NotCropped(Head):
    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ v


@wrong("roles:qkk")
class ValueIsKey(Head):
    def forward(self, x):
        _, T, _ = x.shape
        q, k = self.query(x), self.key(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ k


@wrong("roles:qkx")
class ValueIsInput(Head):
    def forward(self, x):
        _, T, _ = x.shape
        q, k = self.query(x), self.key(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ x


@wrong("dropout:on scores")
class DropoutOnScores(Head):
    def forward(self, x):
        _, T, _ = x.shape
        q, k, v = self.query(x), self.key(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = self.dropout(wei)
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ v


@wrong("calls:dropout is always on")
class DropoutInEval(Head):
    def forward(self, x):
        _, T, _ = x.shape
        q, k, v = self.query(x), self.key(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.dropout(F.softmax(wei, dim=-1), 0.2) @ v


@wrong("scale:1/sqrt(C) + axis:queries")
class TwoMistakes(Head):
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.query(x), self.key(x), self.value(x)
        wei = q @ k.transpose(-2, -1) / C**0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=1) @ v


@wrong("split:view")
class SplitByView(Base):
    def split(self, x):
        B, T, C = x.shape
        return x.view(B, self.n_head, T, C // self.n_head)

    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        return self.proj(self.merge(self.weights(q, k) @ v))


@wrong("merge:reshape")
class MergedByReshape(Base):
    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        return self.proj((self.weights(q, k) @ v).reshape(x.shape))


@wrong("split:view + merge:reshape")
class SplitAndMergedByView(Base):
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, self.n_head, T, C // self.n_head) for f in (self.query, self.key, self.value))
        return self.proj((self.weights(q, k) @ v).view(B, T, C))


@wrong("scale:1/sqrt(C) + merge:reshape")
class WidthAndMerge(Base):
    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        return self.proj((self.weights(q, k, x.shape[-1] ** -0.5) @ v).reshape(x.shape))


@wrong("merge:mean")
class HeadsAveraged(Base):
    def __init__(self, n_embd=30, n_head=6, block_size=16):
        super().__init__(n_embd, n_head, block_size)
        self.proj = nn.Linear(n_embd // n_head, n_embd)

    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        return self.proj((self.weights(q, k) @ v).mean(dim=1))


@wrong("output:unprojected")
class ProjectionForgotten(Base):
    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        return self.merge(self.weights(q, k) @ v)


@wrong("scale:1/H")
class DividedByHeads(Base):
    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        return self.proj(self.merge(self.weights(q, k, 1 / self.n_head) @ v))


@wrong("split:unsplit", "split:unsplit + scale:1/sqrt(D)")
class NeverSplit(Base):
    def forward(self, x):
        return self.proj(self.weights(self.query(x), self.key(x)) @ self.value(x))


@wrong("over:batch")
class AlongTheBatch(Base):
    def forward(self, x):
        q, k, v = (self.split(f(x)).transpose(0, 2) for f in (self.query, self.key, self.value))
        out = F.softmax(q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5, dim=-1) @ v
        return self.proj(self.merge(out.transpose(0, 2)))

    def __init__(self, n_embd=30, n_head=6):
        super().__init__(n_embd, n_head)
        del self.tril


class Grouped(nn.Module):
    def __init__(self, dim=60, n_heads=6, n_kv_heads=3):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def parts(self, x):
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        return q, k, v

    def attend(self, q, k, v):
        tq, tk = q.shape[-2], k.shape[-2]
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(torch.ones(tq, tk).tril(tk - tq) == 0, float("-inf"))
        out = F.softmax(scores, dim=-1) @ v
        return self.wo(out.transpose(1, 2).flatten(2))


@wrong("heads:tiled")
class GroupsTiled(Grouped):
    def forward(self, x):
        q, k, v = self.parts(x)
        n = self.n_heads // self.n_kv_heads
        return self.attend(q, k.repeat(1, n, 1, 1), v.repeat(1, n, 1, 1))


def angles(t, d, start=0):
    freqs = 10000.0 ** (-torch.arange(0, d, 2) / d)
    return torch.outer(torch.arange(start, start + t).float(), freqs)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def rotate_pairs(x):
    return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)


@wrong("rope:half-with-pair-angles 10000")
class RotaryMixed(Grouped):
    """Halves are paired, angles are repeated for neighbours."""

    def forward(self, x):
        q, k, v = self.parts(x)
        a = angles(x.shape[1], self.head_dim).repeat_interleave(2, dim=-1).to(x.dtype)
        q, k = (t * a.cos() + rotate_half(t) * a.sin() for t in (q, k))
        n = self.n_heads // self.n_kv_heads
        return self.attend(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))


@wrong("rope:pairs-q-only 10000")
class RotaryOnQueriesOnly(Grouped):
    def forward(self, x):
        q, k, v = self.parts(x)
        a = angles(x.shape[1], self.head_dim).repeat_interleave(2, dim=-1).to(x.dtype)
        q = q * a.cos() + rotate_pairs(q) * a.sin()
        n = self.n_heads // self.n_kv_heads
        return self.attend(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))


@wrong("scale:1/sqrt(C)")
class FusedByWidth(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head, self.n_embd = config.n_head, config.n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(C)
        att = att.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Decoder(Grouped):
    """Keeps keys and values from call to call."""

    def grown(self, k, v, cache):
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        return k, v

    def weighted(self, q, k, v, seen):
        n = self.n_heads // self.n_kv_heads
        k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if seen is not None:
            scores = scores.masked_fill(~seen, float("-inf"))
        return self.wo((F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))


@wrong("sees:all")
class MaskOnlyWithoutCache(Decoder):
    def forward(self, x, cache=None):
        q, k, v = self.parts(x)
        t = x.shape[1]
        seen = torch.ones(t, t, dtype=torch.bool).tril() if cache is None else None
        k, v = self.grown(k, v, cache)
        return self.weighted(q, k, v, seen), (k, v)


@wrong("align:start")
class MaskAlignedAtTheStart(Decoder):
    def forward(self, x, cache=None):
        q, k, v = self.parts(x)
        k, v = self.grown(k, v, cache)
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        return self.weighted(q, k, v, seen), (k, v)


@wrong("sees:only the cache")
class CurrentTokenLeftOut(Decoder):
    def forward(self, x, cache=None):
        q, k, v = self.parts(x)
        t = x.shape[1]
        if cache is None:
            return self.weighted(q, k, v, torch.ones(t, t, dtype=torch.bool).tril()), (k, v)
        return self.weighted(q, *cache, None), self.grown(k, v, cache)


@wrong("rope:half-chunk-from-0 10000")
class PositionNotAdvanced(Decoder):
    def forward(self, x, cache=None):
        q, k, v = self.parts(x)
        a = angles(x.shape[1], self.head_dim).repeat(1, 2).to(x.dtype)
        q, k = (t * a.cos() + rotate_half(t) * a.sin() for t in (q, k))
        k, v = self.grown(k, v, cache)
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return self.weighted(q, k, v, seen), (k, v)


@wrong("gradient:cut")
class NoGradientToKeys(Base):
    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x).detach()), self.split(self.value(x))
        return self.proj(self.merge(self.weights(q, k) @ v))


@wrong("split:q-strided")
class QuerySplitAnotherWay(Base):
    def forward(self, x):
        B, T, C = x.shape
        q = self.query(x).view(B, T, C // self.n_head, self.n_head).permute(0, 3, 1, 2)
        k, v = self.split(self.key(x)), self.split(self.value(x))
        return self.proj(self.merge(self.weights(q, k) @ v))


@wrong("output:twice")
class ProjectedTwice(Base):
    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        return self.proj(self.proj(self.merge(self.weights(q, k) @ v)))


@wrong("roles:kkv")
class KeyForQuery(Base):
    def forward(self, x):
        k, v = self.split(self.key(x)), self.split(self.value(x))
        return self.proj(self.merge(self.weights(k, k) @ v))


@wrong("bias:alibi turned")
class AlibiTurned(Base):
    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        T = x.shape[1]
        slopes = 2.0 ** (-8 * torch.arange(1, self.n_head + 1) / self.n_head)
        far = (torch.arange(T)[:, None] - torch.arange(T)[None]).abs()
        scores = q @ k.mT / k.shape[-1] ** 0.5 + slopes[:, None, None] * far
        return self.proj(self.merge(F.softmax(scores.masked_fill(self.tril[:T, :T] == 0, float("-inf")), dim=-1) @ v))


@wrong("bias:alibi halves")
class AlibiHalved(Base):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        slopes = 2.0 ** -torch.arange(1, self.n_head + 1, dtype=x.dtype)[:, None, None]
        i, j = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1])
        scores = (q @ k.mT * q.shape[-1] ** -0.5 - slopes * (i - j).abs()).masked_fill(j > i, float("-inf"))
        return self.proj(self.merge(F.softmax(scores, dim=-1) @ v))


@wrong("rope:half-k-backwards 10000")
class KeysTurnedTheOtherWay(Grouped):
    def __init__(self):
        super().__init__(n_kv_heads=6)

    def forward(self, x):
        q, k, v = self.parts(x)
        a = angles(x.shape[1], self.head_dim)
        emb = torch.cat([a, a], dim=-1)
        q = q * emb.cos() + rotate_half(q) * emb.sin()
        k = k * emb.cos() - rotate_half(k) * emb.sin()
        return self.attend(q, k, v)


@wrong("rope:half-no-minus 10000")
class RotaryWithoutMinus(Grouped):
    def forward(self, x):
        q, k, v = self.parts(x)
        a = angles(x.shape[1], self.head_dim).repeat(1, 2).to(x.dtype)
        q, k = (t * a.cos() + t.roll(self.head_dim // 2, -1) * a.sin() for t in (q, k))
        n = self.n_heads // self.n_kv_heads
        return self.attend(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))


@wrong("output:unprojected")
class MixedByNothing(nn.Module):
    """The output layer is made and forgotten; the number of heads is kept under a name that does not say so."""

    def __init__(self, dim=48, n_heads=4):
        super().__init__()
        self.n = n_heads
        self.q_lin, self.k_lin, self.v_lin, self.out_lin = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.n, -1).transpose(1, 2) for f in (self.q_lin, self.k_lin, self.v_lin))
        return (F.softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1) @ v).transpose(1, 2).reshape(b, t, c)


@wrong("over:batch")
class BatchFirstForgotten(nn.Module):
    def __init__(self, dim=48, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


@wrong("sees:strict")
class AroundTheLibraryStrict(nn.Module):
    """PyTorch's layer is right; the mask that it is given is not."""

    def __init__(self, dim=48, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        hidden = torch.ones(x.shape[1], x.shape[1]).triu() == 1
        return self.attn(x, x, x, attn_mask=hidden, need_weights=False)[0]


@wrong("rope:none")
class RotaryAlongTheHeads(Grouped):
    """Turned before heads and tokens change places: query and key of one head by one angle, which cancels."""

    def forward(self, x):
        q, k, v = (t.transpose(1, 2) for t in self.parts(x))
        n = self.n_heads // self.n_kv_heads
        k, v = k.repeat_interleave(n, 2), v.repeat_interleave(n, 2)
        a = angles(self.n_heads, self.head_dim).repeat(1, 2).to(x.dtype)
        q, k = (t * a.cos() + rotate_half(t) * a.sin() for t in (q, k))
        return self.attend(*(t.transpose(1, 2) for t in (q, k, v)))


@wrong("rope:none")
class RotaryThrownAway(Grouped):
    """What comes back from turning is not kept; the cosines are a table."""

    def __init__(self, dim=60, n_heads=6):
        super().__init__(dim, n_heads, n_heads)
        self.register_buffer("cos", angles(64, self.head_dim).repeat(1, 2).cos())

    def rotated(self, x):
        cos = self.cos[: x.shape[2]]
        return x * cos + rotate_half(x) * (1 - cos**2).sqrt()

    def forward(self, x):
        q, k, v = self.parts(x)
        self.rotated(q), self.rotated(k)
        return self.attend(q, k, v)


@wrong("calls:changes its input")
class ScalesItsInput(Grouped):
    def forward(self, x):
        x /= self.head_dim**0.25
        q, k, v = self.parts(x)
        n = self.n_heads // self.n_kv_heads
        return self.attend(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))
