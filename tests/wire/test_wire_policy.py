"""The policy: deny by default, every rule, exact budgets, and what a restart may not forget."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from colonnade.errors import ConfigError, Denied
from colonnade.wire import Kind, Message, Value, codec, ledger
from colonnade.wire.policy import Allow, Gate, Policy

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="the sender's features")
GRADIENT = Kind("gradient", ("batch", "dim"), reveals="the labels")
WEIGHTS = Kind("weights", None, reveals="the model", dtype="any")


def gate(rows: int = 100, features: int = 20, members: int = 3, **rule: Any) -> Gate:
    """The shop's, with one rule for embeddings."""
    policy = Policy.from_table({"allow": {"embedding": rule, "weights": rule}})
    return Gate("shop", policy, rows=rows, features=features, members=members)


def send(one: Gate, value: Value, kind: Kind = EMBEDDING, to: str = "bank", size: int = 0) -> None:
    one.check(to, kind, value, size or codec.size(value))


def refusal(
    one: Gate, value: Value, kind: Kind = EMBEDDING, to: str = "bank", size: int = 0
) -> str:
    before = one.spent()
    with pytest.raises(Denied) as caught:
        send(one, value, kind, to, size)
    assert one.spent() == before, "what is denied is not counted"
    return str(caught.value)


def problems(table: Any, where: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Policy.from_table(table, where)
    return caught.value.problems


# --- the rules ------------------------------------------------------------------------------------


def test_what_is_not_named_stays() -> None:
    for one in (gate(), Gate("shop", Policy({}), 100, 20, 3)):
        text = refusal(one, torch.zeros(8, 4), GRADIENT)
        assert text.startswith("'shop' does not send 'gradient' to 'bank': its policy does not")
        assert "reveals: the labels" in text and "add [allow.gradient] to its policy file" in text
        assert one.spent() == {}


def test_what_is_named_passes_without_limits() -> None:
    one = gate(rows=0, features=0, members=1)
    for value in (torch.zeros(1, 10**6), torch.zeros(0, 4)):
        send(one, value, to="anybody")
    send(one, {"a": torch.zeros(()), "b": "text", "c": 3.0}, WEIGHTS)
    assert one.spent() == {
        "embedding": {"messages": 2, "bytes": 4 * 10**6 + 2 * 19, "rows": 1},
        "weights": {"messages": 1, "bytes": 5 + 3 * 3 + 3 + 4 + 9 + 9, "rows": 0},
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


def test_batches() -> None:
    one = gate(min_batch=8)
    send(one, torch.zeros(8, 4))
    assert "requires 8 rows in a message and this one has 7" in refusal(one, torch.zeros(7, 4))
    assert "has 0" in refusal(one, {"loss": 0.5}, WEIGHTS)  # what has no rows is no batch either


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


@pytest.mark.parametrize(("releases", "most"), [(1, 100), (0.29, 29), (2.5, 250)])
def test_releases_are_exact_at_the_limit(releases: float, most: int) -> None:
    one = gate(rows=100, releases=releases)
    for _ in range(most - 1):
        send(one, torch.zeros(1, 4))
    assert f"{releases:g} releases of each of its 100 records" in refusal(one, torch.zeros(2, 4))
    send(one, torch.zeros(1, 4))
    assert f"{most:,} rows have left" in refusal(one, torch.zeros(1, 4))
    assert "of each of its 0 records" in refusal(gate(rows=0, releases=9), torch.zeros(1, 4))


def test_a_tree_has_the_rows_of_its_largest_tensor_and_the_numbers_of_all() -> None:
    tree = {"a": torch.zeros(4, 6), "in": {"b": torch.zeros(8, 4), "c": 1.5}, "tag": b"secret"}
    one = gate(width=8)
    send(one, tree, WEIGHTS)  # 24 + 32 + 1 numbers in 8 rows
    assert one.spent()["weights"]["rows"] == 8
    assert "has 8" in refusal(gate(width=7), tree, WEIGHTS)
    cut_up = {str(n): torch.zeros(()) for n in range(30)}
    assert "has 30" in refusal(gate(width=29), cut_up, WEIGHTS)
    for order in (["x", "y"], ["y", "x"]):  # of two tensors of one size the longer one
        same = {"x": torch.zeros(2, 8), "y": torch.zeros(8, 2)}
        one = gate()
        send(one, {name: same[name] for name in order}, WEIGHTS)
        assert one.spent()["weights"]["rows"] == 8


def test_a_known_shape_is_not_known_for_another_peer_or_kind() -> None:
    one = gate(to=["bank"])
    send(one, torch.zeros(8, 4))
    refusal(one, torch.zeros(8, 4), to="post")
    refusal(one, torch.zeros(8, 4), GRADIENT)
    for rows in range(5000):  # more shapes than are kept
        send(one, torch.zeros(rows, 1))
    assert one.spent()["embedding"]["messages"] == 5001


# --- budgets --------------------------------------------------------------------------------------


@given(
    budget=st.integers(1, 5000),
    releases=st.integers(1, 5),
    messages=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 4), st.sampled_from(["bank", "post"]))
    ),
    restart=st.integers(0, 20),
)
def test_no_budget_is_ever_exceeded(
    budget: int, releases: int, messages: list[tuple[int, int, str]], restart: int
) -> None:
    one = gate(rows=20, bytes=budget, releases=releases)
    book: list[dict[str, Any]] = []
    for number, (rows, width, to) in enumerate(messages):
        if number == restart:
            one = gate(rows=20, bytes=budget, releases=releases)
            one.restore(book)
        value = torch.zeros(rows, width)
        row = _row(value, to)
        left = sum(r["bytes"] for r in book), sum(r["shape"][0] for r in book)
        fits = left[0] + row["bytes"] <= budget and left[1] + rows <= 20 * releases
        if fits:
            send(one, value, to=to)
            book.append(row)
        else:
            refusal(one, value, to=to)
    assert sum(row["bytes"] for row in book) <= budget
    assert sum(row["shape"][0] for row in book) <= 20 * releases


