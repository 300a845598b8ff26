"""The key agreement against a relay that changes, replays, swaps and forges what it carries."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

import colonnade
from colonnade import assembly, config
from colonnade.errors import Untrusted
from colonnade.privacy import keys
from colonnade.privacy.keys import Agreement
from colonnade.role import identity
from colonnade.role.identity import Identity
from colonnade.role.method import bind
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.runtime import local
from colonnade.runtime.drive import drive
from colonnade.task import Task
from colonnade.wire import Kind, Ledger, Message, Peer, Recv, Wire, ledger

NAMES = ("bank", "clinic", "shop", "tower", "union")
PURPOSE = "test ring=64 fraction=24"
Shown = dict[str, bytes]
Tamper = Callable[[str, Shown], Shown]  # (receiver, what everybody sent) -> what it is shown


def untouched(receiver: str, shown: Shown) -> Shown:
    return shown


def agreements(
    known: Mapping[str, Identity], purpose: str = PURPOSE, members: Sequence[str] = ()
) -> dict[str, Agreement]:
    return {n: Agreement(i, members or list(known), purpose) for n, i in known.items()}


def relay(
    members: Mapping[str, Agreement],
    keys_to: Tamper = untouched,
    signatures_to: Tamper = untouched,
) -> tuple[dict[str, Shown], dict[str, str]]:
    """The whole exchange over this relay: who has secrets, and who refused and why."""
    publics = {name: member.public for name, member in members.items()}
    signatures: Shown = {}
    secrets: dict[str, Shown] = {}
    refused: dict[str, str] = {}
    for name, member in members.items():
        try:
            signatures[name] = member.sign(keys_to(name, dict(publics)))
        except Untrusted as error:
            refused[name] = str(error)
    if not refused:  # a member that stops sends no signature, and the others wait for it
        for name, member in members.items():
            try:
                secrets[name] = member.secrets(signatures_to(name, dict(signatures)))
            except Untrusted as error:
                refused[name] = str(error)
    return secrets, refused


def flipped(raw: bytes, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# ---- honest members ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 5])
def test_every_pair_shares_one_secret_and_no_two_pairs_or_sessions_the_same(count: int) -> None:
    known = identity.simulated(NAMES[:count], "run 1")
    found: list[bytes] = []
    for session in ("run 1", "run 2", "run 2"):  # the last two: one configuration started twice
        renewed = {name: replace(one, session=session) for name, one in known.items()}
        secrets, refused = relay(agreements(renewed))
        assert not refused
        for a in known:
            assert secrets[a].keys() == known.keys() - {a}
        for a, b in combinations(known, 2):
            assert secrets[a][b] == secrets[b][a]
            assert len(secrets[a][b]) == 32
            found.append(secrets[a][b])
    assert len(set(found)) == len(found) == 3 * count * (count - 1) // 2


def test_the_order_in_which_members_are_listed_does_not_matter() -> None:
    known = identity.simulated(NAMES[:3], "run 1")
    members = {
        name: Agreement(one, list(known)[shift:] + list(known)[:shift], PURPOSE)
        for shift, (name, one) in enumerate(known.items())
    }
    secrets, refused = relay(members, lambda _, shown: dict(reversed(shown.items())))
    assert not refused
    assert secrets["bank"]["shop"] == secrets["shop"]["bank"]


def test_secrets_are_the_hkdf_that_the_module_describes() -> None:
    """Written again with the standard library: the docstring is the specification."""

    def hashed(*parts: bytes) -> bytes:
        framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        return hashlib.sha256(framed).digest()

    members = agreements(identity.simulated(("b", "a", "c"), "the session"), "the purpose")
    secrets, _ = relay(members)
    transcript = hashed(
        b"colonnade key agreement 1",
        b"the session",
        b"the purpose",
        *(part for name in "abc" for part in (name.encode(), members[name].public)),
    )
    shared = members["b"]._key.exchange(X25519PublicKey.from_public_bytes(members["c"].public))
    extracted = hmac.digest(b"the session", shared, "sha256")
    info = hashed(b"b", b"c", transcript)
    assert secrets["c"]["b"] == hmac.digest(extracted, info + b"\1", "sha256")


def test_an_identity_does_not_show_its_key() -> None:
    one = identity.simulated(("bank",), "run 1")["bank"]
    assert one.key.private_bytes_raw().hex() not in repr(one)
    assert "key=" not in repr(one)


# ---- a relay that changes messages -------------------------------------------------------------


def test_every_flipped_bit_of_a_public_key_leaves_everybody_without_secrets() -> None:
    """Shown to one other member only, so that the key's owner cannot see it."""
    members = agreements(identity.simulated(NAMES[:3], "run 1"))
    publics = {name: member.public for name, member in members.items()}
    honest = {name: members[name].sign(publics) for name in ("bank", "clinic")}
    for bit in range(32 * 8):  # also bit 255, which X25519 itself ignores
        changed = publics | {"clinic": flipped(publics["clinic"], bit)}
        signatures = honest | {"shop": members["shop"].sign(changed)}
        for name in members:
            with pytest.raises(Untrusted, match=r"refuses the signature"):
                members[name].secrets(signatures)


