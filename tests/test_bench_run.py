"""One case: who is measured, who is skipped and why, and that unlike results are never compared."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from clearhead.bench import candidates
from clearhead.bench.candidates import Candidate, Unavailable
from clearhead.bench.cases import Case, Inputs
from clearhead.bench.document import as_document
from clearhead.bench.machine import Machine
from clearhead.bench.measure import Spread
from clearhead.bench.plot import families, picture
from clearhead.bench.report import machine_lines, result_lines, risen_lines
from clearhead.bench.run import SDPA, Result, Row, candidates_for, differences, limit_percent, run_case

MACHINE = Machine("a CPU", 4, 2, "AVX2", 50.0, 100.0, 10.0, 20.0)
CASE = Case("forward", torch.float32, 20, 2, 8)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: float, name: str = "SDPA", spoil=lambda out: out, unobserved=None) -> Candidate:
        """A candidate that computes what SDPA does, in a time of the test's choosing."""

        def build(case: Case, inputs: Inputs):
            run = candidates.sdpa(case, inputs)

            def call():
                self.now += seconds
                return spoil(run())

            return call

        return Candidate(name, build, unobserved=unobserved)


def rows(result: Result) -> dict[str, Row]:
    return {row.candidate: row for row in result.rows}


def test_a_row_holds_time_speed_share_of_the_limit_and_ratio():
    clock = Clock()
    result = run_case(CASE, [clock.taking(0.25), clock.taking(0.5, "half")], clock=clock)
    row = rows(result)["half"]
    assert (row.status, row.reason, row.calls, result.rounds) == ("measured", None, 1, 21)
    assert row.ms == Spread(500.0, 500.0, 500.0)
    assert row.gflops == CASE.useful_flops / 0.5 / 1e9
    assert row.gbs is None
    assert limit_percent(row, MACHINE) == pytest.approx(100 * row.gflops / 100.0)
    assert row.ratio == Spread(0.5, 0.5, 0.5)
    assert rows(result)["SDPA"].ratio == Spread(1.0, 1.0, 1.0)


def test_decoding_is_held_against_reading_memory():
    clock = Clock()
    case = Case("decode", torch.float16, 20, 4, 8, Hk=2, sees="all")
    row = rows(run_case(case, [clock.taking(0.25)], clock=clock))["SDPA"]
    assert row.gbs == case.useful_bytes / 0.25 / 1e9
    assert limit_percent(row, MACHINE) == pytest.approx(100 * row.gbs / 20.0)


def test_observing_is_held_against_the_same_attention_unobserved():
    clock = Clock()
    case = Case("observe", torch.float32, 20, 2, 8)
    who = [clock.taking(1.0), clock.taking(2.0, "clearhead"), clock.taking(4.0, "clearhead tiled")]
    who += [clock.taking(3.0, "observe", unobserved="clearhead")]
    who += [clock.taking(5.0, "observe tiled", unobserved="clearhead tiled")]
    found = rows(run_case(case, who, clock=clock))
    assert found["observe"].cost == Spread(1.5, 1.5, 1.5)
    assert found["observe tiled"].cost == Spread(1.25, 1.25, 1.25)
    assert found["clearhead"].cost is None


def test_the_number_of_rounds_is_what_was_asked_for_or_what_fits():
    def count(**how) -> tuple[int, bool]:
        clock = Clock()
        result = run_case(CASE, [clock.taking(2.0)], clock=clock, **how)
        return result.rounds, result.slow

    assert count(rounds=2) == (2, False)
    assert count(budget=30.0) == (15, True)
    assert count(budget=1.0) == (5, True)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda out: out * 1.01, "output is off by"),
        (lambda out: out.index_fill(2, torch.tensor([19]), torch.nan), "output is off by inf"),
        (lambda out: out[:, :, :-1], "output: torch.float32 (1, 2, 19, 8) instead of torch.float32 (1, 2, 20, 8)"),
        (lambda out: out.half(), "output: torch.float16"),
    ],
    ids=["one percent", "NaN in the last row", "shape", "dtype"],
)
def test_a_different_result_gets_no_ratio(spoil, reason):
    clock = Clock()
    result = run_case(CASE, [clock.taking(1.0), clock.taking(0.1, "wrong", spoil)], clock=clock)
    row = rows(result)["wrong"]
    assert (row.status, row.ratio) == ("differs", None)
    assert row.reason is not None
    assert row.reason.startswith(reason)
    assert row.ms is not None
    assert "not compared: output" in "\n".join(result_lines(result, MACHINE))


