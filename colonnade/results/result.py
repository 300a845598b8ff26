"""Reads the result in a run's folder; `writer` writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.errors import RunError

# Of a party's history: what is not a number that the method logged.
NOT_LOGGED = ("phase", "epoch", "of", "seconds", "others")


@dataclass(frozen=True)
class Result:
    """What a run leaves: result.json as `content`, and the folder it lies in."""

    content: dict[str, Any]
    path: Path

    @property
    def accuracy(self) -> float | None:
        """Test accuracy, a fraction."""
        value: float | None = self.content["metrics"].get("test", {}).get("accuracy")
        return value

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
        raise RunError(f"{path.parent} is not a run: {path.name}: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: it holds no table")
    return content
