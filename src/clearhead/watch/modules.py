"""Where in a model the computation is: names, passes, tokens, from hooks that are there only inside a `watch` block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

TOKENS = "input_ids"  # what every tokenizer and model calls them
OTHERS = ("key_value_states", "encoder_hidden_states")  # what a cross-attention module is given besides its own stream


@dataclass
class Entered:
    """A module that is running."""

    name: str
    module: nn.Module
    ids: Tensor | None  # token ids it was given, (B, T)
    crosses: bool  # it was given another stream to attend to


@dataclass
class ModulePath:
    """The modules that are running now, from the outermost in. Only this thread's."""

    model: nn.Module | None
    watched: Callable[[dict[str, Any]], None] | None = None  # told the arguments of each pass
    passes: int = 0  # how often the outermost module has begun
    path: list[Entered] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.get_ident()
        self.handles: list[Any] = []

    @property
    def name(self) -> str:
        """Name of the innermost module running, "" outside all of them."""
        return self.path[-1].name if self.path else ""

    @property
    def crosses(self) -> bool:
        """Whether the attention module that is running attends to another stream than its own."""
        return bool(self.path) and self.path[-1].crosses

    @property
    def reader(self) -> Entered | None:
        """The innermost module that was given token ids: whose stream this is."""
        return next((entered for entered in reversed(self.path) if entered.ids is not None), None)

    def __enter__(self) -> ModulePath:
        for name, module in () if self.model is None else self.model.named_modules():
            self.handles.append(module.register_forward_pre_hook(self._entering(name), with_kwargs=True))
            self.handles.append(module.register_forward_hook(self._leaving, always_call=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
            if threading.get_ident() != self.thread:
                return
            outermost = not self.path
            if outermost:
                self.passes += 1
                if self.watched is not None:
                    self.watched(given)
            ids = given.get(TOKENS)
            if ids is None and outermost and args:
                ids = args[0]
            self.path.append(Entered(name, module, ids if _are_ids(ids) else None, _crosses(module, args, given)))

        return hook

    def _leaving(self, *_: object) -> None:
        if threading.get_ident() == self.thread and self.path:
            self.path.pop()


def _are_ids(x: object) -> bool:
    return isinstance(x, Tensor) and x.ndim == 2 and not x.is_floating_point() and not x.is_complex()


def _crosses(module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        query = args[0] if args else given.get("query")
        key = args[1] if len(args) > 1 else given.get("key")
        return query is not key
    return any(given.get(name) is not None for name in OTHERS)
