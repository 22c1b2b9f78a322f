"""Every refusal names the argument, what was expected with the caller's numbers, what came, and a remedy."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead import ladder
from clearhead.errors import ArgumentError

X = torch.zeros(2, 5, 4)


def layer(width: int, C: int = 4, **kind: Any) -> nn.Linear:
    return nn.Linear(C, width, **{"bias": False, **kind})


def qkv(Hq: int = 4, Hk: int = 2, T: int = 5, D: int = 3, Dv: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros(2, Hq, T, D), torch.zeros(2, Hk, T, D), torch.zeros(2, Hk, T, Dv)


Q, K, V = qkv()
READ_X = (
    ladder.mean_by_loop,
    ladder.mean_by_matmul,
    ladder.mean_by_softmax,
    ladder.prefix_mean,
    lambda x: ladder.single_head(x, layer(3), layer(3), layer(3)),
    lambda x: ladder.multi_head(x, layer(3), layer(3), layer(3)),
)
READ_QKV = (ladder.online_softmax, ladder.with_cache, ladder.library_kernel)


@pytest.mark.parametrize("rung", READ_X)
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(5, 4), "x: expected 3 dimensions (B, T, C), got 2, (5, 4). Add a batch dimension"),
        (torch.zeros(2, 5, 4).int(), "x: expected a floating-point dtype, got torch.int32. Convert with .float()"),
        (torch.zeros(2, 0, 4), "x: expected every dimension at least 1, got (B=2, T=0, C=4). Give at least one"),
    ],
)
def test_x_that_is_no_sequence_is_refused(rung: Callable[[Tensor], Any], x: Tensor, words: str) -> None:
    with pytest.raises(ArgumentError, match="^" + re.escape(words)):
        rung(x)


def test_rows_that_are_no_rows_are_refused() -> None:
    with pytest.raises(ArgumentError, match=re.escape("rows: expected 2 dimensions (T, C), got 3, (2, 5, 4)")):
        ladder.three_by_three(X)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (
            (layer(3, bias=True), layer(3), layer(3)),
            "query: expected a linear layer without bias, got one with a bias of 3",
        ),
        (
            (layer(3), layer(3, C=7), layer(3)),
            "key: expected a layer that reads the width of x, C=4, got one that reads 7",
        ),
        ((layer(3), layer(2), layer(3)), "key: expected the head width of query, D=3, got D=2"),
        (
            (layer(3), layer(3), layer(3, dtype=torch.float64)),
            "value: expected weights of the dtype of x, torch.float32, got torch.float64",
        ),
    ],
)
@pytest.mark.parametrize("rung", [ladder.single_head, ladder.multi_head])
def test_layers_that_do_not_fit_are_refused(
    rung: Callable[..., Any], layers: tuple[nn.Linear, ...], words: str
) -> None:
    with pytest.raises(ArgumentError, match="^" + re.escape(words)):
        rung(X, *layers)


@pytest.mark.parametrize(
    ("widths", "heads", "kv_heads", "words"),
    [
        ((12, 12, 12), 0, None, "heads: expected an integer >= 1, got 0"),
        ((12, 12, 12), 4, 0, "kv_heads: expected an integer >= 1, got 0"),
        ((12, 9, 9), 4, 3, "kv_heads: expected a divisor of heads=4, got 3"),
        ((12, 6, 6), 4, 8, "kv_heads: expected a divisor of heads=4, got 8"),
        ((13, 6, 6), 4, 2, "query: expected a width that 4 heads share equally, got 13"),
        ((12, 6, 7), 4, 2, "value: expected a width that 2 heads share equally, got 7"),
        ((12, 12, 12), 4, 2, "key: expected the head width of query, D=3, got D=6"),
    ],
)
def test_heads_that_do_not_divide_are_refused(
    widths: tuple[int, int, int], heads: int, kv_heads: int | None, words: str
) -> None:
    with pytest.raises(ArgumentError, match="^" + re.escape(words)):
        ladder.multi_head(X, *(layer(width) for width in widths), heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize("rung", READ_QKV)
@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ((Q[0], K, V), "q: expected 4 dimensions (B, Hq, T, D), got 3, (4, 5, 3)"),
        ((Q, K.int(), V), "k: expected a floating-point dtype, got torch.int32"),
        ((Q, K, V.double()), "v: expected the dtype of q, torch.float32, got torch.float64"),
        ((Q[:, :, :0], K[:, :, :0], V[:, :, :0]), "q: expected every dimension at least 1, got (B=2, Hq=4, T=0, D=3)"),
        ((Q, K[:, :, :4], V), "k: expected the B, T and D of q, (B=2, Hk, T=5, D=3), got (B=2, Hk=2, T=4, D=3)"),
        ((Q, K[..., :2], V), "k: expected the B, T and D of q, (B=2, Hk, T=5, D=3), got (B=2, Hk=2, T=5, D=2)"),
        ((Q, K, V[:, :1]), "v: expected the B, Hk and T of k, (B=2, Hk=2, T=5, Dv), got (B=2, Hk=1, T=5, Dv=6)"),
        (qkv(Hq=4, Hk=3), "k: expected a number of heads that divides Hq=4, got Hk=3"),
    ],
)
def test_q_k_v_that_do_not_fit_are_refused(
    rung: Callable[..., Any], tensors: tuple[Tensor, Tensor, Tensor], words: str
) -> None:
    with pytest.raises(ArgumentError, match="^" + re.escape(words)):
        rung(*tensors)


@pytest.mark.parametrize("tile", [0, -3])
def test_tile_without_a_key_is_refused(tile: int) -> None:
    with pytest.raises(ArgumentError, match=f"^tile: expected an integer >= 1, got {tile}"):
        ladder.online_softmax(Q, K, V, tile=tile)


@pytest.mark.parametrize(("T", "C", "words"), [(0, 2, "T: expected an integer >= 1, got 0"), (3, -1, "C: .*, got -1")])
def test_counts_of_nothing_are_refused(T: int, C: int, words: str) -> None:
    with pytest.raises(ArgumentError, match="^" + words):
        ladder.additions(T, C)


@pytest.mark.parametrize("number", [1, 0, 9, -2])
def test_rung_without_one_below_is_refused(number: int) -> None:
    with pytest.raises(ArgumentError, match=f"^number: expected a rung with one below it, 2 to 8, got {number}"):
        ladder.side_by_side(number, X, layer(3), layer(3), layer(3))


def test_things_of_another_type_are_refused_in_words() -> None:
    """In a process of its own: here the types in the signatures are checked before ours get a say."""
    code = """if True:
        import torch
        from clearhead import ladder
        for call in (
            lambda: ladder.mean_by_loop([[[1.0]]]),
            lambda: ladder.with_cache(None, None, None),
            lambda: ladder.single_head(torch.zeros(1, 2, 3), abs, abs, abs),
        ):
            try:
                call()
            except ladder.inputs.ArgumentError as error:
                print(error)
    """
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == [
        "x: expected a floating-point tensor (B, T, C), got a list. Wrap numbers as torch.tensor(...).",
        "q: expected a floating-point tensor (B, Hq, T, D), got a NoneType. Wrap numbers as torch.tensor(...).",
        "query: expected an nn.Linear that projects x, got builtin_function_or_method. "
        "Write nn.Linear(3, head_size, bias=False).",
    ]
