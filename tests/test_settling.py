"""What outlives a call stands in memory of its own, unchanged."""

from __future__ import annotations

import torch

from clearhead.settling import LEAST, settled


def test_tensors_stay_what_they_are_side_by_side_in_one_piece_of_memory() -> None:
    given = {
        "floats": torch.randn(3, 5000).T,
        "ints": torch.arange(7000).view(7, 1000),
        "bools": torch.rand(11) > 0.5,
        "none": torch.zeros(0, 4),
        "half": torch.randn(129).bfloat16(),
    }
    found = settled(given)
    assert list(found) == list(given)
    for name, x in given.items():
        assert torch.equal(found[name], x), name
        assert found[name].dtype == x.dtype, name
    places = {found[n].untyped_storage().data_ptr() for n in ("floats", "ints", "bools", "half")}
    assert len(places) == 1
    assert places.isdisjoint(x.untyped_storage().data_ptr() for x in given.values())
    found["ints"][0, 0] = 5  # it can be written to, and the others do not see it
    assert given["ints"][0, 0] == 0
    assert torch.equal(found["floats"], given["floats"])


def test_little_is_left_where_it_is() -> None:
    x = torch.randn(LEAST // 8)
    assert settled({"x": x})["x"] is x


def test_what_was_measured_carries_no_graph() -> None:
    x = torch.randn(LEAST, requires_grad=True)
    assert not settled({"x": x * 2})["x"].requires_grad
