"""Every mutant is rejected with its diagnosis first, no right implementation is rejected, and every check earns its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutants import __main__ as mutants
from tests.mutants.registry import RIGHT, WRONG

from clearhead.check.checks import CHECKS

ROOT = Path(__file__).parent.parent.parent
INFORMATION = {"memory_growth"}  # never wrong
NAMES = [f"{n}-{entry.name}" for n, entry in enumerate(RIGHT)]


@pytest.fixture(scope="module")
def reports() -> dict:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", mutants.__spec__.name],
        cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def shown(found: dict) -> str:
    wrong = [f"{f['check']}: {f['said']}" for f in found["findings"] if f["outcome"] == "wrong"]
    return "\n".join([found["verdict"], found["trouble"], *found["reading"], *wrong])


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[entry.name for entry in WRONG])
def test_a_mutant_is_rejected_and_its_mistake_named_first(number: int, reports: dict) -> None:
    entry, found = WRONG[number], reports["wrong"][number]
    assert found["verdict"] == "wrong", shown(found)
    if entry.mistakes:
        first = frozenset(m["id"] for m in found["diagnosis"][0]["mistakes"]) if found["diagnosis"] else frozenset()
        assert first in entry.mistakes, shown(found)
    else:
        assert entry.check in {f["check"] for f in found["findings"] if f["outcome"] == "wrong"}
        assert found["diagnosis"] == []
        assert found["first_wrong"] or entry.check == "result_kind"


@pytest.mark.parametrize("number", range(len(RIGHT)), ids=NAMES)
def test_a_right_implementation_is_not_rejected(number: int, reports: dict) -> None:
    found = reports["right"][number]
    assert found["verdict"] == "right", shown(found)


@pytest.mark.parametrize("number", range(len(RIGHT)), ids=NAMES)
def test_a_right_implementation_is_not_rejected_on_other_numbers(number: int, reports: dict) -> None:
    assert reports["seeds"][number] == []


def test_there_are_enough_of_both() -> None:
    assert len(WRONG) >= 60
    assert sum(any(len(one) > 1 for one in entry.mistakes) for entry in WRONG) >= 10
    assert len(RIGHT) >= 25


def test_every_check_rejects_some_mutant(reports: dict) -> None:
    rejecting = {f["check"] for found in reports["wrong"] for f in found["findings"] if f["outcome"] == "wrong"}
    assert set(CHECKS) - rejecting - INFORMATION == set()


def test_a_mistake_is_pointed_at_and_put_right_where_that_can_be_written_down(reports: dict) -> None:
    by_name = {entry.name: found for entry, found in zip(WRONG, reports["wrong"], strict=True)}
    mistake = by_name["Head"]["diagnosis"][0]["mistakes"][0]
    assert mistake["said"] == "scores / √C with C = 32, the width of the input, not of a head"
    assert mistake["right"] == "scores / √D with D = 10, the width of a head"
    assert mistake["line"]["text"].startswith("wei = q @ k.transpose(-2, -1) * C**-0.5")
    assert mistake["change"].startswith("wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5")
    pointed = [
        found for found in reports["wrong"] if found["diagnosis"] and found["diagnosis"][0]["mistakes"][0]["line"]
    ]
    assert len(pointed) >= 0.9 * sum(bool(found["diagnosis"]) for found in reports["wrong"])


def test_another_heads_numbers_and_caches_out_of_order_are_said_in_a_sentence_with_numbers(reports: dict) -> None:
    by_name = {entry.name: found for entry, found in zip(WRONG, reports["wrong"], strict=True)}
    first, last, cached = (
        by_name[name]["diagnosis"][0]["mistakes"][0]
        for name in ("key_of_the_first_head", "values_of_the_last_head", "CachedOnesBehind")
    )
    assert first["said"] == "all 6 heads use the key of head 0, where each has its own (is a head's index left out?)"
    assert first["change"] == "return F.softmax(scaled(q, k), dim=-1) @ v"
    assert last["said"] == "all 6 heads use the value of the last head, where each has its own"
    assert cached["said"] == "the 3 new keys and values are put in front of the 4 cached ones, which come before them"
    assert cached["line"]["text"] == "k = torch.cat([k, past[0]], dim=2)"


def test_a_cache_that_is_an_object_is_used_and_mended_where_it_grows(reports: dict) -> None:
    by_name = {entry.name: found for entry, found in zip(WRONG, reports["wrong"], strict=True)}
    found = by_name["CacheAsAnObjectBehind"]["diagnosis"][0]
    assert [(change["line"]["text"], change["text"]) for change in found["together"]] == [
        ("k = torch.cat([k, self.parts[0]], dim=2)", "k = torch.cat([self.parts[0], k], dim=2)"),
        ("v = torch.cat([v, self.parts[1]], dim=2)", "v = torch.cat([self.parts[1], v], dim=2)"),
    ]
    whole = {entry.name: found for entry, found in zip(RIGHT, reports["right"], strict=True)}["CacheAsAnObject"]
    assert "right" in {f["outcome"] for f in whole["findings"] if f["check"] == "chunked"}
