"""What a watched model's attention calls become: which layer each is, which text, whose tokens, what is kept of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from clearhead.addresses import Head
from clearhead.attention import Prepared
from clearhead.errors import ArgumentError, message
from clearhead.keeping import Kept
from clearhead.masks import Mask, Sizes
from clearhead.observables import Observables, Observation
from clearhead.settling import settled
from clearhead.trace import Call, Tokens, Trace
from clearhead.watch.modules import ModulePath
from clearhead.watch.ranks import Ranks


@dataclass(frozen=True)
class Place:
    """What a door knows of a call that its tensors do not say."""

    crosses: bool | None = None  # attends to another stream than its own; None: not known
    first_key: int = 0  # the text's position of key 0: a sliding cache has dropped those before


@dataclass(frozen=True)
class Wanted:
    """What is to be observed, and what is to be kept of it."""

    observables: Observables
    layers: Collection[int] | None = None
    heads: Collection[int | Head] | None = None  # a number is that head of every layer
    keep: str | None = None  # "qk" or "qkv"
    folder: Path | None = None

    def numbers(self, layer: int, Hq: int) -> list[int] | None:
        """The heads to observe in a layer; None for all."""
        if self.heads is None:
            return None
        chosen = {h if isinstance(h, int) else h.head for h in self.heads if isinstance(h, int) or h.layer == layer}
        return sorted(h for h in chosen if h < Hq)

    def layer(self, layer: int) -> bool:
        """Whether a layer is to be observed."""
        if self.heads is not None and not any(isinstance(h, int) or h.layer == layer for h in self.heads):
            return False
        return self.layers is None or layer in self.layers


@dataclass
class _Pass:
    """One forward of the outermost module."""

    number: int
    begun: bool = False  # whether it has been settled which run it belongs to
    continues: bool = False  # it goes on from the cache that the pass before it left
    padding: Tensor | None = None  # bool (B, Tq): padding queries of the stream that reads
    nth: dict[str, int] = field(default_factory=dict)  # calls made by each module
    read: set[str] = field(default_factory=set)  # modules whose tokens have been taken


class Recorder:
    """Numbers, observes and collects the attention calls of one thread; `trace` is what it makes."""

    def __init__(self, where: ModulePath, wanted: Wanted, mask: Mask | None = None, ranks: Ranks | None = None) -> None:
        self.trace, self.mask, self.ranks = Trace(), mask, ranks
        self.where, self.wanted = where, wanted
        self.numbers: dict[tuple[str, int], int] = {}  # layer of each module's nth call in a pass
        self.current: dict[int, Call] = {}  # by layer, of this run
        self.sizes: dict[int, int] = {}  # heads of each layer that was observed
        self.readers: dict[str, Tokens] = {}  # of this run: the tokens that modules were given
        self.passing = _Pass(-1)
        self.run = 0
        self.unseen: dict[str, int] = {}  # reasons, and how often
        self.latest: Observation | None = None  # of the last call, if it was observed
        self.caches: list[Any] = []  # that must not be reordered while they are watched
        where.watched = self._given

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
        if self.ranks is not None:
            return self._record_whole(call, layer, self.ranks)
        call = self._narrowed(call)
        if not self.wanted.layer(layer):
            return call.attend()
        return self._record(call, place or Place(), layer)

    def beside(self, call: Prepared, place: Place | None = None) -> Observation | None:
        """Observe a call whose output the model gets from elsewhere."""
        if self.mask is not None:
            raise ArgumentError(
                message(
                    "mask",
                    expected="a model whose attention is computed where it is watched",
                    got="a call that PyTorch computes itself: with dropout, or with need_weights=True",
                    remedy="Call model.eval() first, or watch without mask.",
                )
            )
        layer = self._layer()
        self.latest = None
        if self.wanted.layer(layer):
            self._record(call, place or Place(), layer)
        return self.latest

    def _narrowed(self, call: Prepared) -> Prepared:
        """The call under the mask that all calls were given."""
        return call if self.mask is None else call.within(self.mask)

    def not_met(self) -> str | None:
        """What was asked for and is not there, in words."""
        if not self.numbers or self.where.passes == 0:
            return None
        count = len(self.numbers)
        met = f"the model made {count} attention calls, layers 0 to {count - 1}"
        layers = [str(layer) for layer in self.wanted.layers or () if layer >= count]
        if layers:
            return f"layers {', '.join(layers)} were not met; {met}"
        seen = {head for call in self.trace.calls for head in call.addresses()}
        heads = [h for h in self.wanted.heads or () if (h not in seen if isinstance(h, Head) else not _any(h, seen))]
        if not heads:
            return None
        sizes = sorted(set(self.sizes.values()))
        return f"heads {', '.join(map(str, heads))} were not met; {met}" + (
            f", with {' or '.join(map(str, sizes))} heads" if sizes else ""
        )

    def padding(self, B: int, Tq: int) -> Tensor | None:
        """Padding queries of the stream that reads, as its self-attention in this pass has told; for its cross-attention."""
        known = self.passing.padding if self.where.passes == self.passing.number else None
        return known if known is not None and known.shape[1] == Tq and len(known) in (1, B) else None

    def release(self) -> None:
        """Leave nothing behind in the model's caches, and no circle that would keep a forgotten trace in memory."""
        self.where.watched = None
        for cache in self.caches:
            for name in ("reorder_cache", "crop"):
                cache.__dict__.pop(name, None)
        self.caches.clear()

    def _given(self, given: dict[str, Any]) -> None:
        """A pass begins with these arguments. A cache that is reordered or cut back under the rows already seen says so."""
        for cache in given.values():
            if hasattr(type(cache), "reorder_cache") and "reorder_cache" not in vars(cache):
                cache.reorder_cache, cache.crop = _refuse_beams, _refuse_guesses
                self.caches.append(cache)

    def _layer(self) -> int:
        """The number of the call that is being made: the same for the same place in the model, pass after pass."""
        if self.where.passes != self.passing.number:
            self.passing = _Pass(self.where.passes)
        name = self.where.name
        nth = self.passing.nth.get(name, 0)
        self.passing.nth[name] = nth + 1
        return self.numbers.setdefault((name, nth), len(self.numbers))

    def _record(self, call: Prepared, place: Place, layer: int) -> Tensor:
        B, Hq, Tq, _ = call.problem.query.shape
        Tk = call.problem.key.shape[2]
        crosses = self.where.crosses or Tk < Tq if place.crosses is None else place.crosses
        first = place.first_key + Tk - Tq
        self._begin(layer, first, B, crosses)
        before = self.current.get(layer)
        if before is not None and Tq == 1 and self.run == 0 and not crosses and self.trace.prompt is None:
            self.trace.prompt = first  # what comes one by one behind a text is being written
        if before is not None and not crosses and before.end != first:
            raise ArgumentError(
                message(
                    "cache",
                    expected=f"layer {layer} to go on at token {before.end}, as the layers before it do",
                    got=f"a call whose first query is token {first}",
                    remedy="The layers' caches hold different numbers of tokens: start from a new cache.",
                )
            )
        tokens = self._reading()
        keys = self._read_before(tokens, Tk) if crosses else tokens
        rows = 0 if before is None else before.rows
        seen = call.observe(self._observables(place, crosses, rows, B, Tq, Tk, tokens))
        output = seen.output
        if not crosses:
            self.passing.padding = call.mask.padded(Sizes(B, Tq, Tk, call.problem.query.device))
        numbers = self.wanted.numbers(layer, Hq)
        self.sizes[layer] = Hq
        if self.wanted.observables.rows and "rows" not in seen.values:
            none = seen.lse.new_zeros(B, Hq, 0, Tk)
            seen = dataclasses.replace(seen, values={**seen.values, "rows": none})
        found = _kept(seen, numbers)
        if before is None:
            chosen = None if numbers is None else tuple(numbers)
            before = Call(self.where.name, layer, found, self.run, crosses, chosen, tokens, keys)
            self.current[layer] = before
            self.trace.calls.append(before)
            if self.wanted.keep is not None:
                before.kept = Kept.of(call, numbers)
            new_keys = Tk
        else:
            before.append(found)
            new_keys = 0 if crosses else Tq
        if before.kept is not None:
            before.kept.add(
                call,
                place.first_key,
                new_keys=new_keys,
                values=self.wanted.keep == "qkv",
                heads=numbers,
                folder=self.wanted.folder,
            )
        self.latest = found
        return output

    def _record_whole(self, call: Prepared, layer: int, ranks: Ranks) -> Tensor:
        """The same for a call on this rank's part of a sequence: the rows of all ranks, a text a pass."""
        if not self.wanted.layer(layer):
            return ranks.attend(call)
        B, Hq = call.problem.query.shape[:2]
        self._begin(layer, 0, B, crosses=False)
        tokens, wanted = self._reading(), self.wanted.observables
        if tokens is not None and wanted.token_ids is None:
            wanted = dataclasses.replace(wanted, token_ids=tokens.ids)
        output, seen = ranks.observe(call, wanted)
        numbers = self.wanted.numbers(layer, Hq)
        self.sizes[layer] = Hq
        self.latest = _kept(seen, numbers)
        chosen = None if numbers is None else tuple(numbers)
        self.current[layer] = Call(self.where.name, layer, self.latest, self.run, False, chosen, tokens, tokens)
        self.trace.calls.append(self.current[layer])
        return output

    def _begin(self, layer: int, first: int, B: int, crosses: bool) -> None:
        """Settle which run this pass belongs to, when it first meets a layer again.

        It goes on from the cache where the rows follow those seen; otherwise it reads another text, a run of its own.
        """
        before = self.current.get(layer)
        if self.passing.begun or before is None:
            return
        self.passing.begun = True
        self.passing.continues = not crosses and 0 < first == before.end and before.samples == B
        if not self.passing.continues:
            self.run += 1
            self.current.clear()
            self.readers.clear()
            self.passing.read.clear()

    def _observables(
        self, place: Place, crosses: bool, rows: int, B: int, Tq: int, Tk: int, tokens: Tokens | None
    ) -> Observables:
        """What to measure of this call: as asked for, with the tokens that are known, as far as it fits a part of a text."""
        wanted = self.wanted.observables
        changes: dict[str, Any] = {"first_key": place.first_key}
        if crosses:
            changes |= {"token_ids": None, "first_query": rows}
        elif (
            tokens is not None and tokens.ids.shape == (B, place.first_key + Tk) and (wanted.token_ids is None or rows)
        ):
            changes["token_ids"] = tokens.ids
        if rows:
            changes |= {"map": 0, "rows": tuple(row - rows for row in wanted.rows if rows <= row < rows + Tq)}
            if wanted.key_groups is not None and not crosses:
                changes["key_groups"] = _fitted(wanted.key_groups, place.first_key, Tk)
                changes["query_groups"] = None
        return dataclasses.replace(wanted, **changes)

    def _reading(self) -> Tokens | None:
        """The tokens of the stream that is running, with those of this pass."""
        reader = self.where.reader
        if reader is None or reader.ids is None:
            return None
        if reader.name not in self.passing.read:
            self.passing.read.add(reader.name)
            ids = reader.ids.detach().long()
            ids = (ids if self.ranks is None else self.ranks.tokens(ids)).cpu()
            known = self.readers.get(reader.name)
            if known is not None and self.passing.continues and len(known.ids) == len(ids):
                known.ids = torch.cat([known.ids, ids], 1)
            else:
                self.readers[reader.name] = Tokens(ids.clone())
        return self.readers.get(reader.name)

    def _read_before(self, tokens: Tokens | None, T: int) -> Tokens | None:
        """Another stream's tokens, as many as there are keys."""
        others = [x for x in self.readers.values() if x is not tokens and x.ids.shape[1] == T]
        return others[-1] if others else None


