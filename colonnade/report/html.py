"""One self-contained HTML file: no script, no request, nothing but the results it was given.

This module decides what is shown and rounds it, `report.html.jinja` decides where, and `report.css`
decides how it looks. The page holds no date, so the same results give the same bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

from colonnade.data import IN_MEMORY
from colonnade.errors import RunError
from colonnade.report import (
    confusion,
    measured,
    plots,
    prose,
    protected,
    protections,
    quality,
    reconstruction,
    traffic,
    units,
)
from colonnade.report.overview import (
    Overview,
    by_party,
    curve,
    deciding,
    differences,
    label_leak,
    overviews,
    phases,
    recipe,
    spent,
    without,
)
from colonnade.report.schema import check
from colonnade.report.tables import different_data

Result = Mapping[str, Any]  # a parsed result.json

MOST_PARTIES = 16  # of more: the lowest, the median and the highest
MOST_LOSSES = 6  # parties named in one cell
LOSSES = {"loss": "training", "validation_loss": "validation", "test_loss": "test"}


def write_report(results: Sequence[Result], out: Path, folders: Sequence[Path] = ()) -> Path:
    """Write the report of `results`, the run of interest first and its baselines after it.

    folders  the folders of the same runs; without them the report has no reconstructed images
    The file appears complete or not at all. Returns its path.
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
    for name in ("value", "change", "column"):
        environment.filters[f"measure_{name}"] = getattr(measured, name)
    environment.filters["called"] = prose.called
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
        metric=deciding(results[0]),
        lower=measured.lower_is_better(deciding(results[0])),
        shares=any(row.accuracy is not None for row in rows),
        without=without(results[0]),
        different=different_data(results),
        reconstructed=reconstruction.view(results, pictures),
        colonnade=results[0]["environment"]["colonnade"],
    )


def _beside(others: list[str]) -> str:
    return units.names(others) if len(others) < 5 else prose.counted(len(others), "other run")


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
        "sentences": prose.story(result),
        "guarantees": prose.guarantees(result),
        "stages": _stages(result),
        "quality": quality.view(result, f"run{index + 1}"),
        "stopping": result.get("stopping"),
        "confusion": confusion.view(result, f"run{index + 1}"),
        "bars": traffic.bars(result, f"run{index + 1}"),
        "parties": traffic.parties(result),
        "wire": wire,
        "phases": traffic.phases(wire),
        "flows": traffic.flows(result),
        "leak": label_leak(result),
        "answered": protected.labels(result),
        "protected": protections.sentences(result),
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
    """Pairs of figures: all runs beside each other, and the first run by party and by split."""
    main, groups = results[0], []
    metric = _logged(results)
    if len(results) > 1:
        groups.append(_curve_pair("runs", "", [(r["name"], r, None) for r in results], metric))
    predicting = [p for p in main["parties"] if curve(main, f"test_{metric}", p)[0]]
    if len(predicting) > 1:
        title = f"{main['name']}, party by party" if len(results) > 1 else ""
        groups.append(_curve_pair("parties", title, [(p, main, p) for p in predicting], metric))
    held = bool(curve(main, "validation_loss")[0])
    if held or not groups:
        title = f"{main['name']}, training and held-out rows" if groups else ""
        groups.append(_by_split(main, title, metric))
    return [group for group in groups if group["figures"]]


def _logged(results: Sequence[Result]) -> str:
    """The measure whose course is shown: the one that decides, if it was logged."""
    metric = deciding(results[0])
    return metric if any(curve(r, f"test_{metric}")[0] for r in results) else "accuracy"


def _by_split(main: Result, title: str, metric: str) -> dict[str, Any]:
    """The first run: its losses, and the measure that decides, on the rows of every split."""
    losses = {called: _line(main, name, None) for name, called in LOSSES.items()}
    worth = {
        name: _line(main, f"{name}_{metric}", None) for name in ("training", "validation", "test")
    }
    names = [name for name in losses if losses[name][0] or worth[name][0]]
    mark = (main.get("stopping") or {}).get("best_epoch")
    figures = []
    called = measured.title(metric)
    for kind, lines in ((metric, worth), ("loss", losses)):
        series = [plots.Series(name, *lines[name]) for name in names]
        drawn = [line.name for line in series if line.x]
        if drawn:
            caption = called if kind == metric else "Loss"
            if len(drawn) == 1:
                caption = f"{drawn[0].capitalize()} {prose.called(kind)}"
            if kind == "loss" and _trains(main):
                caption += ", phase train"
            figures.append(_figure(f"run-{kind}", caption, kind, series, mark))
    return {"title": title, "figures": figures, "legend": _legend("run", names), "mark": mark}


