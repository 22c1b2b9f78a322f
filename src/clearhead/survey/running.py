"""Running a survey: every rank takes its own shards of the corpus, and whoever is there last adds them up."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import inspect
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import clearhead
from clearhead.errors import InputError, RanksError, message
from clearhead.masks import Intervals
from clearhead.models import Model, OwnModel
from clearhead.survey import results, state
from clearhead.survey.corpus import Bad, Corpus, Document, shards
from clearhead.survey.measure import QUANTITIES, Measured, wanted
from clearhead.survey.packing import Pack, Piece, cut, packs
from clearhead.watch import watch

CONTEXT = 12  # tokens kept on either side of the two of an example
FOLD = 8  # shards folded at a time
SILENT = 600.0  # seconds after which a rank that reports nothing counts as gone


@dataclass(frozen=True)
class Options:
    """What is asked of a survey, besides the model and the corpus; every one of them changes the result."""

    length: int = 1024
    observables: tuple[str, ...] = tuple(name for name in QUANTITIES if name != "sink")
    examples: int = 8
    shard_documents: int = 64
    shard_bytes: int = 1 << 18
    pack: bool = True

    def __post_init__(self) -> None:
        for name, least in (("length", 2), ("examples", 0), ("shard_documents", 1), ("shard_bytes", 1)):
            if getattr(self, name) < least:
                raise InputError(
                    message(
                        name, expected=f"an integer >= {least}", got=str(getattr(self, name)), remedy="Leave it out."
                    )
                )
        unknown = [name for name in self.observables if name not in QUANTITIES]
        if unknown or not self.observables:
            raise InputError(
                message(
                    "observables",
                    expected="some of " + ", ".join(QUANTITIES),
                    got=", ".join(unknown) or "none",
                    remedy="Separate them with commas.",
                )
            )


@dataclass
class Progress:
    """How far a rank is."""

    rank: int
    documents: int = 0
    tokens: int = 0
    done: float = 0.0  # share of the corpus behind it
    since: float | None = None  # the share that was behind it when it began to measure
    shards: int = 0
    finished: bool = False
    begun: float = field(default_factory=time.time)
    now: float = field(default_factory=time.time)

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / max(1e-9, self.now - self.begun)


def survey(
    model: Model,
    corpus: Corpus,
    out: str | Path,
    options: Options | None = None,
    *,
    report: Callable[[list[Progress]], None] | None = None,
) -> results.Survey | None:
    """Survey a model over a corpus into the folder `out`, beginning anew or going on where it was left.

    Under torchrun every rank calls it with the same arguments and a folder that all of them can see; the rank of number 0 adds
    everything up. `report` is told how far all ranks are, in rank 0, about twice a second.

    Returns:
        The finished survey, in rank 0; None in the others.

    Raises:
        InputError: the folder holds a survey of another model, corpus or option, with the difference; a model or a corpus that
            cannot be surveyed; pyarrow, which writes the results, is not installed.
        RanksError: another rank has not been heard of for ten minutes. What is done is kept; the same call goes on.

    Memory does not grow with the corpus: one document, one shard's sums and one sequence's observations are held.
    """
    state.pyarrow("parquet")  # what the results will need is asked for before the work, not after it
    options = options or Options()
    folder = Path(out)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    options = _fitting(model, options)
    manifest = _manifest(model, corpus, options)
    _begin(folder, manifest, rank, ranks)
    if (folder / state.SUMMARY).is_file():
        results.tidy(folder)
        return results.load(folder) if rank == 0 else None
    total = _work(model, corpus, options, folder, rank, ranks, report)
    if rank:
        return None
    _wait(folder, total, options, ranks, report)
    results.write(folder, manifest, QUANTITIES, lambda token: model.pieces([token])[0])
    return results.load(folder)


def _fitting(model: Model, options: Options) -> Options:
    """Options cut to what the model can read."""
    length = min(options.length, model.context)
    around = len(model.before) + len(model.after)
    if length <= around:
        raise InputError(
            message(
                "length",
                expected=f"more than the {around} tokens that stand around every text of {model.name}",
                got=str(length),
                remedy="Use a larger --length.",
            )
        )
    together = options.pack and (isinstance(model, OwnModel) or "position_ids" in _arguments(model))
    return Options(
        length, options.observables, options.examples, options.shard_documents, options.shard_bytes, together
    )


def _arguments(model: Model) -> Any:
    return inspect.signature(model.network.forward).parameters


def _manifest(model: Model, corpus: Corpus, options: Options) -> dict[str, Any]:
    """Everything that the result depends on."""
    return {
        "format": state.FORMAT,
        "clearhead": clearhead.__version__,
        "model": model.name,
        "weights": _weights(model),
        "corpus files": len(corpus.sources),
        "corpus": [source.shown for source in corpus.sources][:100],
        "corpus content": corpus.fingerprint(),
        "field": corpus.field,
        "largest document": corpus.largest,
        "length": options.length,
        "observables": list(options.observables),
        "examples": options.examples,
        "shard documents": options.shard_documents,
        "shard bytes": options.shard_bytes,
        "packed": options.pack,
    }


def _weights(model: Model) -> str:
    """A name for a network's weights."""
    told = hashlib.blake2b(digest_size=16)
    for name, x in model.network.state_dict().items():
        told.update(f"{name} {tuple(x.shape)} {x.dtype}".encode())
        told.update(x.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return told.hexdigest()


def _begin(folder: Path, manifest: dict[str, Any], rank: int, ranks: int) -> None:
    """Rank 0 makes or checks the folder; all ranks agree that they do the same, or none goes on."""
    if ranks == 1:
        state.begin(folder, manifest)
        _forget(folder)
        return
    from clearhead import distributed
    from clearhead.distributed import agree

    mesh = distributed.start(device="cpu", timeout=SILENT)
    facts = {"call": "survey", **agree.versions(), "out": str(folder.resolve())}
    facts |= {name: json.dumps(x, ensure_ascii=False) for name, x in manifest.items()}
    try:
        agree.meet(facts, (), mesh, SILENT)
        if rank == 0:
            with contextlib.suppress(InputError):
                state.begin(folder, manifest)
                _forget(folder)
        agree.meet({"call": "survey"}, (), mesh, SILENT)
        state.begin(folder, manifest)  # what rank 0 was refused, everybody is
    finally:
        torch.distributed.destroy_process_group()


def _forget(folder: Path) -> None:
    """What ranks of an earlier run left word of."""
    for old in (folder / "progress").glob("*.json"):
        old.unlink(missing_ok=True)


def _work(
    model: Model,
    corpus: Corpus,
    options: Options,
    folder: Path,
    rank: int,
    ranks: int,
    report: Callable[[list[Progress]], None] | None,
) -> int:
    """Measure this rank's shards that are not done. Returns how many shards the corpus has."""
    progress = Progress(rank)
    done, told = state.folded(folder), 0.0
    number = -1

    def tell(*, always: bool = False) -> None:
        nonlocal told
        progress.now = time.time()
        if always or progress.now - told > 0.5:
            told = progress.now
            _note(folder, progress)
            if report is not None and rank == 0:
                report(_everybody(folder, ranks))

    tell(always=True)
    for number, documents in enumerate(shards(iter(corpus), most=options.shard_documents, size=options.shard_bytes)):
        mine = number % ranks == rank
        if mine and number >= done and not state.shard_path(folder, number).is_file():
            if progress.since is None:
                progress.since, progress.begun = progress.done, time.time()
            _measure(model, documents, number, options, folder, progress, tell)  # moves on what is done, text by text
            _give_back()
        progress.done = documents[-1].done
        if mine:
            progress.shards += 1
            if rank == 0 and progress.shards % FOLD == 0:
                state.fold(folder, options.examples, FOLD)
    progress.finished, progress.done = True, 1.0
    tell(always=True)
    return number + 1


def _give_back() -> None:
    """Return what is free to the system: sequences of ever other lengths leave holes, and glibc would keep them all."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another system, another C library
        ctypes.CDLL(None).malloc_trim(0)


def _measure(
    model: Model,
    documents: list[Document],
    number: int,
    options: Options,
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
            ids = model.encode_part(text) if (text := document.read()).strip() else []
            if not ids:
                raise Bad("empty")
            pieces += cut(n, ids, model.before, model.after, options.length)
        except (Bad, OSError) as error:
            bad.append({"number": document.number, "name": document.name, "reason": str(error)})
    first, read, begun, good = 0, 0, progress.done, progress.documents
    all_tokens = sum(len(piece.ids) for piece in pieces)
    for pack in packs(pieces, options.length, together=options.pack):
        measured.add(_seen(model, pack, options.observables), pack, range(first, first + len(pack.pieces)))
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


def _seen(model: Model, pack: Pack, names: Sequence[str]) -> clearhead.Trace:
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
    arguments = _arguments(model)
    if "position_ids" in arguments:
        given["position_ids"] = torch.from_numpy(pack.position)[None].to(device)
    for name, value in (("use_cache", False), ("logits_to_keep", 1)):
        if name in arguments:
            given[name] = value
    with torch.no_grad(), watch(network, observables=wanted(names, pack), mask=apart) as trace:
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


def _note(folder: Path, progress: Progress) -> None:
    """Leave word of how far a rank is. Not flushed: it is news, not a result."""
    path = folder / "progress" / f"{progress.rank}.json"
    beside = path.with_suffix(".new")
    with contextlib.suppress(OSError):
        beside.write_text(json.dumps(vars(progress)), encoding="utf-8")
        os.replace(beside, path)


def _everybody(folder: Path, ranks: int) -> list[Progress]:
    """How far every rank is that has left word."""
    return [progress for rank in range(ranks) for progress in _left(folder / "progress" / f"{rank}.json")]


def _left(path: Path) -> Iterator[Progress]:
    with contextlib.suppress(OSError, ValueError, TypeError):
        yield Progress(**json.loads(path.read_text(encoding="utf-8")))


def _wait(
    folder: Path, total: int, options: Options, ranks: int, report: Callable[[list[Progress]], None] | None
) -> None:
    """Until every shard is folded."""
    heard, last = time.time(), ""
    while state.fold(folder, options.examples) < total:
        everybody = _everybody(folder, ranks)
        if report is not None:
            report(everybody)
        news = str([(x.tokens, x.shards) for x in everybody])
        if news != last:
            heard, last = time.time(), news
        if time.time() - heard > SILENT or (ranks == 1):
            behind = [x.rank for x in everybody if not x.finished]
            raise RanksError(
                message(
                    "survey",
                    expected=f"word of every rank within {SILENT:g} s",
                    got=f"none of rank {', '.join(map(str, behind)) or '?'}",
                    remedy="Run the same command again: it goes on from what is done.",
                )
            )
        time.sleep(0.2)
