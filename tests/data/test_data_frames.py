"""A DataFrame is prepared as the file that holds the same table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import colonnade
from colonnade.data import Column, Preparation, from_arrays
from colonnade.data.own import OwnFile, read
from colonnade.errors import DataError

pandas = pytest.importorskip("pandas")

NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
WORDS = st.sampled_from(["Ulm", "Bonn", "new town", "NA?", "é"])
KINDS: dict[str, tuple[st.SearchStrategy[Any], str]] = {
    "fractions": (NUMBERS, "float64"),
    "nullable fractions": (NUMBERS, "Float64"),
    "whole": (st.integers(-1000, 1000), "Int64"),
    "numbers among objects": (st.integers(-9, 9) | NUMBERS, "object"),
    "truth": (st.booleans(), "boolean"),
    "truth among objects": (st.booleans(), "object"),
    "truth as text": (st.sampled_from(["true", "False"]), "object"),
    "text": (WORDS, "object"),
    "nullable text": (WORDS, "string"),
    "categories": (WORDS, "category"),
}


@st.composite
def frames(draw: st.DrawFn) -> Any:
    rows = draw(st.integers(3, 30))
    table = {}
    for place, kind in enumerate(draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1))):
        values, dtype = KINDS[kind]
        cells = draw(st.lists(values | st.none(), min_size=rows, max_size=rows))
        cells[draw(st.integers(0, rows - 1))] = draw(values)  # something must be there
        table[f"{place} {kind}"] = pandas.Series(cells, dtype=dtype)
    return pandas.DataFrame(table)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(frame=frames())
def test_a_frame_is_prepared_as_a_file(
    frame: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("frame")
    written = frame.copy()
    written.insert(0, "id", [f"p{n}" for n in range(len(frame))])
    written.to_csv(folder / "bank.csv", index=False)
    file = read(OwnFile("bank.csv"), folder)
    x, columns = from_arrays(frame)
    assert columns == file.columns
    fitted = [Preparation.fit(x, columns), Preparation.fit(file.x, file.columns)]
    assert torch.equal(fitted[0].apply(x), fitted[1].apply(file.x))
    later = frame.iloc[::-1]
    again, same = from_arrays(later, like=columns)
    assert same == columns and torch.equal(fitted[0].apply(again), fitted[0].apply(x).flip(0))


def test_a_frame_may_lack_what_training_had() -> None:
    """Missing numbers are the mean, missing and unknown categories zeros."""
    frame = pandas.DataFrame({"age": [10.0, 30.0], "town": ["Ulm", "Bonn"]})
    x, columns = from_arrays(frame)
    fitted = Preparation.fit(x, columns)
    later = pandas.DataFrame({"age": [None, 30.0], "town": [None, "Rome"]})
    found = fitted.apply(from_arrays(later, like=columns)[0])
    assert found.tolist() == [[0, 0, 0], [1, 0, 0]]


def test_chosen_categories_stay_categories() -> None:
    """A file has no types: in a frame a person has said that these numbers are names."""
    x, columns = from_arrays(pandas.DataFrame({"zone": pandas.Categorical([1.0, 2.0, None])}))
    assert columns == (Column("zone", ("1", "2")),) and x[:, 0].tolist() == [0, 1, -1]
    later = pandas.DataFrame({"zone": [2, 3]})
    assert from_arrays(later, like=columns)[0][:, 0].tolist() == [1, -1]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([f"c{n}" for n in range(12)], "a different text in every row, which looks like an ident"),
        ([f"c{n % 1001}" for n in range(1100)], "over 1,000 different texts"),
        (["2024-01-01", "2024-01-02"], "dates or times. Turn them into a number"),
        (["1,5", "2,5"], "numbers with a comma. Turn them into numbers"),
        ([None, None], "no values at all. Omit it"),
        ([np.nan, np.nan], "no values at all. Omit it"),
        ([" ", ""], "no values at all. Omit it"),
    ],
)
def test_columns_that_a_file_may_not_have_either(values: list[object], said: str) -> None:
    with pytest.raises(DataError, match=f"column 'a' has {said}"):
        from_arrays(pandas.DataFrame({"a": values}))


def test_infinity_is_named_with_its_column() -> None:
    x, columns = from_arrays(pandas.DataFrame({"a": [1.0, np.inf]}))
    with pytest.raises(DataError, match="column 'a' has inf in row 1, not a finite number"):
        Preparation.fit(x, columns)


def test_a_run_on_frames_with_gaps(tmp_path: Path) -> None:
    """Training, saving and predicting: nothing is to be filled by hand."""
    rows = 60
    draw = np.random.default_rng(0)
    age = pandas.Series(draw.normal(size=rows)).where(draw.random(rows) > 0.2)
    frame = pandas.DataFrame(
        {
            "age": age,
            "visits": pandas.array([None if n % 7 == 0 else n for n in range(rows)], dtype="Int64"),
            "member": pandas.array([None if n % 5 == 0 else n % 2 > 0 for n in range(rows)]),
            "town": [None if n % 3 == 0 else ["Ulm", "Bonn"][n % 2] for n in range(rows)],
        }
    )
    label = pandas.Series([["no", "yes"][n % 2] for n in range(rows)], dtype="category")
    parties = {"bank": (frame[["age", "town"]], label), "shop": frame[["visits", "member"]]}
    settings = {"method": "splitnn", "epochs": 1, "batch_size": 16}
    result = colonnade.run(settings, parties=parties, out=tmp_path / "run")
    new = pandas.DataFrame({"age": [None], "town": [None], "visits": [None], "member": [None]})
    rows_of = {"bank": new[["age", "town"]], "shop": new[["visits", "member"]]}
    found = colonnade.load(result.path).predict(rows_of)["bank"]
    assert found.probabilities.shape == (1, 2) and bool(torch.isfinite(found.probabilities).all())
