"""A trace: what every head did in one run of a model, with the tokens it ran on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

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


@dataclass(eq=False)
class Tokens:
    """The token ids of one stream of a model, int64 (B, T) on the CPU, growing while it writes."""

    ids: Tensor


@dataclass(eq=False)
class Call:
    """One attention layer's calls of one run: the module that makes them, the layer's number, and what was measured.

    A model that writes calls each layer once a token: those calls are one `Call`, its rows in the order of the tokens. `run`
    counts texts: a forward that does not go on from a cache begins another. `crosses` says that keys belong to another stream
    than queries. `numbers` are the observed heads' own numbers, when not all were.
    """

    name: str
    layer: int
    observation: Observation
    run: int = 0
    crosses: bool = False
    numbers: tuple[int, ...] | None = None
    tokens: Tokens | None = None  # the queries' stream
    key_tokens: Tokens | None = None  # the keys' stream; the same object unless it crosses

    @property
    def heads(self) -> int:
        """How many query heads were observed."""
        return self.observation.lse.shape[1]

    def addresses(self) -> list[Head]:
        """The observed heads."""
        return [Head(self.layer, h) for h in (range(self.heads) if self.numbers is None else self.numbers)]

    def index(self, head: Head) -> int:
        """Where a head stands among the observed ones."""
        return head.head if self.numbers is None else self.numbers.index(head.head)

    @property
    def query_ids(self) -> Tensor | None:
        """Token ids of the queries, (B, Tq), where they are known."""
        first = self.observation.offset if not self.crosses else 0
        return _span(self.tokens, first, self.observation.lse.shape[2])

    @property
    def key_ids(self) -> Tensor | None:
        """Token ids of the keys, (B, Tk), where they are known."""
        if self.crosses:
            return None if self.key_tokens is None else self.key_tokens.ids
        return _span(self.tokens, 0, self.observation.offset + self.observation.lse.shape[2])


def _span(tokens: Tokens | None, first: int, count: int) -> Tensor | None:
    if tokens is None or first < 0 or tokens.ids.shape[1] < first + count:
        return None
    return tokens.ids[:, first : first + count]


class Trace:
    """The observations of all attention calls, in the order their layers were first met.

    `token_ids` are those of the first sample that the model was given, as far as it was given any; set them, and `pieces`
    (what each token reads as), for whoever shows the trace.
    """

    def __init__(self, calls: list[Call] | None = None) -> None:
        self.calls: list[Call] = [] if calls is None else calls
        self.pieces: list[str] | None = None
        self._token_ids: list[int] | None = None

    @property
    def token_ids(self) -> list[int] | None:
        """The tokens of the first sample: as they were set, else what the stream that was read last had."""
        if self._token_ids is not None:
            return self._token_ids
        found = [call.tokens for call in self.calls if call.tokens is not None]
        return found[-1].ids[0].tolist() if found else None

    @token_ids.setter
    def token_ids(self, ids: list[int] | None) -> None:
        self._token_ids = ids

    @property
    def runs(self) -> list[Trace]:
        """A trace for every text: forwards that did not go on from a cache are runs of their own."""
        numbers = sorted({call.run for call in self.calls})
        if len(numbers) < 2:
            return [self]
        return [Trace([call for call in self.calls if call.run == n]) for n in numbers]

    def heads(self) -> list[Head]:
        """Addresses of all observed heads, layer by layer."""
        return list(dict.fromkeys(head for call in self.calls for head in call.addresses()))

    def call(self, layer: int) -> Call:
        """The first run's call of a layer; raises `InputError` for a layer that was not observed."""
        for call in self.calls:
            if call.layer == layer:
                return call
        seen = ", ".join(str(call.layer) for call in self.calls) or "none"
        raise InputError(f"layer {layer}: was not observed; observed layers: {seen}")

    def observation(self, layer: int) -> Observation:
        """What was measured in a layer; raises `InputError` for a layer that was not observed."""
        return self.call(layer).observation

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
