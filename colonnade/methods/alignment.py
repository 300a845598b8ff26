"""Alignment alone: the rows that all parties have are found, and then there is nothing to do.

`colonnade align` runs this, whatever method its file names. It is in no list of methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from colonnade.errors import MethodError
from colonnade.role.method import Learning, Method, Role, RowRules
from colonnade.role.party import Party


@dataclass(frozen=True)
class Nothing:
    """There is nothing to choose; [align] says how rows are aligned."""


async def aligned(me: Party, cfg: Nothing) -> None:
    """Nothing is left to do: `align.phase` has run before this."""


async def aligned_predict(me: Party, cfg: Nothing, split: str) -> None:
    """Nothing was trained."""


def everyone(parties: Sequence[str], holder: str, options: Nothing) -> dict[str, str]:
    if len(parties) < 2:
        raise MethodError(f"'{holder}' is the only party: rows are aligned between two or more")
    return dict.fromkeys(parties, "aligned")


METHOD = Method(
    name="alignment",
    summary="the common rows alone",
    options=Nothing,
    roles={"aligned": Role(aligned, aligned_predict, features=False)},
    cast=everyone,
    rows=RowRules(ids_only=True),
    learning=Learning(unprotected=lambda options: "uses no labels"),
)
