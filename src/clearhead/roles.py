"""What a head does: role scores against null baselines, on a text or calibrated on repeated random tokens.

A role is a number between 0 and 1 (how much weight follows a rule) and the number a head that attends uniformly to
everything it may see would get on the same tokens. A head is labelled when its score is at least `THRESHOLD` and leaves at
most half of what uniform attention misses: score ≥ null + (1 − null) / 2, so that no label comes from a short text in which
everything is near.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.errors import ArgumentError, message
from clearhead.observables import Observables, Observation
from clearhead.trace import Head, Trace, check_sample
from clearhead.watch import watch

__all__ = ["ROLES", "Calibrated", "Retrieval", "RoleScore", "calibrate", "label", "looked_up", "retrieval", "roles"]

THRESHOLD = 0.3
BROAD = 0.9  # of log n_i; most heads spread over a part of what they see, few over nearly all of it


class RoleScore(NamedTuple):
    """A role's score for one head, what uniform attention scores on the same tokens, and whether it earns the label."""

    role: str
    score: float
    null: float
    threshold: float
    labelled: bool


class _Means(NamedTuple):
    """Mean score of every head (Hq,), and the mean null, over the queries a role is defined on."""

    score: Tensor
    null: float


def _mean(scores: Tensor, null: Tensor, rows: Tensor) -> _Means:
    """Means over the chosen queries; NaN when there are none."""
    count = int(rows.sum())
    if count == 0:
        return _Means(torch.full((scores.shape[0],), math.nan), math.nan)
    return _Means(scores[:, rows].double().mean(-1), float(null.expand(rows.shape)[rows].double().mean()))


class _Text(NamedTuple):
    """What the roles of one sample need to know besides the observation."""

    positions: Tensor  # (Tq,) absolute position of each query
    seen: Tensor  # (Tq,) how many keys each query may see
    real: Tensor  # (Tq,) bool: not padding, and sees something
    ids: Tensor | None  # (Tk,) token ids


def _at(observation: Observation, name: str, sample: int) -> Tensor:
    values: Tensor = getattr(observation, name)
    return values[sample]


def _previous(observation: Observation, text: _Text, sample: int) -> _Means:
    return _mean(_at(observation, "previous_weight", sample), 1 / text.seen, text.real & (text.positions >= 1))


def _first(observation: Observation, text: _Text, sample: int) -> _Means:
    # Query 0 sees key 0 alone: its weight of 1 says nothing about the head.
    # Beyond a window key 0 gets nothing by chance.
    return _mean(_at(observation, "first_weight", sample), _first_null(text), text.real & (text.positions >= 1))


def _first_null(text: _Text) -> Tensor:
    return torch.where(text.seen > text.positions, 1 / text.seen, 0.0)


def _self(observation: Observation, text: _Text, sample: int) -> _Means:
    return _mean(_at(observation, "self_weight", sample), 1 / text.seen, text.real & (text.positions >= 1))


def _matches(text: _Text, further: int) -> Tensor:
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


def _token_role(name: str, further: int) -> Callable[[Observation, _Text, int], _Means]:
    def score(observation: Observation, text: _Text, sample: int) -> _Means:
        matches = _matches(text, further)
        return _mean(_at(observation, name, sample), matches / text.seen, text.real & (matches > 0))

    return score


def _broad(observation: Observation, text: _Text, sample: int) -> _Means:
    return _mean(_at(observation, "entropy_share", sample), torch.ones_like(text.seen), text.real & (text.seen >= 2))


NEAR = 8  # tokens: itself and the seven beside it, the first four bins of the distance histogram


def _local(observation: Observation, text: _Text, sample: int) -> _Means:
    # Where a query sees no more than these, all its weight is near.
    positions, last = text.positions, text.positions[-1]
    ahead = torch.where(text.seen > positions + 1, (last - positions).clamp(max=NEAR - 1), 0)
    near = (positions + 1).clamp(max=NEAR) + ahead
    weight = _at(observation, "distance_histogram", sample)[..., :4].sum(-1)
    return _mean(weight, near / text.seen, text.real & (text.seen > near))


