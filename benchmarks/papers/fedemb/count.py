"""What FedEmb's tables say over all of their cells, counted from the kept results.

    python benchmarks/papers/fedemb/count.py

For each table and data set: how many of the paper's FedEmb cells ours are above, by how much, and
whether every single seed is; how often the tuned network is above or below late fusion by more than
the 95 % interval of the paired difference (Student's t over the seeds).
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from colonnade.reproduce.cells import interval

RESULTS = Path(__file__).parent / "results"
OTHERS = ("Centralised", "FATE")


def main() -> None:
    gains: list[tuple[float, str]] = []
    total = 0
    for name in ("table2", "table2-whole", "table3", "table3-whole"):
        cells = json.loads((RESULTS / f"{name}.json").read_text())["cells"]
        by_row: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
        for cell in cells:
            if not cell["block"]:
                by_row[cell["data"], cell["row"]][cell["column"]] = cell
        margins: dict[str, list[float]] = defaultdict(list)
        seeds: dict[str, int] = defaultdict(int)
        for (data, row), columns in by_row.items():
            ours = columns["accuracy"]
            if ours["paper"] is None or row in OTHERS:
                continue
            margins[data].append(ours["difference"])
            seeds[data] += min(ours["values"]) > ours["paper"]
            untuned = columns["untuned"]["values"]
            change = [a - b for a, b in zip(ours["values"], untuned, strict=True)]
            spread = interval(change)
            if spread is not None and abs(mean(change)) > spread:
                gains.append((mean(change), f"{name}, {data}, {row}: ± {spread:.2f}"))
        for data, found in margins.items():
            total += len(found)
            above = sum(one > 0 for one in found)
            print(
                f"{name:13} {data:9} {above} of {len(found)} above the paper, by {min(found):.1f} "
                f"to {max(found):.1f}; every seed in {seeds[data]}"
            )
    up, down = ([g for g in gains if (g[0] > 0) == sign] for sign in (True, False))
    print(f"tuned against late fusion, {total} cells: {len(up)} resolved gains, {len(down)} losses")
    for gain, where in sorted(up, reverse=True):
        print(f"  {gain:+.2f} {where}")
    print(f"  losses from {max(down)[0]:+.2f} to {min(down)[0]:+.2f} ({min(down)[1]})")


if __name__ == "__main__":
    main()
