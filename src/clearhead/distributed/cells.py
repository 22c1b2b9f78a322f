"""How many pairs that may be seen each cell of a map has: what means over parts of a cell are weighted by."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from clearhead.arguments import CheckedCall
from clearhead.kernels.problem import tighten
from clearhead.plans import Plan

CHUNK = 1 << 24  # pairs looked at together, where an interval does not say it all


def count_cells(call: CheckedCall, rows: list[int], columns: list[int]) -> Tensor:
    """Pairs in sight, padding queries left out, of every cell: float64 (b, h, rows, columns), b and h 1 where they may be.

    O(T · columns) where intervals say who sees whom, else O(pairs).
    """
    plan, bias = tighten(call.problem.plan), call.problem.bias
    start, end = (rows[0], rows[-1]) if len(rows) > 1 else (0, 0)
    padded = call.mask.padded(call.sizes)
    hides = (
        plan.query_labels is not None
        or plan.dense is not None
        or (bias is not None and bool((bias == -torch.inf).any()))
    )
    step = end - start
    if hides:
        width = max(1, call.sizes.Tk * len(plan.lo) * (1 if plan.dense is None else plan.dense.shape[1]))
        step = max(1, CHUNK // width)
    found = []
    for first, last in pairwise([*range(start, end, max(step, 1)), end]):
        counts = _seen(plan, bias, first, last, columns) if hides else _spans(plan, first, last, columns)[:, None]
        if padded is not None:
            counts = counts * ~padded[:, None, first:last, None]
        found.append(counts)
    if not found:
        return torch.zeros(1, 1, len(rows) - 1, len(columns) - 1, dtype=torch.float64)
    every = torch.cat(found, 2)
    cells = [every[:, :, top - start : bottom - start].sum(2) for top, bottom in pairwise(rows)]
    return torch.stack(cells, 2)


def _spans(plan: Plan, first: int, last: int, columns: list[int]) -> Tensor:
    """Keys of each query's interval in each column, (b, rows, columns)."""
    bounds = torch.tensor(columns, device=plan.lo.device)
    lo, hi = plan.lo[:, first:last, None], plan.hi[:, first:last, None]
    return (torch.minimum(hi, bounds[1:]) - torch.maximum(lo, bounds[:-1])).clamp(min=0).double()


def _seen(plan: Plan, bias: Tensor | None, first: int, last: int, columns: list[int]) -> Tensor:
    """The same by looking at every pair, (b, h, rows, columns)."""
    j = torch.arange(columns[-1], device=plan.lo.device)
    seen = (j >= plan.lo[:, first:last, None]) & (j < plan.hi[:, first:last, None])
    if plan.query_labels is not None and plan.key_labels is not None:
        same = plan.query_labels[:, :, first:last, None] == plan.key_labels[:, :, None]
        seen = seen & same.all(0)
    seen = seen[:, None]
    if plan.dense is not None:
        seen = seen & plan.dense[:, :, first:last]
    if bias is not None:
        seen = seen & ((bias if bias.shape[2] == 1 else bias[:, :, first:last]) != -torch.inf)
    before = torch.nn.functional.pad(seen.double().cumsum(-1), (1, 0))
    return before[..., columns].diff(dim=-1)
