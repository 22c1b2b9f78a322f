"""Awkward sizes, and layouts: every width and length that has broken an attention kernel somewhere."""

from __future__ import annotations

import pytest
import torch
from operation_cases import IMPLS, PRECISE, Case
from torch import Tensor

from clearhead import Causal, Documents, Window, attention, observe
from clearhead.testing import assert_within_tolerance, math_path

WIDTHS = [1, 5, 32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256]
LENGTHS = [
    (113, 203), (128, 217), (108, 256), (256, 512), (512, 256), (1023, 1024), (1024, 1023), (1, 239), (3, 799), (127, 512),
    (127, 513), (1, 1), (0, 5), (5, 0), (0, 0),
]  # fmt: skip
MASKS = {"all": None, "causal": Causal(), "start": Causal(align="start"), "window": Window(37, right=2)}


def call(Tq: int, Tk: int, D: int, *, B: int = 1, Hq: int = 2, Hk: int = 1, Dv: int | None = None) -> Case:
    g = torch.Generator().manual_seed(Tq * 1000 + Tk + D)
    shapes = (B, Hq, Tq, D), (B, Hk, Tk, D), (B, Hk, Tk, D if Dv is None else Dv)
    return Case(*(torch.randn(shape, generator=g) for shape in shapes))


def right(case: Case, got: Tensor) -> None:
    """`got` is the case's output within the tolerance of its dtype."""
    exact = case.to(torch.float64)
    truth = attention(*exact.args, **exact.options, impl="reference")
    baseline = math_path(*case.args, visible=case.visible, bias=case.added, scale=case.options.get("scale"))
    assert_within_tolerance(got, truth, baseline)


def with_mask(case: Case, name: str) -> Case:
    return Case(*case.args, {"mask": MASKS[name]})


FAST = pytest.mark.parametrize("impl", ["cpu", "tiled"])


@FAST
@pytest.mark.parametrize("D", WIDTHS)
@pytest.mark.parametrize("mask", ["all", "causal"])
def test_every_head_width_is_right(D: int, mask: str, impl: str) -> None:
    case = with_mask(call(130, 150, D, Hq=4, Hk=2), mask)
    right(case, attention(*case.args, **case.options, impl=impl))


@FAST
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("Tq", "Tk"), LENGTHS)
def test_every_pair_of_lengths_is_right(Tq: int, Tk: int, mask: str, impl: str) -> None:
    case = with_mask(call(Tq, Tk, 32), mask)
    out = attention(*case.args, **case.options, impl=impl)
    assert out.shape == (1, 2, Tq, 32)
    if out.numel() and Tk:
        right(case, out)
    assert bool((out == 0).all()) or Tk


OBSERVED = ("output", "lse", "entropy", "top_weights", "received", "distance", "map_mean", "map_max")


@FAST
@pytest.mark.parametrize(("Tq", "Tk"), [(113, 203), (1, 239), (512, 256), (0, 5), (5, 0), (1, 1)])
def test_every_pair_of_lengths_is_observed_right(Tq: int, Tk: int, impl: str) -> None:
    case = with_mask(call(Tq, Tk, 16), "causal").to(PRECISE[impl])
    exact = case.to(torch.float64)
    wanted = observe(*exact.args, **exact.options, impl="reference")
    baseline = observe(*case.args, **case.options, impl="reference")
    seen = observe(*case.args, **case.options, impl=impl)
    for name in OBSERVED:
        if impl == "tiled":
            torch.testing.assert_close(seen.values[name], wanted.values[name], rtol=1e-9, atol=1e-11)
        else:
            assert_within_tolerance(seen.values[name], wanted.values[name], baseline.values[name], what=name)


@pytest.mark.parametrize("sizes", [(0, 2, 1), (2, 0, 0), (1, 2, 2)])
def test_a_zero_sized_batch_or_no_heads_gives_an_empty_output(sizes: tuple[int, int, int]) -> None:
    B, Hq, Hk = sizes
    for impl in IMPLS:
        case = call(3, 4, 8, B=B, Hq=Hq, Hk=Hk, Dv=5)
        leaves = [x.requires_grad_() for x in case.args]
        out = attention(*leaves, mask=Causal(), impl=impl)
        assert out.shape == (B, Hq, 3, 5)
        out.sum().backward()
        assert all(x.grad is not None and x.grad.shape == x.shape for x in leaves)
        assert observe(*case.args, mask=Causal(), impl=impl).entropy.shape == (B, Hq, 3)


@FAST
@pytest.mark.parametrize("Dv", [1, 3, 100])
def test_values_may_have_another_width(Dv: int, impl: str) -> None:
    case = with_mask(call(70, 90, 24, Hq=6, Hk=3, Dv=Dv), "causal")
    right(case, attention(*case.args, **case.options, impl=impl))


@pytest.mark.tiny
def test_two_dimensions_are_one_head_and_leading_dimensions_broadcast() -> None:
    q, k, v = call(6, 7, 8, B=3, Hq=4, Hk=2).args
    whole = attention(q, k, v, mask=Causal())
    assert torch.equal(attention(q[1, 2], k[1, 1], v[1, 1], mask=Causal()), attention(q[1:2, 2:3], k[1:2, 1:2], v[1:2, 1:2],
                                                                                     mask=Causal())[0, 0])  # fmt: skip
    torch.testing.assert_close(attention(q[0], k[0], v[0], mask=Causal()), whole[0])
    five = attention(q[:, None], k[None, :2], v[None, :2], mask=Causal())
    assert five.shape == (3, 2, 4, 6, 8)
    torch.testing.assert_close(five[1, 1], whole[1])
    with_bias = attention(q[:, None], k[None, :2], v[None, :2], bias=torch.zeros(1, 2, 1, 6, 7))
    torch.testing.assert_close(with_bias, attention(q[:, None], k[None, :2], v[None, :2]))


