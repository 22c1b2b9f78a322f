"""What a survey found: written as Parquet tables and one safetensors file, read back as a `Survey`, compared with another.

| file | a row |
|---|---|
| `heads.parquet` | a head: layer, head, the role it earned (or null), its score, what uniform attention scores |
| `roles.parquet` | a head and role: score (mean over documents), standard_error, documents, uniform, labelled |
| `observables.parquet` | a head and observable: count, mean, variance, quantiles, document_mean, document_error, uniform, … |
| `examples.parquet` | one of the K strongest looks of a head: weight, document, name, query and key positions, both contexts |
| `tokens.parquet` | a token that was read: id, text, count; in the order of `token_ids` |
| `bad.parquet` | a document that could not be read: number, name, reason |
| `arrays.safetensors` | `map`, `map_queries`, `position_…`, `token_…`, `sketch_…`, `heads`: see `Survey.arrays` |
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.addresses import Head
from clearhead.errors import InputError
from clearhead.roles.scores import judged, label
from clearhead.survey import state
from clearhead.survey.adding import Arrays
from clearhead.survey.arrow import pyarrow
from clearhead.survey.measure import WITH_NULL, Quantity
from clearhead.survey.sketch import BUCKETS, RELATIVE_ERROR

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
TABLES = ("heads", "roles", "observables", "examples", "tokens", "bad")
ARRAYS = "arrays.safetensors"
KEPT_ARRAYS = (
    "heads", "map", "map_queries", "position_received", "position_viewers", "positions", "token_ids", "token_received",
    "token_viewers", "token_count", "sketch_places", "sketch_counts",
)  # fmt: skip
Row = dict[str, Any]


class Survey:
    """A finished survey.

    - `summary`: documents, tokens, bad documents, the sketch's relative error.
    - `manifest`: the model, corpus and options it was made with.
    - `table(name)`: the rows of a table as dictionaries; names and columns in `clearhead.survey.results`.
    - `arrays`: N heads in the order of `heads` (N, 2: layer and head); bins are 0, 1, 2-3, 4-7, …
        `map` (N, bins, bins): mean weight by the query's position in its text and by distance;
        `position_received`, `position_viewers` (N, length): weight that all keys at a position got, and how many queries
        could have looked; `positions` (length,): how many keys there were;
        `token_received`, `token_viewers` (N, tokens), `token_count`: the same by token id, `token_ids` (tokens,).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = state.read_manifest(folder)
        self.summary: dict[str, Any] = state.read_json(folder / state.SUMMARY)

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """See above."""
        return state.load(self.folder / ARRAYS)[0]

    def table(self, name: str) -> list[Row]:
        """The rows of one of the tables; raises `InputError` for a name there is none of, a file that is damaged or gone."""
        if name not in TABLES:
            raise InputError(f"table {name!r}: expected one of {', '.join(TABLES)}")
        read, path = pyarrow("parquet").read_table, self.folder / f"{name}.parquet"
        try:
            rows: list[Row] = read(path).to_pylist()
        except (OSError, ValueError) as error:  # pyarrow's are of both kinds
            raise InputError(f"survey: {path} is damaged or gone; survey into a new folder") from error
        return rows

    @property
    def heads(self) -> list[Head]:
        """Addresses, in the order of the arrays."""
        return [Head(int(layer), int(head)) for layer, head in self.arrays["heads"]]

    def examples(self, head: Head) -> list[Row]:
        """The strongest looks of a head, the strongest first."""
        return [row for row in self.table("examples") if (row["layer"], row["head"]) == tuple(head)]

    def __repr__(self) -> str:
        told = f"{self.summary['documents']} documents, {self.summary['tokens']} tokens"
        return f"Survey({self.manifest['model']!r}, {told}, {self.summary['heads']} heads)"


def load(folder: str | Path) -> Survey:
    """A finished survey from its folder; raises `InputError` for one that is not there, unfinished, or of another format."""
    path = Path(folder)
    known = state.read_manifest(path).get("format")
    if known != state.FORMAT:
        raise InputError(
            f"survey {str(path)!r}: is of format {known!r}, and this version reads {state.FORMAT}; survey into a new folder"
        )
    if not (path / state.SUMMARY).is_file():
        raise InputError(f"survey {str(path)!r}: is not finished; run the same command again, and it goes on")
    return Survey(path)


