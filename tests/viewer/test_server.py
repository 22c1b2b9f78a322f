"""The viewer's server as others meet it: who gets in, what is answered, what is refused, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from clearhead.errors import InputError
from clearhead.viewer.data import Shown
from clearhead.viewer.packed import unpack
from clearhead.viewer.questions import Gallery
from clearhead.viewer.server import HEADERS, LONGEST_BODY, LONGEST_QUERY, Pages, Server
from views import kept_shown, planted_shown, twice


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def server(said, tmp_path_factory):
    files = tmp_path_factory.mktemp("pages")
    (files / "index.html").write_text("<!doctype html><title>more</title>", encoding="utf-8")
    more = Pages("more", files, {"double": _double})
    with Server(Gallery([planted_shown(twice(10))]), pages=[more], say=said.append) as server:
        yield server


def _double(given):
    if not isinstance(given, int):
        raise InputError("give a number")
    return {"doubled": 2 * given}


def ask(server, path: str, *, method: str = "GET", body: bytes | None = None, key: bool = True, **headers: str):
    """Status, headers and body of one answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    given = {"Authorization": f"Clearhead {server.key}"} if key else {}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, given)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def exchange(server, token: object) -> tuple[int, dict]:
    status, _, body = ask(server, "/api/session", method="POST", body=json.dumps({"token": token}).encode(), key=False)
    return status, json.loads(body)


def test_the_address_gives_the_key_once_and_a_fresh_one_is_printed_for_the_person(server, said):
    address = server.address()
    assert address.startswith(f"http://127.0.0.1:{server.port}/#token=")
    token = address.partition("#token=")[2]
    assert exchange(server, token) == (200, {"key": server.key})
    status, answer = exchange(server, token)
    assert status == 401
    assert "used before" in answer["error"]
    fresh = said[-1].partition("#token=")[2]
    assert fresh
    assert fresh != token
    assert exchange(server, fresh) == (200, {"key": server.key})


def test_a_wrong_token_gives_nothing_and_prints_nothing(server, said):
    before = len(said)
    for wrong in ("x", "", "é", None, 3, ["x"], server.key):
        status, answer = exchange(server, wrong)
        assert status in (400, 401)
        assert "key" not in answer
    assert len(said) == before


@pytest.mark.parametrize("path", ["/api/traces", "/api/trace", "/api/tile?head=L0H0&level=0&x=0&y=0", "/api/nothing"])
def test_without_the_key_no_question_is_answered(server, path):
    for given in (
        {},
        {"Authorization": "Clearhead x"},
        {"Authorization": "Clearhead"},
        {"Cookie": f"key={server.key}"},
    ):
        status, _, body = ask(server, path, key=False, **given)
        assert status == 401
        assert set(json.loads(body)) == {"error"}


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "evil.example:{port}", "127.0.0.1:1", "", "localhost.evil:{port}"]
)
def test_another_host_is_refused_even_with_the_key(server, host):
    status, _, body = ask(server, "/api/traces", Host=host.format(port=server.port))
    assert status == 403
    assert b"Host" in body


def test_localhost_is_this_machine_too(server):
    assert ask(server, "/api/traces", Host=f"localhost:{server.port}")[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}"])
def test_another_origin_is_refused_even_with_the_key(server, origin):
    assert ask(server, "/api/traces", Origin=origin.format(port=server.port))[0] == 403
    assert ask(server, "/api/session", method="POST", Origin=origin.format(port=server.port), key=False)[0] == 403


def test_another_site_may_link_to_the_page_and_no_more(server):
    assert ask(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200
    assert ask(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert ask(server, "/api/traces", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="navigate")[0] == 403


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/%2e%2e/server.py", "/..%2fserver.py", "//etc/passwd", "/etc/passwd", "/%2fetc%2fpasswd",
     "/more/../../data.py",
     "/index.html/..", "/.", "/server.py", "/api/../../server.py", "/more/%00"],
)  # fmt: skip
def test_no_path_leads_out_of_the_page(server, path):
    status, _, body = ask(server, path)
    assert status in (400, 404)
    assert b"import" not in body
    assert b"root:" not in body


