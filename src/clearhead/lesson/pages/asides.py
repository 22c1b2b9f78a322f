"""The asides: what learners ask between the rungs, each with code that runs. They stand on the ladder's own example."""

from __future__ import annotations

import functools
import math

import torch

from clearhead import ladder
from clearhead.ladder.example import projected
from clearhead.lesson import experiments, play
from clearhead.lesson.blocks import Equal, Grids, Page, Ran, Say, Table, Try, count, grid, written
from clearhead.lesson.pages.contents import page
from clearhead.lesson.source import source
from clearhead.nn import rotate

MODEL = {"layers": 32, "D": 128, "T": 8192}  # sizes of a model of some 8 billion numbers, for the cache


def steps() -> Page:
    """3a: the mean needed no T² steps; attention does."""
    rows = []
    for T in (8, 1000, 100_000):
        n = ladder.additions(T, 2)
        rows.append((count(T), count(n.by_loop), count(n.by_matmul), count(n.by_prefix)))
    return page(
        "3a",
        Say(
            "No. The sum up to token t + 1 is the sum up to token t and one token more. One walk along the sequence "
            "does it:"
        ),
        source(ladder.prefix_mean),
        Table(
            ("T", "rung 1 adds up", "rungs 2 and 3", "one walk"),
            tuple(rows),
            "Numbers added up for one sequence, C = 2.",
        ),
        Say(
            "The walk works because everybody hears everybody equally: the row of token t + 1 is the row of token "
            "t, rescaled, with one entry more. As soon as every token chooses for itself, no row can be had from "
            "its neighbour. T tokens that each weigh T tokens are T² decisions."
        ),
        Say("Rungs 1 to 3 pay for a freedom that they do not use. Rung 4 uses it."),
    )


@functools.cache
def root() -> Page:
    """4a: why scores are divided by √D."""
    rows = []
    for D in (4, 16, 64, 256):
        plain, scaled, wrong = (experiments.spread(D, scale) for scale in (1.0, D**-0.5, 1 / D))
        rows.append(
            (
                str(D),
                *(f"{s.variance:.2f} / {s.strongest:.0%}" for s in (plain, scaled)),
                f"{wrong.variance:.4f} / {wrong.strongest:.0%}",
            )
        )
    D, C = 64, 512
    right, by_c = experiments.spread(D, D**-0.5), experiments.spread(D, C**-0.5)
    return page(
        "4a",
        Say(
            "**Variance** says how widely numbers spread: the mean of their squared distance from their mean. Let "
            "the numbers of queries and keys have mean 0 and variance 1. Each product of two such numbers has "
            "variance 1 again, and a dot product adds up D of them, so it has variance D. Multiplied by a scale c, "
            "the variance is D·c²."
        ),
        Say(
            "Softmax turns differences of scores into ratios of weights. If scores spread widely, one key takes "
            "nearly everything before anything was learned, and learning, which takes small steps, hardly moves it. "
            "The experiment: 4,096 queries, each with 16 keys."
        ),
        source(experiments.spread),
        Table(
            ("D", "scale 1", "scale 1/√D", "scale 1/D"),
            tuple(rows),
            "Variance of the scores, and the mean weight of the strongest of 16 keys. Equal shares would be 6%.",
        ),
        Say(
            "With 1/√D the variance is 1 whatever the width. With scale 1 it grows as D, and with 1/D it dies away: "
            "all keys get nearly the same."
        ),
        Try(
            "scale",
            "Sharpen and flatten",
            "Choose a width and a scale. The bars are the 16 weights of one query.",
            {"cases": play.scales()},
        ),
        Say(
            "**The commonest mistake** is to divide by √C, with C the width of x, not of the head. With one head as "
            f"wide as x nobody notices. With C = {C} and heads of D = {D} the scores have variance "
            f"{by_c.variance:.3f} where it should be {right.variance:.2f}; the code runs, trains, and is wrong. "
            "`clearhead check` finds it in your code."
        ),
    )


