"""The gate: deny by default, every rule, exact budgets, and what a restart may not forget."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.errors import Denied
from colonnade.journal import Journal, Names, RunJournal
from colonnade.wire import Kind, Message, Value, codec, ledger
from colonnade.wire.counting import RowsAtHand
from colonnade.wire.gate import Gate
from colonnade.wire.policy import Policy

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="the sender's features")
GRADIENT = Kind("gradient", ("batch", "dim"), reveals="the labels")
WEIGHTS = Kind("weights", None, reveals="the model", dtype="any")
TREE = Kind("tree", None, reveals="the sender's features", dtype="any", about="batch")
POINTS = Kind("points", ("points", "bytes"), reveals="nothing", dtype="any", about="nothing")


@dataclass
class Shop:
    """What a gate asks of a party: 20 rows to train on, 5 to test, and a journal of its own."""

    book: Journal | None = None
    run: str = "a"
    at_hand: RowsAtHand | None = None
    position: tuple[str, int, int] = ("train", 0, 0)
    splits: dict[str, range] = field(
        default_factory=lambda: {"train": range(20), "test": range(20, 25)}
    )

    @property
    def journal(self) -> RunJournal | None:
        book = self.book
        return None if book is None else RunJournal(lambda: book, self.run)

    def records(self, split: str = "train") -> Names:
        assert self.book is not None
        return self.book.names(str(number) for number in self.splits[split])

    @contextmanager
    def on(self, *rows: int, split: str = "train") -> Iterator[None]:
        """Work on these rows; none: on all of them."""
        where = np.array(rows, np.int64) if rows else slice(0, len(self.splits[split]))
        self.at_hand = RowsAtHand(split, where, len(rows) or len(self.splits[split]))
        yield
        self.at_hand = None


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    journal = Journal(tmp_path / "journal")
    yield Shop(journal)
    journal.close()


NOBODY = Shop(splits={})  # a server's: it has no rows, so nothing is counted per record


def gate(
    features: int = 20, members: int = 3, task: Literal["train", "predict"] = "train", **rule: Any
) -> Gate:
    """The shop's, with one rule for all Kinds but gradients."""
    named = {kind.name: rule for kind in (EMBEDDING, WEIGHTS, TREE, POINTS)}
    return Gate("shop", Policy.from_table({"allow": named}), features, members, task)


def send(
    one: Gate,
    value: Value,
    kind: Kind = EMBEDDING,
    to: str = "bank",
    size: int = 0,
    me: Shop = NOBODY,
) -> None:
    one.check(to, kind, value, size or codec.size(value), me)


def refusal(
    one: Gate,
    value: Value,
    kind: Kind = EMBEDDING,
    to: str = "bank",
    size: int = 0,
    me: Shop = NOBODY,
) -> str:
    before = one.spent()
    entries = me.book and me.book.anchor
    with pytest.raises(Denied) as caught:
        send(one, value, kind, to, size, me)
    assert one.spent() == before, "what is denied is not counted"
    assert (me.book and me.book.anchor) == entries
    return str(caught.value)


# --- the rules ------------------------------------------------------------------------------------


def test_what_is_not_named_stays() -> None:
    for one in (gate(), Gate("shop", Policy({}), 20, 3)):
        text = refusal(one, torch.zeros(8, 4), GRADIENT)
        assert text.startswith("'shop' does not send 'gradient' to 'bank': its policy does not")
        assert "reveals: the labels" in text and "add [allow.gradient] to its policy file" in text
        assert one.spent() == {}


def test_what_is_named_passes_without_limits() -> None:
    one = gate(features=0, members=1)
    for value in (torch.zeros(1, 10**6), torch.zeros(0, 4)):
        send(one, value, to="anybody")
    send(one, {"a": torch.zeros(()), "b": "text", "c": 3.0}, WEIGHTS)
    assert one.spent() == {
        "embedding": {"messages": 2, "bytes": 4 * 10**6 + 2 * 19},
        "weights": {"messages": 1, "bytes": 5 + 3 * 3 + 3 + 4 + 9 + 9},
    }


