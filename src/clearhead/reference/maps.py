"""A pattern pooled into a grid of cells: the picture of a head that fits on a screen."""

from __future__ import annotations

from itertools import pairwise

from jaxtyping import Bool, Float
from torch import Tensor


def pooled_map(
    weights: Float[Tensor, "b hq tq tk"], visible: Bool[Tensor, "b hq tq tk"], rows: list[int], columns: list[int]
) -> tuple[Float[Tensor, "b hq rows columns"], Float[Tensor, "b hq rows columns"]]:
    """Mean over the pairs that may be seen, and maximum, of every cell; both 0 where nothing may be seen.

    `rows` and `columns`: where each cell begins, and where the last one ends.
    """
    means = weights.new_zeros(*weights.shape[:2], len(rows) - 1, len(columns) - 1)
    tops = means.clone()
    for r, (top, bottom) in enumerate(pairwise(rows)):
        for c, (left, right) in enumerate(pairwise(columns)):
            cell = (..., slice(top, bottom), slice(left, right))
            seen = visible[cell].sum((-2, -1))
            means[..., r, c] = weights[cell].sum((-2, -1)) / seen.clamp(min=1)
            tops[..., r, c] = weights[cell].amax((-2, -1))
    return means, tops
