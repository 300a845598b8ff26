"""Private set intersection against plain sets, and against messages that are not as they should."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from meeting import NAMES, Ids, Meeting, Tamper, lying, overlapping, party
from torch import Tensor

from colonnade.align import (
    KINDS,
    Alignment,
    common_rows,
    lists,
    many,
    opening,
    points,
    psi,
    ristretto,
    table,
    two,
)
from colonnade.errors import DataError, MethodError, Untrusted
from colonnade.role import identity
from colonnade.role.party import Party
from colonnade.runtime import local
from colonnade.wire import Ledger, Peer, codec, ledger


def options(**changes: Any) -> Alignment:
    return Alignment(**({"minimum": 0} | changes))


def check(ids: Ids, chosen: Alignment) -> Meeting:
    """Everybody has the rows of the plain intersection, in one order."""
    meeting = Meeting().hold(ids, chosen)
    assert not meeting.errors and not meeting.waiting
    assert not any(meeting.queues.values())  # nothing was sent in vain
    common = set.intersection(*(set(map(str, rows)) for rows in ids.values()))
    found = [[str(ids[name][row]) for row in meeting.rows[name]] for name in ids]
    assert len(found[0]) == len(common) and set(found[0]) == common
    assert all(order == found[0] for order in found)
    return meeting


# ---- equal to plain sets -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 2, 10, 1000])
def test_it_is_the_intersection(size: int) -> None:
    check(overlapping(size), options())


def test_ten_thousand_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "CHUNK_BYTES", 1 << 16)
    ids = overlapping(10_000)
    ids["clinic"] = ids["clinic"][:7_001]  # other numbers of pieces, the last one short
    meeting = check(ids, options())
    pieces = [value for _, _, kind, value in meeting.sent if kind == "psi_points"]
    assert len(pieces) > 8 and max(piece.numel() for piece in pieces) <= 1 << 16


@pytest.mark.parametrize("parties", [2, 3])
def test_nobody_sends_a_long_list_to_somebody_who_does_not_read(
    parties: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces go and come in turn: with room for a few of them, two that send at once go on."""
    monkeypatch.setattr(lists, "CHUNK_BYTES", 1 << 10)
    meeting = check(overlapping(600, parties), options())
    assert len(values(meeting, "psi_points")) > 20 * parties
    assert 1 <= meeting.most_unread["psi_points"] <= parties


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (["a", "b", "c"], ["x", "y"]),  # disjoint
        (["a", "b", "c"], ["c", "a", "b"]),  # equal
        (["a", "b", "c", "d"], ["d", "b"]),  # a subset
        (["b"], ["d", "b", "z"]),
        ([], ["d", "b", "z"]),
        (["Zoë", "дом", "東京", "🦊", "a b"], ["東京", "🦊", "дом", "zoe", "ab"]),
        ([7, 8, 2**70], ["8", "7", "007", str(2**70)]),  # numbers as text
    ],
)
def test_small_sets(left: Sequence[object], right: Sequence[object]) -> None:
    check({"bank": left, "shop": right}, options())
    check({"shop": left, "bank": right}, options())


@pytest.mark.parametrize("parties", [3, 5])
@pytest.mark.parametrize("size", [1, 2, 40])
def test_more_than_two_parties(parties: int, size: int) -> None:
    ids = overlapping(size, parties)
    names = list(ids)
    for at, name in enumerate(names):  # some ids that all but one have, some that only two have
        for other in names:
            if other != name:
                ids[other].append(f"all but {name}")
        ids[name].append(f"pair {at}")
        ids[names[at - 1]].append(f"pair {at}")
    check(ids, options())


def test_sets_of_very_different_size_at_three_parties() -> None:
    many = [f"id {i}" for i in range(300)]
    check({"bank": many[7:9], "clinic": many, "shop": many[5:50:3]}, options())
    check({"bank": many, "clinic": [], "shop": many[5:50:3]}, options())