class _Role(NamedTuple):
    measure: Callable[[Observation, _Text, int], _Means]
    needs_ids: bool = False
    needs: str | None = None  # a quantity that is not measured unless asked for


_MEASURES = {
    "previous-token": _Role(_previous),
    "induction": _Role(_token_role("after_same_token", 1), needs_ids=True),
    "duplicate-token": _Role(_token_role("same_token", 0), needs_ids=True),
    "first-token": _Role(_first),
    "self": _Role(_self),
    "broad": _Role(_broad),
    "local": _Role(_local, needs="distance_histogram"),
}
ROLES = tuple(_MEASURES)
"""Names of all roles, in the order scores are given."""


def roles(trace: Trace, *, sample: int = 0) -> dict[Head, list[RoleScore]]:
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
    check_sample(trace, sample)
    found: dict[Head, list[RoleScore]] = {}
    for call in trace.calls:
        if call.run != trace.calls[0].run:
            continue
        observation = call.observation
        ids = call.key_ids
        known = None if ids is None else ids[sample].tolist()
        text = _text(observation, known if known is not None or sample else trace.token_ids, sample)
        scores: list[list[RoleScore]] = [[] for _ in range(call.heads)]
        for name, role in _MEASURES.items():
            if role.needs_ids and (text.ids is None or "same_token" not in observation.values):
                continue
            if (call.crosses and name != "broad") or (role.needs is not None and role.needs not in observation.values):
                continue
            means = role.measure(observation, text, sample)
            for h, score in enumerate(means.score.tolist()):
                scores[h].append(_judged(name, score, means.null))
        found |= dict(zip(call.addresses(), scores, strict=True))
    return found


def _text(observation: Observation, token_ids: list[int] | None, sample: int) -> _Text:
    Tq = observation.lse.shape[2]
    device = observation.lse.device
    seen = observation.visible.expand(-1, -1, Tq)
    seen = seen[sample if seen.shape[0] > 1 else 0].amax(0).double()  # heads differ only under a mask per head
    real = seen > 0
    if observation.padded is not None:
        real = real & ~observation.padded[sample if observation.padded.shape[0] > 1 else 0]
    ids = None if token_ids is None else torch.tensor(token_ids)
    return _Text(torch.arange(Tq, device=device) + observation.offset, seen.clamp(min=1), real, ids)


def _judged(role: str, score: float, null: float) -> RoleScore:
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


def looked_up(trace: Trace, written: range, *, sample: int = 0) -> dict[Head, list[int]]:
    """Where each head looked up the tokens that were written: for every one of them a key's position, or −1.

    The query that writes a token stands one before it. A head looks the token up when the key which that query attends to most
    is an earlier copy of the very token: it stands in front of the model just as it is about to be written. Nothing is said
    of heads that help in other ways.

    Arguments:
        trace: of the whole text, prompt and what was written.
        written: positions of the tokens that the model wrote; each was written by the query one before it.
        sample: of a batch.

    Raises `ArgumentError` where token ids are not known, or nothing was written. Of several texts the first is taken.
    """
    check_sample(trace, sample)
    found: dict[Head, list[int]] = {}
    for call in trace.calls:
        ids = call.key_ids
        if call.crosses or call.run != trace.calls[0].run:
            continue
        if ids is None or not written or written.start < 1 or written.stop > ids.shape[1]:
            raise ArgumentError(
                message(
                    "written",
                    expected="positions of tokens that were written, in a text whose token ids are known",
                    got=f"{written} of a text of {'unknown' if ids is None else ids.shape[1]} tokens",
                    remedy="Watch a model that is given token ids, and name the tokens behind the prompt.",
                )
            )
        text = ids[sample]
        at = torch.arange(written.start, written.stop)
        keys = call.observation.top_keys[sample, :, at - 1 - call.observation.offset, 0].cpu()  # (Hq, written)
        copies = torch.where((keys >= 0) & (text[keys.clamp(min=0)] == text[at]), keys, -1)
        found |= dict(zip(call.addresses(), copies.tolist(), strict=True))
    return found


