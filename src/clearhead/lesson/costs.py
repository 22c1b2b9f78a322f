"""What each rung costs as T grows: operations counted, the largest tensor and the time measured on this machine."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

from clearhead import ladder
from clearhead.ladder.example import projected
from clearhead.lesson.blocks import Cost, Point

LENGTHS = {6: (16, 32, 64, 128), 8: (128, 256, 512, 1024, 2048)}  # T for rungs that are slow, or quick, in Python
USUAL = (16, 32, 64, 128, 256)
PATIENCE, RUNS = 0.03, 3  # seconds of repeating a measurement, and how often at least; the shortest time counts
NOTES = {
    1: "Twice the tokens, four times the additions. Largest tensor: the numbers in the largest one made on the way.",
    2: "Half the products are with 0, and still one large step is far quicker than many small ones. "
    "But now there is a tensor of T × T.",
    3: "The same product, and T × T powers of e.",
    4: "Every sequence has weights of its own now. The multiply-adds are those of scores, sum and the three layers.",
    5: "All heads in one product; beside it, one head after the other.",
    6: "The largest tensor grows with T and no longer with T × T. A tile at a time is slow in Python; rung 8 walks the "
    "same way in machine code.",
    7: "For all T tokens. One token costs only its own row, and the largest tensor is the cache.",
    8: "Beside it PyTorch's own scaled_dot_product_attention, on the same numbers and as many threads. "
    "clearhead bench measures more.",
}
HEADS, KV_HEADS, D = 4, 2, 16
ADDED, MULTIPLIED = "additions", "multiply-adds"


def operations(number: int, T: int) -> int:
    """Additions (rung 1) or multiply-adds of a rung for one sequence of T tokens, of the sizes that `cost` measures.

    Rungs 1 to 3: C = 2. Rung 4: C = 32, D = 16, its projections too. Rungs 5 to 8: 4 heads of width 16, projections left out.

    >>> operations(1, 16), operations(2, 16), operations(8, 16)
    (272, 512, 17408)
    """
    if number <= 3:
        counted = ladder.additions(T, 2)
        return counted.by_loop if number == 1 else counted.by_matmul
    if number == 4:
        return T * 32 * 3 * D + T * T * 2 * D
    pairs = T * T  # who meets whom
    if number == 6:
        tile = 4
        pairs = sum(
            (min(row + tile, T) - row) * (min(column + tile, T) - column)
            for row in range(0, T, tile)
            for column in range(0, min(row + tile, T), tile)
        )
    elif number >= 7:
        pairs = T * (T + 1) // 2
    return HEADS * pairs * 2 * D


@functools.cache
def cost(number: int, lengths: Sequence[int] | None = None) -> Cost:
    """Operations, the largest tensor and the time of a rung, each beside the rung before it; rung 8 beside PyTorch's own.

    Arguments: number, 1 to 8; lengths, a tuple of T, default up to 128, 256 or 2048. Takes under a second; kept.
    """
    here, before = _RUNGS[number], _RUNGS.get(number - 1)
    beside = f"rung {number - 1}" if before is not None else ""
    if number in (5, 6, 8):  # what is compared must do the same work
        before, beside = _INSTEAD[number]
    points = []
    for T in lengths or LENGTHS.get(number, USUAL):
        given = _inputs(number, T)
        points.append(
            Point(T, operations(number, T), _largest(here, given), _time(here, given), before and _time(before, given))
        )
    return Cost(number, ADDED if number == 1 else MULTIPLIED, tuple(points), beside, NOTES[number])


def _inputs(number: int, T: int) -> tuple[Any, ...]:
    if number <= 3:
        return (projected(B=1, T=T, C=2).x,)
    if number == 4:
        return tuple(projected(B=1, T=T))
    layers = projected(B=1, T=T, heads=HEADS, kv_heads=KV_HEADS)
    if number == 5:
        return tuple(layers)
    return tuple(ladder.multi_head(*layers, heads=HEADS, kv_heads=KV_HEADS)[:3])


def _five(*layers: Any) -> Any:
    return ladder.multi_head(*layers, heads=HEADS, kv_heads=KV_HEADS)


def _heads_one_by_one(x: Tensor, query: Any, key: Any, value: Any) -> None:
    q, k, v = (ladder.split_heads(layer(x), n) for layer, n in ((query, HEADS), (key, KV_HEADS), (value, KV_HEADS)))
    for h in range(HEADS):
        g = h // (HEADS // KV_HEADS)
        T = x.shape[1]
        scores = q[:, h] @ k[:, g].mT * D**-0.5
        torch.softmax(scores.masked_fill(torch.tril(x.new_ones(T, T)) == 0, float("-inf")), dim=-1) @ v[:, g]


def _scores_first(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Rung 5 from its q, k and v on."""
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
    T = q.shape[2]
    scores = q @ k.mT * D**-0.5
    torch.softmax(scores.masked_fill(torch.tril(q.new_ones(T, T)) == 0, float("-inf")), dim=-1) @ v


def _torch(q: Tensor, k: Tensor, v: Tensor) -> None:
    F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _of_x(function: Callable[[Tensor], Any]) -> Callable[..., Any]:
    return lambda x, *_: function(x)


_RUNGS: dict[int, Callable[..., Any]] = {
    1: _of_x(ladder.mean_by_loop),
    2: _of_x(ladder.mean_by_matmul),
    3: _of_x(ladder.mean_by_softmax),
    4: ladder.single_head,
    5: _five,
    6: ladder.online_softmax,
    7: ladder.with_cache,
    8: ladder.library_kernel,
}


_INSTEAD: dict[int, tuple[Callable[..., Any], str]] = {
    5: (_heads_one_by_one, "4 × rung 4"),
    6: (_scores_first, "rung 5"),
    8: (_torch, "PyTorch"),
}


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that was made, in numbers that take memory (views take none)."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made


@torch.no_grad()
def _largest(function: Callable[..., Any], given: tuple[Any, ...]) -> int:
    with _Largest() as largest:
        function(*given)
    return int(largest.numbers)


@torch.no_grad()
def _time(function: Callable[..., Any], given: tuple[Any, ...]) -> float:
    """The shortest of some runs, the first of which does not count."""
    function(*given)
    best, spent, runs = float("inf"), 0.0, 0
    while spent < PATIENCE or runs < RUNS:  # one that the machine was busy in must not be the only one
        began = time.perf_counter()
        function(*given)
        took = time.perf_counter() - began
        best, spent, runs = min(best, took), spent + took, runs + 1
    return best
