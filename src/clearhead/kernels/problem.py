"""One attention call in the form every kernel takes: four-dimensional, validated, its mask a plan of O(T) numbers."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from clearhead.plans import Plan


@dataclass(frozen=True, eq=False)
class Problem:
    """query (B, Hq, Tq, D), key (B, Hk, Tk, D), value (B, Hk, Tk, Dv) of one dtype and device, and the options."""

    query: Tensor
    key: Tensor
    value: Tensor
    plan: Plan
    scale: float
    softcap: float | None = None
    bias: Tensor | None = None  # (B or 1, Hq or 1, Tq or 1, Tk or 1)
    slopes: Tensor | None = None  # (Hq,): ALiBi, −slope · |a_i − j|
    sinks: Tensor | None = None  # (Hq,): one more logit in the denominator
    offset: int | None = None  # position of query 0 for the slopes; None: the last query stands at the last key

    @property
    def first_position(self) -> int:
        """a_0, the position of query 0 that the slopes count from."""
        return self.key.shape[2] - self.query.shape[2] if self.offset is None else self.offset

    @property
    def groups(self) -> int:
        """Query heads that share one key head."""
        return self.query.shape[1] // max(1, self.key.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype to compute in: float32, or float64 for float64 inputs."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    def tightened(self) -> Problem:
        """The same call with its plan tightened."""
        plan = tighten(self.plan)
        return self if plan is self.plan else dataclasses.replace(self, plan=plan)

    def in_compute_dtype(self) -> Problem:
        """The same with every number in the dtype to compute in."""

        def cast(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(self.dtype)

        return dataclasses.replace(
            self,
            query=self.query.to(self.dtype),
            key=self.key.to(self.dtype),
            value=self.value.to(self.dtype),
            bias=cast(self.bias),
            slopes=cast(self.slopes),
            sinks=cast(self.sinks),
        )


class Gradients(NamedTuple):
    """In the compute dtype; None where the call had no such input."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    sinks: Tensor | None


def tighten(plan: Plan) -> Plan:
    """Narrow the intervals to what labels and a dense mask allow, and drop either when the intervals say it all.

    Reads data, so it runs inside the kernels and not while a call is traced. Contiguous documents become plain intervals;
    a dense mask that is causal or a window in disguise does too. O(B·T log T) for labels, one pass for a dense mask.
    """
    lo, hi, labels, dense = plan.lo, plan.hi, plan.query_labels, plan.dense
    if labels is None and dense is None and lo.shape == hi.shape:
        return plan
    key_labels = plan.key_labels
    if labels is not None and key_labels is not None and key_labels.shape[-1] and labels.shape[-1]:
        exact = True
        for queries, keys in zip(labels, key_labels, strict=True):
            first, end, contiguous = _label_hull(queries, keys)
            lo, hi = torch.maximum(lo, first), torch.minimum(hi, end)
            exact = exact and contiguous
        if exact:
            labels = key_labels = None
    if dense is not None and dense.numel():
        first, end, exact = dense_hull(dense)
        lo, hi = torch.maximum(lo, first), torch.minimum(hi, end)
        if exact:  # labels may hide some of these keys, on top
            dense = None
    lo, hi = torch.broadcast_tensors(lo, hi.clamp(min=0))
    return Plan(lo, hi, labels, key_labels, dense)


def _label_hull(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, bool]:
    """For every query the first and one past the last key with its label, and whether all keys between have it too."""
    (batch,) = torch.broadcast_shapes(queries.shape[:1], keys.shape[:1])
    queries, keys = queries.expand(batch, -1).contiguous(), keys.expand(batch, -1)
    ordered, order = torch.sort(keys, dim=-1, stable=True)
    left = torch.searchsorted(ordered, queries)
    right = torch.searchsorted(ordered, queries, right=True)
    found = right > left
    tk = keys.shape[-1]
    first = torch.where(found, order.gather(1, left.clamp(max=tk - 1)), tk)
    end = torch.where(found, order.gather(1, (right - 1).clamp(min=0)) + 1, 0)
    contiguous = bool((~found | (end - first == right - left)).all())
    return first, end, contiguous


def dense_hull(dense: Tensor) -> tuple[Tensor, Tensor, bool]:
    """For every query the first and one past the last key that some head sees, and whether every head sees all between.

    Each byte of the mask is read at most three times, and nothing of its size is made (on CPUs, by numpy's searches).
    """
    some_head = dense[:, 0] if dense.shape[1] == 1 else dense.any(1)  # (b, tq, tk)
    tk = dense.shape[-1]
    if dense.device.type == "cpu":
        pairs = some_head.numpy()
        first, last = torch.from_numpy(pairs.argmax(-1)), torch.from_numpy(tk - 1 - pairs[..., ::-1].argmax(-1))
        counts = torch.from_numpy(np.count_nonzero(dense.numpy(), axis=-1))
    else:
        ones = some_head.to(torch.uint8)
        first, last = ones.argmax(-1), tk - 1 - ones.flip(-1).argmax(-1)
        counts = dense.sum(-1)
    seen = some_head.gather(-1, first[..., None])[..., 0]
    first, end = torch.where(seen, first, tk), torch.where(seen, last + 1, 0)
    return first, end, bool((counts == (end - first).clamp(min=0)[:, None]).all())


def visible_by_intervals(plan: Plan) -> Tensor:
    """How many keys each query may see, int64 (b, 1, Tq), where the intervals say it all."""
    return plan.once("visible", lambda: (plan.hi - plan.lo).clamp(min=0)[:, None].to(torch.int64)).clone()


def viewers_by_intervals(plan: Plan, padded: Tensor | None, Tk: int) -> Tensor:
    """How many queries, padding left out, may see each key, int64 (b, 1, Tk), where the intervals say it all."""
    if padded is None:
        return plan.once(("viewers", Tk), lambda: _viewers(plan, None, Tk)).clone()
    return _viewers(plan, padded, Tk)


def _viewers(plan: Plan, padded: Tensor | None, Tk: int) -> Tensor:
    lo, hi = torch.broadcast_tensors(plan.lo.long(), plan.hi.long().clamp(min=0))
    real = torch.ones_like(lo) if padded is None else (~padded).long().expand(max(len(padded), len(lo)), -1)
    lo, hi = lo.expand_as(real), torch.maximum(lo, hi).expand_as(real)
    steps = real.new_zeros(len(real), Tk + 1)
    steps.scatter_add_(1, lo.clamp(0, Tk), real).scatter_add_(1, hi.clamp(0, Tk), -real)
    return steps.cumsum(1)[:, None, :Tk]


def exact(problem: Problem) -> AbstractContextManager[object]:
    """A context in which autocast is off: inside a kernel every number keeps the dtype it was given."""
    device = problem.query.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
