"""Watching a model: every attention call made inside `with watch(model)` is observed as it runs."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from clearhead.addresses import Head
from clearhead.attention import observer
from clearhead.distributed.layout import Placement
from clearhead.errors import ArgumentError, NothingSeenWarning, message
from clearhead.masks import Mask
from clearhead.observables import Observables
from clearhead.trace import Trace
from clearhead.watch import arguments
from clearhead.watch.modules import ModulePath
from clearhead.watch.multihead import SlowPaths
from clearhead.watch.ranks import Ranks
from clearhead.watch.recorder import Recorder, Wanted
from clearhead.watch.sdpa import Door
from clearhead.watch.transformers import switched

__all__ = ["watch"]


@contextmanager
def watch(
    model: nn.Module | Any = None,
    *,
    tokenizer: Any = None,
    observables: Observables | None = None,
    layers: Collection[int] | int | None = None,
    heads: Collection[int | str | Head] | None = None,
    keep: str | None = None,
    keep_in: str | Path | None = None,
    mask: Mask | None = None,
    registry: bool = True,
    mesh: DeviceMesh | None = None,
    placement: Placement = "contiguous",
) -> Iterator[Trace]:
    """Observe every attention call made inside the block: PyTorch's, `nn.MultiheadAttention`'s, and this library's own.

    >>> from clearhead.nn import SelfAttention
    >>> layer = SelfAttention(64, 4)
    >>> with watch(layer) as trace:
    ...     _ = layer(torch.randn(1, 10, 64))
    >>> trace.observation(0).entropy.shape
    torch.Size([1, 4, 10])

    Arguments:
        model: whose modules give the calls their names; without it calls have no name. The model is not changed: hooks are
            removed when the block ends, also by an exception. What `clearhead.models.load` gives is watched as its network.
        tokenizer: by which the trace says what each token reads as: one of transformers. A model that
            `clearhead.models.load` gave brings its own.
        observables: what to measure; default `Observables()`, and what the tokens that the model was given add to it.
        layers: numbers of the layers to observe, counted from 0 in the order they are first met; the others run unseen.
            Default all.
        heads: heads to keep observations of, as addresses ("L2H3") or numbers, which mean that head in every layer. All heads
            of a layer are computed together, so this saves memory and not time. Default all.
        keep: "qk" keeps queries and keys, in the model's own dtype, from which `trace.crop`, `tile`, `pattern` and `rollout`
            compute what is asked for afterwards; "qkv" keeps values too, for contributions. Default none.
        keep_in: a folder to keep them in, in place of memory; the files have no names and are gone with the trace.
        mask: who may attend to whom in every call besides what the call says itself, such as `Documents` for texts that were
            packed into one sequence. It changes what the model computes, and must fit all of its calls.
        registry: whether Hugging Face models that choose their attention function from a registry get this library's, under
            which their masks are never formed and their softcaps, sinks and windows are honoured. False leaves them as they
            are: they are seen where they call PyTorch's function.
        mesh: a DeviceMesh over whose ranks the sequence lies, each running the model on its own positions of it, as
            `clearhead.distributed.positions` gives them. Attention is then that of the whole sequence under `mask`, which must
            be given and takes the place of what the calls say, who know of a part alone; every rank's trace has all rows.
        placement: which positions ranks hold, "contiguous" or "zigzag", as in `clearhead.distributed`.

    Yields:
        A `Trace`, filled while the block runs.

    Raises:
        ArgumentError: a mesh without the mask of the whole, or with `keep`; inside another `watch` of the same thread;
            a model that is none, or that `torch.compile` has compiled; a tokenizer, observables, layers, heads, keep or keep_in
            that mean nothing; inside the block, beam search, assisted decoding, and layers whose caches hold different numbers
            of tokens.

    Warns:
        NothingSeenWarning: the model ran and no attention call was seen, with what is known of why; or none of the layers or
            heads that were asked for.

    A model that generates calls itself once a token: the rows of those calls are put on one grid, behind the prompt's,
    whichever cache it uses. A forward that does not go on from a cache reads another text: `trace.runs` has them apart. Beam
    search and assisted decoding are refused.

    Only this thread (and what it awaits) is watched. Outputs and gradients are those of the unwatched model, up to rounding.
    With dropout (training) the output is PyTorch's, to the bit, and weights are observed as they are before dropout. Memory:
    what the observables hold for every call, O(T) a head.
    """
    if observer.get() is not None:
        raise ArgumentError(
            message(
                "watch",
                expected="one watch at a time",
                got="a watch inside another",
                remedy="Leave the outer block first, or read both from one trace.",
            )
        )
    network, name, spell = arguments.read(model, tokenizer)
    where = ModulePath(network)
    wanted = Wanted(
        arguments.observables(observables),
        arguments.layers(layers),
        arguments.addresses(heads),
        keep,
        arguments.folder(keep, keep_in),
    )
    recorder = Recorder(where, wanted, mask, None if mesh is None else _ranks(mesh, placement, mask, keep))
    recorder.trace.spell, recorder.trace.model = spell, name
    token = observer.set(recorder)
    try:
        with ExitStack() as stack:
            stack.enter_context(where)
            stack.enter_context(SlowPaths())
            apart = stack.enter_context(switched(network if registry else None))
            stack.enter_context(Door(recorder.see, recorder.beside, recorder.missed))
            yield recorder.trace
    finally:
        observer.reset(token)
        recorder.release()
    silent = [each for each in apart if not any(name.startswith(each.split(":")[0]) for name, _ in recorder.numbers)]
    if where.passes and (silent or not recorder.numbers):
        warnings.warn(_nothing(recorder, silent), NothingSeenWarning, stacklevel=3)
    elif missing := recorder.not_met():
        warnings.warn(f"watch: {missing}", NothingSeenWarning, stacklevel=3)


def _ranks(mesh: DeviceMesh, placement: Placement, mask: Mask | None, keep: str | None) -> Ranks:
    """What over ranks needs, checked before anything runs."""
    if mask is None:
        raise ArgumentError(
            message(
                "mask",
                expected="the mask of the whole sequence, beside mesh",
                got="None",
                remedy="Say it: watch(model, mesh=mesh, mask=Causal()), or mask=All() where everybody sees everybody.",
            )
        )
    if keep is not None:
        raise ArgumentError(
            message(
                "keep",
                expected="None beside mesh: no rank has all queries and keys",
                got=repr(keep),
                remedy="Ask for what is needed in observables, such as rows=[-1].",
            )
        )
    return Ranks(mesh, placement, mask)


def _nothing(recorder: Recorder, silent: list[str]) -> str:
    """Why a run may have shown nothing."""
    if silent:
        names = ", ".join(each.partition(": ")[2] for each in silent)
        return (
            f"watch: no attention call of {names} was seen. It does not choose its attention function from the registry of "
            "transformers, where watch would be asked, and does not call scaled_dot_product_attention either: it cannot be "
            "watched. Another class of the same architecture may do."
        )
    if recorder.unseen:
        told = "; ".join(f"{reason} ({count} calls)" for reason, count in recorder.unseen.items())
        return f"watch: no attention call was observed. Not observed: {told}."
    return (
        "watch: no attention call was seen. The model has no attention, as state-space models have none, or it computes it by "
        "itself, with matrix products or a kernel of its own, and not through scaled_dot_product_attention, "
        "nn.MultiheadAttention or clearhead.attention: call one of these."
    )
