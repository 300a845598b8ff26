"""Gene expression cancer RNA-Seq (TCGA PANCAN): 801 patients, 20 531 genes, five tumours."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from colonnade.data.sources.files import corrupt, reading
from colonnade.data.sources.source import Download, File, Layout, Options, Source
from colonnade.data.sources.tables import numbers, text_lines
from colonnade.data.split import undivided
from colonnade.data.types import Column, Dataset

_FOLDER = "TCGA-PANCAN-HiSeq-801x20531"


def read(folder: Path, options: Options) -> Dataset:
    """`data.csv` and `labels.csv` name the same samples in the same order; both have a header."""
    path, labelled = folder / _FOLDER / "data.csv", folder / _FOLDER / "labels.csv"
    header, *lines = text_lines(path) or [""]
    genes = header.split(",")[1:]
    pairs = [line.split(",", 1) for line in lines]
    if not genes or not pairs or any(len(pair) != 2 for pair in pairs):
        raise corrupt(path, "it has no genes, no samples, or samples without values")
    x = numbers(path, [values for _, values in pairs], delimiter=",")
    if x.shape[1] != len(genes):
        raise corrupt(path, f"its header names {len(genes)} genes, its rows have {x.shape[1]}")
    with reading(labelled):
        tumours = dict(line.split(",") for line in text_lines(labelled)[1:])
        classes, y = np.unique([tumours[sample] for sample, _ in pairs], return_inverse=True)
    columns = tuple(Column(gene) for gene in genes)
    return undivided("rna-seq", x, y, tuple(classes.tolist()), columns)


RNA_SEQ = Source(
    name="rna-seq",
    description="five tumours by gene expression, 20 531 genes, 801 rows",
    kind="table",
    classes=5,
    homepage="https://archive.ics.uci.edu/dataset/401",
    licence="S. Fiorini (2016), from TCGA PANCAN; CC BY 4.0",
    layouts=(Layout((File(f"{_FOLDER}/data.csv"), File(f"{_FOLDER}/labels.csv")), read),),
    downloads=(
        Download(
            f"https://archive.ics.uci.edu/ml/machine-learning-databases/00401/{_FOLDER}.tar.gz",
            to="",
            unpack=True,
        ),
    ),
    cached=True,
)
