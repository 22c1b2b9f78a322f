"""Reports as text, page and JSON; the command; the pytest plug-in; single checks; what a formula is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from clearhead import check
from clearhead.check import Report, checks
from clearhead.check.choices import DEFAULT, DIMENSIONS, changed
from clearhead.check.formula import Bench, Case
from clearhead.check.pytest_plugin import NAMES
from clearhead.reference import attention

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

class Head(nn.Module):
    '''<script>alert(1)</script>'''
    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(32, head_size, bias=False)
        self.query = nn.Linear(32, head_size, bias=False)
        self.value = nn.Linear(32, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(8, 8)))

    def forward(self, x):
        B, T, C = x.shape
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * C**-0.5  # <b>scaled</b>
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ v

def right(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("code") / "lecture.py"
    path.write_text(HEAD)
    return path


@pytest.fixture(scope="module")
def report(file):
    return check(f"{file}:Head")


def run(*words: str, cwd=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_the_report_says_in_plain_words_what_was_computed_and_where(report):
    text = str(report)
    assert text.startswith("WRONG  Head")
    for line in (
        "you computed  scores / √C with C = 32, the width of the input, not of a head",
        "right is      scores / √D with D = 10, the width of a head",
        "(lecture.py:18)",
        "could read    wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5",
        "first wrong weight: batch 0, head 0, query 1, key 0",
        "smallest input that fails: B=1, T=2",
        "yours − right",
    ):
        assert line in text
    assert len(text.splitlines()) < 50


def test_a_line_that_would_read_the_same_is_not_offered_as_a_remedy(tmp_path):
    path = tmp_path / "twice.py"
    path.write_text(
        "import torch\ndef twice(q, k, v):\n    s = q @ k.mT * q.shape[-1] ** -0.5\n"
        "    return torch.softmax(torch.softmax(s,-1),-1) @ v\n"
    )
    text = str(check(f"{path}:twice"))
    assert "softmax is taken twice" in text
    assert "(twice.py:4)" in text
    assert "could read" not in text


def test_json_holds_everything_and_comes_back(report):
    made = json.loads(report.to_json())
    assert made["verdict"] == "wrong"
    assert made["exit_code"] == 1
    assert made["diagnosis"][0]["mistakes"][0]["id"] == "scale:1/sqrt(C)"
    assert made["picture"]["difference"][1][0] > 0.05
    assert Report.from_dict(made) == report


def test_the_page_holds_text_as_text(report, tmp_path):
    page = report.html()
    assert "<b>scaled</b>" not in page
    assert "&lt;b&gt;scaled&lt;/b&gt;" in page
    assert "script" not in page.split("Content-Security-Policy")[0]
    assert "default-src 'none'" in page
    largest = max(abs(x) for row in report.picture.difference for x in row)
    assert f"<figcaption>yours − right, up to ±{largest:.2g}</figcaption>" in page
    deepest = [float(share) for share in re.findall(r'fill-opacity="([^"]+)"', page.split("yours − right")[-1])]
    assert max(deepest) == 1.0  # a small difference is seen as well as a large one
    T = len(report.picture.right)
    assert f'aria-label="right: {T} queries down, {T} keys across"' in page
    report.save(tmp_path / "r.html")
    report.save(tmp_path / "r.json")
    assert (tmp_path / "r.html").read_text() == page


def test_the_command_and_its_exit_codes(file, tmp_path):
    page = tmp_path / "page.html"
    done = run("-m", "clearhead", "check", f"{file}:Head", "--html", str(page))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("WRONG  Head")
    assert page.read_text().startswith("<!doctype html>")
    done = run("-m", "clearhead", "check", f"{file}:right", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["verdict"] == "right"
    done = run("-m", "clearhead", "check", str(file))
    assert done.returncode == 2
    assert "holds Head, right; name one" in " ".join(done.stdout.split())
    done = run("-m", "clearhead", "check", "gone.py:f")
    assert done.returncode == 2
    assert done.stderr.startswith("clearhead: gone.py: there is no such file")


def test_the_plug_in_makes_a_test_of_every_check(file, tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "from clearhead.check import parametrize_with_checks\n"
        "from lecture import right\n\n"
        "@parametrize_with_checks([right], causal=False)\n"
        "def test_attention(candidate, check):\n    check(candidate)\n"
    )
    (tmp_path / "lecture.py").write_text(HEAD)
    done = run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "clearhead.check.pytest_plugin",
        "--check-attention", f"{file}:Head", "-rf", "test_mine.py", cwd=tmp_path,
    )  # fmt: skip
    out = done.stdout
    assert done.returncode == 1, out + done.stderr
    assert "you computed: scores / √C with C = 32" in out
    assert "Head: values: differs on 'square'" in out
    assert "test_mine.py::test_attention" not in "".join(line for line in out.splitlines() if "FAILED" in line)


def test_the_plug_in_names_every_check():
    assert set(NAMES) | {"memory_growth"} == set(checks.CHECKS)


def test_one_check_alone():
    def leaks(q, k, v):
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v + 0.1 * v.mean(0, keepdim=True)

    assert checks.batch_isolation(leaks).outcome == "wrong"
    assert checks.batch_isolation(sdpa).outcome == "right"
    assert checks.causality(sdpa).outcome == "note"  # it sees everything, and that is said


def test_the_formula_without_a_mistake_is_the_reference():
    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(s, generator=made, dtype=torch.float64) for s in ((2, 6, 4, 5), (2, 3, 7, 5), (2, 3, 7, 3)))
    sinks, mask = torch.linspace(-1, 1, 6).double(), torch.rand(2, 1, 4, 7, generator=made) < 0.7
    mask[..., 0] = True
    case = Case(
        "", {"q": q.numpy(), "k": k.numpy(), "v": v.numpy()}, mask=mask.numpy(), softcap=2.0, sinks=sinks.numpy()
    )
    mine = Bench(case).out(changed(DEFAULT, sees="past"))
    visible = mask & torch.ones(4, 7, dtype=torch.bool).tril(3)
    truth = attention(q, k, v, visible=visible.expand(2, 1, 4, 7), scale=5**-0.5, softcap=2.0, sinks=sinks)
    assert np.allclose(mine, truth.numpy(), atol=1e-12)


def test_every_choice_is_named_once_and_has_words():
    for dimension in DIMENSIONS:
        names = [option.id for option in dimension.options]
        assert len(names) == len(set(names))
        assert not dimension.options[0].mistake
        assert dimension.right
        for option in dimension.options:
            assert option.said.format_map(
                dict.fromkeys(("C", "C_is", "D", "Dv", "T", "Tq", "H", "Hk", "B", "group", "past", "new"), 1)
            )


def test_numbers_that_are_none_are_not_said_to_be_far_away(tmp_path):
    path = tmp_path / "flipped.py"
    path.write_text(
        "import torch\ndef flipped(q, k, v):\n    tril = torch.tril(torch.ones(q.shape[-2], q.shape[-2]))\n"
        "    s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(tril == 1, float('-inf'))\n    return s.softmax(-1) @ v\n"
    )
    report = check(f"{path}:flipped")
    said = "are not numbers (NaN or infinite) in places, and elsewhere "
    assert said in " ".join(str(report).split())
    assert f"Your numbers {said}" in report.html()
    assert report.finding("values").said.endswith("NaN or infinity in it")


def test_lines_keep_to_the_width_that_there_is(report):
    from clearhead.check.show import as_text

    narrow = [line for line in as_text(report, width=70).splitlines() if not line.startswith(("line ", "could read "))]
    assert max(map(len, narrow)) <= 70
    assert max(map(len, str(report).splitlines())) > 80


def test_an_exercise_still_to_be_written_is_not_asked_how_it_is_called(tmp_path):
    path = tmp_path / "open.py"
    path.write_text('def attend(q, k, v):\n    raise NotImplementedError("still open")\n')
    said = check(f"{path}:attend").trouble
    assert said.endswith("it raised NotImplementedError: still open (line 2); it is still to be written")


def test_a_mask_that_was_never_made_is_not_asked_after(tmp_path):
    scores = "    s = q @ k.mT * q.shape[-1] ** -0.5\n"
    code = (
        "import torch\ndef causal_{name}(q, k, v):\n    t = q.shape[-2]\n{scores}{line}    return s.softmax(-1) @ v\n"
    )
    line = "    s.masked_fill(torch.tril(torch.ones(t, t)) == 0, float('-inf'))\n"
    path = tmp_path / "unmasked.py"
    path.write_text(
        code.format(name="kept", scores=scores, line=line) + code.format(name="none", scores=scores, line="")
    )
    lost, never = (check(f"{path}:causal_{name}").diagnosis[0].mistakes[0].said for name in ("kept", "none"))
    assert never == "every query sees every key, the future too; it is read as causal because its name says so"
    assert lost == f"{never} (is the result of masked_fill kept?)"


def test_inputs_that_an_explanation_leaves_out_stand_on_a_line_of_their_own(tmp_path):
    path = tmp_path / "logged.py"
    path.write_text(
        "import torch\ndef logged(q, k, v):\n    return torch.log_softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v\n"
    )
    lines = str(check(f"{path}:logged")).splitlines()
    assert "you computed  log_softmax, not softmax" in lines
    assert "where         on all inputs but those with scores in the hundreds and more" in lines


def test_a_batch_that_is_attended_along_says_what_to_do_if_it_is_none(tmp_path):
    path = tmp_path / "first.py"
    path.write_text(
        "import torch\nclass First(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.q, self.k, self.v = (torch.nn.Linear(12, 12) for _ in range(3))\n"
        "    def forward(self, x):\n        q, k, v = (f(x).transpose(0, 1) for f in (self.q, self.k, self.v))\n"
        "        return ((q @ k.mT / 12**0.5).softmax(-1) @ v).transpose(0, 1)\n"
    )
    (mistake,) = check(f"{path}:First").diagnosis[0].mistakes
    assert mistake.id == "over:batch"
    assert mistake.right.endswith("if x is meant to be (T, B, C), say so: --layout tbc")
    assert check(f"{path}:First", layout="tbc").ok


def test_what_a_candidate_raised_is_not_cut_in_a_word(tmp_path):
    path = tmp_path / "single.py"
    path.write_text(
        "import torch\ndef single(q, k, v):\n    if q.dtype in (torch.bfloat16, torch.float16):\n"
        "        raise ValueError('this function takes numbers of thirty-two or of sixty-four bits, and no others')\n"
        "    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v\n"
    )
    said = check(f"{path}:single").finding("half_precision").said
    assert "sixty-four bits, and no others)" in said
