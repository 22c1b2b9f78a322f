"""`clearhead bench`: attention against its neighbours on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.files import check_writable, write_whole
from clearhead.errors import InputError

QUICK_BUDGET, BUDGET = 2.0, 30.0  # seconds of measuring a case, as far as 5 rounds allow


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="A small selection, in less than a minute.")] = False,
    case: Annotated[str, typer.Option(help="Only the cases whose name holds this, for example decode.")] = "",
    impl: Annotated[
        list[str] | None,
        typer.Option(help='Measure this implementation of ours too; may be repeated, "all" for every one.'),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads to use; default: as many as torch does.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds a case; default: 21, fewer where slow.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all numbers as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of speed over length (PNG).")] = None,
) -> None:
    """Measure attention on this machine, beside PyTorch's own and other engines', and beside the machine's limits.

    Candidates take turns in one process. A line shows the median time, useful GFLOP/s (decoding: GB/s
    of keys and values), % of the machine's limit, and the speed as a multiple of that of PyTorch's
    scaled_dot_product_attention, SDPA for short (median; 10 % to 90 % of the rounds). Ctrl-C keeps what was measured.

    Examples:

      clearhead bench --quick

      clearhead bench --case decode --threads 1 --impl all

      clearhead bench --json bench.json --plot bench.png
    """
    for option, path in (("--json", json), ("--plot", plot)):
        if path is not None:
            check_writable(option, path)

    import os
    import sys
    import time

    import torch

    from clearhead.bench.cases import selected
    from clearhead.bench.document import as_document
    from clearhead.bench.machine import measure_again, measure_machine, using_threads
    from clearhead.bench.plot import check_plot
    from clearhead.bench.plot import picture as drawn
    from clearhead.bench.report import machine_lines, result_lines, risen_lines
    from clearhead.bench.run import Result, candidates_for, run_case
    from clearhead.kernels import select

    cases = selected(case, quick=quick)
    if not cases:
        kinds = ", ".join(dict.fromkeys(c.kind for c in selected(quick=quick)))
        raise InputError(f"--case {case}: no {'quick ' if quick else ''}case has that in its name; there are {kinds}")
    impls = _impls(impl or [], select.NAMES)
    select.choose("auto")  # a CLEARHEAD_IMPL that names nothing is said now, not in every row
    if plot is not None:
        check_plot(cases)
    cores = os.cpu_count() or 1
    if threads is not None and threads > cores:
        raise InputError(f"--threads {threads}: this machine has {cores} cores; more threads than that measure nothing")

    def progress(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{what}"[:120], end="", file=sys.stderr, flush=True)

    def say(*lines: str) -> None:
        progress("")
        print("\n".join(lines), flush=True)

    results: list[Result] = []
    told: set[tuple[str, str]] = set()  # who was skipped and why, said once
    complete, machine = False, None
    start = time.perf_counter()
    with using_threads(threads or torch.get_num_threads()):
        try:
            progress("measuring the machine")
            machine = first = measure_machine()
            say(*machine_lines(machine))
            for n, chosen in enumerate(cases):
                here = f"[{n + 1}/{len(cases)}] {chosen.name}: "
                machine = measure_again(machine)
                result = run_case(
                    chosen,
                    candidates_for(chosen, impls),
                    rounds=rounds,
                    budget=QUICK_BUDGET if quick else BUDGET,
                    quick=quick,
                    progress=lambda what, here=here: progress(here + what),  # type: ignore[misc]
                )
                if result.rounds or not result.interrupted:
                    results.append(result)
                    say("", *result_lines(result, machine, told))
                if result.interrupted:
                    raise KeyboardInterrupt
            complete = True
            machine = measure_again(machine)
            say("", *risen_lines(first, machine))
        except KeyboardInterrupt:
            say("", f"interrupted: {len(results)} of {len(cases)} cases measured")
            raise
        finally:
            if machine is not None and json is not None:
                import json as coder

                document = coder.dumps(as_document(machine, results, complete=complete), allow_nan=False, indent=1)
                write_whole("--json", json, document.encode("utf-8") + b"\n")
    if plot is not None:
        title = f"{machine.cpu}, {machine.threads} threads, torch {torch.__version__}"
        write_whole("--plot", plot, drawn(results, machine, title))
    say(f"{len(cases)} case{'s' * (len(cases) > 1)} in {time.perf_counter() - start:.0f} s")
    for path in (json, plot):
        if path is not None:
            print(f"wrote {path}")


def _impls(asked: list[str], names: tuple[str, ...]) -> list[str]:
    """The implementations to measure beside "auto"; `reference` is there to be right, not to be timed."""
    timed = [name for name in names if name != "reference"]
    for name in asked:
        if name not in (*timed, "all"):
            raise InputError(f"--impl {name}: expected {', '.join(timed)} or all")
    return timed if "all" in asked else list(dict.fromkeys(asked))
