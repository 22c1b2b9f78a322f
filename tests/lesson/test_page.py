"""The lesson as data and as one file: complete, inert, and refusing what it cannot compute."""

from __future__ import annotations

import json
import re

import pytest
from lessons import lesson

from clearhead.errors import InputError
from clearhead.lesson import Settings, compute
from clearhead.lesson import page as pages
from clearhead.lesson.serve import served

BAD = [
    (None, "lesson: expected key and some of key, time, width, seed, text, got None."),
    ({"key": "4", "tiem": 3}, "lesson: expected key and some of"),
    ({"time": 3}, "lesson: expected key and some of"),
    ({"key": "4", "time": "3"}, "time: expected a whole number, got '3'."),
    ({"key": "4", "time": True}, "time: expected a whole number, got True."),
    ({"key": "4", "text": 3}, "text: expected text, got 3."),
    ({"key": "4", "time": 3.5}, "time: expected a whole number, got 3.5."),
    ({"key": "44"}, "rung 44: there is no such page"),
    ({"key": "4", "time": 1000}, "time: expected 1 to 64, got 1000."),
]


@pytest.mark.parametrize(("payload", "said"), BAD, ids=[str(payload) for payload, _ in BAD])
def test_what_cannot_be_computed_is_refused_in_words(payload, said: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(said)):
        compute.compute(payload)


@pytest.mark.parametrize("key", [page.key for page in lesson("default")])
def test_every_page_is_json_with_all_its_blocks(key: str) -> None:
    page = next(p for p in lesson("long") if p.key == key)
    made = compute.as_json(page)
    json.dumps(made, allow_nan=False)
    assert len(made["blocks"]) == len(page.blocks)
    assert {block["is"] for block in made["blocks"]} <= {
        "say",
        "source",
        "ran",
        "grids",
        "equal",
        "table",
        "cost",
        "try",
    }


def test_a_page_asked_for_is_the_one_of_those_settings() -> None:
    made = compute.compute({"key": "4", "time": None, "text": "one two", "seed": 7})
    weights = next(
        g for b in made["blocks"] if b["is"] == "grids" for g in b["items"] if g["name"] == "four.weights[0]"
    )
    expected = Settings(text="one two", seed=7).head.weights[0].tolist()
    assert weights["values"] == [[round(w, 6) for w in row] for row in expected]
    assert weights["rows"] == ["one", "two"]
    assert any(b["is"] == "cost" for b in made["blocks"])


def test_code_in_colour_is_the_same_code() -> None:
    for page in lesson("default"):
        for block in compute.as_json(page)["blocks"]:
            if block["is"] == "source":
                assert "".join(text for _, text in block["code"]).startswith("def ")
                assert {"c", "k"} & {kind for kind, _ in block["code"]}


@pytest.fixture(scope="module")
def small() -> str:
    with pytest.MonkeyPatch.context() as patch:
        for name, values in {"TIMES": (8,), "WIDTHS": (None,), "SEEDS": (1337,), "TEXTS": ()}.items():
            patch.setattr(pages, name, values)
        return pages.page(Settings(text="</script><b>&", seed=7), measured=False)


def data_of(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def test_the_file_lets_only_its_own_script_and_style_run(small: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', small)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert small.index("Content-Security-Policy") < small.index("<style>") < small.index("<script")
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", small)
    assert small.count("</script>") == 2
    assert " style=" not in small


def test_the_file_holds_every_choice_it_offers_and_opens_on_the_readers(small: str) -> None:
    data = data_of(small)
    options = data["options"]
    assert options == {"text": ["</script><b>&", None], "time": [8], "width": [None], "seed": [1337, 7]}
    assert data["first"] == {"text": "</script><b>&", "time": None, "width": None, "seed": 7}
    assert set(data["choices"]) == {
        json.dumps([text, None if text else 8, None, seed], separators=(",", ":"))
        for text in options["text"]
        for seed in options["seed"]
    }
    for made in data["choices"].values():
        assert set(made) == {*map(str, range(1, 10))}
        assert all(0 <= n < len(data["blocks"]) for page in made.values() for n in page)
    assert set(data["alike"]) == {"0", "3a", "4a", "4b", "4c", "4d", "5a", "5b", "10"}


def test_the_file_does_not_tell_what_its_writer_solved(small: str, monkeypatch, tmp_path) -> None:
    from clearhead.lesson import progress

    monkeypatch.setenv("CLEARHEAD_CONFIG", str(tmp_path))
    progress.solve(1)
    with monkeypatch.context() as patch:
        for name, values in {"TIMES": (8,), "WIDTHS": (None,), "SEEDS": (1337,), "TEXTS": ()}.items():
            patch.setattr(pages, name, values)
        again = pages.page(Settings(text="</script><b>&", seed=7), measured=False)
    assert again == small


def test_the_server_gets_the_page_and_two_functions() -> None:
    made = served(Settings(time=5))
    assert made.name == "lesson"
    given = {file.name for file in made.files.iterdir()}
    assert {name for name in given if not name.endswith(".js")} == {"index.html", "lesson.css"}
    assert {"serve.js", "lesson.js"} <= given
    facts = made.functions["facts"](None)
    assert facts["first"] == {"text": None, "time": 5, "width": None, "seed": 1337}
    assert made.functions["compute"]({"key": "0"})["title"] == "Start"
