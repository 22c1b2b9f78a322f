"""A candidate that is given query, key and value: finding out how it wants them, and running it on cases."""

from __future__ import annotations

import inspect as inspection
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.check.calling import Failed, Habits, Watcher, as_tensor, call
from clearhead.check.formula import Case
from clearhead.check.inputs import Sizes, array, as_given, inputs, some_sinks
from clearhead.check.masking import shaped_mask, some_mask
from clearhead.check.parameters import Parameter, roles_of, words
from clearhead.errors import dtype_name

LAYOUTS = {
    "bhtd": "(B, H, T, D)",
    "bthd": "(B, T, H, D)",
    "btd": "(B, T, D), a single head",
    "td": "(T, D), a single head",
    "btc": "(B, T, H·D), heads split inside",
    "tbd": "(T, B, D), a single head",
}


@dataclass
class FunctionSubject:
    """A function of query, key and value, and how it is to be called."""

    function: Callable[..., Any]
    name: str
    parameters: list[Parameter] | None
    habits: Habits
    watcher: Watcher
    device: str = "cpu"
    layout: str = "bhtd"
    framework: str = "torch"
    dtype: torch.dtype = torch.float64
    heads_argument: str | None = None  # the parameter that is told the number of heads
    kv_heads_argument: str | None = None
    fixed: dict[str, Any] = field(default_factory=dict)  # what is passed besides, by name
    mask_shape: str | None = None
    mask_sense: str | None = None
    mask_argument: str | None = None
    mask_required: bool = False
    seconds: float = 10.0
    place: int | None = None  # which of several results is attention's, once that is known

    @classmethod
    def of(cls, function: Callable[..., Any], name: str, habits: Habits, watcher: Watcher) -> FunctionSubject:
        """A subject with what the parameters' names say."""
        subject = cls(function, name, roles_of(function), habits, watcher)
        for parameter in subject.parameters or []:
            if parameter.role in ("mask", "padding") and subject.mask_argument is None:
                subject.mask_argument, subject.mask_required = parameter.name, parameter.required
            if parameter.role == "heads":
                subject.heads_argument = parameter.name
            if parameter.role == "kv_heads":
                subject.kv_heads_argument = parameter.name
            if parameter.required and parameter.role in ("window", "softcap", "dropout", "training", "causal"):
                defaults = {"window": 3, "softcap": 1.5, "training": False, "causal": True}
                subject.fixed[parameter.name] = defaults.get(parameter.role) or subject.dropping(parameter, 0.0)
            if parameter.role == "dropout" and _is_number(parameter.default, positive=True):
                subject.fixed[parameter.name] = 0.0
            if parameter.role == "training" and parameter.default is not False:
                subject.fixed[parameter.name] = False
        return subject

    def dropping(self, parameter: Parameter, p: float) -> Any:
        """What its dropout parameter is given: a probability, or a layer where the code calls it."""
        try:
            code = inspection.getsource(self.function)
        except (OSError, TypeError):
            code = ""
        return nn.Dropout(p) if re.search(rf"(?<![\w.]){re.escape(parameter.name)}\(", code) else p

    def parameter(self, role: str) -> Parameter | None:
        """The parameter of that role."""
        return next((p for p in self.parameters or [] if p.role == role), None)

    @property
    def signature(self) -> str:
        """The name with its parameters."""
        return self.name + words(self.parameters)

    # Calling ------------------------------------------------------------------------------------------------------------

    def run(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, raw: bool = False) -> Tensor:
        """Call it with (B, H, T, D) tensors and get (B, Hq, Tq, Dv) back. `mask` is bool, True may attend, (B, 1, Tq, Tk).

        With `raw`, tensors are passed as they are in its layout, without copies. Raises `Failed`.
        """
        given = [self.to_layout(t) for t in (q, k, v)]
        if not raw:
            given = [
                t.contiguous() if t.requires_grad else t.clone(memory_format=torch.contiguous_format) for t in given
            ]
        arguments = [self.to_framework(t) for t in given]
        named = dict(self.fixed)
        for argument, count in ((self.heads_argument, q.shape[1]), (self.kv_heads_argument, k.shape[1])):
            if argument is not None and (self.layout == "btc" or self._required(argument)):
                named[argument] = count
        named |= self._needed(q)
        if mask is None and self.mask_required and self.mask_shape is not None:
            mask = torch.ones(q.shape[0], 1, q.shape[2], k.shape[2], dtype=torch.bool)
        if mask is not None and self.mask_argument is not None and self.mask_shape is not None:
            named[self.mask_argument] = self.to_framework(
                shaped_mask(mask, self.mask_shape, self.mask_sense, q.shape[1], self.dtype), exact=False
            )
        elif self.mask_required and self.mask_argument is not None:
            named[self.mask_argument] = None
        args, kwargs = self._placed(arguments, named)
        result = call(self.function, *args, habits=self.habits, watcher=self.watcher, seconds=self.seconds, **kwargs)
        wanted = (q.shape[0], q.shape[1], q.shape[2], v.shape[3])
        return self._from_layout(as_tensor(self._picked(result, wanted)), wanted)

    def _picked(self, result: Any, wanted: tuple[int, ...]) -> Any:
        """Of several results the one that can be attention's: `return weights, out` is as good as `return out, weights`."""
        if not isinstance(result, tuple) or self.framework == "lists":
            return result
        if self.place is None:
            shapes = [tuple(getattr(each, "shape", ())) for each in result]
            expected = self._shape(wanted)
            if shapes.count(expected) == 1 and wanted[2] != wanted[3]:  # T × T and T × Dv can be told apart
                self.place = shapes.index(expected)
        return result if self.place is None else result[self.place]

    def _needed(self, q: Tensor) -> dict[str, Any]:
        """Parameters that must be given and whose values follow from the sizes."""
        made: dict[str, Any] = {}
        for p in self.parameters or []:
            if p.required and p.name not in self.fixed:
                if p.role == "scale":
                    made[p.name] = q.shape[-1] ** -0.5
                elif p.role == "sinks":
                    made[p.name] = self.to_framework(some_sinks(q.shape[1]))
        return made

    def _required(self, name: str) -> bool:
        return any(p.name == name and p.required for p in self.parameters or [])

    def _placed(self, arguments: list[Any], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """q, k and v by place or by name, the others by name (by place where Python does not know the names)."""
        if self.parameters is None:
            return arguments, {}
        places = {role: p for p in self.parameters if (role := p.role) in ("query", "key", "value")}
        if len(places) == 3 and any(p.keyword_only for p in places.values()):
            return [], named | {places[r].name: a for r, a in zip(("query", "key", "value"), arguments, strict=True)}
        if len(places) == 3:
            order = [p for p in self.parameters if not p.keyword_only]
            by_role = dict(zip(("query", "key", "value"), arguments, strict=True))
            leading = [p.role for p in order[:3]]
            if set(leading) == set(by_role):
                return [by_role[role] for role in leading], named
            return [], named | {places[r].name: a for r, a in by_role.items()}
        return arguments, named

    def to_layout(self, t: Tensor) -> Tensor:
        """A (B, H, T, D) tensor as the candidate wants its axes."""
        if self.layout == "bhtd":
            return t
        if self.layout == "bthd":
            return t.transpose(1, 2)
        if self.layout == "btc":
            return t.transpose(1, 2).flatten(2)
        if self.layout == "tbd":
            return t[:, 0].transpose(0, 1)
        return t[:, 0] if self.layout == "btd" else t[0, 0]

    def _shape(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        b, h, t, d = wanted
        shapes = {
            "bhtd": wanted, "bthd": (b, t, h, d), "btd": (b, t, d), "td": (t, d), "btc": (b, t, h * d), "tbd": (t, b, d),
        }  # fmt: skip
        return shapes[self.layout]

    def _from_layout(self, out: Tensor, wanted: tuple[int, ...]) -> Tensor:
        h, d = wanted[1], wanted[3]
        expected = self._shape(wanted)
        if tuple(out.shape) != expected:
            raise Failed("odd result", f"returned shape {tuple(out.shape)}, where {expected} is expected")
        if not out.is_floating_point():
            raise Failed("odd result", f"returned {dtype_name(out.dtype)}, where floating numbers are expected")
        if self.layout == "bthd":
            out = out.transpose(1, 2)
        elif self.layout == "btc":
            out = out.unflatten(-1, (h, d)).transpose(1, 2)
        elif self.layout == "tbd":
            out = out.transpose(0, 1)[:, None]
        elif self.layout == "btd":
            out = out[:, None]
        elif self.layout == "td":
            out = out[None, None]
        return out if out.requires_grad else out.detach().to("cpu")

    def to_framework(self, t: Tensor, *, exact: bool = True) -> Any:
        """A tensor as the candidate wants its arrays; `exact`: in the dtype that is under test."""
        if self.framework == "torch":
            return t.to(self.device, self.dtype if exact or t.is_floating_point() else t.dtype)
        return as_given(t.to(self.dtype) if t.is_floating_point() else t, self.framework)

    # Cases --------------------------------------------------------------------------------------------------------------

    def limited(self, sizes: Sizes) -> Sizes:
        """The sizes with one head, or one sequence, where the layout has no room for more."""
        if self.layout in ("btd", "tbd"):
            return Sizes(sizes.B, 1, 1, sizes.Tq, sizes.Tk, sizes.D, sizes.Dv)
        return Sizes(1, 1, 1, sizes.Tq, sizes.Tk, sizes.D, sizes.Dv) if self.layout == "td" else sizes

    def case(
        self,
        name: str,
        sizes: Sizes,
        *,
        seed: int = 0,
        loud: float = 1.0,
        mask: bool = False,
        gain: float = 1.0,
        order: int = 50,
        **meant: Any,
    ) -> Case:
        """Run it on numbers drawn for these sizes; scores have variance loud². Raises `Failed`."""
        sizes = self.limited(sizes)
        q, k, v = inputs(sizes, seed, loud)
        q = q * gain
        allowed = some_mask(sizes, seed, self.mask_shape) if mask else None
        target = self.run(q, k, v, allowed)
        sinks = self.parameter("sinks")
        if sinks is not None and sinks.required:
            meant = {"sinks": some_sinks(sizes.Hq).numpy()} | meant
        return as_case(name, q, k, v, allowed, target, loud=loud, order=order, **meant)


def as_case(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    target: Tensor,
    *,
    loud: float = 1.0,
    order: int = 50,
    **meant: Any,
) -> Case:
    """Tensors as a `Case` in float64."""
    return Case(
        name,
        {"q": array(q), "k": array(k), "v": array(v)},
        array(target),
        mask=None if mask is None else array(mask),
        loud=loud > 1,
        notes={"order": order},
        **meant,
    )


def _is_number(value: Any, *, positive: bool) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and (value > 0 or not positive)
