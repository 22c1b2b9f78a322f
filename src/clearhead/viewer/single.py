"""One self-contained page: all heads, as many exact weights as there is room for, no network.

The page's own script and style are the only ones its content policy lets run, and that policy lets nothing be fetched. All
that comes from the text or the model travels as JSON and is only ever set as text.
"""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped

from clearhead.addresses import Head
from clearhead.errors import InputError
from clearhead.inline import policy_hash
from clearhead.roles import label
from clearhead.viewer.data import Shown
from clearhead.viewer.joined import script, style
from clearhead.viewer.packed import Answer, numbers
from clearhead.viewer.view import View

MEGABYTE = 1_000_000

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="dark light">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>clearhead: what every head looks at</title>
<style>{style}</style>
</head>
<body>
<div id="clearhead" class="clearhead"></div>
<noscript><p>This page draws itself with a script of its own; nothing is fetched. Allow scripts to see it.</p></noscript>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def page(view: View, *, head: Head | None = None, query: int = -1, most: float | int = 20) -> str:
    """What `clearhead look` has run, as one page; `head` and the token `query` (negative: from the end) are open first."""
    return single(Shown.of(view), heads=[] if head is None else [head], query=view.query(query), most=most)


def single(shown: Shown, *, heads: Sequence[Head] = (), query: int | None = None, most: float | int = 20) -> str:
    """The page as HTML text.

    Arguments:
        shown: what is shown.
        heads: those whose exact weights come first; the first of them is the one that is open. Then come the heads with
            roles, the most telling first, and then the others.
        query: position of the token shown first; default the last.
        most: megabytes (10^6 bytes) the page may have. What there is no room for is left out, and the page says what: maps and
            scores of all heads stay; exact weights, and how many of the largest weights of every token are kept, give way.

    Raises:
        InputError: `most` is too little for the maps.
    """
    facts = dict(shown.document().facts)
    facts["rollout"] = False
    if heads:
        facts["notable"] = str(shown.trace.check(heads[0]))
    if query is not None:
        facts["token"] = query
    packs, left = _packs(
        shown, heads, most * MEGABYTE - len(script("file")) - len(style()) - len(Answer(facts).json()) - 4096, most
    )
    facts["exact_heads"] = [name.removeprefix("exact ") for name in packs if name.startswith("exact ")]
    facts["left_out"] = left
    text = Answer({"document": facts, "packs": packs}).json()
    policy = (
        f"default-src 'none'; script-src '{policy_hash(script('file'))}'; style-src '{policy_hash(style())}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return TEMPLATE.format(policy=policy, style=style(), data=text, script=script("file"))


def _packs(
    shown: Shown, first: Sequence[Head], room: int | float, most: int | float
) -> tuple[dict[str, str], list[str]]:
    """What fits, by name, and what does not, in words."""
    left: list[str] = []
    packs = {"maps mean": _packed(shown.maps("mean"))}
    room -= len(packs["maps mean"])
    strips = _packed(_strips(shown, shown.heads))
    if len(strips) > room / 2:
        fit = max(1, int(len(shown.heads) * room / 2 / len(strips)))
        some = list(dict.fromkeys([*first, *_by_interest(shown)]))[:fit]
        strips = _packed(_strips(shown, some))
        left.append(f"Strips and histograms of {len(shown.heads) - len(some)} heads were left out.")
    packs["strips"] = strips
    room -= len(strips)
    if room < 0:
        enough = math.ceil(most - room / MEGABYTE)
        raise InputError(
            f"--max-mb {most:g}: the maps and scores of {len(shown.heads)} heads do not fit; {enough} is enough for them"
        )
    largest = _packed(shown.maps("max"))
    if len(largest) < room / 8:
        packs["maps max"] = largest
        room -= len(largest)
    wanted = [h for h in dict.fromkeys([*first, *_by_interest(shown)]) if shown.knows_all(h)]
    exact = _exact(shown, wanted, room)
    others = [head for head in shown.heads if head not in exact]
    if others:
        kept, text = _kept(shown, shown.heads, room / 2)
        exact = _exact(shown, wanted, room - len(text))
        packs["kept"] = text
        which = f" ({_listed(set(exact))})" if exact else ""
        said = f"Exact weights are here of {len(exact)} of {len(shown.heads)} heads{which}"
        left.append(f"{said}; of the others, the {kept} largest weights of every token." if kept else f"{said}.")
    return packs | {f"exact {head}": text for head, text in exact.items()}, left


def _exact(shown: Shown, heads: Sequence[Head], room: int | float) -> dict[Head, str]:
    """Every weight of the heads that fit, the first ones first."""
    found: dict[Head, str] = {}
    for head in heads:
        weights = shown.all_weights(head)
        if weights is None or weights.nbytes / 50 > room:  # weights do not become that small
            break
        text = _packed(Answer({}, {"weights": weights}))
        room -= len(text)
        if room < 0:
            break
        found[head] = text
    return found


def _strips(shown: Shown, heads: Sequence[Head]) -> Answer:
    """Strips of many heads in one answer."""
    arrays = {f"{head} {name}": values for head in heads for name, values in shown.strips(head).arrays.items()}
    return Answer({}, arrays)


def _kept(shown: Shown, heads: Sequence[Head], room: int | float) -> tuple[int, str]:
    """As many of the largest weights of every query as fit: how many, and packed."""
    k = min(shown.kept(head) for head in heads)
    while k:
        arrays: dict[str, Shaped[np.ndarray, "..."]] = {}
        for head in heads:
            keys, weights = (numbers(values[:, :k]) for values in shown.top(head))
            # −1, no key, becomes the largest number.
            arrays[f"{head} keys"] = keys.astype(np.uint16 if shown.keys(head) < 0xFFFF else np.int32)
            arrays[f"{head} weights"] = weights.astype(np.float32)
        size = sum(array.nbytes for array in arrays.values())
        if size * 0.3 < room:
            text = _packed(Answer({}, arrays))
            if len(text) <= room:
                return k, text
        k //= 2
    return 0, _packed(Answer({}, {}))


def _by_interest(shown: Shown) -> list[Head]:
    """Heads with roles first, by how far above their nulls they are."""

    def worth(head: Head) -> float:
        best = label(shown.roles.get(head, []))
        return -1.0 if best is None or best.role == "broad" else best.score - best.null

    notable = shown.notable()
    return sorted(shown.heads, key=lambda head: (head != notable, -worth(head)))


def _listed(heads: set[Head]) -> str:
    names = [str(head) for head in sorted(heads)]
    return ", ".join(names if len(names) <= 12 else [*names[:12], "…"])


def _packed(answer: Answer) -> str:
    return base64.b64encode(gzip.compress(answer.packed(), 6, mtime=0)).decode("ascii")
