"""`clearhead doctor`: what is installed, what would run, and why."""

from __future__ import annotations

from clearhead.cli.terminal import console


def doctor() -> None:
    """Say what is installed here, which implementation attention would use and why, and whether the model is there.

    Example: clearhead doctor
    """
    import os
    import platform

    import numpy
    import torch
    from rich.table import Table

    from clearhead import Causal, __version__, explain
    from clearhead.errors import InputError
    from clearhead.models import load

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("clearhead", __version__)
    table.add_row("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    table.add_row("torch, numpy", f"{torch.__version__}, {numpy.__version__}")
    table.add_row("threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores")
    table.add_row("CPU vectors", torch.backends.cpu.get_cpu_capability())
    table.add_row("other devices", ", ".join(_accelerators()) or "none that torch can use")
    table.add_row("CLEARHEAD_IMPL", os.environ.get("CLEARHEAD_IMPL") or "not set")
    table.add_row("CPU kernels", _cpu_kernels())
    q = torch.empty(1, 8, 512, 64)
    for n, line in enumerate(explain(q, q, q, mask=Causal()).splitlines()):
        table.add_row("attention" if n == 0 else "", line)
    try:
        sizes = load("builtin").config
        found = f"{sizes.layers} layers × {sizes.heads} heads, context {sizes.context} tokens"
    except InputError as error:
        found = f"cannot be used: {error}"
    table.add_row("built-in model", found)
    console().print(table)


def _cpu_kernels() -> str:
    """Whether the compiled kernels can be used here, and what they would use."""
    from clearhead.kernels import select

    missing = select.why_not_cpu(None)
    if missing:
        return f"cannot be used: {missing}. Remedy: pip install numba"
    from clearhead.kernels.cpu import build, threads
    from clearhead.kernels.cpu.machine import shape

    if all(build.is_compiled(name) for name in ("forward", "backward", "decode")):
        state = f"compiled, in {build.cache_folder()}"
    else:
        state = f"compiled when first used, some ten seconds each, and kept in {build.cache_folder()}"
    pool = "torch's threads" if threads.parallel_for() else "one thread only: torch 2.10 or newer lends its own"
    return f"{shape().name} registers, {pool}; {state}"


def _accelerators() -> list[str]:
    import torch

    found = (
        [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return [*found, "mps"] if torch.backends.mps.is_available() else found
