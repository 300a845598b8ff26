"""Training that stops by itself: every party ends with the weights of the best epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes

import colonnade
from colonnade.errors import ConfigError, DataError, KindError, MethodError, Untrusted
from colonnade.methods import splitnn
from colonnade.report import load_schema, sentences
from colonnade.role import stopping
from colonnade.role.method import Learning
from colonnade.role.progress import Stopped
from colonnade.runs.run import Result
from colonnade.wire import Kind, Peer

TOGETHER = ("splitnn", "easter", "aggvfl", "cvfl", "heteronn")
ALONE = ("local", "centralised")


def settings(method: str = "splitnn", **changes: Any) -> dict[str, Any]:
    """A rate at which the validation loss soon rises again."""
    base: dict[str, Any] = {
        "method": method,
        "seed": 1,
        "epochs": 12,
        "batch_size": 64,
        "lr": 0.2,
        "schedule": "constant",
        "metric": "log_loss",
        "model_options": {"hidden": [16]},
        "data": {"validation": 0.3},
        "checkpoint": {"steps": 3},
        "absence": False,
    }
    return base | changes


def patients() -> dict[str, Any]:
    x, y = load_breast_cancer(return_X_y=True)
    return {"clinic": (x[:, :10], y), "laboratory": x[:, 10:20], "insurer": x[:, 20:]}


def train(folder: Path, method: str = "splitnn", **changes: Any) -> Result:
    return colonnade.run(settings(method, **changes), parties=patients(), out=folder)


def by_epoch(result: Result, what: str) -> list[float]:
    """The mean over the parties whose predictions count."""
    return [
        float(np.mean([numbers[what] for numbers in row["parties"].values() if what in numbers]))
        for row in result.content["history"]
    ]


@pytest.mark.parametrize("method", [*TOGETHER, *ALONE])
def test_every_party_ends_as_if_the_best_epoch_had_been_the_last(
    method: str, tmp_path: Path
) -> None:
    stopped = train(tmp_path / "stopped", method, patience=2)
    told = stopped.content["stopping"]
    best, of = told["best_epoch"], told["of"]
    losses = by_epoch(stopped, "validation_log_loss")
    assert len(losses) == of == best + 2 < 12
    assert losses.index(min(losses)) + 1 == best
    assert (told["metric"], told["value"]) == ("log_loss", pytest.approx(min(losses), rel=1e-12))
    whole = train(tmp_path / "whole", method, epochs=best)
    assert stopped.weights_sha256 == whole.weights_sha256
    assert stopped.content["metrics"] == whole.content["metrics"]
    sent = stopped.wire["by_kind"].get("verdict", {"messages": 0})["messages"]
    assert sent == (2 * of if method in TOGETHER else 0)
    assert "stopping" not in whole.content and "verdict" not in whole.wire["by_kind"]


def test_the_result_says_so_in_a_sentence(tmp_path: Path) -> None:
    stopped = train(tmp_path / "stopped", patience=2)
    told = stopped.content["stopping"]
    said = f"Stopped after epoch {told['of']}; best epoch {told['best_epoch']} by log loss"
    assert said in sentences(stopped.content)
    assert "best epoch" not in sentences(train(tmp_path / "whole").content)
    jsonschema.validate(stopped.content, load_schema())


def test_a_training_that_uses_up_its_epochs_returns_to_the_best_one_too(tmp_path: Path) -> None:
    result = train(tmp_path / "run", patience=50, epochs=6)
    told = result.content["stopping"]
    assert told["best_epoch"] < told["of"] == 6
    again = train(tmp_path / "again", epochs=told["best_epoch"])
    assert result.weights_sha256 == again.weights_sha256


def test_predictions_with_the_saved_weights_are_those_of_the_best_epoch(tmp_path: Path) -> None:
    result = train(tmp_path / "run", patience=2)
    x, _ = load_breast_cancer(return_X_y=True)
    rows = {"clinic": x[:, :10], "laboratory": x[:, 10:20], "insurer": x[:, 20:]}
    first = colonnade.load(result.path).predict(rows)["clinic"]
    best = result.content["stopping"]["best_epoch"]
    whole = train(tmp_path / "whole", epochs=best)
    second = colonnade.load(whole.path).predict(rows)["clinic"]
    assert np.array_equal(first.probabilities, second.probabilities)


def test_what_is_not_better_by_min_delta_is_not_better(tmp_path: Path) -> None:
    result = train(tmp_path / "run", patience=2, min_delta=100.0)
    assert result.content["stopping"]["best_epoch"] == 1
    assert result.content["stopping"]["of"] == 3


def test_higher_is_better_where_the_metric_says_so(tmp_path: Path) -> None:
    result = train(tmp_path / "run", patience=3, metric="auc", lr=0.5)
    found = by_epoch(result, "validation_auc")
    assert result.content["stopping"]["best_epoch"] == found.index(max(found)) + 1


def test_numbers_stop_by_their_error(tmp_path: Path) -> None:
    x, y = load_diabetes(return_X_y=True)
    parties = {"clinic": (x[:, :5], y), "laboratory": x[:, 5:]}
    tree = settings(patience=2, epochs=30, metric="", task="regression")
    result = colonnade.run(tree, parties=parties, out=tmp_path / "run")
    found = by_epoch(result, "validation_rmse")
    told = result.content["stopping"]
    assert told["metric"] == "rmse"
    assert told["best_epoch"] == found.index(min(found)) + 1


def test_patience_counts_epochs_also_between_evaluations(tmp_path: Path) -> None:
    result = train(tmp_path / "run", patience=3, evaluate_every=2, min_delta=100.0)
    assert result.content["stopping"]["best_epoch"] == 2
    assert result.content["stopping"]["of"] == 6
    assert result.wire["by_kind"]["verdict"]["messages"] == 3 * 2


def test_test_rows_decide_nothing(tmp_path: Path) -> None:
    """Other test labels, the same decisions and weights."""
    x, y = load_breast_cancer(return_X_y=True)
    rows = slice(450, None)
    found = []
    for number, labels in enumerate((y[rows], 1 - y[rows])):
        result = colonnade.run(
            settings(patience=2),
            parties={"clinic": (x[:450, :10], y[:450]), "laboratory": x[:450, 10:]},
            test={"clinic": (x[rows, :10], labels), "laboratory": x[rows, 10:]},
            out=tmp_path / str(number),
        )
        found.append((result.content["stopping"], result.weights_sha256))
    assert found[0] == found[1]


def test_each_client_of_jovefl_stops_by_itself_and_leaves(tmp_path: Path) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    parties = {"north": (x[:300, :10], y[:300]), "south": (x[300:, 10:], y[300:])}
    result = colonnade.run(settings("jovefl", patience=2), parties=parties, out=tmp_path / "run")
    told = result.content["stopping"]["parties"]
    assert told.keys() == {"north", "south"}
    for name, found in told.items():
        rows = [row["parties"].get(name, {}) for row in result.content["history"]]
        losses = [row["validation_log_loss"] for row in rows if "validation_log_loss" in row]
        assert losses.index(min(losses)) + 1 == found["best_epoch"]
        assert len(losses) == found["of"]
    assert told["north"]["of"] != told["south"]["of"]
    assert "verdict" not in result.wire["by_kind"]


OWN = Path(__file__).parents[2] / "examples" / "my_method.py"


def test_an_own_method_stops_as_the_guide_says(tmp_path: Path) -> None:
    text = OWN.read_text(encoding="utf-8")
    passive = "            await passive_predict(me, active, cfg, split)\n"
    active = "            me.score(split, await active_predict(me, passives, cfg, split))\n"
    imported = "from colonnade.models import network\n"
    for before, after in (
        (passive, f"{passive}        await stopping.follow(me, active)\n"),
        (active, f"{active}        stopping.decide(me, passives)\n"),
        (imported, f"{imported}from colonnade.role import stopping\n"),
        ("learning=Learning(", 'learning=Learning(stops="together", '),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    (tmp_path / "stops.py").write_text(text, encoding="utf-8")
    own = str(tmp_path / "stops.py")
    result = train(tmp_path / "run", own, patience=2)
    best = result.content["stopping"]["best_epoch"]
    whole = train(tmp_path / "whole", own, epochs=best)
    assert result.weights_sha256 == whole.weights_sha256
    with pytest.raises(ConfigError, match="sumscores cannot stop by itself"):
        train(tmp_path / "plain", str(OWN), patience=2)


def test_a_method_that_stops_leaves_the_name_of_the_verdict_free() -> None:
    mine = Kind("verdict", ("batch",), reveals="what a court says")
    replace(splitnn.METHOD, kinds=(mine,), learning=Learning())
    with pytest.raises(MethodError, match="declares a Kind 'verdict'"):
        replace(splitnn.METHOD, kinds=(mine,))


# ---- resume --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["splitnn", "easter"])
@pytest.mark.parametrize("place", ["between", "at once"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    method: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after the best epoch, in the middle of one that is worse; or right after the verdict
    that ends the training, before anything of that is saved."""
    whole = train(tmp_path / "whole", method, patience=2)
    take, of = stopping.Stopping.take, whole.content["stopping"]["of"]

    def stop(self: stopping.Stopping, me: Any, best: bool, ends: bool) -> None:
        take(self, me, best, ends)
        if place == "at once" and ends and me.name == "insurer":
            raise Stopped
        if place == "between" and me.position[1] == of - 2:
            me.progress.stop_at = me.progress.steps + 2

    with monkeypatch.context() as patched:
        patched.setattr(stopping.Stopping, "take", stop)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run", method, patience=2)
    resumed = colonnade.run(
        tmp_path / "run" / "config.toml", parties=patients(), resume=tmp_path / "run"
    )
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.content["metrics"] == whole.content["metrics"]
    assert resumed.content["stopping"] == whole.content["stopping"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["splitnn", "easter"])
