"""A pattern at every zoom: tiles of 256 × 256 cells, each level's cells half as long as those of the level above.

A cell holds the mean of the weights in it, over the pairs that may be seen, and the largest. Tiles with cells up to 16 long
are computed from query and key, block by block; a tile above is made of the four below it. So every level shows the same
numbers, whichever was asked for first: the largest of four cells is the cell above them to the last bit.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.kernels.rectangle import KEYS, ROWS, Head, Rectangle, scratch

TILE = 256  # cells along each side of a tile
DIRECT = 16  # the longest cell that is computed from query and key: such a tile takes about 20 ms, and few are kept
CACHE_BYTES = 256 << 20


class Tile(NamedTuple):
    """What a tile shows, and how many pairs of each cell may be seen."""

    mean: Float[Tensor, "rows columns"]
    largest: Float[Tensor, "rows columns"]
    pairs: Float[Tensor, "rows columns"]

    def part(self, rows: slice, columns: slice) -> Tile | None:
        """A copy of some cells; None when nothing in them may be seen."""
        mean, largest, pairs = (x[rows, columns].clone() for x in self)
        found = Tile(largest if self.mean is self.largest else mean, largest, pairs)
        return found if bool(found.pairs.any()) else None

    @property
    def bytes(self) -> int:
        """Memory it holds; the same memory is counted once."""
        return sum({s.data_ptr(): s.nbytes() for s in (x.untyped_storage() for x in self)}.values())


class Cache:
    """The tiles seen last, up to a number of bytes; one for all patterns of a process. A tile may be None: all hidden."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._tiles: OrderedDict[tuple[int, int, int, int], Tile | None] = OrderedDict()
        self._lock = threading.RLock()  # a server asks from several threads, and collecting garbage forgets from any

    def get(self, key: tuple[int, int, int, int]) -> Tile | None:
        """The tile kept under (owner, level, x, y); raises `KeyError` where there is none."""
        with self._lock:
            self._tiles.move_to_end(key)
            return self._tiles[key]

    def put(self, key: tuple[int, int, int, int], tile: Tile | None) -> None:
        """Keep a tile, and let go of those not seen for longest."""
        with self._lock:
            self._drop(key)
            self._tiles[key] = tile
            self.bytes += 0 if tile is None else tile.bytes
            while self.bytes > self.limit:
                self._drop(next(iter(self._tiles)))

    def forget(self, owner: int) -> None:
        """Let go of all tiles of an owner."""
        with self._lock:
            for key in [key for key in self._tiles if key[0] == owner]:
                self._drop(key)

    def _drop(self, key: tuple[int, int, int, int]) -> None:
        tile = self._tiles.pop(key, None)
        self.bytes -= 0 if tile is None else tile.bytes


cache = Cache(CACHE_BYTES)
_owners = itertools.count()


