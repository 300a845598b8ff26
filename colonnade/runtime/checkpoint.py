"""Checkpoints on disk: each party writes its own, and one counts when every party has written it.

    checkpoints/000003-train-00002-0000000/bank.safetensors + bank.json
    checkpoints/finished/shop.safetensors + shop.json        a role that has ended
    checkpoints/shelf/bank.maps.npy                          a large tensor that never changes

A resumed run starts every role from the newest place that all members have reached and hold
undamaged. So that there is one, the place before the newest common one is kept, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from colonnade.errors import RunError
from colonnade.role.party import Party
from colonnade.wire import store


class Shelf:
    """The tensors on the parties' shelves, each written once, beside all checkpoints."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "shelf"

    def write(self, party: Party) -> None:
        for name, tensor in party.shelf.items():
            place = self._folder / f"{party.name}.{name}.npy"
            if not place.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                store.write_array(tensor, place)

    def known(self, party: Party) -> dict[str, Any]:
        """The snapshot of a role that has ended: it needs only the tensors written before."""
        snapshot = party.snapshot()
        written = {place.stem for place in self._folder.glob("*.npy")}
        snapshot["shelf"] = {k: stem for k, stem in snapshot["shelf"].items() if stem in written}
        return snapshot

    def fill(self, *snapshots: dict[str, Any]) -> None:
        """Put the tensors into the snapshots that name them; others are removed."""
        named = {stem for one in snapshots for stem in one["shelf"].values()}
        for place in self._folder.glob("*.npy"):
            if place.stem not in named:
                store.remove_array(place)
        for one in snapshots:
            one["shelf"] = {
                name: store.read_array(self._folder / f"{stem}.npy")
                for name, stem in one["shelf"].items()
            }

    def damage(self, place: Path) -> str:
        """Why a saved snapshot cannot be gone on from; empty if nothing is wrong with it."""
        try:
            for stem in store.load(place)["shelf"].values():
                store.check_array(self._folder / f"{stem}.npy")
        except (RunError, KeyError, TypeError, AttributeError) as error:
            return str(error)
        return ""


class Checkpoints:
    def __init__(
        self, folder: Path, members: Sequence[str], before: Callable[[], None] | None = None
    ) -> None:
        self._folder, self._members = folder, tuple(members)
        self._before = before  # brings the ledger to the disk first
        self._finished = folder / "finished"
        self._shelf = Shelf(folder)
        self.damaged: list[str] = []  # what `latest` found, for the user

    def save(self, party: Party) -> None:
        """Write this party's part of the checkpoint at its position. What is older than the common
        place before this one is removed."""
        if self._before is not None:
            self._before()
        place = self._place(label_of(party))
        self._shelf.write(party)
        store.save(party.snapshot(), place / party.name)
        if self._complete(place):
            before = [p for p in self._places() if p.name < place.name and self._complete(p)]
            for older in self._places():
                if before and older.name < before[-1].name:
                    shutil.rmtree(older)

    def finish(self, party: Party) -> None:
        """The role has ended: this is its last word."""
        self._finished.mkdir(parents=True, exist_ok=True)
        store.save(self._shelf.known(party), self._finished / party.name)

    def latest(self, alone: str = "") -> dict[str, Any]:
        """The newest snapshots of a place that all members have reached; later ones are removed.

        alone  a phase before the first message: in it each party resumes from its own position
        """
        self._sift(alone)
        files: dict[str, Path] = {}
        for place in reversed(self._places()):
            if _phase(place) == alone:
                own = {name: place / name for name in self._members}
                files = {n: f for n, f in own.items() if f.with_suffix(".json").exists()} | files
            elif self._complete(place):
                files = {name: self._file(place, name) for name in self._members} | files
                break
            else:
                shutil.rmtree(place)
        found = {name: store.load(file) for name, file in files.items()}
        self._shelf.fill(*found.values())
        return found

    def clear(self) -> None:
        if self._folder.exists():
            shutil.rmtree(self._folder)

    def _sift(self, alone: str) -> None:
        """Remove what is damaged: a place as a whole, unless each resumes from its own."""
        for file in sorted(self._folder.glob("*/*.json")):
            place = file.parent
            if not file.exists() or not (why := self._shelf.damage(file.with_suffix(""))):
                continue
            self.damaged.append(
                f"the checkpoint {place.name}/{file.stem} is damaged and was not used: {why}"
            )
            if place == self._finished or _phase(place) == alone:
                _remove(file.with_suffix(""))
            else:
                shutil.rmtree(place)

    def _places(self) -> list[Path]:
        if not self._folder.exists():
            return []
        return sorted(p for p in self._folder.iterdir() if "-" in p.name)

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


def _phase(place: Path) -> str:
    """Of a checkpoint's folder."""
    return place.name[7:].rsplit("-", 2)[0]


