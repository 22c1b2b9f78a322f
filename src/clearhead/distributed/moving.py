"""Moving tensors between ranks, with gradients: from a sequence over ranks to heads over ranks and back, whole, summed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.functional import pad

from clearhead.distributed.layout import Layout


def to_heads(x: Tensor, mesh: DeviceMesh, layout: Layout) -> Tensor:
    """(B, H, this rank's positions, D) to (B, this rank's heads, all positions in order, D): one all-to-all.

    DTensor's redistribution from one dimension to another is the same on GPUs; on CPUs it gathers everything instead.
    """
    ranks, rank = mesh.size(), mesh.get_local_rank()
    if ranks == 1:
        return x
    B, H, _, D = x.shape
    h = H // ranks
    rows = [h * B * n * D for n in layout.lengths]
    parts = _exchange(x.movedim(1, 0).flatten(), [rows[rank]] * ranks, rows, mesh).split(rows)
    whole = torch.cat([part.view(h, B, n, D) for part, n in zip(parts, layout.lengths, strict=True)], dim=2)
    if not layout.in_order:
        whole = whole.index_select(2, layout.sorting(x.device))
    return whole.movedim(0, 1)


def to_sequence(x: Tensor, mesh: DeviceMesh, layout: Layout) -> Tensor:
    """The way back: (B, this rank's heads, all positions, D) to (B, H, this rank's positions, D)."""
    ranks, rank = mesh.size(), mesh.get_local_rank()
    if ranks == 1:
        return x
    B, h, _, D = x.shape
    places = [layout.positions(r).to(x.device) for r in range(ranks)]
    sent = torch.cat([x.index_select(2, at).movedim(1, 0).flatten() for at in places])
    mine = h * B * layout.lengths[rank] * D
    found = _exchange(sent, [h * B * n * D for n in layout.lengths], [mine] * ranks, mesh)
    return found.view(ranks * h, B, layout.lengths[rank], D).movedim(0, 1)


def _exchange(x: Tensor, give: list[int], get: list[int], mesh: DeviceMesh) -> Tensor:
    """All-to-all of a flat tensor's pieces."""
    send = collectives.all_to_all_single_autograd if x.requires_grad else collectives.all_to_all_single
    found: Tensor = collectives.wait_tensor(send(x.contiguous(), get, give, mesh.get_group()))
    return found


def whole(x: Tensor, mesh: DeviceMesh, layout: Layout, dim: int = 2) -> Tensor:
    """This rank's positions along `dim` to all positions in order: an all-gather, and a reduce-scatter of its gradients."""
    if mesh.size() == 1:
        return x
    dim %= x.ndim
    most = max(layout.lengths)
    even = _filled(x, dim, most)
    if not even.numel():
        return x if layout.length == x.shape[dim] else x.new_zeros(_resized(x, dim, layout.length))
    found = DTensor.from_local(even, mesh, [Shard(dim)], run_check=False).redistribute(mesh, [Replicate()])
    every = found.to_local(grad_placements=[Partial()])
    if layout.in_order and set(layout.lengths) == {most}:
        return every
    return every.index_select(dim, layout.sorting(x.device, most))


def summed_parts(x: Tensor, mesh: DeviceMesh, layout: Layout, dim: int = 2) -> Tensor:
    """Sums over ranks of something about all positions, to this rank's positions: a reduce-scatter."""
    if mesh.size() == 1:
        return x
    dim %= x.ndim
    most, ranks = max(layout.lengths), range(mesh.size())
    parts = [_filled(x.index_select(dim, layout.positions(r).to(x.device)), dim, most) for r in ranks]
    sent = torch.cat(parts, dim)
    if not sent.numel():
        return parts[mesh.get_local_rank()].narrow(dim, 0, layout.lengths[mesh.get_local_rank()])
    mine = DTensor.from_local(sent, mesh, [Partial()], run_check=False).redistribute(mesh, [Shard(dim)]).to_local()
    return mine.narrow(dim, 0, layout.lengths[mesh.get_local_rank()])


def over_ranks(x: Tensor, mesh: DeviceMesh, how: Literal["sum", "max"] = "sum") -> Tensor:
    """Sum or maximum over ranks, on every rank."""
    if mesh.size() == 1 or not x.numel():
        return x
    return DTensor.from_local(x, mesh, [Partial(how)], run_check=False).redistribute(mesh, [Replicate()]).to_local()


def together(tensors: Mapping[str, Tensor], move: Callable[[Tensor], Tensor], dim: int = 2) -> dict[str, Tensor]:
    """Move tensors that have positions (or ranks' heads) in the same dimension, all of one kind in one collective.

    `move` takes (B, H, positions, D); each tensor's other dimensions become part of D. A collective costs by its number more
    than by its bytes when these are few.
    """
    kinds: dict[tuple[torch.dtype, torch.Size], dict[str, Tensor]] = {}
    for name, x in tensors.items():
        kinds.setdefault((x.dtype, x.shape[:2]), {})[name] = x.movedim(dim, 2)
    found = {}
    for alike in kinds.values():
        flat = [x.flatten(3) if x.ndim > 3 else x[..., None] for x in alike.values()]
        parts = move(torch.cat(flat, -1)).split([x.shape[-1] for x in flat], -1)
        for (name, x), part in zip(alike.items(), parts, strict=True):
            found[name] = part.reshape(*part.shape[:3], *x.shape[3:]).movedim(2, dim)
    return {name: found[name] for name in tensors}


def _filled(x: Tensor, dim: int, length: int) -> Tensor:
    """x with zeros behind it along `dim`, up to a length."""
    return pad(x, (*(0, 0) * (x.ndim - 1 - dim), 0, length - x.shape[dim])) if x.shape[dim] < length else x


def _resized(x: Tensor, dim: int, length: int) -> list[int]:
    return [*x.shape[:dim], length, *x.shape[dim + 1 :]]
