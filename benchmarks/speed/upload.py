"""Memory of an upload of feature maps with one process per party, over mutual TLS.

    python benchmarks/speed/upload.py [--rows 50000]

Two parties with a 16×16 tile of CIFAR-10 each; 50,000 rows of 4096 floats are 819 MB. The client
should never hold more than a chunk, the server the stitched maps and little else. Prints for each
process how much its memory grew during the upload, and what of it is not the maps themselves.
Results also go to benchmarks/speed/results/upload.json.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import colonnade
from colonnade.config import Config
from colonnade.results.environment import commit
from colonnade.results.observer import Observer, Traffic
from colonnade.role.progress import Meter

MB = 1e6


class Watch(Observer):
    """Reads the memory of both processes, from their first upload to the server's first batch."""

    def __init__(self) -> None:
        self.before: dict[str, float] = {}
        self.highest: dict[str, float] = {}
        self.began_at = self.ended_at = 0.0
        self._stop = threading.Event()

    def began(self, config: Config, meters: Mapping[str, Meter], ledger: Traffic) -> None:
        threading.Thread(target=self._look, args=(meters,), daemon=True).start()

    def ended(self) -> None:
        self._stop.set()

    def _look(self, meters: Mapping[str, Meter]) -> None:
        names = list(meters)
        while not self._stop.wait(0.02):
            phases = {name: meters[name].phase for name in names}
            if phases["party1"] == "train":
                self.ended_at = self.ended_at or time.perf_counter()
                return
            for name, process in _children().items():
                resident = _resident(process)
                if phases.get(name) == "upload":
                    self.began_at = self.began_at or time.perf_counter()
                    self.highest[name] = max(self.highest.get(name, 0), resident)
                else:
                    self.before[name] = resident


def _children() -> dict[str, int]:
    """The parties' processes by name: `… party NAME …` on their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        for name in ("party1", "party2"):
            if name in words and "--events" in words:
                found[name] = int(folder.name)
    return found


def _resident(process: int) -> float:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")] or ["VmRSS 0"]
    return int(line.split()[1]) * 1024 / MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    arguments = parser.parse_args()
    config: dict[str, Any] = {
        "method": "adptvfedconv",
        "epochs": 1,
        "batch_size": 256,
        "evaluate_every": 0,
        "absence": False,
        "model_options": {"width": 0.25, "fc": [64]},
        "checkpoint": {"epochs": 1},  # the maps also go to the disk, once
        "data": {"name": "cifar10", "train_rows": arguments.rows},
        "partition": {
            "kind": "rectangles",
            "rectangles": [[0, 0, 16, 16], [0, 16, 16, 16]],
        },
        # 16 channels of 16×16 are as many numbers as 64 of 8×8, and quicker to train on.
        "adptvfedconv": {"cut": "1C", "pretrain_epochs": 0, "finetune_epochs": 0},
    }
    watch = Watch()
    with TemporaryDirectory() as folder:
        result = colonnade.run(config, out=Path(folder) / "run", runtime="process", observer=watch)
        sent = result.wire["by_kind"]["maps"]["bytes"] / MB
    stitched = 4 * arguments.rows * 4096 * 4 / MB  # of whole images, half of which nobody sees
    seconds = watch.ended_at - watch.began_at
    found = {
        "command": f"upload.py --rows {arguments.rows}",
        "commit": commit(),
        "maps_sent_MB": sent,
        "stitched_maps_MB": stitched,
        "seconds": seconds,
        "server_grew_MB": watch.highest["party1"] - watch.before["party1"],
        "client_grew_MB": watch.highest["party2"] - watch.before["party2"],
    }
    found["server_above_maps_MB"] = found["server_grew_MB"] - stitched
    for name, value in found.items():
        print(f"{name:22} {value if isinstance(value, str) else f'{value:,.1f}'}")
    place = Path(__file__).parent / "results" / "upload.json"
    place.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
