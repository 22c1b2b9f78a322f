"""What a page may ask of surveys of a corpus: the same questions for one survey, and how two of them differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped

from clearhead.addresses import Head
from clearhead.errors import InputError
from clearhead.survey import Survey, compare
from clearhead.survey.measure import QUANTITIES
from clearhead.survey.results import QUANTILES
from clearhead.tokens import readable
from clearhead.viewer.packed import Answer, number, roots
from clearhead.viewer.questions import Answering, below
from clearhead.viewer.view import PREFERRED

MOST_TOKENS = 60  # listed of a head
OFTEN = 5  # occurrences from which on what a token gets each time is worth a line

# What is no role's score: what it is called, its unit, what it is. What a key receives is 1 on average, of any head.
NAMES = {
    "entropy": ("entropy", "nats", "How spread out the weights are; uniform attention has the most."),
    "max_weight": ("largest weight", "", "The weight on the most attended token."),
    "max_logit": ("largest logit", "", "The largest logit a token has with any key."),
    "sum_squares": ("sum of squares", "", "A token's squared weights summed: 1 is one key alone."),
    "distance": ("distance", "tokens", "How far back a head looks, the mean over its weights."),
    "sink": ("learned sink", "", "The weight on the learned sink."),
}
# As they stand beside each other in the list of one head.
SAID = {name: said for name, (said, *_) in NAMES.items()} | {
    "entropy_share": "entropy share", "self_weight": "on itself", "previous_weight": "on the previous token",
    "first_weight": "on the first token", "local_weight": "within eight tokens", "same_token": "on equal tokens",
    "after_same_token": "behind equal tokens", "received": "received by a token",
}  # fmt: skip
COLUMNS = (
    "count", "mean", "variance", "least", *(f"q{round(100 * share):02d}" for share in QUANTILES), "most",
    "document_mean", "document_error", "documents", "uniform",
)  # fmt: skip


class Shape:
    """One survey, read once, and what its tables say head by head."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.name = str(survey.folder)
        self.roles, self.observables, self.examples = (
            _by_head(survey.table(name)) for name in ("roles", "observables", "examples")
        )
        self.arrays = survey.arrays  # now: the folder may be gone when somebody asks
        self.spelled: list[str] = [row["text"] for row in survey.table("tokens")]
        self.labels: dict[tuple[int, int], str | None] = {
            (row["layer"], row["head"]): row["role"] for row in survey.table("heads")
        }

    def head(self, text: str) -> Head:
        """An address that is one of this survey's."""
        head = Head.parse(text[:40])
        if head not in self.labels:
            raise InputError(f"head {head}: the survey has none; it has L0H0 to {max(Head(*at) for at in self.labels)}")
        return head

    @cached_property
    def heads(self) -> list[Head]:
        """In the order of the arrays."""
        return self.survey.heads

    def document(self) -> Answer:
        """Everything that is one number a head."""
        told, manifest = self.survey.summary, self.survey.manifest
        used = [name for name in NAMES if name in manifest["observables"]]
        return Answer(
            {
                "name": readable(self.name),
                "model": readable(str(manifest["model"])),
                "tokens": [],
                "documents": told["documents"],
                "read": told["tokens"],
                "bad": {readable(str(why)): count for why, count in told["bad"].items()},
                "length": manifest["length"],
                "quantities": [dict(zip(("key", "label", "unit", "about"), (n, *NAMES[n]), strict=True)) for n in used],
                "layers": [{"layer": layer, "nulls": {}} for layer in sorted({head.layer for head in self.heads})],
                "heads": [self._head(head) for head in self.heads],
                "notable": str(self.notable()),
                "ranges": {name: list(ends) for name, ends in self.ranges.items()},
            }
        )

    def _head(self, head: Head) -> dict[str, Any]:
        rows = {row["observable"]: row for row in self.observables[head]}
        role_keys = ("role", "score", "threshold", "labelled", "documents")
        return {
            "head": str(head), "layer": head.layer, "index": head.head, "role": self.labels[head],
            "roles": [
                {key: _plain(row[key]) for key in role_keys}
                | {"null": _plain(row["uniform"]), "error": _plain(row["standard_error"])}
                for row in self.roles.get(head, [])
            ],
            "values": {name: number(rows[name]["document_mean"]) for name in NAMES if name in rows},
            "errors": {name: number(rows[name]["document_error"]) for name in NAMES if name in rows},
            "nulls": {name: number(rows[name]["uniform"]) for name in NAMES if name in rows},
        }  # fmt: skip

    @cached_property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """From where to where each observable's picture runs: 0 to 1 for shares, else over 98 of 100 tokens of every head."""
        found: dict[str, tuple[float, float]] = {}
        for rows in self.observables.values():
            for row in rows:
                low, high = found.get(row["observable"], (math.inf, -math.inf))
                found[row["observable"]] = (min(low, row["q01"]), max(high, row["q99"]))
        return {
            name: (0.0, 1.0) if low >= 0 and high <= 1 else (min(0.0, low), high)
            for name, (low, high) in found.items()
            if math.isfinite(low) and math.isfinite(high)
        }

    def notable(self) -> Head:
        """The head to show first: the best of the most telling role that any head has, else the first."""
        for role in PREFERRED:
            rows = [row for of in self.roles.values() for row in of if row["role"] == role and row["labelled"]]
            if rows:
                best = max(rows, key=lambda row: row["score"])
                return Head(best["layer"], best["head"])
        return self.heads[0]

    def maps(self) -> Answer:
        """The mean weight of every head, by the query's position (down) and the distance (across)."""
        arrays, last = self.arrays, self._bins
        found = {str(head): roots(arrays["map"][n, :last, :last]) for n, head in enumerate(self.heads)}
        return Answer({}, found)

    @cached_property
    def _bins(self) -> int:
        """How many of the map's bins any text reached."""
        queries = self.arrays["map_queries"]
        return int(np.flatnonzero(queries)[-1]) + 1 if queries.any() else 0

    def of_head(self, head: Head) -> Answer:
        """All that is known of one head."""
        n, arrays = self.heads.index(head), self.arrays
        queries = arrays["map_queries"][: self._bins]
        measured = [
            {"observable": row["observable"], "label": SAID[row["observable"]], **{c: _plain(row[c]) for c in COLUMNS}}
            for row in self.observables[head]
        ]
        found: dict[str, Shaped[np.ndarray, "..."]] = {
            "map": arrays["map"][n, : self._bins, : self._bins],
            "map_queries": queries.astype(np.float64),
            "distance": arrays["map"][n, : self._bins, : self._bins].T @ (queries / max(1, queries.sum())),
            "received": _binned(arrays["position_received"][n]),
            "keys": _binned(arrays["positions"].astype(np.float64)),
        }
        if self._looks_back(n):
            found |= _of_uniform(arrays["positions"].astype(np.float64))
            found["distance_null"] = found["distance_null"][: self._bins]
        facts = {"head": str(head), "measured": measured, "examples": self._examples(head), "tokens": self._tokens(n)}
        return Answer(facts, found)

    def _looks_back(self, n: int) -> bool:
        """Whether every token sees all before it and itself, and no other: then uniform attention is known."""
        arrays = self.arrays
        return bool((arrays["position_viewers"][n] == np.cumsum(arrays["positions"][::-1])[::-1]).all())

    def _examples(self, head: Head) -> list[dict[str, Any]]:
        texts = [f"{which}_{part}" for which in ("query", "key") for part in ("before", "token", "after")]
        return [
            {name: row[name] for name in ("weight", "document", "query", "key", *texts)}
            | {"name": readable(row["name"])}
            for row in self.examples.get(head, [])
        ]

    def _tokens(self, n: int) -> list[list[Any]]:
        """Tokens that get most of all weight, and those that get most each time: text, count, weight each time, share."""
        arrays = self.arrays
        received, count = arrays["token_received"][n], arrays["token_count"]
        each, share = received / np.maximum(1, count), received / max(received.sum(), 1e-300)
        often = np.where(count >= OFTEN, each, -1.0)
        first, second = (np.argsort(-x, kind="stable")[: MOST_TOKENS // 2] for x in (share, often))
        chosen = [int(i) for i in dict.fromkeys([*first.tolist(), *second[often[second] >= 0].tolist()])]
        return [[self.spelled[i], int(count[i]), float(each[i]), float(share[i])] for i in chosen]


class Surveys(Answering):
    """The surveys shown."""

    def __init__(self, surveys: Sequence[Survey]) -> None:
        super().__init__()
        self.shapes = [Shape(survey) for survey in surveys]
        self.questions = QUESTIONS

    def of(self, parameters: Mapping[str, str], name: str = "survey") -> Shape:
        """The survey a question names, by its number; the first if it names none."""
        return self.shapes[below(parameters, name, len(self.shapes), "surveys")]


def _by_head(rows: Sequence[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["layer"], row["head"]), []).append(row)
    return found


def _plain(x: Any) -> Any:
    return number(x) if isinstance(x, float) else x


def _binned(values: Float64[np.ndarray, " length"]) -> Float64[np.ndarray, " bins"]:
    """Sums over positions 0, 1, 2-3, 4-7, …"""
    edges = [0, *(2**n for n in range(max(0, len(values) - 1).bit_length()))]
    found: Float64[np.ndarray, " bins"] = np.add.reduceat(values, edges)
    return found


def _of_uniform(positions: Float64[np.ndarray, " length"]) -> dict[str, Float64[np.ndarray, "..."]]:
    """What uniform attention puts at each distance and gives to keys at each position, if every token sees all before it."""
    given = positions / np.arange(1, len(positions) + 1)  # by all tokens at a position to each key in their sight
    passed: Float64[np.ndarray, " length"] = np.cumsum(given[::-1])[
        ::-1
    ]  # to a key, and as much at a distance, from there on
    return {"distance_null": _binned(passed) / max(1.0, positions.sum()), "received_null": _binned(passed)}


def _differences(surveys: Surveys, p: Mapping[str, str]) -> Answer:
    one, other = surveys.of(p, "a"), surveys.of(p, "b")
    columns = ("base", "other", "difference", "standard_error", "z")
    rows = [
        [str(Head(row["layer"], row["head"])), row["observable"], *(number(row[name]) for name in columns)]
        for row in compare(one.survey, other.survey)
    ]
    roles = [
        [str(head), one.labels[head], other.labels[head]]
        for head in one.heads
        if one.labels[head] != other.labels[head]
    ]
    observables = [[name, SAID[name]] for name in QUANTITIES if any(row[1] == name for row in rows)]
    return Answer(
        {"columns": ["head", "observable", *columns], "rows": rows, "roles": roles, "observables": observables}
    )


def _listed(surveys: Surveys, _: Mapping[str, str]) -> Answer:
    folders = [shape.survey.folder.resolve() for shape in surveys.shapes]
    short = len({folder.name for folder in folders}) == len(folders)
    said = [folder.name if short else str(folder) for folder in folders]
    names = [readable(name) for name in said]
    return Answer({"surveys": [{"survey": n, "name": name} for n, name in enumerate(names)]})


def _of_head(surveys: Surveys, p: Mapping[str, str]) -> Answer:
    shape = surveys.of(p)
    return shape.of_head(shape.head(p.get("head", "")))


QUESTIONS: dict[str, tuple[tuple[str, ...], Callable[[Surveys, Mapping[str, str]], Answer]]] = {
    "shown": ((), lambda *_: Answer({"shown": "surveys"})),
    "surveys": ((), _listed),
    "survey": (("survey",), lambda surveys, p: surveys.of(p).document()),
    "maps": (("survey",), lambda surveys, p: surveys.of(p).maps()),
    "head": (("survey", "head"), _of_head),
    "differences": (("a", "b"), _differences),
}
