"""Models that leave are trained on clipped gradients of single records, with noise that is counted
exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.data import Split
from colonnade.errors import BudgetSpent, ColonnadeError, ConfigError
from colonnade.journal import Journal, RunJournal
from colonnade.models import network
from colonnade.privacy.gradients import RecordGradients
from colonnade.privacy.protection import protect
from colonnade.privacy.settings import MODEL_TAILS, Protect
from colonnade.privacy.training import LEAST, ModelNoise, Training, clipped_sum
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.task import Task

ROWS, WIDTH = 12, 6
HOW = Protect(model_epsilon=8.0)
SCHEDULE = Schedule(seed=1, epochs=2, batch_size=4)
Make = Callable[[], nn.Module]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.ReLU(), nn.Linear(5, 3))


class Trainer:
    """A party that trains one network and would tell others of it."""

    def __init__(
        self,
        folder: Path,
        how: Protect = HOW,
        make: Make = mlp,
        recipe: Recipe | None = None,
        scale: float = 1.0,
        rows: int = ROWS,
        planned: int = 2,
        task: Task | None = None,
        schedule: Schedule = SCHEDULE,
    ) -> None:
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(rows, WIDTH, generator=generator) * scale
        y = torch.randint(3, (rows,), generator=generator)
        splits = {"train": Split(x, y, torch.arange(rows))}
        task, device = task or Task.of(("a", "b", "c")), torch.device("cpu")
        recipe = recipe or Recipe(momentum=0.0, schedule="constant", lr=0.5)
        self.me = Party("shop", "client", recipe, schedule, splits, None, task, device)
        journal = Journal(folder / "journal")
        self.me.journal = RunJournal(lambda: journal, "3f", [f"row {n}" for n in range(rows)])
        protect(self.me, how, {"optimizer": planned})
        assert self.me.protection is not None
        self.me.protection.begin(self.me)
        torch.manual_seed(2)
        self.make = make
        self.model = self.me.keep("model", make)
        self.optimizer = self.me.optimizer(self.model)
        self.sums: list[Tensor] = []  # of clipped gradients, by the hand-written loop

    def train(self, epochs: int = 2, most: int = 99, times: int = 1) -> list[Tensor]:
        """The gradients with which each step was taken, times the rows of its batch."""
        taken: list[Tensor] = []
        for _ in self.me.epochs(count=epochs):
            for batch in self.me.batches():
                for _ in range(times):
                    if len(taken) == most:
                        return taken
                    self.sums.append(self.by_hand(batch.x, batch.labels))
                    loss = self.me.task.loss(self.model(batch.x), batch)
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
                    taken.append(flat(self.model) * len(batch))
        return taken

    def by_hand(self, x: Tensor, y: Tensor, clip: float = HOW.model_clip) -> Tensor:
        model = self.make()
        model.load_state_dict(self.model.state_dict())
        total = torch.zeros(sum(p.numel() for p in model.parameters()))
        for row, label in zip(x, y, strict=True):
            loss = F.cross_entropy(model(row[None]), label[None])
            each = torch.autograd.grad(loss, list(model.parameters()))
            gradient = torch.cat([g.flatten() for g in each])
            total += gradient * min(1.0, clip / float(gradient.norm()))
        return total

    @property
    def told(self) -> dict[str, Any]:
        assert self.me.protection is not None
        return dict(self.me.protection.told().get("models", {}))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


# ---- gradients of single records -----------------------------------------------------------------

IMAGE = (1, 8, 8)
NETWORKS: dict[str, Make] = {
    "mlp": lambda: network("mlp", (6,), 3, hidden=(5,), activated=False),
    "cnn": lambda: network("cnn", IMAGE, 3, width=0.25, activated=False),
    "lenet": lambda: network("lenet", IMAGE, 3, width=0.5, activated=False),
    "resnet8": lambda: network("resnet8", IMAGE, 3, width=0.25, norm="group", activated=False),
    "resnet50": lambda: network("resnet50", IMAGE, 3, width=0.05, norm="group", activated=False),
    "vgg16": lambda: network(
        "vgg16", IMAGE, 3, width=0.05, fc=(6,), dropout=0.0, norm="group", activated=False
    ),
    "own": lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 4), nn.PReLU()),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_clipped_sums_are_those_of_a_hand_written_loop(name: str) -> None:
    torch.manual_seed(3)
    model = NETWORKS[name]()
    x = torch.randn(5, *((6,) if name == "mlp" else IMAGE))
    y = torch.tensor([0, 1, 2, 1, 0])
    each = RecordGradients("shop", list(model.parameters()), lambda: x)
    each.watch("model", model)
    F.cross_entropy(model(x), y).backward()
    taken, singles = each.take(5), []
    for row, label in zip(x, y, strict=True):
        loss = F.cross_entropy(model(row[None]), label[None])
        found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        singles.append(torch.cat([g.flatten() for g in found if g is not None]))
    clip = float(torch.stack([one.norm() for one in singles]).median())  # some are longer
    expected = sum(one * min(1.0, clip / float(one.norm())) for one in singles)
    total = clipped_sum(taken, clip, 5)
    due = torch.as_tensor(expected).double()
    assert float((total.double() - due).norm()) < 1e-4 * float(due.norm())


def test_one_record_moves_a_sum_by_twice_the_clip_at_most() -> None:
    torch.manual_seed(4)
    model, y = mlp(), torch.tensor([0, 1, 2, 0])
    x = torch.randn(4, WIDTH)
    sums = []
    for first in (1e4, -1e4, 0.0):
        each = RecordGradients("shop", list(model.parameters()), lambda: x)
        each.watch("model", model)
        changed = x.clone()
        changed[0] = first
        model.zero_grad()
        F.cross_entropy(model(changed), y).backward()
        sums.append(clipped_sum(each.take(4), 0.5, 4))
    moved = [float((a - b).norm()) for a in sums for b in sums]
    assert 0.5 < max(moved) <= 1.0


def test_a_layer_that_is_used_twice_adds_both() -> None:
    torch.manual_seed(6)
    layer = nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    x, y = torch.randn(4, WIDTH), torch.tensor([0, 1, 2, 0])
    each = RecordGradients("shop", list(model.parameters()), lambda: x)
    each.watch("model", model)
    F.cross_entropy(model(x), y).backward()
    whole = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    total = clipped_sum(each.take(4), 1e6, 4)  # nothing is clipped
    assert torch.allclose(total.float(), whole * 4, rtol=1e-4, atol=1e-5)


class Mixing(nn.Module):
    """What each row gets depends on all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x - x.mean(0))
        return y


