"""What the parameters of a function are, by their names and places."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Each role, and the names it goes by, after lower-casing and removing underscores.
ROLES: dict[str, str] = {
    "query": r"q|query|queries|qs|xq|querystates|querylayer|qh|qt|qmat|qin|queryinput|tgt",
    "key": r"k|key|keys|ks|xk|keystates|keylayer|kh|kt|kmat|kin|keyinput",
    "value": r"v|value|values|vs|xv|valuestates|valuelayer|vh|vt|vmat|vin|valueinput|val|vals",
    "x": r"x|input|inputs|hiddenstates|hidden|hiddenstate|tokens|embeddings|embedding|emb|xs|src|seq|sequence|xin|h|inp|data",
    "context": r"context|ctx|enc|encout|encoderout|encoderoutput|encoderhiddenstates|kvinput|keyvaluestates|crossinput|y",
    "mask": r"mask|attnmask|attentionmask|m|msk|keymask|srcmask|tgtmask|visible|allowed|keep",
    "padding": r"keypaddingmask|paddingmask|padmask|keypadding|srckeypaddingmask",
    "bias": r"bias|attnbias|attentionbias|positionbias",
    "causal": r"causal|iscausal|usecausal|causalmask|masked|autoregressive",
    "scale": r"scale|softmaxscale|smscale|scaling|scalefactor",
    "softcap": r"softcap|cap|logitsoftcap|softcapping|attnlogitsoftcapping|logitcap",
    "window": r"window|windowsize|slidingwindow|w|windowlength|localwindow",
    "sinks": r"sinks|sink|saux|attentionsinks|learnablesink|sinklogits",
    "dropout": r"dropout|dropoutp|pdropout|dropoutrate|attnpdrop|attndropout|pdrop|dropoutprob",
    "training": r"training|train|istraining",
    "heads": r"heads|nheads|nhead|numheads|numhead|nh|numattentionheads|h|hq|nqheads",
    "kv_heads": r"kvheads|nkvheads|numkvheads|numkeyvalueheads|hk|nkvhead|numkvgroups|ngroups|hkv",
    "cache": r"cache|kvcache|past|pastkv|pastkeyvalue|pastkeyvalues|layerpast|layercache|state|kv|pastkvs|memory",
    "start": r"startpos|pos|position|offset|start|inputpos|cacheposition|currentpos|poffset",
    "use_cache": r"usecache|returncache",
    "wq": r"wq|wquery|queryweight|qweight|qw|projq",
    "wk": r"wk|wkey|keyweight|kweight|kw|projk",
    "wv": r"wv|wvalue|valueweight|vweight|vw|projv",
    "wo": r"wo|wout|outweight|oweight|woutput|projo|outputweight|ow",
    "wqkv": r"wqkv|qkvweight|inprojweight|qkvw",
}


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, its role ("" if unknown), and whether it must be given."""

    name: str
    role: str
    required: bool
    keyword_only: bool
    default: Any


def roles_of(function: Callable[..., Any]) -> list[Parameter] | None:
    """The parameters with their roles; None where Python does not know them (a builtin)."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    found = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        role = role_of(parameter.name)
        found.append(
            Parameter(parameter.name, role, required, parameter.kind == parameter.KEYWORD_ONLY, parameter.default)
        )
    return _by_place(found)


def role_of(name: str) -> str:
    """The role of a name, "" if it says nothing.

    >>> role_of("attn_mask"), role_of("W_q"), role_of("banana")
    ('mask', 'wq', '')
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for role, names in ROLES.items():
        if re.fullmatch(names, plain):
            return role
    return ""


def _by_place(found: list[Parameter]) -> list[Parameter]:
    """Roles for parameters whose names say nothing, from how many must be given."""
    needed = [p for p in found if p.required and not p.keyword_only]
    known = {p.role for p in needed}
    if {"query", "key", "value"} <= known:
        return found
    unknown = [p for p in needed if p.role in ("", "x") or p.role not in ("mask", "cache", "heads", "start")]
    guess: tuple[str, ...] = ()
    if ("x" in known and not {"query", "key"} & known) or len(unknown) in (1, 2):
        guess = ("x",) if "x" not in known else ()
    elif len(unknown) >= 3 and not {"wq", "wk", "wqkv"} & known:
        guess = ("query", "key", "value", "mask")
    elif len(unknown) >= 3 and "x" not in known:
        guess = ("x",)
    given = dict(zip((p.name for p in unknown), guess, strict=False))
    return [Parameter(p.name, given.get(p.name, p.role), p.required, p.keyword_only, p.default) for p in found]


def words(found: list[Parameter] | None) -> str:
    """The parameters as a call would name them."""
    return "(…)" if found is None else "(" + ", ".join(p.name for p in found) + ")"
