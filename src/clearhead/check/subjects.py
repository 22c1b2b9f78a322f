"""What a candidate is: a function of query, key and value, a module with layers, or a function with layers around it."""

from __future__ import annotations

import functools
import inspect as inspection
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.check.calling import Failed, Habits, Watcher
from clearhead.check.construct import make
from clearhead.check.functions import FunctionSubject
from clearhead.check.layers import find
from clearhead.check.modules import ModuleSubject, prepared, set_up
from clearhead.check.parameters import roles_of, words

Subject = FunctionSubject | ModuleSubject


@dataclass(frozen=True)
class Options:
    """What the caller says about the candidate."""

    kind: str | None = None
    causal: bool | str | None = None
    layout: str | None = None
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    args: dict[str, Any] | None = None
    seed: int = 0
    device: str | None = None
    seconds: float = 10.0  # for one call
    strict: bool = False


class CannotRun(Exception):  # noqa: N818
    """There is nothing to check; says what was tried, what happened and the line that would help."""


def subject_of(candidate: Any, name: str, options: Options, habits: Habits, watcher: Watcher) -> Subject:
    """The candidate as something that can be called. Raises `CannotRun`."""
    made = ""
    if isinstance(candidate, type):
        try:
            candidate, made = make(candidate, options.args, habits)
        except Failed as failed:
            raise CannotRun(failed.said) from None
    elif options.args and isinstance(candidate, types.FunctionType):
        candidate = _with_arguments(candidate, options.args)
    if not callable(candidate) and callable(getattr(candidate, "forward", None)):
        candidate = candidate.forward
    if not callable(candidate):
        raise CannotRun(
            f"{name} is {_article(type(candidate).__name__)}, which cannot be called; name a function, a class or a module"
        )
    if isinstance(candidate, nn.Module):
        subject = _module_subject(candidate, name, made, habits, watcher)
        if isinstance(subject, ModuleSubject):
            _check_kind(options, name)
        return subject
    function = candidate
    parameters = roles_of(function)
    if parameters is not None and not parameters:
        raise CannotRun(
            f"{name}() takes no arguments; a candidate takes (query, key, value), or x: give it those parameters"
        )
    roles = {p.role for p in parameters or []}
    three = {"query", "key", "value"} <= roles
    if options.kind == "function" or parameters is None or (three and options.kind is None):
        if not three and parameters is not None:
            raise CannotRun(
                f"{name}{words(parameters)} does not take query, key and value; without --kind function it is read as "
                "attention over x"
            )
        return FunctionSubject.of(function, made or name, habits, watcher)
    return _around_layers(function, name, made, habits, watcher)


def _check_kind(options: Options, name: str) -> None:
    if options.kind == "function":
        raise CannotRun(
            f"{name} holds layers of its own, so it is no function of query, key and value; leave out --kind"
        )


def _module_subject(module: nn.Module, name: str, made: str, habits: Habits, watcher: Watcher) -> Subject:
    parameters = roles_of(module.forward)
    three = {"query", "key", "value"} <= {p.role for p in parameters or []}
    if three and not find(module).sources:
        return FunctionSubject.of(module.eval().forward, made or name, habits, watcher)
    found = prepared(module, name, habits, watcher)
    found.made = made
    if not found.found.sources:
        raise CannotRun(
            f"{name} holds no linear layers that make query, key and value (it has "
            f"{', '.join(n for n, _ in module.named_children()) or 'no parts'}); name the attention itself, or a function "
            "of query, key and value"
        )
    return found


def _around_layers(function: Callable[..., Any], name: str, made: str, habits: Habits, watcher: Watcher) -> Subject:
    """A function of x: its weights are arguments, or layers it finds around it."""
    parameters = roles_of(function) or []
    by_role = {p.role: p for p in parameters}
    holder = nn.Module()
    if {"wq", "wk", "wv"} <= set(by_role) or "wqkv" in by_role:
        width, heads = 30, 6 if "heads" in by_role else 1
        total = 30 if heads > 1 else 10
        made_by = torch.Generator().manual_seed(77)
        for p in parameters:
            shapes = {
                "wq": (width, total),
                "wk": (width, total),
                "wv": (width, total),
                "wo": (total, width),
                "wqkv": (width, 3 * total),
            }
            if p.role in shapes and (p.required or p.role != "wo"):
                w = (torch.randn(shapes[p.role], generator=made_by) / shapes[p.role][0] ** 0.5).double()
                holder.register_parameter(p.name, nn.Parameter(w, requires_grad=False))
        subject = ModuleSubject(function, holder, made or name, parameters, habits, watcher, find(holder))
        set_up(subject)
        subject.width, subject.heads, subject.kv_heads = width, heads, heads
        for p in parameters:
            if p.role in ("wq", "wk", "wv", "wo", "wqkv") and hasattr(holder, p.name):
                subject.fixed[p.name] = getattr(holder, p.name).detach()
            elif p.role == "heads":
                subject.fixed[p.name] = heads
        return subject
    held = _held(function)
    for n, (path, thing) in enumerate(held.items()):
        if isinstance(thing, nn.Module):
            holder.add_module(path.replace(".", "_") or f"part{n}", thing)
        else:  # an array's numbers are shared, so that they can be made louder in place
            shared = torch.from_numpy(thing) if isinstance(thing, np.ndarray) else thing
            holder.register_parameter(path, nn.Parameter(shared, requires_grad=False))
    for module in list(held.values()):
        if isinstance(module, nn.Module):
            module.eval()
    found = find(holder)
    if not found.sources:
        raise CannotRun(
            f"{name}{words(parameters)} is read as attention over x, and no linear layers that make query, key and value were "
            "found in or around it; give it the parameters (query, key, value), or make it a Module that holds its layers"
        )
    subject = ModuleSubject(function, holder, made or name, parameters, habits, watcher, found)
    if any(isinstance(thing, np.ndarray) for thing in held.values()):
        subject.framework = "numpy"
    set_up(subject)
    subject.dtype = next(iter(p.dtype for p in holder.parameters() if p.is_floating_point()), torch.float32)
    return subject


