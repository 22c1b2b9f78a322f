"""Which implementation runs, and why not the others."""

from __future__ import annotations

import os

from clearhead.errors import ArgumentError, message

NAMES = ("tiled", "reference")
ABOUT = {
    "tiled": "blocked PyTorch: any device and dtype, O(T) memory, twice differentiable",
    "reference": "the definition in plain PyTorch: O(Tq·Tk) memory, for checking",
}


def choose(impl: str) -> str:
    """The implementation to use for `impl`, "auto" meaning CLEARHEAD_IMPL when set, else the best one there is.

    Raises `ArgumentError` for an unknown name. An explicit name is never replaced by another.
    """
    asked, where = impl, "impl"
    if impl == "auto":
        asked, where = os.environ.get("CLEARHEAD_IMPL") or "tiled", "CLEARHEAD_IMPL"
    if asked not in NAMES:
        raise ArgumentError(
            message(
                where,
                expected=f'one of "auto", {", ".join(map(repr, NAMES))}'.replace("'", '"'),
                got=repr(asked),
                remedy='Use "auto" and read clearhead.explain(query, key, value) for what it chooses.',
            )
        )
    return asked


def table(chosen: str, impl: str) -> str:
    """What runs and why each other one does not, a line each."""
    lines = []
    for name in NAMES:
        if name != chosen:
            why = "not chosen: quadratic memory" if name == "reference" else "not chosen: another one was asked for"
        elif impl != "auto":
            why = "runs: asked for by impl"
        elif os.environ.get("CLEARHEAD_IMPL"):
            why = "runs: asked for by CLEARHEAD_IMPL"
        else:
            why = "runs"
        lines.append(f"{name:<10} {why} ({ABOUT[name]})")
    return "\n".join(lines)
