"""A question about documents: how much the model's answer takes from each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.errors import InputError
from clearhead.models import Model
from clearhead.observables import Observables
from clearhead.roles import looked_up, roles
from clearhead.roles.scores import visible_keys
from clearhead.trace import Head, Trace
from clearhead.viewer.view import View
from clearhead.watch import watch

OTHERS = ("first token", "question", "answer")
"""Where weight goes besides the documents: the very first token, where heads rest; the question and the model's own words
around it; what has been answered already."""


class Reader(NamedTuple):
    """A head, its mean weight on each group, and how many of the answer's tokens it looked up in a document."""

    head: Head
    means: list[float]
    looked_up: int


@dataclass(frozen=True)
class Asked:
    """An answer, and where its tokens looked while they were written.

    The weight of an answer's token is that of the query that wrote it, one position before it.
    """

    view: View
    names: list[str]
    places: list[range]
    """Positions of each document's tokens."""
    written: range
    """Positions of the answer's tokens."""
    weights: Float[Tensor, "heads written groups"]
    """Σ of the weight on each document, then on each of `OTHERS`, for every head and every token of the answer."""

    uniform: list[float]
    """What uniform attention would put on each group: its share of the keys in sight, the mean as for the weights."""
    looked_up: Int[Tensor, "heads written"]
    """The key a head looks at most where it is the very token being written, else −1; see `roles.looked_up`."""
    by_chance: list[float]
    """How many of these would lie in each document if every head's largest weight fell on any key in sight alike."""

    @property
    def groups(self) -> list[str]:
        """Names of the documents, then of the others."""
        return [*self.names, *OTHERS]

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
        heads = self.view.trace.heads()
        return [Reader(heads[n], means[n].tolist(), int(found[n])) for n in order.tolist()]


def ask(
    model: Model,
    documents: Sequence[tuple[str, str]],
    question: str,
    *,
    write: int = 40,
    top_k: int = 8,
    cells: int = 0,
    keep: str | None = None,
) -> Asked:
    """Give a model documents and a question, let it answer, and measure what each of the answer's tokens takes from where.

    >>> from clearhead.models import load
    >>> asked = ask(load(), [("a", "The king is dead."), ("b", "The queen lives.")], "Who lives?", write=4)
    >>> asked.groups, asked.weights.shape
    (['a', 'b', 'first token', 'question', 'answer'], torch.Size([24, 4, 5]))

    Arguments:
        model: what answers; with a chat template, through that.
        documents: pairs of a name and a text, none of which can become a special token.
        question: what is asked after them.
        write: the most tokens to answer with.
        top_k, cells, keep: as for `look`.

    Raises:
        InputError: no document, an empty one, or more than the model reads.
    """
    if not documents:
        raise InputError("--question: give at least one --document to ask about")
    parts = model.question([*(text for _, text in documents), question])
    for (name, _), ids in zip(documents, parts[1:-2], strict=True):
        if not ids:
            raise InputError(f"document {name}: is empty")
    prompt = [i for part in parts for i in part]
    if len(prompt) + write > model.context:
        told = ", ".join(f"{name} {len(ids)}" for (name, _), ids in zip(documents, parts[1:-2], strict=True))
        raise InputError(
            f"documents and question are {len(prompt)} tokens ({told}), and {write} are to be written: {model.name} reads "
            f"{model.context}"
        )
    whole = prompt + model.generate(prompt, write)
    written = range(len(prompt), len(whole))
    if not written:
        raise InputError(f"{model.name} wrote nothing: ask it something that it answers")
    groups, places, at = torch.full((len(whole),), len(documents) + 1), [], len(parts[0])
    for n, ids in enumerate(parts[1:-2]):
        places.append(range(at, at + len(ids)))
        groups[at : at + len(ids)] = n
        at += len(ids)
    groups[len(prompt) :] = len(documents) + 2
    groups[0] = len(documents)
    wanted = Observables(
        top_k=top_k,
        map=cells,
        rows=(-1,),
        token_ids=torch.tensor(whole),
        key_groups=groups,
        distance_histogram=True,
    )
    began = time.perf_counter()
    with watch(model.network, observables=wanted, keep=keep) as trace:
        model.read(whole)
    seconds = time.perf_counter() - began
    trace.token_ids, trace.pieces = whole, model.pieces(whole)
    trace.model, trace.prompt = model.name, len(prompt)
    trace.key_groups = groups.tolist(), [*(name for name, _ in documents), *OTHERS]
    writers = slice(written.start - 1, written.stop - 1)
    weights = torch.cat([call.observation.group_weight[0, :, writers] for call in trace.calls])
    view = View(model.name, model.context, trace, roles(trace), len(prompt), 0, 0, len(prompt), seconds)
    uniform, by_chance = _even(trace, torch.tensor(whole), groups, written, len(documents))
    places_found = torch.tensor(list(looked_up(trace, written).values()))
    names = [name for name, _ in documents]
    return Asked(view, names, places, written, weights, uniform, places_found, by_chance)


def _even(trace: Trace, ids: Tensor, groups: Tensor, written: range, documents: int) -> tuple[list[float], list[float]]:
    """What heads that attend to all in sight alike would give each group, and how often they would look up in each document."""
    at = torch.arange(written.start, written.stop)
    member = torch.nn.functional.one_hot(groups, documents + len(OTHERS)).double()  # (T, groups)
    equal = (ids[None] == ids[at][:, None]).double()  # (written, T)
    shares, counts = [], torch.zeros(documents, dtype=torch.float64)
    for call in trace.calls:
        seen = visible_keys(call.observation).cpu()[at - 1][:, None]
        place = torch.arange(len(ids))[None]
        sight = ((place < at[:, None]) & (place >= at[:, None] - seen)).double() / seen  # (written, T)
        shares += [(sight @ member).mean(0)] * call.heads
        counts += ((sight * equal) @ member)[:, :documents].sum(0) * call.heads
    return torch.stack(shares).mean(0).tolist(), counts.tolist()