def test_a_second_run_gives_the_same_rows_in_the_same_order() -> None:
    ids = overlapping(50)
    first = check(ids, options()).rows
    assert check(ids, options()).rows == first  # with other secrets
    in_order = [ids["bank"][row] for row in first["bank"]]
    assert in_order != sorted(in_order)  # nor does the order say anything about ids


def test_the_order_does_not_depend_on_where_a_party_keeps_its_rows() -> None:
    ids = overlapping(30)
    turned = ids | {"bank": ids["bank"][::-1]}
    first, second = check(ids, options()).rows, check(turned, options()).rows
    assert first["clinic"] == second["clinic"]


def test_casefold() -> None:
    ids = {"bank": ["Ann", "BOB", "Straße"], "shop": ["ann ", "bob", "STRASSE"]}
    assert not Meeting().hold(ids, options()).rows["bank"]
    rows = Meeting().hold(ids, options(casefold=True)).rows
    assert rows["bank"] == rows["shop"] and sorted(rows["bank"]) == [0, 1, 2]


def test_in_the_runtime_for_one_process(tmp_path: Path) -> None:
    ids = overlapping(20, 3)
    parties = {name: party(name) for name in ids}
    for name, known in identity.simulated(list(ids), "a session").items():
        parties[name].identity = known

    def start(me: Party, wire: Any) -> Any:
        peers = [Peer(name, wire) for name in ids if name != me.name]
        return common_rows(me, peers, ids[me.name], options())

    for strict in (False, True):
        book = Ledger(tmp_path / f"ledger-{strict}.jsonl")
        mail = local.Mailboxes({kind.name: kind for kind in KINDS}, book, strict=strict)
        found = local.run(parties, start, mail)
        book.close()
        assert not mail.warnings()
        rows = list(ledger.read(tmp_path / f"ledger-{strict}.jsonl"))
        assert {row["kind"] for row in rows} == {kind.name for kind in KINDS}
        assert {name: rows.tolist() for name, rows in found.items()} == check(ids, options()).rows
    assert parties["bank"].spent["alignment"] > 0
    assert all(party.remarks == [psi.EXPERIMENTAL] for party in parties.values())


