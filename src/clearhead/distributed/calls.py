"""`attention` and `observe` of a sequence that lies over the ranks of a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from clearhead.arguments import CallOptions, CheckedCall, checked_call
from clearhead.attention import attend_call
from clearhead.biases import ALiBi
from clearhead.distributed import agree, observing
from clearhead.distributed.layout import PLACEMENTS, Layout, Placement
from clearhead.distributed.moving import to_heads, to_sequence, whole
from clearhead.distributed.observing import ShardedObservation
from clearhead.distributed.parts import part
from clearhead.distributed.refusing import refusing
from clearhead.errors import ArgumentError, ClearheadError, dtype_name, message, shape_of
from clearhead.kernels import select
from clearhead.masks import Mask
from clearhead.measuring import ready, value_norms
from clearhead.observables import Observables

Scheme = Literal["auto", "heads", "gather"]
SCHEMES = ("auto", "heads", "gather")
TIMEOUT = 60.0


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mesh: DeviceMesh,
    *,
    dim: str = "sequence",
    placement: Placement = "contiguous",
    scheme: Scheme = "auto",
    timeout: float = TIMEOUT,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    impl: str = "auto",
) -> Tensor:
    """What `clearhead.attention` gives for a whole sequence, each rank having and getting its own positions of it.

    Arguments:
        query, key, value: this rank's positions of what `clearhead.attention` takes, (…, Hq, t, D) and so on; ranks may have
            different numbers of positions, also none. Or DTensors, sharded along their sequence over `dim`.
        mesh: a DeviceMesh; `dim` names its dimension over which the sequence lies (any name, if it has only one).
        placement: which positions ranks hold: "contiguous", rank after rank, or "zigzag" (see `positions`), which makes causal
            work even with `scheme="gather"`.
        scheme: "heads" trades positions for heads, so that every rank computes whole rows of Hk / N key heads; N must divide
            Hk. "gather" brings all keys and values to every rank, which computes its own queries. "auto": heads where it can.
        timeout: seconds to wait for ranks that do not come.
        mask, bias, scale, softcap, sinks, impl: those of the whole sequence, the same on every rank.

    Returns:
        This rank's positions of the output, in the query's kind.

    Raises:
        ArgumentError: on every rank alike, what does not fit, or what ranks disagree about, with what each said.
        RanksError: ranks that did not come to the same call in time.

    Gradients of query, key and value are those of the sum of all ranks' losses. Those of bias and sinks, which every rank has
    whole, are this rank's part, as those of a replicated layer's weights are; add them up over ranks. Communication and memory
    of both schemes: docs/scale.md.
    """
    options: CallOptions = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
    meeting = _meet("attention", query, key, value, mesh, dim, placement, scheme, timeout, options, impl, None)
    q, k, v = meeting.local
    if meeting.by_heads:
        q, k, v = meeting.traded()
        return meeting.shaped(
            to_sequence(attend_call(meeting.of_heads(q, k, v), meeting.impl)[0], meeting.mesh, meeting.queries)
        )
    k, v = (whole(x, meeting.mesh, meeting.keys) for x in (k, v))
    outputs = [attend_call(call, meeting.impl)[0] for call in meeting.of_runs(q, k, v)]
    return meeting.shaped(torch.cat(outputs, 2))


def observe(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mesh: DeviceMesh,
    *,
    observables: Observables | None = None,
    dim: str = "sequence",
    placement: Placement = "contiguous",
    scheme: Scheme = "auto",
    timeout: float = TIMEOUT,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    impl: str = "auto",
) -> ShardedObservation:
    """What `clearhead.observe` gives for a whole sequence, exactly, each rank getting what is about its own positions.

    Arguments as for `attention` of this module; `observables` speak of the whole sequence, the same on every rank: `token_ids`,
    `key_groups`, `row_weights` are those of all positions, `rows` counts queries of the whole.

    Returns:
        A `ShardedObservation`: per-query quantities of this rank's queries, per-key quantities of this rank's keys, summed over
        the queries of all ranks; maps, group means and chosen rows are whole on every rank. `.whole()` is the observation that
        one process would make. `.output` carries gradients; what was measured does not: a loss that flows back into what one
        process would give gradients raises `ArgumentError`.
    """
    want = Observables() if observables is None else observables
    options: CallOptions = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
    meeting = _meet("observe", query, key, value, mesh, dim, placement, scheme, timeout, options, impl, want)
    q, k, v = meeting.local
    if meeting.by_heads:
        calls = [meeting.of_heads(*meeting.traded())]
        make: Callable[..., ShardedObservation] = observing.by_heads
    else:
        k, v = (whole(x, meeting.mesh, meeting.keys) for x in (k, v))
        calls, make = meeting.of_runs(q, k, v), observing.by_queries
    found = make(calls, meeting.call, want, meeting.impl, meeting.mesh, meeting.queries, meeting.keys)
    output = meeting.shaped(found.values["output"])
    inputs = (*meeting.local, bias if isinstance(bias, Tensor) else None, sinks)
    return dataclasses.replace(found, values={**refusing(found.values, *inputs), "output": output})


@dataclass(frozen=True, eq=False)
class _Meeting:
    """A call that all ranks agreed on."""

    call: CheckedCall  # the whole call, with tensors of its shapes that hold nothing
    local: tuple[Tensor, Tensor, Tensor]  # this rank's, of four dimensions
    mesh: DeviceMesh  # of one dimension
    queries: Layout
    keys: Layout
    by_heads: bool
    impl: str
    like: Tensor  # the caller's query

    def traded(self) -> tuple[Tensor, Tensor, Tensor]:
        """Whole sequences of this rank's heads."""
        q, k, v = self.local
        return (
            to_heads(q, self.mesh, self.queries),
            to_heads(k, self.mesh, self.keys),
            to_heads(v, self.mesh, self.keys),
        )

    def of_heads(self, query: Tensor, key: Tensor, value: Tensor) -> CheckedCall:
        """This rank's heads of the call."""
        first = self.mesh.get_local_rank() * query.shape[1]
        return part(self.call, query, key, value, heads=slice(first, first + query.shape[1]), queries=slice(None))

    def of_runs(self, query: Tensor, key: Tensor, value: Tensor) -> list[CheckedCall]:
        """This rank's queries of the call, a call for every run of neighbours."""
        calls, begin = [], 0
        for start, end in self.queries.spans(self.mesh.get_local_rank()):
            run = query[:, :, begin : begin + end - start]
            begin += end - start
            calls.append(part(self.call, run, key, value, heads=slice(None), queries=slice(start, end)))
        return calls

    def shaped(self, out: Tensor) -> Tensor:
        """An output (B, Hq, t, Dv) in the caller's shape and kind."""
        out = self.call.shaped(out)
        if not isinstance(self.like, DTensor):
            return out
        shape = torch.Size([*out.shape[:-2], self.queries.length, out.shape[-1]])
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            out.contiguous(), self.like.device_mesh, self.like.placements, run_check=False, shape=shape, stride=stride
        )


