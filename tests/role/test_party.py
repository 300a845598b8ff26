"""A party alone: order of rows, rates, positions, the log, snapshots."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from colonnade.data import Column, Preparation, Split
from colonnade.errors import ColonnadeError, ConfigError
from colonnade.role.batches import check_spread, spread
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule, rate_factor
from colonnade.role.seeds import derive
from colonnade.runtime.checkpoint import Checkpoints, OwnCheckpoints
from colonnade.task import Task
from colonnade.wire import store

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
        Task.of(("p", "q", "r")),
        torch.device("cpu"),
    )


def ids(me: Party, shared: bool = True) -> list[list[int]]:
    return [batch.ids.tolist() for _ in me.epochs() for batch in me.batches(shared=shared)]


def test_every_epoch_sees_every_row_once_in_an_order_shared_by_all() -> None:
    mine, theirs = ids(party("bank")), ids(party("shop", labels=False))
    assert mine == theirs
    assert [len(batch) for batch in mine[:5]] == [5, 5, 5, 4, 4]
    assert [len(batch) for batch in ids(party(batching="papers"))[:5]] == [5, 5, 5, 5, 3]
    for epoch in range(3):
        rows = [row for batch in mine[5 * epoch : 5 * epoch + 5] for row in batch]
        assert sorted(rows) == list(range(ROWS))
    assert mine[:5] != mine[5:10]


@pytest.mark.parametrize("place", [(0, 2), (0, 4), (1, 0)])
@pytest.mark.parametrize("skip", [(0, 5), (1, 0), (1, 3)])
def test_after_a_loss_no_row_is_met_again_before_the_weights_change(
    place: tuple[int, int], skip: tuple[int, int]
) -> None:
    """Members that go on without one go back to a checkpoint. The rows of the step that followed it
    have met those weights with everybody; all members find the same first step without them."""
    whole = ids(party())
    before = set(whole[5 * place[0] + place[1]])
    found = []
    for name in ("bank", "shop"):
        me = party(name, evaluate_every=1)
        me.progress.skip_to("train", *place)
        if skip <= place:
            return
        me.progress.go_on_at("train", *skip)
        seen: list[tuple[int, int, list[int]]] = []
        for _ in me.epochs():
            for batch in me.batches():
                seen.append((*me.position[1:], batch.ids.tolist()))
            assert bool(me.evaluations) is bool(seen)
        found.append(seen)
        epoch, step, rows = seen[0]
        assert not before & set(rows)
        passed = whole[5 * skip[0] + skip[1] : 5 * epoch + step]
        assert all(before & set(other) for other in passed)
        assert [rows for _, _, rows in seen] == whole[5 * epoch + step :]
    assert found[0] == found[1]


@pytest.mark.parametrize("rows", range(40))
@pytest.mark.parametrize("size", [1, 2, 3, 7, 39, 100])
def test_batches_are_as_few_and_as_equal_as_can_be(rows: int, size: int) -> None:
    sizes = spread(rows, size, "even")
    assert sum(sizes) == rows and len(sizes) == math.ceil(rows / size)
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    assert max(sizes, default=0) <= size
    assert rows < 2 or size < 3 or min(sizes) > 1, "no batch of one row, whatever the rows"
    papers = [len(part) for part in torch.arange(rows).split(size)] if rows else []
    assert spread(rows, size, "papers") == papers


@pytest.mark.parametrize(("rows", "size"), [(3, 2), (2, 1), (1, 9)])
def test_a_batch_of_one_row_is_refused(rows: int, size: int) -> None:
    def schedule(size: int, **more: Any) -> Schedule:
        return Schedule(seed=1, epochs=1, batch_size=size, **more)

    with pytest.raises(ConfigError, match="'bank' makes a batch of one row") as caught:
        check_spread("bank", {"train": range(rows)}, schedule(size))
    check_spread("bank", {"train": range(rows)}, schedule(size, batching="papers"))
    for said in re.findall(r"batch_size = (\d+) or more", str(caught.value)):
        check_spread("bank", {"train": range(rows)}, schedule(int(said)))  # the advice, followed


@pytest.mark.parametrize(("rows", "size"), [(33, 32), (21, 10), (5, 9)])
def test_a_batch_that_a_policy_does_not_allow_is_refused(rows: int, size: int) -> None:
    def schedule(size: int, **more: Any) -> Schedule:
        return Schedule(seed=1, epochs=1, batch_size=size, **more)

    with pytest.raises(ConfigError, match="and its policy requires 20") as caught:
        check_spread("bank", {"train": range(rows)}, schedule(size), 20)
    for said in re.findall(r"batch_size = (\d+) or more", str(caught.value)):
        check_spread("bank", {"train": range(rows)}, schedule(int(said)), 20)
    with pytest.raises(ConfigError, match=r"a batch of (one row|5 rows), and its policy"):
        check_spread("bank", {"train": range(rows)}, schedule(size, batching="papers"), 20)


def test_rows_to_test_on_that_a_policy_does_not_allow_are_refused() -> None:
    splits, plan = {"train": range(40), "test": range(5)}, Schedule(1, 1, 20)
    check_spread("bank", splits, plan)
    check_spread("bank", splits, Schedule(1, 1, 20, evaluate_every=0), 8)
    with pytest.raises(ConfigError, match=r"the 5 rows of 'bank' for 'test'.*requires 8"):
        check_spread("bank", splits, plan, 8)


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


def test_a_remark_is_made_once_also_after_a_resume() -> None:
    me, later = party(), party()
    me.remark("few rows")
    later.resume(me.snapshot())
    for text in ("no columns", "few rows"):
        later.remark(text)
    assert (me.remarks, later.remarks) == (["few rows"], ["few rows", "no columns"])


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
    assert other.kept.sha256() == me.kept.sha256()


def test_what_was_not_kept_again_stays_in_the_next_snapshot() -> None:
    me = party()
    me.keep("early", lambda: nn.Linear(2, 2))
    later = party()
    later.resume(me.snapshot())
    assert "early" in later.snapshot()["kept"]


def test_what_was_not_kept_again_is_still_among_the_weights() -> None:
    """A role that is resumed behind a phase does not touch the networks of that phase again."""
    me = party()
    layer = me.keep("early", lambda: nn.Linear(2, 2))
    me.optimizer(layer)
    for _ in me.epochs("warm", 1):
        layer(torch.ones(1, 2)).sum().backward()
        me.optimizer(layer).step()
    me.keep("late", lambda: nn.BatchNorm1d(2))
    later = party()
    later.resume(me.snapshot())
    assert set(later.kept.weights()) == {"early", "late"}  # an optimiser is no network
    assert later.kept.sha256() == me.kept.sha256()
    later.keep("late", lambda: nn.BatchNorm1d(2)).weight.data.fill_(3)
    assert later.kept.weights()["late"]["weight"].tolist() == [3, 3]
    assert later.kept.sha256() != me.kept.sha256()


def test_what_is_kept_again_draws_nothing() -> None:
    """What a network draws when it is made was drawn before the checkpoint: not again after it."""

    def role(me: Party) -> list[float]:
        drawn = []
        for _ in me.epochs():
            me.keep("layer", lambda: nn.Linear(20, 30))
            drawn += [float(torch.rand(())) for _ in me.batches()]
        return drawn

    snapshots: list[dict[str, Any]] = []
    whole = party()
    whole.on_checkpoint = lambda p: snapshots.append(p.snapshot())
    torch.manual_seed(0)
    wanted = role(whole)
    assert len(set(wanted)) == 15
    for epochs, snapshot in enumerate(snapshots[:2], start=1):
        resumed = party()
        resumed.resume(snapshot)
        torch.manual_seed(999)
        assert role(resumed) == wanted[5 * epochs :]


def test_what_is_dropped_is_gone() -> None:
    me = party()
    layer = me.keep("layer", lambda: nn.Linear(2, 2))
    other = me.keep("other", lambda: nn.Linear(2, 2))
    first = me.optimizer(layer, name="first")
    second = me.optimizer(other, name="second", lr=2.0)
    me.drop("layer", "first", "never there")
    assert not me.holds("layer")
    assert not me.holds("first")
    assert set(me.snapshot()["kept"]) == {"other", "second"}
    assert set(me.kept.weights()) == {"other"}
    for group in (*first.param_groups, *second.param_groups):
        group["lr"] = 77.0
    for _ in me.epochs("train", 1):
        for _ in me.batches():
            pass
    assert first.param_groups[0]["lr"] == 77.0  # the schedule has forgotten it
    assert second.param_groups[0]["lr"] == 2.0
    assert me.keep("layer", lambda: nn.Linear(2, 3)).out_features == 3  # made anew


def test_what_waits_in_a_checkpoint_can_be_dropped() -> None:
    me = party()
    me.keep("layer", lambda: nn.Linear(2, 2))
    later = party()
    later.resume(me.snapshot())
    later.drop("layer")
    assert not later.holds("layer")
    assert later.snapshot()["kept"] == {}
    assert later.kept.weights() == {}


def test_to_pass_by_is_to_be_where_the_others_are() -> None:
    """Whoever has nothing to do in a phase writes its checkpoints, at the same steps."""
    places: dict[str, list[Any]] = {"bank": [], "shop": []}
    snapshots: list[dict[str, Any]] = []

    def note(me: Party) -> None:
        places[me.name].append((me.position, me.progress.steps))
        if me.name == "shop":
            snapshots.append(me.snapshot())

    busy, idle = party("bank"), party("shop")
    busy.on_checkpoint = idle.on_checkpoint = note
    for _ in busy.epochs("pretrain", 2):
        for _ in busy.batches(shared=False):
            pass
    idle.pass_by("pretrain", 2)
    assert places["bank"] == [(("pretrain", 1, 0), 5), (("pretrain", 2, 0), 10)]
    assert places["shop"] == places["bank"]
    assert [row["epoch"] for row in idle.history] == [1, 2]
    assert list(idle.epochs("pretrain", 2)) == []
    resumed = party("shop")  # from the middle it goes on where it was
    resumed.resume(snapshots[0])
    resumed.on_checkpoint = note
    resumed.pass_by("pretrain", 2)
    assert places["shop"][2:] == places["bank"][1:]
    resumed.pass_by("pretrain", 2)  # and once it is over, it is over
    assert (resumed.progress.steps, len(places["shop"])) == (10, 3)


def test_to_pass_by_nothing() -> None:
    me = party()
    me.on_checkpoint = lambda p: pytest.fail("there was nothing to save")
    me.pass_by("pretrain", 0)
    assert (me.progress.steps, me.history) == (0, [])


# ---- the shelf ---------------------------------------------------------------------------------


MAPS = torch.arange(6, dtype=torch.float16).reshape(1, 2, 3)


def with_a_shelf(me: Party, save: Callable[[Party], object], maps: Tensor = MAPS) -> None:
    """A phase without a shelf, one that fills it, then the training; saved after every epoch."""
    me.on_checkpoint = lambda p: (save(p), None)[1]
    for _ in me.epochs("warm", 1):
        pass
    for _ in me.epochs("fill", 1):
        me.shelf["maps"] = maps
    for _ in me.epochs():
        pass


def facts(file: Path) -> tuple[int, int]:
    return file.stat().st_ino, file.stat().st_mtime_ns


@pytest.mark.parametrize("sort", ["together", "own"])
def test_a_shelf_is_written_once_and_restored(sort: str, tmp_path: Path) -> None:
    together = Checkpoints(tmp_path, ["bank"])
    own = OwnCheckpoints(tmp_path, lambda: None)
    file = tmp_path / "shelf" / "bank.maps.npy"
    seen: list[Any] = []

    def save(me: Party) -> None:
        together.save(me) if sort == "together" else own.save(me)
        seen.append((me.position[0], facts(file) if file.exists() else None))

    with_a_shelf(party(), save)
    assert [phase for phase, _ in seen] == ["warm", "fill", "train", "train", "train"]
    assert seen[0][1] is None
    assert len({there for _, there in seen[1:]}) == 1
    for skeleton in tmp_path.rglob("*.json"):
        assert '"bank.maps"' in skeleton.read_text() or "warm" in str(skeleton)
    for tensors in tmp_path.rglob("*.safetensors"):
        assert not [name for name in store.read_tensors(tensors) if "maps" in name]
    if sort == "together":
        found = together.latest()
        snapshot = found["bank"]
    else:
        back = own.go_back(own.held()[-1])
        assert back is not None
        snapshot = back
    resumed = party()
    resumed.resume(snapshot)
    assert resumed.shelf["maps"].dtype == torch.float16
    assert torch.equal(resumed.shelf["maps"], MAPS)
    assert list(resumed.epochs()) == []
    assert resumed.snapshot()["shelf"] == {"maps": "bank.maps"}
    assert facts(file) == seen[-1][1]


def test_the_shelf_of_a_checkpoint_that_not_all_have_reached_is_removed(tmp_path: Path) -> None:
    """Back to before it was filled; what is put there then is written anew."""
    checkpoints = Checkpoints(tmp_path, ["bank", "shop"])
    file = tmp_path / "shelf" / "bank.maps.npy"
    slow = party("shop")
    slow.on_checkpoint = checkpoints.save
    for _ in slow.epochs("warm", 1):
        pass
    with_a_shelf(party(), checkpoints.save)
    assert file.exists()
    found = checkpoints.latest()
    assert [found[name]["positions"] for name in ("bank", "shop")] == [{"warm": [1, 0]}] * 2
    assert not file.exists()
    resumed = party()
    resumed.resume(found["bank"])
    assert resumed.shelf == {}
    with_a_shelf(resumed, checkpoints.save, MAPS + 1)
    assert torch.equal(store.read_array(file), MAPS + 1)


def test_a_party_of_its_own_goes_back_to_before_its_shelf(tmp_path: Path) -> None:
    checkpoints = OwnCheckpoints(tmp_path, lambda: None)
    file = tmp_path / "shelf" / "bank.maps.npy"
    me = party()
    with_a_shelf(me, checkpoints.save)
    checkpoints.finish(me)
    assert torch.equal(checkpoints.last_word()["shelf"]["maps"], MAPS)
    assert file.exists()
    warm, filled, *_ = checkpoints.held()
    back = checkpoints.go_back(filled)
    assert back is not None
    assert torch.equal(back["shelf"]["maps"], MAPS)
    assert not checkpoints.finished
    back = checkpoints.go_back(warm)
    assert back is not None
    assert back["shelf"] == {}
    assert not file.exists()
    resumed = party()
    resumed.resume(back)
    with_a_shelf(resumed, checkpoints.save, MAPS + 1)
    assert torch.equal(store.read_array(file), MAPS + 1)
    assert checkpoints.go_back(None) is None
    assert not tmp_path.exists()


def test_the_shelves_of_two_parties_lie_side_by_side(tmp_path: Path) -> None:
    """Also that of a party whose role has ended."""
    checkpoints = Checkpoints(tmp_path, ["bank", "shop"])
    ended = party("shop")
    with_a_shelf(ended, checkpoints.save, MAPS + 1)
    checkpoints.finish(ended)
    bank = party()
    with_a_shelf(bank, checkpoints.save)
    for _ in bank.epochs("longer", 1):  # a place that the other has never seen
        pass
    found = checkpoints.latest()
    assert "longer" in found["bank"]["positions"]
    assert torch.equal(found["bank"]["shelf"]["maps"], MAPS)
    assert torch.equal(found["shop"]["shelf"]["maps"], MAPS + 1)


@pytest.mark.parametrize("sort", ["together", "own"])
def test_the_end_of_a_role_is_too_late_to_write_its_shelf(sort: str, tmp_path: Path) -> None:
    """A run without checkpoints does not write its largest tensors for nothing."""
    me = party()
    with_a_shelf(me, lambda p: None)
    if sort == "together":
        Checkpoints(tmp_path, ["bank"]).finish(me)
    else:
        checkpoints = OwnCheckpoints(tmp_path, lambda: None)
        checkpoints.finish(me)
        assert checkpoints.last_word()["shelf"] == {}
    assert list(tmp_path.rglob("*.json"))
    assert not list(tmp_path.rglob("*.npy"))


@pytest.mark.parametrize("damaged", ["checkpoint", "last word", "shelf"])
def test_a_party_does_not_offer_what_is_damaged(damaged: str, tmp_path: Path) -> None:
    """Nor its last word, which would stand for a checkpoint that it does not have."""
    checkpoints = OwnCheckpoints(tmp_path, lambda: None)
    me = party()
    with_a_shelf(me, checkpoints.save)
    checkpoints.finish(me)
    assert list(checkpoints.sift()) == [] and checkpoints.finished
    labels = checkpoints.held()
    place = {
        "checkpoint": sorted(tmp_path.glob("0*.safetensors"))[-1],
        "last word": tmp_path / "finished.json",
        "shelf": tmp_path / "shelf" / "bank.maps.npy",
    }[damaged]
    data = bytearray(place.read_bytes())
    data[-3] ^= 4
    place.write_bytes(data)
    told = list(checkpoints.sift())
    kept = {"checkpoint": labels[:-1], "last word": labels, "shelf": labels[:1]}[damaged]
    assert checkpoints.held() == kept and not checkpoints.finished
    assert all("is damaged and is not used" in line for line in told)
    back = checkpoints.go_back(kept[-1])
    assert back is not None
    resumed = party()
    resumed.resume(back)
    with_a_shelf(resumed, checkpoints.save)
    assert list(checkpoints.sift()) == [] and checkpoints.held() == labels


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
            assert (layer.training, torch.is_grad_enabled(), me.progress.phase) == (
                False,
                False,
                "eval",
            )
        assert (layer.training, torch.is_grad_enabled(), me.progress.phase) == (True, True, "train")
        modes = [module.training for module in frozen.modules()]
        assert modes == [True, True, False]  # what was in evaluation mode before stays so


def test_a_module_made_while_evaluating_evaluates_too() -> None:
    """Prediction restores its modules inside `evaluating`: they must not use batch statistics."""
    me = party()
    with me.evaluating():
        layer = me.keep("layer", lambda: nn.BatchNorm1d(2))
        assert not layer.training
        with me.evaluating():
            inner = me.keep("inner", lambda: nn.Sequential(nn.Dropout()))
            assert not inner[0].training
        assert (layer.training, inner[0].training) == (False, False)
    assert (layer.training, inner[0].training) == (True, True)


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
        Task.of(()),
        torch.device("cpu"),
    )
    first = [batch.x for batch in me.rows("test")]
    second = [batch.x for batch in me.rows("test")]
    assert torch.equal(me.splits["test"].x, x)
    assert torch.equal(torch.cat(first), torch.cat(second))
