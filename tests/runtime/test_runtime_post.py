"""The post office of a party: what it refuses, before it takes memory for it."""

from __future__ import annotations

import random
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade import config
from colonnade.config import federation
from colonnade.errors import CodecError, ColonnadeError, Denied, KindError, RunError, Untrusted
from colonnade.net.frame import Frame, Hello, Part, pack, parse
from colonnade.net.link import Connection, Link
from colonnade.role.checks import Checks
from colonnade.runtime.network import Network
from colonnade.runtime.post import LARGEST, Post
from colonnade.wire import Kind, Ledger, store
from colonnade.wire.gate import Gate
from colonnade.wire.policy import Allow, Policy

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="noise", varies=True)
WEIGHTS = Kind("weights", None, reveals="noise", dtype="any")
NEXT = Kind("next", None, reveals="nothing", paces=True)
KINDS = {kind.name: kind for kind in (EMBEDDING, WEIGHTS, NEXT)}
MEMBERS = frozenset({"bank", "shop"})


class Me:
    """What a post office looks at of a party."""

    name, position = "shop", ("train", 1, 2)
    at_hand, splits, protection = None, (), None
    progress = SimpleNamespace(phase="train", hop=3, clock=0.0, position=position)
    checks = Checks("shop", None, progress)  # type: ignore[arg-type]


class FakeMesh:
    """Keeps what it is to carry."""

    def __init__(self) -> None:
        self.sent: list[tuple[Part, memoryview]] = []

    def send_part(self, peer: str, part: Part, tail: Any) -> None:
        assert part.receiver == peer
        self.sent.append((part, memoryview(b"".join(tail))))


def post(me: str, mesh: FakeMesh | None = None, policy: Policy | None = None) -> Post:
    gate = None if policy is None else Gate(me, policy, 10, 2)
    made = Post(me, MEMBERS, KINDS, Ledger(None), gate, Network(mesh or FakeMesh(), 1000))
    made.begin(7, 1)
    return made


def parts(*values: torch.Tensor) -> list[tuple[Part, memoryview]]:
    """What leaves when these embeddings are sent."""
    mesh = FakeMesh()
    office = post("shop", mesh)
    for value in values:
        office.put(Me, "bank", EMBEDDING, value)  # type: ignore[arg-type]
    return mesh.sent


def test_a_large_message_travels_in_parts_and_lies_aligned() -> None:
    value = torch.randn(50, 30)
    sent = parts(value, value + 1)
    assert len(sent) == 14 and max(len(data) for _, data in sent) == 1000
    bank = post("bank")
    for part, data in sent:
        bank.accept(part, data)
    for expected in (value, value + 1):
        message = bank.take("shop", EMBEDDING)
        assert message is not None
        assert torch.equal(message.value, expected)  # type: ignore[arg-type]
        assert message.value.data_ptr() % 64 == 0  # type: ignore[union-attr]
        assert (message.hop, message.epoch, message.step) == (4, 1, 2)
    assert bank.take("shop", EMBEDDING) is None


def test_two_begin_again_and_a_third_notices_nothing(tmp_path: Path) -> None:
    """Each pair counts its own attempts; half a message of an older one is forgotten."""
    mesh = FakeMesh()
    sent = mesh.sent
    three = frozenset({"bank", "shop", "telco"})
    allowed = Policy.allowing(KINDS.values())

    def office(me: str) -> Post:
        (tmp_path / me).touch()
        book = Ledger(tmp_path / me, through=True)
        return Post(me, three, KINDS, book, Gate(me, allowed, 10, 3), Network(mesh, 1000))

    bank, shop, telco = office("bank"), office("shop"), office("telco")
    for name, other in (("shop", shop), ("telco", telco)):
        other.admit("bank", 7, 1)
        bank.admit(name, 7, 1)
    shop.put(Me, "bank", EMBEDDING, torch.zeros(2, 2))  # type: ignore[arg-type]
    shop.put(Me, "bank", EMBEDDING, torch.zeros(50, 30))  # type: ignore[arg-type]
    telco.put(Me, "bank", EMBEDDING, torch.ones(2, 2))  # type: ignore[arg-type]
    for part, data in [*sent[:3], sent[-1]]:
        bank.accept(part, data)
    late = sent[3]
    shop.ledger.close()
    shop = office("shop")  # it died, and comes back
    sent.clear()
    bank.admit("shop", 7, 2)
    shop.admit("bank", 7, 2)
    shop.put(Me, "bank", EMBEDDING, torch.full((2, 2), 3.0))  # type: ignore[arg-type]
    bank.accept(*late)
    bank.accept(*sent[0])
    assert bank.refused == {"another run or an older attempt": 1}
    found = bank.take("shop", EMBEDDING)
    assert found is not None and found.value[0, 0] == 3 and found.sequence == 0  # type: ignore[index]
    assert bank.take("telco", EMBEDDING) is not None
    bank.put(Me, "telco", EMBEDDING, torch.zeros(1, 2))  # type: ignore[arg-type]
    bank.put(Me, "shop", EMBEDDING, torch.zeros(1, 2))  # type: ignore[arg-type]
    rows = [(row["sender"], row["receiver"], row["attempt"]) for row in bank.ledger.rows()]
    assert rows == [
        ("shop", "bank", 1), ("telco", "bank", 1), ("shop", "bank", 2),
        ("bank", "telco", 1), ("bank", "shop", 2),
    ]  # fmt: skip
    for one in (bank, shop, telco):
        one.ledger.close()


