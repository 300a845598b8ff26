"""No row trains in a batch of its own.

The hub chooses how many rows take part, and so the size of the last batch: with a single row in it,
its embedding and its gradient speak of nobody else. Whatever the number of common rows, no training
message may be about one row.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import colonnade
from colonnade import assembly
from colonnade.config import federation
from colonnade.config.federation import Member
from colonnade.deploy.setup import Setup, prepare
from colonnade.errors import ConfigError
from colonnade.net import certs
from colonnade.wire import ledger
from colonnade.wire.policy import Policy


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


# ---- rows that are evaluated, and policies -------------------------------------------------------


def prepared(folder: Path, rows: int, test: int, limits: str = "", **run: Any) -> Setup:
    """A party of a federation of strangers, with so many rows to train and to test on."""
    keys = folder / "authority"
    certs.init(keys, "Ours")
    members = []
    for name, address in (("bank", "127.0.0.1:7443"), ("shop", "")):
        certs.party(keys, name)
        pinned = certs.public_text(keys / name / f"{name}.sign")
        members.append(Member(name, address, "", pinned))
    lines = [f"c{n},{n},{n * n}" for n in range(3000)]
    (folder / "shop.csv").write_text("\n".join(["id,a,b", *lines]))
    tree = {"method": "splitnn", "batch_size": 20, "data": {"test": 0.5}, **run}
    file = federation.write(folder / "federation.toml", "ours", members, tree)
    (folder / "policy.toml").write_text(f"[allow.embedding]\n{limits}\n")
    shared, policy = federation.load(file), Policy.load(folder / "policy.toml")
    own = assembly.from_file(folder / "shop.csv", "shop", shared.run, labelled=False)
    counts = {"train": rows, "test": test}
    splits = {name: split.rows(torch.arange(counts[name])) for name, split in own.splits.items()}
    own = replace(own, splits=splits)
    return prepare(shared, "shop", own, keys / "shop", policy)


@pytest.mark.parametrize("limits", ["", "min_batch = 2"])
def test_a_single_row_is_not_evaluated_among_strangers(limits: str, tmp_path: Path) -> None:
    """After every epoch the rows to test on are sent, and the hub says how many there are. Who has
    a single one would send its embedding alone, whether its policy says something of it or not."""
    said = "the 1 rows of 'shop' for 'test' are evaluated in batches of 1"
    with pytest.raises(ConfigError, match=said) as caught:
        prepared(tmp_path, 40, 1, limits)
    assert "evaluate_every = 0" in str(caught.value)


def test_who_evaluates_nothing_may_have_a_single_row(tmp_path: Path) -> None:
    assert prepared(tmp_path, 40, 1, evaluate_every=0).rows.splits["test"].ids.shape == (1,)


@pytest.mark.parametrize(("rows", "test"), [(41, 40), (40, 1001), (40, 1)])
def test_a_policy_counts_in_the_papers_batches_too(rows: int, test: int, tmp_path: Path) -> None:
    """These may be of one row, for whoever wants to do as the papers did; not where a policy wants
    two. It says so before the run, and not when the others have trained for an epoch."""
    with pytest.raises(ConfigError, match="its policy requires 2"):
        prepared(tmp_path, rows, test, "min_batch = 2", batching="papers")


def test_whoever_wants_the_papers_batches_has_them(tmp_path: Path) -> None:
    prepared(tmp_path, 41, 1, batching="papers")


def test_one_process_evaluates_a_single_row(tmp_path: Path) -> None:
    """All parties are one trust domain there, and nothing is sent to anybody."""
    x, y = torch.randn(41, 4), torch.arange(41) % 2
    settings = {
        "method": "splitnn",
        "epochs": 1,
        "batch_size": 20,
        "splitnn": {"dim": 4, "hidden": 4},
        "model_options": {"hidden": [4]},
    }
    parties = {"bank": (x[:40, :2].numpy(), y[:40].numpy()), "shop": x[:40, 2:].numpy()}
    test = {"bank": (x[40:, :2].numpy(), y[40:].numpy()), "shop": x[40:, 2:].numpy()}
    result = colonnade.run(settings, parties=parties, test=test, out=tmp_path / "run")
    assert result.metrics["test"]
    one = {"bank": x[:1, :2].numpy(), "shop": x[:1, 2:].numpy()}
    assert len(colonnade.load(result.path).predict(one)) == 1
