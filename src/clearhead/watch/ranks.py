"""A watched model whose sequence lies over ranks: its attention is that of the whole sequence, and every rank sees it all."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from clearhead import distributed
from clearhead.attention import Prepared
from clearhead.distributed.calls import one_dimension
from clearhead.distributed.layout import Placement
from clearhead.distributed.moving import over_ranks
from clearhead.errors import ArgumentError, message
from clearhead.masks import Mask
from clearhead.observables import Observables, Observation


@dataclass(frozen=True)
class Ranks:
    """Where the positions are, and who may attend to whom in the whole: what a call on a part of them cannot say."""

    mesh: DeviceMesh
    placement: Placement
    mask: Mask

    def attend(self, call: Prepared) -> Tensor:
        """This rank's positions of the output, in the caller's shape."""
        return call.call.shaped(distributed.attention(*self._tensors(call), **self._options(call)))

    def observe(self, call: Prepared, observables: Observables) -> tuple[Tensor, Observation]:
        """The same, and what was measured of the whole sequence."""
        seen = distributed.observe(*self._tensors(call), **self._options(call), observables=observables)
        measured = {
            name: x.detach() for name, x in seen.values.items() if name != "output"
        }  # the output stays in parts
        return call.call.shaped(seen.output), dataclasses.replace(seen, values=measured).whole()

    def tokens(self, ids: Tensor) -> Tensor:
        """Token ids of the whole from this rank's, int64 (B, T)."""
        line = one_dimension(self.mesh, "sequence")
        length = int(over_ranks(torch.tensor([ids.shape[1]], device=ids.device), line))
        return distributed.join(ids, self.mesh, length, axis=-1, placement=self.placement)

    def _tensors(self, call: Prepared) -> tuple[Tensor, Tensor, Tensor]:
        p = call.problem
        if p.query.shape[2] != p.key.shape[2]:
            raise ArgumentError(
                message(
                    "mesh",
                    expected="calls in which a rank's queries and keys are the same positions",
                    got=f"one of {p.query.shape[2]} queries and {p.key.shape[2]} keys",
                    remedy="Run without a cache, and watch cross-attention in one process.",
                )
            )
        if p.bias is not None or p.slopes is not None:
            raise ArgumentError(
                message(
                    "mesh",
                    expected="a model that says where tokens stand by rotary or learned positions",
                    got="a bias made for this rank's part of the sequence",
                    remedy="Call clearhead.distributed.observe with the bias of the whole where the model calls attention.",
                )
            )
        return p.query, p.key, p.value

    def _options(self, call: Prepared) -> dict[str, Any]:
        p = call.problem
        return {
            "mesh": self.mesh,
            "placement": self.placement,
            "mask": self.mask,
            "scale": p.scale,
            "softcap": p.softcap,
            "sinks": p.sinks,
            "impl": call.impl,
        }