def infinity() -> Page:
    """4b: why −inf and not a large negative number."""
    scores = torch.tensor([[2.0, 1.0, 0.0], [-20000.0, 5.0, 0.0], [1.0, 2.0, 3.0]])
    hidden = torch.tensor([[False, True, True], [False, True, True], [True, True, True]])
    names = ("first", "second", "third")
    fills = (-1e4, -1e9, -math.inf)
    grids = [
        grid(
            f"filled(scores, hidden, {_fill(fill)})",
            "3 × 3",
            experiments.filled(scores, hidden, fill),
            shade="weight",
            rows=names,
            note=f"fill {_shown(fill)}",
        )
        for fill in fills
    ]
    half = torch.tensor(-1e9).half().item()
    return page(
        "4b",
        Say(
            "Code on the web hides the future with -10,000 (written -1e4), or with -1e9. Mostly that works, because "
            "e to such a power rounds to 0. Three rows of scores show where it does not. In the first two only the "
            "first key may be heard; in the third, nothing."
        ),
        source(experiments.filled),
        Ran(
            "scores = torch.tensor([[2.0, 1.0, 0.0], [-20000.0, 5.0, 0.0], [1.0, 2.0, 3.0]])\n"
            "hidden = torch.tensor([[False, True, True], [False, True, True], [True, True, True]])"
        ),
        Grids(tuple(grids)),
        Say(
            "**-1e4 fails in the second row.** The score that may be heard, -20000, is lower than the fill, so all "
            "weight goes to what was to be hidden. Scores like that come from badly scaled layers, and then the "
            "future leaks without a word."
        ),
        Say(
            "**-1e9 fails in the third row.** All three scores become the same number, so softmax hands out equal "
            "shares of what must not be heard. Such rows are ordinary: where texts of different lengths are "
            "computed together, the short ones are filled up, and what fills them up may hear nothing."
        ),
        Say(
            f"In 16-bit numbers it fails sooner: their largest is 65504, so -1e9 becomes {half}, by accident. And "
            "rounding: -1e9 added to a score instead of put in its place wipes the score out, since float32 keeps "
            "seven digits."
        ),
        Say(
            "**-inf is right wherever anything is left to hear**, and in the third row it says honestly that 0/0 is "
            "**not a number** (NaN; the grid leaves it empty). There is nothing right to return there; "
            "`clearhead.attention` returns zeros, so that one empty row does not spoil a batch."
        ),
    )


def _fill(fill: float) -> str:
    return '-float("inf")' if fill == -math.inf else _shown(fill)


def _shown(fill: float) -> str:
    return "-inf" if fill == -math.inf else {-1e4: "-1e4", -1e9: "-1e9"}[fill]


@torch.no_grad()
def crossing() -> Page:
    """4c: self and cross-attention, decoder and encoder."""
    x, query, key, value = projected()
    other = projected(T=5, seed=7).x
    everyone = experiments.encoder_head(x, query, key, value)
    cross = experiments.cross_head(x, other, query, key, value)
    changed = x.clone()
    changed[:, -1] += 1
    moves = [
        float((head(changed, query, key, value).out - head(x, query, key, value).out)[:, 0].abs().max())
        for head in (ladder.single_head, experiments.encoder_head)
    ]
    same = float((experiments.cross_head(x, x, query, key, value).out - everyone.out).abs().max())
    labels = [str(t) for t in range(8)]
    return page(
        "4c",
        Say(
            "Rung 4 hides the future because it writes: a **decoder**. A model that only reads, say to translate or "
            "to sort mail, may look both ways: an **encoder**. The difference is one line, the one with "
            "`masked_fill`, left out:"
        ),
        source(experiments.encoder_head),
        Ran("x, query, key, value = projected()\neveryone = encoder_head(x, query, key, value)"),
        Grids(
            (
                grid(
                    "everyone.weights[0]",
                    "T × T",
                    everyone.weights[0],
                    shade="weight",
                    rows=labels,
                    columns=labels,
                    note="no future hidden",
                ),
            )
        ),
        Table(
            ("change the last token only", "the first token's result moves by"),
            (("rung 4 (decoder)", written(moves[0])), ("encoder_head", written(moves[1]))),
        ),
        Say(
            "In self-attention queries, keys and values are made from one sequence. In **cross-attention** the "
            "queries come from one and the keys and values from another: a sentence being written asks the sentence "
            "being translated. The two may differ in length."
        ),
        source(experiments.cross_head),
        Ran("other = projected(T=5, seed=7).x\ncross = cross_head(x, other, query, key, value)"),
        Grids(
            (
                grid(
                    "cross.weights[0]",
                    "T × S",
                    cross.weights[0],
                    shade="weight",
                    rows=labels,
                    columns=[f"s{t}" for t in range(5)],
                    note="8 queries, 5 other keys",
                ),
            )
        ),
        Say("Let the other sequence be x itself, and cross-attention is the encoder's self-attention:"),
        Equal(
            "cross_head(x, x) and encoder_head(x)",
            "(cross_head(x, x, query, key, value).out - everyone.out).abs().max()",
            same,
        ),
    )


