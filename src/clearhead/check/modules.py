"""A candidate that is given x and holds its layers: a head, a multi-head module, a layer with attention inside."""

from __future__ import annotations

import contextlib
import copy
import inspect as inspection
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.check.calling import Failed, Habits, Watcher, as_tensor, call
from clearhead.check.formula import Case
from clearhead.check.inputs import array, as_given
from clearhead.check.layers import WHOLE, Found, find, listening, randomise
from clearhead.check.masking import shaped_mask
from clearhead.check.parameters import Parameter, role_of, roles_of, words
from clearhead.check.steps import Array
from clearhead.errors import dtype_name

LENGTHS = (7, 16, 8, 4, 32, 12, 64, 128)  # tried in this order for a module that does not say its length
LAYOUTS = {"btc": "(B, T, C)", "tbc": "(T, B, C), not batch-first", "tc": "(T, C), no batch"}


@dataclass
class ModuleSubject:
    """A module, or a function with layers around it, and how it is called."""

    forward: Callable[..., Any]
    root: nn.Module
    name: str
    parameters: list[Parameter] | None
    habits: Habits
    watcher: Watcher
    found: Found
    width: int = 0  # C
    heads: int = 1
    kv_heads: int = 1
    layout: str = "btc"
    length: int = 7  # tokens in an ordinary call
    orientation: str = "x @ W"
    dtype: torch.dtype = torch.float64
    framework: str = "torch"
    device: str = "cpu"
    fixed: dict[str, Any] = field(default_factory=dict)
    leading: tuple[Any, ...] = ()  # weights that are given as arguments behind x
    context_argument: str | None = None  # what keys and values are made from, where it is not x
    context_required: bool = False
    mask_argument: str | None = None
    mask_required: bool = False
    mask_shape: str | None = None
    mask_sense: str | None = None
    cache_argument: str | None = None
    start_argument: str | None = None
    made: str = ""  # how the instance was made
    inside: str = ""  # where in the given module the attention was found
    seconds: float = 10.0

    @property
    def takes_three(self) -> bool:
        """Whether forward wants query, key and value, each of width C."""
        return {"query", "key", "value"} <= {p.role for p in self.parameters or [] if not p.keyword_only}

    def parameter(self, role: str) -> Parameter | None:
        """The parameter of that role."""
        return next((p for p in self.parameters or [] if p.role == role), None)

    @property
    def signature(self) -> str:
        """The name with its parameters."""
        return (self.made or self.name) + words(self.parameters)

    # Calling ------------------------------------------------------------------------------------------------------------

    def run(self, x: Tensor, mask: Tensor | None = None, *, other: Tensor | None = None, **named: Any) -> Tensor:
        """Call it with x (B, T, C), and get (B, T, width). `other` is what keys and values come from. Raises `Failed`."""
        return as_result(self.raw(x, mask, other=other, **named), self, x)

    def raw(
        self, x: Tensor, mask: Tensor | None = None, *, other: Tensor | None = None, copies: bool = True, **named: Any
    ) -> Any:
        """The same, with whatever it returned; without `copies`, x itself is passed. Raises `Failed`."""
        given = self.to_layout(x.to(dtype=self.dtype, device=self.device))
        kwargs = {
            name: as_given(value.clone(), self.framework) if isinstance(value, Tensor) else value
            for name, value in (self.fixed | named).items()
        }
        if mask is None and self.mask_required and self.mask_shape is not None:
            mask = torch.ones(x.shape[0], 1, x.shape[1], x.shape[1], dtype=torch.bool)
        if mask is not None and self.mask_argument is not None and self.mask_shape is not None:
            kwargs[self.mask_argument] = as_given(
                shaped_mask(mask, self.mask_shape, self.mask_sense, self.heads, self.dtype), self.framework
            )
        elif self.mask_required and self.mask_argument is not None:
            kwargs[self.mask_argument] = None
        if self.context_argument is not None and (self.context_required or other is not None):
            source = given if other is None else self.to_layout(other.to(dtype=self.dtype, device=self.device))
            kwargs[self.context_argument] = source.clone()
        args: tuple[Any, ...] = (given.clone() if copies else given, *self.leading)
        if self.takes_three:
            source = given if other is None else self.to_layout(other.to(dtype=self.dtype, device=self.device))
            args = (given.clone(), source.clone(), source.clone()) if copies else (given, source, source)
        args = tuple(as_given(each, self.framework) if isinstance(each, Tensor) else each for each in args)
        return call(self.forward, *args, habits=self.habits, watcher=self.watcher, seconds=self.seconds, **kwargs)

    def to_layout(self, x: Tensor) -> Tensor:
        """x (B, T, C) as the module wants its axes."""
        return x.transpose(0, 1) if self.layout == "tbc" else x[0] if self.layout == "tc" else x

    def from_layout(self, out: Tensor) -> Tensor:
        """Back to (B, T, ·)."""
        return out.transpose(0, 1) if self.layout == "tbc" else out[None] if self.layout == "tc" else out

    # Cases --------------------------------------------------------------------------------------------------------------

    def inputs(self, batch: int, length: int, seed: int) -> Tensor:
        """x (B, T, C), unit variance, float64 with values that float32 holds exactly."""
        made = torch.Generator().manual_seed(3000 + seed)
        batch = 1 if self.layout == "tc" else batch
        return torch.randn((batch, length, self.width), generator=made, dtype=torch.float32).double()

    def case(
        self,
        name: str,
        batch: int,
        length: int,
        *,
        seed: int = 0,
        loud: float = 1.0,
        mask: Tensor | None = None,
        other: int | None = None,
        gain: float = 1.0,
        order: int = 50,
        **meant: Any,
    ) -> Case:
        """Run it on numbers drawn for these sizes; scores have about the variance loud². Raises `Failed`."""
        x = self.inputs(batch, length, seed) * gain
        keys = None if other is None else self.inputs(batch, other, seed + 500)
        with self.louder(loud), listening(self.found):
            target = self.run(x, mask, other=keys)
            sources = self.sources(x, keys)
        return self.as_case(name, sources, target, loud=loud, mask=mask, order=order, **meant)

    def as_case(
        self,
        name: str,
        sources: dict[str, Array],
        target: Tensor,
        *,
        loud: float = 1.0,
        mask: Tensor | None = None,
        order: int = 50,
        past: int = 0,
        **meant: Any,
    ) -> Case:
        """What was heard in a call, as a `Case`."""
        return Case(
            name, sources, array(target), heads=self.heads, kv_heads=self.kv_heads, width=self.width,
            mask=None if mask is None else array(mask), loud=loud > 1, project=self.project(), past=past,
            notes={"order": order, "unfused": "qkv" not in sources, "epsilon": self.found.epsilon}, **meant,
        )  # fmt: skip

    def sources(self, x: Tensor, other: Tensor | None = None) -> dict[str, Array]:
        """q, k, v (or the fused layer) of the call just listened to, (B, T, width) each, and x."""
        found: dict[str, Array] = {}
        heard = {place: source.given for place, source in self.found.sources.items() if source.given is not None}
        inner = next(iter(heard.values()), None)
        own = x.to(self.dtype) if inner is None else self.from_layout(inner)
        foreign = own if other is None else other.to(self.dtype)
        with torch.no_grad():
            for place, source in self.found.sources.items():
                given = heard.get(place)
                base = self.from_layout(given) if given is not None else own if place in ("q", "qkv", "qk") else foreign
                out = source.out(base, self.orientation)
                if out is None:
                    continue
                if place == "qkv" and other is not None and not source.called:  # q from one text, k and v from another
                    wide = source.out(foreign, self.orientation)
                    if wide is not None:
                        found["q"] = array(out.chunk(3, dim=-1)[0])
                        found["k"], found["v"] = (array(t) for t in wide.chunk(3, dim=-1)[1:])
                    continue
                if source.called:
                    out = self.from_layout(out)
                if out.ndim == 3:
                    found[place] = array(out)
        for pair in ("kv", "qk"):
            if pair in found:
                found[pair[0]], found[pair[1]] = np.split(found.pop(pair), 2, axis=-1)
        found["x"] = array(own)
        return found

    def project(self) -> tuple[Array, Array] | None:
        """The output layer as (weight, bias): y @ weight + bias."""
        layer, matrix = self.found.output, self.found.output_matrix
        if layer is None and matrix is not None:
            wide = out_width(self.found, "v") or out_width(self.found, "qkv") // 3
            matrix = matrix.flatten(0, 1) if matrix.ndim == 3 else matrix  # (H, D, C)
            turned = matrix if matrix.shape[0] == wide else matrix.T
            bias = self.found.output_bias
            return array(turned), array(torch.zeros(turned.shape[1]) if bias is None else bias)
        if layer is None:
            return None
        for width in _input_widths(layer):
            try:
                with torch.no_grad():
                    bias = layer(torch.zeros(1, width, dtype=self.dtype))
                    weight = layer(torch.eye(width, dtype=self.dtype)) - bias
                return array(weight), array(bias[0])
            except RuntimeError:
                continue
        return None

    @contextmanager
    def louder(self, loud: float) -> Iterator[None]:
        """Inside, queries and keys are larger, so that scores are `loud` times as large."""
        if loud == 1:
            yield
            return
        tensors: list[Tensor] = []
        for place, source in self.found.sources.items():
            if place in ("q", "k", "qkv", "kv", "qk"):
                tensors += [p for layer in source.layers for p in layer.parameters(recurse=False)]
                tensors += [t for t in (source.matrix, source.bias) if t is not None]
        tensors = list({id(t): t for t in tensors}.values())  # one layer may make both
        before = [t.detach().clone() for t in tensors]
        try:
            with torch.no_grad():
                for t in tensors:
                    t.mul_(loud**0.5)
            yield
        finally:
            with torch.no_grad():
                for t, old in zip(tensors, before, strict=True):
                    t.copy_(old)


