"""Many steps over links that suffer: no hang, and no memory that is never given back.

    python benchmarks/chaos/soak.py --steps 10000 --faults 0.01 --out FILE.json

Four parties exchange the messages of benchmarks/speed/echo.py. Of all frames that come in, the
share --faults is duplicated, delivered out of order, dropped or replayed, and now and then a
connection is cut. The memory of every process is read twice a second; its slope is fitted over the
last four fifths of the time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "chaos"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "nursery"))

from child import Plan, events
from federations import Options
from intercept import Noise
from nursery import cold

import colonnade
from colonnade.results.environment import commit

ECHO = Path(__file__).resolve().parents[1] / "speed" / "echo.py"
NAMES = ["bank", "shop", "telco", "clinic"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--faults", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    share = arguments.faults / 4
    noise = Noise(share, share, share, share, cut=arguments.faults / 100, seed=arguments.seed)
    settings = {
        "method": str(ECHO),
        "epochs": 1,
        "evaluate_every": 0,
        "data": {"name": "digits"},
        "partition": {"kind": "columns", "parties": len(NAMES)},
        "parties": {name: {} for name in NAMES},
        "checkpoint": {"epochs": 0},
        "echo": {"steps": arguments.steps},
    }
    samples: list[tuple[float, str, float]] = []
    over = threading.Event()
    with tempfile.TemporaryDirectory() as name:
        plan = Plan(noise=noise).write(Path(name) / "plan")
        watcher = threading.Thread(target=watch, args=(plan.parent, samples, over))
        watcher.start()
        began = time.perf_counter()
        try:
            result = colonnade.run(
                settings,
                out=Path(name) / "run",
                runtime="process",
                processes=Options(restarts=0, deadline=60.0, program=cold(plan)),
            )
        finally:
            over.set()
            watcher.join()
        seconds = time.perf_counter() - began
        faults: dict[str, int] = {}
        for event in events(plan.parent):
            for what, count in event.get("noise", {}).items():
                faults[what] = faults.get(what, 0) + count
    (rate,) = (p["steps_per_second"] for row in result.history for p in row["parties"].values())
    slopes = {party: slope(samples, party, rate) for party in NAMES}
    content = {
        "steps": arguments.steps,
        "status": result.content["status"],
        "faults": faults,
        "steps_per_second": rate,
        "megabytes_per_1000_steps": slopes,
        "seconds": seconds,
        "commit": commit(),
    }
    print(json.dumps(content, indent=1))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if result.content["status"] == "finished" and max(slopes.values()) < 1.0 else 1


def watch(plan: Path, samples: list[tuple[float, str, float]], over: threading.Event) -> None:
    """The memory of every party's process, in MB."""
    while not over.wait(0.5):
        for event in events(plan):
            if event["what"] == "born":
                samples.append((time.monotonic(), event["party"], memory(event["pid"])))


def memory(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * 4096 / 1e6


def slope(samples: list[tuple[float, str, float]], party: str, rate: float) -> float:
    """MB per 1000 steps, of a straight line through the last four fifths."""
    own = [(at, held) for at, name, held in samples if name == party and held]
    own = own[len(own) // 5 : -4]
    if len(own) < 5:
        return float("nan")
    times: Any = np.array([at for at, _ in own])
    fitted = np.polyfit(times - times[0], np.array([held for _, held in own]), 1)
    return float(fitted[0]) * 1000 / rate


if __name__ == "__main__":
    sys.exit(main())
