"""A federation with a server, in which every party brings labels of its own: who brings what."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from colonnade import assembly, plugin
from colonnade.cli.main import main
from colonnade.config import federation
from colonnade.config.federation import Federation, Member
from colonnade.deploy.setup import read_rows
from colonnade.errors import DataError, FederationError, RunError
from colonnade.net import certs
from colonnade.task import Task
from colonnade.wire.policy import Policy

SWARM = Path(__file__).parents[1] / "chaos" / "swarm.py"
RUN = {"method": str(SWARM), "data": {"classes": ["no", "perhaps", "yes"]}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients and a server, with keys and rows; nobody has been started."""
    folder = tmp_path_factory.mktemp("swarm")
    certs.init(folder)
    members = []
    for name in ("north", "south", "server"):
        certs.party(folder, name)
        address = "127.0.0.1:7443" if name == "server" else ""
        members.append(Member(name, address, "", certs.public_text(folder / name / f"{name}.sign")))
    policy = Policy.from_table({"allow": {"head": {}, "mean": {}}})
    code = plugin.read(SWARM, "method", FederationError)
    plugin.approve(code)
    pins = {SWARM.name: code.sha256}
    federation.write(folder / "federation.toml", "swarm", members, RUN, policy=policy, pins=pins)
    write(folder / "north.csv", ["no", "yes"])
    write(folder / "south.csv", ["no", "yes", "maybe", "perhaps"])
    return folder


def write(path: Path, labels: list[str]) -> None:
    lines = [f"r{n},{n},{n * n},{labels[n % len(labels)]}" for n in range(60)]
    path.write_text("\n".join(["id,a,b,label", *lines]))


def shared(folder: Path) -> Federation:
    return federation.load(folder / "federation.toml")


def said(folder: Path, name: str, *more: str) -> tuple[int, list[dict[str, Any]]]:
    """What the doctor says about one party."""
    arguments = ["doctor", str(folder / "federation.toml"), "--name", name, "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main([*arguments, "--keys", str(folder / name), *more])
    return code, json.loads(out.getvalue())["checks"]


def test_labels_are_places_among_the_classes_that_all_agree_on(made: Path) -> None:
    """Also at a party that has not all of them, and at a server, which has no row."""
    north = read_rows(made / "north.csv", shared(made), "north")
    assert north.task == Task.of(("no", "perhaps", "yes"))
    codes = {int(code) for split in north.splits.values() for code in split.y}  # type: ignore[union-attr]
    assert codes == {0, 2}
    server = read_rows(None, shared(made), "server")
    assert server == assembly.no_rows(north.task) and server.width == 0
    assert server.facts(server.task)["train_rows"] == 0


def test_a_label_that_is_no_class(made: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"party 'south'.*the label 'maybe' is not among data\.cla"):
        read_rows(made / "south.csv", shared(made), "south")
    (tmp_path / "none.csv").write_text("id,a\nr1,2\n")
    with pytest.raises(DataError, match="has no 'label', and this party holds the labels"):
        read_rows(tmp_path / "none.csv", shared(made), "south")


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("server", "north.csv", "'server' plays 'server', which brings no rows: omit --data"),
        ("north", "", "give --data FILE, the rows of 'north', .csv or .npz"),
    ],
)
def test_who_needs_rows_and_who_may_not_bring_any(
    name: str, data: str, why: str, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--federation", str(made / "federation.toml"), "--keys", str(made / name)]
    given = ["--data", str(made / data)] if data else []
    assert main(["party", "--name", name, *where, *given]) == 2
    assert why in capsys.readouterr().err
    with pytest.raises(RunError):
        read_rows(made / data if data else None, shared(made), name)


def test_the_doctor_knows_a_server(made: Path, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")]
    code, checks = said(made, "server", *out)
    found = {check["about"]: check for check in checks}
    assert code == 0, checks
    assert found["data"] == {
        "about": "data", "verdict": "ok", "move": "",
        "found": "'server' plays 'server', which brings no rows",
    }  # fmt: skip
    assert found["role"]["found"] == "server"
    assert found["members"]["found"] == (
        "north, south, server; all rows come with labels, of no, perhaps, yes; server is the hub"
    )
    assert found["listening"]["found"] == "server at 127.0.0.1:7443"
    assert found["dialling"]["found"] == "north → server, south → server"
    assert found["lost party"]["found"] == "parties may come and go; it begins with all"
    code, checks = said(made, "server", *out, "--data", str(made / "north.csv"))
    assert code == 1 and [c["move"] for c in checks if c["about"] == "data"] == ["omit --data"]
    code, checks = said(made, "north", *out, "--data", str(made / "north.csv"))
    assert code == 0 and not [check for check in checks if check["verdict"] == "problem"], checks
    assert not [check for check in checks if check["about"] == "peer south"]


def test_a_folder_without_models_predicts_nothing(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--federation", str(made / "federation.toml"), "--keys", str(made / "north")]
    data = ["--data", str(made / "north.csv"), "--predict", str(tmp_path)]
    assert main(["party", "--name", "north", *where, *data]) == 2
    assert "has no models of 'north' yet" in capsys.readouterr().err
