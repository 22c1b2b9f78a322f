"""Starting a mesh, and cutting a sequence into the parts that its ranks hold."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from clearhead.distributed.calls import TIMEOUT, one_dimension
from clearhead.distributed.layout import Layout, Placement
from clearhead.distributed.moving import whole
from clearhead.errors import ArgumentError, message


def start(*, device: str | None = None, timeout: float = TIMEOUT) -> DeviceMesh:
    """A mesh of one dimension, "sequence", over all processes that torchrun started; of one process without torchrun.

    `device`: "cpu" (gloo) or "cuda" (NCCL); default cuda where there is one. `timeout`: seconds after which every collective
    gives up, so that nobody waits for a rank that is gone. Uses the process group that is there, if there is one.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group("gloo" if device == "cpu" else "nccl", store=store, rank=0, world_size=1)
        else:
            dist.init_process_group("gloo" if device == "cpu" else "nccl", timeout=timedelta(seconds=timeout))
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("sequence",))


def positions(length: int, mesh: DeviceMesh, *, dim: str = "sequence", placement: Placement = "contiguous") -> Tensor:
    """The positions that this rank holds of a sequence of `length`, int64, in the order it holds them.

    "contiguous" cuts as `torch.chunk` and DTensor do, "zigzag" into 2 N pieces, of which rank r gets pieces r and 2 N − 1 − r.
    """
    line = one_dimension(mesh, dim)
    return Layout.even(length, line.size(), placement).positions(line.get_local_rank())


def split(
    x: Tensor, mesh: DeviceMesh, *, dim: str = "sequence", axis: int = -2, placement: Placement = "contiguous"
) -> Tensor:
    """This rank's positions, along `axis`, of a tensor that every rank has whole. Nothing is sent."""
    return x.index_select(axis, positions(x.shape[axis], mesh, dim=dim, placement=placement).to(x.device))


def join(
    x: Tensor,
    mesh: DeviceMesh,
    length: int,
    *,
    dim: str = "sequence",
    axis: int = -2,
    placement: Placement = "contiguous",
) -> Tensor:
    """The whole of `length` positions, on every rank, from what `split` gave each. With gradients; every rank must call it."""
    line = one_dimension(mesh, dim)
    layout = Layout.even(length, line.size(), placement)
    mine = layout.lengths[line.get_local_rank()]
    if x.shape[axis] != mine:
        raise ArgumentError(
            message(
                "x",
                expected=f"this rank's {mine} of {length} positions in dimension {axis}",
                got=str(tuple(x.shape)),
                remedy="Give what split() returned, with the same axis and placement.",
            )
        )
    return whole(x, line, layout, dim=axis)
