"""Running a check in a process of its own, with limits on time and memory, and hearing from it. Needs no torch itself."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clearhead.check.report import Report

Progress = Callable[[str], None]


def in_new_process(
    path: Path, name: str | None, options: dict[str, Any], *, timeout: float, memory: int, progress: Progress
) -> Report:
    """Check NAME of a file in a new Python."""
    reader, writer = os.pipe()
    request = json.dumps({"path": str(path), "name": name, "options": options, "memory": memory})
    start = time.perf_counter()
    with tempfile.TemporaryFile() as printed:
        child = subprocess.Popen(
            [sys.executable, "-m", "clearhead.check.worker", str(writer)],
            stdin=subprocess.PIPE, stdout=printed, stderr=printed, pass_fds=(writer,), start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        os.close(writer)
        answer: dict[str, Any] = {}
        try:
            if child.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write(request.encode())
                    child.stdin.close()
            answer = _listen(reader, timeout, progress)
        finally:
            os.close(reader)
            if child.poll() is None and "report" not in answer:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(2 if "trouble" in answer else 0.2)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(2)
            _kill(child.pid, child.poll() is None)
            child.wait()
        printed.seek(0)
        said = printed.read()[-2000:].decode(errors="replace").strip().splitlines()
    shown = name or path.name
    return _report(answer, shown, child.returncode, timeout, time.perf_counter() - start, said)


def in_fork(
    work: Callable[[Progress], Report], name: str, *, timeout: float, memory: int, progress: Progress
) -> Report:
    """Run `work` in a copy of this process: for objects that live here and have no file of their own."""
    from clearhead.check.worker import limit_memory, send

    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    start = time.perf_counter()
    with warnings.catch_warnings(), tempfile.TemporaryFile() as printed:
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads is copied: ours uses none
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(reader)
                os.setsid()
                for stream in (1, 2):
                    os.dup2(printed.fileno(), stream)
                sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115 what printing goes to may be no file
                limit_memory(memory)
                made = work(lambda what: send(writer, progress=what))
                send(writer, report=made.to_dict())
                code = 0
            except BaseException:  # noqa: BLE001
                with contextlib.suppress(OSError):
                    os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)
        os.close(writer)
        try:
            answer = _listen(reader, timeout, progress)
        finally:
            os.close(reader)
            status = _reap(child, 2.0)
        printed.seek(0)
        said = printed.read()[-2000:].decode(errors="replace").strip().splitlines()
    return _report(answer, name, status, timeout, time.perf_counter() - start, said)


def _reap(child: int, seconds: float) -> int:
    """The exit status of a forked child, which is killed when it does not end."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    _kill(child, True)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _kill(process: int, alive: bool) -> None:
    """End the child and what it has started: it leads a group of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    if alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _listen(reader: int, timeout: float, progress: Progress) -> dict[str, Any]:
    """What the child says: its last progress, and its report or trouble; {"late": …} when the time is up."""
    until, buffer, last = time.monotonic() + timeout, b"", "starting"
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return {"late": True, "last": last}
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return {"last": last}
        buffer += chunk
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if "progress" in message:
                last = message["progress"]
                progress(last)
            else:
                final: dict[str, Any] = {"last": last} | message
                return final


def _report(
    answer: dict[str, Any], name: str, status: int | None, timeout: float, seconds: float, printed: list[str]
) -> Report:
    if "report" in answer:
        return dataclasses.replace(Report.from_dict(_numbers(answer["report"])), seconds=seconds)
    last = answer["last"]
    if "trouble" in answer:
        return Report(name, "could not run", trouble=answer["trouble"], seconds=seconds)
    if answer.get("late"):
        trouble = (
            f"it was still {last} after {timeout:g} s and was stopped; look for a loop that never ends, or allow more: "
            f"--timeout {4 * timeout:g}"
        )
    elif status is not None and status < 0:
        try:
            signal_name = signal.Signals(-status).name
        except ValueError:
            signal_name = f"signal {-status}"
        helps = (
            "it used more memory than --memory allows"
            if signal_name == "SIGKILL"
            else "run it once by itself under python -X faulthandler"
        )
        trouble = f"the process crashed ({signal_name}) while {last}; {helps}"
    else:
        shown = f" (it printed: {printed[-1][:200]})" if printed else ""
        trouble = f"the process ended by itself with exit code {status} while {last}{shown}; take os._exit or exit() out of it"
    return Report(name, "could not run", trouble=trouble, seconds=seconds)


def _numbers(report: dict[str, Any]) -> dict[str, Any]:
    """Infinities and NaN back from the words that JSON has for them, where numbers belong."""
    words = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
    for finding in report["findings"]:
        finding["numbers"] = {k: words.get(v, v) if isinstance(v, str) else v for k, v in finding["numbers"].items()}
    for found in report["diagnosis"]:
        for key in ("error_truth", "error_here"):
            if isinstance(found[key], str):
                found[key] = words.get(found[key], 0.0)
    return report
