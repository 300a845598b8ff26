"""The second pass, over columns with text: truth values or categories, or why they are neither."""

from __future__ import annotations

import re

import numpy as np

from colonnade.data.own.numbers import ABSENT_NUMBER, First, Texts, as_number
from colonnade.data.own.phrases import leave_out, setting, short
from colonnade.data.own.table import TableFile
from colonnade.data.types import Column
from colonnade.errors import DataError

MOST_CATEGORIES = 1000
_SLIPS = 0.02  # a smaller share of text among numbers is taken as mistakes
_FEW = 10  # fewer rows do not show whether a column is an identifier
_TRUTH = {"false": 0.0, "true": 1.0}
_DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{2,4})([T ].*)?|\d{1,2}:\d\d(:\d\d.*)?"
)
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")


def typed(
    table: TableFile, features: list[str], first: First, known: dict[str, Column]
) -> tuple[list[Column], list[str]]:
    """Columns and a description of their types; text in `first.x` becomes codes, or 0 and 1."""
    columns = [Column(name) for name in features]
    kinds = ["number"] * len(features)
    places: list[int] = []
    for place, (name, seen) in enumerate(zip(features, first.texts, strict=True)):
        if name in known and known[name].categories:
            places.append(place)
        elif seen.count:
            rare = seen.count < _SLIPS * (seen.count + seen.numbers)
            if rare or (seen.count == 1 and seen.numbers):
                raise slip(table, name, seen)
            places.append(place)
        elif seen.infinite >= 0:
            raise DataError(
                f"{table.path}, {table.place(seen.infinite)}, column '{name}': the number is "
                "infinite, or beyond 3e38. Correct it, or leave the cell empty"
            )
        elif not seen.numbers and not known:
            raise DataError(
                f"{table.path}, column '{name}': there is no value at all. {leave_out(name)}"
            )
    if not places:
        return columns, kinds
    found = codes_of(table, features, first, places, known)
    for place, codes in zip(places, found, strict=True):
        name = features[place]
        coded = first.x[:, place]
        if name in known and known[name].categories:
            columns[place] = known[name]
            kinds[place] = f"{len(known[name].categories)} categories of training"
            if strangers := int((coded == -2).sum()):
                kinds[place] += f", {strangers:,} rows have an unknown one"
            continue
        texts = sorted(codes.keys() - {""})
        if {text.casefold() for text in texts} <= _TRUTH.keys() | ABSENT_NUMBER:
            truth = [_TRUTH.get(text.casefold(), np.nan) for text in codes if text]
            meant = np.array([*truth, np.nan])
            kinds[place] = "truth value"
        else:
            _check_categories(table, name, texts, first, place, known)
            ranks = {text: rank for rank, text in enumerate(texts)}
            meant = np.array([*(ranks[text] for text in codes if text), -1])
            columns[place] = Column(name, tuple(texts))
            kinds[place] = "1 category" if len(texts) == 1 else f"{len(texts)} categories"
        coded[:] = meant[coded.astype(np.int64)]  # -1, the last: absent
    return columns, kinds


def codes_of(
    table: TableFile,
    features: list[str],
    first: First,
    places: list[int],
    known: dict[str, Column],
) -> list[dict[str, int]]:
    """Number these columns' texts, in `first.x`, as they appear; -1: absent, -2: unknown."""
    names = [features[place] for place in places]
    fixed = [name in known and bool(known[name].categories) for name in names]
    found: list[dict[str, int]] = [{"": -1} for _ in names]
    for name, codes, is_fixed in zip(names, found, fixed, strict=True):
        if is_fixed:
            codes |= {text: code for code, text in enumerate(known[name].categories)}
    start = 0
    for piece in table.pieces(names, names):
        end = start + len(piece[0])
        for place, cells, codes, is_fixed in zip(places, piece, found, fixed, strict=True):
            texts = [str(cell).strip() for cell in cells]
            if not is_fixed:
                for text in dict.fromkeys(texts):
                    codes.setdefault(text, len(codes) - 1)
                if len(codes) > MOST_CATEGORIES + 1:
                    _check_categories(table, features[place], list(codes)[1:], first, place, known)
            first.x[start:end, place] = [codes.get(text, -2) for text in texts]
        start = end
    return found


def _check_categories(
    table: TableFile,
    name: str,
    texts: list[str],
    first: First,
    place: int,
    known: dict[str, Column],
) -> None:
    """Refuse text that should not be treated as categories."""
    seen = first.texts[place]
    rows = seen.count + seen.numbers
    meant = {text: as_number(text) for text in texts}
    words = [text for text, number in meant.items() if number is None]
    numbers = sum(number is not None and number == number for number in meant.values())
    date = bool(words) and all(map(_DATE.fullmatch, words))
    comma = bool(words) and all(map(_DECIMAL_COMMA.fullmatch, words))
    if date or comma or name in known:
        row, cell = seen.first
        where = f"{table.path}, {table.place(row)}, column '{name}': {short(cell)}"
        if date:
            raise DataError(
                f"{where} is a date or a time. Turn the column into a number, such as days since "
                f"a day, or omit it: {setting(name)}"
            )
        if comma:
            raise DataError(f"{where} has a comma. Write numbers with a decimal point")
        raise DataError(
            f"{where} is not a number, but the column was numeric in training. Correct it"
        )
    many = len(texts) > MOST_CATEGORIES
    if numbers > len(texts) / 2 and (many or len(texts) > rows / 2 >= _FEW / 2):
        raise slip(table, name, seen)  # different values, and most of them numbers
    if many or (len(texts) >= rows >= _FEW):
        what = (
            f"over {MOST_CATEGORIES:,} different texts" if many else "a different text in every row"
        )
        raise DataError(
            f"{table.path}, column '{name}': {what}, which looks like an identifier and not "
            f"a category. {leave_out(name)}"
        )


def slip(table: TableFile, name: str, seen: Texts) -> DataError:
    (row, cell), numbers = seen.first, seen.numbers
    return DataError(
        f"{table.path}, {table.place(row)}, column '{name}': {short(cell)} is not a number, and "
        f"{numbers:,} of {numbers + seen.count:,} values are. Correct it, or leave the cell empty "
        "if the number is missing"
    )
