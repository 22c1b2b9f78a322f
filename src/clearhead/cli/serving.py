"""Serving the viewer from the command: where to look, and the browser that looks."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.errors import InputError

if TYPE_CHECKING:
    from clearhead.viewer import Shown
    from clearhead.viewer.questions import Answering

LARGE = 300_000_000  # bytes of a file from which on reading it is announced: a second or more
MOST_SAMPLES = 32  # of a batch, each shown as a trace of its own


def serve(gallery: Answering, *, port: int, browser: bool) -> None:
    """Show traces or surveys until Ctrl-C, in a browser if there is one."""
    from clearhead.viewer.server import Server

    server = Server(gallery, port=port, say=lambda line: print(line, file=sys.stderr, flush=True))
    address = server.address()
    print(f"the viewer is at {address}", flush=True)
    print("Ctrl-C ends it; the address works once, and reloading the page keeps working", file=sys.stderr, flush=True)
    if browser:
        webbrowser.open(address)
    server.run()


def gallery(paths: list[Path]) -> Answering:
    """What is in some files and folders: traces, or surveys."""
    from clearhead.viewer.questions import Gallery

    folders = [path for path in paths if path.is_dir()]
    if not folders:
        return Gallery(read(paths))
    if len(folders) < len(paths):
        file = next(path for path in paths if path not in folders)
        if not file.exists():
            raise InputError(f"survey {str(file)!r}: there is no such folder")
        raise InputError(f"{file} is a trace, and {folders[0]} a survey: show them one after the other")

    from clearhead.survey import load
    from clearhead.viewer.surveys import Surveys

    return Surveys([load(path) for path in folders])


def read(paths: list[Path]) -> list[Shown]:
    """Trace files as they are shown: every text of every file, every sample of a batch."""
    from clearhead.trace import Trace
    from clearhead.viewer import Shown

    found: list[Shown] = []
    for path in paths:
        if path.is_file() and (size := path.stat().st_size) >= LARGE:
            print(f"reading {path}, {size / 1e9:.1f} GB …", file=sys.stderr, flush=True)
        trace = Trace.load(path)
        if not trace.calls:
            raise InputError(f"{path}: nothing was observed in this trace, there is nothing to show")
        runs = trace.runs
        for n, run in enumerate(runs):
            run.model = trace.model
            if n == 0:
                run.pieces, run.prompt, run.key_groups = trace.pieces, trace.prompt, trace.key_groups
            samples = min(MOST_SAMPLES, run.calls[0].observation.lse.shape[0])
            for sample in range(samples):
                said = [path.name, f"text {n + 1}" if len(runs) > 1 else "", f"sample {sample}" if samples > 1 else ""]
                found.append(Shown(run, name=" · ".join(filter(None, said)), sample=sample, path=path))
    return found
