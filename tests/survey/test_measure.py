"""A survey's numbers are those of looking at every document by itself and averaging by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clearhead import Observables, Trace, watch
from clearhead.models import OwnModel, load
from clearhead.roles import roles
from clearhead.survey import Corpus, Options, Survey, survey
from clearhead.survey.measure import QUANTITIES, _middle
from clearhead.survey.packing import Pack, Piece

TEXTS = [
    "The king is dead. Long live the king. The king is dead, long live the queen.",
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer",
    "a b a b a b a b a b a b",
    "Short.",
    "Now is the winter of our discontent made glorious summer by this sun of York; and all the clouds that lour'd",
]
LENGTH = 24  # so that some documents are cut


@pytest.fixture(scope="module")
def model() -> OwnModel:
    return load("builtin")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for n, text in enumerate(TEXTS):
        (folder / f"{n}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def found(model: OwnModel, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Survey:
    options = Options(length=LENGTH, shard_documents=2, examples=3)
    done = survey(model, Corpus([corpus]), tmp_path_factory.mktemp("found") / "out", options)
    assert done is not None
    return done


@pytest.fixture(scope="module")
def alone(model: OwnModel) -> list[list[tuple[Trace, list[int]]]]:
    """Every piece of every document, looked at by itself."""
    made = []
    for text in TEXTS:
        ids = model.encode_part(text)
        pieces = [[0, *ids[n : n + LENGTH - 1]] for n in range(0, len(ids), LENGTH - 1)]
        traces = []
        for piece in pieces:
            want = Observables(sum_squares=True, distance_histogram=True, top_k=4, token_ids=torch.tensor(piece))
            with torch.no_grad(), watch(model.network, observables=want) as trace:
                model.network(torch.tensor([piece]))
            trace.token_ids = piece
            traces.append((trace, piece))
        made.append(traces)
    return made


def values(trace: Trace, ids: list[int], name: str) -> np.ndarray:
    """One quantity on the queries it is meant on, (N, some)."""
    if name == "local_weight":
        near = [call.observation.distance_histogram[0, :, 8:, :4].sum(-1).double().numpy() for call in trace.calls]
        return np.concatenate(near)
    x = np.concatenate([getattr(call.observation, name)[0].double().numpy() for call in trace.calls])
    if name in ("self_weight", "previous_weight", "first_weight", "entropy_share"):
        return x[:, 1:]
    if name in ("same_token", "after_same_token"):
        return x[:, [n for n in range(len(ids)) if ids[n] in ids[:n]]]
    return x


@pytest.mark.parametrize("name", [name for name in QUANTITIES if name != "sink"])
def test_means_variances_and_quantiles_are_those_of_all_tokens(name: str, found: Survey, alone: Any) -> None:
    every = np.concatenate([values(*piece, name) for of in alone for piece in of], 1)
    rows = [row for row in found.table("observables") if row["observable"] == name]
    assert len(rows) == len(every) == len(found.heads)
    for row, x in zip(rows, every, strict=True):
        assert row["count"] == len(x)
        assert row["mean"] == pytest.approx(x.mean(), abs=1e-5, rel=1e-5)
        assert row["variance"] == pytest.approx(x.var(ddof=1), abs=1e-5, rel=1e-4)
        assert row["least"] == pytest.approx(x.min(), abs=1e-5, rel=1e-5)
        assert row["most"] == pytest.approx(x.max(), abs=1e-5, rel=1e-5)
        for share, column in ((0.05, "q05"), (0.5, "q50"), (0.95, "q95")):
            ordered = np.sort(x)
            true = ordered[math.ceil(share * len(x)) - 1]
            near = ordered[np.abs(ordered - true) < 2e-5]  # rounding may swap neighbours
            allowed = found.summary["quantile relative error"] * np.abs(near).max() + 2e-5
            assert abs(row[column] - true) <= allowed + abs(near - true).max()
        of_documents = [np.concatenate([values(*piece, name) for piece in of], 1) for of in alone]
        means = np.array(
            [part[len(means_of)].mean() for means_of in [rows[: rows.index(row)]] for part in of_documents if part.size]
        )
        assert row["documents"] == len(means)
        assert row["document_mean"] == pytest.approx(means.mean(), abs=1e-5, rel=1e-5)
        assert row["document_error"] == pytest.approx(means.std(ddof=1) / math.sqrt(len(means)), abs=1e-5, rel=1e-3)


def test_uniform_attention_has_what_is_said_of_it(found: Survey, alone: Any) -> None:
    def of_piece(name: str, T: int) -> list[float]:
        keys = np.arange(1, T + 1)
        if name == "entropy":
            return list(np.log(keys))
        return list((keys - 1) / 2 if name == "distance" else 1 / keys)

    for row in found.table("observables"):
        if row["observable"] in ("max_logit", "received"):
            assert math.isnan(row["uniform"])
        if row["observable"] in ("entropy", "distance", "max_weight", "sum_squares"):
            means = [np.mean([x for _, ids in of for x in of_piece(row["observable"], len(ids))]) for of in alone]
            assert row["uniform"] == pytest.approx(np.mean(means), rel=1e-9)
    scores = {(r["layer"], r["head"], r["role"]): r["uniform"] for r in found.table("roles")}
    for row in found.table("observables"):
        if role := QUANTITIES[row["observable"]].role:
            assert row["uniform"] == scores[row["layer"], row["head"], role]


@pytest.mark.parametrize(
    ("seen", "middles"),
    [
        ([1, 2, 3, 1, 2], [0, 0.5, 1, 0, 0.5]),  # looking back, two texts of 3 and 2 tokens
        ([1, 2, 2, 1, 2], [0, 0.5, 0.5, 0, 0.5]),  # in a window of two keys
        ([3, 3, 3, 2, 2], [-1, 0, 1, -0.5, 0.5]),  # everywhere
        ([2, 3, 2, 2, 2], [math.nan] * 5),  # one ahead: a number of keys does not say which
    ],
)
def test_the_middle_of_the_keys_in_sight(seen: list[int], middles: list[float]) -> None:
    pack = Pack((Piece(0, 0, (5, 6, 7)), Piece(1, 0, (8, 9))))
    assert _middle(np.array(seen, float), pack).tolist() == pytest.approx(middles, nan_ok=True)


def test_tokens_are_listed_with_what_they_read_as(model: OwnModel, found: Survey, alone: Any) -> None:
    counts: dict[int, int] = {}
    for of in alone:
        for _, ids in of:
            for i in ids:
                counts[i] = counts.get(i, 0) + 1
    assert [(row["id"], row["text"], row["count"]) for row in found.table("tokens")] == [
        (i, model.pieces([i])[0], counts[i]) for i in sorted(counts)
    ]


def test_roles_are_the_mean_of_the_documents_own_roles(model: OwnModel, tmp_path: Path) -> None:
    """Documents of one piece each, for which clearhead.roles gives a score."""
    texts = [TEXTS[0], TEXTS[1], TEXTS[2]]
    for n, text in enumerate(texts):
        (tmp_path / f"{n}.txt").write_text(text, encoding="utf-8")
    done = survey(model, Corpus([tmp_path]), tmp_path / "out", Options(length=200))
    assert done is not None
    expected: dict[tuple[int, int, str], list[tuple[float, float]]] = {}
    for text in texts:
        ids = model.encode(text)
        want = Observables(token_ids=torch.tensor(ids), distance_histogram=True)
        with torch.no_grad(), watch(model.network, observables=want) as trace:
            model.network(torch.tensor([ids]))
        trace.token_ids = ids
        for head, scores in roles(trace).items():
            for score in scores:
                if not math.isnan(score.score):
                    expected.setdefault((*head, score.role), []).append((score.score, score.null))
    rows = done.table("roles")
    assert len(rows) == len(expected) == 7 * len(done.heads)
    for row in rows:
        scores = expected[row["layer"], row["head"], row["role"]]
        assert row["documents"] == len(scores)
        assert row["score"] == pytest.approx(np.mean([s for s, _ in scores]), abs=1e-5)
        assert row["uniform"] == pytest.approx(np.mean([n for _, n in scores]), abs=1e-6)
    assert {row["role"] for row in done.table("heads")} >= {"previous-token", "induction"}


def test_the_map_and_received_weights_are_sums_of_the_texts(found: Survey, alone: Any) -> None:
    bins = found.arrays["map"].shape[1]
    sums, queries = np.zeros(found.arrays["map"].shape), np.zeros(bins)
    received, viewers = (
        np.zeros(found.arrays["position_received"].shape),
        np.zeros(found.arrays["position_received"].shape),
    )
    by_token: dict[int, np.ndarray] = {}
    for of in alone:
        for trace, ids in of:
            histogram = np.concatenate([c.observation.distance_histogram[0].double().numpy() for c in trace.calls])
            got = np.concatenate([c.observation.received[0].double().numpy() for c in trace.calls])
            for i, token in enumerate(ids):
                sums[:, i.bit_length(), : histogram.shape[2]] += histogram[:, i]
                queries[i.bit_length()] += 1
                received[:, i] += got[:, i]
                viewers[:, i] += len(ids) - i
                by_token[token] = by_token.get(token, 0) + got[:, i]
    np.testing.assert_allclose(found.arrays["map"], sums / np.maximum(1, queries)[:, None], atol=1e-5)
    assert found.arrays["map_queries"].tolist() == queries.tolist()
    np.testing.assert_allclose(found.arrays["position_received"], received, atol=1e-4)
    assert (found.arrays["position_viewers"] == viewers).all()
    assert found.arrays["token_ids"].tolist() == sorted(by_token)
    for n, token in enumerate(sorted(by_token)):
        np.testing.assert_allclose(found.arrays["token_received"][:, n], by_token[token], atol=1e-4)
    assert found.arrays["token_count"].sum() == found.summary["tokens"] == queries.sum()


def test_examples_are_the_strongest_looks_at_something_else_than_the_first_token(
    model: OwnModel, found: Survey, alone: Any
) -> None:
    for n, head in enumerate(found.heads):
        best = []
        for d, of in enumerate(alone):
            looks = []
            for p, (trace, ids) in enumerate(of):
                keys = np.concatenate([c.observation.top_keys[0].numpy() for c in trace.calls])[n]
                weights = np.concatenate([c.observation.top_weights[0].numpy() for c in trace.calls])[n]
                for i in range(7, len(ids)):
                    k = 1 if keys[i, 0] == 0 else 0
                    looks.append(
                        (float(weights[i, k]), p * (LENGTH - 1) + i - 1, p * (LENGTH - 1) + int(keys[i, k]) - 1)
                    )
            if looks:
                best.append((max(looks)[0], d, looks))
        best.sort(key=lambda x: (-x[0], x[1]))
        rows = found.examples(head)
        assert len(rows) == 3
        for row, (weight, document, looks) in zip(rows, best, strict=False):
            assert row["weight"] == pytest.approx(weight, abs=1e-5)
            if row["document"] == document:
                near = [look[1:] for look in looks if look[0] > weight - 1e-5]
                assert (row["query"], row["key"]) in near
            ids = model.encode_part(TEXTS[row["document"]])
            assert row["name"] == f"{row['document']}.txt"
            assert row["query_token"] == model.pieces([ids[row["query"]]])[0]
            assert row["key_token"] == model.pieces([ids[row["key"]]])[0]


@pytest.mark.parametrize("shard", [4, 9])
def test_no_example_is_there_twice(shard: int, model: OwnModel, tmp_path: Path) -> None:
    """A corpus of copies has few looks that differ, within a shard and across shards."""
    for n in range(9):
        (tmp_path / f"{n}.txt").write_text(TEXTS[(0, 1, 4)[n % 3]], encoding="utf-8")
    done = survey(model, Corpus([tmp_path]), tmp_path / "out", Options(length=200, shard_documents=shard, examples=3))
    assert done is not None
    for head in done.heads:
        rows = done.examples(head)
        assert {row["document"] % 3 for row in rows} == {0, 1, 2}  # which of the copies: rounding says
        assert [row["rank"] for row in rows] == [0, 1, 2]
        assert [row["weight"] for row in rows] == sorted((row["weight"] for row in rows), reverse=True)


def test_packing_changes_nothing_but_the_time(model: OwnModel, corpus: Path, tmp_path: Path) -> None:
    both = []
    for pack in (True, False):
        done = survey(model, Corpus([corpus]), tmp_path / str(pack), Options(length=200, pack=pack))
        assert done is not None
        both.append(done)
    packed, apart = both
    assert packed.arrays["position_viewers"].tolist() == apart.arrays["position_viewers"].tolist()
    np.testing.assert_allclose(packed.arrays["map"], apart.arrays["map"], atol=1e-5)
    np.testing.assert_allclose(packed.arrays["position_received"], apart.arrays["position_received"], atol=1e-4)
    for one, other in zip(packed.table("observables"), apart.table("observables"), strict=True):
        assert one["mean"] == pytest.approx(other["mean"], abs=1e-5)