def write(
    folder: Path, manifest: Mapping[str, Any], quantities: Mapping[str, Quantity], spell: Callable[[int], str]
) -> None:
    """The tables and arrays from what was folded; the summary last, which makes the survey finished.

    `spell` says what a token id reads as.
    """
    arrays, notes = state.load(folder / state.FOLDED)
    names = manifest["observables"]
    heads = [Head(int(layer), int(head)) for layer, head in arrays.get("heads", np.zeros((0, 2), np.int64))]
    of_roles = [row for o, name in enumerate(names) for row in _roles(arrays, heads, o, quantities[name])]
    of_roles.sort(key=lambda row: (row["layer"], row["head"]))
    tables: dict[str, list[Row]] = {
        "heads": [_head(head, of_roles) for head in heads],
        "roles": of_roles,
        "observables": [
            row for n, head in enumerate(heads) for row in _observables(arrays, n, head, names, quantities)
        ],
        "examples": [
            _example(head, rank, one)
            for head, best in zip(heads, notes["examples"] or [[]] * len(heads), strict=True)
            for rank, one in enumerate(best)
        ],
        "tokens": [
            {"id": i, "text": spell(i), "count": count}
            for i, count in zip(*(arrays[name].tolist() for name in ("token_ids", "token_count")), strict=True)
        ]
        if arrays
        else [],
        "bad": notes["bad"],
    }
    for name, rows in tables.items():
        state.write(folder / f"{name}.parquet", _parquet(name, rows))
    kept = {name: arrays[name] for name in KEPT_ARRAYS if name in arrays}
    if "map" in kept:
        kept["map"] = kept["map"] / np.maximum(1, kept["map_queries"])[:, None]
    state.save(folder / ARRAYS, kept, {"buckets a head and observable": BUCKETS, "observables": list(names)})
    summary = {
        "format": manifest["format"],
        "documents": notes["documents"],
        "tokens": int(arrays["tokens"][0]) if arrays else 0,
        "heads": len(heads),
        "bad": reasons(notes["bad"]),
        "quantile relative error": RELATIVE_ERROR,
    }
    state.write(folder / state.SUMMARY, state.plain(summary))
    tidy(folder)


