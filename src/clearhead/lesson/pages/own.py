"""The last page: the rungs on a real head of the built-in model, with the reader's words."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead import ladder
from clearhead.lesson.blocks import Equal, Grids, Page, Ran, Say, Table, grid
from clearhead.lesson.pages.contents import page
from clearhead.lesson.settings import Settings
from clearhead.lesson.source import source
from clearhead.models import OwnModel, load
from clearhead.nn import rotate
from clearhead.observables import Observables
from clearhead.viewer import View, look
from clearhead.watch import watch

PASSAGE = "The king is dead. Long live the king. The king is"
SHOWN = 24  # tokens of the pattern that are shown: the last ones of a longer text
LISTED = 6  # tokens whose keys are listed
DOES = {
    "previous-token": "it looks at the token just before",
    "induction": "it looks for an earlier copy of the token, and at the token that came next there",
    "duplicate-token": "it looks at earlier copies of the token",
    "first-token": "it rests on the first token, as heads do that have nothing to say",
    "self": "it looks at the token itself",
    "broad": "it looks at nearly everything alike",
}


class Real(NamedTuple):
    """One head's queries, keys and values on a real text."""

    q: Tensor  # (1, 1, T, D)
    k: Tensor  # (1, 1, T, D)
    v: Tensor  # (1, 1, T, Dv)


@torch.no_grad()
def real_head(model: OwnModel, ids: list[int], layer: int, head: int) -> Real:
    """Queries, keys and values of one head while the model reads a text.

    >>> real_head(load(), [0, 5, 6], layer=1, head=2).q.shape
    torch.Size([1, 1, 3, 32])
    """
    network: Any = model.network
    x = network.embedding(torch.tensor([ids]))  # (1, T, C)
    x = x * x.shape[-1] ** 0.5  # (1, T, C)
    for below in network.blocks[:layer]:
        x = below(x)  # (1, T, C)
    block = network.blocks[layer]
    x = block.before_attention(x)  # (1, T, C)
    attention = block.attention
    one = slice(head, head + 1)
    q = ladder.split_heads(attention.query(x), attention.heads)[:, one]  # (1, 1, T, D)
    k = ladder.split_heads(attention.key(x), attention.heads)[:, one]  # (1, 1, T, D)
    v = ladder.split_heads(attention.value(x), attention.heads)[:, one]  # (1, 1, T, Dv)
    # Positions, as in their aside: queries and keys are turned, values are not.
    place = torch.arange(len(ids))  # (T)
    return Real(rotate(q, place, attention.rope), rotate(k, place, attention.rope), v)


class Attended(NamedTuple):
    """Weights and result of a head."""

    weights: Tensor  # (1, 1, T, T)
    out: Tensor  # (1, 1, T, Dv)


def from_scores(q: Tensor, k: Tensor, v: Tensor) -> Attended:
    """The lines of rung 4, from the scores on.

    >>> from_scores(*torch.randn(3, 1, 1, 5, 4)).weights.shape
    torch.Size([1, 1, 5, 5])
    """
    T, D = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) * D**-0.5  # (1, 1, T, T)
    tril = torch.tril(q.new_ones(T, T))  # (T, T)
    masked = scores.masked_fill(tril == 0, float("-inf"))  # (1, 1, T, T)
    weights = torch.softmax(masked, dim=-1)  # (1, 1, T, T)
    return Attended(weights, weights @ v)


class Watched(NamedTuple):
    """The key that each query looked at most, and its weight."""

    keys: Tensor  # (T, 1)
    weights: Tensor  # (T, 1)


@torch.no_grad()
def watched(model: OwnModel, ids: list[int], layer: int, head: int) -> Watched:
    """What `clearhead.watch` saw of one head while the model read a text.

    >>> watched(load(), [0, 5, 6], layer=1, head=2).keys.shape
    torch.Size([3, 1])
    """
    with watch(model.network, observables=Observables(top_k=1)) as trace:
        model.network(torch.tensor([ids]))
    seen = trace.observation(layer)
    return Watched(seen.top_keys[0, head], seen.top_weights[0, head])


