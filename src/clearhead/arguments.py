"""What `attention` and its kin are called with: checked, every wrong argument told, and brought into four dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

import torch
from torch import Tensor

from clearhead.biases import ALiBi
from clearhead.errors import ArgumentError, dtype_name, message, shape_of
from clearhead.kernels.problem import Problem
from clearhead.masks import All, Causal, Dense, Mask, Prefix, Sizes, Window
from clearhead.plans import Plan

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class CallOptions(TypedDict, total=False):
    """The options of a call, for code that hands them on.

    Public functions (`attention`, `observe`, `explain`, `estimate`, `Pattern`, those of `distributed`) write the list out, so
    that `help`, editors and the reference show it; a test holds them to `attention`'s.
    """

    mask: Mask | Tensor | None
    bias: Tensor | ALiBi | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None


@dataclass(frozen=True, eq=False)
class CheckedCall:
    """A call whose arguments fit together, in four dimensions; the mask object is kept for `reference`."""

    problem: Problem
    mask: Mask
    sizes: Sizes
    lead: tuple[int, ...]  # leading dimensions of the caller's shape; () when there was no batch
    headless: bool  # the caller gave (T, D)

    def shaped(self, out: Tensor) -> Tensor:
        """The result in the caller's shape."""
        if self.headless:
            return out[0, 0]
        return out.reshape(*self.lead, *out.shape[1:]) if self.lead != out.shape[:1] else out


def checked_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> CheckedCall:
    """Check everything, and bring it into four dimensions. Arguments and errors are those of `attention`."""
    _check_tensors(query, key, value)
    device = query.device.type
    if torch.is_autocast_enabled(device) and query.dtype != torch.float64:
        lower = torch.get_autocast_dtype(device)
        query, key, value = query.to(lower), key.to(lower), value.to(lower)
    headless = query.ndim == 2
    if headless:
        query, key, value = query[None], key[None], value[None]
    lead = _check_shapes(query, key, value)
    B = math.prod(lead)
    Hq, Tq, D = query.shape[-3:]
    Tk = key.shape[-2]
    if len(lead) != 1 or not query.shape[0] == key.shape[0] == value.shape[0]:
        query, key, value = (x.expand(*lead, -1, -1, -1).reshape(B, *x.shape[-3:]) for x in (query, key, value))
    sizes = Sizes(B, Tq, Tk, query.device)
    pairs = (*lead, Hq, Tq, Tk)
    mask = _checked_mask(mask, pairs, headless)
    bias, slopes, offset = _checked_bias(bias, pairs, headless, query.device)
    if sinks is not None:
        sinks = _check_per_head("sinks", sinks, Hq)
    if scale is None:
        scale = D**-0.5 if D else 1.0
    if not math.isfinite(scale):
        raise ArgumentError(
            message("scale", expected="a finite number", got=repr(scale), remedy="Leave it out for D ** -0.5.")
        )
    if softcap is not None and not (math.isfinite(softcap) and softcap > 0):
        raise ArgumentError(
            message("softcap", expected="a finite number > 0", got=repr(softcap), remedy="Leave it out for no cap.")
        )
    problem = Problem(query, key, value, _plan(mask, sizes), float(scale), softcap, bias, slopes, sinks, offset)
    return CheckedCall(problem, mask, sizes, () if headless else lead, headless)


def _checked_mask(mask: Mask | Tensor | None, pairs: tuple[int, ...], headless: bool) -> Mask:
    if mask is None:
        return All()
    if isinstance(mask, Tensor):
        Dense(mask)  # its dtype error comes before any about its shape
        return Dense(_pairs("mask", mask, pairs, headless))
    if not isinstance(mask, Mask):
        raise ArgumentError(
            message(
                "mask",
                expected="a mask object such as Causal(), or a bool tensor in which True means may attend",
                got=type(mask).__name__ if not isinstance(mask, type) else f"the class {mask.__name__}",
                remedy="Write Causal() with parentheses; combine with &.",
            )
        )
    return mask


def _checked_bias(
    bias: Tensor | ALiBi | None, pairs: tuple[int, ...], headless: bool, device: torch.device
) -> tuple[Tensor | None, Tensor | None, int | None]:
    """Numbers to add, or slopes and the position of query 0 that they count from."""
    if bias is None:
        return None, None, None
    if isinstance(bias, ALiBi):
        Hq, Tq, Tk = pairs[-3:]
        return None, _check_per_head("ALiBi slopes", bias.slopes, Hq).to(device), bias.offset(Tq, Tk)
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        raise ArgumentError(
            message(
                "bias",
                expected="a floating-point tensor, added to the scores, or ALiBi(heads)",
                got=f"a {bias.dtype} tensor" if isinstance(bias, Tensor) else type(bias).__name__,
                remedy="A bool tensor that says who may attend goes to mask=.",
            )
        )
    return _pairs("bias", bias, pairs, headless), None, None


def _plan(mask: Mask, sizes: Sizes) -> Plan:
    """A mask's plan on the inputs' device; of masks that are plain numbers the last few are kept: every layer asks again."""
    if isinstance(mask, All | Causal | Window | Prefix) and not torch.compiler.is_compiling():
        numbers = tuple(vars(mask).values())
        if all(isinstance(x, int | str) for x in numbers) and torch._C._len_torch_dispatch_stack() == 0:
            return _kept_plan(type(mask), numbers, sizes)  # type: ignore[arg-type]
    return mask.plan(sizes).to(sizes.device)