class Tied(nn.Module):
    """Its weights are used in their layer, and once more outside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + x.square() @ self.layer.weight.T
        return y


def test_networks_in_which_rows_meet_are_refused(tmp_path: Path) -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 3), nn.BatchNorm1d(3))

    with pytest.raises(ConfigError, match=r"BatchNorm1d.*norm = \"group\""):
        Trainer(tmp_path / "a", make=normed)
    for name, layer in (("d", nn.BatchNorm1d(3, affine=False)),
                        ("e", nn.InstanceNorm1d(3, track_running_stats=True))):  # fmt: skip
        with pytest.raises(ConfigError, match="statistics of all rows would leave"):
            Trainer(tmp_path / name, make=lambda layer=layer: nn.Sequential(mlp(), layer))
    with pytest.raises(ConfigError, match="a row changes what other rows get"):
        Trainer(tmp_path / "b", make=Mixing).train()
    with pytest.raises(ColonnadeError, match="not the whole of it"):
        Trainer(tmp_path / "c", make=Tied).train()


def test_rows_with_weights_and_half_precision_are_refused(tmp_path: Path) -> None:
    task = Task("multiclass", ("a", "b", "c"), class_weight="balanced")
    with pytest.raises(ConfigError, match="Omit class_weight"):
        Trainer(tmp_path / "a", task=task)
    with pytest.raises(ConfigError, match="precision = 'float32'"):
        Trainer(tmp_path / "b", recipe=Recipe(precision="bfloat16"))
    with pytest.raises(ConfigError, match="Omit patience"):
        Trainer(tmp_path / "c", schedule=Schedule(1, 2, 4, patience=2))


# ---- noise ---------------------------------------------------------------------------------------


def test_steps_follow_the_clipped_sum_with_noise_of_the_stated_size(tmp_path: Path) -> None:
    trainer = Trainer(
        tmp_path, make=lambda: nn.Sequential(nn.Linear(WIDTH, 900), nn.Tanh(), nn.Linear(900, 3))
    )
    taken = trainer.train()
    noise = torch.cat([a - b for a, b in zip(taken, trainer.sums, strict=True)])
    sigma = Training.of(HOW, {"optimizer": 2}).size * 2 * HOW.model_clip
    assert len(noise) > 50_000
    assert stats.kstest((noise / sigma).numpy(), "norm").pvalue > 1e-7


def test_sums_leave_on_a_grid_whatever_they_were(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    noise = ModelNoise(HOW, Training.of(HOW, {"optimizer": 2}))
    for sums in trainer.train():
        steps = sums.double() / noise.grid
        assert torch.allclose(steps, steps.round(), atol=0.01)


def test_noise_follows_from_the_party_alone(tmp_path: Path) -> None:
    one, other = Trainer(tmp_path / "a").train(), Trainer(tmp_path / "b").train()
    alike = torch.isclose(one[0], other[0])  # on one grid, so a few may meet
    assert alike.float().mean() < 0.2


def test_a_clip_of_the_recipe_comes_after_the_noise(tmp_path: Path) -> None:
    recipe = Recipe(momentum=0.0, schedule="constant", lr=0.5, clip_norm=0.01)
    trainer = Trainer(tmp_path, recipe=recipe)
    assert all(float((sums / 4).norm()) < 0.0101 for sums in trainer.train())


# ---- the account ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "epochs"), [(1.0, 3), (8.0, 2), (4.0, 50)])
def test_the_plan_is_what_an_independent_accountant_says(epsilon: float, epochs: int) -> None:
    how = Protect(model_epsilon=epsilon)
    plan = Training.of(how, {"optimizer": epochs})
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(GaussianDpEvent(plan.size), epochs)
    assert accountant.get_epsilon(how.delta - MODEL_TAILS) == pytest.approx(epsilon, rel=1e-3)


def test_no_noise_ends_where_that_of_another_record_begins() -> None:
    assert Training.of(Protect(model_epsilon=1000.0), {"optimizer": 1}).size == LEAST


def test_a_run_spends_what_was_planned_and_says_so(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.train()
    assert trainer.told["epsilon"] == pytest.approx(8.0, rel=1e-6)
    assert (trainer.told["releases"], trainer.told["claim"]) == (2, "per record")
    assert trainer.told["all_runs"] == trainer.told["epsilon"]


def test_a_run_that_ends_early_has_spent_less(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.train(most=3)
    assert trainer.told["releases"] == 1 and trainer.told["epsilon"] < 6


def test_a_killed_run_takes_the_same_steps_and_is_charged_once(tmp_path: Path) -> None:
    first = Trainer(tmp_path).train(most=4)
    again = Trainer(tmp_path)  # another process, which has lost its checkpoints
    taken = again.train()
    assert all(torch.equal(a, b) for a, b in zip(first, taken[:4], strict=True))
    assert again.told["releases"] == 2


def test_other_gradients_at_the_same_place_are_refused(tmp_path: Path) -> None:
    Trainer(tmp_path).train(most=4)
    with pytest.raises(BudgetSpent, match="with other gradients"):
        Trainer(tmp_path, scale=2.0).train()


def test_more_epochs_than_planned_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetSpent, match="in 2 epochs of this run"):
        Trainer(tmp_path).train(epochs=3)


def test_rows_are_trained_on_once_in_an_epoch(tmp_path: Path) -> None:
    with pytest.raises(BudgetSpent, match="in epoch 1"):
        Trainer(tmp_path).train(times=2)


def test_what_is_not_asked_for_costs_nothing(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, Protect(label_epsilon=1.0))
    assert trainer.me.kept.on_thing is None
    taken = trainer.train(most=1)
    assert torch.allclose(taken[0] / 4, flat(trainer.model))
    assert trainer.told == {}