def as_result(result: Any, subject: ModuleSubject, x: Tensor) -> Tensor:
    """A module's result as (B, T, width); raises `Failed` when it is something else."""
    b, t = x.shape[:2]
    out = as_tensor(result[result_place(result, t)] if isinstance(result, tuple) and result else result)
    leading = {"btc": (b, t), "tbc": (t, b), "tc": (t,)}[subject.layout]
    if tuple(out.shape[:-1]) != leading:
        shape = ", ".join(str(n) for n in leading)
        raise Failed(
            "odd result",
            f"returned shape {tuple(out.shape)} for x {tuple(x.shape)}, where ({shape}, width) is expected",
        )
    if not out.is_floating_point():
        raise Failed("odd result", f"returned {dtype_name(out.dtype)}, where floating numbers are expected")
    out = subject.from_layout(out)
    return out if out.requires_grad and torch.is_grad_enabled() else out.detach().to("cpu")


def result_place(result: Any, t: int) -> int:
    """Which of several results is attention's: the first, or the second behind weights (…, T, T)."""
    if not isinstance(result, tuple) or len(result) < 2:
        return 0
    one, two = (tuple(getattr(each, "shape", ())) for each in result[:2])
    return int(len(one) >= 3 and one[-2:] == (t, t) and len(two) == 3 and two[-1] != t)


