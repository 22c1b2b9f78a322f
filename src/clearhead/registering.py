"""`set_attn_implementation("clearhead")` works wherever both libraries are imported, in whichever order."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE = "transformers.modeling_utils"


def register_when_loaded() -> None:
    """Register with transformers: now if it is loaded, else once it is. Loads nothing by itself."""
    if MODULE in sys.modules:
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    from clearhead.watch.transformers import register

    register()


class _Finder(MetaPathFinder):
    """Asked about every import; has something to say about one, once."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """The module's own loader, and the registration after it."""

    def __init__(self, own: Loader) -> None:
        self.own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.own.exec_module(module)
        _register()

    def __getattr__(self, name: str) -> Any:  # get_source and the like, which tracebacks and inspect ask for
        return getattr(self.own, name)
