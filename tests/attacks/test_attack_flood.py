"""What others send and nobody has read yet takes 256 MB at most; whoever waits for a message gets
it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from nursery import Nursery

import colonnade
from colonnade.deploy.supervisor import Options
from colonnade.errors import CodecError, RoleFailed
from colonnade.net.frame import PART_BYTES, Control, Frame, Part, pack, parse
from colonnade.net.link import Connection, Link
from colonnade.runtime.control import MORE, WORD_BYTES, Pieces, parsed
from colonnade.runtime.credit import Credit
from colonnade.runtime.network import Network
from colonnade.runtime.post import Post
from colonnade.runtime.session import Session
from colonnade.wire import Kind, Ledger

HERE = Path(__file__).parent
MB = 1_000_000
MOST = 256  # MB above idle


def trained(
    nursery: Nursery, folder: Path, plan: dict[str, Any], method: Any = "splitnn", **options: Any
) -> dict[str, float]:
    """How much memory each party took, in MB above what it had when it began."""
    tree: dict[str, Any] = {
        "method": method,
        "seed": 3,
        "epochs": 1,
        "batch_size": 50,
        "evaluate_every": 0,
        "model_options": {"hidden": [16]},
        "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
        "partition": {"kind": "columns", "parties": 3},
        "absence": False,
    }
    if method == "splitnn":
        tree["splitnn"] = {"dim": 8}
    else:
        tree |= {"method": str(HERE / "hoard.py"), "checkpoint": {"epochs": 0}, "hoard": options}
    told = json.dumps(plan | {"folder": os.fspath(folder)})
    program = (*nursery.program(Path("x"))[:-2], str(HERE / "disruptor.py"), told)
    try:
        colonnade.run(
            tree,
            out=folder / "run",
            runtime="process",
            processes=Options(restarts=0, program=program),
        )
    finally:
        peaks = {path.stem: float(path.read_text()) for path in folder.glob("*.peak")}
    return peaks


@pytest.mark.slow
def test_messages_that_nobody_reads_make_their_sender_wait(
    nursery: Nursery, tmp_path: Path
) -> None:
    """400 MB of valid messages come while the label holder waits for another party's word. They
    wait at their sender, none is lost, and the word comes."""
    peaks = trained(nursery, tmp_path, {}, "hoard", messages=400, seconds=4.0)
    assert peaks["party1"] < MOST, peaks


@pytest.mark.slow
@pytest.mark.parametrize("disturbance", ["ignore_windows", "never_finish_a_word"])
def test_who_floods_is_stopped_and_named(
    disturbance: str, nursery: Nursery, tmp_path: Path
) -> None:
    """A member that sends on although nothing was taken in, or a word that has no end."""
    plan = {"party3": [disturbance]}
    try:
        trained(nursery, tmp_path, plan, "hoard", messages=400, seconds=4.0)
    except RoleFailed as stopped:
        assert "'party3' sent" in str(stopped) or "'party3' does not" in str(stopped)
        assert "party2" not in str(stopped)
        assert float((tmp_path / "party1.peak").read_text()) < MOST
        return
    raise AssertionError(f"nobody noticed: {(tmp_path / 'party1.peak').read_text()} MB")


LOW = {  # so that little crosses every limit
    "net.link.WINDOW_BYTES": 1 << 18,
    "net.link.ACK_BYTES": 1 << 16,
    "runtime.credit.PEER_BYTES": 1 << 20,
    "runtime.credit.ALL_BYTES": 2 << 20,
}


@pytest.mark.slow
def test_all_may_send_a_large_message_before_they_read_one(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Ten times what may lie unread: every sender takes in what others send meanwhile."""
    trained(nursery, tmp_path, {"patched": LOW}, "hoard", rows=20_000, swap=True)


@pytest.mark.slow
def test_all_may_send_many_messages_before_they_read_one(nursery: Nursery, tmp_path: Path) -> None:
    """More than the windows, less than what may lie unread in all."""
    trained(nursery, tmp_path, {"patched": LOW}, "hoard", messages=12, rows=70, swap=True)


# ---- at the link ---------------------------------------------------------------------------------


def connected() -> tuple[Link, Connection, Link, SimpleQueue[Any]]:
    """A link with a peer that keeps no window; nobody takes in what comes."""
    inbox: SimpleQueue[Any] = SimpleQueue()
    bank, shop = (
        Link("bank", "shop", b"b" * 16, inbox),
        Link("shop", "bank", b"s" * 16, SimpleQueue()),
    )
    wire = Connection(lambda: None)
    hello: Any = parse(shop.hello("{}"))[0].body
    bank.attach(wire, hello)
    theirs: Any = parse(bank.hello("{}"))[0].body
    shop.attach(Connection(lambda: None), theirs)
    return bank, wire, shop, inbox


