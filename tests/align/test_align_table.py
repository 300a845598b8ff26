"""The table: right for its own keys, random for all others."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pytest

from colonnade.align import table
from colonnade.errors import ColonnadeError


def drawn(seed: int, rows: int, width: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (rows, width), np.uint8)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 1000, 30_000])
def test_every_key_gets_its_value(count: int) -> None:
    keys, values = drawn(1, count, 32), drawn(2, count, table.VALUE)
    made = table.encode(keys, values)
    assert made.shape == (table.rows_of(count), table.VALUE)
    assert (table.decode(made, keys) == values).all()


def test_small_tables_are_always_found() -> None:
    for seed in range(300):
        keys, values = drawn(seed, seed % 12, 33), drawn(seed + 1, seed % 12, table.VALUE)
        assert (table.decode(table.encode(keys, values), keys) == values).all()


def test_keys_that_share_all_slots_get_their_values_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of three slots: 27 choices for 8 keys, and 9 slots and 64 dense rows for all."""
    monkeypatch.setattr(table, "_part", lambda count: 3)
    shared = stuck = 0
    for seed in range(100):
        keys, values = drawn(seed, 8, 32), drawn(seed + 1, 8, table.VALUE)
        made = table.encode(keys, values)
        assert (table.decode(made, keys) == values).all()
        slots, _ = table._hashed(keys, made)
        shared += len(np.unique(slots, axis=0)) < 8
        stuck += len(table._peel(slots, 9)[1]) > 0
    assert shared > 40 and stuck > 60  # the test meets what it is about


def test_the_seed_is_drawn_before_the_keys_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that was drawn again would tell which sets the table cannot be of."""
    monkeypatch.setattr(table, "_part", lambda count: 3)
    draws: list[int] = []
    token_bytes = secrets.token_bytes
    monkeypatch.setattr(
        table.secrets, "token_bytes", lambda size: (draws.append(size), token_bytes(size))[1]
    )
    for seed in range(100):
        table.encode(drawn(seed, 8, 32), drawn(seed + 1, 8, table.VALUE))
    assert len(draws) == 100


def test_other_keys_get_random_answers() -> None:
    keys, others = drawn(1, 1000, 32), drawn(3, 1000, 32)
    answers = table.decode(table.encode(keys, np.zeros((1000, table.VALUE), np.uint8)), others)
    assert len({row.tobytes() for row in answers}) == 1000
    assert answers.any(axis=1).all()
    assert abs(np.unpackbits(answers).mean() - 0.5) < 0.01


def test_a_table_looks_random_and_is_never_the_same() -> None:
    keys, values = drawn(1, 1000, 32), drawn(2, 1000, table.VALUE)
    one, other = table.encode(keys, values), table.encode(keys, values)
    for made in (one, one ^ other):
        assert abs(np.unpackbits(made).mean() - 0.5) < 0.01
        assert len({row.tobytes() for row in made}) == len(made)


def test_equal_keys_are_an_error_and_no_endless_search() -> None:
    keys = np.repeat(drawn(1, 1, 32), 2, axis=0)
    with pytest.raises(ColonnadeError, match="are two of them equal"):
        table.encode(keys, drawn(2, 2, table.VALUE))