class Retrieval(NamedTuple):
    """How often a head's strongest key was what was written, inside the needle; and how often uniform attention's would be."""

    score: float
    null: float
    labelled: bool


def retrieval(trace: Trace, needle: range, written: range, *, sample: int = 0) -> dict[Head, Retrieval]:
    """Which heads copy: over the tokens that were written, how often the key that the writing query attends to most lies in
    the needle and is the token it wrote (Wu et al. 2024, arXiv 2404.15574).

    Arguments:
        trace: of the whole text, prompt and what was written.
        needle: positions of what was to be found.
        written: positions of the tokens that the model wrote; each was written by the query one before it.
        sample: of a batch.

    The null is the share of the keys a query sees that would count; a head is labelled by the rule of the other roles.
    Raises `ArgumentError` as `looked_up` does.
    """
    places = looked_up(trace, written, sample=sample)
    found: dict[Head, Retrieval] = {}
    for call in trace.calls:
        ids = call.key_ids
        if ids is None or call.crosses or call.run != trace.calls[0].run:
            continue
        seen = visible_keys(call.observation, sample)[
            torch.arange(written.start, written.stop) - 1 - call.observation.offset
        ]
        text = ids[sample]
        inside = text[needle.start : needle.stop]
        null = float(((inside[None] == text[written.start : written.stop][:, None]).sum(-1) / seen).mean())
        for head in call.addresses():
            score = sum(key in needle for key in places[head]) / len(written)
            found[head] = Retrieval(score, null, _judged("retrieval", score, null).labelled)
    return found


def visible_keys(observation: Observation, sample: int = 0) -> Tensor:
    """n_i, how many keys each query may see, float64 (Tq,) on the CPU; the most where heads differ."""
    seen = observation.visible.expand(-1, -1, observation.lse.shape[2])
    return seen[sample if seen.shape[0] > 1 else 0].amax(0).double().cpu()


class Calibrated(NamedTuple):
    """Mean over seeds and its standard error; what uniform attention scores on the same texts; whether it earns the label."""

    mean: float
    error: float
    null: float
    threshold: float
    labelled: bool


def calibrate(
    network: nn.Module,
    vocabulary: int,
    *,
    period: int = 50,
    seeds: int = 4,
    bos: int | None = None,
    around: tuple[Sequence[int], Sequence[int]] = ((), ()),
    avoid: Collection[int] = (),
) -> dict[Head, dict[str, Calibrated]]:
    """Every role's score on repeated random tokens: mean and standard error over seeds, beside the null.

    Each text is `period` random tokens, twice (after `bos`, if the model starts its texts with one). Previous-token,
    first-token, self and broad are means over all queries but the first. Induction is the mean of p_{i, i − period + 1} over
    the second copies i: from a token to what followed its first copy. The last token of the first copy is no part of it: a
    diagonal drawn through it would end at the first token of all, to which many heads attend anyway. Duplicate-token is the
    mean of p_{i, i − period} over the same queries. Layers whose window is shorter than that cannot show them: NaN.

    Arguments:
        network: takes integer ids (1, T).
        vocabulary: how many tokens to draw from.
        period: length of the random text before it repeats.
        seeds: how many texts.
        bos: the token every text starts with, if the model has one.
        around: in its place, tokens before and after every text, as an encoder's.
        avoid: tokens that are not drawn, such as special ones.

    Time: `seeds` forward passes of 2 · period tokens. Raises `ArgumentError` for sizes too small to mean anything, and
    for a model that does not read one text of token ids.
    """
    for name, value, least in (("vocabulary", vocabulary, 2), ("period", period, 2), ("seeds", seeds, 2)):
        if value < least:
            raise ArgumentError(
                message(
                    name, expected=f"an integer >= {least}", got=str(value), remedy="A standard error needs two seeds."
                )
            )
    _check_reads_ids(network)
    before = torch.tensor([*around[0], *([] if bos is None else [bos])], dtype=torch.int64)
    after = torch.tensor(list(around[1]), dtype=torch.int64)
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    allowed = torch.tensor([i for i in range(vocabulary) if i not in set(avoid)])
    measured: dict[Head, dict[str, list[_Score]]] = {}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        once = allowed[torch.randint(len(allowed), (period,), generator=generator)]
        ids = torch.cat([before, once, once, after])[None].to(device)
        for head, scores in _repeated(network, ids, len(before), period).items():
            for role, score in scores.items():
                measured.setdefault(head, {}).setdefault(role, []).append(score)
    return {head: {role: _over_seeds(role, s) for role, s in found.items()} for head, found in measured.items()}


