"""The eight rungs, one page each: question, code from the ladder, its numbers, equality with the rung before, cost."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from clearhead import explain, ladder
from clearhead.ladder.example import three_rows
from clearhead.ladder.rung6_online_softmax import Tile
from clearhead.lesson import play
from clearhead.lesson.blocks import Block, Equal, Grid, Grids, Page, Ran, Say, Shade, Table, Try, count, grid, written
from clearhead.lesson.pages.contents import page
from clearhead.lesson.settings import HEADS, KV_HEADS, Settings
from clearhead.lesson.source import source
from clearhead.masks import Causal

LAYERS = f"settings.layers({HEADS}, {KV_HEADS})"
QKV = "five.q, five.k, five.v"


def rung(number: int, settings: Settings) -> Page:
    """The page of a rung, 1 to 8, without what it costs (`costs.cost`)."""
    with torch.no_grad():
        return page(str(number), *_PAGES[number](settings))


def _pairs(s: Settings, name: str, tensor: Tensor, note: str, *, shade: Shade = "signed", decimals: int = 4) -> Grid:
    """A number for each query (down) and key (across), by the tokens' names."""
    return grid(name, "T × T", tensor, shade=shade, rows=s.labels, columns=s.labels, decimals=decimals, note=note)


def _first(settings: Settings) -> list[Block]:
    s, x = settings, settings.x
    one = ladder.mean_by_loop(x)
    C, t = x.shape[2], min(2, s.T - 1)
    column = [written(v) for v in x[0, : t + 1, 0].tolist()]
    total = " + ".join(f"({v})" if v.startswith("-") else v for v in column)
    start = (
        f"Your text is T = {s.T} tokens; here a token is a word or a mark. Each different word gets C = {C} random "
        "numbers of its own, the same ones wherever it stands. That is what a model starts from, before it has "
        "learned anything. The shape of x is (1, T, C): one sequence."
        if s.tokens
        else f"We start with random numbers: B = {s.B} sequences of T = {s.T} tokens, each token a row of C = {C} numbers. "
        "They mean nothing yet; they are something to compute with. Shown is the first sequence, x[0]."
    )
    return [
        Say(start),
        Say(
            "A model that predicts the next token may use the tokens up to now, and none after: the **future** is "
            "what it is asked to guess. The simplest thing a token can do with itself and its **past** is to take "
            "the mean. That needs two loops, one over the sequences and one over the tokens of each."
        ),
        source(ladder.mean_by_loop),
        Say(
            "(`check_sequence` refuses anything that is not a (B, T, C) of floating-point numbers, and does nothing "
            "else.)"
        ),
        Ran(f"settings = {s.made_by()}\nx = settings.x\none = mean_by_loop(x)"),
        Grids(
            (
                grid("x[0]", "T × C", x[0], rows=s.labels, note="what goes in"),
                grid("one.out[0]", "T × C", one.out[0], rows=s.labels, note="what comes out"),
            )
        ),
        Say(
            f"Check a number by hand. Row {t} of the result is the mean of rows 0 to {t} of x. In the first column: "
            f"({total}) / {t + 1} = {written(float(one.out[0, t, 0]))}."
        ),
        Say(
            "A mean forgets who said what, and in which order: “dog bites man” and “man bites dog” end alike. Such "
            "a result is called a **bag of words**. It is a start, and the future is already hidden."
        ),
    ]


