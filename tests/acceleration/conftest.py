"""Every test of acceleration begins and ends with PyTorch's own kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from accelerated import home, registered


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins and ends with PyTorch's own kernels; in between, ours take calls of any size."""
    monkeypatch.setattr(home, "SMALL", dict.fromkeys(home.SMALL, 0))
    before = registered()
    assert "RegisterCPU" in before
    yield
    assert registered() == before
    assert not home._in_force
    assert not home._installed


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often our own kernels ran: a call that was handed back would agree with PyTorch without proving anything."""
    counts: Counter[str] = Counter()

    def counted(what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            counts[what] += 1
            return method(*args)

        return run

    for what, name in (("forward", "attend"), ("backward", "attend_backward")):
        monkeypatch.setattr(home._Override, name, counted(what, getattr(home._Override, name)))
    return counts
