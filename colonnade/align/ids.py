"""Row ids as text that is the same at every party that means the same id.

    text     Unicode NFKC, then without white space at both ends: "ﬁ1 " is "fi1", "７" is "7"
    integer  as it is written in base 10: 7 is "7"
    float    only a whole number below 2^53, as that integer: 7.0 is "7"

Nothing else is changed: the texts "007", "7" and "7.0" are three ids, because nobody can say
whether zeros matter. `casefold` makes "Ann" and "ANN" one id. Errors name rows, counted from 0, and
never an id, because all parties read one party's error.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from numbers import Integral, Real

from colonnade.errors import DataError

SHOWN = 3  # rows that an error names
MOSTLY = 0.5  # more ids of that form are no chance
FORMS = {  # written by programs, seldom by people
    re.compile(
        r"[-+]?[0-9]+\.0+"
    ): "end in '.0', as whole numbers do that were read as decimals, and "
    "never match the same numbers without it: write them as whole numbers",
    re.compile(r"[-+]?[0-9](\.[0-9]+)?[eE]\+?[0-9]+"): "are written with an exponent, as tables "
    "shorten long numbers: write all digits, as text",
    re.compile(r"[0-9]+,[0-9]{3}(,[0-9]{3})*"): "hold commas between thousands: write digits alone",
    re.compile(r"(['\"]).*\1"): "stand in quotation marks of their own: remove these",
}
WHOLE = 2**53  # from here on a float no longer tells one integer from the next


def normalise(
    ids: Iterable[object], party: str, *, casefold: bool = False, most: int = 1_000_000
) -> list[str]:
    """One text per row, all different, none empty, at most `most`; else a DataError.

    ids  texts and numbers in any sequence: a list, a NumPy array, a tensor, a column
    """
    plain = getattr(ids, "tolist", None)
    values = list(ids if plain is None else plain())
    if len(values) > most:
        raise DataError(
            f"'{party}' brings {len(values)} ids, and {most} are allowed: raise 'most', at all "
            "parties, if they may know that there are so many"
        )
    texts = [_text(value, casefold) for value in values]
    _refuse(
        party, [row for row, text in enumerate(texts) if text is None], "neither text nor whole"
    )
    known = [text for text in texts if text is not None]
    _refuse(party, [row for row, text in enumerate(known) if not text], "empty")
    _refuse_repeated(party, known)
    return known


def one_spelling(ids: Iterable[str]) -> list[str]:
    """The same text for every way of writing an id, whatever the settings of a run; equal ones
    are not refused. For counting: two people who share a text are counted together."""
    return [_text(one, casefold=True) or one for one in ids]


def doubts(ids: Sequence[str]) -> list[str]:
    """What looks as if a program had changed the ids, so that a partner's would not match: said of
    one party's ids alone, and without naming any."""
    found = []
    for form, said in FORMS.items():
        count = sum(form.fullmatch(one) is not None for one in ids)
        if count > len(ids) * MOSTLY:
            found.append(f"{count:,} of {len(ids):,} ids {said}")
    return found


def _text(value: object, casefold: bool) -> str | None:
    """The id as text, or None if parties might write the same value differently."""
    if not isinstance(value, str):
        return _number(value)
    text = unicodedata.normalize("NFKC", value)
    if casefold:
        text = unicodedata.normalize("NFKC", text.casefold())
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return None
    return text.strip()


def _number(value: object) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < WHOLE else None
    return None


def _refuse(party: str, rows: Sequence[int], what: str) -> None:
    if rows:
        raise DataError(
            f"'{party}' has {len(rows)} ids that are {what}: {_listed(map(str, rows), 'row')}. "
            "Correct or remove these rows"
        )


def _refuse_repeated(party: str, texts: Sequence[str]) -> None:
    if len(set(texts)) == len(texts):
        return
    first: dict[str, int] = {}
    again = [
        (first[text], row) for row, text in enumerate(texts) if first.setdefault(text, row) < row
    ]
    raise DataError(
        f"'{party}' has {len(again)} rows that repeat an earlier id: "
        f"{_listed((f'{row} as in {before}' for before, row in again), 'row')}. An id must belong "
        "to one row; remove the others (compared after NFKC, without white space at the ends)"
    )


def _listed(rows: Iterable[str], name: str) -> str:
    found = list(rows)
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"{name if len(found) == 1 else name + 's'} {', '.join(found[:SHOWN])}{more}"
