"""Reads the result in a run's folder; `writer` writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.errors import RunError

SEEDS = "seeds.json"  # in a folder that holds several runs, and is none

# Of a party's history: what is not a number that the method logged.
NOT_LOGGED = ("phase", "epoch", "of", "seconds", "others")


@dataclass(frozen=True)
class Result:
    """What a run leaves: result.json as `content`, and the folder it lies in."""

    content: dict[str, Any]
    path: Path

    def __repr__(self) -> str:
        """One line: what came out, and where it lies."""
        told = self.content
        value = "nothing measured" if self.value is None else f"test {self.metric} {self.value:.4g}"
        epochs = len(told.get("timing", {}).get("seconds_per_epoch", ()))
        return (
            f"<Result {told['name']}: {told['method']}, {told['status']}, {value}, "
            f"{epochs} epoch{'' if epochs == 1 else 's'}, in {self.path}>"
        )

    @property
    def accuracy(self) -> float | None:
        """Test accuracy, a fraction."""
        value: float | None = self.content["metrics"].get("test", {}).get("accuracy")
        return value

    @property
    def metric(self) -> str:
        """The measure that decides, such as "auc"."""
        name: str = self.content["metrics"].get("test", {}).get("metric", "accuracy")
        return name

    @property
    def value(self) -> float | None:
        """That measure on the test rows; the mean, where several parties predict."""
        test = self.content["metrics"].get("test", {})
        value: float | None = test.get("value", test.get("accuracy"))
        return value

    @property
    def measures(self) -> dict[str, float | None]:
        """Every measure on the test rows, by name; the mean, where several parties predict."""
        found = self.content["metrics"].get("test", {}).get("measures", {})
        names = dict.fromkeys(name for by_name in found.values() for name in by_name)
        return {name: headline(found, name) for name in names}

    @property
    def metrics(self) -> dict[str, Any]:
        return dict(self.content["metrics"])

    @property
    def history(self) -> list[dict[str, Any]]:
        return list(self.content["history"])

    @property
    def wire(self) -> dict[str, Any]:
        return dict(self.content["wire"])

    @property
    def weights_sha256(self) -> dict[str, str]:
        return dict(self.content["weights_sha256"])


def headline(measures: Mapping[str, Mapping[str, Any]], metric: str) -> float | None:
    """The mean of a measure over the parties that predict; None if any of them has none."""
    values = [by_name.get(metric, {}).get("value") for by_name in measures.values()]
    return sum(values) / len(values) if values and None not in values else None


def read(folder: Path) -> Result:
    """A run folder, read and never written: the one way in for `report`, `compare` and `ledger`.

    Folders of older versions are read too. Their result.json has the keys of today's; settings
    that no longer exist stand in its `config`, as they were, and are shown and never used.
    """
    return Result(read_json(folder / "result.json"), folder)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a run folder."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        if path.name != SEEDS and (path.parent / SEEDS).is_file():
            raise RunError(_several(path.parent)) from None
        raise RunError(f"{path.parent} is not a run: {path.name}: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: it holds no table")
    return content


def _several(folder: Path) -> str:
    """What to say to somebody who takes a folder of several seeds for a run."""
    runs = sorted(folder.glob("seed-*"))
    hint = f", such as {runs[0]}" if runs else ""
    return f"{folder} holds runs of several seeds: name one of them{hint}"