def own(settings: Settings) -> Page:
    """The page, on the settings' text or a passage of ours."""
    model = load("builtin")
    text = PASSAGE if settings.text is None else settings.text
    view = look(model, text, top_k=1)
    head = view.notable()
    ids = view.trace.token_ids or []
    real = real_head(model, ids, *head)
    weights, out = from_scores(*real)
    seen = watched(model, ids, *head)
    first = max(0, len(ids) - SHOWN)
    part = slice(first, None)
    names = [f"{n} {piece}" for n, piece in enumerate(view.pieces)]
    network: Any = model.network
    sizes = network.config
    # The sums of a trained head are larger than those of random numbers, and so is their rounding.
    least = 2e-5 * max(1.0, float(real.v.abs().max()))
    climbed = [
        Equal(
            f"rung {step.number} on this head",
            f"({step.name}(*real).out - real_out).abs().max()",
            float((step.function(*real).out - out).abs().max()),
            least,
        )
        for step in ladder.RUNGS[5:]
    ]
    return page(
        "9",
        Say(
            f"No matrix so far was trained. Now a real head. The package brings a small model of {sizes.layers} "
            f"layers, each one round of attention with {sizes.heads} heads, trained on Shakespeare and Milton. It "
            "cuts "
            + ("your text" if settings.text is not None else "a short text")
            + " into tokens of its own, pieces of words. A dot is a space, and `<|start|>` comes before every text:"
        ),
        Say(" ".join(f"`{piece.replace('`', 'ˋ')}`" for piece in view.pieces)),
        Say(_role(view)),
        source(real_head),
        source(from_scores),
        Ran(
            f"model = load()\nids = model.encode({text!r})\n"
            f"real = real_head(model, ids, layer={head.layer}, head={head.head})\n"
            "real_weights, real_out = from_scores(*real)"
        ),
        Grids(
            (
                grid(
                    f"real_weights[0, 0, {first}:, {first}:]" if first else "real_weights[0, 0]",
                    f"the last {SHOWN} of T × T" if first else "T × T",
                    weights[0, 0, part, part],
                    shade="weight",
                    rows=names[part],
                    columns=[str(n) for n in range(first, len(ids))],
                    decimals=2,
                    note=f"{head} on real words",
                ),
            )
        ),
        *_copied(view, weights),
        Table(
            ("token", "looks most at"),
            tuple((names[i], _most(view, weights, i)) for i in range(max(1, len(ids) - LISTED), len(ids))),
            f"The last tokens, through {head}.",
        ),
        Say("The rungs above give the same result on this head, and the model itself did what the formula says:"),
        *climbed,
        Equal(
            "each token's largest weight, and what the library saw in the running model",
            f"(real_weights[0, 0].gather(-1, watched(model, ids, {head.layer}, {head.head}).keys) - watched(model, "
            f"ids, {head.layer}, {head.head}).weights).abs().max()",
            float((weights[0, 0].gather(-1, seen.keys) - seen.weights).abs().max()),
            least,
        ),
        Say(
            "That is the whole way: from a mean taken by two loops to a head of a trained model, each step equal to "
            "the one before. `clearhead look` shows all heads of this model on any text."
        ),
    )


def _role(view: View) -> str:
    head = view.notable()
    score = view.label(head)
    where = f"Here is head {head}: layer {head.layer}, head {head.head}, both counted from 0."
    if score is None:
        return f"{where} No role of this library fits it on this text; it is the head that decides most sharply."
    return (
        f"{where} On this text it is labelled **{score.role}**: {DOES[score.role]}. Its score is {score.score:.2f}; "
        f"a head that looks at everything alike would score {score.null:.2f}."
    )


def _copied(view: View, weights: Tensor) -> list[Say]:
    """The last token as an example, if it does what induction does."""
    i = len(view.pieces) - 1
    j = int(weights[0, 0, i].argmax())
    pieces = view.pieces
    if j < 1 or pieces[j - 1] != pieces[i]:
        return []
    return [
        Say(
            f"Take the last token, `{pieces[i]}`. It gives {float(weights[0, 0, i, j]):.0%} to token {j}, "
            f"`{pieces[j]}`: where `{pieces[i]}` stood before, `{pieces[j]}` came next. With such heads a model goes "
            "on with what it has read."
        )
    ]


def _most(view: View, weights: Tensor, i: int) -> str:
    top = weights[0, 0, i, : i + 1].topk(min(3, i + 1))
    shown = [(j, w) for j, w in zip(top.indices.tolist(), top.values.tolist(), strict=True) if w >= 0.01]
    return "   ".join(f"{j} {view.pieces[j]} {w:.0%}" for j, w in shown)
