from __future__ import annotations

import pytest
import torch
from training.data import Corpus, clean
from training.train import Phase, Plan, Run

from clearhead.models.transformer import Config

PLAN = Plan(
    config=Config(vocabulary=1024, layers=1, heads=2, width=8, hidden=16, context=64),
    phases=(Phase(3, 4, 16), Phase(3, 2, 32)),
    warmup=2,
)


def corpus() -> Corpus:
    made = Corpus.__new__(Corpus)  # the batches need tokens, not the archive they come from
    made.tokens = torch.arange(5000) % 1023 + 1
    return made


def test_an_interrupted_run_ends_with_the_weights_of_an_undisturbed_one(tmp_path):
    whole = Run(PLAN, corpus())
    losses = [whole.advance() for _ in range(PLAN.steps)]
    first = Run(PLAN, corpus())
    for _ in range(2):
        first.advance()
    first.save(tmp_path)
    second = Run(PLAN, corpus())
    assert second.resume(tmp_path)
    again = [second.advance() for _ in range(PLAN.steps - 2)]
    assert again == losses[2:]
    for a, b in zip(whole.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_folder_of_another_plan_is_refused(tmp_path):
    run = Run(PLAN, corpus())
    run.advance()
    run.save(tmp_path)
    other = Run(Plan(config=PLAN.config, phases=PLAN.phases, warmup=2, seed=9), corpus())
    with pytest.raises(SystemExit, match="differs in seed"):
        other.resume(tmp_path)


def test_an_empty_folder_starts_anew(tmp_path):
    assert not Run(PLAN, corpus()).resume(tmp_path / "nothing")


def test_half_of_a_batch_repeats_and_its_first_copy_is_not_learnt_from():
    rows, learn = corpus().batch(step=5, seed=1, size=8, length=64)
    assert (rows[:, 0] == 0).all()
    assert learn[::2].all()
    for row, known in zip(rows[1::2], learn[1::2], strict=True):
        period = int((~known).sum())
        assert torch.equal(row[1 + period :], row[1:-period])
    again, _ = corpus().batch(step=5, seed=1, size=8, length=64)
    assert torch.equal(rows, again)
    assert not torch.equal(rows, corpus().batch(step=6, seed=1, size=8, length=64)[0])


def test_the_learning_rate_warms_up_and_ends_low():
    plan = Plan()
    assert plan.rate(0) < plan.rate(50) < plan.rate(plan.warmup) == pytest.approx(plan.peak)
    assert plan.rate(plan.steps - 1) < 0.02 * plan.peak


def test_texts_are_cleaned_without_losing_words():
    assert clean("a \r\n\r\n\r\n\r\nb\t\n") == "a\n\nb\n"


def test_phases_follow_each_other():
    assert [PLAN.phase(step).length for step in range(PLAN.steps)] == [16] * 3 + [32] * 3
