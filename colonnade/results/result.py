"""From what each party can say about itself to result.json: one schema for every runtime.

A party's account holds numbers about its work and nothing of its data. In one process the
accounts are made and joined at once; with a process per party each writes its own.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.config import Config
from colonnade.errors import InputError, RunError
from colonnade.role.party import Party
from colonnade.version import __version__

SCHEMA = 1
# Of a party's history: what is not a number that the method logged.
NOT_LOGGED = ("phase", "epoch", "of", "seconds", "others")
COMMIT = "COLONNADE_COMMIT"  # the environment variable that names it where there is no repository


@dataclass(frozen=True)
class Result:
    """What a run leaves: result.json as `content`, and the folder it lies in."""

    content: dict[str, Any]
    path: Path

    @property
    def accuracy(self) -> float | None:
        """Test accuracy, a fraction."""
        value: float | None = self.content["metrics"].get("test", {}).get("accuracy")
        return value

    @property
    def metrics(self) -> dict[str, Any]:
        return dict(self.content["metrics"])

    @property
    def history(self) -> list[dict[str, Any]]:
        return list(self.content["history"])

    @property
    def wire(self) -> dict[str, Any]:
        return dict(self.content["wire"])

    @property
    def weights_sha256(self) -> dict[str, str]:
        return dict(self.content["weights_sha256"])


def account(party: Party, holder: str) -> dict[str, Any]:
    """What one party can say at the end: plain values, ready for JSON."""
    scores: dict[str, Any] = {}
    for split, measures in party.predictions.items():
        labels = party.splits[split].y
        assert labels is not None
        entry = scores[split] = {
            measure: {
                # The same fraction on any device.
                name: int((predicted == labels).sum()) / len(labels)
                for name, predicted in by_party.items()
            }
            for measure, by_party in measures.items()
        }
        counted = measures.get("per_party", {})
        if counted:
            whose = holder if holder in counted else next(iter(counted))
            entry["confusion"] = _confusion(labels, counted[whose], len(party.classes))
            entry["confusion_party"] = whose
    for name, number in party.figures.items():
        scores.setdefault("test", {})[name] = {party.name: number}
    return {
        "history": party.history,
        "scores": scores,
        "spent": dict(party.spent),
        "remarks": list(party.remarks),
        "weights_sha256": party.kept.sha256(),
    }


def combine(
    settings: Config,
    *,
    name: str,
    runtime: str,
    data: Mapping[str, Any],
    cast: Mapping[str, str],
    holder: str,
    accounts: Mapping[str, Mapping[str, Any]],
    wire: Mapping[str, Any],
    setup: float,
    seconds: float,
) -> dict[str, Any]:
    """result.json of all parties whose accounts are there."""
    histories = {party: told["history"] for party, told in accounts.items()}
    rows = history(histories, list(cast))
    by_phase: dict[str, float] = {}
    for row in rows:
        by_phase[row["phase"]] = by_phase.get(row["phase"], 0.0) + row["seconds"]
    remarks = dict.fromkeys(text for told in accounts.values() for text in told.get("remarks", ()))
    roles = settings.found.method.roles
    helpers = {party for party, role in cast.items() if not roles[role].rows}
    # A server may have more rounds than anybody has epochs.
    trained = [
        row for row in rows if row["phase"] == "train" and row["parties"].keys() - helpers
    ] or rows
    return {
        "schema": SCHEMA,
        "name": name,
        "method": settings.found.method.name,
        "about": settings.found.method.told(settings.options),
        "seed": settings.run.seed,
        "runtime": runtime,
        "status": "finished",
        "error": "",
        "warnings": [*settings.found.method.about.caveats(settings.options), *remarks],
        "config": settings.resolved(),
        "config_sha256": settings.sha256(),
        "data": dict(data)
        | (
            {"labels_lent": True}
            if settings.found.method.rows.everyone_labelled(settings.options)
            else {}
        ),
        "parties": list(cast),
        "roles": dict(cast),
        "metrics": _metrics({party: told["scores"] for party, told in accounts.items()}, holder),
        "history": rows,
        "wire": dict(wire),
        "timing": {
            "seconds_total": seconds,
            "seconds_per_epoch": [row["seconds"] for row in trained],
            "by_phase": by_phase,
            "setup": setup,
            "spent": {party: told["spent"] for party, told in accounts.items() if told["spent"]},
        },
        "weights_sha256": {party: told["weights_sha256"] for party, told in accounts.items()},
        "environment": _environment(settings),
    }


def divergence(rows: list[dict[str, Any]]) -> list[str]:
    """A loss that is not a number any more, and since when."""
    found: dict[str, str] = {}
    for row in rows:
        for name, numbers in row["parties"].items():
            if "loss" in numbers and numbers["loss"] is None and name not in found:
                found[name] = (
                    f"the loss of '{name}' is not finite since epoch {row['epoch']}: the training "
                    "diverged; try a smaller lr"
                )
    return list(found.values())


def history(
    entries: Mapping[str, list[dict[str, Any]]], parties: list[str]
) -> list[dict[str, Any]]:
    """One row per phase and epoch, with the numbers of every party that logged any."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for name, own_entries in entries.items():
        for entry in own_entries:
            key = (entry["phase"], entry["epoch"])
            row = rows.setdefault(
                key, {"epoch": key[1], "phase": key[0], "seconds": 0.0, "parties": {}}
            )
            row["seconds"] = max(row["seconds"], entry["seconds"])
            own = {k: v for k, v in entry.items() if k not in NOT_LOGGED}
            for whose, numbers in {name: own, **entry.get("others", {})}.items():
                if numbers:  # JSON has neither NaN nor infinity
                    row["parties"].setdefault(whose, {}).update(
                        {k: _finite(v) for k, v in numbers.items()}
                    )
    for row in rows.values():  # in the order of the parties, whoever logged first
        row["parties"] = {name: row["parties"][name] for name in parties if name in row["parties"]}
    return list(rows.values())


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _metrics(scores: Mapping[str, Mapping[str, Any]], holder: str) -> dict[str, Any]:
    """The last evaluation of every split that was scored."""
    metrics: dict[str, Any] = {}
    for own in scores.values():
        for split, measures in own.items():
            nothing = dict.fromkeys(("accuracy", "confusion", "confusion_party"))
            entry = metrics.setdefault(split, {**nothing, "per_party": {}})
            for measure, values in measures.items():
                if measure == "confusion":
                    whose = measures["confusion_party"]
                    if entry["confusion"] is None or whose == holder:
                        entry |= {"confusion": values, "confusion_party": whose}
                elif measure != "confusion_party":
                    entry.setdefault(measure, {}).update(values)
    for entry in metrics.values():
        shares = list(entry["per_party"].values())
        entry["accuracy"] = sum(shares) / len(shares) if shares else None
    return metrics


