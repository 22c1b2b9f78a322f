"""Calling code that may do anything: loop for ever, exit, print, reseed, change defaults, return something odd."""

from __future__ import annotations

import random
import signal
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

Why = Literal["refused", "broke", "took too long", "too much memory", "exited", "odd result"]
SECONDS = 10.0  # for one call on a few numbers


class Failed(Exception):  # noqa: N818
    """A call that gave no usable result."""

    def __init__(self, why: Why, said: str, line: int | None = None, error: str = "") -> None:
        super().__init__(said)
        self.why: Why = why
        self.said = said
        self.line = line
        self.error = error  # the exception's class


class TimedOut(BaseException):
    """Raised inside the candidate when its time is up; a BaseException, so that `except Exception` does not stop it."""


class Watcher(TorchFunctionMode):
    """Hears which torch functions are called, and can make dropout do nothing."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self.silence = False  # whether dropout is replaced by nothing
        self.dropped: list[tuple[str, float]] = []  # dropouts that were active: function and p
        self.at_dropout: Callable[[torch.Tensor, float], torch.Tensor] | None = None
        self._busy = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        self.called.add(name)
        if name in ("dropout", "dropout_", "alpha_dropout", "feature_dropout", "native_dropout") and not self._busy:
            p = _argument("p", 1, args, kwargs, 0.5)
            active = _argument("training" if "training" in kwargs else "train", 2, args, kwargs, True)
            if active and p:
                self.dropped.append((name, float(p)))
                x = args[0] if args else kwargs["input"]
                if self.silence:
                    return x
                if self.at_dropout is not None:
                    self._busy = True
                    try:
                        return self.at_dropout(x, float(p))
                    finally:
                        self._busy = False
        if name == "scaled_dot_product_attention":
            p = _argument("dropout_p", 4, args, kwargs, 0.0)
            if p:
                self.dropped.append((name, float(p)))
                if self.silence:
                    args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
                    kwargs = kwargs | ({"dropout_p": 0.0} if "dropout_p" in kwargs else {})
        return func(*args, **kwargs)


def _argument(name: str, place: int, args: Any, kwargs: Any, default: Any) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else default)


class Habits:
    """Things a candidate does to the process it runs in; each is undone, and said once."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Whatever global state is changed inside is changed back."""
        dtype, grad, seed = torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed()
        state, numbers, python = torch.get_rng_state(), np.random.get_state(), random.getstate()
        try:
            yield
        finally:
            if torch.get_default_dtype() != dtype:
                self.said["dtype"] = f"sets the process's default dtype to {torch.get_default_dtype()}"
                torch.set_default_dtype(dtype)
            if torch.is_grad_enabled() != grad:
                self.said["grad"] = "switches gradients off for the whole process (torch.set_grad_enabled)"
                torch.set_grad_enabled(grad)
            if torch.initial_seed() != seed:
                self.said["seed"] = "sets the process's random seed (torch.manual_seed)"
            torch.set_rng_state(state)
            np.random.set_state(numbers)
            random.setstate(python)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimedOut` in the main thread after some seconds; elsewhere, and where there are no such signals, no limit."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise TimedOut

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)  # again and again, should the first be swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def call(
    function: Callable[..., Any],
    *args: Any,
    habits: Habits,
    watcher: Watcher | None = None,
    seconds: float = SECONDS,
    **kw: Any,
) -> Any:
    """Call the candidate; raises `Failed` for everything that can go wrong."""
    try:
        with habits.undone(), time_limit(seconds):
            if watcher is None:
                return function(*args, **kw)
            with watcher:
                return function(*args, **kw)
    except TimedOut:
        raise Failed("took too long", f"did not come back within {seconds:g} s") from None
    except KeyboardInterrupt:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise Failed("too much memory", f"ran out of memory: {_short(error)}", _line(error), "MemoryError") from None
    except (SystemExit, GeneratorExit) as error:
        raise Failed("exited", f"called exit ({type(error).__name__} {error})", _line(error), "SystemExit") from None
    except RecursionError as error:
        raise Failed("broke", f"RecursionError: {_short(error)}", _line(error), "RecursionError") from None
    except BaseException as error:  # noqa: BLE001
        text = f"{type(error).__name__}: {_short(error)}"
        if "allocate memory" in text or "can't allocate" in text:
            raise Failed("too much memory", f"ran out of memory: {text}", _line(error), "MemoryError") from None
        polite = isinstance(error, AssertionError | ValueError | NotImplementedError) and _raised_by(error)
        raise Failed("refused" if polite else "broke", text, _line(error), type(error).__name__) from None


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:199] + "…"


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def _line(error: BaseException) -> int | None:
    """The deepest line in code that is neither torch's, NumPy's nor ours."""
    for frame in reversed(_frames(error)):
        if not any(part in frame.filename for part in ("site-packages", "/clearhead/", "lib/python", "<frozen")):
            return frame.lineno
    return None


def _raised_by(error: BaseException) -> bool:
    """Whether the last line is a `raise` or an `assert`: the code says no, it does not fall over."""
    frames = _frames(error)
    return bool(frames) and (frames[-1].line or "").lstrip().startswith(("raise", "assert"))


def as_tensor(result: Any) -> torch.Tensor:
    """What a candidate returned, as a tensor; raises `Failed` saying what it is instead."""
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, dict) or hasattr(result, "_fields") or hasattr(result, "to_tuple"):
        values = list(result.values()) if isinstance(result, dict) else list(result)
        for value in values:
            if isinstance(value, torch.Tensor | np.ndarray):
                return as_tensor(value)
    if isinstance(result, tuple | list) and result:
        first = result[0]
        if isinstance(first, torch.Tensor | np.ndarray) and isinstance(result, tuple) and first.ndim:
            return as_tensor(first)
        if hasattr(first, "__array__") and isinstance(result, tuple) and bool(getattr(first, "ndim", 0)):
            return as_tensor(first)
        try:
            return torch.as_tensor(np.array(_numbers(result), dtype=np.float64))
        except (TypeError, ValueError):
            pass
    elif hasattr(result, "__array__"):
        made = np.asarray(result)
        if made.dtype.kind in "fiu":
            return torch.as_tensor(np.array(made))
        if made.dtype.name == "bfloat16":
            return torch.as_tensor(made.astype(np.float32)).bfloat16()
    raise Failed("odd result", f"returned {said_type(result)}, where an array or tensor is expected")


def _numbers(nested: Any) -> Any:
    if isinstance(nested, list | tuple):
        return [_numbers(each) for each in nested]
    if isinstance(nested, torch.Tensor):
        return nested.detach().tolist()
    return nested.tolist() if isinstance(nested, np.ndarray) else float(nested)


def said_type(value: Any) -> str:
    """A value by its type and, if it has one, its shape."""
    if value is None:
        return "None (is a return missing?)"
    if isinstance(value, types.GeneratorType):
        return "a generator (is there a yield in it?)"
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")
