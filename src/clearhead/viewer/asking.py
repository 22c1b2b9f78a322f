"""A question about documents: how much the model's answer takes from each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.addresses import Head
from clearhead.errors import InputError
from clearhead.models import Model
from clearhead.observables import Observables
from clearhead.roles import looked_up, roles
from clearhead.roles.scores import visible_keys
from clearhead.trace import Trace
from clearhead.viewer.view import View, watched


class Reader(NamedTuple):
    """A head, its mean weight on each group, and how many of the answer's tokens it looked up in a document."""

    head: Head
    means: list[float]
    looked_up: int


@dataclass(frozen=True, repr=False)
class Asked:
    """An answer, and where its tokens looked while they were written; `print` shows it.

    The weight of an answer's token is that of the query that wrote it, one position before it.
    """

    view: View
    names: list[str]
    places: list[range]
    """Positions of each document's tokens."""
    written: range
    """Positions of the answer's tokens."""
    groups: list[str]
    """What weight is divided between: the documents; the very first token, where heads rest; the system prompt, if one was
    given; the question; what the chat template, if there is one, puts around them; and the answer so far."""
    sizes: list[int]
    """Tokens of each group."""
    weights: Float[Tensor, "heads written groups"]
    """Σ of the weight on each group, for every head and every token of the answer."""

    uniform: list[float]
    """What uniform attention would put on each group: its share of the keys in sight, the mean as for the weights."""
    looked_up: Int[Tensor, "heads written"]
    """The key a head looks at most where it is the very token being written, else −1; see `roles.looked_up`."""
    by_chance: list[float]
    """How many of these would lie in each document if every head's largest weight fell on any key in sight alike."""

    @property
    def trace(self) -> Trace:
        """What every head did on the prompt and the answer."""
        return self.view.trace

    @property
    def answer(self) -> str:
        """The answer's text."""
        return spoken(self.view.pieces[i] for i in self.written)

    @property
    def shares(self) -> list[float]:
        """Mean over all heads and all tokens of the answer."""
        return [float(x) for x in self.weights.mean((0, 1))]

    @property
    def by_token(self) -> Float[Tensor, "written groups"]:
        """Mean over all heads, for each token of the answer."""
        return self.weights.mean(0)

    def lookups(self, document: int) -> Int[Tensor, "heads written"]:
        """1 where a head looked the token up in a document, else 0."""
        place = self.places[document]
        return ((self.looked_up >= place.start) & (self.looked_up < place.stop)).long()

    def readers(self, k: int = 5) -> list[Reader]:
        """The k heads that look up most in the documents, then those that give them most weight."""
        means = self.weights.mean(1)  # (heads, groups)
        found = sum((self.lookups(n) for n in range(len(self.names))), torch.zeros_like(self.looked_up)).sum(1)
        order = (found + means[:, : len(self.names)].sum(-1).clamp(max=0.999)).argsort(descending=True)[:k]
        heads = self.trace.heads()
        return [Reader(heads[n], means[n].tolist(), int(found[n])) for n in order.tolist()]

    def __str__(self) -> str:
        rows = [self.answer]
        for n, (name, share, even) in enumerate(zip(self.groups, self.shares, self.uniform, strict=True)):
            row = f"{name}: weight {share:.1%}, uniform {even:.1%}"
            if n < len(self.names):
                row += f", looked up {int(self.lookups(n).sum())} times, by chance {self.by_chance[n]:.0f}"
            rows.append(row)
        return "\n".join(rows)

    def __repr__(self) -> str:
        return f"Asked({self.answer!r}, {len(self.names)} documents, {len(self.trace.heads())} heads)"


def spoken(pieces: Iterable[str]) -> str:
    """Pieces as running text, with nothing in it that a terminal would obey."""
    return "".join(pieces).replace("·", " ").replace("↵", "\n").strip()


