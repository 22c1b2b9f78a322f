from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from clearhead import Causal, Observables, attention, watch
from clearhead.errors import ArgumentError, NotMeasuredError


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x):
        q = self.project(x).unflatten(-1, (2, 4)).transpose(1, 2)
        return attention(q, q, q, mask=Causal()).transpose(1, 2).flatten(-2)


class Stack(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.mark.tiny
def test_watching_changes_neither_output_nor_gradients():
    model, x = Stack(), torch.randn(2, 7, 8)
    plain = model(x)
    plain.sum().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with watch(model) as trace:
        seen = model(x)
    seen.sum().backward()
    torch.testing.assert_close(seen, plain)
    for p, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, grad)
    assert [call.name for call in trace.calls] == ["blocks.0", "blocks.1", "blocks.2"]
    assert [call.layer for call in trace.calls] == [0, 1, 2]
    assert trace.observation(1).entropy.shape == (2, 2, 7)


def test_layers_chooses_which_calls_are_observed():
    model = Stack()
    with watch(model, layers=[1], observables=Observables.light()) as trace:
        model(torch.randn(1, 4, 8))
    assert [(c.layer, c.name) for c in trace.calls] == [(1, "blocks.1")]
    with pytest.raises(NotMeasuredError, match=r"entropy was not measured.*Observables\(entropy=True\)"):
        _ = trace.observation(1).entropy


def test_an_exception_leaves_nothing_installed():
    model = Stack()
    with pytest.raises(RuntimeError), watch(model):
        model(torch.randn(1, 4, 9))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    with watch(model) as trace:  # and the thread is free to watch again
        model(torch.randn(1, 4, 8))
    assert len(trace.calls) == 3


def test_a_forgotten_trace_is_gone_at_once():
    model = Stack()
    gc.disable()  # without the collector: nothing goes round in a circle
    try:
        with watch(model) as trace:
            model(torch.randn(1, 4, 8))
        there = weakref.ref(trace)
        del trace
        assert there() is None
    finally:
        gc.enable()


def test_an_exception_inside_a_module_does_not_shift_later_names():
    model = Stack()
    with watch(model) as trace:
        with pytest.raises(RuntimeError):
            model(torch.randn(1, 4, 9))
        model(torch.randn(1, 4, 8))
    assert [c.name for c in trace.calls] == ["blocks.0", "blocks.1", "blocks.2"]


def test_nested_watch_is_refused():
    with watch(), pytest.raises(ArgumentError, match="watch: expected one watch at a time"), watch():
        pass


def test_other_threads_are_not_watched():
    model = Stack()
    with watch(model) as trace:
        thread = threading.Thread(target=model, args=(torch.randn(1, 4, 8),))
        thread.start()
        thread.join()
        assert trace.calls == []
        model(torch.randn(1, 4, 8))
    assert len(trace.calls) == 3


def test_calls_outside_any_module_have_no_name():
    with watch() as trace:
        attention(*torch.randn(3, 1, 2, 5, 4))
    assert trace.calls[0].name == ""