def _second(settings: Settings) -> list[Block]:
    s, x = settings, settings.x
    small = ladder.three_by_three(three_rows())
    two = ladder.mean_by_matmul(x)
    difference = float((two.out - ladder.mean_by_loop(x).out).abs().max())
    return [
        Say(
            "Row t of a matrix product is a sum of the rows on the right, each multiplied by its number in row t on "
            "the left. So the left matrix can say who is added to whom. Try it on three rows of whole numbers:"
        ),
        Ran("small = three_by_three(three_rows())"),
        Grids(
            (
                grid("three_rows()", "3 × 2", three_rows(), shade="plain", note="three tokens"),
                grid("small.total", "3 × 2", small.total, shade="plain", note="ones @ rows: all added up"),
                grid("small.tril", "3 × 3", small.tril, shade="weight", note="ones, future 0"),
                grid("small.weights", "3 × 3", small.weights, shade="weight", note="each row / its sum"),
                grid("small.out", "3 × 2", small.out, shade="plain", note="weights @ rows: the means"),
            )
        ),
        Say(
            "A matrix of ones adds up everything. A lower **triangle** of ones adds up the past. Divide each row of "
            "the triangle by its own sum, and the sums are means. These shares, none below 0 and 1 in each row, are "
            "called **weights**: row t says how much token t hears of each token."
        ),
        source(ladder.mean_by_matmul),
        Ran("two = mean_by_matmul(x)"),
        Grids(
            (
                _pairs(s, "two.weights", two.weights, "who hears whom", shade="weight"),
                grid("two.out[0]", "T × C", two.out[0], rows=s.labels, note="the means again"),
            )
        ),
        Equal("rung 2 and rung 1", "(two.out - one.out).abs().max()", difference),
        Say(
            "Why is that not always exactly 0? A loop and a product add the same numbers in another order, and "
            "floating-point sums depend on the order in their last digit, about 0.0000001 for numbers of this size. "
            "Equal means: up to that."
        ),
    ]


def _third(settings: Settings) -> list[Block]:
    s, x = settings, settings.x
    two, three = ladder.mean_by_matmul(x), ladder.mean_by_softmax(x)
    scores = torch.tensor([0.0, 1.0, 2.0, -math.inf])
    shares = torch.softmax(scores, dim=0)
    powers = torch.exp(scores)
    rows = tuple(
        (written(z, 0) if z != -math.inf else "-inf", written(p, 3), written(w, 3))
        for z, p, w in zip(scores.tolist(), powers.tolist(), shares.tolist(), strict=True)
    )
    return [
        Say(
            "In rung 2 the weights were made for one purpose. Let them come from somewhere instead. Give every pair "
            "of tokens a **score**: any number at all, the larger the more token t would like to hear token j."
        ),
        Say(
            "**Softmax** turns a row of scores into weights: take e to the power of each score, then divide by the "
            f"sum of the row, here {written(float(powers.sum()), 3)}. All weights are positive and sum to 1; one "
            f"score more is a weight e = {math.e:.3f} times as large. And a score of minus infinity gives exactly 0, "
            "because e to that power is 0."
        ),
        Table(("score", "e^score", "weight"), rows),
        Say(
            "So the future is hidden by scores of -inf. This is called a **mask**. For now nobody prefers anybody: "
            "all other scores are 0, and row t is t + 1 equal shares. The mean is back."
        ),
        source(ladder.mean_by_softmax),
        Ran("three = mean_by_softmax(x)"),
        Grids(
            (
                _pairs(s, "three.scores", three.scores, "0, the future hidden"),
                _pairs(s, "three.weights", three.weights, "softmax of each row", shade="weight"),
            )
        ),
        Grids((grid("three.out[0]", "T × C", three.out[0], rows=s.labels, note="the means once more"),)),
        Equal("rung 3 and rung 2", "(three.out - two.out).abs().max()", float((three.out - two.out).abs().max())),
    ]


