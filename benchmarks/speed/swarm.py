"""JoVe-FL with many clients in one process: time and memory against their number.

    python benchmarks/speed/swarm.py [--clients 25 50 100 200] [--epochs 10]

Every client has 40 rows of MNIST of its own, an MLP as embedding model and a small head. A process
for each number of clients; the hand-written loop beside it trains the same networks on equally
many rows and averages the heads, one function, without parties, messages and ledger. Prints
seconds per epoch, what memory the clients add to one of them alone, and the ratio to the loop.
Results also go to benchmarks/speed/results/swarm.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.nn import functional as F

import colonnade
from colonnade import data
from colonnade.results.environment import commit

ROWS, BATCH, DIM, HIDDEN = 40, 20, 32, 64
PLACE = Path(__file__).parent / "results" / "swarm.json"


def ours(clients: int, epochs: int) -> float:
    """Seconds per epoch."""
    with TemporaryDirectory() as folder:
        result = colonnade.run(
            {
                "method": "jovefl",
                "epochs": epochs,
                "batch_size": BATCH,
                "schedule": "constant",
                "evaluate_every": 0,
                "absence": False,
                "model_options": {"hidden": [HIDDEN]},
                "checkpoint": {"epochs": 0},
                "data": {
                    "name": "mnist-sample",
                    "train_rows": max(ROWS * clients, 200),
                    "test_rows": 200,
                },
                "partition": {"kind": "rows", "parties": clients},
                "jovefl": {"dim": DIM},
            },
            out=Path(folder) / "run",
        )
    # The server's epoch is a whole round of all clients; the first one makes their networks.
    return median(result.content["timing"]["seconds_per_epoch"][1:epochs])


def loop(clients: int, epochs: int) -> float:
    """The same work, by hand: seconds per epoch."""
    torch.set_num_threads(1)
    train = data.load("mnist-sample", test=0.2, seed=0).train
    assert train.y is not None
    x = train.x.float().flatten(1).sub(33.0).div(78.0)
    torch.manual_seed(0)
    nets = [
        nn.Sequential(
            nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM), nn.ReLU(), nn.Linear(DIM, 10)
        )
        for _ in range(clients)
    ]
    optimizers = [torch.optim.SGD(n.parameters(), 0.05, momentum=0.9, fused=True) for n in nets]
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        with torch.no_grad():
            weight = torch.stack([net[-1].weight for net in nets]).mean(0)
            bias = torch.stack([net[-1].bias for net in nets]).mean(0)
            for net in nets:
                net[-1].weight.copy_(weight)
                net[-1].bias.copy_(bias)
        for i, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            for rows in (i * ROWS + torch.randperm(ROWS)).split(BATCH):
                loss = F.cross_entropy(net(x[rows]), train.y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[25, 50, 100, 200])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--child", choices=["ours", "loop"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        work = ours if arguments.child == "ours" else loop
        seconds = work(arguments.clients[0], arguments.epochs)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000  # kB here
        sys.stdout.write(json.dumps({"seconds": seconds, "megabytes": memory}) + "\n")
        return
    floor = measured("ours", 1, arguments.epochs)["megabytes"]
    lines = []
    print(
        f"{'clients':>8} {'s/epoch':>9} {'per client':>11} {'MB more':>9} {'loop':>9} {'ratio':>6}"
    )
    for clients in arguments.clients:
        pairs = [
            (
                measured("ours", clients, arguments.epochs),
                measured("loop", clients, arguments.epochs),
            )
            for _ in range(3)
        ]
        mine, by_hand = (
            min((p[0] for p in pairs), key=_seconds),
            min((p[1] for p in pairs), key=_seconds),
        )
        line = {
            "clients": clients,
            "seconds_per_epoch": mine["seconds"],
            "megabytes_more": mine["megabytes"] - floor,
            "loop_seconds_per_epoch": by_hand["seconds"],
            "ratio": mine["seconds"] / by_hand["seconds"],
        }
        lines.append(line)
        print(
            f"{clients:8d} {line['seconds_per_epoch']:9.3f} "
            f"{1e3 * line['seconds_per_epoch'] / clients:8.2f} ms {line['megabytes_more']:9.1f} "
            f"{line['loop_seconds_per_epoch']:9.3f} {line['ratio']:6.2f}"
        )
    PLACE.write_text(
        json.dumps(
            {"commit": commit(), "epochs": arguments.epochs, "rows": ROWS, "lines": lines}, indent=1
        )
        + "\n"
    )


def _seconds(found: dict[str, float]) -> float:
    return found["seconds"]


def measured(what: str, clients: int, epochs: int) -> dict[str, float]:
    """In a process of its own, so that memory is its own."""
    command = [sys.executable, __file__, "--child", what, "--clients", str(clients)]
    done = subprocess.run(
        [*command, "--epochs", str(epochs)], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