def _row(value: Value, to: str = "bank", sender: str = "shop", kind: Kind = EMBEDDING) -> Any:
    """As it stands in the ledger."""
    message = Message(sender, to, kind, value, 0, "train", 0, 0, 0, 0.0)
    return json.loads(f"{{{ledger.describe(message)}}}") | {"bytes": codec.size(value)}


def test_a_restarted_party_has_spent_what_it_had_spent() -> None:
    tree = {
        "a": torch.zeros(4, 6),
        "in": {"b": torch.zeros(8, 4), "c": True},
        "tag": b"x",
        "d": "int",
    }
    sent: list[tuple[Value, Kind]] = [(torch.zeros(8, 4), EMBEDDING), (tree, WEIGHTS)] * 2
    one, rows = gate(bytes=10**6), [_row(torch.zeros(3, 3), sender="bank", to="shop")]
    for value, kind in sent:
        send(one, value, kind)
        rows.append(_row(value, kind=kind))
    rows.append(_row(torch.zeros(9, 9)) | {"denied": "width"})
    again = gate(bytes=10**6)
    for _ in range(2):  # the ledger is the whole truth, however often it is read
        again.restore(rows)
        assert again.spent() == one.spent()
    assert again.spent()["weights"]["rows"] == 16


def test_what_is_denied_by_now_is_still_counted() -> None:
    one = gate()
    one.restore([_row(torch.zeros(8, 4), kind=GRADIENT)])
    assert one.spent()["gradient"]["rows"] == 8
    refusal(one, torch.zeros(8, 4), GRADIENT)


# --- in and out -----------------------------------------------------------------------------------

WHOLE = """
[allow.embedding]
to = ["bank"]
bytes = 500_000_000
width = 128
width_ratio = 1.0
releases = 20
min_batch = 8
min_members = 3

[allow.gradient]
"""


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(WHOLE)
    policy = Policy.load(path)
    assert policy.allow == {
        "embedding": Allow(("bank",), 500_000_000, 128, 1.0, 20.0, 8, 3),
        "gradient": Allow(),
    }
    assert Policy.from_table(tomllib.loads(policy.dumps())) == policy
    one = Gate("shop", policy, 100, 20, 3)
    assert str(path) in refusal(one, torch.zeros(8, 4), to="post")
    path.write_text("")
    assert Policy.load(path) == Policy({})