@lru_cache(maxsize=16)
def _kept_plan(kind: type[Mask], numbers: tuple[int | str, ...], sizes: Sizes) -> Plan:
    with torch.inference_mode(False):  # what is made in inference mode cannot be kept for a backward later
        return kind(*numbers).plan(sizes)


def _all_shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    letters = ("Hq Tq D", "Hk Tk D", "Hk Tk Dv")
    names = ("query", "key", "value")
    shapes = zip(names, (query, key, value), letters, strict=True)
    return ", ".join(f"{n} {shape_of(x, s if x.ndim > 2 else s[3:])}" for n, x, s in shapes)


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise ArgumentError(
                message(name, expected="a torch.Tensor", got=type(x).__name__, remedy="Use torch.as_tensor(...).")
            )
        if x.dtype not in DTYPES:
            raise ArgumentError(
                message(
                    name,
                    expected="dtype float32, bfloat16, float16 or float64",
                    got=dtype_name(x.dtype),
                    remedy=f"Convert it: {name}.float().",
                )
            )
        if x.ndim < 2:
            raise ArgumentError(
                message(
                    name,
                    expected="(…, H, T, D), or (T, D) for one head",
                    got=str(tuple(x.shape)),
                    remedy="Attention needs a sequence and a width.",
                )
            )
        if x.dtype != query.dtype or x.device != query.device:
            raise ArgumentError(
                message(
                    name,
                    expected=f"dtype and device of query ({query.dtype}, {query.device})",
                    got=f"{x.dtype}, {x.device}",
                    remedy=f"Convert it: {name}.to(query).",
                )
            )
        if (x.ndim == 2) != (query.ndim == 2):
            raise ArgumentError(
                message(
                    name,
                    expected=f"a head dimension as query has it (query {tuple(query.shape)})",
                    got=str(tuple(x.shape)),
                    remedy="Give all three a head dimension, or none: x[None].",
                )
            )


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """The broadcast leading dimensions; raises where the shapes do not fit together."""
    Hq, D = query.shape[-3], query.shape[-1]
    Hk, Tk = key.shape[-3], key.shape[-2]

    def shapes() -> str:
        return _all_shapes(query, key, value)

    if key.shape[-1] != D:
        raise ArgumentError(f"key has width {key.shape[-1]} but query has {D}: they must have the same D ({shapes()})")
    if value.shape[-2] != Tk:
        raise ArgumentError(f"value has {value.shape[-2]} positions but key has {Tk}: one value a key, Tk ({shapes()})")
    if value.shape[-3] != Hk:
        raise ArgumentError(
            f"value has {value.shape[-3]} heads but key has {Hk}: they must have the same Hk ({shapes()})"
        )
    if (Hk == 0) != (Hq == 0) or (Hk and Hq % Hk):
        raise ArgumentError(f"key has {Hk} heads but query has {Hq}: Hq must be a multiple of Hk ({shapes()})")
    if query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        return tuple(query.shape[:-3])
    try:
        lead = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    except RuntimeError:
        raise ArgumentError(
            f"leading dimensions of query {tuple(query.shape[:-3])}, key {tuple(key.shape[:-3])} and value "
            f"{tuple(value.shape[:-3])} do not broadcast: make each pair equal or 1 ({shapes()})"
        ) from None
    return tuple(lead)


def _pairs(name: str, x: Tensor, full: tuple[int, ...], headless: bool) -> Tensor:
    """A mask or bias tensor as (B or 1, Hq or 1, Tq or 1, Tk or 1), without expanding what it does not depend on.

    `full`: (…, Hq, Tq, Tk), every leading dimension of the caller's.
    """
    given, lead = tuple(x.shape), full[:-3]
    ok = x.ndim == 2 or (x.ndim == len(full) and not headless)
    if ok:
        x = x[(None,) * (len(full) - x.ndim)]
        ok = all(n in (1, m) for n, m in zip(x.shape, full, strict=True))
    if not ok:
        letters = "…, Hq, Tq, Tk" if len(lead) > 1 else "B, Hq, Tq, Tk" if lead else "Hq, Tq, Tk"
        raise ArgumentError(
            message(
                name,
                expected=f"(Tq, Tk) or ({letters}) = {full}, sizes of 1 allowed",
                got=str(given),
                remedy=f"A batch of masks needs a head dimension of its own: {name}[:, None].",
            )
        )
    if math.prod(x.shape[:-3]) == 1:
        return x.reshape(1, *x.shape[-3:])
    return x.expand(*lead, *x.shape[-3:]).reshape(math.prod(lead), *x.shape[-3:])


def _check_per_head(name: str, x: Tensor, Hq: int) -> Tensor:
    if x.shape != (Hq,) or not x.is_floating_point():
        raise ArgumentError(
            message(
                name,
                expected=f"one number a query head, floating point, shape (Hq={Hq},)",
                got=f"{x.dtype} of shape {tuple(x.shape)}",
                remedy="Each query head has its own; key heads have none.",
            )
        )
    return x
