"""What `watch` is given, checked before anything runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from torch import nn

from clearhead.addresses import Head
from clearhead.errors import ArgumentError, message
from clearhead.observables import Observables
from clearhead.tokens import speller


def read(
    model: nn.Module | Any, tokenizer: Any
) -> tuple[nn.Module | None, str | None, Callable[[list[int]], list[str]] | None]:
    """The network to watch, its name, and what says how its tokens read."""
    inner = getattr(model, "network", None)
    if not isinstance(model, nn.Module) and isinstance(inner, nn.Module):
        check_runs(inner)
        return inner, getattr(model, "name", None), speller(model if tokenizer is None else tokenizer)
    check_runs(model)
    network = model if isinstance(model, nn.Module) else None
    return network, None if model is None else type(model).__name__, None if tokenizer is None else speller(tokenizer)


def observables(given: Observables | None) -> Observables:
    """What to measure, checked before anything runs."""
    if given is None:
        return Observables()
    if not isinstance(given, Observables):
        raise ArgumentError(
            message(
                "observables",
                expected="an Observables",
                got=repr(given),
                remedy="Write observables=Observables(entropy=True), or leave it out.",
            )
        )
    return given


def layers(given: Collection[int] | int | None) -> Collection[int] | None:
    """Numbers of layers, checked before anything runs."""
    if isinstance(given, int):
        given = [given]
    if given is None:
        return None
    for layer in given:
        if not isinstance(layer, int) or layer < 0:
            raise ArgumentError(
                message(
                    "layers",
                    expected="numbers of layers, counted from 0 in the order they are met",
                    got=repr(layer),
                    remedy="Write layers=[0, 5].",
                )
            )
    return given


def addresses(heads: Collection[int | str | Head] | None) -> list[int | Head] | None:
    """Heads as numbers and addresses."""
    if heads is None:
        return None
    for head in heads:
        if not isinstance(head, int | str | Head) or (isinstance(head, int) and head < 0) or isinstance(heads, str):
            raise ArgumentError(
                message(
                    "heads",
                    expected='a list of addresses such as "L2H3", or of head numbers from 0 on',
                    got=repr(heads if isinstance(heads, str) else head),
                    remedy='Write heads=["L2H3", "L4H0"].',
                )
            )
    return [Head.parse(head) if isinstance(head, str) else head for head in heads]


def folder(keep: str | None, keep_in: str | Path | None) -> Path | None:
    """Where to keep what is kept, checked before anything runs."""
    if keep not in (None, "qk", "qkv"):
        raise ArgumentError(
            message(
                "keep",
                expected='"qk", "qkv" or None',
                got=repr(keep),
                remedy='Use keep="qk" to look closer afterwards.',
            )
        )
    if keep_in is None:
        return None
    place = Path(keep_in)
    if keep is None or not place.is_dir() or not os.access(place, os.W_OK):
        why = "nothing to keep there, since keep is None" if keep is None else f"{str(place)!r}"
        raise ArgumentError(
            message(
                "keep_in",
                expected="a folder that can be written to, and keep",
                got=why,
                remedy='Make the folder, and write keep="qk".',
            )
        )
    return place


def check_runs(model: Any) -> None:
    """What is no model cannot be watched, and a compiled graph computes what nobody sees."""
    if model is not None and not isinstance(model, nn.Module):
        raise ArgumentError(
            message(
                "model",
                expected="an nn.Module, or what clearhead.models.load gives",
                got=repr(model)[:80],
                remedy="Load the model first: a name is not enough.",
            )
        )
    for name, module in () if model is None else model.named_modules():
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            where = f"its module {name!r}" if name else "it"
            raise ArgumentError(
                message(
                    "model",
                    expected="a model that runs as it was written",
                    got=f"one of which torch.compile has compiled {where}",
                    remedy="Watch the model before compiling it; model._orig_mod is what torch.compile(model) was made from.",
                )
            )
