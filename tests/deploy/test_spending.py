"""The doctor says before a run what it will spend of each record, and what the policy forbids."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_doctor import Two, two

from colonnade.align.ids import one_spelling
from colonnade.config import federation
from colonnade.deploy.doctor import Check, examine_run
from colonnade.journal import Journal, RunJournal, Spending
from colonnade.privacy import accountant
from colonnade.privacy.settings import TAILS

assert two  # the fixture

RUN = {"method": "splitnn", "epochs": 4, "splitnn": {"dim": 4}}
PROTECT = {"embedding_epsilon": 8.0, "label_epsilon": 2.0}
PLANNED = Spending("gaussian", accountant.noise_for(8.0, 1e-5 - TAILS, 4))


def policy(two: Two, name: str, kind: str, **limits: float) -> None:
    lines = [f'journal = "{two.folder / "kept"}"', "[privacy]"] if limits else []
    lines += [f"{key} = {value}" for key, value in limits.items()]
    (two.folder / f"{name}.toml").write_text("\n".join([*lines, f"[allow.{kind}]"]))


def spends(found: dict[str, list[Check]]) -> str:
    (check,) = found["will spend"]
    assert check.verdict == "note"
    return check.found


def names(two: Two, name: str, journal: Journal) -> Any:
    rows = two.mine(name).rows(federation.load(two.file))  # type: ignore[misc]
    return journal.names(one_spelling(rows.names))


def test_nothing_is_spent_without_a_protection(two: Two) -> None:
    two.write(run=RUN)
    assert "will spend" not in two.check("shop") | two.check("bank")


def test_vectors_of_this_run_and_of_earlier_ones(two: Two) -> None:
    two.write(run={**RUN, "protect": PROTECT})
    policy(two, "shop", "embedding", features=20.0)
    said = spends(two.check("shop"))
    assert said.startswith("features: ε = 8 at δ = 1e-05 of each record, in 4 vectors with noise")
    assert said.endswith("of 20 that the policy allows") and "earlier" not in said
    assert not (two.folder / "kept").exists()  # looking leaves nothing behind
    with closing(Journal(two.folder / "kept")) as journal:
        run = RunJournal(lambda: journal, "3f").spendings(names(two, "shop", journal)[:5])
        run.book("all", PLANNED, "embedding", "training", times=4)
    found = two.check("shop")
    both = accountant.epsilon([(PLANNED, 8)], 1e-5 - TAILS)
    assert f"have spent 8 on one of them: {both:.4g} with this run" in spends(found)
    assert found["policy"][0].verdict == "ok"


def test_a_run_beyond_the_limit_is_a_problem(two: Two) -> None:
    two.write(run={**RUN, "protect": PROTECT})
    policy(two, "shop", "embedding", features=8.0)
    assert two.only("shop", "policy").verdict == "ok"  # planned for it
    policy(two, "shop", "embedding", features=7.0)
    check = two.only("shop", "policy")
    assert check.verdict == "problem" and "no run has spent anything" in check.found
    assert "ε = 7 at δ = 1e-05 on a record's features" in check.found
    assert "smaller embedding_epsilon" in check.move and "colonnade privacy" in check.move
    policy(two, "bank", "gradient", labels=1.5)
    check = two.only("bank", "policy")
    assert "on a record's labels" in check.found and "label_epsilon" in check.move


def test_labels_that_were_answered_lose_nothing_more(two: Two) -> None:
    two.write(run={**RUN, "protect": PROTECT})
    policy(two, "bank", "gradient", labels=2.0)
    assert spends(two.check("bank")) == (
        "labels: ε = 2 of each row, once for all runs, of 2 that the policy allows"
    )
    with closing(Journal(two.folder / "kept")) as journal:
        run = RunJournal(lambda: journal, "3f").spendings(names(two, "bank", journal))
        rows = two.mine("bank").rows(federation.load(two.file))  # type: ignore[misc]
        some = np.asarray(rows.splits["train"].ids[:10])
        run.book("a", Spending("response", 2.0), "labels", "labels", positions=some)
    found = two.check("bank")
    assert "10 of " in spends(found) and "will be answered" in spends(found)
    assert found["policy"][0].verdict == "ok"


@pytest.mark.parametrize(
    ("name", "kind", "limit", "setting"),
    [
        ("shop", "embedding", "features", "embedding_epsilon"),
        ("bank", "gradient", "labels", "label_epsilon"),
    ],
)
def test_what_nobody_would_count_is_a_problem(
    name: str, kind: str, limit: str, setting: str, two: Two
) -> None:
    two.write(run=RUN)
    policy(two, name, kind, **{limit: 8.0})
    check = two.only(name, "policy")
    assert check.verdict == "problem" and f"'{kind}' would leave without" in check.found
    assert f"[run.protect] {setting}" in check.move
    two.write(run={**RUN, "protect": {setting: 4.0}})  # follow the advice
    assert two.only(name, "policy").verdict == "ok"


def test_a_cut_journal_is_a_problem(two: Two) -> None:
    two.write(run={**RUN, "protect": PROTECT})
    policy(two, "shop", "embedding", features=20.0)
    with closing(Journal(two.folder / "kept")):
        pass
    (two.folder / "kept" / "journal.jsonl").write_text("cut\n")
    check = two.only("shop", "policy")
    assert check.verdict == "problem" and "the chain breaks" in check.found


def test_a_simulation_says_what_it_would_spend(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'method = "splitnn"\nepochs = 4\n[data]\nname = "digits"\ntrain_rows = 120\n'
        'test_rows = 40\n[partition]\nkind = "strips"\nparties = 2\n'
        "[protect]\nembedding_epsilon = 8\nlabel_epsilon = 2\n"
    )
    found = {check.about: check.found for check in examine_run(file)}
    assert "features: ε = 8 at δ = 1e-05" in found["party2 spends"]
    assert "labels: ε = 2 of each row" in found["party1 spends"]
    assert "counts for nobody" in found["party1 spends"]