def reasons(bad: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many documents could not be read, by reason."""
    return dict(Counter(one["reason"].split(" (")[0] for one in bad))


def forget(folder: Path) -> None:
    """Remove everything of an unfinished survey, so that the folder can be used for another."""
    tidy(folder)
    (folder / state.MANIFEST).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()  # where it holds nothing else


def tidy(folder: Path) -> None:
    """Remove what only an unfinished survey needs."""
    for name in ("shards", "progress"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / state.FOLDED).unlink(missing_ok=True)


def _roles(arrays: Arrays, heads: list[Head], o: int, quantity: Quantity) -> Iterable[Row]:
    if quantity.role is None:
        return
    for n, head in enumerate(heads):
        count = int(arrays["document_count"][o, n])
        score = float(arrays["document_mean"][o, n]) if count else math.nan
        null = float(arrays["null"][o, n]) / count if count else math.nan
        found = judged(quantity.role, score, null)
        yield {
            "layer": head.layer, "head": head.head, "role": quantity.role, "score": score,
            "standard_error": _error(count, float(arrays["document_squares"][o, n])), "documents": count,
            "uniform": null, "threshold": found.threshold, "labelled": found.labelled,
        }  # fmt: skip


def _head(head: Head, of_roles: list[Row]) -> Row:
    mine = [row for row in of_roles if (row["layer"], row["head"]) == tuple(head)]
    found = label(judged(row["role"], row["score"], row["uniform"]) for row in mine)
    error = next((row["standard_error"] for row in mine if found is not None and row["role"] == found.role), math.nan)
    return {
        "layer": head.layer, "head": head.head, "role": None if found is None else found.role,
        "score": math.nan if found is None else found.score, "standard_error": error,
        "uniform": math.nan if found is None else found.null,
    }  # fmt: skip


def _error(count: int, squares: float) -> float:
    """Standard error of a mean over documents; NaN of fewer than two."""
    return math.sqrt(squares / (count - 1) / count) if count > 1 else math.nan


def _observables(
    arrays: Arrays, n: int, head: Head, names: list[str], quantities: Mapping[str, Quantity]
) -> Iterable[Row]:
    heads = len(arrays["heads"])
    for o, name in enumerate(names):
        count, documents = int(arrays["count"][o, n]), int(arrays["document_count"][o, n])
        first = (o * heads + n) * BUCKETS
        begin, end = np.searchsorted(arrays["sketch_places"], [first, first + BUCKETS])
        places, counts = arrays["sketch_places"][begin:end] - first, arrays["sketch_counts"][begin:end]
        low, high = (float(arrays[which][o, n]) if count else math.nan for which in ("least", "most"))
        read = [min(max(x, low), high) for x in quantities[name].scale.quantiles(places, counts, list(QUANTILES))]
        yield {
            "layer": head.layer, "head": head.head, "observable": name, "count": count,
            "mean": float(arrays["mean"][o, n]) if count else math.nan,
            "variance": float(arrays["squares"][o, n]) / (count - 1) if count > 1 else math.nan,
            "least": low, "most": high,
            **{f"q{round(100 * share):02d}": x for share, x in zip(QUANTILES, read, strict=True)},
            "document_mean": float(arrays["document_mean"][o, n]) if documents else math.nan,
            "document_error": _error(documents, float(arrays["document_squares"][o, n])), "documents": documents,
            "uniform": float(arrays["null"][o, n]) / documents if documents and name in WITH_NULL else math.nan,
        }  # fmt: skip


def _example(head: Head, rank: int, one: Row) -> Row:
    row = {"layer": head.layer, "head": head.head, "rank": rank}
    row |= {name: one[name] for name in ("weight", "document", "name", "query", "key")}
    for which in ("query", "key"):
        before, token, after = one[f"{which}_context"]
        row |= {f"{which}_before": before, f"{which}_token": token, f"{which}_after": after}
    return row


def _parquet(name: str, rows: list[Row]) -> bytes:
    """A table in bytes; its columns have their types even without a row."""
    parquet = pyarrow("parquet")
    import pyarrow as arrow

    whole, real, text = arrow.int64(), arrow.float64(), arrow.string()
    place = [("layer", whole), ("head", whole)]
    columns = {
        "heads": [*place, ("role", text), ("score", real), ("standard_error", real), ("uniform", real)],
        "roles": [
            *place, ("role", text), ("score", real), ("standard_error", real), ("documents", whole), ("uniform", real),
            ("threshold", real), ("labelled", arrow.bool_()),
        ],
        "observables": [
            *place, ("observable", text), ("count", whole), ("mean", real), ("variance", real), ("least", real),
            ("most", real), *((f"q{round(100 * share):02d}", real) for share in QUANTILES), ("document_mean", real),
            ("document_error", real), ("documents", whole), ("uniform", real),
        ],
        "examples": [
            *place, ("rank", whole), ("weight", real), ("document", whole), ("name", text), ("query", whole), ("key", whole),
            *((f"{which}_{part}", text) for which in ("query", "key") for part in ("before", "token", "after")),
        ],
        "tokens": [("id", whole), ("text", text), ("count", whole)],
        "bad": [("number", whole), ("name", text), ("reason", text)],
    }[name]  # fmt: skip
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_pylist(rows, schema=arrow.schema(columns)), sink)
    return bytes(sink.getvalue())


def compare(base: Survey, other: Survey) -> list[Row]:
    """How each head's mean of each observable differs between two surveys, the most certain differences first.

    Rows: layer, head, observable, base, other, difference, standard_error (over documents, those of the two surveys taken as
    independent), z = difference / standard_error, and the roles in both. NaN where fewer than two documents showed anything.
    What a token receives is 1 on average whatever a head does, so `received` is not among them.

    Raises `InputError` for surveys whose models have other heads.
    """
    if base.heads != other.heads:
        raise InputError(
            f"compare: {base.folder} has heads up to {base.heads[-1]}, {len(base.heads)} of them, and {other.folder} up to "
            f"{other.heads[-1]}, {len(other.heads)} of them: only models of the same shape can be compared head by head"
        )
    role = [{(r["layer"], r["head"]): r["role"] for r in survey.table("heads")} for survey in (base, other)]
    rows = []
    theirs = {(r["layer"], r["head"], r["observable"]): r for r in other.table("observables")}
    for mine in base.table("observables"):
        at = (mine["layer"], mine["head"])
        found = theirs.get((*at, mine["observable"]))
        if found is None or mine["observable"] == "received":
            continue
        difference = found["document_mean"] - mine["document_mean"]
        error = math.hypot(mine["document_error"], found["document_error"])
        rows.append(
            {
                "layer": mine["layer"], "head": mine["head"], "observable": mine["observable"],
                "base": mine["document_mean"], "other": found["document_mean"], "difference": difference,
                "standard_error": error, "z": difference / error if error > 0 else math.nan if error != error else (
                    math.copysign(math.inf, difference) if difference else 0.0),
                "base_role": role[0].get(at), "other_role": role[1].get(at),
            }
        )  # fmt: skip
    return sorted(rows, key=lambda r: -abs(r["z"]) if r["z"] == r["z"] else 1.0)
