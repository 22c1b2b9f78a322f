"""The choices an attention is made of, right ones and wrong ones: the grid that a diagnosis is searched in.

A formula is one option in every dimension. A dimension is about one thing (which scale, which keys are seen, over what the
softmax runs, ...), and dimensions are independent, so two mistakes at once are just two options that are not the right
one. Nothing here knows any particular piece of code; `formula.py` computes what a formula gives.

An option is a *mistake*, or a *convention*: another way to do the same thing that is right too, and is only said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """One way to do one thing."""

    id: str
    said: str  # what is then computed; {C} and its like are filled in with the sizes of the case at hand
    mistake: bool = True
    rank: int = 0  # among options that explain the same numbers, the lower ones are the likelier reading
    alone: bool = False  # so rare that it is only looked for as the one mistake there is


@dataclass(frozen=True)
class Dimension:
    """One thing that can be done in several ways; the first option is the default."""

    name: str
    right: str  # the remedy: what to write instead
    options: tuple[Option, ...]

    def option(self, name: str) -> Option:
        """The option of that id; one with a number of its own (`=0.3`, `window=4`) is made up on the spot."""
        for option in self.options:
            if option.id == name:
                return option
        if self.name == "scale" and name.startswith("="):
            return Option(name, f"scores × {float(name[1:]):.6g}, a number that is none of the widths here", rank=5)
        if self.name == "hide" and name.startswith("="):
            return Option(name, f"hidden scores are set to {float(name[1:]):.6g}, not to −inf", rank=5)
        if self.name == "hide" and name.startswith("add="):
            said = (
                f"{float(name[4:]):g} is added to hidden scores, not enough where scores are as large; −inf always is"
            )
            return Option(name, said, rank=4)
        if self.name == "axis" and name.startswith("tiles"):
            kind, _, wide = name.partition("=")
            which = "neither sum so far is" if kind.endswith("both") else "the sum of the values so far is not"
            keys = "a key" if wide == "1" else f"a tile of {wide} keys"
            said = f"when {keys} brings a larger score, {which} rescaled by e^(old − new maximum)"
            return Option(name, said, rank=1, alone=True)
        if self.name == "rope" and name != "none":  # a fault that is written down for one base is one for every base
            word, _, base = name.rpartition(" ")
            for option in self.options:
                if option.id.rpartition(" ")[0] == word:
                    return Option(name, option.said.replace("base 10000", f"base {base}"), option.mistake, option.rank)
        if self.name == "sees" and name.startswith("window="):
            said = f"a sliding window: each query sees the last {name[7:]} keys, itself included"
            return Option(name, said, mistake=False, rank=3)
        raise KeyError(name)


def _wrong(*pairs: tuple[str, str], rank: int = 0) -> tuple[Option, ...]:
    return tuple(Option(name, said, rank=rank) for name, said in pairs)


def _fine(*pairs: tuple[str, str], rank: int = 0) -> tuple[Option, ...]:
    return tuple(Option(name, said, mistake=False, rank=rank) for name, said in pairs)


# What each of query, key and value is taken from: q, k, v, or the input x itself.
_ROLES = {
    "qkv": "query, key and value as named",
    "kqv": "query and key swapped",
    "qkk": "the key is used as the value",
    "qkq": "the query is used as the value",
    "qkx": "the input x itself is used as the value, unprojected",
    "qqv": "the query is used as the key: the key has no effect",
    "kkv": "the key is used as the query: the query has no effect",
    "qvv": "the value is used as the key",
    "vkv": "the value is used as the query",
    "qvk": "key and value swapped",
    "vkq": "query and value swapped",
    "vqk": "the value is used as query, the query as key, the key as value",
    "kvq": "the key is used as query, the value as key, the query as value",
    "vvv": "the value is used for all three",
    "qqq": "the query is used for all three",
    "kkk": "the key is used for all three",
    "xkv": "the input x itself is used as the query, unprojected",
    "qxv": "the input x itself is used as the key, unprojected",
    "xxv": "the input x itself is used as query and key, unprojected",
    "xxx": "the input x itself is used for all three, unprojected",
    "qqk": "the query is used as the key, and the key as the value",
    "kkq": "the key is used as query and key, and the query as the value",
    "vvk": "the value is used as query and key, and the key as the value",
    "vvq": "the value is used as query and key, and the query as the value",
    "kqk": "query and key swapped, and the key used as the value",
    "kqq": "query and key swapped, and the query used as the value",
}

# Powers and products of the sizes. {…} are filled in with numbers for the reader.
_SCALES = (
    ("1", "scores without a scale", 0),
    ("1/sqrt(C)", "scores / √C with C = {C}, the width of {C_is}, not of a head", 0),
    ("1/D", "scores / D with D = {D}, not / √D (the same as dividing by √D twice)", 0),
    ("sqrt(D)", "scores × √D with D = {D}: multiplied instead of divided", 0),
    ("D", "scores × D with D = {D}", 1),
    ("1/C", "scores / C with C = {C}, the width of {C_is}", 1),
    ("sqrt(C)", "scores × √C with C = {C}", 2),
    ("1/sqrt(T)", "scores / √T with T = {T}, the number of keys", 1),
    ("1/T", "scores / T with T = {T}, the number of keys", 1),
    ("1/sqrt(Tq)", "scores / √Tq with Tq = {Tq}, the number of queries", 2),
    ("1/Tq", "scores / Tq with Tq = {Tq}, the number of queries", 2),
    ("1/sqrt(H)", "scores / √H with H = {H}, the number of heads", 1),
    ("1/H", "scores / H with H = {H}, the number of heads", 1),
    ("1/sqrt(Hk)", "scores / √Hk with Hk = {Hk}, the number of key heads", 2),
    ("1/sqrt(B)", "scores / √B with B = {B}, the number of sequences", 2),
    ("1/B", "scores / B with B = {B}, the number of sequences", 2),
    ("1/sqrt(Dv)", "scores / √Dv with Dv = {Dv}, the width of a value", 2),
    ("D**-0.25", "scores / D^¼ with D = {D}: √scale on query or key alone, or a root too many", 1),
    ("1/sqrt(2D)", "scores / √(2D) with D = {D}", 3),
    ("sqrt(2/D)", "scores / √(D/2) with D = {D}", 3),
    ("2/D", "scores / (D/2) with D = {D}", 3),
    ("1/(D//2)", "scores / (D // 2) with D = {D}: divided by half the width", 3),
    ("sqrt(H/D)", "scores / √(D/H) with D = {D}, H = {H}: divided by the heads once too often", 2),
    ("H/D", "scores / (D/H) with D = {D}, H = {H}", 3),
    ("D**-1.5", "scores / D^1.5 with D = {D}: divided by D and by √D", 2),
    ("D**-2", "scores / D² with D = {D}: divided by D twice", 2),
    ("1/sqrt(C*D)", "scores / √(C·D) with C = {C}, D = {D}: divided by √C and by √D", 1),
    ("1/sqrt(D*T)", "scores / √(D·T) with D = {D}, T = {T}", 2),
    ("1/sqrt(D*H)", "scores / √(D·H) with D = {D}, H = {H}", 2),
    ("1/sqrt(D-1)", "scores / √(D−1) with D = {D}", 3),
    ("1/sqrt(D+1)", "scores / √(D+1) with D = {D}", 3),
    ("1/int(sqrt(D))", "scores / int(√D) with D = {D}: the root is cut to a whole number", 1),
    ("-1/sqrt(D)", "scores / −√D: the sign is turned round", 1),
    ("-1", "scores × −1: no scale, and the sign is turned round", 3),
    ("log(2)/sqrt(D)", "2 to the power of the scores, where e to that power is meant (scores × ln 2)", 1),
    ("log2(e)/sqrt(D)", "e to the power of scores that were prepared for base 2 (scores × 1.4427)", 2),
    ("log(10)/sqrt(D)", "10 to the power of the scores, where e to that power is meant", 3),
    ("0", "scores × 0: every weight is the same (an integer division that came out 0?)", 2),
)

# The fills are found by size where they are seen; these are only the ones that people write.
_FILLS = (
    (
        "zero",
        "hidden scores are set to 0 (multiplied by the mask, or filled with 0 or ±1e-9), and e^0 = 1 still counts",
    ),
    ("after", "the mask is applied after the softmax, and the weights that are left no longer sum to 1"),
    ("plus-inf", "hidden scores are set to +inf, not to −inf"),
    ("plus", "hidden scores are set to a large positive number, so only what should be hidden is seen"),
    ("added", "the mask's 0 and 1 are added to the scores, which hides nothing"),
    ("subtracted", "1 is subtracted from hidden scores, which hides nothing"),
    ("after-again", "the mask is applied after the softmax, and a second softmax is taken of that"),
    ("after-minus-inf", "hidden weights are set to −inf after the softmax"),
)

# Whose query, key and value a head uses, where they are not its own; `kv` goes without saying.
_PARTS = {
    "kv": "key and value", "k": "key", "v": "value", "q": "query", "qk": "query and key", "qkv": "query, key and value",
}  # fmt: skip
_PLACES = (
    ("first", "all {{H}} heads use the {0} of head 0, where each has its own (is a head's index left out?)"),
    ("last", "all {{H}} heads use the {0} of the last head, where each has its own"),
    ("next", "each head uses the {0} of the head after its own"),
    ("reversed", "the heads use the {0} of one another, in reverse order"),
    ("averaged", "the {0} that all {{H}} heads use is averaged over the heads"),
    ("summed", "the {0} that all {{H}} heads use is summed over the heads (an einsum letter that stands once?)"),
)
_COMMON = dict.fromkeys("qkv", ("first", "averaged", "summed")) | {"kv": tuple(how for how, _ in _PLACES)}
_HEADS = tuple(
    Option(how if part == "kv" else f"{part}-{how}", said.format(noun), alone=how not in _COMMON.get(part, ("first",)))
    for part, noun in _PARTS.items()
    for how, said in _PLACES
    if how in ("first", "averaged", "summed") or part in ("kv", "k", "v", "q")
)

_KEEP = "one number a row meets the matrix as if it were one a column (is keepdims=True missing?)"

DIMENSIONS = (
    Dimension(
        "roles",
        "softmax(query · key) · value, each from its own layer",
        tuple(Option(name, said, mistake=name != "qkv") for name, said in _ROLES.items()),
    ),
    Dimension(
        "fused",
        "q, k, v = qkv.chunk(3, dim=-1)",
        _fine(
            ("chunks", "[query | key | value]"),
            ("per head", "fused layer read as (heads, 3, D)"),
            ("innermost", "fused layer read as (heads, D, 3)"),
            ("three heads first", "fused layer read as (3, D, heads)"),
        ),
    ),
    Dimension(
        "split",
        "x.view(B, T, H, D).transpose(1, 2)",
        (
            *_fine(
                ("transposed", "heads split by view(B, T, H, D).transpose(1, 2)"),
                ("strided", "heads are every H-th column"),
            ),
            *_wrong(
                ("view", "heads split by view(B, H, T, D) without a transpose: tokens and heads are mixed"),
                ("q-view", "the query's heads are split by view(B, H, T, D) without a transpose"),
                ("k-view", "the key's heads are split by view(B, H, T, D) without a transpose"),
                ("v-view", "the value's heads are split by view(B, H, T, D) without a transpose"),
                ("kv-view", "the heads of key and value are split by view(B, H, T, D) without a transpose"),
                ("q-strided", "query and key are split into heads in two different ways"),
                ("v-strided", "value and key are split into heads in two different ways"),
                ("unsplit", "the projection is not split into heads: one wide head"),
            ),
        ),
    ),
    Dimension(
        "rope",
        "turn query and key by the same angles, in the same layout, positions counted through",
        (
            *_fine(
                ("none", "no rotary positions"),
                ("half 10000", "rotary positions, half-split, base 10000"),
                ("pairs 10000", "rotary positions, neighbouring pairs, base 10000"),
                ("half 500000", "rotary positions, half-split, base 500000"),
                ("pairs 500000", "rotary positions, neighbouring pairs, base 500000"),
                ("half 1000000", "rotary positions, half-split, base 1000000"),
                ("half 1000", "rotary positions, half-split, base 1000"),
                ("half 100", "rotary positions, half-split, base 100"),
                ("pairs 100", "rotary positions, neighbouring pairs, base 100"),
                ("half-first-half 10000", "rotary positions on the first half of a head, half-split, base 10000"),
                (
                    "pairs-first-half 10000",
                    "rotary positions on the first half of a head, neighbouring pairs, base 10000",
                ),
                ("half-first-quarter 10000", "rotary positions on the first quarter of a head, half-split, base 10000"),
                ("pairs-first-quarter 10000", "rotary positions on the first quarter of a head, pairs, base 10000"),
                ("half-backwards 10000", "rotary positions, half-split, turned the other way round, base 10000"),
                (
                    "pairs-backwards 10000",
                    "rotary positions, neighbouring pairs, turned the other way round, base 10000",
                ),
            ),
            *_wrong(
                (
                    "half-with-pair-angles 10000",
                    "rotary positions: halves are paired, but angles are laid out for neighbours",
                ),
                (
                    "pairs-with-half-angles 10000",
                    "rotary positions: neighbours are paired, but angles are laid out for halves",
                ),
                ("half-q-only 10000", "rotary positions on the query only (half-split)"),
                ("half-k-only 10000", "rotary positions on the key only (half-split)"),
                ("pairs-q-only 10000", "rotary positions on the query only (neighbouring pairs)"),
                ("pairs-k-only 10000", "rotary positions on the key only (neighbouring pairs)"),
                ("half-v-too 10000", "rotary positions on the value too (half-split)"),
                ("pairs-v-too 10000", "rotary positions on the value too (neighbouring pairs)"),
                (
                    "half-q-backwards 10000",
                    "rotary positions: query and key are turned in opposite directions (half-split)",
                ),
                (
                    "pairs-q-backwards 10000",
                    "rotary positions: query and key are turned in opposite directions (pairs)",
                ),
                (
                    "half-k-backwards 10000",
                    "rotary positions: query and key are turned in opposite directions (half-split)",
                ),
                (
                    "pairs-k-backwards 10000",
                    "rotary positions: query and key are turned in opposite directions (pairs)",
                ),
                (
                    "half-q-from-0 10000",
                    "rotary positions: the query's positions start at 0 behind a cache (half-split)",
                ),
                ("pairs-q-from-0 10000", "rotary positions: the query's positions start at 0 behind a cache (pairs)"),
                (
                    "half-chunk-from-0 10000",
                    "rotary positions start at 0 again in every chunk behind a cache (half-split)",
                ),
                ("pairs-chunk-from-0 10000", "rotary positions start at 0 again in every chunk behind a cache (pairs)"),
                (
                    "half-again 10000",
                    "rotary positions: cached keys, turned before, are turned again in every step (half-split)",
                ),
                (
                    "pairs-again 10000",
                    "rotary positions: cached keys, turned before, are turned again in every step (pairs)",
                ),
                ("half-q-one-late 10000", "rotary positions: the query's are one off from the key's (half-split)"),
                (
                    "half-no-minus 10000",
                    "rotary positions: both halves are added, where one is subtracted: no rotation",
                ),
                (
                    "pairs-no-minus 10000",
                    "rotary positions: both of a pair are added, where one is subtracted: no rotation",
                ),
                ("half-over-heads 10000", "rotary positions are counted along the heads, not the tokens (half-split)"),
                ("pairs-over-heads 10000", "rotary positions are counted along the heads, not the tokens (pairs)"),
            ),
        ),
    ),
    Dimension(
        "cache",
        "k = torch.cat([cached, k], dim=2), and the value likewise: what was before comes first, once, and all of it",
        (
            *_fine(("in order", "what is cached, then the chunk")),
            *_wrong(
                (
                    "new first",
                    "the {new} new keys and values are put in front of the {past} cached ones, which come before them",
                ),
                (
                    "k-new first",
                    "the {new} new keys are put in front of the {past} cached ones, the values behind them",
                ),
                (
                    "v-new first",
                    "the {new} new values are put in front of the {past} cached ones, the keys behind them",
                ),
                ("new twice", "the {new} new keys and values are joined to the {past} cached ones twice"),
                (
                    "new twice now",
                    "the {new} new keys and values are joined to a cache that holds them already: they count twice",
                ),
                ("last chunk", "the cache holds the last chunk alone: what was before that is forgotten"),
                ("last token", "the cache holds the last token alone: what was before that is forgotten"),
            ),
            Option(
                "new first by place",
                "the {new} new keys and values are put in front of the {past} cached ones, and positions counted after that",
                rank=1,
            ),
        ),
    ),
    Dimension(
        "unit",
        "softmax(q kᵀ / √D): query and key as they are",
        (
            *_fine(("none", "query and key as they are")),
            *_wrong(
                ("l2", "query and key are divided by their lengths first"),
                ("reshaped key", "the key is reshaped to (D, T), not transposed: its numbers land in other places"),
            ),
            Option("rms", "query and key are divided by their root mean squares first", rank=1),
            Option("layer", "query and key go through a LayerNorm first (mean 0, variance 1)", rank=1),
            Option("rms wide", "query and key are divided by their root mean squares over all heads first", rank=2),
            Option("layer wide", "query and key go through a LayerNorm over all heads first", rank=2),
            *_wrong(
                ("negated distance", "the scores are −|q − k|, not q · k"),
                ("negated squared distance", "the scores are −|q − k|², not q · k"),
                ("softmaxed", "a softmax is taken of query and key first"),
            ),
        ),
    ),
    Dimension(
        "over",
        "attend along the tokens: the last two axes of q @ k.transpose(-2, -1) are (Tq, Tk)",
        (
            *_fine(("tokens", "along the tokens")),
            *_wrong(
                ("batch", "attention runs along the batch axis: sequences see each other, tokens do not"),
                ("heads", "attention runs along the head axis: heads see each other, tokens do not"),
            ),
        ),
    ),
    Dimension(
        "heads",
        "query head h reads key head h // (Hq / Hk): k.repeat_interleave(Hq // Hk, dim=1)",
        (
            *_fine(("grouped", "query heads h·{group} … share a key head, in groups of neighbours")),
            *_wrong(
                ("tiled", "key heads are tiled (0 1 2 0 1 2), not repeated for groups of neighbours (0 0 1 1 2 2)"),
                ("v-tiled", "value heads are tiled, key heads are grouped"),
                ("k-tiled", "key heads are tiled, value heads are grouped"),
            ),
            *_HEADS,
        ),
    ),
    Dimension(
        "scale",
        "scores / √D, D the width of a head",
        (
            Option("1/sqrt(D)", "scores / √D with D = {D}", mistake=False),
            Option("ignored", "the scale that is asked for has no effect: scores / √D with D = {D}"),
            *(Option(name, said, rank=rank) for name, said, rank in _SCALES),
        ),
    ),
    Dimension(
        "bias",
        "scores − slope of the head × distance: ALiBi",
        (
            *_fine(
                ("none", "nothing is added to the scores"),
                ("alibi", "ALiBi: scores fall with the distance"),
                (
                    "alibi woven",
                    "ALiBi: scores fall with the distance, slopes as published for a number of heads that is no power of two",
                ),
            ),
            *_wrong(
                ("alibi turned", "ALiBi with its sign turned round: scores rise with the distance"),
                ("alibi halves", "ALiBi with slopes 1/2, 1/4, 1/8 …, which are right for 8 heads; there are {H}"),
                ("alibi same", "ALiBi with the first head's slope in every head"),
            ),
        ),
    ),
    Dimension(
        "cap",
        "softcap · tanh(scores / softcap), before the mask",
        (
            *_fine(("before", "softcap before the mask")),
            *_wrong(
                ("after", "the softcap comes after the mask: tanh makes the −inf of hidden scores finite again"),
                ("none", "the softcap is not applied"),
                ("no-divide", "tanh of the scores themselves, not of scores / softcap, times the softcap"),
                ("no-multiply", "tanh(scores / softcap), not multiplied by the softcap again"),
                ("clamp", "scores are clamped to ±softcap, where tanh is meant"),
                ("unscaled", "the softcap is applied before the scale"),
            ),
        ),
    ),
    Dimension(
        "sees",
        "key j is seen by query i when j ≤ i: tril(ones(T, T)), hide where it is 0",
        (
            *_fine(("all", "no causal mask"), ("past", "causal"), ("around", "a window to both sides")),
            *_wrong(
                ("window+1", "each query sees window + 1 keys, itself included, where window keys are meant"),
                ("window-1", "each query sees window − 1 keys, itself included, where window keys are meant"),
                ("window, future too", "the window hides what is too far back, and nothing of the future"),
                ("always past", "the causal flag has no effect: the future is hidden with it and without it"),
                ("strict", "the diagonal is hidden too: a query does not see its own key, j < i where j ≤ i is meant"),
                ("ahead", "one key of the future is seen: j ≤ i + 1 where j ≤ i is meant"),
                ("future", "the mask is upside down: each query sees itself and the future, j ≥ i"),
                ("strict future", "the mask is upside down: each query sees only the future, j > i"),
                ("diagonal", "each query sees itself alone"),
                ("not itself", "each query sees all keys but its own"),
                ("not last", "the last key is seen by nobody: the newest token is left out"),
                ("not first", "the first key is seen by nobody"),
                ("two late", "a query sees only keys at least two back, j ≤ i − 2"),
                ("two ahead", "two keys of the future are seen, j ≤ i + 2"),
                ("only the cache", "a chunk sees what is cached, and not itself: its own keys and values are left out"),
                ("not the cache", "a chunk sees itself, and not what is cached"),
                ("anti", "the mask is mirrored: key j is seen when i + j ≤ T − 1"),
            ),
        ),
    ),
    Dimension(
        "align",
        "torch.tril(ones(Tq, Tk), diagonal=Tk - Tq): the last query sees the last key",
        (
            Option("end", "aligned at the END: the last query sees the last key", mistake=False),
            Option("start", "the causal mask is START-aligned: query 0 sees key 0 only, though Tk > Tq", mistake=False),
        ),
    ),
    Dimension(
        "mask",
        "hide where the mask says so: scores.masked_fill(~mask, -inf), the result kept",
        (
            *_fine(("used", "the mask is used")),
            *_wrong(
                ("ignored", "the mask that is given has no effect"),
                ("transposed", "the mask is read with query and key exchanged"),
                ("rows", "the padding hides queries, where it should hide keys"),
                ("instead", "with a mask given, the causal mask is left out"),
                ("first sample", "every sequence uses the mask of the first one"),
                ("either", "causal and given mask are joined by OR, where both must allow"),
                ("inverted", "the mask is read the wrong way round"),
                ("shifted", "the mask is read one key off"),
            ),
        ),
    ),
    Dimension(
        "hide",
        'scores.masked_fill(hidden, float("-inf")) before the softmax',
        (
            *_fine(("minus-inf", "hidden scores are −inf"), ("large", "hidden scores are −1e9")),
            *(Option(name, said) for name, said in _FILLS),
        ),
    ),
    Dimension(
        "axis",
        "softmax(scores, dim=-1): the weights of each query sum to 1 over the keys",
        (
            *_fine(("keys", "softmax over the keys")),
            *_wrong(
                ("queries", "softmax over the queries, not over the keys"),
                ("heads", "softmax over the heads, not over the keys"),
                ("batch", "softmax over the batch, not over the keys"),
                ("both", "one softmax over queries and keys together"),
                ("none", "no softmax: the scores themselves are used as weights"),
                ("divided", "scores are divided by their sum, without e^scores"),
                ("exp", "e^scores, never divided by their sum"),
                ("sigmoid", "a sigmoid of each score, not a softmax"),
                ("relu", "relu of the scores, not a softmax"),
                ("relu normalised", "relu of the scores divided by their sum, not a softmax"),
                ("plus one", "1 more in the softmax's denominator than e^scores add up to"),
                ("twice", "softmax is taken twice"),
                ("log", "log_softmax, not softmax"),
                ("hard", "only the key with the largest score is used (argmax)"),
                ("mean", "the sum over keys is divided by the number of keys once more"),
                ("squares", "squares of the scores are normalised, not e^scores"),
            ),
            *_wrong(
                ("turned sums", f"e^score is divided by the sum of the key's row, not of the query's: {_KEEP}"),
                ("turned raw sums", f"e^score is divided by the sum of the key's row, not of the query's: {_KEEP}"),
                ("turned maxima", f"the largest score of the key's row, not of the query's, is subtracted: {_KEEP}"),
                ("turned both", f"maxima and sums of the key's row are used, not of the query's: {_KEEP}"),
                ("columns", "each row's largest score is subtracted, and then the softmax runs over the queries"),
                rank=1,
            ),
        ),
    ),
    Dimension(
        "sinks",
        "the sink's logit only adds to the softmax's denominator",
        (
            *_fine(("used", "the sink adds to the denominator")),
            *_wrong(
                ("dropped", "the sinks have no effect (left out, or the weights renormalised without them)"),
                ("first value", "the sink's weight is given to the first value"),
                ("last value", "the sink's weight is given to the last value"),
                ("mean value", "the sink's weight is given to the mean of the values"),
                ("scaled", "the sink's logit is scaled like a score"),
                ("not exponentiated", "the sink's logit itself, not e to its power, is added to the denominator"),
            ),
        ),
    ),
    Dimension(
        "merge",
        "out.transpose(1, 2).reshape(B, T, H * D)",
        (
            *_fine(
                ("transposed", "heads laid side by side"),
                ("strided", "heads laid side by side, dimension by dimension"),
            ),
            *_wrong(
                ("reshape", "heads are merged by reshape(B, T, H·D) without a transpose: tokens and heads are mixed"),
                ("mean", "heads are averaged, not laid side by side"),
                ("sum", "heads are added up, not laid side by side"),
                ("first", "only the first head is kept"),
                ("last", "only the last head is kept"),
                ("reversed", "heads are laid side by side in reverse order"),
            ),
        ),
    ),
    Dimension(
        "result",
        "the weighted sum of the values, and nothing more",
        (
            *_fine(("sum", "weights · value")),
            *_wrong(
                ("residual query", "the query is added to the result"),
                ("residual input", "the input is added to the result inside the attention"),
                ("residual value", "the value is added to the result"),
                (
                    "weights transposed",
                    "the weights are transposed before they meet the values: key i's are used for query i",
                ),
                ("weights averaged", "the weights are averaged over the heads before they meet the values"),
                ("weights summed", "the weights are summed over the heads before they meet the values"),
                ("weights", "the weights themselves come out: they never meet the values"),
                ("scaled", "the result is scaled by 1/√D as well"),
                ("scaled by value width", "the result is scaled by 1/√Dv as well"),
                ("doubled", "the result is twice the weighted sum"),
                ("reversed", "the rows come out in reverse order"),
                ("late", "each row comes out one place late"),
            ),
        ),
    ),
    Dimension(
        "output",
        "proj(out): the last layer mixes the heads, once",
        (
            *_fine(
                ("projected", "the output layer is applied"),
                ("plus input", "the input is added to the result (a residual)"),
            ),
            *_wrong(
                ("unprojected", "the output layer is there but is not applied"),
                ("twice", "the output layer is applied twice"),
                ("transposed", "the output layer's weight is used transposed"),
            ),
        ),
    ),
)

INDEX: Mapping[str, int] = {dimension.name: n for n, dimension in enumerate(DIMENSIONS)}
BY_NAME: Mapping[str, Dimension] = {dimension.name: dimension for dimension in DIMENSIONS}
Formula = tuple[str, ...]  # the id of one option for every dimension, in the order of DIMENSIONS
DEFAULT: Formula = tuple(dimension.options[0].id for dimension in DIMENSIONS)


def changed(formula: Formula, **options: str) -> Formula:
    """The formula with some dimensions set otherwise.

    >>> changed(DEFAULT, scale="1/D", sees="past")[INDEX["scale"]]
    '1/D'
    """
    made = list(formula)
    for name, option in options.items():
        made[INDEX[name]] = option
    return tuple(made)


def differences(formula: Formula, base: Formula) -> dict[str, str]:
    """The dimensions in which two formulas differ, with the first one's options."""
    pairs = zip(DIMENSIONS, formula, base, strict=True)
    return {dimension.name: mine for dimension, mine, other in pairs if mine != other}
