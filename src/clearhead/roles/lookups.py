"""Heads that look up what is being written: where in the text they found it, and how often in a needle."""

from __future__ import annotations

from typing import NamedTuple

import torch

from clearhead.addresses import ByHead
from clearhead.errors import ArgumentError, message
from clearhead.roles.scores import judged, visible_keys
from clearhead.trace import Trace, check_sample


def looked_up(trace: Trace, written: range, *, batch: int = 0) -> ByHead[list[int]]:
    """Where each head looked up the tokens that were written: for every one of them a key's position, or −1.

    The query that writes a token stands one before it. A head looks the token up when the key which that query attends to most
    is an earlier copy of the very token: it stands in front of the model just as it is about to be written. Nothing is said
    of heads that help in other ways.

    Arguments:
        trace: of the whole text, prompt and what was written.
        written: positions of the tokens that the model wrote; each was written by the query one before it.
        batch: which sample of a batch.

    Raises `ArgumentError` where token ids are not known, or nothing was written. Of several texts the first is taken.
    """
    check_sample(trace, batch)
    found: ByHead[list[int]] = ByHead()
    for call in trace.calls:
        ids = call.key_ids
        if call.crosses or call.run != trace.calls[0].run:
            continue
        if ids is None or not written or written.start < 1 or written.stop > ids.shape[1]:
            raise ArgumentError(
                message(
                    "written",
                    expected="positions of tokens that were written, in a text whose token ids are known",
                    got=f"{written} of a text of {'unknown' if ids is None else ids.shape[1]} tokens",
                    remedy="Watch a model that is given token ids, and name the tokens behind the prompt.",
                )
            )
        text = ids[batch]
        at = torch.arange(written.start, written.stop)
        keys = call.observation.top_keys[batch, :, at - 1 - call.observation.offset, 0].cpu()  # (Hq, written)
        copies = torch.where((keys >= 0) & (text[keys.clamp(min=0)] == text[at]), keys, -1)
        found.update(zip(call.addresses(), copies.tolist(), strict=True))
    return found


class Retrieval(NamedTuple):
    """How often a head's strongest key was what was written, inside the needle; and how often uniform attention's would be."""

    score: float
    null: float
    labelled: bool


def retrieval(trace: Trace, needle: range, written: range, *, batch: int = 0) -> ByHead[Retrieval]:
    """Which heads copy: over the tokens that were written, how often the key that the writing query attends to most lies in
    the needle and is the token it wrote (Wu et al. 2024, arXiv 2404.15574).

    Arguments:
        trace: of the whole text, prompt and what was written.
        needle: positions of what was to be found.
        written: positions of the tokens that the model wrote; each was written by the query one before it.
        batch: which sample of a batch.

    The null is the share of the keys a query sees that would count; a head is labelled by the rule of the other roles.
    Raises `ArgumentError` as `looked_up` does.
    """
    places = looked_up(trace, written, batch=batch)
    found: ByHead[Retrieval] = ByHead()
    for call in trace.calls:
        ids = call.key_ids
        if ids is None or call.crosses or call.run != trace.calls[0].run:
            continue
        writers = torch.arange(written.start, written.stop) - 1 - call.observation.offset
        seen = visible_keys(call.observation, batch).cpu()[writers]
        text = ids[batch]
        inside = text[needle.start : needle.stop]
        null = float(((inside[None] == text[written.start : written.stop][:, None]).sum(-1) / seen).mean())
        for head in call.addresses():
            score = sum(key in needle for key in places[head]) / len(written)
            found[head] = Retrieval(score, null, judged("retrieval", score, null).labelled)
    return found
