"""The ledger: nobody can change it unseen, and its sums are those of the payloads."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import colonnade
from colonnade.errors import RunError
from colonnade.wire import Kind, Ledger, Message, Value, codec, ledger

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="features")
WEIGHTS = Kind("weights", None, reveals="the model", dtype="any")


def message(
    number: int, value: Value | None = None, kind: Kind = EMBEDDING, **more: Any
) -> Message:
    value = torch.zeros(2, number + 1) if value is None else value
    facts = {"sender": "bank", "receiver": "shop", "phase": "train", "hop": number} | more
    return Message(kind=kind, value=value, sequence=number, epoch=0, step=number, at=0.0, **facts)


def written(path: Path, count: int = 6, attempt: int = 1) -> str:
    """A ledger of `count` more rows; the hash of its last one."""
    path.touch()
    book = Ledger(path, attempt)
    for number in range(count):
        one = message(number)
        book.write(one, ledger.describe(one), codec.size(one.value), None)
    book.close()
    return book.head


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


# --- the chain ------------------------------------------------------------------------------------


def test_the_chain_holds(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    head = written(path)
    rows = list(ledger.read(path, head))
    assert [row["row"] for row in rows] == list(range(6))
    assert [row["shape"] for row in rows] == [[2, n + 1] for n in range(6)]
    assert rows[0]["previous"] == ledger.GENESIS
    for line, row in zip(lines(path), rows[1:], strict=False):
        assert row["previous"] == hashlib.sha256(line.encode()).hexdigest()


def test_an_empty_ledger_holds(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert written(path, 0) == ledger.GENESIS
    assert list(ledger.read(path, ledger.GENESIS)) == []


def forged(text: list[str], place: int) -> str:
    """A row that fits behind the one before it, its own link included."""
    before = hashlib.sha256(text[place - 1].encode()).hexdigest()
    return json.dumps(json.loads(text[place]) | {"row": place, "previous": before}) + "\n"


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (lambda t: t.__setitem__(2, t[2].replace('"bytes":', '"bytes":1')), 3),
        (lambda t: t.__setitem__(0, t[0].replace("shop", "spy")), 1),
        (lambda t: t.__setitem__(2, t[2].replace('"previous":"', '"previous":"0')), 2),
        (lambda t: t.__setitem__(2, t[2].replace('"row":2', '"row":3')), 2),
        (lambda t: t.__setitem__(2, "not JSON\n"), 2),
        (lambda t: t.__setitem__(2, "[]\n"), 2),
        (lambda t: t.__setitem__(2, "null\n"), 2),
        (lambda t: t.__setitem__(2, "\n"), 2),
        (lambda t: t.__delitem__(0), 0),
        (lambda t: t.__delitem__(2), 2),
        (lambda t: t.__delitem__(slice(1, 4)), 1),
        (lambda t: t.__setitem__(slice(2, 4), [t[3], t[2]]), 2),
        (lambda t: t.insert(2, t[1]), 2),
        (lambda t: t.insert(2, forged(t, 2)), 3),
    ],
)
def test_tampering_is_found_at_the_first_row_that_does_not_follow(
    change: Any, row: int, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    written(path)
    text = lines(path)
    change(text)
    path.write_text("".join(text))
    with pytest.raises(RunError, match=rf"ledger\.jsonl: the chain breaks at row {row}:"):
        list(ledger.read(path))
    with pytest.raises(RunError, match=f"at row {row}:"):  # nor does a resumed run go on with it
        Ledger(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop(),
        lambda t: t.clear(),
        lambda t: t.__setitem__(5, t[5].replace("shop", "spy")),
        lambda t: t.append(
            json.dumps(
                {"row": 6, "attempt": 1, "note": "x"}
                | {"previous": hashlib.sha256(t[5].encode()).hexdigest()}
            )
            + "\n"
        ),
    ],
    ids=["last row removed", "all rows removed", "last row edited", "row added"],
)
def test_tampering_at_the_end_is_found_by_the_head(change: Any, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    head = written(path)
    text = lines(path)
    change(text)
    path.write_text("".join(text))
    with pytest.raises(RunError, match="is not the one the run ended with"):
        list(ledger.read(path, head))


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    head = written(path, 2)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[place] ^= 0x04
        path.write_bytes(changed)
        with pytest.raises(RunError):
            list(ledger.read(path, head))


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_line_cut_short_by_a_crash_is_dropped(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    written(path, 4)
    text = lines(path)
    path.write_text("".join(text[:3]) + text[3][:kept])
    head = written(path, 2, attempt=2)
    rows = list(ledger.read(path, head))
    assert [(row["row"], row["attempt"]) for row in rows] == [
        (0, 1), (1, 1), (2, 1), (3, 2), (4, 2)
    ]  # fmt: skip


def test_a_first_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"row":0,"atte')
    head = written(path, 2)
    assert len(list(ledger.read(path, head))) == 2


def test_rows_are_on_the_disk_after_flush(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.touch()
    book = Ledger(path)
    for number in range(3):
        assert book.write(message(number), ledger.describe(message(number)), 10, None) == number
    book.flush()
    assert len(list(ledger.read(path, book.head))) == 3
    assert book.bytes == 30
    book.close()


# --- sums -----------------------------------------------------------------------------------------


def test_sums_by_kind_party_phase_and_flow(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.touch()
    book = Ledger(path)
    tree: Value = {"w": torch.zeros(3), "step": 1}
    for one, size in [
        (message(0, tree, WEIGHTS, phase="setup", hop=1), 100),
        (message(0, sender="bank", receiver="shop", hop=2), 20),
        (message(1, sender="bank", receiver="club", hop=2), 20),
        (message(0, sender="shop", receiver="bank", hop=3), 3),
        (message(1, sender="shop", receiver="bank", phase="eval", hop=4), 5),
    ]:
        book.write(one, ledger.describe(one), size, None)
    book.close()
    total = ledger.summarise(ledger.read(path), {"embedding": EMBEDDING})
    assert (total["bytes"], total["messages"]) == (148, 5)
    assert total["rounds"] == 2  # in training: out to two parties at once, and back
    assert total["by_phase"] == {
        "setup": {"bytes": 100, "messages": 1},
        "train": {"bytes": 43, "messages": 3},
        "eval": {"bytes": 5, "messages": 1},
    }
    assert total["by_kind"]["embedding"] == {
        "bytes": 48,
        "messages": 4,
        "shape": "batch × dim",
        "dtype": "float32",
        "reveals": "features",
    }
    assert total["by_kind"]["weights"]["reveals"] == "unknown"  # a Kind that nobody declared
    assert total["by_party"]["bank"] == {
        "sent_bytes": 140,
        "sent_messages": 3,
        "received_bytes": 8,
        "received_messages": 2,
    }
    assert sum(p["sent_bytes"] for p in total["by_party"].values()) == 148
    assert sum(p["received_bytes"] for p in total["by_party"].values()) == 148
    flows = {(f["sender"], f["receiver"], f["kind"]): f for f in total["flows"]}
    assert flows["shop", "bank", "embedding"]["bytes"] == 8
    assert flows["bank", "shop", "weights"]["messages"] == 1
    (row, *_) = ledger.read(path)
    assert (row["shape"], row["dtype"]) == ({"w": [3], "step": "int"}, "tree")


# --- a real run -----------------------------------------------------------------------------------


CONFIG = {
    "method": "splitnn",
    "epochs": 2,
    "batch_size": 64,
    "record": ["embedding", "gradient"],
    "data": {"name": "digits", "train_rows": 150, "test_rows": 70},
    "splitnn": {"dim": 8, "hidden": 0},
    "partition": {"kind": "strips", "parties": 3},
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> colonnade.Result:
    out = tmp_path_factory.mktemp("strict") / "run"
    return colonnade.run(CONFIG | {"strict": True}, out=out)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> colonnade.Result:
    return colonnade.run(CONFIG, out=tmp_path_factory.mktemp("plain") / "run")


def recorded(result: colonnade.Result) -> dict[int, tuple[str, torch.Tensor]]:
    """Row of the ledger: (file's Kind, payload)."""
    payloads = {}
    for file in (result.path / "record").iterdir():
        for name, value in load_file(file).items():
            row, sender, receiver = name.split("/")
            payloads[int(row)] = f"{file.name.rpartition('-')[0]} {sender} {receiver}", value
    return payloads


def test_the_bytes_of_a_run_are_those_of_its_payloads(
    strict: colonnade.Result, plain: colonnade.Result
) -> None:
    for result in (strict, plain):
        payloads = recorded(result)
        bytes_ = sum(len(codec.encode(value)) for _, value in payloads.values())
        assert result.wire["bytes"] == bytes_ > 0
        assert result.wire["messages"] == len(payloads)
    assert strict.wire["bytes"] == plain.wire["bytes"]
    # 2 passive parties; each step there and back, 3 steps an epoch; one evaluation batch an epoch.
    assert strict.wire["by_phase"]["train"]["messages"] == 2 * 2 * 3 * 2
    assert strict.wire["by_phase"]["eval"]["messages"] == 2 * 1 * 2
    assert strict.wire["rounds"] == 2 * 3 * 2


def test_digests_and_recordings_are_of_the_payloads(strict: colonnade.Result) -> None:
    rows = list(ledger.read(strict.path / "ledger.jsonl", strict.wire["head"]))
    payloads = recorded(strict)
    assert payloads.keys() == {row["row"] for row in rows}
    for row in rows:
        who, value = payloads[row["row"]]
        assert who == f"{row['kind']} {row['sender']} {row['receiver']}"
        assert row["shape"] == list(value.shape)
        assert row["bytes"] == len(codec.encode(value))
        assert row["sha256"] == hashlib.sha256(codec.encode(value)).hexdigest()


def test_a_plain_run_has_no_digests_and_the_same_payloads(
    strict: colonnade.Result, plain: colonnade.Result
) -> None:
    rows = list(ledger.read(plain.path / "ledger.jsonl", plain.wire["head"]))
    assert {row["sha256"] for row in rows} == {None}
    ours, theirs = recorded(plain), recorded(strict)
    assert all(torch.equal(ours[row][1], theirs[row][1]) for row in theirs)


def test_sequences_count_within_sender_receiver_and_kind(strict: colonnade.Result) -> None:
    seen: Counter[tuple[str, str, str]] = Counter()
    for row in ledger.read(strict.path / "ledger.jsonl"):
        key = (row["sender"], row["receiver"], row["kind"])
        assert row["sequence"] == seen[key]
        seen[key] += 1


def test_only_the_named_kinds_are_recorded(tmp_path: Path) -> None:
    result = colonnade.run(CONFIG | {"record": ["gradient"], "epochs": 1}, out=tmp_path / "run")
    assert {who.partition(" ")[0] for who, _ in recorded(result).values()} == {"gradient"}