def _check_reads_ids(network: nn.Module) -> None:
    """Random tokens mean nothing to a model of pictures, and half of what an encoder-decoder needs."""
    both = getattr(getattr(network, "config", None), "is_encoder_decoder", False)
    reads = getattr(network, "main_input_name", "input_ids")
    if both or reads != "input_ids":
        raise ArgumentError(
            message(
                "network",
                expected="a model that reads one text of token ids",
                got=f"{type(network).__name__}, " + ("an encoder-decoder" if both else f"which reads {reads}"),
                remedy="Watch it on inputs of your own, and ask roles(trace).",
            )
        )


class _Score(NamedTuple):
    value: float
    null: float


def _repeated(network: nn.Module, ids: Tensor, start: int, period: int) -> dict[Head, dict[str, _Score]]:
    """The scores on one text whose tokens from `start` on are `period` random ones, twice."""
    second = start + period  # position where the second copy begins
    rows = tuple(range(second, second + period))
    wanted = Observables(top_k=0, map=0, received=False, distance=False, distance_histogram=True, rows=rows)
    with torch.no_grad(), watch(network, observables=wanted) as trace:
        network(ids)
    found: dict[Head, dict[str, _Score]] = {}
    for call in trace.calls:
        seen = call.observation
        if call.crosses:
            continue
        text = _text(seen, None, 0)
        later = text.real & (text.positions >= 1)
        queries = torch.tensor(rows, device=ids.device)

        def diagonal(back: int, seen: Observation = seen, queries: Tensor = queries, text: _Text = text) -> _Means:
            at = (queries - back)[None, :, None].expand(seen.rows.shape[1], -1, 1)
            weights = seen.rows[0].gather(-1, at).squeeze(-1)
            n = text.seen[queries]
            return _mean(weights, 1 / n, n > back)  # a window that ends before it shows nothing

        means = {
            "previous-token": _mean(seen.previous_weight[0], 1 / text.seen, later),
            "induction": diagonal(period - 1),
            "duplicate-token": diagonal(period),
            "first-token": _mean(seen.first_weight[0], _first_null(text), later),
            "self": _mean(seen.self_weight[0], 1 / text.seen, later),
            "broad": _broad(seen, text, 0),
            "local": _local(seen, text, 0),
        }
        for n, head in enumerate(call.addresses()):
            found[head] = {role: _Score(float(mean.score[n]), mean.null) for role, mean in means.items()}
    return found


def _over_seeds(role: str, scores: list[_Score]) -> Calibrated:
    numbers = torch.tensor([score.value for score in scores], dtype=torch.float64)
    judged = _judged(role, float(numbers.mean()), sum(score.null for score in scores) / len(scores))
    error = float(numbers.std() / math.sqrt(len(scores)))
    return Calibrated(judged.score, error, judged.null, judged.threshold, judged.labelled)
