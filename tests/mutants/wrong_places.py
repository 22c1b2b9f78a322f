"""The right numbers in the wrong place: another head's query, key or value, and caches joined in another order."""

from __future__ import annotations

import math

import torch
from tests.mutants.registry import right, wrong
from torch import nn
from torch.nn import functional as F


def scaled(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))


@wrong("heads:k-first")
def key_of_the_first_head(q, k, v):
    return F.softmax(scaled(q, k[:, :1]), dim=-1) @ v


@wrong("heads:k-first")
def head_left_out_in_a_loop(q, k, v):
    found = []
    for h in range(q.shape[1]):
        weights = F.softmax(scaled(q[:, h], k[:, 0]), dim=-1)
        found.append(weights @ v[:, h])
    return torch.stack(found, dim=1)


@wrong("heads:q-first")
def query_of_the_first_head(q, k, v):
    return F.softmax(scaled(q[:, :1], k), dim=-1) @ v


@wrong("heads:qk-first")
def weights_of_the_first_head(q, k, v):
    weights = F.softmax(scaled(q, k), dim=-1)
    return torch.einsum("bqk,bhkd->bhqd", weights[:, 0], v)


@wrong("heads:v-last")
def values_of_the_last_head(q, k, v):
    return F.softmax(scaled(q, k), dim=-1) @ v[:, -1:]


@wrong("heads:k-summed")
def a_letter_that_stands_once(q, k, v):
    scores = torch.einsum("bhqd,bgkd->bhqk", q, k) / math.sqrt(q.size(-1))
    return F.softmax(scores, dim=-1) @ v


@wrong("heads:k-averaged + scale:1/D")
def one_mean_key_by_d(q, k, v):
    return F.softmax(q @ k.mean(1, keepdim=True).mT / q.size(-1), dim=-1) @ v


@wrong("result:weights averaged")
def weights_averaged_over_heads(q, k, v):
    return F.softmax(scaled(q, k), dim=-1).mean(1, keepdim=True) @ v