@pytest.mark.parametrize(
    ("text", "size"),
    [("500 MB", 500_000_000), ("1.5GB", 1_500_000_000), ("3 kB", 3000), ("7 b", 7), ("2 TB", 2e12)],
)
def test_sizes_in_words(text: str, size: int) -> None:
    assert Policy.from_table({"allow": {"x": {"bytes": text}}}).allow["x"].bytes == size


def test_all_mistakes_at_once() -> None:
    rule = {
        "too": ["bank"], "to": "bank", "bytes": "500 apples", "width": -1, "width_ratio": "x",
        "releases": float("nan"), "min_batch": True, "min_members": 1.5,
    }  # fmt: skip
    assert problems({"alow": {}, "allow": {"embedding": rule, "gradient": 3}}, "policy.") == [
        "no key 'alow' in [policy]: did you mean 'allow'?",
        "no key 'too' in [policy.allow.embedding]: did you mean 'to'?",
        "policy.allow.embedding.to = 'bank': must be a list of members, [\"bank\"]",
        "policy.allow.embedding.bytes = '500 apples': must be a whole number of bytes, or a text "
        'such as "500 MB"',
        "policy.allow.embedding.width = -1: must be a whole number from 0",
        "policy.allow.embedding.width_ratio = 'x': must be a number from 0",
        "policy.allow.embedding.releases = nan: must be a number from 0",
        "policy.allow.embedding.min_batch = True: must be a whole number from 0",
        "policy.allow.embedding.min_members = 1.5: must be a whole number from 0",
        "policy.allow.gradient = 3: must be a table, [policy.allow.gradient]",
    ]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"allow": ["embedding"]}, r"must be tables, \[allow\.embedding\]"),
        ({"embedding": {}}, "no key 'embedding' at the top level"),
        ({"allow": {"x": {"to": []}}}, "names nobody"),
        ({"allow": {"x": {"to": [3]}}}, "list of members"),
        ({"allow": {"x": {"bytes": 1 << 63}}}, "whole number"),
        ({"allow": {"x": {"bytes": "9999999999 TB"}}}, "whole number"),
        ({"allow": {"x": {"bytes": "0.5 B"}}}, "less than a byte"),
        ({"allow": {"x": {"releases": float("inf")}}}, "a number from 0"),
    ],
)
def test_mistakes(table: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Policy.from_table(table)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    with pytest.raises(ConfigError, match=r"policy\.toml: No such file"):
        Policy.load(path)
    path.write_text("allow = {")
    with pytest.raises(ConfigError, match=r"policy\.toml is not valid TOML"):
        Policy.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not a text file"):
        Policy.load(path)
    path.write_text("[allow.embedding]\nwidht = 3")
    with pytest.raises(ConfigError, match=r"policy\.toml: no key 'widht' .* 'width'\?"):
        Policy.load(path)


def test_kinds_are_checked_against_the_method() -> None:
    policy = Policy.from_table({"allow": {"embeding": {}, "gradient": {}}})
    policy.check_kinds(["embeding", "gradient", "more"])
    with pytest.raises(ConfigError, match=r"no Kind 'embeding' to allow.* 'embedding'\?"):
        policy.check_kinds(kind.name for kind in (EMBEDDING, GRADIENT))


def test_a_template_names_every_kind_and_what_it_reveals() -> None:
    odd = Kind("größe", (), reveals="two\nlines = 3")
    kinds = [EMBEDDING, GRADIENT, odd]
    text = Policy.template(kinds)
    assert Policy.from_table(tomllib.loads(text)) == Policy.allowing(kinds)
    assert "# embedding (batch × dim) reveals: the sender's features" in text
    every = tomllib.loads("\n".join(line.removeprefix("# ") for line in text.splitlines()[3:11]))
    limits = Policy.from_table({"allow": {"x": every["allow"]["embedding"]}}).allow["x"]
    assert all(limits.table()), "every limit that the template names can be taken as it is"
    assert set(limits.table()) == {
        "to", "bytes", "width", "width_ratio", "releases", "min_batch", "min_members",
    }  # fmt: skip
