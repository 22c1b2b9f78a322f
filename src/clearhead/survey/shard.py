"""One shard of a corpus, from its documents to its file: read, watched pack by pack, added up, its examples written out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clearhead.masks import Intervals
from clearhead.models import Model
from clearhead.survey import state
from clearhead.survey.corpus import Bad, Document
from clearhead.survey.measure import Measured, wanted
from clearhead.survey.options import Fitted
from clearhead.survey.packing import Pack, Piece, cut, packs
from clearhead.survey.progress import Progress
from clearhead.trace import Trace
from clearhead.watch.attending import attending

CONTEXT = 12  # tokens kept on either side of the two of an example


def arguments(model: Model) -> Mapping[str, inspect.Parameter]:
    """What the model's network takes."""
    return inspect.signature(model.network.forward).parameters


def measure_shard(
    model: Model,
    documents: list[Document],
    number: int,
    options: Fitted,
    folder: Path,
    progress: Progress,
    tell: Callable[[], None],
) -> None:
    """One shard, from its documents to its file."""
    measured = Measured(options.observables, len(documents), options.length)
    bad: list[dict[str, Any]] = []
    pieces: list[Piece] = []
    for n, document in enumerate(documents):
        try:
            text = document.read()
            if not text.strip():
                raise Bad("empty")
            ids = model.encode_part(text)
            if not ids:
                raise Bad("no tokens: the model's tokenizer makes none of it")
            pieces += cut(n, ids, model.before, model.after, options.length)
        except (Bad, OSError) as error:
            bad.append({"number": document.number, "name": document.name, "reason": str(error)})
    first, read, begun, good = 0, 0, progress.done, progress.documents
    all_tokens = sum(len(piece.ids) for piece in pieces)
    for pack in packs(pieces, options.length, together=options.pack):
        measured.add(seen(model, pack, options.observables), pack, range(first, first + len(pack.pieces)))
        first += len(pack.pieces)
        read += len(pack.ids)
        progress.tokens += len(pack.ids)
        progress.documents = good + len({piece.document for piece in pieces[:first]})
        progress.done = begun + (documents[-1].done - begun) * read / all_tokens
        tell()
    notes = {
        "documents": len(documents) - len(bad),
        "bad": bad,
        "examples": _examples(model, measured, pieces, documents, options.examples),
    }
    state.save(state.shard_path(folder, number), measured.arrays(), notes)


def seen(model: Model, pack: Pack, names: Sequence[str]) -> Trace:
    """What the model's heads do on one pack."""
    starts = pack.starts
    lo, hi = (np.repeat(x, np.diff(starts)) for x in (starts[:-1], starts[1:]))
    apart = None
    if len(pack.pieces) > 1:
        apart = Intervals(torch.from_numpy(lo)[None], torch.from_numpy(hi)[None])
    network = model.network
    device = next(network.parameters()).device
    ids = torch.from_numpy(pack.ids)[None].to(device)
    given: dict[str, Any] = {}
    taken = arguments(model)
    if "position_ids" in taken:
        given["position_ids"] = torch.from_numpy(pack.position)[None].to(device)
    for name, value in (("use_cache", False), ("logits_to_keep", 1)):
        if name in taken:
            given[name] = value
    options = {"observables": wanted(names, pack), "mask": apart}
    with torch.no_grad(), model.quiet(), attending(network, f"model {model.name}", **options) as trace:
        network(ids, **given)
    return trace


def _examples(
    model: Model, measured: Measured, pieces: list[Piece], documents: list[Document], kept: int
) -> list[list[dict[str, Any]]]:
    """The strongest looks of every head, with their text; none twice, as documents that begin alike would have it."""
    if not measured.heads:
        return []
    shown: dict[int, list[str]] = {}

    def around(piece: int, at: int) -> tuple[str, str, str]:
        if piece not in shown:
            shown[piece] = model.pieces(list(pieces[piece].ids))
        every = shown[piece]
        return "".join(every[max(0, at - CONTEXT) : at]), every[at], "".join(every[at + 1 : at + 1 + CONTEXT])

    found = []
    for n, best in enumerate(measured.strongest()):
        of_head: list[dict[str, Any]] = []
        known: set[Any] = set()
        for d in best:
            if len(of_head) == kept:
                break
            piece = int(measured.best_piece[d, n])
            query, key = int(measured.best_query[d, n]), int(measured.best_key[d, n])
            first = pieces[piece].first - len(model.before)
            around_both = around(piece, query), around(piece, key)
            if around_both in known:
                continue
            known.add(around_both)
            of_head.append(
                {
                    "document": documents[d].number,
                    "name": documents[d].name,
                    "weight": float(measured.best[d, n]),
                    "query": first + query,
                    "key": first + key,
                    "query_context": around_both[0],
                    "key_context": around_both[1],
                }
            )
        found.append(of_head)
    return found
