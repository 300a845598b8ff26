"""KDD Cup 1999 and NSL-KDD: network connections, normal or attack."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.sources.source import Download, File, Layout, Options, Source
from colonnade.data.sources.tables import assemble, numbers, text_lines
from colonnade.data.split import official
from colonnade.data.types import Dataset

CATEGORICAL = frozenset({"protocol_type", "service", "flag"})
NAMES = (
    "duration",
    "protocol_type",
    "service",
    "flag",
    "src_bytes",
    "dst_bytes",
    "land",
    "wrong_fragment",
    "urgent",
    "hot",
    "num_failed_logins",
    "logged_in",
    "num_compromised",
    "root_shell",
    "su_attempted",
    "num_root",
    "num_file_creations",
    "num_shells",
    "num_access_files",
    "num_outbound_cmds",
    "is_host_login",
    "is_guest_login",
    "count",
    "srv_count",
    "serror_rate",
    "srv_serror_rate",
    "rerror_rate",
    "srv_rerror_rate",
    "same_srv_rate",
    "diff_srv_rate",
    "srv_diff_host_rate",
    "dst_host_count",
    "dst_host_srv_count",
    "dst_host_same_srv_rate",
    "dst_host_diff_srv_rate",
    "dst_host_same_src_port_rate",
    "dst_host_srv_diff_host_rate",
    "dst_host_serror_rate",
    "dst_host_srv_serror_rate",
    "dst_host_rerror_rate",
    "dst_host_srv_rerror_rate",
)
_KDD99_FIELDS = (*NAMES, "label")
_NSL_FIELDS = (*_KDD99_FIELDS, "difficulty")


def _table(path: Path, fields: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    # Most lines of KDD Cup 1999 are copies of another: parse each distinct one once.
    place: dict[str, int] = {}
    which = [place.setdefault(line, len(place)) for line in text_lines(path)]
    text = CATEGORICAL | {"label"}
    kinds = np.dtype([(name, "S32" if name in text else "f4") for name in fields])
    distinct = numbers(path, place, kinds, ",")
    return {name: distinct[name][which] for name in fields}


def read(
    folder: Path, options: Options, *, name: str, train: str, test: str, fields: tuple[str, ...]
) -> Dataset:
    """Two classes: `normal` (class 0) against every kind of attack (class 1)."""
    parts = [_table(folder / path, fields) for path in (train, test)]
    columns, *tables = assemble(NAMES, CATEGORICAL, parts[0], parts[1])
    labels = [np.char.rstrip(part["label"], b".") != b"normal" for part in parts]
    rows = [(x, y.astype(np.int64)) for x, y in zip(tables, labels, strict=True)]
    return official(name, rows[0], rows[1], ("normal", "attack"), columns)


def _layout(name: str, train: File, test: File, fields: tuple[str, ...]) -> Layout:
    reader = partial(read, name=name, train=train.path, test=test.path, fields=fields)
    return Layout((train, test), reader)


_TRAIN_SUM = "sha256:8045aca0d84e70e622d1148d7df782496f6333bf6eb979a1b0837c42a9fd9561"
_TEST_SUM = "sha256:74f0daef49b242badc09f2adbd457dea6a45b4f77177efbd11216d333651044b"
# The official test file packs the same content differently, so the digest is of the content.
_TEST_CONTENT = "gunzip-sha256:547dfb9c0f0dc1d9944219ec79e851191faebaeb8acbfa1cd171c418397052a4"
_HOST = "http://kdd.ics.uci.edu/databases/kddcup99/"

KDD99 = Source(
    name="kdd99",
    description="network connections, 41 columns, 494 021 (the 10 % file) + 311 029 (corrected)",
    kind="table",
    classes=2,
    homepage="http://kdd.ics.uci.edu/databases/kddcup99/kddcup99.html",
    licence="S. J. Stolfo et al., KDD Cup 1999; CC BY 4.0 at the UCI repository",
    layouts=(
        _layout(
            "kdd99",
            File("kddcup99_10_percent_train.csv.gz", _TRAIN_SUM, 2_144_903),
            File("kddcup99_corrected_test.csv.gz", _TEST_SUM, 1_409_035),
            _KDD99_FIELDS,
        ),
        _layout(
            "kdd99",
            File("kddcup.data_10_percent.gz", _TRAIN_SUM, 2_144_903),
            File("corrected.gz", _TEST_CONTENT),
            _KDD99_FIELDS,
        ),
    ),
    downloads=(
        Download(
            _HOST + "kddcup.data_10_percent.gz", "kddcup.data_10_percent.gz", digest=_TRAIN_SUM
        ),
        Download(_HOST + "corrected.gz", "corrected.gz", digest=_TEST_CONTENT),
    ),
    cached=True,
)

NSL_KDD = Source(
    name="nsl-kdd",
    description="KDD Cup 1999 without duplicates, 41 columns, 125 973 + 22 544",
    kind="table",
    classes=2,
    homepage="https://www.unb.ca/cic/datasets/nsl.html",
    licence="M. Tavallaee, E. Bagheri, W. Lu, A. A. Ghorbani (CISDA 2009); free with citation",
    layouts=(
        _layout(
            "nsl-kdd",
            File(
                "nsl_kdd_train.csv.gz",
                "sha256:8ca1cf5f3267ae2c3c6465250ab46db4479df56a329521d15cd1138d64a88e8f",
                2_049_322,
            ),
            File(
                "nsl_kdd_test.csv.gz",
                "sha256:dc6cc9e78468f137fdb683451366a01e1823e94f79515893202a0f54f0cf7ed5",
                374_212,
            ),
            _NSL_FIELDS,
        ),
        _layout("nsl-kdd", File("KDDTrain+.txt"), File("KDDTest+.txt"), _NSL_FIELDS),
    ),
    by_hand="ask for the archive there and place its KDDTrain+.txt and KDDTest+.txt",
    cached=True,
)
