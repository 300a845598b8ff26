"""The parties' own files: what is read from them, and each mistake named by file, line, column."""

from __future__ import annotations

import gzip
import math
import subprocess
import sys
from datetime import date
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colonnade import assembly, config
from colonnade.data import Column, Preparation
from colonnade.data.own import Own, OwnFile, read, table
from colonnade.data.own.csv import Csv
from colonnade.errors import DataError
from colonnade.task import Task

arrow: Any = import_module("pyarrow")  # it has no types
parquet: Any = import_module("pyarrow.parquet")

TABLE = """customer,age,town,member,note,defaulted
007,34,Ulm,true,a,no
8, 51.5 ,Bonn,FALSE,b,yes
9,,Ulm,,c,no
10,28,,True,d,no
"""


def write(folder: Path, text: str, name: str = "bank.csv") -> OwnFile:
    (folder / name).write_text(text, encoding="utf-8")
    return OwnFile(name)


def given(folder: Path, text: str, name: str = "bank.csv", **settings: Any) -> Own:
    return read(OwnFile(write(folder, text, name).data, **settings), folder)


def wide(**columns: list[Any]) -> str:
    """A CSV of as many rows as the columns have values, with ids r0, r1, …"""
    count = len(next(iter(columns.values())))
    lines = [",".join(["id", *columns])]
    lines += [",".join([f"r{n}", *(str(c[n]) for c in columns.values())]) for n in range(count)]
    return "\n".join(lines) + "\n"


