"""Which labels are classes and which are numbers, and what is wrong with those that are neither."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from colonnade.data import (
    Called,
    check_labels,
    class_of,
    label_codes,
    labels_from,
    strata,
    stratified,
)
from colonnade.data.labels import MOST_CLASSES
from colonnade.errors import DataError

SCREEN = 1000  # letters: no message about labels is longer


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (["yes", "no", "no"], ("no", "yes")),
        ([True, False, True], ("False", "True")),
        (range(MOST_CLASSES), tuple(str(n) for n in range(MOST_CLASSES))),
        (["1", "0", "1.0"], ("0", "1")),
        ([1.0, 0.0], ("0", "1")),
        (["none", "?", "some"], ("?", "none", "some")),
        (["1", "2", "two"], ("1", "2", "two")),
        (np.array([0.5, 1.5]), ()),
        (["326", "326.5"], ()),
        ([1e20, 3.5], ()),
    ],
)
def test_labels_say_what_they_are(y: object, classes: tuple[str, ...]) -> None:
    assert labels_from(list(y) if isinstance(y, range) else y)[1] == classes


def test_numbers_stay_as_they_were_written() -> None:
    y, classes = labels_from(["326", "18823", "326.25"])
    assert (y.dtype, y.tolist(), classes) == (torch.float64, [326, 18823, 326.25], ())
    assert labels_from(range_of(24_000), "regression")[0].tolist() == list(range(24_000))
    assert labels_from([0, 1, 1], "regression")[0].tolist() == [0, 1, 1]
    assert label_codes([7], ()).tolist() == [7]  # of later rows, which may be one


def range_of(count: int) -> list[int]:
    return list(range(count))


@pytest.mark.parametrize("form", [range_of, lambda n: [str(k) for k in range(n)]])
def test_many_whole_numbers_are_a_question(form: object) -> None:
    y = form(24_000)  # type: ignore[operator]
    with pytest.raises(DataError) as asked:
        labels_from(y)
    said = str(asked.value)
    assert "24,000 different values, from 0 to 23999" in said and len(said) < SCREEN
    assert 'task = "regression"' in said and 'task = "multiclass"' in said
    assert labels_from(y, "regression")[1] == ()
    assert len(labels_from(y, "multiclass")[1]) == 24_000


CALLED = Called("bank.csv", "paid", "line {}".format)
WRONG: dict[str, tuple[object, str, list[str]]] = {
    "three classes for two": (
        ["a", "b", "c"], "binary", ["3 classes, 'a', 'b', 'c'", 'task = "multiclass"'],
    ),
    "numbers for two": (
        range_of(30), "binary", ["30 classes, '0', '1'", 'task = "regression"'],
    ),
    "text for numbers": (
        ["1.5", "2", "many"], "regression", ["line 2", "'many', not a number", "omit `task`"],
    ),
    "truth for numbers": ([True, False], "regression", ["truth values", 'task = "binary"']),
    "one class": (["no"] * 5, "auto", ["all 5 rows are 'no'", "another class", "`label`"]),
    "one class for many": ([3] * 5, "multiclass", ["all 5 rows are '3'"]),
    "one number": ([2.5] * 5, "auto", ["all 5 rows are 2.5", "nothing to learn"]),
    "one number said so": ([7] * 5, "regression", ["all 5 rows are 7", "nothing to learn"]),
    "no number": ([None, 1.5, None], "auto", ["line 0", "missing, as in 2 of 3 rows"]),
    "nothing": ([float("nan")] * 4, "auto", ["labels of all 4 rows are missing"]),
    "infinite": ([1.5, float("inf"), 2.0], "auto", ["line 1", "infinite"]),
    "infinite text": (["1", "2", "-inf"], "auto", ["line 2", "infinite"]),
    "infinite number": ([1.5, float("-inf")], "regression", ["line 1", "infinite"]),
    "text among numbers": (
        [*map(str, range(50)), "12O"], "auto", ["line 50", "'12O', not a number", "50 of 51"],
    ),
    "an identifier": (
        [f"customer {n}" for n in range(12)], "auto",
        ["a different text in every row", "identifier", "another column"],
    ),
    "too many texts": (
        [f"c{n % 1001}" for n in range(3000)], "auto", ["1,001 texts", "identifier"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_labels_are_named_with_a_remedy(name: str) -> None:
    y, task, said = WRONG[name]
    with pytest.raises(DataError) as caught:
        labels_from(np.array(y, dtype=object), task, CALLED)  # type: ignore[arg-type]
    text = str(caught.value)
    assert all(part in text for part in ["bank.csv", "column 'paid'", *said]), text
    assert len(text) < SCREEN and text.endswith(".")


def test_a_series_has_a_name() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match=r"the label 'paid' in row 1 is missing"):
        labels_from(pandas.Series([1, None, 2], name="paid", dtype="Int64"))
    nullable = pandas.Series([1, 0, 1], dtype="Int64")
    assert labels_from(nullable)[1] == labels_from(pandas.Series([1.0, 0.0, 1.0]))[1] == ("0", "1")


def test_labels_that_training_did_not_have() -> None:
    classes = tuple(f"class {n}" for n in range(24_000))
    with pytest.raises(
        DataError, match=r"'new', which is not one of the classes .*23,990 more"
    ) as e:
        label_codes(["class 1", "new"], classes)
    assert len(str(e.value)) < SCREEN
    assert label_codes([1.0, 0.0], ("0", "1")).tolist() == [1, 0]
    assert label_codes(["1.0", "0"], ("0", "1")).tolist() == [1, 0]
    found = [class_of(text, ("0", "1", "x")) for text in ("1", "1.0", "x", "2", "1.5", "")]
    assert found == ["1", "1", "x", None, None, None]
    with pytest.raises(DataError, match="row 1 is 'x', not a number"):
        label_codes(["1.5", "x"], ())


def test_numbers_are_checked_like_classes() -> None:
    check_labels(torch.tensor([1.0, 2.0]).double(), ())
    for y, said in (
        ([1.0, 1.0], "2 labels are the same number"),
        ([1.0, float("nan")], "row 1 is not a finite number"),
    ):
        with pytest.raises(DataError, match=said):
            check_labels(torch.tensor(y).double(), ())
    with pytest.raises(DataError, match="Give float64"):
        check_labels(torch.tensor([1, 2]), ())


@given(
    rows=st.integers(2, 200), test=st.floats(0.01, 0.99), seed=st.integers(0, 9),
    spread=st.sampled_from([1, 5, 1000]),
)  # fmt: skip
def test_test_rows_of_numbers_are_spread_over_their_range(
    rows: int, test: float, seed: int, spread: int
) -> None:
    y = torch.randint(spread, (rows,), generator=torch.Generator().manual_seed(seed)).double()
    train, held = stratified(y, (), test, seed)
    assert torch.equal(torch.cat([train, held]).sort().values, torch.arange(rows))
    count = min(max(round(rows * test), 1), rows - 1)
    assert len(held) == count
    places = torch.empty(rows, dtype=torch.long)
    places[y.argsort(stable=True)] = torch.arange(rows)
    chosen = places[held].sort().values
    widest = -(-rows // count)
    assert bool((chosen.diff() < 2 * widest).all())  # one of every stretch


def test_tenths_of_numbers() -> None:
    y = torch.arange(100).double()
    assert torch.equal(strata(y[torch.randperm(100)]).bincount(), torch.full((10,), 10))
    heavy = torch.tensor([0.0] * 90 + [float(n) for n in range(1, 11)]).double()
    codes = strata(heavy)
    assert len(codes[:90].unique()) == 1 and codes[0] != codes[-1]
    classes = torch.tensor([3, 1, 2])
    assert strata(classes) is classes