def _input_widths(layer: nn.Module) -> list[int]:
    if isinstance(layer, nn.Linear):
        return [layer.in_features]
    weight = layer.weight
    return [int(n) for n in weight.shape] if isinstance(weight, Tensor) else []


def prepared(module: nn.Module, name: str, habits: Habits, watcher: Watcher, *, seed: int = 0) -> ModuleSubject:
    """A module as a subject: copied where it can be, in eval mode, in float64 where it can be, with telling weights."""
    with contextlib.suppress(Exception):
        module = copy.deepcopy(module)
    module.eval()
    module, inside = _attention_inside(module)
    module.double()
    randomise(module, seed)
    parameters = roles_of(module.forward)
    subject = ModuleSubject(module, module, name, parameters, habits, watcher, find(module), inside=inside)
    set_up(subject)
    return subject


def set_up(subject: ModuleSubject) -> None:
    """Fill in what names and sizes say."""
    found, module = subject.found, subject.root
    for parameter in subject.parameters or []:
        if parameter.role in ("mask", "padding") and subject.mask_argument is None:
            subject.mask_argument, subject.mask_required = parameter.name, parameter.required
        if parameter.role == "context":
            subject.context_argument, subject.context_required = parameter.name, parameter.required
        if parameter.role == "cache" and subject.cache_argument is None:
            subject.cache_argument = parameter.name
            if parameter.required:
                subject.fixed[parameter.name] = None
        if parameter.role == "start" and parameter.required:
            subject.start_argument = parameter.name
            subject.fixed[parameter.name] = 0
        elif parameter.role == "start":
            subject.start_argument = parameter.name
    subject.width = _width(found)
    if getattr(module, "batch_first", True) is False or _names_tokens_first(subject.forward):
        subject.layout = "tbc"
    if found.block:
        subject.length = min(subject.length, found.block)
    _count_heads(subject)


