from __future__ import annotations

import dataclasses
import errno

import pytest
import torch
from safetensors.torch import save_file

import watch_architectures as made
from clearhead import Observables, attention, tracefile, watch
from clearhead.addresses import Head
from clearhead.errors import InputError
from clearhead.roles import ROLES, looked_up, roles
from clearhead.trace import Call, Trace
from watch_cases import Decoder


def two_layers() -> Trace:
    with watch() as trace:
        for _ in range(2):
            attention(*torch.randn(3, 1, 3, 5, 4))
    return trace


def test_addresses_are_read_as_they_are_printed():
    for layer, head in ((0, 0), (12, 7), (3, 115)):
        assert Head.parse(str(Head(layer, head))) == (layer, head)
    assert Head.parse(" l2h3 ") == (2, 3)


@pytest.mark.parametrize("text", ["", "L2", "2.3", "LxH3", "L-1H0", "L2H3x"])
def test_anything_else_is_no_address(text):
    with pytest.raises(InputError, match=r"expected an address such as L2H3"):
        Head.parse(text)


def test_heads_are_listed_layer_by_layer():
    assert [str(h) for h in two_layers().heads()] == ["L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]


def test_an_unknown_head_is_told_the_range():
    trace = two_layers()
    assert trace.check(Head(1, 2)) == (1, 2)
    with pytest.raises(InputError, match=r"head L1H3: no such head; there are 6, from L0H0 to L1H2"):
        trace.check(Head(1, 3))
    with pytest.raises(InputError, match=r"layer 2: was not observed; observed layers: 0, 1"):
        trace.observation(2)
    with pytest.raises(InputError, match=r"nothing was observed"):
        Trace().check(Head(0, 0))


def test_repr_says_how_much_there_is():
    trace = two_layers()
    trace.token_ids = [1, 2, 3, 4, 5]
    assert repr(trace) == "Trace(2 calls, 6 heads, 5 tokens)"


def watched(ids, *, seed=0, **options):
    torch.manual_seed(seed)
    model = Decoder(layers=2).eval()
    with torch.no_grad(), watch(model, **options) as trace:
        model(torch.as_tensor(ids))
    return trace


def test_the_table_has_a_row_a_head_with_means_and_roles():
    trace = watched([[5, 6, 7, 5, 6, 7, 5]])
    rows = trace.table()
    assert [row["head"] for row in rows] == [str(head) for head in trace.heads()]
    assert rows[5]["module"] == "h.1"
    assert rows[5]["entropy"] == pytest.approx(float(trace[1].entropy[0, 1].mean()), rel=1e-6)
    assert {row["role"] for row in rows} <= {None, *ROLES}
    broad = {str(head): s.score for head, scores in roles(trace).items() for s in scores if s.role == "broad"}
    assert {row["head"]: row["entropy_share"] for row in rows} == pytest.approx(broad, rel=1e-6)  # query 0 in neither
    frame = trace.to_pandas()
    assert list(frame.index) == [row["head"] for row in rows]
    assert frame.loc["L1H1", "entropy"] == rows[5]["entropy"]


@pytest.mark.parametrize("batch", [2, -1])
def test_a_sample_that_is_not_there_is_said_with_how_many_there_are(batch):
    trace = watched([[5, 6, 7], [5, 6, 7]], keep="qk")
    everything = slice(None)
    for ask in (
        lambda: trace.table(batch=batch),
        lambda: trace.to_pandas(batch=batch),
        lambda: trace.top(1, batch=batch),
        lambda: trace.groups(batch=batch),
        lambda: trace.compare(trace, batch=batch),
        lambda: trace.crop("L0H0", everything, everything, batch=batch),
        lambda: trace.rollout(1, batch=batch),
        lambda: roles(trace, batch=batch),
        lambda: looked_up(trace, range(1, 2), batch=batch),
    ):
        with pytest.raises(InputError, match=rf"batch {batch}: the run has 2 texts in a batch, 0 to 1"):
            ask()


def test_xarray_names_every_dimension():
    data = watched([[5, 6, 7, 5]]).to_xarray()
    assert data["entropy_L1"].dims == ("batch_1", "head_4", "query_4")
    assert data["map_mean_L0"].dims == ("batch_1", "head_4", "cell_2_4", "cell_3_4")
    assert float(data["received_L0"].sum()) == pytest.approx(16, rel=1e-5)


def test_top_says_what_a_token_looks_at_by_name():
    trace = watched([[5, 6, 7, 8]])
    trace.pieces = ["a", "b", "c", "d"]
    looked = trace.top(-1, k=2)[Head(1, 3)]
    assert [key.piece for key in looked] == ["abcd"[key.key] for key in looked]
    assert looked[0].weight == pytest.approx(float(trace[1].top_weights[0, 3, 3, 0]))
    assert len(trace.top(0)[Head(0, 0)]) == 1  # the first token sees only itself
    with pytest.raises(InputError, match="token 9: layer 0 read tokens 0 to 3"):
        trace.top(9)


def test_top_names_the_keys_of_another_stream_and_of_another_sample_by_their_own_ids():
    made_t5 = made.t5().eval()
    read, written = torch.randint(3, 64, (2, 8)), torch.randint(3, 64, (2, 5))
    with torch.no_grad(), watch(made_t5) as trace:
        made_t5(input_ids=read, decoder_input_ids=written)
    trace.pieces = [f"w{n}" for n in range(5)]
    for call in trace.calls:
        own = written if call.name.startswith("decoder") and not call.crosses else read
        for sample in (0, 1):
            for looked in trace.top(4, k=2, batch=sample)[call.addresses()[0]]:
                plain = f"‹{int(own[sample, looked.key])}›"
                assert looked.piece == (f"w{looked.key}" if own is written and sample == 0 else plain)


def test_groups_are_shares_of_each_group():
    groups = torch.tensor([0, 0, 1, 1, -1])
    trace = watched([[5, 6, 7, 8, 9]], observables=Observables(key_groups=groups))
    shares = trace.groups(queries=[2, 4])
    assert set(shares) == set(trace.heads())
    for head, share in shares.items():
        row = torch.zeros(5)
        for n in (2, 4):
            looked = trace.top(n, k=5)[head]
            row += torch.zeros(5).index_add(
                0, torch.tensor([x.key for x in looked]), torch.tensor([x.weight for x in looked])
            )
        assert share == pytest.approx([float(row[:2].sum() / 2), float(row[2:4].sum() / 2)], abs=1e-6)


def test_comparing_a_run_with_itself_finds_nothing_and_with_another_finds_the_head():
    trace, same = watched([[5, 6, 7, 8]]), watched([[5, 6, 7, 8]])
    assert max(change.received for change in trace.compare(same).changes) == 0
    values = {name: x.clone() for name, x in same.calls[1].observation.values.items()}
    values["received"][0, 2] = torch.tensor([0.0, 0.0, 0.0, 4.0])
    values["entropy"][0, 2] += 1.5
    other = Trace(
        [same.calls[0], Call("h.1", 1, dataclasses.replace(same[1], values=values), tokens=same.calls[1].tokens)]
    )
    found = trace.compare(other)
    moved = (trace[1].received[0, 2] / 4 - torch.tensor([0, 0, 0, 1.0])).abs().sum() / 2
    assert found.changes[0].head == Head(1, 2)
    assert found.changes[0].received == pytest.approx(float(moved), abs=1e-6)
    assert found.changes[0].entropy == pytest.approx(1.5, abs=1e-5)
    assert "4 tokens compared, of 4 and 4" in str(found)
    assert "L1H2  received" in str(found)


def test_of_several_texts_each_is_compared_with_its_own():
    torch.manual_seed(0)
    model = Decoder(layers=2).eval()
    with torch.no_grad(), watch(model) as trace:
        for ids in ([[5, 6, 7, 8]], [[9, 8, 7, 6]]):
            model(torch.tensor(ids))
    found = trace.compare(trace)
    assert len(found.changes) == 2 * len(trace.heads())
    assert {change.received for change in found.changes} == {0.0}


def test_texts_that_differ_are_compared_where_they_agree():
    found = watched([[5, 6, 7, 8, 9]]).compare(watched([[5, 6, 1, 1, 7, 8, 9]]))
    assert (found.aligned, found.tokens) == (5, (5, 7))
    with pytest.raises(InputError, match="of 3 and 2 tokens, have no token in common"):
        watched([[1, 2, 3]]).compare(watched([[7, 8]]))
    with pytest.raises(InputError, match="no layer in common"):
        watched([[1, 2]]).compare(Trace())
    blind = two_layers()
    with pytest.raises(InputError, match="one run has 5 tokens and the other 2, and which they are is not known"):
        blind.compare(watched([[7, 8]]))


@pytest.mark.parametrize("exact", [False, True])
def test_what_is_saved_is_what_is_loaded(tmp_path, exact):
    trace = watched([[5, 6, 7, 5, 6], [1, 2, 3, 4, 5]])
    trace.pieces = ["<s>", "</script>", "\u202e", "d", "e"]
    trace.save(tmp_path / "trace", exact=exact)
    back = Trace.load(tmp_path / "trace")
    assert (back.token_ids, back.pieces) == (trace.token_ids, trace.pieces)
    for a, b in zip(trace.calls, back.calls, strict=True):
        assert (a.name, a.layer, a.run, a.crosses) == (b.name, b.layer, b.run, b.crosses)
        assert torch.equal(a.query_ids, b.query_ids)
        assert list(a.observation.values) == list(b.observation.values)
        for name, x in a.observation.values.items():
            y = b.observation.values[name]
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            if exact or name in ("entropy", "lse", "top_keys", "visible", "received"):
                assert torch.equal(x, y), name
            else:
                torch.testing.assert_close(x, y, rtol=5e-4, atol=1e-7, msg=name)
    assert [p.name for p in tmp_path.iterdir()] == ["trace"]


def test_a_padded_batch_is_saved_whose_layers_share_their_padding(tmp_path):
    model = made.DECODERS["gpt2"]().eval()
    mask = torch.ones(2, 9).long()
    mask[1, :4] = 0
    with torch.no_grad(), watch(model, keep="qk") as trace:
        model(input_ids=torch.randint(3, 64, (2, 9)), attention_mask=mask)
    assert trace[0].padded.data_ptr() == trace[1].padded.data_ptr()
    trace.save(tmp_path / "run.trace")
    again = Trace.load(tmp_path / "run.trace")
    for layer in (0, 1):
        assert torch.equal(again[layer].padded, ~mask.bool())
        assert torch.equal(again[layer].entropy, trace[layer].entropy)


def test_a_file_that_is_newer_cut_altered_or_something_else_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "trace"
    watched([[5, 6, 7]]).save(path)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(InputError, match="is no safetensors file, or only a part of one"):
        Trace.load(path)
    for at in (len(raw) - 40, raw.index(b"h.1")):  # a measured number, a module's name
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(InputError, match="was altered after it was written, or damaged"):
            Trace.load(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(InputError, match="but not of a trace"):
        Trace.load(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="is no safetensors file"):
        Trace.load(path)
    with pytest.raises(InputError, match="there is no such file"):
        Trace.load(tmp_path / "none")
    monkeypatch.setattr(tracefile, "VERSION", (1, 7))
    watched([[5, 6, 7]]).save(path)
    monkeypatch.undo()
    assert len(Trace.load(path).calls) == 2  # a later minor
    monkeypatch.setattr(tracefile, "VERSION", (2, 0))
    watched([[5, 6, 7]]).save(path)
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"has format version 2\.0, and this clearhead reads up to 1\.x; upgrade"):
        Trace.load(path)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "trace"
    watched([[5, 6, 7]]).save(path)
    before = path.read_bytes()

    def full(tensors, place, metadata):
        place.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(
        InputError, match=r"cannot be written there \(No space left on device\); what was there is as before"
    ):
        watched([[1, 2]]).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["trace"]
    monkeypatch.undo()
    with pytest.raises(InputError, match="cannot be written there"):
        watched([[1, 2]]).save(tmp_path / "no folder" / "trace")


def test_what_a_trace_knows_of_its_text_is_saved_with_it(tmp_path):
    trace = watched([[5, 6, 7, 8, 9]])
    trace.model, trace.prompt, trace.key_groups = "small", 3, ([0, 0, 1, 1, -1], ["one", "</two>"])
    trace.save(tmp_path / "run.trace")
    found = Trace.load(tmp_path / "run.trace")
    assert (found.model, found.prompt, found.key_groups) == ("small", 3, ([0, 0, 1, 1, -1], ["one", "</two>"]))
    fresh = watched([[5, 6]])
    fresh.save(tmp_path / "run.trace")
    found = Trace.load(tmp_path / "run.trace")
    assert (found.model, found.prompt, found.key_groups) == ("Decoder", None, None)
