"""Programs in a process of their own: nothing is rewritten there by the session's type checker, and nothing loaded yet."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def printed(program: str, *arguments: str, timeout: float = 300, **environment: str) -> str:
    """What a program prints, and after it what it says on the error stream; fails the test where the program fails."""
    done = finished(program, *arguments, timeout=timeout, **environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr


def finished(
    program: str, *arguments: str, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The finished process of a program, with these variables in its environment."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env=os.environ | environment,
    )
