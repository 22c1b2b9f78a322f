"""Before a long text is read, one line says what looking at it will cost."""

from __future__ import annotations

import re

import pytest

from clearhead.models import load
from clearhead.viewer import look
from clearhead.viewer import view as views

TEXT = "To be, or not to be: that is the question. " * 4


def test_a_long_text_is_announced_with_what_is_kept_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "LONG", 20)
    said: list[str] = []
    seen = look(load(), TEXT, cells=8, say=said.append)
    (line,) = said
    found = re.fullmatch(
        r"looking takes about .* and keeps ([\d.]+) (\w+) \(4 layers, 6 heads, (\d+) tokens, \w+\); "
        r"the T×T weights would take .*; the rest of the model comes on top",
        line,
    )
    assert found is not None, line
    assert int(found[3]) == seen.tokens
    announced = float(found[1]) * {"kB": 1e3, "MB": 1e6}[found[2]]
    assert 0.8 < announced / seen.observed_bytes < 1.25


def test_a_short_text_is_read_without_announcement() -> None:
    said: list[str] = []
    look(load(), TEXT, say=said.append)
    assert said == []
