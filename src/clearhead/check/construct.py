"""Making an instance of a class whose constructor wants arguments, from what their names say."""

from __future__ import annotations

import inspect
import re
from typing import Any

from clearhead.check.calling import Failed, Habits, call

# Sizes that are pairwise different, so that no width can be taken for another: 6 heads of 10 out of 60.
EMBED, HEADS, HEAD, BLOCK = 60, 6, 10, 16
NAMES: tuple[tuple[str, Any], ...] = (
    (r"embed|nembd|nembed|dmodel|embeddim|embedsize|embeddingdim|dim|hiddensize|hiddendim|emb|embsize|c|channels|modeldim|"
     r"modelsize|width|inputdim|indim|infeatures|din|inputsize|dembed|dimmodel|hidden|nembeddings|size|d", EMBED),
    (r"heads|nheads|nhead|numheads|numhead|nh|numattentionheads|h|nqheads|headcount|numqheads|nqhead|numqueryheads", HEADS),
    (r"kvheads|nkvheads|numkvheads|numkeyvalueheads|hk|nkvhead|numkvgroups|ngroups|numgroups|nkv|kvhead|groups", HEADS // 2),
    (r"headsize|headdim|dk|dhead|dimhead|headwidth|dimk|keydim|qkdim|dq|attentiondim|hs|hd|dh|dimq|qdim|kdim", HEAD),
    (r"dv|dimv|valuedim|vdim", HEAD),
    (r"blocksize|maxlen|maxlength|contextlength|contextsize|seqlen|seqlength|maxseqlen|maxseqlength|t|maxtokens|maxt|"
     r"maxpositionembeddings|context|contextlen|ctxlen|nctx|sequencelength|length|nositions|npositions|maxcontext", BLOCK),
    (r"dropout|dropoutp|p|pdropout|attndropout|attnpdrop|residpdrop|residdropout|dropoutrate|drop|attentiondropout|pdrop", 0.1),
    (r"bias|qkvbias|usebias|attentionbias|qkvb", False),
    (r"causal|iscausal|masked|mask", True),
    (r"batchfirst", True),
    (r"base|ropebase|ropetheta|theta", 10000.0),
    (r"nlayer|nlayers|numlayers|layers|numhiddenlayers", 2),
    (r"vocabsize|vocab|nvocab", 50),
    (r"window|windowsize|slidingwindow", 3),
    (r"device|dtype", None),
)  # fmt: skip
SINGLE_HEAD_OUT = r"dout|outdim|outputdim|outfeatures|outputsize|dimout"


def guess(name: str, *, several_heads: bool) -> Any:
    """A value for a constructor's parameter; raises KeyError when the name says nothing."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if re.fullmatch(SINGLE_HEAD_OUT, plain):
        return EMBED if several_heads else HEAD
    for names, value in NAMES:
        if re.fullmatch(names, plain):
            return value
    raise KeyError(name)


class Settings:
    """A configuration object that has whatever it is asked for, by name."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            value = guess(name, several_heads=True)
        except KeyError:
            raise AttributeError(name) from None
        self.__dict__.setdefault("asked", {})[name] = value
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """As a dict would."""
        try:
            return getattr(self, name)
        except AttributeError:
            return default

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None


def _width(parameters: list[inspect.Parameter], names: list[str], given: dict[str, Any]) -> int:
    """A width that the heads divide whose number is given, or is the parameter's default."""
    for parameter, name in zip(parameters, names, strict=True):
        heads = given.get(parameter.name, parameter.default)
        if re.fullmatch(NAMES[1][0], name) and isinstance(heads, int) and heads > 0 and EMBED % heads:
            return heads * HEAD
    return EMBED


def make(kind: type, given: dict[str, Any] | None, habits: Habits) -> tuple[Any, str]:
    """An instance, and how it was made, in words. `given` are arguments by name, which come before any guess.

    Raises `Failed` with what was tried and the line that would help.
    """
    given = dict(given or {})
    try:
        parameters = [
            p for p in inspect.signature(kind).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        parameters = []
    names = [re.sub(r"[^a-z0-9]", "", p.name.lower()) for p in parameters]
    several = any(re.fullmatch(NAMES[1][0], name) for name in names)
    width = _width(parameters, names, given)
    arguments: dict[str, Any] = dict(given)
    for parameter in parameters:
        if parameter.name in given or parameter.default is not parameter.empty:
            continue
        plain = re.sub(r"[^a-z0-9]", "", parameter.name.lower())
        if plain in ("config", "cfg", "args", "conf", "params", "hparams", "hp"):
            arguments[parameter.name] = Settings()
            continue
        try:
            guessed = guess(parameter.name, several_heads=several)
            arguments[parameter.name] = width if guessed == EMBED and not isinstance(guessed, float) else guessed
        except KeyError:
            raise Failed(
                "refused",
                f"{kind.__name__} is a class, and nothing says what its argument {parameter.name!r} should be; "
                f"give it: --args {parameter.name}=16, or in Python an instance: check({kind.__name__}(…))",
            ) from None
    shown = ", ".join(f"{name}={'…' if isinstance(value, Settings) else value!r}" for name, value in arguments.items())
    try:
        made = call(kind, habits=habits, **arguments)
    except Failed as failed:
        raise Failed(
            "refused",
            f"tried {kind.__name__}({shown}): {failed.said}; give arguments that work: "
            f"--args {'name=value' if not arguments else ','.join(f'{n}=16' for n in arguments)}, or in Python an instance",
            failed.line,
        ) from None
    for name, value in list(arguments.items()):
        if isinstance(value, Settings):
            shown = shown.replace(
                f"{name}=…", f"{name} with " + ", ".join(f"{n}={v!r}" for n, v in value.asked.items())
            )
    return made, f"{kind.__name__}({shown})"
