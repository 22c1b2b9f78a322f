"""How far the ranks of a survey are: each leaves word in a file, which all can read."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Progress:
    """How far a rank is."""

    rank: int
    documents: int = 0
    tokens: int = 0
    done: float = 0.0  # share of the corpus behind it
    since: float | None = None  # the share that was behind it when it began to measure
    shards: int = 0
    finished: bool = False
    begun: float = field(default_factory=time.time)
    now: float = field(default_factory=time.time)

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / max(1e-9, self.now - self.begun)


def note(folder: Path, progress: Progress) -> None:
    """Leave word of how far a rank is. Not flushed: it is news, not a result."""
    path = folder / "progress" / f"{progress.rank}.json"
    beside = path.with_suffix(".new")
    with contextlib.suppress(OSError):
        beside.write_text(json.dumps(vars(progress)), encoding="utf-8")
        os.replace(beside, path)


def everybody(folder: Path, ranks: int) -> list[Progress]:
    """How far every rank is that has left word."""
    return [progress for rank in range(ranks) for progress in _left(folder / "progress" / f"{rank}.json")]


def _left(path: Path) -> Iterator[Progress]:
    with contextlib.suppress(OSError, ValueError, TypeError):
        yield Progress(**json.loads(path.read_text(encoding="utf-8")))


def forget(folder: Path) -> None:
    """What ranks of an earlier run left word of."""
    for old in (folder / "progress").glob("*.json"):
        old.unlink(missing_ok=True)