def _meet(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mesh: DeviceMesh,
    dim: str,
    placement: Placement,
    scheme: Scheme,
    timeout: float,
    options: CallOptions,
    impl: str,
    want: Observables | None,
) -> _Meeting:
    """Check what can be checked here, agree with the other ranks, then check the whole: the same everywhere."""
    line = one_dimension(mesh, dim)
    facts: agree.Facts = {"call": name, **agree.versions()}
    locals_: tuple[Tensor, ...] = ()
    numbers = (0, 0)
    try:
        for what, given, allowed in (("placement", placement, PLACEMENTS), ("scheme", scheme, SCHEMES)):
            if given not in allowed:
                names = " or ".join(f'"{x}"' for x in allowed)
                raise ArgumentError(
                    message(what, expected=names, got=repr(given), remedy="See docs/scale.md for both.")
                )
        locals_ = tuple(_local(what, x, line, dim) for what, x in (("query", query), ("key", key), ("value", value)))
        checked_call(*_three(locals_))  # their own shapes and dtypes
        numbers = (locals_[0].shape[-2], locals_[1].shape[-2])
        facts |= _facts(locals_, placement, scheme, options, impl, want)
    except ClearheadError as error:
        facts[agree.FAULT] = str(error)
    lengths = agree.meet(facts, numbers, line, timeout)
    queries, keys = (Layout(tuple(n[which] for n in lengths), placement) for which in (0, 1))
    for what, layout in (("query", queries), ("key", keys)):
        if not layout.fits:
            raise ArgumentError(
                message(
                    what,
                    expected=f"{list(Layout.even(layout.length, line.size(), 'zigzag').lengths)} positions on the ranks, as "
                    f"zigzag places {layout.length}",
                    got=str(list(layout.lengths)),
                    remedy="Cut sequences with clearhead.distributed.split.",
                )
            )
    return _checked(query, locals_, line, queries, keys, scheme, options, impl, want)


