"""Rungs 1 to 4 give every tensor the seed script prints, to all the digits it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clearhead import ladder
from clearhead.ladder import example

PRINTED = Path(__file__).with_name("seed_figures.txt").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^# (.+)\n((?:.+\n)+)", PRINTED, flags=re.MULTILINE))
NUMBER = re.compile(r"-?(?:inf|\d+\.?\d*)")


def ours() -> dict[str, Tensor | torch.Size]:
    """What is the same here, under the names of the data file."""
    x = example.sequence()
    small = ladder.three_by_three(example.three_rows())
    one, two, three = ladder.mean_by_loop(x), ladder.mean_by_matmul(x), ladder.mean_by_softmax(x)
    four = ladder.single_head(*example.projected())
    return {
        "x.shape": x.shape,
        "x[0]": x[0],
        "rung 1: out[0]": one.out[0],
        "in small: total": small.total,
        "in small: tril": small.tril,
        "in small: weights": small.weights,
        "in small: out": small.out,
        "rung 2: out[0]": two.out[0],
        "rung 3: tril": three.tril,
        "rung 3: scores": three.scores,
        "rung 3: weights": three.weights,
        "rung 3: out[0]": three.out[0],
        "rung 4: scores[0]": four.scores[0],
        "rung 4: masked[0]": four.masked[0],
        "rung 4: weights[0]": four.weights[0],
        "rung 4: out.shape": four.out.shape,
    }


def to_the_digits_of(printed: str, value: float) -> str:
    """Our number written with as many decimals as the printed one, its point included."""
    if "inf" in printed:
        return str(value)
    decimals = len(printed.partition(".")[2])
    return f"{value:.{decimals}f}" + ("." if printed.endswith(".") else "")


def test_every_printed_figure_has_its_counterpart() -> None:
    assert SECTIONS.keys() == ours().keys()


@pytest.mark.tiny
@pytest.mark.parametrize("name", SECTIONS)
def test_rungs_give_the_seeds_figures_digit_for_digit(name: str) -> None:
    printed = NUMBER.findall(SECTIONS[name])
    found = ours()[name]
    if isinstance(found, torch.Size):
        assert [int(n) for n in printed] == list(found)
        return
    assert SECTIONS[name].count("[") == 1 + found.shape[0], "one bracket a row and one around them"
    assert len(printed) == found.numel()
    assert printed == [to_the_digits_of(p, v) for p, v in zip(printed, found.flatten().tolist(), strict=True)]


def test_examples_leave_the_callers_random_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    example.sequence()
    example.three_rows()
    example.projected()
    assert torch.equal(torch.randn(3), expected)


def test_another_seed_gives_another_example() -> None:
    assert not torch.equal(example.sequence(seed=1), example.sequence(seed=2))
    assert not torch.equal(example.projected(seed=1).key.weight, example.projected(seed=2).key.weight)
