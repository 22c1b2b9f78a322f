"""What cannot be checked: what was tried, what happened, and the line that would help; and code that misbehaves."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from clearhead import check
from clearhead.errors import ArgumentError, InputError

FILE = Path(__file__).parent / "bad.py"
spec = importlib.util.spec_from_file_location("bad", FILE)
bad = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bad)


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (bad.exits, ["called exit (SystemExit 3)", "take exit() out of it"]),
        (bad.ends_the_process, ["ended by itself with exit code 7 while calling", "os._exit"]),
        (bad.crashes, ["crashed (SIGSEGV) while calling", "faulthandler"]),
        (bad.hungry, ["ran out of memory"]),
        (bad.returns_nothing, ["returned None (is a return missing?)", "return the weighted sum"]),
        (bad.wrong_shape, ["returned shape (2, 6, 1, 1), where (2, 6, 7, 5) is expected"]),
        (bad.integers, ["returned int64, where floating numbers are expected"]),
        (bad.wants_a_gpu, ["Found no NVIDIA driver", "needs a GPU that is not here", "--device cuda"]),
        (bad.wants_more, ["missing 1 required positional argument: 'banana'", "--args name=value"]),
        (bad.no_arguments, ["no_arguments() takes no arguments", "(query, key, value), or x"]),
        (bad.Needs, ["Needs is a class", "argument 'banana'", "--args banana=16", "an instance"]),
        (bad.Breaks, ["tried Breaks(n_embd=60)", "KeyError: 'block_size'"]),
        (bad.Empty, ["holds no linear layers", "name the attention"]),
        (bad.NUMBER, ["int is an int, which cannot be called"]),
        (lambda x: x, ["read as attention over x", "no linear layers", "(query, key, value)"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_what_cannot_run_is_explained(candidate, words):
    report = check(candidate, memory=1 << 30)
    assert report.verdict == "could not run", report
    assert report.exit_code == 2
    for word in words:
        assert word in report.trouble, report.trouble


def test_a_loop_without_end_is_stopped():
    report = check(bad.loops, timeout=1.5)
    assert report.verdict == "could not run"
    assert "was still calling loops after 1.5 s and was stopped; look for a loop that never ends" in report.trouble


def test_a_result_that_is_no_number_is_wrong():
    report = check(bad.not_a_number)
    assert report.verdict == "wrong"
    assert "NaN" in report.finding("values").said


def test_what_a_candidate_does_to_the_process_is_undone_and_said(capfd):
    for isolate in (True, False):
        before = torch.initial_seed(), torch.get_default_dtype(), torch.is_grad_enabled()
        report = check(bad.rude, isolate=isolate)
        assert (torch.initial_seed(), torch.get_default_dtype(), torch.is_grad_enabled()) == before
        assert report.verdict == "right", report
        said = "; ".join(report.reading)
        for word in ("random seed", "default dtype to torch.float64", "switches gradients off"):
            assert word in said
        if isolate:
            assert capfd.readouterr().out == ""


def test_files_that_cannot_be_used(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_that_name\n")
    report = check(f"{broken}:f")
    assert f"importing {broken} failed (line 1): ModuleNotFoundError" in report.trouble
    assert "install what it imports" in report.trouble
    report = check(f"{FILE}:loop")
    assert f"{FILE} has no loop; did you mean bad.py:loops?" in report.trouble
    with pytest.raises(InputError, match=r"gone.py: there is no such file; the part in front of the colon is a path"):
        check("gone.py:f")
    with pytest.raises(InputError, match=r"lecture:Head: is not FILE.py:NAME; for example lecture.py:Head"):
        check("lecture:Head")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kind": "banana"}, r"kind: expected function, head, module, layer, got 'banana'. Leave it out"),
        ({"layout": "hbtd"}, r"layout: expected bhtd, bthd, btd, td, btc, tbc, tc, tbd, got 'hbtd'. Leave it out"),
        ({"causal": "middle"}, r"causal: expected True, False, \"end\", \"start\" or None, got 'middle'. \"end\": the last"),
        ({"timeout": 0.0}, r"timeout: expected seconds > 0, got 0.0. An ordinary head takes 2."),
        ({"window": 0}, r"window: expected keys >= 1, oneself included, got 0. Leave it out for none."),
    ],
)  # fmt: skip
def test_options_that_are_none(options, text):
    with pytest.raises(ArgumentError, match=text):
        check(bad.rude, **options)


def test_a_block_that_does_more_than_attend_is_no_wrong_attention(tmp_path):
    path = tmp_path / "block.py"
    path.write_text(
        "import torch\nfrom torch import nn\nclass Block(nn.Module):\n    def __init__(self, dim=24, heads=3):\n"
        "        super().__init__()\n        self.heads = heads\n"
        "        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)\n"
        "        self.mlp = nn.Sequential(nn.Linear(dim, 50), nn.GELU(), nn.Linear(50, dim))\n"
        "    def forward(self, x):\n        b, t, c = x.shape\n"
        "        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)\n"
        "        y = nn.functional.scaled_dot_product_attention(q, k, v)\n"
        "        x = x + self.proj(y.transpose(1, 2).flatten(2))\n        return x + self.mlp(x)\n"
    )
    report = check(f"{path}:Block")
    assert report.verdict == "could not run"
    assert report.trouble.startswith(
        "Block()(x) holds more than attention (mlp.0, mlp.2), and what it gives is no attention"
    )
