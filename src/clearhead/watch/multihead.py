"""`nn.MultiheadAttention` and what is built on it: fast paths off while watching, and the function inside seen.

In eval mode these modules hand everything to one C++ function that no mode sees; `torch.backends.mha` has a switch for it.
What they call then, `F.multi_head_attention_forward`, is a Python function: the mode that sees it is off inside it, and with
`need_weights=True` it never calls `scaled_dot_product_attention` at all.
"""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

FUNCTION = functional.multi_head_attention_forward

_lock = threading.Lock()
_users = 0
_before = True


def _unasked(tensors: object) -> bool:  # noqa: ARG001
    return False


# The same code, but it does not ask the mode about itself: the mode can be on inside.
_inside: Callable[..., Any] = types.FunctionType(
    FUNCTION.__code__,
    {**FUNCTION.__globals__, "has_torch_function": _unasked},
    FUNCTION.__name__,
    FUNCTION.__defaults__,
    FUNCTION.__closure__,
)
_inside.__kwdefaults__ = FUNCTION.__kwdefaults__


def run(mode: TorchFunctionMode, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """What `F.multi_head_attention_forward` returns, its attention seen by `mode`.

    With `need_weights=True` the model wants the T×T weights, so they are made, as always; what is observed is computed beside.
    """
    call = inspect.signature(FUNCTION).bind(*args, **given)
    call.apply_defaults()
    if not call.arguments["need_weights"]:
        with mode:
            return _inside(*args, **given)
    result = FUNCTION(*args, **given)
    # is_causal only hints at what the mask, which it needs, says.
    call.arguments.update(need_weights=False, training=False, is_causal=False)
    with torch.no_grad(), mode:
        _inside(*call.args, **call.kwargs)
    return result


class SlowPaths:
    """A context in which the fast paths are off, for the whole process; on again, if they were, when the last one leaves."""

    def __enter__(self) -> None:
        global _users, _before
        with _lock:
            if _users == 0:
                _before = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            _users += 1

    def __exit__(self, *_: object) -> None:
        global _users
        with _lock:
            _users -= 1
            if _users == 0:
                torch.backends.mha.set_fastpath_enabled(_before)
