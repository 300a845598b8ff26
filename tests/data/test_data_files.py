"""Where files are looked for, checksums, damage, the decoded copies, and the list of sets."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import lzma
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from colonnade import data
from colonnade.data import File
from colonnade.data.sources import adult, catalogue, cifar, files, hapt, idx, microarray
from colonnade.errors import DataCorrupt, DataError, DataMissing


def packed_idx(array: np.ndarray, magic: bytes = b"\0\0\x08") -> bytes:
    header = magic + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


@pytest.fixture
def tiny_mnist(alone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with a tiny MNIST whose checksums the catalogue knows."""
    folder = alone / "mnist"
    folder.mkdir()
    listed = []
    for file in idx.MNIST.layouts[0].files:
        labels = np.arange(20) % 10
        array = labels if "labels" in file.path else np.zeros((20, 28, 28))
        content = packed_idx(array)
        (alone / file.path).write_bytes(content)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        listed.append(File(file.path, digest, len(content)))
    layout = dataclasses.replace(idx.MNIST.layouts[0], files=tuple(listed))
    tiny = dataclasses.replace(idx.MNIST, layouts=(layout,))
    others = tuple(s for s in catalogue.SOURCES if s.name != "mnist")
    monkeypatch.setattr(catalogue, "SOURCES", (tiny, *others))
    return alone


# --- where ----------------------------------------------------------------------------------------


