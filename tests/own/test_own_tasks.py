"""What is learnt from a file's labels, how much its rows count, and what is wrong with either."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

import colonnade
from colonnade import assembly, config
from colonnade.cli.main import main
from colonnade.cli.party import own_file
from colonnade.data.own import OwnFile, read
from colonnade.deploy import doctor
from colonnade.errors import ConfigError, DataError

ROWS = 60
SCREEN = 1500  # letters


def party(folder: Path, name: str = "bank", **columns: Any) -> Path:
    """A CSV file of ROWS rows; a column is a list, or a function of the row's number."""
    cells = {"id": [f"p{n}" for n in range(ROWS)], "age": [str(n % 37) for n in range(ROWS)]}
    for column, values in columns.items():
        cells[column] = list(map(str, map(values, range(ROWS)) if callable(values) else values))
    lines = [",".join(row) for row in zip(*cells.values(), strict=True)]
    path = folder / f"{name}.csv"
    path.write_text("\n".join([",".join(cells), *lines]) + "\n")
    return path


def run_file(folder: Path, **settings: Any) -> Path:
    """The run file beside two files; a dict is a party's further keys."""
    party(folder, "shop", orders=lambda n: n * n % 11)
    top = {"method": "splitnn", "epochs": 1, "batch_size": 16} | settings
    more = {name: top.pop(name, {}) for name in ("bank", "shop")}
    text = [f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
            for key, value in top.items()]  # fmt: skip
    for name, keys in more.items():
        text += [f"[parties.{name}]", f'data = "{name}.csv"']
        text += [f'{key} = "{value}"' for key, value in keys.items()]
    path = folder / "run.toml"
    path.write_text("\n".join(text) + "\n")
    return path


def price(n: int) -> float:
    return 300 + 7.25 * (n % 37)


# --- what is learnt -------------------------------------------------------------------------------


def test_numbers_with_fractions_are_predicted(tmp_path: Path) -> None:
    party(tmp_path, price=price)
    path = run_file(tmp_path, bank={"label": "price"})
    made = assembly.from_files(config.load(path))
    holder = made.parties["bank"]
    train = holder.splits["train"].y
    assert train is not None and train.dtype == torch.float64
    assert holder.task.kind == "regression" and not holder.task.classes
    assert holder.task.mean == pytest.approx(float(train.mean()))
    assert holder.task.spread == pytest.approx(float(train.std(correction=0)))
    assert (made.data["task"], made.data["classes"]) == (holder.task.told(), [])
    bank = read(OwnFile("bank.csv", label="price"), tmp_path)
    assert bank.notes[1] == "labels in 'price', numbers from 300 to 561, 37 different"


def test_many_whole_numbers_are_a_question(tmp_path: Path) -> None:
    party(tmp_path, price=lambda n: 300 + n)
    path = run_file(tmp_path, bank={"label": "price"})
    for asked in (lambda: colonnade.run(path, out=tmp_path / "run"), lambda: examined(path)):
        with pytest.raises(DataError) as caught:
            asked()
        said = str(caught.value)
        assert "party 'bank': " in said and "bank.csv, column 'price'" in said
        assert "60 different values, from 300 to 359" in said and 'task = "regression"' in said
    answered = run_file(tmp_path, bank={"label": "price"}, task="regression")
    assert assembly.from_files(config.load(answered)).data["task"]["kind"] == "regression"


def examined(path: Path) -> None:
    """The doctor's problems, as an error."""
    wrong = [check.found for check in doctor.examine_run(path) if check.verdict == "problem"]
    if wrong:
        raise DataError("; ".join(wrong))


def test_the_doctor_says_what_is_learnt_and_how_rare_each_class_is(tmp_path: Path) -> None:
    party(tmp_path, label=lambda n: "yes" if n % 10 == 0 else "no")
    path = run_file(tmp_path)
    trained = assembly.from_files(config.load(path)).parties["bank"].splits["train"]
    assert trained.y is not None
    rare, rows = int((trained.y == 1).sum()), len(trained)
    checks = doctor.examine_run(path)
    (task,) = [check.found for check in checks if check.about == "task"]
    assert task == "two classes, judged by AUC; the most probable class is predicted"
    told, warned = [check for check in checks if check.about == "classes"]
    assert f"'yes' {rare} ({rare / rows:.1%}" in told.found.replace(" %", "%")
    assert (warned.verdict, warned.move != "") == ("warning", True)
    assert f"'yes' has {rare}." in warned.found and "'no'" not in warned.found
    changed = doctor.examine_run(path, ["decision.threshold=0.2", "metric=accuracy"])
    (task,) = [check.found for check in changed if check.about == "task"]
    assert "judged by Accuracy; 'yes' is predicted from a probability of 0.2 on" in task
    (wrong,) = [c for c in doctor.examine_run(path, ["epoch=3"]) if c.verdict == "problem"]
    assert "did you mean 'epochs'" in wrong.found


