"""Every number of the lesson is what its code gives, on the reader's settings, and the seed script's with the defaults."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from lessons import LESSONS, SENTENCE, blocks, lesson, value
from torch.utils.flop_counter import FlopCounterMode

from clearhead import ladder
from clearhead.errors import InputError
from clearhead.ladder.example import projected
from clearhead.lesson import Settings, costs, experiments, play
from clearhead.lesson.blocks import Equal, Grids, Ran, Say, Table, Try, written
from clearhead.lesson.settings import words

PRINTED = (Path(__file__).parents[1] / "ladder" / "seed_figures.txt").read_text(encoding="utf-8")
SEED = dict(re.findall(r"^# (.+)\n((?:.+\n)+)", PRINTED, flags=re.MULTILINE))
NUMBER = re.compile(r"-?(?:inf|\d+\.?\d*)")
FIGURES = {  # the matrix on the page, and what the seed script calls it
    "x[0]": "x[0]",
    "one.out[0]": "rung 1: out[0]",
    "small.total": "in small: total",
    "small.tril": "in small: tril",
    "small.weights": "in small: weights",
    "small.out": "in small: out",
    "two.out[0]": "rung 2: out[0]",
    "three.scores": "rung 3: scores",
    "three.weights": "rung 3: weights",
    "three.out[0]": "rung 3: out[0]",
    "four.scores[0]": "rung 4: scores[0]",
    "four.masked[0]": "rung 4: masked[0]",
    "four.weights[0]": "rung 4: weights[0]",
}


@pytest.mark.tiny
@pytest.mark.parametrize("shown", FIGURES)
def test_the_default_numbers_are_those_of_the_seed_script_digit_for_digit(shown: str) -> None:
    found = next(item for _, grids in blocks("default", Grids) for item in grids.items if item.name == shown)
    printed = NUMBER.findall(SEED[FIGURES[shown]])
    ours = [written(v, found.decimals) for row in found.values for v in row]
    assert found.decimals == 4
    assert len(printed) == len(ours)
    for seed, own in zip(printed, ours, strict=True):
        decimals = len(seed.partition(".")[2])  # the seed writes whole numbers without them
        assert seed.rstrip(".") == (own[: len(own) - 4 + decimals].rstrip(".") if own != "-inf" else own)


@pytest.mark.parametrize("name", LESSONS)
def test_every_matrix_is_what_its_code_gives(name: str) -> None:
    for page, grids in blocks(name, Grids):
        for item in grids.items:
            given = value(name, page, item.code or item.name)
            torch.testing.assert_close(torch.tensor(item.values), given, rtol=0, atol=0, equal_nan=True)
            for labels, size in ((item.rows, given.shape[0]), (item.columns, given.shape[1])):
                assert len(labels) in (0, size), item.name


@pytest.mark.parametrize("name", LESSONS)
def test_every_equality_holds_and_is_what_its_code_gives(name: str) -> None:
    for page, equal in blocks(name, Equal):
        assert equal.holds, (page.key, equal)
        assert float(value(name, page, equal.code)) == equal.difference, (page.key, equal.what)
        assert equal.least <= 1e-3


def test_an_equality_that_fails_says_so() -> None:
    assert not Equal("this and that", "0", 3e-5).holds


def test_every_rung_from_the_second_on_is_equal_to_the_one_before() -> None:
    with_one = {page.key for page, _ in blocks("default", Equal)}
    assert {"2", "3", "4", "5", "6", "7", "8"} <= with_one


def prose(key: str, name: str = "default") -> str:
    return "\n".join(block.text for page, block in blocks(name, Say) if page.key == key)


def cells(key: str) -> list[tuple[str, ...]]:
    return [row for page, table in blocks("default", Table) if page.key == key for row in table.rows]


def test_the_mean_checked_by_hand_is_the_mean() -> None:
    for name in LESSONS:
        total, n, result = re.search(r"first column: \((.+)\) / (\d+) = (-?[\d.]+)\.", prose("1", name)).groups()
        terms = [float(t) for t in re.findall(r"-?\d+\.\d+", total)]
        assert len(terms) == int(n)
        assert sum(terms) / len(terms) == pytest.approx(float(result), abs=1.1e-4)


def test_the_weight_that_is_read_is_in_the_matrix() -> None:
    said = prose("4")
    i, j, dot, D, score, power, total, weight = re.search(
        r"token (\d+) hears token (\d+) most. Their dot product is ([-\d.]+); divided by √(\d+) it is the score "
        r"([-\d.]+)\. e\^\([-\d.]+\) = ([\d.]+), and divided by ([\d.]+), the sum of its row, that is the weight ([\d.]+)\.",
        said,
    ).groups()
    with torch.no_grad():
        four = ladder.single_head(*projected())
    assert int(i) == 7
    assert int(j) == int(four.weights[0, 7].argmax())
    assert float(dot) == pytest.approx(float(four.q[0, 7] @ four.k[0, int(j)]), abs=1e-4)
    assert float(score) == pytest.approx(float(dot) / math.sqrt(int(D)), abs=1e-4)
    assert float(power) == pytest.approx(math.exp(float(score)), abs=2e-4)
    assert float(weight) == pytest.approx(float(power) / float(total), abs=1e-4)
    assert float(weight) == pytest.approx(float(four.weights[0, 7, int(j)]), abs=1e-4)


def test_softmax_of_four_scores_by_hand() -> None:
    rows = cells("3")
    total = sum(float(power) for _, power, _ in rows)
    assert f"here {total:.3f}" in prose("3")
    for score, power, weight in rows:
        assert float(power) == pytest.approx(math.exp(float(score)), abs=5.1e-4)
        assert float(weight) == pytest.approx(float(power) / total, abs=5.1e-4)
    assert sum(float(weight) for *_, weight in rows) == pytest.approx(1, abs=1e-9)


def test_variance_is_d_times_the_square_of_the_scale() -> None:
    for D in (4, 64):
        for scale in (1.0, D**-0.5, 1 / D):
            assert experiments.spread(D, scale).variance == pytest.approx(D * scale**2, rel=0.02)
    by_c = float(re.search(r"variance ([\d.]+) where", prose("4a")).group(1))
    assert by_c == pytest.approx(64 / 512, rel=0.02)
    for D, plain, scaled, wrong in cells("4a"):
        for cell, scale in ((plain, 1.0), (scaled, int(D) ** -0.5), (wrong, 1 / int(D))):
            seen = experiments.spread(int(D), scale)
            variance, strongest = cell.split(" / ")
            assert float(variance) == pytest.approx(seen.variance, abs=0.006)
            assert strongest == f"{seen.strongest:.0%}"


def test_an_encoder_is_rung_4_without_the_mask() -> None:
    example = projected()
    four = ladder.single_head(*example)
    assert torch.equal(experiments.encoder_head(*example).weights, torch.softmax(four.scores, dim=-1))
    decoder, encoder = cells("4c")
    assert decoder[1] == "0.0000"
    assert float(encoder[1]) > 0.1


def test_the_table_of_caches_and_of_wrong_groups() -> None:
    assert [row[2] for row in cells("5a") if "MiB" in row[2]] == ["4,096 MiB", "1,024 MiB", "128 MiB"]
    wrong = [row for row in cells("5a") if len(row) == 4]
    assert [row[3] == "0.0000" for row in wrong] == [True, False, False, True]


def test_a_large_weight_can_carry_little() -> None:
    rows = [row for row in cells("5b") if len(row) == 4]
    weight, share = float(rows[3][1].rstrip("%")), float(rows[3][3].rstrip("%"))
    assert weight > 15 > 1 > share
    assert f"a weight of {weight}% and brings {share}%" in prose("5b")
    assert sum(float(row[3].rstrip("%")) for row in rows) == pytest.approx(100, abs=0.4)


def test_the_walk_of_rung_6_ends_with_the_sum_of_its_row() -> None:
    _page, table = next((p, t) for p, t in blocks("default", Table) if p.key == "6")
    query, head = re.search(r"Query (\d+) of head (\d+)", table.caption).groups()
    row = Settings().heads.masked[0, int(head), int(query)]
    assert float(table.rows[-1][2]) == pytest.approx(float(row.max()), abs=1e-4)
    assert float(table.rows[-1][4]) == pytest.approx(float((row - row.max()).exp().sum()), abs=1e-4)
    assert float(table.rows[1][3]) < 1, "the head whose largest score rises was to be shown"


def test_rung_8_hides_what_rung_5_lets_through() -> None:
    assert ("rung 5: weights @ v", "7 of 7") in cells("8")
    assert ("rung 8: library_kernel(q, k, v)", "0 of 7") in cells("8")


def test_the_real_head_is_named_with_its_role_and_example() -> None:
    assert "Here is head L2H1" in prose("9")
    assert "**induction**" in prose("9")
    assert "Take the last token, `·is`. It gives 99% to token 4, `·dead`" in prose("9")
    assert "It cuts your text into tokens" in prose("9", "text")
    assert SENTENCE in next(block.code for page, block in blocks("text", Ran) if page.key == "9")


@pytest.mark.parametrize(("T", "number"), [(T, n) for T in (5, 16) for n in range(1, 8)])
def test_operations_are_those_that_really_happen(T: int, number: int) -> None:
    given = costs._inputs(number, T)
    with FlopCounterMode(display=False) as flops, torch.no_grad():
        costs._RUNGS[number](*given)
    counted = flops.get_total_flops() // 2
    if number == 1:  # additions, no products
        assert (counted, costs.operations(1, T)) == (0, 2 * T * (T + 1) // 2)
    elif number == 5:  # its three layers are left out of the count
        assert counted - T * 32 * 16 * (4 + 2 + 2) == costs.operations(5, T)
    else:
        assert counted == costs.operations(number, T)


def test_only_rungs_2_to_5_make_a_tensor_that_grows_with_t_times_t() -> None:
    largest = {n: [costs._largest(costs._RUNGS[n], costs._inputs(n, T)) for T in (32, 64)] for n in range(1, 9)}
    grows = {n: after / before for n, (before, after) in largest.items()}
    assert {n for n, factor in grows.items() if factor > 3} == {2, 3, 4, 5}
    assert all(grows[n] == 2 for n in (1, 6, 7, 8))


def test_a_cost_has_a_point_for_every_length_and_a_comparison_from_rung_2_on() -> None:
    one, two = costs.cost(1, (4, 8)), costs.cost(2, (4, 8))
    assert [p.tokens for p in two.points] == [4, 8]
    assert one.beside == ""
    assert two.beside == "rung 1"
    assert all(p.seconds > 0 and p.beside is not None and p.beside > 0 for p in two.points)


def test_what_is_compared_by_time_gives_the_same_result() -> None:
    given = costs._inputs(6, 9)
    five = costs._five(*costs._inputs(5, 9))
    torch.testing.assert_close(ladder.online_softmax(*given).out, five.heads)
    torch.testing.assert_close(
        torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True, enable_gqa=True), five.heads
    )


def tries(key: str, kind: str) -> dict:
    return next(block.data for page, block in blocks("default", Try) if page.key == key and block.kind == kind)


def test_the_edge_of_the_future_leaks_only_beyond_0() -> None:
    steps = tries("4", "edge")["steps"]
    assert [step["edge"] for step in steps] == list(range(-1, 8))
    for step in steps:
        weights = torch.tensor(step["weights"])
        assert torch.equal(weights, weights.tril(step["edge"]))
        leaks = [move > 0.01 for move in step["leak"]]
        sees_last = [t + step["edge"] >= 7 or (t == 7 and step["edge"] >= 0) for t in range(8)]
        # The last token itself always changes: its own query did.
        assert leaks[:-1] == sees_last[:-1], step["edge"]
    four = Settings().head
    torch.testing.assert_close(torch.tensor(steps[1]["weights"]), four.weights[0], rtol=0, atol=6e-5)
    assert steps[0]["weights"][0] == [0.0] * 8  # a token that may hear nothing hears nothing


def test_tiles_carry_what_the_whole_row_would_give() -> None:
    five, steps = Settings().heads, tries("6", "tiles")["sizes"]
    for size in ("2", "4"):
        for step in steps[size]:
            n = int(size)
            so_far = five.masked[0, 0, step["row"] : step["row"] + n, : step["column"] + n]
            top = so_far.amax(-1)
            torch.testing.assert_close(torch.tensor(step["top"]), top, rtol=0, atol=1e-4)
            total = (so_far - top[:, None]).exp().sum(-1)
            torch.testing.assert_close(torch.tensor(step["total"]), total, rtol=0, atol=1e-4)


def test_scales_are_measured_and_predicted() -> None:
    cases = play.scales()
    assert {case["D"] for case in cases} == {4, 16, 64, 256}
    for case in cases:
        assert case["variance"] == pytest.approx(case["predicted"], rel=0.03, abs=2e-4)
        assert sum(case["weights"]) == pytest.approx(1, abs=1e-3)


def test_numbers_that_are_not_finite_become_null() -> None:
    assert play.numbers(torch.tensor([1.23456, -math.inf])) == [1.2346, None]


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("The king is dead.", ["The", "king", "is", "dead", "."]),
        ("It's 9 o'clock, isn’t it?", ["It's", "9", "o'clock", ",", "isn’t", "it", "?"]),
        ("'quoted'", ["'", "quoted", "'"]),
        ("東京 へ", ["東", "京", "へ"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("a\n\tb", ["a", "b"]),
        ("", []),
    ],
)
def test_a_text_is_cut_into_words_and_marks(text: str, cut: list[str]) -> None:
    assert words(text) == cut


def test_the_same_word_is_the_same_row_wherever_it_stands() -> None:
    settings = Settings(text=SENTENCE)
    x = settings.x[0]
    assert settings.labels[0] == settings.labels[7] == "The"
    assert torch.equal(x[0], x[7])
    assert not torch.equal(x[0], x[4])  # "the" is another word
    assert settings.layers().x.shape == (1, 12, 32)


def test_settings_leave_the_callers_random_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    assert Settings(text=SENTENCE).x is not None
    assert Settings(time=5).heads is not None
    assert torch.equal(torch.randn(3), expected)


@pytest.mark.parametrize(
    ("given", "words_"),
    [
        ({"time": 0}, "time: expected 1 to 64, got 0. The lesson is for looking at numbers: keep it small."),
        ({"time": 65}, "time: expected 1 to 64, got 65."),
        ({"width": 0}, "width: expected 1 to 64, got 0."),
        ({"seed": -1}, "seed: expected 0 to 4294967295, got -1. Any number will do."),
        ({"text": " \n"}, "text: expected 1 to 64 words, got 0. Give a sentence."),
        ({"text": "a " * 65}, "text: expected 1 to 64 words, got 65. Give a shorter one."),
        ({"text": "a b", "time": 2}, "time: expected none beside a text, got 2. Leave out time, or the text."),
    ],
)
def test_settings_that_cannot_be_shown_are_refused(given: dict, words_: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(words_)):
        Settings(**given)


def test_pages_know_their_keys_and_others_are_refused() -> None:
    from clearhead.lesson import Book

    assert [page.key for page in lesson("default")] == (
        ["0", "1", "2", "3", "3a", "4", "4a", "4b", "4c", "4d", "5", "5a", "5b", "6", "7", "8", "9", "10"]
    )
    with pytest.raises(InputError, match=re.escape("rung 11: there is no such page; there are 0, 1, 2, 3, 3a, 4,")):
        Book(Settings()).page("11")
