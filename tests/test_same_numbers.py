"""One number is the same wherever it is read: in code, the terminal, JSON, the page, the notebook, a file, and a survey."""

from __future__ import annotations

import json
import re

import pytest
import torch
from typer.testing import CliRunner

from clearhead import Trace, watch
from clearhead.addresses import Head
from clearhead.cli import app
from clearhead.models import load
from clearhead.roles import label, roles
from clearhead.survey import Corpus, Options, survey
from clearhead.viewer import Shown
from clearhead.viewer.notebook import bundle
from clearhead.viewer.questions import Gallery
from packaged import SMOLLM2

ROUNDED = 2.5e-4  # half of what the last of 16 bits is worth below 1, in which a file keeps weights
SHORT = "The king is dead. Long live the king. To be, or not to be: that is the question. The king is dead."
TEXT = f"{SHORT} {SHORT}"

MODELS = [
    "builtin",
    pytest.param("smollm2", marks=SMOLLM2),
]


class Read:
    """Every way to read the numbers of one text."""

    def __init__(self, name: str, folder) -> None:
        self.model = load(name)
        ids = self.model.encode(TEXT)
        with watch(self.model.network) as self.trace, torch.no_grad():
            self.model.network(torch.tensor([ids]))
        self.roles = roles(self.trace)
        page, saved = folder / "page.html", folder / "saved.trace"
        given = ["look", TEXT, "--model", name]
        printed = CliRunner().invoke(app, [*given, "--html", str(page), "--save", str(saved)], env={"COLUMNS": "120"})
        assert printed.exit_code == 0, printed.output
        self.terminal = {found[1]: found[0] for found in re.finditer(r"^(L\d+H\d+) .*$", printed.output, re.MULTILINE)}
        self.json = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)
        self.page = page.read_text("utf-8")
        self.saved = Trace.load(saved)
        self.gallery = Gallery([Shown(self.saved, name="saved")])
        texts = folder / "texts"
        texts.mkdir()
        (texts / "one.txt").write_text(TEXT, "utf-8")
        self.survey = survey(self.model, Corpus([texts]), folder / "survey", Options(length=len(ids)))

    def in_page(self, head: Head) -> dict:
        """What the page's own data says of a head."""
        data = json.loads(
            re.search(r'<script type="application/json" id="data">(.*?)</script>', self.page, re.DOTALL)[1]
        )
        return next(one for one in data["document"]["heads"] if one["head"] == str(head))

    def in_server(self, head: Head) -> dict:
        """What the server (and the widget, which asks the same) answers."""
        answer = self.gallery.ask("trace", {})
        return next(one for one in answer.facts["heads"] if one["head"] == str(head))


@pytest.fixture(scope="module", params=MODELS)
def read(request, tmp_path_factory):
    return Read(request.param, tmp_path_factory.mktemp("read"))


def heads_of(read: Read) -> list[Head]:
    """A head of each role there is, and the last."""
    found = {}
    for head, scores in read.roles.items():
        best = label(scores)
        found.setdefault(best.role if best else None, head)
    return [*found.values(), list(read.roles)[-1]]


def test_an_entropy(read):
    for head in heads_of(read):
        entropy = read.trace.observation(head.layer).entropy[0, head.head].double().mean().item()
        shown = f"{entropy:.2f}"
        assert f" {shown} " in read.terminal[str(head)], read.terminal[str(head)]
        told = next(one for one in read.json["heads"] if one["head"] == str(head))
        assert told["entropy"] == pytest.approx(entropy, abs=2e-6)
        assert read.saved.observation(head.layer).entropy[0, head.head].double().mean().item() == pytest.approx(
            entropy, abs=1e-7
        )
        for document in (read.in_page(head), read.in_server(head)):
            assert document["values"]["entropy"] == pytest.approx(entropy, abs=2e-6)
        row = next(
            row
            for row in read.survey.table("observables")
            if (row["layer"], row["head"], row["observable"]) == (*head, "entropy")
        )
        assert row["mean"] == pytest.approx(entropy, abs=1e-6)


def test_a_role(read):
    notebook = bundle(read.saved)["text/html"]
    known = {(row["layer"], row["head"], row["role"]): row for row in read.survey.table("roles")}
    some = 0
    for head in heads_of(read):
        best = label(read.roles[head])
        if best is None:
            continue
        some += 1
        assert re.search(rf"\s{best.role}\s+{best.score:.2f}\s+{best.null:.2f}\s", read.terminal[str(head)])
        told = next(one for one in read.json["heads"] if one["head"] == str(head))
        assert told["role"] == best.role
        assert told["roles"][best.role]["score"] == pytest.approx(best.score, abs=2e-6)
        assert told["roles"][best.role]["uniform"] == pytest.approx(best.null, abs=2e-6)
        for document in (read.in_page(head), read.in_server(head)):
            role = next(role for role in document["roles"] if role["role"] == best.role)
            assert role["score"] == pytest.approx(best.score, abs=ROUNDED)
        if head in list(read.roles)[:40]:
            cells = "".join(f"<td>{cell}</td>" for cell in (head, best.role, f"{best.score:.2f}", f"{best.null:.2f}"))
            assert cells in notebook
        row = known[(*head, best.role)]
        assert row["score"] == pytest.approx(best.score, abs=1e-6)
        assert row["uniform"] == pytest.approx(best.null, abs=1e-6)
    assert some >= 3


def test_the_largest_weight(read):
    for head in heads_of(read):
        seen = read.trace.observation(head.layer)
        key, weight = seen.top_keys[0, head.head, -1, 0].item(), seen.top_weights[0, head.head, -1, 0].item()
        assert f" {100 * weight:.0f}%" in read.terminal[str(head)].replace("  ", " ").replace("  ", " ")
        told = next(one for one in read.json["heads"] if one["head"] == str(head))
        assert told["top"][0] == {"key": key, "weight": pytest.approx(weight, abs=2e-6)}
        last = len(read.json["tokens"]) - 1
        weights = read.gallery.ask("line", {"heads": str(head), "axis": "query", "at": str(last)}).arrays["values"]
        assert int(weights.argmax()) == key
        assert weights[key] == pytest.approx(weight, abs=1e-5)
        exact = read.saved.crop(head, queries=slice(last, last + 1), keys=slice(key, key + 1))
        assert exact.item() == pytest.approx(weight, abs=1e-5)