def ask(
    model: Model,
    documents: Sequence[tuple[str, str]],
    question: str,
    *,
    system: str | None = None,
    write: int = 40,
    top_k: int = 8,
    cells: int = 0,
    keep: str | None = None,
) -> Asked:
    """Give a model documents and a question, let it answer, and measure what each of the answer's tokens takes from where.

    >>> from clearhead.models import load
    >>> asked = ask(load(), [("a", "The king is dead."), ("b", "The queen lives.")], "Who lives?", write=4)
    >>> asked.groups
    ['a', 'b', 'first token', 'question', 'answer']
    >>> asked.weights.shape
    torch.Size([24, 4, 5])

    Arguments:
        model: what answers; with a chat template, through that.
        documents: pairs of a name and a text, none of which can become a special token.
        question: what is asked after them.
        system: a system prompt; without it the template may put one of its own, which is then part of "template".
        write: the most tokens to answer with.
        top_k, cells, keep: as for `look`.

    Raises:
        InputError: no document, an empty one, more than the model reads, or a system prompt that the chat template does not
            take.
    """
    if not documents:
        raise InputError("documents: there are none; give at least one to ask about")
    parts = model.question([text for _, text in documents], question, system=system)
    names = [name for name, _ in documents]
    texts = [part.ids for part in parts if part.kind == "document"]
    for name, ids in zip(names, texts, strict=True):
        if not ids:
            raise InputError(f"document {name}: is empty")
    prompt = [i for part in parts for i in part.ids]
    if len(prompt) + write > model.context:
        told = ", ".join(f"{name} {len(ids)}" for name, ids in zip(names, texts, strict=True))
        raise InputError(
            f"documents and question are {len(prompt)} tokens ({told}), and {write} are to be written: {model.name} reads "
            f"{model.context}"
        )
    whole = prompt + model.generate(prompt, write)
    written = range(len(prompt), len(whole))
    if not written:
        raise InputError(f"{model.name} wrote nothing: ask it something that it answers")
    template = sum(len(part.ids) for part in parts if part.kind == "template")
    others = ["first token", "question", "answer"]
    if template > (parts[0].kind == "template" and len(parts[0].ids) > 0):  # the first token is a group of its own
        others.insert(2, "template")
    if system is not None:
        others.insert(1, "system")
    kinds = {kind: len(names) + n for n, kind in enumerate(others)}
    groups, at = torch.full((len(whole),), kinds["answer"]), 0
    places: list[range] = []
    for part in parts:
        place = range(at, at + len(part.ids))
        groups[place.start : place.stop] = len(places) if part.kind == "document" else kinds.get(part.kind, 0)
        places += [place] if part.kind == "document" else []
        at = place.stop
    groups[0] = kinds["first token"]
    wanted = Observables(
        top_k=top_k,
        map=cells,
        rows=(-1,),
        token_ids=torch.tensor(whole),
        key_groups=groups,
        distance_histogram=True,
    )
    trace, seconds = watched(model, whole, len(prompt), wanted, keep)
    trace.key_groups = groups.tolist(), [*names, *others]
    writers = slice(written.start - 1, written.stop - 1)
    weights = torch.cat([call.observation.group_weight[0, :, writers] for call in trace.calls])
    view = View(model.name, model.context, trace, roles(trace), len(prompt), 0, 0, len(prompt), seconds)
    uniform, by_chance = _even(trace, torch.tensor(whole), groups, written, len(names))
    found = torch.tensor(list(looked_up(trace, written).values()))
    sizes = torch.bincount(groups, minlength=len(names) + len(others)).tolist()
    return Asked(view, names, places, written, [*names, *others], sizes, weights, uniform, found, by_chance)


def _even(trace: Trace, ids: Tensor, groups: Tensor, written: range, documents: int) -> tuple[list[float], list[float]]:
    """What heads that attend to all in sight alike would give each group, and how often they would look up in each document."""
    at = torch.arange(written.start, written.stop)
    member = torch.nn.functional.one_hot(groups).double()  # (T, groups)
    equal = (ids[None] == ids[at][:, None]).double()  # (written, T)
    shares, counts = [], torch.zeros(documents, dtype=torch.float64)
    for call in trace.calls:
        seen = visible_keys(call.observation).cpu()[at - 1][:, None]
        place = torch.arange(len(ids))[None]
        sight = ((place < at[:, None]) & (place >= at[:, None] - seen)).double() / seen  # (written, T)
        shares += [(sight @ member).mean(0)] * call.heads
        counts += ((sight * equal) @ member)[:, :documents].sum(0) * call.heads
    return torch.stack(shares).mean(0).tolist(), counts.tolist()
