"""Parties that do not fit together refuse each other before anything is sent, and say in what."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from child import Plan
from federations import Field, toy, wait_for
from nursery import Nursery

from colonnade.net import certs

ROWS = 60
SOON = 30.0  # ten seconds, and slow machines


def write_rows(path: Path, labels: bool, ids: list[int]) -> Path:
    names = ["id", "a", "b", *(["label"] if labels else [])]
    lines = [",".join(names)]
    for number in ids:
        label = [str(number % 2)] if labels else []
        lines.append(",".join([f"c{number}", str(number % 7), str(number % 5), *label]))
    path.write_text("\n".join(lines) + "\n")
    return path


def other_epochs(field: Field) -> dict[str, Path]:
    file = field.folder / "other.toml"
    with field.changed(file) as content:
        content["run"]["epochs"] = 5
    return {"file": file}


def other_members(field: Field) -> dict[str, Path]:
    file = field.folder / "other.toml"
    with field.changed(file) as content:
        content["parties"]["fourth"] = {"signing_key": "ab" * 32}
        content["run"]["parties"] = {**content["run"].get("parties", {}), "fourth": {}}
    return {"file": file}


def other_key_pinned(field: Field) -> dict[str, Path]:
    """The label holder's, as one party believes it to be."""
    file = field.folder / "other.toml"
    with field.changed(file) as content:
        content["parties"]["party1"]["signing_key"] = "cd" * 32
    return {"file": file}


def fewer_rows(field: Field) -> dict[str, Path]:
    return {"rows": write_rows(field.folder / "fewer.csv", False, list(range(ROWS - 1)))}


def other_order(field: Field) -> dict[str, Path]:
    return {"rows": write_rows(field.folder / "order.csv", False, [1, 0, *range(2, ROWS)])}


def other_ids(field: Field) -> dict[str, Path]:
    return {"rows": write_rows(field.folder / "ids.csv", False, [*range(ROWS - 1), 999])}


@pytest.fixture(scope="module")
def hub(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Field:
    """A label holder that waits for two others, and does so through all tests of this file."""
    folder = tmp_path_factory.mktemp("handshake")
    tree = toy("splitnn", data={"name": "digits"})
    field = Field(folder / "field", tree, deadline=300.0)
    own = write_rows(folder / "own.csv", True, list(range(ROWS)))
    program = nursery.program(Plan().write(folder / "plan"))
    field.start("party1", program, "--quiet", rows=own)
    return field


@pytest.mark.parametrize(
    ("spoil", "difference"),
    [
        (other_epochs, "[run] epochs is 5 at 'party2', 2 at 'party1'"),
        (other_members, "members is party1, party2, party3, fourth at 'party2'"),
        (other_key_pinned, "signing key of 'party1' is cdcdcdcdcdcdcdcd at 'party2'"),
        (fewer_rows, "number of rows is 59 at 'party2', 60 at 'party1'"),
        (other_order, "order and ids of the rows (keyed digest) is "),
        (other_ids, "order and ids of the rows (keyed digest) is "),
    ],
)
def test_what_differs_is_named_at_both_ends(
    spoil: Callable[[Field], dict[str, Path]],
    difference: str,
    hub: Field,
    nursery: Nursery,
    tmp_path: Path,
) -> None:
    program = nursery.program(Plan().write(tmp_path / "plan"))
    given = {"rows": write_rows(hub.folder / "good.csv", False, list(range(ROWS)))} | spoil(hub)
    (hub.folder / "party2.txt").unlink(missing_ok=True)
    before = hub.log("party1")
    began = time.monotonic()
    process = hub.start("party2", program, "--quiet", "--out", str(tmp_path / "out"), **given)
    assert process.wait(SOON) == 1
    assert time.monotonic() - began < SOON
    shown = hub.shown("party2")
    assert "Refused: 'party1' and 'party2' do not fit together: " in shown
    wait_for(lambda: "refused 'party2': " in hub.log("party1").removeprefix(before))
    said = hub.log("party1").removeprefix(before)
    for text in (shown, said):
        flat = " ".join(text.split())
        # Either end may be the first to say so.
        mirrored = difference.partition(" is ")[0]
        assert difference in flat or mirrored in flat
    assert difference in " ".join((shown + said).split())
    assert hub.processes["party1"].poll() is None  # it waits for somebody who fits


def test_a_key_that_is_not_the_pinned_one_is_refused_at_home(
    hub: Field, nursery: Nursery, tmp_path: Path
) -> None:
    """Whoever has lost its signing key finds out before it calls anybody."""
    certs.init(tmp_path / "authority")
    certs.party(tmp_path / "authority", "party2")
    keys = tmp_path / "keys"
    keys.mkdir()
    for file in hub.key("party2").iterdir():
        (keys / file.name).write_bytes(file.read_bytes())
    other = tmp_path / "authority" / "party2" / "party2.sign"
    (keys / "party2.sign").write_bytes(other.read_bytes())
    program = nursery.program(Plan().write(tmp_path / "plan"))
    (hub.folder / "party2.txt").unlink(missing_ok=True)
    process = hub.start("party2", program, "--quiet", keys=keys)
    assert process.wait(SOON) == 2
    assert "party2.sign is not the key that" in " ".join(hub.shown("party2").split())


def test_afterwards_the_right_ones_are_let_in(hub: Field, nursery: Nursery, tmp_path: Path) -> None:
    program = nursery.program(Plan().write(tmp_path / "plan"))
    for name in ("party2", "party3"):
        rows = write_rows(hub.folder / f"{name}.csv", False, list(range(ROWS)))
        hub.start(name, program, "--quiet", rows=rows)
    assert set(hub.wait(60).values()) == {0}
