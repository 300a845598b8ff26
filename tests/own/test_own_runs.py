"""Runs on the parties' own files: aligned first, in every runtime, with nothing on the wire."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import colonnade
from colonnade.align import phase, psi
from colonnade.deploy import doctor
from colonnade.deploy import predict as member_predict
from colonnade.errors import ColonnadeError, ConfigError, DataError, PeerLost

ROWS, OVER = 120, 72  # of each party, of which so many are common


def tables(seed: int = 0) -> dict[str, tuple[list[str], np.ndarray[Any, Any], list[str]]]:
    """ids, features and labels of a bank and a shop, in orders of their own."""
    draw = np.random.default_rng(seed)
    everybody = [f"person {n}" for n in range(2 * ROWS - OVER)]
    x = draw.normal(size=(len(everybody), 7)) + 1000
    y = ["good" if row[0] + row[5] > 2000 else "bad" for row in x]
    mine = draw.permutation(ROWS)
    theirs = draw.permutation(np.arange(ROWS - OVER, len(everybody)))

    def part(rows: Any, columns: slice) -> tuple[list[str], np.ndarray[Any, Any], list[str]]:
        return [everybody[n] for n in rows], x[rows][:, columns], [y[n] for n in rows]

    return {"bank": part(mine, slice(0, 3)), "shop": part(theirs, slice(3, 7))}


def write(folder: Path, **changes: Any) -> Path:
    """Two CSV files and the run file beside them."""
    for party, (ids, x, labels) in tables().items():
        header = ["customer", *(f"{party} {n}" for n in range(x.shape[1]))]
        lines = [[name, *map(repr, map(float, row))] for name, row in zip(ids, x, strict=True)]
        if party == "bank":
            header.append("verdict")
            lines = [[*line, label] for line, label in zip(lines, labels, strict=True)]
        text = "\n".join(",".join(line) for line in [header, *lines])
        (folder / f"{party}.csv").write_text(text + "\n")
    settings = {"method": '"splitnn"', "epochs": 2, "batch_size": 16} | changes
    top = "\n".join(f"{key} = {value}" for key, value in settings.items())
    (folder / "run.toml").write_text(
        f"""{top}
