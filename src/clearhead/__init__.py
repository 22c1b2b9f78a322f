"""See what every attention head is looking at: exact, at any length, at the speed of not looking."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from clearhead.registering import register_when_loaded

if TYPE_CHECKING:
    from clearhead.accelerate import accelerate
    from clearhead.attention import attention, explain, observe
    from clearhead.biases import ALiBi
    from clearhead.check import check
    from clearhead.estimate import Estimate, estimate
    from clearhead.masks import All, Causal, Documents, Padding, Prefix, Window
    from clearhead.observables import Observables, Observation
    from clearhead.pattern import Pattern
    from clearhead.rollout import Rollout, rollout
    from clearhead.trace import Trace
    from clearhead.watch import watch

__version__ = "0.1.0"
__all__ = [
    "ALiBi",
    "All",
    "Causal",
    "Documents",
    "Estimate",
    "Observables",
    "Observation",
    "Padding",
    "Pattern",
    "Prefix",
    "Rollout",
    "Trace",
    "Window",
    "accelerate",
    "attention",
    "check",
    "estimate",
    "explain",
    "observe",
    "rollout",
    "watch",
]

_HOMES = {
    "accelerate": ("accelerate",),
    "attention": ("attention", "explain", "observe"),
    "biases": ("ALiBi",),
    "check": ("check",),
    "estimate": ("Estimate", "estimate"),
    "masks": ("All", "Causal", "Documents", "Padding", "Prefix", "Window"),
    "observables": ("Observables", "Observation"),
    "pattern": ("Pattern",),
    "rollout": ("Rollout", "rollout"),
    "trace": ("Trace",),
    "watch": ("watch",),
}


class _Unloaded(ModuleType):
    """This package until one of its public names is used: `clearhead --help` should not wait for torch.

    Some names, such as `attention` and `watch`, are those of the modules they live in. Importing such a module makes
    Python put the module under that name, so a module `__getattr__` would never be asked; this is asked first, and puts the
    function there.
    """

    def __getattribute__(self, name: str) -> object:
        if name in __all__:
            sys.modules[__name__].__class__ = ModuleType
            for home, names in _HOMES.items():
                module = importlib.import_module(f"{__name__}.{home}")
                for public in names:
                    globals()[public] = getattr(module, public)
        return ModuleType.__getattribute__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Unloaded
register_when_loaded()
