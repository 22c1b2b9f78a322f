"""Any rung and the one below it on the same input: what must be equal, computed on the spot."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.errors import ArgumentError, message
from clearhead.ladder.rung1_mean_by_loop import mean_by_loop
from clearhead.ladder.rung2_mean_by_matmul import mean_by_matmul
from clearhead.ladder.rung3_mean_by_softmax import mean_by_softmax
from clearhead.ladder.rung4_single_head import single_head
from clearhead.ladder.rung5_multi_head import multi_head
from clearhead.ladder.rung6_online_softmax import online_softmax
from clearhead.ladder.rung7_with_cache import with_cache
from clearhead.ladder.rung8_library_kernel import library_kernel


class SideBySide(NamedTuple):
    """Two results of one shape, and how far apart they are."""

    below: Tensor
    here: Tensor
    difference: float  # max|here − below|


def side_by_side(
    number: int,
    x: Tensor,
    query: nn.Linear,
    key: nn.Linear,
    value: nn.Linear,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
) -> SideBySide:
    """Run rung `number` and the rung below it so that both must give the same.

    - 2 and 3 need only x.
    - 4 is 3 when query and key see nothing (all scores 0) and value passes x on.
    - 5 is as many copies of 4 as there are heads, each with its slice of the layers.
    - 6, 7 and 8 start from the q, k and v of 5.

    >>> from clearhead.ladder.example import projected
    >>> side_by_side(6, *projected()).difference < 1e-6
    True

    Arguments: number, 2 to 8; the others as for `multi_head`.
    Returns: `below`, `here`, and `difference`, the largest between them.
    Raises: ArgumentError when number is not 2 to 8, or as the rungs do. Time and memory: those of the two rungs.
    """
    if number == 2:
        return _pair(mean_by_loop(x).out, mean_by_matmul(x).out)
    if number == 3:
        return _pair(mean_by_matmul(x).out, mean_by_softmax(x).out)
    if number == 4:
        C = x.shape[-1]
        nothing, itself = _linear(torch.zeros(C, C).to(x)), _linear(torch.eye(C).to(x))
        return _pair(mean_by_softmax(x).out, single_head(x, nothing, nothing, itself).out)
    if not 5 <= number <= 8:
        raise ArgumentError(
            message("number", expected="a rung with one below it, 2 to 8", got=str(number), remedy="Rungs are 1 to 8.")
        )
    five = multi_head(x, query, key, value, heads=heads, kv_heads=kv_heads)
    if number == 5:
        group = heads // five.k.shape[1]
        copies = [
            single_head(x, _slice(query, h, five.q), _slice(key, h // group, five.k), _slice(value, h // group, five.v))
            for h in range(heads)
        ]
        return _pair(torch.cat([copy.out for copy in copies], dim=-1), five.out)
    q, k, v = five.q, five.k, five.v
    if number == 6:
        return _pair(five.heads, online_softmax(q, k, v).out)
    if number == 7:
        return _pair(online_softmax(q, k, v).out, with_cache(q, k, v).out)
    return _pair(with_cache(q, k, v).out, library_kernel(q, k, v).out)


def _pair(below: Tensor, here: Tensor) -> SideBySide:
    below, here = below.detach(), here.detach()
    return SideBySide(below, here, float((here - below).abs().max()))


def _slice(layer: nn.Linear, head: int, split: Tensor) -> nn.Linear:
    """The part of a wide layer that makes one head; split (B, H, T, D) says how wide a head is."""
    D = split.shape[-1]
    return _linear(layer.weight[head * D : (head + 1) * D])


def _linear(weight: Tensor) -> nn.Linear:
    """A layer without bias that holds these numbers."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=weight.device, dtype=weight.dtype)
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    return layer
