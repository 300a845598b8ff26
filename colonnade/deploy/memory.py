"""The journal of a party in a process of its own: where it lies, and which records it is about."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from colonnade.align.ids import one_spelling
from colonnade.deploy.setup import Setup
from colonnade.errors import JournalError
from colonnade.journal import Anchor, Journal, Meetings, Names, RunJournal, default_place
from colonnade.journal.run import SIMULATED
from colonnade.privacy.account import Organisation
from colonnade.results import folder as folders
from colonnade.role.party import Party
from colonnade.wire import Ledger
from colonnade.wire.counting import counted_in

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
        noise_seed = setup.settings.protect.simulate_noise_seed
        return RunJournal.simulated(lambda: journal, setup.name, noise_seed)
    limits, limit = setup.policy.privacy, None
    if limits.given:
        limit = Organisation(limits, setup.name, setup.policy.source)
    return RunJournal(lambda: journal, run, one_spelling(setup.rows.names), limit=limit)


def run_of(prediction: str, party: Party) -> str:
    """What the journal calls a prediction. The hub names it, and may give a name to two; what is
    counted once, as after a crash, has the same rows and weights, too."""
    content = hashlib.sha256(party.kept.sha256().encode())
    for split in party.splits.values():
        content.update(split.x.cpu().contiguous().numpy().tobytes())
    return f"{prediction} {content.hexdigest()[:32]}"


def watch_rows(
    setup: Setup, party: Party, journal: Journal, absent: Collection[str], run: str = ""
) -> None:
    """Where others learn a sum over all who take part, no row is evaluated by two sets of members
    under the same weights; nor do two runs begin with the same ones, nor does a prediction go on
    from those with which a training has ended.

    run  that is trained; empty: a prediction
    """
    settings = setup.settings
    if setup.name == setup.federation.hub:  # it learns the sums
        return
    if not settings.found.method.membership.sums(settings.options):
        return
    members = [name for name in sorted(setup.federation.names) if name not in absent]
    meetings, known = Meetings(journal), dict[str, Names]()

    def meet(split: str, step: str = "") -> None:
        if split not in known:
            known[split] = party.records(split)
        meetings.meet(known[split], party.kept.sha256(), members, step)

    party.on_rows = meet
    if run:
        party.on_training = partial(meet, "train", run)


def keep_head(journal: Journal, run: str, book: Ledger) -> None:
    """Say in the journal how far a run's ledger has come."""
    assert book.path is not None
    rows, head = book.count, book.head
    journal.append("ledger", run=run, file=book.path.name, rows=rows, head=head)


def check_head(journal: Journal, run: str, book: Ledger) -> None:
    """Refuse a ledger that does not contain what the journal knows of it."""
    assert book.path is not None
    known = list(journal.entries("ledger", run=run, file=book.path.name))
    if not known:
        return
    count, head = known[-1]["rows"], known[-1]["head"]
    found = book.head if book.count == count else ""
    for row in book.rows():
        if row["row"] == count:
            found = row["previous"]
            break
    if found != head:
        raise JournalError(
            f"{book.path} was cut, emptied or exchanged: it has {book.count} rows, and by this "
            f"party's journal it had {count} with another end. What has left is counted from it, "
            "so nothing is sent. Bring it back from a backup, or begin a new run, with another "
            "--out"
        )


def check_new(journal: Journal, run: str) -> None:
    """Refuse a run that this party has begun in another folder. The hub names runs, and what is
    counted under a name is not counted again."""
    sorts = ("alignment", "exchange", "ledger", "plan", "release", "spent", "steps")
    known = any(True for sort in sorts for _ in journal.entries(sort, run=run))
    if known or any(str(e["key"]).startswith(counted_in(run)) for e in journal.entries("count")):
        raise JournalError(
            f"the hub calls this run {run}, and this party has begun a run of that name in another "
            "folder, as its journal says: what leaves again would not be counted. Go on in that "
            "folder, or begin a new run at all parties, each with another --out"
        )


def keep_anchor(folder: Path, journal: Journal) -> None:
    """Say in run.json how far the journal has come, so that its end cannot be cut unnoticed."""
    folders.remark(folder, **{ANCHOR: journal.anchor.table()})
