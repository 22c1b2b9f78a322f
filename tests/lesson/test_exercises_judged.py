"""The checker judges exercises: the ladder's own functions solve them, and a mistake is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from clearhead.check import Report, check
from clearhead.lesson import exercises, progress

SOLUTIONS = {
    1: "from clearhead.ladder import mean_by_loop as rung\n    return rung(x).out",
    2: "from clearhead.ladder import mean_by_matmul as rung\n    return rung(x).out",
    3: "from clearhead.ladder import mean_by_softmax as rung\n    return rung(x).out",
    4: "from clearhead.ladder import single_head as rung\n    return rung(x, query, key, value).out",
    5: "from clearhead.ladder import multi_head as rung\n"
    "    return rung(x, query, key, value, heads=heads, kv_heads=kv_heads).out",
    6: "from clearhead.ladder import online_softmax as rung\n    return rung(q, k, v, tile=tile).out",
    7: "from clearhead.ladder import with_cache as rung\n    return rung(q, k, v).out",
    8: "from clearhead.ladder import library_kernel as rung\n    return rung(q, k, v).out",
}
MASKED = """T = q.shape[2]
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT * q.shape[-1] ** -0.5
    weights = scores.masked_fill(torch.ones(T, T).tril() == 0, float("-inf")).softmax(-1)
    return weights @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)"""
HEAD = """q, k, v = query(x), key(x), value(x)
    T = x.shape[1]
    scores = q @ k.mT * {width} ** -0.5
    return scores.masked_fill(torch.ones(T, T).tril() == 0, float("-inf")).softmax(-1) @ v"""


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CLEARHEAD_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def filled(number: int, body: str) -> str:
    return re.sub(r"raise NotImplementedError.*", lambda _: body, exercises.exercise(number))


def judged(number: int, body: str) -> Report:
    """The report on an exercise, in this process: `clearhead check` does the same in one of its own."""
    names: dict[str, Any] = {"__name__": "exercise"}
    exec(compile(filled(number, body), "exercise.py", "exec"), names)  # noqa: S102
    candidate, options = exercises.candidate(number, Path("exercise.py"))
    return check(names[candidate.partition(":")[2]], isolate=False, **options)


@pytest.mark.parametrize("number", SOLUTIONS)
def test_the_rung_itself_solves_its_exercise(number: int) -> None:
    report = judged(number, SOLUTIONS[number])
    assert report.ok, report
    said = exercises.settle(number, report)
    assert re.fullmatch(rf"exercise {number} \(\w+\) is solved; 1 of 8 so far", said)
    assert list(progress.solved()) == [number]


@pytest.mark.parametrize(
    ("number", "body", "said"),
    [
        (2, "return torch.ones(x.shape[1], x.shape[1], dtype=x.dtype) @ x / x.shape[1]", "the future too"),
        (4, HEAD.format(width="x.shape[-1]"), "scores / √C with C = 32"),
        (7, MASKED.replace(".tril()", ".tril(-1)"), "does not see its own key"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_remembered(number: int, body: str, said: str) -> None:
    report = judged(number, body)
    assert report.verdict == "wrong"
    assert said in report.diagnosis[0].mistakes[0].said
    assert exercises.settle(number, report).startswith(f"exercise {number} is open: see above")
    assert progress.solved() == {}


def test_exercise_6_asks_for_more_than_right_numbers() -> None:
    report = judged(6, MASKED)
    assert report.ok
    assert "a tensor of T × T is made" in exercises.settle(6, report)
    assert progress.solved() == {}
    assert exercises.settle(7, judged(7, MASKED)).startswith("exercise 7 (with_cache) is solved")


def test_the_last_one_is_told_so() -> None:
    for number in range(1, 8):
        progress.solve(number)
    said = exercises.settle(8, judged(8, SOLUTIONS[8]))
    assert said == "exercise 8 (library_kernel) is solved, and with it all of them"


def test_clearhead_check_knows_an_exercise(capsys, monkeypatch, tmp_path) -> None:
    from clearhead.cli import main

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["clearhead", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0), capsys.readouterr().out

    (tmp_path / "exercise8.py").write_text(filled(8, SOLUTIONS[8]), encoding="utf-8")
    code, out = run("check", "exercise8.py")
    assert code == 0
    assert out.startswith("RIGHT  library_kernel")
    assert out.rstrip().endswith("exercise 8 (library_kernel) is solved; 1 of 8 so far")
    assert run("lesson", "--reset") == (0, "forgot 1 solved exercise\n")
    (tmp_path / "exercise2.py").write_text(exercises.exercise(2), encoding="utf-8")
    code, out = run("check", "exercise2.py")
    assert code == 2
    assert "exercise 2 is still open" in out
    assert out.rstrip().endswith("exercise 2 is open: see above, or  clearhead lesson --rung 2")