def test_gradients_are_compared_too():
    class Crooked(torch.autograd.Function):
        """Hands on its input, and half of the gradient."""

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient / 2

    clock = Clock()
    case = Case("backward", torch.float32, 20, 2, 8)
    who = [clock.taking(1.0), clock.taking(1.0, "half", Crooked.apply), candidates.clearhead()]
    found = rows(run_case(case, who, rounds=1))
    assert found["half"].status == "differs"
    assert "gradient of query is off by" in str(found["half"].reason)
    assert found["clearhead"].status == "measured"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ours_and_the_math_path_are_not_called_different(dtype):
    case = Case("forward", dtype, 150, 2, 16)
    inputs = Inputs(case)
    builds = {"SDPA": candidates.sdpa, "clearhead": candidates.clearhead().build, "math": candidates.math}
    assert differences(case, {name: (build(case, inputs)(),) for name, build in builds.items()}) == {}


def test_without_sdpa_nothing_is_compared():
    clock = Clock()
    found = rows(run_case(CASE, [clock.taking(1.0, "alone")], clock=clock))
    assert (found["alone"].status, found["alone"].ratio) == ("measured", None)


def test_who_cannot_run_is_skipped_with_the_reason_and_the_others_go_on():
    def cannot(case, inputs):
        raise Unavailable("has not got it")

    def breaks(case, inputs):
        def call():
            raise RuntimeError("\nno such luck\nand more")

        return call

    clock = Clock()
    who = [clock.taking(1.0), Candidate("cannot", cannot), Candidate("breaks", breaks)]
    who.append(Candidate("slow to start", breaks, compiles=True))
    result = run_case(CASE, who, clock=clock, quick=True)
    found = rows(result)
    assert found["SDPA"].status == "measured"
    assert found["cannot"] == Row("cannot", "skipped", "has not got it")
    assert found["breaks"] == Row("breaks", "skipped", "RuntimeError: no such luck")
    assert found["slow to start"].reason == "takes seconds to compile: not in a quick run"
    assert "  cannot          skipped: has not got it" in result_lines(result, MACHINE)
    told = set()
    first, second = (result_lines(result, MACHINE, told) for _ in range(2))
    assert "  cannot          skipped: has not got it" in first
    assert not any("skipped" in line for line in second)  # said once in a run
    assert [line for line in first if "skipped" not in line] == second


def test_an_implementation_that_is_asked_for_by_name_never_falls_back():
    who = [SDPA, candidates.clearhead("no such")]
    found = rows(run_case(CASE, who, rounds=1))
    assert found["clearhead no such"].status == "skipped"
    assert "ArgumentError" in str(found["clearhead no such"].reason)


def test_an_interrupted_case_has_the_rounds_that_are_whole():
    clock, runs = Clock(), []

    def stop(out):
        runs.append(1)
        if len(runs) == 5:  # to get ready, to plan by, two rounds, and the third
            raise KeyboardInterrupt
        return out

    result = run_case(CASE, [clock.taking(1.0), clock.taking(2.0, "B", stop)], clock=clock)
    assert (result.interrupted, result.rounds) == (True, 2)
    assert "(2 rounds, interrupted)" in result_lines(result, MACHINE)[0]


def measured(case: Case, names=("SDPA", "clearhead")) -> Result:
    clock = Clock()
    beside = {"observe": "clearhead"}
    who = [clock.taking(1.0 + n, name, unobserved=beside.get(name)) for n, name in enumerate(names)]
    return run_case(case, who, clock=clock)


