from __future__ import annotations

import pytest
from report_examples import example, failed

from colonnade.report import prose


def test_the_sentence_of_a_split_network() -> None:
    assert prose.sentences(example()) == (
        "Four parties, each holding one quarter of every MNIST image, trained a split network for "
        "5 epochs; only party1 knows the labels. Test accuracy 98.6 %, 500 MB crossed the wire."
    )


def test_several_predicting_parties_have_a_range() -> None:
    text = prose.sentences(example(method="easter", everybody_predicts=True, epochs=1))
    assert "trained with EASTER for 1 epoch;" in text
    assert "Mean test accuracy 97.0 % (95.3 to 98.6 %), " in text


def test_epochs_alone_are_told_apart() -> None:
    result = example(method="fedemb", epochs=1)
    result["history"] = [{**result["history"][0], "phase": "local"}] * 4 + result["history"]
    assert "trained with FedEmb for 4 epochs alone and 1 epoch together;" in prose.sentences(result)


def test_nothing_sent() -> None:
    text = prose.sentences(example(method="local", messages=False))
    assert text.endswith("Test accuracy 98.6 %, nothing crossed the wire.")


def test_a_failed_run_says_so() -> None:
    text = prose.sentences(failed())
    assert "The run failed before the first epoch was over." in text
    assert text.endswith("No test accuracy was measured; nothing crossed the wire.")


def test_a_budget_is_told_with_the_outcome() -> None:
    result = example()
    result["metrics"]["test"]["epsilon"] = {"party1": 3.9999, "party2": 1.0}
    whose = "for a row at one client; a person at several clients spends at most their sum."
    told = prose.sentences(result)
    assert told.endswith(f"crossed the wire. Privacy budget spent: ε = 4 {whose}")
    result["config"][result["method"]] = {"delta": 1e-6}
    assert prose.sentences(result).endswith(f"spent: ε = 4, δ = 1e-06 {whose}")
    result["metrics"]["test"] = {"epsilon": {"party1": 4.0}}
    assert prose.sentences(result).endswith(whose)
    stopped = prose.sentences(example(status="stopped", epochs=3))
    assert "The run stopped after 3 epochs." in stopped


def divided(partition: str) -> dict[str, object]:
    """The configuration of a partition that is described so."""
    kind, _, size = partition.partition(" ")
    grid = [int(n) for n in size.split("×")] if "×" in size else None
    return {"kind": kind.rstrip(",") or "whole"} | ({"grid": grid} if grid else {})


@pytest.mark.parametrize(
    ("parties", "partition", "helpers", "phrase"),
    [
        (["a"], "", {}, "One party, holding all of MNIST,"),
        (["a", "b"], "strips 2", {}, "each holding one half of every MNIST image"),
        (["a", "b"], "columns, 2 parties", {}, "each holding columns of MNIST of its own"),
        (
            ["a", "b", "server"],
            "tiles 1×2",
            {"server": "a server"},
            "Two parties and a server, each holding one half of every MNIST image, trained",
        ),
        (["a", "b"], "tiles 2×2", {}, "Two parties, sharing MNIST (tiles 2×2)"),
        (["a", "b"], "hybrid", {}, "each holding different rows and a different part of MNIST"),
        (["a", "b"], "rectangles", {}, "each with its own view of every MNIST image"),
        (["a", "b"], "whole", {}, "Two parties, sharing MNIST (whole),"),
    ],
)
def test_who_holds_what(
    parties: list[str], partition: str, helpers: dict[str, str], phrase: str
) -> None:
    data = example()["data"] | {"partition": partition}
    config = example()["config"] | {"partition": divided(partition)}
    about = {"title": "Own", "trained": "a network", "repeats": True, "helpers": helpers}
    text = prose.sentences(example(parties=parties, data=data, about=about, config=config))
    assert phrase in text
    assert "labels" not in text


def test_counted() -> None:
    assert prose.counted(1, "party") == "one party"
    assert prose.counted(10, "party") == "ten parties"
    assert prose.counted(1300, "run") == "1,300 runs"


def test_unknown_methods_keep_their_name() -> None:
    assert prose.about(example(method="my_method"))["title"] == "my_method"
    assert prose.about(example(method="jovefl"))["title"] == "JoVe-FL"


def test_a_method_says_what_is_told_of_it() -> None:
    told = {"title": "My Method", "trained": "", "repeats": True}
    result = example(method="my_method", about=told)
    assert prose.about(result).items() >= told.items()
    assert "trained with My Method for 5 epochs" in prose.sentences(result)
    result["about"] = told | {"trained": "one tree each"}
    assert "trained one tree each for 5 epochs" in prose.sentences(result)


def test_an_older_run_is_told_by_its_method() -> None:
    result = example(method="heteronn")
    assert prose.about(result)["repeats"]  # in clear
    result["config"]["heteronn"] = {"encryption": "paillier"}
    assert not prose.about(result)["repeats"]
    result["config"]["heteronn"] = {"an option": "that is gone"}
    assert prose.about(result)["title"] == "Hetero-NN" and not prose.about(result)["repeats"]


def test_clients_know_their_own_labels() -> None:
    told = {"title": "Own", "trained": "", "repeats": True, "own_labels": True}
    text = prose.sentences(example(parties=["a", "b"], about=told))
    assert "; each knows the labels of its own rows." in text


def test_a_threshold_is_told() -> None:
    result = example(classes=["no", "yes"])
    result["decision"] = {"threshold": 0.2525, "chosen_by": "cost", "positive": 1}
    told = " A row is flagged as yes from a probability of 0.253 on."
    assert prose.sentences(result).endswith(told)
    result["decision"]["threshold"] = None
    assert "flagged" not in prose.sentences(result)


def test_protected_labels_are_told_with_what_a_passive_party_guesses() -> None:
    result = example(method="easter", everybody_predicts=True)
    assert "answers" not in prose.sentences(result)
    said = {"epsilon": 2.0, "asked": 2.0, "kept": 0.451, "odds": 7.389}
    result["privacy"] = {"simulated": False, "parties": {"party1": {"labels": said}}}
    told = prose.sentences(result)
    assert "within ε = 2 (each is right with a probability of 45.1 %): whatever others" in told
    assert "a guarantee for labels, not for features. It does not cover rows that are for" in told
    assert "by at most a factor of 7.39 for them." in told
    best = max(v for p, v in result["metrics"]["test"]["per_party"].items() if p != "party1")
    assert f"predicts {100 * best:.1f} % of the test rows rightly" in told
    said |= {"asked": 0.5}
    assert "ε = 0.5 was asked for" in prose.sentences(result)
    plain = example()
    plain["privacy"] = result["privacy"]
    assert "may train a network on answers" in prose.sentences(plain)
    assert "nothing is protected" not in prose.sentences(plain)
    plain["privacy"]["simulated"] = True
    assert prose.sentences(plain).endswith("simulate_noise_seed: nothing is protected.")
    del said["odds"]
    assert "Labels are said to be protected, and not how." in prose.sentences(plain)
