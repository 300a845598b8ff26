"""Vectors of rows leave clipped, noised, on a grid, and every record is counted exactly."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import colonnade
from colonnade.data import Split
from colonnade.errors import BudgetSpent, ColonnadeError, ConfigError, Diverged, JournalError
from colonnade.journal import Journal, RunJournal
from colonnade.privacy import accountant
from colonnade.privacy.noise import MOST_SIGMAS, gaussian
from colonnade.privacy.protection import protect
from colonnade.privacy.rows import Plan, cut, scale
from colonnade.privacy.settings import TAILS, Protect
from colonnade.report.protections import of_predictions
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.task import Task
from colonnade.wire import Kind

ROWS, WIDTH, SECRET = 12, 5, bytes(range(32))
EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="features", carries="features")
OTHER = Kind("other", ("batch", "dim"), reveals="features", carries="features")
SCHEDULE = Schedule(seed=1, epochs=2, batch_size=4)


class Sender:
    """A party that sends vectors of its rows, without anybody to send them to."""

    def __init__(
        self,
        folder: Path,
        how: Protect,
        schedule: Schedule = SCHEDULE,
        run: str = "3f",
        splits: Mapping[str, int] | None = None,
    ) -> None:
        numbers = torch.arange(ROWS * 3, dtype=torch.float32).reshape(ROWS, 3)
        sizes = splits or {"train": ROWS}
        made = {name: Split(numbers[:n], None, torch.arange(n)) for name, n in sizes.items()}
        task, device = Task.of(("no", "yes")), torch.device("cpu")
        self.me = Party("shop", "passive", Recipe(), schedule, made, None, task, device)
        self.journal = Journal(folder / "journal")
        ids = [f"row {n}" for n in range(ROWS)]
        self.me.journal = RunJournal(lambda: self.journal, run, ids)
        self.me.keep("bottom", lambda: nn.Linear(3, WIDTH))
        protect(self.me, how)
        assert self.me.protection is not None
        self.protection = self.me.protection
        self.protection.begin(self.me)

    def train(self, scale: float = 1.0, kind: Kind = EMBEDDING, most: int = 99) -> list[Tensor]:
        """What leaves in each step; the vectors are `scale` and the position in the run."""
        sent: list[Tensor] = []
        for epoch in self.me.epochs():
            for step, batch in enumerate(self.me.batches()):
                if len(sent) >= most:
                    return sent
                sent.append(self.send(kind, vectors(len(batch), scale + epoch + step)))
        return sent

    def send(self, kind: Kind, value: Tensor) -> Tensor:
        sent = self.protection.applied(self.me, kind, value)
        assert isinstance(sent, Tensor)
        return sent

    def predict(self, scale: float = 1.0, size: int = 4) -> Tensor:
        sent = []
        with self.me.evaluating():
            for batch in self.me.rows("predict", size):
                rows = batch.x @ torch.ones(3, WIDTH) * scale
                sent.append(self.send(EMBEDDING, rows / 1000))
        return torch.cat(sent)

    @property
    def told(self) -> dict[str, Any]:
        return dict(self.protection.told().get("embeddings", {}))


def vectors(rows: int, seed: float) -> Tensor:
    generator = torch.Generator().manual_seed(int(1000 * seed))
    return torch.randn(rows, WIDTH, generator=generator)


HOW = Protect(embedding_epsilon=8.0)


# ---- what is spent -------------------------------------------------------------------------------


def test_a_run_spends_what_was_planned_and_says_so(tmp_path: Path) -> None:
    sender = Sender(tmp_path, HOW)
    sent = sender.train()
    assert len(sent) == 6 and all(value.shape == (4, WIDTH) for value in sent)
    assert sender.told["epsilon"] == pytest.approx(8.0, rel=1e-6)
    assert sender.told["releases"] == 2
    assert sender.told["claim"] == "per release, weights given"


def test_a_run_that_ends_early_has_spent_less(tmp_path: Path) -> None:
    sender = Sender(tmp_path, HOW)
    sender.train(most=3)
    assert sender.told["releases"] == 1
    size = Plan.of(HOW, SCHEDULE).size
    assert sender.told["epsilon"] == pytest.approx(
        accountant.gaussian_epsilon(size, HOW.delta), rel=1e-6
    )
    assert sender.told["epsilon"] < 6


def test_the_plan_counts_evaluations_where_they_are_more_often_than_epochs() -> None:
    plans = {
        every: Plan.of(HOW, replace(SCHEDULE, epochs=10, evaluate_every=every)).releases
        for every in (0, 1, 3)
    }
    assert plans == {0: 10, 1: 10, 3: 10}


def test_a_killed_run_sends_the_same_bytes_and_is_charged_once(tmp_path: Path) -> None:
    first = Sender(tmp_path, HOW).train(most=4)
    again = Sender(tmp_path, HOW)  # another process, which has lost its checkpoints
    sent = again.train()
    assert all(torch.equal(a, b) for a, b in zip(first, sent[:4], strict=True))
    assert again.told["releases"] == 2
    assert again.told["epsilon"] == pytest.approx(8.0, rel=1e-6)


def test_what_was_told_is_right_in_a_process_that_sends_nothing(tmp_path: Path) -> None:
    told = Sender(tmp_path, HOW)
    told.train()
    assert Sender(tmp_path, HOW).told == told.told != {}


def test_other_vectors_of_the_same_rows_are_beyond_the_plan(tmp_path: Path) -> None:
    """A hub takes the run back and sends other gradients: the rows would leave with other noise."""
    Sender(tmp_path, HOW).train(most=2)
    again = Sender(tmp_path, HOW)
    with pytest.raises(BudgetSpent, match=r"'shop'.*'embedding'.*epoch 1.*ε = 8.*another --out"):
        again.train(scale=2.0)
    assert Sender(tmp_path, HOW).told["releases"] == 1


def test_a_second_message_about_the_same_rows_is_beyond_the_plan(tmp_path: Path) -> None:
    sender = Sender(tmp_path, HOW)
    for _ in sender.me.epochs():
        for batch in sender.me.batches():
            value = vectors(len(batch), 1)
            sent = sender.send(EMBEDDING, value)
            assert torch.equal(sender.send(EMBEDDING, value), sent)  # to another peer
            with pytest.raises(BudgetSpent, match="other vectors"):
                sender.send(EMBEDDING, value + 0.1)
            with pytest.raises(BudgetSpent, match="'other'"):
                sender.send(OTHER, value)
            return


def test_a_second_run_is_added_to_the_first(tmp_path: Path) -> None:
    Sender(tmp_path, HOW, run="1").train()
    second = Sender(tmp_path, HOW, run="2")
    second.train()
    size = Plan.of(HOW, SCHEDULE).size
    both = accountant.gaussian_epsilon(size / 2, HOW.delta)
    assert second.told["epsilon"] == pytest.approx(8.0, rel=1e-6)
    assert second.told["all_runs"] == pytest.approx(both, rel=1e-6) and both > 11


def test_a_lost_count_is_noticed(tmp_path: Path) -> None:
    Sender(tmp_path, HOW).train(most=2)
    (tmp_path / "journal" / "left").unlink()
    with pytest.raises(JournalError, match=r"left.*backup"):
        Sender(tmp_path, HOW).train()


def test_a_crash_in_an_entry_leaves_the_others(tmp_path: Path) -> None:
    first = Sender(tmp_path, HOW).train(most=3)
    file = tmp_path / "journal" / "left"
    with file.open("ab") as handle:
        handle.write(b"half")
    sent = Sender(tmp_path, HOW).train()
    assert all(torch.equal(a, b) for a, b in zip(first, sent[:3], strict=True))
    assert len(file.read_bytes()) == 6 * 32


def test_rows_that_nobody_knows_do_not_leave(tmp_path: Path) -> None:
    sender = Sender(tmp_path, HOW)
    with pytest.raises(ColonnadeError, match="rows are not those of the batch"):
        sender.send(EMBEDDING, torch.zeros(4, WIDTH))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_vector_without_a_length_does_not_leave(bad: float, tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="smaller lr"):
        cut(torch.tensor([[0.0, bad]]), 1.0, 2.0**-10)


# ---- predictions ---------------------------------------------------------------------------------


def predicting(folder: Path, run: str = "predict 1", rows: int = ROWS) -> Sender:
    return Sender(folder, HOW, run=run, splits={"predict": rows})


def test_the_same_row_gets_the_same_answer_and_is_counted_once(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = predicting(tmp_path)
    weights = first.me.kept.weights()
    sent = first.predict()
    assert first.told["releases"] == 1
    for run, size in (("predict 1", 12), ("predict 2", 5)):  # once more, and in another prediction
        other = predicting(tmp_path, run)
        other.me.kept.load(weights)
        other.me.kept.drop("bottom")
        other.me.kept.load(weights)
        other.protection.begin(other.me)
        assert torch.equal(other.predict(size=size), sent)
        entries = list(other.journal.entries("spent"))
        assert len(entries) == 3  # messages of the first one


def test_other_weights_or_rows_are_counted_again(tmp_path: Path) -> None:
    first = predicting(tmp_path, rows=4)
    sent = first.predict()
    second = predicting(tmp_path, "predict 2")  # has another network
    again = second.predict()
    assert float((again[:4] - sent).abs().min()) > 0 and second.told["releases"] == 1
    size = Plan.of(HOW, SCHEDULE).size
    twice = accountant.gaussian_epsilon(size / math.sqrt(2), HOW.delta)
    assert second.told["all_runs"] == pytest.approx(twice, rel=1e-6)


# ---- a frozen network ----------------------------------------------------------------------------

FROZEN = replace(HOW, bottom="frozen")


def test_a_frozen_network_stays_as_drawn_and_its_vectors_leave_once(tmp_path: Path) -> None:
    sender = Sender(tmp_path, FROZEN)
    bottom = sender.me.kept.modules()["bottom"]
    plan = Plan.of(FROZEN, SCHEDULE)
    assert plan.once and plan.releases == 1
    assert not Plan.of(FROZEN, replace(SCHEDULE, flip=True)).once
    seen: dict[int, Tensor] = {}
    for epoch in sender.me.epochs():
        for batch in sender.me.batches():
            sent = sender.send(EMBEDDING, bottom(batch.x).detach() + epoch)  # what comes later …
            assert batch.rows is not None
            for row, vector in zip(batch.rows.tolist(), sent, strict=True):
                assert torch.equal(seen.setdefault(row, vector), vector)  # … never leaves
    told = sender.told
    assert (told["claim"], told["releases"]) == ("per record", 1)
    assert told["epsilon"] == pytest.approx(8.0, rel=1e-6)


def test_a_frozen_network_has_the_same_noise_after_a_restart(tmp_path: Path) -> None:
    sent = [Sender(tmp_path, FROZEN).train(most=2) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*sent, strict=True))
    assert Sender(tmp_path, FROZEN).told["releases"] == 1


# ---- noise ---------------------------------------------------------------------------------------


def test_the_noise_is_normal() -> None:
    drawn = gaussian((1000, 101), SECRET, "a")
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 0.001
    for one, other in ((drawn[:, 1:], drawn[:, :-1]), (drawn[1:], drawn[:-1])):
        pair = torch.stack([one.flatten(), other.flatten()])
        assert abs(float(pair.corrcoef()[0, 1])) < 0.02
        assert abs(float(pair.abs().corrcoef()[0, 1])) < 0.02
    flat = drawn.flatten()  # the two numbers that come from one pair of draws
    pair = torch.stack([flat[: len(flat) // 2], flat[len(flat) // 2 :]])
    assert abs(float(pair.square().corrcoef()[0, 1])) < 0.02
    for sigmas in (1, 2, 3):
        share = float((drawn.abs() > sigmas).double().mean())
        assert share == pytest.approx(2 * stats.norm.sf(sigmas), rel=0.15)
    assert not torch.equal(drawn, gaussian((1000, 101), SECRET, "b"))
    assert torch.equal(drawn, gaussian((1000, 101), SECRET, "a"))
    assert gaussian((0, 4), SECRET, "a").shape == (0, 4)


def test_the_tails_that_are_missing_are_less_than_what_delta_has_for_them() -> None:
    numbers = 2**17  # of one record
    assert numbers * 2 * stats.norm.sf(MOST_SIGMAS) < TAILS
    uniform = 0.5 * 2.0**-53
    assert math.sqrt(-2 * math.log(uniform)) == pytest.approx(MOST_SIGMAS)


@pytest.mark.parametrize("length", [1e-9, 0.1, 1.0, 1e20])
def test_what_leaves_lies_on_one_grid_whatever_the_vectors_are(
    length: float, tmp_path: Path
) -> None:
    """Sums of floats have other last bits than other sums: the support would tell the vector."""
    sender = Sender(tmp_path, HOW)
    sigma = Plan.of(HOW, SCHEDULE).size * 2
    grid = 2.0 ** math.floor(math.log2(sigma * 2.0**-10)) / scale(sigma, WIDTH)
    for _ in sender.me.epochs():
        for batch in sender.me.batches():
            steps = sender.send(EMBEDDING, length * vectors(len(batch), 3)).double() / grid
            assert torch.equal(steps, steps.round())
            assert len(steps.unique()) > 10


def test_noise_does_not_drown_what_it_is_joined_with() -> None:
    """A power of two, which changes no digit; a little noise is left as it is."""
    for sigma, width in ((0.001, 4), (2.4, 8), (9.8, 512)):
        found = scale(sigma, width)
        assert math.log2(found).is_integer() and found >= 1
        assert sigma * math.sqrt(width) / found <= 1 or found == 1
        assert sigma * math.sqrt(width) / found > 0.5 or found == 1


@pytest.mark.parametrize("width", [1, 7, 5000])
def test_no_vector_is_longer_than_the_clip(width: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, width, generator=generator) * torch.logspace(-6, 30, 200)[:, None]
    for grid in (2.0**-10, 2.0**-20):
        steps = cut(x, 1.0, grid)
        assert float((steps * grid).norm(dim=1).max()) <= 1.0
        assert torch.equal(steps, steps.round())
    assert float((steps[100:] * grid).norm(dim=1).min()) > 0.9


# ---- settings ------------------------------------------------------------------------------------


def tree(method: str = "splitnn", **protection: Any) -> dict[str, Any]:
    return {
        "method": method,
        "name": "toy",
        "epochs": 2,
        "batch_size": 50,
        "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
        "partition": {"kind": "columns", "parties": 3},
        "splitnn": {"dim": 4, "hidden": 8},
        "model_options": {"hidden": [8]},
        "protect": protection,
    }


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"embedding_epsilon": 8.0, "delta": 1e-13}, "delta"),
        ({"bottom": "frozen"}, "protects nothing by itself"),
    ],
)
def test_what_would_not_protect_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        colonnade.run(tree(**changes))


@pytest.mark.parametrize("method", ["fedemb", "vfedtrans"])
def test_a_method_with_an_epsilon_of_its_own_is_told_of_it(method: str) -> None:
    with pytest.raises(ConfigError) as told:
        colonnade.run(tree(method, embedding_epsilon=8.0))
    (said,) = [text for text in told.value.problems if "embedding_epsilon" in text]
    assert f"set [{method}] epsilon" in said and "declare" not in said


def test_frozen_needs_a_method_without_a_network_behind_the_vectors() -> None:
    wrong = tree("easter", embedding_epsilon=8.0, bottom="frozen")
    wrong["easter"] = {"mask": "none", "stand_in": "present"}
    with pytest.raises(ConfigError, match=r"frozen.*easter.*splitnn"):
        colonnade.run(wrong)


# ---- whole runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bottom", "standardise", "claim"),
    [
        ("trained", True, "per release, weights given"),
        ("frozen", True, "per record, preparation given"),
        ("frozen", False, "per record"),
    ],
)
def test_a_run_says_what_it_claims(
    bottom: str, standardise: bool, claim: str, tmp_path: Path
) -> None:
    settings = tree(embedding_epsilon=8.0, bottom=bottom)
    settings["data"]["standardise"] = standardise
    result = colonnade.run(settings, out=tmp_path / "run").content
    told = {name: part["embeddings"] for name, part in result["privacy"]["parties"].items()}
    assert told.keys() == {"party2", "party3"}
    assert result["privacy"]["simulated"] is False
    for part in told.values():
        assert part["claim"] == claim
        assert part["epsilon"] == pytest.approx(8.0, rel=1e-6)
    lines = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    named = {row["kind"]: row.get("protected", "") for row in rows if "kind" in row}
    assert named["embedding"].startswith("clipped to 1, Gaussian noise of")
    assert named["gradient"] == ""


def test_a_frozen_network_has_the_weights_that_it_was_drawn_with(tmp_path: Path) -> None:
    digests = []
    for epochs in (1, 3):
        settings = tree(embedding_epsilon=8.0, bottom="frozen") | {"epochs": epochs}
        result = colonnade.run(settings, out=tmp_path / str(epochs)).content
        digests.append(result["weights_sha256"])
    assert digests[0]["party2"] == digests[1]["party2"]
    assert digests[0]["party1"] != digests[1]["party1"]


def test_predictions_repeat_and_absence_is_measured_with_noise(tmp_path: Path) -> None:
    """An absent party's worth is measured by models that know noisy vectors alone."""
    settings = tree(embedding_epsilon=1e5)
    result = colonnade.run(settings, out=tmp_path / "run").content
    assert result["metrics"]["test"]["absent"].keys() == {"party2", "party3"}
    journal = Journal(tmp_path / "run" / "journal" / "party2")
    before = len(list(journal.entries("spent")))
    assert before == 4  # two epochs and two evaluations; measuring counts nothing
    one, other = (colonnade.load(tmp_path / "run").predict() for _ in range(2))
    trained = colonnade.load(tmp_path / "run")
    trained.predict()
    said = of_predictions(trained.protected)
    assert len(said) == 1 and said[0].startswith("The vectors of party2 and party3 left with ε = ")
    assert "the same answer, and is counted once" in said[0]
    assert np.array_equal(one["party1"].probabilities, other["party1"].probabilities)
    again = Journal(tmp_path / "run" / "journal" / "party2")
    assert len(list(again.entries("spent"))) == before + 1