def one_dimension(mesh: DeviceMesh, dim: str) -> DeviceMesh:
    """The dimension of a mesh over which the sequence lies."""
    names = mesh.mesh_dim_names or ()
    if dim in names:
        return mesh if mesh.ndim == 1 else mesh[dim]
    if mesh.ndim == 1:
        return mesh
    raise ArgumentError(
        message(
            "dim",
            expected=f"the name of one of the mesh's dimensions {names}",
            got=repr(dim),
            remedy='Name them: init_device_mesh("cuda", (2, 4), mesh_dim_names=("batch", "sequence")).',
        )
    )


def _local(name: str, x: Tensor, mesh: DeviceMesh, dim: str) -> Tensor:
    """This rank's positions of a tensor."""
    if not isinstance(x, DTensor):
        return x
    names = x.device_mesh.mesh_dim_names or (dim,)
    sharded = {n: p for n, p in zip(names, x.placements, strict=True) if not isinstance(p, Replicate)}
    if sharded != {dim if dim in names else names[0]: Shard(x.ndim - 2)} or x.device_mesh.size() < mesh.size():
        raise ArgumentError(
            message(
                name,
                expected=f"a DTensor with Shard({x.ndim - 2}), its sequence, over {dim!r} and replicated otherwise",
                got=f"{x.placements} over {names}",
                remedy="Redistribute it, or give this rank's positions as a plain tensor.",
            )
        )
    return x.to_local()


def _facts(
    tensors: tuple[Tensor, ...],
    placement: str,
    scheme: str,
    options: CallOptions,
    impl: str,
    want: Observables | None,
) -> agree.Facts:
    facts: agree.Facts = {}
    for name, letters, x in zip(("query", "key", "value"), ("Hq T D", "Hk T D", "Hk T Dv"), tensors, strict=True):
        shape = shape_of(x[..., :0, :], letters if x.ndim > 2 else letters[3:]).replace("T=0", "T")
        grad = ", with gradient" if torch.is_grad_enabled() and x.requires_grad else ""
        facts[name] = f"{dtype_name(x.dtype)} {shape} on {x.device.type}{grad}"
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device):
        facts["autocast"] = str(torch.get_autocast_dtype(device))
    facts |= {name: agree.told(x) for name, x in options.items()}
    facts |= {"placement": placement, "scheme": scheme, "impl": select.choose(impl)}
    return facts | {"observables": agree.told(want)}


def _three(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = tensors
    return query, key, value


def _checked(
    like: Tensor,
    tensors: tuple[Tensor, ...],
    mesh: DeviceMesh,
    queries: Layout,
    keys: Layout,
    scheme: Scheme,
    options: CallOptions,
    impl: str,
    want: Observables | None,
) -> _Meeting:
    """Check the whole call by its shapes, without its tensors, and bring this rank's into four dimensions."""
    shapes = [(*x.shape[:-2], n.length, x.shape[-1]) for x, n in zip(tensors, (queries, keys, keys), strict=True)]
    empty = [x.detach().new_zeros(()).expand(shape) for x, shape in zip(tensors, shapes, strict=True)]
    call = checked_call(*_three(empty), **options)
    name = select.choose(impl, call.problem)
    B, Hq = call.problem.query.shape[:2]
    Hk = call.problem.key.shape[1]
    if want is not None:
        small = dataclasses.replace(want, contributions=False, output_weight=None)
        p = call.problem
        ready(small, p.query, p.key, p.value, call.mask.padded(call.sizes), p.dtype)
        if want.output_weight is not None:
            value_norms(p.value[:, :, :0], want.output_weight, Hq, p.dtype)
    ranks = mesh.size()
    if scheme == "heads" and Hk % ranks:
        raise ArgumentError(
            message(
                "scheme",
                expected=f'"gather", or a number of key heads that the {ranks} ranks of the mesh divide',
                got=f'"heads" with Hk={Hk}',
                remedy='Use scheme="auto", which takes "gather" then.',
            )
        )
    dtype = call.problem.query.dtype
    local = []
    for x in tensors:
        whole_batch = x[None] if x.ndim == 2 else x
        whole_batch = whole_batch.expand(*call.lead, *whole_batch.shape[-3:]) if call.lead else whole_batch
        local.append(whole_batch.reshape(B, *whole_batch.shape[-3:]).to(dtype))
    by_heads = scheme == "heads" or (scheme == "auto" and Hk % ranks == 0)
    return _Meeting(call, _three(local), mesh, queries, keys, by_heads, name, like)
