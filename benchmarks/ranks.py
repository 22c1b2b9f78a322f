"""Processes of one program as torchrun starts them, for the benchmarks of what runs over ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def run(count: int, words: list[str]) -> list[str]:
    """Start `python words` once a rank, each of one thread; what every rank printed, when all have ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    running = []
    for rank in range(count):
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        if count > 1:
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
            env |= own | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        running.append(subprocess.Popen([sys.executable, *words], env=env, stdout=subprocess.PIPE, text=True))
    told = [process.communicate()[0] for process in running]
    assert all(process.returncode == 0 for process in running), told
    return told