def test_search_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path / "cache"))
    assert data.search_path(tmp_path / "own") == [
        tmp_path / "own",
        tmp_path / "data",
        tmp_path / "cache",
    ]
    monkeypatch.delenv("COLONNADE_DATA")
    assert data.search_path() == [tmp_path / "cache"]
    monkeypatch.delenv("COLONNADE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data.search_path() == [tmp_path / "xdg" / "colonnade"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data.cache_folder() == Path.home() / ".cache" / "colonnade"


@pytest.mark.parametrize(
    ("wrong", "right"), [("minst", "mnist"), ("CIFAR-10", "cifar10"), ("khan", "khan")]
)
def test_unknown_name_offers_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(DataError, match=rf"no data set '{wrong}'.*{right}"):
        data.load(wrong)


def test_hopeless_name_lists_all() -> None:
    listed = "no data set '@@@@@@': one of adult, .*mnist-sample, .*susy"
    with pytest.raises(DataError, match=listed):
        data.load("@@@@@@")


def test_missing_set_says_what_where_and_how(alone: Path) -> None:
    with pytest.raises(DataMissing) as caught:
        data.load("cifar10", root=alone)
    message = str(caught.value)
    for part in (
        "cifar10_train_1.xz",
        "data_batch_5.bin",
        str(alone),
        str(data.cache_folder()),
        "COLONNADE_DATA",
        "colonnade data fetch cifar10",
    ):
        assert part in message
    with pytest.raises(DataMissing, match=r"unpack the \.h5\.gz files"):
        data.load("pcam16k")


def test_half_a_set_is_missing(tiny_mnist: Path) -> None:
    (tiny_mnist / "mnist/t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataMissing, match="t10k-labels"):
        data.load("mnist", root=tiny_mnist)


def test_available(tiny_mnist: Path) -> None:
    rows = {row.name: row for row in data.available(tiny_mnist)}
    assert set(rows) == {source.name for source in catalogue.SOURCES}
    assert rows["mnist-sample"].status == rows["digits"].status == "embedded"
    assert (rows["mnist"].status, rows["mnist"].where) == ("here", str(tiny_mnist))
    assert rows["mnist"].bytes > 0
    assert rows["cifar100"].status == "can be fetched"
    assert rows["cifar100"].where.startswith("https://")
    assert rows["pcam16k"].status == "place by hand"
    assert str(data.cache_folder()) in rows["pcam16k"].where


def test_every_source_is_described() -> None:
    names = data.names()
    assert len(set(names)) == len(names) == 24
    for source in data.SOURCES:
        assert source.description
        assert source.licence
        assert source.homepage.startswith("http")
        assert source.embedded or source.downloads or source.by_hand
        listed = [file.digest for layout in source.layouts for file in layout.files]
        for digest in [*listed, *(download.digest for download in source.downloads)]:
            algorithm, _, value = digest.partition(":")
            assert len(value) == {"": 0, "md5": 32}.get(algorithm, 64)


# --- checksums ------------------------------------------------------------------------------------


def test_right_checksums_load_and_are_stamped(
    tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(data.load("mnist", root=tiny_mnist).train) == 20
    stamps = json.loads((data.cache_folder() / "verified.json").read_text())
    assert len(stamps) == 4

    def refuse(path: Path, algorithm: str) -> str:
        raise AssertionError(f"{path} was read again for its checksum")

    monkeypatch.setattr(files, "compute_digest", refuse)
    data.load("mnist", root=tiny_mnist)


def test_wrong_checksum(tiny_mnist: Path) -> None:
    data.load("mnist", root=tiny_mnist)
    path = tiny_mnist / "mnist/train-labels-idx1-ubyte.gz"
    path.write_bytes(packed_idx(np.ones(20)))
    with pytest.raises(DataCorrupt) as caught:
        data.load("mnist", root=tiny_mnist)
    message = str(caught.value)
    assert message.count("sha256:") == 2
    assert str(path) in message
    assert "colonnade data fetch mnist" in message


def test_check_reports_each_file(tiny_mnist: Path) -> None:
    assert [line.verdict for line in data.check("mnist", root=tiny_mnist)] == ["right"] * 4
    (tiny_mnist / "mnist/train-labels-idx1-ubyte.gz").write_bytes(b"other")
    lines = data.check("mnist", root=tiny_mnist)
    assert [line.verdict for line in lines] == ["right", "wrong", "right", "right"]
    assert data.check("digits") == []
    with pytest.raises(DataMissing):
        data.check("susy", root=tiny_mnist)
    (tiny_mnist / "SUSY.csv").write_text("1")
    assert [line.verdict for line in data.check("susy", root=tiny_mnist)] == ["unpublished"]


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"a": [1, 2]}', "{"])
def test_damaged_stamps_only_cost_time(tiny_mnist: Path, content: str) -> None:
    data.cache_folder().mkdir()
    (data.cache_folder() / "verified.json").write_text(content)
    assert len(data.load("mnist", root=tiny_mnist).train) == 20


def test_unwritable_cache_only_costs_time(
    tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tiny_mnist / "file"  # a file where the folder should be: nobody can write there
    blocked.write_text("")
    monkeypatch.setenv("COLONNADE_CACHE", str(blocked / "cache"))
    assert len(data.load("mnist", root=tiny_mnist).train) == 20
    (tiny_mnist / "SUSY.csv").write_text(("0" + ",1" * 18 + "\n1" + ",1" * 18 + "\n") * 5)
    assert len(data.load("susy", root=tiny_mnist, rows=10).train) == 8


# --- decoded copies -------------------------------------------------------------------------------


def test_damaged_decoded_copy_is_replaced(alone: Path) -> None:
    (alone / "SUSY.csv").write_text(("0" + ",1" * 18 + "\n1" + ",2" * 18 + "\n") * 5)
    first = data.load("susy", root=alone, rows=10)
    (kept,) = (data.cache_folder() / "decoded").iterdir()
    whole = kept.read_bytes()
    for damaged in (b"", b"nonsense", whole[:-8], whole[:50]):
        kept.write_bytes(damaged)
        again = data.load("susy", root=alone, rows=10)
        assert torch.equal(first.train.x, again.train.x)
        assert kept.read_bytes() == whole


def test_decoded_copy_depends_on_content_and_rows(alone: Path) -> None:
    path = alone / "SUSY.csv"
    path.write_text(("0" + ",1" * 18 + "\n1" + ",2" * 18 + "\n") * 5)
    assert len(data.load("susy", root=alone, rows=10).train) == 8
    assert len(data.load("susy", root=alone, rows=4).train) == 2
    path.write_text(("0" + ",3" * 18 + "\n1" + ",4" * 18 + "\n") * 5)
    assert data.load("susy", root=alone, rows=10).train.x.min() == 3
    assert not list(data.cache_folder().rglob(".part-*"))


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "magic number"),
        (b"plain text", "gzip"),
        (packed_idx(np.zeros(5))[:-6], "train"),
        (packed_idx(np.zeros(5), b"\0\0\x0d"), "magic number is 00000d01"),
        (packed_idx(np.zeros((5, 1))), "magic number is 00000802"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x09" + bytes(5), mtime=0), "announces 9 bytes, has 5"),
    ],
)
def test_broken_idx(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "train.gz"
    path.write_bytes(content)
    with pytest.raises(DataCorrupt, match=why):
        idx.read_idx(path, 1)


def test_idx_parts_must_agree(tmp_path: Path) -> None:
    read = partial(idx.read, name="mnist", classes=tuple("0123456789"))
    (tmp_path / "mnist").mkdir()
    for images, labels, why in (
        (np.zeros((5, 2, 2)), np.zeros(4), "4 labels for 5 images"),
        (np.zeros((5, 2, 2)), np.full(5, 10), "label 10"),
    ):
        for part in ("train", "t10k"):
            folder = tmp_path / "mnist"
            (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(packed_idx(images))
            (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(packed_idx(labels))
        with pytest.raises(DataCorrupt, match=why):
            read(tmp_path, data.Options())


@pytest.mark.parametrize(
    "content", [b"", b"no xz", lzma.compress(bytes(3073))[:-4], lzma.compress(bytes(3072))]
)
def test_broken_compact_cifar10(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cifar10_test.xz"
    path.write_bytes(content)
    with pytest.raises(DataCorrupt, match=r"cifar10_test\.xz"):
        cifar.compact(path)


def test_broken_archives_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "hapt_features.npz"
    for content in (b"", b"PK\x03\x04 cut", b"nonsense"):
        path.write_bytes(content)
        with pytest.raises(DataCorrupt, match="hapt_features"):
            hapt.read_compact(tmp_path, data.Options())
    with path.open("wb") as file:
        np.save(file, np.zeros(3))  # an array, not an archive of them
    with pytest.raises(DataCorrupt, match="hapt_features"):
        hapt.read_compact(tmp_path, data.Options())
    np.savez(path, features=np.zeros((2, 3), np.int16))
    with pytest.raises(DataCorrupt, match="label"):
        hapt.read_compact(tmp_path, data.Options())
    np.savez(
        path,
        features=np.zeros((2, 3), np.int16),
        label=np.ones(2),
        is_test=[True, False],
        feature_names=["a", "b"],
    )
    with pytest.raises(DataCorrupt, match="names 2 features"):
        hapt.read_compact(tmp_path, data.Options())
    genes = tmp_path / "microarray_cancer.npz"
    np.savez(genes, khan_x=np.zeros((3, 2)), khan_y=[0, 1, 2], khan_classes=["A", "B"])
    with pytest.raises(DataCorrupt, match="2 classes"):
        microarray.read(tmp_path, data.Options(), key="khan")


def test_arrays_of_objects_are_never_unpickled(tmp_path: Path) -> None:
    genes = tmp_path / "microarray_cancer.npz"
    objects = np.array([{}], dtype=object)
    np.savez(genes, khan_x=objects, khan_y=[0], khan_classes=["A"])
    with pytest.raises(DataCorrupt, match="allow_pickle=False"):
        microarray.read(tmp_path, data.Options(), key="khan")


@pytest.mark.parametrize(
    "text", ["", "age\n", "a,b\n1,2\n", ",".join((*adult.NAMES, "income", "split")) + "\n1,2\n"]
)
def test_broken_compact_adult(tmp_path: Path, text: str) -> None:
    (tmp_path / "adult.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    with pytest.raises(DataCorrupt, match=r"adult\.csv\.gz"):
        adult.read_compact(tmp_path, data.Options())


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.gz").mkdir()
    with pytest.raises(DataCorrupt, match=r"x\.gz"):
        files.contents(tmp_path / "x.gz")


def test_exported_names_exist() -> None:
    assert sorted(data.__all__) == sorted(set(data.__all__))
    assert all(hasattr(data, name) for name in data.__all__)