@pytest.fixture(params=[7, 1 << 18], ids=["a row or two at a time", "all at once"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(table, "CHUNK", request.param)
    return int(request.param)


# --- what is read


def test_types_are_found_out(tmp_path: Path) -> None:
    found = given(tmp_path, TABLE, id="customer", label="defaulted", leave_out=("note",))
    assert found.ids == ["007", "8", "9", "10"]
    assert found.labels == ["no", "yes", "no", "no"]
    assert found.columns == (
        Column("age", missing=True),
        Column("town", ("Bonn", "Ulm")),
        Column("member", missing=True),
    )
    assert found.x.dtype == torch.float32
    nan = float("nan")
    expected = torch.tensor([[34, 1, 1], [51.5, 0, 0], [nan, 1, nan], [28, -1, 1]])
    torch.testing.assert_close(found.x, expected, rtol=0, atol=0, equal_nan=True)
    assert found.notes == (
        "4 rows, separated by ',', ids in 'customer'",
        "labels in 'defaulted', 2 classes: 'no', 'yes'",
        "'age': number, 1 of 4 missing (the mean of the training rows)",
        "'town': 2 categories, 1 of 4 missing (zeros)",
        "'member': truth value, 1 of 4 missing (the mean of the training rows)",
        "not used: 'note'",
    )


def test_features_are_taken_in_the_order_they_are_named(tmp_path: Path) -> None:
    found = given(tmp_path, TABLE, id="customer", features=("town", "age"))
    assert [column.name for column in found.columns] == ["town", "age"]
    assert found.x[1].tolist() == [0, 51.5]
    assert found.labels is None and found.notes[1] == "no labels"
    assert found.notes[-1] == "not used: 'member', 'note', 'defaulted'"


def test_pieces_decide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that comes late makes the column a category from the first row on."""
    count = 40
    late = [str(n % 3) for n in range(30)] + ["many"] * 10
    truth = ["TRUE", "false"] * 20
    numbers = [f"{n}.25" for n in range(39)] + [""]
    text = wide(late=late, truth=truth, number=numbers, label=["a", "b"] * 20)
    whole = given(tmp_path, text)
    assert whole.columns[0] == Column("late", ("0", "1", "2", "many"))
    assert whole.x[:, 0].tolist() == [float(n % 3) for n in range(30)] + [3.0] * 10
    assert whole.x[:, 1].tolist() == [1.0, 0.0] * 20
    assert whole.x[38, 2] == 38.25 and math.isnan(whole.x[39, 2])
    monkeypatch.setattr(table, "CHUNK", 7 * 5)  # five columns
    pieces = list(Csv.open(tmp_path / "bank.csv", "").pieces(["id"], ["id"]))
    assert [len(piece[0]) for piece in pieces] == [7] * 5 + [5]
    again = read(OwnFile("bank.csv"), tmp_path)
    assert (again.ids, again.labels, again.columns) == (whole.ids, whole.labels, whole.columns)
    assert again.notes == whole.notes and len(again.ids) == count
    torch.testing.assert_close(again.x, whole.x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("told", [False, True])
def test_delimiters(tmp_path: Path, delimiter: str, told: bool) -> None:
    text = f'id,"a, b; c",d\r\n7,"1.5",Ulm\r\n\r\n"x{delimiter}y",2,"Bad\r\nAibling"\r\n'
    text = text.replace(",", delimiter).replace(f'"a{delimiter} b; c"', '"a, b; c"')
    found = given(tmp_path, text, delimiter=delimiter if told else "")
    assert found.ids == ["7", f"x{delimiter}y"]
    assert [column.name for column in found.columns] == ["a, b; c", "d"]
    assert found.columns[1].categories == ("Bad\r\nAibling", "Ulm")
    shown = "tab" if delimiter == "\t" else repr(delimiter)
    assert found.notes[0] == f"2 rows, separated by {shown}, ids in 'id'"


def test_a_delimiter_that_is_in_cells_too(tmp_path: Path) -> None:
    found = given(tmp_path, "id;town, country;a\n1;Ulm, DE;3\n2;Graz, AT;4\n")
    assert [column.name for column in found.columns] == ["town, country", "a"]


def test_packed_tabs_and_marks(tmp_path: Path) -> None:
    packed = tmp_path / "bank.csv.gz"
    packed.write_bytes(gzip.compress("\ufeffid,a\n1,Größe\n2,Ä\n".encode()))
    found = read(OwnFile("bank.csv.gz"), tmp_path)
    assert found.ids == ["1", "2"] and found.columns[0].categories == ("Größe", "Ä")
    found = given(tmp_path, "id\ta, b\n1\t2\n", "bank.tsv")
    assert found.columns == (Column("a, b", missing=True),)
    (tmp_path / "mark.csv").write_bytes(b"\xef\xbb\xbfid,a\n1,2\n")
    assert read(OwnFile("mark.csv"), tmp_path).ids == ["1"]
    elsewhere = read(OwnFile(str(tmp_path / "mark.csv")), Path("nowhere"))
    assert elsewhere.x.tolist() == [[2]]


@pytest.mark.parametrize("word", ["", " ", "NA", "n/a", "NaN", "null", "None", "?", "-", "#N/A"])
def test_words_for_no_number(tmp_path: Path, word: str) -> None:
    found = given(tmp_path, wide(a=["1", word, "3"], b=["true", "false", word]))
    assert found.x[[0, 2], 0].tolist() == [1, 3] and math.isnan(found.x[1, 0])
    assert found.x[:2, 1].tolist() == [1, 0] and math.isnan(found.x[2, 1])


def test_a_word_may_be_a_category_but_an_empty_cell_is_none(tmp_path: Path) -> None:
    found = given(tmp_path, wide(a=["NA", "DE", " ", "DE", "?"]))
    assert found.columns[0].categories == ("?", "DE", "NA")
    assert found.x[:, 0].tolist() == [2, 1, -1, 1, 0]


def test_numbers_that_look_otherwise(tmp_path: Path) -> None:
    found = given(tmp_path, wide(a=["1e3", "-.5", "+7"], b=["1_000", "2_000", "1_000"]))
    assert found.x[:, 0].tolist() == [1000, -0.5, 7]
    assert found.columns[1].categories == ("1_000", "2_000")
    found = given(tmp_path, wide(a=["2024-01-01", "never"] * 2))
    assert found.columns[0].categories == ("2024-01-01", "never")


def test_nothing_is_dropped_without_a_word(tmp_path: Path) -> None:
    found = given(tmp_path, wide(a=[5, 5, 5], b=["x", "x", ""], label=["", "", "nan"]))
    assert [column.name for column in found.columns] == ["a", "b"]
    assert found.labels is None
    assert found.notes[2] == "'a': number, constant: carries no information"
    assert (
        found.notes[3]
        == "'b': 1 category, 1 of 3 missing (zeros), constant: carries no information"
    )


def test_a_label_holder_may_bring_nothing_else(tmp_path: Path) -> None:
    found = given(tmp_path, "id,label\n1,no\n2,yes\n")
    assert found.x.shape == (2, 0) and found.labels == ["no", "yes"]
    assert given(tmp_path, "id\n1\n2\n").x.shape == (2, 0)
    found = given(tmp_path, "id,label\n1,3\n2,4\n", label="")
    assert found.labels is None and found.x.tolist() == [[3], [4]]


# --- Parquet


def pressed(folder: Path, name: str = "bank.parquet", **columns: Any) -> OwnFile:
    parquet.write_table(arrow.table(columns), folder / name)
    return OwnFile(name)


def test_parquet(tmp_path: Path, chunk: int) -> None:
    file = pressed(
        tmp_path,
        id=arrow.array([7, 8, 9, 10], arrow.int64()),
        whole=arrow.array([1, None, 3, 4], arrow.int32()),
        fraction=arrow.array([0.5, math.nan, None, 2.0]),
        exact=arrow.array([Decimal("1.00"), Decimal(2), Decimal(3), None]),
        truth=arrow.array([True, None, False, True]),
        town=arrow.array(["Ulm", "Bonn", None, "Ulm"]),
        kind=arrow.array(["x", "y", "x", None]).dictionary_encode(),
        digits=arrow.array(["1", "2", "3.5", ""]),
        label=arrow.array([0.0, 1.0, 0.0, 1.0]),
    )
    found = read(file, tmp_path)
    assert found.ids == ["7", "8", "9", "10"] and found.labels == ["0", "1", "0", "1"]
    nan = float("nan")
    expected = [
        [1, 0.5, 1, 1, 1, 0, 1],
        [nan, nan, 2, nan, 0, 1, 2],
        [3, nan, 3, 0, -1, 0, 3.5],
        [4, 2, nan, 1, 1, -1, nan],
    ]
    torch.testing.assert_close(found.x, torch.tensor(expected), equal_nan=True)
    assert [c.categories for c in found.columns] == [
        (), (), (), (), ("Bonn", "Ulm"), ("x", "y"), ()
    ]  # fmt: skip
    assert found.notes[0] == "4 rows, Parquet, ids in 'id'"
    assert found.notes[5].startswith("'truth': truth value, 1 of 4 missing")


def test_ids_of_a_parquet_column_of_fractions(tmp_path: Path) -> None:
    assert read(pressed(tmp_path, id=[7.0, 8.0], a=[1, 2]), tmp_path).ids == ["7", "8"]
    with pytest.raises(DataError, match=r"bank\.parquet, row 2, column 'id': the id is empty"):
        read(pressed(tmp_path, id=[7.0, None], a=[1, 2]), tmp_path)


def test_parquet_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = pressed(tmp_path, id=[1, 2], day=[date(2024, 1, 1), date(2024, 1, 2)])
    with pytest.raises(DataError, match=r"bank\.parquet, column 'day': these are dates.*leave_out"):
        read(file, tmp_path)
    file = pressed(tmp_path, id=[1, 2], many=[[1], [2, 3]])
    with pytest.raises(DataError, match=r"column 'many': values of type list.*leave_out = \[\"ma"):
        read(file, tmp_path)
    file = pressed(tmp_path, id=[1, 2], a=[math.inf, 1.0])
    with pytest.raises(DataError, match=r"bank\.parquet, row 1, column 'a': the number is inf"):
        read(file, tmp_path)
    file = pressed(tmp_path, id=[1, 2], __index_level_0__=[3, 4])
    with pytest.raises(DataError, match=r"column 2 has no name of its own.*index=False"):
        read(file, tmp_path)
    file = pressed(tmp_path, id=arrow.array([], arrow.int64()), a=arrow.array([], arrow.int64()))
    with pytest.raises(DataError, match=r"bank\.parquet has no rows"):
        read(file, tmp_path)
    (tmp_path / "bank.parquet").write_text("id,a\n1,2\n")
    with pytest.raises(DataError, match=r"bank\.parquet is not a complete Parquet file"):
        read(OwnFile("bank.parquet"), tmp_path)
    with pytest.raises(DataError, match=r"none\.parquet: there is no such file"):
        read(OwnFile("none.parquet"), tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"bank\.parquet: Parquet needs pyarrow, .* install"):
        read(OwnFile("bank.parquet"), tmp_path)


# --- mistakes

DAYS = [f"2024-01-{n:02}" for n in range(1, 13)]
WRONG: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "empty": ("", {}, ["has no rows: it is empty"]),
    "names only": ("id,a\n", {}, ["has no rows"]),
    "no id": ("ID_,a\n1,2\n", {}, ["no column 'id'", "did you mean 'ID_'?"]),
    "no names": ("3,a,b\n1,2,3\n", {}, ["one of 3, a, b", "first line must", "--id"]),
    "no such id": (
        "customer_id,a\n1,2\n", {"id": "custmer_id"},
        ["no column 'custmer_id'", "did you mean 'customer_id'?"],
    ),
    "no such label": ("id,default\n1,2\n", {"label": "defaulted"}, ["'defaulted'", "'default'?"]),
    "no such feature": ("id,age\n1,2\n", {"features": ("aeg",)}, ["no column 'aeg'", "'age'?"]),
    "nothing to leave out": ("id,age\n1,2\n", {"leave_out": ("agee",)}, ["'agee'", "'age'?"]),
    "other delimiter": (
        "id,a\n1,2\n", {"delimiter": ";"},
        ["with the delimiter ';' there is one column only", "looks like ','", 'delimiter = ","'],
    ),
    "tab instead": ("id\ta\n1\t2\n", {"delimiter": ","}, ["looks like tab", 'delimiter = "\\t"']),
    "unknown delimiter": (
        "id:a:b\n1:2:3\n", {}, ["only one column, 'id:a:b'", "looks like ':'", "set delimiter"],
    ),
    "two of a name": ("id,a,b,a\n1,2,3,4\n", {}, ["columns 2 and 4 are both named 'a'"]),
    "no name": (",id,a\n0,1,2\n", {}, ["column 1 has no name", "index=False"]),
    "too many cells": ("id,a\n1,2\n\n2,3,4\n", {}, [", line 4: 3 cells", "has 2"]),
    "too few cells": ("id,a,b\n1,2,3\n2,3\n", {}, [", line 3: 2 cells", "has 3"]),
    "same id": (
        "id,a\n1,2\nc7,3\n2,4\n\n c7 ,5\n2,6\n", {},
        [", line 3 and line 6, column 'id'", "both have the same id", "1 more ids"],
    ),
    "no id in a row": ("id,a\n1,2\n ,3\n", {}, [", line 3, column 'id'", "the id is empty"]),
    "some labels": (
        "id,a,label\n1,2,no\n2,3,\n3,4,NaN\n", {},
        [", line 3, column 'label'", "no label, as in 2 of 3 rows"],
    ),
    "a text among numbers": (
        wide(a=[1, 2, "x7", 4, 5]), {},
        [", line 4, column 'a'", "'x7' is not a number, and 4 of 5 values are"],
    ),
    "few texts among many numbers": (
        wide(a=[*(n % 5 for n in range(198)), "x", "y", "z"]), {},
        [", line 200, column 'a'", "'x' is not a number", "198 of 201"],
    ),
    "texts among different numbers": (
        wide(a=[*range(16), "x", "y", "x", "y"]), {}, [", line 18, column 'a'", "is not a number"]
    ),
    "texts among very many numbers": (
        wide(a=[*range(1500), *["x"] * 900]), {}, [", line 1502, column 'a'", "1,500 of 2,400"]
    ),
    "infinity": (wide(a=[1, 2, "-inf"]), {}, [", line 4, column 'a'", "infinite"]),
    "beyond float32": (wide(a=[1, "1e39", 3]), {}, [", line 3, column 'a'", "beyond 3e38"]),
    "nothing at all": (wide(a=["", "NA"]), {}, ["column 'a'", "no value", 'leave_out = ["a"]']),
    "a different text in every row": (
        wide(a=[f"name {n}" for n in range(10)]), {},
        ["a different text in every row", "looks like an identifier", 'leave_out = ["a"]'],
    ),
    "over a thousand texts": (
        wide(a=[f"name {n % 1001}" for n in range(1100)]), {},
        ["column 'a': over 1,000 different texts", "identifier", 'leave_out = ["a"]'],
    ),
    "dates": (wide(a=["", *DAYS]), {}, [", line 3, column 'a'", "'2024-01-01' is a date"]),
    "dates and times": (wide(a=["1.2.2024 12:30", "3.11.24 8:00"]), {}, ["line 2", "is a date"]),
    "very many dates": (
        wide(a=[f"{1000 + n}/1/2" for n in range(1200)]), {}, ["column 'a'", "'1000/1/2' is a date"]
    ),
    "decimal commas": (
        "id;a\n1;3\n2;2,5\n3;1,5\n", {}, [", line 3, column 'a'", "'2,5' has a comma", "point"]
    ),
    "a number that may not be missing": (
        wide(a=[1, 2, "", ""]), {"missing": "error"},
        [", line 4, column 'a'", "no value, as in 2 rows", 'missing = "mean"'],
    ),
    "a category that may not be missing": (
        wide(a=["x", "", "x"]), {"missing": "error"}, [", line 3, column 'a'", "no value"]
    ),
    "open quotation mark": ('id,a\n1,2\n2,"3\n4,5\n', {}, [", line 3", "quotation mark"]),
    "a row over several lines": (
        'id,a\n"1\n\n1",2\n2,2\n2,3\n', {}, [", line 5 and line 6, column 'id'"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_named(
    tmp_path: Path, name: str, chunk: int, capsys: pytest.CaptureFixture[str]
) -> None:
    text, settings, said = WRONG[name]
    with pytest.raises(DataError) as caught:
        given(tmp_path, text, **settings)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "bank.csv"))
    for part in said:
        assert part in message
    assert len(message.removeprefix(str(tmp_path))) < 260
    assert capsys.readouterr() == ("", "")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"/none\.csv: there is no such file"):
        read(OwnFile("none.csv"), tmp_path)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"/folder\.csv cannot be read: Is a directory"):
        read(OwnFile("folder.csv"), tmp_path)
    with pytest.raises(DataError, match=r"/bank\.xlsx: rows are read from \.csv.*\.parquet"):
        read(OwnFile("bank.xlsx"), tmp_path)
    (tmp_path / "latin.csv").write_bytes("id,a\n1,x\n2,Größe\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"/latin\.csv, line 3: this is not UTF-8"):
        read(OwnFile("latin.csv"), tmp_path)
    (tmp_path / "wide.csv").write_bytes("id,a\n1,2\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"/wide\.csv, line 1: this is not UTF-8"):
        read(OwnFile("wide.csv"), tmp_path)
    late = b"id,a\n" + b"".join(b"%d,1\n" % n for n in range(9000)) + b"x,\xff\n"
    (tmp_path / "late.csv.gz").write_bytes(gzip.compress(late))
    with pytest.raises(DataError, match=r"/late\.csv\.gz, line 9002: this is not UTF-8"):
        read(OwnFile("late.csv.gz"), tmp_path)
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(late)[:-200])
    with pytest.raises(DataError, match=r"/cut\.csv\.gz is not a complete gzip file"):
        read(OwnFile("cut.csv.gz"), tmp_path)
    (tmp_path / "plain.csv.gz").write_bytes(late)
    with pytest.raises(DataError, match=r"/plain\.csv\.gz is not a complete gzip file"):
        read(OwnFile("plain.csv.gz"), tmp_path)
    with pytest.raises(DataError, match=r"/bank\.csv, line 3: field larger than field limit"):
        given(tmp_path, "id,a\n1,2\n2," + "x" * 200_000)


def test_no_id_is_shown(tmp_path: Path) -> None:
    text = "id,a\n" + "secret-1,1\nsecret-2,1\nsecret-3,1\nsecret-4,1\n" * 3
    with pytest.raises(DataError, match=r"and 3 more ids") as caught:
        given(tmp_path, text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"data": ""}, "data is empty: name"),
        ({"id": ""}, "id is empty: name the column"),
        ({"id": "label"}, "id and label are both 'label': name two"),
        ({"features": ("a", "id")}, "features names 'id', which is the id: remove it"),
        ({"features": ("y",), "label": "y"}, "features names 'y', which is the label"),
        ({"leave_out": ("id",)}, "leave_out names 'id', which is the id"),
        ({"features": ("a", "b", "a")}, "features names 'a' twice"),
        ({"features": ("a",), "leave_out": ("a",)}, "both name 'a': keep one"),
        ({"delimiter": "tab"}, "delimiter is 'tab': give one character"),
        ({"delimiter": "\n"}, "give one character"),
        ({"missing": "zero"}, "missing is 'zero': give 'mean' or 'error'"),
    ],
)
def test_settings_that_contradict_themselves(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        OwnFile(**{"data": "bank.csv"} | settings)


# --- later rows


def test_later_rows_mean_what_those_of_training_did(tmp_path: Path, chunk: int) -> None:
    columns = given(
        tmp_path,
        wide(town=["Ulm", "Bonn", "Graz", "Ulm"], size=["1", "2", "3+", "3+"], age=[1, 2, 3, 4]),
    ).columns
    later = "age,more,size,id,town\n,x,2,7,Graz\n5,y,2,8,Wien\n6,z,2,9,\n"
    found = read(write(tmp_path, later), tmp_path, like=columns)
    assert found.columns == columns and found.labels is None
    expected = torch.tensor([[1, 1, math.nan], [-1, 1, 5], [-1, 1, 6]])  # sizes are no numbers
    torch.testing.assert_close(found.x, expected, equal_nan=True)
    assert (
        "'town': 3 categories of training, 1 rows have an unknown one, 1 of 3 missing (zeros)"
        in (found.notes)
    )
    assert found.notes[-1] == "not used: 'more'"
    same = pressed(tmp_path, id=[7], age=[2.0], size=[2], town=["Ulm"])
    assert read(same, tmp_path, like=columns).x.tolist() == [[2, 1, 2]]


def test_later_rows_of_another_kind(tmp_path: Path) -> None:
    like = (Column("a"), Column("b", missing=True))
    with pytest.raises(DataError, match=r"bank\.csv: no column 'b'"):
        read(write(tmp_path, "id,a\n1,2\n"), tmp_path, like=like)
    for cells in (["x", "y"], ["1", "x"], ["x", "x"]):
        with pytest.raises(DataError, match=r"bank\.csv, line \d, column 'a': 'x' is not a number"):
            read(write(tmp_path, wide(a=cells, b=[1, 2])), tmp_path, like=like)
    found = read(write(tmp_path, wide(a=["true", "FALSE"], b=["", ""])), tmp_path, like=like)
    assert found.x[:, 0].tolist() == [1, 0] and bool(found.x[:, 1].isnan().all())
    assert read(write(tmp_path, "id,a\n1,x\n"), tmp_path, like=()).x.shape == (1, 0)


# --- missing numbers in the preparation


def test_missing_numbers_become_the_mean_of_the_training_rows() -> None:
    nan = float("nan")
    columns = (Column("a", missing=True), Column("b", missing=True), Column("c", ("x", "y")))
    train = torch.tensor([[1, 5, 0], [3, 6, -1], [nan, 7, 1]])
    fitted = Preparation.fit(train, columns)
    assert fitted.mean.tolist() == [2, 6, 0] and fitted.std[0] == 1
    assert fitted.apply(train)[:, 0].tolist() == [-1, 1, 0]
    later = torch.tensor([[4, nan, 1]])  # b had all its numbers in training
    assert fitted.apply(later).tolist() == [[2, 0, 0, 1]]
    plain = Preparation.fit(train, columns, standardise=False)
    assert plain.apply(train)[:, :2].tolist() == [[1, 5], [3, 6], [2, 7]]
    assert plain.apply(later).tolist() == [[4, 6, 0, 1]]
    for made in (fitted, plain):
        again = Preparation.from_tensors(made.tensors(), columns)
        assert torch.equal(again.apply(later), made.apply(later))
    strict = Preparation.from_tensors(fitted.tensors(), (columns[0], Column("b"), columns[2]))
    with pytest.raises(DataError, match="column 'b' has nan in row 0"):
        strict.apply(later)
    with pytest.raises(DataError, match="column 'a' has inf in row 0"):
        fitted.apply(torch.tensor([[math.inf, 1, 0]]))
    with pytest.raises(DataError, match="column 'a' has no number in any training row"):
        Preparation.fit(torch.tensor([[nan, 5, 0]]), columns)


# --- a party's rows


def people(folder: Path, count: int = 200, **changes: str) -> Path:
    lines = []
    for n in range(count):
        cells = {"id": f"p{n}", "age": str(n % 50), "town": ["Ulm", "Bonn", ""][n % 3]}
        cells |= {"label": "no" if n % 2 else "yes"}
        lines.append(",".join((cells | changes if n == 9 else cells).values()))
    path = folder / "bank.csv"
    path.write_text("\n".join(["id,age,town,label", *lines]))
    return path


def settings(**more: Any) -> config.Config:
    return config.load({"method": "splitnn", **more})


def test_rows_of_a_party(tmp_path: Path) -> None:
    path = people(tmp_path, age="")
    made = assembly.from_file(path, "bank", settings(), labelled=True)
    assert made.count == 200 and made.width == 3 and made.task == Task.of(("no", "yes"))
    assert made.source == "bank.csv"
    assert "'town': 2 categories, 66 of 200 missing (zeros)" in made.notes
    everything = torch.cat([split.x for split in made.splits.values()])
    assert bool(torch.isfinite(everything).all())
    where = {int(n): split.x[i] for split in made.splits.values() for i, n in enumerate(split.ids)}
    assert where[9][0] == 0 and where[9][1:].tolist() == [0, 1]  # Ulm is after Bonn
    assert where[2][1:].tolist() == [0, 0]
    named = assembly.from_file(
        OwnFile("bank.csv", features=("age",)), "bank", settings(), labelled=True, folder=tmp_path
    )
    assert named.width == 1 and named.digest(b"key") == made.digest(b"key")
    pressed_ids = [f"p{n}" for n in range(200)]
    other = pressed(tmp_path, id=pressed_ids, age=list(range(200)))
    found = assembly.from_file(other, "shop", settings(), labelled=False, folder=tmp_path)
    assert found.digest(b"key") == made.digest(b"key")
    for key, split in made.splits.items():
        assert torch.equal(found.splits[key].ids, split.ids)


def test_rows_are_handed_over_with_what_may_be_missing(tmp_path: Path) -> None:
    made = assembly.from_file(people(tmp_path, age=""), "bank", settings(), labelled=True)
    assembly.save_rows(made, tmp_path / "handed")
    again = assembly.load_rows(tmp_path / "handed", settings())
    assert again.preparation is not None and made.preparation is not None
    assert again.preparation.columns == made.preparation.columns
    assert [c.missing for c in again.preparation.columns] == [True, False]
    filled = again.preparation.apply(torch.tensor([[math.nan, 1.0]]))
    assert filled.tolist() == [[0, 0, 1]]


def test_without_standardisation_the_mean_itself_stands_there(tmp_path: Path) -> None:
    plain = settings(data={"standardise": False})
    made = assembly.from_file(people(tmp_path, age=""), "bank", plain, labelled=True)
    ages = {
        int(n): split.x[i, 0] for split in made.splits.values() for i, n in enumerate(split.ids)
    }
    train = [float(ages[n]) for n in made.splits["train"].ids.tolist() if n != 9]
    assert float(ages[9]) == pytest.approx(np.mean(train), rel=1e-6)
    assert ages[10] == 10


def test_errors_name_the_party(tmp_path: Path) -> None:
    path = people(tmp_path, age="old")
    with pytest.raises(
        DataError, match=r"party 'bank': .*/bank\.csv, line 11, column 'age': 'old'"
    ):
        assembly.from_file(path, "bank", settings(), labelled=True)
    people(tmp_path, label="")
    with pytest.raises(DataError, match=r"party 'bank': .*/bank\.csv, line 11, column 'label'"):
        assembly.from_file(path, "bank", settings(), labelled=True)
    file = OwnFile("bank.csv", label="", leave_out=("town",))
    with pytest.raises(DataError, match=r"party 'bank': .*and this party holds the labels"):
        assembly.from_file(file, "bank", settings(), labelled=True, folder=tmp_path)


# --- large files

MEASURE = """
import sys
from pathlib import Path
from colonnade.data.own import OwnFile, read

def peak():  # in MB; getrusage would give the peak of the process that started this one
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

folder = Path(sys.argv[1])
read(OwnFile("small.csv"), folder)
before = peak()
found = read(OwnFile("large.csv"), folder)
assert found.x.shape == (200_000, 20) and len(found.columns[19].categories) == 3
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says its peak there")
def test_a_large_file_is_never_text_as_a_whole(tmp_path: Path) -> None:
    """200 000 x 20 cells: 15 MB of numbers and 15 MB of ids; as Python's text it is 250 MB."""
    names = ",".join(f"c{n}" for n in range(20))
    rows = [",".join(f"{(n * m) % 1000}.{m:02}" for m in range(1, 20)) for n in range(1000)]
    towns = ["Ulm", "Bonn", "Graz"]
    lines = [f"customer-{n},{rows[n % 1000]},{towns[n % 3]}\n" for n in range(200_000)]
    for name, count in (("small.csv", 1000), ("large.csv", 200_000)):
        with (tmp_path / name).open("w") as file:
            file.write(f"id,{names}\n")
            file.writelines(lines[:count])
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 110
