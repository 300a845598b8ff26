"""A table as one self-contained page, in the style of the report: its style sheet, its plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from colonnade import store
from colonnade.report import plots, units
from colonnade.reproduce import chart, view, write
from colonnade.reproduce.table import PSNR, SECONDS, SSIM
from colonnade.reproduce.view import Content


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
    draw = _by_epoch if content["against"] == "epochs" else _by_row
    figures = [draw(section, number) for number, section in enumerate(sections)]
    if content["against"] == "data":
        figures = [
            _by_data(split, [s for s in sections if s["split"] == split], content.get("drawn", []))
            for split in dict.fromkeys(section["split"] for section in sections)
        ]
    if content["against"] == "columns":
        figures = [
            _by_column(s, number, content.get("drawn", [])) for number, s in enumerate(sections)
        ]
    return environment.from_string(page).render(
        {"fits": [], **content},
        style=Markup(style),
        sections=sections,
        compared=content["comparable"] and any(cell["paper"] is not None for cell in cells),
        variants=any(row["variant"] for section in sections for row in section["rows"]),
        figures=figures,
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


def _by_epoch(section: Mapping[str, Any], number: int) -> dict[str, Any]:
    """One panel per column, one line per row; the lines of a row look alike in all panels."""
    from markupsafe import Markup

    rows = section["rows"][: plots.MOST]
    panels = []
    for place, column in enumerate(section["columns"]):
        series = [_series(row["name"], row["cells"][place]) for row in rows]
        drawn = [line for line in series if line.x]
        if not drawn:
            continue
        ends = ", ".join(f"{line.name} {units.percent(line.y[-1])}" for line in drawn)
        svg = plots.curves(
            series,
            key=f"section{number}-panel{place}",
            label=units.plain(f"{column}: test accuracy against epoch; at the end: {ends}"),
            percent=True,
        )
        panels.append({"caption": column, "svg": Markup(svg)})
    legend = [
        {"name": row["name"], "svg": Markup(plots.line_swatch(i, key=f"section{number}-line{i}"))}
        for i, row in enumerate(rows)
        if any(cell and cell["curve"][0] for cell in row["cells"])
    ]
    left = [row["name"] for row in section["rows"][plots.MOST :]]
    return {"title": section["title"], "panels": panels, "legend": legend, "left_out": left}


def _by_row(section: Mapping[str, Any], number: int) -> dict[str, Any]:
    """One panel per column of accuracies: ours from row to row, and the paper's beside it."""
    from markupsafe import Markup

    names = [row["name"] for row in section["rows"]]
    panels, drawn = [], set[str]()
    for place, column in enumerate(section["columns"]):
        cells = [row["cells"][place] for row in section["rows"]]
        if any(cell and cell["metric"] in (PSNR, SSIM) for cell in cells):
            continue
        compared = any(cell and cell["difference"] is not None for cell in cells)
        lines = [[cell["mean"] if cell else None for cell in cells]]
        lines += [[cell["paper"] if cell else None for cell in cells]] if compared else []
        told = ", ".join(
            f"{name} {view.ours(cell)}" for name, cell in zip(names, cells, strict=True)
        )
        label = units.plain(f"{column}: test accuracy in per cent; {told}")
        panels.append({"caption": column, "svg": Markup(chart.by_name(names, lines, label=label))})
        drawn |= {"ours", "the paper"} if compared else {"ours"}
    legend = [
        {"name": name, "svg": Markup(plots.line_swatch(i, key=f"section{number}-line{i}"))}
        for i, name in enumerate(sorted(drawn))
    ]
    return {"title": section["title"], "panels": panels, "legend": legend, "left_out": []}


def _by_column(section: Mapping[str, Any], number: int, drawn: Sequence[str]) -> dict[str, Any]:
    """One panel: some rows from column to column."""
    from markupsafe import Markup

    rows = _chosen(section["rows"], drawn)
    lines = [[cell["mean"] if cell else None for cell in row["cells"]] for row in rows]
    timed = any(c and c["metric"] == SECONDS for row in rows for c in row["cells"])
    told = "; ".join(f"{row['name']}: " + ", ".join(map(view.ours, row["cells"])) for row in rows)
    svg = chart.by_name(
        section["columns"],
        lines,
        label=units.plain(f"{section['title']}: {told}"),
        unit="s" if timed else "%",
    )
    legend = [
        {"name": row["name"], "svg": Markup(plots.line_swatch(i, key=f"section{number}-line{i}"))}
        for i, row in enumerate(rows)
    ]
    left = [row["name"] for row in section["rows"] if row not in rows]
    panels = [{"caption": section["title"], "svg": Markup(svg)}]
    return {"title": section["title"], "panels": panels, "legend": legend, "left_out": left}


def _chosen(rows: Sequence[Mapping[str, Any]], drawn: Sequence[str]) -> list[Mapping[str, Any]]:
    """At most as many as there are kinds of lines; the first ones, where nothing is said."""
    named = [row for row in rows if row["name"] in drawn] or list(rows)
    return named[: len(chart.DASHES)]


def _by_data(
    split: str, sections: Sequence[Mapping[str, Any]], drawn: Sequence[str]
) -> dict[str, Any]:
    """One panel per column, one line per row: from section to section."""
    from markupsafe import Markup

    names = [section["data"] for section in sections]
    found = {
        (row["name"], column, section["data"]): row["cells"][place]
        for section in sections
        for row in section["rows"]
        for place, column in enumerate(section["columns"])
    }
    every = list(dict.fromkeys(row for row, _, _ in found))
    rows = ([row for row in every if row in drawn] or every)[: len(chart.DASHES)]
    panels = []
    for column in dict.fromkeys(column for _, column, _ in found):
        cells = [[found.get((row, column, name)) for name in names] for row in rows]
        told = "; ".join(
            f"{row}: " + ", ".join(f"{n} {view.ours(c)}" for n, c in zip(names, line, strict=True))
            for row, line in zip(rows, cells, strict=True)
        )
        lines = [[cell["mean"] if cell else None for cell in line] for line in cells]
        label = units.plain(f"{column}: test accuracy in per cent; {told}")
        panels.append({"caption": column, "svg": Markup(chart.by_name(names, lines, label=label))})
    legend = [
        {"name": row, "svg": Markup(plots.line_swatch(i, key=f"{split}-line{i}"))}
        for i, row in enumerate(rows)
    ]
    left = [row for row in every if row not in rows]
    return {"title": split, "panels": panels, "legend": legend, "left_out": left}


def _series(name: str, cell: Mapping[str, Any] | None) -> plots.Series:
    x, y = cell["curve"] if cell else ([], [])
    return plots.Series(name, x, [accuracy / 100 for accuracy in y])


def _said(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without what is empty, as in the table's file."""
    said: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            said[key] = _said(value)
        elif isinstance(value, list | tuple) and any(isinstance(v, Mapping) for v in value):
            said[key] = [_said(v) for v in value]
        elif value not in ("", None, (), []) and (key != "variant" or value):
            said[key] = value
    return {key: value for key, value in said.items() if value != {}}
