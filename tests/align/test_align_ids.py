"""Ids: what is one and the same, and what is refused."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from colonnade.align import normalise
from colonnade.errors import DataError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("c1", "c1"),
        (" c1\t\n", "c1"),
        ("\u00a0c1\u3000", "c1"),  # other white space
        ("ﬁ１", "fi1"),
        ("e\u0301", "é"),  # one letter or two
        (7, "7"),
        (-7, "-7"),
        (10**30, "1" + 30 * "0"),
        (7.0, "7"),
        (-0.0, "0"),
        ("7", "7"),
        ("007", "007"),  # zeros may count
        ("7.0", "7.0"),
        ("Ann", "Ann"),
        (np.int64(7), "7"),
        (np.uint8(7), "7"),
        (np.float32(7), "7"),
        (np.str_("x"), "x"),
    ],
)
def test_what_an_id_reads_as(value: object, text: str) -> None:
    assert normalise([value], "bank") == [text]


def test_arrays_tensors_and_columns() -> None:
    assert normalise(torch.tensor([3, 1]), "bank") == ["3", "1"]
    assert normalise(np.array(["b ", "a"]), "bank") == ["b", "a"]
    assert normalise((n for n in (1, 2)), "bank") == ["1", "2"]
    assert normalise([], "bank") == []


def test_casefold_is_a_choice() -> None:
    assert normalise(["Ann", "ANN"], "bank") == ["Ann", "ANN"]
    assert normalise(["Straße"], "bank", casefold=True) == ["strasse"]
    with pytest.raises(DataError, match="row 1 as in 0"):
        normalise(["Ann", "ANN"], "bank", casefold=True)


@given(st.text())
def test_normalised_text_stays_as_it_is(text: str) -> None:
    try:
        (once,) = normalise([text], "bank")
    except DataError:
        assert not unicodedata.normalize("NFKC", text).strip()
        return
    assert normalise([once], "bank") == [once]


@pytest.mark.parametrize(
    "value", [True, None, 7.5, float("nan"), float("inf"), 2.0**53, b"c1", ("c", 1), "\ud800x"]
)
def test_what_two_programs_would_write_differently_is_refused(value: object) -> None:
    with pytest.raises(DataError, match=r"'bank' has 1 ids that are neither .*: row 1"):
        normalise(["a", value], "bank")


def test_empty_ids_are_counted_and_placed() -> None:
    with pytest.raises(DataError) as caught:
        normalise(["a", "", " ", "b", "\u3000", "\t"], "bank")
    assert "'bank' has 4 ids that are empty: rows 1, 2, 4 and 1 more" in str(caught.value)


def test_duplicates_are_counted_and_placed_and_no_id_is_shown() -> None:
    ids = ["secret-1", "secret-2", "secret-1 ", "secret-3", "secret-2", "secret-1", "secret-1"]
    with pytest.raises(DataError) as caught:
        normalise(ids, "bank")
    text = str(caught.value)
    assert "'bank' has 4 rows" in text
    assert "rows 2 as in 0, 4 as in 1, 5 as in 0 and 1 more" in text
    assert "secret" not in text


def test_a_number_and_its_text_are_one() -> None:
    with pytest.raises(DataError, match="row 1 as in 0"):
        normalise([7, "7"], "bank")


def test_the_number_of_ids_is_capped() -> None:
    assert len(normalise(range(5), "bank", most=5)) == 5
    with pytest.raises(DataError, match="'bank' brings 6 ids, and 5 are allowed"):
        normalise(range(6), "bank", most=5)
