"""`SelfAttention`, the layer: projections, grouped heads, rotary positions, a window, and a key/value cache."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention import attention
from clearhead.errors import ArgumentError, dtype_name, message, shape_of
from clearhead.masks import Causal, Dense, Mask, Window

__all__ = ["KVCache", "SelfAttention", "rotate"]


class KVCache:
    """Keys and values of the tokens a layer has already seen, one cache a layer and sequence (or batch of them).

    >>> cache = KVCache()
    >>> layer = SelfAttention(32, 4)
    >>> x = torch.randn(1, 10, 32)
    >>> whole = layer(x)
    >>> parts = torch.cat([layer(x[:, :7], cache=cache), layer(x[:, 7:], cache=cache)], dim=1)
    >>> torch.allclose(whole, parts, atol=1e-5), cache.length
    (True, 10)
    """

    def __init__(self) -> None:
        self.key: Tensor | None = None  # (B, Hk, length, D), rotated already
        self.value: Tensor | None = None

    @property
    def length(self) -> int:
        """How many tokens are held."""
        return 0 if self.key is None else self.key.shape[2]

    def append(
        self, key: Float[Tensor, "b hk t d"], value: Float[Tensor, "b hk t d"]
    ) -> tuple[Float[Tensor, "b hk total d"], Float[Tensor, "b hk total d"]]:
        """Add the keys and values of new tokens; returns all of them. Copies what is held: O(length) a call.

        Raises `ArgumentError` for a batch, heads or width other than those of what is held.
        """
        if self.key is None or self.value is None:
            self.key, self.value = key, value
        else:
            held, new = (shape_of(t[:, :, :0], "B Hk T D") for t in (self.key, key))
            if held != new:
                raise ArgumentError(
                    message(
                        "cache",
                        expected=f"keys like those held, {shape_of(self.key, 'B Hk T D')}, but for T",
                        got=shape_of(key, "B Hk T D"),
                        remedy="Each layer and each batch of sequences needs a cache of its own.",
                    )
                )
            self.key = torch.cat([self.key, key], dim=2)
            self.value = torch.cat([self.value, value], dim=2)
        return self.key, self.value

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens; `crop(0)` starts anew. Raises `ArgumentError` beyond what is held."""
        if not 0 <= length <= self.length:
            raise ArgumentError(
                message(
                    "length",
                    expected=f"0 to {self.length}, the tokens held",
                    got=str(length),
                    remedy="A cache can only forget; append makes it longer.",
                )
            )
        if self.key is not None and self.value is not None:
            self.key, self.value = (None, None) if length == 0 else (self.key[:, :, :length], self.value[:, :, :length])


