"""A table on disk: table.json with everything, table.md to be copied into the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from colonnade.report import units
from colonnade.reproduce import view
from colonnade.reproduce.cells import UNRESOLVED
from colonnade.reproduce.view import Content
from colonnade.wire import store


def write(content: Content, out: Path) -> None:
    """table.json and table.md in the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    store.write_text(json.dumps(content, indent=1, ensure_ascii=False), out / "table.json")
    store.write_text(markdown(content), out / "table.md")


def markdown(content: Content) -> str:
    """The whole table as Markdown."""
    return "\n".join([*_head(content), *_cells(content), *_claims(content), *_rest(content)]) + "\n"


def _head(content: Content) -> Iterator[str]:
    yield f"# {content['title']}"
    if not content["comparable"]:
        yield f"\n**{view.NOT_COMPARABLE}.** {content['note']}"
    elif content["note"]:
        yield f"\n{content['note']}"
    yield f"\n`{content['command']}`, {view.seeds(content)}"
    yield from (f"\n{text}" for text in content["skipped"])
    for failure in content["failures"]:
        what = "Diverged" if failure["diverged"] else "Failed"
        yield f"\n{what}: `{failure['run']}`: {_one_line(failure['error'])}"


def _cells(content: Content) -> Iterator[str]:
    compared = content["comparable"] and any(c["paper"] is not None for c in content["cells"])
    said = view.legend(content) if compared else view.measure(content)
    yield f"\n{said[0].upper()}{said[1:]}."
    variants = False
    for section in view.sections(content):
        yield f"\n## {section['title']}\n"
        rows = []
        for row in section["rows"]:
            star = "*" if row["variant"] and compared else ""
            variants = variants or bool(star)
            rows.append([row["name"] + star, *(_cell(cell, compared) for cell in row["cells"])])
        yield from _table(["", *section["columns"]], rows)
    if variants:
        yield f"\n\\{view.VARIANT}."


def _cell(cell: Mapping[str, Any] | None, compared: bool) -> str:
    parts = [view.ours(cell)]
    if compared and view.theirs(cell):
        parts += [view.theirs(cell), view.difference(cell) or units.MISSING]
    return " / ".join(parts)


def _claims(content: Content) -> Iterator[str]:
    claims = view.measured(content)
    if not claims:
        return
    yield "\n## Does the order hold?\n"
    rows = []
    for claim in claims:
        against = [
            f"{view.place_name(one['data'], one['split'], one['block'])}, {one['column']} "
            f"({units.points(one['margin'])}{', ?' if one['outcome'] == UNRESOLVED else ''})"
            for one in claim["verdicts"]
            if not one["holds"] and claim["of"] > 1
        ]
        rows.append([claim["text"], view.count(claim), view.printed(claim), "; ".join(against)])
    heads = ["claim", "ours", "paper's numbers", "where not (?: not resolved)"]
    shown = 4 if any(row[3] for row in rows) else 3
    yield from _table(heads[:shown], [row[:shown] for row in rows])
    yield from _differences([c for c in claims if c["of"] > 1 and view.paired(c)])


def _differences(claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every paired difference, where the line of its claim has only a count."""
    if not claims:
        return
    grids = {claim["text"]: view.judged(claim) for claim in claims}
    columns = list(dict.fromkeys(column for grid in grids.values() for column in grid["columns"]))
    rows = []
    for text, grid in grids.items():
        for row in grid["rows"]:
            found = dict(zip(grid["columns"], row["cells"], strict=True))
            shown = [view.margin(one) if (one := found.get(c)) else "" for c in columns]
            rows.append([text, row["name"], *shown])
    yield f"\nBy how much: {view.PAIRED}.\n"
    yield from _table(["claim", "where", *columns], rows)


def _rest(content: Content) -> Iterator[str]:
    if content.get("fits", []):
        yield "\n## Straight lines\n"
        yield from (f"* {fit['text']}" for fit in content.get("fits", []))
    if content["communication"]:
        yield from _communication(content)
    if content["notes"]:
        yield "\n## How this differs from the paper\n"
        yield from (f"* {note}" for note in content["notes"])
    yield "\n## Where it ran\n"
    for environment in content["environments"]:
        yield (
            f"* {environment['device']}, {environment['platform']}, {environment['threads']} "
            f"thread(s) per run; PyTorch {environment['torch']}, Python {environment['python']}, "
            f"Colonnade {environment['colonnade']}"
        )
    if content["commits"]:
        yield f"* commit {', '.join(content['commits'])}"


def _communication(content: Content) -> Iterator[str]:
    yield "\n## Communication\n"
    yield from _table(
        [
            "data",
            "row",
            "messages per batch and passive party",
            "models",
            "bytes per epoch",
            "in all",
            "time",
        ],
        [
            [
                line["data"],
                ": ".join(filter(None, (line["block"], line["rows"]))),
                messages(line["messages_per_batch_and_passive"]),
                f"{line['models']:g}",
                units.size(line["bytes_per_epoch"]),
                units.size(line["bytes_train"]),
                units.duration(line["seconds"]),
            ]
            for line in content["communication"]
        ],
    )
    yield "\nMeans over the runs; messages and bytes of training alone."


def messages(number: float | None) -> str:
    """`4`, or `4.25` where runs were resumed or differ; a small number is not rounded to 0."""
    if number is None:
        return units.MISSING
    return "< 0.01" if 0 < number < 0.005 else f"{number:.2f}".rstrip("0").rstrip(".")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(_escaped, heads))} |"
    yield f"|{'|'.join('---' for _ in heads)}|"
    for row in rows:
        yield f"| {' | '.join(map(_escaped, row))} |"


def _escaped(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split())
