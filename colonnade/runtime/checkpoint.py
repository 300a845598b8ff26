"""Checkpoints on disk: each party writes its own, and one counts when every party has written it.

    checkpoints/000003-train-00002-0000000/bank.safetensors + bank.json
    checkpoints/finished/shop.safetensors + shop.json        a role that has ended

A resumed run starts every role from the newest place that all members have reached.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from colonnade import state
from colonnade.party import Party


class Checkpoints:
    def __init__(
        self, folder: Path, members: Sequence[str], before: Callable[[], None] | None = None
    ) -> None:
        self._folder, self._members = folder, tuple(members)
        self._before = before  # brings the ledger to the disk first
        self._finished = folder / "finished"

    def save(self, party: Party) -> None:
        """Write this party's part of the checkpoint at its position; drop what it supersedes."""
        if self._before is not None:
            self._before()
        phase, epoch, step = party.position
        place = self._place(f"{phase}-{epoch:05d}-{step:07d}")
        state.save(party.snapshot(), place / party.name)
        if self._complete(place):
            for older in self._places():
                if older.name < place.name:
                    shutil.rmtree(older)

    def finish(self, party: Party) -> None:
        """The role has ended: this is its last word."""
        self._finished.mkdir(parents=True, exist_ok=True)
        state.save(party.snapshot(), self._finished / party.name)

    def latest(self) -> dict[str, Any] | None:
        """The newest snapshot of every member, or None; what lies beyond it is removed."""
        for place in reversed(self._places()):
            if self._complete(place):
                return {name: state.load(self._file(place, name)) for name in self._members}
            shutil.rmtree(place)
        return None

    def clear(self) -> None:
        if self._folder.exists():
            shutil.rmtree(self._folder)

    def _places(self) -> list[Path]:
        if not self._folder.exists():
            return []
        return sorted(p for p in self._folder.iterdir() if p.is_dir() and p != self._finished)

    def _place(self, position: str) -> Path:
        places = self._places()
        for place in places:
            if place.name.partition("-")[2] == position:
                return place
        number = int(places[-1].name.partition("-")[0]) + 1 if places else 0
        place = self._folder / f"{number:06d}-{position}"
        place.mkdir(parents=True)
        return place

    def _file(self, place: Path, name: str) -> Path:
        return place / name if (place / f"{name}.json").exists() else self._finished / name

    def _complete(self, place: Path) -> bool:
        return all(self._file(place, name).with_suffix(".json").exists() for name in self._members)
