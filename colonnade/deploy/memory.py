"""The journal of a party in a process of its own: where it lies, and which records it is about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.align.ids import one_spelling
from colonnade.deploy.setup import Setup
from colonnade.journal import Anchor, Journal, RunJournal, default_place
from colonnade.journal.run import SIMULATED
from colonnade.results import folder as folders

ANCHOR = "journal"  # in run.json


def open_journal(setup: Setup, folder: Path, manifest: Mapping[str, Any]) -> Journal:
    """Where the policy says; in a simulation, in the run folder. One that lacks what run.json
    knows of it is refused."""
    anchor = Anchor.of(manifest.get(ANCHOR))
    if setup.simulated or (folder / SIMULATED).exists():
        return Journal(folder / SIMULATED, anchor, simulated=True)
    place = setup.policy.journal or default_place(setup.federation.name, setup.name)
    return Journal(place, anchor)


def run_journal(setup: Setup, journal: Journal, run: str) -> RunJournal:
    """The same during one run, with the names of the party's own records."""
    if journal.simulated:
        return RunJournal.simulated(lambda: journal, setup.name, setup.settings.run.seed)
    return RunJournal(lambda: journal, run, one_spelling(setup.rows.names))


def keep_anchor(folder: Path, journal: Journal) -> None:
    """Say in run.json how far the journal has come, so that its end cannot be cut unnoticed."""
    folders.remark(folder, **{ANCHOR: journal.anchor.table()})
