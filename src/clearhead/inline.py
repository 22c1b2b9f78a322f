"""What stands inside a page that is one file: its name in the page's policy, and JSON that cannot end its element."""

from __future__ import annotations

import base64
import hashlib


def policy_hash(text: str) -> str:
    """What a content security policy calls a script or a style that may run: `sha256-…` of its text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def inert(json: str) -> str:
    """The same JSON without a letter that markup begins or ends with.

    >>> inert('"</script>"')
    '"\\\\u003c/script\\\\u003e"'
    """
    return json.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
