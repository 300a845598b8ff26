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

PREPARED = "its share in the means, spreads and categories by which columns were prepared."


def told(**parties: Any) -> dict[str, Any]:
    return {"privacy": {"simulated": False, "parties": parties}}


def test_one_sentence_for_all_of_whom_the_same_is_to_be_said() -> None:
    both = {"embeddings": EMBEDDINGS}
    assert sentences(told(shop=both, post=both)) == [
        "The vectors of shop and post left with ε = 8 at δ = 1e-05 for each row in this run "
        "(Gaussian noise, per release, weights given). This covers the row's own vectors. It does "
        "not cover what the networks have learnt from the row, which shows in the vectors of other "
        "rows, too. Labels are not part of it.",
    ]
    assert sentences({}) == [] == sentences({"privacy": {"simulated": True, "parties": {}}})


def test_what_ended_early_and_what_earlier_runs_have_spent_is_said() -> None:
    part = EMBEDDINGS | {"epsilon": 5.25, "all_runs": 9.5, "claim": "per record"}
    (said,) = sentences(told(shop={"embeddings": part}))
    assert "ε = 5.25 of 8 that were planned at" in said and "per record" in said
    others = "; with what all other runs have told of these rows under such noise ε = 9.5."
    assert f"{others} This covers all that" in said


def test_each_claim_is_said_in_plain_words() -> None:
    three = ("port", "post", "shop")

    def said(claim: str, what: str = "embeddings") -> str:
        (found,) = sentences(
            told(**{name: {what: EMBEDDINGS | {"claim": claim}} for name in three})
        )
        return found

    frozen = said("per record, preparation given")
    assert frozen.startswith("The vectors of port, post and shop left with")
    assert "tell of the row, but not its share in the means, spreads and categories" in frozen
    assert "means" not in said("per record")
    assert "adds the ε of the models" in said("per record, with the epsilon of models added")
    summed = said("per release, weights given; in the sum alone", "sums")
    assert "each leaves only under a mask" in summed
    assert said("in a way of its own").endswith("(Gaussian noise, in a way of its own).")


def test_what_leaves_beside_models_is_not_said_to_be_covered() -> None:
    models = EMBEDDINGS | {"releases": 2, "claim": "per record, preparation given"}
    (said,) = sentences(told(shop={"models": models}, post={"models": models}))
    assert said.startswith("The models of shop and post were trained with ε = 8 at δ = 1e-05")
    assert said.endswith("and nothing that leaves beside the models, nor " + PREPARED)
    models["claim"] = "per record"
    (said,) = sentences(told(shop={"models": models}))
    assert said.endswith("and nothing that leaves beside the models.")


@pytest.mark.parametrize("part", [{}, {"epsilon": "much"}, EMBEDDINGS | {"delta": None}])
def test_a_party_that_tells_nonsense_does_not_stop_the_report(part: dict[str, Any]) -> None:
    (said,) = sentences(told(shop={"embeddings": part}))
    assert said == "The embeddings of shop are said to be protected, and not how."
