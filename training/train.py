"""The run: short sequences first, then longer ones; a checkpoint every so often, from which it goes on exactly."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from clearhead.models.transformer import Config, Transformer
from clearhead.roles import calibrate
from training.data import CACHE, VOCABULARY, Corpus

CONFIG = Config(vocabulary=VOCABULARY, layers=4, heads=6, width=192, hidden=768, context=1024)


@dataclass(frozen=True)
class Phase:
    """So many steps on batches of `size` sequences of `length` tokens."""

    steps: int
    size: int
    length: int


@dataclass(frozen=True)
class Plan:
    """Everything that decides what comes out: the same plan gives the same weights on the same machine."""

    config: Config = CONFIG
    phases: tuple[Phase, ...] = (Phase(1700, 32, 96), Phase(500, 12, 256), Phase(250, 4, 1024))
    peak: float = 2e-3  # learning rate after the warm-up
    warmup: int = 100
    seed: int = 1

    @property
    def steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def phase(self, step: int) -> Phase:
        """The phase a step belongs to."""
        for phase in self.phases:
            if step < phase.steps:
                return phase
            step -= phase.steps
        return self.phases[-1]

    def rate(self, step: int) -> float:
        """Learning rate: a linear warm-up, then half a cosine down to a hundredth."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


class Run:
    """A network and its optimiser at some step of a plan."""

    def __init__(self, plan: Plan, corpus: Corpus) -> None:
        torch.manual_seed(plan.seed)
        self.plan, self.corpus = plan, corpus
        self.network = Transformer(plan.config)
        matrices = [p for p in self.network.parameters() if p.ndim > 1]
        gains = [p for p in self.network.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98))
        self.step = 0

    def advance(self) -> float:
        """One step; returns the loss in nats a token."""
        phase = self.plan.phase(self.step)
        rows, learn = self.corpus.batch(self.step, self.plan.seed, phase.size, phase.length)
        for group in self.optimiser.param_groups:
            group["lr"] = self.plan.rate(self.step)
        logits = self.network(rows[:, :-1])
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
        loss = losses[learn[:, 1:].flatten()].mean()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        return loss.item()

    def save(self, folder: Path) -> None:
        """Write weights, optimiser state and the plan; each file is replaced whole, the step last."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"network.{name}": p.detach() for name, p in self.network.named_parameters()}
        names = {id(p): name for name, p in self.network.named_parameters()}
        for p, state in self.optimiser.state.items():
            tensors |= {f"optimiser.{names[id(p)]}.{key}": value for key, value in state.items()}
        file = f"step-{self.step}.safetensors"
        save_file(tensors, folder / (file + ".part"))
        os.replace(folder / (file + ".part"), folder / file)
        state = {"step": self.step, "file": file, "plan": dataclasses.asdict(self.plan)}
        (folder / "state.json.part").write_text(json.dumps(state), encoding="utf-8")
        os.replace(folder / "state.json.part", folder / "state.json")
        for old in folder.glob("step-*.safetensors"):
            if old.name != file:
                old.unlink()

    def resume(self, folder: Path) -> bool:
        """Go on from what `save` wrote, if there is anything; refuses a folder written for another plan."""
        if not (folder / "state.json").exists():
            return False
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        mine = json.loads(json.dumps(dataclasses.asdict(self.plan)))
        if state["plan"] != mine:
            differing = [key for key in mine if state["plan"].get(key) != mine[key]]
            raise SystemExit(
                f"{folder} holds a run with another plan (differs in {', '.join(differing)}). Use another folder."
            )
        tensors = load_file(folder / state["file"])
        with torch.no_grad():
            for name, p in self.network.named_parameters():
                p.copy_(tensors[f"network.{name}"])
                start = f"optimiser.{name}."
                self.optimiser.state[p] = {
                    key.removeprefix(start): t for key, t in tensors.items() if key.startswith(start)
                }
        self.step = state["step"]
        return True


def scores(network: Transformer, period: int) -> tuple[float, float]:
    """The best head's calibrated previous-token and induction scores."""
    found = calibrate(network, VOCABULARY, period=period, seeds=2, bos=0)
    best = [max(head[role].mean for head in found.values()) for role in ("previous-token", "induction")]
    return best[0], best[1]


def train(plan: Plan, folder: Path = CACHE / "run", *, every: int = 100) -> Transformer:
    """Run a plan to its end, going on where an earlier run stopped; prints a line every `every` steps."""
    corpus = Corpus()
    run = Run(plan, corpus)
    if run.resume(folder):
        print(f"going on from step {run.step}", flush=True)
    started, first = time.monotonic(), run.step
    recent = 0.0
    while run.step < plan.steps:
        loss = run.advance()
        recent = loss if recent == 0.0 else 0.95 * recent + 0.05 * loss
        if run.step % every == 0 or run.step == plan.steps:
            run.save(folder)
            previous, induction = scores(run.network, period=24)
            pace = (time.monotonic() - started) / (run.step - first)
            print(
                f"step {run.step}/{plan.steps}  loss {recent:.3f}  previous-token {previous:.2f}  induction {induction:.2f}  "
                f"{pace:.2f} s/step  {(plan.steps - run.step) * pace / 60:.0f} min left",
                flush=True,
            )
    return run.network
