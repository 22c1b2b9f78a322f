"""A Chromium of one's own, driven over its DevTools protocol: open a file, run script in it, and hear what it asks for."""

from __future__ import annotations

import json
import os
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
PATIENCE = float(os.environ.get("CLEARHEAD_PATIENCE", "180"))  # seconds; a busy machine starts a browser slowly


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
        for domain in ("Page", "Runtime", "Network", "Log", "DOM", "Accessibility"):
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
        more = {"Enter": {"text": "\r", "windowsVirtualKeyCode": 13}, "Tab": {"windowsVirtualKeyCode": 9}}.get(key, {})
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    def until(self, expression: str, seconds: float = PATIENCE) -> object:
        """Wait until a JavaScript expression is true of the page, and return it."""
        end = time.monotonic() + seconds
        value = f"((found) => found instanceof Node || found)({expression})"  # an element has no value to return
        while not (found := self.run(value)):
            if time.monotonic() > end:
                shown = self.run("document.body.innerText.slice(0, 2000)")
                raise AssertionError(f"never came true: {expression}; the page says: {shown}")
            time.sleep(0.02)
        return found

    def named(self, role: str, name: str) -> int:
        """The element that has a role and a name for assistive technology; waits until there is one."""
        end = time.monotonic() + PATIENCE
        while True:
            root = self.send("DOM.getDocument")["root"]["backendNodeId"]
            found = self.send("Accessibility.queryAXTree", backendNodeId=root, accessibleName=name, role=role)["nodes"]
            shown = [node["backendDOMNodeId"] for node in found if not node["ignored"]]
            if shown:
                return shown[0]
            if time.monotonic() > end:
                names = [node["name"]["value"] for node in self.tree() if node["role"]["value"] == role]
                raise AssertionError(f"there is no {role} named {name!r}; there are {names[:80]}")
            time.sleep(0.02)

    def tree(self) -> list[dict]:
        """All that assistive technology is told of the page: role, name and more of everything that has both."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [node for node in nodes if not node["ignored"] and "role" in node and node.get("name", {}).get("value")]

    def on(self, role: str, name: str, function: str) -> object:
        """What a JavaScript function says of the element with a role and a name, which is its `this`."""
        found = self.send("DOM.resolveNode", backendNodeId=self.named(role, name))["object"]["objectId"]
        answer = self.send(
            "Runtime.callFunctionOn",
            objectId=found,
            functionDeclaration=function,
            returnByValue=True,
            awaitPromise=True,
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{function}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def click_on(self, role: str, name: str, x: float = 0.5, y: float = 0.5) -> None:
        """A real click on the element with a role and a name, at a share of its width and height."""
        self.on(role, name, "function() { this.scrollIntoView({block: 'center'}); }")
        box = self.on(
            role,
            name,
            "function() { const b = this.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }",
        )
        at = {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def choose(self, name: str, option: str) -> None:
        """Choose, in the list with a name, the option that reads so."""
        self.on("combobox", name, "function() { this.focus(); }")
        chosen = self.on(
            "combobox",
            name,
            "function() { const o = [...this.options].find((o) => o.text === "
            + json.dumps(option)
            + "); if (!o) return [...this.options].map((o) => o.text);"
            " this.value = o.value; this.dispatchEvent(new Event('change', {bubbles: true})); return true; }",
        )
        assert chosen is True, f"{name}: there is no {option!r}; there are {chosen}"

    def write_in(self, name: str, text: str, role: str = "textbox") -> None:
        """Write into a field and press Enter."""
        self.on(role, name, "function() { this.focus(); this.select(); }")
        self.send("Input.insertText", text=text)
        self.press("Enter")

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
