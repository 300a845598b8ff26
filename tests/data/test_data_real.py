"""The sets at hand against what is published about them."""

from __future__ import annotations

import csv
import gzip
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from colonnade import data
from colonnade.data import Dataset
from colonnade.data.sources.hapt import subjects

Needs = Callable[[str], Dataset]


def counts(split: data.Split) -> list[int]:
    assert split.y is not None
    return torch.bincount(split.y).tolist()


@pytest.mark.parametrize(
    ("name", "train", "test", "columns"),
    [
        ("mnist", (60_000, 1, 28, 28), (10_000, 1, 28, 28), 0),
        ("fashion-mnist", (60_000, 1, 28, 28), (10_000, 1, 28, 28), 0),
        ("cifar10", (50_000, 3, 32, 32), (10_000, 3, 32, 32), 0),
        ("kdd99", (494_021, 41), (311_029, 41), 41),
        ("nsl-kdd", (125_973, 41), (22_544, 41), 41),
        ("hapt", (7_767, 561), (3_162, 561), 561),
        ("adult", (32_561, 14), (16_281, 14), 14),
        ("microarray-gordon", (145, 12_533), (36, 12_533), 12_533),
        ("microarray-golub", (58, 7_129), (14, 7_129), 7_129),
        ("microarray-khan", (50, 2_308), (13, 2_308), 2_308),
        ("microarray-singh", (82, 12_600), (20, 12_600), 12_600),
        ("microarray-chowdary", (84, 22_283), (20, 22_283), 22_283),
    ],
)
def test_shapes_types_and_ids(
    needs: Needs, name: str, train: tuple[int, ...], test: tuple[int, ...], columns: int
) -> None:
    dataset = needs(name)
    assert (dataset.train.x.shape, dataset.test.x.shape) == (train, test)
    assert len(dataset.columns) == columns
    assert dataset.is_image == (columns == 0)
    expected = torch.uint8 if dataset.is_image else torch.float32
    assert dataset.train.x.dtype == dataset.test.x.dtype == expected
    assert dataset.train.y is not None
    assert dataset.train.y.dtype == dataset.train.ids.dtype == torch.int64
    ids = torch.cat([dataset.train.ids, dataset.test.ids])
    assert len(ids.unique()) == len(ids)
    for split in (dataset.train, dataset.test):
        data.check_labels(split.y, dataset.classes)
    assert data.source_named(name).classes == len(dataset.classes)
    if not dataset.is_image:
        assert bool(torch.isfinite(dataset.train.x).all())


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        (
            "mnist",
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        ),
        ("fashion-mnist", [6000] * 10, [1000] * 10),
        ("cifar10", [5000] * 10, [1000] * 10),
        ("kdd99", [97_278, 396_743], [60_593, 250_436]),
        ("nsl-kdd", [67_343, 125_973 - 67_343], [9_711, 22_544 - 9_711]),
        ("adult", [32_561 - 7_841, 7_841], [16_281 - 3_846, 3_846]),
    ],
)
def test_class_counts(needs: Needs, name: str, train: list[int], test: list[int]) -> None:
    dataset = needs(name)
    assert (counts(dataset.train), counts(dataset.test)) == (train, test)


@pytest.mark.parametrize(
    ("name", "both"),
    [
        ("hapt", [1722, 1544, 1407, 1801, 1979, 1958, 70, 33, 107, 85, 139, 84]),
        ("microarray-gordon", [150, 31]),
        ("microarray-golub", [47, 25]),
        ("microarray-khan", [8, 23, 12, 20]),
        ("microarray-singh", [50, 52]),
        ("microarray-chowdary", [62, 42]),
    ],
)
def test_class_counts_of_both_parts(needs: Needs, name: str, both: list[int]) -> None:
    dataset = needs(name)
    found = zip(counts(dataset.train), counts(dataset.test), strict=True)
    assert [sum(pair) for pair in found] == both


def test_mnist_has_no_duplicates(needs: Needs) -> None:
    mnist = needs("mnist")
    images = [image.numpy().tobytes() for image in (*mnist.train.x, *mnist.test.x)]
    assert len(set(images)) == 70_000


def test_cifar10_is_the_official_binary_version(needs: Needs) -> None:
    cifar = needs("cifar10")

    def md5(split: data.Split, rows: slice) -> str:
        assert split.y is not None
        labels = split.y[rows].numpy().astype(np.uint8)[:, None]
        records = np.hstack([labels, split.x[rows].flatten(1).numpy()])
        return hashlib.md5(records.tobytes(), usedforsecurity=False).hexdigest()

    batches = [md5(cifar.train, slice(n * 10_000, (n + 1) * 10_000)) for n in range(5)]
    assert batches == [
        "5dd7e06a14cb22eb9f671a540d1b7c25",
        "5ea93a67294ea407fff1d09f752e9692",
        "942cd6a4bcdd0dd3c604fbe906cb4421",
        "ae636b3ba5c66a11e91e8cb52e771fcb",
        "53f37980c15c3d472c316c40844f3f0d",
    ]
    assert md5(cifar.test, slice(None)) == "803d5f7f4d78ea53de84dbe85f74fb6d"


def test_cifar10_channel_statistics(needs: Needs) -> None:
    fitted = data.Preparation.fit(needs("cifar10").train.x)
    assert fitted.mean.tolist() == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=1e-8)
    assert fitted.std.tolist() == pytest.approx([0.24703223, 0.24348513, 0.26158784], abs=1e-8)


