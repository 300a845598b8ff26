"""A table as one self-contained page, with the style sheet and the plots of the run report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from colonnade.report import plots, units
from colonnade.reproduce import view, write
from colonnade.reproduce.exhibit import PSNR, SECONDS, SSIM
from colonnade.reproduce.view import Content
from colonnade.wire import store

LINES = 4  # from name to name: more of them cannot be told apart


def write_page(content: Content, out: Path) -> None:
    """The page of table.json; the same content gives the same bytes."""
    store.write_text(render(content), out)


def render(content: Content) -> str:
    """The page as text."""
    import tomli_w
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name in ("size", "duration", "count"):
        environment.filters[name] = getattr(units, name)
    for name in ("ours", "theirs", "difference", "verdict"):
        environment.filters[name] = getattr(view, name)
    environment.filters["messages"] = write.messages
    style = resources.files("colonnade.report").joinpath("report.css").read_text(encoding="utf-8")
    page = resources.files(__package__).joinpath("page.html.jinja").read_text(encoding="utf-8")
    sections = view.sections(content)
    cells = content["cells"]
    return environment.from_string(page).render(
        {"fits": [], **content},
        style=Markup(style),
        sections=sections,
        compared=content["comparable"] and any(cell["paper"] is not None for cell in cells),
        variants=any(row["variant"] for section in sections for row in section["rows"]),
        figures=_figures(content, sections),
        grids=[
            claim | view.judged(claim) | {"count": view.count(claim), "print": view.printed(claim)}
            for claim in view.measured(content)
        ],
        seeds_text=view.seeds(content),
        settings_text=tomli_w.dumps(_said(content["settings"])),
        not_comparable=view.NOT_COMPARABLE,
        variant_text=view.VARIANT,
        measure=view.measure(content),
        paired=view.PAIRED,
    )


def _figures(content: Content, sections: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The groups of figures that the table asks for."""
    drawn = content.get("drawn", [])
    match content["against"]:
        case "epochs":
            return [_by_epoch(section, f"section{i}") for i, section in enumerate(sections)]
        case "rows":
            return [_by_row(section, f"section{i}") for i, section in enumerate(sections)]
        case "columns":
            return [_by_column(section, f"section{i}", drawn) for i, section in enumerate(sections)]
    splits = dict.fromkeys(section["split"] for section in sections)
    return [
        _by_data(split, [s for s in sections if s["split"] == split], drawn) for split in splits
    ]


def _by_epoch(section: Mapping[str, Any], key: str) -> dict[str, Any]:
    """One panel per column, one line per row; the lines of a row look alike in all panels."""
    rows = section["rows"][: plots.MOST]
    panels = []
    for place, column in enumerate(section["columns"]):
        series = [_series(row["name"], row["cells"][place]) for row in rows]
        drawn = [line for line in series if line.x]
        if not drawn:
            continue
        ends = ", ".join(f"{line.name} {units.percent(line.y[-1])}" for line in drawn)
        label = units.plain(f"{column}: test accuracy against epoch; at the end: {ends}")
        svg = plots.curves(series, key=f"{key}-panel{place}", label=label, percent=True)
        panels.append((column, svg))
    legend = {
        row["name"]: i
        for i, row in enumerate(rows)
        if any(cell and cell["curve"][0] for cell in row["cells"])
    }
    left = [row["name"] for row in section["rows"][plots.MOST :]]
    return _group(section["title"], key, panels, legend, left)


def _by_row(section: Mapping[str, Any], key: str) -> dict[str, Any]:
    """One panel per column of accuracies: ours from row to row, and the paper's beside it."""
    names = [row["name"] for row in section["rows"]]
    panels, drawn = [], ["ours"]
    for place, column in enumerate(section["columns"]):
        cells = [row["cells"][place] for row in section["rows"]]
        if any(cell and cell["metric"] in (PSNR, SSIM) for cell in cells):
            continue
        lines = [[_mean(cell) for cell in cells]]
        if any(cell and cell["difference"] is not None for cell in cells):
            lines.append([cell["paper"] if cell else None for cell in cells])
            drawn = ["ours", "the paper"]
        label = f"{column}: test accuracy in per cent; {_told(names, cells)}"
        panels.append((column, _over(names, lines, f"{key}-panel{place}", label)))
    return _group(section["title"], key, panels, drawn if panels else [])