def test_processes_end_with_the_same_bits(method: str, tmp_path: Path) -> None:
    tree = settings(method, patience=2) | {"data": {"name": "breast-cancer", "validation": 0.3}}
    tree |= {"partition": {"kind": "columns", "parties": 3}}
    here = colonnade.run(tree, out=tmp_path / "here")
    apart = colonnade.run(tree, out=tmp_path / "apart", runtime="process")
    assert apart.weights_sha256 == here.weights_sha256
    assert apart.content["stopping"] == here.content["stopping"]
    assert apart.content["metrics"] == here.content["metrics"]
    assert apart.content["stopping"]["of"] < 12


# ---- lies ----------------------------------------------------------------------------------------


def lying(monkeypatch: pytest.MonkeyPatch, verdict: Any) -> None:
    """The label holder's program sends another verdict than it acts on."""
    plain = Peer.send

    def send(self: Peer, kind: Any, value: Any) -> None:
        plain(self, kind, verdict(value) if kind is stopping.VERDICT else value)

    monkeypatch.setattr(Peer, "send", send)


@pytest.mark.parametrize(
    ("verdict", "error", "said"),
    [
        (lambda told: torch.tensor([True, True]), Untrusted, "best so far, and the training ends"),
        (lambda told: torch.tensor([told[0], not told[1]]), Untrusted, "'clinic' sent a 'verdict'"),
        (lambda told: told.float(), KindError, "'clinic' sent torch.float32 as 'verdict'"),
        (lambda told: told[:1], KindError, "'clinic' sent a tensor of shape (1,) as 'verdict'"),
    ],
)  # fmt: skip
def test_a_verdict_that_cannot_be_is_refused_and_its_sender_named(
    verdict: Any, error: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, verdict)
    with pytest.raises(error) as refused:
        train(tmp_path / "run", patience=2)
    assert said in str(refused.value)


