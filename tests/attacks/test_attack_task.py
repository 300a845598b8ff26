"""A hub tells the others what is to be learnt: nonsense is refused, and the hub named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from nursery import Nursery

import colonnade
from colonnade import methods
from colonnade.config.federation import Federation, load
from colonnade.deploy.nvflare.told import checked
from colonnade.deploy.supervisor import Options
from colonnade.errors import CodecError, DataError, RoleFailed
from colonnade.results import account
from colonnade.task import Task
from colonnade.task.task import MOST_CLASSES

LIAR = Path(__file__).with_name("liar.py")
TREE = {
    "method": "splitnn",
    "seed": 3,
    "epochs": 2,
    "batch_size": 50,
    "model_options": {"hidden": [16]},
    "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
    "partition": {"kind": "columns", "parties": 3},
    "absence": False,
    "splitnn": {"dim": 8},
}


def refused(
    lie: str, nursery: Nursery, folder: Path, tree: dict[str, Any] = TREE, restarts: int = 0
) -> RoleFailed:
    """The error of a run whose hub, party1, lies."""
    lies = json.dumps({"party1": [lie]})
    program = (*nursery.program(Path("x"))[:-2], str(LIAR), lies)
    options = Options(restarts=restarts, program=program)
    with pytest.raises(RoleFailed) as caught:
        colonnade.run(tree, out=folder / "run", runtime="process", processes=options)
    assert "Traceback" not in str(caught.value)
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("tell_a_spread_that_is_no_number", "numbers around 0 with the spread nan are none"),
        ("tell_an_endless_mean", "numbers around inf with the spread 1 are none"),
        ("tell_a_mean_in_words", "their mean and spread are not told"),
        ("tell_a_million_classes", "no list of 2 to 1000 is told"),
        ("tell_a_list", "what is to be learnt is not told"),
    ],
)
def test_a_task_that_is_none_is_refused_and_the_hub_named(
    lie: str, why: str, nursery: Nursery, tmp_path: Path
) -> None:
    """Whoever hears it makes no model of it: the run ends with a typed error, and without weights
    of any other party."""
    said = str(refused(lie, nursery, tmp_path))
    assert "Untrusted: 'party1' says what is to be learnt, and that is refused" in said
    assert why in said
    for party in ("party2", "party3"):
        assert not list((tmp_path / "run" / "parties" / party).glob("weights*"))


@pytest.mark.slow
def test_a_hub_that_tells_another_task_after_a_restart_is_named(
    nursery: Nursery, tmp_path: Path
) -> None:
    """What others have trained until then has outputs for the classes that they were told first."""
    tree = TREE | {"method": "easter", "epochs": 6, "checkpoint": {"steps": 2}}
    del tree["splitnn"]  # type: ignore[attr-defined]
    lie = "tell_fewer_classes_when_it_comes_back"
    said = str(refused(lie, nursery, tmp_path, tree, restarts=1))
    assert "Untrusted: 'party1' says what is to be learnt" in said and "was told before" in said


@pytest.mark.slow
def test_a_hub_that_stops_one_party_before_the_others_is_named(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Each party hears what could be true. The one that ends is not blamed: the run fails at the
    hub, which waits for it, and nobody has the weights of a finished run."""
    data = {"name": "digits", "train_rows": 200, "test_rows": 60, "validation": 0.2}
    tree = TREE | {"epochs": 4, "patience": 1, "data": data}
    error = refused("stop_party3_before_the_others", nursery, tmp_path, tree)
    assert error.party == "party1" and str(error).startswith("'party1': Deadlock")
    assert "Untrusted" not in str(error)
    assert not (tmp_path / "run" / "weights").exists()