def _confusion(labels: Tensor, predicted: Tensor, classes: int) -> list[list[int]]:
    cells = torch.bincount((labels * classes + predicted).cpu(), minlength=classes * classes)
    table: list[list[int]] = cells.reshape(classes, classes).tolist()
    return table


def _environment(settings: Config) -> dict[str, Any]:
    device = settings.run.device
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": settings.run.threads,
        "platform": f"{platform.system()} {platform.machine()}",
        "colonnade": __version__,
        "commit": commit(),
    }


def commit() -> str:
    """The commit of the source tree, with a + where it was changed; empty where nobody knows.

    A copy of the tree without its repository is told: COLONNADE_COMMIT. Where there is a
    repository, that says it, and the variable counts for nothing.
    """
    source = Path(__file__).resolve().parents[2]
    if not (source / ".git").exists():
        return _handed_over()
    git = shutil.which("git")
    if git is None:
        return ""
    show = subprocess.run(
        [git, "-C", os.fspath(source), "describe", "--always", "--dirty=+", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return show.stdout.strip()


def _handed_over() -> str:
    named = os.environ.get(COMMIT, "")
    if named and not re.fullmatch(r"[0-9a-f]{7,40}\+?", named):
        raise InputError(
            f"{COMMIT} is {named!r}, which is no commit: give 7 to 40 of 0-9 and a-f, and a + "
            "behind them where files were changed since"
        )
    return named


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a run folder."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path.parent} is not a run: {path.name}: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: it holds no table")
    return content
