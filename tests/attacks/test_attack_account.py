"""An account speaks for its sender: the label holder's numbers are its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from nursery import Nursery

import colonnade
from colonnade.config.federation import Federation, load
from colonnade.deploy.nvflare.submit import Outcome, _joined
from colonnade.deploy.supervisor import Options
from colonnade.errors import RoleFailed
from colonnade.results.history import history
from colonnade.results.writer import ResultFile
from colonnade.task import calibration
from colonnade.task.measures import scored

STOPPED = {"best_epoch": 1, "of": 2, "metric": "auc", "value": 0.5}
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


def trained(nursery: Nursery, folder: Path, **lies: list[str]) -> dict[str, Any]:
    """The label holder's own result, whatever the others lied about."""
    program = (*nursery.program(Path("x"))[:-2], str(LIAR), json.dumps(lies))
    options = Options(restarts=0, program=program)
    colonnade.run(TREE, out=folder / "run", runtime="process", processes=options)
    path = folder / "run" / "parties" / "party1" / "result.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def honest(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(nursery, tmp_path_factory.mktemp("honest"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("tell_nothing", "'decision' is missing"),
        ("claim_accuracy", "it holds no labels"),
        ("judge_in_the_holders_name", "it holds no labels"),
        ("rewrite_history", "of 'party1'"),
    ],
)
def test_an_account_that_speaks_for_others_is_refused_and_its_sender_named(
    lie: str, why: str, nursery: Nursery, tmp_path: Path
) -> None:
    """A member tells of numbers that are not its own to tell; the run must refuse its account with
    a typed error that names it, and no result may hold its claims."""
    try:
        trained(nursery, tmp_path, party3=[lie])
    except RoleFailed as refusal:
        said = str(refusal)
        assert "CodecError: 'party3' sent an account" in said and why in said
        assert "Traceback" not in said
        return
    raise AssertionError("the forged account was taken")


@pytest.mark.slow
def test_what_a_member_says_of_itself_changes_nobody_elses_numbers(
    honest: dict[str, Any], nursery: Nursery, tmp_path: Path
) -> None:
    """A member claims a slow clock and warns in everybody's name; the holder's accuracy, confusion,
    losses and times stay its own, and every sentence of the member's bears its name."""
    found = trained(nursery, tmp_path, party3=["slow_clock", "warn_in_the_runs_name"])
    assert found["metrics"] == honest["metrics"]
    for mine, before in zip(found["history"], honest["history"], strict=True):
        assert mine["parties"]["party1"] == before["parties"]["party1"]
        assert mine["seconds"] < 100
    assert max(found["timing"]["seconds_per_epoch"]) < 100
    assert found["timing"]["by_phase"]["train"] < 100
    said = [line for line in found["warnings"] if "wrong" in line or "stop it" in line]
    assert len(said) == 2 and all(line.startswith("'party3' says: ") for line in said)


def test_epochs_that_the_label_holder_never_had_are_nobodys() -> None:
    """A member's account has two epochs more of a phase that the judge of all went through, a slow
    one among them."""

    def told(epochs: int, **logged: float) -> list[dict[str, Any]]:
        seconds = [1.0, 1.0, 1e9, 2.0][:epochs]
        return [
            {"phase": "train", "epoch": i + 1, "of": epochs, "seconds": seconds[i]} | logged
            for i in range(epochs)
        ]

    parties = ["bank", "shop"]
    alone = {"phase": "pretrain", "epoch": 1, "of": 1, "seconds": 3.0, "loss": 0.5}
    entries = {"bank": told(2, loss=0.5), "shop": [alone, *told(4, loss=0.25)]}
    rows = history(entries, parties, "bank")
    assert [(row["phase"], row["epoch"]) for row in rows if row["phase"] == "train"] == [
        ("train", 1),
        ("train", 2),
    ]
    assert sum(row["seconds"] for row in rows if row["phase"] == "train") == 2.0
    assert [row["seconds"] for row in rows if row["phase"] == "pretrain"] == [3.0]  # its own phase


# ---- through an engine ---------------------------------------------------------------------------


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


DECISION: dict[str, Any] = {
    "threshold": 0.3,
    "chosen_by": "rate",
    "positive": 1,
    "calibration": {
        "way": "none",
        "positive": 1,
        "slope": 1.0,
        "offset": 0.0,
        "lines": [],
        "note": "",
    },
}
HONEST = {
    "per_party": {"bank": 0.25},
    "measures": {
        "bank": {
            "auc": {"value": 0.5, "low": 0.25, "high": 0.75},
            "precision": {"value": None, "low": None, "high": float("nan")},
        }
    },
    "curves": {"bank": {"roc": {"false_positive_rate": [0.0, 1.0], "recall": [0.0, 1.0]}}},
}


