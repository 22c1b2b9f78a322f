"""The door into Hugging Face models: an attention function and a mask function, both registered as "clearhead".

`watch(model)` switches the models inside to that name and back. `model.set_attn_implementation("clearhead")` does it for good:
the observation of each call then stands where others put weights, in `outputs.attentions`.

Masks are never formed: what a model asks for its mask gets a `LazyMask`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.arguments import checked_call
from clearhead.attention import Prepared, observer
from clearhead.errors import ArgumentError, message
from clearhead.masks import Causal, Mask, Window
from clearhead.observables import Observables, Observation
from clearhead.watch.lazymask import LazyMask
from clearhead.watch.recorder import Place, Recorder
from clearhead.watch.sdpa import mask_and_bias

NAME = "clearhead"
HONOURED = ("sliding_window", "softcap", "s_aux", "position_bias", "is_causal")
# Said to every attention function and without meaning for this one: the mask holds what these say of packed sequences, and
# the others are about what the model returns.
HARMLESS = (
    "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "cache_position",
    "output_attentions", "output_hidden_states", "output_router_logits", "num_items_in_batch", "logits_to_keep",
    "use_cache", "return_dict", "deterministic", "layer_idx",
)  # fmt: skip


def make_mask(*args: Any, **options: Any) -> LazyMask:
    """The registered mask function."""
    given = options.get("attention_mask")
    return given if isinstance(given, LazyMask) else LazyMask(*args, **options)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: LazyMask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **given: Any,
) -> tuple[Tensor, Observation | None]:
    """The registered attention function: output (B, Tq, Hq, Dv), and the observation of the call.

    Raises `ArgumentError` for an argument that it does not know: swallowed, it would be a wrong result.
    """
    for name, x in given.items():
        if name not in HONOURED and name not in HARMLESS and x is not None and x is not False:
            raise ArgumentError(
                message(
                    name,
                    expected=f"one of the arguments that are honoured: {', '.join(HONOURED)}",
                    got=f"{name} from {type(module).__name__}",
                    remedy='Run this model with attn_implementation="eager" or "sdpa".',
                )
            )
    watcher = observer.get()
    recorder = watcher if isinstance(watcher, Recorder) else None
    call, place = _prepared(module, query, key, value, attention_mask, scaling, given, recorder)
    if dropout:
        with torch.no_grad():
            seen = recorder.beside(call, place) if recorder is not None else None
        return _with_dropout(module, query, key, value, attention_mask, dropout, scaling, given, call), seen
    if recorder is not None:
        out, seen = recorder.see(call, place), recorder.latest
    elif watcher is not None or given.get("output_attentions") is False:
        out, seen = call.attend(), None
    else:
        seen = call.observe(Observables())
        out = seen.output
    return out.transpose(1, 2).contiguous(), seen


def _prepared(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    given_mask: LazyMask | Tensor | None,
    scaling: float | None,
    given: dict[str, Any],
    recorder: Recorder | None,
) -> tuple[Prepared, Place]:
    """The call in this library's terms."""
    Tq, Tk = query.shape[2], key.shape[2]
    crosses = recorder.where.crosses if recorder is not None else None
    place, keys = Place(crosses), Tk
    mask: Mask | None = None
    bias: Tensor | None = None
    if isinstance(given_mask, LazyMask):
        if given_mask.shape[2:] != (Tq, Tk):
            raise ArgumentError(
                message(
                    "attention_mask",
                    expected=f"a mask for Tq={Tq} queries and the Tk={Tk} keys of {type(module).__name__}",
                    got=f"one for Tq={given_mask.shape[2]} and Tk={given_mask.shape[3]}",
                    remedy="The layers' caches differ in what they hold: start from a new cache.",
                )
            )
        keys = given_mask.keys
        if crosses:
            padding = None if recorder is None else recorder.padding(query.shape[0], Tq)
        else:
            padding = given_mask.padding if Tq == keys or not given_mask.both_ways else None
            place = Place(crosses, first_key=given_mask.kv_offset)
        mask = given_mask.mask(padding)
    elif isinstance(given_mask, Tensor):
        mask, bias = mask_and_bias(given_mask, Tq, Tk)
    else:
        mask, keys = _unmasked(module, Tq, Tk, given)
    if given.get("position_bias") is not None:
        more = given["position_bias"][..., :keys]
        bias = more if bias is None else bias + more
    call = checked_call(
        query,
        key[:, :, :keys],
        value[:, :, :keys],
        mask=mask,
        bias=bias,
        scale=scaling,
        softcap=given.get("softcap"),
        sinks=given.get("s_aux"),
    )
    return Prepared(call), place


