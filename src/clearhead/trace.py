"""A trace: what every head did in one run of a model, with the tokens it ran on."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from clearhead.addresses import ByHead, Head, no_such_head
from clearhead.errors import InputError
from clearhead.merging import ANOTHER_GRID, MAPS, join_queries
from clearhead.observables import Observation

if TYPE_CHECKING:
    import pandas
    import xarray

    from clearhead.comparison import Comparison
    from clearhead.keeping import Kept
    from clearhead.pattern import Pattern
    from clearhead.rollout import Rollout
    from clearhead.summary import Looked

ELSEWHERE = {
    "attentions": 'weights are computed when asked for: trace.crop("L2H3"), all or any part of one head\'s, after watching '
    'with keep="qk"; what was measured is trace[layer]',
    "mean": "means over the queries stand in trace.table() and trace.to_pandas(), those of a layer in trace[layer].mean(name)",
}
ELSEWHERE |= dict.fromkeys(("weights", "attention", "patterns", "cache", "attention_weights"), ELSEWHERE["attentions"])
ELSEWHERE |= dict.fromkeys(
    ("entropy", "received", "top_keys", "top_weights"), "it is measured layer by layer: trace[layer]"
)
"""What people look for on a trace by habit, and where it is."""


@dataclass(eq=False)
class Tokens:
    """The token ids of one stream of a model, int64 (B, T) on the CPU, growing while it writes."""

    ids: Tensor


class Call:
    """One attention layer's calls of one run: the module that makes them, the layer's number, and what was measured.

    A model that writes calls each layer once a token: those calls are one `Call`, its rows in the order of the tokens. `run`
    counts texts: a forward that does not go on from a cache begins another. `crosses` says that keys belong to another stream
    than queries. `numbers` are the observed heads' own numbers, when not all were. `tokens` and `key_tokens` are the streams
    of the queries and of the keys, the same one unless it crosses.
    """

    def __init__(
        self,
        name: str,
        layer: int,
        observation: Observation,
        run: int = 0,
        crosses: bool = False,
        numbers: tuple[int, ...] | None = None,
        tokens: Tokens | None = None,
        key_tokens: Tokens | None = None,
        kept: Kept | None = None,
    ) -> None:
        self.name, self.layer, self.run, self.crosses, self.numbers = name, layer, run, crosses, numbers
        self.tokens, self.key_tokens, self.kept = tokens, key_tokens, kept
        self._parts = [observation]
        self._joined: Observation | None = observation
        self._pattern: Pattern | None = None

    def append(self, later: Observation) -> None:
        """Add the rows of a call that went on from this one's cache."""
        self._parts.append(later)
        self._joined = self._pattern = None

    def __repr__(self) -> str:
        return f"Call({self.name!r}, layer {self.layer}, {self.heads} heads, {self.rows} queries)"

    @property
    def samples(self) -> int:
        """How many texts were read together, B."""
        return len(self._parts[0].lse)

    @property
    def rows(self) -> int:
        """How many queries there are."""
        return sum(part.lse.shape[2] for part in self._parts)

    @property
    def end(self) -> int:
        """Position after the last query."""
        return self._parts[-1].offset + self._parts[-1].lse.shape[2]

    @property
    def observation(self) -> Observation:
        """What was measured, of all calls together. Maps are of one call's grid: after others there are none."""
        if self._joined is None:
            first, *others = self._parts
            lost = {name: ANOTHER_GRID for name in MAPS if name in first.values}
            values = {name: x for name, x in first.values.items() if name not in MAPS}
            joined = join_queries([dataclasses.replace(first, values=values), *others])
            self._joined = dataclasses.replace(joined, left_out={**joined.left_out, **lost})
        return self._joined

    @property
    def pattern(self) -> Pattern | None:
        """The weights of all heads, never formed; None where queries and keys were not kept. See `clearhead.Pattern`.

        Raises `InputError` where something of it was not kept.
        """
        if self._pattern is None and self.kept is not None:
            self._pattern = self.kept.pattern(self.observation.lse)
        return self._pattern

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

    def row(self, token: int) -> int:
        """The row of a token, counted from the start of the text, or from the end if negative; `InputError` if it has none."""
        if not isinstance(token, int):
            raise InputError(f"token {token!r}: expected a position, counted from 0, or -1 for the last and so on")
        first = 0 if self.crosses else self.observation.offset
        end = first + self.rows
        at = token if token >= 0 else token + end
        if not first <= at < end:
            raise InputError(
                f"token {token}: layer {self.layer} read tokens {first} to {end - 1}, or -1 for the last and so on"
            )
        return at - first

    @property
    def query_ids(self) -> Tensor | None:
        """Token ids of the queries, (B, Tq), where they are known."""
        first = self.observation.offset if not self.crosses else 0
        return _span(self.tokens, first, self.rows)

    @property
    def key_ids(self) -> Tensor | None:
        """Token ids of the keys, (B, Tk), where they are known."""
        if self.crosses:
            return None if self.key_tokens is None else self.key_tokens.ids
        return _span(self.tokens, 0, self.observation.offset + self.rows)


