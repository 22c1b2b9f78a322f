"""Check every mutant and every right implementation, and write the reports as JSON.

A process of its own: under test every function checks the types of its arguments on every call, and the searches make millions.
"""

from __future__ import annotations

import json
import os
import sys

import torch
from tests.mutants import (
    right_functions,
    right_modules,
    wrong_habits,
    wrong_masks,
    wrong_mixtures,
    wrong_modules,
    wrong_options,
    wrong_places,
    wrong_scores,
)
from tests.mutants.registry import RIGHT, WRONG, Entry

from clearhead.check.calling import Habits, Watcher
from clearhead.check.reading import read
from clearhead.check.running import examine
from clearhead.check.subjects import Options

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
SLOW = {"plain_python_lists", "loops_over_everything"}


def report(entry: Entry, seed: int = 0) -> dict:
    return examine(entry.candidate, entry.name, Options(seed=seed, **entry.options)).to_dict()


def explained(entry: Entry, seed: int) -> bool:
    """Whether right formulas explain all cases; the whole check in a long run."""
    if LONG:
        return bool(report(entry, seed)["ok"])
    options = Options(seed=seed, **entry.options)
    return read(entry.candidate, entry.name, options, lambda _: None, Habits(), Watcher()).right


def main() -> None:
    torch.set_num_threads(1)
    seeds = range(1, 20 if LONG else 4)
    json.dump(
        {
            "wrong": [report(entry) for entry in WRONG],
            "right": [report(entry) for entry in RIGHT],
            "seeds": [
                [s for s in seeds if (LONG or s == 1 or entry.name not in SLOW) and not explained(entry, s)]
                for entry in RIGHT
            ],
        },
        sys.stdout,
    )


# Importing them fills the registry.
MODULES = (
    right_functions, right_modules, wrong_habits, wrong_masks, wrong_mixtures, wrong_modules, wrong_options, wrong_places,
    wrong_scores,
)  # fmt: skip

if __name__ == "__main__":
    main()
