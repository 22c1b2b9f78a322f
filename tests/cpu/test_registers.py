"""Narrower registers than this processor has, forced: the code that other processors run, as far as this one can run it."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import printed

from clearhead.kernels.cpu import machine

BATTERY = """
    import sys
    import torch
    sys.path.insert(0, sys.argv[1])
    from operation.operation_cases import Case, assert_observed_right, assert_right
    from clearhead import ALiBi, Causal, Documents, Observables, Padding, Prefix, Window
    from clearhead.kernels.cpu.machine import shape

    torch.manual_seed(0)

    def calls(Tq, Tk):
        yield {}
        yield {"mask": Causal(), "softcap": 3.0}
        yield {"mask": Window(70, right=2), "sinks": torch.randn(4)}
        yield {"mask": Documents(torch.randint(0, 3, (2, Tk)), torch.randint(0, 3, (2, Tq)))}
        yield {"mask": Causal() & Padding(torch.tensor([Tk // 2, Tk])), "bias": torch.randn(2, 4, Tq, Tk)}
        yield {"mask": torch.rand(2, 4, Tq, Tk) > 0.3, "bias": torch.randn(1, 4, 1, Tk)}
        yield {"mask": Prefix(5), "bias": ALiBi(4), "scale": -0.4}

    count = 0
    sizes = [(7, 5, 3, 1), (33, 129, 17, 24), (97, 300, 40, 59), (130, 131, 64, 64), (1, 300, 32, 7), (4, 700, 5, 80)]
    for Tq, Tk, D, Dv in sizes:
        for given in calls(Tq, Tk):
            case = Case(torch.randn(2, 4, Tq, D), torch.randn(2, 2, Tk, D), torch.randn(2, 2, Tk, Dv), given)
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                assert_right(case.to(dtype), "cpu")
            observables = Observables(map=7, rows=(0, -1), token_ids=torch.arange(Tk) % 5)
            assert_observed_right(case, observables, "cpu")
            count += 1
    print(shape().name, count)
"""


@pytest.mark.parametrize("name", ["avx2", "neon"])
def test_every_narrower_shape_is_right(name: str) -> None:
    """Compiled once for each change of the kernels, into the usual cache: the name of a file there says the shape too."""
    has = machine.features()
    if name == "avx2" and not (has.get("avx2") and has.get("fma")):
        pytest.skip("this processor has no AVX2")
    tests = str(Path(__file__).parents[1])
    assert printed(BATTERY, tests, timeout=500, CLEARHEAD_VECTORS=name).split()[:2] == [name, "42"]


CALLS = """
    from clearhead.kernels.cpu import build
    for name in build.KERNELS:
        build.kernel(name)
        code = build._read(build.cache_folder() / f"{name}-{build.fingerprint()}.o")
        print(name, [word for word in ("fma", "fmaf", "__extendhfsf2", "__truncsfhf2") if f"\\0{word}\\0".encode() in code])
"""


@pytest.mark.parametrize("name", ["widest", "avx2", "neon"])
def test_no_shape_needs_a_function_for_what_is_one_instruction(name: str) -> None:
    """Machine code is loaded without any library: a call to one would jump to nowhere."""
    if name == "avx2" and not machine.features().get("avx2"):
        pytest.skip("this processor has no AVX2")
    forced = {} if name == "widest" else {"CLEARHEAD_VECTORS": name}
    lines = [line for line in printed(CALLS, **forced).splitlines() if not line.startswith("clearhead:")]
    assert len(lines) >= 3
    assert all(line.endswith(" []") for line in lines), lines