def test_lines_name_units():
    lines = result_lines(measured(Case("observe", torch.float32, 20, 2, 8), ("SDPA", "clearhead", "observe")), MACHINE)
    assert lines[0] == "observe float32 D=8 T=20 H=2   (5 rounds, not 21: the case is slow)"
    assert "1000.000 ms" in lines[1]
    assert "GFLOP/s" in lines[1]
    assert lines[2].endswith("0.50 (0.50-0.50) ×")
    assert lines[3].partition("\n")[0].endswith("0.33 (0.33-0.33) ×")
    assert lines[3].endswith("1.50 (1.50-1.50) × the time of not observing")
    assert max(len(part) for line in lines for part in line.splitlines()) <= 80
    decode = Case("decode", torch.float16, 20, 4, 8, Hk=2, sees="all")
    assert "GB/s" in result_lines(measured(decode), MACHINE)[1]
    assert machine_lines(MACHINE) == [
        "a CPU, 2 of 4 cores, AVX2",
        "limits measured here: arithmetic 100 GFLOP/s float32 (one thread 50), reading memory 20.0 GB/s (one thread 10.0)",
        "each line: median time, useful work a second, % of the limit, × SDPA's speed (and its range)",
    ]


def test_limits_that_rose_are_said():
    assert risen_lines(MACHINE, dataclasses.replace(MACHINE, fma_gflops=104.0, read_gbs=20.5)) == []
    (line,) = risen_lines(MACHINE, dataclasses.replace(MACHINE, fma_gflops=200.0, read_gbs=22.0))
    assert "its limits are 200 GFLOP/s and 22.0 GB/s" in line
    assert "too high by up to 2.0 ×" in line


def test_the_document_holds_every_number_and_every_key_is_documented():
    clock = Clock()
    case = Case("observe", torch.float32, 20, 2, 8)
    who = [clock.taking(1.0), clock.taking(3.0, "clearhead"), clock.taking(4.0, "observe", unobserved="clearhead")]
    document = as_document(MACHINE, [run_case(case, who, clock=clock)], complete=True)
    document = json.loads(json.dumps(document, allow_nan=False))
    assert (document["schema"], document["complete"]) == (1, True)
    assert document["versions"]["torch"] == torch.__version__
    assert document["machine"]["fma_gflops"] == 100.0
    (found,) = document["cases"]
    assert (found["name"], found["Tq"], found["Tk"], found["pairs"]) == ("observe float32 D=8 T=20 H=2", 20, 20, 210)
    assert found["rows"][1]["ratio"] == {"median": 0.333333, "low": 0.333333, "high": 0.333333}
    assert found["rows"][2]["cost"] == {"median": 1.33333, "low": 1.33333, "high": 1.33333}
    page = (Path(__file__).parents[1] / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    page = page.partition("## `clearhead bench")[2]
    parts = (document, document["versions"], document["machine"], found, found["rows"][0], found["rows"][0]["ms"])
    for key in {key for part in parts for key in part}:
        assert f"`{key}`" in page, key


def test_what_was_not_measured_is_null():
    def cannot(case, inputs):
        raise Unavailable("has not got it")

    document = as_document(MACHINE, [run_case(CASE, [Candidate("x", cannot)])], complete=False)
    document = json.loads(json.dumps(document, allow_nan=False))
    assert not document["complete"]
    row = document["cases"][0]["rows"][0]
    assert (row["status"], row["reason"]) == ("skipped", "has not got it")
    assert {row[key] for key in ("ms", "gflops", "gbs", "limit_percent", "ratio", "cost")} == {None}


def test_a_picture_has_a_column_for_what_differs_in_more_than_length():
    sizes = [("forward", torch.float32, 40), ("forward", torch.float16, 20), ("forward", torch.float32, 20)]
    results = [measured(Case(kind, dtype, T, 2, 8)) for kind, dtype, T in sizes]
    results.append(measured(Case("backward", torch.float32, 20, 2, 8)))
    results.append(measured(Case("decode", torch.float32, 20, 2, 8, sees="all")))
    found = {family: [r.case.T for r in members] for family, members in families(results).items()}
    assert found == {
        ("forward", "float32", 8): [20, 40],
        ("forward", "float16", 8): [20],
        ("backward", "float32", 8): [20],
    }
    png = picture(results, MACHINE, "title")
    assert png.startswith(b"\x89PNG\r\n")


def test_the_real_candidates_of_a_case_run():
    case = Case("forward", torch.float32, 32, 2, 8)
    result = run_case(case, candidates_for(case, ["tiled"]), rounds=1, quick=True)
    found = rows(result)
    for name in ("SDPA", "clearhead", "clearhead tiled", "math"):
        assert found[name].status == "measured", found[name].reason
    assert found["clearhead tiled"].impl == "tiled"
