"""Methods by name, by file and by entry point, and how roles get their peers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import colonnade
from colonnade import config, methods
from colonnade.errors import MethodError, WireError
from colonnade.methods import aggvfl, easter, splitnn
from colonnade.plugin import own
from colonnade.role.method import Method, active_and_passives, bind
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.task import Task
from colonnade.wire import Kind, Peer, recv_any

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The example method, installed as a package with an entry point would be."""
    (tmp_path / "summed_scores.py").write_text(EXAMPLE.read_text())
    info = tmp_path / "summed_scores-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: summed-scores\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[colonnade.methods]\nsumscores = summed_scores\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "sumscores"
    sys.modules.pop("summed_scores", None)


def test_an_entry_point_is_a_method_like_any_other(installed: str, tmp_path: Path) -> None:
    assert installed in methods.names()
    tree = {
        "method": installed,
        "epochs": 3,
        "batch_size": 32,
        "data": {"name": "digits", "train_rows": 300, "test_rows": 60},
        "sumscores": {"shrink": 0.1},
    }
    by_name = colonnade.run(tree, out=tmp_path / "name")
    by_file = colonnade.run(tree | {"method": str(EXAMPLE)}, out=tmp_path / "file")
    assert by_name.content["method"] == "sumscores"
    assert by_name.weights_sha256 == by_file.weights_sha256
    assert len(colonnade.load(by_name.path).predict()["party1"]) == 60


def test_a_broken_entry_point_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[colonnade.methods]\nbroken = not_there_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MethodError, match=r"'broken' .*not_there_at_all"):
        methods.find("broken")


def test_the_methods_file_is_part_of_the_config_hash(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    digests = []
    for text in (EXAMPLE.read_text(), EXAMPLE.read_text() + "\n# changed\n"):
        path.write_text(text)
        digests.append(config.load({"method": str(path)}, rule=own).sha256())
    assert digests[0] != digests[1]


class _NoWire:
    def put(self, receiver: str, kind: Kind, value: object) -> None: ...


def _me(name: str) -> Party:
    return Party(name, "", Recipe(), Schedule(0, 1, 1), {}, None, Task.of(()), torch.device("cpu"))


CAST = {"a": "active", "b": "passive", "c": "passive", "s": "server"}


def _bound(program: object, me: str) -> object:
    coroutine = bind(program, _me(me), CAST, _NoWire(), "options")  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    return end.value.value


def test_parameters_name_the_peers() -> None:
    async def passive(
        me: Party, active: Peer, passives: list[Peer], server: Peer, cfg: str
    ) -> object:
        return me.name, active.name, [peer.name for peer in passives], server.name, cfg

    assert _bound(passive, "b") == ("b", "a", ["c"], "s", "options")


def test_a_role_nobody_plays_is_an_empty_list() -> None:
    async def active(me: Party, helpers: list[Peer]) -> object:
        return helpers

    assert _bound(active, "a") == []


def test_one_of_several_and_unknown_roles_are_refused() -> None:
    async def one(me: Party, passive: Peer) -> None: ...

    async def unknown(me: Party, judge: Peer) -> None: ...

    with pytest.raises(MethodError, match=r"asks for one 'passive'.*'passives'"):
        bind(one, _me("a"), CAST, _NoWire(), None)
    with pytest.raises(MethodError, match="has a parameter 'judge'"):
        bind(unknown, _me("a"), CAST, _NoWire(), None)


THREE = {"a": "active", "b": "passive", "c": "passive"}


def test_the_absent_keep_their_place_among_the_peers() -> None:
    async def active(me: Party, passives: list[Peer]) -> object:
        return [(peer.name, peer.present) for peer in passives]

    coroutine = bind(active, _me("a"), THREE, _NoWire(), None, {"b"})
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    assert end.value.value == [("b", False), ("c", True)]


def test_nothing_is_sent_to_or_received_from_the_absent() -> None:
    kind = Kind("note", (), "nothing")
    gone = Peer("b", _NoWire(), present=False)
    with pytest.raises(WireError, match=r"'note' cannot be sent to 'b', which is absent"):
        gone.send(kind, torch.tensor(1.0))
    with pytest.raises(WireError, match=r"'note' cannot be received from 'b'.*peer\.present"):
        gone.recv(kind)
    with pytest.raises(WireError, match="cannot be received from 'b'"):
        recv_any([Peer("c", _NoWire()), gone], kind)


@pytest.mark.parametrize(
    ("method", "absent", "why"),
    [
        (aggvfl.METHOD, {"b"}, r"'b' cannot be absent: method 'aggvfl' needs all its parties"),
        (splitnn.METHOD, {"x"}, r"no party 'x' as absent: one of a, b, c"),
        (splitnn.METHOD, {"a"}, r"'a' cannot be absent: it is the active party"),
        (easter.METHOD, {"b"}, r"cannot hide the embeddings of 'c'.*one_passive"),
    ],
)
def test_who_may_be_absent(method: Method, absent: set[str], why: str) -> None:
    with pytest.raises(MethodError, match=why):
        method.check_absent(absent, THREE, easter.Easter())


def test_an_absent_party_has_no_role() -> None:
    with pytest.raises(MethodError, match=r"'b' is absent: its role must not be started"):
        bind(splitnn.passive, _me("b"), THREE, _NoWire(), splitnn.SplitNN(), {"b"})


def test_the_usual_cast() -> None:
    assert active_and_passives(["x", "y"], "y", None) == {"x": "passive", "y": "active"}
    with pytest.raises(MethodError, match="only party"):
        active_and_passives(["x"], "x", None)


def test_every_built_in_method_says_what_it_is() -> None:
    for name in methods.BUILT_IN:
        method = methods.find(name).method
        assert isinstance(method, Method)
        assert method.name == name
        assert method.summary
