"""`colonnade privacy`: a party's file, its journal, and the folder of a run."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli_startup import light

import colonnade
from colonnade.cli.main import main
from colonnade.journal import Journal, RunJournal, Spending, default_place
from colonnade.privacy import accountant
from colonnade.privacy.settings import TAILS

USE = Spending("gaussian", 4.0)
FEDERATION = 'name = "ours"\n[run]\nmethod = "splitnn"\n[parties.bank]\n[parties.shop]\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    Path("federation.toml").write_text(FEDERATION)
    Path("shop.csv").write_text("case,age\n" + "".join(f"ID{n},3{n}\n" for n in range(5)))


def spend(place: Path, ids: list[str]) -> None:
    """Three epochs of a run, and a label of one record."""
    with closing(Journal(place)) as journal:
        mine = RunJournal(lambda: journal, "3f").spendings(journal.names(ids))
        for epoch in range(3):
            mine.book(f"{epoch}", USE, "embedding", "training")
        answer = Spending("response", 2.0)
        mine.book("a", answer, "labels", "labels", positions=np.array([0]))


def told(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["privacy", *words, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["journals"]
    return found


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(["privacy", *words])
    shown = capsys.readouterr()
    return " ".join((shown.out + shown.err).split())


OF_SHOP = ("shop.csv", "--id", "case", "--name", "shop", "--federation", "federation.toml")


def test_the_file_of_a_party(capsys: pytest.CaptureFixture[str]) -> None:
    """Written in other letters, and with rows that no run has seen."""
    spend(default_place("ours", "shop"), ["id1", "id2", "id77"])
    (found,) = told(capsys, *OF_SHOP)
    assert (found["party"], found["rows"], found["simulated"]) == ("shop", 5, False)
    (line,) = (one for one in found["spent"] if one["kind"] == "embedding")
    assert (line["run"], line["purpose"], line["times"], line["records"]) == (
        "3f",
        "training",
        3,
        2,
    )
    exact = accountant.epsilon([(USE, 3)], 1e-5 - TAILS)
    assert found["lost"]["features"]["epsilon"] == pytest.approx(exact)
    assert found["lost"]["labels"] == {
        "epsilon": 2.0,
        "delta": 1e-5,
        "records": 1,
        "limit": None,
    }
    (less,) = told(capsys, *OF_SHOP, "--delta", "1e-7")
    assert less["lost"]["features"]["epsilon"] > exact
    text = said(capsys, *OF_SHOP)
    assert "embedding" in text and f"ε = {exact:.4g} at δ = 1e-05" in text
    assert "2 of 5 rows lost something" in text


def test_rows_that_were_never_released(capsys: pytest.CaptureFixture[str]) -> None:
    never = "no protection has spent anything on these 5 rows"
    assert never in said(capsys, *OF_SHOP)
    assert not default_place("ours", "shop").exists()  # looking makes no journal
    spend(default_place("ours", "shop"), ["id77"])
    assert never in said(capsys, *OF_SHOP)
    assert told(capsys, *OF_SHOP)[0]["spent"] == []


def test_a_federation_of_another_name_has_spent_on_the_same_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spend(default_place("theirs", "shop"), ["id1", "id2"])
    text = said(capsys, *OF_SHOP)
    assert "knows 2 of these rows" in text and "theirs" in text


def test_a_policy_names_the_journal_and_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    spend(Path("kept"), ["id1", "id2"])
    Path("policy.toml").write_text('journal = "kept"\n[privacy]\nfeatures = 20\ndelta = 1e-6\n')
    (found,) = told(capsys, "shop.csv", "--id", "case", "--name", "shop", "--policy", "policy.toml")
    assert found["lost"]["features"]["limit"] == 20.0
    assert found["lost"]["features"]["delta"] == 1e-6
    words = ("shop.csv", "--id", "case", "--policy", "policy.toml")
    assert "the policy allows 20" in said(capsys, *words)
    Path("policy.toml").write_text("[privacy]\nfeature = 20\n")
    assert "did you mean 'features'" in said(capsys, *words).replace("Did", "did")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("shop.csv",), "Give --name and --federation"),
        (("shop.csv", "--federation", "federation.toml"), "give --name, one of bank, shop"),
        ((*OF_SHOP[:4], "shap", *OF_SHOP[5:]), "'shap'"),
        (("nowhere",), "nowhere is neither a file nor a folder"),
        (("share",), "neither a run folder nor a journal"),
    ],
)
def test_what_cannot_be_looked_at(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("share").mkdir()
    assert main(["privacy", *words]) == 2
    assert why in " ".join(capsys.readouterr().err.split())


def test_a_journal_is_light(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "kept")) as journal:
        records = journal.names(["id1"])
        mine = RunJournal(lambda: journal, "3f").spendings(records)
        mine.book("a", Spending("response", 2.0), "labels", "labels")
    done = light("privacy", tmp_path / "kept")
    assert (done.returncode, done.stderr) == (0, "") and "ε = 2" in done.stdout


def test_no_number_is_cut_off_on_a_narrow_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with closing(Journal(Path("kept"))) as journal:
        records = journal.names([f"id{number}" for number in range(1234)])
        mine = RunJournal(lambda: journal, "0f3c5e1d7a9b2c46").spendings(records)
        noise = Spending("discrete", 0.9018)
        mine.book("a", noise, "masked_embedding", "training", times=1234)
    shown = said(capsys, "kept")
    assert "times" in shown and "records" in shown and shown.count("1,234") >= 2
    assert "discrete, σ = 0.9018 Δ" in shown


def test_a_cut_journal_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    spend(Path("kept"), ["id1"])
    lines = Path("kept/journal.jsonl").read_text().splitlines(keepends=True)
    Path("kept/journal.jsonl").write_text("".join([*lines[:2], *lines[3:]]))
    assert main(["privacy", "kept"]) == 1
    assert "the chain breaks" in " ".join(capsys.readouterr().err.split())


def test_a_simulation_counts_for_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    run = {
        "method": "splitnn",
        "epochs": 2,
        "model_options": {"hidden": []},
        "data": {"name": "digits", "train_rows": 120, "test_rows": 40},
        "partition": {"kind": "strips", "parties": 2},
        "splitnn": {"dim": 4},
    }
    colonnade.run(run, out=Path("plain"))
    assert "no protection has counted anything in this folder" in said(capsys, "plain")
    assert told(capsys, "plain") == []
    colonnade.run(run | {"protect": {"embedding_epsilon": 8.0}}, out=Path("noisy"))
    found = {one["party"]: one for one in told(capsys, "noisy")}["party2"]
    assert found["simulated"]
    assert found["lost"]["features"]["epsilon"] == pytest.approx(8.0, rel=1e-6)
    assert "this counts for nobody" in said(capsys, "noisy")
