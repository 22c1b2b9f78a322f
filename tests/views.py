"""Views of planted heads, for the tests of what shows them: every head's pattern is known."""

from __future__ import annotations

import torch
from torch import nn

from clearhead import Causal, Observables, attention, watch
from clearhead.roles import roles
from clearhead.viewer import View
from clearhead.viewer.data import Shown
from planted import PATTERNS, Planted

ROLES = list(PATTERNS)


class Layers(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, ids):
        for layer in self.layers:
            out = layer(ids)
        return out


def planted_view(
    ids: list[int], pieces: list[str] | None = None, *, prompt: int | None = None, heads=None, layers: int = 2,
    total: int | None = None, top_k: int = 8, cells: int = 128,
) -> View:  # fmt: skip
    """Layers of heads with the given patterns (default: one of each role), watched on `ids`."""
    model = Layers(*(Planted(list(PATTERNS.values()) if heads is None else heads) for _ in range(layers)))
    tensor = torch.tensor(ids)
    wanted = Observables(top_k=top_k, map=cells, token_ids=tensor, rows=(-1,))
    with torch.no_grad(), watch(model, observables=wanted) as trace:
        model(tensor[None])
    trace.token_ids = ids
    trace.pieces = [f"·w{i}" for i in ids] if pieces is None else pieces
    prompt = len(ids) if prompt is None else prompt
    return View("planted", 1024, trace, roles(trace), prompt, 0, 0, prompt if total is None else total, 0.01)


def twice(period: int = 20) -> list[int]:
    """Two copies of `period` different tokens: every role can show."""
    return [*range(period), *range(period)]


def planted_shown(ids: list[int], pieces: list[str] | None = None, **given) -> Shown:
    """The same, as the viewer asks about it."""
    view = planted_view(ids, pieces, **given)
    return Shown(view.trace, name="planted", model="planted", prompt=view.prompt, part=view.part)


class Random(nn.Module):
    """Attention of random queries, keys and values, which are its own and not the text's."""

    def __init__(self, heads: int, seed: int) -> None:
        super().__init__()
        self.heads, self.seed = heads, seed

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        q, k, v = torch.randn(3, 1, self.heads, ids.shape[1], 16, generator=generator) * 1.7
        return attention(q, k, v, mask=Causal())


def kept_shown(
    T: int = 300, *, layers: int = 2, heads: int = 3, pieces: list[str] | None = None, seed: int = 0, **given
) -> Shown:
    """Random queries and keys, kept: every weight can be worked out. The text is `T` tokens of 40 kinds, or `pieces`."""
    pieces = [f"·t{n * n % 40}" for n in range(T)] if pieces is None else pieces
    T = len(pieces)
    ids = torch.tensor([n * n % 40 for n in range(T)])
    groups = torch.arange(T) * 3 // T
    wanted = Observables(
        top_k=8, map=64, token_ids=ids, distance_histogram=True, sum_squares=True, contributions=True, key_groups=groups
    )
    model = Layers(*(Random(heads, seed + n) for n in range(layers)))
    with torch.no_grad(), watch(model, observables=wanted, keep="qkv") as trace:
        model(ids[None])
    trace.token_ids, trace.pieces = ids.tolist(), pieces
    named = (groups.tolist(), ["first part", "second part", "third part"])
    return Shown(trace, **({"name": "kept", "model": "random", "groups": named} | given))