def test_set_changes_what_the_doctor_looks_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    party(tmp_path, price=price)
    path = str(run_file(tmp_path, bank={"label": "price"}))
    assert main(["doctor", path, "--set", "metric=mae"]) == 0
    assert "judged by MAE" in " ".join(capsys.readouterr().out.split())
    assert main(["doctor", path, "--name", "bank", "--set", "metric=mae"]) == 2
    assert "--set is for a run file" in capsys.readouterr().err


def test_thousands_of_labels_are_never_listed(tmp_path: Path) -> None:
    """24,000 classes once made an error of 104 kB, and 2,377 lines of the doctor."""
    rows = range(24_000)
    lines = [f"p{n},{n % 7},{1000 + n}" for n in rows]
    (tmp_path / "bank.csv").write_text("\n".join(["id,age,label", *lines]))
    (tmp_path / "shop.csv").write_text("\n".join(["id,orders", *(f"p{n},{n % 9}" for n in rows)]))
    path = tmp_path / "run.toml"
    parties = '[parties.bank]\ndata = "bank.csv"\n[parties.shop]\ndata = "shop.csv"\n'
    for task in ("auto", "binary", "multiclass"):
        path.write_text(f'method = "splitnn"\ntask = "{task}"\n{parties}')
        with pytest.raises(DataError) as caught:
            colonnade.run(path, out=tmp_path / "run")
        assert len(str(caught.value)) < SCREEN
        checks = doctor.examine_run(path)
        assert sum(len(check.found) + len(check.move) for check in checks) < 4 * SCREEN


