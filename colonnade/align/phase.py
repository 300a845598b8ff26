"""Alignment as the first phase of a run: whatever the method, its role begins on common rows.

    every party with rows    1. the intersection (psi.py)
                             2. keep the common rows, in the common order
                             3. the method's own role

The positions are kept in checkpoints, so a resumed run does not align again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from colonnade.align.ids import normalise
from colonnade.align.opening import Alignment
from colonnade.align.points import by_rank, written_alike
from colonnade.align.psi import common_rows
from colonnade.data import check_labels, check_weights
from colonnade.errors import DataError, MethodError
from colonnade.role.batches import check_spread
from colonnade.role.party import Party
from colonnade.wire import Peer

PHASE, COMMON = "align", "common rows"


async def aligned(
    role: Callable[[], Coroutine[Any, Any, Any]],
    me: Party,
    peers: Sequence[Peer],
    options: Alignment,
    truth: Tensor | None = None,
    known: Tensor | None = None,
) -> Any:
    """The role, begun on common rows.

    peers  all others that bring rows
    truth  in a simulation: what the intersection must be
    known  what an earlier one has found, which all parties reuse: none is made
    """
    if known is not None:
        me.state[COMMON] = known
    for _ in me.epochs(PHASE, 1) if known is None else ():
        me.progress.phase = "setup"  # where the ledger books it
        if me.names:
            found = await common_rows(me, peers, me.names, options)
            if truth is not None and not torch.equal(found, truth):
                raise MethodError(
                    f"'{me.name}' found different rows from those in common: report this bug"
                )
            me.state[COMMON] = found
    if me.names:
        keep(me, me.state[COMMON])
    return await role()


def keep(me: Party, rows: Tensor) -> None:
    """Reduce the party to these rows."""
    if not len(rows):
        raise DataError(f"'{me.name}': no row is common to all. {written_alike(me.names)}")
    before = {name: len(split) for name, split in me.splits.items()}
    me.take(rows)
    for name, split in me.splits.items():
        if before[name] and not len(split):
            raise DataError(
                f"none of the {len(rows)} common rows is for '{name}': bring more rows, or change "
                "[data] test and validation, or the seed"
            )
    check_spread(me.name, me.splits, me.schedule, me.fewest)
    train = me.splits.get("train")
    # Others choose which rows are common: where labels are protected, a refusal would tell of them.
    hidden = me.protection is not None and me.protection.hides_labels
    if train is not None and train.y is not None:
        try:
            if not hidden:
                check_labels(train.y, me.task.classes)
            check_weights(train.weights)
        except DataError as error:
            raise DataError(f"'{me.name}', of the {len(rows)} common rows: {error}") from error


def fingerprint(ids: Sequence[str], party: str, options: Alignment) -> str:
    """A digest of ids in their order: equal at parties with the same ids in the same order.

    It can be computed only from all ids. Whoever has the digest alone can test a guess of all ids.
    """
    texts = normalise(ids, party, casefold=options.casefold, most=options.most)
    whole = "".join(f"{len(text)}:{text}" for text in texts)
    digest = hashlib.sha256(b"colonnade common rows" + whole.encode()).hexdigest()
    return f"{digest[:8]} {digest[8:16]}"


def better_spelt(names: Mapping[str, Sequence[str]]) -> list[str]:
    """How the same ids would match, in a simulation, which has all of them."""
    forms: dict[str, Callable[[str], str]] = {
        "without '.0' at the end": lambda text: re.sub(r"\.0+$", "", text),
        "without leading zeros": lambda text: text.lstrip("0"),
        "whatever the case of letters ([align] casefold = true)": str.casefold,
        "by their digits alone": lambda text: "".join(c for c in text if c.isdigit()),
    }
    found = []
    for said, form in forms.items():
        sets = [{form(one.strip()) for one in own} - {""} for own in names.values()]
        if count := len(set.intersection(*sets)):
            found.append((count, f"{count:,} ids would be common {said}"))
    return [said for count, said in sorted(found, key=lambda one: -one[0])]


def common_in_clear(names: Mapping[str, Sequence[str]], options: Alignment) -> dict[str, Tensor]:
    """What the intersection must be, by party: for simulations, where one process has all ids."""
    ids = {
        party: normalise(own, party, casefold=options.casefold, most=options.most)
        for party, own in names.items()
    }
    if not ids:
        return {}
    common = set.intersection(*(set(own) for own in ids.values()))
    return {
        party: by_rank([row for row, text in enumerate(own) if text in common], own)
        for party, own in ids.items()
    }
