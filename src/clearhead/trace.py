"""A trace: what every head did in one run of a model, with the tokens it ran on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from clearhead.errors import InputError
from clearhead.observables import Observation


class Head(NamedTuple):
    """A head's address: layer and head, counted from 0, printed `L2H3`.

    >>> str(Head(2, 3)), Head.parse("L2H3")
    ('L2H3', Head(layer=2, head=3))
    """

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read an address such as `L2H3` (any case); raises `InputError` for anything else."""
        found = re.fullmatch(r"[Ll](\d+)[Hh](\d+)", text.strip())
        if found is None:
            raise InputError(f"head {text!r}: expected an address such as L2H3 (layer 2, head 3, both counted from 0)")
        return cls(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Call:
    """One attention call: the module that made it, its number among the calls of the run, and what was measured."""

    name: str
    layer: int
    observation: Observation

    @property
    def heads(self) -> int:
        """How many query heads the call had."""
        return self.observation.lse.shape[1]


@dataclass
class Trace:
    """The observations of all attention calls of one run, in the order they were made.

    `token_ids` and `pieces` (what each token reads as) are for whoever shows the trace; set them after the run.
    """

    calls: list[Call] = field(default_factory=list)
    token_ids: list[int] | None = None
    pieces: list[str] | None = None

    def heads(self) -> list[Head]:
        """Addresses of all observed heads, layer by layer."""
        return [Head(call.layer, h) for call in self.calls for h in range(call.heads)]

    def observation(self, layer: int) -> Observation:
        """What was measured in a layer; raises `InputError` for a layer that was not observed."""
        for call in self.calls:
            if call.layer == layer:
                return call.observation
        seen = ", ".join(str(call.layer) for call in self.calls) or "none"
        raise InputError(f"layer {layer}: was not observed; observed layers: {seen}")

    def check(self, head: Head) -> Head:
        """The same head, if it was observed; raises `InputError` with the valid range otherwise."""
        heads = self.heads()
        if head not in heads:
            if not heads:
                raise InputError(
                    f"head {head}: nothing was observed, the model made no attention call that could be seen"
                )
            raise InputError(f"head {head}: no such head; there are {len(heads)}, from {heads[0]} to {heads[-1]}")
        return head

    def __repr__(self) -> str:
        tokens = "" if self.token_ids is None else f", {len(self.token_ids)} tokens"
        return f"Trace({len(self.calls)} calls, {len(self.heads())} heads{tokens})"
