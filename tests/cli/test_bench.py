"""`clearhead bench`, as a person at a shell meets it, on cases that take no time."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest
import torch

from clearhead.bench import candidates
from clearhead.bench.candidates import Candidate
from clearhead.bench.cases import Case
from clearhead.bench.machine import Machine
from clearhead.cli import main


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """A machine that is known and cases that are small; nobody compiles."""
    machine = Machine("a CPU", 2, 1, "AVX2", 100.0, 100.0, 20.0, 20.0)
    cases = [
        Case("forward", torch.float32, 16, 2, 8, quick=True),
        Case("forward", torch.float32, 32, 2, 8),
        Case("decode", torch.float32, 32, 4, 8, Hk=2, sees="all", quick=True),
    ]
    monkeypatch.setattr("clearhead.bench.machine.measure_machine", lambda: machine)
    monkeypatch.setattr("clearhead.bench.machine.measure_again", lambda known: known)
    monkeypatch.setattr("clearhead.bench.cases.CASES", cases)
    monkeypatch.setattr("clearhead.bench.run.OTHERS", (Candidate("math", candidates.math),))


@pytest.fixture
def bench(capsys, monkeypatch):
    """The command in this process: exit code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["clearhead", "bench", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        out = capsys.readouterr()
        return int(stopped.value.code or 0), out.out, out.err

    return run


def test_it_prints_the_machine_first_and_then_the_cases(bench):
    code, out, err = bench("--rounds", "3")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "a CPU, 1 of 2 cores, AVX2"
    assert lines[1].startswith("limits measured here: arithmetic 100 GFLOP/s")
    titles = [line for line in lines if "rounds)" in line]
    assert titles == [
        "forward float32 D=8 T=16 H=2   (3 rounds)",
        "forward float32 D=8 T=32 H=2   (3 rounds)",
        "decode float32 D=8 T=32 H=4:2   (3 rounds)",
    ]
    assert len([line for line in lines if line.startswith("  clearhead") and line.endswith(") ×")]) == 3
    assert lines[2].startswith("each line: median time")
    assert lines[-1].startswith("3 cases in ")
    assert "\x1b" not in out


def test_case_and_quick_select(bench):
    assert bench("--rounds", "1", "--case", "T=32")[1].count("round)") == 2
    assert bench("--rounds", "1", "--quick")[1].count("round)") == 2
    assert bench("--rounds", "1", "--quick", "--case", "dec")[1].count("round)") == 1


def test_other_implementations_are_measured_when_asked_for(bench):
    from clearhead.kernels.select import NAMES

    assert "clearhead tiled" not in bench("--rounds", "1")[1]
    assert bench("--rounds", "1", "--impl", "tiled")[1].count("clearhead tiled") == 3
    out = bench("--rounds", "1", "--impl", "all", "--case", "decode")[1]
    for name in NAMES:
        assert (f"clearhead {name}" in out) == (name != "reference")


def test_threads_are_used_and_put_back(bench, monkeypatch):
    used = []
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    torch.set_num_threads(2)
    other = Candidate("spy", lambda case, inputs: used.append(torch.get_num_threads()) or candidates.sdpa(case, inputs))
    monkeypatch.setattr("clearhead.bench.run.OTHERS", (other,))
    assert bench("--rounds", "1", "--threads", "1")[0] == 0
    assert set(used) == {1}
    assert torch.get_num_threads() == 2


def test_json_is_written_whole(bench, tmp_path):
    path = tmp_path / "bench.json"
    code, out, _ = bench("--rounds", "2", "--json", str(path))
    assert code == 0
    assert out.endswith(f"wrote {path}\n")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["complete"] is True
    assert [(case["name"], case["rounds"]) for case in document["cases"]] == [
        ("forward float32 D=8 T=16 H=2", 2),
        ("forward float32 D=8 T=32 H=2", 2),
        ("decode float32 D=8 T=32 H=4:2", 2),
    ]
    assert {row["candidate"] for row in document["cases"][0]["rows"]} == {"SDPA", "clearhead", "math"}


def test_shares_are_of_the_highest_limit_that_was_found(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "clearhead.bench.machine.measure_again",
        lambda known: dataclasses.replace(known, fma_gflops=known.fma_gflops * 2),
    )
    path = tmp_path / "bench.json"
    _, out, _ = bench("--rounds", "1", "--json", str(path))
    assert "the machine was busy at first: its limits are 1600 GFLOP/s" in out  # three cases, and once more at the end
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["machine"]["fma_gflops"] == 1600
    row = document["cases"][0]["rows"][0]
    assert row["limit_percent"] == pytest.approx(100 * row["gflops"] / 1600, rel=1e-4)


def test_a_picture_is_written(bench, tmp_path):
    path = tmp_path / "bench.png"
    code, out, err = bench("--rounds", "2", "--plot", str(path))
    assert (code, err) == (0, "")
    assert f"wrote {path}" in out
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_ctrl_c_prints_and_writes_what_was_measured_so_far(bench, tmp_path, monkeypatch):
    def stopping(case, inputs):
        run, runs = candidates.sdpa(case, inputs), []

        def call():
            runs.append(1)
            if case.T == 32 and len(runs) == 2 + 4:  # to get ready, to plan by, three rounds, and the fourth
                raise KeyboardInterrupt
            return run()

        return call

    monkeypatch.setattr("clearhead.bench.run.OTHERS", (Candidate("stopping", stopping),))
    monkeypatch.setattr("clearhead.bench.run.repeats_for", lambda seconds: 1)
    path = tmp_path / "bench.json"
    code, out, err = bench("--rounds", "9", "--json", str(path))
    assert (code, err) == (130, "")
    assert "forward float32 D=8 T=16 H=2   (9 rounds)" in out
    assert "forward float32 D=8 T=32 H=2   (3 rounds, interrupted)" in out
    assert out.endswith("interrupted: 2 of 3 cases measured\n")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["complete"] is False
    assert [case["rounds"] for case in document["cases"]] == [9, 3]


def test_ctrl_c_before_the_first_round_is_quiet_too(bench, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clearhead.bench.run.differences", interrupted)
    code, out, err = bench()
    assert (code, err) == (130, "")
    assert out.endswith("interrupted: 0 of 3 cases measured\n")


def test_a_terminal_is_told_how_far_it_is_and_a_pipe_is_not(bench, monkeypatch):
    assert bench("--rounds", "1")[2] == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, out, err = bench("--rounds", "2")
    assert "[3/3] decode float32 D=8 T=32 H=4:2: round 2 of 2" in err
    assert err.endswith("\r\x1b[K")
    assert "round 2 of 2" not in out


BAD = [
    (("--case", "banana"), "--case banana: no case has that in its name; there are forward, decode"),
    (("--quick", "--case", "T=64"), "--case T=64: no quick case has that in its name; there are forward, decode"),
    (("--impl", "fast"), "--impl fast: expected "),
    (("--impl", "reference"), "--impl reference: expected "),
    (("--threads", "0"), "Invalid value for '--threads'"),
    (("--threads", "100000"), "--threads 100000: this machine has"),
    (("--rounds", "0"), "Invalid value for '--rounds'"),
    (("--json", "nowhere/x.json"), "--json nowhere/x.json: there is no folder nowhere; make it first"),
    (("--plot", "."), "--plot .: is a folder; name a file in it"),
    (
        ("--case", "decode", "--plot", "x.png"),
        "--plot draws over T, and no case of forward, backward, observe is selected",
    ),
    (("decode",), "extra argument"),
]


@pytest.mark.parametrize(("words", "text"), BAD, ids=[text[:30] for _, text in BAD])
def test_bad_options_are_one_line_and_exit_code_2(bench, tmp_path, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    code, out, err = bench(*words)
    assert (code, out) == (2, "")
    assert err.startswith("clearhead: ")
    assert text in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_picture_without_matplotlib_is_refused_before_anything_is_measured(bench, monkeypatch):
    from importlib.util import find_spec

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else find_spec(name))
    code, out, err = bench("--plot", "x.png")
    assert (code, out) == (2, "")
    assert "--plot needs matplotlib, which is not installed; install clearhead[plot]" in err


def test_an_implementation_from_the_environment_that_does_not_exist_is_said_at_once(bench, monkeypatch):
    monkeypatch.setenv("CLEARHEAD_IMPL", "fast")
    code, out, err = bench()
    assert (code, out) == (2, "")
    assert "CLEARHEAD_IMPL" in err
