"""Methods by name, by file and by entry point, and how roles get their peers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import colonnade
from colonnade import config, methods
from colonnade.errors import MethodError
from colonnade.method import Method, active_and_passives, bind
from colonnade.party import Party, Schedule
from colonnade.recipe import Recipe
from colonnade.wire import Kind, Peer

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
        "sumscores": {"smoothing": 0.1},
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
        digests.append(config.load({"method": str(path)}).sha256())
    assert digests[0] != digests[1]


class _NoWire:
    def put(self, receiver: str, kind: Kind, value: object) -> None: ...


def _me(name: str) -> Party:
    return Party(name, "", Recipe(), Schedule(0, 1, 1), {}, None, (), torch.device("cpu"))


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

    with pytest.raises(MethodError, match=r"asks for the one 'passive'.*'passives'"):
        bind(one, _me("a"), CAST, _NoWire(), None)
    with pytest.raises(MethodError, match="has a parameter 'judge'"):
        bind(unknown, _me("a"), CAST, _NoWire(), None)


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
