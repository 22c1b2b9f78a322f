"""Surveys of a corpus as a person meets them in a real browser."""

from __future__ import annotations

import time

import pytest
from reading import MARKS, ROWS, fits_every_width, is_accessible, percent, quiet, rows_of, text_of

from clearhead.addresses import Head
from clearhead.models import load
from clearhead.survey import Corpus, Options, compare, survey
from clearhead.viewer.server import Server
from clearhead.viewer.surveys import Surveys
from surveyed import two_surveys

pytestmark = MARKS
VIEWS = ("overview", "head", "differences")


@pytest.fixture(scope="module")
def surveys(tmp_path_factory):
    return two_surveys(tmp_path_factory.mktemp("surveys"))


@pytest.fixture(scope="module")
def server(surveys):
    with Server(Surveys(surveys), say=lambda _: None) as server:
        yield server


@pytest.fixture
def opened(chrome, server):
    """Open a place; afterwards nothing may have gone wrong, and nothing have been asked of anybody else."""

    def at(where: str = "", of: Server = server):
        token = of.address().partition("#token=")[2]
        chrome.open(f"http://127.0.0.1:{of.port}/#{where}&token={token}")
        chrome.until("document.querySelector('main section') && !document.querySelector('main [aria-busy=true]')")
        return chrome

    yield at
    quiet(chrome)


def minus(x: float, digits: int) -> str:
    said = f"{x:.{digits}f}"
    return said.replace("-", "" if float(said) == 0 else "−")


def open_table(chrome, title: str) -> list[list[str]]:
    chrome.run(f"[...document.querySelectorAll('summary')].find(s => s.textContent.startsWith('{title}')).click()")
    return chrome.until(ROWS.format("details.table[open]"))


def test_the_overview_has_every_head_coloured_by_what_is_chosen(opened, surveys):
    chrome = opened()
    chrome.until("document.querySelector('.heads').dataset.drawn")
    labels = {(row["layer"], row["head"]): row["role"] for row in surveys[0].table("heads")}
    assert chrome.run("[...document.querySelectorAll('.thumb')].map(t => t.dataset.head)") == list(
        map(str, surveys[0].heads)
    )
    assert chrome.run("document.querySelectorAll('.thumb .bar:not(.none)').length") == sum(map(bool, labels.values()))
    assert text_of(chrome, ".facts").startswith("modelbuiltinlayers × heads4 × 6documents5tokens")
    assert "Not read: 1 (not UTF-8)." in text_of(chrome, "header .notice")
    chrome.choose("Colour", "distance")
    uniform = next(row["uniform"] for row in surveys[0].table("observables") if row["observable"] == "distance")
    chrome.until(f"document.querySelector('.legend').textContent.includes('uniform attention: {uniform:.2f}')")
    chrome.choose("Sort", "by the colour's value")
    means = {
        str(Head(row["layer"], row["head"])): row["document_mean"]
        for row in surveys[0].table("observables")
        if row["observable"] == "distance"
    }
    assert chrome.run("[...document.querySelectorAll('.thumb')].map(t => t.dataset.head)") == sorted(
        means, key=lambda name: -means[name]
    )
    chrome.write_in("Only", "previous-token > 0.5")
    chrome.until("document.querySelectorAll('.thumb').length === 1")
    assert chrome.run("document.querySelector('.thumb').dataset.head") == "L1H3"


def test_a_chosen_head_has_its_scores_with_errors_and_nulls_and_opens_by_keyboard(opened, surveys):
    chrome = opened("head=L0H0")
    chrome.until("document.querySelector('.heads').dataset.drawn")
    chrome.run("document.querySelector('[data-head=L0H0]').focus()")
    chrome.press("ArrowDown")
    assert chrome.run("document.activeElement.dataset.head") == "L1H0"
    want = {r["role"]: r for r in surveys[0].table("roles") if (r["layer"], r["head"]) == (1, 0)}
    for name, *numbers in rows_of(chrome, "aside .roles"):
        row = want[name.removesuffix(" ✓")]
        assert numbers == [f"{row[key]:.3f}" for key in ("score", "standard_error", "uniform")]
    chrome.press("Enter")
    chrome.until("document.querySelector('main.head h2')?.textContent.startsWith('L1H0')")
    chrome.until("!document.querySelector('main [aria-busy=true]')")  # what is still coming moves what is there
    chrome.click_on("button", "Next head")
    chrome.until("document.querySelector('main.head h2')?.textContent.startsWith('L1H1')")
    assert chrome.run("new URLSearchParams(location.hash.slice(1)).get('head')") == "L1H1"


