"""Every observable by hand on patterns small enough to check on paper, its identities at sizes that are not, its messages."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from operation_cases import IMPLS, PRECISE
from torch import Tensor

from clearhead import All, Causal, Observables, Observation, Padding, Window, observe
from clearhead.errors import ArgumentError, NotMeasuredError
from clearhead.masks import Mask


def planted(weights: list[list[float]], *, impl: str, mask: Mask | None = None, **options: Any) -> Observation:
    """An observation of exactly these weights: the query is their logarithm, the keys are the identity."""
    rows = torch.tensor(weights, dtype=torch.float64)
    query = rows.clamp(min=1e-300).log().to(PRECISE[impl])
    keys = torch.eye(rows.shape[1], dtype=PRECISE[impl])
    observables = options.pop("observables", Observables(map=2, top_k=2))
    return observe(
        query[None, None], keys[None, None], keys[None, None], mask=mask, scale=1.0, observables=observables, impl=impl,
        **options,
    )  # fmt: skip


# A causal pattern of three queries, and its parts by hand.
PATTERN = [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.2, 0.3]]


def by_hand(got: Tensor, wanted: list[Any]) -> None:
    expected = torch.tensor(wanted, dtype=torch.float64)
    room = 1e-12 if got.dtype == torch.float64 else 8 * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got[0, 0].double(), expected, rtol=room, atol=room)


@pytest.mark.tiny
@pytest.mark.parametrize("impl", IMPLS)
def test_quantities_of_a_query_are_those_on_paper(impl: str) -> None:
    seen = planted(PATTERN, impl=impl, mask=Causal())
    by_hand(seen.output, PATTERN)
    by_hand(seen.lse, [0.0, 0.0, 0.0])
    by_hand(seen.max_logit, [0.0, math.log(0.75), math.log(0.5)])
    by_hand(seen.max_weight, [1.0, 0.75, 0.5])
    entropies = [0.0, -0.25 * math.log(0.25) - 0.75 * math.log(0.75), -sum(p * math.log(p) for p in (0.5, 0.2, 0.3))]
    by_hand(seen.entropy, entropies)
    by_hand(seen.entropy_share, [0.0, entropies[1] / math.log(2), entropies[2] / math.log(3)])
    by_hand(seen.effective_keys, [math.exp(h) for h in entropies])
    by_hand(seen.self_weight, [1.0, 0.75, 0.3])
    by_hand(seen.previous_weight, [0.0, 0.25, 0.2])
    by_hand(seen.first_weight, [1.0, 0.25, 0.5])
    by_hand(seen.distance, [0.0, 0.25, 2 * 0.5 + 1 * 0.2])
    assert seen.visible.expand(1, 1, 3).tolist() == [[[1, 2, 3]]]
    assert seen.top_keys[0, 0].tolist() == [[0, -1], [1, 0], [0, 2]]
    by_hand(seen.top_weights, [[1.0, 0.0], [0.75, 0.25], [0.5, 0.3]])


@pytest.mark.parametrize("impl", IMPLS)
def test_quantities_of_a_key_and_of_a_cell_are_those_on_paper(impl: str) -> None:
    seen = planted(PATTERN, impl=impl, mask=Causal())
    by_hand(seen.received, [1.75, 0.95, 0.3])
    # Cells 0 and 1 along each side hold positions {0} and {1, 2}; only pairs that may be seen are counted.
    by_hand(seen.map_mean, [[1.0, 0.0], [0.75 / 2, (0.75 + 0.2 + 0.3) / 3]])
    by_hand(seen.map_max, [[1.0, 0.0], [0.5, 0.75]])


@pytest.mark.parametrize("impl", IMPLS)
def test_positions_are_counted_from_the_end_when_there_are_more_keys_than_queries(impl: str) -> None:
    seen = planted(PATTERN[1:], impl=impl, mask=Causal())
    assert seen.offset == 1
    by_hand(seen.self_weight, [0.75, 0.3])
    by_hand(seen.previous_weight, [0.25, 0.2])
    by_hand(seen.distance, [0.25, 1.2])


@pytest.mark.parametrize("impl", IMPLS)
def test_queries_in_front_of_the_first_key_have_no_own_position(impl: str) -> None:
    seen = planted([[0.5, 0.5], [0.1, 0.9], [0.3, 0.7]], impl=impl)
    assert seen.offset == -1
    by_hand(seen.self_weight, [0.0, 0.1, 0.7])
    by_hand(seen.previous_weight, [0.0, 0.0, 0.3])
    by_hand(seen.distance, [-1.5, -0.9, 0.3])


@pytest.mark.parametrize("impl", IMPLS)
def test_ties_go_to_the_smaller_key(impl: str) -> None:
    for T in (3, 40, 700):
        q = torch.zeros(1, 1, T, 4)
        seen = observe(q, q, q, mask=Causal(), impl=impl, observables=Observables(top_k=4))
        assert seen.top_keys[0, 0, -1].tolist() == [*range(min(T, 4)), *[-1] * (4 - min(T, 4))]
        assert seen.top_keys[0, 0, 1].tolist() == [0, 1, -1, -1]
        wide = observe(q, q, q, mask=Window(2), impl=impl, observables=Observables(top_k=1))
        assert wide.top_keys[0, 0, -1].tolist() == [T - 2]


@pytest.mark.parametrize("k", [6, 11])
@pytest.mark.parametrize(
    ("impl", "T", "among"),  # equal logits have equal weights on `cpu` where they are in the same 128 keys
    [("cpu", 20, 20), ("cpu", 128, 128), ("cpu", 1000, 128), ("tiled", 1000, 1000), ("reference", 1000, 1000)],
)
def test_ties_go_to_the_smaller_key_wherever_the_others_stand(impl: str, T: int, among: int, k: int) -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.zeros(T)
        equal = torch.randperm(among, generator=generator)[:9]
        others = torch.randperm(T, generator=generator)
        # Two compete for the sixth place, five for the last of eleven.
        logits[others[~torch.isin(others, equal)][:8]] = torch.tensor([9.0, 7, 6, 4, 2.5, 2, 1.5, 1])
        logits[equal] = torch.tensor([8.0, 8, 5, 5, 3, 3, 3, 3, 3])
        keys = torch.zeros(1, 1, T, 4)
        keys[0, 0, :, 0] = logits
        query = torch.zeros(1, 1, 40, 4)  # more queries than `cpu` decodes with
        query[..., 0] = 1.0
        seen = observe(query, keys, keys, scale=1.0, impl=impl, observables=Observables(top_k=k))
        assert seen.top_keys[0, 0, 0].tolist() == logits.sort(descending=True, stable=True).indices[:k].tolist()


@pytest.mark.parametrize("impl", ["cpu", "tiled"])
@pytest.mark.parametrize("T", [33, 256, 1500])
@pytest.mark.parametrize("k", [1, 8, 40])
def test_top_keys_are_found_however_long_the_row_is(T: int, k: int, impl: str) -> None:
    q, keys, v = torch.randn(3, 1, 2, T, 8)
    seen = observe(q, keys, v, mask=Causal(), observables=Observables(top_k=k, rows=(T - 1,)), impl=impl)
    weights, order = seen.rows[:, :, 0].sort(-1, descending=True)
    n = min(k, T)
    torch.testing.assert_close(seen.top_weights[:, :, -1, :n], weights[..., :n])
    assert torch.equal(seen.top_keys[:, :, -1, :n], order[..., :n])


@pytest.mark.parametrize("impl", IMPLS)
def test_weight_on_equal_tokens_and_on_what_followed_them(impl: str) -> None:
    weights = [[1.0, 0, 0, 0], [0.4, 0.6, 0, 0], [0.1, 0.2, 0.7, 0], [0.1, 0.2, 0.3, 0.4]]
    for ids in (torch.tensor([5, 7, 5, 5]), torch.tensor([[5, 7, 5, 5]])):
        seen = planted(weights, impl=impl, mask=Causal(), observables=Observables(token_ids=ids))
        by_hand(seen.same_token, [0.0, 0.0, 0.1, 0.1 + 0.3])
        # Token 5 stands at 0, 2 and 3, so what followed it are keys 1 and 3; token 7 was followed by key 2 only later.
        by_hand(seen.after_same_token, [0.0, 0.0, 0.2, 0.2 + 0.4])


@pytest.mark.parametrize("impl", IMPLS)
def test_squares_distances_and_contributions_are_those_on_paper(impl: str) -> None:
    rows = torch.tensor(PATTERN, dtype=torch.float64)
    query, keys = rows.clamp(min=1e-300).log().to(PRECISE[impl]), torch.eye(3, dtype=PRECISE[impl])
    value = torch.tensor([[0.1, 0.0], [0.6, 0.8], [0.0, 2.0]], dtype=PRECISE[impl])
    observables = Observables(sum_squares=True, distance_histogram=True, contributions=True, top_k=2)

    def look(**more: Any) -> Observation:
        wanted = dataclasses.replace(observables, **more)
        return observe(
            query[None, None],
            keys[None, None],
            value[None, None],
            mask=Causal(),
            scale=1.0,
            observables=wanted,
            impl=impl,
        )

    seen = look()
    by_hand(seen.sum_squares, [1.0, 0.0625 + 0.5625, 0.25 + 0.04 + 0.09])
    by_hand(seen.distance_histogram, [[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.3, 0.2, 0.5]])  # bins 0, 1, 2-3
    by_hand(seen.value_norm, [0.1, 1.0, 2.0])
    # Row 2 weighs its keys 0.5, 0.2, 0.3 and gets 0.05, 0.2, 0.6 from them.
    assert seen.top_contribution_keys[0, 0].tolist() == [[0, -1], [1, 0], [2, 1]]
    by_hand(seen.top_contributions, [[0.1, 0.0], [0.75, 0.025], [0.6, 0.2]])
    by_hand(seen.received_contribution, [0.175, 0.95, 0.6])
    assert seen.max_key[0, 0].tolist() == [0, 1, 0]
    # Through an output projection that forgets the second component.
    weight = torch.tensor([[3.0, 0.0]])
    by_hand(look(output_weight=weight).value_norm, [0.3, 1.8, 0.0])
    assert look(output_weight=weight).top_contribution_keys[0, 0, 2].tolist() == [1, 0]


@pytest.mark.parametrize("impl", IMPLS)
def test_groups_are_those_on_paper(impl: str) -> None:
    groups = torch.tensor([1, -1, 0])
    seen = planted(
        PATTERN, impl=impl, mask=Causal(), observables=Observables(key_groups=groups, group_top_k=1, map=2, top_k=2)
    )
    by_hand(seen.group_weight, [[0.0, 1.0], [0.0, 0.25], [0.3, 0.5]])
    # Query 0 is of group 1, query 2 of group 0, query 1 of none.
    by_hand(seen.group_mean, [[0.3, 0.5], [0.0, 1.0]])
    by_hand(seen.received_by_group, [[0.5, 0.2, 0.3], [1.0, 0.0, 0.0]])
    by_hand(seen.received, [1.75, 0.95, 0.3])
    assert seen.group_top_keys[0, 0, :, :, 0].tolist() == [[-1, 0], [-1, 0], [2, 0]]
    by_hand(seen.group_top_weights[..., 0], [[0.0, 1.0], [0.0, 0.25], [0.3, 0.5]])
    other = planted(
        PATTERN, impl=impl, mask=Causal(), observables=Observables(key_groups=groups, query_groups=torch.zeros(3).int())
    )
    by_hand(other.group_mean, [[0.1, 1.75 / 3], [0.0, 0.0]])


@pytest.mark.parametrize("impl", IMPLS)
def test_rows_can_count_differently_in_what_keys_receive(impl: str) -> None:
    rows = torch.tensor([2.0, 0.0, -1.0])
    seen = planted(PATTERN, impl=impl, mask=Causal(), observables=Observables(row_weights=rows))
    by_hand(seen.weighted_received, [2.0 - 0.5, -0.2, -0.3])
    by_hand(seen.received_mean, [1.75 / 3, 0.95 / 2, 0.3])
    assert seen.viewers.expand(1, 1, 3).tolist() == [[[3, 2, 1]]]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_piece_of_a_text_is_named_by_its_positions_in_the_text(impl: str) -> None:
    # Keys 2, 3 and 4 of a text of five tokens, seen by queries 3 and 4.
    weights = [[0.1, 0.9, 0.0], [0.2, 0.3, 0.5]]
    observables = Observables(
        first_key=2, first_query=3, token_ids=torch.tensor([6, 5, 5, 6, 5]), distance_histogram=True
    )
    seen = planted(weights, impl=impl, mask=Causal(), observables=observables)
    assert (seen.offset, seen.first_key) == (3, 2)
    by_hand(seen.self_weight, [0.9, 0.5])
    by_hand(seen.previous_weight, [0.1, 0.3])
    by_hand(seen.first_weight, [0.0, 0.0])  # key 0 is elsewhere
    by_hand(seen.distance, [0.1, 0.2 * 2 + 0.3])
    by_hand(seen.distance_histogram, [[0.9, 0.1, 0.0], [0.5, 0.3, 0.2]])
    assert seen.top_keys[0, 0, :, :3].tolist() == [[3, 2, -1], [4, 3, 2]]
    by_hand(seen.same_token, [0.0, 0.2])
    by_hand(seen.after_same_token, [0.0, 0.2 + 0.3])  # after key 1, which is elsewhere, and after key 2


@pytest.mark.parametrize("impl", IMPLS)
def test_rows_come_in_the_order_they_were_asked_for(impl: str) -> None:
    seen = planted(PATTERN, impl=impl, mask=Causal(), observables=Observables(rows=(2, 0, -2, 2)))
    by_hand(seen.rows, [PATTERN[2], PATTERN[0], PATTERN[1], PATTERN[2]])


@pytest.mark.parametrize("impl", IMPLS)
def test_a_sink_is_one_more_place_for_the_weight(impl: str) -> None:
    seen = planted([[0.5, 0.5]], impl=impl, sinks=torch.zeros(1))  # e^0 = 1: as much as both keys
    by_hand(seen.sink, [0.5])
    by_hand(seen.lse, [math.log(2)])
    by_hand(seen.output, [[0.25, 0.25]])
    by_hand(seen.received, [0.25, 0.25])
    by_hand(seen.entropy, [2 * 0.25 * math.log(4) + 0.5 * math.log(2)])
    by_hand(seen.entropy_share, [(0.5 * math.log(4) + 0.5 * math.log(2)) / math.log(3)])
    by_hand(seen.max_logit, [math.log(0.5)])
    by_hand(seen.max_weight, [0.25])


# -------------------------------------------------------------------------------------------------- identities


def random_call(T: int, *, impl: str, **options: Any) -> Observation:
    q, k, v = torch.randn(3, 2, 3, T, 8, dtype=PRECISE[impl])
    return observe(q, k, v, observables=Observables(rows=tuple(range(T)), map=7), impl=impl, **options)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("T", [1, 20, 300])
@pytest.mark.parametrize(
    "mask", [All(), Causal(), Window(5, right=1), Causal() & Padding(torch.tensor([1, 15]))], ids=repr
)
def test_identities_hold_at_every_length(T: int, mask: Mask, impl: str) -> None:
    dtype = PRECISE[impl]
    seen = random_call(T, mask=mask, sinks=torch.randn(3, dtype=dtype), impl=impl)
    p = seen.rows
    torch.testing.assert_close(p.sum(-1) + seen.sink, torch.ones(2, 3, T, dtype=dtype))
    real = torch.ones(2, T, dtype=torch.bool) if seen.padded is None else ~seen.padded
    kept = p * real[:, None, :, None]
    torch.testing.assert_close(seen.received, kept.sum(-2))
    torch.testing.assert_close(
        seen.received.sum(-1) + (seen.sink * real[:, None]).sum(-1), real.sum(-1)[:, None].expand(2, 3).to(dtype)
    )
    bounds = Observables(map=7).map_bounds(T)
    pairs = mask.dense(T, T, B=2) & real[:, None, :, None]
    counts = torch.stack([
        torch.stack([pairs[..., a:b, c:d].sum((-2, -1)) for c, d in pairwise(bounds)], -1)
        for a, b in pairwise(bounds)
    ], -2)  # fmt: skip
    torch.testing.assert_close((seen.map_mean * counts).sum((-2, -1)), kept.sum((-2, -1)))
    torch.testing.assert_close(seen.map_max.amax((-2, -1)), kept.amax((-2, -1)))
    torch.testing.assert_close(seen.max_weight, p.amax(-1))


@pytest.mark.parametrize("impl", IMPLS)
def test_uniform_attention_has_the_greatest_entropy_and_looks_halfway_back(impl: str) -> None:
    q = torch.zeros(1, 1, 200, 4, dtype=PRECISE[impl])
    seen = observe(q, q, q, mask=Causal(), impl=impl)
    i = torch.arange(200, dtype=PRECISE[impl])
    torch.testing.assert_close(seen.entropy[0, 0], (i + 1).log())
    torch.testing.assert_close(seen.entropy_share[0, 0, 1:], torch.ones(199, dtype=PRECISE[impl]))
    torch.testing.assert_close(seen.distance[0, 0], i / 2)
    torch.testing.assert_close(seen.lse[0, 0], (i + 1).log())


# ---------------------------------------------------------------------------------------------- the two objects


@pytest.mark.parametrize("impl", IMPLS)
def test_padding_queries_are_left_out_of_every_mean(impl: str) -> None:
    q, k, v = torch.randn(3, 2, 1, 6, 4)
    lengths = torch.tensor([4, 6])
    seen = observe(q, k, v, mask=Causal() & Padding(lengths), impl=impl)
    for b, n in enumerate(lengths.tolist()):
        alone = observe(q[b : b + 1, :, :n], k[b : b + 1, :, :n], v[b : b + 1, :, :n], mask=Causal(), impl=impl)
        for name in ("entropy", "distance", "self_weight", "lse"):
            for start in (0, 1, 3):
                torch.testing.assert_close(seen.mean(name, start=start)[b], alone.mean(name, start=start)[0])
        torch.testing.assert_close(seen.received[b, :, :n], alone.received[0])
        assert bool((seen.received[b, :, n:] == 0).all())
    assert bool((observe(q, k, v, mask=Padding(torch.tensor([0, 0]))).mean("entropy") == 0).all())


@pytest.mark.parametrize("impl", IMPLS)
def test_padding_queries_that_hold_nan_spoil_no_sum(impl: str) -> None:
    q, k, v = torch.randn(3, 1, 1, 6, 4)
    mask = Causal() & Padding(torch.tensor([4]))
    clean = observe(q, k, v, mask=mask, impl=impl)
    q[:, :, 4:] = math.nan
    seen = observe(q, k, v, mask=mask, impl=impl)
    for name in ("received", "map_mean", "map_max"):
        assert torch.equal(seen.values[name], clean.values[name]), name
    assert torch.equal(seen.mean("entropy"), clean.mean("entropy"))


@pytest.mark.parametrize("impl", IMPLS)
def test_what_was_not_measured_says_what_to_ask_for(impl: str) -> None:
    q = torch.randn(1, 1, 3, 4)
    observables = Observables(entropy=False, top_k=0, received=False, distance=False, map=0)
    seen = observe(q, q, q, observables=observables, impl=impl)
    measured = "output, lse, visible, max_logit, self_weight, previous_weight, first_weight"
    asked = {
        "entropy": "entropy=True", "top_keys": "top_k=8", "received": "received=True", "distance": "distance=True",
        "map_mean": "map=64", "map_max": "map=64", "rows": r"rows=\(...\)", "same_token": "token_ids=ids",
        "sink": "sinks were given", "sum_squares": "sum_squares=True", "viewers": "received=True",
        "weighted_received": "row_weights=r", "distance_histogram": "distance_histogram=True",
        "group_weight": "key_groups=ids", "group_top_keys": "group_top_k=k, key_groups=ids",
        "value_norm": "contributions=True", "top_contributions": "contributions=True, top_k=8",
    }  # fmt: skip
    for name, how in asked.items():
        text = f"^{name} was not measured in this observation; measured were {measured}. Ask for it with .*{how}"
        with pytest.raises(NotMeasuredError, match=text):
            getattr(seen, name)
        assert not hasattr(seen, name)
    assert hasattr(seen, "max_logit")


def off_value(switch: str) -> Any:
    return type(getattr(Observables(), switch))()  # False, or 0


@pytest.mark.parametrize("impl", IMPLS)
def test_every_observable_can_be_switched_off_by_itself(impl: str) -> None:
    q = torch.randn(1, 1, 20, 4)
    switches = {"max_logit": {"max_logit"}, "entropy": {"entropy"}, "top_k": {"top_keys", "top_weights"},
                "received": {"received", "viewers"}, "positions": {"self_weight", "previous_weight", "first_weight"},
                "distance": {"distance"}, "map": {"map_mean", "map_max"}}  # fmt: skip
    whole = observe(q, q, q, mask=Causal(), impl=impl).values
    for switch, names in switches.items():
        off = observe(
            q,
            q,
            q,
            mask=Causal(),
            impl=impl,
            observables=dataclasses.replace(Observables(), **{switch: off_value(switch)}),
        ).values
        assert set(whole) - set(off) == names
        for name, x in off.items():
            torch.testing.assert_close(x, whole[name], rtol=1e-6, atol=1e-6)
    light = observe(q, q, q, observables=Observables.light(), impl=impl).values
    assert set(light) == {"output", "lse", "visible", "max_logit", *switches["positions"]}


def test_every_implementation_measures_the_same_names_and_begins_alike() -> None:
    q = torch.randn(1, 2, 40, 4)
    groups = torch.arange(40) // 9
    everything = dataclasses.replace(
        Observables.full(token_ids=torch.arange(40) % 7, key_groups=groups), rows=(3,), group_top_k=2,
        row_weights=torch.ones(40),
    )  # fmt: skip
    for options in ({"mask": Causal()}, {"mask": torch.rand(40, 40) > 0.3, "sinks": torch.zeros(2)}):
        found = {n: observe(q, q, q, observables=everything, impl=n, **options).values for n in IMPLS}
        assert {tuple(sorted(x)) for x in found.values()} == {tuple(sorted(found["reference"]))}
        assert {tuple(x)[:3] for x in found.values()} == {("output", "lse", "visible")}
        for name, x in found["reference"].items():
            for impl in IMPLS:
                got = found[impl][name]
                assert (got.dtype, got.ndim) == (x.dtype, x.ndim), (impl, name)


def test_an_observation_prints_names_and_shapes_and_no_numbers() -> None:
    q = torch.randn(1, 2, 3, 4)
    seen = observe(q, q, q, observables=Observables.light())
    assert repr(seen).startswith("Observation(output (1, 2, 3, 4), lse (1, 2, 3), visible (")


def test_an_observation_cannot_be_changed() -> None:
    q = torch.randn(1, 1, 4, 4)
    seen = observe(q, q, q)
    with pytest.raises(TypeError, match="does not support item assignment"):
        seen.values["lse"] = q  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen.offset = 3  # type: ignore[misc]


def test_an_observation_becomes_a_dictionary_and_comes_back() -> None:
    q = torch.randn(2, 1, 4, 4)
    seen = observe(q, q, q, mask=Padding(torch.tensor([1, 4])), observables=Observables(first_key=3))
    found = seen.to_dict()
    assert {"offset", "first_key", "padded", "output", "entropy"} <= set(found)
    back = Observation.from_dict(found)
    assert (back.offset, back.first_key, set(back.values)) == (3, 3, set(seen.values))
    assert back.padded is seen.padded
    assert all(back.values[n] is x for n, x in seen.values.items())


def test_samples_and_heads_can_be_chosen() -> None:
    q, k, v = torch.randn(3, 4, 9, 8), torch.randn(3, 2, 9, 8), torch.randn(3, 2, 9, 5)
    mask = Causal() & Padding(torch.tensor([9, 4, 7]))
    observables = Observables.full(key_groups=torch.arange(9) // 4)
    whole = observe(q, k, v, mask=mask, observables=observables)
    alone = observe(
        q[1:2, 2:], k[1:2, 1:], v[1:2, 1:], mask=Causal() & Padding(torch.tensor([4])), observables=observables
    )
    for which in ((1, [2, 3]), (slice(1, 2), slice(2, None)), ([-2], torch.tensor([-2, -1]))):
        part = whole[which]
        assert part.padded is not None
        assert torch.equal(part.padded, ~(torch.arange(9) < 4)[None])
        for name, x in alone.values.items():
            torch.testing.assert_close(part.values[name], x, msg=lambda text, name=name: f"{name}: {text}")
        torch.testing.assert_close(part.mean("entropy"), alone.mean("entropy"))
    assert whole[0].lse.shape == (1, 4, 9)
    assert whole[:, 0].group_mean.shape == (3, 1, 3, 3)
    one = observe(q[0, 0], k[0, 0], v[0, 0])  # no batch, no heads
    assert one[0, 0].output.shape == (1, 1, 9, 5)
    with pytest.raises(ArgumentError, match=r"head: expected numbers from 0 to 3 \(or negative, from the end\), got 4"):
        whole[0, 4]
    with pytest.raises(ArgumentError, match=r"sample: expected numbers from 0 to 2 .* got -4"):
        whole[-4]


def test_means_of_quantities_with_more_numbers_a_query_leave_padding_out() -> None:
    q, k, v = torch.randn(3, 2, 1, 6, 4)
    seen = observe(
        q, k, v, mask=Causal() & Padding(torch.tensor([4, 6])), observables=Observables(distance_histogram=True)
    )
    assert seen.mean("distance_histogram").shape == (2, 1, 4)
    torch.testing.assert_close(seen.mean("distance_histogram")[0], seen.distance_histogram[0, :, :4].mean(1))
    torch.testing.assert_close(seen.mean("distance_histogram").sum(-1), torch.ones(2, 1))


def test_an_observation_moves_whole() -> None:
    q = torch.randn(2, 1, 4, 4)
    seen = observe(q, q, q, mask=Padding(torch.tensor([1, 4])))
    moved = seen.to("meta")
    assert {x.device.type for x in moved.values.values()} == {"meta"}
    assert moved.padded is not None
    assert moved.padded.device.type == "meta"
    assert moved.offset == seen.offset
    assert seen.lse.device.type == "cpu"
