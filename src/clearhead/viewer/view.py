"""One run of a model, with everything needed to show it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from clearhead.addresses import Head
from clearhead.errors import InputError
from clearhead.estimate import estimate
from clearhead.masks import Causal
from clearhead.models import Model
from clearhead.observables import Observables
from clearhead.roles import RoleScore, label, roles
from clearhead.trace import Call, Trace
from clearhead.watch.attending import attending

LONG = 1000  # tokens from which on it is said beforehand what looking will cost
PREFERRED = ("induction", "duplicate-token", "previous-token", "first-token", "self")


@dataclass(frozen=True)
class View:
    """What every head of a model did on one text.

    The trace has its `token_ids` and `pieces`. Tokens from position `prompt` on were written by the model. `first` is where
    in the whole text, of `total` tokens, the tokens shown begin, not counting the `before` tokens that the model puts before
    every text.
    """

    model: str
    context: int
    trace: Trace
    roles: dict[Head, list[RoleScore]]
    prompt: int
    before: int
    first: int
    total: int
    seconds: float

    @property
    def pieces(self) -> list[str]:
        """What each token reads as, with nothing in it that a terminal would obey (`clearhead.tokens`)."""
        return self.trace.pieces or []

    @property
    def tokens(self) -> int:
        """T, the number of tokens shown."""
        return len(self.trace.token_ids or [])

    @property
    def part(self) -> str | None:
        """What part of the text was read and how to read on, when it was not the whole."""
        read = self.prompt - self.before
        if read == self.total:
            return None
        end = self.first + read
        said = f"read tokens {self.first} to {end - 1} of the text's {self.total}: the context is {self.context} tokens"
        return said + (f"; --start {end} reads on" if end < self.total else "")

    @property
    def pattern_bytes(self) -> int:
        """What the T×T weights of all heads would have taken in float32."""
        return len(self.trace.heads()) * self.tokens**2 * 4

    @property
    def observed_bytes(self) -> int:
        """What the observations take, the layers' outputs left out."""
        return measured_bytes(self.trace.calls)

    def label(self, head: Head) -> RoleScore | None:
        """The role a head is labelled with, if any."""
        return label(self.roles[head])

    def notable(self) -> Head:
        """The head to show first: the best of the most telling role that any head has, else the one of least entropy."""
        return most_telling(self.roles) or min(
            self.roles, key=lambda head: self.trace.observation(head.layer).mean("entropy")[0, head.head].item()
        )

    def query(self, token: int) -> int:
        """Position of a token counted from the start, or from the end if negative; raises `InputError` if there is none."""
        return _position(token, self.tokens)


def most_telling(roles: Mapping[Head, list[RoleScore]]) -> Head | None:
    """The best head of the role that says most of those that any head is labelled with; None where none is."""
    labelled = {head: score for head, scores in roles.items() if (score := label(scores)) is not None}
    for role in PREFERRED:
        heads = [head for head, score in labelled.items() if score.role == role]
        if heads:
            return max(heads, key=lambda head: labelled[head].score)
    return None


def measured_bytes(calls: Iterable[Call]) -> int:
    """What the observations of some calls take, the layers' outputs left out."""
    kept = (x for call in calls for name, x in call.observation.values.items() if name != "output")
    return sum(x.nbytes for x in kept)


def _position(token: int, tokens: int) -> int:
    if not -tokens <= token < tokens:
        raise InputError(f"token {token}: there are {tokens} tokens, 0 to {tokens - 1}, or -1 for the last and so on")
    return token % tokens


def look(
    model: Model,
    text: str,
    *,
    start: int = 0,
    write: int = 0,
    token: int | None = None,
    top_k: int = 8,
    cells: int = 0,
    keep: str | None = None,
    say: Callable[[str], None] | None = None,
) -> View:
    """Run a model on a text under `watch`, and say what every head did.

    >>> from clearhead.models import load
    >>> look(load(), "To be, or not to be").trace
    Trace(4 calls, 24 heads, 8 tokens)

    Arguments:
        model: what reads the text.
        text: what is read. Of a text longer than the context only a part is read; `View.first` and `total` say which.
        start: the first token of the text to read.
        write: how many tokens the model writes after it.
        token: position of a query whose whole row of weights is kept (negative: from the end); default none.
        top_k: how many keys are kept for every query.
        cells: cells along each side of every head's map; 0 for no maps.
        keep: "qk" or "qkv" keeps queries and keys (and values) to look closer afterwards, as `watch` does.
        say: told before a long text is read what looking at it will cost.

    Raises:
        InputError: nothing to read, `start` beyond the text, `write` that leaves no room, no such token, a model whose
            attention cannot be seen.
    """
    before, after = list(model.before), list(model.after)
    ids = model.encode_part(text)
    if not ids:
        raise InputError("the text is empty: give at least one character")
    if not 0 <= start < len(ids):
        raise InputError(f"start {start}: the text has {len(ids)} tokens, 0 to {len(ids) - 1}")
    room = model.context - len(before) - len(after) - write
    if write < 0 or room < 1:
        most = model.context - len(before) - len(after) - 1
        raise InputError(f"continue {write}: the model reads {model.context} tokens, so it can write 0 to {most}")
    prompt = before + ids[start : start + room] + after
    whole = prompt + (model.generate(prompt, write) if write else [])

    rows = () if token is None else (_position(token, len(whole)),)
    observables = Observables(top_k=top_k, map=cells, rows=rows, token_ids=torch.tensor(whole), distance_histogram=True)
    if say is not None and len(whole) >= LONG and model.attention_sizes is not None:
        say(_cost(model.attention_sizes, len(whole), observables))
    trace, seconds = watched(model, whole, len(prompt), observables, keep)
    return View(
        model.name, model.context, trace, roles(trace), len(prompt), len(before) + len(after), start, len(ids), seconds
    )


def watched(
    model: Model, whole: list[int], prompt: int, observables: Observables, keep: str | None
) -> tuple[Trace, float]:
    """The trace of a model that reads a text whose first `prompt` tokens were given, and the seconds it took.

    Raises `InputError` for a model whose attention cannot be seen.
    """
    began = time.perf_counter()
    with attending(model.network, f"model {model.name}", observables=observables, keep=keep) as trace:
        model.read(whole)
    seconds = time.perf_counter() - began
    trace.token_ids, trace.pieces = whole, model.pieces(whole)
    trace.model, trace.prompt = model.name, prompt
    return trace, seconds


def _cost(sizes: tuple[int, int, int, int], T: int, observables: Observables) -> str:
    """One line on a run that is about to begin."""
    layers, heads, key_heads, width = sizes
    query, key = (torch.zeros(()).expand(1, h, T, width) for h in (heads, key_heads))
    expected = estimate(query, key, key, mask=Causal(), observables=observables, layers=layers)
    output = layers * heads * T * width * query.element_size()  # is the model's own, and not kept
    return f"{dataclasses.replace(expected, bytes=expected.bytes - output)}; the rest of the model comes on top"
