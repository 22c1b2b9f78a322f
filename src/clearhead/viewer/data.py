"""`Shown`: one text of a trace, and the answers to what a page asks about it. The only part of the viewer that knows a `Trace`.

What the library has measured is passed on; what it has not is worked out from kept queries and keys, through `Pattern`, or
is said to be missing. Nothing is computed here that the library computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.addresses import Head
from clearhead.errors import InputError
from clearhead.pattern import Pattern
from clearhead.pyramid import TILE
from clearhead.roles import RoleScore, label, looked_up, roles
from clearhead.roles.scores import visible_keys
from clearhead.tokens import readable, visible
from clearhead.trace import Call, Trace
from clearhead.viewer.packed import Answer, number, numbers, roots
from clearhead.viewer.quantities import QUANTITIES, of_heads, quantity, uniform_histogram
from clearhead.viewer.view import View, measured_bytes, most_telling

CELLS = 1 << 20  # most pairs in one answer: 4 MB
WRITTEN = 512  # tokens written, at most, of which it is said which heads looked them up
MOST_CELLS = 12 << 20  # of all maps together: 24 MB

STRIPS = ("entropy", "received", "received_mean", "first_weight", "previous_weight", "self_weight", "sink", "distance")


class Shown:
    """One sample of a trace, as a page shows it.

    Arguments:
        trace: what was observed. Of several runs the first is shown; `Trace.runs` are traces of their own.
        name: what to call it: a file, a model.
        model: the model's name; default what the trace knows.
        prompt: tokens from this position on were written by the model; default what the trace knows, else none were.
        part: what part of a text was read, in words, if not the whole.
        sample: which sample of a batch.
        groups: a group's number for every token, −1 for none, and the names of the groups; default what the trace knows.
        path: the file it was read from; the page says so when that has gone.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        name: str,
        model: str | None = None,
        prompt: int | None = None,
        part: str | None = None,
        sample: int = 0,
        groups: tuple[Sequence[int], Sequence[str]] | None = None,
        path: Path | None = None,
    ) -> None:
        if not trace.calls:
            raise InputError(f"{name}: nothing was observed, there is nothing to show")
        self.trace, self.name, self.part = trace, name, part
        self.model = model if model is not None else trace.model or ""
        self.sample, self.path = sample, path
        self.groups = groups if groups is not None else trace.key_groups
        self.heads = trace.heads()
        self.roles = roles(trace, batch=sample)
        self.pieces = self._pieces()
        written = trace.prompt if prompt is None else prompt
        self.prompt = len(self.pieces) if written is None else written
        self._calls = {call.layer: call for call in reversed(trace.calls)}  # the first of each layer

    @classmethod
    def of(cls, view: View) -> Shown:
        """What `clearhead look` has run."""
        return cls(view.trace, name=view.model, model=view.model, prompt=view.prompt, part=view.part)

    # ------------------------------------------------------------------------------------------------ what the page asks

    def document(self) -> Answer:
        """Everything that is one number a head or one word a token."""
        used = [row for row in QUANTITIES if any(quantity(c.observation, row[0], 0) for c in self._calls.values())]
        names = [row[0] for row in used]
        per_layer = {n: of_heads(call.observation, names, self.sample) for n, call in self._calls.items()}
        return Answer(
            {
                "name": readable(self.name),
                "model": readable(self.model),
                "tokens": self.pieces,
                "prompt": self.prompt,
                "part": self.part,
                "gone": self.path is not None and not self.path.exists(),
                "groups": self._groups(),
                "lookups": self._lookups(),
                "quantities": [dict(zip(("key", "label", "unit", "about"), row, strict=True)) for row in used],
                "layers": [self._layer(call, per_layer[call.layer][1]) for _, call in sorted(self._calls.items())],
                "heads": [self._head(head, per_layer[head.layer][0]) for head in self.heads],
                "notable": str(self.notable()),
                "rollout": self.can_roll_out(),
                "bytes": {"observed": self.observed_bytes, "pattern": self.pattern_bytes},
            }
        )

    def maps(self, pool: Literal["mean", "max"] = "mean", heads: Sequence[Head] | None = None) -> Answer:
        """The pooled map of every head, as square roots in 16 bits; heads without one are left out."""
        found = {}
        for head in self.heads if heads is None else heads:
            values = self._of(head, f"map_{pool}")
            if values is None and self.has_pattern(head) and len(self.heads) * TILE**2 <= MOST_CELLS:
                values = self.pattern(head).tile(0, 0, 0, pool=pool)[
                    0, 0
                ]  # a run of several calls has no map of its own
            if values is not None:
                found[str(head)] = roots(numbers(values))
        return Answer({"pool": pool}, found)

    def strips(self, head: Head) -> Answer:
        """What is one number a query or a key, for one head; what was not measured is not there."""
        self.trace.check(head)
        observation = self._calls[head.layer].observation
        arrays = {}
        for name in STRIPS:
            if name == "received_mean" and "received" not in observation.values:
                continue
            if name == "received_mean" or name in observation.values:
                values = self._of(head, name)
                if values is not None:
                    arrays[name] = numbers(values.float())
        arrays["visible"] = numbers(visible_keys(observation, self.sample).float())
        facts: dict[str, Any] = {"head": str(head)}
        if "distance_histogram" in observation.values:
            h, b = self._calls[head.layer].index(head), self._sample(observation.lse)
            arrays["histogram"] = numbers(observation.mean("distance_histogram")[b, h].float())
            null = uniform_histogram(observation, self.sample, arrays["histogram"].shape[0])
            if null is not None:
                arrays["histogram_null"] = null
        if "group_mean" in observation.values:
            values = self._of(head, "group_mean")
            if values is not None:
                arrays["group_mean"] = numbers(values.float())
        return Answer(facts, arrays)

    def tile(self, head: Head, level: int, x: int, y: int, pool: Literal["mean", "max"] = "mean") -> Answer:
        """One tile of a head's zoomable map, (≤256, ≤256) float32."""
        return Answer({}, {"cells": numbers(self.pattern(head).tile(level, x, y, pool=pool)[0, 0].float())})

    def crop(self, head: Head, queries: slice, keys: slice, what: str = "weight") -> Answer:
        """The numbers of a rectangle of pairs; at most `CELLS` of them."""
        call = self._calls[self.trace.check(head).layer]
        rows, columns = (len(range(*part.indices(T))) for part, T in zip((queries, keys), _shape(call), strict=True))
        if rows * columns > CELLS:
            raise InputError(f"crop: {rows} × {columns} pairs are too many for one answer, at most {CELLS} are given")
        values = self.pattern(head).crop(queries, keys, what=what)
        return Answer({"what": what}, {"values": numbers(values[0, 0].float())})

    def line(self, heads: Sequence[Head], axis: Literal["query", "key"], at: int, what: str = "weight") -> Answer:
        """One row (a query's weights on all keys) or column (a key's weights from all queries), the mean over some heads.

        Where queries and keys were not kept, it is put together from the keys kept for every query: `exact` is then false and
        what is not known is NaN.
        """
        if not heads:
            raise InputError("heads: none are chosen, name at least one")
        shapes = {_shape(self._calls[self.trace.check(head).layer]) for head in heads}
        if len(shapes) > 1:
            raise InputError(f"heads: of calls with other lengths, {sorted(shapes)}; choose heads of one kind")
        Tq, Tk = shapes.pop()
        offset = self._calls[heads[0].layer].observation.offset
        position, length = (at - offset, Tq) if axis == "query" else (at, Tk)
        if not 0 <= position < length:
            first = offset if axis == "query" else 0
            raise InputError(f"at {at}: there are {length} of them, {first} to {first + length - 1}")
        exact = all(self.has_pattern(head) for head in heads)
        read = self._exact_line if exact else self._kept_line
        if not exact and what != "weight":
            raise InputError(f"what {what}: queries and keys were not kept, only the largest weights were")
        total = torch.stack([read(head, axis, position, what).double() for head in heads]).mean(0)
        facts = {"exact": exact, "axis": axis, "at": at, "offset": offset, "kept": self.kept(heads[0])}
        return Answer(facts, {"values": numbers(total)})

    def rollout(self, position: int, heads: Sequence[Head] | None = None) -> Answer:
        """Shares of every token after each layer, from the last down: float64 (layers, T)."""
        if not self.can_roll_out():
            raise InputError("rollout: needs the queries and keys of every layer; watch with keep")
        calls = [call for _, call in sorted(self._calls.items())]
        shares = None
        if heads is not None:
            chosen = set(heads)
            shares = [[float(h in chosen) for h in call.addresses()] for call in calls]
            shares = [row if any(row) else [1.0] * len(row) for row in shares]
        found = self.trace.rollout(position, batch=self.sample, heads=shares)
        layers = [call.layer for call in reversed(calls)]
        return Answer({"position": position, "layers": layers}, {"shares": numbers(found.layers)})

    # ----------------------------------------------------------------------------------------------------- what there is

    def has_pattern(self, head: Head) -> bool:
        """Whether any weight of this head can be worked out."""
        return _pattern_of(self._calls[self.trace.check(head).layer]) is not None

    def pattern(self, head: Head) -> Pattern:
        """The head's `Pattern`; raises `InputError` where queries and keys were not kept."""
        call = self._calls[self.trace.check(head).layer]
        pattern = _pattern_of(call)
        if pattern is None:
            raise InputError(f"head {head}: its queries and keys were not kept, so there are no weights to zoom into")
        return pattern.head(call.index(head), min(self.sample, pattern.shape[0] - 1))

    def can_roll_out(self) -> bool:
        """Whether every layer has what rollout needs."""
        calls = self._calls.values()
        return all(_pattern_of(call) is not None and len(set(_shape(call))) == 1 for call in calls)

    def all_weights(self, head: Head) -> Float[np.ndarray, "Tq Tk"] | None:
        """Every weight of a head, −1 where a query may not see; None where they are not known."""
        call = self._calls[head.layer]
        Tq, Tk = _shape(call)
        if self.has_pattern(head):
            pattern = self.pattern(head)
            weights: Tensor = pattern.crop(slice(None), slice(None))[0, 0].float()
            hidden = pattern.crop(slice(None), slice(None), what="logit")[0, 0] == -torch.inf
            return numbers(weights.masked_fill(hidden, -1.0))
        if self.kept(head) < Tk:
            return None
        keys, weights = self.top(head)
        whole = torch.full((Tq, Tk + 1), -1.0)  # one column more, for what is no key
        whole.scatter_(1, torch.where(keys < 0, Tk, keys).cpu(), weights.float().cpu())
        return numbers(whole[:, :Tk])

    def knows_all(self, head: Head) -> bool:
        """Whether every weight of a head is known."""
        return self.has_pattern(head) or self.kept(head) >= self.keys(head)

    def top(self, head: Head) -> tuple[Tensor, Tensor]:
        """The keys with the largest weights, −1 where there are fewer, and the weights, (Tq, k)."""
        observation = self._calls[head.layer].observation
        keys, weights = self._of(head, "top_keys"), self._of(head, "top_weights")
        if keys is None or weights is None:
            return torch.zeros(observation.lse.shape[2], 0, dtype=torch.int64), torch.zeros(observation.lse.shape[2], 0)
        return torch.where(keys < 0, keys, keys - observation.first_key), weights

    def kept(self, head: Head) -> int:
        """How many keys were kept for every query."""
        keys = self._calls[head.layer].observation.values.get("top_keys")
        return 0 if keys is None else keys.shape[-1]

    def keys(self, head: Head) -> int:
        """Tk."""
        return _shape(self._calls[head.layer])[1]

    def label(self, head: Head) -> RoleScore | None:
        """The role a head is labelled with, if any."""
        return label(self.roles.get(head, []))

    def map(self, head: Head) -> Float[Tensor, "R R"] | None:
        """The mean map, if it was measured."""
        return self._of(head, "map_mean")

    def notable(self) -> Head:
        """The head to show first: the best of the most telling role that any head has, else the first."""
        return most_telling(self.roles) or self.heads[0]

    @property
    def pattern_bytes(self) -> int:
        """What the T×T weights of all heads would have taken in float32."""
        return sum(math.prod(_shape(call)) * call.heads * 4 for call in self._calls.values())

    @property
    def observed_bytes(self) -> int:
        """What the observations take."""
        return measured_bytes(self._calls.values())

    # --------------------------------------------------------------------------------------------------------- its parts

    def _pieces(self) -> list[str]:
        """What each token of the text reads as; numbers where nobody said."""
        longest = max(sum(_shape(call)[:1]) + call.observation.offset for call in self.trace.calls)
        known = self.trace.pieces if self.sample == 0 else None
        if known is not None:
            # A trace may come from anybody: what a page or a terminal would obey is spelled out.
            return [visible(piece) for piece in known]
        ids = next((call.query_ids for call in self.trace.calls if call.query_ids is not None), None)
        if ids is not None and self.sample < len(ids) and ids.shape[1] == longest:
            if self.trace.spell is not None:
                return [visible(piece) for piece in self.trace.spell(ids[self.sample].tolist())]
            return [f"#{i}" for i in ids[self.sample].tolist()]
        return [f"[{n}]" for n in range(longest)]

    def _groups(self) -> dict[str, Any] | None:
        if self.groups is None:
            return None
        ids, names = self.groups
        return {"ids": list(ids), "names": [readable(name) for name in names]}

    def _lookups(self) -> list[tuple[int, str, int, float]]:
        """Heads that, while a token was written, looked most at that very token: token, head, key, weight; strongest first."""
        written = range(max(self.prompt, 1), len(self.pieces))
        calls = [call for call in self.trace.calls if not call.crosses and call.run == self.trace.calls[0].run]
        if not 0 < len(written) <= WRITTEN or any(
            call.key_ids is None or call.key_ids.shape[1] < written.stop or "top_keys" not in call.observation.values
            for call in calls
        ):
            return []
        found = []
        for head, keys in looked_up(self.trace, written, batch=self.sample).items():
            weights, offset = self.top(head)[1], self._calls[head.layer].observation.offset
            found += [
                (at, str(head), key, round(float(weights[at - 1 - offset, 0]), 4))
                for at, key in zip(written, keys, strict=True)
                if key >= 0
            ]
        return sorted(found, key=lambda look: (look[0], -look[3]))

    def _layer(self, call: Call, nulls: dict[str, float | None]) -> dict[str, Any]:
        Tq, Tk = _shape(call)
        pattern = _pattern_of(call)
        bounds = call.observation.values.get("map_mean")
        return {
            "layer": call.layer,
            "module": visible(call.name),
            "queries": Tq,
            "keys": Tk,
            "offset": call.observation.offset,
            "crosses": call.crosses,
            "exact": pattern is not None,
            "levels": 0 if pattern is None else pattern.levels,
            "contribution": pattern is not None and call.kept is not None and bool(call.kept.values),
            "kept": self.kept(Head(call.layer, 0)),
            "map": None if bounds is None else list(bounds.shape[2:]),
            "nulls": nulls,
        }

    def _head(self, head: Head, values: dict[str, list[float]]) -> dict[str, Any]:
        scores = self.roles.get(head, [])
        best = label(scores)
        at = self._calls[head.layer].index(head)
        return {
            "head": str(head),
            "layer": head.layer,
            "index": head.head,
            "role": None if best is None else best.role,
            "roles": [_role(score) for score in scores],
            "values": {name: number(of_layer[at]) for name, of_layer in values.items()},
        }

    def _sample(self, values: Tensor) -> int:
        return min(self.sample, values.shape[0] - 1)

    def _of(self, head: Head, name: str) -> Tensor | None:
        """One head's values of a quantity, if it was measured."""
        call = self._calls[head.layer]
        if name not in call.observation.values and name != "received_mean":
            return None
        values: Tensor = getattr(call.observation, name)
        return values[self._sample(values), min(call.index(head), values.shape[1] - 1)]

    def _exact_line(self, head: Head, axis: str, at: int, what: str) -> Tensor:
        one, every = slice(at, at + 1), slice(None)
        pattern = self.pattern(head)
        if axis == "query":
            row: Tensor = pattern.crop(one, every, what=what)[0, 0, 0]
            return row
        column: Tensor = pattern.crop(every, one, what=what)[0, 0, :, 0]
        return column

    def _kept_line(self, head: Head, axis: str, at: int, _: str) -> Tensor:
        keys, weights = self.top(head)
        Tq, Tk = _shape(self._calls[head.layer])
        line = torch.full((Tk if axis == "query" else Tq,), math.nan)
        if axis == "query":
            there = keys[at] >= 0
            line[keys[at][there]] = weights[at][there].float().cpu()
        else:
            query, place = torch.nonzero(keys == at, as_tuple=True)
            line[query] = weights[query, place].float().cpu()
        return line


def _pattern_of(call: Call) -> Pattern | None:
    try:
        return call.pattern
    except InputError:  # something of it was not kept
        return None


def _shape(call: Call) -> tuple[int, int]:
    """(Tq, Tk) of a call."""
    observation = call.observation
    Tq = observation.lse.shape[2]
    for name in ("received", "value_norm"):
        if name in observation.values:
            return Tq, observation.values[name].shape[-1]
    pattern = _pattern_of(call)
    return Tq, Tq + observation.offset if pattern is None else pattern.shape[3]


def _role(score: RoleScore) -> dict[str, Any]:
    return {
        "role": score.role,
        "score": number(score.score),
        "null": number(score.null),
        "threshold": number(score.threshold),
        "labelled": score.labelled,
    }