@torch.no_grad()
def positions() -> Page:
    """4d: what attention alone cannot tell, then rotary positions."""
    x, query, key, value = projected()
    order = [4, 0, 6, 2, 5, 1, 3, 7]
    alone = (ladder.single_head(x[:, order], query, key, value).out - ladder.single_head(x, query, key, value).out)[
        :, -1
    ]
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 1, 16, generator=generator)  # one query and one key
    q, k = q.expand(1, 1, 8, 16), k.expand(1, 1, 8, 16)  # the same at every position
    plain = q @ k.mT * 16**-0.5
    place = torch.arange(8)
    turned = rotate(q, place, 10000.0) @ rotate(k, place, 10000.0).mT * 16**-0.5
    place = place + 100
    later = rotate(q, place, 10000.0) @ rotate(k, place, 10000.0).mT * 16**-0.5
    labels = [str(t) for t in range(8)]
    return page(
        "4d",
        Say(
            "It does not. A token knows whom it may hear, but a score is made of two tokens and not of their "
            "places. Shuffle the past of the last token, and the last token gets the same result:"
        ),
        Ran("x, query, key, value = projected()\norder = [4, 0, 6, 2, 5, 1, 3, 7]  # the last stays last"),
        Equal(
            "the last row, its past in order and shuffled",
            "(single_head(x[:, order], query, key, value).out - single_head(x, query, key, value).out)[:, "
            "-1].abs().max()",
            float(alone.abs().max()),
        ),
        Say(
            "“Dog bites man” again. So models put the place in. One way is to add a row of numbers for each place "
            "to x. The way that most models use now turns queries and keys instead: **rotary positions**, RoPE for "
            "short. Take the D numbers in pairs, as points in a plane, and turn each pair by an angle that grows "
            "with the position; the first pairs fast, the last ones slowly."
        ),
        source(rotate),
        Say(
            "Turn two points by the same angle and their dot product stays as it is. So a score depends on how far "
            "apart query and key stand, and not on where. To see it, give every position the same query and the "
            "same key:"
        ),
        Ran(
            "generator = torch.Generator().manual_seed(1)\n"
            "q, k = torch.randn(2, 1, 1, 1, 16, generator=generator)\n"
            "q, k = q.expand(1, 1, 8, 16), k.expand(1, 1, 8, 16)  # the same everywhere\n"
            "plain = q @ k.mT * 16**-0.5\n"
            "place = torch.arange(8)\n"
            "turned = rotate(q, place, 10000.0) @ rotate(k, place, 10000.0).mT * 16**-0.5"
        ),
        Grids(
            (
                grid(
                    "plain[0, 0]",
                    "T × T",
                    plain[0, 0],
                    rows=labels,
                    columns=labels,
                    decimals=2,
                    note="no positions: all alike",
                ),
                grid(
                    "turned[0, 0]",
                    "T × T",
                    turned[0, 0],
                    rows=labels,
                    columns=labels,
                    decimals=2,
                    note="turned: each diagonal alike",
                ),
            )
        ),
        Equal(
            "the same scores, everything 100 positions later",
            "(rotate(q, place + 100, 10000.0) @ rotate(k, place + 100, 10000.0).mT * 16**-0.5 - turned).abs().max()",
            float((later - turned).abs().max()),
        ),
        Say("The mask hides the future as before; positions change scores, and nothing else on any rung."),
    )


