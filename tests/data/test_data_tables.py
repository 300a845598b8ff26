"""Three tables with natural halves: what is in them, and who may own what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from colonnade import assembly, config, data
from colonnade.data import Dataset
from colonnade.errors import DataCorrupt

Needs = Callable[[str], Dataset]


def loaded(**settings: Any) -> config.Config:
    return config.load({"method": "splitnn", "batch_size": 16} | settings)


@pytest.mark.parametrize(
    ("name", "rows", "columns", "text", "task"),
    [
        ("diamonds", 53_940, 9, {"cut": 5, "color": 7, "clarity": 8}, "regression"),
        ("bikeshare", 8_645, 12, {"mnth": 12, "weathersit": 4}, "regression"),
        ("caravan", 5_822, 85, {}, "binary"),
    ],
)
def test_what_is_in_them(
    needs: Needs, name: str, rows: int, columns: int, text: dict[str, int], task: str
) -> None:
    dataset = needs(name)
    assert len(dataset.train) + len(dataset.test) == rows
    assert dataset.train.x.shape[1] == len(dataset.columns) == columns
    assert {c.name: len(c.categories) for c in dataset.columns if c.categories} == text
    assert bool(torch.isfinite(dataset.train.x).all())
    for split in (dataset.train, dataset.test):
        assert split.y is not None
        data.check_labels(split.y, dataset.classes)
    source = data.source_named(name)
    assert (source.task, source.classes) == (task, len(dataset.classes))
    (row,) = [row for row in data.available() if row.name == name]
    assert row.task == task


def test_the_labels_are_those_that_are_known(needs: Needs) -> None:
    prices, bikers, buyers = (
        torch.cat([needs(name).train.y, needs(name).test.y])  # type: ignore[list-item]
        for name in ("diamonds", "bikeshare", "caravan")
    )
    assert (float(prices.min()), float(prices.max())) == (326, 18_823)
    assert float(bikers.min()) == 1 and bikers.dtype == torch.float64
    assert buyers.dtype == torch.int64 and int(buyers.sum()) == 348


def test_a_table_that_is_another_one(tmp_path: Any) -> None:
    from colonnade.data.sources.tables import labelled

    path = tmp_path / "diamonds.csv"
    for text in ("carat,price\n1,2\n", "carat,cost,x\n1,2,3\n", "a,price,x\n1,2\n", "a,price,x\n"):
        path.write_text(text)
        with pytest.raises(DataCorrupt, match=r"diamonds\.csv is not what it should be"):
            labelled(path, "diamonds", "price", (), 2)
    path.write_text("a,price,x\n1,cheap,3\n")
    with pytest.raises(DataCorrupt):
        labelled(path, "diamonds", "price", (), 2)


GROUPS = {
    "diamonds": {"measures": ["depth", "table", "[xyz]"], "grading": ["c*"]},
    "bikeshare": {
        "weather": ["weathersit", "temp", "atemp", "hum", "windspeed"],
        "calendar": ["season", "mnth", "day", "hr", "holiday", "weekday", "workingday"],
    },
    "caravan": {"society": ["M*"], "products": ["P*", "A*"]},
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_natural_halves(needs: Needs, name: str) -> None:
    dataset = needs(name)
    partition = {"kind": "columns", "groups": GROUPS[name]}
    made = assembly.from_catalogue(
        loaded(data={"name": name, "train_rows": 500}, partition=partition)
    )
    widths = [len(p.preparation.columns) for p in made.parties.values() if p.preparation]
    assert sum(widths) == len(dataset.columns)
    assert made.parties[made.holder].task.kind == {"caravan": "binary"}.get(name, "regression")


def test_skewed_rows_of_numbers(needs: Needs) -> None:
    """A small alpha gives each party labels of few tenths."""
    needs("bikeshare")
    means = []
    for alpha in (0.05, 1000.0):
        partition = {"kind": "rows", "parties": 4, "alpha": alpha}
        made = assembly.from_catalogue(
            loaded(method="jovefl", data={"name": "bikeshare"}, partition=partition)
        )
        ys = [p.splits["train"].y for p in made.parties.values() if p.splits]
        means.append(np.std([float(y.mean()) for y in ys if y is not None]))
    assert means[0] > 5 * means[1]
