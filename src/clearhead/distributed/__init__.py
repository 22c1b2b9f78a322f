"""A sequence over the ranks of a mesh: `attention` and `observe` as one process would compute them, exactly.

    from clearhead import distributed

    mesh = distributed.start()                                 # under torchrun; or any DeviceMesh
    mine = distributed.positions(length, mesh)                 # this rank's positions, for rotary embeddings too
    out = distributed.attention(q, k, v, mesh, mask=Causal())  # q, k, v: (B, H, len(mine), D)
    seen = distributed.observe(q, k, v, mesh, mask=Causal())   # of this rank's queries; seen.whole() of all

Masks, biases, sinks and observables speak of the whole sequence; nothing of them is dropped or approximated. Ranks that come
with other shapes, options or versions all raise one error. What is moved, and when it pays: docs/scale.md.
"""

from clearhead.distributed.calls import attention, observe
from clearhead.distributed.observing import ShardedObservation
from clearhead.distributed.splitting import join, positions, split, start

__all__ = ["ShardedObservation", "attention", "join", "observe", "positions", "split", "start"]
