"""Private set intersection of two parties: seconds and bytes of both sides together.

    python benchmarks/speed/psi.py [--size 100000] [--turns 1]

Two sets of `size` ids, half of them common. The roles of colonnade/align/psi.py run in one process,
every message is checked and in the ledger, and both parties learn their rows, in one order, after
the minimum was checked. CPU seconds are what a busy machine leaves comparable. Results also go to
benchmarks/speed/results/psi.json, by size; those that stand there beside a run called `bare` were
measured together with the package openmined-psi, as its README shows it (commit in each part).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import torch

from colonnade.align import KINDS, Alignment, common_rows
from colonnade.results.environment import commit
from colonnade.role import identity
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.runtime import local
from colonnade.wire import Ledger, Peer, Wire, ledger

HERE = Path(__file__).resolve().parent
NAMES = ("client", "server")
Found = tuple[int, dict[str, int]]  # common rows, bytes by who sent them


def sets(size: int) -> dict[str, list[str]]:
    """Half of the ids are common; each party has them in an order of its own."""
    draw = np.random.default_rng(1)
    common = [f"person-{i}" for i in range(size // 2)]
    ids = {}
    for name in NAMES:
        own = common + [f"{name}-{i}" for i in range(size - size // 2)]
        ids[name] = [own[i] for i in draw.permutation(size)]
    return ids


def intersect(ids: dict[str, list[str]]) -> Found:
    """Both roles in one process."""

    def start(me: Party, wire: Wire) -> Coroutine[Any, Any, Any]:
        peers = [Peer(name, wire) for name in NAMES if name != me.name]
        return common_rows(me, peers, ids[me.name], Alignment(most=2**31 - 1))

    recipe, schedule = Recipe(), Schedule(seed=1, epochs=1, batch_size=1)
    parties = {
        name: Party(name, "passive", recipe, schedule, {}, None, (), torch.device("cpu"))
        for name in NAMES
    }
    for name, known in identity.simulated(NAMES, "benchmark").items():
        parties[name].identity = known
    with tempfile.TemporaryDirectory() as folder:
        book = Ledger(Path(folder) / "ledger.jsonl")
        mail = local.Mailboxes({kind.name: kind for kind in KINDS}, book)
        rows = local.run(parties, start, mail)
        book.close()
        kinds = {kind.name: kind for kind in KINDS}
        wire = ledger.summarise(ledger.read(Path(folder) / "ledger.jsonl"), kinds)
    same = [[ids[name][row] for row in rows[name].tolist()] for name in NAMES]
    if same[0] != same[1]:
        raise SystemExit("the two parties have different rows, or another order")
    return len(same[0]), {name: wire["by_party"][name]["sent_bytes"] for name in NAMES}


def measure(size: int, turns: int) -> dict[str, Any]:
    ids = sets(size)
    wanted = len(set(ids["client"]) & set(ids["server"]))
    wall, cpu, sent = list[float](), list[float](), dict[str, int]()
    for turn in range(turns):
        began, used = time.perf_counter(), time.process_time()
        common, sent = intersect(ids)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
        if common != wanted:
            raise SystemExit(f"{common} common ids, and there are {wanted}")
        print(f"  turn {turn + 1}: {cpu[-1]:.1f} CPU s", file=sys.stderr, flush=True)
    each = ", ".join(f"{who} {count / size:.1f}" for who, count in sent.items())
    print(f"{size} × {size} ids, {wanted} common, {turns} turns (median):")
    seconds, used = statistics.median(wall), statistics.median(cpu)
    print(f"  {seconds:.2f} s, {used:.2f} CPU s; bytes per id: {each}")
    row = {
        "seconds": seconds,
        "cpu_seconds": used,
        "all_seconds": wall,
        "all_cpu_seconds": cpu,
        "sent_bytes": sent,
    }
    return {"size": size, "common": wanted, "turns": turns, "runs": {"ristretto": row}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, nargs="+", default=[100_000])
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "psi.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    content = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for size in arguments.size:
        load = os.getloadavg()[0]
        found = measure(size, arguments.turns)
        content[str(size)] = found | {
            "command": shlex.join(["python", "benchmarks/speed/psi.py", *sys.argv[1:]]),
            "commit": commit(),
            "device": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, CPU",
            "load_before": load,
            "load_after": os.getloadavg()[0],
        }
        arguments.out.parent.mkdir(exist_ok=True)
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
