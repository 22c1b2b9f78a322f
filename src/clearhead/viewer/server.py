"""A server for one person on one machine: the viewer's page and what it asks, on 127.0.0.1.

Who may ask: the address that is printed carries a token behind its `#`, which browsers send nowhere, neither in a request nor
in a Referer. The page takes it out of the address and exchanges it, once, for a key, which it keeps in its own storage and
sends as a header with every question; so reloading works, another tab of the same browser works, and no cookie is there for
other servers of the machine to be sent. A token that comes a second time is refused, and a new address is printed where only
the person at the terminal sees it. The page's code holds no secrets and is given to anybody who reaches the port.

What is refused besides: a Host that is not this machine (a name somebody made point here), an Origin that is not this page,
any method but GET and POST, any path that is not listed. Files are read once, when the server is made, from the package: no
path that comes over the network is ever opened.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clearhead.errors import ClearheadError, InputError
from clearhead.viewer.packed import Answer
from clearhead.viewer.questions import Answering

try:
    import anyio
    import uvicorn
    from anyio import to_thread
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError as missing:
    raise InputError(
        f"the viewer's server needs {missing.name}: pip install 'clearhead[view]'; a trace can be exported as one file instead"
    ) from missing

PAGE = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
LONGEST_QUERY = 16_384  # bytes of a question's parameters
LONGEST_BODY = 65_536  # bytes of what a page may send

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True)
class Pages:
    """More pages for the server: a folder of files under `/name/`, and functions under `/api/name/…`.

    `files` is a folder of the package, read when the server is made; its `index.html` answers `/name/`. Each of `functions`
    takes what a page POSTs as JSON and returns what JSON can hold; it runs in a thread of its own, one at a time, and what it
    refuses with a `ClearheadError` reaches the page as that message.
    """

    name: str
    files: Path
    functions: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)


class Server:
    """The viewer on a port of 127.0.0.1.

    Arguments:
        gallery: what is shown: a `Gallery` of traces, or `Surveys`.
        port: 0 for any that is free.
        pages: more pages, such as a lesson's.
        say: called with every line meant for the person who started it.

    `run()` serves until Ctrl-C. `start()` and `stop()` do it from a thread, for notebooks and tests.

    Raises:
        InputError: the port is taken.
    """

    def __init__(
        self,
        gallery: Answering,
        *,
        port: int = 0,
        pages: Sequence[Pages] = (),
        say: Callable[[str], None] = print,
    ) -> None:
        self.gallery, self.pages, self.say = gallery, pages, say
        self.key = secrets.token_urlsafe(32)
        self._tokens: dict[str, bool] = {}  # whether each can still be used
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            self._socket.close()
            raise InputError(
                f"--port {port}: {getattr(error, 'strerror', None) or error}; leave it out for a free one"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self.hosts = (f"127.0.0.1:{self.port}", f"localhost:{self.port}")
        config = uvicorn.Config(
            _Guard(self._application(), self.hosts), log_level="error", ws="none", lifespan="off", access_log=False,
            server_header=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def address(self, page: str = "") -> str:
        """Where to look, with a token that works once."""
        token = next((token for token, fresh in self._tokens.items() if fresh), None)
        if token is None:
            token = secrets.token_urlsafe(24)
            self._tokens[token] = True
        return f"http://{self.hosts[0]}/{page}#token={token}"

    def run(self) -> None:
        """Serve until Ctrl-C."""
        try:
            self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:
            self.say("stopped")
        finally:
            self._socket.close()

    def start(self) -> Server:
        """Serve from a thread; returns when questions are answered."""
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            threading.Event().wait(0.01)
        return self

    def stop(self) -> None:
        """End what `start` began."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(10)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ----------------------------------------------------------------------------------------------------------- answers

    def _application(self) -> Starlette:
        self._turn: anyio.CapacityLimiter | None = None  # one at a time: torch uses every core for each
        routes = [
            Route("/api/session", self._session, methods=["POST"]),
            Route("/api/{question}", self._ask, methods=["GET"]),
        ]
        for pages in self.pages:
            for name, function in pages.functions.items():
                routes.append(Route(f"/api/{pages.name}/{name}", self._calls(function), methods=["POST"]))
        for path, (body, kind) in self._files().items():
            routes.append(Route(path, _given(body, kind), methods=["GET", "HEAD"]))
        return Starlette(routes=routes)

    def _files(self) -> dict[str, tuple[bytes, str]]:
        found: dict[str, tuple[bytes, str]] = {}
        for name, folder in [("", PAGE), *((f"/{pages.name}", pages.files) for pages in self.pages)]:
            for file in sorted(folder.rglob("*")):
                if file.suffix in TYPES:
                    kind = f"{TYPES[file.suffix]}; charset=utf-8"
                    found[f"{name}/{file.relative_to(folder).as_posix()}"] = file.read_bytes(), kind
            if f"{name}/index.html" in found:
                found[f"{name}/"] = found[f"{name}/index.html"]
        return found

    async def _session(self, request: Request) -> Response:
        """A token for the key. Each token is good once."""
        given = await _body(request)
        token = given.get("token") if isinstance(given, dict) else None
        if not isinstance(token, str) or not token.isascii():
            return _refusal(400, "token: expected the text behind #token= in the address")
        known = next((t for t in self._tokens if secrets.compare_digest(t, token)), None)
        if known is None:
            return _refusal(
                401, "This address is not of this server: it was started anew. Open the address it printed."
            )
        if not self._tokens[known]:
            self.say(f"an address that was used before was opened again; a fresh one: {self.address()}")
            return _refusal(
                401, "This address was used before. A fresh one stands in the terminal where the viewer was started."
            )
        self._tokens[known] = False
        return _json(200, {"key": self.key})

    def _allowed(self, request: Request) -> bool:
        given = request.headers.get("authorization", "").removeprefix("Clearhead ")
        return given.isascii() and secrets.compare_digest(given, self.key)

    async def _ask(self, request: Request) -> Response:
        """One of the questions, its parameters in the query."""
        if len(request.url.query) > LONGEST_QUERY:
            return _refusal(414, f"the question is longer than {LONGEST_QUERY} bytes")
        question, parameters = request.path_params["question"], dict(request.query_params)
        return await self._answer(request, lambda: self.gallery.ask(question, parameters))

    def _calls(self, function: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Response]]:
        async def call(request: Request) -> Response:
            given = await _body(request) if self._allowed(request) else None
            return await self._answer(request, lambda: function(given))

        return call

    async def _answer(self, request: Request, work: Callable[[], Any]) -> Response:
        if not self._allowed(request):
            return _refusal(401, "This page is not known to the server: it was started anew, or the address had no token. "
                                 "Open the address it printed.")  # fmt: skip
        if self._turn is None:
            self._turn = anyio.CapacityLimiter(1)
        async with self._turn:
            if await request.is_disconnected():
                return _refusal(499, "nobody waits for this any more")
            try:
                found = await to_thread.run_sync(work)
            except ClearheadError as error:
                return _refusal(400, str(error))
            if not isinstance(found, Answer):
                return _json(200, found)
            # The copy too is made in the thread: packing tens of megabytes would keep every other answer waiting.
            if not found.arrays:
                return Response(found.json(), media_type="application/json")
            return Response(await to_thread.run_sync(found.packed), media_type="application/octet-stream")


