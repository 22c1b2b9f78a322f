"""Roles calibrated: on random tokens that repeat, where nothing but position and repetition can be attended to."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.addresses import ByHead, Head
from clearhead.errors import ArgumentError, message
from clearhead.observables import Observables, Observation
from clearhead.roles.scores import MEASURES, Means, Text, judged, mean_over, text_of
from clearhead.watch.attending import attending


class Calibrated(NamedTuple):
    """Mean over seeds and its standard error; what uniform attention scores on the same texts; whether it earns the label."""

    mean: float
    error: float
    null: float
    threshold: float
    labelled: bool


def calibrate(
    network: Any,
    vocabulary: int | None = None,
    *,
    period: int = 50,
    seeds: int = 4,
    bos: int | None = None,
    around: tuple[Sequence[int], Sequence[int]] = ((), ()),
    avoid: Collection[int] = (),
) -> ByHead[dict[str, Calibrated]]:
    """Every role's score on repeated random tokens: mean and standard error over seeds, beside the null.

    Each text is `period` random tokens, twice (after `bos`, if the model starts its texts with one). Previous-token,
    first-token, self and broad are means over all queries but the first. Induction is the mean of p_{i, i − period + 1} over
    the second copies i: from a token to what followed its first copy. The last token of the first copy is no part of it: a
    diagonal drawn through it would end at the first token of all, to which many heads attend anyway. Duplicate-token is the
    mean of p_{i, i − period} over the same queries. Layers whose window is shorter than that cannot show them: NaN.

    Arguments:
        network: an `nn.Module` that takes integer ids (1, T); or a model that `clearhead.models.load` gave, which says by
            itself how many tokens it has, which are special, and what stands around every text.
        vocabulary: how many tokens to draw from; default what a Hugging Face model's own configuration says.
        period: length of the random text before it repeats.
        seeds: how many texts.
        bos: the token every text starts with, if the model has one.
        around: in its place, tokens before and after every text, as an encoder's.
        avoid: tokens that are not drawn, such as special ones.

    Time: `seeds` forward passes of 2 · period tokens. Raises `ArgumentError` for sizes too small to mean anything, and
    for a model that does not read one text of token ids; `InputError` for one whose attention cannot be seen.
    """
    quiet: AbstractContextManager[None] = nullcontext()
    if not isinstance(network, nn.Module) and isinstance(getattr(network, "network", None), nn.Module):
        quiet = network.quiet()
        around = around if any(around) or bos is not None else (network.before, network.after)
        avoid, vocabulary = avoid or network.special, vocabulary or network.vocabulary
        network = network.network
    if vocabulary is None:
        vocabulary = _vocabulary(network)
    for name, value, least in (("vocabulary", vocabulary, 2), ("period", period, 2), ("seeds", seeds, 2)):
        if value < least:
            raise ArgumentError(
                message(
                    name, expected=f"an integer >= {least}", got=str(value), remedy="A standard error needs two seeds."
                )
            )
    _check_reads_ids(network)
    before = torch.tensor([*around[0], *([] if bos is None else [bos])], dtype=torch.int64)
    after = torch.tensor(list(around[1]), dtype=torch.int64)
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    avoided = set(avoid)
    allowed = torch.tensor([i for i in range(vocabulary) if i not in avoided])
    measured: dict[Head, dict[str, list[_Score]]] = {}
    with quiet:
        for seed in range(seeds):
            generator = torch.Generator().manual_seed(seed)
            once = allowed[torch.randint(len(allowed), (period,), generator=generator)]
            ids = torch.cat([before, once, once, after])[None].to(device)
            for head, scores in _repeated(network, ids, len(before), period).items():
                for role, score in scores.items():
                    measured.setdefault(head, {}).setdefault(role, []).append(score)
    return ByHead({h: {role: _over_seeds(role, s) for role, s in found.items()} for h, found in measured.items()})


def _vocabulary(network: nn.Module) -> int:
    """How many tokens a Hugging Face model says it knows."""
    config: Any = getattr(network, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    known = getattr(config, "vocab_size", None)
    if not isinstance(known, int):
        raise ArgumentError(
            message(
                "vocabulary",
                expected="how many tokens the model knows",
                got=f"nothing, and {type(network).__name__} does not say",
                remedy="Say it: calibrate(model, 50257).",
            )
        )
    return known


def _check_reads_ids(network: nn.Module) -> None:
    """Random tokens mean nothing to a model of pictures, and half of what an encoder-decoder needs."""
    both = getattr(getattr(network, "config", None), "is_encoder_decoder", False)
    reads = getattr(network, "main_input_name", "input_ids")
    if both or reads != "input_ids":
        raise ArgumentError(
            message(
                "network",
                expected="a model that reads one text of token ids",
                got=f"{type(network).__name__}, " + ("an encoder-decoder" if both else f"which reads {reads}"),
                remedy="Watch it on inputs of your own, and ask roles(trace).",
            )
        )


class _Score(NamedTuple):
    value: float
    null: float


def _repeated(network: nn.Module, ids: Tensor, start: int, period: int) -> dict[Head, dict[str, _Score]]:
    """The scores on one text whose tokens from `start` on are `period` random ones, twice."""
    second = start + period  # position where the second copy begins
    rows = tuple(range(second, second + period))
    wanted = Observables(top_k=0, map=0, received=False, distance=False, distance_histogram=True, rows=rows)
    with torch.no_grad(), attending(network, f"network {type(network).__name__}", observables=wanted) as trace:
        network(ids)
    found: dict[Head, dict[str, _Score]] = {}
    for call in trace.calls:
        seen = call.observation
        if call.crosses:
            continue
        text = text_of(seen, None, 0)
        queries = torch.tensor(rows, device=ids.device)

        def diagonal(back: int, seen: Observation = seen, queries: Tensor = queries, text: Text = text) -> Means:
            at = (queries - back)[None, :, None].expand(seen.rows.shape[1], -1, 1)
            weights = seen.rows[0].gather(-1, at).squeeze(-1)
            n = text.seen[queries]
            return mean_over(weights, 1 / n, n > back)  # a window that ends before it shows nothing

        diagonals = {"induction": diagonal(period - 1), "duplicate-token": diagonal(period)}
        means = {name: diagonals.get(name) or role.of(seen, text, 0) for name, role in MEASURES.items()}
        for n, head in enumerate(call.addresses()):
            found[head] = {role: _Score(float(mean.score[n]), mean.null) for role, mean in means.items()}
    return found


def _over_seeds(role: str, scores: list[_Score]) -> Calibrated:
    numbers = torch.tensor([score.value for score in scores], dtype=torch.float64)
    found = judged(role, float(numbers.mean()), sum(score.null for score in scores) / len(scores))
    error = float(numbers.std() / math.sqrt(len(scores)))
    return Calibrated(found.score, error, found.null, found.threshold, found.labelled)
