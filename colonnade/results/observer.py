"""What a progress display may listen to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colonnade.config import Config
from colonnade.role.progress import Meter
from colonnade.wire import Ledger


class Observer:
    """What a progress display may override; the default shows nothing.

    It is reachable from every party, so it is given no party: only meters and finished rows.
    """

    def began(self, config: Config, meters: Mapping[str, Meter], ledger: Ledger) -> None: ...

    def epoch(self, party: str, row: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def ended(self) -> None: ...
