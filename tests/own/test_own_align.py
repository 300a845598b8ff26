"""`colonnade align`: the common rows alone, in every runtime; and who is told what."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from test_own_runs import OVER, ROWS, common, tables, write

import colonnade
from colonnade import config, methods, report
from colonnade.align import psi
from colonnade.align.phase import fingerprint
from colonnade.cli.main import main
from colonnade.config import federation
from colonnade.errors import ConfigError, FederationError
from colonnade.wire import ledger

PSI = {kind.name for kind in psi.KINDS}
OF_MANY = {"psi_table", "psi_count", "psi_common"}  # three parties or more


def aligned(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    assert main(["align", *map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def kept(folder: Path) -> list[list[str]]:
    with (folder / "common.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize(
    "runtime", ["local", "process", pytest.param("nvflare", marks=pytest.mark.long)]
)
def test_the_common_rows_alone(
    runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if runtime == "nvflare":
        pytest.importorskip("nvflare")
    out = tmp_path / "out"
    told = aligned(capsys, write(tmp_path), "--out", out, "--runtime", runtime)
    assert told["path"] == str(out)
    ids = {}
    for party, (own, *_) in tables().items():
        header, *lines = kept(out / "parties" / party)
        assert header == ["id", "row"]
        assert [own[int(row)] for _, row in lines] == [name for name, _ in lines]
        ids[party] = [name for name, _ in lines]
        shown = told["parties"][party]
        assert (shown["rows"], shown["ids"], shown["common"]) == (ROWS, ROWS, OVER)
        assert shown["order"] == fingerprint(ids[party], party, psi.Alignment())
        assert shown["sent_bytes"] > 32 * ROWS and shown["seconds"] > 0
    assert ids["bank"] == ids["shop"] and sorted(ids["bank"]) == common()
    result = json.loads((out / "result.json").read_text())
    report.check(result)
    assert (result["status"], result["method"]) == ("finished", "alignment")
    assert result["data"]["own_rows"] == {"bank": ROWS, "shop": ROWS}
    assert result["data"]["common_rows"] == OVER
    assert {row["kind"] for row in ledger.read(out / "ledger.jsonl")} == PSI - OF_MANY


def test_a_table_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", str(write(tmp_path)), "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (bank,) = [line.split() for line in lines if line.startswith(" bank")]
    (shop,) = [line.split() for line in lines if line.startswith(" shop")]
    assert bank[1:6] == shop[1:6] and bank[1:4] == ["120", "120", "72"]
    assert lines[-1] == f"result  {tmp_path / 'out' / 'result.json'}"


@pytest.mark.parametrize("method", ["local", "fedemb", "adptvfedconv"])
def test_whatever_the_method_is(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own settings stand in the way of nothing; those of the alignment count."""
    file = write(tmp_path, method=json.dumps(method), record=json.dumps(["psi_places"]))
    if method == "local":
        file.write_text(file.read_text().replace('record = ["psi_places"]', ""))
    if method == "adptvfedconv":
        file.write_text(file.read_text().replace("epochs", "model_options = {width = 0.1}\nepochs"))
    shop = tmp_path / "shop.csv"
    shop.write_text(shop.read_text().replace("person", "PERSON"))
    file.write_text(file.read_text() + "[align]\ncasefold = true\n")
    told = aligned(capsys, file, "--out", tmp_path / "out")
    assert told["parties"]["shop"]["common"] == OVER
    assert told["parties"]["shop"]["order"] == told["parties"]["bank"]["order"]


def test_labels_and_features_are_not_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().replace('label = "verdict"', ""))
    bank = tmp_path / "bank.csv"
    head, first, *lines = bank.read_text().splitlines()
    bank.write_text("\n".join([head, ",".join([first.split(",")[0], "x", "1", "2", ""]), *lines]))
    assert aligned(capsys, file, "--out", tmp_path / "out")["parties"]["bank"]["common"] == OVER


def test_it_is_in_no_list(tmp_path: Path) -> None:
    assert "alignment" not in methods.names()
    with pytest.raises(ConfigError, match="no method") as caught:
        config.load({"method": "nothing"})
    assert "alignment" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", f"align.minimum={OVER + 1}"], f"fewer than {OVER + 1} rows are common"),
        (["--data", "bank.csv"], "--data is of one party of a federation: say whose with --name"),
        (["--set", "align.engine=openmined"], "align.engine: there is only ristretto255"),
        (["--name", "bank", "--runtime", "local"], "--runtime and --set are for a run file"),
    ],
)
def test_mistakes(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["align", str(write(tmp_path)), "--out", str(tmp_path / "out"), *words]) == 2
    assert said in capsys.readouterr().err


def test_there_must_be_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text('method = "splitnn"\n[data]\nname = "digits"\n')
    assert main(["align", str(file)]) == 2
    assert "no files of the parties' own" in capsys.readouterr().err


def test_an_alignment_predicts_nothing(tmp_path: Path) -> None:
    run = config.load(write(tmp_path)).to_align()
    colonnade.run(run, out=tmp_path / "out")
    with pytest.raises(colonnade.ColonnadeError, match="only aligned rows, and trained nothing"):
        colonnade.load(tmp_path / "out")


KEYS = ["ab" * 32, "cd" * 32, "ef" * 32]


def shared(folder: Path, method: str, more: str = "") -> Path:
    path = folder / "federation.toml"
    path.write_text(
        f"""name = "ours"
on_lost = "{"continue" if method == "splitnn" else "wait"}"
[run]
method = "{method}"
[run.align]
minimum = 50
{more}
[parties.bank]
address = "127.0.0.1:7443"
signing_key = "{KEYS[0]}"
[parties.shop]
signing_key = "{KEYS[1]}"
{"[parties.server]" if method == "fedemb" else "[parties.telco]"}
address = "127.0.0.1:7444"
signing_key = "{KEYS[2]}"
[policy.allow.{"embedding" if method == "splitnn" else "block"}]
[policy.allow.psi_points]
"""
    )
    return path


def test_a_federation_is_asked_for_its_common_rows(tmp_path: Path) -> None:
    found = federation.load_alignment(shared(tmp_path, "splitnn"))
    assert found.names == ("bank", "shop", "telco")
    assert (found.name, found.hub, found.on_lost) == ("ours-align", "bank", "wait")
    assert found.run.align == psi.Alignment(minimum=50)
    assert found.policy is not None and list(found.policy.allow) == ["psi_points"]
    assert found.sha256 != federation.load(found.path).sha256
    assert set(found.run.kinds) == PSI


def test_who_brings_no_rows_is_not_needed(tmp_path: Path) -> None:
    classes = '[run.data]\nclasses = ["a", "b"]'
    found = federation.load_alignment(shared(tmp_path, "fedemb", classes))
    assert found.names == ("bank", "shop") and list(found.run.parties) == ["bank", "shop"]
    path = shared(tmp_path, "fedemb", classes)
    path.write_text(path.read_text().replace('address = "127.0.0.1:7443"', ""))
    with pytest.raises(FederationError, match=r"give \[parties.bank\] an address"):
        federation.load_alignment(path)
