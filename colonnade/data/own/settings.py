"""Where a party's own rows are, and which of their columns are what."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from colonnade import toml
from colonnade.errors import ConfigError


@dataclass(frozen=True)
class OwnFile:
    """Where a party's rows are, and which of their columns are what."""

    data: str  # .csv, .tsv, .txt (also .gz) or .parquet; relative to the folder of the config
    id: str = "id"
    label: str = "label"  # may be absent, unless another name is given; "": there are no labels
    weight: str = ""  # how much each row counts in training, beside its label; "": all alike
    features: tuple[str, ...] = ()  # empty: all other columns
    leave_out: tuple[str, ...] = ()
    delimiter: str = ""  # empty: detected among , ; tab |
    missing: Literal["mean", "error"] = "mean"

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("data is empty: name a .csv or .parquet file")
        if not self.id:
            raise ValueError("id is empty: name the column that tells rows apart")
        if self.id == self.label:
            raise ValueError(f"id and label are both '{self.id}': name two columns")
        for role, name in (("id", self.id), ("label", self.label)):
            if name and self.weight == name:
                raise ValueError(f"weight and {role} are both '{name}': name two columns")
        for key, names in (("features", self.features), ("leave_out", self.leave_out)):
            roles = (("id", self.id), ("label", self.label), ("weight", self.weight))
            for role, name in roles:
                if name and name in names:
                    raise ValueError(f"{key} names '{name}', which is the {role}: remove it there")
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"{key} names '{twice[0]}' twice: name it once")
        if both := [name for name in self.features if name in self.leave_out]:
            raise ValueError(f"features and leave_out both name '{both[0]}': keep one of them")
        if self.delimiter and (len(self.delimiter) > 1 or self.delimiter in '"\r\n'):
            raise ValueError(
                f"delimiter is {self.delimiter!r}: give one character, or omit it to detect it"
            )
        if self.missing not in ("mean", "error"):
            raise ValueError(f"missing is {self.missing!r}: give 'mean' or 'error'")

    def path(self, folder: Path) -> Path:
        return folder / Path(self.data).expanduser()


def described(path: Path) -> OwnFile:
    """The settings of a file of rows, or of a .toml file that names one with the keys of
    [parties.NAME]."""
    if path.suffix != ".toml":
        return OwnFile(str(path))
    problems: list[str] = []
    file: OwnFile = toml.read(OwnFile, toml.load(path), "", problems)
    if problems:
        raise ConfigError([f"{path}: {problem}" for problem in problems])
    return replace(file, data=str(file.path(path.parent)))
