"""What every test shares: hypothesis profiles, compiled kernels, the same random numbers, threads left as they were."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, max_examples=25, database=None)
hypothesis.settings.register_profile("long", deadline=None, max_examples=400)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_sessionstart() -> None:
    """Compile the CPU kernels before any test, in a process of its own: here jaxtyping rewrites what Numba would compile."""
    subprocess.run([sys.executable, "-m", "clearhead.kernels.cpu.build"], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Every test draws the same numbers, whichever tests ran before it, and leaves the thread count as it was."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
