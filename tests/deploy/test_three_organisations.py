"""`colonnade party`: three organisations with their own files train, then predict new rows."""

from __future__ import annotations

import csv
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sklearn.datasets import load_breast_cancer

from colonnade.config import federation
from colonnade.config.federation import Member
from colonnade.net import certs
from colonnade.wire.policy import Policy

PARTIES = {"bank": slice(0, 10), "shop": slice(10, 20), "telco": slice(20, 30)}
RUN = {"method": "splitnn", "epochs": 4, "batch_size": 32, "splitnn": {"dim": 16}}


def write_rows(path: Path, columns: slice, rows: range, labels: bool) -> None:
    data = load_breast_cancer()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = [name.replace(" ", "_") for name in data.feature_names[columns]]
        writer.writerow(["id", *names, *(["label"] if labels else [])])
        for row in rows:
            label = [data.target_names[data.target[row]]] if labels else []
            writer.writerow([f"patient-{row}", *data.data[row, columns].tolist(), *label])


@pytest.fixture(scope="module", autouse=True)
def _quick_start(colonnade_path: str) -> Iterator[None]:
    """`colonnade` comes from the nursery."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", colonnade_path)
        yield


def start(folder: Path, name: str, *more: str) -> subprocess.Popen[str]:
    command = ["colonnade", "party", "--name", name, "--quiet"]
    command += ["--federation", str(folder / "federation.toml"), "--keys", str(folder / name)]
    return subprocess.Popen(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(processes: dict[str, subprocess.Popen[str]]) -> dict[str, tuple[int, str, str]]:
    ended = {}
    for name, process in processes.items():
        out, errors = process.communicate(timeout=90)
        ended[name] = process.returncode, out.strip(), errors
    return ended


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation in which only the label holder has a port, trained on 500 patients."""
    folder = tmp_path_factory.mktemp("federation")
    certs.init(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    members = []
    for name, columns in PARTIES.items():
        certs.party(folder, name)
        key = certs.public_text(folder / name / f"{name}.sign")
        members.append(Member(name, address if name == "bank" else "", "", key))
        write_rows(folder / f"{name}.csv", columns, range(500), labels=name == "bank")
        write_rows(folder / f"{name}-new.csv", columns, range(500, 569), labels=False)
    policy = Policy.from_table({"allow": {"embedding": {"to": ["bank"]}, "gradient": {}}})
    federation.write(
        folder / "federation.toml", "three", members, RUN, deadline=30.0, policy=policy
    )
    ended = finish(
        {
            name: start(
                folder,
                name,
                "--data",
                str(folder / f"{name}.csv"),
                "--out",
                str(folder / "runs" / name),
            )
            for name in PARTIES
        }
    )
    assert {code for code, _, _ in ended.values()} == {0}, ended
    return folder


def result(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "runs" / name / "result.json").read_text())
    return content


def test_each_party_keeps_its_own(trained: Path) -> None:
    hub, shop = result(trained, "bank"), result(trained, "shop")
    assert hub["status"] == shop["status"] == "finished"
    assert hub["metrics"]["test"]["accuracy"] > 0.85
    assert shop["metrics"] == {}  # only the label holder knows what was right
    assert set(hub["weights_sha256"]) == set(PARTIES)
    assert shop["weights_sha256"] == {"shop": hub["weights_sha256"]["shop"]}
    assert [p.stem for p in (trained / "runs" / "shop" / "weights").glob("*.json")] == ["shop"]
    assert {row["receiver"] for row in shop["wire"]["flows"]} == {"bank", "shop"}


def test_a_finished_party_that_is_started_again_says_so(trained: Path) -> None:
    again = start(
        trained,
        "shop",
        "--data",
        str(trained / "shop.csv"),
        "--out",
        str(trained / "runs" / "shop"),
    )
    ((code, out, errors),) = finish({"shop": again}).values()
    assert (code, out) == (0, str(trained / "runs" / "shop")), errors


@pytest.mark.parametrize("absent", [(), ("telco",)])
def test_new_rows_are_predicted_together(trained: Path, absent: tuple[str, ...]) -> None:
    words = [word for name in absent for word in ("--absent", name)]
    there = [name for name in PARTIES if name not in absent]
    ended = finish(
        {
            name: start(
                trained,
                name,
                "--data",
                str(trained / f"{name}-new.csv"),
                "--predict",
                str(trained / "runs" / name),
                *words,
            )
            for name in there
        }
    )
    assert {code for code, _, _ in ended.values()} == {0}, ended
    file = Path(ended["bank"][1])  # a second one has another name
    assert file.parent == trained / "runs" / "bank"
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    data = load_breast_cancer()
    assert [row["id"] for row in rows] == [f"patient-{number}" for number in range(500, 569)]
    right = [
        row["predicted"] == data.target_names[data.target[500 + number]]
        for number, row in enumerate(rows)
    ]
    assert sum(right) / len(right) > (0.75 if absent else 0.85)
    assert not (trained / "runs" / "shop" / "predictions.csv").exists()
