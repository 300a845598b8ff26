"""A message takes no more memory and time than its own bytes allow, whatever it claims."""

from __future__ import annotations

import ctypes
import hashlib
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from colonnade.errors import WireError
from colonnade.net.frame import PART_BYTES, Part
from colonnade.role.checks import Checks
from colonnade.runtime.network import Network
from colonnade.runtime.post import Post
from colonnade.wire import Kind, Ledger, codec

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="noise")
WEIGHTS = Kind("weights", None, reveals="noise", dtype="any")
MIB = 1 << 20


class NoMesh:
    def send_part(self, *_: Any) -> None:
        raise AssertionError("nothing is sent here")


@pytest.fixture
def bank() -> Post:
    """A label holder that is sent messages by 'shop'."""
    kinds = {kind.name: kind for kind in (EMBEDDING, WEIGHTS)}
    made = Post(
        "bank", frozenset({"bank", "shop"}), kinds, Ledger(None), None, Network(NoMesh(), 1000)
    )
    made.begin(7, 1)
    return made


def sent(bank: Post, kind: Kind, data: bytes, number: int = 0, size: int = 0) -> None:
    """These bytes, as a member sends them; `size` is what it claims where it sends only a part."""
    digest, whole = hashlib.sha256(data).digest(), size or len(data)
    for at in range(0, len(data), PART_BYTES):
        piece = memoryview(data)[at : at + PART_BYTES]
        head = Part(7, 1, "shop", "bank", kind.name, number, "train", 0, 0, 0, whole, digest, at)
        bank.accept(head, piece)


def tensor(*shape: int, data: bytes = b"") -> bytes:
    header = struct.pack(f"<BBB{len(shape)}Q", codec.TENSOR, 2, len(shape), *shape)
    return header + data


def tree(nodes: int) -> bytes:
    """As many tensors as fit into few bytes: 12 each, and a thousand in memory."""
    parts = [struct.pack("<BI", codec.MAP, nodes)]
    for number in range(nodes):
        parts += [struct.pack("<H", 6), b"%06x" % number, tensor()[:1], b"\x08\x00\x01"]
    return b"".join(parts)


class Memory:
    """How many MiB this process has taken since, at its peak; it can be asked on Linux only."""

    def __init__(self) -> None:
        try:
            ctypes.CDLL(None).malloc_trim(0)  # what earlier tests have left is nobody's excuse
            Path("/proc/self/clear_refs").write_text("5")
        except (OSError, AttributeError):
            pytest.skip("the peak of the memory cannot be reset here")
        self._before = self._read()

    def _read(self) -> float:
        text = Path("/proc/self/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) / 1024

    @property
    def taken(self) -> float:
        return self._read() - self._before


def test_trees_that_nobody_has_asked_for_yet(bank: Post) -> None:
    """A member sends trees that are just allowed and that no role waits for: they lie there as
    bytes, and are made only when a role takes them."""
    data, memory = tree(16_000), Memory()
    for number in range(8):
        sent(bank, WEIGHTS, data, number)
    assert memory.taken < 50  # one tree at a time; all eight would be 200
    message = bank.take("shop", WEIGHTS)
    assert message is not None and len(message.value) == 16_000  # type: ignore[arg-type]


def test_a_tensor_without_elements_and_with_an_absurd_width(bank: Post) -> None:
    """19 bytes announce an embedding of no rows and 2³¹ columns; whoever adds it up takes 8 GB."""
    with pytest.raises(WireError, match="'shop'"):
        sent(bank, EMBEDDING, tensor(0, 1 << 31))
    assert bank.take("shop", EMBEDDING) is None


def test_a_tree_of_very_many_nodes(bank: Post) -> None:
    """A tree of a megabyte holds a hundred thousand tensors; it must be refused before they are
    made, and within a second."""
    data, memory, began = tree(100_000), Memory(), time.monotonic()
    with pytest.raises(WireError, match="'shop'"):
        sent(bank, WEIGHTS, data)
    assert memory.taken < 32 and time.monotonic() - began < 1


@pytest.mark.parametrize(
    "shape", [(1 << 20, 700), (1 << 28, 1), (3, 4), (10, 1 << 60), (10,), (10, 8, 1)]
)
def test_what_a_tensor_announces_is_looked_at_before_memory_is_taken(
    shape: tuple[int, ...], bank: Post
) -> None:
    """The first megabyte of a message of three gigabytes: its own shape must fit its size and its
    Kind, else no further part is taken in."""
    memory = Memory()
    with pytest.raises(WireError, match="'shop'"):
        sent(bank, EMBEDDING, tensor(*shape, data=bytes(MIB // 2)), size=3 << 30)
    assert memory.taken < 8
    with pytest.raises(WireError, match="has not begun"):  # it is not in the middle of one
        later = Part(7, 1, "shop", "bank", "embedding", 0, "train", 0, 0, 0, 3 << 30, b"", MIB)
        bank.accept(later, memoryview(b"x"))


def test_a_batch_of_more_rows_than_there_are(bank: Post) -> None:
    """Three gigabytes of embeddings that fit their Kind, for a party of 1,000 rows."""
    progress: Any = SimpleNamespace(phase="train", position=("train", 0, 0))
    bank.checks, memory = Checks("bank", 1000, progress), Memory()
    rows = 3 << 20
    with pytest.raises(WireError, match="'shop' sends 'embedding' of 3145728 rows"):
        sent(bank, EMBEDDING, tensor(rows, 256, data=bytes(MIB // 2)), size=19 + rows * 1024)
    assert memory.taken < 8


def test_an_empty_batch_and_empty_weights_are_messages(bank: Post) -> None:
    for number, shape in enumerate([(0, 0), (0, 4096), (0, 1)]):
        value = torch.empty(shape)
        sent(bank, EMBEDDING, codec.encode(value), number)
        message = bank.take("shop", EMBEDDING)
        assert message is not None and message.value.shape == shape  # type: ignore[union-attr]
