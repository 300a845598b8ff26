"""The same rows are never predicted under the same weights by two sets of members.

Where the label holder learns only a sum over the passive parties, the sum with everybody less the
sum without one party is that party's embeddings. It needs no lie: two commands are enough. So every
passive party remembers which rows have met which members, in training too, and refuses others.
"""

from __future__ import annotations

import csv
import hashlib
import json
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from nursery import Nursery
from sklearn.datasets import load_breast_cancer

from colonnade.config import federation
from colonnade.config.federation import Member
from colonnade.net import certs
from colonnade.role.seeds import derive
from colonnade.wire import ledger

PARTIES = {"bank": slice(0, 6), "shop": slice(6, 14), "post": slice(14, 22), "telco": slice(22, 30)}
RUN = {
    "method": "easter",
    "epochs": 1,
    "batch_size": 32,
    "model_options": {"hidden": [8]},
    "easter": {"dim": 4},
}


STOPS = {"epochs": 8, "patience": 2, "metric": "log_loss", "lr": 0.5, "schedule": "constant"}


def write_rows(path: Path, columns: slice, rows: Sequence[int], labels: bool = False) -> None:
    data = load_breast_cancer()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = [name.replace(" ", "_") for name in data.feature_names[columns]]
        writer.writerow(["id", *names, *(["label"] if labels else [])])
        for row in rows:
            label = [data.target_names[data.target[row]]] if labels else []
            writer.writerow([f"patient-{row}", *data.data[row, columns].tolist(), *label])


class Organisations:
    """Four with files and journals of their own; the label holder alone has a port."""

    def __init__(self, folder: Path, nursery: Nursery, **changes: Any) -> None:
        self.folder, self._nursery = folder, nursery
        certs.init(folder)
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        members = []
        for name in PARTIES:
            certs.party(folder, name)
            key = certs.public_text(folder / name / f"{name}.sign")
            members.append(Member(name, address if name == "bank" else "", "", key))
            kept = folder / name / "policy.toml"
            kinds = ["masked_embedding", "global_embedding", "prediction", "gradient"]
            kinds += ["mean_embedding", "public_keys", "signatures"]
            kinds += ["verdict"] if changes and name == "bank" else []
            kept.write_text(
                f'journal = "journal"\n{"".join(f"[allow.{k}]{chr(10)}" for k in kinds)}'
            )
        self.file = folder / "federation.toml"
        federation.write(self.file, "four", members, RUN | changes, deadline=20.0)
        three = [member for member in members if member.name != "telco"]
        for seed in (0, 1):
            file = folder / f"three-{seed}.toml"
            federation.write(file, "four", three, RUN | {"seed": seed}, deadline=20.0)

    def run(
        self, rows: Sequence[int], *more: str, without: str = "", labels: bool = False
    ) -> dict[str, int]:
        """All take part with these rows; exit codes."""
        absent = ["--absent", without] if without and self.file.stem == "federation" else []
        running = {}
        for name, columns in PARTIES.items():
            if name == without:
                continue
            file = self.folder / f"{name}-{rows[0]}-{len(rows)}.csv"
            write_rows(file, columns, rows, labels and name == "bank")
            words = [*self._nursery.command(), "party", "--name", name, "--quiet", *absent]
            words += ["--federation", str(self.file), "--data", str(file)]
            words += ["--keys", str(self.folder / name)]
            words += ["--policy", str(self.folder / name / "policy.toml")]
            words += [str(self.out(name)) if word == "OUT" else word for word in more]
            with (self.folder / f"{name}.txt").open("w") as shown:
                running[name] = subprocess.Popen(words, stdout=shown, stderr=shown)
        return {name: process.wait(60) for name, process in running.items()}

    def predict(self, rows: Sequence[int], without: str = "") -> dict[str, int]:
        return self.run(rows, "--predict", "OUT", without=without)

    def train_as_three(self, seed: int) -> dict[str, int]:
        """A federation of fewer, whose members have the journals of before."""
        plain, self.file = self.file, self.folder / f"three-{seed}.toml"
        try:
            return self.run(range(300), "--out", "OUT", without="telco", labels=True)
        finally:
            self.file = plain

    def out(self, name: str) -> Path:
        return self.folder / f"runs-{self.file.stem}" / name

    def shown(self, name: str) -> str:
        return " ".join((self.folder / f"{name}.txt").read_text().split())

    def masked(self, name: str, run: str = "runs-federation/{}/ledger-predict.jsonl") -> int:
        """How many masked messages have left a party, in all predictions, or in another run."""
        rows = ledger.read(self.folder / run.format(name))
        return sum(r.get("kind") == "masked_embedding" and r["sender"] == name for r in rows)