def test_only_a_message_that_says_more_than_go_on_is_a_round() -> None:
    mesh = FakeMesh()
    office = post("shop", mesh)
    office.put(Me, "bank", EMBEDDING, torch.zeros(1, 2))  # type: ignore[arg-type]
    office.put(Me, "bank", NEXT, True)  # type: ignore[arg-type]
    assert [part.hop for part, _ in mesh.sent] == [4, 3]


def test_what_is_sent_to_several_is_encoded_once_and_again_when_it_changes() -> None:
    value, mesh = torch.randn(4, 5), FakeMesh()
    office = post("shop", mesh)
    for change in (0, 0, 1):
        value += change
        office.put(Me, "bank", EMBEDDING, value)  # type: ignore[arg-type]
    digests = [part.sha256 for part, _ in mesh.sent]
    assert digests[0] == digests[1] != digests[2]


def test_nothing_leaves_that_a_policy_denies() -> None:
    mesh = FakeMesh()
    office = post("shop", mesh, Policy({"weights": Allow()}))
    with pytest.raises(Denied, match="'shop' does not send 'embedding'"):
        office.put(Me, "bank", EMBEDDING, torch.zeros(2, 2))  # type: ignore[arg-type]
    assert mesh.sent == []
    office.gate = None
    office.put(Me, "bank", EMBEDDING, torch.zeros(2, 2))  # type: ignore[arg-type]
    assert mesh.sent[0][0].sequence == 0  # what was denied was not counted


def test_nothing_leaves_without_a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, full = FakeMesh(), Path("/dev/full").open("ab", 0)  # noqa: SIM115
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *_, **__: full)
        book = Ledger(tmp_path / "ledger.jsonl", through=True)
    office = Post("shop", MEMBERS, KINDS, book, None, Network(mesh))
    with pytest.raises(RunError, match="No space left"):
        office.put(Me, "bank", EMBEDDING, torch.zeros(2, 2))  # type: ignore[arg-type]
    assert mesh.sent == []
    full.close()


def test_only_declared_kinds_and_known_peers() -> None:
    office = post("shop")
    with pytest.raises(KindError, match="not a peer"):
        office.put(Me, "nobody", EMBEDDING, torch.zeros(1, 1))  # type: ignore[arg-type]
    other = Kind("embedding", ("batch", "dim"), reveals="something else")
    with pytest.raises(KindError, match="does not declare"):
        office.put(Me, "bank", other, torch.zeros(1, 1))  # type: ignore[arg-type]


def changed(**fields: Any) -> tuple[Any, memoryview]:
    part, data = parts(torch.zeros(2, 2))[0]
    return part._replace(**fields), data


