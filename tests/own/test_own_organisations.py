"""Two organisations, files in other orders: `colonnade party` trains, then predicts new rows."""

from __future__ import annotations

import csv
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_own_predict import decide
from test_own_runs import OVER, ROWS, tables, write

import colonnade
from colonnade import config
from colonnade.align import psi
from colonnade.cli.main import main
from colonnade.config import federation
from colonnade.config.federation import Member
from colonnade.net import certs
from colonnade.wire.policy import Policy

PARTIES = ("bank", "shop")


@pytest.fixture(scope="module", autouse=True)
def _quick_start(colonnade_path: str) -> Iterator[None]:
    """`colonnade` comes from the nursery."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", colonnade_path)
        yield


def start(folder: Path, name: str, *more: str, command: str = "party") -> subprocess.Popen[str]:
    file = [str(folder / "federation.toml")]
    words = ["colonnade", command, "--name", name, *more]
    words += ["--keys", str(folder / name), *(["--federation"] * (command == "party")), *file]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def alone(folder: Path, name: str, *more: str) -> str:
    """What a party says that does not get far."""
    process = start(folder, name, *more)
    said, _ = process.communicate(timeout=90)
    assert process.returncode in (1, 2), said
    return " ".join(said.split())


def aligned_before(folder: Path, place: Path) -> dict[str, list[str]]:
    """An alignment by itself; what each party then says to reuse it."""
    own = {
        "bank": ["--data", str(folder / "bank.toml")],
        "shop": ["--data", str(folder / "shop.csv"), "--id", "customer"],
    }
    found = {name: str(place / f"aligned-{name}") for name in PARTIES}
    running = [
        start(folder, name, *own[name], "--out", found[name], command="align") for name in PARTIES
    ]
    for process in running:
        said, _ = process.communicate(timeout=90)
        assert process.returncode == 0, said
    return {name: [*own[name], "--aligned", found[name]] for name in PARTIES}


def both(folder: Path, **more: list[str]) -> dict[str, str]:
    """What `colonnade party` says at both sides, which must end well."""
    started = {name: start(folder, name, *more[name]) for name in PARTIES}
    said = {}
    for name, process in started.items():
        said[name], _ = process.communicate(timeout=90)
        assert process.returncode == 0, said[name]
    return said


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("organisations")
    write(folder)
    (folder / "bank.toml").write_text('data = "bank.csv"\nid = "customer"\nlabel = "verdict"\n')
    certs.init(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    members = []
    for name in PARTIES:
        certs.party(folder, name)
        key = certs.public_text(folder / name / f"{name}.sign")
        members.append(Member(name, address if name == "bank" else "", "", key))
    run = {"method": "splitnn", "epochs": 2, "batch_size": 16, "align": {"minimum": 20}}
    kinds = config.load(run).kinds.values()
    federation.write(
        folder / "federation.toml", "ours", members, run, policy=Policy.allowing(kinds)
    )
    outs = {name: ["--out", str(folder / "runs" / name)] for name in PARTIES}
    bank = ["--data", str(folder / "bank.toml"), *outs["bank"]]
    shop = ["--data", str(folder / "shop.csv"), "--id", "customer", *outs["shop"]]
    both(folder, bank=bank, shop=shop)
    return folder


def test_they_train_as_a_simulation_does(trained: Path, tmp_path: Path) -> None:
    found = {
        name: json.loads((trained / "runs" / name / "result.json").read_text()) for name in PARTIES
    }
    for name in PARTIES:
        assert found[name]["data"]["own_rows"] == {name: ROWS}
        assert found[name]["data"]["common_rows"] == OVER
        assert list(found[name]["data"]["files_sha256"]) == [name]
    file = write(tmp_path)
    file.write_text(file.read_text() + "[align]\nminimum = 20\n")
    here = colonnade.run(file, out=tmp_path / "run")
    weights = found["bank"]["weights_sha256"] | found["shop"]["weights_sha256"]
    assert weights == here.weights_sha256


def test_the_passive_partys_report_counts_epochs_of_training_alone(trained: Path) -> None:
    """The alignment before them is none, and that nobody tells it a loss is no missing epoch."""
    folder = trained / "runs" / "shop"
    result = json.loads((folder / "result.json").read_text())
    assert len(result["timing"]["seconds_per_epoch"]) == 2
    page = (folder / "report.html").read_text()
    assert "for 2 epochs" in page and "No epoch was measured" not in page
    assert "This party is told neither losses nor accuracies" in page


def test_the_folder_of_one_party_predicts_nothing_alone(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained / "runs" / "bank"
    assert main(["predict", str(folder)]) == 2
    said = capsys.readouterr().err
    assert f"colonnade party --predict {folder} --name bank" in said and "Traceback" not in said


def test_new_rows_are_aligned_privately(trained: Path) -> None:
    parts = {"bank": slice(0, 90), "shop": slice(20, 120)}
    for name, chosen in parts.items():
        head, *lines = (trained / f"{name}.csv").read_text().splitlines()
        (trained / f"new_{name}.csv").write_text("\n".join([head, *lines[chosen]]) + "\n")
    words = {}
    for name in PARTIES:
        words[name] = ["--data", str(trained / f"new_{name}.csv"), "--id", "customer"]
        words[name] += ["--predict", str(trained / "runs" / name)]
    words["bank"] += ["--label", "verdict"]
    decide(trained / "runs" / "bank", "bank", 0.4)
    said = both(trained, **words)
    found = tables()
    ids = set(found["bank"][0][parts["bank"]]) & set(found["shop"][0][parts["shop"]])
    assert len(ids) > 20
    assert f"{len(ids)} of 90 rows are common to all" in said["bank"]
    assert f"{len(ids)} of 100 rows are common to all" in said["shop"]
    with (trained / "runs" / "bank" / "predictions.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    asked = found["bank"][0][parts["bank"]]
    assert [line["id"] for line in lines] == [name for name in asked if name in ids]
    assert not (trained / "runs" / "shop" / "predictions.csv").exists()
    with (trained / "runs" / "shop" / "ledger-predict.jsonl").open() as book:
        kinds = {json.loads(row).get("kind") for row in book}
    assert {kind.name for kind in psi.OF_TWO} <= kinds
    # The same as with both files in one place.
    (trained / "plain").mkdir()
    file = write(trained / "plain")
    colonnade.run(file, out=trained / "plain" / "run")
    run = colonnade.load(trained / "plain" / "run")
    rows = run.read_files({name: trained / f"new_{name}.csv" for name in PARTIES})
    plain = run.predict(rows)["bank"]
    assert [line["id"] for line in lines] == list(plain.names)
    decide(trained / "plain" / "run", "bank", 0.4)
    files = [f"--data={name}={trained}/new_{name}.csv" for name in PARTIES]
    assert main(["predict", str(run.path), *files]) == 0
    with (trained / "plain" / "run" / "predictions.csv").open(newline="") as file:
        together = list(csv.DictReader(file))
    for line in [*lines, *together]:
        del line["run"]
    assert lines == together and {line["threshold"] for line in lines} == {"0.4"}
    measured = run.predict(rows)["bank"].score(rows.truth["bank"])
    assert f"{measured['auc']:.3f}" in said["bank"] and "ROC AUC" not in said["shop"]


def test_predictions_are_refused_before_anybody_is_asked(trained: Path, tmp_path: Path) -> None:
    taken = tmp_path / "mine.csv"
    taken.write_text("mine\n")
    words = ["--data", str(trained / "bank.toml"), "--predict", str(trained / "runs" / "bank")]
    said = alone(trained, "bank", *words, "--out", str(taken))
    assert "mine.csv exists: give another --out" in said and taken.read_text() == "mine\n"
    said = alone(trained, "bank", *words, "--out", str(tmp_path))
    assert "is a folder, and --out is the file of predictions" in said
    assert "--overwrite goes with --predict" in alone(trained, "bank", *words[:2], "--overwrite")


def test_an_alignment_serves_several_runs(trained: Path, tmp_path: Path) -> None:
    """The same weights, and no point of an id crosses again."""
    reused = aligned_before(trained, tmp_path)
    more = {name: [*reused[name], "--out", str(tmp_path / f"run-{name}")] for name in PARTIES}
    both(trained, **more)
    for name in PARTIES:
        result = json.loads((tmp_path / f"run-{name}" / "result.json").read_text())
        before = json.loads((trained / "runs" / name / "result.json").read_text())
        assert result["weights_sha256"] == before["weights_sha256"]
        assert result["data"]["common_rows"] == OVER
        assert not any(kind.startswith("psi_") for kind in result["wire"]["by_kind"])
    # The folder has begun with these rows, and does not go on with others.
    shutil.rmtree(tmp_path / "run-shop" / "weights")
    without = [word for word in more["shop"] if "--aligned" != word != reused["shop"][-1]]
    assert "began with other rows of --aligned" in alone(trained, "shop", *without)


def test_an_alignment_is_reused_by_all_or_by_nobody(trained: Path, tmp_path: Path) -> None:
    reused = aligned_before(trained, tmp_path)
    outs = {name: ["--out", str(tmp_path / f"run-{name}")] for name in PARTIES}
    hub = start(trained, "bank", *reused["bank"][:2], *outs["bank"])
    try:
        said = alone(trained, "shop", *reused["shop"], *outs["shop"])
    finally:
        hub.kill()
        hub.communicate()
    assert "rows of --aligned (keyed digest) is " in said and "missing at 'bank'" in said
    place = Path(reused["shop"][-1])
    common, text = place / "common.csv", (place / "common.csv").read_text()
    common.write_text(text.replace(",", ",1"))
    assert "is not what `colonnade align` wrote" in alone(trained, "shop", *reused["shop"])
    common.write_text(text)
    other = tmp_path / "shop.csv"
    other.write_text((trained / "shop.csv").read_text() + "\n")
    words = ["--data", str(other), *reused["shop"][2:]]
    assert "the file of this party is not the same. Omit" in alone(trained, "shop", *words)
    words = [*reused["shop"][:-1], str(trained / "runs" / "shop")]  # of a training
    assert "names a folder that `colonnade align` wrote" in alone(trained, "shop", *words)