class SharedStart:
    """The parties' states before their first message, kept for other runs with the same start.

    starts/<digest>/bank.safetensors + bank.json
    """

    def __init__(self, folder: Path, phase: str, members: Sequence[str]) -> None:
        self._folder, self._phase, self._members = folder, phase, tuple(members)
        # The name contains this process, because another run may be writing the same folder.
        self._draft = folder.with_name(f"{folder.name}.{os.getpid()}")

    def snapshots(self) -> dict[str, Any]:
        """What another run has left, by party; nothing if none has, or if it is damaged."""
        if not self._folder.exists():
            return {}
        try:
            return {name: store.load(self._folder / name) for name in self._members}
        except RunError:
            shutil.rmtree(self._folder, ignore_errors=True)  # it will be made again
            return {}

    def keep(self, party: Party) -> None:
        """At the end of a phase: keep what this party has reached by it."""
        if party.position[0] != self._phase:
            return
        if self._folder.exists():  # another run was faster
            shutil.rmtree(self._draft, ignore_errors=True)
            return
        self._draft.mkdir(parents=True, exist_ok=True)
        store.save(party.snapshot(), self._draft / party.name)
        if all((self._draft / f"{name}.json").exists() for name in self._members):
            try:
                self._draft.rename(self._folder)
            except OSError:  # the same, just now
                shutil.rmtree(self._draft)


def label_of(party: Party) -> str:
    """Of the checkpoint at a party's position: the same at every party."""
    phase, epoch, step = party.position
    return f"{phase}-{epoch:05d}-{step:07d}"


class OwnCheckpoints:
    """The checkpoints of one party in a process of its own.

        checkpoints/000003-train-00002-0000000.safetensors + .json
        checkpoints/finished.safetensors + .json

    It keeps every checkpoint until all parties have written two newer ones, so there is always a
    place to which all can go back, and one before, should a disk have damaged that.
    """

    def __init__(self, folder: Path, before: Callable[[], None]) -> None:
        self._folder, self._before = folder, before
        self._finished = folder / "finished"
        self._shelf = Shelf(folder)

    def save(self, party: Party) -> str:
        """Write a checkpoint at the party's position; its label is the same at every party."""
        self._before()
        label = label_of(party)
        held = self._files()
        number = int(held[-1].name.partition("-")[0]) + 1 if held else 0
        with _writing(self._folder):
            self._shelf.write(party)
        self._write(party.snapshot(), self._folder / f"{number:06d}-{label}")
        return label

    def finish(self, party: Party) -> None:
        """The role has ended: this is its last word."""
        self._before()
        self._write(self._shelf.known(party), self._finished)

    @property
    def finished(self) -> bool:
        return self._finished.with_suffix(".json").exists()

    def sift(self) -> Iterator[str]:
        """Remove what is damaged, so that the others are not told that this party holds it; says
        what it was."""
        for place in [*self._files(), *([self._finished] if self.finished else [])]:
            if why := self._shelf.damage(place):
                _remove(place)
                _remove(self._finished)  # which would stand for every place that is not there
                yield f"the checkpoint {place.name} is damaged and is not used: {why}"

    def held(self) -> list[str]:
        """The labels of the checkpoints on disk, oldest first."""
        return [file.name.partition("-")[2] for file in self._files()]

    @property
    def committed(self) -> bool:
        """Whether the first one was dropped, because everybody had a later one."""
        files = self._files()
        return len(files) > 0 and int(files[0].name.partition("-")[0]) > 0

    def go_back(self, label: str | None) -> dict[str, Any] | None:
        """The snapshot of this label, or the final one of a role that never wrote it; later ones
        are removed. None: from the beginning."""
        if label is None:
            self.clear()
            return None
        found = None
        for file in self._files():
            if found is not None:
                _remove(file)
            elif file.name.partition("-")[2] == label:
                found = file
        if found is None:
            return self.last_word()
        _remove(self._finished)
        return self._read(found)

    def newest(self) -> dict[str, Any] | None:
        """The snapshot from which this party alone would resume, even if its role had ended: its
        messages after the last checkpoint may have reached nobody."""
        if files := self._files():
            return self._read(files[-1])
        return self.last_word() if self.finished else None

    def last_word(self) -> dict[str, Any]:
        return self._read(self._finished)

    def _read(self, place: Path) -> dict[str, Any]:
        snapshot: dict[str, Any] = store.load(place)
        self._shelf.fill(snapshot)
        return snapshot

    def commit(self, label: str) -> None:
        """All parties have this one: of the earlier ones only the newest is kept."""
        files = self._files()
        labels = [file.name.partition("-")[2] for file in files]
        if label in labels:
            for file in files[: max(0, labels.index(label) - 1)]:
                _remove(file)

    def clear(self) -> None:
        if self._folder.exists():
            shutil.rmtree(self._folder)

    def _write(self, snapshot: dict[str, Any], place: Path) -> None:
        with _writing(place):
            self._folder.mkdir(parents=True, exist_ok=True)
            store.save(snapshot, place)

    def _files(self) -> list[Path]:
        if not self._folder.exists():
            return []
        complete = [file.with_suffix("") for file in self._folder.glob("*-*.json")]
        return sorted(complete)


class NoCheckpoints:
    """For work that is short enough to repeat: it always begins from the beginning."""

    finished = committed = False

    def save(self, party: Party) -> str:
        return label_of(party)

    def finish(self, party: Party) -> None: ...

    def sift(self) -> Iterator[str]:
        return iter(())

    def held(self) -> list[str]:
        return []

    def go_back(self, label: str | None) -> dict[str, Any] | None:
        return None

    def newest(self) -> dict[str, Any] | None:
        return None

    def last_word(self) -> dict[str, Any]:
        return {}

    def commit(self, label: str) -> None: ...


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"the checkpoint {place} cannot be written: {error}. Make room and start again: the "
            "one before is intact"
        ) from error


def _remove(place: Path) -> None:
    place.with_suffix(".json").unlink(missing_ok=True)  # first: without it the rest is nothing
    place.with_suffix(".safetensors").unlink(missing_ok=True)
