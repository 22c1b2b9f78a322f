"""The one tolerance rule: an error is acceptable when PyTorch's own plain attention, in the same dtype, loses about as much.

    max|got − truth| ≤ factor · max|baseline − truth| + rounding        factor 2, or 3 for gradients

- `truth` is the same quantity computed in float64 from the same (already rounded) inputs.
- `baseline` is the same quantity from `math_path`, PyTorch's math path, in the dtype under test.
- `rounding` is 2 · eps · the largest magnitude involved. It is there for the cases in which the baseline happens to be exact.

A tolerance written as a number would have to be loose enough for the worst sizes and would then hide mistakes at all the
others; this one follows the problem. NaN and infinities are compared by place and sign, never by distance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from clearhead.errors import ArgumentError, dtype_name, message

FACTOR = 2.0
GRADIENT_FACTOR = 3.0
ROUNDINGS = 2.0


@dataclass(frozen=True)
class Comparison:
    """What `compare` found: an error, what was allowed, and where both come from.

    >>> print(compare(torch.tensor([1.5]), torch.tensor([1.0]).double(), torch.tensor([1.1]), what="output"))
    output differs: error 5.000e-01 > allowed 2.000e-01 = 2 x 1.000e-01 (math path) + 2.384e-07 (rounding, float32); \
worst at (0,): got 1.5, truth 1.0
    """

    what: str
    dtype: torch.dtype
    error: float  # max|got − truth| over the entries that are finite in truth; infinite where NaN or inf are misplaced
    baseline_error: float  # max|baseline − truth|
    factor: float
    rounding: float
    worst: tuple[int, ...]  # index of the largest error; () when there is nothing to compare
    got: float
    truth: float

    @property
    def allowed(self) -> float:
        """The largest error that passes."""
        return self.factor * self.baseline_error + self.rounding

    @property
    def ok(self) -> bool:
        """Whether the error is within what is allowed."""
        return self.error <= self.allowed

    def __str__(self) -> str:
        sign, verdict = ("<=", "agrees") if self.ok else (">", "differs")
        return (
            f"{self.what} {verdict}: error {self.error:.3e} {sign} allowed {self.allowed:.3e} = {self.factor:g} x "
            f"{self.baseline_error:.3e} (math path) + {self.rounding:.3e} (rounding, {dtype_name(self.dtype)}); "
            f"worst at {self.worst}: got {self.got!r}, truth {self.truth!r}"
        )


def compare(
    got: Tensor,
    truth: Tensor,
    baseline: Tensor,
    *,
    gradient: bool = False,
    magnitude: float = 0.0,
    what: str = "result",
) -> Comparison:
    """Measure `got` against `truth` by the rule at the top of this file.

    >>> compare(torch.ones(3), torch.ones(3).double(), torch.ones(3)).ok
    True

    Arguments:
        got: what is judged, any shape; its dtype is the dtype of the rule.
        truth: the same in float64.
        baseline: the same from `math_path` in got's dtype.
        gradient: allow 3 times the baseline's error instead of 2.
        magnitude: the size of the terms whose sum `truth` is, where they may cancel; never less than max|truth|.
        what: a name for messages.

    Returns:
        A `Comparison`; print it, or ask `.ok`.

    Raises:
        ArgumentError: the three shapes differ.
    """
    for name, x in (("truth", truth), ("baseline", baseline)):
        if x.shape != got.shape:
            raise ArgumentError(
                message(
                    name,
                    expected=f"the shape of got, {tuple(got.shape)}",
                    got=str(tuple(x.shape)),
                    remedy="Compare the same quantity three times.",
                )
            )
    factor = GRADIENT_FACTOR if gradient else FACTOR
    exact, mine = truth.detach().double(), got.detach().double()
    finite = torch.isfinite(exact)
    largest = float(exact[finite].abs().max()) if bool(finite.any()) else 0.0
    rounding = ROUNDINGS * torch.finfo(got.dtype).eps * max(largest, magnitude)
    distance = _distance(mine, exact)
    lost = _distance(baseline.detach().double(), exact)[finite]
    lost = lost[torch.isfinite(lost)]  # where the baseline itself breaks it excuses nothing
    at: tuple[int, ...] = ()
    if distance.numel():
        at = _place(int(distance.argmax()), distance.shape)
    return Comparison(
        what,
        got.dtype,
        error=float(distance.max()) if distance.numel() else 0.0,
        baseline_error=float(lost.max()) if lost.numel() else 0.0,
        factor=factor,
        rounding=rounding,
        worst=at,
        got=float(mine[at]) if distance.numel() else 0.0,
        truth=float(exact[at]) if distance.numel() else 0.0,
    )


def assert_within_tolerance(
    got: Tensor,
    truth: Tensor,
    baseline: Tensor,
    *,
    gradient: bool = False,
    magnitude: float = 0.0,
    what: str = "result",
) -> None:
    """`compare`, raising an `AssertionError` that names both numbers when the error is larger than allowed."""
    found = compare(got, truth, baseline, gradient=gradient, magnitude=magnitude, what=what)
    if not found.ok:
        raise AssertionError(str(found))


def math_path(
    query: Float[Tensor, "b hq tq d"],
    key: Float[Tensor, "b hk tk d"],
    value: Float[Tensor, "b hk tk dv"],
    *,
    visible: Bool[Tensor, "#b #hq tq tk"] | None = None,
    bias: Float[Tensor, "#b #hq #tq #tk"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " hq"] | None = None,
) -> Float[Tensor, "b hq tq dv"]:
    """What plain PyTorch gives in the inputs' own dtype: the baseline of the rule.

    `scaled_dot_product_attention` held to its math path; where it lacks an option (softcap, sinks), the same steps written
    out, with scores accumulated in float32 as the math path does. A query that sees nothing gets 0. O(Tq·Tk) memory.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    if softcap is None and sinks is None:
        attn_mask: Tensor | None = visible
        if bias is not None:
            attn_mask = bias.to(query.dtype)
            if visible is not None:
                attn_mask = torch.where(visible, attn_mask, -torch.inf)
        with sdpa_kernel(SDPBackend.MATH):
            return scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, scale=scale)
    compute = torch.float64 if query.dtype == torch.float64 else torch.float32
    z = query.to(compute) @ key.to(compute).mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    if bias is not None:
        z = z + bias.to(compute)
    if visible is not None:
        z = z.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        z = torch.cat([z, sinks.to(compute)[None, :, None, None].expand(*z.shape[:-1], 1)], dim=-1)
    empty = (z == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(z.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
    return (weights[..., : key.shape[2]] @ value.to(compute)).to(query.dtype)


def _place(number: int, shape: torch.Size) -> tuple[int, ...]:
    """The index of an entry by its number. (`torch.unravel_index` loads the compiler's algebra: seconds.)"""
    place: list[int] = []
    for size in reversed(shape):
        number, here = divmod(number, size)
        place.insert(0, here)
    return tuple(place)


def _distance(x: Tensor, exact: Tensor) -> Tensor:
    """|x − exact|; 0 where both are NaN or the same infinity, infinite where only one is."""
    same = (x == exact) | (x.isnan() & exact.isnan())
    return torch.where(same, 0.0, (x - exact).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)