def test_peers() -> None:
    one = gate(to=["bank", "post"])
    send(one, torch.zeros(8, 4), to="post")
    text = refusal(one, torch.zeros(8, 4), to="port")
    assert text == (
        "'shop' does not send 'embedding' to 'port': its policy allows that to 'bank', 'post' "
        "only. If 'port' may have it, name it in `to`, in its policy file"
    )


def test_members() -> None:
    send(gate(min_members=3, members=3), torch.zeros(8, 4))
    assert "requires 4 members and 3 take part" in refusal(
        gate(min_members=4, members=3), torch.zeros(8, 4)
    )


def test_width() -> None:
    one = gate(width=12)
    send(one, torch.zeros(2, 12))
    send(one, torch.zeros(2, 3, 4))
    assert "allows 12 numbers per row and this message has 13" in refusal(one, torch.zeros(2, 13))
    assert "has 15" in refusal(one, torch.zeros(2, 3, 5))


@pytest.mark.parametrize(("ratio", "widest"), [(1, 100), (0.29, 29), (0.5, 50), (2.0, 200)])
def test_width_against_the_features(ratio: float, widest: int) -> None:
    one = gate(features=100, width_ratio=ratio)
    send(one, torch.zeros(2, widest))
    assert f"{ratio:g} times as many" in refusal(one, torch.zeros(2, widest + 1))
    nothing = gate(features=0, width_ratio=ratio)
    assert "features have (0)" in refusal(nothing, torch.zeros(2, 1))


def test_bytes_are_exact_at_the_limit_and_shared_by_all_peers() -> None:
    one = gate(bytes=1000)
    send(one, torch.zeros(2, 4), size=400)
    send(one, torch.zeros(2, 4), size=500, to="post")
    text = refusal(one, torch.zeros(2, 4), size=101)
    assert "allows 1,000 bytes in a run, 900 have left, and this message has 101" in text
    assert "change `bytes` in its policy file" in text
    send(one, torch.zeros(2, 4), size=100)
    assert "1,000 have left" in refusal(one, torch.zeros(2, 4), size=1)


def test_a_known_shape_is_not_known_for_another_peer_or_kind() -> None:
    one = gate(to=["bank"])
    send(one, torch.zeros(8, 4))
    refusal(one, torch.zeros(8, 4), to="post")
    refusal(one, torch.zeros(8, 4), GRADIENT)
    for rows in range(5000):  # more shapes than are kept
        send(one, torch.zeros(rows, 1))
    assert one.spent()["embedding"]["messages"] == 5001


# --- budgets --------------------------------------------------------------------------------------


def test_what_is_denied_by_now_is_still_counted() -> None:
    one = gate()
    one.restore([_row(torch.zeros(8, 4), kind=GRADIENT)])
    assert one.spent()["gradient"]["messages"] == 1
    refusal(one, torch.zeros(8, 4), GRADIENT)


def test_batches(shop: Shop) -> None:
    one = gate(min_batch=8)
    with shop.on(*range(8)):
        send(one, torch.zeros(8, 4), me=shop)
        assert "requires 8 rows in a message and this one has 7" in refusal(
            one, torch.zeros(7, 4), me=shop
        )
    send(one, {"loss": 0.5}, WEIGHTS, me=shop)  # of twenty training rows
    assert "has 20" in refusal(gate(min_batch=21), {"loss": 0.5}, WEIGHTS, me=shop)
    send(gate(min_batch=21), torch.zeros(1, 4), POINTS, me=shop)  # of no record
    foretelling = gate(task="predict", min_batch=21, min_prediction=5)
    with shop.on(split="test"):
        send(foretelling, torch.zeros(5, 4), me=shop)
        assert "Predict more rows at once, or change `min_prediction`" in refusal(
            foretelling, torch.zeros(4, 4), me=shop
        )


