"""A module that decodes with a cache: how it wants to be called, and whether a text in chunks gives what it gives whole."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.check.calling import Failed, call
from clearhead.check.choices import INDEX
from clearhead.check.formula import Bench, Case
from clearhead.check.functions import FunctionSubject
from clearhead.check.layers import listening
from clearhead.check.modules import ModuleSubject, as_result
from clearhead.check.report import Finding
from clearhead.check.state import Reading
from clearhead.check.steps import Array, unfused

SPLITS = ((4, 3), (3, 1, 1, 2), (1, 1, 1, 1, 1, 1, 1), (5, 2))


def chunked_module(reading: Reading) -> Finding:
    """The check `chunked` for a module."""
    name, subject = "chunked", reading.subject
    assert isinstance(subject, ModuleSubject)  # noqa: S101
    if subject.cache_argument is None and subject.start_argument is None:
        return Finding(name, "not tested", "it takes no cache")
    x = subject.inputs(2, min(7, subject.length), 3)
    whole = subject.run(x)
    decode, trouble = protocol(subject, x)
    if decode is None:
        return Finding(name, "not tested", f"its cache could not be used: {trouble}")
    for split in SPLITS:
        if sum(split) != x.shape[1]:
            continue
        try:
            parts = decode(x, split)
        except Failed as failed:
            if failed.why == "refused":
                return Finding(name, "note", f"chunks of {split}: refuses: {failed.said}")
            return Finding(name, "wrong", f"chunks of {', '.join(map(str, split))} tokens: {failed.said}")
        out = torch.cat(parts, dim=1)
        at = 0
        for n, part in enumerate(parts):
            rows = whole[:, at : at + part.shape[1]]
            gap = float((part - rows).abs().max() / max(float(rows.abs().max()), 1e-30))
            if not gap <= 1e-4:
                return Finding(
                    name, "wrong",
                    f"in chunks of {', '.join(map(str, split))} tokens, chunk {n + 1} is off by {gap:.2g} of the largest",
                    {"error": gap},
                )  # fmt: skip
            at += part.shape[1]
        if out.shape != whole.shape:
            return Finding(name, "wrong", f"chunks give shape {tuple(out.shape)}, the whole {tuple(whole.shape)}")
    return Finding(name, "right", "in chunks or as a whole: the same")


Decode = Callable[[Tensor, tuple[int, ...]], list[Tensor]]


def protocol(subject: ModuleSubject, x: Tensor) -> tuple[Decode | None, str]:
    """A way to give it a text in chunks; None, and what went wrong, if none works."""
    makers: list[Callable[[], Any]] = [*_cache_classes(subject), lambda: None, dict, list]
    trouble = "it returns none and changes none"
    for make in makers if subject.cache_argument is not None else [lambda: None]:

        def decode(x: Tensor, split: tuple[int, ...], make: Callable[[], Any] = make) -> list[Tensor]:
            return _decode(subject, x, split, make)

        try:
            first = subject.run(x[:, :4])
            parts = decode(x[:, :5], (4, 1))
        except Failed as failed:
            if trouble.startswith("it returns"):
                trouble = failed.said
            continue
        if parts and parts[0].shape == first.shape and _remembers(subject, make, x):
            return decode, ""
    return None, trouble


def _cache_classes(subject: ModuleSubject) -> list[type]:
    """Classes whose objects it may want as its cache: those its forward is annotated with, and those of its file so called."""
    forward = subject.root.forward if isinstance(subject.forward, nn.Module) else subject.forward
    parameter = subject.parameter("cache")
    try:
        hint = typing.get_type_hints(forward).get("" if parameter is None else parameter.name)
    except Exception:  # noqa: BLE001  # a name that is not there at run time
        hint = None
    known = (dict, list, tuple, Tensor, types.NoneType)
    found = [kind for kind in typing.get_args(hint) or (hint,) if isinstance(kind, type) and kind not in known]
    for name, kind in getattr(forward, "__globals__", {}).items():
        own = isinstance(kind, type) and kind.__module__ == getattr(forward, "__module__", "")
        if own and "cache" in name.lower() and not issubclass(kind, nn.Module) and kind not in found:
            found.append(kind)
    return found


def _remembers(subject: ModuleSubject, make: Callable[[], Any], x: Tensor) -> bool:
    """Whether what came before makes a difference to what comes then."""
    other = x.clone()
    other[:, :4] = other[:, :4].flip(1) + 1
    return not torch.equal(_decode(subject, x[:, :5], (4, 1), make)[1], _decode(subject, other[:, :5], (4, 1), make)[1])


def _decode(subject: ModuleSubject, x: Tensor, split: tuple[int, ...], make: Callable[[], Any]) -> list[Tensor]:
    cache, at, parts = call(make, habits=subject.habits), 0, []
    _reset(subject)
    for n in split:
        named: dict[str, Any] = {}
        if subject.cache_argument is not None:
            named[subject.cache_argument] = cache
        if subject.start_argument is not None:
            named[subject.start_argument] = at
        use = subject.parameter("use_cache")
        if use is not None:
            named[use.name] = True
        piece = x[:, at : at + n]
        result = subject.raw(piece, **named)
        parts.append(as_result(result, subject, piece))
        if isinstance(result, tuple) and subject.cache_argument is not None:
            rest = [r for r in result[1:] if r is not None]
            given_back = rest[-1] if rest else None
            if given_back is not None:
                cache = given_back
        at += n
    _reset(subject)
    return parts


def _reset(subject: ModuleSubject) -> None:
    """Caches that a module keeps in itself begin anew, where it has a method for that."""
    for name in ("reset_cache", "reset", "clear_cache", "clear"):
        method = getattr(subject.root, name, None)
        if callable(method):
            try:
                call(method, habits=subject.habits)
            except Failed:
                continue
            return


def chunk_benches(reading: Reading) -> list[Bench]:
    """Chunks behind a cache as cases: the chunk's queries over all keys so far."""
    subject = reading.subject
    if isinstance(subject, FunctionSubject) or (subject.cache_argument is None and subject.start_argument is None):
        return []
    with torch.no_grad():
        x = subject.inputs(2, min(7, subject.length), 3)
        try:
            decode, _ = protocol(subject, x)
        except Failed:
            return []
        if decode is None:
            return []
        found = []
        for name, split in (("chunk behind a cache", (4, 3)), ("token behind a cache", (3, 2, 1))):
            run = functools.partial(_chunk_case, reading, decode, x, name, split)
            case = run()
            if case is not None:
                case.again = run  # type: ignore[assignment]  # what gave a case once gives one again, or raises
                found.append(Bench(case))
    return found


