"""`clearhead view`, `clearhead export` and `look --open`, as a person at a shell meets them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from clearhead.cli.serving import read
from clearhead.errors import InputError


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    from clearhead.trace import Trace
    from views import planted_view, twice

    path = tmp_path_factory.mktemp("traces") / "run.trace"
    planted_view(twice(6)).trace.save(path)
    assert isinstance(Trace.load(path), Trace)
    return path


def serving(*words: str, cwd=None) -> tuple[subprocess.Popen, str]:
    """A command that serves, and the address it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "clearhead", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
        env=os.environ | {"BROWSER": "true", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    for line in process.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+/#token=\S+", line):
            return process, found[0]
    raise AssertionError(process.stderr.read())


def ended(process: subprocess.Popen) -> tuple[str, int]:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    return err, process.returncode


def asked(address: str, path: str, body: bytes | None = None, **headers: str) -> dict:
    host = address.partition("//")[2].partition("/")[0]
    for _ in range(5000):
        with contextlib.closing(http.client.HTTPConnection(host, timeout=120)) as connection:
            try:
                connection.request("POST" if body else "GET", path, body, headers)
            except ConnectionRefusedError:
                time.sleep(0.02)
                continue
            return json.load(connection.getresponse())
    raise AssertionError("nobody answered")


def names_of(address: str, what: str = "traces") -> list[str]:
    token = address.partition("#token=")[2]
    key = asked(address, "/api/session", json.dumps({"token": token}).encode())["key"]
    assert asked(address, "/api/shown", Authorization=f"Clearhead {key}") == {"shown": what}
    return [each["name"] for each in asked(address, f"/api/{what}", Authorization=f"Clearhead {key}")[what]]


def test_view_serves_traces_until_ctrl_c(trace):
    process, address = serving("view", str(trace), str(trace), "--no-browser")
    assert names_of(address) == ["run.trace", "run.trace"]
    err, code = ended(process)
    assert (err.splitlines()[-1], code) == ("stopped", 0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    from surveyed import two_surveys

    return [found.folder for found in two_surveys(tmp_path_factory.mktemp("surveys"))]


def test_view_serves_the_folders_of_surveys(folders):
    process, address = serving("view", *map(str, folders), "--no-browser")
    assert names_of(address, "surveys") == ["base", "tuned"]
    err, code = ended(process)
    assert (err.splitlines()[-1], code) == ("stopped", 0)


def test_survey_says_how_to_see_what_it_found(folders, clearhead):
    texts = folders[0].parent / "texts"
    code, said, _ = clearhead("survey", "builtin", str(texts), "--out", str(folders[0]), "--length", "256")
    assert code == 0
    assert said.splitlines()[-1] == f"wrote {folders[0]}; to see it in the browser: clearhead view {folders[0]}"
    code, said, _ = clearhead("survey", "--compare", *map(str, folders))
    assert code == 0
    assert said.splitlines()[:2] == [
        f"{name} {folder}: builtin, 5 documents, 225 tokens"
        for name, folder in zip(("base ", "other"), folders, strict=True)
    ]
    assert said.splitlines()[-1] == f"to see them in the browser: clearhead view {folders[0]} {folders[1]}"


def test_a_reader_that_has_seen_enough_is_no_failure(folders):
    end, into = os.pipe()
    os.close(end)
    words = [sys.executable, "-m", "clearhead", "survey", "--compare", *map(str, folders)]
    try:
        done = subprocess.run(words, stdout=into, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(into)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_document_has_no_error_and_survey_says_so(clearhead, tmp_path):
    (tmp_path / "one.txt").write_text("The king is dead. Long live the king.")
    code, said, _ = clearhead("survey", "builtin", str(tmp_path / "one.txt"), "--out", str(tmp_path / "out"))
    assert code == 0
    assert "± is missing: how much documents differ takes two of them to say" in said


def test_folders_that_cannot_be_shown_are_refused_in_words(folders, trace, clearhead, tmp_path):
    for words, why in (
        (
            ("view", str(tmp_path)),
            f"survey '{tmp_path}': there is no survey in it (survey.json: No such file or directory)",
        ),
        (("view", str(trace), str(folders[0])), f"{trace} is a trace, and {folders[0]} a survey: show them one"),
        (("view", str(folders[0]), "nowhere"), "survey 'nowhere': there is no such folder"),
        (("export", str(folders[0]), str(tmp_path / "x.html")), f"and clearhead view {folders[0]} shows a survey"),
    ):
        code, out, err = clearhead(*words)
        assert (code, out) == (2, "")
        assert why in err


def test_look_open_serves_what_it_looked_at_and_saves_it(tmp_path):
    process, address = serving("look", "The cat sat. The cat sat.", "--open", "--save", "cat.trace", cwd=tmp_path)
    assert names_of(address) == ["builtin"]
    assert ended(process)[1] == 0
    assert (tmp_path / "cat.trace").exists()


def test_export_writes_one_page_and_says_how_large(trace, clearhead, tmp_path):
    out = tmp_path / "run.html"
    code, said, _ = clearhead("export", str(trace), str(out), "--head", "L1H2", "--max-mb", "1")
    assert code == 0
    assert re.fullmatch(rf"wrote {re.escape(str(out))}, 0\.\d MB\n", said)
    assert '"notable":"L1H2"' in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("view", "nowhere.trace"), "nowhere.trace: there is no such file"),
        (("view",), "see clearhead view --help"),
        (("export", "nowhere.trace", "x.html"), "nowhere.trace: there is no such file"),
        (("export", "{trace}", "nowhere/x.html"), "OUT nowhere/x.html: there is no folder nowhere; make it first"),
        (("export", "{trace}", "x.html", "--head", "L9H9"), "head L9H9: no such head"),
        (
            ("export", "{trace}", "x.html", "--max-mb", "0.15"),
            "--max-mb 0.15: the maps and scores of 12 heads do not fit",
        ),
        (("look", "hello", "--save", "nowhere/x.trace"), "--save nowhere/x.trace: there is no folder nowhere"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(words, why, clearhead, trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = clearhead(*(word.format(trace=trace) for word in words))
    assert (code, out) == (2, "")
    assert why in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_large_file_is_announced_before_it_is_read(trace, monkeypatch, capsys):
    read([trace])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("clearhead.cli.serving.LARGE", 1000)
    read([trace])
    assert capsys.readouterr().err == f"reading {trace}, {trace.stat().st_size / 1e9:.1f} GB …\n"


def test_every_sample_of_a_batch_is_shown_by_itself(tmp_path):
    import torch

    from clearhead import Causal, observe
    from clearhead.trace import Call, Tokens, Trace

    trace = Trace()
    for run in (0, 1):
        q, k, v = torch.randn(3, 2, 2, 5, 8)
        ids = Tokens(torch.arange(10).reshape(2, 5))
        trace.calls.append(Call("a", 0, observe(q, k, v, mask=Causal()), run, tokens=ids, key_tokens=ids))
    trace.save(tmp_path / "batch.trace")
    shown = read([tmp_path / "batch.trace"])
    assert [each.name for each in shown] == [
        "batch.trace · text 1 · sample 0", "batch.trace · text 1 · sample 1",
        "batch.trace · text 2 · sample 0", "batch.trace · text 2 · sample 1",
    ]  # fmt: skip
    first, second = (each.strips(each.heads[1]).arrays["entropy"] for each in shown[:2])
    assert first.tolist() == trace.calls[0].observation.entropy[0, 1].tolist()
    assert second.tolist() == trace.calls[0].observation.entropy[1, 1].tolist()
    Trace().save(tmp_path / "empty.trace")
    with pytest.raises(ValueError, match="nothing was observed in this trace"):
        read([tmp_path / "empty.trace"])


def test_look_says_before_any_work_that_the_browser_cannot_be_served(monkeypatch):
    from clearhead.cli.outputs import Outputs

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "clearhead.viewer.server", raising=False)
    Outputs(None, None, None, opened=False, most=20.0).check()
    with pytest.raises(InputError, match=r"the viewer's server needs uvicorn: pip install 'clearhead\[view\]'"):
        Outputs(None, None, None, opened=True, most=20.0).check()
