"""Who looks after the processes of a run: whom it blames when one of them ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import colonnade
from colonnade.deploy.supervisor import Options
from colonnade.errors import RoleFailed
from colonnade.results.observer import Sums

SAYS_SO = """
import json, sys, time
me = sys.argv[sys.argv.index("--name") + 1]
guilty = "party2"
text = "its policy keeps it inside: 'party1' has stopped: so it says" if me == guilty else "gone"
print(json.dumps({"failed": {"party": guilty, "error": "Denied"}}), flush=True)
print(text, file=sys.stderr, flush=True)
time.sleep({"party1": 1.5}.get(me, 30.0))  # the guilty one is the last to end
sys.exit(1)
"""


def test_the_party_that_failed_of_its_own_accord_is_blamed(tmp_path: Path) -> None:
    """By what its process and the others tell, not by their words."""
    script = tmp_path / "party.py"
    script.write_text(SAYS_SO)
    tree = {
        "method": "splitnn",
        "epochs": 1,
        "batch_size": 50,
        "data": {"name": "digits", "train_rows": 100, "test_rows": 50},
        "partition": {"kind": "columns", "parties": 3},
    }
    options = Options(program=(sys.executable, str(script)))
    with pytest.raises(RoleFailed, match="'party2': its policy keeps it inside") as caught:
        colonnade.run(tree, out=tmp_path / "run", runtime="process", processes=options)
    assert caught.value.party == "party2"


def test_a_message_is_in_two_ledgers_and_counts_once() -> None:
    sums = Sums()
    sums.set("bank", 100)
    sums.set("shop", 40)
    sums.set("shop", 100)
    assert sums.bytes == 100
