"""What a shard of documents adds up to: numbers per head that other shards' numbers can be added to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.errors import InputError
from clearhead.observables import Observables, Observation
from clearhead.roles.scores import NEAR
from clearhead.survey.adding import joined
from clearhead.survey.packing import Pack
from clearhead.survey.sketch import BUCKETS, Scale
from clearhead.trace import Trace

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

WEIGHT = Scale(-20, 20)  # of what lies between 0 and 1, entropies, squares, weights received
EVERYWHERE, FROM_SECOND, FROM_TWO_KEYS, WITH_A_MATCH, WITH_FAR_KEYS = range(5)


@dataclass(frozen=True)
class Quantity:
    """One observable of a survey: its scale, and the queries it is meant on."""

    scale: Scale
    queries: int
    role: str | None = None  # of which it is the score


QUANTITIES = {
    "entropy": Quantity(WEIGHT, EVERYWHERE),
    "entropy_share": Quantity(WEIGHT, FROM_TWO_KEYS, "broad"),
    "max_weight": Quantity(WEIGHT, EVERYWHERE),
    "max_logit": Quantity(Scale(-10, 10, signed=True), EVERYWHERE),
    "sum_squares": Quantity(WEIGHT, EVERYWHERE),
    "distance": Quantity(Scale(-4, 16, signed=True), EVERYWHERE),
    "self_weight": Quantity(WEIGHT, FROM_SECOND, "self"),
    "previous_weight": Quantity(WEIGHT, FROM_SECOND, "previous-token"),
    "first_weight": Quantity(WEIGHT, FROM_SECOND, "first-token"),
    "same_token": Quantity(WEIGHT, WITH_A_MATCH, "duplicate-token"),
    "after_same_token": Quantity(WEIGHT, WITH_A_MATCH, "induction"),
    "local_weight": Quantity(WEIGHT, WITH_FAR_KEYS, "local"),  # within eight tokens, where there are more
    "received": Quantity(WEIGHT, EVERYWHERE),
    "sink": Quantity(WEIGHT, EVERYWHERE),  # where the model has learned sinks
}
WITH_NULL = frozenset(QUANTITIES) - {
    "max_logit",
    "received",
    "sink",
}  # uniform attention has a value that says something
LEAST_KEYS = 8  # a strong weight among fewer keys is no example of anything


def wanted(names: Sequence[str], pack: Pack) -> Observables:
    """What to observe of one pack."""
    ids, starts = pack.ids, pack.starts
    firsts = None
    if len(pack.pieces) > 1:  # the first key of every document is a group: what it receives is `first_weight`
        firsts = torch.full((len(ids),), -1)
        firsts[torch.from_numpy(starts[:-1])] = 0
    return Observables(
        max_logit="max_logit" in names or "max_weight" in names,
        entropy="entropy" in names or "entropy_share" in names,
        sum_squares="sum_squares" in names,
        top_k=2,
        positions=True,
        distance="distance" in names,
        distance_histogram=True,
        map=0,
        # Tokens of different documents are different tokens.
        token_ids=torch.from_numpy(ids + pack.piece * (1 + int(ids.max()))),
        key_groups=firsts,
    )


class Measured:
    """Everything measured on the documents of one shard."""

    def __init__(self, names: Sequence[str], documents: int, length: int) -> None:
        self.names, self.documents, self.length = tuple(names), documents, length
        self.heads: list[tuple[int, int]] = []
        self.tokens = 0
        self.columns: dict[int, int] = {}  # of token ids

    def _begin(self, trace: Trace) -> None:
        self.heads = [(head.layer, head.head) for call in _own(trace) for head in call.addresses()]
        Q, N, L, D = len(self.names), len(self.heads), self.length, self.documents
        bins = 1 + max(0, L - 1).bit_length()
        self.count = np.zeros((Q, N), np.int64)
        self.mean, self.squares = np.zeros((Q, N)), np.zeros((Q, N))
        self.least, self.most = np.full((Q, N), np.inf, np.float32), np.full((Q, N), -np.inf, np.float32)
        self.sketch = np.zeros((Q, N * BUCKETS), np.int64)
        self.of_document, self.in_document = np.zeros((Q, D, N)), np.zeros((Q, D), np.int64)
        self.null = np.zeros((Q, D, N))
        self.map, self.map_queries = np.zeros((N, bins, bins)), np.zeros(bins, np.int64)
        self.at_position, self.position_viewers = np.zeros((N, L)), np.zeros((N, L), np.int64)
        self.positions = np.zeros(L, np.int64)
        self.of_token, self.token_viewers = np.zeros((64, N)), np.zeros((64, N), np.int64)
        self.token_count = np.zeros(64, np.int64)
        self.best = np.full((D, N), -1.0, np.float32)
        self.best_query, self.best_key = np.full((D, N), -1, np.int64), np.full((D, N), -1, np.int64)
        self.best_piece = np.full((D, N), -1, np.int64)

    def add(self, trace: Trace, pack: Pack, numbers: Sequence[int]) -> None:
        """Add what one pack showed; `numbers` name its pieces."""
        seen = [call.observation for call in _own(trace)]
        if not seen:
            raise InputError("survey: the model made no attention call that could be seen; see clearhead.watch")
        if not self.heads:
            self._begin(trace)
        if self.heads != [(head.layer, head.head) for call in _own(trace) for head in call.addresses()]:
            raise InputError("survey: the model does not run the same layers on every text, so they cannot be added up")
        self.tokens += len(pack.ids)
        sights, of_head = _sights(seen, len(pack.ids))
        queries = _queries(pack, sights[0])
        for o, name in enumerate(self.names):
            numbers_of = np.concatenate([_quantity(x, name) for x in seen])
            self._add_quantity(o, numbers_of, queries[QUANTITIES[name].queries], pack)
            self._add_null(o, name, queries, sights, of_head, pack)
        self._add_received(seen, pack)
        self._add_map(seen, pack)
        self._add_examples(seen, pack, sights[0], numbers)

    def _add_quantity(self, o: int, x: NDArray[np.float32], chosen: NDArray[np.bool_], pack: Pack) -> None:
        """x (N, T), of which the chosen queries count."""
        n = int(chosen.sum())
        if not n:
            return
        some = np.ascontiguousarray(x if n == len(chosen) else x[:, chosen])
        exact = some.astype(np.float64)
        mean = exact.mean(1)
        squares = ((exact - mean[:, None]) ** 2).sum(1)
        self.count[o], self.mean[o], self.squares[o] = joined(
            (self.count[o], self.mean[o], self.squares[o]), (np.full_like(self.count[o], n), mean, squares)
        )
        self.least[o], self.most[o] = np.minimum(self.least[o], some.min(1)), np.maximum(self.most[o], some.max(1))
        places = QUANTITIES[self.names[o]].scale.places(some) + (np.arange(len(x)) * BUCKETS)[:, None]
        self.sketch[o] += np.bincount(places.ravel(), minlength=self.sketch.shape[1])
        for (begin, end), piece in zip(_spans(pack), pack.pieces, strict=True):
            inside = chosen[begin:end]
            self.of_document[o, piece.document] += np.where(inside, x[:, begin:end], 0).sum(1, dtype=np.float64)
            self.in_document[o, piece.document] += int(inside.sum())

    def _add_null(
        self, o: int, name: str, queries: list[NDArray[np.bool_]], sights: Floats, of_head: Integers, pack: Pack
    ) -> None:
        """What uniform attention would score; `sights` (some, T) are numbers of keys in sight, `of_head` whose they are."""
        if name not in WITH_NULL:
            return
        inside = queries[QUANTITIES[name].queries]
        expected = _uniform(name, sights, pack)
        for (begin, end), piece in zip(_spans(pack), pack.pieces, strict=True):
            sums = np.where(inside[begin:end], expected[:, begin:end], 0).sum(1)
            self.null[o, piece.document] += sums[of_head]

    def _add_received(self, seen: Sequence[Observation], pack: Pack) -> None:
        received = np.concatenate([_numbers(x.received)[0] for x in seen]).astype(np.float64)
        viewers = np.concatenate([np.broadcast_to(_numbers(x.viewers)[0], x.received[0].shape) for x in seen])
        for begin, end in _spans(pack):
            self.at_position[:, : end - begin] += received[:, begin:end]
            self.position_viewers[:, : end - begin] += viewers[:, begin:end]
            self.positions[: end - begin] += 1
        ids = pack.ids
        order = np.argsort(ids, kind="stable")
        found, first = np.unique(ids[order], return_index=True)
        places = np.array([self.columns.setdefault(i, len(self.columns)) for i in found.tolist()])
        while len(self.columns) > len(self.of_token):
            self.of_token = np.concatenate([self.of_token, np.zeros_like(self.of_token)])
            self.token_viewers = np.concatenate([self.token_viewers, np.zeros_like(self.token_viewers)])
            self.token_count = np.concatenate([self.token_count, np.zeros_like(self.token_count)])
        self.of_token[places] += np.add.reduceat(received[:, order], first, axis=1).T
        self.token_viewers[places] += np.add.reduceat(viewers[:, order], first, axis=1).T
        self.token_count[places] += np.diff([*first, len(ids)])

    def _add_map(self, seen: Sequence[Observation], pack: Pack) -> None:
        """Weights by the query's position and the distance, both in bins of 0, 1, 2-3, 4-7, …"""
        position = pack.position
        bins = np.frexp(position.astype(np.float64))[1]  # bit lengths
        order = np.argsort(bins, kind="stable")
        found, first = np.unique(bins[order], return_index=True)
        histogram = np.concatenate([_numbers(x.distance_histogram)[0] for x in seen])  # (N, T, bins)
        width = min(histogram.shape[2], self.map.shape[2])
        sums = np.add.reduceat(histogram[:, order, :width].astype(np.float64), first, axis=1)
        self.map[:, found, :width] += sums
        self.map_queries[found] += np.diff([*first, len(bins)])

    def _add_examples(self, seen: Sequence[Observation], pack: Pack, visible: Floats, numbers: Sequence[int]) -> None:
        """Each document's strongest look of every head, at anything but the document's first token."""
        keys = np.concatenate([_numbers(x.top_keys)[0] for x in seen])  # (N, T, 2)
        weights = np.concatenate([_numbers(x.top_weights)[0] for x in seen])
        start = np.repeat(pack.starts[:-1], np.diff(pack.starts))
        second = keys[..., 0] == start
        key = np.where(second, keys[..., 1], keys[..., 0])
        weight = np.where(second, weights[..., 1], weights[..., 0])
        weight = np.where((key >= 0) & (visible >= LEAST_KEYS), weight, np.float32(-1))
        heads = np.arange(len(weight))
        for (begin, end), piece, number in zip(_spans(pack), pack.pieces, numbers, strict=True):
            at = weight[:, begin:end].argmax(1)
            found = weight[heads, begin + at]
            better = found > self.best[piece.document]
            self.best[piece.document] = np.where(better, found, self.best[piece.document])
            for held, new in (
                (self.best_query, at),
                (self.best_key, key[heads, begin + at] - begin),
                (self.best_piece, np.full(len(heads), number)),
            ):
                held[piece.document] = np.where(better, new, held[piece.document])

    def strongest(self) -> list[list[int]]:
        """For every head its documents by their strongest looks, the strongest first; of equal ones the earlier document."""
        order = np.argsort(-self.best, axis=0, kind="stable")
        return [[int(d) for d in order[:, n] if self.best[d, n] >= 0] for n in range(len(self.heads))]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything but examples, as `adding` adds it up. Empty if nothing was read."""
        if not self.heads:
            return {}
        per_document = np.where(
            self.in_document[..., None] > 0, self.of_document / np.maximum(1, self.in_document)[..., None], 0
        )
        known = self.in_document > 0
        n = np.broadcast_to(known.sum(1)[:, None], self.count.shape)
        mean = per_document.sum(1) / np.maximum(1, n)
        spread = np.where(known[..., None], (per_document - mean[:, None]) ** 2, 0).sum(1)
        nulls = np.where(known[..., None], self.null / np.maximum(1, self.in_document)[..., None], 0).sum(1)
        places = np.flatnonzero(self.sketch)
        ids = np.array(sorted(self.columns), np.int64)
        columns = np.array([self.columns[i] for i in ids.tolist()], np.int64)
        return {
            "heads": np.array(self.heads, np.int64),
            "tokens": np.array([self.tokens]),
            "count": self.count, "mean": self.mean, "squares": self.squares, "least": self.least, "most": self.most,
            "document_count": n.astype(np.int64), "document_mean": mean, "document_squares": spread, "null": nulls,
            "sketch_places": places, "sketch_counts": self.sketch.ravel()[places],
            "map": self.map, "map_queries": self.map_queries,
            "position_received": self.at_position, "position_viewers": self.position_viewers, "positions": self.positions,
            "token_ids": ids, "token_received": self.of_token[columns].T.copy(),
            "token_viewers": self.token_viewers[columns].T.copy(), "token_count": self.token_count[columns],
        }  # fmt: skip


def _uniform(name: str, sights: Floats, pack: Pack) -> Floats:
    """What uniform attention has of a quantity, of every query, (kinds, T); NaN where numbers of keys do not say it."""
    keys = np.maximum(1, sights)
    if name == "entropy":
        return np.log(keys)
    if name == "distance":
        return np.stack([_middle(row, pack) for row in keys])
    if name == "entropy_share":
        return np.ones_like(sights)
    if name == "local_weight":
        return _near(pack, sights[0]) / keys
    return (matches(pack) if QUANTITIES[name].queries == WITH_A_MATCH else 1.0) / keys


def _middle(keys: Floats, pack: Pack) -> Floats:
    """How far back the middle of the keys lies that a query sees, (T,)."""
    position, length = pack.position, np.repeat(np.diff(pack.starts), np.diff(pack.starts))
    if (keys <= position + 1).all():  # nobody looks ahead: the nearest keys, itself the last
        return (keys - 1) / 2
    return position - (length - 1) / 2 if (keys == length).all() else np.full(len(keys), np.nan)


def matches(pack: Pack) -> Floats:
    """How many earlier tokens of its own piece equal each token, (T,)."""
    ids = pack.ids
    each = ids + pack.piece * (1 + int(ids.max()))
    order = np.argsort(each, kind="stable")
    _, first, counts = np.unique(each[order], return_index=True, return_counts=True)
    found = np.empty(len(ids))
    found[order] = np.arange(len(ids)) - np.repeat(first, counts)
    return found


def _sights(seen: Sequence[Observation], T: int) -> tuple[Floats, Integers]:
    """How many keys queries see, (kinds, T): layers may have windows of their own; and every head's kind, (N,)."""
    kinds: list[Floats] = []
    of_head = []
    for x in seen:
        mine = np.broadcast_to(_numbers(x.visible)[0, 0], T).astype(np.float64)
        known = next((n for n, other in enumerate(kinds) if np.array_equal(other, mine)), len(kinds))
        kinds += [mine] * (known == len(kinds))
        of_head += [known] * x.lse.shape[1]
    return np.stack(kinds), np.array(of_head)


