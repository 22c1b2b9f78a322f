"""Times are taken in turns and summarised round by round; a clock that the test moves shows it to the digit."""

from __future__ import annotations

import pytest
import torch

from clearhead.bench import machine
from clearhead.bench.measure import Spread, interleave, ratio, repeats_for, rounds_for, spread


class Clock:
    """Stands still until somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, *seconds: float, then=None):
        """A call that takes these times one after the other, the last for ever; `then` is done after each."""
        left = list(seconds)

        def call() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]
            if then is not None:
                then()

        return call


def test_candidates_take_turns():
    clock, order = Clock(), []
    calls = {name: clock.work(1.0, then=lambda name=name: order.append(name)) for name in "AB"}
    timed = interleave(calls, {"A": 1, "B": 1}, 3, clock=clock)
    assert order == ["A", "B"] * 3
    assert timed.seconds == {"A": [1.0] * 3, "B": [1.0] * 3}
    assert (timed.rounds, timed.interrupted) == (3, False)


def test_a_short_call_is_repeated_and_its_first_run_is_not_counted():
    clock = Clock()
    timed = interleave({"short": clock.work(64.0, 1.0, 1.0, 1.0, 5.0)}, {"short": 4}, 1, clock=clock)
    assert timed.seconds == {"short": [2.0]}


def test_a_candidate_with_threads_of_its_own_is_rested_before_and_that_is_not_counted():
    clock, slept = Clock(), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds

    calls = {"A": clock.work(1.0), "B": clock.work(2.0)}
    timed = interleave(calls, {"A": 1, "B": 1}, 2, rest={"A": 0.0, "B": 0.5}, clock=clock, sleep=sleep)
    assert slept == [0.5, 0.5]
    assert timed.seconds == {"A": [1.0, 1.0], "B": [2.0, 2.0]}


def test_an_interrupt_keeps_the_rounds_that_are_whole():
    clock, runs = Clock(), []

    def stop() -> None:
        runs.append(1)
        if len(runs) == 3:
            raise KeyboardInterrupt

    calls = {"A": clock.work(1.0), "B": clock.work(2.0, then=stop)}
    timed = interleave(calls, {"A": 1, "B": 1}, 9, clock=clock)
    assert timed.interrupted
    assert timed.rounds == 2
    assert timed.seconds == {"A": [1.0, 1.0], "B": [2.0, 2.0]}


def test_progress_counts_rounds():
    told: list[int] = []
    interleave({"A": lambda: None}, {"A": 1}, 3, progress=told.append)
    assert told == [1, 2, 3]


def test_a_spread_is_median_and_the_outer_tenths():
    assert spread([float(n) for n in range(1, 12)]) == Spread(6.0, 2.0, 10.0)
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0)
    assert spread([1.0, 3.0]) == pytest.approx((2.0, 1.2, 2.8))


def test_ratios_are_taken_within_a_round():
    """The machine was ten times slower in the second round, for both: that changes no ratio of that round."""
    assert ratio([1.0, 40.0, 9.0], [1.0, 10.0, 2.0]).median == 4.0  # of 1, 4, 4.5; the medians alone would say 9 / 2


@pytest.mark.parametrize(("seconds", "rounds"), [(0.01, 21), (30 / 21, 21), (2.0, 15), (9.0, 5)])
def test_slow_cases_get_fewer_rounds_but_never_few(seconds, rounds):
    assert rounds_for(seconds, 30.0) == rounds


def test_short_calls_are_repeated():
    assert [repeats_for(s) for s in (1.0, 0.005, 0.002, 1e-5, 1e-6, 0.0)] == [1, 1, 3, 500, 500, 500]


def test_the_limit_is_what_the_kernel_of_multiply_adds_did_at_its_best(monkeypatch):
    from clearhead.kernels.cpu import run

    clock = Clock()
    took = iter([9.0] + [2.0] * 5 + [0.5] + [2.0] * 99)

    def multiply_adds(rounds) -> int:
        clock.now += next(took)
        return 3 * rounds

    monkeypatch.setattr(run, "multiply_adds", multiply_adds)
    monkeypatch.setattr(machine, "ROUNDS", 1000)
    assert machine.fma_peak(clock) == pytest.approx(3 * 1000 / 0.5 / 1e9)


def test_the_kernel_of_multiply_adds_counts_two_operations_for_each():
    from clearhead.kernels.cpu import run
    from clearhead.kernels.cpu.machine import CHAINS, shape

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert run.multiply_adds(1000) == 2 * 1000 * CHAINS * shape().width
    torch.set_num_threads(threads)


def test_without_numba_a_limit_is_the_best_of_its_tries_at_products(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(machine.select, "why_not_cpu", lambda _: "numba is not installed")
    monkeypatch.setattr(machine, "PRODUCT", 10)
    monkeypatch.setattr(machine, "READ", 1000)
    took = iter([9.0] + [2.0] * 5 + [0.5] + [2.0] * 99)  # the first is for warming up

    def product(a, b, out) -> None:
        clock.now += next(took)

    monkeypatch.setattr("torch.mm", product)
    assert machine.fma_peak(clock) == 2 * 10**3 / 0.5 / 1e9


def test_limits_are_measured_with_one_and_with_all_threads(monkeypatch):
    import torch

    monkeypatch.setattr(machine, "fma_peak", lambda clock, tries=0: 100.0 * torch.get_num_threads())
    monkeypatch.setattr(machine, "read_bandwidth", lambda clock, tries=0: 10.0 + torch.get_num_threads())
    torch.set_num_threads(2)
    found = machine.measure_machine()
    assert (found.fma_gflops_one, found.fma_gflops, found.read_gbs_one, found.read_gbs) == (100.0, 200.0, 11.0, 12.0)
    assert torch.get_num_threads() == found.threads == 2
    assert found.cpu


def test_limits_only_rise_when_they_are_measured_again(monkeypatch):
    first = machine.Machine("a CPU", 2, 2, "AVX2", 50.0, 100.0, 10.0, 20.0)
    monkeypatch.setattr(machine, "fma_peak", lambda clock, tries: 90.0)
    monkeypatch.setattr(machine, "read_bandwidth", lambda clock, tries: 30.0)
    again = machine.measure_again(first)
    assert (again.fma_gflops, again.read_gbs) == (100.0, 30.0)
    assert (again.fma_gflops_one, again.read_gbs_one, again.cpu) == (50.0, 10.0, "a CPU")


def test_all_threads_are_never_said_to_do_less_than_one(monkeypatch):
    """As it would look while somebody else keeps the other cores busy."""
    import torch

    monkeypatch.setattr(machine, "fma_peak", lambda clock: 100.0 / torch.get_num_threads())
    monkeypatch.setattr(machine, "read_bandwidth", lambda clock: 10.0 / torch.get_num_threads())
    torch.set_num_threads(2)
    found = machine.measure_machine()
    assert (found.fma_gflops, found.read_gbs) == (100.0, 10.0)


def test_threads_are_put_back_after_an_error():
    import torch

    def interrupted() -> None:
        with machine.using_threads(1):
            assert torch.get_num_threads() == 1
            raise KeyboardInterrupt

    torch.set_num_threads(2)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert torch.get_num_threads() == 2
