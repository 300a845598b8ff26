"""Labels that are answered at random before any role sees them: once for each row, for all runs.

    once the rows of a run are known, at whoever holds their labels:
    1. take the answers that the journal has, whatever ε they were drawn with
    2. draw one for every other training and validation row, from the journal's lasting secret
    3. book their ε, then write them to the journal
    4. replace the labels by the answers; the loss is that of answers: task/response.py

    with label_response = "prior" (in two stages, as by Ghazi et al., "Deep Learning with Label
    Differential Privacy", 2021), step 2 is for some of the training rows only, with classes in
    groups at random. The others, which count nothing until then:
    5. in the epoch before: gather what the networks say about them
    6. put classes into groups by that alone, for each row, and draw one of these: partitions.py

**What is claimed.** Another label of a row changes the probability of all that anybody is told in
all runs, that row's answer being all that is used of its label, by at most a factor of e^ε. It
holds for training and validation rows. The labels of test rows only meet the holder's own scores,
which are told as they are. Nothing is claimed about what features say of a label: whoever trains a
network on the answers may guess labels with it, and those of rows that had no part in it as well.

Numbers are clipped to a range that is known without them, and discrete Laplace noise is added, on a
grid of the range.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.errors import DataError
from colonnade.journal import Answers, Known, Names, Spending
from colonnade.privacy.draws import Keystream, Numbers, answered, laplace, thresholds
from colonnade.privacy.partitions import balanced, single
from colonnade.privacy.settings import Protect
from colonnade.role.party import Party
from colonnade.task.response import Responses, Sightings, chances

SPLITS = ("train", "validation")  # whose labels others may learn something of
# Rows that are answered by the time that so much of the training is over, with "prior"
STAGES = ((0.0, 0.6), (0.3, 1.0))
STEPS = 1 << 16  # of the range of numbers, to which an answer is rounded
GATHERED = "label prior"  # in Party.state
CLAIM = (
    "per label of training and validation rows, in all runs of the party together; rows that are "
    "for tests in any run are not covered"
)
FEW, CHANGED = 5, 0.1  # labels, and their share, that may have been corrected since


class LabelAnswers:
    """The labels of one party in one run."""

    def __init__(self, protect: Protect, epochs: int) -> None:
        self._how, self._epochs = protect, epochs
        self._truth = torch.empty(0)  # of all rows that are answered, on the CPU
        self._names: Names = np.empty(0, dtype=np.uint64)
        self._numbers: Numbers = np.empty(0, dtype=np.int64)
        self._due: Numbers = np.empty(0, dtype=np.int64)  # the epoch in which each is answered
        self._known: Known | None = None
        self._before = 0  # rows that other runs have answered
        self._classes = self._trained = 0

    # ---- what the run calls ------------------------------------------------------------------

    def begin(self, me: Party) -> None:
        """The rows are those of the run: answer them, and forget their labels."""
        train = me.splits.get("train")
        if train is None or train.y is None:
            return
        there = [name for name in SPLITS if name in me.splits]
        labels = [me.splits[name].y for name in there]
        self._truth = torch.cat([y.cpu() for y in labels if y is not None])
        self._names = np.concatenate([me.records(name) for name in there])
        self._numbers, self._classes = numbered(self._names), len(me.task.classes)
        self._trained = len(train)
        self._due = self._stages(me, len(train))
        known = self._answers(me).known(self._names, self._numbers)
        self._before = int((known.there & (known.since < 0)).sum())
        self._check_fit(me, known)
        self._known = self._answer(me, 0, None)
        self._use(me, me.progress.place("train")[0])

    def epoch(self, me: Party) -> None:
        """An epoch of training begins, or goes on: answer those whose turn it is."""
        if self._known is None or not self._due.any():
            return
        _, epoch, _ = me.position
        gathered = me.state.get(GATHERED)
        if (~self._known.there & (self._due <= epoch)).any():
            seen = None if gathered is None else Sightings(**gathered)
            self._known = self._answer(me, epoch, seen)
        self._use(me, epoch)
        self._gather(me, (~self._known.there & (self._due == epoch + 1)).any())

    def named(self) -> str:
        """What protects messages that are made of labels, for the ledger."""
        if self._known is None:
            return ""
        epsilon = float(self._known.epsilon[self._known.there].max(initial=0.0))
        return f"labels answered within ε = {epsilon:g}"

    def told(self) -> Mapping[str, Any]:
        """For the result; nothing of it depends on a label."""
        known = self._known
        if known is None:
            return {}
        there, said = known.there, dict[str, Any]()
        epsilon = float(known.epsilon[there].max(initial=0.0))
        said["epsilon"], said["asked"] = epsilon, self._how.label_epsilon
        said["least"] = float(known.epsilon[there].min(initial=epsilon))
        response = "prior" if self._grouped else "plain"
        said["response"] = response if self._classes else "laplace"
        said["rows"], said["answered_before"] = int(there.sum()), self._before
        if self._classes:
            groups = self._groups(known)[there]
            kept, _ = chances(torch.from_numpy(known.epsilon[there]), torch.from_numpy(groups))
            said["classes"], said["kept"] = self._classes, float(kept.mean()) if len(kept) else 0.0
            said["groups"] = float(groups.mean()) if len(groups) else 0.0
        else:
            low, high = self._how.label_range
            said["scale"] = (high - low) / epsilon if epsilon else 0.0
        said["odds"] = math.exp(min(epsilon, 700.0))
        return said | {"claim": CLAIM}

    # ---- answers -----------------------------------------------------------------------------

    def _answers(self, me: Party) -> Answers:
        assert me.journal is not None, "a run gives its parties journals"
        return me.journal.answers(me.task.classes)

    def _stream(self, me: Party, which: Numbers) -> Keystream:
        assert me.journal is not None
        secret = me.journal.secret("labels", lasting=True)
        return Keystream(secret, self._names[which], self._numbers[which])

    def _stages(self, me: Party, trained: int) -> Numbers:
        """In which epoch each row is answered: drawn for the row, whatever its label is."""
        due = np.zeros(len(self._names), dtype=np.int64)
        if not self._grouped:
            return due
        stream = self._stream(me, np.arange(trained))
        place = stream.words(stream.everybody).astype(np.float64) / 2.0**64
        for (_, share), (begins, _) in pairwise(STAGES):
            due[:trained][place >= share] = min(max(round(begins * self._epochs), 1), self._epochs)
        return np.where(due < self._epochs, due, 0)

    def _answer(self, me: Party, epoch: int, seen: Sightings | None) -> Known:
        """All answers by now, with those of rows whose turn it is."""
        answers = self._answers(me)
        with answers.journal.turn():  # nobody else answers them meanwhile
            known = answers.known(self._names, self._numbers)
            which = np.flatnonzero(~known.there & (self._due <= epoch))
            if not len(which):
                return known
            drawn, groups, members = self._drawn(me, which, seen)
            digest = hashlib.sha256(self._names[which].tobytes() + self._numbers[which].tobytes())
            assert me.journal is not None
            me.journal.spendings(self._names).book(
                f"labels {digest.hexdigest()[:32]}",
                self._spending,
                "labels",
                "labels",
                positions=which,
            )
            some = self._names[which], self._numbers[which]
            answers.keep(*some, drawn, self._how.label_epsilon, groups, members, epoch)
            return answers.known(self._names, self._numbers)

    @property
    def _grouped(self) -> bool:
        """Whether there is anything that a prior can do: two classes are always told apart."""
        return self._how.label_response == "prior" and self._classes > 2

    @property
    def _spending(self) -> Spending:
        """What one answer spends."""
        if self._classes:
            return Spending("response", self._how.label_epsilon)
        return Spending("laplace", math.ceil(STEPS / self._how.label_epsilon) / STEPS)

    def _drawn(
        self, me: Party, which: Numbers, seen: Sightings | None
    ) -> tuple[NDArray[np.generic], Numbers | None, NDArray[np.bool_] | None]:
        """An answer for each of these rows; with groups, how many, and the classes of that one."""
        stream, epsilon = self._stream(me, which), self._how.label_epsilon
        stream.words(stream.everybody)  # the first one says when it is a row's turn
        truth = self._truth[which].numpy()
        if not self._classes:
            low, high = self._how.label_range
            steps = np.rint((np.clip(truth, low, high) - low) / (high - low) * STEPS)
            noise = laplace(stream, math.ceil(STEPS / epsilon))
            return low + (high - low) * (steps.astype(np.int64) + noise) / STEPS, None, None
        if not self._grouped:
            counts = np.full(len(which), self._classes)
            return answered(stream, epsilon, truth, counts), None, None
        groups, counts, likely = self._partitions(stream, which, seen)
        said = answered(stream, epsilon, groups[stream.everybody, truth], counts)
        members = groups == said[:, None]
        shown = np.where(members, likely, -1.0).argmax(1)  # the likeliest class of the group
        return shown, counts, members

    def _partitions(
        self, stream: Keystream, which: Numbers, seen: Sightings | None
    ) -> tuple[Numbers, Numbers, NDArray[np.float64]]:
        """The group of each class, the number of groups and the prior of these rows. Rows for
        validation keep all classes apart: scores compare their answers with predictions."""
        ties = np.stack([stream.words(stream.everybody) for _ in range(self._classes)], axis=1)
        prior = np.full((len(which), self._classes), 1 / self._classes)
        if seen is not None:  # only training rows wait, and they come first
            prior = seen.prior().cpu().numpy()[which]
        groups, counts = balanced(prior, self._how.label_epsilon, ties)
        judged = which >= self._trained
        groups[judged] = single(int(judged.sum()), self._classes)
        counts[judged] = self._classes
        return groups, counts, prior

    def _groups(self, known: Known) -> Numbers:
        """m of each row."""
        return np.where(known.groups == 0, self._classes, known.groups)

    def _check_fit(self, me: Party, known: Known) -> None:
        """Refuse answers to other labels, which would be learnt instead of these.

        The secret says again which answers are the labels themselves, whatever these are. So
        nobody who chooses rows by their answers learns from a refusal how many are right.
        """
        _, place, times = np.unique(self._names, return_inverse=True, return_counts=True)
        alone = known.there & (times[place] == 1) & (self._groups(known) == self._classes)
        kept, wrong = 0, 0
        for before in (0, self._classes) if self._classes else ():  # words drawn for a partition
            which = np.flatnonzero(alone & ((known.groups > 0) == (before > 0)))
            if not len(which):
                continue
            stream = self._stream(me, which)
            for _ in range(1 + before):  # as in _drawn
                stream.words(stream.everybody)
            told = stream.happens(thresholds(known.epsilon[which], self._classes), stream.everybody)
            other = known.answers[which] != self._truth.numpy()[which]
            kept, wrong = kept + int(told.sum()), wrong + int((told & other).sum())
        if wrong > max(FEW, CHANGED * kept):
            raise DataError(
                f"'{me.name}': its journal has answers to labels of these rows, and they are not "
                "answers to these labels. A journal keeps one answer for each row and for good. "
                "Train on other labels in a federation of another name, which has another journal"
            )

    # ---- what roles see ----------------------------------------------------------------------

    def _use(self, me: Party, epoch: int) -> None:
        """Put the answers that count by now in the place of labels."""
        assert self._known is not None
        known = self._known
        active = known.there & (known.since <= epoch)
        values = torch.from_numpy(np.where(active, np.nan_to_num(known.answers), 0.0))
        values = values.to(self._truth.dtype)
        first, splits = 0, dict(me.splits)
        for name in SPLITS:
            if (split := splits.get(name)) is not None:
                last = first + len(split)
                splits[name] = replace(split, y=values[first:last].to(me.device))
                first = last
        me.splits = splits
        if self._classes:
            me.task = replace(me.task, responses=self._responses(me, active))

    def _responses(self, me: Party, active: NDArray[np.bool_]) -> Responses:
        assert self._known is not None
        rows, known = self._trained, self._known
        members: Tensor | None = None
        if any(len(row) > 1 for row in known.members[:rows]):
            table = np.zeros((rows, self._classes), dtype=bool)
            for line, row, one in zip(table, known.members, known.answers, strict=False):
                line[row if len(row) else int(np.nan_to_num(one))] = True
            members = torch.from_numpy(table).to(me.device)
        answers = torch.from_numpy(np.where(active, np.nan_to_num(known.answers), -1)).long()
        epsilon = torch.from_numpy(np.where(known.there, known.epsilon, 1.0))
        groups = torch.from_numpy(self._groups(known))
        a, e, g = (value[:rows].to(me.device) for value in (answers, epsilon, groups))
        return Responses(a, e, g, self._classes, members)

    def _gather(self, me: Party, wanted: bool) -> None:
        """Whether this epoch's predictions decide about the next answers."""
        if not wanted:
            me.state.pop(GATHERED, None)
            return
        rows = self._trained
        seen = me.state.get(GATHERED)
        found = Sightings.none(rows, self._classes, me.device)
        if seen is not None:
            found = Sightings(**{name: value.to(me.device) for name, value in seen.items()})
        me.state[GATHERED] = {"total": found.total, "times": found.times}
        assert me.task.responses is not None
        me.task.responses.seen = found


def numbered(names: Names) -> Numbers:
    """How many rows of the same name come before each."""
    order = np.argsort(names, kind="stable")
    alike = names[order]
    first = np.flatnonzero(np.concatenate([[True], alike[1:] != alike[:-1]]))
    lengths = np.diff(np.append(first, len(names)))
    numbers = np.empty(len(names), dtype=np.int64)
    numbers[order] = np.arange(len(names)) - np.repeat(first, lengths)
    return numbers