def _by_column(section: Mapping[str, Any], key: str, drawn: Sequence[str]) -> dict[str, Any]:
    """One panel: some rows from column to column."""
    names = _chosen([row["name"] for row in section["rows"]], drawn)
    rows = [row for row in section["rows"] if row["name"] in names]
    timed = any(cell and cell["metric"] == SECONDS for row in rows for cell in row["cells"])
    told = "; ".join(f"{row['name']}: " + ", ".join(map(view.ours, row["cells"])) for row in rows)
    svg = _over(
        section["columns"],
        [[_mean(cell) for cell in row["cells"]] for row in rows],
        f"{key}-panel0",
        f"{section['title']}: {told}",
        "s" if timed else "%",
    )
    left = [row["name"] for row in section["rows"] if row["name"] not in names]
    return _group(section["title"], key, [(section["title"], svg)], names, left)


def _by_data(
    split: str, sections: Sequence[Mapping[str, Any]], drawn: Sequence[str]
) -> dict[str, Any]:
    """One panel per column, one line per row: from section to section."""
    names = [section["data"] for section in sections]
    found = {
        (row["name"], column, section["data"]): row["cells"][place]
        for section in sections
        for row in section["rows"]
        for place, column in enumerate(section["columns"])
    }
    every = list(dict.fromkeys(row for row, _, _ in found))
    rows = _chosen(every, drawn)
    panels = []
    for place, column in enumerate(dict.fromkeys(column for _, column, _ in found)):
        cells = [[found.get((row, column, name)) for name in names] for row in rows]
        told = "; ".join(
            f"{row}: {_told(names, line)}" for row, line in zip(rows, cells, strict=True)
        )
        lines = [[_mean(cell) for cell in line] for line in cells]
        label = f"{column}: test accuracy in per cent; {told}"
        panels.append((column, _over(names, lines, f"{split}-panel{place}", label)))
    return _group(split, split, panels, rows, [row for row in every if row not in rows])


def _group(
    title: str,
    key: str,
    panels: Iterable[tuple[str, str]],
    legend: Iterable[str] | Mapping[str, int],
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Panels that share a legend: the names of the lines, in order or with their numbers."""
    from markupsafe import Markup

    numbers = legend if isinstance(legend, Mapping) else {name: i for i, name in enumerate(legend)}
    return {
        "title": title,
        "panels": [{"caption": caption, "svg": Markup(svg)} for caption, svg in panels],
        "legend": [
            {"name": name, "svg": Markup(plots.line_swatch(i, key=f"{_id(key)}-line{i}"))}
            for name, i in numbers.items()
        ],
        "left_out": list(left_out),
    }


def _over(
    names: Sequence[str],
    lines: Sequence[Sequence[float | None]],
    key: str,
    label: str,
    unit: str = "%",
) -> str:
    return plots.by_name(names, lines, key=_id(key), label=units.plain(label), unit=unit)


def _id(key: str) -> str:
    """A split's name as part of an id."""
    return re.sub(r"[^A-Za-z0-9]+", "-", key)


def _told(names: Sequence[str], cells: Sequence[Mapping[str, Any] | None]) -> str:
    return ", ".join(f"{name} {view.ours(cell)}" for name, cell in zip(names, cells, strict=True))


def _mean(cell: Mapping[str, Any] | None) -> float | None:
    return cell["mean"] if cell else None


def _chosen(rows: Sequence[str], drawn: Sequence[str]) -> list[str]:
    """The rows to draw: those named, or the first ones where none is."""
    return ([row for row in rows if row in drawn] or list(rows))[:LINES]


def _series(name: str, cell: Mapping[str, Any] | None) -> plots.Series:
    x, y = cell["curve"] if cell else ([], [])
    return plots.Series(name, x, [accuracy / 100 for accuracy in y])


def _said(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not empty, as in the table's file."""
    said: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            said[key] = _said(value)
        elif isinstance(value, list | tuple) and any(isinstance(v, Mapping) for v in value):
            said[key] = [_said(v) for v in value]
        elif value not in ("", None, (), []) and (key != "variant" or value):
            said[key] = value
    return {key: value for key, value in said.items() if value != {}}
