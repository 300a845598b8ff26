"""How clients train and the server tunes, chosen on validation rows alone.

    python benchmarks/papers/fedemb/tune.py vertical    clients, Table 2: late fusion
    python benchmarks/papers/fedemb/tune.py hybrid      clients, Table 3: late fusion
    python benchmarks/papers/fedemb/tune.py means       server, Table 2: means of random groups
    python benchmarks/papers/fedemb/tune.py widened     server, widened.toml: means of a class
    python benchmarks/papers/fedemb/tune.py budget      server, budget.toml: within a budget, or not

Fashion-MNIST at eight clients (hybrid: four), 10,000 of its training rows held out; test rows are
not looked at. For the server a few rows of the table, with as many rows in a group; for budget.toml
6,000 rows in all, of which 1,000 are held out. About ten minutes on one core. Results go to the
terminal and to benchmarks/papers/fedemb/results/tuning.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import colonnade
from colonnade.results.environment import commit

OUT = Path(__file__).parent / "results" / "tuning.json"
BASE: dict[str, Any] = {
    "method": "fedemb",
    "seed": 11,
    "epochs": 10,
    "batch_size": 128,
    "batching": "papers",
    "optimizer": "adam",
    "lr": 1e-3,
    "schedule": "cosine",
    "evaluate_every": 10,
    "threads": 1,
    "model": "mlp",
    "model_options": {"hidden": [128] * 7},
    "data": {"name": "fashion-mnist", "validation": 1 / 6, "test_rows": 1000},
    "partition": {"kind": "columns", "parties": 8},
}
CLIENTS = {
    f"{epochs} epochs, batch {batch}, {rate}": {
        "epochs": epochs,
        "batch_size": batch,
        "schedule": rate,
    }
    for epochs, batch, rate in (
        (5, 128, "constant"),
        (10, 128, "constant"),
        (10, 128, "cosine"),
        (20, 64, "cosine"),
    )
}
FUSION: dict[str, Any] = {"server_epochs": 0}
HYBRID = {"setting": "hybrid", "partition": {"kind": "hybrid", "parties": 4}}
RANDOM: dict[str, Any] = {"public": "random", "targets": "class"}
MODES: dict[str, dict[str, Any]] = {  # of budget.toml
    "weights leave": {"targets": "hard"},
    "none leave": RANDOM,
    "all random": RANDOM | {"private": "random"},
}
SMALL: dict[str, Any] = {
    "data": {
        "name": "fashion-mnist",
        "train_rows": 6000,
        "validation": 1 / 6,
        "test_rows": 1000,
        "standardise": False,
    },
    "model_options": {"hidden": [128] * 3},
    "checkpoint": {"epochs": 1},
    "grouping": "class",
    "groups": 50,
    "clip": "private",
    "cut": "layer1",
}
Options = dict[str, dict[str, Any]]
WAYS: dict[str, tuple[Options, Options]] = {  # and the rows that they are tried on
    "vertical": (CLIENTS, {"Late fusion": FUSION}),
    "hybrid": (CLIENTS, {"Late fusion": FUSION | HYBRID}),
    "means": (
        {
            "5 epochs, 1e-4": {"server_epochs": 5, "server_lr": 1e-4},
            "5 epochs, from 1e-4 to 0": {"server_epochs": 5, "server_schedule": "cosine"},
            "5 epochs, 3e-5": {"server_epochs": 5, "server_lr": 3e-5},
            "5 epochs, 1e-5": {"server_epochs": 5, "server_lr": 1e-5},
            "1 epoch, 1e-4": {"server_epochs": 1, "server_lr": 1e-4},
            "1 epoch, 3e-5": {"server_epochs": 1, "server_lr": 3e-5},
        },
        {
            "Ran, 15k": {"groups": 12500},
            "Ran + 10 %, 15k": {"groups": 12500, "generalise": 0.1},
            "Ran, 0.6k": {"groups": 500},
            "Ran + 10 %, 0.6k": {"groups": 500, "generalise": 0.1},
        },
    ),
    "widened": (
        {
            f"{epochs} epochs, from {rate} to 0": {
                "grouping": "class",
                "targets": "hard",
                "widen": True,
                "server_epochs": epochs,
                "server_lr": float(rate),
                "server_schedule": "cosine",
            }
            for epochs in (5, 20)
            for rate in ("1e-3", "3e-4", "1e-4")
        },
        {
            "Widened, 15k": {"groups": 12500},
            "Widened, 3k": {"groups": 2500},
            "Widened, 0.6k": {"groups": 500},
        },
    ),
    "budget": (
        {
            f"{epochs} epochs, from {rate} to 0{', widened' * widen}": {
                "widen": widen,
                "server_epochs": epochs,
                "server_lr": float(rate),
                "server_schedule": "cosine",
            }
            for epochs, rate in ((50, "1e-3"), (200, "3e-4"))
            for widen in (False, True)
        },
        {
            f"{mode}, {f'ε = {epsilon}' if epsilon else 'no noise'}": SMALL
            | options
            | {"epsilon": float(epsilon)}
            for mode, options in MODES.items()
            for epsilon in (0, 4)
        },
    ),
}


def main() -> None:
    if sys.argv[1:] not in ([name] for name in WAYS):
        sys.exit(f"which? {' or '.join(WAYS)}")
    ways, rows = WAYS[sys.argv[1]]
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way, tried in ways.items():
            found[way] = {}
            for row, fixed in rows.items():
                chosen = {"cut": "layer4", "setting": "vertical", **fixed, **tried}
                keys = BASE | {"checkpoint": {"epochs": 0}}
                tree = {key: chosen.pop(key, value) for key, value in keys.items()}
                result = colonnade.run(
                    tree | {"fedemb": chosen},
                    out=Path(folder) / f"{way} {row}",
                    starts=Path(folder) / "starts",  # the local training, which is the same
                )
                on = result.metrics["validation"]
                found[way][row] = on["accuracy"]
            found[way]["mean"] = mean(found[way].values())
            print(f"{way}: " + ", ".join(f"{row} {x:.2%}" for row, x in found[way].items()))
    late = next(iter(on["late_fusion"].values()))
    best = max(found, key=lambda way: found[way]["mean"])
    print(f"late fusion {late:.2%}; chosen: {best}")
    record = {"commit": commit(), "late_fusion": late, "chosen": best, "validation": found}
    known = json.loads(OUT.read_text()) if OUT.exists() else {}
    OUT.write_text(json.dumps(known | {sys.argv[1]: record}, indent=1) + "\n")


if __name__ == "__main__":
    main()
