"""A Hugging Face model's mask, kept as the rule it is made from: for every query an interval of keys, never T×T.

The rule is asked as transformers' own "sdpa" asks it, for some rows at a time and once for all layers that share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from clearhead.errors import ArgumentError, message
from clearhead.kernels.problem import dense_hull
from clearhead.masks import Dense, Intervals, Mask

BLOCK = 1 << 22  # pairs of a mask that are looked at together


def _no_rule(*_: object) -> Tensor:
    raise RuntimeError("transformers always gives a mask its rule")


class LazyMask:
    """A mask as a Hugging Face model makes it, kept as the rule it is made from."""

    ndim = 4  # models take a mask of four dimensions for one that is ready

    def __init__(
        self,
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: int | Tensor = 0,
        kv_offset: int = 0,
        mask_function: Callable[..., Any] = _no_rule,
        attention_mask: Tensor | None = None,
        *,
        use_vmap: bool = False,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> None:
        self.shape = (batch_size, 1, q_length, kv_length)
        self.device = torch.device(device)
        self.q_offset, self.kv_offset = (
            int(q_offset),
            int(kv_offset),
        )  # a static cache counts in a tensor, and counts on
        self.rule, self.use_vmap, self.real = mask_function, use_vmap, attention_mask
        self.both_ways = "allow_is_bidirectional_skip" in options
        self.options = options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ArgumentError(
            message(
                "attention_mask",
                expected="a model that only hands its mask on to attention",
                got=f"one that uses its {name}",
                remedy='Leave the model at "sdpa" and watch it with watch(model, registry=False).',
            )
        )

    @property
    def keys(self) -> int:
        """How many of the keys there are yet: a static cache has room for more, which no query may see."""
        Tq, Tk = self.shape[2:]
        return Tk if self.both_ways else min(Tk, self.q_offset - self.kv_offset + Tq)

    @cached_property
    def spans(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """For every query the first key it may see, the one after the last, and all pairs where that does not say it all.

        (b, Tq), (b, Tq) and (b, 1, Tq, Tk), b being 1 where all samples are alike; padding not yet taken away.
        """
        from transformers import masking_utils as hf

        _, _, Tq, Tk = self.shape
        i = torch.arange(Tq, device=self.device)[None] + (self.q_offset - self.kv_offset)
        if self.rule is hf.causal_mask_function:
            return torch.zeros_like(i), i + 1, None
        if self.rule is hf.bidirectional_mask_function:
            return torch.zeros_like(i), torch.full_like(i, Tk), None
        hulls = [dense_hull(block) for block in self._blocks()]
        first, end = torch.cat([hull[0] for hull in hulls], 1), torch.cat([hull[1] for hull in hulls], 1)
        return first, end, None if all(hull[2] for hull in hulls) else torch.cat(list(self._blocks()), 2)

    def _blocks(self) -> Iterator[Tensor]:
        """The rule asked for some rows at a time, bool (b, 1, rows, Tk), as "sdpa" would ask it."""
        from transformers import masking_utils as hf

        B, _, Tq, Tk = self.shape
        rows = max(1, BLOCK // max(1, B * Tk))
        for row in range(0, Tq, rows):
            block = hf.sdpa_mask(
                B, min(rows, Tq - row), Tk, self.q_offset + row, self.kv_offset, self.rule,
                allow_is_causal_skip=False, use_vmap=self.use_vmap, device=self.device,
            )  # fmt: skip
            if block is None:
                raise RuntimeError("a mask that must not be skipped was skipped")
            yield block[:1] if block.stride(0) == 0 else block

    def eager(self) -> Tensor | None:
        """The mask that "sdpa" would have got: T×T."""
        from transformers import masking_utils as hf

        B, _, Tq, Tk = self.shape
        return hf.sdpa_mask(
            B, Tq, Tk, self.q_offset, self.kv_offset, self.rule, self.real,
            use_vmap=self.use_vmap, device=self.device, **self.options,
        )  # fmt: skip

    @cached_property
    def padding(self) -> Tensor | None:
        """Which queries are padding, if the 2-D mask is about them: bool (B, Tq)."""
        if self.real is None:
            return None
        Tq = self.shape[2]
        real = self.real.bool()[:, self.q_offset : self.q_offset + Tq]
        padding = torch.zeros(self.shape[0], Tq, dtype=torch.bool, device=real.device)
        padding[:, : real.shape[1]] = ~real
        return padding if bool(padding.any()) else None

    def mask(self, padding: Tensor | None) -> Mask:
        """The mask over the `keys` there are; `padding` says which queries not to count."""
        lo, hi, pairs = self.spans
        hidden = None
        if self.real is not None:
            real = self.real.bool()[:, self.kv_offset : self.kv_offset + self.keys]
            real = pad(real, (0, self.keys - real.shape[1]))
            first, end, whole = dense_hull(real[:, None, None])
            lo, hi = torch.maximum(lo, first), torch.minimum(hi, end)
            hidden = None if whole else ~real
        spans = Intervals(lo, hi.clamp(max=self.keys), padding, hidden)
        return spans if pairs is None else spans & Dense(pairs[..., : self.keys])
