from __future__ import annotations

import math

import pytest
import torch

import watch_architectures as made
from clearhead import Observables, Window, attention, watch
from clearhead.addresses import Head
from clearhead.errors import ArgumentError
from clearhead.roles import ROLES, RoleScore, calibrate, label, looked_up, retrieval, roles
from planted import PATTERNS, Planted, first, induction, previous, uniform


def traced(ids: torch.Tensor):
    model = Planted(list(PATTERNS.values()))
    with watch(model, observables=Observables(token_ids=ids)) as trace:
        model(ids[None])
    trace.token_ids = ids.tolist()
    return trace


def repeated(period: int = 40) -> torch.Tensor:
    once = torch.randperm(500)[:period]
    return torch.cat([once, once])


@pytest.mark.tiny
def test_every_role_is_found_where_planted_and_nowhere_else():
    found = roles(traced(repeated()))
    for h, planted in enumerate(PATTERNS):
        labelled = [s.role for s in found[Head(0, h)] if s.labelled]
        # On two copies of one text only, what followed the earlier equal token is never a neighbour: roles stay apart.
        assert labelled == [planted], (planted, found[Head(0, h)])
        assert label(found[Head(0, h)]).role == planted


def test_scores_of_planted_heads_are_one_and_nulls_are_exact():
    ids = repeated(10)
    T = len(ids)
    found = roles(traced(ids))
    by_role = {name: {s.role: s for s in found[Head(0, h)]} for h, name in enumerate(PATTERNS)}
    for name in ROLES[:-2]:  # broad is never 1 to the last digit, local is not measured unless asked for
        assert by_role[name][name].score == pytest.approx(1.0, abs=1e-6)
    harmonic = sum(1 / n for n in range(1, T + 1))
    assert by_role["self"]["previous-token"].null == pytest.approx((harmonic - 1) / (T - 1))
    second = (
        sum(1 / (i + 1) for i in range(10, 20)) / 10
    )  # each query of the second copy has one match among i + 1 keys
    assert by_role["self"]["induction"].null == pytest.approx(second)
    # A uniform head scores its nulls.
    for score in found[Head(0, list(PATTERNS).index("broad"))]:
        assert score.score == pytest.approx(score.null, abs=1e-6)


def test_a_role_no_token_can_show_is_nan_and_not_labelled():
    found = roles(traced(torch.arange(12)))
    scores = {s.role: s for s in found[Head(0, 0)]}
    assert math.isnan(scores["induction"].score)
    assert not scores["induction"].labelled


def test_token_roles_are_left_out_without_token_ids():
    with watch() as trace:  # no module is known, so neither are the tokens it is given
        Planted([previous])(torch.arange(9)[None])
    assert [s.role for s in roles(trace)[Head(0, 0)]] == ["previous-token", "first-token", "self", "broad"]


def test_uniform_attention_on_a_short_text_earns_no_label_but_broad():
    model = Planted([uniform])
    ids = torch.tensor([5, 5, 5])
    with watch(model, observables=Observables(token_ids=ids)) as trace:
        model(ids[None])
    trace.token_ids = ids.tolist()
    assert [s.role for s in roles(trace)[Head(0, 0)] if s.labelled] == ["broad"]


def test_calibration_scores_planted_heads_as_planted():
    found = calibrate(Planted([previous, induction, first]), 500, period=12, seeds=3)
    expected = {"previous-token": Head(0, 0), "induction": Head(0, 1), "first-token": Head(0, 2)}
    for role, head in expected.items():
        for other, scores in found.items():
            if other == head:
                assert scores[role].mean > 0.9
            else:
                assert scores[role].mean < 0.35
    assert found[Head(0, 0)]["previous-token"].error < 1e-6


def test_calibrated_induction_leaves_the_first_token_out():
    """A head that always looks at key 0 would earn 1/L from the off-by-one diagonal; it earns nothing."""
    found = calibrate(Planted([first]), 500, period=8, seeds=2)
    assert found[Head(0, 0)]["induction"].mean == pytest.approx(0.0, abs=1e-9)


def test_calibration_after_a_bos_token_counts_from_the_copies():
    found = calibrate(Planted([induction]), 400, period=10, seeds=2, bos=499)
    assert found[Head(0, 0)]["induction"].mean == pytest.approx(1.0, abs=1e-6)