def _names_tokens_first(forward: Callable[..., Any]) -> bool:
    """Whether the code takes x apart as (tokens, batch, width): `T, B, C = x.shape`."""
    try:
        code = inspection.getsource(forward.forward if isinstance(forward, nn.Module) else forward)
    except (OSError, TypeError):
        return False
    tokens, batch = r"(?:[TLStls]|\w*(?:seq|len|time|tok)\w*)", r"(?:[BNbn]|bsz|bs|\w*batch\w*)"
    apart = rf"^\s*{tokens}\s*,\s*{batch}\s*,\s*\w+\s*=\s*\w+\.(shape|size\(\))\s*(#.*)?$"
    return re.search(apart, code, re.MULTILINE) is not None


def _width(found: Found) -> int:
    for source in found.sources.values():
        for layer in source.layers:
            return _input_widths(layer)[0]
        if source.matrix is not None:
            return int(source.matrix.shape[-2])
    return 0


def out_width(found: Found, place: str) -> int:
    """How wide what a source makes is, 0 without it."""
    source = found.sources.get(place)
    return 0 if source is None else source.width


def query_width(found: Found) -> int:
    """How wide the queries of all heads are."""
    return out_width(found, "q") or out_width(found, "qkv") // 3 or out_width(found, "qk") // 2


def _count_heads(subject: ModuleSubject) -> None:
    found = subject.found
    q = query_width(found)
    heads = found.heads or _constructed_heads(subject.root, q)
    fused = out_width(found, "qkv")
    if heads > 1 and q % heads and not (fused and found.kv_heads):
        heads = 1
    subject.heads = heads
    k = out_width(found, "k") or out_width(found, "kv") // 2
    if k and q and heads > 1 and k != q and k % (q // heads) == 0:
        subject.kv_heads = k // (q // heads)
    elif fused and found.kv_heads and found.kv_heads < heads:
        subject.kv_heads = found.kv_heads
    else:
        subject.kv_heads = heads


def _constructed_heads(module: nn.Module, q: int) -> int:
    """How many heads a module seems to keep under a name that does not say so; 1 when nothing does."""
    kept = {
        n for n in vars(module).values() if isinstance(n, int) and not isinstance(n, bool) and 1 < n < q and q % n == 0
    }
    for p in inspection.signature(type(module)).parameters.values():
        if role_of(p.name) == "heads" and p.default in kept:
            return int(p.default)
    return next(iter(kept)) if len(kept) == 1 else 1


def _attention_inside(module: nn.Module) -> tuple[nn.Module, str]:
    """The module itself, or of a larger layer the part that is its attention."""

    def is_attention(m: nn.Module) -> bool:
        return any(all_ <= set(find(m).sources) for all_ in WHOLE)

    if isinstance(module, nn.MultiheadAttention):
        return module, ""
    own = find(module)
    direct = {source.path.rpartition(".")[0] for source in own.sources.values()}
    if own.named and all(path == "" or _is_list(module, path) for path in direct):
        return module, ""
    for path, part in module.named_modules():
        if path and is_attention(part) and len(list(part.parameters())) == len(list(module.parameters())):
            return (
                module,
                "",
            )  # nothing learned stands around it: what it does with masks and axes is what is asked about
        last = path.rpartition(".")[2].lower()
        if path and any(word in last for word in ("attn", "attention", "sa", "mha")) and is_attention(part):
            return part, path
    return module, ""


def _is_list(module: nn.Module, path: str) -> bool:
    """Whether a path leads through a list of heads."""
    top = path.split(".")[0]
    return isinstance(getattr(module, top, None), nn.ModuleList | nn.ModuleDict | nn.Sequential)
