"""What an engine costs: steps per second as a job of NVFlare, against a process per party.

    python benchmarks/speed/engine.py [--turns 3] [--steps 1000] [--out FILE]

Four parties, 64 KiB embeddings, no model work, mutual TLS, one machine. The engine is provisioned
and started once; then, in turns: one process per party, a job whose sites talk over their own
streams, and a job whose connections pass through the engine (--relay).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import colonnade
from colonnade import assembly, config
from colonnade.config import federation
from colonnade.deploy.nvflare import machine
from colonnade.deploy.nvflare.machine import Engine
from colonnade.deploy.nvflare.submit import submit
from colonnade.deploy.supervisor import Options, hand_out
from colonnade.plugin import own
from colonnade.results import folder as folders
from colonnade.results.environment import commit
from colonnade.results.result import Result

HERE = Path(__file__).resolve().parent
NAMES = ("bank", "shop", "telco", "clinic")
WAYS = ("process", "nvflare", "relay")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "engine.json")
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        settings = config.load(echo(arguments.steps), rule=own)
        folders.create(root / "run", settings, overwrite=False)  # with a copy of the method
        hand_out(settings, assembly.from_catalogue(settings), root / "run", Options())
        shared = federation.load(root / "run" / "federation.toml")
        machine.provision(root / "kits", shared)
        with Engine(root / "kits", NAMES) as engine:
            for turn in range(arguments.turns):
                run = colonnade.run(settings, out=root / f"process-{turn}", runtime="process")
                found["process"].append(rate(run))
                for way in WAYS[1:]:
                    files = {name: site(root, name, f"{way}-{turn}") for name in NAMES}
                    machine.settle(root / "kits", shared.name, files)
                    out = root / f"{way}-{turn}"
                    job = submit(shared, engine.kit, out=out, relay=way == "relay")
                    found[way].append(rate(job))
                print("  " + ", ".join(f"{way} {found[way][-1]:.0f} steps/s" for way in WAYS))
    ratios = {
        way: statistics.median(a / b for a, b in zip(found[way], found["process"], strict=True))
        for way in WAYS[1:]
    }
    print(
        f"  of the process runtime, median: {ratios['nvflare']:.2f} as a job, "
        f"{ratios['relay']:.2f} through the engine"
    )
    content = found | {"ratios": ratios, "commit": commit()}
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")


def echo(steps: int) -> dict[str, Any]:
    return {
        "method": str(HERE / "echo.py"),
        "epochs": 1,
        "evaluate_every": 0,
        "data": {"name": "digits"},
        "partition": {"kind": "columns", "parties": len(NAMES)},
        "parties": {name: {} for name in NAMES},
        "checkpoint": {"epochs": 0},
        "echo": {"steps": steps},
    }


def site(root: Path, name: str, folder: str) -> str:
    """A site's own file, with a new folder for every job."""
    text = machine.site_file(root / "run", name)
    parties, kept = (root / "run" / "parties").resolve(), root.resolve() / f"{folder}-sites"
    assert f'out = "{parties}"' in text
    return text.replace(f'out = "{parties}"', f'out = "{kept}"')


def rate(result: Result) -> float:
    numbers = {
        k: v for row in result.history for p in row["parties"].values() for k, v in p.items()
    }
    return float(numbers["steps_per_second"])


if __name__ == "__main__":
    main()
