"""Gradients of what `observe` measures: by finite differences, against the reference, in memory, and where there are none."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operation_cases import IMPLS, PRECISE, Case, asked, cases, score_terms, small_tiles
from test_gradients import LargestTensor
from torch import Tensor, nn

from clearhead import (
    ALiBi,
    Causal,
    Documents,
    Observables,
    Observation,
    Padding,
    Window,
    attention,
    observe,
    watch,
)
from clearhead.errors import ImplementationError
from clearhead.nn import SelfAttention
from clearhead.observables import DIFFERENTIABLE
from clearhead.testing import assert_within_tolerance

FAST = ["cpu", "tiled"]
MADE_OF_THEM = ("max_weight", "entropy_share", "effective_keys", "received_mean")
EVERY = (*sorted(DIFFERENTIABLE), *MADE_OF_THEM)


def everything(Tq: int, Tk: int, **more: Any) -> Observables:
    """All that is differentiable, and something that is not."""
    given: dict[str, Any] = {
        "sum_squares": True,
        "distance_histogram": True,
        "contributions": True,
        "top_k": 2,
        "map": 3,
        "rows": (Tq // 2, -1),
        "token_ids": torch.arange(Tk) * 7 % 3,
        "key_groups": torch.arange(Tk) * 5 % 4 - 1,
        "query_groups": torch.arange(Tq) % 3 - 1,
        "row_weights": torch.linspace(-1, 2, Tq, dtype=torch.float64),
    }
    return Observables(**(given | more))


def leaves_of(case: Case) -> dict[str, Tensor]:
    """What gradients go to, by name, as leaves of their own."""
    named = {"query": case.query, "key": case.key, "value": case.value}
    named |= {n: x for n, x in case.options.items() if n in ("bias", "sinks") and isinstance(x, Tensor)}
    return {name: x.detach().clone().requires_grad_() for name, x in named.items()}


def seen_from(case: Case, leaves: dict[str, Tensor], **more: Any) -> Observation:
    options = case.options | {n: x for n, x in leaves.items() if n in case.options} | more
    return observe(leaves["query"], leaves["key"], leaves["value"], **options)


def total(seen: Observation, names: tuple[str, ...], *, output: bool = False) -> Tensor:
    """The measured numbers with a random weight each, −inf left out, added up."""
    seed = torch.Generator().manual_seed(5)
    found = seen.output.sum() * 0
    for name in names:
        if name in seen.values or name in MADE_OF_THEM:
            x: Tensor = getattr(seen, name)
            weights = torch.randn(x.shape, generator=seed, dtype=torch.float64).to(x.dtype)
            found = found + (weights * torch.where(torch.isfinite(x), x, 0.0)).sum()
    return found + seen.output.sin().sum() if output else found


def gradients_of(
    case: Case, names: tuple[str, ...], observables: Observables, impl: str, **more: Any
) -> dict[str, Tensor]:
    leaves = leaves_of(case)
    loss = total(seen_from(case, leaves, observables=observables, impl=impl), names, **more)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True), strict=True))


# --------------------------------------------------------------------------------------------- finite differences

SIZES = (2, 4, 7, 9)  # four heads on two
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal, softcap": {"mask": Causal(), "softcap": 1.5},
    "rows that see nothing, padding": {
        "mask": Causal(align="start") & Padding(torch.tensor([0, 5]), queries=torch.tensor([7, 4]))
    },
    "window, bias, sinks": {
        "mask": Window(3, right=1),
        "bias": torch.randn(4, 1, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)[None],
        "sinks": torch.tensor([0.5, -1.0, 0.0, 2.0], dtype=torch.float64),
    },
    "documents, sinks, softcap, bias a pair": {
        "mask": Documents(torch.tensor([0, 1, 0, 1, 2, 2, 0, 0, 1])),
        "bias": torch.randn(7, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64),
        "sinks": torch.tensor([0.5, -1.0, 0.0, 2.0], dtype=torch.float64),
        "softcap": 2.0,
    },
    "dense, alibi": {
        "mask": torch.rand(2, 4, 7, 9, generator=torch.Generator().manual_seed(1)) < 0.6,
        "bias": ALiBi(4),
    },
}


def small_case(name: str) -> Case:
    B, Hq, Tq, Tk = SIZES
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in ((B, Hq, Tq, 3), (B, 2, Tk, 3), (B, 2, Tk, 2)))
    return Case(q, k, v, OPTIONS[name])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("impl", ["tiled", "reference"])
def test_gradients_of_each_measured_number_are_those_of_finite_differences(impl: str, options: str) -> None:
    case = small_case(options)
    leaves = leaves_of(case)
    names = [name for name in EVERY if name != "sink" or "sinks" in case.options]

    def measure(*inputs: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(leaves, inputs, strict=True))
        seen = seen_from(case, named, observables=everything(*case.sizes[2:]), impl=impl)
        return tuple(torch.where(torch.isfinite(x), x, 0.0) for x in (getattr(seen, name) for name in names))

    assert torch.autograd.gradcheck(measure, tuple(leaves.values()), fast_mode=True)


def test_the_slow_and_complete_check_passes_too() -> None:
    case = small_case("window, bias, sinks")
    args = case.query[:1, :2, :4], case.key[:1, :1, :4], case.value[:1, :1, :4]
    options = case.options | {"bias": case.options["bias"][:, :2, :, :4], "sinks": case.options["sinks"][:2]}
    case = Case(*args, options)
    leaves = leaves_of(case)

    def measure(*inputs: Tensor) -> Tensor:
        named = dict(zip(leaves, inputs, strict=True))
        return total(seen_from(case, named, observables=everything(4, 4), impl="tiled"), EVERY, output=True)

    assert torch.autograd.gradcheck(measure, tuple(leaves.values()))


# --------------------------------------------------------------------------------------- against the reference

NAMES = st.one_of(st.just(EVERY), st.sampled_from(EVERY).map(lambda name: (name,)))


@given(case=cases(), data=st.data())
def test_gradients_of_tiled_equal_those_of_reference_in_float64(case: Case, data: st.DataObject) -> None:
    observables, names, output = asked(case, data.draw), data.draw(NAMES), data.draw(st.booleans())
    wanted = gradients_of(case, names, observables, "reference", output=output)
    with small_tiles():
        found = gradients_of(case, names, observables, "tiled", output=output)
    for name, got in found.items():
        torch.testing.assert_close(
            got, wanted[name], rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f"{names} to {name}: {text}"
        )


def assert_compiled_right(case: Case, names: tuple[str, ...], observables: Observables, *, output: bool) -> None:
    """Gradients of the CPU kernels in the case's own dtype lose no more than the rule allows over the definition in it."""
    exact = case.to(torch.float64)
    wanted = gradients_of(exact, names, observables, "reference", output=output)
    plain = gradients_of(case, names, observables, "reference", output=output)
    lse = observe(*exact.args, **exact.options, impl="reference").lse
    finite = lse[torch.isfinite(lse)].abs()
    entropy = 2 + float(finite.max() if finite.numel() else 0)
    # How large what multiplies a weight in dz can be: incoming gradients are normal numbers, a few for every pair.
    each = {"distance": 3.0 * sum(case.sizes[2:]), "entropy": 3 * entropy, "entropy_share": 3 * entropy}
    each["effective_keys"] = 3 * entropy * case.sizes[3]
    terms = sum(each.get(name, 6.0) for name in names) * score_terms(case)
    if output:
        terms += float(case.value.abs().max()) * case.value.shape[-1] * score_terms(case)
    scale = case.options.get("scale")
    scale = abs(case.query.shape[-1] ** -0.5 if scale is None else scale)
    sizes = {
        "query": terms * float(case.key.abs().max()) * scale,
        "key": terms * float(case.query.abs().max()) * scale,
        # Every query adds a weight of its own, mostly of one sign.
        "value": score_terms(case) * case.sizes[2] * case.sizes[1] / case.key.shape[1],
        "bias": terms,
        "sinks": terms,
    }
    for name, got in gradients_of(case, names, observables, "cpu", output=output).items():
        what = f"gradient of {', '.join(names)} to {name}"
        assert_within_tolerance(got, wanted[name], plain[name], gradient=True, magnitude=sizes[name], what=what)


