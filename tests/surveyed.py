"""Two small surveys of one corpus, for tests of what shows them: a model, and the same with one head made to look evenly."""

from __future__ import annotations

from pathlib import Path

from clearhead.models import load
from clearhead.survey import Corpus, Options, Survey, survey

TEXTS = [
    "The king is dead. Long live the king. The king is dead, long live the queen.",
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer",
    '<script>hit=1</script> "><img src=x onerror=hit=1> <script>hit=1</script> \u202eabc שלום </q></li>',
    "Now is the winter of our discontent made glorious summer by this sun of York; and all the clouds that lour'd",
    "When shall we three meet again? In thunder, lightning, or in rain? When the hurlyburly's done, when the battle's lost",
]


def two_surveys(folder: Path) -> list[Survey]:
    """Made below a folder, in `base` and `tuned`."""
    texts = folder / "texts"
    texts.mkdir()
    for n, text in enumerate(TEXTS):
        (texts / f"{n}{'<b>' if n == 2 else ''}.txt").write_text(text, encoding="utf-8")
    (texts / "9.txt").write_bytes(b"\xff\xfe")
    found = []
    for name in ("base", "tuned"):
        model = load("builtin")
        if name == "tuned":
            model.network.blocks[1].attention.query.weight.data[: model.config.width // model.config.heads] *= 0
        done = survey(model, Corpus([texts]), folder / name, Options(length=256))
        assert done is not None
        found.append(done)
    return found
