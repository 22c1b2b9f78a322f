"""Surveys that are killed, stopped, or asked for something else: with real signals, and the same bytes at the end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clearhead.errors import InputError
from clearhead.models import load as load_model
from clearhead.survey import Corpus, Options, compare, load, state, survey
from clearhead.survey.progress import Progress
from commands import in_process
from surveyed import two_surveys

WORDS = [
    "the",
    "king",
    "and",
    "queen",
    "of",
    "denmark",
    "said",
    "that",
    "time",
    "is",
    "out",
    "of",
    "joint",
    "and",
    "night",
    "was",
    "long",
    "before",
    "the",
    "sun",
    "came",
    "up",
    "again",
]


def corpus(folder: Path, documents: int = 60) -> Path:
    """Documents of up to two hundred words, some of which cannot be read."""
    folder.mkdir()
    for n in range(documents):
        words = [WORDS[(n * i + i * i) % len(WORDS)] for i in range(40 + 97 * n % 150)]
        (folder / f"{n:03d}.txt").write_text(f"Scene {n}. " + " ".join(words), encoding="utf-8")
    (folder / "007.txt").write_bytes(b"\xff\xfe")
    (folder / "033.txt").write_text("  \n", encoding="utf-8")
    return folder


def command(texts: Path, out: Path, *more: str, length: int = 128) -> list[str]:
    run = ["survey", "builtin", str(texts), "--out", str(out), "--length", str(length), "--shard-documents", "4"]
    return [sys.executable, "-m", "clearhead", *run, *more]


@contextlib.contextmanager
def ranks(words: list[str], count: int, **how: object) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of one run, as torchrun starts them; none outlives the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    running = []
    for rank in range(count):
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        if count > 1:
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
            env |= own | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        running.append(subprocess.Popen(words, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    try:
        yield running
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.communicate()


def finish(words: list[str], count: int = 1) -> list[str]:
    """Run to the end; what each rank said."""
    with ranks(words, count) as running:
        told = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0] * count, told
    return [out for out, _ in told]


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def until(holds: object, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("texts") / "corpus")


@pytest.fixture(scope="module")
def whole(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed survey by one process."""
    out = tmp_path_factory.mktemp("whole") / "out"
    told = finish(command(texts, out))
    assert "builtin: 58 documents" in told[0]
    return out


def test_what_was_read_and_what_could_not_be_is_told(whole: Path) -> None:
    found = load(whole)
    assert {path.name for path in whole.iterdir()} == {
        "survey.json", "summary.json", "arrays.safetensors",
        *(f"{name}.parquet" for name in ("heads", "roles", "observables", "examples", "tokens", "bad")),
    }  # fmt: skip
    assert found.summary["bad"] == {"empty": 1, "not UTF-8": 1}
    assert [(row["number"], row["name"], row["reason"]) for row in found.table("bad")] == [
        (7, "007.txt", "not UTF-8 (byte 0)"), (33, "033.txt", "empty"),
    ]  # fmt: skip
    assert repr(found).startswith("Survey('builtin', 58 documents, ")


@pytest.mark.parametrize("count", [2, 4])
def test_the_number_of_ranks_changes_no_bit(count: int, texts: Path, whole: Path, tmp_path: Path) -> None:
    told = finish(command(texts, tmp_path / "out"), count)
    assert told[1:] == [""] * (count - 1)
    assert digest(tmp_path / "out") == digest(whole)


def shards_there(out: Path, least: int) -> object:
    return lambda: len(list((out / "shards").glob("0*"))) >= least or (out / "folded.safetensors").exists()


