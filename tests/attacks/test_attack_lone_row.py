"""No row trains in a batch of its own.

The hub chooses how many rows take part, and so the size of the last batch: with a single row in it,
its embedding and its gradient speak of nobody else. Whatever the number of common rows, no training
message may be about one row.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import colonnade
from colonnade.wire import ledger


@pytest.mark.parametrize("rows", [41, 61, 121])  # a rest of one row, with full batches of 20
def test_no_message_is_about_a_single_row(rows: int, tmp_path: Path) -> None:
    """A label holder that picks the number of rows must not get one row's embedding alone."""
    settings = {
        "method": "splitnn",
        "epochs": 1,
        "batch_size": 20,
        "data": {"name": "digits", "train_rows": rows, "test_rows": 100},
        "partition": {"kind": "columns", "parties": 2},
        "splitnn": {"dim": 4, "hidden": 4},
        "model_options": {"hidden": [4]},
    }
    colonnade.run(settings, out=tmp_path / "run")
    sent = [
        row for row in ledger.read(tmp_path / "run" / "ledger.jsonl") if row["phase"] == "train"
    ]
    assert sent and min(row["shape"][0] for row in sent) > 1
