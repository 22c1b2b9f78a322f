"""The viewer as a person meets it, in a real browser: found by what things are called, read as it is shown."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from reading import (
    HOSTILE,
    MARKS,
    ROWS,
    chromium,
    fits_every_width,
    is_accessible,
    percent,
    quiet,
    rows_of,
    shown_weight,
    text_of,
)  # fmt: skip

from clearhead.addresses import Head
from clearhead.models import load
from clearhead.rollout import rollout
from clearhead.viewer.asking import ask
from clearhead.viewer.colour import ramp_bytes
from clearhead.viewer.data import Shown
from clearhead.viewer.questions import Gallery
from clearhead.viewer.server import Server
from views import kept_shown, planted_shown, twice

pytestmark = MARKS
FOCUS = "function() { this.focus(); }"
VIEWS = ("overview", "head", "text", "rollout", "compare")


@pytest.fixture(scope="module")
def server(shown):
    with Server(Gallery([shown, kept_shown(seed=1, name="other")]), say=lambda _: None) as server:
        yield server


@pytest.fixture
def opened(chrome, server):
    """Open a place of the viewer; afterwards nothing may have gone wrong, and nothing have been asked of anybody else."""

    def at(where: str = "", scheme: str = "dark", of: Server = server):
        token = of.address().partition("#token=")[2]
        chrome.open(f"http://127.0.0.1:{of.port}/#{where}&token={token}", scheme=scheme)
        chrome.until("document.querySelector('main section')")
        return chrome

    yield at
    quiet(chrome)


# ---------------------------------------------------------------------------------------------------------- overview


def test_the_overview_has_every_head_with_its_map(opened, shown):
    chrome = opened()
    chrome.until("document.querySelector('.heads').dataset.drawn")
    options = [
        node["name"]["value"]
        for node in chrome.tree()
        if node["role"]["value"] == "option" and "H" in node["name"]["value"]
    ]
    heads = [name.split(",")[0] for name in options if name.startswith("L")]
    assert heads == [str(head) for head in shown.heads]
    assert chrome.run(
        "[...document.querySelectorAll('.thumb canvas')].every(c => "
        "c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(x => x > 0))"
    )


def test_choosing_a_head_shows_its_scores_and_what_uniform_attention_has(opened, shown):
    chrome = opened()
    chrome.click_on("option", "L1H2, no role")
    chrome.until("document.querySelector('aside h2').textContent === 'L1H2'")
    said = {name.removesuffix(" ✓"): (score, null) for name, score, null in rows_of(chrome, "aside .roles")}
    for role in shown.roles[Head(1, 2)]:
        assert said[role.role] == (f"{role.score:.2f}", f"{role.null:.2f}")
    measured = {name: value for name, value, _ in rows_of(chrome, "aside .quantities")}
    assert measured["entropy, nats"] == f"{shown.trace.observation(1).mean('entropy')[0, 2].item():.2f}"
    assert chrome.run("new URLSearchParams(location.hash.slice(1)).get('head')") == "L1H2"


def test_heads_can_be_filtered_sorted_and_coloured_by_anything_measured(opened, shown):
    chrome = opened("head=L0H0")
    entropies = {str(h): shown.trace.observation(h.layer).mean("entropy")[0, h.head].item() for h in shown.heads}
    middle = sorted(entropies.values())[3]
    chrome.write_in("Only", f"entropy >= {middle!r}")
    kept = [name for name, x in entropies.items() if x >= middle]
    chrome.until(f"document.querySelectorAll('.thumb').length === {len(kept)}")
    assert text_of(chrome, ".title [role=status]") == f"{len(kept)} of 6 heads"
    chrome.choose("Colour", "entropy")
    chrome.choose("Sort", "by the colour's value")
    names = chrome.run("[...document.querySelectorAll('.thumb')].map(t => t.dataset.head)")
    assert names == sorted(kept, key=lambda name: -entropies[name])
    assert "uniform attention: " in text_of(chrome, ".legend")
    chrome.write_in("Only", "tallness > 3")
    assert "“tallness”: is none of layer, head, role" in text_of(chrome, ".error")
    chrome.write_in("Only", "entropy 3")
    assert "write a name, a comparison and a number" in text_of(chrome, ".error")


def test_arrow_keys_walk_through_the_heads_and_enter_opens_one(opened):
    chrome = opened("head=L0H0")
    chrome.until("document.querySelector('.heads').dataset.drawn")
    chrome.run("document.querySelector('[data-head=L0H0]').focus()")
    for key, head in (
        ("ArrowRight", "L0H1"),
        ("ArrowDown", "L1H1"),
        ("ArrowLeft", "L1H0"),
        ("ArrowUp", "L0H0"),
        ("End", "L1H2"),
    ):
        chrome.press(key)
        assert chrome.run("document.activeElement.dataset.head") == head
    chrome.press("Enter")
    chrome.until("document.querySelector('main.head h2')?.textContent.startsWith('L1H2')")


# -------------------------------------------------------------------------------------------------------------- head


def test_a_pair_is_shown_with_its_exact_weight_logit_and_contribution(opened, shown):
    chrome = opened("view=head&head=L1H1&at=250&key=17")
    pattern = shown.pattern(Head(1, 1))
    for what in ("weight", "logit", "contribution"):
        value = pattern.crop(slice(250, 251), slice(17, 18), what=what).item()
        chrome.until(f"document.querySelector('.exact-{what}')?.textContent === {json.dumps(shown_weight(value))}")


def test_zooming_to_a_cell_shows_its_exact_weight(opened, shown):
    chrome = opened("view=head&head=L0H2&at=200&key=120")
    chrome.until("document.querySelector('.map-frame').dataset.level !== undefined")
    chrome.until("document.querySelector('.exact-weight')")
    chrome.click_on("button", "To the chosen pair")
    chrome.until("document.querySelector('.map-frame').dataset.cell === '1'")
    canvas = "document.querySelector('canvas.map')"
    chrome.run(f"{canvas}.scrollIntoView({{block: 'center'}})")
    box = chrome.run(f"(b => [b.left, b.top, b.width, b.height])({canvas}.getBoundingClientRect())")
    want = shown.pattern(Head(0, 2)).crop(slice(None), slice(None))[0, 0]
    # Find the chosen pair under the pointer: somewhere near the middle of the plot.
    chrome.send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] * 0.5, y=box[1] + box[3] * 0.5)
    said = chrome.until("(t => /→/.test(t) && !/…$/.test(t) && t)(document.querySelector('.readout').textContent)")
    query, key = (int(part.split()[1]) for part in said.split(" → "))
    assert said.endswith(f": {shown_weight(want[query, key].item())}")
    # Another pair by keyboard alone.
    chrome.run(f"{canvas}.focus()")
    chrome.press("ArrowLeft")
    chrome.press("ArrowUp")
    at = chrome.run("(p => [+p.get('at'), +p.get('key')])(new URLSearchParams(location.hash.slice(1)))")
    assert at == [199, 119]
    chrome.until(
        f"document.querySelector('.exact-weight')?.textContent === {json.dumps(shown_weight(want[199, 119].item()))}"
    )


def test_the_whole_map_is_pooled_and_says_so(opened, shown):
    chrome = opened("view=head&head=L0H0")
    chrome.until("document.querySelector('.map-frame').dataset.level !== undefined")
    chrome.until("document.querySelector('.legend .soft')?.textContent.startsWith('A cell is')")
    chrome.click_on(
        "application",
        chrome.run("document.querySelector('canvas.map').getAttribute('aria-label')"),
        0.3,
        0.6,
    )
    chrome.until("document.querySelector('.pair').textContent.includes('Query')")
    chrome.run("[...document.querySelectorAll('summary')].find(s => s.textContent.startsWith('The strongest')).click()")
    rows = chrome.until(ROWS.format("details.table[open]"))
    level = int(chrome.run("document.querySelector('.map-frame').dataset.level"))
    pattern = shown.pattern(Head(0, 0))
    across, down = pattern.tiles(level)
    cells = [pattern.tile(level, x, y)[0, 0] for x in range(across) for y in range(down)]
    assert rows[0][4] == shown_weight(max(tile.max().item() for tile in cells))


def test_distance_histogram_and_its_null_are_the_measured_ones(opened, shown):
    chrome = opened("view=head&head=L1H0")
    chrome.until("document.querySelector('.histogram')")
    chrome.run("document.querySelector('.histogram summary').click()")
    rows = chrome.until(ROWS.format(".histogram"))
    want = shown.trace.observation(1).mean("distance_histogram")[0, 0].tolist()
    assert [row[0] for row in rows[:4]] == ["0", "1", "2–3", "4–7"]
    for row, value in zip(rows, want, strict=True):
        assert row[1] == (
            f"{100 * value:.1f} %"
            if value >= 0.1
            else f"{100 * value:.2f} %"
            if value >= 5e-5 or not value
            else "< 0.01 %"
        )
    uniform = sum(1 / (i + 1) for i in range(300)) / 300
    assert rows[0][2] == f"{100 * uniform:.2f} %"


# -------------------------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("heads", "members"), [("L1H1", [(1, 1)]), ("L1", [(1, 0), (1, 1), (1, 2)]), ("L0H0,L1H2", [(0, 0), (1, 2)])]
)
def test_where_a_token_looks_and_who_looks_at_it_are_exact(opened, shown, heads, members):
    chrome = opened(f"view=text&head=L1H1&at=120&heads={heads}")
    chrome.until("document.querySelectorAll('aside table').length === 2")
    weights = sum(shown.pattern(Head(*m)).crop(slice(None), slice(None))[0, 0].double() for m in members) / len(members)
    for name, line in (("Where it looks", weights[120]), ("Who looks at it", weights[:, 120])):
        order = sorted(range(300), key=lambda n: (-line[n].item(), n))[:12]
        want = [[f"“\u2068·t{n * n % 40}\u2069”", str(n), percent(line[n].item())] for n in order if line[n] > 0]
        assert rows_of(chrome, f'[aria-label="{name}"]') == want


def test_clicking_and_walking_through_the_text_chooses_tokens(opened):
    chrome = opened("view=text&head=L0H1&at=5")
    chrome.until("document.querySelector('#token-5[aria-selected=true]')")
    chrome.click("#token-9")
    chrome.until("document.querySelector('.said').textContent.startsWith('Token 9 ')")
    chrome.run("document.querySelector('.flow').focus()")
    chrome.press("ArrowRight")
    chrome.until("document.querySelector('.said').textContent.startsWith('Token 10 ')")
    assert chrome.run("document.querySelector('.flow').getAttribute('aria-activedescendant')") == "token-10"
    chrome.press("End")
    chrome.until("document.querySelector('.said').textContent.startsWith('Token 299 ')")
    chrome.click_on("button", "who looks at it")
    chrome.until("new URLSearchParams(location.hash.slice(1)).get('side') === 'from'")


def test_groups_have_bands_and_a_table_of_means(opened, shown):
    chrome = opened("view=text&head=L1H2")
    rows = chrome.until(ROWS.format(".groups table"))
    means = shown.trace.observation(1).group_mean[0, 2].tolist()
    assert rows == [
        [name, *map(_percent_or_zero, row)]
        for name, row in zip(["first part", "second part", "third part"], means, strict=True)
    ]
    assert chrome.run("document.querySelector('#token-299').dataset.group") == "2"


def test_the_ninth_group_is_told_from_the_first_and_its_table_scrolls_in_itself(opened):
    names = [f"a document of a long name {n}.txt" for n in range(12)]
    texts = [(name, f"The lamp {n} was lit.") for n, name in enumerate(names)]
    asked = ask(load("builtin"), texts, "Who lit it?", write=4)
    with Server(Gallery([Shown.of(asked.view)]), say=lambda _: None) as served:
        chrome = opened("view=text&at=3", of=served)
        chrome.until("document.querySelector('.groups table')")
        first, ninth = asked.places[0].start + 1, asked.places[8].start
        band = "getComputedStyle(document.querySelector('#token-{}')).borderTopStyle"
        assert [chrome.run(band.format(at)) for at in (first, ninth)] == ["solid", "dotted"]
        assert chrome.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert chrome.run("(e => e.scrollWidth > e.clientWidth)(document.querySelector('.groups'))")


def test_heads_that_looked_a_written_token_up_are_listed_and_lead_to_where_they_looked(opened):
    asked = ask(
        load("builtin"), [("a", "The king is dead."), ("b", "The queen lives.")], "Who lives?", write=8, keep="qk"
    )
    other = Shown.of(asked.view)
    token, head, key, weight = next(x for x in other.document().facts["lookups"] if x[2] in asked.places[1])
    with Server(Gallery([other]), say=lambda _: None) as served:
        chrome = opened(f"view=text&at={token}", of=served)
        shown = chrome.until(ROWS.format('[aria-label="Heads that looked it up"] table'))
        assert [head, "b", str(key), percent(weight)] in shown
        chrome.click("[aria-label='Heads that looked it up'] tbody button")
        chrome.until(f"document.querySelector('.said').textContent.startsWith('Token {token - 1} ')")
        opened("view=text&at=2", of=served)
        chrome.until("document.querySelector('[aria-label=\"Heads that looked it up\"]').hidden")


def _percent_or_zero(x: float) -> str:
    return "0.00 %" if x == 0 else percent(x)


def test_a_long_text_keeps_few_elements_and_scrolls_to_any_token(opened):
    long = kept_shown(pieces=["·word"] * 2000, layers=1, heads=1)
    with Server(Gallery([long]), say=lambda _: None) as other:
        chrome = opened("view=text&at=1500", of=other)
        chrome.until("document.querySelector('#token-1500[aria-selected=true]')")
        assert chrome.run("document.querySelectorAll('.flow [role=option]').length") < 900
        frames = chrome.run(
            "new Promise((done) => { const f = document.querySelector('.flow'), gaps = []; let last = performance.now(), n = 0;"
            " const step = (now) => { gaps.push(now - last); last = now; f.scrollTop = (n * 97) % f.scrollHeight;"
            " n++ < 60 ? requestAnimationFrame(step) : done(Math.max(...gaps.slice(2))); }; requestAnimationFrame(step); })"
        )
        print(f"text of 2,000 tokens: the longest frame while scrolling took {frames:.0f} ms")
        quiet(chrome)


def test_what_the_model_wrote_is_marked_off(opened):
    with Server(Gallery([planted_shown(twice(10), prompt=14)]), say=lambda _: None) as other:
        chrome = opened("view=text", of=other)
        assert chrome.until("document.querySelector('.line.rule')?.textContent") == "written by the model"
        wrote = chrome.run("[...document.querySelectorAll('.flow .wrote')].map(o => +o.dataset.at)")
        assert wrote == list(range(14, 20))
        quiet(chrome)


# ------------------------------------------------------------------------------------------------- rollout and compare


def test_rollout_shows_the_shares_that_the_library_computes(opened, shown):
    chrome = opened("view=rollout&at=40")
    chrome.until("document.querySelector('aside table')")
    shares = rollout([call.pattern for call in shown.trace.calls], 40).input
    order = sorted(range(300), key=lambda n: (-shares[n].item(), n))[:15]
    want = [[f"“\u2068·t{n * n % 40}\u2069”", str(n), percent(shares[n].item())] for n in order]
    assert rows_of(chrome, "aside") == want
    chrome.on("slider", "Layers down", "function() { this.value = 1; this.dispatchEvent(new Event('input')); }")
    one = rollout([call.pattern for call in shown.trace.calls], 40).layers[0]
    best = max(range(300), key=lambda n: one[n].item())
    chrome.until(f"document.querySelector('aside tbody td')?.textContent === '{best}'")


def test_two_traces_are_compared_head_by_head(opened, shown, server):
    chrome = opened("view=compare&head=L0H1&by=entropy")
    chrome.until("document.querySelectorAll('.heads.values .thumb').length === 6")
    other = server.gallery.of({"trace": "1"})
    change = {}
    for head in shown.heads:
        here, there = (
            side.trace.observation(head.layer).mean("entropy")[0, head.head].item() for side in (shown, other)
        )
        change[str(head)] = there - here
    for name, x in change.items():
        chrome.named("option", f"{name}, changed by {f'{x:.4f}'.replace('-', '−')}")
    chrome.run("[...document.querySelectorAll('summary')].find(s => s.textContent.startsWith('Heads sorted')).click()")
    rows = chrome.until(ROWS.format("details.table[open]"))
    assert [row[0] for row in rows] == sorted(change, key=lambda name: -abs(change[name]))
    chrome.until("document.querySelector('.map-frame canvas')")


def test_texts_of_other_lengths_are_compared_on_the_tokens_they_share(opened):
    one, other = (
        kept_shown(T=T, pieces=[f"·{n}" for n in range(T)], seed=T, layers=5, heads=2, model="") for T in (40, 50)
    )
    for side in (one, other):
        side.trace.token_ids = [*range(10, 40), *range(100, 100 + len(side.pieces) - 30)]
    found = one.trace.compare(other.trace)
    with Server(Gallery([one, other]), say=lambda _: None) as served:
        chrome = opened("view=compare&head=L0H1", of=served)
        chrome.until(
            f"document.body.innerText.includes('{found.aligned} tokens are the same in both texts, of 40 here and 50 there.')"
        )
        names = chrome.run("[...document.querySelectorAll('.heads.values > b')].map((b) => b.textContent)")
        assert names == ["", *(f"L{n}" for n in range(5)), "H0", "H1"]  # layers run across, as in the overview
        for change in found.changes:
            chrome.named("option", f"{change.head}, changed by {change.received:.4f}")
        chrome.on(
            "option", f"L0H1, changed by {next(c.received for c in found.changes if str(c.head) == 'L0H1'):.4f}", FOCUS
        )
        chrome.press("ArrowRight")
        chrome.until("new URLSearchParams(location.hash.slice(1)).get('head') === 'L1H1'")
        chrome.choose("Change of", "entropy, token by token")
        chrome.named("option", f"{found.changes[0].head}, changed by {found.changes[0].entropy:.4f}")


# ------------------------------------------------------------------------------------------------ address and server


def test_every_view_has_an_address_that_reloading_keeps(opened):
    for view in VIEWS:
        chrome = opened(f"view={view}&head=L1H0&at=33")
        chrome.until(f"document.querySelector('main.{view}')")
        assert "token=" not in chrome.run("location.hash")  # the secret has left the address
        chrome.send("Page.reload")
        chrome.until(f"document.querySelector('main.{view}:not([aria-busy]) section')")
        assert chrome.run("new URLSearchParams(location.hash.slice(1)).get('head')") == "L1H0"


def test_going_back_returns_to_the_view_before(opened):
    chrome = opened("head=L1H0")
    chrome.click_on("button", "Text")
    chrome.until("document.querySelector('main.text')")
    chrome.run("history.back()")
    chrome.until("document.querySelector('main.overview')")


def test_a_server_that_has_ended_is_said_to_have_and_a_new_one_asks_for_its_address(chrome):
    with Server(Gallery([planted_shown(twice(5))]), say=lambda _: None) as first:
        chrome.open(first.address())
        chrome.until("document.querySelector('.heads')")
        port = first.port
    chrome.click_on("button", "Text")
    chrome.until("document.querySelector('.notices').textContent.includes('The server does not answer')")
    with Server(Gallery([planted_shown(twice(5))]), port=port, say=lambda _: None) as second:
        chrome.click_on("button", "Try again")
        chrome.until("document.querySelector('.notices').textContent.includes('Open the address it printed')")
        chrome.open(second.address())
        chrome.until("document.querySelector('.heads')")
        assert text_of(chrome, ".notices") == ""


def test_a_used_address_does_not_let_a_stranger_in(chrome, server):
    address = server.address()
    chrome.open(address)
    chrome.until("document.querySelector('main section')")
    chrome.run("localStorage.clear()")
    chrome.open(address)
    chrome.until("document.querySelector('.notices').textContent.includes('This address was used before')")
    assert chrome.run("document.querySelector('main section')") is None


# ------------------------------------------------------------------------------------------------- for everybody, safe


@pytest.mark.parametrize("view", VIEWS)
def test_hostile_tokens_are_text_everywhere(opened, view):
    pieces = [HOSTILE[n % len(HOSTILE)] for n in range(60)]
    nasty = kept_shown(
        pieces=pieces, groups=([n % 3 for n in range(60)], HOSTILE[1:4]), name=HOSTILE[3], model=HOSTILE[2]
    )
    with Server(Gallery([nasty, nasty]), say=lambda _: None) as other:
        chrome = opened(f"view={view}&head=L1H1&at=30&key=3", of=other)
        chrome.until(f"document.querySelector('main.{view} section')")
        time.sleep(0.3)
        chrome.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        time.sleep(0.2)
        assert chrome.run("typeof hit") == "undefined"
        assert chrome.run("document.querySelectorAll('img, iframe, object, embed, script:not([src])').length") == 0
        assert "\x00" not in chrome.run("document.body.innerText")
        assert "\u202e" not in chrome.run("document.body.innerText")
        if view == "text":
            assert chrome.run("document.querySelector('#token-1').textContent") == HOSTILE[1]
        quiet(chrome)


def test_tables_as_csv_are_quoted_and_hold_no_formulas(opened):
    nasty = kept_shown(pieces=["=1+1", 'a,"b"', "@x", "+y", "-z", "plain"] * 10)
    with Server(Gallery([nasty]), say=lambda _: None) as other:
        chrome = opened("view=text&head=L0H0&at=59", of=other)
        chrome.until("document.querySelectorAll('aside table').length === 2")
        chrome.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
        chrome.run(
            "[...document.querySelectorAll('summary')].find(s => s.textContent.startsWith('Every weight')).click()"
        )
        chrome.click_on("button", "Copy as CSV")
        lines = chrome.until("window.copied").split("\r\n")
        assert lines[0] == "at,token,weight"
        cells = {line.split(",", 1)[1].rsplit(",", 1)[0] for line in lines[1:-1]}
        assert cells == {'"\'=1+1"', '"a,""b"""', '"\'@x"', '"\'+y"', '"\'-z"', "plain"}
        at, weight = int(lines[1].split(",")[0]), float(lines[1].rsplit(",", 1)[1])
        assert weight == nasty.line([Head(0, 0)], "query", 59).arrays["values"][at]
        quiet(chrome)


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_serious_violation_in_the_dark_or_the_light(opened, view):
    chrome = opened(f"view={view}&head=L1H1&at=30")
    chrome.until(f"document.querySelector('main.{view} section')")
    chrome.until("!document.querySelector('[aria-busy=true]')")
    is_accessible(chrome)


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_sticks_out_at_any_width(opened, view):
    chrome = opened(f"view={view}")
    chrome.until(f"document.querySelector('main.{view} section')")
    fits_every_width(chrome)


