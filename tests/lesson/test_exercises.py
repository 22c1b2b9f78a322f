"""Exercises: a file with its function left open, which never replaces work, and a memory of what is solved."""

from __future__ import annotations

import ast
import json
import re
from datetime import date
from pathlib import Path

import pytest

from clearhead import ladder
from clearhead.errors import InputError
from clearhead.lesson import exercises, progress


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CLEARHEAD_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config" / "lesson.json"


@pytest.mark.parametrize("step", ladder.RUNGS, ids=lambda step: step.name)
def test_an_exercise_is_its_rungs_function_left_open(step: ladder.Rung, tmp_path: Path) -> None:
    exercises.write(step.number, tmp_path / "mine.py")
    text = (tmp_path / "mine.py").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 120
    names: dict = {}
    exec(compile(text, "mine.py", "exec"), names)  # noqa: S102
    assert names["EXERCISE"] == step.number
    assert progress.number_of(tmp_path / "mine.py") == step.number
    tree = ast.parse(text)
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == step.name)
    said = ast.get_docstring(function)
    assert said is not None
    assert said.startswith((step.function.__doc__ or "").split("\n")[0][:60])
    assert "Returns: the result alone" in said
    assert ">>>" not in said
    assert step.question in text
    (left,) = function.body[1:]
    assert isinstance(left, ast.Raise)
    # Nothing of the solution is in it.
    assert "torch.softmax" not in text
    assert "tril" not in text


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "exercise3.py"
    path.write_text("my work", encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(f"{path}: is there already and stays as it is; judge it with")):
        exercises.write(3, path)
    assert path.read_text(encoding="utf-8") == "my work"


@pytest.mark.parametrize("number", [0, 9, -1])
def test_there_are_eight_exercises(number: int) -> None:
    with pytest.raises(InputError, match=f"^--exercise {number}: there are 1 to 8, one for each rung"):
        exercises.exercise(number)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory; go to a folder that can be written to"):
        exercises.write(1, tmp_path / "nowhere" / "x.py")


def test_other_files_are_no_exercises(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "b.py").write_bytes(b"\xff\xfe")
    (tmp_path / "c.py").write_text("EXERCISE = 12\n", encoding="utf-8")
    assert [progress.number_of(tmp_path / name) for name in ("a.py", "b.py", "c.py", "none.py")] == [None] * 4


def test_what_is_solved_is_remembered_until_it_is_reset(kept: Path) -> None:
    assert progress.solved() == {}
    progress.solve(4)
    progress.solve(2)
    today = date.today().isoformat()
    assert progress.solved() == {2: today, 4: today}
    kept.write_text(json.dumps({"solved": {"4": "2020-01-02"}}), encoding="utf-8")
    progress.solve(4)  # the first day counts
    assert progress.solved() == {4: "2020-01-02"}
    assert progress.reset() == 1
    assert progress.solved() == {}
    assert progress.reset() == 0


@pytest.mark.parametrize(
    "damaged", ["", "{", "[]", '{"solved": 3}', '{"solved": {"x": "2020-01-02"}}', '{"solved": {"1": 5}}']
)
def test_a_damaged_file_counts_as_none_and_is_replaced(kept: Path, damaged: str) -> None:
    kept.parent.mkdir()
    kept.write_text(damaged, encoding="utf-8")
    assert progress.solved() == {}
    progress.solve(1)
    assert list(progress.solved()) == [1]


def test_a_folder_that_cannot_hold_progress_is_said(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("CLEARHEAD_CONFIG", str(tmp_path / "file" / "below"))
    with pytest.raises(InputError, match="set CLEARHEAD_CONFIG to a folder that can be written"):
        progress.solve(1)


def test_the_config_folder_is_the_users(monkeypatch) -> None:
    monkeypatch.delenv("CLEARHEAD_CONFIG")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/somewhere")
    assert progress.config_folder() == Path("/somewhere/clearhead")
    monkeypatch.setattr("sys.platform", "darwin")
    assert progress.config_folder().parts[-3:] == ("Library", "Application Support", "clearhead")
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("APPDATA", "/roaming")
    assert progress.config_folder() == Path("/roaming/clearhead")


def test_the_last_page_shows_what_is_solved() -> None:
    from clearhead.lesson import Book, Settings
    from clearhead.lesson.blocks import Table

    progress.solve(4)
    table = next(block for block in Book(Settings()).page("10").blocks if isinstance(block, Table))
    assert [row[2] for row in table.rows] == ["open"] * 3 + [f"solved {date.today().isoformat()}"] + ["open"] * 4
