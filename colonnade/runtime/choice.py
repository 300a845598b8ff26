"""The hub's choice of the run, and of the position where all parties begin."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from colonnade.errors import FederationError
from colonnade.runtime.control import Join, Place

# A hub notes an attempt before anybody hears of it, so others are ahead only of a restored folder.
ATTEMPTS_AHEAD = 1000
MOST_ATTEMPTS = 1 << 20  # that any run is believed to have had
MOST_JOINS = 10_000  # of one party at one process of the hub: each may be another attempt


def implausible(join: Join, run: str, attempt: int, life: str, times: int, started: bool) -> str:
    """Why no honest process can have said this to a hub that has come to this attempt of this run,
    and sees this process at the other end; "" if one can.

    times    that this party has joined
    started  this process of the hub has told it an attempt
    """
    if life and join.life != life:
        return "it speaks for another process than the one that is connected"
    if times > MOST_JOINS:
        return f"it has joined {times} times"
    most = attempt + (0 if started else ATTEMPTS_AHEAD) if run else MOST_ATTEMPTS
    if join.attempt > most:
        return f"it claims attempt {join.attempt}, and no run can have come beyond {most}"
    return ""


def choose_run(run: str, joins: Mapping[str, Join], me: str) -> str:
    """The run's name: the hub's own; that which all others bring, if they lose nothing by it; or a
    new one. A party with another run's folder is named in the error."""
    nothing_to_lose = not any(join.held or join.finished for join in joins.values())
    theirs = {join.run for name, join in joins.items() if name != me}
    common = theirs.pop() if len(theirs) == 1 and nothing_to_lose else ""
    run = run or common or secrets.token_hex(8)
    strangers = [
        f"'{name}' brings a folder of run {join.run}, the others are of {run}: give it another "
        "--out, or the folder of this run"
        for name, join in joins.items()
        if join.run not in ("", run)
    ]
    if strangers:
        raise FederationError(strangers)
    return run


def choose_label(joins: Mapping[str, Join]) -> str | None:
    """The newest checkpoint that every party holds or has passed with its end; None: none."""
    order: tuple[str, ...] = next((j.held for j in joins.values() if not j.finished), ())
    order = order or max((join.held for join in joins.values()), key=len)
    common = [
        label
        for label in order
        if all(label in join.held or join.finished for join in joins.values())
    ]
    return common[-1] if common else None


def first_new_step(skip: Place | None, joins: Iterable[Join]) -> Place:
    """The first step that no party has begun with the previous members."""
    fresh = [place for place in (skip, *(join.fresh for join in joins)) if place]
    phases = {phase for phase, _, _ in fresh}
    if len(phases) > 1:
        raise FederationError(
            [f"the parties are in different phases ({', '.join(sorted(phases))}): resume later"]
        )
    return max(fresh, default=("train", 0, 0))
