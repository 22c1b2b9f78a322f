"""Is this attention right, and if not, what does it compute? `check` runs code against the truth and names the mistake."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.check.report import Change, Explanation, Finding, Line, Mistake, Picture, Report
from clearhead.errors import ArgumentError, InputError, message

if TYPE_CHECKING:
    from clearhead.check.pytest_plugin import parametrize_with_checks

__all__ = [
    "Change",
    "Explanation",
    "Finding",
    "Line",
    "Mistake",
    "Picture",
    "Report",
    "check",
    "parametrize_with_checks",
]

KINDS = ("function", "head", "module", "layer")
LAYOUTS = ("bhtd", "bthd", "btd", "td", "btc", "tbc", "tc", "tbd")
TIMEOUT = 60.0
MEMORY = 4 << 30


def __getattr__(name: str) -> Any:
    """`parametrize_with_checks`, which needs pytest, only for those who ask for it."""
    if name == "parametrize_with_checks":
        from clearhead.check.pytest_plugin import parametrize_with_checks

        return parametrize_with_checks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def check(
    candidate: Any,
    *,
    kind: str | None = None,
    causal: bool | str | None = None,
    layout: str | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    args: dict[str, Any] | None = None,
    seed: int = 0,
    device: str | None = None,
    strict: bool = False,
    isolate: bool = True,
    timeout: float = TIMEOUT,
    memory: int = MEMORY,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Run somebody's attention against the truth in float64; where they differ, search for the formula it computes instead.

    >>> def mine(q, k, v):
    ...     return torch.softmax(q @ k.mT / q.shape[-1], dim=-1) @ v
    >>> report = check(mine)
    >>> report.verdict, report.mistakes
    ('wrong', ('scale:1/D',))

    Arguments:
        candidate: a function of (query, key, value), perhaps a mask; a function of x with layers around it; a
            `torch.nn.Module`, or its class; or "FILE.py:NAME". Tensors, NumPy or JAX arrays, or lists.
        kind: "function" (of query, key and value), "head", "module" or "layer" (that has attention inside); default: worked
            out from names, shapes and a first call, and said in the report.
        causal: whether it is meant to hide the future; "end" or "start" also ask for that alignment. Default: worked out.
        layout: of its tensors, for example "bthd"; default: worked out.
        scale: that is meant, where it is not 1/√D.
        window: keys a query is meant to see, itself included.
        softcap: that is meant.
        args: arguments by name for a class's constructor, or for a function besides query, key and value.
        seed: of the numbers it is run on.
        device: where to run it, for example "cuda"; default the CPU.
        strict: whether weaknesses (more rounding in 16 bits than need be, refused strides and lengths) are wrong too.
        isolate: whether it runs in a process of its own, with `timeout` and `memory`; False: in this one.
        timeout: seconds for everything.
        memory: bytes it may use beyond what it starts with.
        progress: called with what is being done.

    Returns:
        A `Report`. What the candidate does (raise, loop, exit, crash, print, reseed) is in it, and never an exception here.

    Raises:
        ArgumentError: an option is none of those above. InputError: the file does not exist.

    Time: a second or two for an ordinary head. The caller's random state, default dtype and layers are left as they were.
    """
    _check_options(kind, causal, layout, timeout, window)
    said = progress or (lambda _: None)
    options: dict[str, Any] = {
        "kind": kind, "causal": causal, "layout": layout, "scale": scale, "window": window, "softcap": softcap, "args": args,
        "seed": seed, "device": device, "strict": strict,
    }  # fmt: skip
    if isinstance(candidate, str | Path):
        from clearhead.check.launch import in_new_process

        path, name = _path_and_name(str(candidate))
        return in_new_process(path, name, options, timeout=timeout, memory=memory, progress=said)
    from clearhead.check.launch import in_fork
    from clearhead.check.running import examine
    from clearhead.check.subjects import Options

    made, name = Options(**options), _name(candidate)
    if not isolate or not _can_fork():
        return examine(candidate, name, made, said)
    return in_fork(
        lambda report: examine(candidate, name, made, report), name, timeout=timeout, memory=memory, progress=said
    )


def _check_options(kind: str | None, causal: object, layout: str | None, timeout: float, window: int | None) -> None:
    if kind is not None and kind not in KINDS:
        raise ArgumentError(
            message("kind", expected=", ".join(KINDS), got=repr(kind), remedy="Leave it out to have it worked out.")
        )
    if layout is not None and layout not in LAYOUTS:
        raise ArgumentError(
            message(
                "layout", expected=", ".join(LAYOUTS), got=repr(layout), remedy="Leave it out to have it worked out."
            )
        )
    if causal not in (None, True, False, "end", "start"):
        raise ArgumentError(
            message(
                "causal",
                expected='True, False, "end", "start" or None',
                got=repr(causal),
                remedy='"end": the last query sees the last key.',
            )
        )
    if timeout <= 0:
        raise ArgumentError(
            message("timeout", expected="seconds > 0", got=repr(timeout), remedy="An ordinary head takes 2.")
        )
    if window is not None and window < 1:
        raise ArgumentError(
            message("window", expected="keys >= 1, oneself included", got=repr(window), remedy="Leave it out for none.")
        )


def _path_and_name(text: str) -> tuple[Path, str | None]:
    """FILE.py:NAME, or FILE.py alone."""
    found = re.fullmatch(r"(.+?\.py)(?::([\w.]+))?", text)
    if found is None:
        raise InputError(f"{text}: is not FILE.py:NAME; for example lecture.py:Head")
    path = Path(found[1])
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; the part in front of the colon is a path to a .py file")
    return path, found[2]


def _name(candidate: Any) -> str:
    inner = getattr(candidate, "func", candidate)  # functools.partial
    name = getattr(inner, "__name__", None)
    return name if isinstance(name, str) else type(candidate).__name__


def _can_fork() -> bool:
    """Whether a copy of this process can run the candidate: POSIX, called from the main thread, no GPU in use."""
    if not hasattr(os, "fork") or threading.current_thread() is not threading.main_thread():
        return False
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_initialized()
