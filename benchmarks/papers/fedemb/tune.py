"""How long and how fast the server tunes in FedEmb's Table 2, chosen on validation rows alone.

    python benchmarks/papers/fedemb/tune.py

Fashion-MNIST at eight clients, 10,000 of its training rows held out; test rows are not looked at.
Four rows of the table, with as many rows in a group. About ten minutes on one core. Results go to
the terminal and to benchmarks/papers/fedemb/results/tuning.json.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import colonnade
from colonnade.result import commit

OUT = Path(__file__).parent / "results" / "tuning.json"
BASE: dict[str, Any] = {
    "method": "fedemb",
    "seed": 11,
    "epochs": 10,
    "batch_size": 128,
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
WAYS: dict[str, dict[str, Any]] = {
    "5 epochs, 1e-4": {"server_epochs": 5, "server_lr": 1e-4},
    "5 epochs, from 1e-4 to 0": {"server_epochs": 5, "server_schedule": "cosine"},
    "5 epochs, 3e-5": {"server_epochs": 5, "server_lr": 3e-5},
    "5 epochs, 1e-5": {"server_epochs": 5, "server_lr": 1e-5},
    "1 epoch, 1e-4": {"server_epochs": 1, "server_lr": 1e-4},
    "1 epoch, 3e-5": {"server_epochs": 1, "server_lr": 3e-5},
}
ROWS: dict[str, dict[str, Any]] = {
    "Ran, 15k": {"groups": 12500},
    "Ran + 10 %, 15k": {"groups": 12500, "generalise": 0.1},
    "Ran, 0.6k": {"groups": 500},
    "Ran + 10 %, 0.6k": {"groups": 500, "generalise": 0.1},
}


def main() -> None:
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way, tuning in WAYS.items():
            found[way] = {}
            for row, groups in ROWS.items():
                options = {"cut": "layer4", "setting": "vertical", **groups, **tuning}
                result = colonnade.run(
                    {**BASE, "fedemb": options},
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
    OUT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