[parties.bank]
data = "bank.csv"
id = "customer"
label = "verdict"
[parties.shop]
data = "shop.csv"
id = "customer"
"""
    )
    return folder / "run.toml"


def common() -> list[str]:
    found = tables()
    return sorted(set(found["bank"][0]) & set(found["shop"][0]))


def test_rows_are_aligned_and_trained_on(tmp_path: Path) -> None:
    result = colonnade.run(write(tmp_path), out=tmp_path / "run")
    facts = result.content["data"]
    assert facts["own_rows"] == {"bank": ROWS, "shop": ROWS}
    assert facts["common_rows"] == facts["train_rows"] + facts["test_rows"] == OVER
    setup = result.wire["by_phase"]["setup"]
    assert setup["messages"] == result.wire["messages"] - sum(
        result.wire["by_phase"][key]["messages"] for key in ("train", "eval")
    )
    assert {"psi_points", "psi_places", "embedding"} <= result.wire["by_kind"].keys()


def test_every_party_has_the_same_rows_in_the_same_order(tmp_path: Path) -> None:
    """With its own features and labels of them, prepared by its own statistics."""
    kept: dict[str, Any] = {}

    def spied(me: Any, rows: Any) -> None:
        keep(me, rows)
        kept[me.name] = me

    keep = phase.keep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phase, "keep", spied)
        colonnade.run(write(tmp_path), out=tmp_path / "run")
    found = tables()
    order = [
        found["bank"][0][n]
        for n in phase.common_in_clear(
            {name: ids for name, (ids, *_) in found.items()}, psi.Alignment()
        )["bank"].tolist()
    ]
    assert sorted(order) == common() and order != common()
    for name, (ids, x, labels) in found.items():
        prepared = kept[name].preparation.apply(torch.tensor(x).float())
        for split in kept[name].splits.values():
            for row, number in enumerate(split.ids.tolist()):
                at = ids.index(order[number])
                assert torch.equal(split.x[row], prepared[at])
                if split.y is not None:
                    assert kept[name].task.classes[int(split.y[row])] == labels[at]
    assert torch.equal(kept["bank"].splits["test"].ids, kept["shop"].splits["test"].ids)


def test_the_same_bits_in_processes(tmp_path: Path) -> None:
    file = write(tmp_path)
    here = colonnade.run(file, out=tmp_path / "here")
    there = colonnade.run(file, out=tmp_path / "there", runtime="process")
    assert here.weights_sha256 == there.weights_sha256
    assert here.metrics == there.metrics and here.content["data"] == there.content["data"]
    own = json.loads((tmp_path / "there" / "parties" / "shop" / "result.json").read_text())
    assert own["data"]["own_rows"] == {"shop": ROWS}
    assert own["data"]["common_rows"] == OVER


def test_nothing_of_the_files_is_on_the_wire(tmp_path: Path) -> None:
    kinds = [kind.name for kind in psi.KINDS] + ["embedding", "gradient"]
    file = write(tmp_path, record=json.dumps(kinds))
    colonnade.run(file, out=tmp_path / "run")
    recorded = b"".join(
        p.read_bytes() for p in sorted((tmp_path / "run" / "record").rglob("*")) if p.is_file()
    )
    assert len(recorded) > 10_000
    found = tables()
    for ids, x, _ in found.values():
        for name in ids:
            assert name.encode() not in recorded
        for column in x.T:
            for kind in (np.float32, np.float64):
                for two in pairwise(column):
                    assert np.array(two, kind).tobytes() not in recorded
    for labels in (found["bank"][2], [found["bank"][2][n] for n in range(OVER)]):
        codes = np.array([label == "good" for label in labels])
        for code in (np.uint8, np.int32, np.int64, np.float32):
            assert codes[:16].astype(code).tobytes() not in recorded


def test_a_resumed_run_does_not_ask_again(tmp_path: Path) -> None:
    whole = colonnade.run(write(tmp_path), out=tmp_path / "whole")
    with pytest.raises(PeerLost, match=r"splitnn.py, line"):
        colonnade.run(tmp_path / "run.toml", out=tmp_path / "run", lose={"shop": 5})
    with pytest.MonkeyPatch.context() as patch:

        async def never(*_: Any) -> Any:
            raise AssertionError

        patch.setattr(phase, "common_rows", never)
        again = colonnade.run(tmp_path / "run" / "config.toml", resume=tmp_path / "run")
    assert again.weights_sha256 == whole.weights_sha256


def test_trained_models_predict_the_common_test_rows(tmp_path: Path) -> None:
    result = colonnade.run(write(tmp_path), out=tmp_path / "run")
    trained = colonnade.load(tmp_path / "run")
    (found,) = [p for name, p in trained.predict().items() if name == "bank"]
    share = (found.probabilities.argmax(1) == trained.labels()).double().mean()
    assert share == pytest.approx(result.metrics["test"]["accuracy"])
    ids, _, labels = tables()["bank"]
    truth = [found.classes[code] for code in trained.labels().tolist()]
    assert [labels[ids.index(name)] for name in found.names] == truth


@pytest.mark.parametrize("method", ["centralised", "local"])
def test_baselines_on_the_same_files(method: str, tmp_path: Path) -> None:
    result = colonnade.run(write(tmp_path, method=json.dumps(method)), out=tmp_path / "run")
    rows = result.content["data"]["train_rows"] + result.content["data"]["test_rows"]
    assert rows == (OVER if method == "centralised" else ROWS)
    assert "psi_points" not in result.wire["by_kind"]
    assert len(colonnade.load(tmp_path / "run").predict()) == 1


def test_where_every_party_brings_labels_all_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the file of shop has no labels, and in fedemb every"):
        colonnade.run(write(tmp_path, method='"fedemb"'), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_ids_that_count_as_one_are_divided_as_one(tmp_path: Path) -> None:
    file = write(tmp_path)
    shop = tmp_path / "shop.csv"
    shop.write_text(shop.read_text().replace("person", "PERSON"))
    with pytest.raises(DataError, match="10"):
        colonnade.run(file, out=tmp_path / "none")
    file.write_text(file.read_text() + "[align]\ncasefold = true\n")
    assert colonnade.run(file, out=tmp_path / "run").content["data"]["common_rows"] == OVER


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('[data]\nname = "digits"\n', "omit one or the other"),
        ('[partition]\nkind = "columns"\n', "omit one or the other"),
        ("[parties.third]\nlr = 0.1\n", r"\[parties.third\] has no `data`"),
        ('[align]\nengine = "md5"\n', "align.engine"),
        ("[align]\nminimum = -1\n", "minimum = -1: at least 0"),
    ],
)
def test_mistakes_in_the_file(more: str, message: str, tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text() + more)
    with pytest.raises(ConfigError, match=message):
        colonnade.run(file, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_few_common_rows(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text() + f"[align]\nminimum = {OVER + 1}\n")
    with pytest.raises(DataError, match=str(OVER + 1)):
        colonnade.run(file, out=tmp_path / "run")


def test_align_is_for_own_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="own files"):
        colonnade.run(
            {"method": "splitnn", "data": {"name": "digits"}, "align": {}}, out=tmp_path / "run"
        )


def test_labels_must_be_somewhere(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().replace('label = "verdict"', 'leave_out = ["verdict"]'))
    with pytest.raises(DataError, match="no party's file has labels"):
        colonnade.run(file, out=tmp_path / "run")


def test_the_doctor_says_what_would_happen(tmp_path: Path) -> None:
    found = [(c.about, c.verdict, c.found) for c in doctor.examine_run(write(tmp_path))]
    assert {verdict for _, verdict, _ in found} == {"ok", "note"}
    said = "\n".join(f"{about}: {text}" for about, _, text in found)
    assert f"alignment: {OVER} rows are common: 60% of bank's, 60% of shop's" in said
    assert "labels in 'verdict', 2 classes: 'bad', 'good'" in said
    assert "shop: passive, 4 numbers per row" in said
    assert "embedding (batch × dim) reveals the sender's features" in said
    assert "psi_places" in said


def test_the_doctor_counts_every_common_row_once(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text() + "\n[data]\nvalidation = 0.2\n")
    (said,) = [c.found for c in doctor.examine_run(file) if c.about == "rows"]
    counted = re.match(r"(\d+) rows to train on, (\d+) for validation, (\d+) to test; ", said)
    assert counted and sum(map(int, counted.groups())) == OVER


def test_the_doctor_names_what_is_wrong(tmp_path: Path) -> None:
    file = write(tmp_path)
    shop = tmp_path / "shop.csv"
    shop.write_text(shop.read_text().replace("person", "client"))
    (problem,) = [c for c in doctor.examine_run(file) if c.verdict == "problem"]
    assert problem.about == "alignment"
    assert "0 rows are common, fewer than the minimum of 10" in problem.found
    shop.write_text(shop.read_text().replace("customer", "member"))
    (problem,) = [c for c in doctor.examine_run(file) if c.verdict == "problem"]
    assert problem.about == "shop"
    assert "no column 'customer'" in problem.found
    assert doctor.is_run(file)


def test_without_a_minimum_nothing_in_common_is_still_an_error(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text() + "[align]\nminimum = 0\n")
    shop = tmp_path / "shop.csv"
    shop.write_text(shop.read_text().replace("person", "client"))
    with pytest.raises(ColonnadeError, match=r"no row is common to all\. Are the ids the same"):
        colonnade.run(file, out=tmp_path / "run")


def test_later_rows_keep_the_categories_of_training(tmp_path: Path) -> None:
    """Also where a file of new rows shows only one of them, and it looks like a number."""
    file = write(tmp_path)
    lines = (tmp_path / "shop.csv").read_text().splitlines()
    kinds = ["1", "2", "3+"] * ROWS
    text = [f"{lines[0]},size", *(f"{a},{b}" for a, b in zip(lines[1:], kinds, strict=False))]
    (tmp_path / "shop.csv").write_text("\n".join(text) + "\n")
    colonnade.run(file, out=tmp_path / "run")
    header = lines[0].replace("customer", "id")
    numbers = ",".join(lines[1].split(",")[1:])
    (tmp_path / "new.csv").write_text(f"{header},size\nsomebody,{numbers},2\nother,,,,,4\n")
    new = member_predict.rows_for(tmp_path / "new.csv", "shop", tmp_path / "run")
    rows, ids = new.rows, new.ids
    assert ids == ["somebody", "other"]
    assert rows.splits[member_predict.SPLIT].x[:, 4:].tolist() == [[0, 1, 0], [0, 0, 0]]
    assert rows.splits[member_predict.SPLIT].x[1, :4].tolist() == [
        0,
        0,
        0,
        0,
    ]  # the mean of training