@pytest.mark.tiny
@pytest.mark.parametrize("impl", IMPLS)
def test_query_heads_read_contiguous_groups_of_key_heads(impl: str) -> None:
    q, k, v = call(5, 6, 8, B=2, Hq=6, Hk=2).args
    whole = attention(q, k, v, impl=impl)
    for h in range(6):
        alone = attention(q[:, h : h + 1], k[:, h // 3 : h // 3 + 1], v[:, h // 3 : h // 3 + 1], impl=impl)
        torch.testing.assert_close(whole[:, h : h + 1], alone)
    tiled_heads = attention(q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1), impl=impl)
    assert not torch.allclose(whole, tiled_heads)


LAYOUTS = {
    "transposed heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "transposed width": lambda x: x.mT.contiguous().mT,
    "every other number of a wider tensor": lambda x: torch.stack([x, x + 1], dim=-1)[..., 0],
    "offset into a larger buffer": lambda x: torch.cat([x.new_ones(1, *x.shape[1:]), x])[1:],
}


def alike(got: Tensor, wanted: Tensor, what: str = "result") -> None:
    """The same numbers read from other places: the same bits where float32 is compiled, and in float64 nearly so."""
    room = 1e-12 if got.dtype == torch.float64 else 0.0
    torch.testing.assert_close(got, wanted, rtol=room, atol=room, msg=lambda text: f"{what}: {text}")


@FAST
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_of_inputs_and_of_the_incoming_gradient_changes_nothing(layout: str, impl: str) -> None:
    move = LAYOUTS[layout]
    plain = call(33, 45, 12, B=2, Hq=4, Hk=2).to(PRECISE[impl]).args
    upstream = torch.randn(2, 4, 33, 12, dtype=PRECISE[impl])

    def run(tensors: tuple[Tensor, ...], incoming: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in tensors]
        out = attention(*leaves, mask=Causal(), impl=impl)
        return [out, *torch.autograd.grad(out, leaves, incoming)]

    moved = tuple(map(move, plain))
    assert all(torch.equal(a, b) for a, b in zip(plain, moved, strict=True))
    for got, wanted in zip(run(moved, move(upstream)), run(plain, upstream), strict=True):
        alike(got, wanted)
    seen = observe(*moved, mask=Causal(), impl=impl)
    for name, wanted_values in observe(*plain, mask=Causal(), impl=impl).values.items():
        alike(seen.values[name], wanted_values, name)


@FAST
def test_expanded_inputs_and_an_expanded_gradient_are_read_by_their_strides(impl: str) -> None:
    q = torch.randn(1, 1, 20, 8, dtype=PRECISE[impl])
    wide = [q.expand(3, 2, 20, 8).requires_grad_() for _ in range(3)]
    copied = [x.detach().clone().requires_grad_() for x in wide]
    # sum() hands back a stride-0 gradient
    found = torch.autograd.grad(attention(*wide, mask=Window(5), impl=impl).sum(), wide)
    wanted = torch.autograd.grad(attention(*copied, mask=Window(5), impl=impl).sum(), copied)
    for a, b in zip(found, wanted, strict=True):
        alike(a, b)


@FAST
def test_rows_further_apart_than_two_to_the_31_elements_are_addressed_right(impl: str) -> None:
    """Four gigabytes are reserved, but only the few pages that hold rows are ever touched."""
    rows, width, apart = 5, 8, 2**29 + 3
    try:
        buffer = torch.empty(apart * (rows - 1) + width, dtype=torch.bfloat16)
    except RuntimeError:
        pytest.skip("this machine does not reserve 4 GB it has not got")
    assert buffer.numel() > 2**31
    far = buffer.as_strided((1, 1, rows, width), (0, 0, apart, 1))
    far.copy_(torch.randn(1, 1, rows, width))
    near = far.clone()
    wanted = attention(near, near, near, mask=Causal(), impl=impl)
    assert torch.equal(attention(far, far, far, mask=Causal(), impl=impl), wanted)


@FAST
def test_packed_documents_do_not_leak_into_each_other(impl: str) -> None:
    case = call(60, 60, 16).to(PRECISE[impl])
    ids = torch.tensor([0] * 13 + [1] * 27 + [2] * 20)
    whole = attention(*case.args, mask=Causal() & Documents(ids), impl=impl)
    right(Case(*case.args, {"mask": Causal() & Documents(ids)}), whole)
    for document in range(3):
        part = ids == document
        alone = Case(*(x[:, :, part] for x in case.args), {"mask": Causal()})
        right(alone, whole[:, :, part])


@FAST
@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_chunked_equals_whole(chunk: int, impl: str) -> None:
    q, k, v = call(64, 64, 16).to(PRECISE[impl]).args
    mask = Causal() & Window(20)
    parts = [
        attention(q[:, :, i : i + chunk], k[:, :, : i + chunk], v[:, :, : i + chunk], mask=mask, impl=impl)
        for i in range(0, 64, chunk)
    ]
    right(Case(q, k, v, {"mask": mask}), torch.cat(parts, dim=2))