def test_a_killed_survey_goes_on_and_ends_with_the_same_bytes(texts: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for count, least in ((2, 1), (1, 5)):  # all ranks killed, at different places, then another number of ranks
        with ranks(command(texts, out), count) as running:
            until(shards_there(out, least))
            for process in running:
                process.send_signal(signal.SIGKILL)
            assert {process.wait() for process in running} == {-signal.SIGKILL}
        assert not (out / "summary.json").exists()
        with pytest.raises(InputError, match="is not finished; run the same command again, and it goes on"):
            load(out)
    finish(command(texts, out), 2)
    assert digest(out) == digest(whole)
    assert "58 documents" in finish(command(texts, out))[0]  # finished already: said again, nothing done
    assert digest(out) == digest(whole)


def test_when_one_rank_is_killed_the_other_keeps_what_it_did(texts: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ranks(command(texts, out), 2) as running:
        until(shards_there(out, 1))
        running[1].send_signal(signal.SIGKILL)
        until(
            lambda: (
                not (out / "progress" / "0.json").exists()
                or json.loads((out / "progress" / "0.json").read_text())["finished"]
            )
        )
        running[0].send_signal(signal.SIGINT)  # it would wait ten minutes for the other
        assert running[0].wait(120) == 130
        assert "the same command goes on where" in running[0].stderr.read()  # type: ignore[union-attr]
    done = state.folded(out) + len(list((out / "shards").glob("0*")))
    assert done >= 7  # rank 0's half of 15 shards, at the least
    finish(command(texts, out))
    assert digest(out) == digest(whole)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_an_end_from_outside_leave_a_folder_to_go_on_with(
    sent: signal.Signals, code: int, texts: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with ranks(command(texts, out), 1) as running:
        until(shards_there(out, 2))
        running[0].send_signal(sent)
        stdout, stderr = running[0].communicate(timeout=120)
    assert running[0].returncode == code
    assert stderr == f"\nstopped; the same command goes on where {out} was left\n"
    assert stdout == ""
    finish(command(texts, out))
    assert digest(out) == digest(whole)


def test_other_options_a_changed_corpus_or_other_files_are_refused(texts: Path, whole: Path, tmp_path: Path) -> None:
    model = load_model("builtin")
    options = Options(length=128, shard_documents=4)
    before = digest(whole)

    def refused(why: str, texts: Path = texts, out: Path = whole, options: Options = options, **more: object) -> None:
        with pytest.raises(InputError, match=why):
            survey(model, Corpus([texts], **more), out, options)  # type: ignore[arg-type]

    refused(
        "was begun with length 128, and is asked to go on with 64; name another", options=Options(64, shard_documents=4)
    )
    refused('was begun with field "text", and is asked to go on with "body"', field="body")
    refused(
        "was begun with observables .*entropy.*, and is asked", options=Options(128, ("distance",), shard_documents=4)
    )
    other_texts = corpus(tmp_path / "corpus", 59)
    refused("was begun with corpus files 60, and is asked to go on with 59", texts=other_texts)
    (other_texts / "100.txt").write_text("x")
    refused('was begun with corpus "059.txt", and is asked to go on with "100.txt"', texts=other_texts)
    (other_texts / "100.txt").rename(other_texts / "059.txt")
    refused("was begun with files of the same names that held something else; name another folder", texts=other_texts)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    refused("holds other files and no survey; name a new folder", out=tmp_path / "mine")
    other = load_model("builtin")
    other.network.blocks[0].attention.query.weight.data[0, 0] += 1
    with pytest.raises(InputError, match="was begun with a model of the same name that had other weights"):
        survey(other, Corpus([texts]), whole, options)
    assert digest(whole) == before


def test_damaged_files_are_named(tmp_path: Path, texts: Path) -> None:
    with pytest.raises(InputError, match=r"there is no survey in it \(survey.json: No such file or directory\)"):
        load(tmp_path)
    (tmp_path / "survey.json").write_text("{")
    with pytest.raises(InputError, match=r"its survey.json is no JSON; the folder is damaged"):
        load(tmp_path)
    (tmp_path / "survey.json").write_text("[]")
    with pytest.raises(InputError, match=r"its survey.json is no JSON object; the folder is damaged"):
        load(tmp_path)
    (tmp_path / "survey.json").write_text('{"format": 1}')
    with pytest.raises(InputError, match=r"is of format 1, and this version reads 2; survey into a new folder"):
        load(tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"12345678901234567890")
    with pytest.raises(
        InputError, match=r"x.safetensors is damaged \(.*\); delete it, and the same command makes it again"
    ):
        state.load(tmp_path / "x.safetensors")
    with pytest.raises(
        InputError, match=r"gone.safetensors has gone; is somebody else surveying into the same folder\?"
    ):
        state.load(tmp_path / "gone.safetensors")


@pytest.mark.parametrize("count", [1, 2])
def test_where_nothing_could_be_read_it_is_said_why_and_the_folder_can_be_used_again(
    tmp_path: Path, count: int
) -> None:
    lines = tmp_path / "talks.jsonl"
    lines.write_text("".join(json.dumps({"body": f"The king of {word}.", "id": 1}) + "\n" for word in WORDS) + "{\n")
    out = tmp_path / "out"
    with ranks(command(lines, out), count) as running:
        told = [process.communicate(timeout=300) for process in running]
    assert running[0].returncode == 2
    assert told[0] == (
        "",
        "clearhead: corpus: nothing could be read of 24 documents: 23 no text in field 'text', 1 no JSON; talks.jsonl:1: "
        "no text in field 'text' (it has 'body', 'id'; choose with --field)\n",
    )
    assert not out.exists()
    finish([*command(lines, out), "--field", "body"], count)
    assert load(out).summary["documents"] == 23
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(InputError, match="corpus: expected texts, got files that hold none; name others"):
        survey(load_model("builtin"), Corpus([tmp_path / "none.jsonl"]), tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_a_text_that_the_tokenizer_makes_nothing_of_is_a_bad_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("a.txt", "The king."), ("b.txt", "gone")):
        (tmp_path / name).write_text(text)
    model = load_model("builtin")
    encode = type(model).encode_part
    monkeypatch.setattr(type(model), "encode_part", lambda self, text: [] if text == "gone" else encode(self, text))
    found = survey(model, Corpus([tmp_path]), tmp_path / "out")
    assert found is not None
    assert [row["reason"] for row in found.table("bad")] == ["no tokens: the model's tokenizer makes none of it"]


def test_the_command_names_what_it_could_not_read_and_what_it_left_aside(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name, text in (("a.txt", "The king is dead."), ("b.txt", " "), ("c.txt", ""), ("d.csv", "a,b"), ("e.pdf", "x")):
        (texts / name).write_text(text)
    (texts / "f\x1b[31m.txt").write_bytes(b"caf\xe9")
    run = subprocess.run(command(texts, tmp_path / "out"), capture_output=True, text=True, check=True)
    assert run.stderr == "files of other kinds that are left aside: 1 .csv, 1 .pdf\n"
    assert run.stdout.startswith(
        "builtin: 1 document, 6 tokens, 24 heads\n"
        "not read: 3 documents; bad.parquet lists them\n"
        "  2 × empty, the first b.txt: empty\n"
        "  f‹U+001B›[31m.txt: not UTF-8 (byte 3)\n"
    )
    only = [*command(texts, tmp_path / "only"), "--observables", "max_weight"]
    assert "role  " not in finish(only)[0]  # no roles, no table of them


def test_options_that_cannot_be_are_named(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"length: expected an integer >= 2, got 0\. Leave it out\."):
        Options(length=0)
    with pytest.raises(InputError, match=r"observables: expected some of entropy, .*, got wisdom\. "):
        Options(observables=("entropy", "wisdom"))
    with pytest.raises(
        InputError,
        match=r"length: expected at most 1024, the context of builtin in tokens, got 1025\. Leave it out, or survey a model",
    ):
        survey(load_model("builtin"), Corpus([texts]), tmp_path / "far", Options(length=1025))
    for words, why in (
        (["survey"], "needs a MODEL, a CORPUS and --out FOLDER"),
        (["survey", "builtin", "--compare", "a", "b"], "MODEL and --compare: give one of them, not both"),
        (["survey", "--compare", str(tmp_path), str(tmp_path)], "there is no survey in it"),
    ):
        code, _, told = in_process(*words, capsys=capsys, monkeypatch=monkeypatch)
        assert code == 2
        assert why in told
        assert "Traceback" not in told


def test_two_surveys_are_compared_the_surest_difference_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, tuned = two_surveys(tmp_path)  # in the second L1H0 looks evenly
    without = survey(
        load_model("builtin"), Corpus([tmp_path / "texts"]), tmp_path / "without", Options(observables=("entropy",))
    )
    assert without is not None
    show = ("survey", "--compare", str(base.folder))
    said = [in_process(*show, str(x.folder), capsys=capsys, monkeypatch=monkeypatch)[1] for x in (tuned, without)]
    assert " → broad" in said[0]
    assert "previous-token → not measured" in said[1]
    assert "→ ·" not in said[1]
    rows = compare(load(base.folder), tuned)
    share = next(row for row in rows if row["observable"] == "entropy_share")
    assert (share["layer"], share["head"]) == (1, 0)
    assert share["other"] == pytest.approx(1.0, abs=1e-4)
    assert share["other_role"] == "broad"
    assert share["difference"] == share["other"] - share["base"]
    unchanged = [row for row in rows if row["layer"] == 0]
    assert unchanged
    assert all(abs(row["difference"]) <= 1e-5 * max(1, abs(row["base"])) for row in unchanged)
    arrays, notes = state.load(tuned.folder / "arrays.safetensors")
    smaller = tmp_path / "smaller"
    shutil.copytree(tuned.folder, smaller)
    state.save(smaller / "arrays.safetensors", {**arrays, "heads": arrays["heads"][:6]}, notes)
    with pytest.raises(
        InputError,
        match=r"base has heads up to L3H5, 24 of them, and .*smaller up to L0H5, 6 of them: only models of the same",
    ):
        compare(base, load(smaller))
    assert {row["observable"] for row in rows} == {*Options().observables} - {
        "received"
    }  # which is 1 whatever a head does
    surest = [abs(row["z"]) for row in rows if row["z"] == row["z"]]
    assert surest == sorted(surest, reverse=True)
    assert re.search(r"^L1H0 +entropy_share", said[0], re.MULTILINE)
    assert "smaller differences; clearhead.survey.compare gives all" in said[0]


def test_the_line_of_progress_says_how_far_how_fast_and_how_long() -> None:
    from clearhead.cli.survey import progress_line

    ranks = [
        Progress(0, 30, 5000, 0.5, 0.0, 3, begun=0.0, now=10.0), Progress(1, 20, 4000, 0.4, 0.0, 2, begun=0.0, now=10.0),
    ]  # fmt: skip
    assert progress_line(ranks) == " 45% · 50 documents · 9,000 tokens · 900 tokens/s (500 + 400) · 15 s left"
    ranks[0].since, ranks[1].since = 0.2, 0.3
    assert progress_line(ranks).startswith(" 45%, from 20% · 50 documents · ")  # the rest was there before
    ranks[0].since = ranks[1].since = 0.0
    ranks[0].done = ranks[1].done = 0.001
    assert progress_line(ranks).endswith(" · 2.8 h left")
    assert progress_line([Progress(0)]) == "  0% · 0 documents · 0 tokens"


def test_what_is_done_moves_on_with_every_text_and_not_only_with_shards(texts: Path, tmp_path: Path) -> None:
    model = load_model("builtin")
    seen: list[tuple[float, int, int]] = []
    ahead = iter(range(1_000_000))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "clearhead.survey.running.time.time", lambda: float(next(ahead))
        )  # so that every text is told of
        few = Corpus([texts / f"{n:03d}.txt" for n in range(12)])
        survey(
            model, few, tmp_path / "out", Options(length=64, shard_documents=6),
            report=lambda ranks: seen.append((ranks[0].done, ranks[0].documents, ranks[0].tokens)),
        )  # fmt: skip
    done = [share for share, _, _ in seen]
    assert done == sorted(done)
    assert len(set(done)) > 10  # and there are two shards
    assert [documents for _, documents, _ in seen] == sorted(documents for _, documents, _ in seen)
    assert seen[-1][:2] == (1.0, 11)
    total = seen[-1][2]
    assert all(abs(share - tokens / total) < 0.15 for share, _, tokens in seen)


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    program = """
import resource, sys, torch
from clearhead.models import load
from clearhead.survey import Corpus, Options, survey
torch.set_num_threads(1)
survey(load("builtin"), Corpus([sys.argv[1]]), sys.argv[2], Options(length=64, shard_documents=16, examples=2))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    peaks = []
    for count in (50, 800):
        lines = tmp_path / f"{count}.jsonl"
        lines.write_text("".join(json.dumps({"text": f"Scene {n}: " + WORDS[n % 20] * 9}) + "\n" for n in range(count)))
        run = [sys.executable, "-c", program, str(lines), str(tmp_path / str(count))]
        peaks.append(int(subprocess.run(run, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] < 1.1 * peaks[0], peaks
