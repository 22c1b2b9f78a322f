"""What the rungs demand of their inputs, in one place, so that a rung's own file is all derivation."""

from __future__ import annotations

from torch import Tensor, nn

from clearhead.errors import ArgumentError, message, shape_of


def _check_floating(name: str, tensor: Tensor, letters: str) -> None:
    """A floating tensor with exactly the named dimensions, none of the listed lengths zero."""
    shape = "(" + ", ".join(letters.split()) + ")"
    if not isinstance(tensor, Tensor):
        raise ArgumentError(
            message(
                name,
                expected=f"a floating-point tensor {shape}",
                got=f"a {type(tensor).__name__}",
                remedy="Wrap numbers as torch.tensor(...).",
            )
        )
    if tensor.ndim != len(letters.split()):
        raise ArgumentError(
            message(
                name,
                expected=f"{len(letters.split())} dimensions {shape}",
                got=f"{tensor.ndim}, {tuple(tensor.shape)}",
                remedy="Add a batch dimension with tensor[None], or take one sample with tensor[0].",
            )
        )
    if not tensor.is_floating_point():
        raise ArgumentError(
            message(
                name,
                expected="a floating-point dtype",
                got=str(tensor.dtype),
                remedy="Convert with .float(): a mean of integers is no integer.",
            )
        )
    if 0 in tensor.shape:
        raise ArgumentError(
            message(
                name,
                expected="every dimension at least 1",
                got=shape_of(tensor, letters),
                remedy="Give at least one token.",
            )
        )


def check_rows(rows: Tensor) -> None:
    """Rows is (T, C) and floating."""
    _check_floating("rows", rows, "T C")


def check_sequence(x: Tensor) -> None:
    """X is (B, T, C) and floating."""
    _check_floating("x", x, "B T C")


def check_projections(
    x: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear, *, heads: int = 1, kv_heads: int = 1
) -> None:
    """Three linear layers without bias that read x, with keys as wide as queries in each head."""
    C = x.shape[-1]
    for name, layer in (("query", query), ("key", key), ("value", value)):
        if not isinstance(layer, nn.Linear):
            raise ArgumentError(
                message(
                    name,
                    expected="an nn.Linear that projects x",
                    got=type(layer).__name__,
                    remedy=f"Write nn.Linear({C}, head_size, bias=False).",
                )
            )
        if layer.bias is not None:
            raise ArgumentError(
                message(
                    name,
                    expected="a linear layer without bias",
                    got=f"one with a bias of {layer.out_features} numbers",
                    remedy=f"Write nn.Linear({layer.in_features}, {layer.out_features}, bias=False).",
                )
            )
        if layer.in_features != C:
            raise ArgumentError(
                message(
                    name,
                    expected=f"a layer that reads the width of x, C={C}",
                    got=f"one that reads {layer.in_features}",
                    remedy=f"Write nn.Linear({C}, {layer.out_features}, bias=False).",
                )
            )
        if layer.weight.dtype != x.dtype:
            raise ArgumentError(
                message(
                    name,
                    expected=f"weights of the dtype of x, {x.dtype}",
                    got=str(layer.weight.dtype),
                    remedy="Convert one of them with .to(dtype).",
                )
            )
    if query.out_features // heads != key.out_features // kv_heads:
        raise ArgumentError(
            message(
                "key",
                expected=f"the head width of query, D={query.out_features // heads}",
                got=f"D={key.out_features // kv_heads}",
                remedy="A dot product needs two vectors of one length; value alone may have another width.",
            )
        )


def check_head_counts(query: nn.Linear, key: nn.Linear, value: nn.Linear, heads: int, kv_heads: int) -> None:
    """Counts are positive, kv_heads divides heads, and each projection can be cut into its heads."""
    for name, count in (("heads", heads), ("kv_heads", kv_heads)):
        if count < 1:
            raise ArgumentError(message(name, expected="an integer >= 1", got=str(count), remedy="One head is rung 4."))
    if heads % kv_heads:
        raise ArgumentError(
            message(
                "kv_heads",
                expected=f"a divisor of heads={heads}",
                got=str(kv_heads),
                remedy="Every key head serves the same number of query heads.",
            )
        )
    for name, layer, count in (("query", query, heads), ("key", key, kv_heads), ("value", value, kv_heads)):
        if isinstance(layer, nn.Linear) and layer.out_features % count:
            raise ArgumentError(
                message(
                    name,
                    expected=f"a width that {count} heads share equally",
                    got=str(layer.out_features),
                    remedy=f"Make it {count} times the width of a head.",
                )
            )


def check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Q (B, Hq, T, D), k (B, Hk, T, D), v (B, Hk, T, Dv), one dtype, Hq a multiple of Hk."""
    for name, tensor, letters in (("q", q, "B Hq T D"), ("k", k, "B Hk T D"), ("v", v, "B Hk T Dv")):
        _check_floating(name, tensor, letters)
        if tensor.dtype != q.dtype:
            raise ArgumentError(
                message(
                    name,
                    expected=f"the dtype of q, {q.dtype}",
                    got=str(tensor.dtype),
                    remedy="Convert one of them with .to(dtype).",
                )
            )
    B, Hq, T, D = q.shape
    Hk = k.shape[1]
    if k.shape != (B, Hk, T, D):
        raise ArgumentError(
            message(
                "k",
                expected=f"the B, T and D of q, (B={B}, Hk, T={T}, D={D})",
                got=shape_of(k, "B Hk T D"),
                remedy="Queries and keys of the ladder come from one sequence.",
            )
        )
    if v.shape[:3] != (B, Hk, T):
        raise ArgumentError(
            message(
                "v",
                expected=f"the B, Hk and T of k, (B={B}, Hk={Hk}, T={T}, Dv)",
                got=shape_of(v, "B Hk T Dv"),
                remedy="Every key has one value.",
            )
        )
    if Hq % Hk:
        raise ArgumentError(
            message(
                "k",
                expected=f"a number of heads that divides Hq={Hq}",
                got=f"Hk={Hk}",
                remedy="Every key head serves the same number of query heads.",
            )
        )


def check_tile(tile: int) -> None:
    """A tile holds at least one query and one key."""
    if tile < 1:
        raise ArgumentError(
            message("tile", expected="an integer >= 1", got=str(tile), remedy="Any size gives the same result.")
        )
