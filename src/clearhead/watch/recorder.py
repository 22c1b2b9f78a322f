"""What a watched model's attention calls become: which layer each is, which text, whose tokens, what is kept of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field

from torch import Tensor

from clearhead.attention import Prepared
from clearhead.masks import Sizes
from clearhead.observables import Observables, Observation
from clearhead.trace import Call, Tokens, Trace
from clearhead.watch.modules import ModulePath


@dataclass(frozen=True)
class Place:
    """What a door knows of a call that its tensors do not say."""

    crosses: bool | None = None  # attends to another stream than its own; None: not known
    first_key: int = 0  # the text's position of key 0: a sliding cache has dropped those before


@dataclass
class _Pass:
    """One forward of the outermost module."""

    number: int
    begun: bool = False  # whether it has been settled which run it belongs to
    padding: Tensor | None = None  # bool (B, Tq): padding queries of the stream that reads
    nth: dict[str, int] = field(default_factory=dict)  # calls made by each module


class Recorder:
    """Numbers, observes and collects the attention calls of one thread; `trace` is what it makes."""

    def __init__(self, where: ModulePath, observables: Observables, layers: Collection[int] | None) -> None:
        self.trace = Trace()
        self.where, self.observables, self.layers = where, observables, layers
        self.numbers: dict[tuple[str, int], int] = {}  # layer of each module's nth call in a pass
        self.current: dict[int, Call] = {}  # by layer, of this run
        self.readers: dict[str, Tokens] = {}  # of this run: the tokens that modules were given
        self.passing = _Pass(-1)
        self.run = 0
        self.unseen: dict[str, int] = {}  # reasons, and how often
        self.latest: Observation | None = None  # of the last call, if it was observed

    def __call__(self, call: Prepared) -> Tensor:
        """`attention()` was called somewhere inside."""
        return self.see(call)

    def missed(self, reason: str) -> None:
        """An attention call could not be observed."""
        self.unseen[reason] = self.unseen.get(reason, 0) + 1

    def see(self, call: Prepared, place: Place | None = None) -> Tensor:
        """Compute a call, observe it if it is wanted, and return its output."""
        layer = self._layer()
        self.latest = None
        if self.layers is not None and layer not in self.layers:
            return call.attend()
        return self._record(call, place or Place(), layer)

    def beside(self, call: Prepared, place: Place | None = None) -> Observation | None:
        """Observe a call whose output the model gets from elsewhere."""
        layer = self._layer()
        self.latest = None
        if self.layers is None or layer in self.layers:
            self._record(call, place or Place(), layer)
        return self.latest

    def padding(self, B: int, Tq: int) -> Tensor | None:
        """Padding queries of the stream that reads, as its self-attention in this pass has told; for its cross-attention."""
        known = self.passing.padding if self.where.passes == self.passing.number else None
        return known if known is not None and known.shape[1] == Tq and len(known) in (1, B) else None

    def _layer(self) -> int:
        """The number of the call that is being made: the same for the same place in the model, pass after pass."""
        if self.where.passes != self.passing.number:
            self.passing = _Pass(self.where.passes)
        name = self.where.name
        nth = self.passing.nth.get(name, 0)
        self.passing.nth[name] = nth + 1
        return self.numbers.setdefault((name, nth), len(self.numbers))

    def _record(self, call: Prepared, place: Place, layer: int) -> Tensor:
        B, _, Tq, _ = call.problem.query.shape
        Tk = call.problem.key.shape[2]
        crosses = self.where.crosses or Tk < Tq if place.crosses is None else place.crosses
        if not self.passing.begun:
            self._begin(layer)
        tokens = self._reading()
        keys = self._read_before(tokens, Tk) if crosses else tokens
        ids = None if crosses or tokens is None or tokens.ids.shape != (B, Tk) else tokens.ids
        wanted = self.observables
        if wanted.token_ids is None and ids is not None:
            wanted = dataclasses.replace(wanted, token_ids=ids)
        elif crosses:
            wanted = dataclasses.replace(wanted, token_ids=None)
        seen = call.observe(wanted)
        if not crosses:
            self.passing.padding = call.mask.padded(Sizes(B, Tq, Tk, call.problem.query.device))
        found = dataclasses.replace(seen, values={n: x for n, x in seen.values.items() if n != "output"})
        made = Call(self.where.name, layer, found, self.run, crosses, None, tokens, keys)
        self.current[layer], self.latest = made, found
        self.trace.calls.append(made)
        return seen.output

    def _begin(self, layer: int) -> None:
        """Settle which run this pass belongs to: one that meets a layer again reads another text."""
        self.passing.begun = True
        if layer in self.current:
            self.run += 1
            self.current.clear()
            self.readers.clear()

    def _reading(self) -> Tokens | None:
        """The tokens of the stream that is running."""
        reader = self.where.reader
        if reader is None or reader.ids is None:
            return None
        if reader.name not in self.readers:
            self.readers[reader.name] = Tokens(reader.ids.detach().long().cpu().clone())
        return self.readers[reader.name]

    def _read_before(self, tokens: Tokens | None, T: int) -> Tokens | None:
        """Another stream's tokens, as many as there are keys."""
        others = [x for x in self.readers.values() if x is not tokens and x.ids.shape[1] == T]
        return others[-1] if others else None
