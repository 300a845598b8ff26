"""Features and labels that are already in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from colonnade.data import Column, Preparation, from_arrays, label_codes, labels_from
from colonnade.errors import DataError


@pytest.mark.parametrize(
    "x",
    [
        np.array([[1, 2], [3, 4]]),
        np.array([[1, 2], [3, 4]], np.uint8),
        np.array([[1.0, 2.0], [3.0, 4.0]], np.float16),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16),
        [[1, 2], [3, 4]],
    ],
)
def test_tables(x: object) -> None:
    found, columns = from_arrays(x)
    assert found.dtype == torch.float32
    assert found.tolist() == [[1, 2], [3, 4]]
    assert [column.name for column in columns] == ["column 0", "column 1"]


def test_one_column() -> None:
    found, columns = from_arrays([1.5, 2.5])
    assert found.tolist() == [[1.5], [2.5]]
    assert len(columns) == 1
    assert from_arrays(np.array([True, False]))[0].tolist() == [[1], [0]]


def test_images() -> None:
    grey = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    found, columns = from_arrays(grey)
    assert (found.shape, found.dtype, columns) == ((2, 1, 2, 2), torch.uint8, ())
    colour, _ = from_arrays(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
    assert colour.shape == (2, 3, 4, 4)
    real, columns = from_arrays(np.zeros((2, 3, 4, 4)))
    assert (real.dtype, columns) == (torch.float32, ())


def test_caller_keeps_its_own_array() -> None:
    given = np.ones((3, 2), np.float32)
    from_arrays(given)[0].zero_()
    assert given.sum() == 6


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (np.zeros((2, 3, 4, 4), np.int64), "images are int64"),
        (np.zeros((2, 2, 2, 2, 2)), "shape"),
        (np.array([["a", "b"]]), "are not numbers"),
        (np.array([[1 + 2j]]), "not numbers"),
        ([[1, 2], [3]], "differ in length"),
        (3.0, "have no rows"),
        (None, "have no rows"),
        ({"a": 1}, "have no rows"),
    ],
)
def test_refused_features(x: object, why: str) -> None:
    with pytest.raises(DataError, match=f"{why}.*Accepted are"):
        from_arrays(x)


def test_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "age": [30, 40, 50],
            "member": [True, False, True],
            "town": ["Ulm", None, "Bonn"],
            "grade": pandas.Categorical(["b", "a", "b"]),
            "count": pandas.array([1, None, 3], dtype="Int64"),
            "text": pandas.array(["x", "y", "x"], dtype="string"),
        }
    )
    found, columns = from_arrays(frame)
    assert found[:, :4].tolist() == [[30, 1, 1, 1], [40, 0, -1, 0], [50, 1, 0, 1]]
    assert torch.isnan(found[1, 4])
    assert columns[2] == Column("town", ("Bonn", "Ulm"))
    assert columns[3].categories == ("a", "b")
    assert columns[5].categories == ("x", "y")
    assert columns[4] == Column("count", missing=True)
    prepared = Preparation.fit(found, columns).apply(found)
    assert prepared[1, -3] == 0  # the mean of 1 and 3, scaled


def test_later_rows_of_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    first = pandas.DataFrame({"age": [1, 2], "town": ["Ulm", "Bonn"]})
    _, columns = from_arrays(first)
    later = pandas.DataFrame({"town": ["Ulm", "Rome"], "age": [3, 4], "more": [0, 0]})
    found, same = from_arrays(later, like=columns)
    assert same == columns
    assert found.tolist() == [[3, 1], [4, -1]]
    with pytest.raises(DataError, match="column 'town', which training had, is missing"):
        from_arrays(later[["age"]], like=columns)
    with pytest.raises(DataError, match="column 'age' is of type"):
        from_arrays(pandas.DataFrame({"age": ["old"], "town": ["Ulm"]}), like=columns)


def test_later_rows_of_an_array() -> None:
    columns = (Column("age"), Column("town", ("Bonn", "Ulm")))
    found, same = from_arrays([[1, 0]], like=columns)
    assert (found.tolist(), same) == ([[1, 0]], columns)
    with pytest.raises(DataError, match="3 columns given, 2 in training"):
        from_arrays([[1, 0, 0]], like=columns)
    images, none = from_arrays(np.zeros((1, 2, 2), np.uint8), like=())
    assert (images.shape, none) == ((1, 1, 2, 2), ())


def test_frame_oddities() -> None:
    pandas = pytest.importorskip("pandas")
    twice = pandas.DataFrame([[1, 2]], columns=["a", "a"])
    assert from_arrays(twice)[0].tolist() == [[1, 2]]
    with pytest.raises(DataError, match="turn dates into numbers"):
        from_arrays(pandas.DataFrame({"day": pandas.to_datetime(["2020-01-01"])}))
    with pytest.raises(DataError, match="no values at all"):
        from_arrays(pandas.DataFrame({"empty": [None, None]}, dtype=object))
    found, columns = from_arrays(pandas.Series([1.0, 2.0], name="age"))
    assert (found.shape, columns) == ((2, 1), (Column("age"),))


@pytest.mark.parametrize(
    ("y", "codes", "classes"),
    [
        ([0, 1, 2, 1], [0, 1, 2, 1], ("0", "1", "2")),
        (np.array([-1, 1, 1], np.int8), [0, 1, 1], ("-1", "1")),
        ([10, 9, 10], [1, 0, 1], ("9", "10")),
        (torch.tensor([0, 1]), [0, 1], ("0", "1")),
        (torch.tensor([[0.0], [1.0]]), [0, 1], ("0", "1")),
        (["yes", "no", "yes"], [1, 0, 1], ("no", "yes")),
        ([True, False], [1, 0], ("False", "True")),
        (np.array(["b", "a"], dtype=object), [1, 0], ("a", "b")),
        (np.array([True, False], dtype=object), [1, 0], ("False", "True")),
        (np.array([b"b", b"a"]), [1, 0], ("a", "b")),
    ],
)
def test_label_kinds(y: object, codes: list[int], classes: tuple[str, ...]) -> None:
    found, names = labels_from(y)
    assert found.dtype == torch.int64
    assert (found.tolist(), names) == (codes, classes)
    assert torch.equal(label_codes(y, names), found)


def test_label_series() -> None:
    pandas = pytest.importorskip("pandas")
    assert labels_from(pandas.Series(["x", "y", "x"]))[1] == ("x", "y")
    assert labels_from(pandas.Series(["x", "y"], dtype="category"))[0].tolist() == [0, 1]
    with pytest.raises(DataError, match="row 1 is missing"):
        labels_from(pandas.Series(["x", None]))


@pytest.mark.parametrize(
    ("y", "why"),
    [
        ([0.0, float("nan")], "row 1 is missing"),
        ([1.0, float("inf")], "row 1 is infinite"),
        (np.array(["a", None], dtype=object), "row 1 is missing"),
        (np.array([(1,), "a"], dtype=object), "row 0 is"),
        ([[0, 1], [1, 0]], "not one per row"),
        ([], "not one per row"),
        (3, "have no rows"),
    ],
)
def test_refused_labels(y: object, why: str) -> None:
    with pytest.raises(DataError, match=f"{why}"):
        labels_from(y)


def test_codes_by_known_classes() -> None:
    assert label_codes(["red", "red"], ("blue", "red")).tolist() == [1, 1]
    with pytest.raises(
        DataError, match="the label in row 1 is 'pink', which is not one of the classes blue, red"
    ):
        label_codes(["red", "pink"], ("blue", "red"))
