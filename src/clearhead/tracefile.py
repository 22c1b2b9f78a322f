"""Traces in files: one safetensors file, its description as JSON in the header. No pickle; written whole or not at all.

Numbers between 0 and 1 that are weights are kept in 16 bits unless `exact` is asked for (a relative 5e-4, finer than anything
that is shown), whole numbers in as many bits as they need, and everything else as it was measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead.errors import InputError, dtype_name
from clearhead.keeping import Kept
from clearhead.kernels.problem import tighten
from clearhead.masks import Planned, Sizes
from clearhead.observables import Observation
from clearhead.plans import Plan
from clearhead.whole import whole

if TYPE_CHECKING:
    from clearhead.trace import Trace

PLAN = ("lo", "hi", "query_labels", "key_labels", "dense")

FORMAT = "clearhead trace"
VERSION = (1, 2)  # a file of another first number is not read; of a later second one, what is not known is left aside
WEIGHTS = frozenset(
    ("top_weights", "self_weight", "previous_weight", "first_weight", "same_token", "after_same_token", "sink", "map_mean",
     "map_max", "rows", "group_weight", "group_mean", "group_top_weights", "distance_histogram")
)  # fmt: skip
NARROW = ((torch.uint8, 0xFF), (torch.uint16, 0xFFFF), (torch.int32, 0x7FFFFFFF))


def save(trace: Trace, path: Path, *, exact: bool) -> None:
    """Write a trace to a file; raises `InputError` where that cannot be done, and leaves what was there."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    streams = list(dict.fromkeys(t for call in trace.calls for t in (call.tokens, call.key_tokens) if t is not None))
    calls = []
    for n, call in enumerate(trace.calls):
        seen = call.observation
        coded = {}
        for name, x in seen.values.items():
            tensors[f"{n}/{name}"], coded[name] = _coded(name, x, exact=exact)
        if seen.padded is not None:
            tensors[f"{n}/padded"] = seen.padded.cpu().contiguous()
        calls.append(
            {
                "name": call.name,
                "layer": call.layer,
                "run": call.run,
                "crosses": call.crosses,
                "numbers": call.numbers,
                "offset": seen.offset,
                "first_key": seen.first_key,
                "tokens": None if call.tokens is None else streams.index(call.tokens),
                "key_tokens": None if call.key_tokens is None else streams.index(call.key_tokens),
                "coded": coded,
                "kept": None if call.kept is None else _kept(call.kept, n, tensors),
            }
        )
    for n, stream in enumerate(streams):
        tensors[f"tokens/{n}"] = stream.ids.contiguous()
    told = {
        "calls": calls,
        "token_ids": trace.token_ids,
        "pieces": trace.pieces,
        "read_as": None if trace.spell is None else [[trace.spell(row) for row in x.ids.tolist()] for x in streams],
        "model": trace.model,
        "prompt": trace.prompt,
        "key_groups": trace.key_groups,
        "exact": exact,
        "streams": len(streams),
    }
    text = json.dumps(told, ensure_ascii=True)
    header = {"format": FORMAT, "version": "{}.{}".format(*VERSION), "trace": text}
    header["sha256"] = _digest(header, tensors)
    _apart(tensors)
    try:
        with whole(path) as place:
            save_file(tensors, place, metadata=header)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path}: the trace cannot be written there ({_why(error)}); what was there is as before"
        ) from error


