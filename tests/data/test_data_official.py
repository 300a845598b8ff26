"""Sets in their official formats, small files of which are written here."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from colonnade import data
from colonnade.data import Options
from colonnade.data.sources import kdd, susy
from colonnade.data.sources.cifar import CLASSES
from colonnade.data.sources.hapt import subjects
from colonnade.errors import DataCorrupt, DataError

RANDOM = np.random.default_rng(0)


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(rows: list[list[object]], separator: str = ",") -> str:
    return "".join(separator.join(str(value) for value in row) + "\n" for row in rows)


# --- images ---------------------------------------------------------------------------------------


def test_cifar10_binary(alone: Path) -> None:
    records = RANDOM.integers(0, 256, (60, 3073), np.uint8)
    records[:, 0] = np.arange(60) % 10
    for part, name in enumerate([f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]):
        content = records[part * 10 : part * 10 + 10].tobytes()
        write(alone / f"cifar-10-batches-bin/{name}.bin", content)
    cifar = data.load("cifar10", root=alone)
    assert cifar.train.x.shape == (50, 3, 32, 32)
    assert torch.equal(cifar.test.x.flatten(1), torch.from_numpy(records[50:, 1:].copy()))
    assert cifar.test.y.tolist() == list(range(10))
    write(alone / "cifar-10-batches-bin/data_batch_3.bin", records[:3].tobytes()[:-1])
    with pytest.raises(DataCorrupt, match=r"data_batch_3\.bin.*not whole records of 3073"):
        data.load("cifar10", root=alone)
    records[25, 0] = 10
    write(alone / "cifar-10-batches-bin/data_batch_3.bin", records[20:30].tobytes())
    with pytest.raises(DataCorrupt, match="label 10"):
        data.load("cifar10", root=alone)


def test_cifar100_uses_the_fine_label(alone: Path) -> None:
    records = RANDOM.integers(0, 256, (20, 3074), np.uint8)
    records[:, 0], records[:, 1] = 7, np.arange(20) * 5
    write(alone / "cifar-100-binary/train.bin", records.tobytes())
    write(alone / "cifar-100-binary/test.bin", records[:4].tobytes())
    cifar = data.load("cifar100", root=alone)
    assert cifar.train.y.tolist() == [5 * n for n in range(20)]
    assert torch.equal(cifar.train.x[3].flatten(), torch.from_numpy(records[3, 2:].copy()))
    assert cifar.classes[99] == "99"
    names = [f"class_{n}" for n in range(100)]
    write(alone / "cifar-100-binary/fine_label_names.txt", "\n".join(names))
    assert data.load("cifar100", root=alone).classes[99] == "class_99"
    write(alone / "cifar-100-binary/fine_label_names.txt", "apple")
    with pytest.raises(DataCorrupt, match="1 classes, not 100"):
        data.load("cifar100", root=alone)


def test_cinic10(alone: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = RANDOM.integers(0, 256, (2, 10, 2, 32, 32, 3), np.uint8)
    for p, part in enumerate(("train", "test")):
        for c, name in enumerate(CLASSES):
            folder = alone / "cinic10" / part / name
            folder.mkdir(parents=True)
            for n in range(2):
                image.fromarray(pixels[p, c, n]).save(folder / f"cifar10-{n}.png")
    image.fromarray(pixels[0, 0, 0, :, :, 0]).save(alone / "cinic10/train/airplane/grey.png")
    cinic = data.load("cinic10", root=alone)
    assert torch.bincount(cinic.train.y).tolist() == [3] + [2] * 9
    assert torch.equal(cinic.test.x[5], torch.from_numpy(pixels[1, 2, 1].transpose(2, 0, 1).copy()))
    # The decoded copy must not outlive a change below the folder.
    os.unlink(alone / "cinic10/train/airplane/grey.png")  # noqa: PTH108
    assert len(data.load("cinic10", root=alone).train) == 20
    write(alone / "cinic10/test/dog/cifar10-0.png", b"no image")
    with pytest.raises(DataCorrupt, match=r"dog.cifar10-0\.png"):
        data.load("cinic10", root=alone)
    image.fromarray(pixels[0, 0, 0, :8]).save(alone / "cinic10/test/dog/cifar10-0.png")
    with pytest.raises(DataCorrupt, match="32x8, not 32x32"):
        data.load("cinic10", root=alone)


def pcam(root: Path, part: str, rows: int) -> np.ndarray:
    h5py = pytest.importorskip("h5py")
    x = RANDOM.integers(0, 256, (rows, 96, 96, 3), np.uint8)
    with h5py.File(root / f"camelyonpatch_level_2_split_{part}_x.h5", "w") as file:
        file["x"] = x
    with h5py.File(root / f"camelyonpatch_level_2_split_{part}_y.h5", "w") as file:
        file["y"] = (np.arange(rows) % 2).astype(np.uint8).reshape(-1, 1, 1, 1)
    return x


def test_pcam16k_draws_balanced_rows(alone: Path) -> None:
    train, test = pcam(alone, "train", 40), pcam(alone, "test", 20)
    drawn = data.load("pcam16k", root=alone, rows=20)
    assert drawn.train.x.shape == (16, 3, 96, 96)
    assert drawn.train.x[0].numel() == 27_648
    assert torch.bincount(drawn.train.y).tolist() == [8, 8]
    assert torch.bincount(drawn.test.y).tolist() == [2, 2]
    for split, source, first in ((drawn.train, train, 0), (drawn.test, test, 40)):
        for image, row in zip(split.x, split.ids - first, strict=True):
            assert np.array_equal(image.numpy(), source[row].transpose(2, 0, 1))
    assert torch.equal(drawn.train.ids, data.load("pcam16k", root=alone, rows=20).train.ids)
    other = data.load("pcam16k", root=alone, rows=20, seed=1)
    assert not torch.equal(drawn.train.ids, other.train.ids)
    with pytest.raises(DataError, match="20 rows of class 'no tumour', and 6400 are"):
        data.load("pcam16k", root=alone)


def test_pcam16k_broken(alone: Path) -> None:
    pcam(alone, "train", 40)
    pcam(alone, "test", 20)
    write(alone / "camelyonpatch_level_2_split_test_x.h5", b"no HDF5")
    with pytest.raises(DataCorrupt, match=r"split_test_x\.h5"):
        data.load("pcam16k", root=alone, rows=20)


# --- tables ---------------------------------------------------------------------------------------


def connection(protocol: str, label: str, *more: object) -> list[object]:
    row: list[object] = [0] * 41
    row[1:4] = [protocol, "http", "SF"]
    return [*row, label, *more]


def test_kdd99_official_names(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = [
        connection("tcp", "normal."),
        connection("udp", "smurf."),
        connection("tcp", "normal."),
    ]
    test = [connection("icmp", "new_attack."), connection("udp", "normal.")]
    folder = alone / "kdd"
    write(folder / "train.gz", gzip.compress(lines(train).encode()))
    write(folder / "test.gz", gzip.compress(lines(test).encode()))
    fields = (*kdd.NAMES, "label")
    found = kdd.read(
        folder, Options(), name="kdd99", train="train.gz", test="test.gz", fields=fields
    )
    assert found.columns[1].categories == ("tcp", "udp")
    assert found.train.x[:, 1].tolist() == [0, 1, 0]
    assert found.test.x[:, 1].tolist() == [-1, 1]
    assert found.train.y.tolist() == [0, 1, 0]
    assert found.test.y.tolist() == [1, 0]
    # Under its official name the content counts, whatever packed it: this one is not it.
    write(alone / "kddcup.data_10_percent.gz", b"")
    write(alone / "corrected.gz", gzip.compress(b"x"))
    with pytest.raises(DataCorrupt, match=r"kddcup\.data_10_percent\.gz.*sha256:8045"):
        data.load("kdd99", root=alone)


def test_nsl_kdd_official_text(alone: Path) -> None:
    train = [connection("tcp", "normal", 20), connection("udp", "neptune", 19)]
    write(alone / "KDDTrain+.txt", lines(train))
    write(alone / "KDDTest+.txt", lines([connection("udp", "normal", 1)]))
    found = data.load("nsl-kdd", root=alone)
    assert found.train.x.shape == (2, 41)
    assert found.train.y.tolist() == [0, 1]
    for broken in ("", "1,2,3\n", lines([connection("udp", "normal", "x")]), "\n\n"):
        write(alone / "KDDTest+.txt", broken)
        with pytest.raises(DataCorrupt, match="KDDTest"):
            data.load("nsl-kdd", root=alone)


def test_adult_official_text(alone: Path) -> None:
    row = "39, Private, 77516, Bachelors, 13, Divorced, ?, Own-child, White, Male, 2174, 0, 40, "
    write(alone / "adult/adult.data", f"{row}Cuba, <=50K\n{row}Peru, >50K\n\n")
    write(alone / "adult/adult.test", f"|1x3 Cross validator\n{row}Italy, <=50K.\n")
    adult = data.load("adult", root=alone)
    assert adult.train.y.tolist() == [0, 1]
    assert adult.columns[6].categories == ("?",)
    assert adult.columns[13].categories == ("Cuba", "Peru")
    assert adult.test.x[0, 13] == -1
    assert adult.test.x[0, :3].tolist() == [39, 0, 77516]
    for broken in (f"{row}Cuba, maybe\n", "1, 2\n", "", row.replace("39", "old") + "Cuba, <=50K\n"):
        write(alone / "adult/adult.test", broken)
        with pytest.raises(DataCorrupt, match=r"adult\.test"):
            data.load("adult", root=alone)


def test_hapt_official_text(alone: Path) -> None:
    base = alone / "hapt"
    write(base / "features.txt", "1 tBodyAcc-Mean-1 \n2 tBodyGyro-Mean-1 \n")
    for part, rows in (("Train", 3), ("Test", 2)):
        write(base / part / f"X_{part.lower()}.txt", "  0.5 -1.0\n" * rows)
        write(base / part / f"y_{part.lower()}.txt", "12\n" * rows)
    hapt = data.load("hapt", root=alone)
    assert [column.name for column in hapt.columns] == ["tBodyAcc-Mean-1", "tBodyGyro-Mean-1"]
    assert hapt.train.x.tolist() == [[0.5, -1.0]] * 3
    assert hapt.test.y.tolist() == [11, 11]
    for part, people in (("Train", "1\n1\n3\n"), ("Test", "2\n2\n")):
        write(base / part / f"subject_id_{part.lower()}.txt", people)
    assert subjects(alone).tolist() == [1, 1, 3, 2, 2]
    write(base / "Test/y_test.txt", "13\n13\n")
    with pytest.raises(DataCorrupt, match=r"outside 1\.\.12"):
        data.load("hapt", root=alone)
    for empty in ("Test/y_test.txt", "Test/X_test.txt", "features.txt"):
        before = (base / empty).read_text()
        write(base / empty, "\n")
        with pytest.raises(DataCorrupt):
            data.load("hapt", root=alone)
        write(base / empty, before)
    write(base / "Test/y_test.txt", "1\n")
    with pytest.raises(DataCorrupt, match="1 labels for 2 windows"):
        data.load("hapt", root=alone)


def test_gisette(alone: Path) -> None:
    folder = alone / "gisette"  # a folder of the set's name will do as well
    write(folder / "gisette_train.data", "0 999 3 \n4 0 0 \n1 1 1 \n")
    write(folder / "gisette_train.labels", "-1\n1\n1\n")
    write(folder / "gisette_valid.data", "7 8 9 \n")
    write(folder / "gisette_valid.labels", "1\n")
    gisette = data.load("gisette", root=alone)
    assert gisette.train.x.tolist() == [[0, 999, 3], [4, 0, 0], [1, 1, 1]]
    assert (gisette.train.y.tolist(), gisette.test.y.tolist()) == ([0, 1, 1], [1])
    for name, content in (
        ("valid.labels", "2\n"),
        ("valid.labels", "1\n1\n"),
        ("valid.labels", "one\n"),
        ("valid.data", ""),
        ("valid.data", "1 2 3\n1 2\n"),
        ("valid.data", "1 2\n"),
    ):
        write(folder / "gisette_valid.data", "7 8 9 \n")
        write(folder / "gisette_valid.labels", "1\n")
        write(folder / f"gisette_{name}", content)
        with pytest.raises(DataCorrupt, match="gisette_valid"):
            data.load("gisette", root=alone)


def test_rna_seq(alone: Path) -> None:
    folder = alone / "TCGA-PANCAN-HiSeq-801x20531"
    tumours = ["PRAD", "LUAD", "PRAD", "LUAD", "BRCA", "BRCA"]
    values = "".join(f"sample_{n},{n}.5,0\n" for n in range(6))
    labels = "".join(f"sample_{n},{tumour}\n" for n, tumour in enumerate(tumours))
    write(folder / "data.csv", ",gene_0,gene_1\n" + values)
    write(folder / "labels.csv", ",Class\n" + labels)
    rna = data.load("rna-seq", root=alone)
    assert rna.classes == ("BRCA", "LUAD", "PRAD")
    assert [column.name for column in rna.columns] == ["gene_0", "gene_1"]
    assert sorted(rna.train.y.tolist()) == sorted(rna.test.y.tolist()) == [0, 1, 2]
    for split in (rna.train, rna.test):
        assert torch.equal(split.x[:, 0], split.ids + 0.5)
        assert [rna.classes[y] for y in split.y] == [tumours[row] for row in split.ids]
    write(folder / "labels.csv", ",Class\n" + labels.replace("sample_3", "sample_9"))
    with pytest.raises(DataCorrupt, match="sample_3"):
        data.load("rna-seq", root=alone)
    write(folder / "labels.csv", ",Class\n" + labels + "sample_6,KIRC\n")
    write(folder / "data.csv", ",gene_0,gene_1\n" + values + "sample_6,1,1\n")
    with pytest.raises(DataError, match="class 'KIRC' of 'rna-seq' has too few rows"):
        data.load("rna-seq", root=alone)
    for broken in ("", ",gene_0\n", ",gene_0,gene_1\nsample_0,1\n", ",gene_0\nsample_0\n"):
        write(folder / "data.csv", broken)
        with pytest.raises(DataCorrupt, match=r"data\.csv"):
            data.load("rna-seq", root=alone)


def collisions(rows: int) -> str:
    return lines([[f"{n % 2:e}", *(n + c / 100 for c in range(18))] for n in range(rows)])


@pytest.mark.parametrize("packed", [True, False])
def test_susy_first_rows(alone: Path, packed: bool) -> None:
    text = collisions(1000).encode()
    write(alone / "SUSY.csv.gz", gzip.compress(text)) if packed else write(alone / "SUSY.csv", text)
    found = data.load("susy", root=alone, rows=100)
    assert (len(found.train), len(found.test)) == (80, 20)
    assert found.train.x.shape[1] == len(found.columns) == 18
    assert torch.equal(found.train.x[:, 0], found.train.ids.float())
    assert torch.equal(found.train.y, found.train.ids % 2)


def test_susy_official_division(alone: Path) -> None:
    path = write(alone / "SUSY.csv", collisions(50))
    found = susy.read(alone, Options(), file="SUSY.csv", official_test=10)
    assert (len(found.train), found.test.ids.tolist()) == (40, list(range(40, 50)))
    with pytest.raises(DataError, match="has 50 rows, but the official test part alone has 500000"):
        data.load("susy", root=alone)
    chunks = list(susy.stream(path, rows=25, chunk=10))
    assert [len(x) for x, _ in chunks] == [10, 10, 5]


def test_susy_stream_does_not_read_on(alone: Path) -> None:
    path = write(alone / "SUSY.csv", collisions(20) + "broken\n")
    assert sum(len(x) for x, _ in susy.stream(path, rows=20)) == 20
    with pytest.raises(DataCorrupt, match=r"SUSY\.csv"):
        list(susy.stream(path))


@pytest.mark.parametrize("broken", ["", "1,2,3\n", "5" + ",0" * 18 + "\n"])
def test_susy_broken(alone: Path, broken: str) -> None:
    write(alone / "SUSY.csv", broken)
    with pytest.raises(DataCorrupt, match=r"SUSY\.csv"):
        data.load("susy", root=alone, rows=10)


@pytest.mark.parametrize("rows", [0, 1, -5])
def test_too_few_rows_asked_for(alone: Path, rows: int) -> None:
    with pytest.raises(DataError, match="leaves nothing to divide"):
        data.load("susy", root=alone, rows=rows)
