"""What a progress display may listen to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from colonnade.config import Config
from colonnade.role.party import Meter


class Traffic(Protocol):
    """How much has crossed the wire so far: a ledger, or what several of them tell."""

    @property
    def bytes(self) -> int: ...


class Tally:
    """The traffic of several processes, as each of them reports it."""

    def __init__(self) -> None:
        self._by_party: dict[str, int] = {}

    def set(self, party: str, crossed: int) -> None:
        self._by_party[party] = crossed

    @property
    def bytes(self) -> int:
        return sum(self._by_party.values()) // 2  # each message is in two ledgers


class Observer:
    """What a progress display may override; the default shows nothing.

    It is reachable from every party, so it is given no party: only meters and finished rows.
    """

    def began(self, config: Config, meters: Mapping[str, Meter], traffic: Traffic) -> None: ...

    def epoch(self, party: str, row: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def ended(self) -> None: ...
