"""Watching a model: every attention call made inside `with watch(model)` is observed as it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from clearhead.attention import observer
from clearhead.errors import ArgumentError, message
from clearhead.observables import Observables, Observation
from clearhead.trace import Call, Trace


@contextmanager
def watch(
    model: nn.Module | None = None,
    *,
    observables: Observables | None = None,
    layers: Collection[int] | None = None,
) -> Iterator[Trace]:
    """Observe every `clearhead.attention` call made inside the block, at the cost of one `observe` a call.

    >>> from clearhead.nn import SelfAttention
    >>> layer = SelfAttention(64, 4)
    >>> with watch(layer) as trace:
    ...     _ = layer(torch.randn(1, 10, 64))
    >>> trace.observation(0).entropy.shape
    torch.Size([1, 4, 10])

    Arguments:
        model: whose modules give the calls their names; without it calls have no name. The model is not changed: hooks are
            removed when the block ends, also by an exception.
        observables: what to measure; default `Observables()`.
        layers: numbers of the calls to observe, counted from 0 in the order they are made; the others run unseen. Default all.

    Yields:
        A `Trace`, filled while the block runs.

    Raises:
        ArgumentError: inside another `watch` of the same thread.

    Only this thread (and what it awaits) is watched. What a compiled graph computes cannot be seen. Outputs and gradients
    are those of the unwatched model. Memory: what the observables hold for every call, O(T) a head.
    """
    if observer.get() is not None:
        raise ArgumentError(
            message(
                "watch",
                expected="one watch at a time",
                got="a watch inside another",
                remedy="Leave the outer block first, or read both from one trace.",
            )
        )
    trace = Trace()
    where = _ModulePath(model)
    wanted = Observables() if observables is None else observables
    made = 0

    def see(call: Callable[[Observables], Observation]) -> Tensor:
        nonlocal made
        number, made = made, made + 1
        if layers is not None and number not in layers:
            return call(NOTHING).output
        observation = call(wanted)
        trace.calls.append(Call(where.name, number, observation))
        return observation.output

    token = observer.set(see)
    try:
        with where:
            yield trace
    finally:
        observer.reset(token)


NOTHING = Observables(max_logit=False, entropy=False, top_k=0, received=False, positions=False, distance=False, map=0)


class _ModulePath:
    """Knows the name of the module that is running, from hooks that are there only inside the block."""

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model
        self.thread = threading.get_ident()
        self.path: list[str] = []

    @property
    def name(self) -> str:
        """Name of the innermost module running, "" outside all of them."""
        return self.path[-1] if self.path else ""

    def __enter__(self) -> None:
        self.handles = []
        for name, module in () if self.model is None else self.model.named_modules():
            self.handles.append(module.register_forward_pre_hook(self._entering(name)))
            self.handles.append(module.register_forward_hook(self._leaving, always_call=True))

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            if threading.get_ident() == self.thread:
                self.path.append(name)

        return hook

    def _leaving(self, *_: object) -> None:
        if threading.get_ident() == self.thread and self.path:
            self.path.pop()
