"""Finding the layers of an attention module: which makes the queries, which the keys, and what mixes the heads."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

_QUERY = (
    r"(w|fc|l|lin|linear|proj|to|c|in|attn)?(q|qs|query|queries)"
    r"(w|weight|proj|projection|linear|lin|layer|attn|map|mat|net|fc)?"
)
PLACES = {
    "q": _QUERY,
    "k": _QUERY.replace("q|qs|query|queries", "k|ks|key|keys"),
    "v": _QUERY.replace("q|qs|query|queries", "v|vs|value|values|val|vals"),
    "qkv": r"(w|c|to|in|fc|proj)?(qkv|kqv|qvk|attn|querykeyvalue|inproj|pack)(w|weight|proj|projection|linear|layer|fused)?"
    r"|inprojweight",
    "kv": r"(w|c|to|in|fc|proj)?(kv|keyvalue)(w|weight|proj|projection|linear|layer)?",
    "qk": r"(w|c|to|in|fc|proj|shared)?(qk|kq|querykey|keyquery)(w|weight|proj|projection|linear|layer|shared)?",
    "o": r"(w|c|to|fc|l|lin|linear)?(o|out|output|proj|projection|dense|fc|final|merge|mix|linear|lin|unifyheads|combine|fcout|"
    r"outproj|outputproj|woutput|wout)(w|weight|proj|projection|linear|lin|layer|fc)?",
}  # fmt: skip


WHOLE = ({"q", "k", "v"}, {"qkv"}, {"q", "kv"}, {"qk", "v"})  # what makes query, key and value between them


@dataclass
class Source:
    """What makes one of q, k, v (or several of them): layers in the order of heads, or a bare matrix."""

    path: str
    layers: list[nn.Module] = field(default_factory=list)
    matrix: Tensor | None = None
    bias: Tensor | None = None
    seen: dict[int, Tensor] = field(default_factory=dict)  # what each layer gave in the call being listened to
    given: Tensor | None = None  # what the first layer was given

    @property
    def width(self) -> int:
        """How many numbers it makes of a token, over all heads."""
        total = 0
        for layer in self.layers:
            weight = layer.weight
            total += int(layer.out_features) if isinstance(layer, nn.Linear) else int(weight.shape[1])  # type: ignore
        if self.matrix is not None:
            m = self.matrix
            total += int(m.shape[-1]) if m.ndim == 2 else int(m.shape[0] * m.shape[2])
        return total

    @property
    def called(self) -> bool:
        """Whether every layer ran in the last call."""
        return bool(self.layers) and len(self.seen) == len(self.layers)

    def out(self, x: Tensor, orientation: str) -> Tensor | None:
        """What it gives for the x of the last call: as heard, or computed here."""
        if self.called:
            return torch.cat([self.seen[n] for n in range(len(self.layers))], dim=-1)
        if self.layers:
            try:
                return torch.cat([layer(x) for layer in self.layers], dim=-1)
            except RuntimeError:
                return None
        w = self.matrix
        if w is None:
            return None
        if w.ndim == 3:  # (H, C, D)
            if w.shape[1] != x.shape[-1]:
                return None
            made = torch.einsum("btc,hcd->bthd", x, w).flatten(2)
            return made if self.bias is None else made + self.bias.flatten()
        if orientation == "x @ W.T":
            w = w.T
        if w.shape[0] != x.shape[-1]:
            w = w.T
        if w.shape[0] != x.shape[-1]:
            return None
        made = x @ w
        return made if self.bias is None else made + self.bias


@dataclass
class Found:
    """The parts of a module, and whether their names said so."""

    sources: dict[str, Source]
    output: nn.Module | None
    output_matrix: Tensor | None
    output_bias: Tensor | None
    output_path: str
    named: bool
    heads: int | None
    kv_heads: int | None
    block: int | None  # the size of a square lower-triangular buffer
    tril: str  # its name
    norms: bool  # whether there is a norm layer inside that may act on q and k
    others: tuple[str, ...]  # linear layers that are none of these
    base: float | None  # of its rotary positions, where a name says one
    epsilon: float  # what its norms add to a variance
    shared: int  # how many heads of a list are one and the same; 1 where each is its own


def find(root: nn.Module) -> Found:
    """Look through a module."""
    shared = max((len(m) for m in root.modules() if isinstance(m, nn.ModuleList) and len({*m}) == 1), default=1)
    modules = root.named_modules(remove_duplicate=shared == 1)
    linear: dict[str, nn.Module] = {path: m for path, m in modules if _is_linear(m) and path}
    owned = {id(p) for m in linear.values() for p in m.parameters(recurse=False)}
    bare = {path: p for path, p in root.named_parameters() if id(p) not in owned and p.ndim in (2, 3)}
    places: dict[str, list[str]] = {}
    for path in (*linear, *bare):
        place = place_of(path)
        if place is not None:
            places.setdefault(place, []).append(path)
    named = any(all_ <= set(places) for all_ in WHOLE)
    if not named:
        places = _by_order(linear, bare)
    sources = {place: _source(paths, linear, bare, root) for place, paths in places.items() if place != "o" and paths}
    if {"qk", "v"} <= set(sources) and sources["qk"].width == sources["v"].width:  # one layer for both, not two in one
        both = sources.pop("qk")
        sources = {"q": both, "k": dataclasses.replace(both), **sources}
    used = [paths for place, paths in places.items() if place != "o"]
    if {"q", "k", "v"} <= set(sources) and "qkv" in sources:
        del sources["qkv"]  # c_attn beside q, k, v is something else
    outs = [path for path in places.get("o", ()) if path in linear]
    outer = min(outs, key=lambda path: (path.count("."), -outs.index(path))) if outs else ""
    listed = max((len(s.layers) for s in sources.values()), default=1)
    mixes = next((path for path in places.get("o", ()) if path in bare), None)
    block, tril = _tril(root)
    return Found(
        sources,
        linear.get(outer),
        None if mixes is None else bare[mixes],
        None if mixes is None else _bias_of(mixes, root),
        outer,
        named,
        _count(root, r"(n|num)?(q)?(attention)?heads?|h|nh|nqheads|numattentionheads")
        or (listed if listed > 1 else None)
        or next((s.matrix.shape[0] for s in sources.values() if s.matrix is not None and s.matrix.ndim == 3), None),
        _count(root, r"(n|num)?(kv|keyvalue)heads?|nkvheads?|numkvgroups|hk|ngroups|numgroups"),
        block,
        tril,
        any("norm" in type(m).__name__.lower() for m in root.modules()),
        tuple(path for path in linear if path != outer and all(path not in paths for paths in used)),
        _base(root),
        _epsilon(root),
        shared,
    )


def place_of(path: str) -> str | None:
    """What a layer or parameter of that path makes, by its name.

    >>> place_of("heads.3.key"), place_of("to_out.0"), place_of("c_attn"), place_of("ln.weight")
    ('k', 'o', 'qkv', None)
    """
    words = [word for word in path.split(".") if not word.isdigit()]
    plain = re.sub(r"[^a-z0-9]", "", words[-1].lower()) if words else ""
    return next((place for place, names in PLACES.items() if re.fullmatch(names, plain)), None)


def _is_linear(m: nn.Module) -> bool:
    if isinstance(m, nn.Linear):
        return True
    weight = getattr(m, "weight", None)  # transformers' Conv1D and other home-made layers without parts
    own = isinstance(weight, Tensor) and weight.ndim == 2
    return (
        own and not list(m.children()) and not isinstance(m, nn.Embedding) and "embed" not in type(m).__name__.lower()
    )


def _by_order(linear: dict[str, nn.Module], bare: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Layers whose names say nothing: one is fused, three are query, key and value, a fourth mixes heads."""
    paths = list(linear) or list(bare)
    if len(paths) in (1, 2):
        return dict(zip(("qkv", "o"), ([p] for p in paths), strict=False))
    return dict(zip("qkvo", ([p] for p in paths), strict=False))


