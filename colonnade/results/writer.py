"""From what the parties say about themselves to result.json: one schema, one writer.

Every runtime begins a `ResultFile` and writes it when it ends, however it ends: a run in one
process, the supervisor of several, one party of a federation, and whoever submits a job to an
engine. What is measured after the training is added to what was written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from colonnade.config import Config
from colonnade.privacy.settings import Protect
from colonnade.results import folder as folders
from colonnade.results.account import attributed, judge_of
from colonnade.results.environment import environment
from colonnade.results.history import divergence, history, metrics
from colonnade.results.result import Result
from colonnade.task import DEFAULT_METRIC
from colonnade.wire import ledger, store

SCHEMA = 1

Status = Literal["finished", "stopped", "failed"]
Accounts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ResultFile:
    """The result of one run, known by what does not change until it ends."""

    folder: Path
    settings: Config
    runtime: str
    cast: Mapping[str, str]  # role by party
    holder: str  # of the labels
    began: float  # by time.perf_counter()
    earlier: float  # seconds that earlier attempts took

    @classmethod
    def begin(
        cls,
        folder: Path,
        settings: Config,
        runtime: str,
        cast: Mapping[str, str],
        holder: str,
        began: float | None = None,
    ) -> ResultFile:
        """Begin the result of a run in an existing folder; `began` if the run started before."""
        started = time.perf_counter() if began is None else began
        earlier = folders.seconds_so_far(folder)
        return cls(folder, settings, runtime, cast, holder, started, earlier)

    def write(
        self,
        status: Status,
        error: str,
        *,
        data: Mapping[str, Any],
        accounts: Accounts,
        setup: float,
        wire: Mapping[str, Any] | None = None,
        head: str = "",
        warnings: Iterable[str] = (),
        own: Iterable[str] | None = None,
    ) -> Result:
        """Write what is known now, of a run that has ended.

        data      the facts about the rows
        accounts  what every party that came so far tells; see account.py
        setup     seconds until the first role began
        wire      what crossed; by default, the sum of the folder's ledger, whose last hash is
                  `head`
        warnings  of the data and the runtime; those of the method, of the parties, and about a
                  loss that is not finite stand before and after them
        own       whose texts need no name before them; default: everybody's, in one process
        """
        settings = self.settings
        judge = judge_of(settings.found.method, self.cast, self.holder)
        mine = frozenset(self.cast if own is None else own)
        if wire is None:
            rows = ledger.read(self.folder / "ledger.jsonl")
            wire = {**ledger.summarise(rows, settings.kinds), "head": head}
        rows_of_training = history(
            {party: told["history"] for party, told in accounts.items()}, list(self.cast), judge
        )
        kind = data.get("task", {}).get("kind", "multiclass")
        decision = accounts.get(self.holder, {}).get("decision")
        lent = settings.found.method.rows.everyone_labelled(settings.options)
        content = {
            "schema": SCHEMA,
            "name": self.folder.name,
            "method": settings.found.method.name,
            "about": settings.found.method.told(settings.options, self.cast, self.holder),
            "seed": settings.run.seed,
            "runtime": self.runtime,
            "status": status,
            "error": error,
            "warnings": self._warnings(accounts, warnings, rows_of_training, mine),
            "config": settings.resolved(),
            "config_sha256": settings.sha256(),
            "data": {**data, **({"labels_lent": True} if lent else {})},
            "parties": list(self.cast),
            "roles": dict(self.cast),
            "metrics": metrics(
                {p: told["scores"] for p, told in accounts.items()},
                self.holder,
                judge,
                settings.run.metric or DEFAULT_METRIC[kind],
            ),
            **({} if decision is None else {"decision": decision}),
            **_stopped(accounts, self.holder),
            **_protected(accounts, settings.protect),
            "history": rows_of_training,
            "wire": dict(wire),
            "timing": self._timing(accounts, rows_of_training, setup, judge),
            "weights_sha256": {party: told["weights_sha256"] for party, told in accounts.items()},
            "environment": environment(settings),
        }
        return _written(content, self.folder)

    def _warnings(
        self,
        accounts: Accounts,
        warnings: Iterable[str],
        rows: list[dict[str, Any]],
        own: frozenset[str],
    ) -> list[str]:
        """Each once: several parties may say the same."""
        settings = self.settings
        caveats = settings.caveats
        known = list(warnings)
        told = attributed(accounts, own, [*caveats, *known])
        return list(dict.fromkeys([*caveats, *told, *known, *divergence(rows)]))

    def _timing(
        self, accounts: Accounts, rows: list[dict[str, Any]], setup: float, judge: str
    ) -> dict[str, Any]:
        by_phase: dict[str, float] = {}
        for row in rows:
            by_phase[row["phase"]] = by_phase.get(row["phase"], 0.0) + row["seconds"]
        roles = self.settings.found.method.roles
        helpers = {party for party, role in self.cast.items() if not roles[role].rows}
        # A server may have more rounds than anybody has epochs.
        trained = [
            row for row in rows if row["phase"] == "train" and row["parties"].keys() - helpers
        ]
        judged = [row for row in trained if judge in row["parties"]]
        # A party that is told no loss and no accuracy counts the epochs of its training, too.
        trained = judged or trained or [row for row in rows if row["phase"] == "train"] or rows
        return {
            "seconds_total": self.earlier + time.perf_counter() - self.began,
            "seconds_per_epoch": [row["seconds"] for row in trained],
            "by_phase": by_phase,
            "setup": setup,
            "spent": {party: told["spent"] for party, told in accounts.items() if told["spent"]},
        }


def _stopped(accounts: Accounts, holder: str) -> dict[str, Any]:
    """Which epoch's weights were kept: the label holder's word, and where each party stops by
    itself, that of each."""
    found = {party: told["stopping"] for party, told in accounts.items() if "stopping" in told}
    if not found:
        return {}
    first = found.get(holder) or next(iter(found.values()))
    return {"stopping": {**first, **({"parties": found} if len(found) > 1 else {})}}


def _protected(accounts: Accounts, how: Protect) -> dict[str, Any]:
    """What protected each party; each speaks for itself."""
    found = {p: dict(told["protected"]) for p, told in accounts.items() if told.get("protected")}
    if not (found or how.given):
        return {}
    return {"privacy": {"simulated": how.simulate_noise_seed is not None, "parties": found}}


def add_metrics(result: Result, found: Mapping[str, Mapping[str, Any]]) -> Result:
    """Add metrics that were measured after the training, by split."""
    if not found:
        return result
    splits = result.content["metrics"]
    merged = {split: {**splits.get(split, {}), **more} for split, more in found.items()}
    return _written({**result.content, "metrics": {**splits, **merged}}, result.path)


def _written(content: dict[str, Any], folder: Path) -> Result:
    store.write_text(json.dumps(content, indent=1), folder / "result.json")
    return Result(content, folder)
