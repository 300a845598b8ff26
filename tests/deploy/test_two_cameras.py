"""`colonnade party` with images: two organisations see the two halves of the same pictures."""

from __future__ import annotations

import csv
import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_three_organisations import _quick_start, finish, start  # noqa: F401

from colonnade import assembly, config, data
from colonnade.config import federation
from colonnade.config.federation import Member
from colonnade.data import own
from colonnade.errors import ConfigError, DataError
from colonnade.net import certs
from colonnade.wire.policy import Policy

ALLOWED: dict[str, Any] = {"place": {}, "maps": {}, "extractor": {}, "next": {}}
HALVES = {"left": slice(0, 14), "right": slice(14, 28)}
PLACES = {"kind": "rectangles", "rectangles": [[0, 0, 28, 14], [0, 14, 28, 14]]}
RUN: dict[str, Any] = {
    "method": "adptvfedconv",
    "epochs": 3,
    "batch_size": 50,
    "model_options": {"width": 0.1, "fc": [32]},
    "adptvfedconv": {"pretrain_epochs": 2, "finetune_epochs": 1, "chunk": 200},
    "partition": PLACES,
}


def pictures(folder: Path, name: str, first: int, last: int, ending: str = "") -> Path:
    digits = data.load("mnist-sample").train
    assert digits.y is not None
    arrays = {
        "id": np.array([f"picture-{i}" for i in range(first, last)]),
        "x": digits.x[first:last, ..., HALVES[name]].numpy(),
    }
    if name == "left":
        arrays["label"] = digits.y[first:last].numpy()
    path = folder / f"{name}{ending}.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def test_two_cameras_train_and_predict(tmp_path: Path) -> None:
    certs.init(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    members = []
    for name in HALVES:
        certs.party(tmp_path, name)
        key = certs.public_text(tmp_path / name / f"{name}.sign")
        members.append(Member(name, address if name == "left" else "", "", key))
    federation.write(
        tmp_path / "federation.toml",
        "cameras",
        members,
        RUN,
        deadline=30.0,
        policy=Policy.from_table({"allow": ALLOWED}),
    )
    ended = finish(
        {
            name: start(
                tmp_path,
                name,
                *("--data", str(pictures(tmp_path, name, 0, 900))),
                *("--out", str(tmp_path / "runs" / name)),
            )
            for name in HALVES
        }
    )
    assert {code for code, _, _ in ended.values()} == {0}, ended
    told = json.loads((tmp_path / "runs" / "left" / "result.json").read_text())
    assert told["metrics"]["test"]["accuracy"] > 0.5  # ten classes
    assert told["wire"]["by_kind"]["maps"]["messages"] > 4
    ended = finish(
        {
            name: start(
                tmp_path,
                name,
                *("--data", str(pictures(tmp_path, name, 900, 960, "-new"))),
                *("--predict", str(tmp_path / "runs" / name)),
            )
            for name in HALVES
        }
    )
    assert {code for code, _, _ in ended.values()} == {0}, ended
    with (tmp_path / "runs" / "left" / "predictions.csv").open() as lines:
        assert [row["id"] for row in csv.DictReader(lines)] == [
            f"picture-{i}" for i in range(900, 960)
        ]


def test_pictures_are_read_with_their_place(tmp_path: Path) -> None:
    settings = config.load({**RUN, "parties": {"left": {}, "right": {}}})
    own = assembly.from_file(pictures(tmp_path, "right", 0, 200), "right", settings, labelled=False)
    assert own.view is not None and own.view.part.left == 14
    assert own.count == 200 and own.splits["train"].x.dtype == torch.uint8
    assert own.splits["train"].y is None and own.task is None
    with pytest.raises(ConfigError, match=r"'left' has images of 28×14 .*gives it 28×10"):
        narrow = {"kind": "rectangles", "rectangles": [[0, 0, 28, 10], [0, 14, 28, 14]]}
        elsewhere = config.load({**RUN, "partition": narrow, "parties": {"left": {}, "right": {}}})
        assembly.from_file(pictures(tmp_path, "left", 0, 200), "left", elsewhere, labelled=True)
    without = {key: value for key, value in RUN.items() if key != "partition"}
    with pytest.raises(ConfigError, match="joins parts of images by their places"):
        nowhere = config.load({**without, "parties": {"left": {}, "right": {}}})
        assembly.from_file(pictures(tmp_path, "left", 0, 200), "left", nowhere, labelled=True)
    with pytest.raises(DataError, match="has no 'label', and this party holds the labels"):
        assembly.from_file(tmp_path / "right.npz", "right", settings, labelled=True)


def test_files_that_are_no_pictures(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    bad: dict[str, tuple[dict[str, Any], str]] = {
        "no ids": ({"x": np.zeros((2, 1, 4, 4), np.uint8)}, "has no 'id'"),
        "floats": ({"id": np.arange(2), "x": np.zeros((2, 1, 4, 4))}, "x is float64"),
        "a table": ({"id": np.arange(2), "x": np.zeros((2, 4), np.uint8)}, r"x is uint8 \(2, 4\)"),
        "lengths": ({"id": np.arange(3), "x": np.zeros((2, 1, 4, 4), np.uint8)}, "different"),
        "twice": ({"id": np.zeros(2), "x": np.zeros((2, 1, 4, 4), np.uint8)}, "comes twice"),
        "none": ({"id": np.zeros(0), "x": np.zeros((0, 1, 4, 4), np.uint8)}, "has no rows"),
    }
    for arrays, why in bad.values():
        np.savez(path, **arrays)
        with pytest.raises(DataError, match=why):
            own.read_images(path)
    np.savez(path, id=np.array([{}, {}], dtype=object), x=np.zeros((2, 1, 4, 4), np.uint8))
    refusal = r"is not an \.npz file of plain arrays"  # nothing is unpickled
    with pytest.raises(DataError, match=refusal):
        own.read_images(path)
    path.write_bytes(b"not a zip file")
    with pytest.raises(DataError, match=r"x\.npz"):
        own.read_images(path)
    with pytest.raises(DataError, match="No such file"):
        own.read_images(tmp_path / "nobody.npz")