@pytest.mark.parametrize("parties", [2, 3])
def test_progress_counts_the_points_of_all(parties: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every party multiplies each set once; of three, its own a second time."""
    monkeypatch.setattr(ristretto, "TOLD", 5)
    told: dict[str, list[tuple[int, float]]] = {}
    shown = points.shown

    def watched(me: Any, total: int) -> Any:
        tell = shown(me, total)

        def heard(count: int) -> None:
            tell(count)
            meter = me.progress.meter
            told.setdefault(me.name, []).append((meter.points, meter.share))

        return heard

    for module in (two, many):
        monkeypatch.setattr(module, "shown", watched)
    ids = overlapping(12, parties)
    check(ids, options())
    total = 12 * (2 if parties == 2 else 4)
    for heard in told.values():
        assert {points for points, _ in heard} == {total}
        shares = [share for _, share in heard]
        assert shares == sorted(shares) and shares[-1] == 1 and len(shares) == total // 12 * 3


# ---- what crosses ------------------------------------------------------------------------------


def raw(sent: Sequence[tuple[str, str, str, Any]]) -> bytes:
    return b"|".join(codec.encode(value) for *_, value in sent)


@pytest.mark.parametrize("parties", [2, 3])
def test_no_payload_holds_an_id_or_a_hash_of_one(parties: int) -> None:
    ids = overlapping(12, parties)
    payload = raw(check(ids, options()).sent)
    bare = ristretto.make(2)
    monkey: Any = bare
    monkey._blind = ristretto._scalar(1)  # H(id) under no secret
    for text in {text for texts in ids.values() for text in texts}:
        assert text.encode() not in payload
        for algorithm in ("md5", "sha1", "sha256", "sha512", "blake2b", "sha3_256"):
            digest = hashlib.new(algorithm, text.encode())
            assert digest.digest()[:16] not in payload
            assert digest.hexdigest()[:16].encode() not in payload
        assert points.rank(text)[:16] not in payload
        assert bare.hide([text]).numpy().tobytes() not in payload


def test_two_runs_share_no_point() -> None:
    ids = overlapping(12)
    runs = [check(ids, options()) for _ in range(2)]
    first, second = (
        {row.tobytes() for value in values(run, "psi_points") for row in value.numpy()}
        for run in runs
    )
    assert len(first) == 2 * 2 * 12 - 6  # both sets, twice; the common ones meet
    assert not first & second


def values(meeting: Meeting, kind: str, sender: str = "", receiver: str = "") -> list[Any]:
    return meeting.values(kind, sender, receiver)


def unread(points: Tensor) -> list[bytes]:
    return [row.tobytes() for row in points.numpy()]


def known_secrets(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The secrets of all parties, in the order in which they have heard all openings."""
    made: list[Any] = []
    make = ristretto.make

    def watched(parties: int, tell: Any) -> ristretto.Secrets:
        made.append(make(parties, tell))
        return made[-1]  # type: ignore[no-any-return]

    monkeypatch.setattr(ristretto, "make", watched)
    return made


def test_both_ends_shuffle(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = known_secrets(monkeypatch)
    ids = overlapping(60)
    meeting = check(ids, options())
    clinic, bank = secrets
    in_row_order = unread(bank.hide(ids["bank"]))
    hidden = values(meeting, "psi_points", "bank")[0]
    assert sorted(unread(hidden)) == sorted(in_row_order) and unread(hidden) != in_row_order
    as_it_came = unread(clinic.lock(hidden))
    locked = unread(values(meeting, "psi_points", "clinic")[1])
    assert sorted(locked) == sorted(as_it_came) and locked != as_it_came


def test_of_three_parties_nobody_sees_the_finished_set_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secrets = known_secrets(monkeypatch)
    ids = overlapping(20, 3)
    meeting = check(ids, options())
    crossed = {row for value in values(meeting, "psi_points") for row in unread(value)}
    assert len(crossed) == 3 * 3 * 20  # no set can be compared with another, at any hop
    finished = set()
    for text in {text for texts in ids.values() for text in texts}:
        point = secrets[0].finish(secrets[0].hide([text]))
        finished |= set(unread(secrets[2].lock(secrets[1].lock(point))))
    common = {row for value in values(meeting, "psi_common") for row in unread(value)}
    assert common <= finished and len(common) == 10  # the test knows what it looks for
    assert not crossed & finished


def test_the_tables_of_three_parties_say_nothing_about_two_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The counting party has some ids in common with one other, and cannot see how many."""
    secrets: dict[str, Mapping[str, bytes]] = {}
    finished: dict[str, Any] = {}
    shares = many.share

    def watched(points: Any, shared: Mapping[str, bytes]) -> Any:
        (owner,) = set(NAMES[:3]) - set(shared)
        secrets[owner], finished[owner] = shared, points
        return shares(points, shared)

    monkeypatch.setattr(many, "share", watched)
    people = [f"id {i}" for i in range(150)]
    meeting = check({"bank": people, "clinic": people[:100], "shop": people[50:]}, options())
    mine = finished["bank"]
    held = {name: np.isin(keys(mine), keys(finished[name])) for name in ("clinic", "shop")}
    assert held["clinic"].sum() == held["shop"].sum() == 100
    both = held["clinic"] & held["shop"]
    answers = {
        name: table.decode(values(meeting, "psi_table", name)[0].numpy(), mine)
        ^ table.digests(mine, table.VALUE, secrets["bank"][name])  # all it can take away
        for name in held
    }
    together = answers["clinic"] ^ answers["shop"]
    assert not together[both].any() and together[~both].any(axis=1).all()
    for rows in (*answers.values(), together[~both]):
        assert len(set(keys(rows))) == len(rows)  # no two alike, none 0 by itself
        assert rows.any(axis=1).all()
        bits = np.unpackbits(rows)
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / len(bits) ** 0.5


def keys(rows: Any) -> Any:
    return np.array([row.tobytes().hex() for row in rows])


# ---- too few -----------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [2, 3])
def test_with_too_few_common_rows_nobody_learns_which(parties: int) -> None:
    ids = overlapping(20, parties)  # 10 are common
    meeting = Meeting().hold(ids, options(minimum=11))
    assert meeting.errors.keys() == ids.keys()
    for error in meeting.errors.values():
        assert isinstance(error, DataError)
        assert "fewer than 11 rows are common" in str(error)
    kinds = {kind for _, _, kind, _ in meeting.sent}
    assert "psi_points" in kinds and not kinds & {"psi_common", "psi_places"}
    told = {int(value) for value in values(meeting, "psi_count")}
    assert told == (set() if parties == 2 else {many.TOO_FEW})  # two count for themselves
    check(ids, options(minimum=10))


def test_a_set_below_the_minimum_ends_it_before_any_point_is_sent() -> None:
    ids = overlapping(20, 3) | {"shop": ["a", "b"]}
    meeting = Meeting().hold(ids, options(minimum=3))
    assert meeting.errors.keys() == ids.keys()
    assert all("fewer than 3 rows" in str(error) for error in meeting.errors.values())
    assert {kind for _, _, kind, _ in meeting.sent} == {"psi_opening"}


def test_no_shuffle_is_undone_for_less_than_the_minimum() -> None:
    """A counting party that ignores the minimum gets nothing from the others."""
    ids = overlapping(20, 3)

    def lie(sender: str, receiver: str, kind: str, number: int, value: Any) -> Any:
        return torch.tensor(10) if kind == "psi_count" else value

    meeting = Meeting(lie).hold(ids, options(minimum=11))
    for name in ("clinic", "shop"):
        assert isinstance(meeting.errors[name], Untrusted)
        assert "'bank' reported" in str(meeting.errors[name])
    assert not values(meeting, "psi_places")


# ---- messages that are not as they should ------------------------------------------------------


def at(kind: str, number: int, change: Callable[[Any], Any], sender: str = "clinic") -> Tamper:
    """Change one message of 'clinic'."""

    def tamper(one: str, other: str, name: str, before: int, value: Any) -> Any:
        return change(value) if (one, name, before) == (sender, kind, number) else value

    return tamper


def row_is(content: bytes, row: int = 3) -> Callable[[Tensor], Tensor]:
    def change(value: Tensor) -> Tensor:
        changed = value.clone()
        changed[row] = torch.tensor(list(content), dtype=value.dtype)
        return changed

    return change


def first_twice(value: Tensor) -> Tensor:
    changed = value.clone()
    changed[1] = changed[0]
    return changed


def first_is(number: int) -> Callable[[Tensor], Tensor]:
    def change(value: Tensor) -> Tensor:
        changed = value.clone()
        changed[0] = number
        return changed

    return change


IDENTITY = bytes(32)
NOT_CANONICAL = bytes([0xED, *[0xFF] * 30, 0x7F])  # p, which is another way to write 0
NEGATIVE = bytes([1, *[0] * 31])
NOT_ON_CURVE = bytes([2, *[0] * 31])


def refused(meeting: Meeting, name: str, words: str, by: str = "clinic") -> None:
    error = meeting.errors[name]
    assert isinstance(error, Untrusted | DataError), error
    assert f"'{by}'" in str(error) and words in str(error), error
    assert not meeting.rows.get(name)


@pytest.mark.parametrize("content", [IDENTITY, NOT_CANONICAL, NEGATIVE, NOT_ON_CURVE, b"\xff" * 32])
@pytest.mark.parametrize("parties", [2, 3])
def test_what_is_not_a_point_is_refused(content: bytes, parties: int) -> None:
    ids = overlapping(8, parties)
    receiver = {2: "bank", 3: "shop"}[parties]  # the next one in the ring
    meeting = Meeting(at("psi_points", 0, row_is(content))).hold(ids, options())
    refused(meeting, receiver, "number 3 is not a point")
    assert not meeting.rows


def test_a_finished_set_with_no_point_in_it_is_refused() -> None:
    ids = overlapping(8, 3)
    meeting = Meeting(at("psi_points", 2, row_is(IDENTITY))).hold(ids, options())
    refused(meeting, "shop", "number 3 is not a point")


def test_one_wrong_point_in_the_second_piece_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "CHUNK_BYTES", 320)
    meeting = Meeting(at("psi_points", 1, row_is(IDENTITY, 9))).hold(overlapping(25), options())
    refused(meeting, "bank", "from row 10 on, number 9")


WRONG = [
    ("psi_points", 0, lambda v: v[:, :-1], "of shape (8, 31), where (8, 32)"),
    ("psi_points", 0, lambda v: v[:-1], "of shape (7, 32), where (8, 32)"),
    ("psi_points", 0, lambda v: torch.cat([v, v]), "of shape (16, 32), where (8, 32)"),
    ("psi_points", 0, lambda v: v.float(), "a piece of 'psi_points'"),
    ("psi_points", 0, lambda v: {"a": v}, "of shape dict"),
    ("psi_points", 0, lambda v: v.flip(0), "another 'psi_points' than it had announced"),
    ("psi_points", 1, lambda v: v[:-1], "of shape (7, 32), where (8, 32)"),
    ("psi_points", 1, lambda v: v.flip(0), "another 'psi_points' than it had announced"),
    ("psi_places", 0, lambda v: v[:-1], "of shape (3,), where (4,)"),
    ("psi_places", 0, lambda v: v.flip(0), "another 'psi_places' than it had announced"),
    ("psi_opening", 0, lambda v: 3, "a malformed opening"),
    ("psi_opening", 0, lambda v: v | {"ids": "many"}, "a malformed opening"),
    ("psi_opening", 0, lambda v: v | {"ids": True}, "a malformed opening"),
    ("psi_opening", 0, lambda v: {"ids": 8}, "a malformed opening"),
    ("psi_opening", 0, lambda v: v | {"public": b"x"}, "does not fit its signature"),
    ("psi_opening", 0, lambda v: v | {"ids": 9}, "does not fit its signature"),
    ("psi_opening", 0, lambda v: v | {"digest": bytes(32)}, "refuses the signature"),
    ("psi_opening", 0, lambda v: v | {"signature": bytes(64)}, "refuses the signature"),
    ("psi_opening", 0, lambda v: v | {"settings": {}}, "minimum = 0, 'clinic' with None"),
    ("psi_announcement", 0, lambda v: 3, "a malformed announcement"),
    ("psi_announcement", 0, lambda v: v | {"digest": b"short"}, "a malformed announcement"),
    ("psi_announcement", 1, lambda v: v | {"signature": "?"}, "a malformed announcement"),
    ("psi_announcement", 1, lambda v: v | {"digest": bytes(32)}, "refuses the signature"),
]


@pytest.mark.parametrize(("kind", "number", "change", "words"), WRONG)
def test_a_wrong_message_is_refused_by_its_receiver(
    kind: str, number: int, change: Callable[[Any], Any], words: str
) -> None:
    meeting = Meeting(at(kind, number, change)).hold(overlapping(8), options())
    refused(meeting, "bank", words)


LIES = [
    ("psi_points", 0, first_twice, "equal points"),
    ("psi_points", 1, first_twice, "equal points"),
    ("psi_places", 0, first_is(-1), "4 different ones of 8"),
    ("psi_places", 0, first_is(8), "4 different ones of 8"),
    ("psi_places", 0, first_twice, "4 different ones of 8"),
]


@pytest.mark.parametrize(("kind", "number", "change", "words"), LIES)
def test_a_list_that_its_sender_has_signed_is_looked_at_all_the_same(
    kind: str,
    number: int,
    change: Callable[[Tensor], Tensor],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lying(monkeypatch, "clinic", kind, number, change)
    refused(Meeting().hold(overlapping(8), options()), "bank", words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"public": bytes(32)}, "an invalid public key"),
        ({"public": b"short"}, "an invalid public key"),
        ({"ids": 1_000_001}, "'most'"),
        ({"ids": -1}, "'most'"),
        ({"ids": 9}, "of shape (8, 32), where (9, 32)"),
    ],
)
def test_an_opening_that_its_sender_has_signed_is_looked_at_all_the_same(
    change: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_digest", lambda *_: bytes(32))  # so that any signature fits
    ids = overlapping(8, 3 if "public" in change else 2)
    meeting = Meeting(at("psi_opening", 0, lambda v: v | change))
    refused(meeting.hold(ids, options()), "bank", words)


def test_of_three_parties_each_looks_at_the_tables_and_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meeting = Meeting(at("psi_table", 0, lambda v: v[:-1])).hold(overlapping(8, 3), options())
    refused(meeting, "bank", "a piece of 'psi_table'")
    lying(monkeypatch, "clinic", "psi_places", 1, first_is(8))
    refused(Meeting().hold(overlapping(8, 3), options()), "bank", "4 different ones of 8")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v + 5, "9 common rows"),
        (lambda v: torch.tensor(-2), "-2 common rows"),
        (lambda v: v - 1, "of shape (4, 32), where (3, 32)"),
    ],
)
def test_a_count_that_cannot_be_is_refused(change: Callable[[Any], Any], words: str) -> None:
    meeting = Meeting(at("psi_count", 0, change, sender="bank"))
    refused(meeting.hold(overlapping(8, 3), options()), "clinic", words, by="bank")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (first_twice, "a common point twice"),
        (row_is(bytes(32)), "that 'clinic' does not have"),
        (lambda v: v[:2], "of shape (2, 32), where (4, 32)"),
    ],
)
def test_a_counting_party_that_tells_nonsense_is_refused(
    change: Callable[[Any], Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, "bank", "psi_common", 0, change)
    meeting = Meeting().hold(overlapping(8, 3), options())
    refused(meeting, "clinic", words, by="bank")


@pytest.mark.parametrize("change", [{"minimum": 4}, {"most": 99}, {"times": 3}, {"casefold": True}])
def test_parties_with_other_settings_refuse_each_other(change: dict[str, Any]) -> None:
    ((setting, value),) = change.items()

    def other(settings: Any) -> Any:
        changed = dict(settings["settings"]) | change
        return settings | {"settings": changed}

    meeting = Meeting(at("psi_opening", 0, other)).hold(overlapping(8), options())
    refused(meeting, "bank", f"'clinic' with {value!r}")
    assert f"{setting} = " in str(meeting.errors["bank"])


# ---- what is refused at the door ---------------------------------------------------------------


def test_one_party_alone_is_refused() -> None:
    meeting = Meeting().hold({"bank": ["a"]}, options())
    assert isinstance(meeting.errors["bank"], MethodError)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> None:
        raise ImportError(f"No module named '{package}'")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(MethodError, match=r" -m pip install .*\[psi\]"):
        ristretto.make(2)


def test_own_ids_that_cannot_be_used_are_refused_before_anything_is_sent() -> None:
    meeting = Meeting().hold({"bank": ["a", "b", "a"], "shop": ["a"]}, options())
    assert isinstance(meeting.errors["bank"], DataError)
    assert not values(meeting, "psi_opening", "bank")
    meeting = Meeting().hold({"bank": ["a", "b", "c"], "shop": ["a"]}, options(most=2))
    assert "'bank' brings 3 ids, and 2 are allowed" in str(meeting.errors["bank"])


@pytest.mark.parametrize("wrong", [{"minimum": -1}, {"most": 0}])
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Alignment(**wrong)