def test_every_flipped_bit_of_a_public_key_is_seen_by_its_owner() -> None:
    members = agreements(identity.simulated(NAMES[:3], "run 1"))
    publics = {name: member.public for name, member in members.items()}
    for bit in range(32 * 8):
        changed = publics | {"clinic": flipped(publics["clinic"], bit)}
        with pytest.raises(Untrusted, match=r"'clinic' another public key than the one it sent"):
            members["clinic"].sign(changed)


def test_every_flipped_bit_of_a_signature_is_refused_by_whoever_sees_it() -> None:
    members = agreements(identity.simulated(NAMES[:3], "run 1"))
    publics = {name: member.public for name, member in members.items()}
    signatures = {name: member.sign(publics) for name, member in members.items()}
    for bit in range(64 * 8):
        changed = signatures | {"clinic": flipped(signatures["clinic"], bit)}
        with pytest.raises(Untrusted, match=r"'shop' refuses the signature of 'clinic'"):
            members["shop"].secrets(changed)
    with pytest.raises(Untrusted, match=r"'clinic' refuses the signature of 'clinic'"):
        members["clinic"].secrets(changed)  # its own comes back changed
    assert (
        members["bank"].secrets(signatures)["shop"] == members["shop"].secrets(signatures)["bank"]
    )


def test_a_signature_has_one_form() -> None:
    """S + L satisfies the same equation as S; who accepts both accepts what nobody signed."""
    order = 2**252 + 27742317777372353535851937790883648493
    members = agreements(identity.simulated(NAMES[:2], "run 1"))

    def stretched(receiver: str, shown: Shown) -> Shown:
        raw = shown["clinic"]
        scalar = int.from_bytes(raw[32:], "little") + order
        return shown | {"clinic": raw[:32] + scalar.to_bytes(32, "little")}

    secrets, refused = relay(members, signatures_to=stretched)
    assert not secrets
    assert refused.keys() == {"bank", "clinic"}


@pytest.mark.parametrize("session", ["run 1", "run 2"])
def test_keys_and_signatures_of_an_older_session_are_refused(session: str) -> None:
    """Also where it has the same name: a run that is started again from its beginning."""
    known = identity.simulated(NAMES[:3], "run 1")
    old = agreements(known)
    old_publics = {name: member.public for name, member in old.items()}
    old_signatures = {name: member.sign(old_publics) for name, member in old.items()}
    renewed = {name: replace(one, session=session) for name, one in known.items()}

    def old_key(receiver: str, shown: Shown) -> Shown:
        return shown | {"clinic": old_publics["clinic"]}

    def old_signature(receiver: str, shown: Shown) -> Shown:
        return shown | {"clinic": old_signatures["clinic"]}

    def all_old_keys(receiver: str, shown: Shown) -> Shown:
        return old_publics

    def all_old_signatures(receiver: str, shown: Shown) -> Shown:
        return old_signatures

    def but_its_own(receiver: str, shown: Shown) -> Shown:
        return old_publics | {receiver: shown[receiver]}

    for publics, signatures in (
        (old_key, untouched),
        (old_key, old_signature),
        (untouched, old_signature),
        (all_old_keys, all_old_signatures),
        (but_its_own, all_old_signatures),
    ):
        secrets, refused = relay(agreements(renewed), publics, signatures)
        assert not secrets
        assert refused


def test_a_signature_of_another_session_is_refused_even_over_the_same_keys() -> None:
    known = identity.simulated(NAMES[:3], "run 1")
    other = {name: replace(one, session="run 2") for name, one in known.items()}
    members = agreements(known | {"shop": other["shop"]})
    secrets, refused = relay(members)
    assert not secrets
    assert refused.keys() == members.keys()


