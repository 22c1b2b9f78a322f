"""`clearhead look` and its neighbours, as a person at a shell meets them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def run(*words: str, cwd=None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clearhead", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


@pytest.mark.tiny
def test_help_and_version_answer_without_torch():
    program = (
        "import sys; sys.argv = ['clearhead', {!r}]\n"
        "from clearhead.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    for word in ("--help", "--version"):
        out = subprocess.run(
            [sys.executable, "-c", program.format(word)], capture_output=True, text=True, check=True
        ).stdout
        assert out.strip().endswith("False False")
        assert "clearhead" in out
    assert "Examples" in run("look", "--help").stdout
    check = run("check", "--help", COLUMNS="80").stdout
    assert "compares it \n with the truth in float64, and searches" in check  # a paragraph fills its lines
    assert "default 8." in run("lesson", "--help", COLUMNS="120").stdout


@pytest.mark.tiny
def test_look_prints_what_ran_every_head_and_the_text(clearhead):
    code, out, _ = clearhead("look", "The cat sat. The cat sat.")
    assert code == 0
    assert "through 4 layers, 24 heads" in out
    assert "all T×T weights would take" in out
    assert "\nscore: how much of its role, beside what uniform attention has; · no clear role; entropy in nats\n" in out
    for head in ("L0H0", "L3H5"):
        assert head in out
    assert "The cat sat. The cat sat." in out


def test_of_a_long_text_an_excerpt_is_printed_around_what_is_looked_at(clearhead, tmp_path):
    words = [f"w{n} " for n in range(200)]
    (tmp_path / "long.txt").write_text("".join(words), encoding="utf-8")
    code, out, _ = clearhead("look", "--file", str(tmp_path / "long.txt"), "--token", "600", "--top-k", "3")
    assert code == 0
    told = re.search(r"([\d,]+) of ([\d,]+) tokens, around those it looks at most; --open or --html shows", out)
    shown, whole = (int(number.replace(",", "")) for number in told.groups())
    gaps = [int(n.replace(",", "")) for n in re.findall(r"… ([\d,]+) tokens …", out)]
    assert shown + sum(gaps) == whole > 640
    assert shown <= 6 * 41
    text = out[out.index("<|start|>w0 ") :]
    assert sum(word in text for word in words) < 120
    assert words[-1].strip() in text


def test_without_a_text_it_looks_at_a_passage_of_its_own(clearhead):
    code, out, _ = clearhead("look")
    assert code == 0
    assert "The lamp was lit before the rain began." in out


def test_the_passage_shows_an_induction_head_at_work(clearhead):
    """What the tutorial says of it: the head looks at what followed "come" the last time."""
    code, out, _ = clearhead("look", "--json")
    found = json.loads(out)
    head = next(head for head in found["heads"] if head["head"] == "L2H1")
    best = head["top"][0]
    assert (code, head["role"], found["tokens"][best["key"]]["piece"]) == (0, "induction", "·b")
    assert 0.87 < best["weight"] < 0.89


def test_piped_output_has_no_escape_codes():
    done = run("look", "The cat sat.")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_hostile_text_cannot_drive_the_terminal(clearhead):
    code, out, _ = clearhead("look", "a\x1b[31mred\x07\u202e<script>alert(1)</script>[bold]b[/bold]")
    assert code == 0
    assert not set(out) & set("\x1b\x07\u202e")
    assert "U+001B" in out


def test_the_chosen_token_and_head_are_shown(clearhead):
    code, out, _ = clearhead("look", "The cat sat on the mat", "--token", "3", "--head", "l2h1", "--top-k", "2")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("L2H1") and "looks at" in line)
    assert "token 3" in line
    assert len([line for line in out.splitlines() if line.startswith("  ") and "%  token" in line]) == 2


def test_continued_text_is_marked_off(clearhead):
    code, out, _ = clearhead("look", "KING. My lord,", "--continue", "6")
    assert code == 0
    assert "(6 written by the model)" in out
    assert "written by the model:" in out


@pytest.mark.tiny
def test_json_follows_its_schema_and_is_alone_on_stdout(clearhead):
    code, out, err = clearhead("look", "To be, or not to be", "--json", "--top-k", "3", "--continue", "2")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert set(document) == {
        "schema", "model", "context", "seconds", "text", "tokens", "token", "head", "weights", "heads", "bytes",
    }  # fmt: skip
    assert document["schema"] == 1
    T = len(document["tokens"])
    assert document["token"] == T - 1
    assert document["text"]["prompt"] == T - 2
    assert len(document["weights"]) == T
    assert sum(document["weights"]) == pytest.approx(1, abs=1e-4)
    assert len(document["heads"]) == 24
    for head in document["heads"]:
        assert set(head) == {"head", "layer", "index", "role", "roles", "entropy", "entropy_share", "top"}
        assert len(head["top"]) == 3
        assert all(set(role) == {"score", "uniform", "threshold"} for role in head["roles"].values())


def test_every_key_of_the_json_is_documented(clearhead):
    _, out, _ = clearhead("look", "To be, or not to be", "--json")
    page = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    document = json.loads(out)
    for key in {*document, *document["heads"][0], *document["text"], *document["bytes"], *document["tokens"][0]}:
        assert f"`{key}`" in page, key


def test_a_text_longer_than_the_context_says_what_was_read_and_how_to_go_on(clearhead, tmp_path):
    (tmp_path / "long.txt").write_text("word " * 1500, encoding="utf-8")
    code, out, _ = clearhead("look", "--file", str(tmp_path / "long.txt"))
    assert code == 0
    assert "read tokens 0 to 1022 of the text's" in out
    assert "--start 1023 reads on" in out
    code, out, _ = clearhead("look", "--file", str(tmp_path / "long.txt"), "--start", "1023")
    assert code == 0
    assert "read tokens 1023 to" in out


def test_one_token_alone_can_be_looked_at(clearhead):
    code, out, _ = clearhead("look", "a")
    assert code == 0
    assert "2 tokens" in out  # the start token and the text's own


BAD = [
    (("",), "the text is empty"),
    (("text", "--file", "x.txt"), "TEXT and --file: give one of them, not both"),
    (("two", "words"), 'a text of several words stands in quotes: clearhead look "the whole text"; see clearhead look'),
    (("--file", "nowhere.txt"), "--file nowhere.txt: No such file or directory"),
    (("--file", "."), "--file .: is a folder; name a text file in it"),
    (("--file", "binary.bin"), "--file binary.bin: holds zero bytes"),
    (("--file", "latin.txt"), "--file latin.txt: is not UTF-8 (byte 3 is 0xe9)"),
    (("--file", "empty.txt"), "the text is empty"),
    (("hello", "--head", "L9H9"), "head L9H9: no such head; there are 24, from L0H0 to L3H5"),
    (("hello", "--head", "banana"), "head 'banana': expected an address such as L2H3"),
    (("hello", "--token", "500"), "token 500: there are"),
    (("hello", "--token", "-500"), "token -500: there are"),
    (("hello", "--start", "77"), "start 77: the text has"),
    (("hello", "--continue", "5000"), "continue 5000: the model reads 1024 tokens, so it can write 0 to"),
    (("hello", "--model", "gpt9"), 'model \'gpt9\': expected "builtin", "smollm2", a folder'),
    (("hello", "--html", "nowhere/x.html"), "--html nowhere/x.html: there is no folder nowhere; make it first"),
    (("hello", "--png", "."), "--png .: is a folder; name a file in it"),
]


@pytest.mark.parametrize(("words", "text"), BAD, ids=[text[:30] for _, text in BAD])
def test_bad_input_is_one_line_and_exit_code_2(clearhead, tmp_path, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary.bin").write_bytes(b"abc\0def")
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "empty.txt").write_bytes(b"")
    code, out, err = clearhead("look", *words)
    assert code == 2
    assert out == ""
    assert err.startswith("clearhead: ")
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [("--top-k", "0"), ("--token", "x"), ("--nonsense",), ("--continue", "-1")])
def test_options_that_cannot_be_read_exit_with_2(clearhead, words):
    code, _, err = clearhead("look", "hello", *words)
    assert code == 2
    assert "Traceback" not in err


def test_ctrl_c_is_quiet(clearhead, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clearhead.models.load", interrupted)
    assert clearhead("look", "hello") == (130, "", "")


def test_an_existing_file_is_replaced_whole_or_not_at_all(clearhead, tmp_path, monkeypatch):
    target = tmp_path / "heads.html"
    target.write_text("mine", encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("os.replace", full)
        code, _, err = clearhead("look", "hello", "--html", str(target))
    assert code == 2
    assert "No space left on device" in err
    assert target.read_text(encoding="utf-8") == "mine"
    assert [f.name for f in tmp_path.iterdir()] == ["heads.html"]  # and nothing half-written lies beside it
    assert clearhead("look", "hello", "--html", str(target))[0] == 0
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_doctor_says_what_would_run(clearhead):
    code, out, _ = clearhead("doctor")
    assert code == 0
    for word in ("clearhead", "torch", "threads", "tiled", "built-in model"):
        assert word in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("look", "hello", "--top-k", "0"), "Invalid value for '--top-k'"),
        (("look", "hello", "--nonsense"), "No such option: --nonsense"),
        (("look", "hello", "world"), "extra argument"),
        (("lok",), "No such command 'lok'"),
    ],
)
def test_a_word_that_cannot_be_read_is_one_line_that_names_the_help(clearhead, words, text):
    code, out, err = clearhead(*words)
    assert (code, out) == (2, "")
    assert err.startswith("clearhead: ")
    assert text in err
    assert err.endswith("--help\n")
    assert err.count("\n") == 1


def test_a_terminal_without_the_letters_still_gets_the_answer():
    done = subprocess.run(
        [sys.executable, "-m", "clearhead", "look", "caf\u00e9"],
        capture_output=True, check=False, env=os.environ | {"PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"all T?T weights" in done.stdout


def test_an_interrupted_write_leaves_nothing_behind(clearhead, tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    assert clearhead("look", "hello", "--html", str(tmp_path / "x.html")) == (130, "", "")
    assert list(tmp_path.iterdir()) == []
