"""A party alone: order of rows, rates, positions, the log, snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from colonnade.data import Column, Preparation, Split
from colonnade.errors import ColonnadeError
from colonnade.party import Party, Schedule, derive
from colonnade.recipe import Recipe, rate_factor

ROWS = 23


def party(name: str = "bank", labels: bool = True, **changes: Any) -> Party:
    schedule = Schedule(**({"seed": 1, "epochs": 3, "batch_size": 5} | changes))
    x = torch.arange(ROWS * 2, dtype=torch.float32).reshape(ROWS, 2)
    preparation = Preparation.fit(x, (Column("a"), Column("b")), standardise=False)
    y = torch.arange(ROWS) % 3 if labels else None
    split = Split(preparation.apply(x), y, torch.arange(ROWS))
    recipe = Recipe(schedule="constant")
    return Party(
        name,
        "test",
        recipe,
        schedule,
        {"train": split, "test": split},
        preparation,
        ("p", "q", "r"),
        torch.device("cpu"),
    )


def ids(me: Party, shared: bool = True) -> list[list[int]]:
    return [batch.ids.tolist() for _ in me.epochs() for batch in me.batches(shared=shared)]


def test_every_epoch_sees_every_row_once_in_an_order_shared_by_all() -> None:
    mine, theirs = ids(party("bank")), ids(party("shop", labels=False))
    assert mine == theirs
    assert [len(batch) for batch in mine[:5]] == [5, 5, 5, 5, 3]
    for epoch in range(3):
        rows = [row for batch in mine[5 * epoch : 5 * epoch + 5] for row in batch]
        assert sorted(rows) == list(range(ROWS))
    assert mine[:5] != mine[5:10]


def test_an_order_of_its_own_differs_between_parties() -> None:
    assert ids(party("bank"), shared=False) != ids(party("shop"), shared=False)


def test_rows_and_labels_stay_together() -> None:
    for me in (party(), party(batch_size=1)):
        for _ in me.epochs():
            for batch in me.batches():
                assert batch.x[:, 0].tolist() == [2.0 * i for i in batch.ids.tolist()]
                assert batch.labels.tolist() == [i % 3 for i in batch.ids.tolist()]


def test_labels_are_an_error_where_there_are_none() -> None:
    me = party(labels=False)
    for _ in me.epochs():
        for batch in me.batches():
            with pytest.raises(ColonnadeError, match="holds none"):
                _ = batch.labels


def test_phases_count_apart_and_a_finished_phase_stays_finished() -> None:
    me = party()
    assert list(me.epochs("upload", 1)) == [0]
    assert list(me.epochs("upload", 1)) == []
    assert list(me.epochs()) == [0, 1, 2]


@pytest.mark.parametrize("stop", range(15))
def test_a_snapshot_after_any_step_resumes_with_the_same_batches_and_draws(stop: int) -> None:
    def role(me: Party, seen: list[Any], snapshot_at: int) -> dict[str, Any] | None:
        layer = me.keep("layer", lambda: nn.Linear(2, 3))
        me.optimizer(layer)
        for _ in me.epochs("warm", 1):
            seen.append("warm")
        taken: list[dict[str, Any]] = []
        me.on_checkpoint = lambda p: taken.append(p.snapshot())
        for _ in me.epochs():
            for batch in me.batches():
                draw = float(torch.rand(()))
                me.log(draw=draw)
                seen.append((batch.ids.tolist(), draw))
                if len(taken) > snapshot_at:
                    return taken[snapshot_at]
        return taken[snapshot_at] if len(taken) > snapshot_at else None

    whole: list[Any] = []
    torch.manual_seed(0)
    me = party(checkpoint_steps=1, checkpoint_epochs=0)
    role(me, whole, 10**6)
    first: list[Any] = []
    torch.manual_seed(0)
    snapshot = role(party(checkpoint_steps=1, checkpoint_epochs=0), first, stop)
    assert snapshot is not None
    torch.manual_seed(12345)
    resumed = party(checkpoint_steps=1, checkpoint_epochs=0)
    resumed.resume(snapshot)
    rest: list[Any] = []
    role(resumed, rest, 10**6)
    assert first[: stop + 2] + rest == whole
    assert [row["draw"] for row in resumed.history if "draw" in row] == [
        row["draw"] for row in me.history if "draw" in row
    ]


def test_keep_makes_once_and_restores_from_a_snapshot() -> None:
    me = party()
    made = 0

    def make() -> nn.Linear:
        nonlocal made
        made += 1
        return nn.Linear(2, 2)

    assert me.keep("layer", make) is me.keep("layer", make)
    assert made == 1
    assert me.holds("layer")
    assert not me.holds("other")
    other = party()
    other.resume(me.snapshot())
    assert other.holds("layer")
    assert torch.equal(other.keep("layer", make).weight, me.keep("layer", make).weight)
    assert other.weights_sha256() == me.weights_sha256()


def test_what_was_not_kept_again_stays_in_the_next_snapshot() -> None:
    me = party()
    me.keep("early", lambda: nn.Linear(2, 2))
    later = party()
    later.resume(me.snapshot())
    assert "early" in later.snapshot()["kept"]


def test_the_methods_own_state_survives() -> None:
    me = party()
    me.state["alpha"] = torch.ones(3)
    me.state["count"] = 7
    other = party()
    other.resume(me.snapshot())
    assert other.state["count"] == 7
    assert torch.equal(other.state["alpha"], torch.ones(3))


def test_log_means_per_epoch_and_score_counts_right_answers() -> None:
    me = party(epochs=1)
    for _ in me.epochs():
        for number, _ in enumerate(me.batches()):
            me.log(loss=torch.tensor(float(number)))
        logits = torch.zeros(ROWS, 3)
        logits[torch.arange(ROWS), torch.arange(ROWS) % 3] = 1
        logits[0] = torch.tensor([0.0, 1.0, 0.0])  # one mistake
        me.score("test", logits)
    assert me.history[0]["loss"] == 2.0
    assert me.history[0]["test_accuracy"] == (ROWS - 1) / ROWS


def test_score_without_labels_is_refused() -> None:
    with pytest.raises(ColonnadeError, match="holds no labels"):
        party(labels=False).score("test", torch.zeros(ROWS, 3))


def test_evaluating_switches_modules_gradients_and_phase_and_back() -> None:
    me = party()
    layer = me.keep("layer", lambda: nn.Dropout())
    frozen = me.keep("frozen", lambda: nn.Sequential(nn.Dropout(), nn.Dropout()))
    frozen[1].eval()
    for _ in me.epochs("train", 1):
        with me.evaluating():
            assert (layer.training, torch.is_grad_enabled(), me.phase) == (False, False, "eval")
        assert (layer.training, torch.is_grad_enabled(), me.phase) == (True, True, "train")
        modes = [module.training for module in frozen.modules()]
        assert modes == [True, True, False]  # what was in evaluation mode before stays so


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3]), (2, [2, 3]), (0, []), (9, [3])])
def test_evaluation_comes_every_so_often_and_after_the_last_epoch(
    every: int, expected: list[int]
) -> None:
    me = party(evaluate_every=every)
    assert [epoch + 1 for epoch in me.epochs() if me.evaluations == ["test"]] == expected


def test_rates_follow_warm_up_and_cosine() -> None:
    recipe = Recipe(warmup=2)
    assert rate_factor(recipe, 0, 10) < 0.01
    assert rate_factor(recipe, 1, 10) == pytest.approx(0.5, abs=1e-3)
    assert rate_factor(recipe, 2, 10) == 1.0
    assert rate_factor(recipe, 6, 10) == pytest.approx(0.5)
    assert rate_factor(recipe, 10, 10) == pytest.approx(0.0)
    assert rate_factor(Recipe(schedule="constant"), 9, 10) == 1.0


@pytest.mark.parametrize(
    "other",
    [lambda: derive(1, "order"), lambda: derive(2, "party"), lambda: derive(1, "party", "bank")],
)
def test_seeds_of_different_purposes_differ(other: Callable[[], int]) -> None:
    assert derive(1, "party") != other()
    assert 0 <= derive(1, "party") < 2**63


def test_image_batches_do_not_change_the_stored_rows() -> None:
    """Preparation works on a copy, also for images that are floats already."""
    x = torch.rand(6, 1, 2, 2)
    preparation = Preparation.fit(x)
    me = Party(
        "bank",
        "test",
        Recipe(),
        Schedule(1, 1, 2),
        {"test": Split(x.clone(), None, torch.arange(6))},
        preparation,
        (),
        torch.device("cpu"),
    )
    first = [batch.x for batch in me.rows("test")]
    second = [batch.x for batch in me.rows("test")]
    assert torch.equal(me.splits["test"].x, x)
    assert torch.equal(torch.cat(first), torch.cat(second))
