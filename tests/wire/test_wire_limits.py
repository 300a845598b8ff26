"""[privacy] of a policy: what all runs together may tell of one record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from colonnade.errors import ConfigError
from colonnade.wire import Kind
from colonnade.wire.limits import Limits
from colonnade.wire.policy import Policy


def test_a_policy_keeps_its_limits(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("[privacy]\nlabels = 8\nfeatures = 20.5\ndelta = 1e-6\n[allow.embedding]\n")
    policy = Policy.load(file)
    assert policy.privacy == Limits(8.0, 20.5, 1e-6)
    assert Policy.from_table(policy.only(["embedding"]).table()).privacy == policy.privacy
    assert Policy.from_table({"allow": {}}).privacy == Limits()
    assert "privacy" not in Policy.from_table({"allow": {}}).table()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"label": 8}, "labels"),
        ({"labels": 0}, "above 0; for no limit omit it"),
        ({"features": float("inf")}, "above 0"),
        ({"features": float("nan")}, "above 0"),
        ({"features": True}, "above 0"),
        ({"features": "20"}, "above 0"),
        ({"features": 20, "delta": 1}, "between 0 and 1"),
        ({"delta": 1e-6}, "belongs to a limit"),
        ([], "must be a table"),
    ],
)
def test_a_limit_that_would_not_limit_is_refused(table: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=r"privacy") as refused:
        Policy.from_table({"privacy": table}, "policy.")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("carries", "features", "labels"),
    [
        ("features", "features", None),
        ("labels", None, "labels"),
        ("models", "features", "labels"),
        ("", "features", "labels"),
        ("released", None, None),
    ],
)
def test_what_nobody_counts_is_known_by_what_it_carries(
    carries: Any, features: str | None, labels: str | None
) -> None:
    kind = Kind("part", ("batch", "dim"), reveals="something", carries=carries)
    assert Limits(features=1.0).uncounted(kind) == features
    assert Limits(labels=1.0).uncounted(kind) == labels
    assert Limits().uncounted(kind) is None
    key = Kind("key", (), reveals="a key", about="nothing", carries=carries)
    assert Limits(1.0, 1.0).uncounted(key) is None