def _any(number: int, heads: set[Head]) -> bool:
    return any(head.head == number for head in heads)


def _fitted(groups: Tensor, first_key: int, Tk: int) -> Tensor:
    """Groups of the keys of a later call; −1, none, for those beyond what was told."""
    more = first_key + Tk - groups.shape[-1]
    whole = pad(groups, (0, more), value=-1) if more > 0 else groups
    return whole[..., first_key : first_key + Tk]


def _refuse_beams(*_: object, **__: object) -> None:
    raise ArgumentError(
        message(
            "num_beams",
            expected="1 while watching",
            got="a cache whose samples are put in another order, as beam search does",
            remedy="Generate with num_beams=1, or watch a forward of the finished text.",
        )
    )


def _refuse_guesses(*_: object, **__: object) -> None:
    raise ArgumentError(
        message(
            "assistant_model",
            expected="none while watching, and no prompt_lookup_num_tokens",
            got="a cache that is cut back to before tokens already seen, as assisted decoding does with wrong guesses",
            remedy="Generate without a helper, or watch a forward of the finished text.",
        )
    )


def _kept(seen: Observation, numbers: list[int] | None) -> Observation:
    """What a trace keeps of an observation: not the output, and the heads that were asked for."""
    found = dataclasses.replace(seen, values={name: x for name, x in seen.values.items() if name != "output"})
    found = found if numbers is None else found[:, numbers]
    return dataclasses.replace(found, values=settled(found.values))
