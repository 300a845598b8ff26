"""One self-contained HTML file: no script, no request, nothing but the results it was given.

This module decides what is shown and rounds it; `report.html.jinja` decides where; `report.css`
decides how it looks. The page holds no date: the same results give the same bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from colonnade.data import IN_MEMORY
from colonnade.errors import RunError
from colonnade.report import plots, prose, reconstruction, units
from colonnade.report.overview import (
    Overview,
    by_party,
    curve,
    differences,
    label_leak,
    overviews,
    phases,
    recipe,
    spent,
    without,
)
from colonnade.report.schema import check

if TYPE_CHECKING:
    from markupsafe import Markup

Result = Mapping[str, Any]  # a parsed result.json

TABLE_CLASSES = 20  # a larger confusion matrix is a picture, not a table
MOST_PARTIES = 16  # beyond: the largest and a sum, or the lowest, median and highest
MOST_FLOWS = 40  # beyond: summed by role
MISTAKES = 10
MOST_LOSSES = 6  # parties named in one cell
NUMBERS = {  # of phases, where their names do not say it
    "ppm embedding": "how far what was told of rows lies from their own vectors, as a share of "
    "their size; 0: the same",
    "ppm output": "the same of their outputs",
    "ppm": "the smaller of the two",
    "epsilon": "the privacy budget spent until then",
    "tuning loss before": "of the joined networks as they came, on what they are tuned on",
    "tuning loss": "the same after tuning",
}
METRICS = {"test_accuracy": "Test accuracy", "loss": "Training loss"}
MEASURES = {
    "per_party": "Test accuracy",
    "shared": "Shared",
    "alone": "Alone",
    "merged": "Merged",
    "returned": "Returned",
    "late_fusion": "Late fusion",
    "attendance": "In contact",
    "personalised": "Personalised",
}
MEANING = {  # of a column whose head does not say it
    "shared": "Shared: the network whose head is shared.",
    "alone": "Alone: from the party’s own features.",
    "merged": "Merged: with the common head, before own training.",
    "returned": "Returned: the party’s own network with what came back from the server.",
    "late_fusion": "Late fusion: the sum of all outputs, nothing tuned.",
    "attendance": "In contact: rounds in which the server answered.",
    "personalised": "Personalised: by a classifier that the party trained for itself.",
}


def write_report(results: Sequence[Result], out: Path, folders: Sequence[Path] = ()) -> Path:
    """Write the report of `results`, the run of interest first and its baselines after it.

    folders  of the same runs; without them the report has no pictures
    The file appears whole or not at all. Returns its path.
    """
    if not results:
        raise RunError("a report needs at least one run; name a folder that holds a result.json")
    for result in results:
        check(result)
    out = Path(out)
    if out.is_dir():
        raise RunError(f"'{out}' is a folder; name the file, for example '{out / 'report.html'}'")
    pictures = [reconstruction.read(folder) for folder in folders] or [{} for _ in results]
    page = _render(results, pictures).encode("utf-8", errors="replace")
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        draft.write_bytes(page)
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
    return out


def _render(results: Sequence[Result], pictures: Sequence[reconstruction.Tiles]) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name in ("size", "duration", "count", "percent", "points", "decimal", "decibels"):
        environment.filters[name] = getattr(units, name)
    environment.filters["unbroken"] = _unbroken
    template = environment.from_string(_read("report.html.jinja"))
    rows = overviews(results)
    return template.render(
        style=Markup(_read("report.css")),
        runs=[
            _run(result, row, i) | {"differs": differences(result, results[0])}
            for i, (result, row) in enumerate(zip(results, rows, strict=True))
        ],
        beside=_beside([row.name for row in rows[1:]]),
        curves=_curves(results),
        parties_table=_parties_table(results[0]),
        without=without(results[0]),
        reconstructed=reconstruction.view(results, pictures),
        colonnade=results[0]["environment"]["colonnade"],
    )


def _beside(others: list[str]) -> str:
    return prose.names(others) if len(others) < 5 else prose.counted(len(others), "other run")


def _run(result: Result, row: Overview, index: int) -> dict[str, Any]:
    """Everything the template says about one run."""
    timing, wire = result["timing"], result["wire"]
    epochs = timing["seconds_per_epoch"]
    runtime = "" if result["runtime"] == "local" else f" --runtime {result['runtime']}"
    return {
        "key": f"run{index + 1}",
        "row": row,
        "error": result["error"],
        "warnings": [warning[:1].upper() + warning[1:] for warning in result["warnings"]],
        "method": prose.about(result)["title"],
        "data": result["data"] | {"title": prose.data_name(result["data"]["name"])},
        "runtime": result["runtime"],
        "sentences": prose.sentences(result),
        "stages": _stages(result),
        "confusion": _confusion(result),
        "bars": _bars(result, f"run{index + 1}"),
        "parties": _traffic(result),
        "wire": wire,
        "phases": _phases(wire),
        "flows": _flows(result),
        "leak": label_leak(result),
        "spent": spent(result),
        "repeats": _repeats(result),
        "setup": timing["setup"],
        "span": f"{units.duration(min(epochs))} to {units.duration(max(epochs))}" if epochs else "",
        "config": _toml(result["config"]),
        "config_sha256": result["config_sha256"],
        "weights": result["weights_sha256"],
        "environment": result["environment"],
        "command": (
            'colonnade.run("config.toml", parties={…})  # in Python, with the same arrays'
            if result["data"]["name"] == IN_MEMORY
            else f"colonnade run config.toml{runtime}"
        ),
    }


def _curves(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Pairs of figures: all runs beside each other, and the first run party by party."""
    main, groups = results[0], []
    if len(results) > 1:
        groups.append(_curve_pair("runs", "", [(r["name"], r, None) for r in results]))
    predicting = [p for p in main["parties"] if curve(main, "test_accuracy", p)[0]]
    if len(predicting) > 1:
        title = f"{main['name']}, party by party" if len(results) > 1 else ""
        groups.append(_curve_pair("parties", title, [(p, main, p) for p in predicting]))
    elif len(results) == 1:
        groups.append(_curve_pair("run", "", [(main["name"], main, None)]))
    return [group for group in groups if group["figures"]]


