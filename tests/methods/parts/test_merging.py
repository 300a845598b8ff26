"""What a server makes of the networks of a round: shares by age and rows, one step or a mixture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from colonnade.errors import MethodError
from colonnade.methods.parts.merging import Merging, check_alike

CPU = torch.device("cpu")


def message(value: float, base: int = 0, rows: int = 1) -> tuple[dict[str, Tensor], dict[str, Any]]:
    buffers = {"mean": torch.tensor([10 * value])}
    told = {"buffers": buffers, "base": base, "rows": rows, "work": 1.0}
    return {"weight": torch.tensor([value])}, told


def merged(rule: Merging, here: dict[str, Any], **sent: Any) -> tuple[float, float]:
    came = {name: tree for name, (tree, _) in sent.items()}
    rule.merge(here, came, {name: told for name, (_, told) in sent.items()}, CPU)
    return float(here["head"]["parameters"]["weight"]), float(here["head"]["buffers"]["mean"])


def test_the_mean_counts_age_and_rows() -> None:
    late = {"a": message(1.0, base=3), "b": message(5.0, base=0)}  # three rounds behind
    assert merged(Merging(stale=0.0), {"round": 3}, **late) == pytest.approx((3.0, 30.0))
    assert merged(Merging(stale=1.0), {"round": 3}, **late) == pytest.approx((1.8, 18.0))
    many = {"a": message(1.0, rows=30), "b": message(5.0, rows=10)}
    assert merged(Merging(weighted=True), {}, **many) == pytest.approx((2.0, 20.0))


def test_async_mixes_the_only_one_into_the_present_one() -> None:
    rule, here = Merging(mode="async", mixing=0.5, stale=1.0), dict[str, Any]()
    assert merged(rule, here, a=message(1.0)) == pytest.approx((1.0, 10.0))  # nothing was there
    here["round"] = 1
    assert merged(rule, here, b=message(5.0, base=1)) == pytest.approx((3.0, 30.0))
    here["round"] = 2
    assert merged(rule, here, a=message(7.0, base=1)) == pytest.approx((4.0, 40.0))  # 0.25 of it


def test_a_strategy_keeps_its_memory() -> None:
    rule, here = Merging("fedavgm", server_momentum=0.5), dict[str, Any]()
    found = []
    for number in range(3):
        here["round"] = number
        found.append(merged(rule, here, a=message(float(number), base=number))[0])
    assert found == pytest.approx([0.0, 1.0, 2.5])  # v: 1, then 0.5 + (2 - 1)
    assert here["memory"]


def test_nothing_that_can_be_read_changes_nothing() -> None:
    here = {"round": 4}
    Merging().merge(here, {}, {"a": message(1.0)[1]}, CPU)
    assert here == {"round": 4}


def test_networks_of_which_there_is_no_mean() -> None:
    trees = {name: message(1.0) for name in "abc"}
    trees["c"] = {"weight": torch.zeros(2)}, trees["c"][1]
    came = {name: tree for name, (tree, _) in trees.items()}
    told = {name: about for name, (_, about) in trees.items()}
    check_alike({}, {}, "")
    check_alike({name: came[name] for name in "ab"}, told, "")
    with pytest.raises(MethodError, match=r"of 'a' and 'c' have different layers.* Make them one."):
        check_alike(came, told, "Make them one.")


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"mode": "async", "strategy": "fedadam"}, "strategy = 'fedadam' has no meaning"),
        ({"mode": "async", "weighted": True}, "weighted = True has no meaning"),
        ({"mixing": 1.1}, "mixing = 1.1"),
        ({"stale": -1.0}, "stale = -1.0"),
        ({"server_beta2": 1.0}, "server_beta2 = 1.0"),
    ],
    ids=str,
)
def test_out_of_bounds(bad: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Merging(**bad)
