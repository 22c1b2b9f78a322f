"""`Pattern`: the weights of one attention call, never formed; any part of them exactly, when asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor

from clearhead.arguments import CheckedCall, checked_call
from clearhead.biases import ALiBi
from clearhead.errors import ArgumentError, dtype_name, message
from clearhead.kernels import ops, select
from clearhead.kernels.problem import Problem, exact
from clearhead.kernels.rectangle import Head, Rectangle, keep
from clearhead.masks import Mask
from clearhead.plans import Plan
from clearhead.pyramid import TILE, Pyramid, cell_side, levels


class Pattern:
    """The weights p_ij of one attention call, from its query and key; what is asked for is computed then, exactly.

    >>> q, k = torch.randn(1, 8, 3000, 64), torch.randn(1, 2, 3000, 64)
    >>> pattern = Pattern(q, k, mask=Causal())
    >>> pattern.crop(slice(-10, None), slice(0, 100)).shape      # the last ten queries, the first hundred keys
    torch.Size([1, 8, 10, 100])
    >>> pattern.head(3).tile(0, 0, 0).shape                      # one head, whole, as 188 × 188 cells of 16 × 16 pairs
    torch.Size([1, 1, 188, 188])

    Arguments:
        query, key, mask, bias, scale, softcap, sinks: as for `attention`, in the dtype and on the device they were kept.
        value: (…, Hk, Tk, Dv); only `crop(what="contribution")` needs it.
        lse: (B, Hq, Tq), the L_i that `observe` measured (a sink's logit included). Left out, it is computed when first
            needed, at the cost of an attention call without values.

    Everything is float32, float64 for float64 inputs, and carries no gradient. A weight is that before dropout. What a query
    may not see has weight 0 and logit −inf, whatever stands there.

    Memory: nothing of size Tq·Tk. Tiles are kept for when they are asked for again, those of all patterns of a process
    together up to `clearhead.pyramid.cache.limit` bytes (256 MB); the ones not seen for longest go first.

    Raises:
        ArgumentError: as `attention` does, and for an `lse` of another shape.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        *,
        value: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        bias: Tensor | ALiBi | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> None:
        stand_in = key[..., :0] if isinstance(key, Tensor) and key.ndim else key
        with torch.no_grad():
            call = checked_call(
                query, key, stand_in if value is None else value,
                mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
            )  # fmt: skip
        self._problem = _detached(call.problem)
        self._has_value = value is not None
        self._padded = call.mask.padded(call.sizes)
        self._lse = None if lse is None else _checked_lse(lse, call)
        self._views: dict[tuple[int, int], Pattern] = {}

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, Hq, Tq, Tk)."""
        B, Hq, Tq, _ = self._problem.query.shape
        return B, Hq, Tq, self._problem.key.shape[2]

    @property
    def offset(self) -> int:
        """Position of query 0 on the keys' axis: Tk − Tq."""
        return self.shape[3] - self.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """Of everything that comes out: float32, or float64 for float64 inputs."""
        return self._problem.dtype

    @property
    def device(self) -> torch.device:
        """Where query and key are, and where everything is computed."""
        return self._problem.query.device

    @property
    def padded(self) -> Tensor | None:
        """Which queries are padding, bool (B or 1, Tq); None when none can be."""
        return self._padded

    @property
    def lse(self) -> Tensor:
        """L_i (B, Hq, Tq): given, or computed now and kept."""
        if self._lse is None:
            with self._plainly():
                p = dataclasses.replace(self._problem, value=self._problem.value[..., :0])
                self._lse = ops.run(p, select.choose("auto", p))[1]
        return self._lse

    def head(self, head: int, batch: int = 0) -> Pattern:
        """One head of one sample as a `Pattern` of B = 1 and Hq = 1; nothing is copied. Negative numbers count from the end.

        Asked for again it is the same object, with the tiles it has seen.
        """
        B, Hq, _, _ = self.shape
        b, h = _checked_index("batch", batch, B, "B"), _checked_index("head", head, Hq, "Hq")
        if (B, Hq) == (1, 1):
            return self
        if (b, h) not in self._views:
            view = object.__new__(Pattern)
            view._problem = _one_head(self._tight, b, h)
            view._has_value = self._has_value
            view._padded = None if self._padded is None else _sample(self._padded, b)
            view._lse = None if self._lse is None else self._lse[b : b + 1, h : h + 1]
            view._views = {}
            self._views[b, h] = view
        return self._views[b, h]

    def crop(
        self, queries: slice | int = slice(None), keys: slice | int = slice(None), *, what: str = "weight"
    ) -> Tensor:
        """The numbers of a rectangle of pairs, each of them; (B, Hq, rows, columns).

        Arguments:
            queries, keys: slices of the queries 0 … Tq − 1 of this call and of the keys 0 … Tk − 1, or one of them, whose
                dimension stays; negative numbers count from the end, None is an end. A step is not taken. Default all: T×T
                numbers a head.
            what: "weight" p_ij; "logit" z_ij, after scale, softcap, bias and mask; or "contribution" p_ij · ‖v_j‖, how far
                the weight can move the output (Kobayashi et al. 2020): a large weight on a value near 0 moves nothing.

        Raises:
            ArgumentError: a slice that leaves the pattern, an unknown `what`, or a contribution without `value`.

        Time O(B·Hq·rows·columns·D); memory the result and a few blocks of 512 × 512.
        """
        if what not in ("weight", "logit", "contribution"):
            raise ArgumentError(
                message(
                    "what",
                    expected='"weight", "logit" or "contribution"',
                    got=repr(what),
                    remedy="A weight is after the softmax, a logit before it.",
                )
            )
        if what == "contribution" and not self._has_value:
            raise ArgumentError(
                message(
                    "what",
                    expected='"weight" or "logit" of a pattern made without value',
                    got='"contribution"',
                    remedy="Make it with Pattern(query, key, value=value, ...).",
                )
            )
        B, Hq, Tq, Tk = self.shape
        (i0, i1), (j0, j1) = _checked_slice("queries", queries, Tq, "Tq"), _checked_slice("keys", keys, Tk, "Tk")
        r = Rectangle(i0, i1, j0, j1)
        with self._plainly():
            out = self._problem.query.new_empty(B, Hq, *r.shape, dtype=self.dtype)
            for b, h, view in self._heads():
                view._crop_into(out[b, h], r, what)
        return out

    def _crop_into(self, out: Tensor, r: Rectangle, what: str) -> None:
        """Of the only head, the rectangle."""
        if what == "logit":
            for strip in self._head.strips(r):
                out[strip.i0 - r.i0 : strip.i1 - r.i0] = self._head.logits(strip)
            return
        norms = None
        if what == "contribution":
            norms = self._problem.value[0, 0, r.j0 : r.j1].to(self.dtype).norm(dim=-1)
        out.zero_()
        head = self._head
        right = head.right(r.j0, r.j1)
        for strip in head.strips(r):
            for part, p, kept in head.blocks(strip, right):
                if norms is not None:
                    p.mul_(norms[part.j0 - r.j0 : part.j1 - r.j0])
                    if kept is not None:
                        keep(p, kept)  # a value that may not be seen may hold NaN
                out[part.i0 - r.i0 : part.i1 - r.i0, part.j0 - r.j0 : part.j1 - r.j0] = p

    @property
    def levels(self) -> int:
        """Zoom levels. Level 0 is the whole pattern in one tile; on the last, a cell is a pair."""
        return levels(*self.shape[2:])

    def tiles(self, level: int) -> tuple[int, int]:
        """How many tiles a level has: (along the keys, along the queries).

        >>> Pattern(torch.randn(600, 4), torch.randn(1000, 4)).tiles(2)
        (4, 3)
        """
        span = TILE * cell_side(*self.shape[2:], _checked_index("level", level, self.levels, "levels"))
        return max(1, -(-self.shape[3] // span)), max(1, -(-self.shape[2] // span))

    def tile(self, level: int, x: int, y: int, *, pool: str = "mean") -> Tensor:
        """One tile of a zoom level: (B, Hq, at most 256 rows, at most 256 columns) cells.

        A cell of level l is 2^(levels − 1 − l) queries high and as many keys wide, counted from query 0 and key 0. Pooling
        2 × 2 cells gives the cells of the level above: exactly for the largest weight, within rounding for the mean.

        Arguments:
            level: 0 (the whole in one tile) … levels − 1 (a cell a pair).
            x, y: which tile, counted along the keys and along the queries.
            pool: "mean" weight over the pairs of a cell that may be seen, or "max". Rows of padding queries are left out;
                a cell in which nothing may be seen is 0.

        Raises:
            ArgumentError: no such level or tile, or an unknown `pool`.

        Time: that of the pairs under the tile, once. Kept tiles are found again at once; see the class for how many are kept.
        """
        if pool not in ("mean", "max"):
            raise ArgumentError(
                message("pool", expected='"mean" or "max"', got=repr(pool), remedy="A cell holds both, one is shown.")
            )
        level = _checked_index("level", level, self.levels, "levels")
        across, down = self.tiles(level)
        for name, at, count, which in (("x", x, across, "along the keys"), ("y", y, down, "along the queries")):
            if not 0 <= at < count:
                raise ArgumentError(
                    message(
                        name,
                        expected=f"0 <= {name} < {count}, the tiles {which} of level {level}",
                        got=str(at),
                        remedy="Pattern.tiles(level) says how many there are.",
                    )
                )
        with self._plainly():
            out = self._problem.query.new_zeros(
                *self.shape[:2], *_tile_shape(self.shape, level, x, y), dtype=self.dtype
            )
            for b, h, view in self._heads():
                found = view._pyramid.tile(level, x, y)
                if found is not None:
                    out[b, h] = found.mean if pool == "mean" else found.largest
        return out

    def received(self, row_weights: Tensor | None = None) -> Tensor:
        """Σ_i r_i p_ij for every key: (B, Hq, Tk). The pattern passes by in blocks; memory O(Tq + Tk).

        Arguments:
            row_weights: r, a number a query, that broadcasts to (B, Hq, Tq); None: 1 for every query. Padding queries are
                left out, and those with r_i = 0 are not looked at: one row costs what one row costs.

        Raises:
            ArgumentError: row weights of another shape.
        """
        B, Hq, Tq, Tk = self.shape
        r = torch.ones((), device=self.device) if row_weights is None else row_weights.detach().to(self.device)
        if r.ndim > 3 or any(n not in (1, m) for n, m in zip(r.shape[::-1], (Tq, Hq, B), strict=False)):
            raise ArgumentError(
                message(
                    "row_weights",
                    expected=f"a shape that broadcasts to (B={B}, Hq={Hq}, Tq={Tq})",
                    got=str(tuple(r.shape)),
                    remedy="Give every query of the call a number; 0 leaves it out.",
                )
            )
        r = r.to(torch.float64).expand(B, Hq, Tq)
        if self._padded is not None:
            r = r.masked_fill(self._padded[:, None], 0.0)
        with self._plainly():
            out = self._problem.query.new_empty(B, Hq, Tk, dtype=self.dtype)
            for b, h, view in self._heads():
                out[b, h] = view._head.received(r[b, h])
        return out

    def __repr__(self) -> str:
        letters = ", ".join(f"{a}={n}" for a, n in zip(("B", "Hq", "Tq", "Tk"), self.shape, strict=True))
        kept = dtype_name(self._problem.query.dtype)
        return f"Pattern({letters}, from {kept} on {self.device}, {self.levels} zoom levels)"

    # ----------------------------------------------------------------------------------------------- what it is made of

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        """No gradients, and no dtypes but those asked for."""
        with torch.no_grad(), exact(self._problem):
            yield

    def _heads(self) -> Iterator[tuple[int, int, Pattern]]:
        for b in range(self.shape[0]):
            for h in range(self.shape[1]):
                yield b, h, self.head(h, b)

    @cached_property
    def _tight(self) -> Problem:
        """The problem with its plan tightened: reading a bool tensor once saves looking into it for every block."""
        return self._problem.tightened()

    @cached_property
    def _head(self) -> Head:
        """The only head."""
        return Head.of(self._tight, self.lse)

    @cached_property
    def _pyramid(self) -> Pyramid:
        """Of the only head."""
        return Pyramid(self._head if self._padded is None else self._head.without(self._padded[0]))


def _detached(p: Problem) -> Problem:
    """The same numbers, which no graph of a training step is kept alive by."""
    bias, sinks, slopes = (None if x is None else x.detach() for x in (p.bias, p.sinks, p.slopes))
    query, key, value = (x.detach() for x in (p.query, p.key, p.value))
    return dataclasses.replace(p, query=query, key=key, value=value, bias=bias, sinks=sinks, slopes=slopes)


def _one_head(p: Problem, b: int, h: int) -> Problem:
    """Views of what one head of one sample needs."""

    def pairs(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[b % x.shape[0], h % x.shape[1]][None, None]

    def labels(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[:, b % x.shape[1]][:, None]

    kv = h // p.groups
    plan = Plan(
        _sample(p.plan.lo, b),
        _sample(p.plan.hi, b),
        labels(p.plan.query_labels),
        labels(p.plan.key_labels),
        pairs(p.plan.dense),
    )
    return dataclasses.replace(
        p,
        query=p.query[b : b + 1, h : h + 1],
        key=p.key[b : b + 1, kv : kv + 1],
        value=p.value[b : b + 1, kv : kv + 1],
        plan=plan,
        bias=pairs(p.bias),
        slopes=None if p.slopes is None else p.slopes[h : h + 1],
        sinks=None if p.sinks is None else p.sinks[h : h + 1],
    )


def _sample(x: Tensor, b: int) -> Tensor:
    """Sample b, of something whose first dimension is B, or 1 for all of them."""
    return x if x.shape[0] == 1 else x[b : b + 1]


def _tile_shape(shape: tuple[int, int, int, int], level: int, x: int, y: int) -> tuple[int, int]:
    """Rows and columns of a tile."""
    side = cell_side(*shape[2:], level)
    cells: Callable[[int, int], int] = lambda T, at: max(0, min(TILE, -(-T // side) - at * TILE))  # noqa: E731
    return cells(shape[2], y), cells(shape[3], x)


def _checked_lse(lse: Tensor, call: CheckedCall) -> Tensor:
    """As (B, Hq, Tq) in the dtype to compute in."""
    B, Hq, Tq, _ = call.problem.query.shape
    allowed = {(B, Hq, Tq), (*call.lead, Hq, Tq)} | ({(Tq,)} if call.headless else set())
    if not isinstance(lse, Tensor) or not lse.is_floating_point() or tuple(lse.shape) not in allowed:
        got = f"{lse.dtype} of shape {tuple(lse.shape)}" if isinstance(lse, Tensor) else type(lse).__name__
        raise ArgumentError(
            message(
                "lse",
                expected=f"floating-point numbers, one a query: (B={B}, Hq={Hq}, Tq={Tq})",
                got=got,
                remedy="Pass observe(...).lse of the same call, or leave it out.",
            )
        )
    return lse.detach().reshape(B, Hq, Tq).to(call.problem.query.device, call.problem.dtype)


def _checked_index(name: str, index: int, count: int, letter: str) -> int:
    """0 … count − 1, negative numbers counted from the end."""
    if isinstance(index, bool) or not isinstance(index, int) or not -count <= index < count:
        raise ArgumentError(
            message(
                name,
                expected=f"an integer from 0 to {letter} - 1 = {count - 1} (or negative, from the end)",
                got=repr(index),
                remedy=f"There are {count}, counted from 0." if count else "There are none.",
            )
        )
    return index % count


def _checked_slice(name: str, part: slice | int, length: int, letter: str) -> tuple[int, int]:
    """Begin and end of a slice that stays within the pattern, or of one place in it."""
    if isinstance(part, int) and -length <= part < length:
        return part % length, part % length + 1
    ends = (part.start, part.stop) if isinstance(part, slice) and part.step in (None, 1) else ()
    if not isinstance(part, slice) or not ends or any(at is not None and not -length <= at <= length for at in ends):
        raise ArgumentError(
            message(
                name,
                expected=f"a slice without a step or one position, within {letter} = {length}",
                got=repr(part),
                remedy=f"Ends count from 0 to {length}, negative ones from the end; leave one out for everything.",
            )
        )
    begin, end, _ = part.indices(length)
    return begin, max(begin, end)