@pytest.mark.parametrize(
    ("label", "task", "said"),
    [
        (lambda n: "abc"[n % 3], "binary", ["3 classes, 'a', 'b', 'c'", "multiclass"]),
        (lambda n: "ab"[n % 2], "regression", ["line 2", "'a', not a number", "omit `task`"]),
        (lambda n: 1.5, "auto", ["all 60 rows are 1.5", "nothing to learn"]),
        (lambda n: 7, "regression", ["all 60 rows are 7", "nothing to learn"]),
        (lambda n: "yes", "auto", ["all 60 rows are 'yes'", "another class", "`label`"]),
        (lambda n: "", "auto", ["all 60 labels are missing", "Label the rows"]),
        (lambda n: "" if n == 5 else price(n), "auto", ["line 7", "no label, as in 1 of 60"]),
        (lambda n: "inf" if n == 5 else price(n), "auto", ["line 7", "is infinite"]),
        (lambda n: f"customer {n}", "auto", ["a different text in every row", "identifier"]),
        (lambda n: "12O" if n == 5 else 100 + n, "auto", ["line 7", "'12O', not a number"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("label_column", ["label", "paid"])
def test_labels_that_cannot_be_learnt(
    tmp_path: Path, label: Any, task: str, said: list[str], label_column: str
) -> None:
    party(tmp_path, **{label_column: label})
    path = run_file(tmp_path, bank={"label": label_column}, task=task)
    with pytest.raises((DataError, ConfigError)) as caught:
        colonnade.run(path, out=tmp_path / "run")
    text = str(caught.value)
    assert all(part in text for part in said), text
    assert isinstance(caught.value, ConfigError) or f"column '{label_column}'" in text
    assert len(text) < SCREEN and not (tmp_path / "run").exists()


def test_a_label_that_is_also_the_id(tmp_path: Path) -> None:
    party(tmp_path, label=lambda n: n % 2)
    for keys, said in (
        ({"label": "id"}, "id and label are both 'id': name two columns"),
        ({"weight": "label"}, "weight and label are both 'label': name two columns"),
        ({"weight": "id"}, "weight and id are both 'id': name two columns"),
    ):
        with pytest.raises(ConfigError, match=said):
            colonnade.run(run_file(tmp_path, bank=keys), out=tmp_path / "run")


def test_constant_columns_are_fine_and_said_once(tmp_path: Path) -> None:
    party(tmp_path, label=lambda n: n % 2, bank_no=lambda n: 17)
    checks = doctor.examine_run(run_file(tmp_path))
    assert not [check for check in checks if check.verdict == "problem"]
    (said,) = [check.found for check in checks if "bank_no" in check.found]
    assert said == "'bank_no': number, constant: carries no information"


def test_labels_of_new_rows_that_training_did_not_have(tmp_path: Path) -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    y = ["no", "yes"] * 20
    settings = {"method": "splitnn", "epochs": 1, "batch_size": 16}
    with pytest.raises(DataError, match=r"row 3 is 'maybe', which is not one of the classes no, y"):
        colonnade.run(
            settings, parties={"a": (x, y), "b": x}, out=tmp_path / "run",
            test={"a": (x[:4], [*y[:3], "maybe"]), "b": x[:4]},
        )  # fmt: skip


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "read_as"),
    [
        (["100.0", "7.00", "-3.0"], ["100", "7", "-3"]),
        (["100.0", "7"], ["100.0", "7"]),  # somebody wrote them so
        (["007.0", "8.0"], ["007.0", "8.0"]),
        (["100.0", "100.00"], ["100.0", "100.00"]),  # two would become one
        (["1.5", "2.0"], ["1.5", "2.0"]),
        (["a.0", "2.0"], ["a.0", "2.0"]),
    ],
)
def test_ids_that_were_saved_as_decimals(
    tmp_path: Path, ids: list[str], read_as: list[str]
) -> None:
    lines = [f"{id},{n}" for n, id in enumerate(ids)]
    (tmp_path / "bank.csv").write_text("\n".join(["id,age", *lines]))
    assert read(OwnFile("bank.csv"), tmp_path).ids == read_as


def test_decimal_ids_of_parquet_are_read_like_those_of_csv(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": [100.0, 7.0, -3.0], "age": [1, 2, 3]})
    frame.to_parquet(tmp_path / "bank.parquet")
    frame.to_csv(tmp_path / "bank.csv", index=False)
    files = [read(OwnFile(f"bank.{end}"), tmp_path).ids for end in ("parquet", "csv")]
    assert files == [["100", "7", "-3"]] * 2
    for wrong in (2.5, float(2**53)):
        pandas.DataFrame({"id": [1.0, wrong], "age": [1, 2]}).to_parquet(tmp_path / "b.parquet")
        with pytest.raises(DataError, match=r"row 2, column 'id': the ids are decimals.*as text"):
            read(OwnFile("b.parquet"), tmp_path)


# --- weights --------------------------------------------------------------------------------------


def test_weights_stand_beside_labels_and_are_no_feature(tmp_path: Path) -> None:
    path = party(tmp_path, label=lambda n: n % 2, w=lambda n: n / 2)
    settings = config.load({"method": "splitnn"})
    file = OwnFile(str(path), weight="w")
    rows = assembly.from_file(file, "bank", settings, labelled=True)
    assert rows.width == 1 and "weights in 'w', from 0 to 29.5" in rows.notes
    assembly.save_rows(rows, tmp_path / "handed")
    again = assembly.load_rows(tmp_path / "handed", settings)
    for found in (rows, again):
        for split in found.splits.values():
            assert split.weights is not None
            assert torch.equal(split.weights, split.ids.double() / 2)
    later = read(file, Path(), like=rows.preparation.columns)  # type: ignore[union-attr]
    assert later.weights is None and later.x.shape == (ROWS, 1)


def test_weights_change_what_is_learnt(tmp_path: Path) -> None:
    party(tmp_path, label=lambda n: n % 2, w=lambda n: 1 + 9 * (n % 2), one=lambda n: 1)
    digests = set()
    for weight in ("w", "one"):
        spare = "one" if weight == "w" else "w"
        path = run_file(tmp_path, bank={"weight": weight})
        text = path.read_text().replace(
            "[parties.shop]", f'leave_out = ["{spare}"]\n[parties.shop]'
        )
        path.write_text(text)
        result = colonnade.run(path, out=tmp_path / weight)
        digests.add(str(result.content["weights_sha256"]))
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (lambda n: -1 if n in (5, 9) else 1, "line 7, .*'w'.* is negative, as in 2 rows. Correct"),
        (lambda n: "" if n == 5 else 1, "line 7, .*'w'.* is missing. Give every row one"),
        (lambda n: "inf" if n == 5 else 1, "line 7, .*'w'.* is infinite. Correct it"),
        (lambda n: "much" if n == 5 else 1, "line 7, .*'w'.* is 'much', not a number. Correct it"),
        (lambda n: 0, "'w'.* of all 60 rows are 0: no row counts. Give some rows more"),
    ],
)
def test_weights_that_cannot_be_used(tmp_path: Path, weight: Any, said: str) -> None:
    party(tmp_path, label=lambda n: n % 2, w=weight)
    with pytest.raises(DataError, match=said):
        colonnade.run(run_file(tmp_path, bank={"weight": "w"}), out=tmp_path / "run")


def test_weights_of_rows_whose_labels_are_not_read(tmp_path: Path) -> None:
    party(tmp_path, label=lambda n: n % 2)
    path = run_file(tmp_path, shop={"weight": "orders"})
    with pytest.raises(DataError, match=r"party 'shop': .*no labels are read here: omit"):
        colonnade.run(path, out=tmp_path / "run")


def test_a_party_names_its_weights_as_its_labels(tmp_path: Path) -> None:
    given = {"data": Path("bank.csv"), "id": None, "label": None, "weight": "w"}
    assert own_file(argparse.Namespace(**given)) == OwnFile("bank.csv", weight="w")
    (tmp_path / "rows.toml").write_text('data = "bank.csv"\nweight = "w"\n')
    described = own_file(
        argparse.Namespace(**given | {"data": tmp_path / "rows.toml", "weight": None})
    )
    assert described is not None and described.weight == "w"
