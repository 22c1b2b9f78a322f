"""Checks of symmetries and manners: isolation, order, strides, repeated calls, inputs left alone, dropout, memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clearhead.check.calling import Failed
from clearhead.check.checking import all_meant, check, far_apart, given_to, note, right, rounding, run, skipped, wrong
from clearhead.check.functions import FunctionSubject
from clearhead.check.memory import largest_made
from clearhead.check.report import Finding
from clearhead.check.state import Reading
from clearhead.check.subjects import said_of


@check
def batch_isolation(reading: Reading) -> Finding:
    """A sequence alone gives what it gives in a batch."""
    name, subject = "batch_isolation", reading.subject
    if subject.layout in ("td", "tc"):
        return skipped(name, "it takes one sequence at a time")
    given = given_to(reading)
    whole = run(reading, given)
    for b in range(given[0].shape[0]):
        alone = run(reading, tuple(t[b : b + 1] for t in given))
        far = far_apart(alone, whole[b : b + 1])
        if far > rounding(reading):
            return wrong(name, f"sequence {b} alone gives another result than in a batch: off by {far:.2g}", error=far)
    return right(name, "alone or in a batch: the same")


@check
def permutations(reading: Reading) -> Finding:
    """Sequences, and heads, in another order give the same results in that order."""
    name, subject = "permutations", reading.subject
    if subject.layout in ("td", "tc"):
        return skipped(name, "it takes one sequence and one head at a time")
    given = given_to(reading, B=3)
    whole = run(reading, given)
    order = torch.tensor([2, 0, 1])
    far = far_apart(run(reading, tuple(t[order] for t in given)), whole[order])
    if far > rounding(reading):
        return wrong(name, f"sequences in another order give other results: off by {far:.2g}", error=far)
    if not isinstance(subject, FunctionSubject) or given[0].shape[1] == 1 or "sinks" in all_meant(reading, 1):
        return right(name, "of sequences")
    turn = torch.arange(given[0].shape[1]).roll(1)
    far = far_apart(run(reading, tuple(t[:, turn] for t in given)), whole[:, turn])
    if far > rounding(reading):
        return wrong(name, f"heads in another order give other results: off by {far:.2g}", error=far)
    return right(name, "of sequences and heads")


@check
def shift_invariance(reading: Reading) -> Finding:
    """The same vector added to every key adds the same to all scores of a query, and changes nothing."""
    name, subject = "shift_invariance", reading.subject
    if not isinstance(subject, FunctionSubject):
        return skipped(name, "keys are made inside")
    q, k, v = given_to(reading)
    meant = all_meant(reading, q.shape[1])
    if meant["softcap"] is not None or meant.get("sinks") is not None:
        return skipped(name, "a softcap or a sink sees such a shift")
    whole = subject.run(q, k, v)
    far = far_apart(subject.run(q, k + torch.linspace(-1, 1, k.shape[-1], dtype=k.dtype), v), whole)
    if far > 100 * rounding(reading):
        return wrong(
            name,
            f"adding one vector to all keys changes the result by {far:.2g}: the weights are no softmax over keys",
            error=far,
        )
    return right(name, "adding one vector to all keys changes nothing")


@check
def strides(reading: Reading) -> Finding:
    """Inputs that lie in memory in another order, or share it, give the same result."""
    name, subject = "strides", reading.subject
    if subject.framework == "lists":
        return skipped(name, "lists have no strides")
    if not isinstance(subject, FunctionSubject):
        x = given_to(reading)[0]
        whole = subject.run(x)
        try:
            out = subject.run(x.transpose(0, 1).contiguous().transpose(0, 1))
        except Failed as failed:
            return note(name, f"refuses x that is not contiguous: {failed.said[:90]}; .reshape would take it")
        far = far_apart(out, whole)
        return (
            right(name, "transposed x")
            if far <= rounding(reading)
            else wrong(name, f"transposed x: off by {far:.2g}", error=far)
        )
    given = given_to(reading)
    whole = subject.run(*given)
    tried = {
        "transposed": tuple(t.mT.contiguous().mT for t in given),
        "every second": tuple(torch.stack([t, t], -1).flatten(-2)[..., ::2] for t in given),
        "heads innermost": tuple(t.transpose(1, 2).contiguous().transpose(1, 2) for t in given),
    }
    for how, other in tried.items():
        try:
            out = subject.run(*other, raw=True)
        except Failed as failed:
            return note(
                name, f"refuses inputs that are not contiguous ({how}): {failed.said[:90]}; .reshape would take them"
            )
        far = far_apart(out, whole)
        if far > rounding(reading):
            return wrong(
                name, f"inputs that are not contiguous ({how}) give another result, off by {far:.2g}", error=far
            )
    one = tuple(t[:, :1, :1].expand_as(t) for t in given)
    far = far_apart(subject.run(*one, raw=True), subject.run(*(t.contiguous() for t in one)))
    if far > rounding(reading):
        return wrong(name, f"inputs that share memory (expand) give another result, off by {far:.2g}", error=far)
    return right(name, "transposed, sliced and expanded inputs")


@check
def repeat_calls(reading: Reading) -> Finding:
    """The same call twice gives the same, and other calls in between change nothing."""
    name = "repeat_calls"
    if reading.random:
        return wrong(name, reading.random)
    given = given_to(reading)
    first = run(reading, given)
    run(reading, given_to(reading, seed=9))
    far = far_apart(run(reading, given), first)
    if far > 0:
        return wrong(
            name, f"a call in between changes what the next one gives, by {far:.2g}: something is kept", error=far
        )
    return right(name, "the same call gives the same result")


@check
def inputs_kept(reading: Reading) -> Finding:
    """What is passed in is left as it was."""
    name, subject = "inputs_kept", reading.subject
    if subject.framework == "lists":
        return skipped(name, "lists are copied")
    given = tuple(t.to(subject.dtype).contiguous() for t in given_to(reading))
    before = [t.clone() for t in given]
    if isinstance(subject, FunctionSubject):
        names: tuple[str, ...] = ("query", "key", "value")
        subject.run(*given, raw=True)
    else:
        names = ("x",)
        subject.raw(given[0], copies=False)
    for letter, t, old in zip(names, given, before, strict=True):
        if not torch.equal(t, old):
            return wrong(name, f"the {letter} that is passed in is changed in place")
    return right(name, "nothing that is passed in is changed")


@check
def dropout_place(reading: Reading) -> Finding:
    """In training, dropout falls on the weights or on the result, not on the scores."""
    name, subject = "dropout_place", reading.subject
    if isinstance(subject, FunctionSubject):
        parameter = subject.parameter("dropout")
        if parameter is None or subject.framework != "torch":
            return skipped(name, "it has no dropout")
        before = dict(subject.fixed)
        subject.fixed[parameter.name] = subject.dropping(parameter, 0.5)
        training = subject.parameter("training")
        if training is not None:
            subject.fixed[training.name] = True
        try:
            return _dropped(reading, given_to(reading))
        finally:
            subject.fixed.clear()
            subject.fixed.update(before)
    drops = [m for m in subject.root.modules() if isinstance(m, nn.Dropout)]
    before_p = [m.p for m in drops]
    try:
        subject.root.train()
        for m in drops:
            m.p = 0.5
        return _dropped(reading, given_to(reading))
    finally:
        subject.root.eval()
        for m, p in zip(drops, before_p, strict=True):
            m.p = p


def _dropped(reading: Reading, given: tuple[Tensor, ...]) -> Finding:
    """Look at what is given to dropout."""
    name, subject = "dropout_place", reading.subject
    seen: list[Tensor] = []

    def look(x: Tensor, p: float) -> Tensor:  # noqa: ARG001
        seen.append(x.detach().clone())
        return x

    subject.watcher.at_dropout, silent = look, subject.watcher.silence
    subject.watcher.silence = False
    try:
        run(reading, given)
    finally:
        subject.watcher.at_dropout, subject.watcher.silence = None, silent
    t = given[0].shape[-2]
    squares = [x for x in seen if x.ndim >= 2 and x.shape[-1] == t and x.shape[-2] == t]
    if not seen:
        return skipped(name, "no dropout is called in training")
    for x in squares:
        sums = x.sum(-1)
        positive = bool((x >= 0).all())
        if not positive or float((sums - 1).abs().max()) > 1e-3:
            return wrong(
                name,
                "in training, dropout falls on the scores before the softmax: dropped scores become 0, not weight 0",
            )
    return right(name, "on the weights" if squares else "on the result")


@check
def memory_growth(reading: Reading) -> Finding:
    """How large the largest thing it makes is, for T tokens and for twice as many. Information, never wrong."""

    name, subject = "memory_growth", reading.subject
    if subject.framework not in ("torch", "numpy"):
        return skipped(name, f"not measured for {subject.framework}")
    short, long = 64, 128
    if not isinstance(subject, FunctionSubject):
        block = subject.found.block
        if block is not None:
            long, short = block, block // 2
    if short < 32:
        return skipped(name, "its longest input is too short to tell")
    try:
        sizes = [largest_made(reading, t) for t in (short, long)]
    except Failed as failed:
        return skipped(name, f"at T={short} or {long} it {said_of(failed)}")
    ratio = sizes[1] / max(1.0, sizes[0])
    growth = "grows with T² (the whole matrix of weights is made)" if ratio > 3 else "grows with T, not T²"
    return note(
        name,
        f"memory {growth}: {sizes[0]:.0f} numbers at T={short}, {sizes[1]:.0f} at T={long}",
        short=sizes[0],
        long=sizes[1],
    )