@pytest.mark.parametrize("what", ["keys", "signatures", "both"])
def test_swapped_senders_are_refused(what: str) -> None:
    def swapped(receiver: str, shown: Shown) -> Shown:
        return shown | {"bank": shown["clinic"], "clinic": shown["bank"]}

    def for_shop(receiver: str, shown: Shown) -> Shown:
        return swapped(receiver, shown) if receiver == "shop" else shown

    for tamper in (swapped, for_shop):
        members = agreements(identity.simulated(NAMES[:3], "run 1"))
        secrets, refused = relay(
            members,
            tamper if what != "signatures" else untouched,
            tamper if what != "keys" else untouched,
        )
        assert "shop" not in secrets
        assert refused
        if what != "signatures" or tamper is swapped:
            assert not secrets


def test_two_different_views_of_the_keys_end_with_nobody_having_secrets() -> None:
    """The classical attack: the relay puts a key of its own between two members."""
    known = identity.simulated(NAMES[:3], "run 1")
    between = Agreement(known["bank"], list(known), PURPOSE).public  # the relay 'bank' knows it

    def in_the_middle(receiver: str, shown: Shown) -> Shown:
        other = {"clinic": "shop", "shop": "clinic"}.get(receiver)
        return shown | {other: between} if other else shown

    secrets, refused = relay(agreements(known), in_the_middle)
    assert not secrets
    assert refused.keys() == set(known)


@pytest.mark.parametrize(
    "change",
    [
        lambda shown: {n: v for n, v in shown.items() if n != "shop"},
        lambda shown: shown | {"tower": shown["shop"]},
        lambda shown: {n: v for n, v in shown.items() if n != "shop"} | {"Shop": shown["shop"]},
        lambda shown: shown | {"shop": shown["shop"][:-1]},
        lambda shown: shown | {"shop": shown["shop"] + b"\0"},
        lambda shown: shown | {"shop": b""},
        lambda shown: shown | {"shop": shown["shop"].hex()},
        lambda shown: shown | {"shop": torch.zeros(len(shown["shop"]), dtype=torch.uint8)},
        lambda shown: shown | {"shop": {"shop": shown["shop"]}},
        lambda shown: {},
    ],
    ids=["missing", "extra", "renamed", "short", "long", "empty", "text", "tensor", "tree", "none"],
)
def test_what_is_not_one_value_of_the_right_size_per_member_is_refused(change: Any) -> None:
    for which in ("keys_to", "signatures_to"):
        members = agreements(identity.simulated(NAMES[:3], "run 1"))
        tampering: dict[str, Any] = {which: lambda _, shown: change(shown)}
        secrets, refused = relay(members, **tampering)
        assert not secrets
        assert refused.keys() == members.keys()
        assert "'bank' was shown the" in refused["bank"]
        assert "from each of bank, clinic, shop" in refused["bank"]


@pytest.mark.parametrize("sent", [b"keys", 7, torch.zeros(3)])
def test_what_is_no_tree_is_refused(sent: Any) -> None:
    (member, *_) = agreements(identity.simulated(NAMES[:3], "run 1")).values()
    with pytest.raises(Untrusted):
        member.sign(sent)


# ---- members that cheat ------------------------------------------------------------------------

FIELD = 2**255 - 19
ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)


@pytest.mark.parametrize("high_bit", [0, 1 << 255], ids=["", "high-bit"])
@pytest.mark.parametrize(
    "point",
    [0, 1, *ORDER_8, FIELD - 1, FIELD, FIELD + 1],
    ids=["0", "1", "order-8a", "order-8b", "p-1", "p", "p+1"],
)
def test_a_point_of_small_order_is_refused_even_when_it_is_signed(
    point: int, high_bit: int
) -> None:
    """With it the secret would be zero, and known to the relay."""
    members = agreements(identity.simulated(NAMES[:3], "run 1"))
    members["shop"].public = (point | high_bit).to_bytes(32, "little")
    secrets, refused = relay(members)
    assert secrets.keys() <= {"shop"}
    assert refused["bank"] == "'shop' sent 'bank' an invalid public key"
    assert refused["clinic"] == "'shop' sent 'clinic' an invalid public key"


def test_a_member_cannot_take_the_key_of_another_for_its_own() -> None:
    members = agreements(identity.simulated(NAMES[:3], "run 1"))
    members["shop"].public = members["clinic"].public
    secrets, refused = relay(members)
    assert not secrets
    assert refused["bank"] == "the relay shows 'bank' one public key for two parties"


