"""Kinds: what each one lets through, and what its refusals say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from colonnade.errors import KindError
from colonnade.wire import Kind

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="features")
FIXED = Kind("key", (32,), reveals="nothing", dtype="uint8")
SQUARE = Kind("gram", ("n", "n", 3), reveals="inner products")
LOSS = Kind("loss", (), reveals="the mean loss")
OPEN = Kind("open", ("n",), reveals="anything", dtype="any")
WEIGHTS = Kind("weights", None, reveals="the model")
ANYTHING = Kind("anything", None, reveals="anything", dtype="any")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (EMBEDDING, torch.zeros(4, 7)),
        (EMBEDDING, torch.zeros(0, 7)),
        (EMBEDDING, torch.zeros(3, 4).T),
        (FIXED, torch.zeros(32, dtype=torch.uint8)),
        (SQUARE, torch.zeros(5, 5, 3)),
        (LOSS, torch.tensor(1.0)),
        (OPEN, torch.zeros(2, dtype=torch.bfloat16)),
        (WEIGHTS, {"a": {"b": torch.zeros(1)}, "step": 3, "lr": 0.1, "on": True}),
        (WEIGHTS, {"text": "ε", "raw": b"\0", "low": -(1 << 63), "high": (1 << 63) - 1}),
        (WEIGHTS, torch.zeros(2, 3, 4)),
        (WEIGHTS, {}),
        (ANYTHING, {"a": torch.zeros(1), "b": torch.zeros(1, dtype=torch.int8)}),
    ],
)
def test_accepted(kind: Kind, value: Any) -> None:
    kind.check(value, "bank")


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (EMBEDDING, torch.zeros(4), r"shape \(4,\) .* declared as batch × dim"),
        (EMBEDDING, torch.zeros(4, 7, 1), r"shape \(4, 7, 1\) .* declared as batch × dim"),
        (LOSS, torch.zeros(1), r"shape \(1,\) .* declared as scalar"),
        (FIXED, torch.zeros(31, dtype=torch.uint8), r"shape \(31,\) .* declared as 32"),
        (SQUARE, torch.zeros(5, 4, 3), r"shape \(5, 4, 3\) .* declared as n × n × 3"),
        (SQUARE, torch.zeros(5, 5, 4), r"shape \(5, 5, 4\) .* declared as n × n × 3"),
        (EMBEDDING, torch.zeros(4, 7).double(), "float64 .* declared as float32"),
        (FIXED, torch.zeros(32, dtype=torch.int8), "int8 .* declared as uint8"),
        (OPEN, torch.zeros(2, dtype=torch.complex64), "complex64 .* declared as any"),
        (EMBEDDING, torch.zeros(4, 7, requires_grad=True), r"send value\.detach\(\)"),
        (EMBEDDING, torch.ones(4, 7, requires_grad=True) * 2, "autograd graph"),
        (EMBEDDING, {"a": torch.zeros(4, 7)}, "sent dict .* declared as a tensor batch × dim"),
        (EMBEDDING, 1.0, "sent float"),
        (EMBEDDING, np.zeros((4, 7), np.float32), "sent ndarray"),
        (EMBEDDING, None, "sent NoneType"),
        (WEIGHTS, {"a": {"b": torch.zeros(1).double()}}, r"float64 .* at 'a\.b'"),
        (WEIGHTS, {"a": torch.zeros(1, requires_grad=True)}, "at 'a': send value"),
        (WEIGHTS, {"a": {"b": None}}, r"NoneType .* at 'a\.b'"),
        (WEIGHTS, {"a": [1, 2]}, "list .* at 'a'"),
        (WEIGHTS, {"a": {2: 1}}, "with the name 2: use text"),
        (WEIGHTS, {"a": 1 << 63}, "9223372036854775808 .* at 'a': it does not fit 64 bits"),
        (WEIGHTS, lambda: 1, "sent function"),
    ],
)
def test_refused(kind: Kind, value: Any, why: str) -> None:
    with pytest.raises(KindError, match=why) as caught:
        kind.check(value, "hospital")
    message = str(caught.value)
    assert "'hospital'" in message and f"'{kind.name}'" in message


def test_equal_names_bind_within_one_message_only() -> None:
    SQUARE.check(torch.zeros(2, 2, 3), "bank")
    SQUARE.check(torch.zeros(9, 9, 3), "bank")


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("", {}, "letters, digits"),
        ("../x", {}, "letters, digits"),
        ("a b", {}, "letters, digits"),
        ("1st", {}, "letters, digits"),
        ("key", {"dtype": "float"}, "no dtype 'float'"),
        ("key", {"dtype": "complex64"}, "no dtype 'complex64'"),
        ("key", {"reveals": ""}, "must say what it reveals"),
        ("key", {"reveals": "  "}, "must say what it reveals"),
        ("key", {"shape": "batch"}, "shape = 'batch'"),
        ("key", {"shape": ["batch"]}, "give a tuple"),
        ("key", {"shape": ("batch", -1)}, "give a tuple of names and sizes"),
        ("key", {"shape": ("batch", True)}, "give a tuple of names and sizes"),
        ("key", {"shape": ("batch", 1.5)}, "give a tuple of names and sizes"),
        ("key", {"shape": ("",)}, "give a tuple of names and sizes"),
    ],
)
def test_bad_declarations(name: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(KindError, match=why):
        Kind(name, **({"shape": ("batch",), "reveals": "features"} | options))


@pytest.mark.parametrize(
    ("kind", "text"),
    [(EMBEDDING, "batch × dim"), (LOSS, "scalar"), (WEIGHTS, "tree"), (SQUARE, "n × n × 3")],
)
def test_described(kind: Kind, text: str) -> None:
    assert kind.describe() == text


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(KindError, match=r"sent a tensor of layout torch\.sparse_coo"):
        EMBEDDING.check(torch.eye(3).to_sparse(), "bank")