def _unmasked(module: nn.Module, Tq: int, Tk: int, given: dict[str, Any]) -> tuple[Mask | None, int]:
    """What no mask means: causal from the start for a causal module, everything for a single query and for the others."""
    causal = given.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    window = given.get("sliding_window")
    keys = min(Tq, Tk) if causal and Tq > 1 else Tk  # those after the last query are seen by nobody
    if window is None or window >= keys:
        return Causal() if causal and Tq > 1 else None, keys
    if not causal:
        raise ArgumentError(
            message(
                "sliding_window",
                expected="a mask that says which way the window looks",
                got=f"sliding_window={window} and no mask, from {type(module).__name__}, which is not causal",
                remedy="Let the model make its own mask.",
            )
        )
    return Window(window), keys


def _with_dropout(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    given_mask: LazyMask | Tensor | None,
    dropout: float,
    scaling: float | None,
    given: dict[str, Any],
    call: Prepared,
) -> Tensor:
    """Training with dropout: as "sdpa" does it, to the bit; by definition where that cannot. T×T memory."""
    p = call.problem
    with torch._C.DisableTorchFunction():  # it has been observed
        if given.get("softcap") is None and given.get("s_aux") is None:
            from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

            given_mask = given_mask.eager() if isinstance(given_mask, LazyMask) else given_mask
            sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
            out: Tensor = sdpa(module, query, key, value, given_mask, dropout=dropout, scaling=scaling, **given)[0]
            return out
        z = p.query @ p.key.repeat_interleave(p.groups, 1).mT * p.scale
        z = z if p.softcap is None else p.softcap * torch.tanh(z / p.softcap)
        z = z if p.bias is None else z + p.bias
        z = z.masked_fill(~call.mask.dense(*z.shape[2:], B=z.shape[0], device=z.device), torch.finfo(z.dtype).min)
        if p.sinks is not None:
            z = torch.cat([z, p.sinks.to(z)[None, :, None, None].expand(*z.shape[:3], 1)], -1)
        weights = torch.softmax(z, -1, dtype=torch.float32).to(z.dtype)[..., : p.key.shape[2]]
        weights = nn.functional.dropout(weights, dropout)
        return (weights @ p.value.repeat_interleave(p.groups, 1)).transpose(1, 2).contiguous()


def register() -> None:
    """Make "clearhead" a name that `set_attn_implementation` knows. Importing `transformers` is for the caller to have done."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_mask)


@contextmanager
def switched(model: nn.Module | None) -> Iterator[list[str]]:
    """The Hugging Face models inside `model` go through the registered functions; as before when the context ends.

    Yields the names (`module: class`) of those that cannot: they do not ask the registry for their attention function.
    """
    library = sys.modules.get("transformers.modeling_utils")
    if model is None or library is None:
        yield []
        return
    register()
    apart: list[str] = []
    before: dict[int, tuple[Any, str | None]] = {}
    for name, module in model.named_modules():
        if not isinstance(module, library.PreTrainedModel):
            continue
        if not module._can_set_attn_implementation():
            if not apart or not name.startswith(apart[-1].split(":")[0]):
                apart.append(f"{name}: {type(module).__name__}")
        elif id(module.config) not in before:
            before[id(module.config)] = (module.config, module.config._attn_implementation)
    try:
        for config, _ in before.values():
            config._attn_implementation_internal = NAME
        yield apart
    finally:
        for config, was in before.values():
            config._attn_implementation_internal = was
