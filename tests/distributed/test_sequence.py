"""A sequence over ranks: one process's numbers, whatever the mask; ranks that disagree raise one error, and none hangs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import world

from clearhead.distributed.layout import Layout

QUERY = "float32 (1, Hq=4, T, D=8) on cpu"


def differs(what: str, first: str, second: str) -> str:
    same = f"{what}: expected the same on every rank, got {first} on rank 0 and {second} on rank 1. "
    return same + "Make the same call on every rank, each with its own part of the sequence."


MEETING = {
    "mask": differs("mask", "Causal()", "Window(keys=4)"),
    "softcap": differs("softcap", "None", "3.0"),
    "scheme": differs("scheme", "heads", "gather"),
    "dtype": differs("query", QUERY, QUERY.replace("32", "64")),
    "heads": differs("query", QUERY, QUERY.replace("Hq=4", "Hq=2")),
    "gradient": differs("query", QUERY, QUERY + ", with gradient"),
    "observables": differs("observables", "Observables(top_k=2)", "Observables(top_k=3)"),
    "call": differs("call", "attention", "observe"),
    "versions": differs("clearhead", "0.1.0", "9.9"),
    "a fault here": "rank 1: key has width 5 but query has 8: they must have the same D",
    "a fault of all": "Documents ids: expected shape (Tk=6,) or (B=1, Tk=6), got (1, 5). ",
    "rows": "rows: expected queries from 0 to Tq - 1 = 5 (or negative, from the end), got 6. ",
    "zigzag": "query: expected [3, 3] positions on the ranks, as zigzag places 6, got [1, 5]. "
    "Cut sequences with clearhead.distributed.split.",
    "heads that ranks do not divide": 'scheme: expected "gather", or a number of key heads that the 2 ranks of the mesh '
    'divide, got "heads" with Hk=3. Use scheme="auto", which takes "gather" then.',
    "a scheme of no name": 'rank 0: scheme: expected "auto" or "heads" or "gather", got \'ring\'. '
    "See docs/scale.md for both.",
    "a DTensor by heads": "rank 0: query: expected a DTensor with Shard(2), its sequence, over 'sequence' and replicated "
    "otherwise, got (Shard(dim=1),) over ('sequence',). "
    "Redistribute it, or give this rank's positions as a plain tensor.",
    "a DTensor that is whole": "rank 0: query: expected a DTensor with Shard(2)",
    "a dimension of no name": "dim: expected the name of one of the mesh's dimensions ('batch', 'tokens'), got 'sequence'. "
    'Name them: init_device_mesh("cuda", (2, 4), mesh_dim_names=("batch", "sequence")).',
    "parts of another length": "x: expected this rank's 5 of 10 positions in dimension -2, got (1, 2, 4, 3). "
    "Give what split() returned, with the same axis and placement.",
}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_sequence_over_ranks_gives_what_one_process_gives(ranks: int, tmp_path: Path) -> None:
    found = world.run("sequence_program.py", ranks, tmp_path)
    assert len(found[0]) >= (25 if ranks == 4 else 120)
    wrong = {f"rank {rank}, {name}": text for rank, of in enumerate(found) for name, text in of.items() if text}
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())


@pytest.fixture(scope="module")
def meeting(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return world.run("meeting_program.py", 2, tmp_path_factory.mktemp("meeting"))


@pytest.mark.parametrize("name", MEETING)
def test_ranks_that_disagree_raise_the_same_error(name: str, meeting: list[dict[str, Any]]) -> None:
    assert meeting[0][name] == meeting[1][name]
    assert meeting[0][name].startswith("ArgumentError: " + MEETING[name])


def test_masks_with_other_numbers_are_told_apart(meeting: list[dict[str, Any]]) -> None:
    assert meeting[0]["documents"] == meeting[1]["documents"]
    assert "mask: expected the same on every rank, got Documents(ids=int64 (6,) #" in meeting[0]["documents"]


def test_ranks_are_in_step_after_errors_and_a_rank_that_does_not_come_is_not_waited_for(
    meeting: list[dict[str, Any]],
) -> None:
    assert meeting[0]["after"] == meeting[1]["after"] == "(1, 4, 3, 8)"
    assert meeting[0]["late"].startswith(
        "RanksError: attention: expected all 2 ranks of the mesh to meet within 0.5 s, got no answer from some on rank 0 ("
    )
    assert meeting[0]["late"].endswith("every rank must make every call.")
    assert meeting[0]["waited"] == "True"


def test_dtensors_go_in_and_come_out(meeting: list[dict[str, Any]]) -> None:
    assert [of["dtensors"] for of in meeting] == ["", ""]


def test_gradients_of_what_was_measured_are_refused_and_not_lost(meeting: list[dict[str, Any]]) -> None:
    assert [of["gradients"] for of in meeting] == [
        "backward: expected a loss of the output, got entropy, which was measured over the ranks of a mesh and carries no "
        "gradients. Use detach(), or observe the whole sequence in one process."
    ] * 2


@pytest.mark.parametrize("length", [0, 1, 3, 7, 8, 17, 100])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_position_is_held_once_and_zigzag_is_even(length: int, ranks: int) -> None:
    for placement in ("contiguous", "zigzag"):
        layout = Layout.even(length, ranks, placement)
        held = [layout.positions(rank) for rank in range(ranks)]
        assert torch.cat(held).sort().values.tolist() == list(range(length))
        assert [len(x) for x in held] == list(layout.lengths)
        sizes = [len(chunk) for chunk in torch.arange(length).chunk(ranks)]
        if placement == "contiguous":
            assert [n for n in layout.lengths if n] == [n for n in sizes if n]
        else:
            work = [int((x + 1).sum()) for x in held]  # pairs under a causal mask
            assert max(work) - min(work) <= 2 * (length + 1)
            assert max(layout.lengths) - min(layout.lengths) <= 2


REFUSED = {
    "a bias": "mesh: expected a model that says where tokens stand by rotary or learned positions, got a bias made for this "
    "rank's part of the sequence. "
    "Call clearhead.distributed.observe with the bias of the whole where the model calls attention.",
    "a cache": "mesh: expected calls in which a rank's queries and keys are the same positions, got one of 2 queries and 6 "
    "keys. Run without a cache, and watch cross-attention in one process.",
    "no mask": "mask: expected the mask of the whole sequence, beside mesh, got None. "
    "Say it: watch(model, mesh=mesh, mask=Causal()), or mask=All() where everybody sees everybody.",
    "keep": "keep: expected None beside mesh: no rank has all queries and keys, got 'qk'. "
    "Ask for what is needed in observables, such as rows=[-1].",
}


def test_a_model_over_ranks_is_watched_whole(tmp_path: Path) -> None:
    for found in world.run("watch_program.py", 2, tmp_path):
        assert not any(found["same"].values())
        assert len(found["same"]) == 7
        assert found["refused"] == REFUSED
