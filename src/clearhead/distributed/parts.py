"""Parts of one checked call: some of its heads, or some of its queries, with everything they were given."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.arguments import CheckedCall
from clearhead.masks import Mask, Sizes
from clearhead.plans import Plan


@dataclass(frozen=True, eq=False)
class Part(Mask):
    """What a mask of a whole call says of some of its heads and queries."""

    mask: Mask
    whole: Sizes
    planned: Plan
    heads: slice
    queries: slice

    def rule(self, i: Tensor, j: Tensor, sizes: Sizes) -> Tensor:  # noqa: D102, ARG002
        every = torch.arange(self.whole.Tq, device=i.device).view(1, 1, -1, 1)
        found = self.mask.rule(every, j, self.whole).expand(-1, -1, self.whole.Tq, self.whole.Tk)
        return _heads(found, self.heads)[:, :, self.queries]

    def plan(self, sizes: Sizes) -> Plan:  # noqa: D102, ARG002
        p, rows = self.planned, self.queries
        return Plan(
            p.lo[:, rows],
            p.hi[:, rows],
            None if p.query_labels is None else p.query_labels[:, :, rows],
            p.key_labels,
            None if p.dense is None else _heads(p.dense, self.heads)[:, :, rows],
        )

    def padded(self, sizes: Sizes) -> Tensor | None:  # noqa: D102, ARG002
        found = self.mask.padded(self.whole)
        return None if found is None else found[:, self.queries]


def part(call: CheckedCall, query: Tensor, key: Tensor, value: Tensor, *, heads: slice, queries: slice) -> CheckedCall:
    """The call of these tensors, which are `heads` and `queries` of the whole `call`'s, with all of its keys."""
    p, sizes = call.problem, call.sizes
    Tq = query.shape[2]
    mask = Part(call.mask, sizes, p.plan, heads, queries)
    here = Sizes(sizes.B, Tq, sizes.Tk, sizes.device)
    bias = p.bias
    if bias is not None:
        bias = _heads(bias, heads)
        bias = bias if bias.shape[2] == 1 else bias[:, :, queries]
    problem = dataclasses.replace(
        p,
        query=query,
        key=key,
        value=value,
        plan=mask.plan(here),
        bias=bias,
        slopes=None if p.slopes is None else p.slopes[heads],
        sinks=None if p.sinks is None else p.sinks[heads],
        offset=p.first_position + (queries.start or 0),
    )
    return CheckedCall(problem, mask, here, (sizes.B,), headless=False)


def _heads(x: Tensor, heads: slice) -> Tensor:
    """Some heads of something that may be the same for all."""
    return x if x.shape[1] == 1 else x[:, heads]
