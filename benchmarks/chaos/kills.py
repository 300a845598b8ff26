"""Kill parties with SIGKILL at labelled points and at random times; every run must end as if not.

    python benchmarks/chaos/kills.py --kills 200 --seed 0 --out benchmarks/chaos/results/kills.json

Split learning and EASTER, three parties, several kills per run: every party at every labelled point
of tests/chaos/points.py, as far as --kills reaches, then at random times. A killed process is
started again with a Python of its own, as in real life; --warm forks it instead, which saves the
seconds of importing torch.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "chaos"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "nursery"))

import points
from child import Plan, events
from federations import Options, toy
from nursery import Nursery, cold
from points import AT_A_TIME, POINTS, Kill

import colonnade
from colonnade.errors import ColonnadeError
from colonnade.results.environment import commit

METHODS = ("splitnn", "easter")
PARTIES = ("party1", "party2", "party3")
HUB = PARTIES[0]
PER_RUN = 6
NOT_THE_HUB = ("join: told", "done: told", "bye: before", "bye: after")
THE_HUB = ("start: told", "end: told")
LATE = list(POINTS).index("role: ended")  # from here on a run is nearly over


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    began = time.perf_counter()
    draw = random.Random(arguments.seed)
    runs = plans(arguments.kills, draw)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = {
            method: colonnade.run(settings(method), out=folder / method).weights_sha256
            for method in METHODS
        }
        with Nursery(folder) if arguments.warm else nullcontext() as nursery:
            number = 0
            while number < len(runs):
                method, kills = runs[number]
                place = folder / f"run{number}"
                fell = one(method, kills, place, nursery, whole[method])
                found += fell
                number += 1
                if number == len(runs) and len(found) < arguments.kills:
                    runs.append(at_random(draw))  # some points were never passed
                right = all(kill["same"] for kill in fell)
                print(
                    f"run {number}/{len(runs)}, {method}: {len(fell)} kills, "
                    f"{'the same weights' if right else 'OTHER WEIGHTS'}",
                    flush=True,
                )
    content = {
        "kills": len(found),
        "same": sum(kill["same"] for kill in found),
        "points": len({kill["point"] for kill in found} - {AT_A_TIME}),
        "rejoin_seconds": quantiles([k["rejoin"] for k in found if k["rejoin"] is not None]),
        "seconds": time.perf_counter() - began,
        "warm": arguments.warm,
        "seed": arguments.seed,
        "commit": commit(),
        "each": found,
    }
    show(content)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if content["same"] == content["kills"] >= arguments.kills else 1


def settings(method: str) -> dict[str, Any]:
    options = {"one_passive": True, "dim": 8} if method == "easter" else {"dim": 8}
    return toy(method, **{method: options})


def plans(count: int, draw: random.Random) -> list[tuple[str, list[Kill]]]:
    """Which kills happen in which run; within one they follow each other as its phases do."""
    wanted = [
        (method, Kill(point, party))
        for point in POINTS
        for party in PARTIES
        for method in METHODS
        if not (point.startswith("keys") and method == "splitnn")
        and not point.startswith("verdict")  # these runs take all their epochs
        and not (point in NOT_THE_HUB and party == HUB)
        and not (point in THE_HUB and party != HUB)
    ]
    draw.shuffle(wanted)
    while len(wanted) < count:
        method, kills = at_random(draw)
        wanted += [(method, kill) for kill in kills]
    runs = []
    for method in METHODS:
        own = [kill for chosen, kill in wanted[:count] if chosen == method]
        for start in range(0, len(own), PER_RUN):
            some = sorted(own[start : start + PER_RUN], key=_when)
            runs.append((method, [_later(kill, draw) for kill in some]))
    draw.shuffle(runs)
    return runs


def at_random(draw: random.Random) -> tuple[str, list[Kill]]:
    return draw.choice(METHODS), [
        Kill(AT_A_TIME, draw.choice(PARTIES), round(draw.uniform(0.0, 1.0), 3))
        for _ in range(PER_RUN)
    ]


def _when(kill: Kill) -> float:
    """Early points first; random times in the middle, where a run spends its time."""
    return LATE - 0.5 if kill.point == AT_A_TIME else list(POINTS).index(kill.point)


def _later(kill: Kill, draw: random.Random) -> Kill:
    """Not always the first time that a party passes a point."""
    place = list(POINTS).index(kill.point) if kill.point in POINTS else 0
    often = ("ledger", "part", "received", "checkpoint", "saved")
    if place < LATE and kill.point.startswith(often):
        return Kill(kill.point, kill.party, draw.randint(1, 4))
    return kill


def one(
    method: str, kills: list[Kill], place: Path, nursery: Nursery | None, whole: dict[str, str]
) -> list[dict[str, Any]]:
    """One run with its kills: each with how long it took to rejoin, and whether all ended well."""
    plan = Plan(kills, part_bytes=200).write(place / "plan")
    program = cold(plan) if nursery is None else nursery.program(plan)
    options = Options(restarts=len(kills) + 2, deadline=60.0, program=program)
    try:
        result = colonnade.run(
            settings(method), out=place / "run", runtime="process", processes=options
        )
        same, why = result.weights_sha256 == whole, ""
    except ColonnadeError as error:
        same, why = False, str(error)
        print(f"  {why}", file=sys.stderr)
    noted = events(place / "plan")
    found = []
    for kill in points.fired(place / "plan"):
        back = [
            event["at"] - kill["at"]
            for event in noted
            if event["party"] == kill["party"]
            and event["what"] == "start"
            and event["at"] > kill["at"]
        ]
        found.append(
            {
                "method": method,
                "point": kill["point"],
                "party": kill["party"],
                "nth": kill["nth"],
                "rejoin": min(back, default=None),
                "same": same,
                "error": why,
            }
        )
    return found


def quantiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        "median": statistics.median(values),
        "largest": max(values),
        "number": len(values),
    }


def show(content: dict[str, Any]) -> None:
    by_point = Counter(kill["point"] for kill in content["each"])
    for point, count in sorted(by_point.items()):
        good = sum(kill["same"] for kill in content["each"] if kill["point"] == point)
        print(f"  {point:20} {count:4} kills, {good:4} with the same weights")
    rejoin = content["rejoin_seconds"]
    print(
        f"{content['kills']} kills at {content['points']} labelled points and at random times: "
        f"{content['same']} in runs that ended with the undisturbed weights; rejoined after "
        f"{rejoin.get('median', 0):.1f} s (median), {rejoin.get('largest', 0):.1f} s at most; "
        f"{content['seconds'] / 60:.0f} minutes"
    )


if __name__ == "__main__":
    sys.exit(main())
