"""Documents as the model reads them: cut to a length, and short ones put together in one sequence without seeing each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Piece:
    """A part of a document that is read as a text of its own: the tokens that stand around every text, and its own."""

    document: int  # within its shard
    first: int  # how many of the document's own tokens came before
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Pack:
    """Pieces in one sequence."""

    pieces: tuple[Piece, ...]

    @property
    def ids(self) -> NDArray[np.int64]:
        """All tokens, (T,)."""
        return np.concatenate([np.asarray(piece.ids, np.int64) for piece in self.pieces])

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each piece begins, and where the last one ends."""
        return np.cumsum([0, *(len(piece.ids) for piece in self.pieces)])

    @property
    def position(self) -> NDArray[np.int64]:
        """Every token's position in its own piece, (T,)."""
        return np.concatenate([np.arange(len(piece.ids)) for piece in self.pieces])

    @property
    def piece(self) -> NDArray[np.int64]:
        """The piece every token belongs to, (T,)."""
        return np.repeat(np.arange(len(self.pieces)), [len(piece.ids) for piece in self.pieces])


def cut(document: int, ids: Sequence[int], before: Sequence[int], after: Sequence[int], length: int) -> list[Piece]:
    """A document's own tokens in pieces of at most `length` tokens, with those that stand around every text.

    >>> [piece.ids for piece in cut(0, [5, 6, 7], [1], [], 3)]
    [(1, 5, 6), (1, 7)]
    """
    room = max(1, length - len(before) - len(after))
    return [Piece(document, first, (*before, *ids[first : first + room], *after)) for first in range(0, len(ids), room)]


def packs(pieces: Iterable[Piece], length: int, *, together: bool = True) -> Iterator[Pack]:
    """Pieces in their order, as many in one sequence as `length` tokens hold; each by itself unless `together`.

    >>> [len(pack.ids) for pack in packs([Piece(n, 0, (1,) * size) for n, size in enumerate([3, 4, 2, 6])], length=7)]
    [7, 2, 6]
    """
    held: list[Piece] = []
    for piece in pieces:
        if held and (not together or sum(len(x.ids) for x in held) + len(piece.ids) > length):
            yield Pack(tuple(held))
            held = []
        held.append(piece)
    if held:
        yield Pack(tuple(held))
