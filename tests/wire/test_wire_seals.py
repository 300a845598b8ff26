"""What is signed of a message is the same, whether its row is read or was written just now."""

from __future__ import annotations

from pathlib import Path

import torch

from colonnade.wire import Kind, Ledger, Message, Value
from colonnade.wire.ledger import describe
from colonnade.wire.seals import Traffic

TENSOR = Kind("embedding", ("batch", "dim"), reveals="features", dtype="any")
TREE = Kind("größe", None, reveals="weights", dtype="any")  # JSON escapes its name


def test_what_was_written_counts_like_what_is_read(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "ledger.jsonl")
    written = book.follow()
    values: list[tuple[Kind, Value]] = [
        (TENSOR, torch.zeros(2, 3)),
        (TENSOR, torch.zeros(2, 3, dtype=torch.bfloat16)),
        (TREE, {"b": {'"q\n': torch.zeros(1)}, "a": 1.5, "denied": "é"}),  # names out of order
        (TREE, "text"),
    ]
    for sender, receiver in (("bank", "shop"), ("shop", "bank"), ("bank", "telco")):
        for number, (kind, value) in enumerate(values):
            for phase, attempt, digest in (("train", 1, "ab" * 32), ("eval", 2, None)):
                message = Message(sender, receiver, kind, value, number, phase, 3, 4, 5, 0.0)
                book.write(message, describe(message), 9, digest, attempt=attempt)
                book.deny(message, describe(message), "its policy says no", attempt)
    book.note("a note")
    book.flush()
    peers = ["shop"] * 8 + ["shop"] * 8 + ["telco"] * 8

    just_now, read = Traffic("bank"), Traffic("bank")
    assert list(filter(None, map(just_now.add_written, written))) == peers
    assert list(filter(None, map(read.add, book.rows()))) == peers

    for peer in ("shop", "telco"):
        assert just_now.flows(peer) == read.flows(peer)
        assert [flow.sent for flow in read.flows(peer)] == [4, 4]
    book.close()
