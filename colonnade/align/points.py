"""What intersections of two parties and of more have in common: sets of points, and their order."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.align.ids import doubts
from colonnade.align.lists import Lists
from colonnade.errors import DataError, Untrusted
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer

Indices = NDArray[np.int64]
Bytes = NDArray[np.uint8]

POINTS = Kind(
    "psi_points",
    ("points", "bytes"),
    reveals="how many there are: somebody's ids under a secret, shuffled",
    dtype="uint8",
    randomised=True,
    host=True,
    about="nothing",
    varies=True,  # lists.py knows how long each is
)
PLACES = Kind(
    "psi_places",
    ("rows",),
    reveals="which points of a shuffled set are common",
    dtype="int32",
    randomised=True,
    host=True,
    about="nothing",
    varies=True,  # lists.py knows how long each is
)


def shown(me: Party, total: int) -> Callable[[int], None]:
    """What tells a party's meter that it has multiplied so many points more, of so many."""
    meter, done = me.progress.meter, 0

    def tell(points: int) -> None:
        nonlocal done
        done += points
        meter.points, meter.share = total, min(1.0, done / max(1, total))

    return tell


def shuffle(count: int) -> Indices:
    """A secret order: new[i] = old[order[i]]."""
    drawn = np.frombuffer(bytearray(secrets.token_bytes(8 * count)), np.uint64)
    return np.argsort(drawn, kind="stable").astype(np.int64)


def places_of(points: Bytes, me: str, sender: str) -> dict[bytes, int]:
    """Where each point stands; a set with equal points in it is refused.

    Whoever asks about one person once and about another one twice would recognise both in what is
    returned to it, however that is shuffled.
    """
    found = {row.tobytes(): number for number, row in enumerate(points)}
    if len(found) < len(points):
        raise Untrusted(f"'{sender}' sent '{me}' a set with equal points in it")
    return found


async def exchange_places(
    lists: Lists, after: Peer, places: Indices, before: Peer, count: int, size: int
) -> Indices:
    """Send the places of common points in one set, and receive those in another one.

    count, size  as many as were counted, of so many
    """
    mine = np.sort(places).astype(np.int32)
    found = await lists.exchange(PLACES, after, mine, before, (count,))
    told = found.astype(np.int64)
    if count and (told.min() < 0 or told.max() >= size or len(np.unique(told)) < count):
        raise Untrusted(
            f"'{before.name}' sent '{lists.me.name}' places that are not {count} different ones of "
            f"{size}"
        )
    return told


def by_rank(rows: Iterable[int], texts: Sequence[str]) -> Tensor:
    """Rows by the hash of their normalised ids: the same order at all parties, in every run."""
    return torch.tensor(sorted(rows, key=lambda row: rank(texts[row])), dtype=torch.int64)


def rank(text: str) -> bytes:
    """The hash by which rows are sorted; the order reveals nothing about the ids' meaning."""
    return hashlib.sha256(b"colonnade psi 1 order" + text.encode()).digest()


def too_few(me: str, names: Sequence[str], minimum: int, texts: Sequence[str]) -> DataError:
    """texts: this party's own ids"""
    return DataError(
        f"'{me}': fewer than {minimum} rows are common to {', '.join(names)}, so nobody learns "
        f"which. {written_alike(texts)} If they are, lower 'minimum' at all parties"
    )


def written_alike(texts: Sequence[str]) -> str:
    """What to look for where few rows or none are common, by this party's own ids."""
    found = "".join(f" Here {said}." for said in doubts(texts))
    return (
        "Are the ids the same ones, and written alike at all parties? Compare a few that both "
        f"know: leading zeros, dashes, capital letters ([align] casefold), '.0' at the end.{found}"
    )
