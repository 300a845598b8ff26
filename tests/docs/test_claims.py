"""What the pages on security say that nobody can do, a test tries to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CONCEPTS = Path(__file__).parents[2] / "docs" / "concepts"
PAGES = ["security.md", "threat-model.md"]
CLAIM = re.compile(r"\b(cannot|never|hides(?! nothing))\b", re.IGNORECASE)
# What is said of a protection in a table may have its test in another cell of the row.
PROTECTION = re.compile(r"\b(protects?|refused|refuses|lets? nobody in)\b", re.IGNORECASE)
LINK = re.compile(r"\]\(((?:\.\./)+tests/[^)#\s]+)(?:#(\w+))?\)")
END = re.compile(r"(?<=[.!?])\**\s+")


def sentences(text: str, *, rows: bool = False) -> Iterator[str]:
    """Of prose, of lists, and of the cells of tables but for their heads; or tables row by row."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\|.*\|\n(?=\|[-| ]+\|$)", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(\||#|\* |\d+\. )", r"\n\1", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n", text):
        if rows and block.startswith("|"):
            yield block
            continue
        for cell in block.strip("|").split("|") if block.startswith("|") else [block]:
            yield from END.split(" ".join(cell.split()))


def rows_of_cannot(text: str) -> Iterator[str]:
    """The rows of all tables whose first column is headed "cannot"."""
    for table in re.findall(r"^\| cannot .*\n\|[-| ]+\|\n((?:\|.*\n?)*)", text, re.MULTILINE):
        yield from table.splitlines()


def proven(text: str, page: Path) -> bool:
    """Whether a test stands behind it: a file, and where one is named, a function in it."""
    found = LINK.findall(text)
    for path, function in found:
        file = (page.parent / path).resolve()
        if not file.is_file():
            return False
        if function and f"def {function}(" not in file.read_text(encoding="utf-8"):
            return False
    return bool(found)


@pytest.mark.parametrize("name", PAGES)
def test_every_sentence_that_claims_something_leads_to_its_test(name: str) -> None:
    page = CONCEPTS / name
    said = [one for one in sentences(page.read_text(encoding="utf-8")) if CLAIM.search(one)]
    assert [one for one in said if not proven(one, page)] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_protection_leads_to_its_test(name: str) -> None:
    page = CONCEPTS / name
    found = sentences(page.read_text(encoding="utf-8"), rows=True)
    said = [one for one in found if PROTECTION.search(one)]
    assert len(said) > 3 and [one for one in said if not proven(one, page)] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_link_to_a_test_leads_to_one(name: str) -> None:
    page = CONCEPTS / name
    links = [match[0] for match in LINK.finditer(page.read_text(encoding="utf-8"))]
    assert len(links) > 10 and [one for one in links if not proven(one, page)] == []


def test_everything_that_somebody_cannot_do_is_tried() -> None:
    page = CONCEPTS / "threat-model.md"
    rows = list(rows_of_cannot(page.read_text(encoding="utf-8")))
    assert len(rows) > 20 and [row for row in rows if not proven(row, page)] == []


def test_a_claim_without_a_test_is_found() -> None:
    page = CONCEPTS / "security.md"
    here = "../../tests/docs/test_claims.py"
    text = (
        f"It is so. A hub\ncannot do it.\n\n* It never fails ([tested]({here})).\n"
        f"\n| cannot | why |\n|---|---|\n| read | [x]({here}#test_that_is_not_there) |\n"
        f"| write | [x]({here}#test_a_claim_without_a_test_is_found) |\n| think | – |\n"
    )
    claims = [one for one in sentences(text) if CLAIM.search(one)]
    assert [proven(one, page) for one in claims] == [False, True]
    assert [proven(one, page) for one in rows_of_cannot(text)] == [False, True, False]
    text = (
        f"It protects all.\nIt lets nobody in.\n\n| a | b |\n|---|---|\n| x | is refused |\n"
        f"| y | is refused | [x]({here}) |\n| z | is taken |\n"
    )
    found = [one for one in sentences(text, rows=True) if PROTECTION.search(one)]
    assert [proven(one, page) for one in found] == [False, False, False, True]
