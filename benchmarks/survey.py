"""What surveying costs beside only running the model, what a second process gains, and how memory follows the corpus.

    python benchmarks/survey.py --model builtin --corpus texts/*.txt
    python benchmarks/survey.py --memory

Every measurement runs in a process (or two) of its own, of one thread each.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import ranks


def plain(name: str, paths: list[str], length: int) -> None:
    """Tokens a second of the model alone on the same pieces, each by itself, its attention by PyTorch's own function."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from clearhead import nn
    from clearhead.models import load
    from clearhead.survey import Corpus
    from clearhead.survey.packing import cut

    torch.set_num_threads(1)
    model = load(name)
    if hasattr(model.network, "set_attn_implementation"):
        model.network.set_attn_implementation("sdpa")
    else:
        nn.attention = lambda q, k, v, mask: scaled_dot_product_attention(q, k, v, is_causal=mask is not None)
    pieces = [
        piece.ids
        for document in Corpus(paths)
        for piece in cut(0, model.encode_part(document.read()), model.before, model.after, min(length, model.context))
    ]
    more = {"use_cache": False, "logits_to_keep": 1} if hasattr(model.network, "set_attn_implementation") else {}
    with torch.no_grad():
        model.network(torch.tensor([pieces[0]]), **more)
        begin = time.perf_counter()
        for ids in pieces:
            model.network(torch.tensor([list(ids)]), **more)
    print(json.dumps({"tokens": sum(map(len, pieces)), "seconds": time.perf_counter() - begin}))


def surveyed(name: str, paths: list[str], length: int, out: str) -> None:
    """The same by a survey; prints when its ranks were measuring."""
    import torch

    from clearhead.models import load
    from clearhead.survey import Corpus, Options, running, shard
    from clearhead.survey.packing import Pack, Piece

    torch.set_num_threads(1)
    model = load(name)
    shard.seen(model, Pack((Piece(0, 0, (0, 1, 2)),)), ("entropy",))  # kernels are loaded
    real, seconds, tokens = running.measure_shard, 0.0, 0

    def measure(*args: object) -> None:
        nonlocal seconds, tokens
        progress, begin = args[5], time.perf_counter()
        before = progress.tokens
        real(*args)
        seconds += time.perf_counter() - begin
        tokens += progress.tokens - before

    running.measure_shard = measure
    running.survey(model, Corpus(paths), out, Options(length=length, shard_bytes=1 << 16))
    print(
        json.dumps({"tokens": tokens, "seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss})
    )


def run(count: int, *words: str) -> list[dict[str, float]]:
    """What each of some processes of this program printed."""
    return [json.loads(text.splitlines()[-1]) for text in ranks.run(count, [__file__, *words])]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--corpus", nargs="+", default=[])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--memory", action="store_true", help="Peak memory at 100 and 10,000 short documents instead.")
    parser.add_argument("--worker", choices=["plain", "survey"], help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker == "plain":
        plain(options.model, options.corpus, options.length)
    elif options.worker == "survey":
        surveyed(options.model, options.corpus, options.length, options.out)
    elif options.memory:
        with tempfile.TemporaryDirectory() as folder:
            for count in (100, 1000, 10_000):
                lines = Path(folder) / f"{count}.jsonl"
                text = "It was the best of times, it was the worst of times, it was the age of wisdom. "
                lines.write_text("".join(json.dumps({"text": f"{n}: {text}"}) + "\n" for n in range(count)))
                (found,) = run(1, "--worker", "survey", "--corpus", str(lines), "--out", f"{folder}/{count}")
                print(f"{count:>6} documents: {found['tokens']:>7} tokens, peak {found['peak'] / 1024:.0f} MiB")
    else:
        same = ["--model", options.model, "--length", str(options.length), "--corpus", *options.corpus]
        with tempfile.TemporaryDirectory() as folder:
            (alone,) = run(1, *same, "--worker", "plain")
            (one,) = run(1, *same, "--worker", "survey", "--out", f"{folder}/1")
            two = run(2, *same, "--worker", "survey", "--out", f"{folder}/2")
        speeds = {
            "the model alone, sdpa, 1 thread": alone["tokens"] / alone["seconds"],
            "survey, 1 rank of 1 thread": one["tokens"] / one["seconds"],
            "survey, 2 ranks of 1 thread": sum(x["tokens"] for x in two) / max(x["seconds"] for x in two),
        }
        print(f"{options.model}, {one['tokens']} tokens in sequences of up to {options.length}\n")
        for name, speed in speeds.items():
            print(f"{name:<34} {speed:8.0f} tokens/s")
        first, second, third = speeds.values()
        print(
            f"\nsurveying takes {first / second:.2f} times as long as running; 2 ranks are {third / second:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
