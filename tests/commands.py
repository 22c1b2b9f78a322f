"""The `clearhead` command, run by `main` in the test's own process: a new process would load PyTorch again for every answer."""

from __future__ import annotations

import sys

import pytest

from clearhead.cli import main


def in_process(
    *words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str, str]:
    """What a command with these words does: its exit code, what it prints, and what it says on the error stream."""
    monkeypatch.setattr(sys, "argv", ["clearhead", *words])
    code = 0
    try:
        main()
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err
