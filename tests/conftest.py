"""What every test shares: hypothesis profiles, compiled kernels, the same random numbers, threads left as they were;
and an order of the files in which several processes end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, max_examples=25, database=None)
hypothesis.settings.register_profile("long", deadline=None, max_examples=400)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# Files that take longest. `make test` hands whole files to one process for each core: one that comes last is waited for.
FIRST = (
    "check/test_check_mutants.py", "browser/test_viewer.py", "operation/test_observed_gradients.py", "survey/test_surviving.py",
    "test_docs.py", "distributed/test_sequence.py", "operation/test_structure.py", "test_watch_transformers.py",
    "acceleration/test_accelerated_models.py", "cpu/test_memory.py",
)  # fmt: skip


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the CPU kernels before any test, in a process of its own: here jaxtyping rewrites what Numba would compile.

    And let Ctrl-C be heard: a shell that runs the tests in the background has it ignored, by them and by what they start. And
    let no terminal's width be heard: readline, which pytest loads, hands it to the workers.
    """
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(session.config, "workerinput"):
        return  # compiled before the workers were started
    subprocess.run([sys.executable, "-m", "clearhead.kernels.cpu.build"], check=True, stdout=subprocess.DEVNULL)
    if session.config.getoption("numprocesses", None):
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each worker, which have the cores between them


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, everything else as it was."""
    place = {Path(__file__).parent / name: n for n, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Every test draws the same numbers, whichever tests ran before it, and leaves the thread count as it was."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