def _chunk_case(reading: Reading, decode: Decode, x: Tensor, name: str, split: tuple[int, ...]) -> Case | None:
    """A text in pieces: the last one's queries over all keys so far; None where that cannot be heard."""
    subject, heard = reading.subject, list[dict[str, Array]]()
    assert isinstance(subject, ModuleSubject)  # noqa: S101
    original = subject.forward
    try:
        parts = _listening_decode(subject, decode, x[:, : sum(split)], split, heard)
    except Failed:
        return None
    finally:
        subject.forward = original
    if len(heard) != len(split) or any("q" not in h and "qkv" not in h for h in heard):
        return None
    fused = reading.base[INDEX["fused"]]
    heard = [h | (unfused(h["qkv"], subject.heads, subject.kv_heads, fused) if "qkv" in h else {}) for h in heard]
    sources: dict[str, Array] = {str(p): heard[-1][p] for p in ("q", "x") if p in heard[-1]}
    sources |= {str(p): np.concatenate([h[p] for h in heard], axis=1) for p in ("k", "v") if p in heard[-1]}
    case = subject.as_case(name, sources, parts[-1], past=sum(split[:-1]), order=7)
    case.notes["chunks"] = list(split[:-1])
    return case


def _listening_decode(
    subject: ModuleSubject, decode: Decode, x: Tensor, split: tuple[int, ...], heard: list[dict[str, Array]]
) -> list[Tensor]:
    original = subject.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with listening(subject.found):
            result = original(*args, **kwargs)
            heard.append(subject.sources(subject.from_layout(args[0])))
        return result

    subject.forward = forward
    try:
        return decode(x, split)
    finally:
        subject.forward = original