def rotate(x: Float[Tensor, "b h t d"], positions: Int[Tensor, " t"], base: float) -> Float[Tensor, "b h t d"]:
    """Rotary positions (Su et al. 2021), token t at positions[t].

    The layout is half-split, as in Llama: dimension c is paired with c + D/2, and the pair turns by position · base^{−2c/D}.
    Products of rotated queries and keys depend on the distance between them alone.
    """
    half = x.shape[-1] // 2
    # Turn in float32 at least and round once: with sines rounded to 16 bits, products would depend on more than distance.
    exact = torch.promote_types(x.dtype, torch.float32)
    rates = base ** (-torch.arange(half, device=x.device, dtype=exact) / half)  # (D/2)
    angles = positions.to(x.device, exact)[:, None] * rates  # (t, D/2)
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class SelfAttention(nn.Module):
    """Multi-head self-attention over `clearhead.attention`: (B, T, embed) in, (B, T, embed) out.

    >>> SelfAttention(64, 8, kv_heads=2, rope=10000.0)(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])

    Arguments:
        embed: width of the input and output.
        heads: query heads.
        kv_heads: key and value heads, a divisor of `heads`; default `heads`.
        head_width: width of one head; default embed / heads.
        rope: base of rotary positions (see `rotate`), e.g. 10000.0; default none.
        window: how many keys each query may see, itself included; default all of the past.
        causal: whether a query sees only the past and itself. A window is causal; causal=False takes neither it nor a cache.
        bias: whether the four projections have a bias.

    The state dict holds `query`, `key`, `value` and `output`, each a `torch.nn.Linear`.

    Raises `ArgumentError` for sizes that do not fit each other.
    """

    def __init__(
        self,
        embed: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_width: int | None = None,
        rope: float | None = None,
        window: int | None = None,
        causal: bool = True,
        bias: bool = False,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        for name, size in (("embed", embed), ("heads", heads), ("kv_heads", kv_heads), ("head_width", head_width)):
            if size is not None and size < 1:
                raise ArgumentError(
                    message(name, expected="an integer >= 1", got=str(size), remedy="A layer needs all its sizes.")
                )
        if heads % kv_heads:
            raise ArgumentError(
                message(
                    "kv_heads",
                    expected=f"a divisor of heads={heads}",
                    got=str(kv_heads),
                    remedy="Each key head is read by the same number of query heads.",
                )
            )
        if head_width is None:
            if embed % heads:
                raise ArgumentError(
                    message(
                        "embed",
                        expected=f"a multiple of heads={heads}",
                        got=str(embed),
                        remedy="Change one of them, or give head_width.",
                    )
                )
            head_width = embed // heads
        if rope is not None and head_width % 2:
            raise ArgumentError(
                message(
                    "head_width",
                    expected="an even number with rope, which turns pairs of dimensions",
                    got=str(head_width),
                    remedy="Use an even head width, or rope=None.",
                )
            )
        if rope is not None and not (math.isfinite(rope) and rope > 0):
            raise ArgumentError(
                message("rope", expected="a finite base > 0", got=repr(rope), remedy="Use 10000.0, or rope=None.")
            )
        if window is not None and not causal:
            raise ArgumentError(
                message(
                    "window",
                    expected="None with causal=False",
                    got=str(window),
                    remedy="A window both ways is mask=Window(keys, right=n), given to forward.",
                )
            )
        self.embed, self.heads, self.kv_heads, self.head_width = embed, heads, kv_heads, head_width
        self.rope = rope
        self.mask: Mask | None = Window(window) if window is not None else Causal() if causal else None
        self.query = nn.Linear(embed, heads * head_width, bias=bias)
        self.key = nn.Linear(embed, kv_heads * head_width, bias=bias)
        self.value = nn.Linear(embed, kv_heads * head_width, bias=bias)
        self.output = nn.Linear(heads * head_width, embed, bias=bias)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Attend within x, and to what `cache` holds.

        Arguments:
            x: (B, T, embed).
            mask: who may attend to whom besides the layer's own mask, over all Tk keys (cached and new): a mask object
                such as `Padding`, or a bool tensor that broadcasts to (B, Hq, T, Tk), True = may attend.
            cache: keys and values of the tokens before x; those of x are added to it.
            positions: (T,), integers, where the tokens of x stand in their text, for `rope` to turn by; default behind those
                in the cache, or from 0 on. A rank that holds a part of a text gives those of its part.

        Returns:
            (B, T, embed).

        Raises:
            ArgumentError: x has another width, or cache, mask or positions do not fit it.
        """
        if x.ndim != 3 or x.shape[-1] != self.embed:
            raise ArgumentError(
                message(
                    "x",
                    expected=f"(B, T, embed={self.embed})",
                    got=str(tuple(x.shape)),
                    remedy="The last dimension is the width the layer was made for.",
                )
            )
        if cache is not None and self.mask is None:
            raise ArgumentError(
                message(
                    "cache",
                    expected="None with causal=False",
                    got=f"a cache of {cache.length} tokens",
                    remedy="Tokens that see the future cannot be computed before it: give the whole text at once.",
                )
            )
        if positions is not None and (positions.shape != x.shape[1:2] or positions.is_floating_point()):
            raise ArgumentError(
                message(
                    "positions",
                    expected=f"integers, (T={x.shape[1]},), one a token of x",
                    got=f"{dtype_name(positions.dtype)} {tuple(positions.shape)}",
                    remedy="Every text of a batch has its tokens at the same positions.",
                )
            )
        q = self._split(self.query(x))  # (B, Hq, T, D)
        k = self._split(self.key(x))  # (B, Hk, T, D)
        v = self._split(self.value(x))  # (B, Hk, T, D)
        if self.rope is not None:
            if positions is None:
                start = 0 if cache is None else cache.length
                positions = torch.arange(start, start + x.shape[1], device=x.device)  # (T)
            q, k = rotate(q, positions, self.rope), rotate(k, positions, self.rope)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, Hk, Tk, D)
        if mask is not None and self.mask is not None:
            mask = self.mask & (Dense(mask) if isinstance(mask, Tensor) else mask)
        elif mask is None:
            mask = self.mask
        out = attention(q, k, v, mask=mask)  # (B, Hq, T, D)
        mixed: Tensor = self.output(out.transpose(1, 2).flatten(2))  # (B, T, embed)
        return mixed

    def _split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.head_width))
        return heads.transpose(1, 2)

    def extra_repr(self) -> str:
        """What `print(model)` shows beside the projections."""
        return (
            f"heads={self.heads}, kv_heads={self.kv_heads}, head_width={self.head_width}, rope={self.rope}, {self.mask}"
        )
