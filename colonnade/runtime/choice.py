"""The hub's choice of the run, and of the position where all parties begin."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from colonnade.errors import FederationError
from colonnade.runtime.control import Join, Place


def choose_run(run: str, joins: Mapping[str, Join]) -> str:
    """The run's name: the hub's own, that of other parties which lose nothing by it, or a new one.
    A party with another run's folder is named in the error."""
    nothing_to_lose = not any(join.held or join.finished for join in joins.values())
    theirs = next((join.run for join in joins.values() if join.run), "")
    run = run or (theirs if nothing_to_lose else "") or secrets.token_hex(8)
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
