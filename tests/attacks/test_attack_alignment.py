"""Aligning rows tells a party that lies no more than one that keeps to the protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from meeting import Meeting, overlapping

from colonnade.align import Alignment, ids, lists, psi
from colonnade.errors import BudgetSpent, Untrusted
from colonnade.journal import Journal, RunJournal

REPEATED = ["x1", "x2", "x2", "x3", "x3", "x3", "x4", "x4", "x4", "x4"]


def lenient(given: Any, party: str, **options: Any) -> list[str]:
    """The liar's own program does not mind that it asks about a person twice."""
    return list(given) if party == "bank" else ids.normalise(given, party, **options)


@pytest.mark.parametrize("others", [1, 2])
def test_who_repeats_ids_is_refused_before_anything_is_answered(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four people the liar asks about one once, about one twice, …: were its set returned under
    both keys, the number of equal points would say which is which, whatever the minimum."""
    monkeypatch.setattr(psi, "normalise", lenient)
    asked = REPEATED + [f"bank {i}" for i in range(15)]
    held = ["x2", "x4"] + [f"clinic {i}" for i in range(25)]
    sets: dict[str, list[str]] = {"bank": asked, "clinic": held}
    if others == 2:
        sets["shop"] = held
    meeting = Meeting().hold(sets, Alignment(minimum=20))
    error = meeting.errors.get("clinic")
    assert isinstance(error, Untrusted) and "'bank'" in str(error) and "equal" in str(error)
    assert len(meeting.values("psi_points", "clinic")) == 1  # its own set, and no answer


def test_a_pretended_number_of_common_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows are common, and the minimum is 20. The liar waits for its own set under both keys,
    and returns it as the other's, so that all seem common and the other shows which they are."""
    held = {
        "bank": ["x1", "x2"] + [f"bank {i}" for i in range(22)],
        "clinic": ["x1", "x2"] + [f"clinic {i}" for i in range(22)],
    }
    exchange = lists.Lists.exchange

    async def copied(
        self: Any, kind: Any, after: Any, array: Any, before: Any, shape: Any, work: Any = None
    ) -> Any:
        if self.me.name != "bank" or kind.name != "psi_points" or work is not None:
            return await exchange(self, kind, after, array, before, shape, work)
        self._announce(after, kind, array)
        await before.recv(lists.ANNOUNCEMENT)
        own = await before.recv(kind)
        after.send(kind, own)
        return own.numpy()

    monkeypatch.setattr(lists.Lists, "exchange", copied)
    meeting = Meeting().hold(held, Alignment(minimum=20))
    error = meeting.errors.get("clinic")
    assert isinstance(error, Untrusted) and "'bank'" in str(error) and "announced" in str(error)
    assert not meeting.values("psi_places", "clinic")


@pytest.mark.parametrize("what", ["key", "points"])
def test_a_relay_cannot_exchange_what_it_carries(what: str) -> None:
    """A hub that carries messages between two others puts its own key, or its own points, in
    their place; the receiver finds out before it answers."""
    hubs_own = torch.tensor(list(range(32)), dtype=torch.uint8)

    def exchange(sender: str, receiver: str, kind: str, number: int, value: Any) -> Any:
        if (sender, receiver) != ("clinic", "shop"):
            return value
        if what == "key" and kind == "psi_opening":
            return value | {"public": hubs_own.numpy().tobytes()}
        if what == "points" and kind == "psi_points" and number == 0:
            return value[[*range(1, len(value)), 0]]
        return value

    meeting = Meeting(exchange).hold(overlapping(8, 3), Alignment(minimum=0))
    error = meeting.errors.get("shop")
    assert isinstance(error, Untrusted) and "'clinic'" in str(error)
    assert ("signature" if what == "key" else "announced") in str(error)
    assert not meeting.rows


@pytest.mark.parametrize(
    "setting", [torch.tensor([0, 0]), torch.tensor(0), 0.0, False, "x\n\u202e" * 100_000]
)
def test_settings_that_cannot_be_compared_or_shown(setting: Any) -> None:
    """The liar's opening says something else than a number where a number is due: it is refused in
    one short line that names the liar, and no error of the receiver's own."""

    def lie(sender: str, receiver: str, kind: str, number: int, value: Any) -> Any:
        if (sender, kind) != ("bank", "psi_opening"):
            return value
        return value | {"settings": dict(value["settings"]) | {"minimum": setting}}

    try:
        meeting = Meeting(lie).hold(overlapping(8, 2), Alignment(minimum=0))
    except RuntimeError as error:
        raise AssertionError(f"no typed refusal: {error}") from None
    said = str(meeting.errors.get("clinic"))
    assert "'bank' with" in said and said.isprintable() and len(said) < 500


def test_repeated_runs_come_to_an_end(tmp_path: Path) -> None:
    """A partner asks about other people in run after run, each small enough; the journal counts
    them all, in whatever run folder they were."""
    answered = 0
    journal = Journal(tmp_path / "journal")
    assert Alignment().times == 1000
    for run in range(130):
        kept = RunJournal(lambda: journal, f"run {run}")
        asked = {"bank": [f"x{run}", "y"], "clinic": ["x7", "x90", "y"]}
        meeting = Meeting(journals={"clinic": kept}).hold(asked, Alignment(minimum=1, times=100))
        error = meeting.errors.get("clinic")
        if error is None:
            answered += 1
            continue
        assert isinstance(error, BudgetSpent) and "'bank'" in str(error)
        assert not meeting.values("psi_points", "clinic")
    assert answered == 100


def test_many_ids_in_few_runs_come_to_an_end_too(tmp_path: Path) -> None:
    """The same with large sets: the ids of all runs together are counted, each partner's apart."""
    journal = Journal(tmp_path / "journal")
    kept = RunJournal(lambda: journal, "a run")
    allowed = Alignment(minimum=0, most_in_all=50)
    for run in range(4):
        asked = {"bank": [f"x{20 * run + i}" for i in range(20)], "clinic": ["x7", "x33"]}
        meeting = Meeting(journals={"clinic": kept}).hold(asked, allowed)
        error = meeting.errors.get("clinic")
        assert (error is None) == (run < 2)
        assert error is None or not meeting.values("psi_points", "clinic")
    asked = {"shop": [f"x{i}" for i in range(20)], "clinic": ["x7", "x33"]}
    assert not Meeting(journals={"clinic": kept}).hold(asked, allowed).errors
