"""`clearhead lesson` at a shell: printed into a pipe, turned by keys in a terminal."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from terminals import Terminal

from clearhead.lesson.keys import _split
from commands import in_process


@pytest.fixture
def clearhead(capsys, monkeypatch, tmp_path):
    """Run the command in this process: exit code, stdout, stderr. What it keeps goes to a folder of the test's own."""
    monkeypatch.setenv("CLEARHEAD_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        return in_process("lesson", *words, capsys=capsys, monkeypatch=monkeypatch)

    return run


@pytest.mark.tiny
def test_a_rung_into_a_pipe_is_plain_text(clearhead) -> None:
    code, out, err = clearhead("--rung", "2")
    assert (code, err) == (0, "")
    assert "Can one matrix product do the work of both loops?" in out
    assert "def mean_by_matmul(x: Tensor) -> MeanByMatmul:" in out
    assert "= rung 2 and rung 1: equal, max difference" in out
    assert "What it costs as T grows" in out
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_a_text_of_ones_own_gives_the_tokens(clearhead) -> None:
    code, out, _ = clearhead("--rung", "4", "--text", "The king is dead.")
    assert code == 0
    assert "token 4, “.”, hears token" in out
    assert re.search(r"^dead +-?\d\.\d{4}", out, re.MULTILINE)


def test_sizes_and_seed_are_the_readers(clearhead) -> None:
    code, out, _ = clearhead("--rung", "1", "--time", "3", "--width", "5", "--seed", "7")
    assert code == 0
    assert "sequences of T = 3 tokens, each token a row of C = 5" in out
    assert "settings = Settings(time=3, width=5, seed=7)" in out


def test_hostile_text_cannot_drive_the_terminal(clearhead) -> None:
    code, out, _ = clearhead("--rung", "3", "--text", "a\x1b[31mred\x07 \u202e [bold]b[/bold]")
    assert code == 0
    assert not set(out) & set("\x1b\x07\u202e")
    assert "‹U+001…" in out or "‹U+001B›" in out


BAD = [
    (("--rung", "11"), "rung 11: there is no such page; there are 0, 1, 2, 3, 3a"),
    (("--time", "0"), "time: expected 1 to 64, got 0."),
    (("--text", "x", "--time", "4"), "time: expected none beside a text, got 4."),
    (("--text", ""), "text: expected 1 to 64 words, got 0."),
]


@pytest.mark.parametrize(("words", "said"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(clearhead, words, said) -> None:
    code, out, err = clearhead(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"clearhead: {said}")
    assert err.count("\n") == 1


def test_keys_are_split_however_they_arrive() -> None:
    assert _split("\x1b[C\x1b[D\x1bOA") == ["right", "left", "up"]
    assert _split("g4a\r") == ["g", "4", "a", "enter"]
    assert _split("\x1b") == ["escape"]
    assert _split("\x1b[5~\x1b[6~\x7f\x04") == ["page up", "page down", "backspace", "q"]
    assert _split("\x1b[99zq") == ["q"]
    assert _split("") == []


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def open_terminal(*words: str, columns: int = 80, rows: int = 24) -> Terminal:
        there = Terminal(
            "clearhead", "lesson", *words, columns=columns, rows=rows, CLEARHEAD_CONFIG=str(tmp_path), BROWSER="true"
        )
        opened.append(there)
        return there

    yield open_terminal
    for there in opened:
        there.close()


def test_pages_turn_at_80_columns(terminal) -> None:
    there = terminal()
    screen = there.sees("page 0 of 10")
    assert "How does a token hear from the others?" in screen[2]
    assert screen[-1].startswith(" ← back   → next   ↑↓ scroll   g go to   q quit")
    there.press("\x1b[D")
    there.sees("this is the first page")
    there.press("\x1b[C")
    screen = there.sees("page 1 of 10")
    assert "How can a token hear from the tokens before it?" in screen[2]
    there.press("n")
    there.sees("page 2 of 10", "Can one matrix product")
    there.press("b")
    there.sees("page 1 of 10", "How can a token hear")
    there.press("G")  # no such key: nothing happens
    there.press("\x1b[6~")
    screen = there.sees("one.out[0]  T × C")
    assert "   0.1808  -0.0700" in "\n".join(screen)
    there.press("\x1b[F")
    there.sees("What it costs as T grows")
    there.press(" ")  # at the end, on to the next page, from its top
    screen = there.sees("page 2 of 10")
    assert "Can one matrix product" in screen[2]
    there.press("b")
    there.sees("page 1 of 10", "What it costs as T grows")  # where it was left
    there.press("q")
    assert there.ends() == 0
    assert there.raw.rstrip().endswith("\x1b[?25h\x1b[?1049l")  # cursor and screen as they were
    assert "Traceback" not in there.raw


def test_pages_turn_at_120_columns_and_at_another_size(terminal) -> None:
    there = terminal("--rung", "5", "--text", "The king is dead.", columns=120, rows=40)
    screen = there.sees("page 5 of 10", "%")
    assert "What if a token has more than one question?" in screen[2]
    there.press("g4b\r")
    screen = there.sees("page 4b of 10")
    assert "Why hide the future with minus infinity" in screen[2]
    there.press("7\x7f9\r")
    there.sees("page 9 of 10", "What does a trained head do with real words?")
    there.press("77\r")
    there.sees("there is no page 77: 0 to 10, or an aside such as 4a")
    there.press("\x1b[A")
    there.sees("page 9 of 10")
    there.resize(70, 20)
    screen = there.sees("│         head: int) -> Real:")  # broken where 70 columns end
    assert len(screen) == 20
    there.press("\x03")
    assert there.ends() == 130
    assert there.raw.rstrip().endswith("\x1b[?25h\x1b[?1049l")


def test_all_is_printed_also_in_a_terminal(terminal) -> None:
    there = terminal("--all", "--time", "2", columns=100, rows=30)
    assert there.ends() == 0
    for page in ("How does a token hear", "Must the T×T matrix ever exist?", "Can you write it yourself?"):
        assert page in there.raw
    assert "\x1b[?1049h" not in there.raw


def test_without_a_keyboard_it_is_printed(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clearhead", "lesson", "--rung", "0"],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert "How does a token hear from the others?" in done.stdout
    assert done.stderr == ""


def test_an_exercise_is_written_once(clearhead, tmp_path) -> None:
    code, out, _ = clearhead("--exercise", "4")
    assert code == 0
    assert out == "wrote exercise4.py: write its function, then run  clearhead check exercise4.py\n"
    assert "def single_head(" in (tmp_path / "exercise4.py").read_text(encoding="utf-8")
    code, out, err = clearhead("--exercise", "4")
    assert (code, out) == (2, "")
    assert err.startswith("clearhead: exercise4.py: is there already and stays as it is")
    code, out, _ = clearhead("--reset")
    assert (code, out) == (0, "forgot 0 solved exercises\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--exercise", "9"), "--exercise 9: there are 1 to 8"),
        (("--exercise", "1", "--reset"), "--exercise and --reset: give one of them"),
        (("--html", "a.html", "--open"), "--open and --html: give one of them"),
        (("--html", "nowhere/a.html"), "--html nowhere/a.html: there is no folder nowhere; make it first"),
        (("--notebook", "."), "--notebook .: is a folder; name a file in it"),
    ],
)
def test_options_that_do_not_go_together_are_refused(clearhead, words, said) -> None:
    code, out, err = clearhead(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"clearhead: {said}")


def test_the_page_and_the_notebook_are_written(clearhead, tmp_path, monkeypatch) -> None:
    from clearhead.lesson import page

    for name in ("TIMES", "WIDTHS", "SEEDS", "TEXTS"):
        monkeypatch.setattr(page, name, ())
    assert clearhead("--html", "lesson.html", "--time", "2")[:2] == (0, "wrote lesson.html\n")
    assert "Content-Security-Policy" in (tmp_path / "lesson.html").read_text(encoding="utf-8")
    assert clearhead("--notebook", "lesson.ipynb", "--time", "2")[:2] == (0, "wrote lesson.ipynb\n")
    assert '"nbformat": 4' in (tmp_path / "lesson.ipynb").read_text(encoding="utf-8")


def test_open_prints_the_address_serves_and_ends_with_ctrl_c(terminal) -> None:
    there = terminal("--open", "--rung", "4", columns=120)
    screen = there.sees("the lesson is at http://127.0.0.1:", "Ctrl-C ends it")
    address = "".join(screen)
    assert re.search(r"/lesson/#token=[\w-]+&page=4", address)
    there.press("\x03")
    assert there.ends() in (0, 130)
    assert "Traceback" not in there.raw