def site(name: str, other: str, kind: str, **account: Any) -> dict[str, Any]:
    """What an honest site tells."""
    told = {
        "history": [
            {"phase": "train", "epoch": 1, "of": 1, "seconds": 1.0}
            | ({"loss": 0.5} if name == "bank" else {})
        ],
        "scores": {"test": HONEST} if name == "bank" else {},
        "spent": {},
        "remarks": [],
        "weights_sha256": "ef" * 32,
        "decision": DECISION if name == "bank" else None,
        "task": {"kind": "binary", "classes": ["no", "yes"], "positive": "yes"},
        "warnings": [],
    }
    flow = {"sender": name, "receiver": other, "kind": kind, "messages": 1, "bytes": 8}
    return {
        "account": told | account,
        "wire": {"flows": [flow], "by_phase": {"train": {"bytes": 8, "messages": 1}}},
        "rounds": 2,
        "data": {
            "name": "own",
            "train_rows": 4,
            "test_rows": 4,
            "classes": ["no", "yes"],
            "task": {"kind": "binary", "classes": ["no", "yes"], "positive": "yes"},
            "partition": "",
        },
        "warnings": [],
        "log": "",
    }


def submitted(federation: Federation, folder: Path, telco: Any) -> dict[str, Any]:
    """The result of a job whose second site tells this."""
    run, name = federation.run, federation.holder
    folder.mkdir()
    file = ResultFile.begin(folder, run, "nvflare", federation.cast, name)
    sites = {"bank": site("bank", "telco", "gradient"), "telco": telco}
    return _joined(federation, file, Outcome("FINISHED", [], sites, 0.0)).content


def test_an_honest_site_is_believed(federation: Federation, tmp_path: Path) -> None:
    found = submitted(federation, tmp_path / "run", site("telco", "bank", "embedding"))
    assert (found["status"], found["error"]) == ("finished", "")
    assert (found["wire"]["bytes"], found["wire"]["messages"], found["wire"]["rounds"]) == (
        16,
        2,
        2,
    )


@pytest.mark.parametrize(
    "lie",
    [
        {"account": {}},
        {"account": []},
        {"account": 3},
        "nothing",
        None,
        {"scores": {"test": {"per_party": {"telco": 1.0}}}},
        {"scores": {"test": {"per_party": {"bank": 1.0}}}},
        {"scores": {"test": {"accuracy": {"telco": 1.0}}}},
        {"scores": {"test": {"confusion": [[9]], "confusion_party": "bank"}}},
        {"scores": {"test": {"ppm": {"bank": 1.0}}}},
        {"scores": {"test": {"ppm": {"telco": float("nan")}}}},
        {"scores": {"x" * 1000: {}}},
        {"history": [{"phase": "train", "epoch": 1, "of": 1, "seconds": float("inf")}]},
        {"history": [{"phase": "train", "epoch": 1, "of": 1, "seconds": 1, "loss": 10**400}]},
        {"history": [{"phase": "train", "epoch": 1, "of": 1, "seconds": 1, "loss": "low"}]},
        {"history": [{"phase": "train", "epoch": True, "of": 1, "seconds": 1}]},
        {"history": [{"phase": "a\nb", "epoch": 1, "of": 1, "seconds": 1}]},
        {"history": [{"phase": "train", "epoch": 1, "of": 1, "seconds": 1}] * 2},
        {"history": [{"others": {"bank": {"loss": 0.0}}}]},
        {"scores": {"test": {"measures": {"bank": HONEST["measures"]["bank"]}}}},
        {"scores": {"test": {"measures": {"telco": HONEST["measures"]["bank"]}}}},
        {"scores": {"test": {"curves": {"telco": HONEST["curves"]["bank"]}}}},
        {"scores": {"test": {"value": {"telco": 1.0}}}},
        {"scores": {"test": {"absent": {"telco": 1.0}}}},
        {"decision": DECISION},
        {"stopping": STOPPED},
        {"spent": {"masking": -1.0}},
        {"remarks": ["x" * 100_000]},
        {"remarks": ["x"] * 100_000},
        {"weights_sha256": "x"},
        {"rounds": "many", "history": 3},
        {"wire": {"flows": [{"sender": "bank", "receiver": "telco", "kind": "gradient"}]}},
        {"wire": {"flows": [], "by_phase": {"train": {"bytes": 10**30, "messages": 1}}}},
        {"data": {"classes": {"a": 1}}},
    ],
)
def test_a_site_cannot_speak_for_another(lie: Any, federation: Federation, tmp_path: Path) -> None:
    """A site of an engine tells whatever it likes at the end; the label holder's numbers are those
    it told itself, nothing is a traceback, and the problem bears the site's name."""
    told: Any = lie
    if isinstance(lie, dict):
        told = site("telco", "bank", "embedding")
        for key, value in lie.items():
            (told if key in told else told["account"])[key] = value
    found = submitted(federation, tmp_path / "run", told)
    assert found["metrics"]["test"]["accuracy"] == 0.25
    assert found["metrics"]["test"]["per_party"] == {"bank": 0.25}
    assert found["metrics"]["test"]["confusion"] is None
    assert (found["metrics"]["test"]["metric"], found["metrics"]["test"]["value"]) == ("auc", 0.5)
    assert found["decision"] == DECISION
    assert [row["parties"] for row in found["history"]] == [{"bank": {"loss": 0.5}}]
    assert found["history"][0]["seconds"] == 1.0 and found["wire"]["bytes"] in (8, 16)
    assert found["status"] == "failed" and "'telco'" in found["error"]


