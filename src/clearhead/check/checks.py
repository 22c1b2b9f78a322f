"""The checks: plain functions, one question each. Every one takes a candidate (or a `Reading` of it) and returns a `Finding`.

>>> from torch.nn.functional import scaled_dot_product_attention as sdpa
>>> shift_invariance(sdpa).outcome
'right'

Each is independent of the others: one may be run alone. What a check cannot ask of a candidate (gradients of a NumPy
function, a mask of one that takes none) is "not tested", and says so. They run in this process, without limits.
"""

from __future__ import annotations

from clearhead.check.checking import CHECKS, Check
from clearhead.check.emptiness import empty_rows
from clearhead.check.figures import (
    extreme_scores,
    gradients,
    half_precision,
    lengths,
    result_kind,
    values,
    weights_returned,
)
from clearhead.check.manners import (
    batch_isolation,
    dropout_place,
    inputs_kept,
    memory_growth,
    permutations,
    repeat_calls,
    shift_invariance,
    strides,
)
from clearhead.check.sight import alignment, causality, chunked, grouped_heads, masks, padding

__all__ = [
    "CHECKS",
    "Check",
    "alignment",
    "batch_isolation",
    "causality",
    "chunked",
    "dropout_place",
    "empty_rows",
    "extreme_scores",
    "gradients",
    "grouped_heads",
    "half_precision",
    "inputs_kept",
    "lengths",
    "masks",
    "memory_growth",
    "padding",
    "permutations",
    "repeat_calls",
    "result_kind",
    "shift_invariance",
    "strides",
    "values",
    "weights_returned",
]
