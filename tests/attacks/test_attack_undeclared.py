"""Nothing reaches a role that its method does not declare: what comes is looked at by its receiver,
whatever program has sent it."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from colonnade.errors import ColonnadeError
from colonnade.net.frame import Part
from colonnade.runtime.network import Network
from colonnade.runtime.post import Post
from colonnade.wire import Kind, Ledger, codec

MEMBERS = frozenset({"bank", "shop"})
EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="noise")
WEIGHTS = Kind("weights", None, reveals="noise")
KINDS = {kind.name: kind for kind in (EMBEDDING, WEIGHTS)}
RAW = Kind("raw_rows", ("batch", "columns"), reveals="everything")
OTHER = Kind("embedding", ("batch", "dim", "more"), reveals="more than was agreed on")
DOUBLE = Kind("embedding", ("batch", "dim"), reveals="more digits", dtype="float64")
TREE = Kind("embedding", None, reveals="whatever it likes", dtype="any")
WHOLE = Kind("weights", None, reveals="whole numbers", dtype="int64")


class Liar:
    """The party of shop: it declares what it likes, and has no policy."""

    name, position, at_hand, splits = "shop", ("train", 0, 0), None, ()
    protection = None
    progress = SimpleNamespace(phase="train", hop=0, clock=0.0, position=position)
    checks = SimpleNamespace(sending=lambda *_: None)


class Wire:
    def __init__(self) -> None:
        self.sent: list[tuple[Part, memoryview]] = []

    def send_part(self, peer: str, part: Part, tail: Any) -> None:
        self.sent.append((part, memoryview(b"".join(tail))))


def bank(folder: Path) -> Post:
    (folder / "ledger.jsonl").touch()
    book = Ledger(folder / "ledger.jsonl", through=True)
    made = Post("bank", MEMBERS, KINDS, book, None, Network(Wire()))  # type: ignore[arg-type]
    made.begin(7, 1)
    return made


def refused(post: Post, sent: list[tuple[Part, memoryview]]) -> str:
    """Why the receiver does not take it; nothing of it is then on record, or there to be read."""
    with pytest.raises(ColonnadeError) as caught:
        for part, data in sent:
            post.accept(part, data)
    assert not list(post.ledger.rows()) and not list(post.unread())
    post.ledger.close()
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (RAW, torch.ones(4, 3)),
        (OTHER, torch.ones(4, 3, 2)),
        (DOUBLE, torch.ones(4, 3).double()),
        (TREE, {"rows": torch.ones(4, 3)}),
        (TREE, "a text"),
        (WHOLE, {"rows": torch.ones(4, 3).long()}),
    ],
    ids=["another name", "more dimensions", "another dtype", "a tree", "a text", "its tensors"],
)
def test_a_kind_that_the_method_does_not_declare(kind: Kind, value: Any, tmp_path: Path) -> None:
    """The sender has declared it, and lets it out: the receiver does not let it in."""
    wire = Wire()
    declared = KINDS | {kind.name: kind}
    shop = Post("shop", MEMBERS, declared, Ledger(None), None, Network(wire))  # type: ignore[arg-type]
    shop.begin(7, 1)
    shop.put(Liar, "bank", kind, value)  # type: ignore[arg-type]
    said = refused(bank(tmp_path), wire.sent)
    assert "'shop' sent" in said and kind.name in said


class Harm:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_in_the_place_of_a_message(kind: str, protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps(Harm(tmp_path / "executed"), protocol)
    place = ("train", 0, 0, 0, len(data), hashlib.sha256(data).digest())
    part = Part(7, 1, "shop", "bank", kind, 0, *place)
    said = refused(bank(tmp_path), [(part, memoryview(data))])
    assert f"'shop' sent a '{kind}' that is not a message" in said
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(("sender", "receiver"), [("thief", "bank"), ("shop", "telco")])
def test_a_message_of_nobody_or_for_another(sender: str, receiver: str, tmp_path: Path) -> None:
    data = codec.encode(torch.ones(4, 3))
    place = ("train", 0, 0, 0, len(data), hashlib.sha256(data).digest())
    part = Part(7, 1, sender, receiver, EMBEDDING.name, 0, *place)
    said = refused(bank(tmp_path), [(part, memoryview(data))])
    assert f"'{sender}'" in said and f"'{receiver}'" in said


def test_what_is_declared_is_taken(tmp_path: Path) -> None:
    wire, post = Wire(), bank(tmp_path)
    shop = Post("shop", MEMBERS, KINDS, Ledger(None), None, Network(wire))  # type: ignore[arg-type]
    shop.begin(7, 1)
    shop.put(Liar, "bank", EMBEDDING, torch.ones(4, 3))  # type: ignore[arg-type]
    for part, data in wire.sent:
        post.accept(part, data)
    assert post.take("shop", EMBEDDING) is not None and len(list(post.ledger.rows())) == 1
    post.ledger.close()
