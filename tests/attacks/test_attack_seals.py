"""What a party signs is what its peer's ledger says, or the run stops and the error names it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from colonnade.errors import CodecError, Untrusted
from colonnade.role.identity import Identity, simulated
from colonnade.runtime import control
from colonnade.runtime.control import Countersign, Patience
from colonnade.runtime.fixed import Fixed
from colonnade.runtime.sealing import BLOCK_ROWS, Sealing
from colonnade.wire import Kind, Ledger, Message, ledger, seals
from colonnade.wire.seals import Seal

RUN = "00000000000000ab"
NAMES = ("bank", "shop", "telco")  # the hub first; the others have no link with each other
FLOW = {"sent": 3, "sent_head": "", "received": 3, "received_head": ""}
KIND = Kind("embedding", ("batch", "dim"), reveals="features")


class Desk:
    """One party: its ledger, its seals, and as much of a session as they need."""

    def __init__(self, room: Room, name: str, identity: Identity, folder: Path) -> None:
        self.name, self.room, self.identity = name, room, identity
        self.path = folder / name / "ledger.jsonl"
        self.path.parent.mkdir()
        self.path.touch()
        self.attempt = 1
        self.open("")

    def open(self, run: str = RUN) -> None:
        """A process begins, perhaps again."""
        if hasattr(self, "book"):
            self.book.close()
        self.book = Ledger(self.path, self.attempt)
        self.sealing = Sealing(self.identity, self.book, run)
        others = [name for name in NAMES if name != self.name]
        links = dict.fromkeys(others if self.name == "bank" else ["bank"])
        self.session: Any = SimpleNamespace(
            me=self.name,
            run=RUN,
            stop_wish="",
            hub="bank",
            is_hub=self.name == "bank",
            absent=set(),
            patience=Patience(),
            membership=Fixed(),
            mesh=SimpleNamespace(links=links, relays=lambda *pair: {*pair} == {"shop", "telco"}),
            post=SimpleNamespace(attempt_with=lambda peer: self.attempt),
            tell=lambda peer, word: self.room.words.append((self.name, peer, word)),
            pump=lambda seconds: self.room.pump(self),
            refuse=self.refuse,
        )

    def refuse(self, sender: str, why: str) -> None:
        raise CodecError(why)

    def note(self, sender: str, receiver: str, number: int, digest: str = "ab") -> None:
        """A message in this ledger."""
        message = Message(sender, receiver, KIND, 0, number, "train", 0, number, 1, 0.0)
        text = ledger.describe(message)
        self.book.write(message, text, 9, digest * 32, self.name == receiver, self.attempt)

    def hear(self, sender: str, word: Countersign) -> None:
        said = control.read(Countersign, json.loads(json.dumps(asdict(word))))
        self.sealing.heard(self.session, sender, said)

    def settle(self, at: Any = "checkpoint", **how: Any) -> None:
        self.sealing.settle(self.session, at, "train-00001-0000000", **how)

    def seals(self) -> list[Seal]:
        return list(seals.read(seals.beside(self.path)))

    def holds(self, by: str) -> Seal:
        """The newest seal of a peer."""
        return [seal for seal in self.seals() if seal.statement.by == by][-1]


class Room:
    """Three desks, and the words between them."""

    def __init__(self, folder: Path) -> None:
        self.words: deque[tuple[str, str, Countersign]] = deque()
        self.change: Callable[[str, str, Countersign], Countersign | None] = lambda a, b, word: word
        identities = simulated(NAMES, "ledger")
        self.desks = {name: Desk(self, name, identities[name], folder) for name in NAMES}

    def __getitem__(self, name: str) -> Desk:
        return self.desks[name]

    def pump(self, asker: Desk) -> None:
        """Carry one word; where there is none, an hour passes."""
        if not self.words:
            asker.sealing.tick(asker.session, 1e12)
            raise AssertionError("it waits for ever")
        sender, receiver, word = self.words.popleft()
        changed = self.change(sender, receiver, word)
        if changed is not None:
            self[receiver].hear(sender, changed)

    def carry(self) -> None:
        while self.words:
            self.pump(self["bank"])

    def exchange(self, a: str, b: str, count: int = 3, begin: int = 0) -> None:
        """Messages in both directions, in both ledgers."""
        for number in range(begin, begin + count):
            for sender, receiver in ((a, b), (b, a)):
                self[sender].note(sender, receiver, number)
                self[receiver].note(sender, receiver, number)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    for desk in made.desks.values():
        desk.book.close()


def test_both_hold_what_the_other_has_signed(room: Room) -> None:
    room.exchange("bank", "shop")
    room["bank"].settle()
    for me, other in (("bank", "shop"), ("shop", "bank")):
        seal = room[me].holds(other)
        assert seal.holds() and seal.key == room[other].identity.trusted[other].hex()
        assert (seal.statement.rows, seal.statement.now.sent, seal.statement.now.received) == (
            *(6, 3, 3),
        )
    before = len(room["shop"].seals())
    room["shop"].settle()
    room["bank"].settle()
    assert len(room["shop"].seals()) == before and not room.words  # nothing is new
    room["shop"].settle("end")
    assert room["bank"].holds("shop").statement.at == "end"


def test_two_questions_that_cross_answer_each_other(room: Room) -> None:
    room.exchange("bank", "shop")
    room["bank"].settle(wait=False)
    room["shop"].settle()
    room.carry()
    assert len(room["bank"].seals()) == len(room["shop"].seals()) == 2


def test_nobody_asks_twice_for_the_same(room: Room) -> None:
    """In an elastic run checkpoints do not wait, and a peer may compute for long."""
    room.exchange("bank", "shop")
    for _ in range(100):
        room["bank"].settle(wait=False)
    assert len(room.words) == 1
    room.carry()
    assert room["bank"].holds("shop").statement.now.received == 3


def blind(desk: Desk) -> None:
    """A liar does not mind what others say."""
    desk.sealing._check = lambda session, said: None  # type: ignore[method-assign]


def test_who_denies_what_it_received_is_named(room: Room) -> None:
    room.exchange("bank", "shop")
    room["bank"].note("bank", "shop", 3)  # shop has it, and does not say so
    blind(room["shop"])
    with pytest.raises(Untrusted, match="'shop' signed for 3 of the 4 messages"):
        room["bank"].settle()


def test_who_signs_for_other_messages_is_named(room: Room) -> None:
    room.exchange("bank", "shop")
    room["bank"].note("bank", "shop", 3)
    room["shop"].note("bank", "shop", 3, digest="cd")
    blind(room["shop"])
    with pytest.raises(Untrusted, match="'shop' signed that it received 4 messages, and not the"):
        room["bank"].settle()


def test_who_claims_to_have_sent_more_is_named(room: Room) -> None:
    room.exchange("bank", "shop")
    room["bank"].note("bank", "shop", 3)
    with pytest.raises(Untrusted, match="'bank' signed that it sent 4 messages; there are 3"):
        room["bank"].settle()


def test_who_claims_to_have_received_more_is_named(room: Room) -> None:
    room.exchange("bank", "shop")
    room["shop"].note("bank", "shop", 3)
    blind(room["shop"])
    with pytest.raises(Untrusted, match="'shop' signed that it received 4 messages; there are 3"):
        room["bank"].settle()


def test_who_does_not_sign_is_named(room: Room) -> None:
    room.exchange("bank", "shop")
    room.change = lambda sender, receiver, word: None if sender == "shop" else word
    with pytest.raises(Untrusted, match=r"'shop' has not signed for 3 messages.* stops here"):
        room["bank"].settle()


def test_an_old_seal_is_no_answer(room: Room) -> None:
    """shop signed for three messages and says so again, when there are six."""
    room.exchange("bank", "shop")
    room["bank"].settle()
    old = room["bank"].holds("shop")
    room.exchange("bank", "shop", begin=3)

    def replay(sender: str, receiver: str, word: Countersign) -> Countersign:
        return replace(word, seal=old.content()) if sender == "shop" else word

    room.change = replay
    with pytest.raises(Untrusted, match="'shop' signed for 3 of the 6 messages"):
        room["bank"].settle()


def test_nobody_goes_back_behind_what_it_has_signed(room: Room) -> None:
    """Not even as another process, whose folder was cleaned up."""
    room.exchange("bank", "shop")
    room["bank"].settle()
    shop = room["shop"]
    shop.book.flush()
    rows = list(ledger.read(shop.path))
    shop.path.unlink()
    seals.beside(shop.path).unlink()
    book = Ledger(shop.path)
    for row in rows[:3]:
        book.copy(row)
    book.close()
    for desk in (room["bank"], shop):
        desk.attempt = 2
        desk.open()
    blind(shop)
    room.exchange("bank", "shop", count=1)
    with pytest.raises(Untrusted, match="'shop' signed for a ledger of 5 rows, and had signed for"):
        room["bank"].settle()
    for number in range(9):
        shop.note("shop", "telco", number)  # enough rows, and still not those of before
    room.words.clear()
    shop.open()
    blind(shop)
    room["bank"].sealing.begin()
    with pytest.raises(Untrusted, match=r"'shop' signed that it .* fewer than it had signed"):
        room["bank"].settle()


def test_who_asks_without_end_fills_no_disk(room: Room) -> None:
    """shop signs the same again and again, or for rows with others that nobody can check."""
    room.exchange("bank", "shop")
    room["bank"].settle()
    shop, bank = room["shop"], room["bank"]
    said = bank.holds("shop").statement
    try:
        for number in range(1000):
            more = replace(said, rows=said.rows + number)
            signature = shop.identity.sign(more.text()).hex()
            seal = Seal(more, "", signature)
            bank.hear("shop", Countersign(seal.content(), asks=number + 1))
            room.words.clear()
    except Untrusted as error:
        assert "'shop' signed" in str(error)
    assert seals.beside(bank.path).stat().st_size < 200_000


def test_a_seal_of_another_run_is_refused(room: Room) -> None:
    room.exchange("bank", "shop")
    room["shop"].session.run = "00000000000000cd"
    room["shop"].settle(wait=False)
    with pytest.raises(Untrusted, match="'shop' signed for run 00000000000000cd"):
        room.carry()


# ---- through the hub -----------------------------------------------------------------------------


def test_two_without_a_link_sign_through_the_hub(room: Room) -> None:
    room.exchange("shop", "telco")
    room["shop"].settle()
    assert room["shop"].holds("telco").holds() and room["telco"].holds("shop").holds()
    assert room["bank"].seals() == []


def test_who_has_a_seal_carried_around_a_link_is_named_and_not_the_hub(room: Room) -> None:
    """shop and telco have a link. shop hands the hub a seal for telco, who would blame the hub for
    carrying it; the hub carries nothing between them, and names shop."""
    for name, other in (("shop", "telco"), ("telco", "shop")):
        room[name].session.mesh.links[other] = None
    room["bank"].session.mesh.relays = lambda *pair: False
    room.exchange("shop", "telco")
    room["shop"].settle(wait=False)
    ((_, receiver, word),) = room.words
    assert receiver == "telco"
    room.words.clear()
    refused: list[str] = []
    room["bank"].session.refuse = lambda sender, why: refused.append(sender)
    room["bank"].hear("shop", word)
    assert refused == ["shop"] and not room.words


def test_a_hub_cannot_sign_for_those_between_whom_it_relays(room: Room) -> None:
    room.exchange("shop", "telco")

    def forge(sender: str, receiver: str, word: Countersign) -> Countersign:
        return replace(word, seal=dict(word.seal) | {"rows": 5}) if sender == "bank" else word

    room.change = forge
    with pytest.raises(Untrusted, match="'telco' refuses the signature of 'shop'"):
        room["shop"].settle()


def test_a_hub_that_signs_with_its_own_key_is_refused(room: Room) -> None:
    room.exchange("shop", "telco")
    room["shop"].settle()
    said = room["shop"].holds("telco").statement
    mine = room["bank"].identity
    key = mine.trusted["bank"].hex()
    seal = Seal(said, key, mine.sign(said.text()).hex())
    with pytest.raises(Untrusted, match="refuses the signature of 'telco'"):
        room["shop"].hear("bank", Countersign(seal.content()))


def test_what_the_hub_holds_back_is_missed_and_it_is_named_too(room: Room) -> None:
    room.exchange("shop", "telco")
    room.change = lambda sender, receiver, word: None
    with pytest.raises(Untrusted, match=r"'telco' \(through 'bank', who relays\) has not signed"):
        room["shop"].settle()


def test_what_a_hub_adds_between_two_is_found_at_the_next_seal(room: Room) -> None:
    """A message in shop's name that shop never sent."""
    room.exchange("shop", "telco")
    room["telco"].note("shop", "telco", 3)
    with pytest.raises(
        Untrusted, match=r"'telco' .* signed that it received 4 messages; there are"
    ):
        room["shop"].settle()