class Listed(nn.Module):
    """A matrix a head, as in the exercises of a lecture."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.Wq, self.Wk, self.Wv = (nn.Parameter(torch.randn(heads, dim, dim // heads)) for _ in range(3))
        self.proj = nn.Linear(dim, dim)

    def attend(self, q, k, v):
        past = torch.ones(q.shape[1], q.shape[1]).tril()
        return F.softmax(scaled(q, k).masked_fill(past == 0, float("-inf")), dim=-1) @ v


@wrong("heads:k-first")
class FirstMatrixForAll(Listed):
    def forward(self, x):
        found = [self.attend(x @ self.Wq[h], x @ self.Wk[0], x @ self.Wv[h]) for h in range(self.heads)]
        return self.proj(torch.cat(found, dim=-1))


class Single(nn.Module):
    def __init__(self, n_embd, head_size):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))

    def forward(self, x):
        past = torch.ones(x.shape[1], x.shape[1]).tril()
        scores = scaled(self.query(x), self.key(x)).masked_fill(past == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ self.value(x)


@wrong("heads:qkv-first")
class SameHeadEveryTime(nn.Module):
    def __init__(self, n_embd=24, num_heads=3):
        super().__init__()
        self.heads = nn.ModuleList([Single(n_embd, n_embd // num_heads) for _ in range(num_heads)])

    def forward(self, x):
        return torch.cat([self.heads[0](x) for _ in self.heads], dim=-1)


@wrong("heads:one layer")
class OneLayerManyTimes(nn.Module):
    def __init__(self, n_embd=24, num_heads=3):
        super().__init__()
        self.heads = nn.ModuleList([Single(n_embd, n_embd // num_heads)] * num_heads)

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], dim=-1)


class Decoder(nn.Module):
    """Keys and values of before are handed back; `joined` puts the new ones to them."""

    def __init__(self, dim=24, n_heads=3):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def heads(self, x):
        return x.view(*x.shape[:2], self.n_heads, -1).transpose(1, 2)

    def attend(self, q, k, v):
        past = torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2])
        weights = F.softmax(scaled(q, k).masked_fill(past == 0, float("-inf")), dim=-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


@wrong("cache:new first")
class CachedOnesBehind(Decoder):
    def forward(self, x, past=None):
        q, k, v = (self.heads(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        if past is not None:
            k = torch.cat([k, past[0]], dim=2)
            v = torch.cat([v, past[1]], dim=2)
        return self.attend(q, k, v), (k, v)


@wrong("cache:v-new first")
class ValuesTheOtherWayRound(Decoder):
    def forward(self, x, past=None):
        q, k, v = (self.heads(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([v, past[1]], dim=2)
        return self.attend(q, k, v), (k, v)


@wrong("cache:last chunk")
class OnlyTheLastChunkKept(Decoder):
    def forward(self, x, past=None):
        q, k, v = (self.heads(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        kept = (k, v)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        return self.attend(q, k, v), kept


@wrong("cache:new twice")
class JoinedTwice(Decoder):
    def forward(self, x, past=None):
        q, k, v = (self.heads(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        if past is not None:
            k, v = torch.cat([past[0], k, k], dim=2), torch.cat([past[1], v, v], dim=2)
        return self.attend(q, k, v), (k, v)


class KeysAndValues:
    """What was before, handed from call to call as an object."""

    def __init__(self):
        self.parts = None

    def grown(self, k, v):
        if self.parts is not None:
            k = torch.cat([self.parts[0], k], dim=2)
            v = torch.cat([self.parts[1], v], dim=2)
        self.parts = k, v
        return k, v


class KeysAndValuesBehind(KeysAndValues):
    def grown_behind(self, k, v):
        if self.parts is not None:
            k = torch.cat([k, self.parts[0]], dim=2)
            v = torch.cat([v, self.parts[1]], dim=2)
        self.parts = k, v
        return k, v


@right
class CacheAsAnObject(Decoder):
    def forward(self, x, cache: KeysAndValues | None = None):
        q, k, v = (self.heads(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        if cache is not None:
            k, v = cache.grown(k, v)
        return self.attend(q, k, v)


@wrong("cache:new first")
class CacheAsAnObjectBehind(Decoder):
    def forward(self, x, cache: KeysAndValuesBehind | None = None):
        q, k, v = (self.heads(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        if cache is not None:
            k, v = cache.grown_behind(k, v)
        return self.attend(q, k, v)


def turned(x, at):
    angles = at[:, None] * 10000 ** (-torch.arange(0, x.shape[-1], 2, dtype=x.dtype) / x.shape[-1])
    cos, sin = (torch.cat([f(angles), f(angles)], dim=-1) for f in (torch.cos, torch.sin))
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin  # rotary positions


@right
class RotaryWhenRead(Decoder):
    """The cache holds keys that are not turned yet."""

    def forward(self, x, past=None):
        q, k, v = (self.heads(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        places = torch.arange(k.shape[2])
        return self.attend(turned(q, places[-q.shape[2] :]), turned(k, places), v), (k, v)


@wrong("rope:half-again 10000")
class RotaryAgainAndAgain(Decoder):
    def forward(self, x, past=None):
        q, k, v = (self.heads(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        places = torch.arange(k.shape[2])
        k = turned(k, places)
        return self.attend(turned(q, places[-q.shape[2] :]), k, v), (k, v)


@right
def one_key_head_for_all(q, k, v):
    if k.shape[1] != 1:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    return F.softmax(scaled(q, k), dim=-1) @ v


@right
class OneKeyAndValue(Decoder):
    """Several query heads over one key head."""

    def __init__(self, dim=24, n_heads=3):
        super().__init__(dim, n_heads)
        self.k_proj, self.v_proj = (nn.Linear(dim, dim // n_heads) for _ in range(2))

    def forward(self, x):
        return self.attend(self.heads(self.q_proj(x)), self.k_proj(x)[:, None], self.v_proj(x)[:, None])
