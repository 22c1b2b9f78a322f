"""Running a survey: every rank takes its own shards of the corpus, and whoever is there last adds them up."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import clearhead
from clearhead.errors import InputError, RanksError, message
from clearhead.models import Model, OwnModel
from clearhead.survey import results, state
from clearhead.survey.arrow import pyarrow
from clearhead.survey.corpus import Corpus, shards
from clearhead.survey.measure import QUANTITIES
from clearhead.survey.options import Fitted, Options
from clearhead.survey.progress import Progress, everybody, forget, note
from clearhead.survey.shard import arguments, measure_shard

FOLD = 8  # shards folded at a time
SILENT = 600.0  # seconds after which a rank that reports nothing counts as gone


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
            cannot be surveyed, or of which nothing could be read (then nothing stays in the folder); pyarrow, which writes the
            results, is not installed.
        RanksError: another rank has not been heard of for ten minutes. What is done is kept; the same call goes on.

    Memory does not grow with the corpus: one document, one shard's sums and one sequence's observations are held.
    """
    pyarrow("parquet")  # what the results will need is asked for before the work, not after it
    folder = Path(out)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    fitted = _fitting(model, options or Options())
    manifest = _manifest(model, corpus, fitted)
    _begin(folder, manifest, rank, ranks)
    if (folder / state.SUMMARY).is_file():
        results.tidy(folder)
        return results.load(folder) if rank == 0 else None
    try:
        total = _work(model, corpus, fitted, folder, rank, ranks, report)
    except InputError:
        if not state.anything(folder):  # a model that cannot be surveyed is found out with its first text
            results.forget(folder)
        raise
    if rank:
        return None
    _wait(folder, total, fitted, ranks, report)
    if not (notes := state.notes(folder))["documents"]:
        results.forget(folder)
        raise InputError(_nothing(notes["bad"]))
    results.write(folder, manifest, QUANTITIES, lambda token: model.pieces([token])[0])
    return results.load(folder)


def _fitting(model: Model, options: Options) -> Fitted:
    """Options for this model: a length where none was asked for, and packing where the model allows it."""
    length = min(Fitted.length, model.context) if options.length is None else options.length
    if length > model.context:
        raise InputError(
            message(
                "length",
                expected=f"at most {model.context}, the context of {model.name} in tokens",
                got=str(length),
                remedy="Leave it out, or survey a model that reads more: longer documents are read in pieces.",
            )
        )
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
    together = options.pack and (isinstance(model, OwnModel) or "position_ids" in arguments(model))
    return Fitted(**vars(options) | {"length": length, "pack": together})


def _nothing(bad: list[dict[str, Any]]) -> str:
    """Why there is nothing to survey."""
    if not bad:
        return "corpus: expected texts, got files that hold none; name others"
    counts, plural = results.reasons(bad), "" if len(bad) == 1 else "s"
    others = ": " + ", ".join(f"{count:,} {reason}" for reason, count in counts.items()) if len(counts) > 1 else ""
    first = f"{bad[0]['name']}: {bad[0]['reason']}"
    return f"corpus: nothing could be read of {len(bad):,} document{plural}{others}; {first}"


def _manifest(model: Model, corpus: Corpus, options: Fitted) -> dict[str, Any]:
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
        forget(folder)
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
                forget(folder)
        agree.meet({"call": "survey"}, (), mesh, SILENT)
        state.begin(folder, manifest)  # what rank 0 was refused, everybody is
    finally:
        torch.distributed.destroy_process_group()


def _work(
    model: Model,
    corpus: Corpus,
    options: Fitted,
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
            note(folder, progress)
            if report is not None and rank == 0:
                report(everybody(folder, ranks))

    tell(always=True)
    for number, documents in enumerate(shards(iter(corpus), most=options.shard_documents, size=options.shard_bytes)):
        mine = number % ranks == rank
        if mine and number >= done and not state.shard_path(folder, number).is_file():
            if progress.since is None:
                progress.since, progress.begun = progress.done, time.time()
            # It moves on what is done, text by text.
            measure_shard(model, documents, number, options, folder, progress, tell)
            _give_back()
        progress.done = documents[-1].done
        if mine:
            progress.shards += 1
            if rank == 0 and progress.shards % FOLD == 0:
                state.fold(folder, options.examples, FOLD)
    progress.finished, progress.done = True, 1.0
    tell(always=True)
    return number + 1


def _wait(
    folder: Path, total: int, options: Fitted, ranks: int, report: Callable[[list[Progress]], None] | None
) -> None:
    """Until every shard is folded."""
    heard, last = time.time(), ""
    while state.fold(folder, options.examples) < total:
        ranks_now = everybody(folder, ranks)
        if report is not None:
            report(ranks_now)
        news = str([(x.tokens, x.shards) for x in ranks_now])
        if news != last:
            heard, last = time.time(), news
        if time.time() - heard > SILENT or (ranks == 1):
            behind = [x.rank for x in ranks_now if not x.finished]
            raise RanksError(
                message(
                    "survey",
                    expected=f"word of every rank within {SILENT:g} s",
                    got=f"none of rank {', '.join(map(str, behind)) or '?'}",
                    remedy="Run the same command again: it goes on from what is done.",
                )
            )
        time.sleep(0.2)


def _give_back() -> None:
    """Return what is free to the system: sequences of ever other lengths leave holes, and glibc would keep them all."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another system, another C library
        ctypes.CDLL(None).malloc_trim(0)