def test_a_verdict_at_another_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more, which the others find in the next epoch."""
    plain, sent = Peer.send, list[str]()

    def send(self: Peer, kind: Any, value: Any) -> None:
        plain(self, kind, value)
        if kind is stopping.VERDICT and not sent:
            sent.append(self.name)
            plain(self, kind, value)

    monkeypatch.setattr(Peer, "send", send)
    with pytest.raises(Untrusted, match="'clinic' says that its 'verdict' is of epoch 1"):
        train(tmp_path / "run", patience=2)


def test_nobody_hears_a_verdict_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = splitnn.passive_predict

    async def passive_predict(me: Any, active: Peer, *rest: Any) -> None:
        await plain(me, active, *rest)
        if me.name == "insurer" and me.position[:2] == ("train", 0):
            active.send(stopping.VERDICT, torch.tensor([False, True]))

    monkeypatch.setattr(splitnn, "passive_predict", passive_predict)
    result = train(tmp_path / "run", patience=2)
    monkeypatch.undo()
    assert result.weights_sha256 == train(tmp_path / "honest", patience=2).weights_sha256
    said = [text for text in result.content["warnings"] if "verdict" in text]
    assert len(said) == 1 and "insurer" in said[0]


# ---- what cannot be decided ----------------------------------------------------------------------


def test_a_metric_that_the_validation_rows_do_not_define_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an AUC is not where all are of one class."""
    monkeypatch.setattr("colonnade.task.task.measure", lambda name, rows: None)
    with pytest.raises(DataError, match=r"'clinic' cannot stop by auc: its \d+ validation rows"):
        train(tmp_path / "run", patience=2, metric="auc")


def test_a_role_that_scores_nothing_is_told_what_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colonnade.role.party.Party.score", lambda *given, **named: None)
    with pytest.raises(
        Exception, match=r"A role calls me\.score for every split of me\.evaluations"
    ):
        train(tmp_path / "run", patience=2)