def _fourth(settings: Settings) -> list[Block]:
    s, four = settings, settings.head
    layers = s.layers()
    difference = ladder.side_by_side(4, *layers).difference
    bumped = " We give each token C = 32 numbers from here on, to have more to work with." if s.width is None else ""
    return [
        Say(
            f"Nobody preferred anybody. Now every token decides for itself.{bumped} Each token gets three new rows, "
            "made from its own by three matrices, which a model learns (an `nn.Linear` holds one):"
        ),
        Say(
            "The **query**: what am I looking for? The **key**: what do I contain? The **value**: what do I tell "
            f"those who listen? Query and key have D numbers each, here {s.D}. Three such matrices are a **head**, "
            "and D is its **width**."
        ),
        Say(
            "The score of a pair is the **dot product** of query and key: multiply them number by number and add "
            "up. It is large where what is sought and what is there point the same way. It is divided by √D (the "
            "page after this one says why). Everything after that is rung 3. This is **self-attention**."
        ),
        source(ladder.single_head),
        Ran("x, query, key, value = settings.layers()\nfour = single_head(x, query, key, value)"),
        Grids((_pairs(s, "four.scores[0]", four.scores[0], "query (down) meets key (across)"),)),
        Grids((_pairs(s, "four.masked[0]", four.masked[0], "the future hidden"),)),
        Grids((_pairs(s, "four.weights[0]", four.weights[0], "softmax of each row", shade="weight"),)),
        Say(_one_weight(s)),
        Grids((grid("four.out[0]", f"T × {s.D}", four.out[0], rows=s.labels, note="weights @ values"),)),
        Try(
            "pair",
            "What made this weight?",
            "Point at a weight, or move to it with the arrow keys: its query, its key, their product, and the weight.",
            play.pair(four),
        ),
        Say(
            "Is rung 3 still inside? Let all queries be 0: every score is 0. Let values repeat x. Then the mean "
            "must come back, and it does:"
        ),
        Equal("rung 4 with nothing to ask, and rung 3", "side_by_side(4, x, query, key, value).difference", difference),
        Try(
            "edge",
            "Move the edge of the future",
            "Drag the edge. At 0 a token sees itself and its past. To the right of 0 it sees into the future, and "
            "at the end the mask is off. The bars: how far each token's result moves when only the last token is "
            "changed. A bar before the last token is a leak, and a model trained with it learns to copy the answer.",
            {"steps": play.edges(layers)},
        ),
    ]


def _one_weight(s: Settings) -> str:
    four, i = s.head, s.T - 1
    j = int(four.weights[0, i].argmax())
    dot = float(four.q[0, i] @ four.k[0, j])
    score, weight = float(four.scores[0, i, j]), float(four.weights[0, i, j])
    total = float(four.masked[0, i].exp().sum())
    who = (lambda t: f"token {t}, “{s.labels[t]}”,") if s.tokens else (lambda t: f"token {t}")
    return (
        f"Read one weight, the largest of the last row: {who(i)} hears {who(j)} most. Their dot product is "
        f"{written(dot)}; divided by √{s.D} it is the score {written(score)}. e^({written(score)}) = "
        f"{written(math.exp(score))}, and divided by {written(total)}, the sum of its row, that is the weight "
        f"{written(weight)}."
    )


def _fifth(settings: Settings) -> list[Block]:
    s, five = settings, settings.heads
    difference = ladder.side_by_side(5, *s.layers(HEADS, KV_HEADS), heads=HEADS, kv_heads=KV_HEADS).difference
    return [
        Say(
            "The weights of a row sum to 1. A token that needs both its verb and its subject must split that 1 "
            "between them, and gets back a blend. So give it several heads: each with queries, keys and values of "
            "its own, each with its own T × T weights. What they find is laid side by side."
        ),
        Say(
            f"Here are Hq = {HEADS} heads. Nothing else is new: one wide layer holds the layers of all heads, and "
            f"heads are one more dimension of the batch. Two heads share each of the Hk = {KV_HEADS} key heads, a "
            "saving that the page after this one explains."
        ),
        source(ladder.split_heads),
        source(ladder.merge_heads),
        source(ladder.multi_head),
        Ran(
            f"x, query, key, value = {LAYERS}\nfive = multi_head(x, query, key, value, heads={HEADS}, kv_heads={KV_HEADS})"
        ),
        Grids(
            tuple(
                _pairs(s, f"five.weights[0, {h}]", five.weights[0, h], f"head {h}", shade="weight", decimals=2)
                for h in range(HEADS)
            )
        ),
        Say(
            "Four heads, four patterns on the same tokens. Even untrained they differ; trained, they learn "
            "different jobs."
        ),
        Equal(
            "all heads at once, and rung 4 head by head",
            f"side_by_side(5, x, query, key, value, heads={HEADS}, kv_heads={KV_HEADS}).difference",
            difference,
        ),
    ]


