"""One self-contained page: every head, every token, no network.

The page's own script and style are the only ones its content policy lets run, and that policy lets nothing be fetched. All
that comes from the text or the model travels as JSON and is only ever set as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from torch import Tensor

from clearhead.trace import Head
from clearhead.viewer.colour import ROLE_COLOURS, ramp_bytes
from clearhead.viewer.view import View

ASSETS = Path(__file__).parent / "assets"
BUDGET = 24_000_000  # bytes of keys and weights: more than this makes a page slow to open


def page(view: View, *, head: Head | None = None, query: int = -1) -> str:
    """The page as HTML text, about 1 MB for 24 heads and 200 tokens.

    Arguments:
        view: a run observed with maps (`look(…, cells=64)`) and top keys; each token is shown with as many keys as were
            kept, fewer where that would pass `BUDGET`, and the page says how many.
        head: shown first; default `view.notable()`.
        query: position of the token shown first; default the last.
    """
    head = view.notable() if head is None else view.trace.check(head)
    script = (ASSETS / "page.js").read_text(encoding="utf-8")
    style = (ASSETS / "page.css").read_text(encoding="utf-8")
    parts = {
        "style": style,
        "script": script,
        "data": _inert(json.dumps(_data(view, head, view.query(query)), ensure_ascii=True, allow_nan=False)),
        "policy": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
    }
    template = (ASSETS / "page.html").read_text(encoding="utf-8")
    # One pass over the template: nothing that was put in is looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _inert(text: str) -> str:
    """JSON that cannot end the element it stands in."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(view: View, head: Head, query: int) -> dict[str, Any]:
    heads = view.trace.heads()
    calls = [call.observation for call in view.trace.calls]
    kept = min(seen.top_keys.shape[-1] for seen in calls)
    wide = view.tokens > 0xFFFF
    each = len(heads) * view.tokens * (8 if wide else 6)
    kept = max(1, min(kept, view.tokens, BUDGET // each))
    return {
        "model": view.model,
        "layers": [{"layer": call.layer, "module": call.name} for call in view.trace.calls],
        "tokens": view.pieces,
        "prompt": view.prompt,
        "part": view.part,
        "kept": kept,
        "wide": wide,
        "bytes": {"observed": view.observed_bytes, "pattern": view.pattern_bytes},
        "ramp": _encoded(np.frombuffer(ramp_bytes(), dtype=np.uint8)),
        "colours": {role: "#" + bytes(colour).hex() for role, colour in ROLE_COLOURS.items()},
        "head": str(head),
        "query": query,
        "heads": [_head(view, h, kept, wide) for h in heads],
    }


def _head(view: View, head: Head, kept: int, wide: bool) -> dict[str, Any]:
    seen = view.trace.observation(head.layer)
    label = view.label(head)
    keys = _numbers(seen.top_keys[0, head.head, :, :kept])
    weights = _numbers(seen.top_weights[0, head.head, :, :kept]).astype("<f4")
    cells = _numbers(seen.map_mean[0, head.head])
    # Square roots in 16 bits: finer near 0, where maps live, than anyone can see.
    fine = np.rint(np.sqrt(np.clip(cells, 0, 1)) * 0xFFFF).astype("<u2")
    return {
        "name": str(head),
        "layer": head.layer,
        "head": head.head,
        "role": None if label is None else label.role,
        "roles": [
            {"role": s.role, "score": _number(s.score), "null": _number(s.null), "labelled": s.labelled}
            for s in view.roles[head]
        ],
        "entropy": float(seen.mean("entropy")[0, head.head]),
        "share": float(seen.entropy_share[0, head.head].mean()),
        "distance": float(seen.mean("distance")[0, head.head]),
        "shape": list(cells.shape),
        "map": _encoded(fine),
        "keys": _encoded(keys.astype("<u4" if wide else "<u2")),  # −1, no key, becomes the largest number
        "weights": _encoded(weights),
        "received": _encoded(_numbers(seen.received[0, head.head]).astype("<f4")),
    }


def _numbers(tensor: Tensor) -> Shaped[np.ndarray, "..."]:
    return tensor.detach().cpu().numpy()


def _encoded(values: Shaped[np.ndarray, "..."]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def _number(x: float) -> float | None:
    return None if math.isnan(x) else x
