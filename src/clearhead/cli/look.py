"""`clearhead look`: run a text through a model and show what every head looks at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli.files import read_text
from clearhead.cli.outputs import Outputs
from clearhead.errors import InputError

if TYPE_CHECKING:
    from clearhead.models import Model

# It stops where a sentence from before comes round again, so that an induction head has something to look at.
PASSAGE = """The lamp was lit before the rain began. Mara set the kettle down, counted the letters again, and put the oldest \
one on top. Three winters ago the harbour master had written that the boats would come back before the rain began, and \
three winters ago she had believed it. Now the kettle sang, the lamp was lit, and nobody came. She opened the oldest \
letter. The harbour master had written, "Keep the lamp where we can see it." So Mara set the lamp in the window, counted \
the letters again, and waited for the boats to come"""
MODELS = '"builtin", "smollm2", a Hugging Face folder, a GGUF file, or a hub id such as org/name.'
ANSWERED = 40  # tokens written for an answer unless --continue says otherwise


def look(
    text: Annotated[str | None, typer.Argument(help="The text to look at. Without it, a passage of our own.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the text from a UTF-8 file.")] = None,
    model: Annotated[str, typer.Option(help=MODELS)] = "builtin",
    token: Annotated[int, typer.Option(help="The token whose attention is shown; negative counts from the end.")] = -1,
    head: Annotated[str | None, typer.Option(help="The head that shades the text, for example L2H3.")] = None,
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="How many keys to list for the token.")] = 8,
    start: Annotated[int, typer.Option(min=0, help="First token to read of a text longer than the context.")] = 0,
    write: Annotated[
        int,
        typer.Option(
            "--continue", min=0, metavar="N", help="Let the model write N more tokens, shown on the same grid."
        ),
    ] = 0,
    document: Annotated[
        list[Path] | None, typer.Option(help="A UTF-8 file to ask about, with --question; may be given several times.")
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="Ask it about the documents: what does the answer take from each?")
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="The system prompt, with --question, in place of the model's own.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page.")] = None,
    most: Annotated[
        float, typer.Option("--max-mb", min=0.1, help="Megabytes the page may have; it says what was left out.")
    ] = 20,
    png: Annotated[Path | None, typer.Option(help="Write the maps of all heads as a picture.")] = None,
    save: Annotated[Path | None, typer.Option(help="Save the trace, for clearhead view and clearhead export.")] = None,
    opened: Annotated[bool, typer.Option("--open", help="Show it in the browser, until Ctrl-C.")] = False,
) -> None:
    """Show what every head of a model looks at in a text.

    Examples:

      clearhead look

      clearhead look "The king is dead. Long live the king." --head L1H0

      clearhead look --file notes.txt --token 5 --html heads.html --png heads.png

      clearhead look --json | jq '.heads[0]'

      clearhead look --file notes.txt --save notes.trace --open

      clearhead look --model smollm2 --document a.txt --document b.txt --question "Who wrote the letter?"
    """
    outputs = Outputs(html, png, save, opened, most)
    if question is not None or document:
        if head is not None or token != -1 or start:
            raise InputError("--head, --token and --start: are about one text; leave them out with --question")
        _asked(model, text, file, document or [], question, system, write, top_k, as_json, outputs)
        return
    if system is not None:
        raise InputError("--system: goes with --question and --document")
    if text is not None and file is not None:
        raise InputError("TEXT and --file: give one of them, not both")
    if text is not None:
        _check_text(text)
    whole = read_text(file) if file is not None else PASSAGE if text is None else text
    outputs.check()

    from clearhead.addresses import Head
    from clearhead.cli.report import as_document, report
    from clearhead.viewer import look as run

    wanted = None if head is None else Head.parse(head)
    view = run(
        loaded(model),
        whole,
        start=start,
        write=write,
        token=token,
        top_k=max(top_k, outputs.kept),
        cells=outputs.cells,
        keep=outputs.keep,
        say=_say,
    )
    chosen = view.notable() if wanted is None else view.trace.check(wanted)
    outputs.write(view, chosen, view.query(token))
    if as_json:
        import json

        print(json.dumps(as_document(view, chosen, view.query(token), top_k), allow_nan=False))
    else:
        report(view, chosen, view.query(token), top_k)
        outputs.say()
    outputs.show(view)


def _asked(
    model: str,
    text: str | None,
    file: Path | None,
    documents: list[Path],
    question: str | None,
    system: str | None,
    write: int,
    top_k: int,
    as_json: bool,
    outputs: Outputs,
) -> None:
    """The answer to a question about documents."""
    if text is not None or file is not None:
        raise InputError("--document: holds the text; leave TEXT and --file out")
    if question is None:
        raise InputError("--document: give a --question about it, or look at it with --file")
    if not documents:
        raise InputError("--question: give at least one --document to ask about")
    for said in (question, system or ""):
        _check_text(said)
    if not question.strip():
        raise InputError("--question: is empty, ask something")
    texts = [(name, read_text(path, "--document")) for name, path in zip(_names(documents), documents, strict=True)]
    outputs.check()

    from clearhead.cli.ask_report import as_document, report
    from clearhead.viewer import ask

    asked = ask(
        loaded(model),
        texts,
        question,
        system=system,
        write=write or ANSWERED,
        top_k=max(top_k, outputs.kept),
        cells=outputs.cells,
        keep=outputs.keep,
    )
    outputs.write(asked.view, asked.readers(1)[0].head, -1)  # the head that says most of the answer comes first
    if as_json:
        import json

        print(json.dumps(as_document(asked), allow_nan=False))
    else:
        report(asked)
        outputs.say()
    outputs.show(asked.view)


def _names(paths: list[Path]) -> list[str]:
    """What documents are called: file names, with their folders where two are the same, numbered where those are."""
    short = [path.name for path in paths]
    long = [name if short.count(name) == 1 else str(path) for name, path in zip(short, paths, strict=True)]
    return [name if long.count(name) == 1 else f"{name} ({long[:n].count(name) + 1})" for n, name in enumerate(long)]


def loaded(model: str) -> Model:
    """The model of a name; what takes long is said on stderr."""
    from clearhead.models import load

    return load(model, progress=_say)


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # bytes of the command line that were no UTF-8
        raise InputError("TEXT: is not UTF-8; put it in a file and name it with --file") from None
