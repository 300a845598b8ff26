"""What a result says about protection, in one sentence for each party."""

from __future__ import annotations

from typing import Any

import pytest

from colonnade.report.protections import sentences

EMBEDDINGS = {
    "epsilon": 8.0,
    "planned": 8.0,
    "all_runs": 8.0,
    "delta": 1e-5,
    "claim": "per release, weights given",
}


def told(**parties: Any) -> dict[str, Any]:
    return {"privacy": {"simulated": False, "parties": parties}}


def test_one_sentence_for_all_of_whom_the_same_is_to_be_said() -> None:
    both = {"embeddings": EMBEDDINGS}
    assert sentences(told(shop=both, post=both)) == [
        "shop's and post's vectors left with ε = 8 at δ = 1e-05 for each row in this run "
        "(Gaussian noise, per release, weights given).",
    ]
    assert sentences({}) == [] == sentences({"privacy": {"simulated": True, "parties": {}}})


def test_what_ended_early_and_what_earlier_runs_have_spent_is_said() -> None:
    part = EMBEDDINGS | {"epsilon": 5.25, "all_runs": 9.5, "claim": "per record"}
    (said,) = sentences(told(shop={"embeddings": part}))
    assert "ε = 5.25 of 8 that were planned at" in said and "per record" in said
    assert said.endswith(
        "; with what all other runs have told of these rows under such noise ε = 9.5."
    )


@pytest.mark.parametrize("part", [{}, {"epsilon": "much"}, EMBEDDINGS | {"delta": None}])
def test_a_party_that_tells_nonsense_does_not_stop_the_report(part: dict[str, Any]) -> None:
    (said,) = sentences(told(shop={"embeddings": part}))
    assert said == "shop's embeddings are said to be protected, and not how."