def test_a_member_with_anothers_key_in_disguise_gets_other_secrets() -> None:
    """X25519 ignores the highest bit: the same point, but names and transcript part the pairs."""
    members = agreements(identity.simulated(NAMES[:3], "run 1"))
    members["shop"].public = flipped(members["clinic"].public, 255)
    secrets, _ = relay(members)
    assert secrets["bank"]["shop"] != secrets["bank"]["clinic"]


def test_a_signing_key_that_is_not_the_pinned_one_is_refused() -> None:
    known = identity.simulated(NAMES[:3], "run 1")
    forger = replace(known["shop"], key=Ed25519PrivateKey.generate())
    secrets, refused = relay(agreements(known | {"shop": forger}))
    assert not secrets  # its own signature does not fit the key that everybody has pinned
    assert "'bank' refuses the signature of 'shop'" in refused["bank"]
    assert "pinned key" in refused["bank"]


def test_a_member_that_pins_another_key_refuses_alone() -> None:
    known = identity.simulated(NAMES[:3], "run 1")
    stranger = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    misled = replace(known["shop"], trusted={**known["shop"].trusted, "bank": stranger})
    secrets, refused = relay(agreements(known | {"shop": misled}))
    assert secrets.keys() == {"bank", "clinic"}
    assert "'shop' refuses the signature of 'bank'" in refused["shop"]


def test_a_member_without_a_pinned_key_is_refused() -> None:
    known = identity.simulated(NAMES[:3], "run 1")
    trusted = {n: key for n, key in known["shop"].trusted.items() if n != "bank"}
    secrets, refused = relay(agreements(known | {"shop": replace(known["shop"], trusted=trusted)}))
    assert "shop" not in secrets
    assert "a signature of 'bank', whose key it lacks" in refused["shop"]


@pytest.mark.parametrize("other", ["test ring=32 fraction=24", "test ring=64 fraction=23", ""])
def test_members_that_agree_on_different_purposes_are_refused(other: str) -> None:
    known = identity.simulated(NAMES[:3], "run 1")
    members = agreements(known)
    members["shop"] = Agreement(known["shop"], list(known), other)
    secrets, refused = relay(members)
    assert not secrets
    assert refused.keys() == members.keys()


def test_names_and_purposes_cannot_run_into_each_other() -> None:
    """'a', 'bc' and 'ab', 'c' are different transcripts."""
    first = identity.simulated(("x", "y"), "s")
    secrets, refused = relay(
        {
            "x": Agreement(replace(first["x"], session="ab"), ["x", "y"], "c"),
            "y": Agreement(replace(first["y"], session="a"), ["x", "y"], "bc"),
        }
    )
    assert not secrets
    assert len(refused) == 2


def test_a_member_that_expects_another_one_refuses() -> None:
    known = identity.simulated(NAMES[:4], "run 1")
    three = {name: known[name] for name in NAMES[:3]}
    members = agreements(three)
    members["shop"] = Agreement(known["shop"], NAMES[:4], PURPOSE)
    secrets, refused = relay(members)
    assert not secrets
    assert "from each of bank, clinic, shop, tower" in refused["shop"]


def test_nothing_is_derived_before_the_keys_were_signed() -> None:
    known = identity.simulated(NAMES[:2], "run 1")
    members = agreements(known)
    publics = {name: member.public for name, member in members.items()}
    signatures = {name: member.sign(publics) for name, member in members.items()}
    with pytest.raises(Untrusted, match=r"refuses the signature"):
        Agreement(known["bank"], list(known), PURPOSE).secrets(signatures)


# ---- the roles, one at a time ------------------------------------------------------------------


