"""What terminal, Markdown and page share: the sections of a table, and its numbers as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from colonnade.report import units
from colonnade.reproduce.exhibit import PSNR, SECONDS, SSIM

Content = Mapping[str, Any]  # table.json
NOT_COMPARABLE = "Not comparable with the paper"
VARIANT = "* a variant: the paper's number belongs to another row"
PAIRED = "the mean over the seeds of the paired differences ± half of its 95 % interval"
FEW = 4  # so many verdicts of a claim are all listed; of more, those that do not hold


def sections(content: Content) -> list[dict[str, Any]]:
    """One rectangle of cells for each data set, split and block."""
    found: dict[tuple[str, str, str], dict[tuple[str, str], Mapping[str, Any]]] = {}
    for cell in content["cells"]:
        place = (cell["data"], cell["split"], cell["block"])
        found.setdefault(place, {})[cell["row"], cell["column"]] = cell
    return [
        {
            "title": place_name(*place),
            "data": place[0],
            "split": place[1],
            "columns": (columns := list(dict.fromkeys(column for _, column in cells))),
            "rows": [
                {"name": row, "variant": _variant(cells, row)}
                | {"cells": [cells.get((row, column)) for column in columns]}
                for row in dict.fromkeys(row for row, _ in cells)
            ],
        }
        for place, cells in found.items()
    ]


def place_name(data: str, split: str, block: str) -> str:
    """`MNIST, quadrants` or `MNIST, quadrants: as printed`."""
    return f"{data}, {split}" + (f": {block}" if block else "")


def ours(cell: Mapping[str, Any] | None) -> str:
    """`97.31 ± 0.20`, or `97.31 (97.02 to 97.50)`; a dash for a gap."""
    if cell is None or cell["mean"] is None:
        return units.MISSING
    if cell["range"] is not None:
        low, high = cell["range"]
        return f"{cell['mean']:.2f} ({low:.2f} to {high:.2f})"
    if cell.get("gain") is not None:
        gain, half = cell["gain"]
        spread = "" if half is None else f" ± {half:.2f}"
        return f"{cell['mean']:.2f} ({units.points(gain)}{spread})"
    unit = {PSNR: " dB", SECONDS: " s"}.get(cell["metric"], "")
    return _number(cell["mean"], cell["sd"]) + unit


def legend(content: Content) -> str:
    """How a cell beside the paper's number is read."""
    ranges = any(cell["range"] is not None for cell in content["cells"])
    what = "mean, lowest and highest of" if ranges else "mean ± standard deviation over"
    return f"Ours ({what} the seeds) / the paper / difference in points"


def measure(content: Content) -> str:
    """What the cells are."""
    if any(cell.get("gain") is not None for cell in content["cells"]):
        return f"test accuracy in per cent; in brackets, against LOCAL: {PAIRED}"
    if any(cell["metric"] == SECONDS for cell in content["cells"]):
        return "measured time, mean ± standard deviation over the seeds"
    others = {cell["metric"] for cell in content["cells"]} & {PSNR, SSIM}
    return "test accuracy in per cent" + (", where a column names nothing else" if others else "")


def theirs(cell: Mapping[str, Any] | None) -> str:
    """The paper's number; nothing where it gives none."""
    return _number(cell["paper"], cell["paper_sd"]) if cell and cell["paper"] is not None else ""


def difference(cell: Mapping[str, Any] | None) -> str:
    """`−0.27`; nothing where there is nothing to compare."""
    known = cell is not None and cell["difference"] is not None
    return units.points(cell["difference"]) if cell and known else ""


def verdict(one: Mapping[str, Any]) -> str:
    """`holds (+1.20 ± 0.40 points, 3 seeds)`."""
    return f"{one['outcome']} ({margin(one)})"


def margin(one: Mapping[str, Any]) -> str:
    """`+1.20 ± 0.40 points, 3 seeds`; `+1.20 points, one seed`."""
    unit = "dB" if one["metric"] == PSNR else "points"
    if one["interval"] is not None:
        spread = f"{units.points(one['margin'])} ± {one['interval']:.2f}"
        return f"{spread} {unit}, {one['seeds']} seeds"
    several = one["seeds"] > 1
    seeds = f", {one['seeds_holding']} of {one['seeds']} seeds" if several else ", one seed"
    if one["apart"] is not None:
        return f"{one['apart']:.2f} {unit} apart{seeds}"
    return f"{units.points(one['margin'])} {unit}{seeds}"


def measured(content: Content) -> list[dict[str, Any]]:
    """The claims about rows that are there; a selection may have left some out."""
    return [claim for claim in content["claims"] if claim["of"]]


def count(claim: Mapping[str, Any]) -> str:
    """`holds in 4 of 6, 1 not resolved`; `…, one seed` of each; of one verdict, the verdict."""
    if claim["of"] == 1:
        return verdict(claim["verdicts"][0])
    unresolved = f", {claim['unresolved']} not resolved" if claim["unresolved"] else ""
    single = "" if any(one["seeds"] > 1 for one in claim["verdicts"]) else ", one seed"
    return f"holds in {claim['holding']} of {claim['of']}{unresolved}{single}"


def paired(claim: Mapping[str, Any]) -> bool:
    """Whether there were seeds enough for an interval."""
    return any(one["interval"] is not None for one in claim["verdicts"])


def listed(claim: Mapping[str, Any]) -> list[str]:
    """The verdicts behind the count, each with its place."""
    if claim["of"] == 1:
        return []
    return [
        f"{place_name(one['data'], one['split'], one['block'])}, {one['column']}: {verdict(one)}"
        for one in claim["verdicts"]
        if claim["of"] <= FEW or not one["holds"]
    ]


def printed(claim: Mapping[str, Any]) -> str:
    """The same in the paper's own numbers."""
    if not claim["paper_of"]:
        return ""
    counted = f"{claim['paper_holding']} of {claim['paper_of']}"
    if claim["paper_of"] > FEW:
        return counted
    found, within = claim["paper_margins"], claim["within"]
    if within is None:
        margins = ", ".join(map(units.points, found)) + " points"
    else:
        margins = ", ".join(f"{within - margin:.2f}" for margin in found) + " points apart"
    return f"{counted} ({margins})" if claim["paper_of"] > 1 else margins


def judged(claim: Mapping[str, Any]) -> dict[str, Any]:
    """A claim's verdicts as a rectangle: sections down, columns across."""
    columns = list(dict.fromkeys(one["column"] for one in claim["verdicts"]))
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for one in claim["verdicts"]:
        place = place_name(one["data"], one["split"], one["block"])
        rows.setdefault(place, {})[one["column"]] = one
    grid = [{"name": n, "cells": [row.get(c) for c in columns]} for n, row in rows.items()]
    return {"columns": columns, "rows": grid}


def seeds(content: Content) -> str:
    """`seed 0` or `seeds 0 to 2`."""
    last = len(content["seeds"]) - 1
    return f"seeds 0 to {last}" if last else "seed 0"


def _number(mean: float, deviation: float | None) -> str:
    return f"{mean:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "")


def _variant(cells: Mapping[tuple[str, str], Mapping[str, Any]], row: str) -> bool:
    same: Sequence[Mapping[str, Any]] = [cell for (name, _), cell in cells.items() if name == row]
    return any(cell["variant"] and cell["paper"] is not None for cell in same)
