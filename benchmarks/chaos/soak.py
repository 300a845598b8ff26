"""Many steps over links that suffer: no hang, and no memory that is never given back.

    python benchmarks/chaos/soak.py --steps 10000 --faults 0.01 --out FILE.json

Four parties exchange the messages of benchmarks/speed/echo.py. Of all frames that come in, the
share --faults is duplicated, delivered out of order, dropped or replayed, and now and then a
connection is cut. The memory of every process is read ten times a second, while steps are taken:
its slope is fitted over the last four fifths of them, and its growth is that from the second fifth
to the last. The first connection that breaks lets it grow once, since two then exist for a moment.
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
JUMP = 12.0  # MB by which memory may grow once
LEAK = 1.0  # MB per 1000 steps by which it may grow besides, in a long run
ENDED = 0.97  # of the ledger: what follows are seals, written after the results were
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
    told = [numbers for row in result.history for numbers in row["parties"].values()]
    (rate,) = (one["steps_per_second"] for one in told if "steps_per_second" in one)
    slopes = {party: slope(samples, party, arguments.steps) for party in NAMES}
    grown = {party: growth(samples, party) for party in NAMES}
    content = {
        "steps": arguments.steps,
        "status": result.content["status"],
        "faults": faults,
        "steps_per_second": rate,
        "megabytes_per_1000_steps": slopes,
        "megabytes_grown": grown,
        "seconds": seconds,
        "commit": commit(),
    }
    print(json.dumps(content, indent=1))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    most = max(JUMP, LEAK * arguments.steps / 1000)
    if leaks := [party for party, megabytes in grown.items() if megabytes > most]:
        print(f"soak: the memory of {', '.join(leaks)} grew by more than {most:g} MB")
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
    own = while_training(samples, party, 0.2, 1.0)
    at: Any = np.array([share for share, _ in own]) * steps / 1000
    return float(np.polyfit(at, np.array([held for _, held in own]), 1)[0])


def growth(samples: list[Sample], party: str) -> float:
    """MB from the second fifth of the training to the last."""
    second, last = (while_training(samples, party, low, low + 0.2) for low in (0.2, 0.8))
    return float(np.median([held for _, held in last]) - np.median([held for _, held in second]))


def while_training(
    samples: list[Sample], party: str, low: float, high: float
) -> list[tuple[float, float]]:
    """The readings between two shares of the training, as (share, MB)."""
    whole = ENDED * max((done for name, done, _ in samples if name == party), default=0)
    own = [(done / whole, held) for name, done, held in samples if name == party and held and whole]
    own = [(share, held) for share, held in own if low <= share <= high]
    if len(own) < 3:
        raise SystemExit(f"soak: too short a run to judge the memory of {party}: give more --steps")
    return own


if __name__ == "__main__":
    sys.exit(main())
