"""One sample of a padded batch, as a page shows it: its own weights, and means over its own tokens alone."""

from __future__ import annotations

import math

import pytest
import torch

from clearhead import Causal, Observables, Padding, attention, watch
from clearhead.trace import Trace
from clearhead.viewer import Shown
from clearhead.viewer.questions import Gallery

LENGTHS = (9, 6)


def batch(*, sinks: torch.Tensor | None = None) -> Trace:
    """Two texts of 9 and 6 tokens, the shorter one filled up."""
    q, k, v = torch.randn(3, 2, 2, 9, 4)
    wanted = Observables(distance_histogram=True)
    with watch(observables=wanted, keep="qk") as trace:
        attention(q, k, v, mask=Causal() & Padding(torch.tensor(LENGTHS)), sinks=sinks)
    return trace


@pytest.mark.parametrize("sample", [0, 1])
def test_weights_are_the_samples_own(sample):
    trace = batch()
    shown = Shown(trace, name="batch", sample=sample)
    for head in shown.heads:
        own = trace.calls[0].pattern.crop(slice(None), slice(None))[sample, head.head]
        values = shown.crop(head, slice(0, 9), slice(0, 9)).arrays["values"]
        torch.testing.assert_close(torch.from_numpy(values), own)
        assert not torch.equal(own, trace.calls[0].pattern.crop(slice(None), slice(None))[1 - sample, head.head])


def test_how_far_maps_of_two_runs_differ_is_the_mean_over_their_cells():
    one, other = (Shown(batch(), name=name) for name in ("one", "other"))
    moved = Gallery([one, other]).ask("compare", {"a": "0", "b": "1"}).facts["moved"]
    for head in one.heads:
        wanted = (one.map(head) - other.map(head)).abs().mean()
        assert moved[str(head)] == pytest.approx(float(wanted), abs=2e-5)  # maps travel in 16 bits


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, 1.0])], ids=["no sinks", "sinks"])
@pytest.mark.parametrize("sample", [0, 1])
def test_what_uniform_attention_has_is_a_mean_over_tokens_that_are_no_padding(sample, sinks):
    shown = Shown(batch(sinks=sinks), name="batch", sample=sample)
    nulls = shown.document().facts["layers"][0]["nulls"]
    places = [n + 1 + (sinks is not None) for n in range(LENGTHS[sample])]  # a sink is one more place for the weight
    assert nulls["entropy"] == pytest.approx(sum(map(math.log, places)) / len(places))
    assert nulls["max_weight"] == pytest.approx(sum(1 / n for n in places) / len(places))
    histogram = shown.strips(shown.heads[0]).arrays["histogram_null"]
    own = sum(1 / (n + 1) for n in range(LENGTHS[sample])) / LENGTHS[sample]
    assert histogram[0] == pytest.approx(own)  # on itself
    assert histogram.sum() == pytest.approx(1)
