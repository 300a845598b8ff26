"""Several seeds of one configuration: their means, in a terminal and as a page.

The interval of a mean is Student's t over the seeds, at 95 %. Where several configurations are
compared, it is that of the differences seed by seed, so that what a seed means for all of them
(which rows are tested, say) does not count.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.report import measured, units
from colonnade.report.flows import cell, new_table
from colonnade.report.overview import deciding, epochs, value
from colonnade.report.prose import about, called, counted
from colonnade.task.intervals import Interval, bounds, over_seeds

if TYPE_CHECKING:
    from rich.table import Table

Content = Mapping[str, Any]


def summed(name: str, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """seeds.json: every measure on the test rows, over the runs of one configuration."""
    first = results[0]
    told = first["metrics"].get("test", {}).get("measures", {})
    names = dict.fromkeys([deciding(first), *(n for each in told.values() for n in each)])
    found = {}
    for measure in names:
        values = [value(result, measure) for result in results]
        over, (least, most) = over_seeds(values), bounds(measure)
        low = None if over.low is None else max(over.low, least)
        high = None if over.high is None else min(over.high, most)
        found[measure] = {"mean": over.value, "low": low, "high": high, "values": values}
    return {
        "schema": 1,
        "name": name,
        "method": first["method"],
        "title": about(first)["title"],
        "seeds": [result["seed"] for result in results],
        "runs": [f"seed-{result['seed']}" for result in results],
        "epochs": [epochs(result) for result in results],
        "metric": deciding(first),
        "measures": found,
    }


def paired(one: Content, first: Content, metric: str) -> tuple[Interval, int]:
    """The mean difference over the seeds that both have, its interval, and their number."""
    theirs = dict(zip(first["seeds"], _values(first, metric), strict=True))
    both = [
        mine - other
        for seed, mine in zip(one["seeds"], _values(one, metric), strict=True)
        if mine is not None and (other := theirs.get(seed)) is not None
    ]
    return over_seeds(both), len(both)


def _values(content: Content, metric: str) -> list[float | None]:
    found = content["measures"].get(metric, {}).get("values")
    return list(found) if found else [None] * len(content["seeds"])


def spoken(content: Content) -> str:
    """`test AUC 0.781 (0.774 to 0.788), five seeds`."""
    metric = content["metric"]
    told = content["measures"][metric]
    mean = measured.value(metric, told["mean"])
    within = measured.interval(metric, told["low"], told["high"])
    shown = f"{'Mean test' if within else 'Test'} {called(metric)} {mean}"
    shown += f" (95 % interval of the mean {within})" if within else ""
    return f"{shown}, {counted(len(content['seeds']), 'seed')}."


def summary(content: Content) -> Table:
    """Every measure: the mean over the seeds, and how sure it is."""
    several = len(content["seeds"]) > 1
    table = new_table(
        "Measure",
        ">Mean" if several else ">One seed",
        *([">95 % interval", ">Lowest", ">Highest"] if several else []),
    )
    for name, told in content["measures"].items():
        known = [v for v in told["values"] if v is not None]
        more = [
            measured.interval(name, told["low"], told["high"]) or units.MISSING,
            measured.value(name, min(known, default=None)),
            measured.value(name, max(known, default=None)),
        ]
        table.add_row(
            cell(measured.title(name)),
            measured.value(name, told["mean"]),
            *(more if several else []),
        )
    return table


def comparison(contents: Sequence[Content]) -> Table:
    """Configurations against the first, seed by seed."""
    metric = contents[0]["metric"]
    caption = "Differences: means over the seeds that both have, paired; 95 % intervals."
    if measured.lower_is_better(metric):
        caption += f" {measured.column(metric)}: lower is better."
    table = new_table(
        "Runs", "Method", ">Seeds", f">{measured.column(metric)}", ">Difference", ">Interval",
        caption=caption,
    )  # fmt: skip
    for content in contents:
        difference, pairs = paired(content, contents[0], metric)
        told = content["measures"].get(metric, {})
        mean = told.get("mean")
        ends = [measured.change(metric, end, mean) for end in (difference.low, difference.high)]
        sure = f"{ends[0]} to {ends[1]}" if pairs > 1 else ("one seed" if pairs else units.MISSING)
        other = content is not contents[0]
        table.add_row(
            cell(content["name"]),
            cell(content["title"]),
            units.count(len(content["seeds"])),
            measured.value(metric, mean),
            measured.change(metric, difference.value, mean) if other else "",
            sure if other else "",
        )
    return table


def write_page(content: Content, out: Path) -> Path:
    """One self-contained HTML file, with every seed's values."""
    from importlib import resources

    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    here = resources.files(__package__)
    template = environment.from_string(here.joinpath("seeds.html.jinja").read_text("utf-8"))
    decides = content["metric"]
    rows = [
        {
            "title": measured.title(name),
            "meaning": measured.meaning(name),
            "decides": name == decides,
            "lower": measured.lower_is_better(name),
            "mean": measured.value(name, told["mean"]),
            "interval": measured.interval(name, told["low"], told["high"]),
            "values": [measured.value(name, v) for v in told["values"]],
        }
        for name, told in content["measures"].items()
    ]
    style = Markup(here.joinpath("report.css").read_text("utf-8"))
    page = template.render(content=content, rows=rows, lead=spoken(content), style=style)
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    draft.write_text(page, encoding="utf-8", errors="replace")
    draft.replace(out)
    return out
