"""A query that may see nothing: the answer alone is a note, NaN that reaches other rows a warning, and neither is wrong."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path

import pytest

from clearhead import check
from clearhead.check import Report
from clearhead.check.pytest_plugin import judge

HEAD = """
import math
import numpy as np
import torch
import torch.nn.functional as F


def f(q, k, v, mask=None):
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
"""
FILLED = "    if mask is not None:\n        s = s.masked_fill(mask == 0, {fill})\n"
PLAIN = "    return F.softmax(s, dim=-1) @ v\n"
NAN = FILLED.format(fill='float("-inf")')
MODULE = """
import math
import torch


class f(torch.nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, padding_mask=None):
        s = self.q(x) @ self.k(x).mT / 4
        s = s.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1) == 1, -math.inf)
        if padding_mask is not None:
            s = s.masked_fill(padding_mask[:, None, :], -math.inf)
        return self.o(s.softmax(-1) @ self.v(x))
"""
# Each with the outcome, what is said, and how a line could read ("": none is shown).
GIVEN = {
    "NaN": (
        HEAD + NAN + PLAIN,
        "warning",
        "gets NaN (0/0 in its softmax), and a loss of the other rows alone has NaN in the gradient of value",
        "return F.softmax(s, dim=-1).nan_to_num(0.0) @ v",
    ),
    "a number with a gradient that is none": (
        HEAD
        + "    if mask is not None:\n        s = s + torch.where(mask == 1, 0.0, float('-inf'))\n"
        + "    return F.softmax(s, dim=-1).nan_to_num(0.0) @ v\n",
        "warning",
        "gets 0, and a loss of the numbers that come out has NaN in the gradients of query, key",
        "s = s + torch.where(mask == 1, 0.0, -1e9)",
    ),
    "NaN of NumPy": (
        HEAD
        + "    if mask is not None:\n        s = np.where(mask, s, -np.inf)\n"
        + "    e = np.exp(s - s.max(-1, keepdims=True))\n    return np.divide(e, e.sum(-1, keepdims=True)) @ v\n",
        "warning",
        "and a second layer makes NaN of the other rows too (0 · NaN is NaN)",
        "s = np.where(mask, s, -1e9)",
    ),
    "NaN in a module": (
        MODULE,
        "warning",
        "has NaN in the gradients of x, v.weight, v.bias, o.weight; left padding in a batch makes such queries",
        "return self.o(s.softmax(-1).nan_to_num(0.0) @ self.v(x))",
    ),
    "the mean": (HEAD + FILLED.format(fill="-1e9") + PLAIN, "note", "gets the mean of all values, where PyTorch's own", ""),
    "the mean of the past": (
        HEAD + FILLED.format(fill="-1e9")
        + "    past = torch.ones(s.shape[-2:]).tril(s.shape[-1] - s.shape[-2])\n    s = s.masked_fill(past == 0, -math.inf)\n"
        + PLAIN,
        "note",
        "gets the mean of all earlier values, hidden ones too",
        "",
    ),
    "all values": (
        HEAD + "    if mask is not None:\n        s = s + (mask == 0) * -1e9\n" + PLAIN,
        "note",
        "gets what it would get without the mask",
        "",
    ),
    "zeros": (HEAD + NAN + "    return F.softmax(s, dim=-1).nan_to_num(0.0) @ v\n", "right", "gets 0", ""),
    "PyTorch's own": (
        HEAD + "    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)\n", "right", "gets 0", ""
    ),
}  # fmt: skip


def loaded(folder: Path, code: str):
    """The candidate f of a file of its own."""
    path = folder / "empty_candidate.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("empty_candidate", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["empty_candidate"] = module
    spec.loader.exec_module(module)
    return module.f


@pytest.mark.parametrize("what", GIVEN)
def test_what_such_a_query_gets_is_said_and_is_not_wrong(what: str, tmp_path: Path) -> None:
    code, outcome, words, change = GIVEN[what]
    report = check(loaded(tmp_path, code), isolate=False)
    found = report.finding("empty_rows")
    assert (report.verdict, report.exit_code, report.mistakes) == ("right", 0, ())
    assert found.outcome == outcome, found
    assert words in found.said
    assert found.change == change
    assert [f.check for f in report.warnings] == ["empty_rows"] * (outcome == "warning")


@pytest.mark.parametrize("what", [what for what in GIVEN if GIVEN[what][3]])
def test_with_the_line_that_is_shown_it_is_no_warning_any_more(what: str, tmp_path: Path) -> None:
    code, _, _, change = GIVEN[what]
    found = check(loaded(tmp_path, code), isolate=False).finding("empty_rows")
    mended = check(loaded(tmp_path, code.replace(found.line.text, change)), isolate=False)
    assert mended.ok
    assert mended.warnings == ()


def test_strict_makes_it_wrong_with_its_line(tmp_path: Path) -> None:
    code, _, _, change = GIVEN["NaN"]
    report = check(loaded(tmp_path, code), isolate=False, strict=True)
    assert (report.verdict, report.exit_code, report.mistakes) == ("wrong", 1, ("empty:nan",))
    assert report.diagnosis[0].mistakes[0].change == change
    report = check(loaded(tmp_path, GIVEN["the mean"][0]), isolate=False, strict=True)
    assert report.mistakes == ("empty:not 0",)


def test_a_query_that_makes_nan_of_rows_that_see_something_is_wrong(tmp_path: Path) -> None:
    code = HEAD + NAN + "    out = F.softmax(s, dim=-1) @ v\n    return out + 0.0 * out.sum(-2, keepdim=True)\n"
    report = check(loaded(tmp_path, code), isolate=False)
    assert report.verdict == "wrong"
    assert report.finding("empty_rows").said == "a query that may see nothing makes NaN of other rows too"


def test_a_warning_stands_in_front_and_comes_back_from_json(tmp_path: Path) -> None:
    report = check(loaded(tmp_path, GIVEN["NaN"][0]), isolate=False)
    text = str(report)
    assert text.splitlines()[0].endswith("s), with a warning")
    assert text.index("\nwarning       a query that may see nothing gets NaN") < text.index("\nright ")
    assert "could read    return F.softmax(s, dim=-1).nan_to_num(0.0) @ v" in text
    assert "<h2>Right, but</h2>" in report.html()
    assert Report.from_dict(report.to_dict()) == report


def test_in_a_test_it_is_a_warning_of_pytest(tmp_path: Path) -> None:
    report = check(loaded(tmp_path, GIVEN["NaN"][0]), isolate=False)
    with pytest.warns(UserWarning, match=r"f: empty_rows: a query that may see nothing gets NaN \(0/0"):
        judge(report, "empty_rows")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judge(report, "values")
