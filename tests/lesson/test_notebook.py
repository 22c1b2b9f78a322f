"""The notebook is valid, says what the pages say, and runs from top to bottom giving the same numbers."""

from __future__ import annotations

import warnings

import pytest
from lessons import blocks, lesson

from clearhead.lesson.blocks import Equal, Grids, Say, Source
from clearhead.lesson.notebook import notebook, show

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


@pytest.fixture(scope="module")
def made():
    return nbformat.reads(notebook(lesson("default")), as_version=4)


def test_it_is_a_valid_notebook_without_stored_results(made) -> None:
    nbformat.validate(made)
    assert all(cell.outputs == [] for cell in made.cells if cell.cell_type == "code")
    assert len({cell.id for cell in made.cells}) == len(made.cells)
    assert notebook(lesson("default")) == notebook(lesson("default"))


def test_it_says_what_the_pages_say(made) -> None:
    said = "\n".join(cell.source for cell in made.cells)
    for kind, part in ((Say, "text"), (Source, "code"), (Equal, "code")):
        for _, block in blocks("default", kind):
            assert getattr(block, part) in said
    for page in lesson("default"):
        assert f"## {page.key}. {page.title}" in said


def test_it_runs_and_its_numbers_are_those_of_the_pages(made, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Jupyter's own sockets
        nbclient.NotebookClient(made, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    results = [
        (cell.source, cell.outputs[0]["data"]["text/plain"])
        for cell in made.cells
        if cell.cell_type == "code" and cell.outputs
    ]
    floats = [text for source, text in results if source.startswith("float(")]
    assert floats == [str(equal.difference) for _, equal in blocks("default", Equal)]
    shown = [text for source, text in results if source.startswith("show(")]
    grids = [item for _, block in blocks("default", Grids) for item in block.items]
    assert len(shown) == len(grids)
    for text, item in zip(shown, grids, strict=True):
        assert text.splitlines()[0].startswith(item.name)
        assert len(text.splitlines()) == 1 + len(item.values)


def test_a_matrix_is_shown_as_text_and_as_a_shaded_table() -> None:
    import torch

    shown = show(torch.tensor([[0.25, 0.0]]), "<w>", shade="weight")
    assert repr(shown) == "<w>  (1, 2)\n0.2500  0.0000"
    html = shown._repr_html_()
    assert "&lt;w&gt; (1, 2)" in html
    assert html.count("background:rgb") == 1