def test_a_batch_message_tells_the_gate_which_rows_it_speaks_of(shop: Shop) -> None:
    assert "nobody can tell which" in refusal(gate(), torch.zeros(8, 4), me=shop)
    with shop.on(3, 5, 7):
        send(gate(), torch.zeros(3, 4), me=shop)
        assert "has 4 rows and the batch has 3" in refusal(gate(), torch.zeros(4, 4), me=shop)


def test_numbers_about_each_record(shop: Shop) -> None:
    tree = {"a": torch.zeros(4, 6), "in": {"b": torch.zeros(8, 4), "c": 1.5}, "tag": b"secret"}
    numbers = 24 + 32 + 1 + 1 + 5  # and five names of eight bytes or less
    with shop.on(*range(8)):
        send(gate(width=8), tree, TREE, me=shop)
        assert f"has {-(-numbers // 8)}" in refusal(gate(width=7), tree, TREE, me=shop)
    # What was learnt from all rows may tell all its numbers about one of them.
    send(gate(width=numbers), tree, WEIGHTS, me=shop)
    assert f"has {numbers}" in refusal(gate(width=numbers - 1), tree, WEIGHTS, me=shop)
    hollow = {"x": torch.zeros(0, 7, 9)}  # its shape tells three numbers
    send(gate(width=4), hollow, WEIGHTS, me=shop)
    assert "has 4" in refusal(gate(width=3), hollow, WEIGHTS, me=shop)


def test_each_record_is_released_so_often_and_no_more(shop: Shop) -> None:
    one = gate(releases=2)
    for epoch in range(2):
        shop.position = ("train", epoch, 0)
        for half in (range(10), range(10, 20)):
            with shop.on(*half):
                send(one, torch.zeros(10, 4), me=shop)
    shop.position = ("train", 2, 0)
    with shop.on(*range(10)):
        text = refusal(one, torch.zeros(10, 4), me=shop)
    assert "allows 2 releases of each record" in text and "20 of its records, of 20" in text
    assert "fewer epochs does not help these records: train on others, or change `rel" in text
    with shop.on(split="test"):  # other records
        send(one, torch.zeros(5, 4), me=shop)
    # Predictions have a limit of their own.
    foretelling = gate(task="predict", releases=2, predictions=1)
    with shop.on(*range(10)):
        send(foretelling, torch.zeros(10, 4), me=shop)
        assert "Predict other rows" in refusal(foretelling, torch.zeros(10, 4), me=shop)


def test_an_epoch_costs_one_entry(shop: Shop) -> None:
    assert shop.book is not None
    one = gate(releases=9)
    for epoch in range(3):
        before = shop.book.anchor.entries
        for step, start in enumerate(range(0, 20, 4)):
            shop.position = ("train", epoch, step)
            with shop.on(*range(start, start + 4)):
                send(one, torch.zeros(4, 4), me=shop)
        assert shop.book.anchor.entries == before + 1


def test_weights_count_every_training_row(shop: Shop) -> None:
    one = gate(releases=3)
    for _ in range(3):
        send(one, {"w": torch.zeros(2)}, WEIGHTS, me=shop)
    assert "20 of its records, of 20" in refusal(one, {"w": torch.zeros(2)}, WEIGHTS, me=shop)
    for _ in range(9):
        send(gate(releases=3), {"w": torch.zeros(2)}, WEIGHTS)  # a server's


def test_numbers_about_a_record_add_up(shop: Shop) -> None:
    one = gate(numbers=10)
    with shop.on(*range(10)):
        send(one, torch.zeros(10, 4), me=shop)
        send(one, torch.zeros(10, 6), me=shop)
        assert "allows 10 numbers about each record" in refusal(one, torch.zeros(10, 1), me=shop)
    with shop.on(*range(10, 20)):
        send(one, torch.zeros(10, 10), me=shop)
        refusal(one, torch.zeros(10, 1), me=shop)
    with shop.on(*range(10)):  # in predictions, too
        refusal(gate(task="predict", numbers=10), torch.zeros(10, 1), me=shop)


