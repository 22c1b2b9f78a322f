"""Quantiles from a sketch are as near as it says, and adding sketches loses nothing."""

from __future__ import annotations

import numpy as np
import pytest

from clearhead.survey.sketch import BUCKETS, RELATIVE_ERROR, Scale

SCALES = {"weights": Scale(-20, 20), "logits": Scale(-10, 10, signed=True), "distances": Scale(-4, 16, signed=True)}
SHARES = [0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0]


@pytest.mark.parametrize("name", SCALES)
def test_quantiles_are_within_the_stated_error(name: str) -> None:
    scale = SCALES[name]
    generator = np.random.default_rng(0)
    x = np.exp2(generator.uniform(scale.low, scale.high, 10_000)).astype(np.float32)
    if scale.signed:
        x *= generator.choice([-1, 1], len(x)).astype(np.float32)
    places, counts = np.unique(scale.places(x), return_counts=True)
    assert 0 <= places.min() <= places.max() < BUCKETS
    ordered = np.sort(x.astype(np.float64))
    for share, found in zip(SHARES, scale.quantiles(places, counts, SHARES), strict=True):
        true = ordered[min(max(1, int(np.ceil(share * len(x)))), len(x)) - 1]
        assert abs(found - true) <= RELATIVE_ERROR * abs(true) * (1 + 1e-12)
    # and the bound is tight: some number comes near it
    assert (np.abs(scale.value(scale.places(x)) - x) / np.abs(x)).max() > 0.9 * RELATIVE_ERROR


def test_tiny_huge_and_odd_numbers_have_buckets() -> None:
    odd = np.array([0.0, -0.0, 1e-30, 1e30, np.inf, np.nan, -5.0], np.float32)
    assert SCALES["weights"].places(odd).tolist() == [0, 0, 0, 1280, 1280, 1280, 0]
    assert SCALES["logits"].places(odd)[[0, 3, 6]].tolist() == [640, 1280, 640 - SCALES["logits"].places(-odd)[6] + 640]
    assert np.isnan(SCALES["weights"].quantiles(np.array([], np.int64), np.array([], np.int64), [0.5])[0])
