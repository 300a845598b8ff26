"""One party's own rows, prepared, and saved for another process of this machine."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.assembly.labels import heard
from colonnade.config import Config
from colonnade.data import OWN_PARTITION, Column, Preparation, Split
from colonnade.errors import RunError
from colonnade.partition import View
from colonnade.task import Task
from colonnade.wire import store

NO_ROWS = "no rows of its own"


@dataclass(frozen=True)
class OwnRows:
    """The rows of a party's own file, divided and prepared, with facts about them."""

    splits: Mapping[str, Split]
    preparation: Preparation | None
    task: Task | None  # at the label holder, or agreed on by all
    ids: bytes  # of all rows, in their order
    count: int
    source: str
    view: View | None = None  # of images that are parts of larger ones
    notes: tuple[str, ...] = ()  # findings in the file, for `colonnade doctor`; not saved
    warnings: tuple[str, ...] = ()  # what the user should know about it; not saved
    sha256: str = ""  # of the file

    def digest(self, key: bytes) -> str:
        """The digest that two parties compare; without the key it reveals nothing about the ids."""
        return hmac.new(key, self.ids, hashlib.sha256).hexdigest()[:32]

    @property
    def names(self) -> list[str]:
        """The ids, one by one; none of rows that have only numbers, in a simulation."""
        names, text, at = list[str](), self.ids.decode(), 0
        if ":" not in text:
            return names
        while at < len(text):
            colon = text.index(":", at)
            at = colon + 1 + int(text[at:colon])
            names.append(text[colon + 1 : at])
        return names

    @property
    def width(self) -> int:
        """Numbers per row."""
        split = next(iter(self.splits.values()), None)
        return 0 if split is None else split.x[:1].numel()

    def facts(self, task: Task | None) -> dict[str, Any]:
        """The `data` part of result.json."""
        return {
            "name": self.source,
            "train_rows": len(self.splits["train"]) if "train" in self.splits else 0,
            "test_rows": len(self.splits["test"]) if "test" in self.splits else 0,
            "classes": [] if task is None else list(task.classes),
            **({} if task is None else {"task": task.told()}),
            "partition": OWN_PARTITION,
        }


def no_rows(task: Task | None = None) -> OwnRows:
    """The rows of a helper of the protocol, such as a server: none."""
    return OwnRows({}, None, task, b"", 0, NO_ROWS)


def ids_of(ids: list[str]) -> bytes:
    """All ids in their order, as bytes that no other list has."""
    return "".join(f"{len(name)}:{name}" for name in ids).encode()


def save_rows(rows: OwnRows, path: Path) -> None:
    """Save prepared rows for another process of this machine."""
    preparation = rows.preparation
    store.save(
        {
            "splits": {
                key: {"x": split.x.cpu(), "ids": split.ids.cpu()}
                | ({} if split.y is None else {"y": split.y.cpu()})
                | ({} if split.weights is None else {"weights": split.weights.cpu()})
                for key, split in rows.splits.items()
            },
            "preparation": None if preparation is None else preparation.tensors(),
            "columns": []
            if preparation is None
            else [[c.name, list(c.categories), c.missing] for c in preparation.columns],
            "task": {} if rows.task is None else rows.task.told(),
            "ids": rows.ids.decode(),
            "count": rows.count,
            "source": rows.source,
            "sha256": rows.sha256,
            "view": [] if rows.view is None else rows.view.numbers(),
        },
        path,
    )


def load_rows(path: Path, settings: Config) -> OwnRows:
    """Load rows that `save_rows` wrote."""
    saved = store.load(path)
    try:
        columns = tuple(Column(name, tuple(known), may) for name, known, may in saved["columns"])
        preparation = None
        if saved["preparation"] is not None:
            preparation = Preparation.from_tensors(saved["preparation"], columns)
        splits = {
            key: Split(split["x"], split.get("y"), split["ids"], split.get("weights"))
            for key, split in saved["splits"].items()
        }
        return OwnRows(
            splits,
            preparation,
            heard(settings, saved["task"]) if saved["task"] else None,
            saved["ids"].encode(),
            saved["count"],
            saved["source"],
            View.of(saved["view"]) if saved["view"] else None,
            sha256=saved["sha256"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: not rows that Colonnade wrote ({error})") from error
