"""The doctor's finding about one thing, and the case that it examines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from colonnade.assembly import OwnRows
from colonnade.config.federation import Federation, Member
from colonnade.errors import ColonnadeError
from colonnade.net.keys import Keys


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    about: str
    verdict: Literal["ok", "note", "warning", "problem"]  # note: worth knowing
    found: str
    move: str = ""  # what to do next, where not all is well


@dataclass(frozen=True)
class Mine:
    """What one party would bring to the federation."""

    name: str
    keys: Path
    rows: Callable[[Federation], OwnRows] | None  # None: the file was not named
    policy: Path | None
    out: Path | None  # None: runs/<federation>-<party>
    tls: Keys | None = None  # of a startup kit; None: its certificate lies with its keys
    server: str = ""  # HOST:PORT of an engine that starts it; empty: nobody does


@dataclass(frozen=True)
class Case:
    """One party, and what it brings to which federation."""

    federation: Federation
    me: Member
    mine: Mine

    @property
    def out(self) -> Path:
        """The folder of its run."""
        return self.mine.out or Path("runs") / f"{self.federation.name}-{self.me.name}"


def no_problem(checks: list[Check]) -> bool:
    return all(check.verdict != "problem" for check in checks)


def problems(error: ColonnadeError) -> list[str]:
    """All that is wrong, of an error that lists several things."""
    return list(getattr(error, "problems", [str(error)]))
