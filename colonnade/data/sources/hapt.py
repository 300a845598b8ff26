"""HAPT: activities and postural transitions from a phone's accelerometer and gyroscope."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.sources.files import corrupt, find, missing, reading
from colonnade.data.sources.source import Download, File, Layout, Options, Source
from colonnade.data.sources.tables import numbers, text_lines
from colonnade.data.split import official
from colonnade.data.types import Column, Dataset

CLASSES = (
    "WALKING",
    "WALKING_UPSTAIRS",
    "WALKING_DOWNSTAIRS",
    "SITTING",
    "STANDING",
    "LAYING",
    "STAND_TO_SIT",
    "SIT_TO_STAND",
    "SIT_TO_LIE",
    "LIE_TO_SIT",
    "STAND_TO_LIE",
    "LIE_TO_STAND",
)
_COMPACT = "hapt_features.npz"


def read_compact(folder: Path, options: Options) -> Dataset:
    """All windows in one file, features as int16 in units of 1/32767."""
    path = folder / _COMPACT
    with reading(path), path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        coded, labels = file["features"], file["label"]
        is_test, names = file["is_test"].astype(bool), file["feature_names"].tolist()
    x = coded.astype(np.float32) / np.float32(32767)
    y = labels.astype(np.int64) - 1
    return _checked(path, (x[~is_test], y[~is_test]), (x[is_test], y[is_test]), names)


def read_official(folder: Path, options: Options) -> Dataset:
    """The authors' text files: numbers between blanks, labels 1..12."""
    base = folder / "hapt"
    listed = base / "features.txt"
    names = [line.split()[-1] for line in text_lines(listed)]
    train, test = (_part(base / part, part.lower()) for part in ("Train", "Test"))
    return _checked(listed, train, test, names)


def subjects(root: Path | None = None) -> NDArray[Any]:
    """The subject of each window, 1..30: of the training rows, then of the test rows."""
    located = find(HAPT, root)
    if located is None:
        raise missing(HAPT, root)
    folder = located[1]
    path = folder / _COMPACT
    if located[0].read is read_compact:
        with reading(path), path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            people, is_test = file["subject"], file["is_test"].astype(bool)
        return np.concatenate([people[~is_test], people[is_test]])
    paths = [folder / "hapt" / p / f"subject_id_{p.lower()}.txt" for p in ("Train", "Test")]
    return np.concatenate([numbers(p, text_lines(p), np.int64)[:, 0] for p in paths])


def _part(folder: Path, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
    features, labels = folder / f"X_{part}.txt", folder / f"y_{part}.txt"
    x = numbers(features, text_lines(features))
    y = numbers(labels, text_lines(labels), np.int64)[:, 0] - 1
    if len(x) != len(y):
        raise corrupt(labels, f"it has {len(y)} labels for {len(x)} windows")
    return x, y


def _checked(
    path: Path,
    train: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    names: list[str],
) -> Dataset:
    for x, y in (train, test):
        if x.ndim != 2 or x.shape[1] != len(names):
            raise corrupt(path, f"it names {len(names)} features, the windows are {x.shape}")
        if y.size and not (y.min() >= 0 and y.max() < len(CLASSES)):
            raise corrupt(path, "it has labels outside 1..12")
    columns = tuple(Column(name) for name in names)
    return official("hapt", train, test, CLASSES, columns)


HAPT = Source(
    name="hapt",
    description="activities from phone sensors, 561 columns, 7 767 + 3 162 (other subjects)",
    kind="table",
    classes=12,
    homepage="https://archive.ics.uci.edu/dataset/341",
    licence="J.-L. Reyes-Ortiz et al., Neurocomputing 171 (2016); CC BY 4.0 at the UCI repository",
    layouts=(
        Layout(
            (
                File(
                    _COMPACT,
                    "sha256:30090792d8dce8ac09878e62b8706be6dd38bda32f5b862568d10c59211b29dc",
                    11_117_130,
                ),
            ),
            read_compact,
        ),
        Layout(
            (
                File("hapt/features.txt"),
                File("hapt/Train/X_train.txt"),
                File("hapt/Train/y_train.txt"),
                File("hapt/Test/X_test.txt"),
                File("hapt/Test/y_test.txt"),
            ),
            read_official,
        ),
    ),
    downloads=(
        Download(
            "https://archive.ics.uci.edu/static/public/341/"
            "smartphone+based+recognition+of+human+activities+and+postural+transitions.zip",
            to="hapt",
            unpack=True,
        ),
    ),
    cached=True,
)
