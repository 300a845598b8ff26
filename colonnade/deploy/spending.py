"""What a run will spend of its records' privacy, with what all runs before it have spent, known
before anybody is called.

    unguarded   what would leave without a protection that counts, though the policy limits it
    spends      what the run will spend, in sentences, and what of that the policy's limit forbids
    planned     the same of one run alone, of which no journal knows anything
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colonnade.align.ids import one_spelling
from colonnade.assembly import OwnRows, schedule_of
from colonnade.config import Config
from colonnade.config.federation import Federation
from colonnade.deploy.forecast import Problem, sends_of
from colonnade.errors import JournalError
from colonnade.journal import Journal, Names, RunJournal, Spending, default_place
from colonnade.journal.journal import FILE
from colonnade.journal.spendings import LABELS
from colonnade.journal.spent import uses
from colonnade.privacy.account import ROUNDING, Uses, beyond, epsilon, lost, way_out
from colonnade.privacy.protection import Planned
from colonnade.wire import Kind
from colonnade.wire.limits import About, Limits
from colonnade.wire.policy import Policy

ANSWERED = ("train", "validation")  # splits whose labels are answered
SETTINGS = {"labels": "label_epsilon", "models": "model_epsilon"}  # else of vectors


@dataclass(frozen=True)
class Will:
    """What a run spends on each record of a party."""

    vectors: Uses
    models: Uses  # of training records, features and labels
    answer: float  # ε of a label that was not answered before; 0: labels are not
    labelled: bool

    @classmethod
    def of(cls, settings: Config, role: str, sent: Sequence[Kind], labelled: bool) -> Will:
        protect, trained = settings.protect, settings.trained_by(role)
        found = Planned.of(protect, schedule_of(settings), sent, trained)
        answer = protect.label_epsilon if labelled else 0.0
        return cls(list(found.vectors), list(found.models), answer, labelled)

    @property
    def anything(self) -> bool:
        return bool(self.vectors or self.models or self.answer)

    @property
    def training(self) -> Uses:
        """On the features of a training record."""
        return [*self.vectors, *self.models]

    @property
    def named(self) -> str:
        """How often, in words."""
        sorts = ((self.vectors, "vector{} with noise"), (self.models, "epoch{} of noisy gradients"))
        counts = [(sum(times for _, times in every), text) for every, text in sorts]
        said = [f"{n:,} {text.format('s' * (n != 1))}" for n, text in counts if n]
        return " and ".join(said)


@dataclass(frozen=True)
class Outlook:
    """What a run will spend, and what is wrong with that."""

    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def unguarded(federation: Federation, name: str, policy: Policy) -> Iterator[Problem]:
    """Kinds that tell what the policy's [privacy] limits, and that nothing protects: how much they
    tell cannot be counted, so they do not leave."""
    if not policy.privacy.given or not federation.role(name).rows:
        return
    run = federation.run
    counted_by_method = run.found.method.learning.counted(run.options)
    for kind in sends_of(federation, name):
        about = policy.privacy.uncounted(kind)
        if kind.name in counted_by_method:
            continue
        setting = SETTINGS.get(kind.carries, "embedding_epsilon")
        if about and run.protect.guaranteed(kind) is None:
            yield (
                f"[privacy] {about} = {policy.privacy.of(about):g} limits what all runs together "
                f"tell, and '{kind.name}' would leave without a protection that counts",
                f"[run.protect] {setting} in the file of all parties, with a method that can be "
                "protected so",
            )


def spends(
    federation: Federation, name: str, policy: Policy | None, rows: OwnRows | None
) -> Outlook:
    """What a run that begins now will spend on a party's records.

    rows  the party's own; None: not known yet
    """
    if rows is None or not rows.splits:
        return Outlook()
    limits = Limits() if policy is None else policy.privacy
    place = policy.journal if policy is not None else None
    place = place or default_place(federation.name, name)
    role = federation.cast[name]
    will = Will.of(federation.run, role, sends_of(federation, name), _labelled(rows))
    if not will.anything:
        return Outlook()
    if not (place / FILE).exists():
        return _outlook(limits, will, None, {})
    try:
        with closing(Journal(place)) as journal:
            own = RunJournal(lambda: journal, "", one_spelling(rows.names))
            known = {key: own.names(one.ids, one.x) for key, one in rows.splits.items()}
            return _outlook(limits, will, journal, known)
    except JournalError as error:
        return Outlook(problems=((str(error), "nothing leaves without it"),))


def planned(settings: Config, role: str, sent: Sequence[Kind], labelled: bool) -> Sequence[str]:
    """What a run spends on a record of a party, whatever other runs have."""
    will = Will.of(settings, role, sent, labelled)
    return _outlook(Limits(delta=settings.protect.delta), will, None, {}).notes


def _labelled(rows: OwnRows) -> bool:
    return any(split.y is not None for split in rows.splits.values())


def _outlook(
    limits: Limits, will: Will, journal: Journal | None, known: Mapping[str, Names]
) -> Outlook:
    notes, problems = [], []
    if will.vectors or will.models:
        note = (
            f"features: ε = {epsilon(will.training, limits.delta):.4g} at δ = {limits.delta:g} of "
            f"each record, in {will.named}"
        )
        more, wrong = _with_others(
            limits, "features", will.training, journal, _of(known, ["train"])
        )
        notes.append(note + more)
        problems += wrong
        if not wrong and will.vectors:
            held = _of(known, [split for split in known if split != "train"])
            problems += _with_others(limits, "features", will.vectors, journal, held)[1]
    if will.labelled and will.models:
        names = _of(known, ["train"])
        problems += _with_others(limits, "labels", will.models, journal, names)[1]
    if will.answer:
        names = _of(known, ANSWERED)
        before = _answered(journal, names)
        note = f"labels: ε = {will.answer:g} of each row, once for all runs"
        if limits.labels:
            note += f", of {limits.labels:g} that the policy allows"
        if before.any():
            note += (
                f"; {before.sum():,} of {len(names):,} rows were answered before, and lose nothing "
                f"more, {(~before).sum():,} will be answered"
            )
        notes.append(note)
        answer = [(Spending("response", will.answer), 1)]
        problems += _with_others(limits, "labels", answer, journal, names[~before])[1]
    return Outlook(tuple(notes), tuple(problems))


def _of(known: Mapping[str, Names], splits: Sequence[str]) -> Names:
    """The records of some splits."""
    found = [known[split] for split in splits if split in known]
    return np.concatenate([*found, np.empty(0, dtype=np.uint64)])


def _with_others(
    limits: Limits, about: About, uses: Uses, journal: Journal | None, names: Names
) -> tuple[str, list[Problem]]:
    """How the run adds to what others have spent, and whether that is too much."""
    before, after = 0.0, epsilon(uses, limits.delta)
    if journal is not None:
        if not len(names):
            return "", []
        before = lost(journal, names, about, limits.delta).epsilon
        after = lost(journal, names, about, limits.delta, uses).epsilon
    said, most = "", limits.of(about)
    if before:
        said = f"; earlier runs have spent {before:.4g} on one of them: {after:.4g} with this run"
    if most:
        said += f", of {most:g} that the policy allows"
    if most and after > most * (1 + ROUNDING):
        problem = f"[privacy] {about}: {beyond(limits, about, before, after)}"
        return said, [(problem, f"{way_out(about)}, or change `{about}` in [privacy]")]
    return said, []


def _answered(journal: Journal | None, names: Names) -> NDArray[np.bool_]:
    """Which of these records had their labels answered."""
    every = [] if journal is None else [use for use in uses(journal) if use.kind == LABELS]
    lists = {use.rows for use in every}
    found = np.zeros(len(names), dtype=bool)
    for one in sorted(lists):
        assert journal is not None
        found |= np.isin(names, journal.lists.read(one))
    return found