def load(path: Path) -> Trace:
    """Read what `save` wrote; raises `InputError` for anything else, saying what is wrong with it."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InputError(f"{path}: there is no such file; a trace is saved with trace.save(path)")
    try:
        with safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()} if header.get("format") == FORMAT else {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: is no safetensors file, or only a part of one ({_why(error)})") from error
    if header.get("format") != FORMAT:
        raise InputError(f"{path}: is a safetensors file, but not of a trace; read it with safetensors itself")
    _check_version(path, header.get("version", ""))
    if header.pop("sha256", None) != _digest(header, tensors):
        raise InputError(f"{path}: was altered after it was written, or damaged: its contents and its checksum differ")
    try:
        return _read(json.loads(header["trace"]), tensors)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"{path}: its description does not fit its contents ({_why(error)})") from error


def _check_version(path: Path, version: str) -> None:
    first = version.partition(".")[0]
    if not first.isdigit():
        raise InputError(f"{path}: has the version {version[:20]!r}, which is none")
    if int(first) > VERSION[0]:
        raise InputError(
            f"{path}: has format version {version}, and this clearhead reads up to {VERSION[0]}.x; upgrade to read this trace"
        )


def _read(told: dict[str, Any], tensors: Mapping[str, Tensor]) -> Trace:
    from clearhead.trace import Call, Tokens, Trace

    streams = [Tokens(tensors[f"tokens/{n}"]) for n in range(told["streams"])]
    trace = Trace()
    for n, each in enumerate(told["calls"]):
        values = {name: _decoded(tensors[f"{n}/{name}"], how) for name, how in each["coded"].items()}
        seen = Observation(values, each["offset"], tensors.get(f"{n}/padded"), each["first_key"])
        own, other = (None if each[key] is None else streams[each[key]] for key in ("tokens", "key_tokens"))
        numbers = None if each["numbers"] is None else tuple(each["numbers"])
        kept = None if each.get("kept") is None else _kept_again(each["kept"], n, tensors)
        trace.calls.append(
            Call(each["name"], each["layer"], seen, each["run"], each["crosses"], numbers, own, other, kept)
        )
    trace.token_ids, trace.pieces = told["token_ids"], told["pieces"]
    trace.model, trace.prompt = told.get("model"), told.get("prompt")  # since 1.1
    read_as = told.get("read_as")  # since 1.2
    if read_as is not None:
        rows = [row for stream in streams for row in stream.ids.tolist()]
        trace.spell = _spelled(rows, [[str(piece) for piece in row] for stream in read_as for row in stream])
    groups = told.get("key_groups")
    trace.key_groups = None if groups is None else ([int(i) for i in groups[0]], [str(name) for name in groups[1]])
    return trace


def _spelled(rows: list[list[int]], pieces: list[list[str]]) -> Callable[[list[int]], list[str]]:
    """What tokens read as, of the texts that were saved with it; numbers for others."""
    known = list(zip(rows, pieces, strict=True))

    def spell(ids: list[int]) -> list[str]:
        found = next((read for row, read in known if row[: len(ids)] == ids), None)
        return [f"‹{i}›" for i in ids] if found is None else found[: len(ids)]

    return spell


def _apart(tensors: dict[str, Tensor]) -> None:
    """Give every tensor memory of its own: layers may share what they were told, such as the padding of a batch."""
    taken: set[int] = set()
    for name, x in tensors.items():
        place = x.untyped_storage().data_ptr()
        if place in taken:
            tensors[name] = x.clone()
        taken.add(place)


def _kept(kept: Kept, n: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Queries, keys and who may attend to whom, put among the tensors; the numbers beside them."""
    parts: dict[str, Tensor | None] = {
        "query": kept.joined("queries"), "key": kept.joined("keys"), "value": kept.joined("values"),
        "sinks": kept.sinks, "bias": kept.bias, "slopes": kept.slopes,
    }  # fmt: skip
    if kept.gap is None:
        mask = kept.mask()
        sizes = kept.sizes()
        plan = tighten(mask.plan(sizes))
        parts |= {name: getattr(plan, name) for name in PLAN} | {"padding": mask.padded(sizes)}
    for name, x in parts.items():
        if x is not None:
            tensors[f"{n}/kept/{name}"] = x.detach().cpu().clone(memory_format=torch.contiguous_format)
    return {"scale": kept.scale, "softcap": kept.softcap, "gap": kept.gap}


def _kept_again(told: dict[str, Any], n: int, tensors: Mapping[str, Tensor]) -> Kept:
    found = {name.rpartition("/")[2]: x for name, x in tensors.items() if name.startswith(f"{n}/kept/")}
    kept = Kept(told["scale"], told["softcap"], found.get("sinks"), gap=told["gap"])
    kept.queries, kept.keys = [found["query"]], [found["key"]]
    kept.values = [found["value"]] if "value" in found else []
    kept.bias, kept.slopes = found.get("bias"), found.get("slopes")
    if kept.gap is None:
        query, key = found["query"], found["key"]
        sizes = Sizes(query.shape[0], query.shape[2], key.shape[2], query.device)
        plan = Plan(*(found.get(name) for name in PLAN))  # type: ignore[arg-type]
        kept.masks = [(Planned(plan, found.get("padding")), sizes, 0)]
    return kept


def _coded(name: str, x: Tensor, *, exact: bool) -> tuple[Tensor, dict[str, Any]]:
    """A tensor as it is stored, and how to make it what it was."""
    x = x.detach().cpu()
    how: dict[str, Any] = {"dtype": dtype_name(x.dtype)}
    if x.dtype == torch.int64 and x.numel():
        least = int(x.min())
        span = int(x.max()) - least
        narrow = next((dtype for dtype, most in NARROW if span <= most), None)
        if narrow is not None:
            return (x - least).to(narrow).contiguous(), how | {"least": least}
    if x.dtype == torch.float32 and name in WEIGHTS and not exact:
        return x.half().contiguous(), how
    return x.contiguous(), how


def _decoded(x: Tensor, how: dict[str, Any]) -> Tensor:
    dtype = getattr(torch, how["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{how['dtype']} is no dtype")
    return x.to(dtype) + how.get("least", 0) if "least" in how else x.to(dtype)


def _digest(header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key in sorted(header):
        digest.update(f"{key}\0{header[key]}\0".encode())
    for name in sorted(tensors):
        x = tensors[name]
        digest.update(f"{name}\0{x.dtype}\0{tuple(x.shape)}\0".encode())
        digest.update(x.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _why(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
