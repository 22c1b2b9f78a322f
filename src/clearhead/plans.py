"""`Plan`: who may attend to whom in O(T) numbers, which is all that kernels know of a mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Known = TypeVar("Known")


@dataclass(frozen=True)
class Plan:
    """A mask in O(T) numbers. Query i of sample b may see key j when all of these hold.

    - `lo[b, i] <= j < hi[b, i]`
    - `query_labels[n, b, i] == key_labels[n, b, j]` for every n
    - `dense[b, h, i, j]`

    The batch dimension of any of them may be 1 and then holds for all samples.
    """

    lo: Int[Tensor, "#b tq"]
    hi: Int[Tensor, "#b tq"]
    query_labels: Int[Tensor, " n #b tq"] | None = None
    key_labels: Int[Tensor, " n #b tk"] | None = None
    dense: Bool[Tensor, "#b h tq tk"] | None = None
    known: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, name: object, compute: Callable[[], Known]) -> Known:
        """What follows from this plan alone, computed when first asked for: plans of numeric masks serve many calls."""
        if name not in self.known:
            self.known[name] = compute()
        found: Known = self.known[name]
        return found

    def to(self, device: torch.device) -> Plan:
        """The same on another device."""
        parts = (self.lo, self.hi, self.query_labels, self.key_labels, self.dense)
        return Plan(*(None if x is None else x.to(device) for x in parts))  # type: ignore[arg-type]

    def __and__(self, other: Plan) -> Plan:
        """Both must allow a pair."""
        return Plan(
            torch.maximum(self.lo, other.lo),
            torch.minimum(self.hi, other.hi),
            _stack(self.query_labels, other.query_labels),
            _stack(self.key_labels, other.key_labels),
            other.dense if self.dense is None else self.dense if other.dense is None else self.dense & other.dense,
        )


def _stack(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    (batch,) = torch.broadcast_shapes(a.shape[1:2], b.shape[1:2])
    return torch.cat([a.expand(-1, batch, -1), b.expand(-1, batch, -1)])
