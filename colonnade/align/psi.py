"""Private set intersection: every party learns which of its rows all parties have, and no other id.

    1. everybody → everybody   how many ids, the settings; these must be equal (opening.py)
    2. two parties             the plain protocol, as published (two.py)
       three or more           experimental (many.py)
    3. everybody               sorts the common rows by the hash of the id

**What is not claimed.** Sizes are not hidden. A party may bring ids it does not have, for example
all telephone numbers, and learns which of them all others hold. `most` bounds how many at a time,
and `most_in_all` and `times` how many ever, by what each party's own journal has counted. The
minimum holds against a party that keeps to the protocol: one that lies is stopped where two.py and
many.py say so, and elsewhere the ledger and a contract must deter it.

No secret is stored. A second intersection, also after a crash, draws new ones and gives the same
rows in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from colonnade.align import lists, many, opening, points
from colonnade.align.ids import normalise
from colonnade.align.many import rows_of_many
from colonnade.align.opening import Alignment, open_with
from colonnade.align.points import by_rank, too_few, written_alike
from colonnade.align.two import rows_of_two
from colonnade.errors import MethodError
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer

OF_TWO = (opening.OPENING, lists.ANNOUNCEMENT, points.POINTS, points.PLACES)
KINDS = (*OF_TWO, many.TABLE, many.COUNT, many.COMMON)
FEW = 0.1  # of the smallest set; fewer common rows are worth a remark
EXPERIMENTAL = (
    "the common rows of three parties or more were found by an experimental protocol: its parts "
    "are published, and nobody has proved or reviewed how they are put together"
)


def kinds_of(parties: int) -> tuple[Kind, ...]:
    """What crosses between so many parties that bring rows."""
    return OF_TWO if parties == 2 else KINDS


async def common_rows(
    me: Party, peers: Sequence[Peer], ids: Iterable[object], options: Alignment
) -> Tensor:
    """The positions of this party's rows that all parties have, int64 (common,).

    peers  all others that bring rows. Row i of the answer is the same id at every party.
    """
    texts = normalise(ids, me.name, casefold=options.casefold, most=options.most)
    if not peers:
        raise MethodError("rows can be aligned between two parties or more; there is one")
    opened = await open_with(me, peers, len(texts), options)  # 1.
    sizes, minimum = opened.sizes, options.minimum
    if min(sizes.values()) < minimum:
        raise too_few(me.name, sorted(sizes), minimum, texts)
    if len(peers) == 1:  # 2.
        rows = await rows_of_two(me, peers[0], texts, sizes[peers[0].name], minimum)
    else:
        me.remark(EXPERIMENTAL)
        rows = await rows_of_many(me, peers, texts, sizes, opened.shared, minimum)
    if len(rows) < FEW * min(sizes.values()):
        me.remark(
            f"'{me.name}': {len(rows):,} of {len(texts):,} rows are common to all. "
            f"{written_alike(texts)}"
        )
    return by_rank(rows.tolist(), texts)  # 3.