def _sixth(settings: Settings) -> list[Block]:
    s, five = settings, settings.heads
    six = ladder.online_softmax(five.q, five.k, five.v)
    size = 8192
    again = float(((five.masked - six.lse[..., None]).exp() - five.weights).abs().max())
    return [
        Say(
            f"At {count(size)} tokens, the weights of one head are {count(size * size)} numbers, needed only to be "
            "summed up at once. Can they be left unmade?"
        ),
        Say(
            "Softmax seems to want its whole row first. It divides by the sum of the row. And it subtracts the "
            "largest score before taking powers, because e^1000 is too large for any float; that changes no weight, "
            "since it cancels in the division."
        ),
        Say(
            "Both can be had on the way. Walk along the keys, a **tile** at a time, and carry three things: m, the "
            "largest score so far; l, the sum of e^(score - m); and s, the sum of the values with those same "
            "factors. When a larger score turns up, everything summed under the old m is too large by one factor, "
            "e^(old m - new m): shrink it."
        ),
        Say(
            "At the end the result is s / l. Nothing is left out and nothing is approximated; it is the same sum in "
            "another order."
        ),
        source(ladder.online_softmax),
        Ran(f"tiles = []\nsix = online_softmax({QKV}, look=tiles.append)"),
        _walk(s),
        Try(
            "tiles",
            "Watch the tiles pass",
            "Each step makes one tile of scores, uses it and drops it. Beside the tile: the running max m and the "
            "running sum l of every row in it. Tiles that hold nothing but future are never made.",
            {"T": s.T, "sizes": {str(n): play.tiles(five, n) for n in (2, 4) if n <= s.T or n == 2}},
        ),
        Equal("rung 6 and rung 5", "(six.out - five.heads).abs().max()", float((six.out - five.heads).abs().max())),
        Say(
            "One number a row is kept, L = m + log l, the **log-sum-exp**. With it any weight can be had again when "
            "someone asks for it, as e^(score - L). That is how this library shows you weights without having "
            "stored them."
        ),
        Equal(
            "weights made again from L, and those of rung 5",
            "((five.masked - six.lse[..., None]).exp() - five.weights).abs().max()",
            again,
        ),
    ]


def _walk(s: Settings) -> Table:
    """What rung 6 carries for the last query of one head, tile by tile."""
    five, seen = s.heads, list[Tile]()
    ladder.online_softmax(five.q, five.k, five.v, look=seen.append)
    i, top, rows = s.T - 1, -math.inf, []
    last_row = [t for t in seen if t.row <= i < t.row + t.scores.shape[2]]
    # The head whose largest score rises most after the first tile has most to show.
    risen = last_row[-1].top[0, :, i - last_row[0].row, 0] - last_row[0].top[0, :, i - last_row[0].row, 0]
    h = int(risen.argmax())
    for tile in last_row:
        here = tile.scores[0, h, i - tile.row]
        new, total = (float(part[0, h, i - tile.row, 0]) for part in (tile.top, tile.total))
        last = min(tile.column + len(here) - 1, i)
        shrink = written(math.exp(top - new)) if top != -math.inf else "(first)"
        scores = " ".join(written(z, 2) for z in here.tolist() if z != -math.inf)
        rows.append((f"{tile.column} to {last}", scores, written(new), shrink, written(total)))
        top = new
    return Table(
        ("keys", "scores of the tile", "m", "shrink", "l"),
        tuple(rows),
        f"Query {i} of head {h}, tile by tile. The last l divides its sum of values.",
    )


