"""How long a command takes before it does anything, beside an interpreter that does nothing.

    python benchmarks/speed/startup.py

The commands take turns, so that a machine that is busy for a while is busy for all of them. The
first turn fills the disk's cache and is not counted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "colonnade --version": ["-m", "colonnade", "--version"],
    "colonnade --help": ["-m", "colonnade", "--help"],
    "import colonnade": ["-c", "import colonnade"],
    "import torch": ["-c", "import torch"],
}
ROUNDS = 5


def main() -> None:
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(ROUNDS + 1):
        for name, arguments in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            if turn:
                seconds[name].append(time.perf_counter() - began)
    for name, taken in seconds.items():
        low, high = min(taken), max(taken)
        print(f"{name:20} {statistics.median(taken):6.3f} s  ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