def test_what_a_window_hides_is_in_no_score_and_no_null():
    """A head that attends evenly within its window scores its nulls; what lies beyond the window cannot be shown."""
    ids = torch.tensor([7, 1, 2, 7, 3, 4, 5, 6, 7, 8, 7])
    with watch(observables=Observables(token_ids=ids)) as trace:
        attention(torch.zeros(1, 1, 11, 4), torch.zeros(1, 1, 11, 4), torch.zeros(1, 1, 11, 4), mask=Window(4))
    trace.token_ids = ids.tolist()
    found = {s.role: s for s in roles(trace)[Head(0, 0)]}
    assert found["duplicate-token"].score == pytest.approx((1 / 4 + 1 / 4) / 2)  # 7 at 3 sees 7 at 0, 7 at 10 that at 8
    assert found["induction"].score == pytest.approx((1 / 4 + 1 / 4) / 2)
    for score in found.values():
        assert score.score == pytest.approx(score.null, abs=1e-6), score


def test_calibration_under_a_window_shorter_than_the_period_says_that_it_cannot_know():
    model = made.DECODERS["mistral"]().eval()
    window = model.config.sliding_window
    far, near = (calibrate(model, 64, period=n, seeds=2)[Head(0, 0)] for n in (window + 1, window - 1))
    assert math.isnan(far["induction"].mean)
    assert not far["induction"].labelled
    assert far["self"].mean == pytest.approx(far["self"].null, rel=0.5)
    assert near["induction"].null == pytest.approx(1 / window)


@pytest.mark.parametrize(
    ("network", "told"),
    [
        (made.t5, "got T5ForConditionalGeneration, an encoder-decoder"),
        (lambda: made.hf.ViTModel(made.hf.ViTConfig(num_hidden_layers=1)), "got ViTModel, which reads pixel_values"),
    ],
)
def test_calibration_needs_a_model_that_reads_one_text(network, told):
    with pytest.raises(ArgumentError, match=rf"network: expected a model that reads one text of token ids, {told}"):
        calibrate(network(), 64)


def test_calibration_needs_two_seeds():
    with pytest.raises(ArgumentError, match="seeds: expected an integer >= 2, got 1"):
        calibrate(Planted([first]), 500, seeds=1)


def four_back(ids, i):
    return max(0, i - 4)


def test_a_local_head_is_found_and_heads_that_look_at_one_place_keep_their_names():
    ids = torch.randperm(500)[:60]
    model = Planted([four_back, previous, first, uniform])
    with watch(model, observables=Observables(distance_histogram=True, token_ids=ids)) as trace:
        model(ids[None])
    labels = [label(scores).role for scores in roles(trace).values()]
    assert labels == ["local", "previous-token", "first-token", "broad"]
    scores = {s.role: s for s in roles(trace)[Head(0, 3)]}
    assert scores["local"].score == pytest.approx(scores["local"].null, abs=1e-6)
    assert scores["local"].null == pytest.approx(sum(8 / (i + 1) for i in range(8, 60)) / 52)


def test_a_name_does_not_depend_on_whether_local_was_measured():
    earned = [RoleScore("previous-token", 0.61, 0.07, 0.54, True), RoleScore("local", 0.9, 0.1, 0.6, True)]
    assert label(earned).role == label(earned[:1]).role == "previous-token"
    assert label([*earned[1:], RoleScore("broad", 0.95, 1.0, 0.9, True)]).role == "local"


def test_retrieval_counts_tokens_copied_out_of_the_needle():
    needle = torch.randperm(400)[:6] + 50
    ids = torch.cat([torch.arange(10), needle, torch.arange(20, 30), needle])  # the last six are written
    where = {int(t): 10 + n for n, t in enumerate(needle)}

    def copying(ids, i):
        """The query that writes a token of the needle looks at it there."""
        return where.get(ids[i + 1]) if 25 <= i < len(ids) - 1 else None

    def half(ids, i):
        return copying(ids, i) if i % 2 else 0

    model = Planted([copying, half, first, uniform])
    with watch(model) as trace:
        model(ids[None])
    found = retrieval(trace, range(10, 16), range(26, 32))
    assert [found[Head(0, h)].score for h in range(4)] == [1.0, 0.5, 0.0, 0.0]
    assert found[Head(0, 0)].null == pytest.approx(sum(1 / (i + 1) for i in range(25, 31)) / 6)
    assert [found[Head(0, h)].labelled for h in range(4)] == [True, False, False, False]
    places = looked_up(trace, range(26, 32))
    assert places[Head(0, 0)] == [*range(10, 16)]
    assert places[Head(0, 1)] == [10, -1, 12, -1, 14, -1]
    assert places[Head(0, 2)] == places[Head(0, 3)] == [-1] * 6
    told = r"written: expected positions of tokens that were written, .* of a text of 32"
    for none in (range(0), range(26, 99)):
        with pytest.raises(ArgumentError, match=told):
            retrieval(trace, range(10, 16), none)
