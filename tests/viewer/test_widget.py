"""Traces and observations in a notebook: the widget answers what its page asks; without it there is a picture and a table."""

from __future__ import annotations

import re
import sys

import pytest
from IPython.core.formatters import DisplayFormatter

from clearhead.viewer import notebook
from clearhead.viewer.packed import unpack
from views import kept_shown, planted_shown, twice

VIEW = "application/vnd.jupyter.widget-view+json"


def shown_as(thing) -> dict:
    return DisplayFormatter().format(thing)[0]


def test_a_trace_and_an_observation_show_themselves_as_the_page():
    shown = planted_shown(twice(6))
    for thing in (shown.trace, shown.trace.observation(1)):
        found = shown_as(thing)
        assert VIEW in found
        assert found["text/plain"] == repr(thing)
        assert "<img" in found["text/html"]  # for where widgets cannot run, such as a page that shows notebooks


def test_the_widget_answers_what_its_page_asks():
    shown = kept_shown(T=40, layers=1, heads=2)
    made = notebook.widget(shown)
    sent = []
    made.send = lambda content, buffers=None: sent.append((content, buffers))
    made._handle_custom_msg(
        {"number": 7, "question": "line", "parameters": {"heads": "L0H1", "axis": "query", "at": "9"}}, []
    )
    made._handle_custom_msg({"number": 8, "question": "line", "parameters": {"heads": "L9H9", "at": "9"}}, [])
    made._handle_custom_msg({"number": 9, "question": "nothing"}, [])
    assert sent[0][0] == {"number": 7}
    row = unpack(sent[0][1][0]).arrays["values"]
    assert row.tolist() == shown.line([shown.heads[1]], "query", 9).arrays["values"].tolist()
    assert sent[1][0]["error"].startswith("head L9H9: no such head")
    assert sent[2][0]["error"].startswith("question 'nothing': expected one of")


def test_without_anywidget_there_is_a_picture_and_a_table(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    shown = planted_shown(twice(6))
    found = shown_as(shown.trace)
    assert VIEW not in found
    html = found["text/html"]
    assert "data:image/png;base64," in html
    rows = re.findall(r"<td>(.*?)</td>", html)
    assert rows[:4] == ["L0H0", "previous-token", "1.00", rows[3]]
    assert "<script" not in html


def test_many_heads_are_listed_in_part_and_an_empty_trace_is_its_name(monkeypatch):
    from clearhead.trace import Trace

    monkeypatch.setattr(notebook, "SHOWN", 4)
    assert "8 more heads with a role: pip install" in notebook.static(planted_shown(twice(4)))
    assert set(shown_as(Trace())) == {"text/plain"}


def test_what_is_not_measured_leaves_the_picture_out():
    shown = planted_shown(twice(4), cells=0)
    assert "<img" not in notebook.static(shown)
    assert "<table>" in notebook.static(shown)


@pytest.mark.parametrize("name", ["<img src=x onerror=1>", "</td><script>"])
def test_nothing_in_the_static_picture_is_markup_from_elsewhere(name):
    shown = planted_shown([0, 1], [name, name])
    shown.trace.calls[0].name = name
    assert name not in notebook.static(shown)
