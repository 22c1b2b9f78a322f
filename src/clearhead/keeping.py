"""Queries and keys that are kept while a model runs, so that any part of a pattern can be computed afterwards.

They are kept in the model's own dtype, copied, since caches are overwritten in place; on disk, if a folder is given, in files
that are gone when nobody needs them any more.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from clearhead.attention import Prepared
from clearhead.biases import ALiBi
from clearhead.errors import InputError
from clearhead.kernels.problem import tighten
from clearhead.masks import Dense, Intervals, Mask, Sizes
from clearhead.pattern import Pattern


@dataclass
class Kept:
    """What `Pattern` needs of one layer: the queries of every call, each key once, and who may attend to whom."""

    scale: float
    softcap: float | None
    sinks: Tensor | None
    queries: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    masks: list[tuple[Mask, Sizes, int]] = field(default_factory=list)  # with the position of each call's key 0
    bias: Tensor | None = None
    slopes: Tensor | None = None
    gap: str | None = None  # why no pattern can be made of it

    @classmethod
    def of(cls, call: Prepared, heads: list[int] | None) -> Kept:
        """Nothing kept yet, of a layer that makes such calls."""
        sinks = call.problem.sinks
        if sinks is not None:
            sinks = sinks.detach().clone() if heads is None else sinks.detach()[heads]
        return cls(call.problem.scale, call.problem.softcap, sinks)

    def add(
        self,
        call: Prepared,
        first_key: int,
        *,
        new_keys: int,
        values: bool,
        heads: list[int] | None,
        folder: Path | None,
    ) -> None:
        """Keep a call's queries and its last `new_keys` keys; those before are kept already."""
        p = call.problem
        groups = p.groups
        parts = [(self.queries, p.query if heads is None else p.query[:, heads])]
        for held, x, wanted in ((self.keys, p.key, True), (self.values, p.value, values)):
            if wanted and new_keys:
                x = x[:, :, x.shape[2] - new_keys :]
                parts.append((held, x if heads is None else x[:, [h // groups for h in heads]]))
        for held, x in parts:
            held.append(_copy(x, folder))
        self.masks.append(
            (call.mask, Sizes(p.query.shape[0], p.query.shape[2], p.key.shape[2], p.query.device), first_key)
        )
        if p.bias is not None or p.slopes is not None:
            if len(self.masks) > 1:
                self.gap = (
                    "its position bias differs from step to step, and was not kept; watch the whole text in one forward"
                )
            self.bias = p.bias if heads is None or p.bias is None or p.bias.shape[1] == 1 else p.bias[:, heads]
            self.slopes = p.slopes if heads is None or p.slopes is None else p.slopes[heads]
        if p.slopes is not None and p.first_position != p.key.shape[2] - p.query.shape[2]:
            self.gap = "its ALiBi counts positions from elsewhere, which is not kept"
        if self.masks[0][2]:
            self.gap = "its first keys were in a cache already when watching began"

    @property
    def bytes(self) -> int:
        """What is kept, in memory or on disk."""
        return sum(x.nbytes for x in (*self.queries, *self.keys, *self.values))

    def pattern(self, lse: Tensor) -> Pattern:
        """The pattern of all calls together. Raises `InputError` where something of it was not kept."""
        if self.gap is not None:
            raise InputError(f"no pattern of this layer: {self.gap}")
        return Pattern(
            _joined(self.queries),
            _joined(self.keys),
            value=_joined(self.values) if self.values else None,
            mask=self.mask(),
            bias=ALiBi(self.slopes) if self.slopes is not None else self.bias,
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
            lse=lse,
        )

    def joined(self, name: str) -> Tensor | None:
        """All "queries", "keys" or "values" as one tensor; None where there are none."""
        parts = getattr(self, name)
        return _joined(parts) if parts else None

    def sizes(self) -> Sizes:
        """Of all calls together."""
        B, _, Tq, _ = _joined(self.queries).shape
        return Sizes(B, Tq, _joined(self.keys).shape[2], self.queries[0].device)

    def mask(self) -> Mask:
        """Who may attend to whom, over all calls."""
        if len(self.masks) == 1:
            return self.masks[0][0]
        T = sum(x.shape[2] for x in self.keys)
        plans = [(tighten(mask.plan(sizes)), mask.padded(sizes), sizes, first) for mask, sizes, first in self.masks]
        if any(plan.query_labels is not None or plan.dense is not None for plan, *_ in plans):
            return self._dense(T)
        B = max(len(plan.lo) for plan, *_ in plans)
        lo = torch.cat([(plan.lo.long() + first).expand(B, -1) for plan, _, _, first in plans], 1)
        hi = torch.cat([(plan.hi.long() + first).expand(B, -1) for plan, _, _, first in plans], 1)
        return Intervals(lo, hi, self._padding())

    def _padding(self) -> Tensor | None:
        found = [(mask.padded(sizes), sizes) for mask, sizes, _ in self.masks]
        if all(x is None for x, _ in found):
            return None
        B = self.masks[0][1].B
        each = [torch.zeros(1, s.Tq, dtype=torch.bool, device=s.device) if x is None else x for x, s in found]
        return torch.cat([x.expand(B, -1) for x in each], 1)

    def _dense(self, T: int) -> Mask:
        """Pairs one by one, where intervals do not say it all: T×T."""
        parts = []
        for mask, sizes, first in self.masks:
            pairs = mask.dense(sizes.Tq, sizes.Tk, B=sizes.B, device=sizes.device)
            parts.append(torch.nn.functional.pad(pairs, (first, T - first - sizes.Tk)))
        B, H = (max(x.shape[n] for x in parts) for n in (0, 1))
        whole = Dense(torch.cat([x.expand(B, H, -1, -1) for x in parts], 2))
        padding = self._padding()
        return whole if padding is None else whole & Intervals.everything(whole.pairs.shape[2], T, padding=padding)


def _joined(parts: list[Tensor]) -> Tensor:
    """All parts as one tensor, which takes their place."""
    if len(parts) > 1:
        parts[:] = [torch.cat(parts, 2)]
    return parts[0]


def _copy(x: Tensor, folder: Path | None) -> Tensor:
    """A copy of a tensor, in memory or in a file that has no name any more."""
    x = x.detach()
    if folder is None or not x.numel():
        return x.clone(memory_format=torch.contiguous_format)
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".clearhead-")
        try:
            os.posix_fallocate(handle, 0, x.nbytes) if hasattr(os, "posix_fallocate") else os.truncate(handle, x.nbytes)
            stored = torch.from_file(name, shared=True, size=x.numel(), dtype=x.dtype)
        finally:
            os.close(handle)
            os.unlink(name)
    except OSError as error:
        raise InputError(
            f"keep_in {folder}: {error.strerror or error}; {x.nbytes / 1e6:.0f} MB were to be kept there"
        ) from error
    return stored.view(x.shape).copy_(x)