def _curve_pair(
    key: str, title: str, lines: list[tuple[str, Result, str | None]]
) -> dict[str, Any]:
    figures = []
    for metric, caption in METRICS.items():
        percent = metric == "test_accuracy"
        # a run without this metric keeps its place, and so its colour
        series = [plots.Series(name, *_line(r, metric, party)) for name, r, party in lines]
        if any(line.x for line in series):
            ends = [
                f"{line.name} {units.percent(line.y[-1]) if percent else f'{line.y[-1]:.3g}'}"
                for line in series[: plots.MOST]
                if line.y
            ]
            if metric == "loss" and any(_trains(r) for _, r, _ in lines):
                caption += ", phase train"
            label = f"{caption} against epoch; at the end: {', '.join(ends)}"
            name = f"{key}-{metric.replace('_', '-')}"
            svg = plots.curves(series, key=name, label=units.plain(label), percent=percent)
            figures.append({"caption": caption, "svg": _markup(svg)})
    drawn = {
        i for i, (_, r, party) in enumerate(lines) if any(_line(r, m, party)[0] for m in METRICS)
    }
    labels = [(i, name) for i, (name, _, _) in enumerate(lines) if i in drawn]
    if len(lines) > plots.MOST:
        noun = "party" if key == "parties" else "run"
        labels = [(0, f"mean of {prose.counted(len(lines), noun)}"), (-1, f"each {noun}")]
    legend = [
        {"name": name, "svg": _markup(plots.line_swatch(i, key=f"{key}-line{i}"))}
        for i, name in labels
    ]
    return {"title": title, "figures": figures, "legend": legend if len(lines) > 1 else []}


def _line(result: Result, metric: str, party: str | None) -> tuple[list[int], list[float]]:
    """A curve; the losses of other phases are of other things, so they do not continue it."""
    return curve(result, metric, party, "train" if metric == "loss" and _trains(result) else None)


def _trains(result: Result) -> bool:
    """Whether one of several phases is the training proper."""
    found = phases(result)
    return len(found) > 1 and "train" in found


def _repeats(result: Result) -> bool:
    """Whether another run would end with the same weights: no fresh secrets are left in them."""
    return bool(prose.about(result)["repeats"]) and not by_party(result, "epsilon")


def _stages(result: Result) -> dict[str, Any] | None:
    """The phases of a run that has several, with every party's loss at the end of each."""
    rows = phases(result)
    if len(rows) < 2:
        return None
    return {
        "rows": [
            {"name": name} | row | {"loss": _losses(row["losses"], result["parties"])}
            for name, row in rows.items()
        ],
        "words": [
            f"{word[:1].upper()}{word[1:]}: {meaning}."
            for word, meaning in NUMBERS.items()
            if any(word.replace(" ", "_") in told for told in _told(rows))
        ],
    }