@given(case=cases(least=1), data=st.data())
def test_gradients_of_the_compiled_kernels_stay_within_the_tolerance(case: Case, data: st.DataObject) -> None:
    observables, names = asked(case, data.draw), data.draw(NAMES)
    assert_compiled_right(case.to(torch.float32), names, observables, output=data.draw(st.booleans()))


LONG: dict[str, dict[str, Any]] = {
    "causal, softcap": {"mask": Causal(), "softcap": 8.0},
    "padding, sinks": {
        "mask": Causal() & Padding(torch.tensor([300, 170]), queries=torch.tensor([290, 160])),
        "sinks": torch.tensor([0.5, -1.0, 0.0, 2.0]),
    },
    "window, bias": {"mask": Window(70), "bias": torch.randn(1, 4, 1, 300, generator=torch.Generator().manual_seed(1))},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", LONG)
def test_gradients_over_many_strips_and_blocks_stay_within_the_tolerance(options: str, dtype: torch.dtype) -> None:
    case = Case(torch.randn(2, 4, 290, 16), torch.randn(2, 2, 300, 16), torch.randn(2, 2, 300, 8), LONG[options])
    for names in (EVERY, ("entropy",), ("received", "weighted_received"), ("distance",), ("group_weight",)):
        assert_compiled_right(case.to(dtype), names, everything(290, 300), output=names == EVERY)


@pytest.mark.parametrize("impl", IMPLS)
def test_of_equal_largest_logits_the_first_key_gets_the_gradient(impl: str) -> None:
    q = torch.ones(1, 1, 2, 2, dtype=PRECISE[impl])
    k = torch.ones(1, 1, 4, 2, dtype=PRECISE[impl], requires_grad=True)
    for top_k in (0, 2):  # the key is looked for in the backward pass where it is not known
        seen = observe(q, k, k, scale=1.0, impl=impl, observables=Observables(top_k=top_k))
        (found,) = torch.autograd.grad(seen.max_logit.sum(), k)
        assert found[0, 0, :, 0].tolist() == [2.0, 0.0, 0.0, 0.0]


# ----------------------------------------------------------------------------------------- who gets gradients


@pytest.mark.parametrize("impl", IMPLS)
def test_what_follows_the_weights_smoothly_carries_gradients_and_nothing_else_does(impl: str) -> None:
    q, sinks = torch.randn(1, 2, 4, 4, requires_grad=True), torch.zeros(2)
    groups = torch.tensor([0, 0, 1, 1])
    asked_for = everything(4, 4, key_groups=groups, query_groups=groups, group_top_k=1)
    seen = observe(q, q, q, sinks=sinks, impl=impl, observables=asked_for)
    assert {n for n, x in seen.values.items() if x.requires_grad} == DIFFERENTIABLE | {"output"}
    assert not any(x.requires_grad for x in seen.detach().values.values())
    assert seen[0].entropy.requires_grad
    with torch.no_grad():
        seen = observe(q, q, q, sinks=sinks, impl=impl, observables=asked_for)
    assert not any(x.requires_grad for x in seen.values.values())


@pytest.mark.parametrize("impl", IMPLS)
def test_values_get_no_gradient_from_what_is_measured(impl: str) -> None:
    q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3))
    seen = observe(q, k, v, mask=Causal(), impl=impl)
    both = seen.entropy.sum() + seen.received.square().sum()
    assert torch.autograd.grad(both, v, allow_unused=True, retain_graph=True) == (None,)
    (of_output,) = torch.autograd.grad(seen.output.sin().sum(), v, retain_graph=True)
    (of_all,) = torch.autograd.grad(seen.output.sin().sum() + both, v)
    torch.testing.assert_close(of_all, of_output)
    seen = observe(q.detach(), k.detach(), v, impl=impl)
    assert seen.output.requires_grad
    assert not seen.entropy.requires_grad