@pytest.mark.parametrize(
    ("fields", "error", "why"),
    [
        ({"sender": "thief"}, CodecError, "of 'thief' for 'bank'"),
        ({"receiver": "post"}, CodecError, "for 'post' came to 'bank'"),
        ({"kind": "labels"}, CodecError, "no Kind declares"),
        ({"sequence": 3}, CodecError, "came where 0 was due"),
        ({"size": LARGEST + 1}, CodecError, "at most"),
        ({"sha256": b"x" * 32}, Untrusted, "not what its digest says"),
        ({"offset": 9}, CodecError, "sent byte 9 of a 'embedding' that has not begun"),
        ({"kind": "weights"}, None, ""),  # a tree may be a single tensor
    ],
)
def test_a_message_that_does_not_fit(fields: dict[str, Any], error: Any, why: str) -> None:
    bank = post("bank")
    if error is None:
        bank.accept(*changed(**fields))
        return
    with pytest.raises(error, match=why):
        bank.accept(*changed(**fields))
    assert bank.take("shop", EMBEDDING) is None
    bank.accept(*changed())  # the right one still comes in
    assert bank.take("shop", EMBEDDING) is not None


@pytest.mark.parametrize("fields", [{"run": 8}, {"attempt": 0}])
def test_another_run_or_an_older_attempt_is_counted(fields: dict[str, Any]) -> None:
    bank = post("bank")
    bank.accept(*changed(**fields))
    assert bank.refused == {"another run or an older attempt": 1}
    assert bank.take("shop", EMBEDDING) is None


def test_a_later_attempt_waits_until_it_begins() -> None:
    bank = post("bank")
    bank.accept(*changed(attempt=2))
    assert bank.take("shop", EMBEDDING) is None
    bank.begin(7, 2)
    assert bank.take("shop", EMBEDDING) is not None


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3  # MB, the most so far


def test_ten_thousand_bad_frames_are_refused_before_memory_is_taken() -> None:
    """Random bytes, and real frames with bytes changed, cut off, added, or absurd numbers."""
    draw = random.Random(5)
    real = [
        pack(Frame(n + 1, body=part), bytes(data))
        for n, (part, data) in enumerate(parts(torch.randn(20, 30), torch.randn(3, 4)))
    ]
    link = Link("bank", "shop", b"b" * 16, _Inbox())  # type: ignore[arg-type]
    wire = Connection(lambda: None)
    link.attach(wire, Hello(incarnation=b"s" * 16))
    bank = post("bank")
    before, refused, calm = memory(), 0, 0
    for _ in range(10_000):
        data = _spoilt(draw, real)
        try:
            frame, tail = parse(data)
            link.incoming(wire, data)
            if isinstance(frame.body, Part):
                bank.accept(frame.body, tail)
            calm += 1
        except ColonnadeError:
            refused += 1
    assert refused > 5000 and refused + calm == 10_000
    assert memory() - before < 64
    fresh = post("bank")
    for part, data in parts(torch.ones(2, 2)):
        fresh.accept(part, data)
    assert fresh.take("shop", EMBEDDING) is not None


class _Inbox:
    def put(self, event: Any) -> None: ...


def _spoilt(draw: random.Random, real: list[bytes]) -> bytes:
    data = bytearray(draw.choice(real))
    kind = draw.randrange(5)
    if kind == 0:
        return draw.randbytes(draw.randrange(200))
    if kind == 1:
        return bytes(data[: draw.randrange(len(data))])
    if kind == 2:
        return bytes(data) + draw.randbytes(draw.randrange(1, 50))
    if kind == 3:
        for _ in range(draw.randrange(1, 6)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        return bytes(data)
    size = draw.choice([LARGEST, LARGEST + 1, 1 << 61, 1 << 20])
    offset = draw.choice([0, 5, 1 << 40])
    huge = Part(7, 1, "shop", "bank", "embedding", 0, "train", 0, 0, 0, size, b"0" * 32, offset)
    return pack(Frame(draw.randrange(1 << 40), body=huge), b"\x02\x02\x02" + bytes(20))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_files_that_are_anything_at_all(tmp_path_factory: Any, data: bytes) -> None:
    """Configurations, federation files, policies and checkpoints: typed errors only."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("run.toml", "policy.toml", "federation.toml", "x.json", "x.safetensors"):
        (folder / name).write_bytes(data)
    for load, path in (
        (config.load, "run.toml"),
        (Policy.load, "policy.toml"),
        (federation.load, "federation.toml"),
        (store.load, "x"),
    ):
        try:
            load(folder / path)
        except ColonnadeError:
            continue
        except Exception as error:
            raise AssertionError(f"{load.__module__}: {type(error).__name__}") from error
