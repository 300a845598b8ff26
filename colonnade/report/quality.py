"""How good one run predicts: its measures, its curves, and what its threshold does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colonnade.report import measured, plots_quality, units
from colonnade.report.overview import deciding, number
from colonnade.report.plots import Series
from colonnade.task.measures import RATE

Result = Mapping[str, Any]
Curve = Mapping[str, list[float]]

CHOSEN = {
    "fixed": "It was given.",
    "rate": "It was chosen so that {rate} of the validation rows are flagged.",
    "cost": "It was chosen so that mistakes on the validation rows cost least.",
}
CALIBRATED = {"platt": "Platt’s method", "isotonic": "isotonic regression"}


def view(result: Result, key: str) -> dict[str, Any] | None:
    """What the page shows of the measures; None where a run has none."""
    test = result["metrics"].get("test", {})
    if not (told := test.get("measures")):
        return None
    whose = next(iter(test.get("curves", {})), next(iter(told)))
    return {
        "party": whose,
        "several": len(told) > 1,
        "validation": "validation" in result["metrics"],
        "rows": _rows(result, whose),
        "decision": _decision(result),
        "figures": _figures(result, test.get("curves", {}).get(whose, {}), key),
    }


def _rows(result: Result, whose: str) -> list[dict[str, Any]]:
    """Every measure: the one that decides first."""
    test, decides = result["metrics"]["test"], deciding(result)
    held = result["metrics"].get("validation", {}).get("measures", {}).get(whose, {})
    classes = len(result["data"]["classes"])
    names = sorted(test["measures"][whose], key=lambda name: name != decides)
    rows = []
    for name in names:
        one = test["measures"][whose][name]
        meaning = measured.meaning(name, classes)
        if name == "recall_at_rate":
            meaning += f", the top {units.percent(_rate(result), 0)}"
        rows.append(
            {
                "title": measured.title(name),
                "meaning": meaning,
                "decides": name == decides,
                "value": measured.value(name, number(one["value"])),
                "interval": measured.interval(name, number(one["low"]), number(one["high"])),
                "held": measured.value(name, number(held.get(name, {}).get("value"))),
                "lower": measured.lower_is_better(name),
            }
        )
    return rows


def _rate(result: Result) -> float:
    rate = result["config"].get("decision", {}).get("rate")
    return float(rate) if rate else RATE


def _decision(result: Result) -> dict[str, Any] | None:
    """The threshold in words, and what it does on the rows of each split."""
    told, classes = result.get("decision"), result["data"]["classes"]
    if told is None:
        return None
    words = []
    if told["threshold"] is not None and told["positive"] < len(classes):
        words.append(
            f"A row is flagged as {units.plain(classes[told['positive']])} from a probability of "
            f"{told['threshold']:.3g} on."
        )
        rate = units.percent(_rate(result), 0)
        words.append(CHOSEN.get(told["chosen_by"], "").format(rate=rate))
    way = told["calibration"]["way"]
    if way in CALIBRATED:
        words.append(f"Probabilities were calibrated by {CALIBRATED[way]}, on validation rows.")
    rows = [
        {"split": split, **effect}
        for split in ("validation", "test")
        if told["threshold"] is not None
        and (effect := _effect(result["metrics"].get(split, {}), told["positive"]))
    ]
    return {"words": " ".join(word for word in words if word), "rows": rows}


def _effect(found: Mapping[str, Any], positive: int) -> dict[str, Any]:
    """How many rows a threshold flags, and how many of them rightly."""
    matrix = found.get("confusion")
    if not matrix or positive >= len(matrix):
        return {}
    rows = sum(sum(row) for row in matrix)
    flagged, hits = sum(row[positive] for row in matrix), matrix[positive][positive]
    positives = sum(matrix[positive])
    return {
        "rows": rows,
        "flagged": flagged,
        "share": flagged / rows if rows else None,
        "precision": hits / flagged if flagged else None,
        "recall": hits / positives if positives else None,
    }


def _figures(result: Result, curves: Mapping[str, Curve], key: str) -> list[dict[str, Any]]:
    from markupsafe import Markup

    drawn = {
        "roc": _roc,
        "precision_recall": _precision_recall,
        "calibration": _calibration,
        "residuals": _residuals,
        "residual_histogram": _histogram,
    }
    figures = []
    for name, draw in drawn.items():
        if name in curves and all(curves[name].values()):
            caption, svg = draw(result, curves[name], f"{key}-{name.replace('_', '-')}")
            figures.append({"caption": caption, "svg": Markup(svg)})
    return figures


def _threshold(result: Result) -> dict[str, float | None]:
    """Where the decision stands among those that other thresholds would make."""
    told, test = result.get("decision") or {}, result["metrics"]["test"]
    matrix = test.get("confusion")
    if told.get("threshold") is None or not matrix or len(matrix) != 2:
        return {}
    effect, positive = _effect(test, told["positive"]), told["positive"]
    others = sum(matrix[1 - positive])
    wrong = matrix[1 - positive][positive] / others if others else None
    return {"recall": effect["recall"], "precision": effect["precision"], "wrong": wrong}


def _point(x: float | None, y: float | None) -> tuple[float, float] | None:
    return None if x is None or y is None else (x, y)


def _roc(result: Result, curve: Curve, key: str) -> tuple[str, str]:
    at = _threshold(result)
    svg = plots_quality.shares(
        Series("ROC", curve["false_positive_rate"], curve["recall"]),
        key=key,
        label="ROC curve: the share of positives found over the share of others flagged",
        axes=("others flagged", "positives found"),
        chance=(0.0, 1.0),
        at=_point(at.get("wrong"), at.get("recall")),
    )
    return "ROC curve" + (", and the threshold" if at else ""), svg


def _precision_recall(result: Result, curve: Curve, key: str) -> tuple[str, str]:
    at = _threshold(result)
    svg = plots_quality.shares(
        Series("precision", curve["recall"], curve["precision"]),
        key=key,
        label="Precision over recall",
        axes=("recall", "precision"),
        chance=(curve["precision"][-1], curve["precision"][-1]),
        at=_point(at.get("recall"), at.get("precision")),
    )
    return "Precision over recall" + (", and the threshold" if at else ""), svg


def _calibration(result: Result, curve: Curve, key: str) -> tuple[str, str]:
    svg = plots_quality.shares(
        Series("calibration", curve["predicted"], curve["observed"]),
        key=key,
        label="Calibration: how often it came true over the predicted probability",
        axes=("predicted", "came true"),
        chance=(0.0, 1.0),
        points=True,
        close=True,
    )
    return "Calibration: on the dotted line, what is predicted comes true as often", svg


def _residuals(result: Result, curve: Curve, key: str) -> tuple[str, str]:
    pairs = zip(curve["predicted"], curve["residual"], strict=True)
    svg = plots_quality.agreement(
        curve["predicted"],
        [predicted + residual for predicted, residual in pairs],
        curve["spread"],
        key=key,
        label="The mean true number over the predicted one",
    )
    return "True over predicted: means of groups of rows, and their spread", svg


def _histogram(result: Result, curve: Curve, key: str) -> tuple[str, str]:
    svg = plots_quality.histogram(
        curve["edges"], curve["share"], key=key, label="How residuals are distributed"
    )
    return "Residuals: how far the truth is from the prediction", svg