class _Guard:
    """Refuses what does not come from this page on this machine, and puts the headers on everything."""

    def __init__(self, inner: Starlette, hosts: tuple[str, ...]) -> None:
        self.inner, self.hosts = inner, hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *ours]
            await send(message)

        refused = self._refused(scope, headers)
        answer = self.inner if refused is None else _refusal(*refused)
        await answer(scope, receive, with_headers)

    def _refused(self, scope: Message, headers: Mapping[str, str]) -> tuple[int, str] | None:
        if headers.get("host", "") not in self.hosts:
            return 403, f"Host: expected {self.hosts[0]}"
        if headers.get("origin", f"http://{self.hosts[0]}") not in {f"http://{host}" for host in self.hosts}:
            return 403, "Origin: expected this server's own page"
        # A link elsewhere may open the page, which then asks by itself.
        linked = headers.get("sec-fetch-mode") == "navigate" and scope["path"].endswith("/")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not linked:
            return 403, "Sec-Fetch-Site: expected this server's own page"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "expected GET or POST"
        return None


async def _body(request: Request) -> Any:
    """What was POSTed, as JSON; None if it is none or too long."""
    whole = b""
    async for part in request.stream():
        whole += part
        if len(whole) > LONGEST_BODY:
            return None
    try:
        return json.loads(whole)
    except ValueError:
        return None


def _given(body: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def give(_: Request) -> Response:
        return Response(body, media_type=kind)

    return give


def _json(status: int, facts: Any) -> Response:
    return Response(Answer(facts).json(), status, media_type="application/json")


def _refusal(status: int, why: str) -> Response:
    return _json(status, {"error": why})