@torch.no_grad()
def groups() -> Page:
    """5a: heads that share keys, and what that saves."""
    x, query, key, value = projected(heads=4, kv_heads=2)
    grouped = ladder.multi_head(x, query, key, value, heads=4, kv_heads=2)
    tiled = grouped.q @ grouped.k.repeat(1, 2, 1, 1).mT * 16**-0.5
    wrong = (tiled - grouped.scores)[0].abs().amax((-1, -2))
    rows = []
    for kv_heads, name in ((32, "all its own"), (8, "groups of 4"), (1, "one for all")):
        size = experiments.cache_bytes(MODEL["layers"], kv_heads, MODEL["D"], MODEL["T"])
        rows.append((f"{kv_heads}", name, f"{size / 2**20:,.0f} MiB"))
    return page(
        "5a",
        Say(
            "When a model writes, keys and values of everything so far are kept (rung 7 shows it). Queries are not. "
            "So memory depends on the number of key heads, Hk, and not on the number of query heads, Hq: let "
            "several query heads share one key head."
        ),
        source(experiments.cache_bytes),
        Table(
            ("key heads", "of 32 query heads", "cache"),
            tuple(rows),
            f"A model of {MODEL['layers']} layers, heads of width {MODEL['D']}, {count(MODEL['T'])} tokens, 16-bit "
            "numbers.",
        ),
        Say(
            "Query head h reads key head h // (Hq / Hk): with 4 query heads and 2 key heads they read 0, 0, 1, 1. "
            "Neighbours share. The other order, 0, 1, 0, 1, has the same shapes and is a mistake that nothing gives "
            "away but the numbers:"
        ),
        Ran(
            "x, query, key, value = projected(heads=4, kv_heads=2)\n"
            "grouped = multi_head(x, query, key, value, heads=4, kv_heads=2)\n"
            "tiled = grouped.q @ grouped.k.repeat(1, 2, 1, 1).mT * 16**-0.5  # wrong: repeat_interleave is meant"
        ),
        Table(
            ("query head", "reads", "with the mistake", "scores are off by"),
            tuple((str(h), str(h // 2), str(h % 2), written(float(w))) for h, w in enumerate(wrong)),
        ),
        Say("Heads 0 and 3 are right by luck. A test with one key head, or with as many as query heads, sees nothing."),
    )


@torch.no_grad()
def meaning() -> Page:
    """5b: what a weight says, and what it does not."""
    head = ladder.single_head(*projected())
    weights, values = head.weights[0], head.v[0]
    small = values.clone()
    small[3] /= 100
    heard = experiments.carried(weights, small)[-1]
    row = weights[-1]
    rows = tuple(
        (str(j), f"{row[j]:.1%}", written(float(small[j].norm()), 2), f"{heard[j] / heard.sum():.1%}") for j in range(8)
    )
    twins = values.clone()
    twins[5] = twins[2]
    other = experiments.moved(weights, 5, 2)
    apart = float((other - weights).abs().max())
    return page(
        "5b",
        Say(
            "A weight says how much of a value flowed from one token to another in one head. That is worth knowing, "
            "and it is exact. It is "
            'tempting to read more into it: "the model answered so because it looked there". Two experiments on rung 4.'
        ),
        Say(
            "**A large weight can carry nothing.** What arrives is weight times value. Make the value of token 3 a "
            "hundredth of what it was, and look at the last row:"
        ),
        source(experiments.carried),
        Ran(
            "head = single_head(*projected())\nweights, values = head.weights[0], head.v[0].clone()\n"
            "values[3] /= 100\nheard = carried(weights, values)[-1]"
        ),
        Table(("token", "weight", "length of value", "share of what is heard"), rows),
        Say(
            f"Token 3 has a weight of {row[3]:.1%} and brings {heard[3] / heard.sum():.1%} of what is heard. Trained "
            "models make use of this: many heads rest on the first token, whose value is tiny, when they have "
            "nothing to say. Such a token is called a **sink**."
        ),
        Say(
            "**Different weights can give the same result.** If two tokens say the same thing, it does not matter "
            "which of them is heard. Give token 5 the value of token 2, and move all its weight there:"
        ),
        source(experiments.moved),
        Ran("twins = head.v[0].clone()\ntwins[5] = twins[2]\nother = moved(weights, 5, 2)"),
        Table(
            ("", "largest difference"),
            (("weights", written(apart)), ("results", f"{float((other @ twins - weights @ twins).abs().max()):.1e}")),
        ),
        Equal(
            "results with other weights",
            "(other @ twins - weights @ twins).abs().max()",
            float((other @ twins - weights @ twins).abs().max()),
        ),
        Say(
            "And between a head and the answer lie all the other heads and layers. So: weights show where "
            "information can flow. Whether it mattered is another experiment: change the token and see whether the "
            "answer changes."
        ),
    )