def test_the_strongest_looks_stand_in_their_texts(opened, surveys):
    chrome = opened("view=head&head=L1H3")
    looks = surveys[0].examples(Head(1, 3))
    assert chrome.run("[...document.querySelectorAll('.look b')].map(b => b.textContent)") == [
        percent(x["weight"]) for x in looks
    ]
    seen = chrome.run(
        "[...document.querySelectorAll('.looks li')]"
        ".map(li => [li.querySelector('.seen'), li.querySelector('.looking')].map(m => m.textContent))"
    )
    plain = [
        [x[f"{which}_token"].replace("·", " ").lstrip() or x[f"{which}_token"] for which in ("key", "query")]
        for x in looks
    ]
    assert seen == plain
    # One before the other, so both stand in one excerpt, and nothing between them.
    assert chrome.run(
        "[...document.querySelectorAll('.looks li')].every(li => li.querySelectorAll('.quotation').length === 1)"
    )
    assert chrome.run(
        "[...document.querySelectorAll('.looks .seen')].every(m => m.nextSibling.textContent.trim() === '')"
    )
    rows = open_table(chrome, "Strongest looks")
    assert [row[0] for row in rows] == [f"{x['weight']:.4f}" for x in looks]


def test_far_looks_have_two_excerpts(opened, surveys):
    head, number, look = next(
        (head, n, x)
        for head in surveys[0].heads
        for n, x in enumerate(surveys[0].examples(head))
        if x["query"] - x["key"] > 14
    )
    chrome = opened(f"view=head&head={head}")
    texts = chrome.run(
        f"[...document.querySelectorAll('.looks li')[{number}].querySelectorAll('q')].map(q => q.textContent)"
    )
    assert len(texts) == 2
    for text, which in zip(texts, ("query", "key"), strict=True):
        whole = "".join(look[f"{which}_{part}"] for part in ("before", "token", "after")).replace("·", " ")
        assert text.replace(" ", "") == whole.replace(" ", "")


def test_distances_positions_and_tokens_are_the_surveys(opened, surveys):
    chrome = opened("view=head&head=L2H1")
    found = surveys[0]
    n = found.heads.index(Head(2, 1))
    weights = (found.arrays["map"][n] * found.arrays["map_queries"][:, None]).sum(0) / found.summary["tokens"]
    rows = open_table(chrome, "Weight by distance")
    for row, value in zip(rows, weights, strict=False):
        assert row[1] == ("0.00 %" if value == 0 else percent(value))
    tokens = rows_of(chrome, ".side > table")
    most = int(found.arrays["token_received"][n].argmax())
    table = found.table("tokens")
    assert tokens[0][:2] == [f"“\u2068{table[most]['text']}\u2069”", str(table[most]["count"])]


def test_how_a_quantity_spreads_is_drawn_and_listed(opened, surveys):
    chrome = opened("view=head&head=L3H2")
    rows = {row["observable"]: row for row in surveys[0].table("observables") if (row["layer"], row["head"]) == (3, 2)}
    drawn = chrome.run("[...document.querySelectorAll('.strip')].map(s => s.getAttribute('aria-label'))")
    assert len(drawn) == len(rows)
    row = rows["entropy"]
    assert drawn[0] == (
        f"5 to 95 of 100: {row['q05']:.2f} to {row['q95']:.2f}; 25 to 75: {row['q25']:.2f} to {row['q75']:.2f}; "
        f"median {row['q50']:.2f}"
    )
    left = chrome.run("parseFloat(document.querySelectorAll('.strip')[2].querySelector('.mark').style.left)")
    assert left == pytest.approx(100 * rows["max_weight"]["q50"], abs=1e-3)
    listed = {line[0]: line for line in open_table(chrome, "All quantiles")}
    for name, row in rows.items():
        keys = ("least", "q01", "q05", "q25", "q50", "q75", "q95", "q99", "most", "mean", "variance")
        said = [float(x.replace("−", "-")) for x in listed[name][2:13]]
        assert said == pytest.approx([row[key] for key in keys], abs=0.00051)