def _queries(pack: Pack, visible: Floats) -> list[NDArray[np.bool_]]:
    """The queries each kind of quantity is meant on."""
    sees = visible > 0
    return [sees, sees & (pack.position >= 1), visible >= 2, sees & (matches(pack) > 0), visible > _near(pack, visible)]


def _near(pack: Pack, visible: Floats) -> Floats:
    """How many keys within eight tokens each token has in its own piece, (T,); those after it where it sees any of them."""
    position = pack.position
    after = np.repeat(np.diff(pack.starts), np.diff(pack.starts)) - 1 - position
    ahead = np.where(visible > position + 1, np.minimum(after, NEAR - 1), 0)
    return (np.minimum(position + 1, NEAR) + ahead).astype(np.float64)


def _spans(pack: Pack) -> list[tuple[int, int]]:
    starts = pack.starts.tolist()
    return list(pairwise(starts))


def _own(trace: Trace) -> list[Any]:
    """Self-attention calls."""
    return [call for call in trace.calls if not call.crosses]


def _numbers(x: torch.Tensor) -> NDArray[Any]:
    found: NDArray[Any] = x.detach().cpu().numpy()
    return found


def _quantity(observation: Observation, name: str) -> NDArray[np.float32]:
    """One quantity, float32 (Hq, T)."""
    if name == "first_weight" and "group_weight" in observation.values:
        return _numbers(observation.group_weight)[0, :, :, 0].astype(np.float32)
    if name == "local_weight":  # bins of 0, 1, 2-3 and 4-7 tokens
        near: NDArray[np.float32] = _numbers(observation.distance_histogram)[0, :, :, :4].sum(-1).astype(np.float32)
        return near
    x: torch.Tensor = getattr(observation, name)
    found: NDArray[np.float32] = _numbers(x)[0].astype(np.float32)
    return found
