"""The door under any PyTorch model: every `F.scaled_dot_product_attention`, whoever calls it.

A `TorchFunctionMode` is asked about each PyTorch function this thread calls, before it runs. Nothing is registered and no
model is changed. A call is computed by this library and observed on the way; where that would not return what PyTorch
returns, PyTorch computes it, and it is observed beside, or counted as unseen with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from clearhead.arguments import DTYPES, checked_call
from clearhead.attention import Prepared
from clearhead.errors import ArgumentError, dtype_name
from clearhead.masks import Causal, Dense, Intervals, Mask
from clearhead.watch import multihead

SDPA = functional.scaled_dot_product_attention
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class Door(TorchFunctionMode):
    """Hands every call of `scaled_dot_product_attention` to `see`; tells `unseen` why where it cannot.

    `see(call)` computes and observes, and returns the output. `beside(call)` only observes.
    """

    def __init__(
        self, see: Callable[[Prepared], Tensor], beside: Callable[[Prepared], object], unseen: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.see, self.beside, self.unseen = see, beside, unseen
        self.last: tuple[Tensor, int, tuple[Mask | None, Tensor | None]] | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What PyTorch calls instead of `func`."""
        given = kwargs or {}
        if func is SDPA:
            return self._attend(args, given)
        if func is multihead.FUNCTION:
            return multihead.run(self, args, given)
        return func(*args, **given)

    def _attend(self, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        call = dict(zip(NAMES, args, strict=False)) | given
        query, key, value = (call.get(name) for name in NAMES[:3])
        reason = _why_not(query, key, value)
        if reason is None:
            try:
                prepared = self._prepared(call, query, key, value)  # type: ignore[arg-type]
            except (ArgumentError, RuntimeError):  # PyTorch's own message is what the model's author expects
                reason = "its arguments do not fit together"
        if reason is not None:
            self.unseen(f"scaled_dot_product_attention: {reason}")
            return SDPA(*args, **given)
        if call.get("dropout_p"):
            with torch.no_grad():
                self.beside(prepared)
            return SDPA(*args, **given)
        return _as_theirs(self.see(prepared), query)  # type: ignore[arg-type]

    def _prepared(self, call: dict[str, Any], query: Tensor, key: Tensor, value: Tensor) -> Prepared:
        """The call in this library's terms."""
        Tq, Tk = query.shape[-2], key.shape[-2]
        query, key, value = _heads(query, key, value, bool(call.get("enable_gqa")))
        given = call.get("attn_mask")
        if given is not None and 2 < given.ndim < query.ndim:
            given = given[(None,) * (query.ndim - given.ndim)]  # dimensions in front broadcast
        mask, bias = self._mask(given, Tq, Tk)
        if call.get("is_causal") and given is not None:
            if Tq != Tk:
                raise ArgumentError("is_causal beside a mask counts from the start")
            mask = Causal() if mask is None else Causal() & mask
        elif call.get("is_causal"):
            mask = _start(Tq, Tk)
            key, value = (_fitted(x, Tq) for x in (key, value))
        return Prepared(checked_call(query, key, value, mask=mask, bias=bias, scale=call.get("scale")))

    def _mask(self, given: Tensor | None, Tq: int, Tk: int) -> tuple[Mask | None, Tensor | None]:
        """The mask and the bias that `attn_mask` is; the layers of a model mostly share one tensor."""
        if given is None:
            return None, None
        if given.is_inference():  # nobody would notice if it were changed in place
            return mask_and_bias(given, Tq, Tk)
        if self.last is None or self.last[0] is not given or self.last[1] != given._version:
            self.last = given, given._version, mask_and_bias(given, Tq, Tk)
        return self.last[2]


def _why_not(query: object, key: object, value: object) -> str | None:
    """Why a call is left to PyTorch, unseen; None where it need not be."""
    for x in (query, key, value):
        if not isinstance(x, Tensor):
            return "query, key or value is no tensor"
        if x.is_nested:
            return "nested tensors have no one length"
        if type(x) not in (Tensor, torch.nn.Parameter) or x.is_meta:
            return f"{'meta tensors' if x.is_meta else type(x).__name__} are not computed here and now"
        if x.dtype not in DTYPES:
            return f"{dtype_name(x.dtype)} cannot be observed"
    if torch.compiler.is_compiling():
        return "a compiled graph is traced once and replayed unseen"
    return None


def _heads(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> tuple[Tensor, Tensor, Tensor]:
    """PyTorch broadcasts the head dimension unless heads are grouped; here heads are grouped always."""
    if grouped or query.ndim < 3 or not (query.ndim == key.ndim == value.ndim):
        return query, key, value
    if query.shape[-3] == key.shape[-3] == value.shape[-3]:
        return query, key, value
    (heads,) = torch.broadcast_shapes(*(x.shape[-3:-2] for x in (query, key, value)))
    return tuple(x.expand(*x.shape[:-3], heads, *x.shape[-2:]) for x in (query, key, value))  # type: ignore[return-value]


def _start(Tq: int, Tk: int) -> Mask:
    """`is_causal`: query i sees keys 0 … i. Keys are made as many as queries, so that positions are the same from both ends."""
    if Tq <= Tk:
        return Causal()
    i = torch.arange(Tq)
    return Intervals(torch.zeros_like(i)[None], (i + 1).clamp(max=Tk)[None])


def _fitted(x: Tensor, T: int) -> Tensor:
    """The first T positions; zeros where there are fewer, which the mask hides."""
    return x[..., :T, :] if x.shape[-2] >= T else functional.pad(x, (0, 0, 0, T - x.shape[-2]))


def mask_and_bias(given: Tensor, Tq: int, Tk: int) -> tuple[Mask | None, Tensor | None]:
    """A mask object where the tensor only allows and forbids, else the tensor as a bias."""
    small = given[tuple(slice(0, 1) if step == 0 else slice(None) for step in given.stride())]
    if given.dtype != torch.bool:
        if given.requires_grad:
            return None, given
        hidden = small <= torch.finfo(small.dtype).min
        allowed = ~hidden
        # A row of nothing but the most negative number is no row of nothing: softmax makes it uniform.
        hides = bool((~hidden | (small == -torch.inf)).all()) or bool(allowed.any(-1).all())
        if not hides or not bool(((small == 0) | hidden).all()):
            return None, given
        small = allowed
    if Tq != Tk or small.ndim == 3:
        return Dense(small), None
    # A position that nobody may attend to, not even itself, is padding.
    padding = ~small.any(-2).expand(*small.shape[:-2], Tk)
    padding = padding if small.ndim == 2 else padding.flatten(0, -3).all(-2)  # (B or 1, Tk), or (Tk,)
    if not bool(padding.any()):
        return Dense(small), None
    return Dense(small) & Intervals.everything(Tq, Tk, padding=torch.atleast_2d(padding)), None


def _as_theirs(out: Tensor, query: Tensor) -> Tensor:
    """The output stored as PyTorch's kernel stores it: models count on `transpose(1, 2).view(…)`."""
    if out.shape != query.shape:
        return out
    like = torch.empty_like(query)
    return out if out.stride() == like.stride() else like.copy_(out)