def test_the_theme_follows_and_switches(opened):
    chrome = opened(scheme="light")
    assert chrome.run("document.querySelector('.clearhead').dataset.theme") == "light"
    chrome.click_on("button", "Dark colours")
    assert chrome.run("document.querySelector('.clearhead').dataset.theme") == "dark"


FOCUSED = "((e) => [e?.tagName, e?.labels?.[0]?.textContent || e?.ariaLabel || e?.textContent])(document.activeElement)"


def test_who_uses_a_control_by_the_keyboard_stays_at_it(opened):
    chrome = opened("view=text&head=L1H1&at=30")
    for n, label in ((1, "Scale"), (0, "Head")):
        select = f"document.querySelectorAll('.tools select')[{n}]"
        chrome.run(f"({select}.focus(), {select}.selectedIndex = 1, {select}.dispatchEvent(new Event('change')), 1)")
        tag, name = chrome.run(FOCUSED)
        assert (tag, name.startswith(label)) == ("SELECT", True)
    chrome.on("button", "Overview", FOCUS)
    chrome.press("Enter")
    chrome.until("document.querySelector('main.overview')")
    assert chrome.run(FOCUSED) == ["BUTTON", "Overview"]
    chrome.on("button", "Light colours", FOCUS)
    chrome.press("Enter")
    assert chrome.run(FOCUSED) == ["BUTTON", "Dark colours"]


