"""A learning rate that falls when the signal stops improving: linear warm-up, then plateaus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

THRESHOLD = 1e-4  # what counts as better, relative to the best so far


@dataclass(frozen=True)
class Plateau:
    """The rule; what it has seen is a dict of the caller's, which a checkpoint can hold."""

    warmup: float  # epochs: the rate is e/warmup of its full height in epoch e = 1, 2, …
    factor: float  # of one reduction
    patience: float  # epochs without a better signal that are borne
    reductions: int  # the last of them ends the training
    rising: bool  # whether a better signal is a higher one

    def step(self, seen: dict[str, Any], signal: float | None, epochs: float = 1.0) -> float | None:
        """What the full rate is multiplied by in the next `epochs`; None: the training is over.

        signal  how good the networks are now; None: nothing was trained yet
        """
        warm = seen.get("epochs", 0.0) >= self.warmup
        best = seen.get("best")
        if signal is not None:
            if best is None or self._better(signal, best):
                seen |= {"best": signal, "waited": 0.0}
            elif warm:
                seen["waited"] = seen.get("waited", 0.0) + seen["since"]
        if seen.get("waited", 0.0) > self.patience:
            seen |= {"waited": 0.0, "reduced": seen.get("reduced", 0) + 1}
        if seen.get("reduced", 0) >= self.reductions:
            return None
        seen |= {"epochs": seen.get("epochs", 0.0) + epochs, "since": epochs}
        if seen["epochs"] <= self.warmup:
            return float(seen["epochs"] / self.warmup)
        return float(self.factor ** seen.get("reduced", 0))

    def _better(self, signal: float, best: float) -> bool:
        return signal > best * (1 + THRESHOLD) if self.rising else signal < best * (1 - THRESHOLD)