@pytest.mark.parametrize("path", ["/", "/api/traces", "/api/nothing", "/nothing"])
def test_every_answer_has_the_headers(server, path):
    _, headers, _ = ask(server, path)
    found = {name.lower(): value for name, value in headers.items()}
    for name, value in HEADERS.items():
        assert found[name.lower()] == value
    assert "unsafe" not in found["content-security-policy"]
    assert "access-control-allow-origin" not in found
    assert "set-cookie" not in found
    assert "server" not in found


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_other_methods_are_refused(server, method):
    assert ask(server, "/api/traces", method=method)[0] == 405


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/api/nothing", "question 'nothing': expected one of"),
        ("/api/trace?trace=9", "trace: expected a number below 1, got 9"),
        ("/api/trace?trace=-1", "trace: expected a number below 1, got -1"),
        ("/api/trace?trace=x", "trace: expected a whole number, got 'x'"),
        ("/api/trace?file=/etc/passwd", "trace: takes trace, and not 'file'"),
        ("/api/strips?head=L9H9", "head L9H9: no such head"),
        ("/api/strips?head=../x", "head '../x': expected an address such as L2H3"),
        ("/api/tile?head=L0H0&level=0&x=0", "y: expected a whole number, got None"),
        ("/api/tile?head=L0H0&level=1e9&x=0&y=0", "level: expected a whole number, got '1e9'"),
        ("/api/tile?head=L0H0&level=0&x=0&y=0&pool=sum", "pool: expected mean or max, got 'sum'"),
        ("/api/tile?head=L0H0&level=0&x=0&y=0", "head L0H0: its queries and keys were not kept"),
        ("/api/crop?head=L0H0&queries=0-4&keys=0:4", "queries: expected begin:end, got '0-4'"),
        ("/api/line?at=3", "heads: none are chosen"),
        ("/api/line?heads=L7&at=3", "heads: there is no layer 7"),
        ("/api/line?heads=L0H0&at=20", "at 20: there are 20 of them, 0 to 19"),
        ("/api/line?heads=L0H0&at=2&what=logit", "what logit: queries and keys were not kept"),
        ("/api/rollout?position=3", "rollout: needs the queries and keys of every layer"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(server, path, why):
    status, _, body = ask(server, path)
    assert status == 400
    assert why in json.loads(body)["error"]


def test_what_is_too_long_is_refused(server):
    status, _, body = ask(server, "/api/line?at=1&heads=" + "L0H0," * 20_000)
    assert status in (400, 414), body
    assert ask(server, "/api/line?at=1&heads=" + "L0,L1," * (LONGEST_QUERY // 6 + 1))[0] == 414
    assert ask(server, "/api/line?at=1&heads=" + "L0,L1," * (LONGEST_QUERY // 6 - 10))[0] == 200
    assert ask(server, "/api/session", method="POST", body=b'"' + b"x" * LONGEST_BODY + b'"', key=False)[0] == 400


def test_the_numbers_are_those_of_the_trace(server):
    shown = server.gallery.of({})
    status, headers, body = ask(server, "/api/strips?head=L1H3")
    assert status == 200
    assert headers["content-type"] == "application/octet-stream"
    seen = shown.trace.observation(1)
    arrays = unpack(body).arrays
    for name in ("entropy", "received", "first_weight", "distance"):
        np.testing.assert_array_equal(arrays[name], getattr(seen, name)[0, 3].numpy())
    document = json.loads(ask(server, "/api/trace")[2])
    head = next(h for h in document["heads"] if h["head"] == "L1H3")
    assert head["values"]["entropy"] == seen.mean("entropy")[0, 3].item()
    assert head["roles"] == [
        {"role": s.role, "score": s.score, "null": s.null, "threshold": s.threshold, "labelled": s.labelled}
        for s in shown.roles[shown.heads[9]]
    ]


def test_tokens_cannot_end_an_element(server):
    shown = planted_shown([0, 1], ["</script><!--", "<b>&"])
    with Server(Gallery([shown]), say=lambda _: None) as other:
        body = ask(other, "/api/trace")[2]
    assert b"<" not in body
    assert json.loads(body)["tokens"] == ["</script><!--", "<b>&"]


def test_two_hundred_questions_at_once_are_all_answered(server):
    paths = [f"/api/line?heads=L{n % 2}H{n % 6}&axis=query&at={n % 20}" for n in range(200)]
    with ThreadPoolExecutor(40) as many:
        answers = list(many.map(lambda path: ask(server, path), paths))
    assert [status for status, _, _ in answers] == [200] * 200
    row = unpack(answers[7][2]).arrays["values"]
    seen = server.gallery.of({}).trace.observation(1)
    assert row[seen.top_keys[0, 1, 7, 0]] == seen.top_weights[0, 1, 7, 0].double().item()


def test_two_hundred_tiles_at_once_are_all_right():
    shown = kept_shown()
    wanted = [(f"L{n % 2}H{n % 3}", n % 2, ("mean", "max")[n // 2 % 2]) for n in range(200)]
    with Server(Gallery([shown]), say=lambda _: None) as tiled, ThreadPoolExecutor(40) as many:
        paths = [f"/api/tile?head={head}&level={level}&x=0&y=0&pool={pool}" for head, level, pool in wanted]
        answers = list(many.map(lambda path: ask(tiled, path), paths))
    for (head, level, pool), (status, _, body) in zip(wanted, answers, strict=True):
        assert status == 200
        cells = shown.trace.tile(head, level, 0, 0, pool=pool).numpy()
        np.testing.assert_array_equal(unpack(body).arrays["cells"], cells)


def test_other_pages_add_files_and_functions(server):
    assert b"<title>more" in ask(server, "/more/", key=False)[2]
    assert json.loads(ask(server, "/api/more/double", method="POST", body=b"21")[2]) == {"doubled": 42}
    assert ask(server, "/api/more/double", method="POST", body=b"21", key=False)[0] == 401
    status, _, body = ask(server, "/api/more/double", method="POST", body=b"not json")
    assert (status, json.loads(body)) == (400, {"error": "give a number"})


def test_a_file_that_has_gone_is_said_to_have_gone_and_still_shown(tmp_path):
    file = tmp_path / "run.trace"
    file.touch()
    planted = planted_shown(twice(4))
    shown = Shown(planted.trace, name="run.trace", path=file)
    with Server(Gallery([shown]), say=lambda _: None) as server:
        assert json.loads(ask(server, "/api/trace")[2])["gone"] is False
        file.unlink()
        status, _, body = ask(server, "/api/trace")
        assert (status, json.loads(body)["gone"]) == (200, True)
        assert ask(server, "/api/maps")[0] == 200


def test_a_port_that_is_taken_is_said_to_be(server):
    with pytest.raises(InputError, match=f"--port {server.port}: Address already in use; leave it out for a free one"):
        Server(Gallery([]), port=server.port)
    with pytest.raises(InputError, match="--port 70000: "):
        Server(Gallery([]), port=70_000)


def test_only_this_machine_can_reach_it(server):
    assert server._socket.getsockname()[0] == "127.0.0.1"


def _answers(port: int) -> bytes:
    """What / answers, once there is somebody to answer."""
    for _ in range(500):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            try:
                connection.request("GET", "/")
            except ConnectionRefusedError:
                threading.Event().wait(0.02)
                continue
            return connection.getresponse().read()
    raise AssertionError("nobody answered")


def test_ctrl_c_ends_it_cleanly():
    program = (
        "from clearhead.viewer.questions import Gallery\n"
        "from clearhead.viewer.server import Server\n"
        "server = Server(Gallery([]), say=lambda line: print(line, flush=True))\n"
        "print(server.address(), flush=True)\n"
        "server.run()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    address = process.stdout.readline()
    port = int(address.split(":")[2].split("/")[0])
    assert _answers(port)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (out, err, process.returncode) == ("stopped\n", "", 0)


def test_the_files_served_are_those_of_the_page(server):
    folder = Path(sys.modules["clearhead.viewer.server"].__file__).parent / "page"
    for file in folder.rglob("*"):
        if file.is_file():
            status, _, body = ask(server, "/" + file.relative_to(folder).as_posix(), key=False)
            assert (status, body) == (200, file.read_bytes())
