"""Lines as they could read were tried: with them the mistake is gone. What was not tried is not said."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path

import pytest

from clearhead import check
from clearhead.check import Report

HEAD = """
import math
import numpy as np
import torch
import torch.nn.functional as F
"""
MODULE = """
class f(torch.nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.dim = dim
        self.q, self.k, self.v = (torch.nn.Linear(dim, dim) for _ in range(3))

"""
# Each with the line that is wrong, and how it is to read.
BROKEN = {
    "a diagonal that is hidden": (
        "def f(q, k, v):\n    T = q.shape[-2]\n    s = q @ k.mT / math.sqrt(q.shape[-1])\n"
        "    hidden = torch.triu(torch.ones(T, T)).bool()\n    return s.masked_fill(hidden, -math.inf).softmax(-1) @ v\n",
        "hidden = torch.triu(torch.ones(T, T)).bool()",
        "hidden = torch.triu(torch.ones(T, T), diagonal=1).bool()",
    ),
    "a mask that says the opposite": (
        "def f(q, k, v):\n    T = q.shape[-2]\n    m = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)\n"
        "    return F.scaled_dot_product_attention(q, k, v, attn_mask=m)\n",
        "m = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)",
        "m = torch.tril(torch.ones(T, T, dtype=torch.bool))",
    ),
    "a 1 where 0 is meant": (
        "def f(q, k, v):\n    tril = torch.tril(torch.ones(q.shape[-2], q.shape[-2]))\n"
        "    s = q @ k.mT / math.sqrt(q.shape[-1])\n    s = s.masked_fill(tril == 1, -math.inf)\n"
        "    return s.softmax(-1) @ v\n",
        "s = s.masked_fill(tril == 1, -math.inf)",
        "s = s.masked_fill(tril == 0, -math.inf)",
    ),
    "no scale, and a division elsewhere": (
        "def f(q, k, v):\n    s = q @ k.T\n    e = np.exp(s - s.max(axis=-1, keepdims=True))\n"
        "    return (e / e.sum(axis=-1, keepdims=True)) @ v\n",
        "s = q @ k.T",
        "s = q @ k.T / k.shape[-1] ** 0.5",
    ),
    "a helper's sum without keepdims": (
        "def shares(s):\n    e = np.exp(s - s.max(axis=-1, keepdims=True))\n    return e / e.sum(axis=-1)\n\n"
        "def f(q, k, v):\n    return shares(q @ k.T / np.sqrt(q.shape[-1])) @ v\n",
        "return e / e.sum(axis=-1)",
        "return e / e.sum(axis=-1, keepdims=True)",
    ),
    "the past without oneself": (
        "def f(q, k, v):\n    out = np.zeros((len(q), v.shape[-1]))\n    out[0] = v[0]\n    for i in range(1, len(q)):\n"
        "        s = k[:i] @ q[i] / np.sqrt(q.shape[-1])\n        e = np.exp(s - s.max())\n"
        "        out[i] = e / e.sum() @ v[: len(e)]\n    return out\n",
        "s = k[:i] @ q[i] / np.sqrt(q.shape[-1])",
        "s = k[: i + 1] @ q[i] / np.sqrt(q.shape[-1])",
    ),
    "a fill that hides nothing": (
        "def f(q, k, v):\n    T = q.shape[-2]\n    s = q @ k.mT / math.sqrt(q.shape[-1])\n"
        "    s = s.masked_fill(torch.tril(torch.ones(T, T)) == 0, 1e-9)\n    return s.softmax(-1) @ v\n",
        "s = s.masked_fill(torch.tril(torch.ones(T, T)) == 0, 1e-9)",
        's = s.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf"))',
    ),
    "scores times the mask": (
        "def f(q, k, v):\n    T = q.shape[-2]\n    s = q @ k.mT / math.sqrt(q.shape[-1])\n"
        "    s = s * torch.tril(torch.ones(T, T))\n    return s.softmax(-1) @ v\n",
        "s = s * torch.tril(torch.ones(T, T))",
        's = s.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf"))',
    ),
    "scores plus the mask": (
        "def f(q, k, v):\n    m = torch.tril(torch.ones(q.shape[-2], q.shape[-2]))\n"
        "    s = q @ k.mT / math.sqrt(q.shape[-1]) + m\n    return s.softmax(-1) @ v\n",
        "s = q @ k.mT / math.sqrt(q.shape[-1]) + m",
        's = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(m == 0, float("-inf"))',
    ),
    "ten thousand subtracted": (
        "def f(q, k, v):\n    m = (1 - torch.tril(torch.ones(q.shape[-2], q.shape[-2]))) * -1e4\n"
        "    return (q @ k.mT / math.sqrt(q.shape[-1]) + m).softmax(-1) @ v\n",
        "m = (1 - torch.tril(torch.ones(q.shape[-2], q.shape[-2]))) * -1e4",
        "m = (1 - torch.tril(torch.ones(q.shape[-2], q.shape[-2]))) * -1e9",
    ),
    "e to any power": (
        "def f(q, k, v):\n    e = np.exp(q @ k.T / np.sqrt(q.shape[-1]))\n"
        "    return (e / e.sum(-1, keepdims=True)) @ v\n",
        "e = np.exp(q @ k.T / np.sqrt(q.shape[-1]))",
        "e = np.exp(q @ k.T / np.sqrt(q.shape[-1]) - (q @ k.T / np.sqrt(q.shape[-1])).max(-1, keepdims=True))",
    ),
    "one maximum for all rows": (
        "def f(q, k, v):\n    s = q @ k.mT / math.sqrt(q.shape[-1])\n    e = torch.exp(s - s.max())\n"
        "    return (e / e.sum(-1, keepdim=True)) @ v\n",
        "e = torch.exp(s - s.max())",
        "e = torch.exp(s - s.amax(-1, keepdim=True))",
    ),
    "sixteen bits": (
        "def f(q, k, v):\n    s = q.half() @ k.half().mT\n    s = s.to(v.dtype) / math.sqrt(q.shape[-1])\n"
        "    return s.softmax(-1) @ v\n",
        "s = q.half() @ k.half().mT",
        "s = q @ k.mT",
    ),
    "weights that meet no values": (
        "def f(q, k, v):\n    s = q @ k.mT / math.sqrt(q.shape[-1])\n    return s.softmax(-1)\n",
        "return s.softmax(-1)",
        "return (s.softmax(-1)) @ v",
    ),
    "a key that is reshaped": (
        "def f(q, k, v):\n    t = k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2])\n"
        "    return (q @ t / math.sqrt(q.shape[-1])).softmax(-1) @ v\n",
        "t = k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2])",
        "t = k.transpose(-2, -1)",
    ),
    "a method that forward calls": (
        f"{MODULE}    def weigh(self, q, k):\n        return (q @ k.mT / self.dim).softmax(-1)\n\n"
        "    def forward(self, x):\n        return self.weigh(self.q(x), self.k(x)) @ self.v(x)\n",
        "return (q @ k.mT / self.dim).softmax(-1)",
        "return (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1)",
    ),
    "a window over the future": (
        "def f(q, k, v, window=3):\n    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(q.shape[-2])\n"
        "    near = (i - j) < window\n    s = q @ k.mT / math.sqrt(q.shape[-1])\n"
        "    return s.masked_fill(~near, -math.inf).softmax(-1) @ v\n",
        "near = (i - j) < window",
        "near = (i >= j) & (i - j < window)",
    ),
    "padding that hides queries": (
        "def f(q, k, v, key_padding_mask=None):\n    s = q @ k.mT / math.sqrt(q.shape[-1])\n"
        "    if key_padding_mask is not None:\n        s = s.masked_fill(key_padding_mask[:, None, :, None], -1e9)\n"
        "    return s.softmax(-1) @ v\n",
        "s = s.masked_fill(key_padding_mask[:, None, :, None], -1e9)",
        "s = s.masked_fill(key_padding_mask[:, None, None, :], -1e9)",
    ),
    "heads expanded the wrong way round": (
        "def many(h, n):\n    b, kv, t, d = h.shape\n    h = h[:, None, :, :, :].expand(b, n, kv, t, d)\n"
        "    return h.reshape(b, kv * n, t, d)\n\ndef f(q, k, v):\n    n = q.shape[1] // k.shape[1]\n"
        "    k, v = many(k, n), many(v, n)\n    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v\n",
        "h = h[:, None, :, :, :].expand(b, n, kv, t, d)",
        "h = h[:, :, None].expand(b, kv, n, t, d)",
    ),
    "a running sum that is not rescaled": (
        "def f(q, k, v):\n    m, total, out = q.new_full((*q.shape[:3], 1), -math.inf), 0.0, 0.0\n"
        "    for j in range(0, k.shape[2], 2):\n        s = q @ k[:, :, j : j + 2].mT / math.sqrt(q.shape[-1])\n"
        "        new = torch.maximum(m, s.amax(-1, keepdim=True))\n        p = torch.exp(s - new)\n"
        "        total = total * torch.exp(m - new) + p.sum(-1, keepdim=True)\n        out = out + p @ v[:, :, j : j + 2]\n"
        "        m = new\n    return out / total\n",
        "out = out + p @ v[:, :, j : j + 2]",
        "out = out * torch.exp(m - new) + p @ v[:, :, j : j + 2]",
    ),
    "dropout that never stops": (
        f"{MODULE}    def forward(self, x):\n        w = (self.q(x) @ self.k(x).mT / 4).softmax(-1)\n"
        "        w = F.dropout(w, 0.1)\n        return w @ self.v(x)\n",
        "w = F.dropout(w, 0.1)",
        "w = F.dropout(w, 0.1, training=self.training)",
    ),
}
# Each with the lines that change together: what stands there, and how it is to read ("": left out).
TOGETHER = {
    "keys and values tiled": (
        "def f(q, k, v):\n    n = q.shape[1] // k.shape[1]\n    k = k.repeat(1, n, 1, 1)\n    v = v.repeat(1, n, 1, 1)\n"
        "    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v\n",
        {
            "k = k.repeat(1, n, 1, 1)": "k = k.repeat_interleave(n, dim=1)",
            "v = v.repeat(1, n, 1, 1)": "v = v.repeat_interleave(n, dim=1)",
        },
    ),
    "a mask that comes too late": (
        "def f(q, k, v):\n    m = torch.tril(torch.ones(q.shape[-2], q.shape[-2]))\n"
        "    w = F.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)\n    w = w * m\n    return w @ v\n",
        {
            "w = F.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)": (
                'w = F.softmax((q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(m == 0, float("-inf")), dim=-1)'
            ),
            "w = w * m": "",
        },
    ),
    "a mask that comes too late, on the way out": (
        "def f(q, k, v):\n    m = torch.tril(torch.ones(q.shape[-2], q.shape[-2]))\n"
        "    w = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)\n    return (w * m) @ v\n",
        {
            "w = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)": (
                'w = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(m == 0, float("-inf")).softmax(-1)'
            ),
            "return (w * m) @ v": "return w @ v",
        },
    ),
    "a softcap behind the mask": (
        "def f(q, k, v, softcap=2.0):\n    T = q.shape[-2]\n    s = q @ k.mT / math.sqrt(q.shape[-1])\n"
        "    s = s.masked_fill(torch.tril(torch.ones(T, T)) == 0, -math.inf)\n    s = softcap * torch.tanh(s / softcap)\n"
        "    return s.softmax(-1) @ v\n",
        {
            "s = s.masked_fill(torch.tril(torch.ones(T, T)) == 0, -math.inf)": "s = softcap * torch.tanh(s / softcap)",
            "s = softcap * torch.tanh(s / softcap)": "s = s.masked_fill(torch.tril(torch.ones(T, T)) == 0, -math.inf)",
        },
    ),
    "a scale too many": (
        "def f(q, k, v):\n    q = q * q.shape[-1] ** -0.5\n    k = k * k.shape[-1] ** -0.5\n"
        "    return (q @ k.mT).softmax(-1) @ v\n",
        {"q = q * q.shape[-1] ** -0.5": ""},
    ),
    "two on one line": (
        "def f(q, k, v):\n    return F.softmax(q @ k.mT / q.shape[-1], dim=-2) @ v\n",
        {
            "return F.softmax(q @ k.mT / q.shape[-1], dim=-2) @ v": (
                "return F.softmax(q @ k.mT / k.shape[-1] ** 0.5, dim=-1) @ v"
            ),
        },
    ),
    "a scale that comes after the softmax": (
        "def f(q, k, v):\n    w = (q @ k.mT).softmax(-1) / math.sqrt(q.shape[-1])\n    return w @ v\n",
        {
            "w = (q @ k.mT).softmax(-1) / math.sqrt(q.shape[-1])": "w = (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1)",
        },
    ),
    "a head's index left out twice": (
        "def f(q, k, v):\n    out = torch.zeros_like(q)\n    for h in range(q.shape[1]):\n        s = q[:, h] @ k[:, 0].mT\n"
        "        w = (s / math.sqrt(q.shape[-1])).softmax(-1)\n        out[:, h] = w @ v[:, 0]\n    return out\n",
        {"s = q[:, h] @ k[:, 0].mT": "s = q[:, h] @ k[:, h].mT", "out[:, h] = w @ v[:, 0]": "out[:, h] = w @ v[:, h]"},
    ),
    "heads that are never transposed": (
        "class f(torch.nn.Module):\n    def __init__(self, dim=24, heads=3):\n        super().__init__()\n"
        "        self.heads = heads\n        self.q, self.k, self.v = (torch.nn.Linear(dim, dim) for _ in range(3))\n\n"
        "    def forward(self, x):\n        B, T, C = x.shape\n"
        "        q = self.q(x).view(B, self.heads, T, C // self.heads)\n"
        "        k = self.k(x).view(B, self.heads, T, C // self.heads)\n"
        "        v = self.v(x).view(B, self.heads, T, C // self.heads)\n"
        "        s = q @ k.mT / math.sqrt(C // self.heads)\n        return (s.softmax(-1) @ v).reshape(B, T, C)\n",
        {
            f"{name} = self.{name}(x).view(B, self.heads, T, C // self.heads)": (
                f"{name} = self.{name}(x).view(B, T, self.heads, C // self.heads).transpose(1, 2)"
            )
            for name in "qkv"
        }
        | {
            "return (s.softmax(-1) @ v).reshape(B, T, C)": "return (s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)",
        },
    ),
    "a cache put behind": (
        "class f(torch.nn.Module):\n    def __init__(self, dim=24, heads=3):\n        super().__init__()\n"
        "        self.heads = heads\n        self.q, self.k, self.v = (torch.nn.Linear(dim, dim) for _ in range(3))\n\n"
        "    def forward(self, x, past=None):\n        B, T, C = x.shape\n"
        "        q, k, v = (f(x).view(B, T, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))\n"
        "        if past is not None:\n            k = torch.cat([k, past[0]], dim=2)\n"
        "            v = torch.cat([v, past[1]], dim=2)\n        n = k.shape[2]\n"
        "        s = q @ k.mT / math.sqrt(q.shape[-1])\n"
        "        s = s.masked_fill(torch.ones(T, n).tril(n - T) == 0, -math.inf)\n"
        "        return (s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C), (k, v)\n",
        {
            f"{name} = torch.cat([{name}, past[{n}]], dim=2)": f"{name} = torch.cat([past[{n}], {name}], dim=2)"
            for n, name in enumerate("kv")
        },
    ),
}
# Wrong in a way that no lines that are tried put right.
BEYOND = {
    "weights averaged over heads": (
        "def f(q, k, v):\n    w = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)\n"
        "    return w.mean(1, keepdim=True).expand_as(w) @ v\n"
    ),
    "scores that are never masked": (
        "def f(q, k, v, causal=True):\n    s = q @ k.mT / math.sqrt(q.shape[-1])\n    return s.softmax(-1) @ v\n"
    ),
}


def loaded(folder: Path, code: str, name: str):
    """The function f of a file of its own."""
    path = folder / f"{name}.py"
    path.write_text(HEAD + code)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.f


@pytest.mark.parametrize("what", BROKEN)
def test_with_the_line_as_it_could_read_the_code_is_right(what: str, tmp_path: Path) -> None:
    code, wrong, mended = BROKEN[what]
    broken = loaded(tmp_path, code, "broken_candidate")
    before = inspect.getsource(broken)
    (mistake,) = check(broken, isolate=False).diagnosis[0].mistakes
    assert (mistake.line.text, mistake.change) == (wrong, mended)
    assert inspect.getsource(broken) == before
    assert not check(broken, isolate=False).ok  # the code that runs is the old one again
    assert check(loaded(tmp_path, code.replace(wrong, mended), "mended_candidate"), isolate=False).ok


@pytest.mark.parametrize("what", TOGETHER)
def test_lines_that_change_together_make_the_whole_right(what: str, tmp_path: Path) -> None:
    code, wanted = TOGETHER[what]
    report = check(loaded(tmp_path, code, "broken_candidate"), isolate=False)
    assert {change.line.text: change.text for change in report.diagnosis[0].together} == wanted
    lines = [f"    {line}" if line else "" for line in code.splitlines()]
    for change in report.diagnosis[0].together:
        number = change.line.number - HEAD.count("\n") - 1
        assert lines[number].strip() == change.line.text
        lines[number] = lines[number].replace(change.line.text, change.text or "pass")
    mended = check(loaded(tmp_path, "if True:\n" + "\n".join(lines) + "\n", "mended_candidate"), isolate=False)
    assert mended.ok, mended
    text, page = str(report), report.html()
    assert text.count("could read") == 1
    assert all(f"   (broken_candidate.py:{change.line.number})" in text for change in report.diagnosis[0].together)
    assert page.count("<h2>Could read, changed together</h2>") == 1
    assert Report.from_dict(report.to_dict()) == report


def test_lines_that_do_not_make_the_whole_right_are_not_said(tmp_path: Path) -> None:
    code, _ = TOGETHER["keys and values tiled"]
    code = code.replace(
        "    return", "    if q.abs().max() > 4:\n        v = v * 1.5\n    return"
    )  # large scores are wrong too
    report = check(loaded(tmp_path, code, "broken_candidate"), isolate=False)
    assert report.mistakes == ("heads:tiled",)
    assert report.diagnosis[0].together == ()


@pytest.mark.parametrize("what", BEYOND)
def test_what_was_tried_and_did_not_help_is_not_said(what: str, tmp_path: Path) -> None:
    report = check(loaded(tmp_path, BEYOND[what], "beyond_candidate"), isolate=False)
    assert report.verdict == "wrong"
    for mistake in report.diagnosis[0].mistakes:
        assert mistake.line is not None
        assert mistake.change == ""
    assert report.diagnosis[0].together == ()


def test_a_length_that_breaks_for_another_reason_is_not_blamed_on_the_mask(tmp_path: Path) -> None:
    code = """
class f(torch.nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return (q @ k / 4).softmax(-1) @ v
"""
    report = check(loaded(tmp_path, code, "untransposed_candidate"), isolate=False)
    assert "sees:not cropped" not in report.mistakes
    said = report.finding("lengths").said
    assert re.match(r"fails at T=7, runs at T=16: RuntimeError: .*\(line 14\); T is the width there", said, re.DOTALL)
    assert said.endswith("is a transpose missing?")


def test_a_row_the_candidate_has_right_is_not_shown_as_wrong(tmp_path: Path) -> None:
    report = check(loaded(tmp_path, BROKEN["the past without oneself"][0], "past_candidate"), isolate=False)
    assert report.first_wrong.startswith("first wrong weight: batch 0, head 0, query 1, key 0")
    assert report.picture.yours[0] == report.picture.right[0]


def test_numpy_code_beside_torch_is_given_arrays(tmp_path: Path) -> None:
    report = check(loaded(tmp_path, BROKEN["a helper's sum without keepdims"][0], "numpy_candidate"), isolate=False)
    assert report.reading[0] == "a function f(q, k, v) of NumPy arrays (T, D), a single head"