@pytest.mark.parametrize("first", [1, 2], ids=["in order", "all too early"])
@pytest.mark.parametrize("size", [0, MB])
@pytest.mark.parametrize("elastic", [False, True])
def test_a_link_takes_no_more_than_its_windows(first: int, size: int, elastic: bool) -> None:
    """Frames that nobody has taken in, far more than an honest sender may have under way."""
    bank, wire, shop, _ = connected()
    bank.elastic = elastic
    body = Part(7, 1, "shop", "bank", "x", 0, "train", 0, 0, 1, size, bytes(32))
    tail = bytes(size)
    taken = 0
    try:
        for number in range(first, first + (300 if size else 100_000)):
            data = pack(Frame(number, 0, shop._stamp, body), tail)
            bank.incoming(wire, data)
            taken += len(data) + 1000  # what Python needs for each
            assert taken < 128 * MB, "there is no limit"
    except CodecError as refusal:
        assert "'shop'" in str(refusal)
        return
    raise AssertionError("there is no limit")


@pytest.mark.parametrize("peer", ["shop", "hub"], ids=["its own link", "relayed"])
@pytest.mark.parametrize("needed", [False, True], ids=["", "waited for"])
@pytest.mark.parametrize("ends", [0, 7], ids=["", "some end"])
@pytest.mark.parametrize("size", [0, PART_BYTES], ids=["empty", "full"])
def test_beginnings_of_messages_of_a_later_attempt(
    peer: str, needed: bool, ends: int, size: int
) -> None:
    """A member sends the first part of ever the same message of an attempt that has not begun. It
    lies there until then; so it counts as often as it came, or its sender is named."""
    members, kind = frozenset({"bank", "shop"}), Kind("x", None, reveals="nothing")
    mesh: Any = SimpleNamespace()
    post = Post("bank", members, {"x": kind}, Ledger(None), None, Network(mesh))
    post.begin(7, 1)
    taken: list[Any] = []
    session: Any = SimpleNamespace(post=post, credit=Credit("bank"), own_account=None)
    session.say_going = lambda: None
    session.credit.needed = ("shop",) if needed else ()
    link: Any = SimpleNamespace(peer=peer, took=taken.append)
    event: Any = SimpleNamespace(link=link, tail=memoryview(bytes(size)))
    first = Part(7, 2, "shop", "bank", "x", 0, "train", 0, 0, 0, 3 << 30, bytes(32))
    try:
        for number in range(300 if size else 100_000):
            last = ends and number % ends == 0  # the end of a message, as far as it says
            Session._accept(session, event, first._replace(size=size) if last else first)
            assert len(taken) * (size + 2000) < 150 * MB, "there is no limit"
    except CodecError as refusal:
        assert "'shop'" in str(refusal)


@pytest.mark.parametrize("size", [1, WORD_BYTES])
def test_unfinished_words_are_bounded_together(size: int) -> None:
    """Pieces of ever other words, small and large, none of which comes to its end."""
    pieces, kept = Pieces(), 0
    try:
        for number in range(2000):
            pieces.take("shop", Control(f"{MORE}word {number}", "x" * size))
            kept += size + 1000
            assert kept < 64 * MB and number < 1000, "there is no limit"
    except CodecError as refusal:
        assert "'shop'" in str(refusal)


def test_a_word_of_a_million_nothings_is_not_read() -> None:
    """16 MB of JSON that would take a gigabyte."""
    text = '{"account": {"x": [' + "[]," * 5_000_000 + "[]]}}"
    with pytest.raises(ValueError, match="values; 1048576 at most"):
        parsed(text)
    assert parsed('{"a": [1, 2]}') == {"a": [1, 2]}


@pytest.mark.slow
def test_two_may_align_more_ids_than_may_lie_unread(nursery: Nursery, tmp_path: Path) -> None:
    """Lists of four times what may lie unread, which both begin to send at once."""
    low = LOW | {
        "net.link.WINDOW_BYTES": 1 << 15,
        "net.link.ACK_BYTES": 1 << 13,
        "runtime.credit.PEER_BYTES": 1 << 15,
        "runtime.credit.ALL_BYTES": 1 << 16,
        "align.lists.CHUNK_BYTES": 1 << 12,
    }
    for party, first in {"bank": 0, "shop": 2000}.items():
        label = ",label" if party == "bank" else ""
        lines = [f"id,x{label}"]
        for row in range(first, first + 4000):
            lines.append(f"person {row},{row % 7}{',' + 'ab'[row % 2] if label else ''}")
        (tmp_path / f"{party}.csv").write_text("\n".join(lines) + "\n")
    told = json.dumps({"folder": os.fspath(tmp_path), "patched": low})
    program = (*nursery.program(Path("x"))[:-2], str(HERE / "disruptor.py"), told)
    result = colonnade.run(
        {
            "method": "splitnn",
            "epochs": 1,
            "batch_size": 500,
            "parties": {name: {"data": str(tmp_path / f"{name}.csv")} for name in ("bank", "shop")},
        },
        out=tmp_path / "run",
        runtime="process",
        processes=Options(restarts=0, program=program),
    )
    assert result.content["data"]["common_rows"] == 2000
