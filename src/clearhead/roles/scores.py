"""Every role's score for every head of a trace, and the label that a head earns by them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.addresses import ByHead
from clearhead.observables import Observation
from clearhead.trace import Trace, check_sample

THRESHOLD = 0.3
NEAR = 8  # tokens: itself and the seven beside it, the first four bins of the distance histogram
BROAD = 0.9  # of log n_i; most heads spread over a part of what they see, few over nearly all of it


class RoleScore(NamedTuple):
    """A role's score for one head, what uniform attention scores on the same tokens, and whether it earns the label."""

    role: str
    score: float
    null: float
    threshold: float
    labelled: bool


class Means(NamedTuple):
    """Mean score of every head (Hq,), and the mean null, over the queries a role is defined on."""

    score: Tensor
    null: float


def mean_over(scores: Tensor, null: Tensor, rows: Tensor) -> Means:
    """Means over the chosen queries; NaN when there are none."""
    count = int(rows.sum())
    if count == 0:
        return Means(torch.full((scores.shape[0],), math.nan), math.nan)
    return Means(scores[:, rows].double().mean(-1), float(null.expand(rows.shape)[rows].double().mean()))


class Text(NamedTuple):
    """What the roles of one sample need to know besides the observation."""

    positions: Tensor  # (Tq,) absolute position of each query
    seen: Tensor  # (Tq,) how many keys each query may see
    real: Tensor  # (Tq,) bool: not padding, and sees something
    ids: Tensor | None  # (Tk,) token ids


def _at(observation: Observation, name: str, sample: int) -> Tensor:
    values: Tensor = getattr(observation, name)
    return values[sample]


def _previous(observation: Observation, text: Text, sample: int) -> Means:
    return mean_over(_at(observation, "previous_weight", sample), 1 / text.seen, text.real & (text.positions >= 1))


def _first(observation: Observation, text: Text, sample: int) -> Means:
    # Query 0 sees key 0 alone: its weight of 1 says nothing about the head. Beyond a window key 0 gets nothing by chance.
    null = torch.where(text.seen > text.positions, 1 / text.seen, 0.0)
    return mean_over(_at(observation, "first_weight", sample), null, text.real & (text.positions >= 1))


def _self(observation: Observation, text: Text, sample: int) -> Means:
    return mean_over(_at(observation, "self_weight", sample), 1 / text.seen, text.real & (text.positions >= 1))


def _matches(text: Text, further: int) -> Tensor:
    """How many keys a query may see stand `further` behind an earlier token that equals its own."""
    if text.ids is None:
        raise RuntimeError("token roles need ids")
    ids, places = text.ids.tolist(), {}  # type: ignore[var-annotated]
    for at, token in enumerate(ids):
        places.setdefault(token, []).append(at)
    found = []
    for at, seen in zip(text.positions.tolist(), text.seen.tolist(), strict=True):
        equal = places[ids[at]]
        begin = at + 1 - int(seen) - further  # under a window, what lies before it is out of sight
        found.append(bisect_left(equal, at) - bisect_left(equal, begin))
    return torch.tensor(found, device=text.seen.device)


def _token_role(name: str, further: int) -> Callable[[Observation, Text, int], Means]:
    def score(observation: Observation, text: Text, sample: int) -> Means:
        matches = _matches(text, further)
        return mean_over(_at(observation, name, sample), matches / text.seen, text.real & (matches > 0))

    return score


def _broad(observation: Observation, text: Text, sample: int) -> Means:
    return mean_over(
        _at(observation, "entropy_share", sample), torch.ones_like(text.seen), text.real & (text.seen >= 2)
    )


def _local(observation: Observation, text: Text, sample: int) -> Means:
    # Where a query sees no more than these, all its weight is near.
    positions, last = text.positions, text.positions[-1]
    ahead = torch.where(text.seen > positions + 1, (last - positions).clamp(max=NEAR - 1), 0)
    near = (positions + 1).clamp(max=NEAR) + ahead
    weight = _at(observation, "distance_histogram", sample)[..., :4].sum(-1)
    return mean_over(weight, near / text.seen, text.real & (text.seen > near))


class Measure(NamedTuple):
    """How a role is measured, and what that needs."""

    of: Callable[[Observation, Text, int], Means]
    needs_ids: bool = False
    needs: str | None = None  # a quantity that is not measured unless asked for


