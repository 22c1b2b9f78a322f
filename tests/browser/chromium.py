"""A Chromium of one's own, driven over its DevTools protocol: open a file, run script in it, and hear what it asks for."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import websocket

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "--remote-allow-origins=*",
    "--window-size=1400,1000",
)  # fmt: skip
PATIENCE = 60  # seconds; a busy machine starts a browser slowly


class Chromium:
    """The browser process and its one page."""

    def __init__(self, profile: Path) -> None:
        if PATH is None:
            raise RuntimeError("there is no Chromium on PATH: install it, for example with apt-get install chromium")
        self.process = subprocess.Popen(
            [PATH, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port = self._port(profile / "DevToolsActivePort")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE) as answer:
            page = next(target for target in json.load(answer) if target["type"] == "page")
        self.socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=PATIENCE)
        self.sent = 0
        self.events: list[dict] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def _port(self, file: Path) -> str:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if file.exists() and (lines := file.read_text().split()):
                return lines[0]
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.process.kill()
        self.process.wait()
        raise RuntimeError("Chromium did not start")

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(PATIENCE)

    def send(self, method: str, **parameters: object) -> dict:
        """One command and its answer; events that come in between are kept."""
        self.sent += 1
        self.socket.send(json.dumps({"id": self.sent, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.sent:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def open(self, url: str, *, scheme: str = "dark") -> None:
        """Load a page, in a fresh document, and wait until it is there."""
        wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}  # no colour caught half-way
        self.send("Emulation.setEmulatedMedia", features=[{"name": n, "value": v} for n, v in wishes.items()])
        for address in ("about:blank", url):  # away first: going to another #part of one page would not load it again
            self.events.clear()
            self.send("Page.navigate", url=address)
            while not any(event["method"] == "Page.loadEventFired" for event in self.events):
                self.events.append(json.loads(self.socket.recv()))

    def run(self, expression: str) -> object:
        """The value of a JavaScript expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def click(self, selector: str) -> None:
        """A real click in the middle of an element."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def heard(self, method: str) -> list[dict]:
        """Parameters of all events of a kind since the page was opened."""
        self.run("new Promise((done) => setTimeout(done, 50))")
        return [event["params"] for event in self.events if event["method"] == method]
