"""Rows that an earlier `colonnade align` has found, for a run of these parties on these files.

All parties must reuse theirs: a digest of the common ids, in their order, is compared before
anything else is said. Only members know its key, and only who has all the ids can check a guess.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.align import normalise
from colonnade.assembly import COMMON_FILE, OwnRows, ids_of
from colonnade.config.federation import Federation
from colonnade.errors import RunError
from colonnade.results.result import read_json

AGAIN = "Omit --aligned, at every party, and they are found again"


@dataclass(frozen=True)
class Reused:
    """The common rows, by their numbers in the party's file, and the digest that all must have."""

    rows: Tensor
    digest: str


def found_in(folder: Path, federation: Federation, name: str, own: OwnRows) -> Reused:
    """What an alignment in this folder has found, if it was one of these parties and this file."""
    settings = federation.run
    if settings.align is None or not all(federation.role(n).rows for n in federation.names):
        raise RunError(
            "--aligned is for runs that begin with [run.align], in which every party brings rows: "
            "omit it"
        )
    result = read_json(folder / "result.json")
    for what, here, there in (
        ("status", "finished", result.get("status")),
        ("parties", sorted(federation.names), sorted(result.get("parties", ()))),
        ("[run.align]", asdict(settings.align), result.get("config", {}).get("align")),
        ("the file of this party", own.sha256, _sha256(result, name)),
    ):
        if here != there:
            raise RunError(
                f"the alignment in {folder} does not fit this run: {what} is not the same. {AGAIN}"
            )
    numbers = _numbers(folder / COMMON_FILE, own.names)
    common = [own.names[row] for row in numbers]
    align = settings.align
    texts = normalise(common, name, casefold=align.casefold, most=align.most)
    digest = hmac.new(federation.row_key(), ids_of(texts), hashlib.sha256).hexdigest()[:32]
    return Reused(torch.tensor(numbers, dtype=torch.int64), digest)


def _sha256(result: dict[str, Any], name: str) -> str:
    return str(result.get("data", {}).get("files_sha256", {}).get(name, ""))


def _numbers(path: Path, names: list[str]) -> list[int]:
    """The numbers in common.csv; each must be that of its id."""
    if not path.exists():
        raise RunError(
            f"{path} is not there: --aligned names a folder that `colonnade align` wrote. {AGAIN}"
        )
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file))[1:]
        numbers = [int(row) for _, row in lines]
        fits = all(
            0 <= row < len(names) and names[row] == one
            for (one, _), row in zip(lines, numbers, strict=True)
        )
    except (OSError, ValueError):
        fits = False
    if not fits:
        raise RunError(f"{path} is not what `colonnade align` wrote. {AGAIN}")
    return numbers
