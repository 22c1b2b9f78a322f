"""`python -m training`: train (or go on training) the built-in model, evaluate it, and write it into the package."""

from __future__ import annotations

import argparse

from training.export import export
from training.train import Plan, train


def main() -> None:
    """Train to the end of the plan, then export."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--export-only", action="store_true", help="export the last checkpoint as it is")
    options = parser.parse_args()
    plan = Plan()
    if not options.export_only:
        train(plan)
    export(plan)


if __name__ == "__main__":
    main()
