"""The journal's file: what was acknowledged is there for ever, and nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from colonnade.errors import JournalError
from colonnade.journal import Anchor, Journal, Steps, default_place
from colonnade.journal.journal import FILE, ROWS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a" / "journal"


def texts(journal: Journal) -> list[str]:
    return [str(entry["text"]) for entry in journal.entries("said")]


def filled(folder: Path, *said: str) -> Anchor:
    journal = Journal(folder)
    for text in said:
        journal.append("said", text=text)
    journal.close()
    return journal.anchor


def lines(folder: Path) -> list[bytes]:
    return (folder / FILE).read_bytes().splitlines(keepends=True)


def test_what_was_appended_is_there_for_the_next_process(folder: Path) -> None:
    anchor = filled(folder, "one", "zwei – ½", "")
    again = Journal(folder, anchor)
    assert texts(again) == ["one", "zwei – ½", ""]
    assert again.anchor == anchor == Anchor.of(anchor.table())
    assert not again.simulated


def test_secrets_stay_the_same_and_differ_by_purpose_and_journal(
    folder: Path, tmp_path: Path
) -> None:
    filled(folder)
    one, again, other = Journal(folder), Journal(folder), Journal(tmp_path / "other")
    assert one.secret("noise") == again.secret("noise")
    assert len({one.secret("noise"), one.secret("rows"), other.secret("noise")}) == 3
    assert len(one.secret("noise")) == 32


def test_only_the_owner_can_read_it(folder: Path) -> None:
    before = os.umask(0)
    try:
        filled(folder, "one")
        journal = Journal(folder)
        journal.lists.keep(journal.names(["a", "b"]))
    finally:
        os.umask(before)
    for path in (folder, folder.parent, folder / ROWS):
        assert path.stat().st_mode & 0o777 == 0o700
    for path in (folder / FILE, *(folder / ROWS).iterdir()):
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("left", ["nothing", "half a line", "all but its end"])
def test_an_entry_that_a_crash_cut_short_was_never_acknowledged(folder: Path, left: str) -> None:
    anchor = filled(folder, "one", "two")
    last = lines(folder)[-1]
    torn = {"nothing": b"", "half a line": last[:40], "all but its end": last[:-1]}[left]
    with (folder / FILE).open("ab") as file:
        file.write(torn)
    again = Journal(folder, anchor)
    assert texts(again) == ["one", "two"]
    again.append("said", text="three")
    assert texts(Journal(folder)) == ["one", "two", "three"]


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("how", ["removed", "edited", "swapped", "doubled"])
def test_a_journal_whose_chain_breaks_is_refused(folder: Path, number: int, how: str) -> None:
    filled(folder, "one", "two", "three", "four")
    found = lines(folder)
    if how == "removed":
        del found[number]
    elif how == "edited":
        middle = len(found[number]) // 2 + 20
        found[number] = found[number][:middle] + b"x" + found[number][middle + 1 :]
    elif how == "swapped":
        found[number], found[number + 1] = found[number + 1], found[number]
    else:
        found.insert(number, found[number])
    (folder / FILE).write_bytes(b"".join(found))
    with pytest.raises(JournalError, match=r"backup"):
        Journal(folder)


def test_a_journal_that_was_cut_is_refused_by_whoever_has_an_anchor(folder: Path) -> None:
    anchor = filled(folder, "one", "two", "three")
    (folder / FILE).write_bytes(b"".join(lines(folder)[:-1]))
    with pytest.raises(JournalError, match="had at least 4 entries, and this one has 3"):
        Journal(folder, anchor)


def test_another_journal_in_its_place_is_refused(folder: Path, tmp_path: Path) -> None:
    anchor = filled(folder, "one")
    filled(tmp_path / "other", "one", "two")
    shutil.copy(tmp_path / "other" / FILE, folder / FILE)
    with pytest.raises(JournalError, match="replaced"):
        Journal(folder, anchor)


@pytest.mark.parametrize("known", [True, False])
def test_a_journal_that_is_gone_is_not_begun_again(folder: Path, known: bool) -> None:
    anchor = filled(folder, "one")
    (folder / FILE).unlink()
    for _ in range(2):
        with pytest.raises(JournalError, match="is missing"):
            Journal(folder, anchor if known else None)
    if known:
        shutil.rmtree(folder)
        with pytest.raises(JournalError, match="is missing"):
            Journal(folder, anchor)
    assert not (folder / FILE).exists()


def test_it_is_refused_while_in_use_if_somebody_cuts_or_replaces_it(folder: Path) -> None:
    for damage in ("cut", "replace", "remove"):
        shutil.rmtree(folder, ignore_errors=True)
        filled(folder, "one", "two")
        journal, path = Journal(folder), folder / FILE
        if damage == "cut":
            os.truncate(path, path.stat().st_size - 5)
        elif damage == "replace":
            shutil.copy(path, path.with_name("copy"))
            path.with_name("copy").replace(path)
        else:
            path.unlink()
        with pytest.raises(JournalError, match="while it was in use"):
            journal.append("said", text="three")


def test_a_full_disk_leaves_it_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    anchor = filled(folder, "one")
    journal, write = Journal(folder), os.write

    def half(file: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(file, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(JournalError, match=r"No space left on device.*make room"):
        journal.append("said", text="two")
    monkeypatch.undo()
    journal.append("said", text="three")
    assert texts(Journal(folder, anchor)) == ["one", "three"]


def test_two_processes_take_turns(folder: Path) -> None:
    one, other = Journal(folder), Journal(folder)
    one.append("said", text="a")
    other.append("said", text="b")
    one.append("said", text="c")
    with other.turn():
        assert texts(other) == ["a", "b", "c"]
    program = (
        "import sys; from pathlib import Path; from colonnade.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for n in range(50): journal.append('said', text=sys.argv[2])\n"
    )
    command = [sys.executable, "-c", program, str(folder)]
    running = [subprocess.Popen([*command, name]) for name in "xy"]
    assert [process.wait(60) for process in running] == [0, 0]
    found = texts(Journal(folder))
    assert (len(found), found.count("x"), found.count("y")) == (103, 50, 50)


def test_who_begins_it_at_the_same_time_gets_the_same_one(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from colonnade.journal import Journal\n"
        "print(Journal(Path(sys.argv[1])).secret('x').hex())\n"
    )
    command = [sys.executable, "-c", program, str(folder)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    told = [process.communicate(timeout=60)[0] for process in running]
    assert len(set(told)) == 1 and len(told[0]) == 65


def test_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_place("credit", "bank") == tmp_path / "colonnade" / "credit" / "bank"
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", unset)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert default_place("f", "p") == tmp_path / ".local" / "share" / "colonnade" / "f" / "p"


class Crashes(RuleBasedStateMachine):
    """Whatever is appended, booked, torn at any byte, reopened or cut: nothing acknowledged is
    lost, nothing else appears, and a number that was reached lies below the bound."""

    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.folder = self.place / "journal"
        self.journal = Journal(self.folder)
        self.said: list[str] = []
        self.anchor = self.journal.anchor
        self.steps, self.reached = Steps(self.journal, "3f"), -1

    @rule(text=st.text(max_size=5))
    def append(self, text: str) -> None:
        self.journal.append("said", text=text)
        self.said.append(text)
        self.anchor = self.journal.anchor

    @rule(steps=st.integers(1, 400))
    def reach(self, steps: int) -> None:
        self.reached += steps
        self.steps.begin("train", (0, self.reached), (), False)
        self.anchor = self.journal.anchor

    @rule(share=st.floats(0, 1, exclude_max=True), text=st.text(max_size=5))
    def crash_while_appending(self, share: float, text: str) -> None:
        whole = (self.folder / FILE).stat().st_size
        Journal(self.folder).append("said", text=text)
        written = (self.folder / FILE).stat().st_size - whole
        self.journal.close()
        os.truncate(self.folder / FILE, whole + int(share * written))
        self._open()

    @rule()
    def reopen(self) -> None:
        self.journal.close()
        self._open()

    @precondition(lambda self: self.anchor.entries > 1)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        path = self.folder / FILE
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        with pytest.raises(JournalError):
            Journal(self.folder, self.anchor)
        path.write_bytes(whole)
        self.journal.close()
        self._open()

    @invariant()
    def all_is_there(self) -> None:
        assert texts(Journal(self.folder, self.anchor)) == self.said
        assert (Steps(self.journal, "3f").fresh or ("train", 0, 0)) > ("train", 0, self.reached)

    def _open(self) -> None:
        self.journal = Journal(self.folder, self.anchor)
        self.steps = Steps(self.journal, "3f")

    def teardown(self) -> None:
        shutil.rmtree(self.place)


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