def _held(function: Any) -> dict[str, Any]:
    """Layers and matrices that a function refers to: globals it names, what it closes over, what its object holds."""
    found: dict[str, Any] = {}
    target = function
    if not isinstance(function, types.FunctionType | types.MethodType) and hasattr(function, "__call__"):  # noqa: B004
        found |= {n: v for n, v in vars(function).items() if _is_layer(v)} if hasattr(function, "__dict__") else {}
        target = type(function).__call__
    if isinstance(target, types.MethodType):
        found |= (
            {n: v for n, v in vars(target.__self__).items() if _is_layer(v)}
            if hasattr(target.__self__, "__dict__")
            else {}
        )
        target = target.__func__
    code = getattr(target, "__code__", None)
    if code is not None:
        for n in code.co_names:
            value = target.__globals__.get(n)
            if _is_layer(value):
                found.setdefault(n, value)  # what the object holds comes before a global of that name
        for n, cell in zip(code.co_freevars, target.__closure__ or (), strict=False):
            try:
                if _is_layer(cell.cell_contents):
                    found[n] = cell.cell_contents
            except ValueError:
                continue
    return found


def _is_layer(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return True
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f" and value.ndim == 2 and min(value.shape) > 1 and value.flags.writeable
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 2 and min(value.shape) > 1


def _with_arguments(function: Callable[..., Any], given: dict[str, Any]) -> Callable[..., Any]:
    return functools.partial(function, **given)


def _article(word: str) -> str:
    return ("an " if word[:1].lower() in "aeiou" else "a ") + word


def framework_hint(function: Callable[..., Any]) -> list[str]:
    """The frameworks to try, the likeliest first, from what the function's module has imported."""
    target = inspection.unwrap(function)
    space = getattr(target, "__globals__", None) or vars(inspection.getmodule(target) or types.ModuleType("")) or {}
    held = {value.__name__.split(".")[0] for value in space.values() if isinstance(value, types.ModuleType)}
    held |= {
        getattr(value, "__module__", "").split(".")[0]
        for value in space.values()
        if callable(value) and not isinstance(value, type)
    }
    used = {
        space[name].__name__.split(".")[0]
        for name in getattr(getattr(target, "__code__", None), "co_names", ())
        if isinstance(space.get(name), types.ModuleType)
    }
    order: list[str] = [name for name in ("jax", "numpy") if name in held]
    if ("torch" in held and not ("numpy" in used and "torch" not in used)) or not order:
        order = ["torch", *order]
    return [*order, *(name for name in ("torch", "numpy", "lists") if name not in order)]


def trouble_of(subject: Subject, errors: list[tuple[str, Failed]]) -> str:
    """What was tried, what happened, and what would help."""
    if not errors:
        return f"{subject.signature}: no way to call it was found; give --kind and --layout"
    tried, failed = errors[0]
    text = failed.said.lower()
    where = f" (line {failed.line})" if failed.line else ""
    if failed.why == "took too long":
        helps = "these inputs are tiny, so look for a loop that never ends"
    elif failed.why == "too much memory":
        helps = "these inputs are tiny, so look at what it allocates; more is --memory 16 (GiB)"
    elif failed.why == "exited":
        helps = "take exit() out of it: a function returns"
    elif any(word in text for word in ("cuda", "triton", "gpu", "nvidia", "no active driver", "device-side")):
        helps = "it needs a GPU that is not here: run this where there is one, with --device cuda"
    elif "missing" in text and "argument" in text:
        helps = "give the other arguments: --args name=value"
    elif "unexpected keyword" in text or "positional argument" in text:
        helps = "a candidate takes (query, key, value), or (query, key, value, mask), or x"
    elif failed.why == "odd result":
        helps = "return the weighted sum, of the query's shape with the value's width"
    elif failed.error in ("NameError", "UnboundLocalError", "AttributeError", "ImportError", "ModuleNotFoundError"):
        helps = "that name must exist before the function is called"
    elif failed.error == "NotImplementedError":
        helps = "it is still to be written"
    else:
        helps = "say how it is called with --layout bhtd, bthd, btd or td, and --kind"
    return f"{subject.signature}: called with {tried}, it {said_of(failed)}{where}; {helps}"


def said_of(failed: Failed) -> str:
    """What a failed call did, in the past tense."""
    return f"raised {failed.said}" if failed.why in ("refused", "broke") else failed.said
