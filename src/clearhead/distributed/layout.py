"""Which positions of a sequence each rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

Placement = Literal["contiguous", "zigzag"]
PLACEMENTS = ("contiguous", "zigzag")


@dataclass(frozen=True)
class Layout:
    """Positions held by every rank, as spans of neighbours.

    >>> Layout((4, 4), "zigzag").spans(0), Layout((4, 4), "zigzag").spans(1)
    ([(0, 2), (6, 8)], [(2, 6)])

    - "contiguous": rank after rank.
    - "zigzag": the sequence in 2 N pieces, of which rank r holds piece r and piece 2 N − 1 − r, so that under a causal mask
      every rank has as much to compute as every other.
    """

    lengths: tuple[int, ...]  # positions held by each rank
    placement: Placement = "contiguous"

    @classmethod
    def even(cls, length: int, ranks: int, placement: Placement = "contiguous") -> Layout:
        """A sequence cut as `torch.chunk` (and DTensor) cuts it, or into zigzag pieces that differ by at most one position."""
        if placement == "zigzag":
            return cls(
                tuple(sum(end - start for start, end in _zigzag(length, ranks, r)) for r in range(ranks)), placement
            )
        size = -(-length // ranks)
        return cls(tuple(max(0, min(size, length - r * size)) for r in range(ranks)), placement)

    @property
    def length(self) -> int:
        """Positions in all."""
        return sum(self.lengths)

    @property
    def fits(self) -> bool:
        """Whether these lengths are those of the placement: any are contiguous, one choice of them is zigzag."""
        ranks = len(self.lengths)
        return self.placement == "contiguous" or self.lengths == Layout.even(self.length, ranks, "zigzag").lengths

    def spans(self, rank: int) -> list[tuple[int, int]]:
        """First position and one past the last of every run of neighbours; one empty span where the rank holds nothing."""
        if self.placement == "zigzag":
            return _zigzag(self.length, len(self.lengths), rank)
        start = sum(self.lengths[:rank])
        return [(start, start + self.lengths[rank])]

    def positions(self, rank: int) -> Tensor:
        """Positions of a rank's entries in the order it holds them, int64."""
        return torch.cat([torch.arange(start, end) for start, end in self.spans(rank)])

    @cached_property
    def in_order(self) -> bool:
        """Whether the ranks' entries, rank after rank, stand in the order of the sequence."""
        return self.placement == "contiguous" or len(self.lengths) == 1

    def sorting(self, device: torch.device, step: int | None = None) -> Tensor:
        """For every position the place of its entry in the entries of all ranks, rank after rank, `step` places a rank."""
        places = torch.empty(self.length, dtype=torch.int64)
        starts = [0, *accumulate(self.lengths)]
        for rank, n in enumerate(self.lengths):
            first = starts[rank] if step is None else rank * step
            places[self.positions(rank)] = torch.arange(first, first + n)
        return places.to(device)


def _zigzag(length: int, ranks: int, rank: int) -> list[tuple[int, int]]:
    bounds = [piece * length // (2 * ranks) for piece in range(2 * ranks + 1)]
    last = 2 * ranks - 1 - rank
    spans = [(bounds[rank], bounds[rank + 1]), (bounds[last], bounds[last + 1])]
    if spans[0][1] == spans[1][0]:  # neighbours: the last rank's two pieces, and short sequences
        return [(spans[0][0], spans[1][1])]
    return [span for span in spans if span[0] < span[1]] or [(0, 0)]
