"""Peak extra memory of `attention` and `observe` at a length where the T×T weights would not fit a laptop."""

from __future__ import annotations

import argparse
import subprocess
import sys

PROGRAM = """
import resource, torch
from clearhead import Causal, Observables, attention, observe
q, k, v = torch.randn(3, 1, {heads}, {T}, 64)
g, small = torch.arange({T}) // ({T} // 8), slice(0, 300)
{call_small}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{call}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
CALLS = {
    "attention": "attention(q{s}, k{s}, v{s}, mask=Causal())",
    "observe": "observe(q{s}, k{s}, v{s}, mask=Causal())",
    "observe, full": "observe(q{s}, k{s}, v{s}, mask=Causal(), observables=Observables.full(token_ids=g{i}, key_groups=g{i}))",
    "forward and backward": "(lambda x: attention(x, x, x, mask=Causal()).sum().backward())(q{s}.clone().requires_grad_())",
}


def main() -> None:
    """Print one row a call; each runs in a process of its own, whose peak is read before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--T", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=4)
    options = parser.parse_args()
    unit = 1 if sys.platform == "darwin" else 1024  # what the peak is counted in
    square = options.heads * options.T**2 * 4
    print(f"T={options.T}, {options.heads} heads of 64, float32; T×T weights alone would take {square / 1e6:.0f} MB\n")
    for name, call in CALLS.items():
        program = PROGRAM.format(
            heads=options.heads,
            T=options.T,
            call=call.format(s="", i=""),
            call_small=call.format(s="[:, :, small]", i="[small]"),
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        print(f"{name:<22} {int(run.stdout) * unit / 1e6:6.0f} MB extra")


if __name__ == "__main__":
    main()
