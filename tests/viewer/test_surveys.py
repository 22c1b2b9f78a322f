"""What the page may ask of surveys: every number is the survey's own, and what cannot be asked is refused in words."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest

from clearhead.addresses import Head
from clearhead.errors import InputError
from clearhead.survey import compare, load
from clearhead.viewer.packed import Answer, unpack
from clearhead.viewer.surveys import Surveys
from surveyed import two_surveys


@pytest.fixture(scope="module")
def surveys(tmp_path_factory):
    return Surveys(two_surveys(tmp_path_factory.mktemp("surveys")))


def test_the_page_hears_what_is_shown(surveys):
    assert surveys.ask("shown", {}).facts == {"shown": "surveys"}
    assert surveys.ask("surveys", {}).facts == {
        "surveys": [{"survey": 0, "name": "base"}, {"survey": 1, "name": "tuned"}]
    }


def test_surveys_of_one_name_are_told_apart_by_their_folders(surveys):
    one = surveys.shapes[0].survey
    names = [each["name"] for each in Surveys([one, one]).ask("surveys", {}).facts["surveys"]]
    assert names == [str(one.folder)] * 2


def test_heads_have_their_roles_errors_and_nulls(surveys):
    found = surveys.shapes[0].survey
    document = surveys.ask("survey", {}).facts
    assert json.loads(Answer(document).json()) == document  # nothing that JSON cannot hold
    assert (document["documents"], document["read"], document["bad"]) == (5, found.summary["tokens"], {"not UTF-8": 1})
    rows = {(r["layer"], r["head"], r["role"]): r for r in found.table("roles")}
    measured = {(r["layer"], r["head"], r["observable"]): r for r in found.table("observables")}
    assert [head["head"] for head in document["heads"]] == [str(head) for head in found.heads]
    for head in document["heads"]:
        for role in head["roles"]:
            row = rows[head["layer"], head["index"], role["role"]]
            for key, column in (("score", "score"), ("error", "standard_error"), ("null", "uniform")):
                assert role[key] == (None if math.isnan(row[column]) else row[column])
        assert set(head["values"]) == {"entropy", "max_weight", "max_logit", "sum_squares", "distance"}
        for name, value in head["values"].items():
            row = measured[head["layer"], head["index"], name]
            assert value == row["document_mean"]
            assert head["errors"][name] == row["document_error"]
            assert head["nulls"][name] == (None if math.isnan(row["uniform"]) else row["uniform"])
    assert document["notable"] == "L1H3"  # the previous-token head
    for name, (low, high) in document["ranges"].items():
        several = [row for at, row in measured.items() if at[2] == name]
        assert low <= min(row["q01"] for row in several) <= max(row["q99"] for row in several) <= high


def test_maps_are_cut_to_what_a_text_reached(surveys):
    found = surveys.shapes[0].survey.arrays
    maps = surveys.ask("maps", {"survey": "0"}).arrays
    reached = int(np.flatnonzero(found["map_queries"])[-1]) + 1
    assert reached < found["map"].shape[1]  # texts are shorter than sequences may be
    for n, packed in enumerate(maps.values()):
        assert packed.shape == (reached, reached)
        np.testing.assert_allclose((packed / 65535) ** 2, found["map"][n, :reached, :reached], atol=2e-5)


def test_a_head_has_its_distances_received_weights_tokens_and_looks(surveys):
    found = surveys.shapes[0].survey
    answer = unpack(surveys.ask("head", {"survey": "0", "head": "L2H1"}).packed())
    n = found.heads.index(Head(2, 1))
    arrays, tokens = found.arrays, found.summary["tokens"]
    assert answer.arrays["distance"].sum() == pytest.approx(1, abs=1e-5)  # every token gives 1
    weights = arrays["map"][n] * arrays["map_queries"][:, None]
    np.testing.assert_allclose(answer.arrays["distance"], weights.sum(0)[: len(answer.arrays["distance"])] / tokens)
    bins = [int(p).bit_length() for p in range(len(arrays["positions"]))]
    for b, value in enumerate(answer.arrays["received"]):
        inside = [p for p, bin_ in enumerate(bins) if bin_ == b]
        assert value == pytest.approx(arrays["position_received"][n, inside].sum())
    row = next(r for r in answer.facts["measured"] if r["observable"] == "distance")
    table = next(
        r for r in found.table("observables") if (r["layer"], r["head"], r["observable"]) == (2, 1, "distance")
    )
    assert {key: row[key] for key in ("q05", "q50", "uniform")} == {
        key: table[key] for key in ("q05", "q50", "uniform")
    }
    assert [look["weight"] for look in answer.facts["examples"]] == [
        look["weight"] for look in found.examples(Head(2, 1))
    ]
    text, count, each, share = answer.facts["tokens"][0]
    most = int(np.argmax(arrays["token_received"][n]))
    assert (text, count) == (found.table("tokens")[most]["text"], arrays["token_count"][most])
    assert each == pytest.approx(arrays["token_received"][n, most] / count)
    assert share == pytest.approx(arrays["token_received"][n, most] / tokens, abs=1e-5)


def test_uniform_attention_is_what_a_head_would_have_that_looks_evenly(surveys):
    """The second survey's L1H0 was made to look evenly: it has its null."""
    answer = surveys.ask("head", {"survey": "1", "head": "L1H0"})
    np.testing.assert_allclose(answer.arrays["distance"], answer.arrays["distance_null"], atol=1e-5)
    np.testing.assert_allclose(answer.arrays["received"], answer.arrays["received_null"], rtol=1e-4, atol=1e-4)
    for row in answer.facts["measured"]:
        if row["uniform"] is not None and "same" not in row["observable"]:
            assert row["document_mean"] == pytest.approx(row["uniform"], abs=1e-3), row["observable"]


