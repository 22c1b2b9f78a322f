"""Rung 2. Can one matrix product do the work of both loops? Yes: row t of the matrix says whom token t listens to."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.ladder.inputs import check_rows, check_sequence


class ThreeByThree(NamedTuple):
    """The same idea small enough to work out by hand."""

    total: Tensor  # (T, C)
    tril: Tensor  # (T, T)
    weights: Tensor  # (T, T)
    out: Tensor  # (T, C)


def three_by_three(rows: Tensor) -> ThreeByThree:
    """What a matrix of ones does to a few rows of numbers, then a triangle of ones, then a triangle of means.

    >>> step = three_by_three(torch.tensor([[1.0, 10.0], [2.0, 20.0], [6.0, 60.0]]))
    >>> step.total[0].tolist(), step.out[2].tolist()
    ([9.0, 90.0], [3.0, 30.0])

    Arguments: rows (T, C), floating; T = 3 is what its name promises, any T works.
    Returns: `total` and `out` (T, C), `tril` and `weights` (T, T). Raises: ArgumentError when rows is not (T, C).
    Time O(T²·C), memory O(T² + T·C).
    """
    check_rows(rows)
    T = rows.shape[0]
    ones = rows.new_ones(T, T)  # (T, T)
    # Row t of a product is a sum of the rows on the right, each multiplied by its number in row t on the left.
    # All ones: every row of the result is the sum of everything.
    total = ones @ rows  # (T, T) @ (T, C) -> (T, C)
    # With zeros above the diagonal, row t adds up only the rows 0..t: the past.
    tril = torch.tril(ones)  # (T, T)
    # With every row divided by its own sum, the numbers in it are shares: sums become means.
    weights = tril / tril.sum(dim=1, keepdim=True)  # (T, T) / (T, 1) -> (T, T)
    out = weights @ rows  # (T, T) @ (T, C) -> (T, C)
    return ThreeByThree(total, tril, weights, out)


class MeanByMatmul(NamedTuple):
    """What rung 2 makes, in the order in which it is made."""

    tril: Tensor  # (T, T)
    weights: Tensor  # (T, T)
    out: Tensor  # (B, T, C)


def mean_by_matmul(x: Tensor) -> MeanByMatmul:
    """The mean of the past as one product: a lower triangle of ones, its rows made to sum to 1, times x.

    >>> mean_by_matmul(torch.tensor([[[1.0], [3.0], [8.0]]])).out.flatten()
    tensor([1., 2., 4.])

    Arguments: x (B, T, C), floating. Returns: `tril` and `weights` (T, T), `out` (B, T, C) = rung 1's.
    Raises: ArgumentError when x is not (B, T, C).
    Time O(B·T²·C), as rung 1 and far quicker: one product instead of B·T small steps. Memory O(T² + B·T·C).
    """
    check_sequence(x)
    T = x.shape[1]
    # Who may be heard: 1 for oneself and the past, 0 for the future.
    tril = torch.tril(x.new_ones(T, T))  # (T, T)
    # Row t holds t+1 ones; divided by their number they are the t+1 equal shares of a mean.
    weights = tril / tril.sum(dim=1, keepdim=True)  # (T, T) / (T, 1) -> (T, T)
    # The weights know nothing of x: the same matrix serves every sequence, so the product is taken B times.
    out = weights @ x  # (T, T) @ (B, T, C) -> (B, T, C)
    return MeanByMatmul(tril, weights, out)
