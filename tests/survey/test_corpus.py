"""Corpora of every kind come out as the same documents; what cannot be read keeps its number and stops nothing."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from clearhead.errors import InputError
from clearhead.survey.corpus import AT_ONCE, Bad, Corpus, shards

TEXTS = ["The first.\n", "Zweites Stück: öäü\n", "third"]


def read(corpus: Corpus) -> list[tuple[str, str]]:
    """Names, and texts or why there is none."""
    found = []
    for n, document in enumerate(corpus):
        assert document.number == n
        try:
            found.append((document.name, document.read()))
        except Bad as error:
            found.append((document.name, f"bad: {error}"))
    return found


def jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text, "n": 1}) + "\n" for text in texts), encoding="utf-8")
    return path


def table(texts: list[str]) -> pyarrow.Table:
    return pyarrow.table({"n": list(range(len(texts))), "text": texts})


def test_a_folder_is_read_in_the_order_of_names_whatever_is_below_it(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.md").write_text(TEXTS[1], encoding="utf-8")
    (tmp_path / "a.txt").write_text(TEXTS[0], encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    jsonl(tmp_path / "c.jsonl", TEXTS[:2])
    assert read(Corpus([tmp_path])) == [
        ("a.txt", TEXTS[0]), ("b/x.md", TEXTS[1]), ("c.jsonl:1", TEXTS[0]), ("c.jsonl:2", TEXTS[1]),
    ]  # fmt: skip
    found = read(Corpus([str(tmp_path / "**" / "*.md"), tmp_path / "a.txt"]))
    assert found == [("x.md", TEXTS[1]), ("a.txt", TEXTS[0])]


def test_tables_and_datasets_give_their_column(tmp_path: Path) -> None:
    texts = [f"row {n}" for n in range(AT_ONCE + 3)]
    pyarrow.parquet.write_table(table(texts), tmp_path / "a.parquet", row_group_size=10)
    assert [text for _, text in read(Corpus([tmp_path / "a.parquet"]))] == texts
    assert read(Corpus([tmp_path / "a.parquet"]))[-1][0] == f"a.parquet#{AT_ONCE + 2}"
    dataset = tmp_path / "saved"
    dataset.mkdir()
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, part in zip(names, (texts[:40], texts[40:]), strict=True):
        with pyarrow.ipc.new_stream(dataset / name, table(part).schema) as stream:
            stream.write_table(table(part))
    (dataset / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (dataset / "dataset_info.json").write_text("{}")
    assert [text for _, text in read(Corpus([dataset]))] == texts
    body = pyarrow.table({"body": pyarrow.array(["x", None, "y"]).dictionary_encode()})
    pyarrow.parquet.write_table(body, tmp_path / "b.parquet")
    assert [text for _, text in read(Corpus([tmp_path / "b.parquet"], field="body"))] == [
        "x", "bad: no text in field 'body'", "y",
    ]  # fmt: skip


def test_the_share_behind_a_document_ends_at_one(tmp_path: Path) -> None:
    jsonl(tmp_path / "c.jsonl", TEXTS)
    (tmp_path / "d.txt").write_text("x" * 50)
    pyarrow.parquet.write_table(table(TEXTS), tmp_path / "e.parquet")
    shares = [document.done for document in Corpus([tmp_path])]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_bad_documents_keep_their_numbers(tmp_path: Path) -> None:
    lines = [
        b'{"text": "good"}',
        b"{broken",
        b'{"other": 1}',
        b'{"text": "\xff"}',
        b'{"text": "' + b"x" * 300 + b'"}',
        b"",
        b"[1]",
        b'{"text": "half \\ud800"}',
        b'{"text": "whole \\ud83d\\ude00"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b'\n{"text": "last"}')
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    (tmp_path / "c.txt").write_bytes(b"a\0b")
    (tmp_path / "d.txt").write_text("y" * 101)
    (tmp_path / "e.txt").write_bytes(b"\xef\xbb\xbfmarked")
    (tmp_path / "f.txt").write_text("wide", encoding="utf-16")
    assert read(Corpus([tmp_path], largest=100)) == [
        ("a.jsonl:1", "good"),
        ("a.jsonl:2", "bad: no JSON"),
        ("a.jsonl:3", "bad: no text in field 'text' (it has 'other'; choose with --field)"),
        ("a.jsonl:4", "bad: not UTF-8 (byte 10)"),
        ("a.jsonl:5", "bad: larger than 100 bytes (see --largest)"),
        ("a.jsonl:7", "bad: no text in field 'text' (it has none; choose with --field)"),
        ("a.jsonl:8", "bad: half of a surrogate pair: no Unicode text"),
        ("a.jsonl:9", "whole \U0001f600"),
        ("a.jsonl:10", "last"),
        ("b.txt", "bad: not UTF-8 (byte 3)"),
        ("c.txt", "bad: no text: it holds bytes of value 0"),
        ("d.txt", "bad: larger than 100 bytes (see --largest)"),
        ("e.txt", "marked"),
        ("f.txt", "bad: UTF-16, not UTF-8"),
    ]


def test_gzipped_files_are_read_as_what_is_in_them(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "b.txt.GZ").write_bytes(gzip.compress(TEXTS[1].encode()))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"x" * 101))  # fewer bytes on the disk than are allowed
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(lines)[:-9])
    (tmp_path / "e.txt.gz").write_bytes(b"as it is")
    found = read(Corpus([tmp_path], largest=100))
    assert found[:5] == [
        *((f"a.jsonl.gz:{n}", text) for n, text in enumerate(TEXTS, start=1)), ("b.txt.GZ", TEXTS[1]),
        ("c.txt.gz", "bad: larger than 100 bytes (see --largest)"),
    ]  # fmt: skip
    assert found[-2] == (
        "d.jsonl.gz",
        "bad: damaged (Compressed file ended before the end-of-stream marker was reached)",
    )
    assert found[-1] == ("e.txt.gz", "bad: damaged (Not a gzipped file (b'as'))")


def test_a_damaged_table_is_one_bad_document_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1, or so it says")
    (tmp_path / "b.arrow").write_bytes(b"no stream at all")
    pyarrow.parquet.write_table(table(TEXTS), tmp_path / "c.parquet", compression="none", use_dictionary=False)
    whole = (tmp_path / "c.parquet").read_bytes()
    at = whole.index(TEXTS[0].encode())
    (tmp_path / "c.parquet").write_bytes(whole[: at - 40] + b"\xff" * 40 + whole[at:])
    (tmp_path / "d.txt").write_text("good")
    a, b, *c, d = read(Corpus([tmp_path]))
    for (name, said), wanted in zip((a, b, c[-1]), ("a.parquet", "b.arrow", "c.parquet"), strict=True):
        assert name == wanted
        assert said.startswith("bad: damaged (")
    assert d == ("d.txt", "good")


def test_what_is_hidden_or_a_surveys_own_is_no_part_of_a_folder_and_other_kinds_are_counted(tmp_path: Path) -> None:
    for name in ("a.txt", "sub/b.txt", ".git/c.txt", "sub/.d.txt", "found/e.txt", "f.csv", "g.CSV", "README"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("text")
    (tmp_path / "found" / "survey.json").write_text("{}")
    corpus = Corpus([tmp_path])
    assert [source.shown for source in corpus.sources] == ["a.txt", "sub/b.txt"]
    assert corpus.others == {".csv": 2, "README": 1}


def test_shards_are_the_same_neighbours_for_everyone(tmp_path: Path) -> None:
    sizes = [5, 5, 90, 1, 1, 1, 1, 200, 3]
    jsonl(tmp_path / "a.jsonl", ["x" * n for n in sizes])
    extra = len('{"text": "", "n": 1}\n')
    found = [[d.number for d in shard] for shard in shards(iter(Corpus([tmp_path])), most=3, size=100 + extra)]
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7], [8]]


def test_the_fingerprint_follows_content_and_names_not_places(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("x" * 200_000)
    first = Corpus([tmp_path / "one"]).fingerprint()
    assert Corpus([tmp_path / "two"]).fingerprint() == first
    (tmp_path / "two" / "a.txt").write_text("x" * 199_999 + "y")
    assert Corpus([tmp_path / "two"]).fingerprint() != first


def test_what_cannot_be_a_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"corpus 'nothing\*\.txt': there is no such file or folder, and it matches no file"
    ):
        Corpus(["nothing*.txt"])
    with pytest.raises(InputError, match="corpus: expected a file, folder or glob pattern, got none; name one"):
        Corpus([])
    with pytest.raises(
        InputError, match=r"holds none of \.txt, \.md, \.text, \.jsonl, \.ndjson, \.parquet, \.arrow; name files"
    ):
        Corpus([tmp_path])
    pyarrow.parquet.write_table(table(TEXTS), tmp_path / "a.parquet")
    with pytest.raises(
        InputError, match=r"corpus a\.parquet: has no column 'body'; it has n, text; choose with --field"
    ):
        Corpus([tmp_path], field="body")
    for name, remedy in (
        ("x.csv", r"\.csv is not read; make JSON lines \(\.jsonl\) or Parquet of it"),
        ("x.jsonl.zst", r"\.zst is not read; unpack it, or pack it with gzip"),
        ("x.parquet.gz", r"\.parquet is not read; unpack it"),
    ):
        (tmp_path / name).write_text("a,b")
        with pytest.raises(InputError, match=rf"corpus {name}: {remedy}"):
            Corpus([tmp_path / name])
    splits = tmp_path / "splits"
    for name in ("test", "train"):
        (splits / name).mkdir(parents=True)
        (splits / name / "state.json").write_text("{}")
    (splits / "dataset_dict.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds the splits test, train of a dataset; name one: .*/splits/test"):
        Corpus([splits])


def test_without_pyarrow_a_survey_says_so_before_it_reads_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clearhead import models
    from clearhead.survey import survey

    (tmp_path / "notes.txt").write_text(TEXTS[0], encoding="utf-8")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"^survey: needs pyarrow; pip install 'clearhead\[survey\]'$"):
        survey(models.load("builtin"), Corpus([tmp_path / "notes.txt"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()