def test_a_word_that_overtakes_its_messages_waits_for_them(room: Room) -> None:
    """Through the hub, messages and words take two ways."""
    room.exchange("shop", "telco")
    room["shop"].note("shop", "telco", 3)
    room["shop"].settle(wait=False)
    room.carry()
    telco = room["telco"]
    assert telco.seals() == []
    telco.note("shop", "telco", 3)
    telco.sealing.tick(telco.session, 0.0)
    room.carry()
    assert room["shop"].holds("telco").statement.now.received == 4
    room["shop"].note("shop", "telco", 4)  # it never comes
    room["shop"].settle(wait=False)
    room.carry()
    with pytest.raises(Untrusted, match=r"'shop' \(through 'bank', who relays\) sealed messages"):
        telco.sealing.tick(telco.session, 1e12)


def test_nobody_speaks_in_the_name_of_another(room: Room) -> None:
    room.exchange("bank", "shop")
    room["bank"].settle()
    seal = room["bank"].holds("shop").content()
    for hearer, sender in (("bank", "telco"), ("telco", "bank"), ("shop", "bank")):
        with pytest.raises(CodecError, match="sent a seal"):
            room[hearer].hear(sender, Countersign(seal))


# ---- deaths --------------------------------------------------------------------------------------


def test_what_died_with_a_process_is_signed_as_such_later(room: Room) -> None:
    """shop's process dies with a message that it had received and not written down."""
    room.exchange("bank", "shop")
    room["bank"].settle()
    room["bank"].note("bank", "shop", 3)
    for name in ("bank", "shop"):
        room[name].attempt = 2
        room[name].open()
    room.exchange("bank", "shop", count=1)
    room["shop"].settle()
    said = room["bank"].holds("shop").statement
    assert [(flow.attempt, flow.received) for flow in said.flows] == [(1, 3), (2, 1)]


