"""Predictions of numbers, from files and tables: values, their measures, and the same file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

import colonnade
from colonnade.cli.main import main

ROWS = 160
RUN = """method = "splitnn"
epochs = 3
batch_size = 16
[parties.dealer]
data = "dealer.csv"
id = "car"
label = "price"
[parties.garage]
data = "garage.csv"
id = "car"
"""


def cars(seed: int) -> dict[str, pd.DataFrame]:
    draw = np.random.default_rng(seed)
    index = pd.Index([f"car {n}" for n in range(seed * ROWS, (seed + 1) * ROWS)], name="car")
    dealer = pd.DataFrame(draw.normal(size=(ROWS, 3)), index, ["age", "size", "power"])
    garage = pd.DataFrame(draw.normal(size=(ROWS, 2)), index, ["repairs", "rust"])
    price = 9000 - 2500 * dealer["age"] - 1500 * garage["rust"] + draw.normal(0, 100, ROWS)
    return {"dealer": dealer.assign(price=price.round(2)), "garage": garage}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cars")
    (made / "run.toml").write_text(RUN)
    for seed, prefix in ((0, ""), (1, "new_")):
        for name, table in cars(seed).items():
            table.to_csv(made / f"{prefix}{name}.csv")
    return made


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["predict", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    with Path(found["predictions"]).open(newline="") as file:
        found["lines"] = list(csv.DictReader(file))
    return found


def test_numbers_are_predicted_alike_in_every_runtime(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = [f"--data={name}={folder}/new_{name}.csv" for name in ("dealer", "garage")]
    files = []
    runtimes: list[Literal["local", "process"]] = ["local", "process"]
    for runtime in runtimes:
        result = colonnade.run(folder / "run.toml", out=tmp_path / runtime, runtime=runtime)
        (party,) = told(capsys, str(result.path))["parties"]  # the test rows once more
        measured = result.metrics["test"]["measures"]["dealer"]
        assert party["measures"] == {name: value["value"] for name, value in measured.items()}
        assert party["threshold"] is None and party["accuracy"] is None
        found = told(capsys, str(result.path), *new)
        assert {line.pop("run") for line in found["lines"]} == {runtime}
        files.append(found["lines"])
        (party,) = found["parties"]
    assert files[0] == files[1]
    assert list(files[0][0]) == ["id", "predicted", "label", "model"]
    values, truth = ([float(line[key]) for line in files[0]] for key in ("predicted", "label"))
    assert party["measures"]["rmse"] == pytest.approx(root_mean_squared_error(truth, values))
    assert party["measures"]["mae"] == pytest.approx(mean_absolute_error(truth, values))
    assert party["scored"] == ROWS
    assert main(["predict", str(tmp_path / "local"), *new]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Predicted numbers, in the unit of 'price'" in said and "RMSE" in said


def test_labels_that_are_no_numbers_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    colonnade.run(folder / "run.toml", out=tmp_path / "run")
    dealer = pd.read_csv(folder / "new_dealer.csv", dtype={"price": object})
    dealer.loc[:4, "price"] = "on request"
    dealer.loc[5:9, "price"] = None
    dealer.to_csv(tmp_path / "dealer.csv", index=False)
    new = [f"--data=dealer={tmp_path}/dealer.csv", f"--data=garage={folder}/new_garage.csv"]
    found = told(capsys, str(tmp_path / "run"), *new)
    assert found["parties"][0]["rows"] == ROWS and found["parties"][0]["scored"] == ROWS - 10
    (warning,) = found["warnings"]
    assert "5 rows of 'dealer' have labels that are not numbers ('on request')" in warning


def test_tables_with_gaps_are_predicted_as_they_were_trained(tmp_path: Path) -> None:
    """A missing number counts as the mean of the training, an unknown category as a missing one."""
    dealer, garage = cars(0).values()
    y = np.where(dealer.pop("price") > 9000, "dear", "cheap")
    garage["paint"] = np.random.default_rng(0).choice(["red", "blue"], ROWS)
    garage.iloc[::5, 0] = np.nan
    garage.iloc[::7, 2] = None
    settings = {"method": "splitnn", "epochs": 2, "data": {"test": 0.2}}
    result = colonnade.run(
        settings, parties={"dealer": (dealer, y), "garage": garage}, out=tmp_path / "run"
    )
    trained = colonnade.load(result.path)

    def shares(table: pd.DataFrame) -> Any:
        found = trained.predict({"dealer": dealer, "garage": table})["dealer"]
        assert set(found.decisions) <= {"dear", "cheap"} and len(found) == ROWS
        return found.probabilities

    plain = shares(garage)
    assert not plain.isnan().any()
    assert shares(garage[["paint", "rust", "repairs"]]).equal(plain)  # found by their names
    other = garage.assign(paint=garage["paint"].fillna("green"))
    assert shares(other).equal(plain)
    rows = trained.prepared("garage", garage)  # repairs, rust, and a column for each paint
    assert rows[::5, 0].tolist() == [0] * len(rows[::5])
    assert not rows[::7, 2:].any()