# ---- what the label holder itself may say --------------------------------------------------------


def one(name: str = "auc", **ends: Any) -> dict[str, Any]:
    return {"measures": {"bank": {name: {"value": 0.5, "low": 0.4, "high": 0.6} | ends}}}


def curve(name: str = "roc", **axes: Any) -> dict[str, Any]:
    return {"curves": {"bank": {name: axes}}}


def calibrated(**changed: Any) -> dict[str, Any]:
    return DECISION | {"calibration": DECISION["calibration"] | changed}


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"scores": {"test": one(value=1.5)}}, "not from 0 to 1"),
        ({"scores": {"test": one(value="high")}}, "not a number"),
        ({"scores": {"test": one(value=True)}}, "not a number"),
        ({"scores": {"test": one(value=10**400)}}, "not a number"),
        ({"scores": {"test": one(low=0.7)}}, "ends before it begins"),
        ({"scores": {"test": one(sure=0.7)}}, "at most 3 entries"),
        ({"scores": {"test": one("goodness")}}, "is no measure"),
        ({"scores": {"test": one("rmse", value=-1.0)}}, "not from 0 to inf"),
        ({"scores": {"test": one("x" * 1000)}}, "not a printable text"),
        ({"scores": {"test": {"measures": {"shop": {}}}}}, "speaks of 'shop'"),
        ({"scores": {"test": curve("roc", recall=[0.0])}}, "does not have the axes"),
        (
            {"scores": {"test": curve(false_positive_rate=[0.0] * 100_000, recall=[0.0])}},
            "at most 256 entries",
        ),
        (
            {"scores": {"test": curve(false_positive_rate=[0.0], recall=[0.0, 1.0])}},
            "different lengths",
        ),
        (
            {"scores": {"test": curve(false_positive_rate=[0.0], recall=[float("inf")])}},
            "not between",
        ),
        ({"scores": {"test": curve("truth")}}, "is no curve"),
        (
            {"scores": {"test": curve(false_positive_rate=[0.0], recall=[-1.0])}},
            "not between 0 and 1",
        ),
        (
            {"scores": {"test": curve("residual_histogram", edges=[0.0, 1e308], share=[1.0])}},
            "not between -1e+100 and 1e+100",
        ),
        ({"decision": DECISION | {"threshold": float("nan")}}, "decision.threshold"),
        ({"decision": DECISION | {"threshold": "low"}}, "decision.threshold"),
        ({"decision": DECISION | {"chosen_by": "whim"}}, "not a way to decide"),
        ({"decision": {"threshold": 0.5}}, "the keys of a decision"),
        ({"decision": []}, "not a table"),
        ({"stopping": STOPPED | {"best_epoch": 9}}, "stopping.best_epoch is not a whole number"),
        ({"stopping": STOPPED | {"value": float("nan")}}, "stopping.value holds nan"),
        ({"stopping": {"best_epoch": 1}}, "does not name best_epoch, of, metric and value"),
        ({"decision": calibrated(way="magic")}, "not a calibration"),
        ({"decision": calibrated(slope=float("inf"))}, "not between"),
        ({"decision": calibrated(lines=[[[0.0, 1.0], [0.0]]])}, "a line that is none"),
        ({"decision": calibrated(lines=[[0.0] * 3])}, "at most 2 entries"),
    ],
)
def test_measures_curves_and_decisions_have_their_shape(
    lie: dict[str, Any], why: str, federation: Federation, tmp_path: Path
) -> None:
    """The label holder itself may tell of measures, curves and how it decides; numbers out of
    bounds, unknown names, long lists and calibrations that nobody can apply are refused."""
    told = site("bank", "telco", "gradient")
    told["account"] |= lie
    run, name = federation.run, federation.holder
    (tmp_path / "run").mkdir()
    file = ResultFile.begin(tmp_path / "run", run, "nvflare", federation.cast, name)
    sites = {"bank": told, "telco": site("telco", "bank", "embedding")}
    found = _joined(federation, file, Outcome("FINISHED", [], sites, 0.0)).content
    assert found["status"] == "failed" and "'bank' sent an account" in found["error"]
    assert why in found["error"]
    assert found["metrics"] == {} and "decision" not in found


def test_a_calibration_shows_no_single_score() -> None:
    """What a label holder tells a hub about its decisions, in the account."""
    draw = np.random.default_rng(0)
    chances = draw.random(400)
    truth = (draw.random(400) < chances).astype(int)
    rows = scored("binary", truth, np.stack([1 - chances, chances], 1))
    [[places, _]] = calibration.fit("isotonic", rows).told()["lines"]
    assert not set(places) & set(chances.tolist())
