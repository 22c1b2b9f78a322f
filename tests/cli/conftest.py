"""The command for tests of what it prints: a function of its words, which gives exit code, stdout and stderr."""

from __future__ import annotations

import pytest

from commands import in_process


@pytest.fixture
def clearhead(capsys, monkeypatch):
    return lambda *words: in_process(*words, capsys=capsys, monkeypatch=monkeypatch)
