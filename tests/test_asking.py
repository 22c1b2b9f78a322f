"""A question about documents: shares, what even attention would give, and who looked up the tokens written."""

from __future__ import annotations

import pytest
import torch

from clearhead import Observables, watch
from clearhead.errors import InputError
from clearhead.models import load
from clearhead.roles import looked_up
from clearhead.trace import Trace
from clearhead.viewer import Asked, ask
from clearhead.viewer.asking import _even
from clearhead.viewer.data import Shown
from planted import Planted, uniform
from views import planted_shown


@pytest.fixture(scope="module")
def asked() -> Asked:
    texts = [("a", "The king is dead."), ("b", "The queen lives. Long live the queen.")]
    return ask(load("builtin"), texts, "Who lives?", write=8)


def test_even_attention_is_the_share_of_the_keys_in_sight(asked):
    group = torch.tensor(asked.view.trace.key_groups[0])
    rows = [torch.bincount(group[:t], minlength=5) / t for t in asked.written]
    torch.testing.assert_close(torch.tensor(asked.uniform), torch.stack(rows).mean(0))


def test_it_prints_the_answer_and_a_line_a_group(asked):
    told = str(asked).split("\n")
    names = [line.partition(":")[0] for line in told[-5:]]
    assert "\n".join(told[:-5]) == asked.answer
    assert names == asked.groups == ["a", "b", "first token", "question", "answer"]
    assert told[-4].endswith(f"looked up {int(asked.lookups(1).sum())} times, by chance {asked.by_chance[1]:.0f}")
    assert asked.sizes[:2] == [len(place) for place in asked.places]
    assert sum(asked.sizes) == len(asked.trace.token_ids)
    assert repr(asked) == f"Asked({asked.answer!r}, 2 documents, 24 heads)"


def test_an_answer_about_no_document_is_refused():
    with pytest.raises(InputError, match=r"documents: there are none; give at least one to ask about"):
        ask(load("builtin"), [], "Who lives?")


def test_lookups_by_chance_are_what_even_heads_would_have(asked):
    ids, place = asked.view.trace.token_ids, asked.places[1]
    share = sum(sum(ids[j] == ids[t] for j in place) / t for t in asked.written)
    assert asked.by_chance[1] == pytest.approx(24 * share)


def test_a_window_hides_documents_from_even_attention_too():
    ids = torch.tensor([1, 2, 3, 1, 2, 3, 1, 2])
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    with watch(observables=Observables(token_ids=ids)) as trace:
        from clearhead import Window, attention

        attention(*torch.zeros(3, 1, 2, 8, 4), mask=Window(4))
    shares, chance = _even(trace, ids, groups, range(7, 8), 2)  # query 6 sees keys 3 to 6
    assert shares[:3] == pytest.approx([0, 3 / 4, 1 / 4])
    assert chance == pytest.approx([0, 2 * 1 / 4])


def test_each_lookup_is_the_largest_weight_on_the_token_written(asked):
    seen = asked.looked_up >= 0
    assert seen.any()
    heads = asked.view.trace.heads()
    for h, n in seen.nonzero().tolist():
        at = asked.written[n]
        looked = asked.view.trace.top(at - 1, k=1)[heads[h]][0]
        assert looked.key == asked.looked_up[h, n]
        assert asked.view.trace.token_ids[looked.key] == asked.view.trace.token_ids[at]
    for n in range(2):
        inside = (asked.looked_up >= asked.places[n].start) & (asked.looked_up < asked.places[n].stop)
        assert torch.equal(asked.lookups(n).bool(), inside)
    readers = asked.readers()
    assert [r.looked_up for r in readers] == sorted((r.looked_up for r in readers), reverse=True)


def test_the_viewer_is_told_which_heads_looked_a_token_up(asked):
    found = Shown.of(asked.view).document().facts["lookups"]
    expected = {(t, str(h), k) for h, ks in looked_up(asked.view.trace, asked.written).items()
                for t, k in zip(asked.written, ks, strict=True) if k >= 0}  # fmt: skip
    assert {tuple(look[:3]) for look in found} == expected
    assert [(look[0], -look[3]) for look in found] == sorted((look[0], -look[3]) for look in found)


def test_nothing_is_said_where_nothing_was_written_or_tokens_are_not_known():
    assert planted_shown([1, 2, 3]).document().facts["lookups"] == []
    with watch() as trace:
        Planted([uniform])(torch.arange(9)[None])
    assert Shown(trace, name="unknown", prompt=5).document().facts["lookups"] == []
    assert isinstance(trace, Trace)
