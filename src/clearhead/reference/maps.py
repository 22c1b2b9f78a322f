"""A pattern pooled into a grid of cells: the picture of a head that fits on a screen."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def cell_bounds(length: int, cells: int) -> Int[Tensor, " cells_plus_1"]:
    """Where each cell begins, and where the last ends: cell c holds positions bounds[c] ≤ t < bounds[c + 1].

    >>> cell_bounds(10, 4).tolist()
    [0, 2, 5, 7, 10]

    Cells differ by at most one position; with fewer positions than cells there is one cell a position.
    """
    cells = min(length, cells)
    return torch.arange(cells + 1) * length // max(1, cells)


def pooled_map(
    weights: Float[Tensor, "b hq tq tk"], visible: Bool[Tensor, "b hq tq tk"], cells: int
) -> tuple[Float[Tensor, "b hq rows columns"], Float[Tensor, "b hq rows columns"]]:
    """Mean over the pairs that may be seen, and maximum, of every cell; both 0 where nothing may be seen."""
    rows, columns = cell_bounds(weights.shape[2], cells).tolist(), cell_bounds(weights.shape[3], cells).tolist()
    means = weights.new_zeros(*weights.shape[:2], len(rows) - 1, len(columns) - 1)
    tops = means.clone()
    for r in range(len(rows) - 1):
        for c in range(len(columns) - 1):
            cell = (..., slice(rows[r], rows[r + 1]), slice(columns[c], columns[c + 1]))
            seen = visible[cell].sum((-2, -1))
            means[..., r, c] = weights[cell].sum((-2, -1)) / seen.clamp(min=1)
            tops[..., r, c] = weights[cell].amax((-2, -1))
    return means, tops