def test_where_texts_are_seen_in_part_nothing_is_said_of_uniform_attention(surveys):
    shape = surveys.shapes[0]
    held = shape.arrays["position_viewers"]
    shape.arrays["position_viewers"] = np.minimum(held, 3)  # as a window would have it
    try:
        arrays = surveys.ask("head", {"head": "L0H0"}).arrays
        assert "distance" in arrays
        assert "distance_null" not in arrays
    finally:
        shape.arrays["position_viewers"] = held


def test_a_difference_stands_beside_the_error_of_both_surveys(surveys):
    base, tuned = (shape.survey for shape in surveys.shapes)
    of_each = [{(r["layer"], r["head"], r["observable"]): r for r in one.table("observables")} for one in (base, tuned)]
    rows = compare(base, tuned)
    assert any(row["z"] not in (0.0, math.inf) for row in rows)
    for row in rows:
        mine, theirs = (table[row["layer"], row["head"], row["observable"]] for table in of_each)
        error = math.sqrt(mine["document_error"] ** 2 + theirs["document_error"] ** 2)
        assert row["difference"] == pytest.approx(theirs["document_mean"] - mine["document_mean"])
        assert row["standard_error"] == pytest.approx(error)
        if error > 0:
            assert row["z"] == pytest.approx(row["difference"] / error)


def test_differences_are_those_of_compare_in_its_order(surveys):
    base, tuned = (shape.survey for shape in surveys.shapes)
    answer = surveys.ask("differences", {"a": "0", "b": "1"}).facts
    want = compare(base, tuned)
    assert len(answer["rows"]) == len(want)
    for got, row in zip(answer["rows"], want, strict=True):
        assert got[:2] == [f"L{row['layer']}H{row['head']}", row["observable"]]
        assert got[2:6] == [row[name] for name in ("base", "other", "difference", "standard_error")]
    assert ["L1H0", "first-token", "broad"] in answer["roles"]


@pytest.mark.parametrize(
    ("question", "parameters", "why"),
    [
        ("trace", {}, "question 'trace': expected one of shown, surveys, survey, maps, head, differences"),
        ("survey", {"survey": "2"}, "survey: expected a number below 2, got 2. Ask for surveys."),
        ("head", {"head": "L9H0"}, "head L9H0: the survey has none; it has L0H0 to L3H5"),
        ("head", {"head": "x"}, "head 'x': expected an address such as L2H3"),
        ("differences", {"b": "7"}, "b: expected a number below 2, got 7. Ask for surveys."),
        ("maps", {"pool": "max"}, "maps: takes survey, and not 'pool'"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(surveys, question, parameters, why):
    with pytest.raises(InputError) as error:
        surveys.ask(question, parameters)
    assert why in str(error.value)


def test_a_folder_that_goes_away_is_still_shown_and_a_damaged_one_is_named(surveys, tmp_path):
    folder = tmp_path / "found"
    shutil.copytree(surveys.shapes[0].survey.folder, folder)
    shown = Surveys([load(folder)])
    shutil.move(folder, tmp_path / "elsewhere")
    for question, parameters in (("survey", {}), ("maps", {}), ("head", {"head": "L1H0"})):
        assert shown.ask(question, parameters).facts is not None
    for name in ("tokens", "roles"):
        damaged = tmp_path / "elsewhere" / f"{name}.parquet"
        damaged.write_bytes(damaged.read_bytes()[:-9])
        with pytest.raises(InputError, match=rf"survey: .*{name}.parquet is damaged or gone; survey into a new folder"):
            Surveys([load(tmp_path / "elsewhere")])
