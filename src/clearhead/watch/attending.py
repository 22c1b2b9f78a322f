"""`watch` for what cannot go on without attention: a model that shows none is refused, and not only warned about."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from clearhead.errors import InputError, NothingSeenWarning
from clearhead.trace import Trace
from clearhead.watch import watch


@contextmanager
def attending(network: nn.Module, who: str, **options: Any) -> Iterator[Trace]:
    """`watch(network, **options)`. Raises `InputError`, which begins with `who`, where no attention call was observed."""
    told = None
    with warnings.catch_warnings():
        warnings.simplefilter("error", NothingSeenWarning)
        try:
            with watch(network, **options) as trace:
                yield trace
        except NothingSeenWarning as warning:
            told = str(warning).removeprefix("watch: ")
    if not trace.calls:
        raise InputError(f"{who}: {told or 'no attention call was observed'}")
    if told is not None:  # a part of the model was not seen
        warnings.warn(f"watch: {told}", NothingSeenWarning, stacklevel=3)