@pytest.fixture(scope="module")
def trained(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Organisations:
    made = Organisations(tmp_path_factory.mktemp("four"), nursery)
    codes = made.run(range(300), "--out", "OUT", labels=True)
    assert set(codes.values()) == {0}, {name: made.shown(name) for name in codes}
    for _ in range(2):  # as after a crash
        assert set(made.predict(range(300, 340)).values()) == {0}
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows",
    [range(300, 340), range(330, 331), range(300)],
    ids=["the same rows", "one of them", "rows evaluated in training"],
)
def test_rows_that_met_everybody_do_not_meet_fewer(rows: range, trained: Organisations) -> None:
    """New rows are predicted with everybody, and again after a crash. Then one party is named as
    absent, at all others; none of them may send its part of these rows once more."""
    before = {name: trained.masked(name) for name in ("shop", "post")}
    codes = trained.predict(rows, without="telco")
    assert {name: trained.masked(name) for name in before} == before
    assert 0 not in codes.values()
    said = trained.shown("shop") + trained.shown("post")
    assert "'telco' was there" in said and "predict other rows" in said


def trained_on(made: Organisations) -> list[int]:
    """Rows that took part in every epoch, and were never evaluated."""
    told = json.loads((made.out("bank") / "result.json").read_text())
    seed = derive(told["config"]["seed"], "data")
    draws = [
        int.from_bytes(hashlib.sha256(f"{seed}/patient-{row}".encode()).digest()[:8], "little")
        for row in range(300)
    ]
    rows = sorted(range(300), key=lambda row: draws[row])
    return sorted(rows[-told["data"]["train_rows"] :])


@pytest.mark.slow
def test_rows_that_were_trained_on_do_not_meet_fewer(trained: Organisations) -> None:
    """In the last step they met everybody, under nearly the weights of today."""
    before = {name: trained.masked(name) for name in ("shop", "post")}
    codes = trained.predict(trained_on(trained), without="telco")
    assert {name: trained.masked(name) for name in before} == before
    assert 0 not in codes.values()


@pytest.mark.slow
def test_nor_where_the_training_has_gone_back_to_an_epoch_before(
    nursery: Nursery, tmp_path: Path
) -> None:
    """The first step after the best epoch met everybody under exactly the weights of today."""
    made = Organisations(tmp_path, nursery, **STOPS, data={"validation": 0.3})
    codes = made.run(range(300), "--out", "OUT", labels=True)
    assert set(codes.values()) == {0}, {name: made.shown(name) for name in codes}
    told = json.loads((made.out("bank") / "result.json").read_text())["stopping"]
    assert told["best_epoch"] < told["of"]
    codes = made.predict(trained_on(made), without="telco")
    assert {name: made.masked(name) for name in ("shop", "post")} == {"shop": 0, "post": 0}
    assert 0 not in codes.values()
    assert "'telco' was there" in made.shown("shop") + made.shown("post")


@pytest.mark.slow
def test_a_second_training_does_not_begin_with_the_same_weights(trained: Organisations) -> None:
    """A federation of fewer trains on the same rows with the same seed, so it begins where the one
    of all began: the first sums differ by the embeddings of who is not there any more."""
    codes = trained.train_as_three(seed=0)
    for name in ("shop", "post"):
        assert not trained.masked(name, "runs-three-0/{}/ledger.jsonl")
        assert "another seed" in trained.shown(name)
    assert 0 not in codes.values()
    assert set(trained.train_as_three(seed=1).values()) == {0}


@pytest.mark.slow
def test_other_rows_may_be_predicted_without_a_party(trained: Organisations) -> None:
    assert set(trained.predict(range(400, 440), without="telco").values()) == {0}
    assert set(trained.predict(range(400, 440), without="telco").values()) == {0}
