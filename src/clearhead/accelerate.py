"""`accelerate()`: clearhead's kernels under `torch.nn.functional.scaled_dot_product_attention`, for any model on a CPU.

On a CPU that function checks its arguments, turns a bool mask into numbers and calls one operator,
`aten::_scaled_dot_product_flash_attention_for_cpu`; autograd calls that operator's backward. Those two get another kernel
for as long as wanted. Everything around them stays PyTorch's own: the checks and their messages, autograd, autocast, vmap,
the math path (dropout, a mask that needs gradients, Dv ≠ D, no batch), and what `torch.compile` knows of the operator.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import ArgumentError, ImplementationError, message
from clearhead.kernels import select
from clearhead.kernels.problem import Problem, exact
from clearhead.plans import Plan

FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = FORWARD + "_backward"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float64 is for checking, not for speed
# Multiply-adds below which a call is handed back: it would be over in PyTorch's kernel before ours has been prepared (40 µs).
# Measured on two cores; PyTorch's kernel is several times slower with 16-bit numbers.
SMALL = {torch.float32: 1_500_000, torch.bfloat16: 300_000, torch.float16: 300_000}
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def accelerate(*, impl: str = "auto") -> Acceleration:
    """Put clearhead's kernels under `F.scaled_dot_product_attention` on CPU, for every model of this process.

    >>> layer = torch.nn.MultiheadAttention(64, 4)
    >>> x = torch.randn(10, 1, 64)
    >>> with accelerate():
    ...     layer(x, x, x, need_weights=False)[0].shape
    torch.Size([10, 1, 64])

    A switch without `with`: `handle = accelerate()`, and `handle.undo()` when PyTorch's own kernel is wanted back; or never.

    Arguments:
        impl: "auto" (which `CLEARHEAD_IMPL` overrides) or an implementation by name; see `explain`.

    Returns:
        An `Acceleration`, already in force: a context manager, and a handle with `.undo()`.

    Raises:
        ArgumentError: an unknown `impl`, or another one than the acceleration already in force.
        ImplementationError: "reference", which is not for speed; or a PyTorch older than 2.9, which cannot hand back.

    Results are those of PyTorch's kernel up to rounding, with its meaning of every argument: `is_causal` aligned at the
    start, float masks added, a query that may see nothing returns 0. Strides of the output and of gradients are the same,
    and a forward inside may have its backward outside. Two things differ: NaN in a query stays NaN, where PyTorch's kernel
    returns 0; and NaN at a key that no query may see reaches nobody.

    Handed back to PyTorch's kernel: float64, empty tensors, dropout, calls so small that it is faster (12 heads of 64 at fewer
    than some 45 tokens), and what that kernel refuses. Never reached: calls that
    PyTorch serves by other means (its math path, `sdpa_kernel`, other devices).

    The whole process is affected, all threads at once; switch while no other thread is inside attention. Uses may be nested
    or overlap: the last one to leave restores PyTorch's kernel, to the bit. Graphs of `torch.compile` follow the switch,
    made before or after. `watch` sees `clearhead.attention`, with or without this.
    """
    return Acceleration(impl)


class Acceleration:
    """An acceleration in force, until `undo()` or the end of its `with` block.

    `calls` and `handed_back` say how many forward calls of this process ran on these kernels since it began, and how many came
    here and were handed back to PyTorch's; `reasons` why. All is 0 for a model whose attention never gets to that kernel.
    """

    def __init__(self, impl: str = "auto") -> None:
        self.impl = select.choose(impl)
        with _lock:
            if _installed and _installed[0].name != self.impl:
                raise ArgumentError(
                    message(
                        "impl",
                        expected=f'"{_installed[0].name}", which this process is accelerated with already',
                        got=f'"{self.impl}"',
                        remedy="Undo the other accelerate() first: there is one kernel for the whole process.",
                    )
                )
            if not _installed:
                _installed.append(_Override(self.impl))
            self._kernel = _installed[0]
            self._before = self._kernel.ran, self._kernel.returned.copy()
            self._after: tuple[int, Counter[str]] | None = None
            _in_force.append(self)

    def undo(self) -> None:
        """Stop accelerating; PyTorch's kernel is back once nobody else accelerates. Doing it twice is doing it once."""
        with _lock:
            if self in _in_force:
                _in_force.remove(self)
                self._after = self._kernel.ran, self._kernel.returned.copy()
            if not _in_force and _installed:
                _installed.pop().remove()

    @property
    def calls(self) -> int:
        """Forward calls that ran on these kernels, until now or until it was undone."""
        return (self._after or (self._kernel.ran,))[0] - self._before[0]

    @property
    def handed_back(self) -> int:
        """Forward calls that came here and went back to PyTorch's kernel."""
        return sum(self.reasons.values())

    @property
    def reasons(self) -> dict[str, int]:
        """How many were handed back for what: "small" (PyTorch's kernel is done sooner), "dtype" (float64) or "unusual"."""
        now = self._kernel.returned if self._after is None else self._after[1]
        return dict(now - self._before[1])

    def __enter__(self) -> Acceleration:
        if self not in _in_force:
            raise ArgumentError(
                message(
                    "accelerate",
                    expected="a handle that is in force",
                    got="one that was undone",
                    remedy="Write `with clearhead.accelerate():` to begin again.",
                )
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "in force" if self in _in_force else "undone"
        calls = f"{self.calls} call{'' if self.calls == 1 else 's'}"
        reasons = ", ".join(f"{count} {why}" for why, count in self.reasons.items())
        back = f"{self.handed_back} handed back{f' ({reasons})' if reasons else ''}"
        nothing = "; no attention came by" if self._after and not self.calls and not reasons else ""
        return f"<accelerate(impl={self.impl!r}), {state}: {calls}, {back}{nothing}>"


class _Override:
    """Our two kernels in PyTorch's dispatcher, and PyTorch's own to hand back to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ran = 0  # forward calls
        self.returned: Counter[str] = Counter()  # and those handed back, by why
        if name == "reference":
            raise ImplementationError(
                message(
                    "impl",
                    expected="an implementation made for speed",
                    got='"reference"',
                    remedy='Unset CLEARHEAD_IMPL, or use impl="auto"; clearhead.attention runs the reference.',
                )
            )
        self.attention, self.backward, _ = select.kernels(name)
        get_kernel = getattr(torch.library, "get_kernel", None)
        if get_kernel is None:
            raise ImplementationError(
                message(
                    "accelerate",
                    expected="PyTorch 2.9 or newer, whose torch.library.get_kernel gives access to its own kernel",
                    got=torch.__version__,
                    remedy="Upgrade PyTorch, or call clearhead.attention in the model.",
                )
            )
        self.theirs = get_kernel(f"aten::{FORWARD}", "CPU").call_boxed
        self.their_backward = get_kernel(f"aten::{BACKWARD}", "CPU").call_boxed
        _keep_the_compiler_out(_Override.run)
        _keep_the_compiler_out(_Override.run_backward)
        self.library = torch.library.Library("aten", "IMPL")
        try:
            with warnings.catch_warnings():
                # Said once a process, of the first kernel that replaces another. Replacing it is what was asked for.
                warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
                self.library.impl(FORWARD, self.run, "CPU")
                self.library.impl(BACKWARD, self.run_backward, "CPU")
        except BaseException:
            self.remove()
            raise
        # A thread may have chosen our kernel and wait for the interpreter lock while another takes it out of the
        # dispatcher, which would free it: a reference of our own keeps the latest ones alive.
        _kept.extend(get_kernel(f"aten::{name}", "CPU") for name in (FORWARD, BACKWARD))

    def remove(self) -> None:
        """Take both kernels out of the dispatcher, which brings back what was there before."""
        self.library._destroy()

    def attend(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Output (B, Hq, Tq, D) and log-sum-exp (B, Hq, Tq) from the chosen implementation."""
        with _as_given(problem):
            return self.attention(problem)

    def attend_backward(self, problem: Problem, out: Tensor, lse: Tensor, grad_out: Tensor) -> Sequence[Tensor]:
        """Gradients of query, key and value, whose shapes they have."""
        with _as_given(problem):
            return self.backward(problem, out, lse, grad_out, torch.zeros_like(lse), with_bias=False)[:3]

    def run(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Any:
        """What the dispatcher calls forward: output with the strides of `empty_like(query)`, lse stored as (B, Tq, Hq)."""
        if not _ours(query, key, value, dropout_p, attn_mask):
            self.returned[_why(query, key)] += 1
            return self.theirs(CPU, query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        self.ran += 1
        out, lse = self.attend(_problem(query, key, value, is_causal, attn_mask, scale))
        if (
            attn_mask is not None
        ):  # for a query that sees nothing PyTorch's kernel keeps L = 0, and its backward counts on it
            lse.masked_fill_(lse == -torch.inf, 0.0)
        if out.stride() != query.stride():
            out = torch.empty_like(query).copy_(out)
        return out, torch.empty_permuted(lse.shape, (0, 2, 1), dtype=lse.dtype).copy_(lse)

    def run_backward(
        self,
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        dropout_p: float,
        is_causal: bool,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Any:
        """What autograd calls backward: gradients stored as (B, T, H, D)."""
        if not _ours(query, key, value, dropout_p, attn_mask):
            return self.their_backward(
                CPU, grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
            )  # fmt: skip
        problem = _problem(query, key, value, is_causal, attn_mask, scale)
        found = self.attend_backward(problem, out, logsumexp, grad_out)
        return tuple(
            torch.empty_permuted(x.shape, (0, 2, 1, 3), dtype=x.dtype).copy_(g)
            for x, g in zip((query, key, value), found, strict=True)
        )


_lock = threading.RLock()
_installed: list[_Override] = []  # none or one
_in_force: list[Acceleration] = []
_kept: deque[object] = deque(maxlen=256)


def _keep_the_compiler_out(function: Callable[..., Any]) -> None:
    """Let `torch.compile` run this function and all it calls as they are.

    PyTorch's C++ calls our kernels, so where the compiler is at work around an attention call that it left alone, it would
    find their Python and compile that. `torch.compiler.disable` says the same, but imports the compiler, which takes over
    a second, and costs time on every call; this marks the code itself.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


def _ours(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, mask: Tensor | None) -> bool:
    """Whether our kernels take this call.

    `scaled_dot_product_attention` only makes calls that fit together; the operator can also be called by itself, and then
    what does not fit is PyTorch's to refuse.
    """
    dtype = query.dtype
    if dtype not in DTYPES or key.dtype != dtype or value.dtype != dtype or dropout_p != 0.0 or query.ndim != 4:
        return False
    shape, of_keys = query.shape, key.shape
    if of_keys != value.shape or len(of_keys) != 4 or shape[0] != of_keys[0] or shape[3] != of_keys[3]:
        return False
    if 0 in shape or 0 in of_keys or shape[1] % of_keys[1]:
        return False
    if shape.numel() * of_keys[2] < SMALL[dtype]:
        return False
    if mask is None:
        return True
    pairs = (*shape[:3], of_keys[2])
    return (
        (mask.dtype == dtype or mask.dtype == torch.float32)
        and mask.ndim in (2, 4)
        and all(n in (1, m) for n, m in zip(mask.shape, pairs[-mask.ndim :], strict=True))
    )


def _why(query: Tensor, key: Tensor) -> str:
    """Why a call is not ours, in a word."""
    if query.dtype not in DTYPES:
        return "dtype"
    small = query.ndim == key.ndim == 4 and query.numel() * key.shape[2] < SMALL[query.dtype]
    return "small" if small else "unusual"  # what only the bare operator is ever given


def _problem(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None
) -> Problem:
    """The call as every kernel takes it."""
    bias = mask if mask is None or mask.ndim == 4 else mask[None, None]
    plan = _plan(query.shape[2], key.shape[2], is_causal)
    return Problem(query, key, value, plan, query.shape[3] ** -0.5 if scale is None else scale, bias=bias)


def _as_given(problem: Problem) -> AbstractContextManager[object]:
    """No autocast inside a kernel. Switching it off takes longer than a small call, so only where it is on: in backward."""
    return exact(problem) if torch.is_autocast_enabled("cpu") else nullcontext()


@lru_cache(maxsize=8)
def _plan(Tq: int, Tk: int, is_causal: bool) -> Plan:
    """Which keys each query sees by `is_causal`, aligned at the start. Every layer of a model asks for the same one."""
    lo = torch.zeros(1, Tq, dtype=torch.int64)
    hi = torch.arange(1, Tq + 1).clamp_(max=Tk)[None] if is_causal else torch.full((1, Tq), Tk)
    return Plan(lo, hi)