def _source(paths: list[str], linear: dict[str, nn.Module], bare: Mapping[str, Tensor], root: nn.Module) -> Source:
    if paths[0] in linear:
        return Source(paths[0], [linear[path] for path in paths if path in linear])
    bias = _bias_of(paths[0], root)
    matrix = bare[paths[0]]
    if "in_proj_weight" in paths[0] or getattr(root, "in_proj_weight", None) is matrix:
        matrix = matrix.T
    return Source(paths[0], matrix=matrix, bias=bias)


def _bias_of(path: str, root: nn.Module) -> Tensor | None:
    """What is added behind a bare matrix, by its name: in_proj_bias for in_proj_weight, b_Q for W_Q."""
    above, dot, last = path.rpartition(".")
    named = dict(root.named_parameters())
    names = (last.replace("weight", "bias"), re.sub(r"^[wW]", "b", last), re.sub(r"^[wW](?=_)", "bias", last))
    return next((named[above + dot + name] for name in names if name != last and above + dot + name in named), None)


def _count(root: nn.Module, names: str) -> int | None:
    for module in root.modules():
        for name, value in vars(module).items():
            plain = re.sub(r"[^a-z0-9]", "", name.lower())
            if isinstance(value, int) and not isinstance(value, bool) and value > 0 and re.fullmatch(names, plain):
                return value
    return None