def _told(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """What each party told in each phase."""
    for row in rows.values():
        yield from row["losses"].values()


def _losses(found: Mapping[str, Mapping[str, float | None]], parties: Sequence[str]) -> str:
    """`loss 0.331 (party1)`; of several `reconstruction 0.0123 (party2), 0.0144 (party3)`."""
    named: dict[str, list[str]] = {}
    for party in [p for p in parties if found.get(p)]:
        for name, value in found[party].items():
            shown = units.MISSING if value is None else f"{value:.3g}"
            named.setdefault(name, []).append(f"{shown} ({party})")
    lines = [
        f"{name.replace('_', ' ')} "
        + ", ".join(values[:MOST_LOSSES])
        + (" …" if len(values) > MOST_LOSSES else "")
        for name, values in named.items()
    ]
    return "; ".join(lines) or units.MISSING


def _parties_table(result: Result) -> dict[str, Any] | None:
    """Party by party where several predict, with the joint network or beside it."""
    found = {m: values for m in MEASURES if (values := by_party(result, m))}
    known = [*result["parties"], *(p for values in found.values() for p in values)]
    names = [p for p in dict.fromkeys(known) if any(p in values for values in found.values())]
    if len(names) < 2:
        return None
    rows: list[dict[str, Any]]
    if len(names) > MOST_PARTIES:
        stats: dict[str, Callable[[Iterable[float]], float]]
        stats = {"lowest": min, "median": median, "highest": max}
        empty = {"role": "", "network": "", "optimizer": ""}
        rows = [
            {"name": name, "shares": [pick(values.values()) for values in found.values()]} | empty
            for name, pick in stats.items()
        ]
    else:
        rows = [
            {
                "name": p,
                "role": result["roles"].get(p, ""),
                "shares": [values.get(p) for values in found.values()],
            }
            | recipe(result, p)
            for p in names
        ]
    meaning = " ".join(MEANING[m] for m in found if m in MEANING)
    return {"measures": {m: MEASURES[m] for m in found}, "rows": rows, "meaning": meaning}


def _confusion(result: Result) -> dict[str, Any] | None:
    """A table of up to `TABLE_CLASSES` classes, a picture of more, and the usual mistakes."""
    test = result["metrics"].get("test", {})
    matrix, known = test.get("confusion"), result["data"]["classes"]
    if not matrix:
        return None
    classes = known if len(known) == len(matrix) else [str(i) for i in range(len(matrix))]
    totals = [sum(row) for row in matrix]
    largest = totals.index(max(totals))
    found = [row[i] / totals[i] for i, row in enumerate(matrix) if totals[i]]
    mistakes = sorted(
        ((n, i, j) for i, row in enumerate(matrix) for j, n in enumerate(row) if i != j and n),
        key=lambda m: (-m[0], m[1], m[2]),
    )
    view: dict[str, Any] = {
        "party": test.get("confusion_party"),
        "several": len(test.get("per_party", {})) > 1,
        "classes": [units.shorten(c, 24) for c in classes],
        "upright": max(len(c) for c in classes) > 4,
        "largest": {"name": classes[largest], "share": totals[largest] / max(sum(totals), 1)},
        "balanced": fmean(found) if found else None,
        "mistakes": [
            {
                "true": classes[i],
                "taken": classes[j],
                "count": n,
                "share": n / totals[i],
                "of": totals[i],
            }
            for n, i, j in mistakes[:MISTAKES]
        ],
        "rows": [],
        "svg": None,
    }
    if len(matrix) > TABLE_CLASSES:
        right = sum(row[i] for i, row in enumerate(matrix))
        label = f"Confusion matrix of {len(matrix)} classes, {right:,} of {sum(totals):,} correct"
        view["svg"] = _markup(plots.heat_map(matrix, classes, label=label))
    else:
        view["rows"] = [
            {
                "name": units.shorten(classes[i], 24),
                "cells": list(zip(row, plots.shade_levels(row), strict=True)),
                "recall": row[i] / totals[i] if totals[i] else None,
            }
            for i, row in enumerate(matrix)
        ]
    return view


def _bars(result: Result, key: str) -> dict[str, Any] | None:
    """Bytes sent by party and Kind; the smallest are summed where there are too many."""
    flows = result["wire"]["flows"]
    if not flows:
        return None
    sent: dict[tuple[str, str], int] = {}
    for flow in flows:
        place = (flow["sender"], flow["kind"])
        sent[place] = sent.get(place, 0) + flow["bytes"]
    by_kind = {k: sum(n for (_, kind), n in sent.items() if kind == k) for _, k in sent}
    kinds = sorted(by_kind, key=lambda k: -by_kind[k])
    parties = [p for p in result["parties"] if p in {s for s, _ in sent}]
    parties += [s for s, _ in sent if s not in result["parties"]]
    parties = list(dict.fromkeys(parties))
    sizes = {p: [sent.get((p, k), 0) for k in kinds] for p in parties}
    if len(kinds) > plots.MOST:
        kept = plots.MOST - 1
        sizes = {p: [*row[:kept], sum(row[kept:])] for p, row in sizes.items()}
        kinds = [*kinds[:kept], f"{len(kinds) - kept} other Kinds"]
    if len(parties) > MOST_PARTIES:
        ranked = sorted(parties, key=lambda p: -sum(sizes[p]))
        rest = ranked[MOST_PARTIES - 1 :]
        others = [sum(sizes[p][i] for p in rest) for i in range(len(kinds))]
        sizes = {p: sizes[p] for p in ranked[: MOST_PARTIES - 1]}
        sizes[f"{len(rest)} others"] = others
    label = "Bytes sent: " + ", ".join(f"{p} {units.size(sum(row))}" for p, row in sizes.items())
    rows, values = list(sizes), list(sizes.values())
    # two drawings, because text must not shrink with the screen; CSS shows one of them
    wide, narrow = (
        plots.stacked_bars(
            rows, kinds, values, key=f"{key}-bars{width}", label=units.plain(label), width=width
        )
        for width in (680, 340)
    )
    legend = [
        {"name": kind, "svg": _markup(plots.fill_swatch(i, key=f"{key}-fill{i}"))}
        for i, kind in enumerate(kinds)
    ]
    return {"wide": _markup(wide), "narrow": _markup(narrow), "legend": legend}


def _traffic(result: Result) -> list[dict[str, Any]]:
    by_party = result["wire"]["by_party"]
    rows = [
        {"name": party, "role": result["roles"].get(party, ""), **by_party[party]}
        for party in result["parties"]
        if party in by_party
    ]
    if len(rows) <= MOST_PARTIES:
        return rows
    rows.sort(key=lambda row: -(row["sent_bytes"] + row["received_bytes"]))
    kept, rest = rows[: MOST_PARTIES - 1], rows[MOST_PARTIES - 1 :]
    numbers = ("sent_bytes", "sent_messages", "received_bytes", "received_messages")
    others = {key: sum(row[key] for row in rest) for key in numbers}
    return [*kept, {"name": f"{len(rest)} others", "role": "", **others}]


def _phases(wire: Mapping[str, Any]) -> str:
    """`12 kB in setup, 240 MB in training and 4 MB in evaluation`."""
    words = {"setup": "setup", "train": "training", "eval": "evaluation"}
    found = [
        f"{units.size(wire['by_phase'][phase]['bytes'])} in {word}"
        for phase, word in words.items()
        if wire["by_phase"].get(phase, {}).get("messages")
    ]
    return prose.names(found)


def _flows(result: Result) -> dict[str, Any]:
    """Who saw what, Kind by Kind; summed by role where there are too many pairs."""
    flows, roles = result["wire"]["flows"], result["roles"]
    summed = len(flows) > MOST_FLOWS
    kinds: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for flow in flows:
        pair = (flow["sender"], flow["receiver"])
        place = (roles.get(pair[0], ""), roles.get(pair[1], "")) if summed else pair
        row = kinds.setdefault(flow["kind"], {}).setdefault(
            place, {"senders": set(), "receivers": set(), "messages": 0, "bytes": 0}
        )
        row["senders"].add(pair[0])
        row["receivers"].add(pair[1])
        row["messages"] += flow["messages"]
        row["bytes"] += flow["bytes"]
    view = []
    for kind, rows in kinds.items():
        lines = [
            {
                "sender": _who(row["senders"], place[0], summed),
                "receiver": _who(row["receivers"], place[1], summed),
                "messages": row["messages"],
                "bytes": row["bytes"],
            }
            for place, row in rows.items()
        ]
        declared = result["wire"]["by_kind"].get(kind, {})
        view.append({"kind": kind, "declared": declared, "rows": lines})
    return {"kinds": view, "summed": summed}


def _who(members: set[str], role: str, summed: bool) -> str:
    if len(members) == 1 or not summed:
        return next(iter(members))
    return f"{units.count(len(members))} × {role or 'party'}"


def _toml(config: Mapping[str, Any]) -> str:
    import tomli_w

    text = tomli_w.dumps(_without_none(config))
    # no string spans lines here, so a bracket at a line's end opens a list
    return re.sub(r"\[\n((?: {4}\S[^\n]*,\n)+)\]", _one_line, text)


def _one_line(found: re.Match[str]) -> str:
    """A short list as `[2, 2]`."""
    items = " ".join(line.strip() for line in found[1].splitlines()).removesuffix(",")
    return f"[{items}]" if len(items) < 72 else found[0]


def _without_none(value: Any) -> Any:
    """TOML has no null: what is not there has its default."""
    if isinstance(value, Mapping):
        return {str(k): _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value if v is not None]
    return value


def _unbroken(text: str) -> str:
    """A number and its unit stay on one line."""
    return re.sub(r"(?<=\d) (?=(%|[dkMGTP]?B|ms|s|min|h)\b|%)", "\u00a0", text)


def _markup(svg: str) -> Markup:
    from markupsafe import Markup

    return Markup(svg)


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
