"""2^x, log2 x and tanh x against float64, over all kinds of floats, by the bounds that their docstrings state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from processes import printed

STEP = (
    1021  # of all 2^32 floats every so-manieth, NaN, infinities and subnormal numbers among them; odd, so all bits vary
)
COMPUTE = """
    import sys
    import numba
    import numpy as np
    from clearhead.kernels.cpu import powers
    from clearhead.kernels.cpu.vector import LANES, floats_at, load, store

    def compiled(function):
        @numba.njit("void(int64, int64, int64)", error_model="numpy")
        def over(source, target, count):
            for n in range(0, count, LANES):
                store(floats_at(target), n, function(load(floats_at(source), n)))

        return over

    x = np.load(sys.argv[1])
    assert len(x) % LANES == 0
    for name in ("exp2", "log2", "tanh"):
        y = np.empty_like(x)
        compiled(getattr(powers, name))(x.ctypes.data, y.ctypes.data, len(x))
        np.save(f"{sys.argv[2]}/{name}.npy", y)
"""
pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value encountered"
)  # numpy, of comparisons with signalling NaNs
Values = tuple[np.ndarray, dict[str, np.ndarray]]


@pytest.fixture(scope="module", params=["widest", "avx2", "neon"])
def values(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Values:
    """Arguments, and what the three functions make of them with registers of one width."""
    folder: Path = tmp_path_factory.mktemp("powers")
    x = np.arange(0, 2**32, STEP, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = np.float32(
        [0.0, -0.0, 1.0, -126.0, -125.99999, -126.00001, -127.5, 127.49999, 0.625, -0.625, 0.62499994, 2**0.5, 0.5**0.5,
         np.inf, -np.inf, np.nan, 1.1754944e-38, 3.4028235e38]
    )  # fmt: skip
    whole = np.arange(-150, 128, dtype=np.float32)
    x = np.concatenate([x, edges, whole, np.linspace(-150, 128, 500_000, endpoint=False, dtype=np.float32)])
    x = np.resize(x, len(x) // 96 * 96 + 96)  # whole strips of every width: lanes are 32, 24 and 16
    np.save(folder / "x.npy", x)
    forced = {} if request.param == "widest" else {"CLEARHEAD_VECTORS": request.param}
    printed(COMPUTE, str(folder / "x.npy"), str(folder), **forced)
    return x, {name: np.load(folder / f"{name}.npy") for name in ("exp2", "log2", "tanh")}


def units(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Errors in units of the last place of the true value."""
    return np.abs(got.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)


def test_exp2_is_within_its_bound_where_its_result_is_normal(values: Values) -> None:
    x, found = values
    inside = (x >= -126) & (x < 127.5)
    assert inside.sum() > 1_000_000
    worst = units(found["exp2"][inside], np.exp2(x[inside].astype(np.float64))).max()
    assert 0.5 <= worst <= 1.3, f"{worst} units in the last place"


def test_exp2_of_whole_numbers_is_exact(values: Values) -> None:
    x, found = values
    whole = (x >= -126) & (x < 127.5) & (x == np.trunc(x))
    assert whole.sum() > 100
    assert np.array_equal(found["exp2"][whole], 2.0 ** x[whole].astype(np.float64))


def test_exp2_is_zero_below_its_range_and_nan_for_nan(values: Values) -> None:
    x, found = values
    below = x < -126
    assert np.isneginf(x[below]).any()
    assert (found["exp2"][below] == 0).all()
    assert np.isnan(x).any()
    assert np.isnan(found["exp2"][np.isnan(x)]).all()
    assert not np.isnan(found["exp2"][x <= 128]).any()


def test_log2_is_within_its_bound_for_normal_numbers(values: Values) -> None:
    x, found = values
    normal = (x >= np.finfo(np.float32).tiny) & np.isfinite(x)
    exact = np.log2(x[normal].astype(np.float64))
    error = np.abs(found["log2"][normal] - exact)
    assert ((error <= 2e-7) | (units(found["log2"][normal], exact) <= 2)).all(), error.max()


def test_log2_at_the_ends(values: Values) -> None:
    x, found = values
    assert np.isneginf(found["log2"][x == 0]).all()
    assert np.isposinf(found["log2"][np.isposinf(x)]).all()
    assert np.isnan(found["log2"][np.isnan(x)]).all()
    assert not np.isnan(found["log2"][x >= 0]).any()


def test_tanh_is_within_its_bound_everywhere(values: Values) -> None:
    x, found = values
    numbers = ~np.isnan(x)
    exact = np.tanh(x[numbers].astype(np.float64))
    normal = (np.abs(exact) >= np.finfo(np.float32).tiny) | (exact == 0)
    worst = units(found["tanh"][numbers][normal], exact[normal]).max()
    assert worst <= 3, f"{worst} units in the last place"
    tiny = found["tanh"][numbers][~normal]
    assert (np.abs(tiny - exact[~normal]) <= np.finfo(np.float32).tiny).all()


def test_tanh_at_the_ends_is_one_and_nan_stays_nan(values: Values) -> None:
    x, found = values
    assert (found["tanh"][np.isposinf(x)] == 1).all()
    assert (found["tanh"][np.isneginf(x)] == -1).all()
    assert (np.abs(found["tanh"][~np.isnan(x)]) <= 1).all()
    assert np.isnan(found["tanh"][np.isnan(x)]).all()
