"""Text that should not be treated as categories: identifiers, dates, numbers with a comma."""

from __future__ import annotations

import re
from collections.abc import Collection

MOST_CATEGORIES = 1000
FEW = 10  # fewer rows do not show whether a column is an identifier
_DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{2,4})([T ].*)?|\d{1,2}:\d\d(:\d\d.*)?"
)
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")


def dates(words: Collection[str]) -> bool:
    return bool(words) and all(map(_DATE.fullmatch, words))


def decimal_commas(words: Collection[str]) -> bool:
    return bool(words) and all(map(_DECIMAL_COMMA.fullmatch, words))


def identifier(texts: int, rows: int) -> str:
    """What makes so many texts in so many rows look like an identifier; empty: nothing does."""
    if texts > MOST_CATEGORIES:
        return f"over {MOST_CATEGORIES:,} different texts"
    return "a different text in every row" if texts >= rows >= FEW else ""
