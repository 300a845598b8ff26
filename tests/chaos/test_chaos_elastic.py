"""Parties that come and go: whoever dies, returns, is cut off or late, the others go on."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child import Plan
from conftest import processes_of
from federations import Field, Options, toy, wait_for
from nursery import Nursery
from points import Kill, fired
from proxy import Proxy
from test_chaos_kills import check_ledgers
from test_chaos_stop import SOON, place_of

import colonnade
from colonnade.cli.main import main

Weights = Callable[[dict[str, Any]], dict[str, str]]
SWARM = str(Path(__file__).parent / "swarm.py")
LONG = 100_000  # epochs: clients train until they are told that it is enough
QUICK = {"runtime.session.GOODBYE_SECONDS": 3.0, "net.mesh.RETRY_SECONDS": [0.05, 0.2]}

pytestmark = pytest.mark.usefixtures("no_orphans")


class Swarm:
    """A federation of a server and clients, and a file that ends it."""

    def __init__(self, folder: Path, nursery: Nursery, clients: int = 3, **more: Any) -> None:
        self.folder, self.nursery = folder, nursery
        self.until = folder / "enough"
        given = {key: more.pop(key) for key in ("deadline", "on_lost", "through") if key in more}
        tree = swarm(clients, until=str(self.until), **{"within": 0.5, "pause": 0.02, **more})
        self.field = Field(folder / "field", tree, **given)

    def start(self, *names: str, kills: tuple[Kill, ...] = ()) -> None:
        plan = Plan(kills, patched=QUICK, part_bytes=300)  # ten parts of each message
        plan = plan.write(self.folder / f"plan {'-'.join(names)}")
        for name in names or self.field.names:
            self.field.start(name, self.nursery.program(plan), "--events")

    def epoch(self, name: str) -> int:
        """How many epochs a client has behind it, and on disk."""
        place = place_of(self.field.out(name))
        return int(place.split("-")[1]) if place else 0

    def goes_on(self, *names: str, epochs: int = 3) -> None:
        """All of these get further."""
        goals = {name: self.epoch(name) + epochs for name in names}
        wait_for(lambda: all(self.epoch(name) >= goal for name, goal in goals.items()), 30)

    def merges(self, name: str, attempt: int) -> None:
        """A client gets answers in this attempt, or a later one."""
        wait_for(lambda: any(row["attempt"] >= attempt for row in self.answers(name)), 30)

    def answers(self, name: str) -> list[dict[str, Any]]:
        book = self.field.out(name) / "ledger.jsonl"
        lines = book.read_text().splitlines(keepends=True) if book.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row for row in rows if row.get("sender") == "server"]

    def end(self) -> dict[str, int]:
        """Enough: everybody comes to an end; exit codes."""
        self.until.touch()
        return self.field.wait()

    def check_ledgers(self, *names: str) -> None:
        for name in names:
            check_ledgers(self.field.folder / "parties", sorted(["server", name]))

    def undisturbed(self, *names: str) -> None:
        """These have noticed nothing."""
        for name in names:
            log = self.field.log(name)
            assert log.count("attempt ") == 1 and "going back" not in log, log


def swarm(clients: int = 3, epochs: int = LONG, **options: Any) -> dict[str, Any]:
    rows = {"name": "digits", "train_rows": 40 * clients, "test_rows": 60}
    parts = {"kind": "rows", "parties": clients}
    checkpoint, every = {"epochs": 1}, 0 if epochs == LONG else 1
    more = {"data": rows, "partition": parts, "checkpoint": checkpoint, "evaluate_every": every}
    return toy(SWARM, epochs=epochs, swarm=options, **more)


@pytest.fixture
def made(nursery: Nursery, tmp_path: Path) -> Iterator[Callable[..., Swarm]]:
    swarms: list[Swarm] = []

    def make(**more: Any) -> Swarm:
        swarms.append(Swarm(tmp_path, nursery, **more))
        return swarms[-1]

    yield make
    for one in swarms:
        one.field.close()
    wait_for(lambda: processes_of(tmp_path) == [])


def test_an_undisturbed_run_gives_the_same_weights_as_in_one_process(
    nursery: Nursery, undisturbed: Weights, tmp_path: Path
) -> None:
    tree = swarm(epochs=3)
    plan = Plan(part_bytes=300).write(tmp_path / "plan")
    options = Options(restarts=0, program=nursery.program(plan))
    result = colonnade.run(tree, out=tmp_path / "run", runtime="process", processes=options)
    assert result.weights_sha256 == undisturbed(tree)
    assert result.content["warnings"] == [] and result.content["status"] == "finished"
    assert set(result.metrics["test"]["per_party"]) == {"party1", "party2", "party3"}
    assert not list((tmp_path / "run" / "parties").glob("server-rows*"))
    check_ledgers(tmp_path / "run" / "parties", ["party1", "server"])
    hub = json.loads((tmp_path / "run" / "parties" / "server" / "result.json").read_text())
    assert hub["data"]["train_rows"] == 0 and len(hub["data"]["classes"]) == 10
    colonnade.report.write_report([hub], tmp_path / "hub.html")


def test_a_client_dies_and_returns(made: Callable[..., Swarm]) -> None:
    it = made()
    it.start("server", "party1", "party2")
    it.start("party3", kills=(Kill("part: middle", "party3", 25),))
    assert it.field.processes["party3"].wait(30) == -9
    it.goes_on("party1", "party2")
    place = place_of(it.field.out("party3"))
    it.start("party3")
    it.merges("party3", attempt=2)
    it.goes_on("party1", "party2", "party3")
    assert set(it.end().values()) == {0}
    it.undisturbed("party1", "party2")
    assert f"attempt 2: 'party3' starts from {place}" in it.field.log("party3")
    assert "attempt 2: 'party3' takes part" in it.field.log("server")
    assert away(it.field, "server") == []
    attempts = {
        name: {
            row["attempt"]
            for row in it.field.rows("server")
            if name in (row["sender"], row["receiver"])
        }
        for name in ("party1", "party3")
    }
    assert attempts == {"party1": {1}, "party3": {1, 2}}
    it.check_ledgers("party1", "party2", "party3")


def test_clients_that_come_late_stay_away_or_return_after_the_end(
    made: Callable[..., Swarm], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    it = made(on_lost="continue", deadline=2.0)
    it.start("server", "party1")
    it.start("party3", kills=(Kill("checkpoint: after", "party3", 3),))
    it.goes_on("party1")
    assert "begins without party2, who may come later" in it.field.log("server")
    it.start("party2")
    it.merges("party2", attempt=2)
    assert it.field.processes["party3"].wait(30) == -9
    predict(it.field, "party3", tmp_path)
    assert "of 100000 ('train'); the training has not ended" in capsys.readouterr().out
    codes = it.end()
    assert codes == {"server": 0, "party1": 0, "party3": -9, "party2": 0}
    it.undisturbed("party1", "party2")
    assert away(it.field, "server") == ["'party3' was away at the end"]
    it.check_ledgers("party1", "party2", "party3")
    it.start("party3")  # everybody else has gone
    assert it.field.processes["party3"].wait(30) == 0
    assert "'server' cannot be reached: going on alone" in it.field.log("party3")
    assert away(it.field, "party3") == ["'server' was away at the end"]
    it.check_ledgers("party3")
    predict(it.field, "party3", tmp_path)
    assert "models of a finished training" in capsys.readouterr().out


def away(field: Field, name: str) -> list[str]:
    """What a result says about who was not there; answers that came too late aside."""
    return [line for line in field.result(name)["warnings"] if "never received" not in line]


def predict(field: Field, name: str, folder: Path) -> None:
    """Without a process of anybody else."""
    images = np.random.default_rng(0).integers(0, 17, (5, 1, 8, 8)).astype(np.uint8)
    np.savez(folder / "new.npz", id=np.arange(5).astype(str), x=images)
    where = ["--federation", str(field.file), "--keys", str(field.key(name))]
    data = ["--data", str(folder / "new.npz"), "--predict", str(field.out(name))]
    assert main(["party", "--name", name, *where, *data]) == 0
    with (field.out(name) / "predictions.csv").open() as lines:
        assert [row["id"] for row in csv.DictReader(lines)] == list("01234")


def test_a_client_that_dies_too_often_is_left_behind(nursery: Nursery, tmp_path: Path) -> None:
    until = tmp_path / "enough"
    kills = [Kill("checkpoint: after", "party2")] * 2
    plan = Plan(kills, patched=QUICK).write(tmp_path / "plan")
    said: list[str] = []

    class Listening(colonnade.Observer):
        def note(self, text: str) -> None:
            said.append(text)
            if "is not started again" in text:
                until.touch()

    result = colonnade.run(
        swarm(until=str(until), within=0.5, pause=0.02),
        out=tmp_path / "run",
        runtime="process",
        processes=Options(restarts=1, program=nursery.program(plan)),
        observer=Listening(),
    )
    assert len(fired(plan.parent)) == 2
    assert "the process of 'party2' died and is not started again" in said
    assert set(said) <= set(result.content["warnings"])
    assert "'party2' was away at the end" in result.content["warnings"]
    assert set(result.weights_sha256) == {"party1", "party3", "server"}
    assert sorted(file.stem for file in (result.path / "weights").glob("*.json")) == [
        "party1", "party3", "server",
    ]  # fmt: skip
    check_ledgers(tmp_path / "run" / "parties", ["party2", "server"])


@pytest.mark.parametrize("plain", [False, True])
def test_the_server_dies_and_returns(plain: bool, made: Callable[..., Swarm]) -> None:
    """Clients that wait for it without a limit go back to their own checkpoints; others do not."""
    it = made(plain=plain, clients=2)
    it.start("party1", "party2")
    it.start("server", kills=(Kill("part: middle", "server", 65),))
    assert it.field.processes["server"].wait(30) == -9
    if not plain:
        it.goes_on("party1", "party2")
    it.start("server")
    for name in ("party1", "party2"):
        it.merges(name, attempt=2)
    assert set(it.end().values()) == {0}
    for name in ("party1", "party2"):
        log = it.field.log(name)
        back = "going back to the newest checkpoint: 'server' was started again"
        assert (back in log) == plain and ("'server' is back" in log) != plain, log
    assert away(it.field, "server") == []
    it.check_ledgers("party1", "party2")


def test_a_client_without_contact_goes_on_alone(made: Callable[..., Swarm]) -> None:
    """Nobody dies: when the connection is back, so are its messages, in the same attempt."""
    with Proxy() as proxy:
        through = {"server": proxy.in_front_of}
        it = made(clients=2, careless=True, within=0.2, rounds=1000, through=through)
        it.start()
        it.merges("party1", attempt=1)
        proxy.cut(3600)
        it.goes_on("party1", "party2")
        before = len(it.answers("party1"))
        proxy.cut(0)
        wait_for(lambda: len(it.answers("party1")) > before + 2, 30)
        assert set(it.end().values()) == {0}
    it.undisturbed("party1", "party2", "server")
    log = it.field.log("party1")
    assert log.count("'server' is not there: 'head' is not sent") == 1
    assert "× message to 'server', which was not there" in log
    it.check_ledgers("party1", "party2")


def test_who_is_asked_to_stop_stops_alone_and_the_server_stops_all(
    made: Callable[..., Swarm],
) -> None:
    it = made(clients=2)
    it.start()
    it.goes_on("party1", "party2")
    it.field.processes["party2"].terminate()
    assert it.field.processes["party2"].wait(SOON) == 130
    assert it.field.result("party2")["status"] == "stopped"
    it.goes_on("party1")
    it.start("party2")
    it.merges("party2", attempt=2)
    it.undisturbed("party1")
    it.field.processes["server"].terminate()
    assert set(it.field.wait(SOON).values()) == {130}
    it.start()
    for name in ("party1", "party2"):
        it.merges(name, attempt=3)
    assert set(it.end().values()) == {0}
    it.check_ledgers("party1", "party2")
