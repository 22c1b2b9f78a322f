"""Switching acceleration on and off: nested, from threads, after errors, counted, and refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.utils.checkpoint
from accelerated import home, inputs, with_gradients
from torch.nn.functional import scaled_dot_product_attention as sdpa

from clearhead import accelerate
from clearhead.errors import ArgumentError, ImplementationError


def test_undone_it_is_as_if_it_had_never_been() -> None:
    args = inputs()
    wanted = with_gradients(args, is_causal=True)
    for _ in range(3):
        with accelerate():
            sdpa(*args)
    for x, y in zip(with_gradients(args, is_causal=True), wanted, strict=True):
        assert torch.equal(x, y)


@pytest.mark.tiny
def test_a_switch_without_a_block(ran: Counter[str]) -> None:
    handle = accelerate()
    assert repr(handle) == f"<accelerate(impl={handle.impl!r}), in force: 0 calls, 0 handed back>"
    sdpa(*inputs())
    assert repr(handle) == f"<accelerate(impl={handle.impl!r}), in force: 1 call, 0 handed back>"
    handle.undo()
    handle.undo()
    assert repr(handle) == f"<accelerate(impl={handle.impl!r}), undone: 1 call, 0 handed back>"
    sdpa(*inputs())
    assert handle.calls == 1
    assert ran["forward"] == 1
    with (
        pytest.raises(ArgumentError, match="accelerate: expected a handle that is in force, got one that was undone"),
        handle,
    ):
        pass


def test_a_handle_counts_the_calls_of_its_own_time_and_those_handed_back() -> None:
    exact = tuple(t.double() for t in inputs())
    with accelerate() as outer:
        sdpa(*inputs())
        sdpa(*exact)
        with accelerate() as inner:
            sdpa(*inputs())
        assert (inner.calls, inner.handed_back) == (1, 0)
        sdpa(*exact)
        assert (inner.calls, inner.handed_back) == (1, 0)  # it has left
    assert (outer.calls, outer.handed_back) == (2, 2)
    with accelerate() as later:
        assert (later.calls, later.handed_back) == (0, 0)


def test_a_handle_says_why_calls_were_handed_back_or_that_none_came(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs()
    monkeypatch.setattr(home, "SMALL", {torch.float32: q.numel() * k.shape[2]})
    with accelerate() as handle:
        sdpa(q, k, v)
        sdpa(q[:, :, 1:], k, v)
        for _ in range(2):
            sdpa(*(t.double() for t in (q, k, v)))
        with pytest.raises(RuntimeError, match="same data type as query"):  # PyTorch's to refuse
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=torch.zeros(33, 33).double())
    assert handle.reasons == {"small": 1, "dtype": 2, "unusual": 1}
    assert handle.handed_back == 4
    said = "undone: 1 call, 4 handed back (1 small, 2 dtype, 1 unusual)>"
    assert repr(handle) == f"<accelerate(impl={handle.impl!r}), {said}"
    with accelerate() as nothing:
        sdpa(q, k, v, dropout_p=0.5)  # by a formula of PyTorch's own
    said = "undone: 0 calls, 0 handed back; no attention came by>"
    assert repr(nothing) == f"<accelerate(impl={nothing.impl!r}), {said}"


@pytest.mark.parametrize("outer_first", [True, False])
def test_nested_uses_end_with_the_last(outer_first: bool, ran: Counter[str]) -> None:
    outer, inner = accelerate(), accelerate()
    for n, handle in enumerate((outer, inner) if outer_first else (inner, outer)):
        sdpa(*inputs())
        assert ran["forward"] == n + 1
        handle.undo()
    sdpa(*inputs())
    assert ran["forward"] == 2


def test_an_exception_inside_leaves_nothing_installed() -> None:
    with pytest.raises(KeyError), accelerate():
        raise KeyError


def test_an_exception_of_a_kernel_reaches_the_caller_and_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError("no room")

    args = inputs()
    wanted = sdpa(*args)
    monkeypatch.setattr(home.select, "kernels", lambda _: home.select.Kernels(fails, fails, fails))
    with accelerate(), pytest.raises(MemoryError, match="no room"):
        sdpa(*args)
    assert torch.equal(sdpa(*args), wanted)


def test_half_an_installation_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.library.Library.impl

    def only_the_first(self: Any, name: str, *args: Any, **options: Any) -> None:
        if name == home.BACKWARD:
            raise RuntimeError("the dispatcher is full")
        real(self, name, *args, **options)

    monkeypatch.setattr(torch.library.Library, "impl", only_the_first)
    with pytest.raises(RuntimeError, match="the dispatcher is full"):
        accelerate()


def test_what_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"impl: expected one of .* got 'fast'"):
        accelerate(impl="fast")
    with pytest.raises(ImplementationError, match='impl: expected an implementation made for speed, got "reference"'):
        accelerate(impl="reference")
    with (
        accelerate(impl="tiled"),
        pytest.raises(ArgumentError, match=r'expected "tiled", which this .* already, got "reference"'),
    ):
        accelerate(impl="reference")
    monkeypatch.setenv("CLEARHEAD_IMPL", "reference")
    with pytest.raises(ImplementationError, match="Unset CLEARHEAD_IMPL"):
        accelerate()
    monkeypatch.delenv("CLEARHEAD_IMPL")
    monkeypatch.delattr(torch.library, "get_kernel")
    with pytest.raises(ImplementationError, match=rf"expected PyTorch 2.9 or newer, .* got {torch.__version__[:4]}"):
        accelerate()


def test_all_threads_are_accelerated_and_may_overlap(ran: Counter[str]) -> None:
    """Eight threads enter and leave as they please, and every result is right."""
    args = inputs()
    wanted = sdpa(*args, is_causal=True)
    wrong: list[object] = []

    def work() -> None:
        try:
            for _ in range(12):
                with accelerate():
                    torch.testing.assert_close(sdpa(*args, is_causal=True), wanted)
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    with accelerate():
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert ran["forward"] == 8 * 12


def test_switching_while_others_compute_breaks_nothing() -> None:
    args = inputs()
    wanted = sdpa(*args, is_causal=True)
    done, wrong = threading.Event(), []

    def work() -> None:
        try:
            while not done.is_set():
                torch.testing.assert_close(sdpa(*args, is_causal=True), wanted)
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        with accelerate():
            sdpa(*args)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_said_and_nothing_hangs_at_exit() -> None:
    code = (
        "import torch, clearhead\n"
        "clearhead.accelerate()\n"
        "x = torch.randn(1, 2, 5, 8, requires_grad=True)\n"
        "torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