def test_two_surveys_differ_where_compare_says_the_surest_first(opened, surveys):
    chrome = opened("view=differences&head=L1H0")
    chrome.until("document.querySelectorAll('.heads.values .thumb').length === 24")
    rows = compare(*surveys)
    assert text_of(chrome, "#differences-title") == "base (here) and tuned (there)"
    shown = open_table(chrome, "All differences")
    assert len(shown) == len(rows)
    for line, row in zip(shown, rows, strict=True):
        assert line[0] == f"L{row['layer']}H{row['head']}"
        assert line[2:6] == [minus(row[key], 3) for key in ("base", "other", "difference", "standard_error")]
    assert rows_of(chrome, ".apart div > table")[0] == ["L1H0", "first-token", "broad"]
    assert text_of(chrome, "aside h2") == "L1H0 · first-token → broad"
    chrome.choose("Change of", "entropy")
    for row in rows:
        if row["observable"] == "entropy":
            name = f"L{row['layer']}H{row['head']}, changed by {minus(row['difference'], 4)}"
            chrome.named("option", name)
    chrome.run("document.querySelector('.heads [data-head=L1H0]').focus()")
    chrome.press("ArrowRight")
    chrome.until("document.querySelector('aside h2').textContent.startsWith('L1H1')")


def test_one_survey_alone_says_how_to_compare(opened, surveys):
    with Server(Surveys(surveys[:1]), say=lambda _: None) as other:
        chrome = opened("view=differences", of=other)
        assert "clearhead view base tuned" in text_of(chrome, "main")


def test_another_survey_is_chosen_and_the_address_keeps_it(opened):
    chrome = opened("view=head&head=L1H0")
    chrome.choose("Survey", "tuned")
    chrome.until("document.querySelector('main.head h2')?.textContent === 'L1H0 · broad'")
    assert chrome.run("new URLSearchParams(location.hash.slice(1)).get('survey')") == "1"
    chrome.send("Page.reload")
    chrome.until("document.querySelector('main.head h2')?.textContent === 'L1H0 · broad'")
    chrome.run("history.back()")
    chrome.until("document.querySelector('main.head h2')?.textContent === 'L1H0 · first-token'")


@pytest.mark.parametrize("view", VIEWS)
def test_what_the_corpus_says_is_text_everywhere(opened, view, surveys):
    for head in ("L0H0", "L2H1"):
        chrome = opened(f"view={view}&head={head}")
        chrome.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        time.sleep(0.2)
        assert chrome.run("typeof hit") == "undefined"
        assert (
            chrome.run(
                "document.querySelectorAll('img, iframe, object, embed, script:not([src]), main b script').length"
            )
            == 0
        )
        assert "\u202e" not in chrome.run("document.body.innerText")
        if view == "head":
            hostile = [x for x in surveys[0].examples(Head.parse(head)) if x["name"] == "2<b>.txt"]
            assert hostile
            assert "2<b>.txt" in text_of(chrome, "main")
            assert hostile[0]["key_before"].replace("·", " ") in text_of(chrome, "main")
            assert "<" in hostile[0]["key_before"]


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_serious_violation_in_the_dark_or_the_light(opened, view):
    chrome = opened(f"view={view}&head=L1H0")
    is_accessible(chrome)


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_sticks_out_at_any_width(opened, view):
    chrome = opened(f"view={view}&head=L1H0")
    fits_every_width(chrome)


def test_in_a_narrow_window_the_surest_differences_still_show_how_sure_they_are(opened):
    chrome = opened("view=differences&head=L1H0")
    chrome.send("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
    try:
        chrome.until("document.querySelector('.surest table')")
        assert chrome.run("(e => e.scrollWidth - e.clientWidth)(document.querySelector('.surest'))") <= 0
        headings = (
            "[...document.querySelectorAll('.surest thead th')].filter((h) => h.offsetWidth).map((h) => h.textContent)"
        )
        assert chrome.run(headings) == ["head", "observable", "here", "there", "z"]
    finally:
        chrome.send("Emulation.clearDeviceMetricsOverride")


def test_a_survey_without_roles_says_so(opened, surveys, tmp_path):
    texts = Corpus([surveys[0].folder.parent / "texts" / "0.txt"])
    plain = survey(load("builtin"), texts, tmp_path / "plain", Options(observables=("entropy",)))
    with Server(Surveys([plain]), say=lambda _: None) as server:
        chrome = opened("view=overview&head=L1H0", server)
        chrome.until("document.querySelector('aside').textContent.includes('No role was measured')")
        assert not chrome.run("document.querySelector('aside table.roles')")
        quiet(chrome)
