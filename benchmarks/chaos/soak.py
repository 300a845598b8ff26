"""Many steps over links that suffer: no hang, and no memory that is never given back.

    python benchmarks/chaos/soak.py --steps 10000 --faults 0.01 --out FILE.json

Four parties exchange the messages of benchmarks/speed/echo.py. Of all frames that come in, the
share --faults is duplicated, delivered out of order, dropped or replayed, and now and then a
connection is cut. The memory of every process is read ten times a second; its slope is fitted over
the last four fifths of the training.
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
LOOK_SECONDS = 0.1  # between two readings of memory
JUMP = 8.0  # MB that the allocator may add once: in a short run these look like a slope
Sample = tuple[str, int, float]  # party, bytes in its ledger, MB of memory


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
    samples: list[Sample] = []
    over = threading.Event()
    with tempfile.TemporaryDirectory() as name:
        plan = Plan(noise=noise).write(Path(name) / "plan")
        run = Path(name) / "run"
        watcher = threading.Thread(target=watch, args=(run, plan.parent, samples, over))
        watcher.start()
        began = time.perf_counter()
        try:
            result = colonnade.run(
                settings,
                out=run,
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
    slopes = {party: slope(samples, party, arguments.steps) for party in NAMES}
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
    leaks = max(slopes.values()) > max(1.0, JUMP * 1000 / arguments.steps)
    return 0 if result.content["status"] == "finished" and not leaks else 1


def watch(run: Path, plan: Path, samples: list[Sample], over: threading.Event) -> None:
    """The memory of every party's process, in MB, beside how much its ledger says it has done."""
    while not over.wait(LOOK_SECONDS):
        for event in events(plan):
            if event["what"] == "born":
                party = event["party"]
                samples.append(
                    (party, written(run / "parties" / party / "ledger.jsonl"), memory(event["pid"]))
                )


def written(ledger: Path) -> int:
    return ledger.stat().st_size if ledger.exists() else 0


def memory(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * 4096 / 1e6


def slope(samples: list[Sample], party: str, steps: int) -> float:
    """MB per 1000 steps, of a straight line through the last four fifths of the training."""
    own = [(done, held) for name, done, held in samples if name == party and held]
    whole = max((done for done, _ in own), default=0)
    own = [(done, held) for done, held in own if 0.2 * whole <= done < whole]
    if len(own) < 5:
        raise SystemExit(f"soak: too short a run to fit the memory of {party}: give more --steps")
    at: Any = np.array([done for done, _ in own]) / whole * steps / 1000
    return float(np.polyfit(at, np.array([held for _, held in own]), 1)[0])


if __name__ == "__main__":
    sys.exit(main())