def _span(tokens: Tokens | None, first: int, count: int) -> Tensor | None:
    if tokens is None or first < 0 or tokens.ids.shape[1] < first + count:
        return None
    return tokens.ids[:, first : first + count]


def check_sample(trace: Trace, batch: int) -> None:
    """Raise `InputError` for a sample of the batch that there is none of."""
    if not trace.calls and batch:
        raise InputError(f"batch {batch}: nothing was observed, the model made no attention call that could be seen")
    count = min((call.samples for call in trace.calls), default=1)
    if not 0 <= batch < count:
        raise InputError(f"batch {batch}: the run has {count} texts in a batch, 0 to {count - 1}")


class Trace:
    """The observations of all attention calls, in the order their layers were first met.

    `trace[3]` is what was measured in layer 3, `trace["L3H1"]` that of one head, `for seen in trace` that of every layer.
    `token_ids` are those of the first sample that the model was given, as far as it was given any, and `pieces` what each reads
    as, where `watch` was given a tokenizer; both can be set. So may be `model`, its name; `prompt`, from which position on the
    model wrote the tokens; and `key_groups`, a group's number for every token (−1: none) and the names of the groups.
    """

    def __init__(self, calls: list[Call] | None = None, spell: Callable[[list[int]], list[str]] | None = None) -> None:
        self.calls: list[Call] = [] if calls is None else calls
        self.spell = spell
        self._pieces: list[str] | None = None
        self.model: str | None = None
        self.prompt: int | None = None
        self.key_groups: tuple[list[int], list[str]] | None = None
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
    def pieces(self) -> list[str] | None:
        """What each token of the first sample reads as: as it was set, else as the tokenizer says; None where nobody knows.

        Setting raises `InputError` for fewer than there are tokens.
        """
        if self._pieces is None and self.spell is not None and self.token_ids is not None:
            return self.spell(self.token_ids)
        return self._pieces

    @pieces.setter
    def pieces(self, pieces: Sequence[str] | None) -> None:
        count = len(self.token_ids or [])
        if pieces is not None and len(pieces) < count:
            raise InputError(f"pieces: expected {count}, one a token, got {len(pieces)}")
        self._pieces = None if pieces is None else [str(piece) for piece in pieces]

    @property
    def runs(self) -> list[Trace]:
        """A trace for every text: forwards that did not go on from a cache are runs of their own."""
        numbers = sorted({call.run for call in self.calls})
        if len(numbers) < 2:
            return [self]
        return [Trace([call for call in self.calls if call.run == n], self.spell) for n in numbers]

    @property
    def tokens(self) -> list[str]:
        """What each token reads as: `pieces` where they are known, else ids, else positions."""
        pieces = self.pieces
        if pieces is not None:
            return pieces
        if self.token_ids is not None:
            return [f"‹{i}›" for i in self.token_ids]
        own = [call for call in self.calls if not call.crosses]
        return [str(n) for n in range(own[-1].observation.offset + own[-1].rows)] if own else []

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

    def __getitem__(self, which: int | str | tuple[int, int]) -> Observation:
        """`trace[3]`: what was measured in a layer; `trace["L3H1"]`: in one head; `trace["model.layers.3"]`: in a module.

        Raises `InputError` for what was not observed.
        """
        if isinstance(which, int):
            return self.observation(which)
        named = [call for call in self.calls if call.name == which]
        if named:
            return named[0].observation
        head = self.check(Head.parse(which) if isinstance(which, str) else Head(*which))
        call = self.call(head.layer)
        return call.observation[:, call.index(head)]

    def __iter__(self) -> Iterator[Observation]:
        return (call.observation for call in self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    def __bool__(self) -> bool:
        return True

    if not TYPE_CHECKING:  # so that a wrong name is still found before it runs

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # says itself why it is not there
            where = ELSEWHERE.get(name)
            raise AttributeError(f"a trace has no {name!r}" + ("" if where is None else f": {where}"))

    def roles(self, *, batch: int = 0) -> ByHead[str]:
        """The heads that earn a role on this text, and which; scores are in `table` and `clearhead.roles.roles`."""
        return ByHead(
            {Head.parse(row["head"]): row["role"] for row in self.table(batch=batch) if row["role"] is not None}
        )

    def table(self, *, batch: int = 0) -> list[dict[str, Any]]:
        """A row a head: address, module, the role it earns on this text with its score and null, and means over the queries."""
        from clearhead import summary

        return summary.table(self, batch=batch)

    def top(self, token: int = -1, *, k: int = 3, batch: int = 0) -> ByHead[list[Looked]]:
        """What one token looks at most through every head: (key, piece, weight) of the k keys with the largest weights.

        `token` counts from the start of the text, or from the end if negative. Raises `InputError` if there is none such.
        `trace.top(5)["L2H1"]` is one head's.
        """
        from clearhead import summary

        return summary.top(self, token, k=k, batch=batch)

    def groups(self, *, queries: slice | Sequence[int] = slice(None), batch: int = 0) -> ByHead[list[float]]:
        """Mean weight on every group of keys over some queries, a list a head. Needs `Observables(key_groups=…)`."""
        from clearhead import summary

        return summary.groups(self, queries=queries, batch=batch)

    def compare(self, other: Trace, *, batch: int = 0) -> Comparison:
        """Which heads changed most from this run to another, on the same tokens or on those both texts have in common.

        Raises `InputError` where the runs have no layer, no length or no token in common.
        """
        from clearhead.comparison import compare

        return compare(self, other, batch=batch)

    def to_pandas(self, *, batch: int = 0) -> pandas.DataFrame:
        """`table()` as a DataFrame, heads as its index. Needs pandas."""
        from clearhead import summary

        return summary.to_pandas(self, batch=batch)

    def to_xarray(self) -> xarray.Dataset:
        """Every measured tensor with its dimensions named, one variable a quantity and layer. Needs xarray."""
        from clearhead import summary

        return summary.to_xarray(self)

    def save(self, path: str | Path, *, exact: bool = False) -> None:
        """Write everything to one safetensors file, whole or not at all; tokens and description are JSON in its header.

        Weights are rounded to 16 bits (a relative 5e-4), half the file, unless `exact`. Raises `InputError` where it cannot be
        written; a file that was there stays as it was.
        """
        from clearhead import tracefile

        tracefile.save(self, Path(path), exact=exact)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what `save` wrote. Raises `InputError` for a file that is newer, cut short, altered, or no trace."""
        from clearhead import tracefile

        return tracefile.load(Path(path))

    def pattern(self, head: Head | str | tuple[int, int], *, batch: int = 0) -> Pattern:
        """One head's weights, never formed: any part of them can be asked for. Raises `InputError` where they were not kept."""
        check_sample(self, batch)
        head = self.check(Head.parse(head) if isinstance(head, str) else Head(*head))
        call = self.call(head.layer)
        pattern = call.pattern
        if pattern is None:
            raise InputError(
                f'head {head}: queries and keys were not kept; watch with keep="qk" to look closer afterwards'
            )
        return pattern.head(call.index(head), batch)

    def crop(
        self,
        head: Head | str | tuple[int, int],
        queries: slice | int = slice(None),
        keys: slice | int = slice(None),
        *,
        batch: int = 0,
        what: str = "weight",
    ) -> Float[Tensor, "rows columns"]:
        """A rectangle of one head's weights, exact: queries down, keys across; all T×T of them unless told which.

        A number is one query or key, whose dimension stays. `what`: "weight", "logit" or "contribution".
        """
        return self.pattern(head, batch=batch).crop(queries, keys, what=what)[0, 0]

    def tile(
        self, head: Head | str | tuple[int, int], level: int, x: int, y: int, *, pool: str = "mean", batch: int = 0
    ) -> Float[Tensor, "rows columns"]:
        """One tile of a head's zoom pyramid; see `Pattern.tile`."""
        return self.pattern(head, batch=batch).tile(level, x, y, pool=pool)[0, 0]

    def rollout(self, position: int, *, batch: int = 0, heads: Any = None) -> Rollout:
        """Attention rollout from one position through all layers; see `clearhead.rollout`, also for what it is not.

        Raises `InputError` where queries and keys were not kept, or layers read different streams.
        """
        from clearhead.rollout import rollout

        check_sample(self, batch)
        own = [call for call in self.calls if call.run == self.calls[0].run and not call.crosses]
        patterns = [call.pattern for call in own]
        kept = [pattern for pattern in patterns if pattern is not None]
        if not kept or len(kept) < len(patterns):
            raise InputError(
                'rollout: queries and keys were not kept; watch with keep="qk" to follow them through the layers'
            )
        if len({pattern.shape for pattern in kept}) > 1 or len(own) < sum(c.run == own[0].run for c in self.calls):
            raise InputError(
                "rollout: the layers do not all read one text; an encoder and its decoder cannot be rolled out together"
            )
        return rollout(kept, position, batch=batch, heads=heads)

    def check(self, head: Head) -> Head:
        """The same head, if it was observed; raises `InputError` with the valid range otherwise."""
        heads = self.heads()
        if head not in heads:
            raise InputError(no_such_head(head, heads))
        return head

    def _repr_mimebundle_(self, **given: Any) -> dict[str, Any]:
        """What a notebook shows: the viewer, or a picture and a table where anywidget is not installed."""
        found: dict[str, Any] = importlib.import_module("clearhead.viewer.notebook").bundle(self, **given)
        return found

    def __repr__(self) -> str:
        tokens = "" if self.token_ids is None else f", {len(self.token_ids)} tokens"
        return f"Trace({len(self.calls)} calls, {len(self.heads())} heads{tokens})"