class Sent:
    """A wire that keeps what was sent."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, Any]] = []

    def put(self, receiver: str, kind: Kind, value: Any) -> None:
        self.messages.append((receiver, kind.name, value))


def member(name: str, known: Identity | None) -> Party:
    schedule = Schedule(0, 1, 1)
    party = Party(name, "", Recipe(), schedule, {}, None, Task.of(("0", "1")), torch.device("cpu"))
    party.identity = known
    return party


def test_the_active_party_takes_from_a_peer_its_own_key_only() -> None:
    known = identity.simulated(NAMES[:3], "run 1")
    others = agreements({name: known[name] for name in NAMES[1:3]}, members=NAMES[:3])
    wire = Sent()
    peers = [Peer(name, wire) for name in others]
    me = member("bank", known["bank"])

    def swapped(wanted: Recv) -> Shown:
        other = {"clinic": "shop", "shop": "clinic"}[wanted.peers[0].name]
        return {other: others[other].public}

    def too_much(wanted: Recv) -> Shown:
        return {name: one.public for name, one in others.items()}

    for take in (swapped, too_much, lambda wanted: {}):
        with pytest.raises(Untrusted, match=r"'clinic' sent 'bank' the public_keys of"):
            drive(keys.active_keys(me, peers, PURPOSE), take)
    assert not wire.messages  # nothing was relayed


def test_a_passive_party_signs_nothing_that_it_refuses() -> None:
    known = identity.simulated(NAMES[:3], "run 1")
    wire = Sent()
    role = keys.passive_keys(
        member("shop", known["shop"]), Peer("bank", wire), [Peer("clinic", wire)], PURPOSE
    )
    with pytest.raises(Untrusted, match=r"another public key than the one it sent"):
        drive(role, lambda wanted: {name: name.ljust(32).encode() for name in NAMES[:3]})
    assert [kind for _, kind, _ in wire.messages] == ["public_keys"]


def test_a_party_without_a_signing_key_says_what_the_method_lacks() -> None:
    wire = Sent()
    role = keys.passive_keys(member("shop", None), Peer("bank", wire), [], PURPOSE)
    with pytest.raises(Untrusted, match=r"'shop' has no signing key.*signs="):
        drive(role, lambda wanted: {})
    assert not wire.messages


# ---- a whole method over a wire that changes messages ------------------------------------------

TREE: dict[str, Any] = {
    "method": "easter",
    "epochs": 1,
    "batch_size": 30,
    "model_options": {"hidden": [8]},
    "data": {"name": "digits", "train_rows": 60, "test_rows": 40},
    "partition": {"kind": "columns", "parties": 3},
    "checkpoint": {"epochs": 0},
    "easter": {"dim": 4},
}


def tampering(patch: pytest.MonkeyPatch, change: Callable[[Message], None]) -> list[Message]:
    """Every message passes through `change` on its way; what was changed is returned."""
    original = local.Mailboxes.send
    changed: list[Message] = []

    def send(mail: local.Mailboxes, message: Message, *given: Any) -> None:
        before = message.value
        change(message)
        if message.value is not before:
            changed.append(message)
        original(mail, message, *given)

    patch.setattr(local.Mailboxes, "send", send)
    return changed


def sent_kinds(folder: Path) -> set[str]:
    return {row["kind"] for row in ledger.read(folder / "ledger.jsonl")}


@pytest.mark.parametrize("kind", ["public_keys", "signatures"])
@pytest.mark.parametrize(
    ("sender", "receiver", "whose", "refusing"),
    [
        ("party2", "party1", "party2", "party2|party1"),  # on its way up
        ("party1", "party3", "party2", "party3|party1"),  # down, to one
        ("party1", "party2", "party2", "party2"),  # back to where it came from
        ("party1", "party3", "party1", "party3|party1"),  # the relay's own
    ],
)
def test_a_flipped_bit_in_the_handshake_stops_a_run_before_anything_is_masked(
    kind: str,
    sender: str,
    receiver: str,
    whose: str,
    refusing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def change(message: Message) -> None:
        if (message.kind.name, message.sender, message.receiver) == (kind, sender, receiver):
            assert isinstance(message.value, Mapping)
            value = message.value[whose]
            assert isinstance(value, bytes)
            message.value = {**message.value, whose: flipped(value, 77)}

    changed = tampering(monkeypatch, change)
    with pytest.raises(Untrusted, match=rf"'({refusing})'") as caught:
        colonnade.run(TREE, out=tmp_path / "run")
    assert len(changed) == 1
    assert any("in its set-up" in note for note in caught.value.__notes__)
    # A member that was shown everything right may have begun; the one that was deceived has not.
    rows = list(ledger.read(tmp_path / "run" / "ledger.jsonl"))
    deceived = receiver if sender == "party1" else "party2"
    assert not [r for r in rows if r["sender"] == deceived and r["phase"] != "setup"]
    assert "global_embedding" not in {row["kind"] for row in rows}


@pytest.mark.parametrize("part", ["values", "tag", "sender"])
@pytest.mark.parametrize("phase", ["train", "eval"])
def test_a_changed_masked_message_is_refused_by_name_and_place(
    part: str, phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def change(message: Message) -> None:
        if message.kind.name != "masked_embedding" or message.phase != phase:
            return
        assert isinstance(message.value, Mapping)
        if message.sender == "party2":
            seen["party2"] = message.value
        elif part == "sender":
            message.value = seen["party2"]  # what party2 sent, under the name of party3
        elif part == "tag":
            tag = message.value["tag"]
            assert isinstance(tag, bytes)
            message.value = {**message.value, "tag": flipped(tag, 127)}
        else:
            values = message.value["values"]
            assert isinstance(values, torch.Tensor)
            values = values.clone()
            values[-1, -1] ^= 1
            message.value = {**message.value, "values": values}

    changed = tampering(monkeypatch, change)
    place = r"train, epoch 1, step 1" if phase == "train" else r"eval/test, epoch 1, step 1"
    with pytest.raises(
        Untrusted, match=rf"'party1' refuses the masked values of 'party3' at {place}"
    ):
        colonnade.run(TREE, out=tmp_path / "run")
    assert len(changed) == 1
    if phase == "train":
        assert "global_embedding" not in sent_kinds(tmp_path / "run")


def test_a_masked_message_of_the_step_before_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[Any] = []

    def change(message: Message) -> None:
        if message.kind.name == "masked_embedding" and message.sender == "party2":
            first.append(message.value)
            message.value = first[0]

    tampering(monkeypatch, change)
    with pytest.raises(Untrusted, match=r"'party2' at train, epoch 1, step 2.*another moment"):
        colonnade.run(TREE, out=tmp_path / "run")


@pytest.mark.parametrize("option", [{"fraction": 20}, {"ring": 32}, {"mask": "paper"}])
def test_parties_that_would_mask_differently_are_refused(
    option: dict[str, Any], tmp_path: Path
) -> None:
    settings = config.load(TREE)
    federation = assembly.from_catalogue(settings)
    for name, known in identity.simulated(list(federation.parties), "run 1").items():
        federation.parties[name].identity = known
    method = settings.found.method

    def start(party: Party, wire: Wire) -> Any:
        own = replace(settings.options, **option) if party.name == "party3" else settings.options
        return bind(method.roles[party.role].train, party, federation.cast, wire, own)

    book = Ledger(tmp_path / "ledger.jsonl")
    mail = local.Mailboxes({kind.name: kind for kind in method.kinds}, book)
    with pytest.raises(Untrusted, match=r"refuses the signature of 'party[123]'"):
        local.run(federation.parties, start, mail)
    book.close()
    assert "masked_embedding" not in sent_kinds(tmp_path)


def test_no_secret_is_ever_on_the_disk_or_on_the_wire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bytes] = []
    original = Agreement.secrets

    def spied(agreement: Agreement, signatures: Mapping[str, bytes]) -> Shown:
        secrets = original(agreement, signatures)
        found.extend([*secrets.values(), agreement._key.private_bytes_raw()])
        found.append(agreement._identity.key.private_bytes_raw())
        return secrets

    monkeypatch.setattr(Agreement, "secrets", spied)
    monkeypatch.setattr("colonnade.runtime.checkpoint.Checkpoints.clear", lambda self: None)
    kinds = ["public_keys", "signatures", "masked_embedding", "global_embedding"]
    colonnade.run(TREE | {"record": kinds, "checkpoint": {"steps": 1}}, out=tmp_path / "run")
    assert len(found) == 3 * (2 + 2)
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert any(file.parent.parent.name == "checkpoints" for file in files)
    for file in files:
        content = file.read_bytes()
        for secret in found:
            assert secret not in content
            assert secret.hex().encode() not in content


def test_what_is_sealed_only_the_other_of_the_pair_opens() -> None:
    secret, other = b"a" * 32, b"b" * 32
    text = keys.seal(secret, "masks", b"the seed of A")
    assert b"seed" not in text
    assert keys.unseal(secret, "masks", text) == b"the seed of A"
    changed = bytes([text[0] ^ 1]) + text[1:]
    for key, purpose, given in (
        (other, "masks", text),
        (secret, "vectors", text),
        (secret, "masks", changed),
        (secret, "masks", text[:-1]),
    ):
        with pytest.raises(Untrusted, match="sealed"):
            keys.unseal(key, purpose, given)
