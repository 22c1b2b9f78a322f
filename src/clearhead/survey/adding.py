"""Two shards' numbers as one's: what a survey measured adds up, in any number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ADDED = ("tokens", "map", "map_queries", "position_received", "position_viewers", "positions")
Arrays = dict[str, NDArray[Any]]


def add(a: Arrays, b: Arrays) -> Arrays:
    """Two shards' numbers as one's."""
    if not a or not b:
        return a or b
    found: Arrays = {name: a[name] + b[name] for name in ADDED}
    found["heads"] = a["heads"]
    for prefix in ("", "document_"):
        names = [prefix + name for name in ("count", "mean", "squares")]
        parts = joined([a[name] for name in names], [b[name] for name in names])
        found |= dict(zip(names, parts, strict=True))
    found["null"] = a["null"] + b["null"]
    found["least"], found["most"] = np.minimum(a["least"], b["least"]), np.maximum(a["most"], b["most"])
    places, counts = _united(a["sketch_places"], a["sketch_counts"], b["sketch_places"], b["sketch_counts"])
    found["sketch_places"], found["sketch_counts"] = places, counts
    for name in ("token_received", "token_viewers", "token_count"):
        found["token_ids"], found[name] = _united(a["token_ids"], a[name], b["token_ids"], b[name])
    return found


def joined(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Count, mean and Σ (x − mean)² of two sets of numbers together (Chan, Golub and LeVeque 1979)."""
    n = a[0] + b[0]
    share = b[0] / np.maximum(1, n)
    step = b[1] - a[1]
    return n, a[1] + step * share, a[2] + b[2] + step**2 * a[0] * share


def strongest(a: list[list[Any]], b: list[list[Any]], kept: int) -> list[list[Any]]:
    """The strongest examples of every head; of equal ones the one of the earlier document, and no text twice."""
    if not a or not b:
        return a or b
    found = []
    for x, y in zip(a, b, strict=True):
        distinct: dict[Any, Any] = {}
        for one in sorted([*x, *y], key=lambda e: (-e["weight"], e["document"])):
            distinct.setdefault((*one["query_context"], *one["key_context"]), one)
        found.append(list(distinct.values())[:kept])
    return found


def _united(
    ids: NDArray[Any], x: NDArray[Any], other_ids: NDArray[Any], other: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Numbers by ascending id, those of the same id added; ids are along the last dimension."""
    every = np.union1d(ids, other_ids)
    found = np.zeros((*x.shape[:-1], len(every)), x.dtype)
    found[..., np.searchsorted(every, ids)] += x
    found[..., np.searchsorted(every, other_ids)] += other
    return every, found