def test_what_is_done_again_is_counted_once_and_a_new_run_counts_anew(shop: Shop) -> None:
    for attempt in range(3):  # processes that die in the same epoch
        again, one = Shop(shop.book, position=("train", 0, attempt)), gate(releases=2)
        with again.on(*range(20)):
            send(one, torch.zeros(20, 4), me=again)
    other = Shop(shop.book, run="b")
    with other.on(*range(20)):
        send(one, torch.zeros(20, 4), me=other)
        refusal(one, torch.zeros(20, 4), me=other)


def _row(value: Value, to: str = "bank", sender: str = "shop", kind: Kind = EMBEDDING) -> Any:
    """As it stands in the ledger."""
    message = Message(sender, to, kind, value, 0, "train", 0, 0, 0, 0.0)
    return json.loads(f"{{{ledger.describe(message)}}}") | {"bytes": codec.size(value)}


@given(
    budget=st.integers(1, 5000),
    messages=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 4), st.sampled_from(["bank", "post"]))
    ),
    restart=st.integers(0, 20),
)
def test_no_bytes_are_ever_exceeded(
    budget: int, messages: list[tuple[int, int, str]], restart: int
) -> None:
    one = gate(bytes=budget)
    book: list[dict[str, Any]] = []
    for number, (rows, width, to) in enumerate(messages):
        if number == restart:
            one = gate(bytes=budget)
            one.restore(book)
        value = torch.zeros(rows, width)
        row = _row(value, to)
        if sum(r["bytes"] for r in book) + row["bytes"] <= budget:
            send(one, value, to=to)
            book.append(row)
        else:
            refusal(one, value, to=to)
    assert sum(row["bytes"] for row in book) <= budget


@settings(deadline=None, max_examples=40)  # each entry is synchronised
@given(
    releases=st.integers(1, 4),
    numbers=st.integers(1, 40),
    steps=st.lists(
        st.tuples(
            st.lists(st.integers(0, 19), min_size=1, max_size=20, unique=True),
            st.integers(1, 6),
            st.sampled_from(["send", "epoch", "run", "process"]),
        ),
        max_size=30,
    ),
)
def test_no_record_ever_leaves_too_often(
    releases: int,
    numbers: int,
    steps: list[tuple[list[int], int, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever rows a role picks, in whatever order of epochs, runs and new processes."""
    journal = Journal(tmp_path_factory.mktemp("journal"))
    me, one = Shop(journal), gate(releases=releases, numbers=numbers)
    left, told = np.zeros(20, int), np.zeros(20, int)
    for number, (rows, width, then) in enumerate(steps):
        with me.on(*rows):
            try:
                send(one, torch.zeros(len(rows), width), me=me)
            except Denied:
                pass
            else:
                left[rows] += 1
                told[rows] += width
        if then == "epoch":
            me.position = ("train", number + 1, 0)
        elif then == "run":
            me = Shop(journal, run=f"{number}")
        elif then == "process":  # which goes on with the next epoch
            me = Shop(journal, run=me.run, position=("train", number + 1, 0))
            one = gate(releases=releases, numbers=numbers)
    assert left.max() <= releases and told.max() <= numbers
    journal.close()


def test_a_restarted_party_has_spent_what_it_had_spent() -> None:
    sent: list[tuple[Value, Kind]] = [(torch.zeros(8, 4), EMBEDDING), ({"d": "int"}, WEIGHTS)] * 2
    one, rows = gate(bytes=10**6), [_row(torch.zeros(3, 3), sender="bank", to="shop")]
    for value, kind in sent:
        send(one, value, kind)
        rows.append(_row(value, kind=kind))
    rows.append(_row(torch.zeros(9, 9)) | {"denied": "width"})
    again = gate(bytes=10**6)
    for _ in range(2):  # the ledger is the whole truth, however often it is read
        again.restore(rows)
        assert again.spent() == one.spent()
    foretelling = gate(bytes=10**6, task="predict")
    foretelling.restore(rows)  # of earlier predictions, whose ledger goes on
    assert foretelling.spent() == {}
