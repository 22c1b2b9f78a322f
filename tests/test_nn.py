from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from clearhead import Documents, Padding
from clearhead.errors import ArgumentError
from clearhead.nn import KVCache, SelfAttention, rotate


def layer(**options) -> SelfAttention:
    return SelfAttention(24, 6, kv_heads=options.pop("kv_heads", 3), **options).double()


def x(T: int = 11, B: int = 2) -> torch.Tensor:
    return torch.randn(B, T, 24, dtype=torch.float64)


@pytest.mark.tiny
@pytest.mark.parametrize(
    "options", [{}, {"rope": 100.0}, {"window": 4}, {"rope": 1e4, "window": 3, "bias": True}], ids=str
)
@pytest.mark.parametrize("cuts", [(1,) * 11, (4, 7), (10, 1), (3, 1, 5, 2)], ids=str)
def test_chunked_equals_whole(options, cuts):
    attend, inputs, cache = layer(**options), x(), KVCache()
    chunks = [attend(part, cache=cache) for part in inputs.split(list(cuts), dim=1)]
    torch.testing.assert_close(torch.cat(chunks, 1), attend(inputs), atol=1e-12, rtol=0)
    assert cache.length == 11


def test_gradients_through_the_cache_equal_those_of_the_whole():
    attend, inputs = layer(rope=100.0), x().requires_grad_()
    cache = KVCache()
    chunks = torch.cat([attend(part, cache=cache) for part in inputs.split([4, 3, 4], dim=1)], 1)
    weights = torch.randn_like(chunks)
    wanted = torch.autograd.grad((attend(inputs) * weights).sum(), [inputs, *attend.parameters()])
    found = torch.autograd.grad((chunks * weights).sum(), [inputs, *attend.parameters()])
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("T", [0, 1])
def test_no_token_and_one_token_are_lengths_like_any_other(T):
    attend, cache, inputs = layer(rope=100.0), KVCache(), x()
    assert attend(inputs[:, :T]).shape == (2, T, 24)
    attend(inputs[:, :4], cache=cache)
    torch.testing.assert_close(attend(inputs[:, 4 : 4 + T], cache=cache), attend(inputs)[:, 4 : 4 + T])
    assert cache.length == 4 + T


