"""[protect]: what protects what, on which all parties agree. Nothing is protected by default.

[protect]
label_epsilon = 4          # of each label, once for all runs of its holder     privacy/labels.py
embedding_epsilon = 8      # of each row's vectors, all of a run together       privacy/rows.py
model_epsilon = 8          # of each record, through all models that leave      privacy/training.py
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from colonnade.privacy import accountant
from colonnade.toml import Bounds
from colonnade.wire import Kind

DELTA = 1e-5
TAILS, MODEL_TAILS = accountant.TAILS, accountant.MODEL_TAILS
MOST_CLASSES = 100  # of labels that are answered by a prior
SIMULATED = (
    "All noise follows from protect.simulate_noise_seed, so whoever knows that number can draw it "
    "again: nothing is protected."
)


@dataclass(frozen=True)
class Protect:
    """The settings of all protections; an ε of 0 protects nothing."""

    # ε of every training and validation label: drawn once for all runs, and then kept
    label_epsilon: Annotated[float, Bounds(least=0)] = 0.0
    # How labels of classes are drawn: each alike, or the later ones among those likely by then
    label_response: Literal["plain", "prior"] = "plain"
    # Regression: the least and the largest label there can be, known without looking at labels
    label_range: tuple[float, ...] = ()
    # ε, at `delta`, of all vectors of one row that leave in a run: in training, and in evaluation
    embedding_epsilon: Annotated[float, Bounds(least=0)] = 0.0
    # The largest L2 norm of such a vector; longer ones are shortened
    embedding_clip: Annotated[float, Bounds(above=0)] = 1.0
    # ε, at `delta`, of all that a party's models that leave tell of one of its training records
    model_epsilon: Annotated[float, Bounds(least=0)] = 0.0
    # The largest L2 norm of one record's gradient; longer ones are shortened
    model_clip: Annotated[float, Bounds(above=0)] = 1.0
    delta: Annotated[float, Bounds(above=0, below=1)] = DELTA
    # "frozen": the networks of parties without labels stay as they were drawn. So one record tells
    # nothing through others' vectors, and each row's vector is the same in the whole run.
    # "private": they are trained within model_epsilon, which adds to that of the vectors
    bottom: Literal["trained", "frozen", "private"] = "trained"
    # Of those whose masked vectors are added up, how many may put together what they know. Each of
    # them gets the sum and knows its own noise, so it is one at least
    colluding: Annotated[int, Bounds(least=1)] = 1
    # In a simulation all noise follows from this number, so that a run repeats itself, and then
    # protects nobody. None: it is drawn afresh
    simulate_noise_seed: Annotated[int, Bounds(least=0)] | None = None

    @property
    def protects(self) -> bool:
        """Whether anything is protected."""
        return self.label_epsilon > 0 or self.embedding_epsilon > 0 or self.model_epsilon > 0

    @property
    def given(self) -> bool:
        """Whether the table differs from an empty one."""
        return self != Protect()

    @property
    def caveats(self) -> list[str]:
        """What a run with it says about itself, before and after."""
        return [] if self.simulate_noise_seed is None else [SIMULATED]

    def problems(
        self,
        sent: Sequence[Kind],
        method: str,
        untold: Collection[str] = (),
        *,
        own: bool = False,
    ) -> list[str]:
        """What is wrong with it in a run of this method, in which parties send these Kinds.

        untold  the names of those whose senders do not say by which optimisers they train
        own     whether the method has an option `epsilon` of its own
        """
        found = []
        low_high = self.label_range
        if low_high and (len(low_high) != 2 or not low_high[0] < low_high[1]):
            found.append(
                f"protect.label_range = {list(low_high)}: give the least and the largest label, "
                "such as [0, 100]"
            )
        if self.embedding_epsilon:
            found += self._unprotected(sent, method, own)
        if self.embedding_epsilon and self.delta <= 2 * TAILS:
            found.append(f"protect.delta = {self.delta:g}: at least {4 * TAILS:.1g}")
        if self.bottom == "frozen":
            found += self._not_frozen(sent, method)
        if self.model_epsilon:
            found += self._untrained(sent, method, untold)
        elif self.bottom == "private":
            found.append('protect.bottom = "private": by how much? Set model_epsilon as well')
        return found

    def _untrained(self, sent: Sequence[Kind], method: str, untold: Collection[str]) -> list[str]:
        """Why what a method trains cannot be trained within an ε."""
        where = f"protect.model_epsilon = {self.model_epsilon:g}"
        found = []
        if self.delta <= 2 * MODEL_TAILS:
            found.append(f"protect.delta = {self.delta:g}: at least {4 * MODEL_TAILS:.1g}")
        private = self.bottom == "private"
        if private and not self.embedding_epsilon:
            found.append('protect.bottom = "private" needs embedding_epsilon, or omit it')
        named = [
            k.name
            for k in sent
            if k.carries == "models" or (private and (of_rows(k) or k.carries == "sums"))
        ]
        if not named and not any(k.carries == "" and k.about != "nothing" for k in sent):
            also = ' A network behind vectors is trained within it with bottom = "private"'
            told = also if any(of_rows(kind) for kind in sent) else ""
            found.append(
                f"{where}: {method} sends no models, so there is nothing to protect.{told}"
            )
        found += [
            f"{where}: '{name}' of {method} comes of a training of which the method does not say "
            "by which optimisers and for how many epochs. Omit it, or choose fedemb, jovefl, "
            "adptvfedconv, or splitnn"
            for name in named
            if name in untold
        ]
        if not self.embedding_epsilon:  # else they are named there
            found += [
                f"{where}: '{kind.name}' of {method} does not say what it carries, so it may carry "
                'a model: declare it with carries = "features", "labels", "models" or "released"'
                for kind in sent
                if not kind.carries and kind.about != "nothing"
            ]
        return found

    def _not_frozen(self, sent: Sequence[Kind], method: str) -> list[str]:
        """Why the networks of a method cannot stay as they were drawn."""
        where = 'protect.bottom = "frozen"'
        if not self.embedding_epsilon:
            return [f"{where} protects nothing by itself: set embedding_epsilon, or omit it"]
        if any(kind.carries == "released" for kind in sent):
            return [
                f"{where}: in {method} a party's network goes on behind its vectors, and would "
                "not be trained either. Choose a method such as splitnn"
            ]
        return []

    def guaranteed(self, kind: Kind) -> tuple[float, float] | None:
        """(ε, δ) within which a Kind tells of one record in a run; None: nothing is promised."""
        if self.embedding_epsilon and (of_rows(kind) or kind.carries == "sums"):
            return self.embedding_epsilon, self.delta
        if self.model_epsilon and kind.carries == "models":
            return self.model_epsilon, self.delta
        if self.label_epsilon and kind.carries == "labels":
            return self.label_epsilon, 0.0
        return None

    def of_labels(self, method: str, unprotected: str, phases: bool) -> list[str]:
        """What is wrong with the protection of labels in a run of this method.

        unprotected  why it cannot be; empty: it can
        phases       whether it trains more than once on the same rows
        """
        where = f"protect.label_epsilon = {self.label_epsilon:g}"
        if not self.label_epsilon:
            given = {
                "label_response": self.label_response != "plain",
                "label_range": self.label_range,
            }
            return [
                f"protect.{key} has no effect without label_epsilon: set that, or omit {key}"
                for key, there in given.items()
                if there
            ]
        if unprotected:
            return [
                f"{where}: {method} {unprotected}. Omit label_epsilon, or take a method whose "
                "labels can be protected, such as splitnn or easter"
            ]
        if phases and self.label_response == "prior":
            return [
                f'{where}: label_response = "prior" asks what networks say in the middle of one '
                f"training, and {method} has several. Omit label_response"
            ]
        return []

    def of_task(self, regression: bool, classes: int) -> list[str]:
        """What is wrong with the protection of labels, now that it is known what they are."""
        if not self.label_epsilon:
            return []
        if not regression and self.label_range:
            return [
                "protect.label_range is of labels that are numbers, and these are classes: omit it"
            ]
        if regression and not self.label_range:
            return [
                f"protect.label_epsilon = {self.label_epsilon:g}: the labels are numbers, and "
                "noise needs to know between which two they lie, without looking at them: set "
                "protect.label_range, such as [0, 100]"
            ]
        if self.label_response == "prior" and (regression or classes > MOST_CLASSES):
            found = "numbers" if regression else f"{classes:,} classes"
            return [
                f'protect.label_response = "prior" is for at most {MOST_CLASSES} classes, and the '
                f"labels are {found}: omit it"
            ]
        return []

    def _unprotected(self, sent: Sequence[Kind], method: str, own: bool) -> list[str]:
        """Why row vectors of a method cannot be protected."""
        where = f"protect.embedding_epsilon = {self.embedding_epsilon:g}"
        told = [kind for kind in sent if kind.carries in ("features", "sums")]
        if not told and not any(kind.carries == "" for kind in sent):
            return [f"{where}: {method} sends no vectors of rows, so there is nothing to protect"]
        found = [
            f"{where}: '{kind.name}' of {method} {why}. Omit embedding_epsilon, or take a method "
            "whose vectors of rows can be protected, such as splitnn"
            for kind in sent
            if not (kind.carries == "models" and self.model_epsilon) and (why := _why_not(kind))
        ]
        if found and own:
            return [
                f"{where}: {method} does not send one plain vector for each row. "
                f"Omit embedding_epsilon, and set [{method}] epsilon, which is for what it sends; "
                "or take a method whose vectors of rows can be protected, such as splitnn"
            ]
        return found


def of_rows(kind: Kind) -> bool:
    """Whether it carries one vector of features for each row of the batch."""
    shape = kind.shape or ()
    return kind.carries == "features" and kind.about == "batch" and shape[:1] == ("batch",)


def _why_not(kind: Kind) -> str:
    """Why a Kind that leaves cannot be let go, or protected; empty: it can."""
    if kind.about == "nothing" and kind.carries not in ("features", "models"):
        return ""
    if not kind.carries:
        return (
            "does not say what it carries, so it may carry features: declare it with carries = "
            '"features", "labels", "models", "sums" or "released"'
        )
    if kind.carries == "models":
        return (
            "is learnt from rows and leaves as it is, which no noise on vectors covers: set "
            "model_epsilon as well"
        )
    if kind.carries == "features" and not (of_rows(kind) and kind.dtype.startswith("float")):
        return "carries features and is not one vector of numbers for each row"
    return ""


def public_scale(label_range: Sequence[float]) -> tuple[float, float]:
    """The mean and the spread of numbers of which only the range is known: as if all were equally
    likely."""
    low, high = label_range
    return (low + high) / 2, (high - low) / math.sqrt(12)
