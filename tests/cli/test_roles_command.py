from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from clearhead.cli.ask_report import report
from clearhead.cli.look import _names
from clearhead.models import load
from clearhead.viewer import ask


@pytest.mark.tiny
def test_roles_of_the_builtin_model_stand_beside_their_error_and_null(clearhead):
    code, out, err = clearhead("roles", "--seeds", "2")
    assert (code, err.count("\n")) == (0, 1)
    assert "builtin: 24 heads in 4 layers" in out
    row = next(line for line in out.splitlines() if line.startswith("L1H3"))
    assert row.split()[:5] == ["L1H3", "previous-token", "1.00", "0.00", "0.04"]
    assert "no label" in out
    assert "± its standard error" in out


def test_json_holds_every_role_of_every_head(clearhead):
    code, out, _ = clearhead(
        "roles", "builtin", "--seeds", "2", "--period", "10", "--text", "To be, or not to be", "--json"
    )
    found = json.loads(out)
    assert (code, found["schema"], found["seeds"], found["period"], len(found["heads"])) == (0, 1, 2, 10, 24)
    head = next(h for h in found["heads"] if h["head"] == "L1H3")
    assert head["role"] == "previous-token"
    assert set(head["calibrated"]) == set(head["on_this_text"]) >= {"induction", "duplicate-token", "broad"}
    score = head["calibrated"]["previous-token"]
    assert score["score"] > 0.9 > score["threshold"] > score["uniform"] > 0
    assert score["labelled"]
    assert score["error"] is not None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("gpt9",), "model 'gpt9': expected"),
        (("--period", "600"), "--period 600: twice that is more than the 1024 tokens that builtin reads"),
        (("--text", "a", "--file", "b"), "--text and --file: give one of them, not both"),
        (("--seeds", "1"), "--seeds"),
    ],
)
def test_bad_input_is_one_line(clearhead, words, text):
    code, out, err = clearhead("roles", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert text in err


def test_a_question_says_what_its_answer_takes_from_each_document(clearhead, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("The king is dead.", "utf-8")
    Path("b.txt").write_text("The queen lives <|start|>.", "utf-8")
    words = ("look", "--document", "a.txt", "--document", "b.txt", "--question", "Who lives?", "--continue", "5")
    code, out, err = clearhead(*words, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["groups"] == ["a.txt", "b.txt", "first token", "question", "answer"]
    first, end = found["answer"]["first"], found["answer"]["end"]
    assert end - first == len(found["by_token"]) == 5
    for row in (found["weight"], *found["by_token"], *found["by_head"].values()):
        assert sum(row) == pytest.approx(1, abs=1e-4)
    assert found["by_token"][0][4] == 0  # nothing had been answered yet
    assert sum(found["uniform"]) == pytest.approx(1, abs=1e-4)
    assert all(0 < x < 5 * 24 for x in found["by_chance"])
    assert [sum(look["document"] == name for look in found["lookups"]) for name in ("a.txt", "b.txt")] == found[
        "looked_up"
    ]
    ids = [t["id"] for t in found["tokens"]]
    for look in found["lookups"]:
        assert ids[look["key"]] == ids[look["token"]]
        assert first <= look["token"] < end
    page = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    for key in found:
        assert f"`{key}`" in page, key
    shown = ["".join(t["piece"] for t in found["tokens"][d["first"] : d["end"]]) for d in found["documents"]]
    assert shown == ["The·king·is·dead.↵↵", "The·queen·lives·<|start|>.↵↵"]
    assert sum(t["id"] == 0 for t in found["tokens"]) == 1  # what spells a special token stayed text
    code, out, _ = clearhead(*words, "--html", "page.html")
    assert code == 0
    assert "most look-ups" in out
    assert "uniform  looked up  by chance" in out
    assert Path("page.html").stat().st_size > 50_000


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--question", "who?"), "--question: give at least one --document to ask about"),
        (("--document", "a.txt"), "--document: give a --question about it"),
        (
            ("words", "--document", "a.txt", "--question", "who?"),
            "--document: holds the text; leave TEXT and --file out",
        ),
        (("--system", "Be brief."), "--system: goes with --question and --document"),
        (("--document", "a.txt", "--question", " "), "--question: is empty, ask something"),
        (
            ("--document", "a.txt", "--question", "who?", "--head", "L0H0"),
            "--head, --token and --start: are about one text; leave them out with --question",
        ),
        (("--document", "no.txt", "--question", "who?"), "--document no.txt: No such file"),
        (("--document", "long.txt", "--question", "who?"), "documents and question are 10"),
    ],
)
def test_a_question_that_cannot_be_asked_is_one_line(clearhead, tmp_path, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("The king is dead.", "utf-8")
    Path("long.txt").write_text("king " * 1000, "utf-8")
    code, out, err = clearhead("look", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert text in err


@pytest.mark.parametrize("width", [80, 120])
def test_of_many_documents_no_number_is_cut(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    names = [f"a file of a long name {n}.txt" for n in range(9)]
    asked = ask(load("builtin"), [(name, f"The lamp {n} was lit.") for n, name in enumerate(names)], "Who?", write=6)
    report(asked)
    told = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    tables, _, legend = told.partition("Weight:")
    assert max(map(len, tables.splitlines()[3:])) <= width
    assert all(f"#{n + 1}" in tables for n in range(9))
    assert ("…" in tables) is any(len(name) > 24 for name in names)  # names alone may be shortened
    assert ("The documents that were looked up most have columns" in legend) is (width == 80)
    assert asked.looked_up.max() >= 0
    for n in range(9):
        looks = [int(x) for x in re.findall(rf"#{n + 1} ×(\d+)", tables)]
        assert sum(looks) == int(asked.lookups(n).sum())


def test_documents_of_one_name_are_told_apart():
    paths = [Path("a/n.txt"), Path("b/n.txt"), Path("c.txt"), Path("b/n.txt")]
    assert _names(paths) == ["a/n.txt", "b/n.txt (1)", "c.txt", "b/n.txt (2)"]