@pytest.mark.parametrize("impl", FAST)
def test_what_a_watch_keeps_holds_no_graph(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARHEAD_IMPL", impl)
    layer, x = SelfAttention(8, 2), torch.randn(1, 6, 8)
    with watch(layer) as trace:
        out = layer(x)
    out.sum().backward()  # training goes on while somebody looks
    assert all(w.grad is not None for w in layer.parameters())
    (call,) = trace.calls
    assert not any(x.requires_grad for x in call.observation.values.values())


# ------------------------------------------------------------------------------------------------ NaN and memory


@pytest.mark.parametrize("impl", IMPLS)
def test_nan_that_a_query_may_not_see_reaches_no_gradient(impl: str) -> None:
    mask = Documents(torch.tensor([0] * 5 + [1] * 4))
    case = Case(*(torch.randn(1, 2, 9, 4, dtype=PRECISE[impl]) for _ in range(3)), {"mask": mask})
    hurt = dataclasses.replace(case, query=case.query.clone(), key=case.key.clone())
    hurt.query[..., 7, 1] = torch.nan
    hurt.key[..., 8, :] = torch.nan
    observables = everything(9, 9, rows=(1, 3))
    # Sums over queries have the bad one in them.
    sums = ("received", "received_mean", "received_by_group", "weighted_received", "group_mean")
    found = []
    for one in (case, hurt):
        leaves = leaves_of(one)
        seen = seen_from(one, leaves, observables=observables, impl=impl)
        loss = sum(getattr(seen, name)[:, :, :5].square().sum() for name in EVERY if name not in (*sums, "sink"))
        found.append(torch.autograd.grad(loss, [leaves["query"], leaves["key"]]))
    for whole, part in zip(*found, strict=True):
        torch.testing.assert_close(part[:, :, :5], whole[:, :, :5])
        assert bool((whole[:, :, :5] != 0).any())


@pytest.mark.parametrize("impl", IMPLS)
def test_queries_that_see_nothing_have_no_gradient_and_spoil_none(impl: str) -> None:
    leaves = [torch.randn(1, 1, 6, 4, dtype=PRECISE[impl], requires_grad=True) for _ in range(3)]
    seen = observe(*leaves, mask=Padding(torch.tensor([0])), impl=impl, observables=everything(6, 6))
    for name in EVERY:
        if name != "sink":
            for x in torch.autograd.grad(
                getattr(seen, name).sum(), leaves[:2], retain_graph=True, materialize_grads=True
            ):
                assert bool((x == 0).all()), name


@pytest.mark.parametrize(("impl", "T"), [("cpu", 8192), ("tiled", 4096)])
def test_nothing_of_size_t_by_t_is_made_on_the_way_back(impl: str, T: int) -> None:
    leaves = [torch.randn(1, 1, T, 4, requires_grad=True) for _ in range(3)]
    once = LargestTensor()
    names = EVERY
    if impl == "cpu":  # histogram and token relations go through "tiled"
        names = tuple(n for n in EVERY if n not in ("distance_histogram", "same_token", "after_same_token"))
    seen = observe(*leaves, mask=Causal(), impl=impl, observables=everything(T, T, top_k=0, map=0, contributions=False))
    loss = total(seen, names, output=True)
    with once:
        loss.backward()
    assert once.operations > 50
    assert once.largest <= T * 512, f"a tensor of {once.largest} elements where T*T is {T * T}"


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("impl", FAST)
def test_a_second_derivative_is_refused_and_the_reference_gives_it(impl: str) -> None:
    q = torch.randn(1, 1, 4, 4, dtype=PRECISE[impl], requires_grad=True)

    def first(impl: str) -> Tensor:
        seen = observe(q, q, q, impl=impl)
        return torch.autograd.grad(seen.entropy.sum() + seen.output.sum(), q, create_graph=True)[0]

    with pytest.raises(
        ImplementationError,
        match=r"gradients of observables: expected to be differentiated once, got a second derivative\. "
        r'Use impl="reference", which PyTorch differentiates any number of times\.',
    ):
        first(impl).square().sum().backward()
    first("reference").square().sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize("impl", FAST)
def test_l_and_the_output_are_differentiable_twice(impl: str) -> None:
    if impl == "cpu":
        q = torch.randn(1, 1, 4, 4, requires_grad=True)
        found = torch.autograd.grad(observe(q, q, q, impl=impl).lse.sum(), q, create_graph=True)[0]
        wanted = torch.autograd.grad(observe(q, q, q, impl="tiled").lse.sum(), q, create_graph=True)[0]
        grads = [torch.autograd.grad(x.square().sum(), q)[0] for x in (found, wanted)]
        torch.testing.assert_close(*grads)
        return
    leaves = [torch.randn(1, 2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def of_lse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return observe(q, k, v, mask=Causal(), impl=impl).lse

    assert torch.autograd.gradgradcheck(of_lse, leaves, fast_mode=True)


@pytest.mark.parametrize("impl", FAST)
def test_a_batch_of_incoming_gradients_is_refused(impl: str) -> None:
    q = torch.randn(1, 1, 4, 4, dtype=PRECISE[impl], requires_grad=True)
    seen, many = observe(q, q, q, impl=impl), torch.randn(3, 1, 1, 4, dtype=PRECISE[impl])
    says = (
        r"gradients of observables: expected one incoming gradient at a time, got a batch of them \(vmap\). "
        'Loop over them, or use impl="reference".'
    )
    with pytest.raises(ImplementationError, match=says):
        torch.func.vmap(functools.partial(torch.autograd.grad, seen.entropy, q, retain_graph=True))(many)
    with pytest.raises(ImplementationError, match=says):
        torch.autograd.grad(seen.entropy, q, many, is_grads_batched=True)


# ------------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("impl", FAST)
def test_a_head_learns_to_look_away_from_the_first_key(impl: str) -> None:
    x = torch.randn(1, 1, 64, 16)
    x[..., 0, 0] += 6.0  # what makes key 0 attractive
    project = nn.Linear(16, 32, bias=False)
    with torch.no_grad():
        project.weight.copy_(torch.eye(16).repeat(2, 1))
    step = torch.optim.Adam(project.parameters(), lr=0.03)
    first = []
    for _ in range(40):
        q, k = project(x).chunk(2, -1)
        seen = observe(q, k, x, mask=Causal(), observables=Observables.light(), impl=impl)
        loss = seen.mean("first_weight", start=1).mean()
        step.zero_grad()
        loss.backward()
        step.step()
        first.append(float(loss.detach()))
    assert first[-1] < 0.25 * first[0]


def test_looking_gives_attention_the_same_gradients() -> None:
    leaves = [torch.randn(1, 2, 70, 8, requires_grad=True) for _ in range(3)]
    plain = torch.autograd.grad(attention(*leaves, mask=Causal(), impl="cpu").sin().sum(), leaves)
    watched = torch.autograd.grad(observe(*leaves, mask=Causal(), impl="cpu").output.sin().sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
