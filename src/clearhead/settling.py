"""What stays after a call, in memory of its own.

Small results that outlive a call, allocated between large ones that do not, keep the allocator from giving the large ones'
room back: a trace of 85 MB then costs 270. Pages asked for from the system directly do not stand in the way.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes
LEAST = 1 << 16  # bytes in all; fewer are not worth pages of their own


def settled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, contiguous, those on CPUs copied side by side into pages that are given back when none is left.

    Shapes and dtypes stay. Time and memory: one copy.
    """
    here = {name: x for name, x in tensors.items() if x.device.type == "cpu" and x.numel()}
    sizes = {name: -(-x.numel() * x.element_size() // ALIGNMENT) * ALIGNMENT for name, x in here.items()}
    if sum(sizes.values()) < LEAST:
        return dict(tensors)
    pages = torch.frombuffer(mmap.mmap(-1, sum(sizes.values())), dtype=torch.uint8)
    found, at = dict(tensors), 0
    for name, x in here.items():
        room = pages[at : at + x.numel() * x.element_size()].view(x.dtype).view(x.shape)
        found[name] = room.copy_(x.detach())
        at += sizes[name]
    return found
