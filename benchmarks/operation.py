"""`attention` and `observe` against PyTorch's `scaled_dot_product_attention`: causal, float32, forward."""

from __future__ import annotations

import argparse
import platform

import torch
from compare import interleaved
from torch.nn.functional import scaled_dot_product_attention

from clearhead import Causal, Observables, attention, observe


def main() -> None:
    """Print one row a length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=64, help="head width D")
    parser.add_argument("--lengths", type=int, nargs="*", default=[128, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads, float32, causal")
    print(
        f"{options.heads} heads of {options.width}; ratios: median (quartiles) of {options.rounds} interleaved rounds\n"
    )
    print("     T   SDPA ms  GFLOP/s   attention / SDPA   observe / attention   light observe / attention")
    for T in options.lengths:
        q, k, v = torch.randn(3, 1, options.heads, T, options.width)
        found = interleaved(
            {
                "attention": lambda q=q, k=k, v=v: attention(q, k, v, mask=Causal()),
                "SDPA": lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v, is_causal=True),
                "observe": lambda q=q, k=k, v=v: observe(q, k, v, mask=Causal()),
                "light": lambda q=q, k=k, v=v: observe(q, k, v, mask=Causal(), observables=Observables.light()),
            },
            options.rounds,
        )
        useful = 2 * T * (T + 1) * options.width * options.heads  # operations that a causal pass needs
        sdpa = found["SDPA"]
        to_sdpa = f"{1 / sdpa.median:5.2f} ({1 / sdpa.high:.2f}-{1 / sdpa.low:.2f})"
        print(
            f"{T:6}  {sdpa.seconds * 1e3:8.2f}  {useful / sdpa.seconds / 1e9:7.0f}   {to_sdpa}   "
            f"{found['observe']}     {found['light']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