def test_a_seal_that_a_crash_cut_short_is_omitted(room: Room) -> None:
    room.exchange("bank", "shop")
    room["bank"].settle()
    path = seals.beside(room["bank"].path)
    path.write_bytes(path.read_bytes()[:-20])
    kept = len(room["bank"].seals())
    room["bank"].open()
    room.exchange("bank", "shop", begin=3)
    room["bank"].settle()
    assert len(room["bank"].seals()) == kept + 2


def test_a_block_is_sealed_without_a_checkpoint(room: Room) -> None:
    room.exchange("bank", "shop", BLOCK_ROWS // 2)
    room["bank"].sealing.tick(room["bank"].session, 0.0)
    room.carry()
    assert room["bank"].holds("shop").statement.now.received == BLOCK_ROWS // 2


@pytest.mark.parametrize(
    "lie",
    [
        {"rows": -1},
        {"rows": True},
        {"rows": 1 << 62},
        {"rows": None},
        {"head": 3},
        {"place": "x" * 1000},
        {"time": "\x1b[2J"},
        {"time": "yesterday"},
        {"at": "whenever"},
        {"flows": {}},
        {"flows": []},
        {"flows": [3]},
        {"attempt": 7},
        {"flows": [{"attempt": n} | FLOW for n in (1, 1)]},
        {"flows": [{"attempt": n} | FLOW for n in (2, 1)]},
        {"flows": [{"attempt": n} | FLOW for n in (1, 2)]},
        {"by": []},
    ],
)
def test_what_is_no_seal_is_refused(lie: dict[str, Any], room: Room) -> None:
    room.exchange("bank", "shop")
    room["bank"].settle()
    content = room["bank"].holds("shop").content() | lie
    for seal in (content, {key: content[key] for key in content if key not in lie}):
        with pytest.raises(CodecError):
            room["bank"].hear("shop", Countersign(seal))


def test_who_signs_for_a_ledger_without_the_messages_in_it_is_named(room: Room) -> None:
    """shop signs for what it has exchanged with bank, and for a ledger of no rows at all. Whatever
    its ledger says of others, and of what it denied, would be bound by nothing."""
    room.exchange("bank", "shop")

    def empty(sender: str, receiver: str, word: Countersign) -> Countersign:
        if sender != "shop":
            return word
        told = Seal.read(json.loads(json.dumps(word.seal))).statement
        said = replace(told, rows=0, head=ledger.GENESIS)
        signature = room["shop"].identity.sign(said.text()).hex()
        return replace(word, seal=Seal(said, "", signature).content())

    room.change = empty
    with pytest.raises(Untrusted, match="'shop' signed for a ledger of 0 rows, and for 6 messages"):
        room["bank"].settle()
