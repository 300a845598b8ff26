"""Rows that clients have parts of, scored by networks at a server: evaluation and prediction.

every client                                  the server
1. how many rows there will be           →    2. refuse unless all say the same
3. embeddings of its part, by batches    →    4. what each of its networks makes of them
5. the scores of all rows                ←
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.errors import MethodError, Untrusted
from colonnade.methods.parts.scoring import logits_of
from colonnade.models.joined import Joined
from colonnade.privacy.release import Release
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer

ROWS = Kind(
    "row_count", None, reveals="how many rows will be evaluated", dtype="any", about="nothing"
)
EMBEDDING = Kind(
    "embedding", ("batch", "width"), reveals="evaluated rows, through f_m", carries="features"
)
SCORES = Kind("scores", None, reveals="what u makes of the evaluated rows")
KINDS = (ROWS, EMBEDDING, SCORES)
MEASURES = {  # what reports say of the scores
    "alone": "by the party's own network, before anything was shared",
    "returned": "by the party's own network with what came back from the server",
    "late_fusion": "by the sum of all outputs, nothing tuned",
    "control": "by a joined network that was tuned from new random weights",
}


def score_alone(me: Party, private: nn.Module, public: nn.Module, measure: str) -> None:
    """What a client's own network makes of the rows that are to be evaluated now."""
    for split in me.evaluations:
        me.score(split, logits_of(me, split, private, public), measure=measure)


async def score_jointly(me: Party, server: Peer, private: nn.Module, how: Release) -> None:
    """What each of the server's networks makes of them; its name is the measure."""
    for split in me.evaluations:
        for measure, logits in (await scored(me, server, private, split, how)).items():
            me.score(split, logits, measure=measure)


async def scored(
    me: Party, server: Peer, private: nn.Module, split: str, how: Release
) -> dict[str, Tensor]:
    """The client's side: scores of all rows of a split, by the name of the server's network."""
    found: dict[str, list[Tensor]] = {}
    private = how.evaluating(me, private, split)
    with me.evaluating():
        server.send(ROWS, {"rows": len(me.splits[split])})
        for batch in me.rows(split):
            server.send(EMBEDDING, private(batch.x))
            answer = _scores(me, server.name, await server.recv(SCORES), len(batch))
            if found and found.keys() != answer.keys():
                raise Untrusted(
                    f"'{server.name}' sent '{SCORES.name}' of other networks than before"
                )
            for name, scores in answer.items():
                found.setdefault(name, []).append(scores)
    return {name: torch.cat(parts) for name, parts in found.items()}


def _scores(me: Party, server: str, said: object, rows: int) -> dict[str, Tensor]:
    """The scores of a batch, by network; refused if they are those of other rows or classes."""
    told: dict[str, Any] = dict(said) if isinstance(said, Mapping) else {}
    right = "per_party" in told and told.keys() <= {"per_party", *MEASURES}
    for scores in told.values() if right else ():
        due = (rows, len(me.task.classes))
        right = right and isinstance(scores, Tensor) and tuple(scores.shape) == due
    if not right:
        raise Untrusted(
            f"'{server}' sent '{SCORES.name}' that are not those of {rows} rows and "
            f"{len(me.task.classes)} classes by its networks"
        )
    return told


def alike(parts: Mapping[str, Tensor], left: int) -> list[Tensor]:
    """Refuse embeddings of other rows than are due: a server has none to compare with."""
    rows = {name: len(part) for name, part in parts.items()}
    if len(set(rows.values())) > 1 or not 0 < max(rows.values()) <= left:
        listed = ", ".join(f"'{name}' {count}" for name, count in rows.items())
        raise Untrusted(
            f"the '{EMBEDDING.name}' of the same rows have different numbers of them, or more than "
            f"the {left} that are left: {listed}"
        )
    return list(parts.values())


def _count(client: str, said: object) -> int:
    rows = said.get("rows") if isinstance(said, Mapping) else None
    if type(rows) is not int or rows < 0:
        raise Untrusted(f"'{client}' sent '{ROWS.name}' that is no number of rows")
    return rows


async def score_for(me: Party, clients: Sequence[Peer], networks: Mapping[str, Joined]) -> None:
    """The server's side. A network takes embeddings as (batch, clients, width)."""
    with me.evaluating():
        counts = {peer.name: _count(peer.name, await peer.recv(ROWS)) for peer in clients}
        width = next(iter(networks.values())).widths[0]
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
            raise MethodError(
                f"rows that are evaluated together must be the same at all clients: {listed}. Give "
                "each its columns of the same rows; without test rows train with evaluate_every = 0"
            )
        left = next(iter(counts.values()))
        while left > 0:
            parts: dict[str, Tensor] = {p.name: await p.recv(EMBEDDING) for p in clients}
            for name, part in parts.items():
                if part.shape[1] != width:
                    said = f"'{name}' sent '{EMBEDDING.name}' of width {part.shape[1]}"
                    raise Untrusted(f"{said}; its public part takes {width}")
            batch = torch.stack(alike(parts, left), 1)
            scores = {name: network(batch) for name, network in networks.items()}
            for peer in clients:
                peer.send(SCORES, scores)
            left -= len(batch)
