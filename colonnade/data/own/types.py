"""The second pass, over columns with text: truth values or categories, or why they are neither."""

from __future__ import annotations

import numpy as np

from colonnade.data.doubts import FEW, MOST_CATEGORIES, dates, decimal_commas, identifier
from colonnade.data.own.checks import Mistakes
from colonnade.data.own.numbers import First, Texts
from colonnade.data.own.phrases import leave_out, setting
from colonnade.data.own.table import TableFile
from colonnade.data.types import Column
from colonnade.data.values import ABSENT_NUMBER, TRUTH, as_number, short
from colonnade.errors import DataError

_SLIPS = 0.02  # a smaller share of text among numbers is taken as mistakes


def typed(
    table: TableFile,
    features: list[str],
    first: First,
    known: dict[str, Column],
    mistakes: Mistakes,
) -> tuple[list[Column], list[str]]:
    """Columns and a description of their types; text in `first.x` becomes codes, or 0 and 1."""
    columns = [Column(name) for name in features]
    kinds = ["number"] * len(features)
    places: list[int] = []
    for place, (name, seen) in enumerate(zip(features, first.texts, strict=True)):
        with mistakes.one():
            if _is_text(table, name, seen, known):
                places.append(place)
    if not places:
        return columns, kinds
    for place, codes in codes_of(table, features, first, places, known, mistakes).items():
        with mistakes.one():
            _code(table, features, first, place, codes, known, columns, kinds)
    return columns, kinds


def _is_text(table: TableFile, name: str, seen: Texts, known: dict[str, Column]) -> bool:
    """Whether a column is to be read as text; an error if it is neither text nor numbers."""
    if name in known and known[name].categories:
        return True
    if seen.count:
        rare = seen.count < _SLIPS * (seen.count + seen.numbers)
        if rare or (seen.count == 1 and seen.numbers):
            raise slip(table, name, seen)
        return True
    if seen.infinite >= 0:
        raise DataError(
            f"{table.path}, {table.place(seen.infinite)}, column '{name}': the number is "
            "infinite, or beyond 3e38. Correct it, or leave the cell empty"
        )
    if not seen.numbers and not known:
        raise DataError(
            f"{table.path}, column '{name}': there is no value at all. {leave_out(name)}"
        )
    return False


def _code(
    table: TableFile,
    features: list[str],
    first: First,
    place: int,
    codes: dict[str, int],
    known: dict[str, Column],
    columns: list[Column],
    kinds: list[str],
) -> None:
    """Turn the numbered texts of one column into a truth value or into categories."""
    name, coded = features[place], first.x[:, place]
    if name in known and known[name].categories:
        columns[place] = known[name]
        kinds[place] = f"{len(known[name].categories)} categories of training"
        if strangers := int((coded == -2).sum()):
            kinds[place] += f", {strangers:,} rows have an unknown one"
        return
    texts = sorted(codes.keys() - {""})
    if {text.casefold() for text in texts} <= TRUTH.keys() | ABSENT_NUMBER:
        truth = [TRUTH.get(text.casefold(), np.nan) for text in codes if text]
        meant = np.array([*truth, np.nan])
        kinds[place] = "truth value"
    else:
        _check_categories(table, name, texts, first, place, known)
        ranks = {text: rank for rank, text in enumerate(texts)}
        meant = np.array([*(ranks[text] for text in codes if text), -1])
        columns[place] = Column(name, tuple(texts))
        kinds[place] = "1 category" if len(texts) == 1 else f"{len(texts)} categories"
    coded[:] = meant[coded.astype(np.int64)]  # -1, the last: absent


def codes_of(
    table: TableFile,
    features: list[str],
    first: First,
    places: list[int],
    known: dict[str, Column],
    mistakes: Mistakes,
) -> dict[int, dict[str, int]]:
    """Number these columns' texts, in `first.x`, as they appear; -1: absent, -2: unknown. Columns
    with too many texts are not in the answer."""
    found: dict[int, dict[str, int]] = {place: {"": -1} for place in places}
    fixed = {p for p in places if features[p] in known and known[features[p]].categories}
    for place in fixed:
        found[place] |= {text: at for at, text in enumerate(known[features[place]].categories)}
    names = [features[place] for place in places]
    start = 0
    for piece in table.pieces(names, names):
        end = start + len(piece[0])
        for place, cells in zip(places, piece, strict=True):
            if place not in found:
                continue
            codes, texts = found[place], [str(cell).strip() for cell in cells]
            if place not in fixed:
                for text in dict.fromkeys(texts):
                    codes.setdefault(text, len(codes) - 1)
                if len(codes) > MOST_CATEGORIES + 1:
                    with mistakes.one():
                        name, seen = features[place], list(codes)[1:]
                        _check_categories(table, name, seen, first, place, known)
                    del found[place]
                    continue
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
    date, comma = dates(words), decimal_commas(words)
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
    if numbers > len(texts) / 2 and (many or len(texts) > rows / 2 >= FEW / 2):
        raise slip(table, name, seen)  # different values, and most of them numbers
    if what := identifier(len(texts), rows):
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