def test_kdd99_columns_and_first_row(needs: Needs) -> None:
    kdd = needs("kdd99")
    assert kdd.classes == ("normal", "attack")
    symbolic = [place for place, column in enumerate(kdd.columns) if column.categories]
    assert [kdd.columns[place].name for place in symbolic] == ["protocol_type", "service", "flag"]
    assert symbolic == [1, 2, 3]
    assert all(list(c.categories) == sorted(c.categories) for c in kdd.columns)
    row = kdd.train.x[0]
    named = [kdd.columns[place].categories[int(row[place])] for place in symbolic]
    assert named == ["tcp", "http", "SF"]
    assert row[[0, 4, 5]].tolist() == [0, 181, 5450]
    assert kdd.train.y is not None
    assert kdd.train.y[0] == 0


def test_kdd99_test_only_category_is_coded_minus_one(needs: Needs) -> None:
    kdd = needs("kdd99")
    services = kdd.test.x[:, 2]
    assert services.min() == -1
    assert kdd.train.x[:, 1:4].min() == 0
    # "icmp" is the only service of the test file that the training file lacks: two rows.
    assert int((services == -1).sum()) == 2


def test_kdd99_distinct_rows(needs: Needs) -> None:
    rows = needs("kdd99").train.x.numpy()
    distinct = np.unique(np.ascontiguousarray(rows).view(f"V{rows.shape[1] * 4}"))
    # 145 586 lines differ; two of them only in the label or beyond float32's precision.
    assert len(distinct) == 145_584


def test_hapt_keeps_names_and_scale(needs: Needs) -> None:
    hapt = needs("hapt")
    names = [column.name for column in hapt.columns]
    assert names[0] == "tBodyAcc-mean()-X"
    assert sum("Acc" in name for name in names) > 200
    assert sum("Gyro" in name for name in names) > 150
    assert hapt.classes[0] == "WALKING"
    assert hapt.classes[-1] == "LIE_TO_STAND"
    assert hapt.train.x.abs().max() == 1.0


def test_hapt_has_other_people_in_its_test_part(needs: Needs) -> None:
    rows = len(needs("hapt").train)
    people = subjects()
    assert set(people) == {*range(1, 31)} and len(set(people[rows:])) == 9
    assert not set(people[:rows]) & set(people[rows:])


def test_adult_unknown_values_are_a_category(needs: Needs) -> None:
    adult = needs("adult")
    categorical = {c.name: (i, c) for i, c in enumerate(adult.columns) if c.categories}
    assert len(categorical) == 8
    unknown = torch.zeros(len(adult.train), dtype=torch.bool)
    for place, column in categorical.values():
        if "?" in column.categories:
            unknown |= adult.train.x[:, place] == column.categories.index("?")
    assert int(unknown.sum()) == 2_399
    place, column = categorical["workclass"]
    assert column.categories[int(adult.train.x[0, place])] == "State-gov"


def test_breast_cancer_equals_the_published_file(needs: Needs) -> None:
    needs("mnist")  # skips without a data folder
    path = Path(os.environ["COLONNADE_DATA"]) / "breast_cancer_wdbc.csv.gz"
    with gzip.open(path, "rt") as file:
        header, *rows = csv.reader(file)
    table = torch.from_numpy(np.array(rows, np.float32))
    dataset = data.load("breast-cancer")
    assert [column.name for column in dataset.columns] == header[:-1]
    for split in (dataset.train, dataset.test):
        assert torch.equal(split.x, table[split.ids, :-1])
        assert torch.equal(split.y, table[split.ids, -1].long())


def test_second_load_comes_from_the_decoded_copy(
    needs: Needs, session_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = needs("nsl-kdd")
    assert list((session_cache / "decoded").glob("nsl-kdd-*.safetensors"))

    def refuse(path: Path) -> list[str]:
        raise AssertionError(f"{path} was decoded again")

    monkeypatch.setattr("colonnade.data.sources.kdd.text_lines", refuse)
    second = data.load("nsl-kdd")
    assert torch.equal(first.train.x, second.train.x)
    assert torch.equal(first.test.ids, second.test.ids)
    assert (first.columns, first.classes) == (second.columns, second.classes)


def test_check_finds_every_published_checksum(needs: Needs) -> None:
    for name in ("mnist", "adult", "nsl-kdd", "hapt"):
        needs(name)
        assert {line.verdict for line in data.check(name)} == {"right"}


def test_embedded_sample_is_part_of_mnist(needs: Needs) -> None:
    mnist, sample = needs("mnist"), data.load("mnist-sample")
    assert torch.equal(sample.train.x, mnist.train.x[sample.train.ids])
    assert torch.equal(sample.train.y, mnist.train.y[sample.train.ids])
    assert torch.equal(sample.test.x, mnist.test.x[sample.test.ids - 60_000])
    assert torch.equal(sample.test.y, mnist.test.y[sample.test.ids - 60_000])


def test_embedded_sample_can_be_made_again(needs: Needs, tmp_path: Path) -> None:
    from colonnade.data.sources.sample import make, unpack

    again = tmp_path / "mnist.xz"
    again.write_bytes(make.pack(needs("mnist")))
    made, kept = unpack(again), data.load("mnist-sample")
    assert torch.equal(made.train.x, kept.train.x)
    assert torch.equal(made.test.ids, kept.test.ids)
