"""The journal as one run sees it: secrets, names of its own rows, a simulation's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from colonnade.errors import ConfigError
from colonnade.journal import Journal, RunJournal
from colonnade.wire.policy import Policy


def test_secrets_are_the_partys_own_and_of_one_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    mine = RunJournal(lambda: journal, "3f").secret("noise")
    assert RunJournal(lambda: Journal(journal.folder), "3f").secret("noise") == mine
    other = Journal(tmp_path / "other")
    others = [
        RunJournal(lambda: journal, "40").secret("noise"),
        RunJournal(lambda: journal, "3f").secret("groups"),
        RunJournal(lambda: other, "3f").secret("noise"),
    ]
    assert len({mine, *others}) == 4


def test_a_simulation_repeats_its_secrets_and_counts_for_nobody(tmp_path: Path) -> None:
    one = RunJournal.in_folder(tmp_path / "one", "shop", 3)
    again = RunJournal.in_folder(tmp_path / "two", "shop", 3)
    assert one.secret("noise") == again.secret("noise")
    assert one.secret("noise") != RunJournal.in_folder(tmp_path, "bank", 3).secret("noise")
    assert one.secret("noise") != RunJournal.in_folder(tmp_path, "shop", 4).secret("noise")
    assert not list(tmp_path.iterdir())  # nothing had to be remembered
    assert one.journal.simulated and (tmp_path / "one" / "journal" / "shop").exists()


def test_rows_are_named_by_their_ids_wherever_they_lie(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    x = torch.zeros(2, 3)
    first = RunJournal(lambda: journal, "1", ["ann", "bob", "eve"])
    later = RunJournal(lambda: journal, "2", ["eve", "ann"])
    named = first.names(torch.tensor([2, 0]), x)
    assert named.tolist() == later.names(torch.tensor([0, 1]), x).tolist()
    bare = RunJournal(lambda: journal, "3")
    assert len(set(bare.names(torch.tensor([0, 1]), torch.eye(3)[:2]).tolist())) == 2


def test_a_policy_says_where_the_journal_lies(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('journal = "kept"\n[allow.embedding]\n')
    policy = Policy.load(file)
    assert policy.journal == tmp_path / "kept" and "embedding" in policy.allow
    file.write_text("journal = 3\n")
    with pytest.raises(ConfigError, match="path of a folder"):
        Policy.load(file)
    with pytest.raises(ConfigError, match="journal"):  # of a federation: shared by all members
        Policy.from_table({"journal": "kept"}, "policy.")
