"""Private set intersection of two parties: our roles against bare openmined-psi on the same ids.

    python benchmarks/speed/psi.py [--size 100000] [--turns 1] [--engines openmined ristretto]

Two sets of `size` ids, half of them common. `bare` is openmined-psi as its README shows it: setup
with all elements ("raw", no false positives), request, response, intersection, every message to
bytes and back; its client learns which elements are common, its server nothing. Ours are the roles
of colonnade/align/psi.py in one process, every message checked and in the ledger; both parties
learn their rows, in one order, after the minimum was checked. Bare and ours are taken in turns;
seconds are those of both parties together, on one core, and CPU seconds are what a busy machine
leaves comparable. The ratio to bare should be 1.1 at most for engine "openmined".
Results also go to benchmarks/speed/results/psi.json, by size.
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
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from colonnade.align import KINDS, Alignment, common_rows
from colonnade.align.engine import EngineName
from colonnade.results.result import commit
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


def bare(ids: dict[str, list[str]]) -> Found:
    """The four steps of openmined-psi, and what would travel."""
    import private_set_intersection.python as psi  # type: ignore[import-untyped]

    client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
    raw = psi.DataStructure.RAW
    count = len(ids["client"])
    setup = server.CreateSetupMessage(1e-9, count, ids["server"], raw).SerializeToString()
    request = client.CreateRequest(ids["client"]).SerializeToString()
    response = server.ProcessRequest(psi.Request.FromString(request)).SerializeToString()
    found = client.GetIntersection(
        psi.ServerSetup.FromString(setup), psi.Response.FromString(response)
    )
    return len(found), {"client": len(request), "server": len(setup) + len(response)}


def ours(engine: EngineName, ids: dict[str, list[str]]) -> Found:
    """Both roles in one process."""

    def start(me: Party, wire: Wire) -> Coroutine[Any, Any, Any]:
        peers = [Peer(name, wire) for name in NAMES if name != me.name]
        return common_rows(me, peers, ids[me.name], Alignment(engine=engine, most=2**31 - 1))

    recipe, schedule = Recipe(), Schedule(seed=1, epochs=1, batch_size=1)
    parties = {
        name: Party(name, "passive", recipe, schedule, {}, None, (), torch.device("cpu"))
        for name in NAMES
    }
    with tempfile.TemporaryDirectory() as folder:
        book = Ledger(Path(folder) / "ledger.jsonl")
        mail = local.Mailboxes({kind.name: kind for kind in KINDS}, book)
        rows = local.run(parties, start, mail)
        book.close()
        kinds = {kind.name: kind for kind in KINDS}
        wire = ledger.summarise(ledger.read(Path(folder) / "ledger.jsonl"), kinds)
    same = [[ids[name][row] for row in rows[name].tolist()] for name in NAMES]
    if same[0] != same[1]:
        raise SystemExit(f"{engine}: the two parties have other rows, or another order")
    return len(same[0]), {name: wire["by_party"][name]["sent_bytes"] for name in NAMES}


def measure(size: int, engines: Sequence[EngineName], turns: int) -> dict[str, Any]:
    ids = sets(size)
    wanted = len(set(ids["client"]) & set(ids["server"]))
    runs: dict[str, Callable[[], Found]] = {"bare": lambda: bare(ids)}
    runs |= {name: lambda name=name: ours(name, ids) for name in engines}  # type: ignore[misc]
    wall: dict[str, list[float]] = {name: [] for name in runs}
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    sent: dict[str, dict[str, int]] = {}
    for turn in range(turns):
        for name, work in runs.items():
            began, used = time.perf_counter(), time.process_time()
            common, sent[name] = work()
            wall[name].append(time.perf_counter() - began)
            cpu[name].append(time.process_time() - used)
            if common != wanted:
                raise SystemExit(f"{name}: {common} common ids, and there are {wanted}")
            print(
                f"  turn {turn + 1}: {name} {cpu[name][-1]:.1f} CPU s", file=sys.stderr, flush=True
            )
    print(f"{size} × {size} ids, {wanted} common, {turns} turns (median):")
    print(f"  {'':10} {'seconds':>9} {'CPU s':>9} {'ratio':>6} {'CPU ratio':>9}  bytes per id sent")
    rows = {}
    for name in runs:
        seconds, used = statistics.median(wall[name]), statistics.median(cpu[name])
        rows[name] = {
            "seconds": seconds,
            "cpu_seconds": used,
            "ratio": seconds / statistics.median(wall["bare"]),
            "cpu_ratio": used / statistics.median(cpu["bare"]),
            "all_seconds": wall[name],
            "all_cpu_seconds": cpu[name],
            "sent_bytes": sent[name],
        }
        each = ", ".join(f"{who} {count / size:.1f}" for who, count in sent[name].items())
        print(
            f"  {name:10} {seconds:9.2f} {used:9.2f} {rows[name]['ratio']:6.2f} "
            f"{rows[name]['cpu_ratio']:9.2f}  {each}",
            flush=True,
        )
    return {"size": size, "common": wanted, "turns": turns, "runs": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, nargs="+", default=[100_000])
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--engines", nargs="+", default=["openmined", "ristretto"])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "psi.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    content = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for size in arguments.size:
        load = os.getloadavg()[0]
        found = measure(size, arguments.engines, arguments.turns)
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
