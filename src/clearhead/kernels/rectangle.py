"""Weights of any rectangle of one head's pattern, from query, key and L: p_ij = e^{z_ij − L_i}. PyTorch; any device.

A rectangle is asked for in blocks, and the product of a block is one call whose shape depends on the block alone. A block that
is computed twice is therefore the same to the last bit, which is what the levels of `clearhead.pyramid` rest on: a product of
another shape rounds its sums in another order.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.kernels.problem import Problem

# The weights of a block of this size stay in the second-level cache between two steps, and its product runs near BLAS's peak.
ROWS, KEYS = 512, 512
HELD = 16 << 20  # bytes of scratch memory of one name that a thread holds on to
FEW_DIGITS = 1e-4  # the error of z − L, as L is rounded, from which on a row is not measured from L


class _Scratch(threading.local):
    """Memory of each thread that is used again and again: fresh pages cost more than the arithmetic done on them."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}

    def take(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """An uninitialised tensor, which overwrites the last one of this name."""
        key, size = (name, like.device, like.dtype), math.prod(shape)
        if size * like.dtype.itemsize > HELD:
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        if key not in self.held or self.held[key].numel() < size:
            with torch.inference_mode(False):
                self.held[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return self.held[key][:size].view(shape)


scratch = _Scratch()


class Rectangle(NamedTuple):
    """Queries i0:i1 and keys j0:j1."""

    i0: int
    i1: int
    j0: int
    j1: int

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, keys)."""
        return self.i1 - self.i0, self.j1 - self.j0


class Span(NamedTuple):
    """Where the key intervals of some queries begin and end, at the least and at the most."""

    first_lo: int
    last_lo: int
    first_hi: int
    last_hi: int


@dataclass(frozen=True, eq=False)
class Head:
    """One query head of one sample, and what its logits are made of. Numbers are in the dtype they were kept in."""

    query: Float[Tensor, "rows d"]
    key: Float[Tensor, "tk d"]
    lse: Float[Tensor, " rows"]  # in the dtype to compute in
    at: Int[Tensor, " rows"]  # absolute position of every query
    lo: Int[Tensor, " rows"]
    hi: Int[Tensor, " rows"]
    query_labels: Int[Tensor, "n rows"] | None
    key_labels: Int[Tensor, "n tk"] | None
    dense: Bool[Tensor, "#rows #tk"] | None
    bias: Float[Tensor, "#rows #tk"] | None
    slope: Float[Tensor, ""] | None
    sink: Float[Tensor, ""] | None
    scale: float
    softcap: float | None

    @classmethod
    def of(cls, p: Problem, lse: Tensor) -> Head:
        """The only head of a problem that has one; its plan is tightened and `lse` (1, 1, Tq)."""
        plan = p.plan
        return cls(
            query=p.query[0, 0],
            key=p.key[0, 0],
            lse=lse[0, 0].to(p.dtype),
            at=torch.arange(p.query.shape[2], device=p.query.device) + p.first_position,
            lo=plan.lo[0].to(torch.int32),
            hi=plan.hi[0].to(torch.int32),
            query_labels=None if plan.query_labels is None else plan.query_labels[:, 0],
            key_labels=None if plan.key_labels is None else plan.key_labels[:, 0],
            dense=None if plan.dense is None else plan.dense[0, 0],
            bias=None if p.bias is None else p.bias[0, 0],
            slope=None if p.slopes is None else p.slopes[0].to(p.dtype),
            sink=None if p.sinks is None else p.sinks[0].to(p.dtype),
            scale=p.scale,
            softcap=p.softcap,
        )

    def take(self, rows: Int[Tensor, " chosen"]) -> Head:
        """The same with these queries alone."""

        def chosen(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.shape[0] == 1 else x[rows]

        return dataclasses.replace(
            self,
            query=self.query[rows],
            lse=self.lse[rows],
            at=self.at[rows],
            lo=self.lo[rows],
            hi=self.hi[rows],
            query_labels=None if self.query_labels is None else self.query_labels[:, rows],
            dense=self.dense if self.query.shape[0] == 1 else chosen(self.dense),
            bias=self.bias if self.query.shape[0] == 1 else chosen(self.bias),
        )

    def without(self, rows: Bool[Tensor, " rows"]) -> Head:
        """The same in which these queries see nothing."""
        return dataclasses.replace(self, lo=self.lo.masked_fill(rows, 0), hi=self.hi.masked_fill(rows, 0))

    # ---------------------------------------------------------------------------------------------------- who is seen

    @cached_property
    def _intervals(self) -> tuple[np.ndarray, np.ndarray]:
        """lo and hi where looking at them does not make a device wait; an empty interval is (Tk, 0)."""
        lo, hi = self.lo.cpu().numpy(), self.hi.cpu().numpy()
        empty = lo >= hi
        return np.where(empty, self.key.shape[0], lo), np.where(empty, 0, hi)

    def span(self, i0: int, i1: int) -> Span:
        """Where the intervals of some queries begin and end."""
        lo, hi = (x[i0:i1] for x in self._intervals)
        return Span(int(lo.min()), int(lo.max()), int(hi.min()), int(hi.max())) if lo.size else Span(0, 0, 0, 0)

    def kept(self, r: Rectangle, span: Span) -> Int[Tensor, "rows keys"] | None:
        """−1 where a pair may be seen and 0 where not, as integers as wide as a weight; None when all may be seen.

        As bits these keep a weight or make it 0, NaN too, eight times as fast as a bool tensor does on CPUs. `span` is that of
        the rectangle's queries.
        """
        found = None
        if r.j0 < span.last_lo or r.j1 > span.first_hi:
            j = torch.arange(r.j0, r.j1, dtype=torch.int32, device=self.lo.device)
            if r.j1 > span.first_hi:
                found = torch.lt(j, self.hi[r.i0 : r.i1, None], out=self._bits("kept", r))
            if r.j0 < span.last_lo:
                begun = torch.ge(j, self.lo[r.i0 : r.i1, None], out=self._bits("begun", r))
                found = begun if found is None else found.mul_(begun)
        for more in self._seen_one_by_one(r):
            found = self._bits("kept", r).copy_(more) if found is None else found.mul_(more)
        return None if found is None else found.neg_()

    def _bits(self, name: str, r: Rectangle) -> Tensor:
        """Scratch memory for integers as wide as a weight."""
        wide = torch.int64 if self.lse.dtype == torch.float64 else torch.int32
        return scratch.take(name, self.lse, *r.shape).view(wide)

    @property
    def looks_at_pairs(self) -> bool:
        """Whether intervals do not say it all."""
        return self.query_labels is not None or self.dense is not None or self.bias is not None

    def _seen_one_by_one(self, r: Rectangle) -> Iterator[Bool[Tensor, "#rows #keys"]]:
        """What labels, a bool tensor and a bias of −inf let be seen."""
        if self.query_labels is not None and self.key_labels is not None:
            for mine, theirs in zip(self.query_labels, self.key_labels, strict=True):
                yield mine[r.i0 : r.i1, None] == theirs[None, r.j0 : r.j1]
        if self.dense is not None:
            yield _part(self.dense, r)
        if self.bias is not None:
            added = _part(self.bias, r) != -torch.inf
            if not bool(added.all()):
                yield added

    # -------------------------------------------------------------------------------------------------------- numbers

    @property
    def folded(self) -> bool:
        """Whether nothing stands between the product and the mask: L is then one more column of the product."""
        return self.softcap is None and self.bias is None and self.slope is None

    def left(self, i0: int, i1: int, *, measured: bool = True) -> Float[Tensor, "rows _"]:
        """Queries as the left factor of a product: times the scale, and when `measured`, with −L beside them.

        What is measured lies in scratch memory.
        """
        if not measured:
            return self.query[i0:i1].to(self.lse.dtype) * self.scale
        anchor, D = self.anchors[0], self.query.shape[1]
        q = scratch.take("left", self.lse, i1 - i0, D + self.folded)
        q[:, :D].copy_(self.query[i0:i1]).mul_(self.scale)
        if self.folded:
            torch.neg(anchor[i0:i1], out=q[:, D])
        return q

    def right(self, j0: int, j1: int, *, measured: bool = True) -> Float[Tensor, "keys _"]:
        """Keys as the right factor; when `measured`, with the 1 that −L is multiplied by, and in scratch memory."""
        if not measured:
            return self.key[j0:j1].to(self.lse.dtype)
        D = self.key.shape[1]
        k = scratch.take("right", self.lse, j1 - j0, D + self.folded)
        k[:, :D].copy_(self.key[j0:j1])
        if self.folded:
            k[:, D] = 1.0
        return k

    @cached_property
    def anchors(self) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"] | None]:
        """What the logits of each row are measured from, and how far L lies above it (None: not at all).

        That is L itself, unless L is so large that z − L has no digits left, as it is where a mask is written in numbers:
        such a row is measured from its largest logit. 0 where a row sees nothing.
        """
        lse = self.lse
        L = torch.where(lse.isinf(), torch.where(lse > 0, torch.nan, 0.0), lse)
        steep = (L.abs() > FEW_DIGITS / torch.finfo(L.dtype).eps).nonzero()[:, 0]
        if not steep.numel():
            return L, None
        above = torch.zeros_like(L)
        for rows in steep.split(ROWS):
            L[rows], above[rows] = self.take(rows)._tops()
        return L, above

    def _tops(self) -> tuple[Tensor, Tensor]:
        """The largest logit m of every row, the sink's among them, and L − m; both 0 for a row that sees nothing."""
        rows, Tk = len(self.query), len(self.key)
        top = self.lse.new_full((rows,), -torch.inf) if self.sink is None else self.sink.expand(rows).clone()
        total = torch.zeros_like(top) if self.sink is None else torch.ones_like(top)
        for j0 in range(0, Tk, 4 * KEYS):
            z = self.logits(Rectangle(0, rows, j0, min(Tk, j0 + 4 * KEYS)))
            highest = torch.maximum(top, z.amax(1))
            anchor = torch.where(highest == -torch.inf, 0.0, highest)
            total = total * torch.exp(top - anchor) + torch.exp(z - anchor[:, None]).sum(1)
            top = highest
        nothing = top == -torch.inf
        return torch.where(nothing, 0.0, top), torch.where(nothing, 0.0, total.log())

    def logits(self, r: Rectangle) -> Float[Tensor, "rows keys"]:
        """z of a rectangle, −inf where a pair may not be seen."""
        z = torch.mm(self.left(r.i0, r.i1, measured=False), self.right(r.j0, r.j1, measured=False).mT)
        self._add(z, r)
        kept = self.kept(r, self.span(r.i0, r.i1))
        return z if kept is None else z.masked_fill_(kept == 0, -torch.inf)

    def weights(
        self,
        r: Rectangle,
        left: Float[Tensor, "rows _"],
        right: Float[Tensor, "keys _"],
        kept: Int[Tensor, "rows keys"] | None,
        out: Float[Tensor, " _"],
    ) -> Float[Tensor, "rows keys"]:
        """p of a rectangle, written into `out`; 0 where a pair may not be seen, whatever stands there.

        `left` and `right` are the factors of just these rows and keys, `kept` is what `kept` says.
        """
        rows, keys = r.shape
        z = out[: rows * keys].view(rows, keys)
        torch.mm(left, right.mT, out=z)
        anchor, above = self.anchors
        if not self.folded:
            self._add(z, r)
            z.sub_(anchor[r.i0 : r.i1, None])
        if above is not None:
            z.sub_(above[r.i0 : r.i1, None])
        z.exp_()
        return z if kept is None else keep(z, kept)

    def _add(self, z: Float[Tensor, "rows keys"], r: Rectangle) -> None:
        """What stands between the product and the mask."""
        if self.softcap is not None:
            z.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.bias is not None:
            z.add_(_part(self.bias, r).to(z.dtype))
        if self.slope is not None:
            j = torch.arange(r.j0, r.j1, device=z.device)
            z.sub_(self.slope * (self.at[r.i0 : r.i1, None] - j).abs())

    # -------------------------------------------------------------------------------------------------------- streams

    def blocks(
        self, r: Rectangle, right: Float[Tensor, "keys _"], keys: int | None = None
    ) -> Iterator[tuple[Rectangle, Float[Tensor, "rows _"], Int[Tensor, "rows _"] | None]]:
        """The blocks of a rectangle in which some pair may be seen: where it is, its weights, and what `kept` says.

        `right` is the factor of the rectangle's keys. The weights lie in scratch memory, where the next block overwrites them.
        """
        span, left, keys = self.span(r.i0, r.i1), None, keys or KEYS
        out = scratch.take("weights", self.lse, r.shape[0] * min(keys, r.shape[1]))
        for j0 in range(r.j0, r.j1, keys):
            part = Rectangle(r.i0, r.i1, j0, min(r.j1, j0 + keys))
            if part.j1 <= span.first_lo or part.j0 >= span.last_hi:
                continue
            kept = self.kept(part, span)
            if kept is not None and self.looks_at_pairs and not bool(kept.any()):
                continue
            left = self.left(r.i0, r.i1) if left is None else left
            yield part, self.weights(part, left, right[j0 - r.j0 : part.j1 - r.j0], kept, out), kept

    def strips(self, r: Rectangle) -> Iterator[Rectangle]:
        """A rectangle cut into blocks of rows."""
        for i0 in range(r.i0, r.i1, ROWS):
            yield Rectangle(i0, min(r.i1, i0 + ROWS), r.j0, r.j1)

    def received(self, row_weights: Float[Tensor, " rows"]) -> Float[Tensor, " tk"]:
        """Σ_i r_i p_ij in float64. Rows whose weight is 0 are not looked at, whatever they hold."""
        found = torch.zeros(len(self.key), dtype=torch.float64, device=self.key.device)
        rows = row_weights.nonzero()[:, 0]
        if not len(rows) or not len(self.key):
            return found
        head, r = self, row_weights.to(self.lse.dtype)
        if len(rows) < len(self.query):
            head, r = self.take(rows), r[rows]
        wide = max(KEYS, ROWS * KEYS // len(rows))  # few rows: fewer, wider blocks of them
        right = self.right(0, len(self.key))
        for strip in self.strips(Rectangle(0, len(rows), 0, len(self.key))):
            for part, p, _ in head.blocks(strip, right, wide):
                found[part.j0 : part.j1] += torch.mv(p.mT, r[part.i0 : part.i1])
        return found


def keep(x: Float[Tensor, "rows keys"], kept: Int[Tensor, "rows keys"]) -> Float[Tensor, "rows keys"]:
    """x with 0, in place, where a pair may not be seen."""
    x.view(kept.dtype).bitwise_and_(kept)
    return x


def _part(x: Tensor, r: Rectangle) -> Tensor:
    """The part of something (rows or 1, Tk or 1) that a rectangle needs."""
    rows = slice(None) if x.shape[0] == 1 else slice(r.i0, r.i1)
    return x[rows, slice(None) if x.shape[1] == 1 else slice(r.j0, r.j1)]
