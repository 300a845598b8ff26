"""The events of a run that a progress display may receive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from colonnade.config import Config
from colonnade.role.progress import Meter


class Traffic(Protocol):
    """What a progress display may ask about the messages: a ledger, or the sums of several."""

    bytes: int  # sent, by all


class Sums:
    """The traffic of parties that each keep a ledger of their own, as they report it."""

    def __init__(self) -> None:
        self.bytes = 0
        self._by_party: dict[str, int] = {}

    def set(self, party: str, crossed: int) -> None:
        """This party's ledger now counts these bytes, sent and received."""
        self._by_party[party] = crossed
        self.bytes = sum(self._by_party.values()) // 2  # each message is in two ledgers


class Observer:
    """What a progress display may override; the default shows nothing.

    It is reachable from every party, so it is given no party: only meters and finished rows.
    """

    def began(self, config: Config, meters: Mapping[str, Meter], ledger: Traffic) -> None: ...

    def epoch(self, party: str, row: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def ended(self) -> None: ...