def _base(root: nn.Module) -> float | None:
    """A number that is kept as the base of rotary positions, or is the default of an argument of that name."""
    named = [(name, value) for m in root.modules() for name, value in vars(m).items()]
    named += [(p.name, p.default) for p in inspect.signature(type(root)).parameters.values()]
    for name, value in named:
        plain = re.sub(r"[^a-z]", "", name.lower())
        if isinstance(value, int | float) and value > 1 and re.fullmatch(r"(rope|rotary)?(base|theta)", plain):
            return float(value)
    return None


def _epsilon(root: nn.Module) -> float:
    kept = (
        getattr(m, name, None)
        for m in root.modules()
        if "norm" in type(m).__name__.lower()
        for name in ("eps", "epsilon", "variance_epsilon")
    )
    return next((float(value) for value in kept if isinstance(value, float)), 0.0)


def _tril(root: nn.Module) -> tuple[int | None, str]:
    tensors: Iterator[tuple[str, Any]] = iter(
        [*root.named_buffers(), *((n, v) for m in root.modules() for n, v in vars(m).items() if isinstance(v, Tensor))]
    )
    for name, buffer in tensors:
        if buffer.ndim >= 2 and buffer.shape[-1] == buffer.shape[-2] > 1 and buffer.numel() == buffer.shape[-1] ** 2:
            seen = (buffer.reshape(buffer.shape[-2:]) != 0) & (buffer.reshape(buffer.shape[-2:]) > -1e30)
            lower = torch.ones_like(seen).tril()
            upper = torch.ones_like(seen).triu()
            for made in (lower, ~lower, upper, ~upper):
                if torch.equal(seen, made):
                    return int(buffer.shape[-1]), name
    return None, ""


@contextmanager
def listening(found: Found) -> Iterator[None]:
    """Inside, every source keeps what its layers are given and give."""
    handles = []
    for source in found.sources.values():
        source.seen, source.given = {}, None
        for n, layer in enumerate(source.layers):
            handles.append(layer.register_forward_hook(_hears(source, n)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hears(source: Source, n: int) -> Any:
    def hook(_: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if isinstance(out, Tensor):
            source.seen[n] = out.detach().clone()
        if n == 0 and args and isinstance(args[0], Tensor):
            source.given = args[0].detach().clone()

    return hook


def randomise(root: nn.Module, seed: int) -> None:
    """Weights under which queries and keys have unit variance, and nothing is zero or one by initialisation."""
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, module in root.named_modules():
            if isinstance(module, nn.LayerNorm | nn.Embedding) or "norm" in type(module).__name__.lower():
                continue
            for name, p in module.named_parameters(recurse=False):
                if p.ndim >= 2:
                    fan = p.shape[-1] if isinstance(module, nn.Linear) else p.shape[-2]
                    draw = torch.randn(p.shape, generator=made, dtype=torch.float32) / fan**0.5
                elif p.ndim == 1 and "bias" in name:
                    draw = torch.randn(p.shape, generator=made, dtype=torch.float32) * 0.3
                else:
                    continue
                p.copy_(draw.to(dtype=p.dtype, device=p.device))
