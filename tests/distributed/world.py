"""Real processes for the tests of what runs over ranks: each writes what it found, and none outlives its test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def start(program: str, ranks: int, folder: Path, *words: str, **environment: str) -> list[subprocess.Popen[str]]:
    """Start one process a rank of a program of this folder, as torchrun would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = os.environ | {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "operation"), os.environ.get("PYTHONPATH", "")]),
        **environment,
    }
    running = []
    for rank in range(ranks):
        own = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with (folder / f"errors{rank}").open("w") as errors:
            words_of_rank = [sys.executable, str(HERE / program), str(folder / f"found{rank}.json"), *words]
            running.append(subprocess.Popen(words_of_rank, env=own, stderr=errors, text=True))
    return running


def finish(running: list[subprocess.Popen[str]], folder: Path, timeout: float = 300) -> list[Any]:
    """Wait for every rank; what each found. Fails with what they wrote on stderr; ends all that are left."""
    try:
        codes = [process.wait(timeout) for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
    told = [(folder / f"errors{rank}").read_text() for rank in range(len(running))]
    assert codes == [0] * len(running), "\n".join(told)
    return [json.loads((folder / f"found{rank}.json").read_text()) for rank in range(len(running))]


def run(program: str, ranks: int, folder: Path, *words: str, **environment: str) -> list[Any]:
    """`start` and `finish`."""
    folder.mkdir(parents=True, exist_ok=True)
    return finish(start(program, ranks, folder, *words, **environment), folder)