MEASURES = {
    "previous-token": Measure(_previous),
    "induction": Measure(_token_role("after_same_token", 1), needs_ids=True),
    "duplicate-token": Measure(_token_role("same_token", 0), needs_ids=True),
    "first-token": Measure(_first),
    "self": Measure(_self),
    "broad": Measure(_broad),
    "local": Measure(_local, needs="distance_histogram"),
}
ROLES = tuple(MEASURES)
"""Names of all roles, in the order scores are given."""


def roles(trace: Trace, *, batch: int = 0) -> ByHead[list[RoleScore]]:
    """Every role's score for every head of a trace, on the text it ran on.

    - previous-token: mean weight on the position before; first-token (a sink): on key 0; self: on the query's own position.
    - duplicate-token: mean weight on earlier equal tokens, over the queries that see one; induction: on the tokens that
      followed them, over the queries that see one of those.
    - broad: mean entropy / log n_i; its null is 1, and it is labelled from 0.9 on.
    - local: weight within eight tokens, over the queries that see more; needs `Observables(distance_histogram=True)`.

    Induction and duplicate-token need to know the tokens (a model that is given token ids is watched with them), and are left
    out otherwise; cross-attention, whose keys are another stream's, can only be broad. A role that no query can show (no
    repeated token) scores NaN and is never labelled. Of a trace of several texts the first is taken: see `Trace.runs`.
    """
    check_sample(trace, batch)
    found: ByHead[list[RoleScore]] = ByHead()
    for call in trace.calls:
        if call.run != trace.calls[0].run:
            continue
        observation = call.observation
        ids = call.key_ids
        known = None if ids is None else ids[batch].tolist()
        text = text_of(observation, known if known is not None or batch else trace.token_ids, batch)
        scores: list[list[RoleScore]] = [[] for _ in range(call.heads)]
        for name, role in MEASURES.items():
            if role.needs_ids and (text.ids is None or "same_token" not in observation.values):
                continue
            if (call.crosses and name != "broad") or (role.needs is not None and role.needs not in observation.values):
                continue
            means = role.of(observation, text, batch)
            for h, score in enumerate(means.score.tolist()):
                scores[h].append(judged(name, score, means.null))
        found.update(zip(call.addresses(), scores, strict=True))
    return found


def text_of(observation: Observation, token_ids: list[int] | None, sample: int) -> Text:
    """What roles need to know of one sample of a call."""
    Tq = observation.lse.shape[2]
    device = observation.lse.device
    seen = visible_keys(observation, sample)
    real = seen > 0
    if observation.padded is not None:
        real = real & ~observation.padded[sample if observation.padded.shape[0] > 1 else 0]
    ids = None if token_ids is None else torch.tensor(token_ids)
    return Text(torch.arange(Tq, device=device) + observation.offset, seen.clamp(min=1), real, ids)


def judged(role: str, score: float, null: float) -> RoleScore:
    """A score with its threshold, and whether it reaches it."""
    if role == "broad":
        return RoleScore(role, score, null, BROAD, score >= BROAD)
    threshold = max(THRESHOLD, null + (1 - null) / 2) if null == null else THRESHOLD
    return RoleScore(role, score, null, threshold, score >= threshold)


def label(scores: Iterable[RoleScore]) -> RoleScore | None:
    """The labelled role that says most: the largest score above its null, `local` and `broad` only when nothing else is.

    A head that looks at the previous token is local as well, and its name must not depend on whether that was measured. None
    when no role is labelled.
    """
    earned = (s for s in scores if s.labelled)
    return max(earned, key=lambda s: says_most(s.role, s.score - s.null), default=None)


def says_most(role: str, above: float) -> tuple[int, float]:
    """In which order labelled roles name a head, the last first; `above` is how far the score is above its null."""
    return {"broad": 0, "local": 1}.get(role, 2), above


def visible_keys(observation: Observation, sample: int = 0) -> Tensor:
    """n_i, how many keys each query may see, float64 (Tq,); the most where heads differ, as they do under a mask a head."""
    seen = observation.visible.expand(-1, -1, observation.lse.shape[2])
    return seen[sample if seen.shape[0] > 1 else 0].amax(0).double()
