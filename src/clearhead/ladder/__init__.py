"""The ladder: from a loop that averages the past to the kernel of this library, each rung equal to the one before.

One file a rung, to be read in order; the shape of every tensor stands at the end of its line. A rung returns all it made
on the way, its result last, as `out`.

    B  sequences        Hq  query heads        D   width of a query and of a key
    T  tokens           Hk  key heads          Dv  width of a value
    C  width of x
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from clearhead.ladder.prefix_mean import additions, prefix_mean
from clearhead.ladder.rung1_mean_by_loop import mean_by_loop
from clearhead.ladder.rung2_mean_by_matmul import mean_by_matmul, three_by_three
from clearhead.ladder.rung3_mean_by_softmax import mean_by_softmax
from clearhead.ladder.rung4_single_head import single_head
from clearhead.ladder.rung5_multi_head import merge_heads, multi_head, split_heads
from clearhead.ladder.rung6_online_softmax import online_softmax
from clearhead.ladder.rung7_with_cache import with_cache
from clearhead.ladder.rung8_library_kernel import library_kernel
from clearhead.ladder.side_by_side import SideBySide, side_by_side


class Rung(NamedTuple):
    """One step of the ladder."""

    number: int
    name: str
    question: str
    function: Callable[..., Any]  # returns a NamedTuple whose last field is `out`


RUNGS = (
    Rung(1, "mean_by_loop", "How can a token hear from the tokens before it?", mean_by_loop),
    Rung(2, "mean_by_matmul", "Can one matrix product do the work of both loops?", mean_by_matmul),
    Rung(3, "mean_by_softmax", "Where could unequal weights come from?", mean_by_softmax),
    Rung(4, "single_head", "What if every token decides for itself whom to listen to?", single_head),
    Rung(5, "multi_head", "What if a token has more than one question?", multi_head),
    Rung(6, "online_softmax", "Must the T×T matrix ever exist?", online_softmax),
    Rung(7, "with_cache", "When text is written one token at a time, what need not be done again?", with_cache),
    Rung(8, "library_kernel", "And when it has to be fast?", library_kernel),
)

__all__ = [
    "RUNGS",
    "Rung",
    "SideBySide",
    "additions",
    "library_kernel",
    "mean_by_loop",
    "mean_by_matmul",
    "mean_by_softmax",
    "merge_heads",
    "multi_head",
    "online_softmax",
    "prefix_mean",
    "side_by_side",
    "single_head",
    "split_heads",
    "three_by_three",
    "with_cache",
]