def _figure(
    key: str, caption: str, kind: str, series: list[plots.Series], mark: int | None = None
) -> dict[str, Any]:
    """One plot against epochs, and what a screen reader says of it."""
    from markupsafe import Markup

    ends = [
        f"{line.name} {f'{line.y[-1]:.3g}' if kind == 'loss' else measured.value(kind, line.y[-1])}"
        for line in series[: plots.MOST]
        if line.y
    ]
    label = f"{caption} against epoch; at the end: {', '.join(ends)}"
    svg = plots.curves(
        series,
        key=key.replace("_", "-"),
        label=units.plain(label),
        percent=kind in measured.SHARES,
        mark=mark,
    )
    return {"caption": caption, "svg": Markup(svg)}


def _legend(key: str, names: list[str]) -> list[dict[str, Any]]:
    from markupsafe import Markup

    labels = list(enumerate(names))
    if len(names) > plots.MOST:
        noun = "party" if key == "parties" else "run"
        labels = [(0, f"mean of {prose.counted(len(names), noun)}"), (-1, f"each {noun}")]
    return [
        {"name": name, "svg": Markup(plots.line_swatch(i, key=f"{key}-line{i}"))}
        for i, name in labels
        if name and len(names) > 1
    ]


def _curve_pair(
    key: str, title: str, lines: list[tuple[str, Result, str | None]], metric: str
) -> dict[str, Any]:
    """The measure that decides and the training loss, of several runs or parties."""
    figures, captions = [], {metric: f"Test {prose.called(metric)}", "loss": "Training loss"}
    drawn: set[str] = set()
    for kind, caption in captions.items():
        logged = "loss" if kind == "loss" else f"test_{metric}"
        # a run without this metric keeps its place, and with it its colour
        series = [plots.Series(name, *_line(r, logged, party)) for name, r, party in lines]
        drawn |= {line.name for line in series if line.x}
        if any(line.x for line in series):
            if kind == "loss" and any(_trains(r) for _, r, _ in lines):
                caption += ", phase train"
            figures.append(_figure(f"{key}-{logged}", caption, kind, series))
    names = [name if name in drawn else "" for name, _, _ in lines]
    return {"title": title, "figures": figures, "legend": _legend(key, names), "mark": None}


def _line(result: Result, metric: str, party: str | None) -> tuple[list[int], list[float]]:
    """A curve; the losses of other phases measure something else, so they do not continue it."""
    return curve(result, metric, party, "train" if metric == "loss" and _trains(result) else None)


def _trains(result: Result) -> bool:
    """Whether the run has several phases, one of them named train."""
    found = phases(result)
    return len(found) > 1 and "train" in found


def _repeats(result: Result) -> bool:
    """Whether another run would end with the same weights: no fresh secret influences them."""
    if not prose.about(result)["repeats"]:
        return False
    protect = result["config"].get("protect", {})
    if protect.get("simulate_noise_seed") is not None:
        return True
    own = result["config"].get(result["method"], {})
    noisy = [own.get("noise"), *(value for key, value in protect.items() if "epsilon" in key)]
    return not any(noisy) and not by_party(result, "epsilon")


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
            f"{_heading(name)}: {meaning}."
            for name, meaning in prose.about(result)["numbers"].items()
            if any(name in told for told in _told(rows))
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
    """Party by party, where several parties predict with the joint network or with their own."""
    measures = prose.about(result)["measures"]
    found = {m: v for m in ("per_party", *measures) if (v := by_party(result, m))}
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
    headings = {m: "Test accuracy" if m == "per_party" else _heading(m) for m in found}
    meaning = " ".join(f"{headings[m]}: {measures[m]}." for m in found if m in measures)
    return {"measures": headings, "rows": rows, "meaning": meaning}


def _heading(name: str) -> str:
    """`late_fusion` as `Late fusion`."""
    return name[:1].upper() + name[1:].replace("_", " ")


def _toml(config: Mapping[str, Any]) -> str:
    import tomli_w

    text = tomli_w.dumps(_without_none(config))
    # no string here spans several lines, so a bracket at the end of a line opens a list
    return re.sub(r"\[\n((?: {4}\S[^\n]*,\n)+)\]", _one_line, text)


def _one_line(found: re.Match[str]) -> str:
    """A short list as `[2, 2]`."""
    items = " ".join(line.strip() for line in found[1].splitlines()).removesuffix(",")
    return f"[{items}]" if len(items) < 72 else found[0]


def _without_none(value: Any) -> Any:
    """TOML has no null: an omitted key has its default."""
    if isinstance(value, Mapping):
        return {str(k): _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value if v is not None]
    return value


def _unbroken(text: str) -> str:
    """A number and its unit, or its letter, stay on one line."""
    text = re.sub(r"(?<=[εδ]) = (?=\d)", "\u00a0=\u00a0", text)
    return re.sub(r"(?<=\d) (?=(%|[dkMGTP]?B|ms|s|min|h)\b|%)", "\u00a0", text)


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
