"""Ctrl-C in the middle of a training."""

from __future__ import annotations

import pytest

from colonnade.role.party import Party


def interrupt_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """Ctrl-C at the given number of batches, counted over all parties."""
    original, count = Party._set_rates, 0

    def counted(party: Party, done: float) -> None:
        nonlocal count
        count += 1
        if count > steps:
            raise KeyboardInterrupt
        original(party, done)

    patch.setattr(Party, "_set_rates", counted)
