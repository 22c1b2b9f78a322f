"""Wall time from a cold shell: `clearhead look` on its own passage, and how much of it is importing torch."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "import clearhead": ["-c", "import clearhead"],
    "clearhead --help": ["-m", "clearhead", "--help"],
    "clearhead look": ["-m", "clearhead", "look"],
}


def main() -> None:
    """Print the median of five interleaved runs of each."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(5):
        for name, words in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], capture_output=True, check=True)
            times[name].append(time.perf_counter() - start)
    for name, seconds in times.items():
        print(f"{name:<18} {statistics.median(seconds):5.2f} s   ({min(seconds):.2f}-{max(seconds):.2f})")


if __name__ == "__main__":
    main()