def test_one_token_attends_to_itself_alone():
    attend, one = layer(rope=100.0, bias=True), x(T=1)
    value = attend.value(one).view(2, 3, 4).repeat_interleave(2, 1).view(2, 1, 24)
    torch.testing.assert_close(attend(one), attend.output(value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_chunks_of_other_dtypes_equal_the_whole_within_their_rounding(dtype):
    attend, inputs, cache = layer(rope=100.0).to(dtype), x().to(dtype), KVCache()
    chunks = torch.cat([attend(part, cache=cache) for part in inputs.split([6, 5], dim=1)], 1)
    assert chunks.dtype == dtype
    exact = layer(rope=100.0)
    exact.load_state_dict(attend.state_dict())
    wanted, eps = exact(inputs.double()), torch.finfo(dtype).eps
    for found in (chunks, attend(inputs)):  # a handful of roundings of numbers of size 1
        torch.testing.assert_close(found.double(), wanted, atol=8 * eps, rtol=8 * eps)


def test_what_comes_later_changes_nothing_before_it():
    attend, inputs = layer(rope=100.0), x()
    changed = inputs.clone()
    changed[:, 7:] = float("nan")
    torch.testing.assert_close(attend(changed)[:, :7], attend(inputs)[:, :7], rtol=0, atol=0)
    both_ways = layer(causal=False)(changed)
    assert both_ways.isnan().all()


def test_moving_all_positions_changes_nothing():
    # Rotary positions are relative: behind a prefix nobody may see, a text reads as it does alone.
    attend, inputs = layer(rope=100.0), x()
    alone = attend(inputs[:1, 4:])
    moved = attend(inputs[:1], mask=Documents(torch.tensor([0] * 4 + [1] * 7)))[:, 4:]
    torch.testing.assert_close(moved, alone, atol=1e-12, rtol=0)


def test_a_mask_over_a_cache_speaks_of_the_keys_held_too():
    attend, inputs, cache = layer(rope=100.0), x(), KVCache()
    pairs = torch.ones(11, 11, dtype=torch.bool)
    pairs[5:, 2] = False
    whole = attend(inputs, mask=pairs)
    attend(inputs[:, :6], cache=cache)
    torch.testing.assert_close(attend(inputs[:, 6:], mask=pairs[6:], cache=cache), whole[:, 6:])
    cache.crop(6)
    padding = Padding(torch.tensor([11, 5]))
    rest = attend(inputs[:, 6:], mask=padding, cache=cache)
    torch.testing.assert_close(rest, attend(inputs, mask=padding)[:, 6:])


def test_a_cropped_cache_goes_on_as_if_the_rest_had_not_been():
    attend, inputs, cache = layer(rope=100.0), x(), KVCache()
    attend(inputs, cache=cache)
    cache.crop(6)
    torch.testing.assert_close(attend(inputs[:, 6:], cache=cache), attend(inputs)[:, 6:], atol=1e-12, rtol=0)
    cache.crop(0)
    assert cache.length == 0
    with pytest.raises(ArgumentError, match="length: expected 0 to 0, the tokens held, got 1"):
        cache.crop(1)


def test_equals_pytorch_on_the_same_projections():
    attend, inputs = layer(), x()
    q = attend.query(inputs).view(2, 11, 6, 4).transpose(1, 2)
    k, v = (p(inputs).view(2, 11, 3, 4).transpose(1, 2) for p in (attend.key, attend.value))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(attend(inputs), attend.output(out.transpose(1, 2).reshape(2, 11, 24)))


def test_grouped_heads_equal_heads_whose_keys_are_repeated():
    grouped, full = layer(), layer(kv_heads=6)
    full.query.load_state_dict(grouped.query.state_dict())
    full.output.load_state_dict(grouped.output.state_dict())
    for name in ("key", "value"):
        weight = getattr(grouped, name).weight.view(3, 4, 24).repeat_interleave(2, 0).view(24, 24)
        getattr(full, name).load_state_dict({"weight": weight})
    inputs = x()
    torch.testing.assert_close(grouped(inputs), full(inputs))


def test_rotary_products_depend_on_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    near = (rotate(q, torch.tensor([7]), 100.0) * rotate(k, torch.tensor([3]), 100.0)).sum()
    far = (rotate(q, torch.tensor([1007]), 100.0) * rotate(k, torch.tensor([1003]), 100.0)).sum()
    other = (rotate(q, torch.tensor([8]), 100.0) * rotate(k, torch.tensor([3]), 100.0)).sum()
    torch.testing.assert_close(near, far, atol=1e-10, rtol=0)
    assert (near - other).abs() > 1e-2
    torch.testing.assert_close(rotate(q, torch.tensor([0]), 100.0), q)


def test_rotation_turns_each_pair_forwards_by_its_own_rate():
    # As complex numbers c + i·(c + D/2): position t multiplies pair c by e^{i·t·base^(−2c/D)}.
    x = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    rates = torch.tensor([100.0 ** (-2 * c / 8) for c in range(4)], dtype=torch.float64)
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.exp(1j * torch.arange(3, 8)[:, None] * rates)
    torch.testing.assert_close(rotate(x, torch.arange(3, 8), 100.0), torch.cat([turned.real, turned.imag], -1))


def test_rotation_in_sixteen_bits_rounds_once():
    half = torch.randn(1, 1, 64, 8).bfloat16()
    far = torch.arange(900, 964)
    assert torch.equal(rotate(half, far, 100.0), rotate(half.float(), far, 100.0).bfloat16())


def test_a_window_forgets_what_lies_behind_it():
    attend, inputs = layer(window=3), x()
    changed = inputs.clone()
    changed[:, 4] += 1
    moved = (attend(changed) - attend(inputs)).abs().amax((0, 2)) > 0
    assert moved.tolist() == [False] * 4 + [True] * 3 + [False] * 4


def test_a_mask_given_is_added_to_the_layers_own():
    attend, inputs = layer(rope=100.0), x()
    padded = attend(inputs, mask=Padding(torch.tensor([11, 5])))
    torch.testing.assert_close(padded[1, :5], attend(inputs[1:, :5])[0])
    packed = attend(inputs[:1], mask=Documents(torch.tensor([0] * 4 + [1] * 7)))
    torch.testing.assert_close(packed[0, :4], attend(inputs[:1, :4])[0])
    assert (packed[0, 4:] - attend(inputs[:1])[0, 4:]).abs().max() > 1e-3
    pairs = torch.arange(11)[None] != 2  # a plain tensor, as attention() takes it
    changed = inputs.clone()
    changed[:, 2] += 1
    moved = (attend(changed, mask=pairs) - attend(inputs, mask=pairs)).abs().amax((0, 2)) > 0
    assert moved.nonzero().flatten().tolist() == [2]
    both_ways = layer(causal=False)
    assert (both_ways(inputs) - both_ways(inputs, mask=Padding(torch.tensor([11, 5])))).abs()[1].max() > 1e-3


def test_state_dict_names_are_stable():
    assert list(SelfAttention(8, 2, bias=True).state_dict()) == [
        f"{name}.{part}" for name in ("query", "key", "value", "output") for part in ("weight", "bias")
    ]
    assert SelfAttention(24, 6, kv_heads=3, head_width=5).key.weight.shape == (15, 24)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"heads": 5}, "embed: expected a multiple of heads=5, got 24"),
        ({"heads": 6, "kv_heads": 4}, "kv_heads: expected a divisor of heads=6, got 4"),
        ({"heads": 8, "rope": 1e4}, "head_width: expected an even number with rope.*got 3"),
        ({"heads": 0}, "heads: expected an integer >= 1, got 0"),
        ({"heads": 4, "head_width": 0}, "head_width: expected an integer >= 1, got 0"),
        ({"heads": 4, "rope": 0.0}, r"rope: expected a finite base > 0, got 0\.0"),
        ({"heads": 4, "window": 3, "causal": False}, "window: expected None with causal=False, got 3"),
        ({"heads": 4, "window": 0}, "Window keys: expected an integer >= 1, got 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments, text):
    with pytest.raises(ArgumentError, match=text):
        SelfAttention(24, **arguments)


@pytest.mark.parametrize(
    ("positions", "got"), [(torch.arange(10), "int64 (10,)"), (torch.zeros(11), "float32 (11,)")], ids=["few", "float"]
)
def test_positions_that_do_not_fit_are_refused(positions, got):
    with pytest.raises(
        ArgumentError, match=re.escape(f"positions: expected integers, (T=11,), one a token of x, got {got}. ")
    ):
        layer(rope=100.0)(x(), positions=positions)


def test_a_part_of_a_text_is_turned_by_where_it_stands():
    attend, inputs = layer(rope=100.0), x()
    torch.testing.assert_close(attend(inputs, positions=torch.arange(11)), attend(inputs), rtol=0, atol=0)
    cache = KVCache()
    attend(inputs[:, :4], cache=cache)
    torch.testing.assert_close(
        attend(inputs[:, 4:], cache=cache, positions=torch.arange(4, 11)), attend(inputs)[:, 4:], atol=1e-12, rtol=0
    )
    apart = attend(inputs, positions=torch.arange(11) * 2)  # distances count
    assert (apart - attend(inputs)).abs().max() > 1e-3


@pytest.mark.parametrize("shape", [(2, 11, 23), (11, 24), (1, 2, 11, 24)], ids=str)
def test_an_input_of_another_shape_is_refused(shape):
    with pytest.raises(ArgumentError, match=re.escape(f"x: expected (B, T, embed=24), got {shape}")):
        layer()(torch.randn(shape, dtype=torch.float64))


def test_a_cache_of_another_batch_is_refused():
    attend, cache = layer(), KVCache()
    attend(x(), cache=cache)
    with pytest.raises(
        ArgumentError, match=r"cache: expected keys like.*\(B=2, Hk=3, T=11, D=4\).*B=1, Hk=3, T=1, D=4"
    ):
        attend(x(T=1, B=1), cache=cache)
    assert cache.length == 11


def test_a_layer_that_sees_the_future_takes_no_cache():
    with pytest.raises(ArgumentError, match="cache: expected None with causal=False, got a cache of 0 tokens"):
        layer(causal=False)(x(), cache=KVCache())


COMPILED = """
import torch
from clearhead.nn import SelfAttention
torch.manual_seed(0)
layer = SelfAttention(24, 6, kv_heads=3, rope=100.0, window=5)
x = torch.randn(2, 11, 24, requires_grad=True)
compiled = torch.compile(layer, fullgraph=True)
torch.testing.assert_close(compiled(x), layer(x))
compiled(x).sum().backward()
grad, x.grad = x.grad, None
layer(x).sum().backward()
torch.testing.assert_close(grad, x.grad)
print("equal")
"""


def test_compiles_into_one_graph():
    # In a process of its own: the shape checks that tests run under are no part of what users compile.
    run = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "equal", run.stderr