def test_a_question_taken_back_is_asked_anew_by_who_asks_again(opened):
    chrome = opened()
    asked = chrome.run("""import('/source.js').then(async ({ Latest, Remembering }) => {
      let asked = 0;
      const later = (signal, refused) => setTimeout(() => refused(signal.reason));
      const late = (signal) => new Promise((_, refused) => signal.addEventListener('abort', () => later(signal, refused)));
      const ask = (_, __, signal) => (++asked === 1 ? late(signal) : Promise.resolve({ facts: asked }));
      const source = new Remembering({ ask });
      const latest = new Latest();
      const first = source.ask('line', { at: 1 }, latest.next()).catch((error) => error.name);
      const second = await source.ask('line', { at: 1 }, latest.next());
      latest.stop();
      const kept = await source.ask('line', { at: 1 });
      return [await first, second.facts, kept.facts];
    })""")
    assert asked == ["AbortError", 2, 2]


def test_bins_of_long_texts_say_where_they_begin(opened):
    chrome = opened()
    said = chrome.run(
        "import('/histogram.js').then(({ histogram }) => [4, 14].map((n) => "
        "[...histogram(new Float32Array(n).fill(1 / n), null).querySelectorAll('small')].map((e) => e.textContent)))"
    )
    assert said == [["0", "1", "2–3", "4–7"], ["0", "1", *(f"{2**n}–" for n in range(1, 13))]]


def test_the_page_has_the_ramp_of_the_terminal(opened):
    chrome = opened()
    ramp = chrome.run("import('/colour.js').then(m => m.RAMP.flat())")
    assert ramp == list(ramp_bytes())


def test_the_code_is_small_and_the_targets_are_printed(opened, server):
    folder = Path(chromium.__file__).parents[2] / "src" / "clearhead" / "viewer" / "page"
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size < 400_000
    chrome = opened()
    chrome.until("document.querySelector('.heads').dataset.drawn")
    first = chrome.run("performance.now()")
    used = chrome.send("Runtime.getHeapUsage")["usedSize"]
    assert first > 0
    print(f"page code {size / 1e3:.0f} kB; first grid of 6 heads within {first:.0f} ms; heap {used / 1e6:.0f} MB")