def _seventh(settings: Settings) -> list[Block]:
    s, five = settings, settings.heads
    six, seven = ladder.online_softmax(five.q, five.k, five.v), ladder.with_cache(five.q, five.k, five.v)
    ragged = torch.full((s.T, s.T), math.nan)
    for t, row in enumerate(seven.rows):
        ragged[t, : t + 1] = row[0, 0, 0]
    cached, queries = seven.keys[0].numel() + seven.values[0].numel(), five.q[0].numel()
    return [
        Say(
            "A model writes a token, reads it, and writes the next. Must everything be done again each time? Token "
            "t hears nothing of what comes after it, so nothing computed for it can ever change: not its key, not "
            "its value."
        ),
        Say(
            "They are kept, in the **cache**. A new token brings one query, which meets the cached keys once: one "
            "new row of weights. And no mask, for there is no future in the cache to hide."
        ),
        source(ladder.with_cache),
        Ran(f"seven = with_cache({QKV})"),
        Grids(
            (
                Grid(
                    "seven.rows",
                    "T rows, 1 to T",
                    tuple(tuple(row) for row in ragged.tolist()),
                    "weight",
                    s.labels,
                    s.labels,
                    note="head 0, one row a token",
                    code="ragged(seven.rows)",
                ),
            )
        ),
        Try(
            "cache",
            "Write token by token",
            "Each step: one key (and one value, not drawn) joins the cache, and one query meets all of it.",
            {"keys": play.numbers(seven.keys[0, 0], 2), "rows": [play.numbers(r[0, 0, 0], 2) for r in seven.rows]},
        ),
        Equal("rung 7 and rung 6", "(seven.out - six.out).abs().max()", float((seven.out - six.out).abs().max())),
        Say(
            "These rows are the rows of the masked matrix of rung 5. That is why a model can be trained on a whole "
            "text at once and still write it token by token."
        ),
        Say(
            f"The price is memory: here {count(cached)} numbers for {s.T} tokens, keys and values of {KV_HEADS} key "
            f"heads. The {count(queries)} numbers of the queries are not kept: a query is asked once."
        ),
    ]


def _eighth(settings: Settings) -> list[Block]:
    s, five = settings, settings.heads
    seven, eight = ladder.with_cache(five.q, five.k, five.v), ladder.library_kernel(five.q, five.k, five.v)
    plan = explain(five.q, five.k, five.v, mask=Causal()).splitlines()
    blocks: list[Block] = [
        Say(
            "The last rung is one call. Under it stands what the rungs found: tiles instead of the matrix (rung 6), "
            "keys shared and not copied (rung 5), a mask that is a rule and not a matrix. On a CPU it is machine "
            "code that works on many numbers at once, made from Python for this machine."
        ),
        source(ladder.library_kernel),
        Ran(f"eight = library_kernel({QKV})"),
        Equal("rung 8 and rung 7", "(eight.out - seven.out).abs().max()", float((eight.out - seven.out).abs().max())),
        Say("Ask what would run here, and why nothing else:"),
        Table(("explain(five.q, five.k, five.v, mask=Causal())",), tuple((line,) for line in plan)),
    ]
    if s.T > 1:
        spoiled, kept = _broken(five.weights, five.v, five.q, five.k)
        blocks += [
            Say(
                "It keeps one promise that the rungs before it do not. In a product with the whole matrix, 0 times "
                "NaN, not a number, is NaN again. One broken value in the future then spoils a past that gives it "
                "weight 0. Here what is hidden cannot come through at all:"
            ),
            Table(
                ("the last value is NaN", "rows of the past that turn NaN"),
                (
                    ("rung 5: weights @ v", f"{spoiled} of {s.T - 1}"),
                    ("rung 8: library_kernel(q, k, v)", f"{kept} of {s.T - 1}"),
                ),
            ),
        ]
    return [
        *blocks,
        Say(
            "And in the same pass it can say what every head looks at, without ever forming the matrix. That is "
            "`clearhead.observe`, and the reason this library exists."
        ),
    ]


def _broken(weights: Tensor, v: Tensor, q: Tensor, k: Tensor) -> tuple[int, int]:
    """Rows before the last that a NaN in the last value turns NaN, on rung 5 and on rung 8 (first sequence, head 0)."""
    broken = v.clone()
    broken[:, :, -1] = math.nan
    plain = weights @ broken.repeat_interleave(HEADS // KV_HEADS, dim=1)
    ours = ladder.library_kernel(q, k, broken).out
    spoiled, kept = (int(out[0, 0, :-1].isnan().any(-1).sum()) for out in (plain, ours))
    return spoiled, kept


_PAGES = {1: _first, 2: _second, 3: _third, 4: _fourth, 5: _fifth, 6: _sixth, 7: _seventh, 8: _eighth}