class Pyramid:
    """The tiles of one head. Queries that are padding must see nothing in it."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.Tq, self.Tk = len(head.query), len(head.key)
        self.levels = levels(self.Tq, self.Tk)
        self._owner = next(_owners)
        weakref.finalize(self, cache.forget, self._owner)

    def tile(self, level: int, x: int, y: int) -> Tile | None:
        """One tile; None when nothing in it may be seen."""
        key = (self._owner, level, x, y)
        try:
            return cache.get(key)
        except KeyError:
            pass
        if cell_side(self.Tq, self.Tk, level) <= DIRECT:
            return self._with_its_block(level, x, y)
        found = self._from_below(level, x, y)
        cache.put(key, found)
        return found

    def shape(self, level: int, x: int, y: int) -> tuple[int, int]:
        """Rows and columns of a tile: 256, or fewer at the ends."""
        side = cell_side(self.Tq, self.Tk, level)
        rows, columns = (-(-T // side) for T in (self.Tq, self.Tk))
        return max(0, min(TILE, rows - y * TILE)), max(0, min(TILE, columns - x * TILE))

    def _from_below(self, level: int, x: int, y: int) -> Tile | None:
        """Four tiles of the level below, pooled."""
        parts = [[self.tile(level + 1, 2 * x + right, 2 * y + low) for right in (0, 1)] for low in (0, 1)]
        if all(part is None for row in parts for part in row):
            return None
        sizes = [[self.shape(level + 1, 2 * x + right, 2 * y + low) for right in (0, 1)] for low in (0, 1)]
        like = self.head.lse

        def joined(plane: int) -> Tensor:
            whole = like.new_zeros(sizes[0][0][0] + sizes[1][0][0], sizes[0][0][1] + sizes[0][1][1])
            for low, right in itertools.product((0, 1), (0, 1)):
                part, (rows, columns) = parts[low][right], sizes[low][right]
                if part is not None:
                    whole[low * TILE : low * TILE + rows, right * TILE : right * TILE + columns] = part[plane]
            return whole

        mean, largest, count = (joined(plane) for plane in range(3))
        total = pooled_sum(count, 2)
        return Tile(pooled_sum(mean * count, 2) / total.clamp(min=1), pooled_max(largest, 2), total)

    def _computed(self, side: int, i0: int, i1: int, j0: int, j1: int) -> Tile | None:
        """Cells of `side` over queries i0:i1 and keys j0:j1, or as many as there are, from query and key."""
        head = self.head
        r = Rectangle(i0, min(self.Tq, i1), j0, min(self.Tk, j1))
        around = head.span(r.i0, max(r.i0, r.i1))
        if r.j1 <= around.first_lo or r.j0 >= around.last_hi:
            return None
        rows, columns = (-(-n // side) for n in r.shape)
        total, largest, count = (head.lse.new_zeros(rows, columns) for _ in range(3))
        right = head.right(r.j0, r.j1)
        for strip in head.strips(r):
            down = slice((strip.i0 - i0) // side, -(-(strip.i1 - i0) // side))
            # Rows are pooled block by block, columns once a strip: what is left after the rows is small.
            high = down.stop - down.start
            sums, tops = (scratch.take(name, head.lse, high, columns * side).zero_() for name in ("sums", "tops"))
            for part, p, kept in head.blocks(strip, right):
                across = slice(part.j0 - j0, part.j1 - j0)
                by_cell = _padded_rows(p, side).view(len(sums), side, -1)
                torch.sum(by_cell, 1, out=sums[:, across])
                torch.amax(by_cell, 1, out=tops[:, across])
                cells = (down, slice(across.start // side, -(-across.stop // side)))
                count[cells] = _pairs(part, kept, side, p)
            total[down] = sums.view(len(sums), columns, side).sum(-1)
            largest[down] = tops.view(len(sums), columns, side).amax(-1)
        if not bool(count.any()):
            return None
        # A cell that is a pair is its own mean and its own largest: kept once.
        return Tile(largest, largest, count) if side == 1 else Tile(total.div_(count.clamp(min=1)), largest, count)

    def _with_its_block(self, level: int, x: int, y: int) -> Tile | None:
        """A tile from query and key. Blocks are computed whole, as every level does, so small tiles come several at a time."""
        side = cell_side(self.Tq, self.Tk, level)
        span = TILE * side
        high, wide = max(span, ROWS), max(span, KEYS)
        i0, j0 = y * span // high * high, x * span // wide * wide
        whole = self._computed(side, i0, i0 + high, j0, j0 + wide)
        wanted = None
        for i, j in itertools.product(
            range(i0, min(self.Tq, i0 + high), span), range(j0, min(self.Tk, j0 + wide), span)
        ):
            at = (j // span, i // span)
            tile = whole
            if whole is not None and (high, wide) != (span, span):
                rows, columns = self.shape(level, *at)
                down, across = (i - i0) // side, (j - j0) // side
                tile = whole.part(slice(down, down + rows), slice(across, across + columns))
            cache.put((self._owner, level, *at), tile)
            if at == (x, y):
                wanted = tile
        return wanted


def levels(Tq: int, Tk: int) -> int:
    """How often a pattern can be halved until it fits one tile, and one.

    >>> levels(256, 256), levels(257, 10), levels(32768, 32768)
    (1, 2, 8)
    """
    return 1 + (max(1, -(-max(Tq, Tk) // TILE)) - 1).bit_length()


def cell_side(Tq: int, Tk: int, level: int) -> int:
    """Positions along each side of a cell."""
    return 1 << (levels(Tq, Tk) - 1 - level)


def pooled_sum(x: Float[Tensor, "rows columns"], side: int) -> Float[Tensor, "cells_down cells_across"]:
    """The sum of every cell of `side` × `side`; those at the ends may be smaller."""
    down = _padded_rows(_padded_columns(x, side), side).unflatten(0, (-1, side)).sum(1)
    found: Tensor = down.unflatten(1, (-1, side)).sum(-1)
    return found


def pooled_max(x: Float[Tensor, "rows columns"], side: int) -> Float[Tensor, "cells_down cells_across"]:
    """The largest of every cell; x is not negative."""
    down = _padded_rows(_padded_columns(x, side), side).unflatten(0, (-1, side)).amax(1)
    found: Tensor = down.unflatten(1, (-1, side)).amax(-1)
    return found


def _pairs(r: Rectangle, kept: Tensor | None, side: int, like: Tensor) -> Tensor | float:
    """How many pairs of every cell of a block may be seen."""
    if kept is None and not any(n % side for n in r.shape):
        return float(side * side)
    return pooled_sum(like.new_ones(r.shape) if kept is None else kept.to(like.dtype).neg_(), side)


def _padded_rows(x: Tensor, side: int) -> Tensor:
    """With rows of zeros up to whole cells."""
    missing = -len(x) % side
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x


def _padded_columns(x: Tensor, side: int) -> Tensor:
    """With columns of zeros up to whole cells."""
    missing = -x.shape[1] % side
    return torch.nn.functional.pad(x, (0, missing)) if missing else x