TOLD: list[tuple[object, str]] = [
    (None, "not told"),
    ({}, "not told"),
    ({"kind": "regression"}, "mean and spread are not told"),
    ({"kind": "regression", "mean": 0.0, "spread": -1.0}, "are none"),
    ({"kind": "regression", "mean": 0.0, "spread": True}, "mean and spread are not told"),
    ({"kind": "regression", "mean": 10**400, "spread": 1.0}, "mean and spread are not told"),
    ({"kind": "regression", "mean": 0.0, "spread": 1.0, "classes": []}, "not told"),
    ({"kind": ["binary"], "classes": ["no", "yes"]}, "another version"),
    ({"kind": "binary", "classes": ["a", "b", "c"]}, "two classes are to be learnt, and 3"),
    ({"kind": "binary", "classes": ["no", "no"]}, "two classes have one name"),
    ({"kind": "binary", "classes": {"no": 0, "yes": 1}}, "no list"),
    ({"kind": "multiclass", "classes": ["no", 1, []]}, "a class is no text"),
    ({"kind": "multiclass", "classes": ["x" * 3000, "y"]}, "at most 2000 letters"),
    ({"kind": "binary", "classes": ["no", "yes"], "positive": "maybe"}, "is 'maybe'"),
    ({"kind": "binary", "classes": ["no", "yes"], "positive": "\x1b[2J"}, r"is '\\x1b\[2J'"),
    ({"kind": "binary", "classes": ["no", "yes"], "weights": [1.0]}, "no list"),
    ({"kind": "binary", "classes": ["no", "\ud800"]}, "a class is no text"),  # in no file
]


def test_what_has_a_task_has_a_result() -> None:
    """A class more than a confusion matrix may have is refused before anything is trained."""
    method = methods.find("splitnn").method
    cast = {"bank": "active", "shop": "passive"}
    holder = account.Speaker.of("bank", method, None, cast, "bank")

    def told(count: int) -> dict[str, Any]:
        names = [f"class {n}" for n in range(count)]
        test = {"confusion": [[0] * count] * count, "confusion_party": "bank"}
        empty: dict[str, Any] = {"history": [], "spent": {}, "remarks": [], "warnings": []}
        task = {"kind": "multiclass", "classes": names}
        return empty | {
            "scores": {"test": test},
            "decision": None,
            "weights_sha256": "0" * 64,
            "task": task,
        }

    most = told(MOST_CLASSES)
    assert len(Task.from_told(most["task"]).classes) == MOST_CLASSES
    assert account.check(most, holder) == most
    more = told(MOST_CLASSES + 1)
    with pytest.raises(DataError, match="no list of 2 to 1000"):
        Task.from_told(more["task"])
    with pytest.raises(CodecError, match="confusion is not a list of at most 1000"):
        account.check(more, holder)


@pytest.mark.parametrize(("told", "why"), TOLD)
def test_what_is_no_task_is_refused(told: object, why: str) -> None:
    with pytest.raises(DataError, match=why):
        Task.from_told(told)


@pytest.mark.parametrize(
    "task",
    [
        Task("regression", mean=4000.0, spread=2.5),
        Task("binary", ("no", "yes"), positive=0),
        Task("multiclass", ("a", "b", "c")),
        Task("multiclass", ("no", "yes")),
    ],
)
def test_what_is_told_is_what_is_heard(task: Task) -> None:
    """Also through JSON, as it travels."""
    assert Task.from_told(json.loads(json.dumps(task.told()))).told() == task.told()


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    tree = {
        "name": "ours",
        "run": {"method": "splitnn"},
        "parties": {
            "bank": {"address": "a.org:1", "signing_key": "ab" * 32},
            "telco": {"signing_key": "cd" * 32},
        },
    }
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(tree))
    return load(tmp_path / "federation.toml")


@pytest.mark.parametrize("told", [told for told, _ in TOLD[2:]])
def test_a_site_that_tells_of_no_task_is_refused(told: Any, federation: Federation) -> None:
    """What an engine collects is looked at by the same eyes."""
    found = checked({"data": {"task": told}}, "telco", federation)
    assert "CodecError: 'telco' tells" in found["problem"] and found["data"] == {}
