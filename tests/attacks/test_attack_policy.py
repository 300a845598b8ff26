"""A record's numbers do not leave in another form than the one that its policy measures.

A party allows embeddings of 16 numbers per record. A role that was written by somebody else tries
to send all 784 numbers of one record as that Kind: with the record's numbers laid over many rows,
or as text or names beside a small tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from covert import BATCH, EMBEDDING, KINDS, TREE, Covert, play
from torch import Tensor

from colonnade.role.party import Party
from colonnade.wire import Kind, Peer

WIDTH, MIN_BATCH = 16, 8
LIMITS = {"width": WIDTH, "min_batch": MIN_BATCH, "releases": 100}


def in_each_batch(kind: Kind, form: Callable[[Tensor], Any]) -> Covert:
    """A role that sends, in the frame of each batch, one record in this form."""

    def covert(me: Party, to: Peer) -> None:
        for _ in me.epochs():
            for batch in me.batches():
                to.send(kind, form(batch.x[0]))

    return covert


def beside(**more: Any) -> dict[str, Any]:
    """A tree whose tensor is as small as it may be."""
    return {"values": torch.zeros(BATCH, WIDTH - 4), **more}


def as_text(record: Tensor) -> str:
    return " ".join(f"{number:g}" for number in record.tolist())


FORMS = {
    "49 × 16": (EMBEDDING, lambda record: record.view(49, 16)),
    "784 × 1": (EMBEDDING, lambda record: record.view(784, 1)),
    "text": (TREE, lambda record: beside(note=as_text(record))),
    "bytes": (TREE, lambda record: beside(tag=record.numpy().tobytes())),
    "names": (TREE, lambda record: beside(**{f"{n}={v:g}": "" for n, v in enumerate(record)})),
    "one long name": (TREE, lambda record: beside(**{as_text(record): torch.zeros(BATCH, 1)})),
    "a tree of rows": (TREE, lambda record: {"values": record.view(49, 16)}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_record_does_not_leave_in_another_form(form: str, tmp_path: Path) -> None:
    kind, made = FORMS[form]
    left, why = play(tmp_path, in_each_batch(kind, made), **LIMITS)
    assert not left, f"{len(left)} records left as {form}"
    assert "'shop' does not send" in why and "policy" in why


@pytest.mark.parametrize("limit", ["releases", "predictions", "numbers"])
def test_a_kind_that_says_it_speaks_of_nothing_does_not_slip_past_a_limit(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records leave as a Kind of which its method says that it speaks of no record, so that what
    the policy limits per record would limit nothing."""
    nothing = Kind("embedding", ("row", "dim"), reveals="the sender's features", about="nothing")
    monkeypatch.setitem(KINDS, "embedding", nothing)
    covert = in_each_batch(nothing, lambda record: record.view(784, 1))
    left, why = play(tmp_path, covert, **{"width": WIDTH, limit: 1})
    assert not left, f"{len(left)} records left"
    assert f"`{limit}`" in why and "no record" in why


def test_a_record_does_not_leave_piece_by_piece(tmp_path: Path) -> None:
    """Four numbers of every record at each step, other ones each time: 64 at most, in all."""

    def piecemeal(me: Party, to: Peer) -> None:
        for epoch in me.epochs():
            for batch in me.batches():
                to.send(EMBEDDING, batch.x[:, 4 * epoch : 4 * epoch + 4])

    left, why = play(tmp_path, piecemeal, epochs=20, numbers=64, **LIMITS)
    assert sum(message.shape[1] for message in left) == 64 * 3  # of three batches
    assert "64 numbers about each record" in why and "30 of its records, of 30" in why
