"""What all runs of a party together may spend on one record: its organisation's limit.

[privacy]             # in its policy file
labels = 8.0          # ε of what its label may lose
features = 20.0       # ε of what its features may lose
delta = 1e-5          # at this δ; omitted: 1e-5

A limit that is omitted does not limit. Nothing here needs PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from colonnade.errors import unknown
from colonnade.journal.spendings import About

__all__ = ["ABOUT", "DELTA", "About", "Limits", "read"]

ABOUT: tuple[About, ...] = ("labels", "features")
DELTA = 1e-5


class Carrier(Protocol):
    """What is asked of a Kind; see kind.py."""

    @property
    def about(self) -> str: ...

    @property
    def carries(self) -> str: ...


@dataclass(frozen=True)
class Limits:
    """ε at δ of one record, over all runs; 0: no limit."""

    labels: float = 0.0
    features: float = 0.0
    delta: float = DELTA

    @property
    def given(self) -> bool:
        """Whether anything is limited."""
        return self.labels > 0 or self.features > 0

    def of(self, about: About) -> float:
        """The limit of labels, or of features."""
        return self.labels if about == "labels" else self.features

    def uncounted(self, kind: Carrier) -> About | None:
        """Of what a Kind tells that is limited, so that it may only leave under a protection; None:
        it tells nothing of that."""
        if kind.about == "nothing" or kind.carries == "released":
            return None
        told: tuple[About, ...] = ("labels",) if kind.carries == "labels" else ("features",)
        if kind.carries in ("", "models"):  # unknown, or learnt from both
            told = ABOUT
        return next((about for about in told if self.of(about)), None)

    def table(self) -> dict[str, float]:
        """As in the file."""
        given: dict[str, float] = {about: self.of(about) for about in ABOUT if self.of(about)}
        return given | ({"delta": self.delta} if given else {})


NONE = Limits()


def read(table: Any, where: str, problems: list[str]) -> Limits:
    """The limits in [privacy]; the table's mistakes go to `problems`."""
    if not isinstance(table, Mapping):
        problems.append(f"{where} = {table!r}: must be a table, [{where}]")
        return Limits()
    known, values = (*ABOUT, "delta"), dict[str, float]()
    for key, value in table.items():
        if key not in known:
            problems.append(unknown(key, known, f"in [{where}]"))
        elif isinstance(value, bool) or not isinstance(value, int | float) or not _fits(key, value):
            range_ = "between 0 and 1" if key == "delta" else "above 0; for no limit omit it"
            problems.append(f"{where}.{key} = {value!r}: must be a number {range_}")
        else:
            values[key] = float(value)
    if "delta" in values and len(values) == 1:
        problems.append(f"{where}.delta belongs to a limit: give labels or features, or omit delta")
    return Limits(**values)


def _fits(key: str, value: float) -> bool:
    return 0 < value < (1 if key == "delta" else math.inf)
