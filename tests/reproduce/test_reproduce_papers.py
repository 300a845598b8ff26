"""The tables that come with Colonnade: complete, true to the paper's numbers, and runnable."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from colonnade import config, methods
from colonnade.errors import RunError
from colonnade.reproduce import catalogue, flow
from colonnade.reproduce.exhibit import Planned, Size
from colonnade.reproduce.table import Table

NAMES = [name for name in catalogue.names() if not name.startswith("vfedtrans-")]
SIZES: tuple[Size, Size] = ("fast", "full")
WITH_NUMBERS = {
    "easter-table2": 90,
    "easter-table3": 45,
    "easter-table4": 36,
    "adptvfedconv-table2": 15,
    "adptvfedconv-table3": 30,
    "jovefl-table3": 24,
    "jovefl-published": 24,
    "fedemb-table2": 200,  # KDD's twice: also beside all its rows
    "fedemb-table3": 196,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed does not change between two configurations."""
    monkeypatch.setattr(methods, "entry_points", functools.cache(methods.entry_points))


@pytest.fixture(scope="module", params=NAMES)
def table(request: pytest.FixtureRequest) -> Table:
    return federated(request.param)


def federated(name: str) -> Table:
    """A table of runs; those of the other kind have a test file of their own."""
    found = catalogue.find(name)
    assert isinstance(found, Table)
    return found


def planned(name: str, size: Size = "full", seeds: int = 1) -> list[Planned]:
    return federated(name).plan(size, seeds, {}, "cpu")


def digest(run: Planned) -> str:
    return config.load(run.config).sha256()


def test_the_tables_there_are() -> None:
    figures = {"easter-fig4", "easter-fig5", "adptvfedconv-fig3", "adptvfedconv-fig4"}
    figures |= {"jovefl-fig6", "jovefl-fig7", "jovefl-fig8", "jovefl-labels", "jovefl-clients"}
    assert {*WITH_NUMBERS, *figures} <= set(NAMES)
    assert {name for name in NAMES if federated(name).kind == "figure"} >= figures


def test_an_unknown_table_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(RunError, match="did you mean 'easter-table2'"):
        federated("easter-tabel2")


@pytest.mark.parametrize(("name", "count"), WITH_NUMBERS.items())
def test_every_number_of_the_paper_has_exactly_one_cell(name: str, count: int) -> None:
    table = federated(name)
    assert len(table.numbers) == count
    rows = {(r.block, row.name): row for r in table.runs for row in table.rows(r)}
    for split in table.splits:
        addressed: Counter[tuple[str, str, str]] = Counter()
        for run in table.plan("full", 1, {"data": tuple(table.data)}, "cpu"):
            for fill in run.fills:
                row = rows[run.place.block, fill.row]
                cell = (run.place.data, row.paper, fill.column)
                # JoVe-FL's paper gives single clients in some experiments, means in others.
                # FedEmb's gives no PPM where nothing is told.
                complete = not name.startswith(("jovefl", "fedemb"))
                printed = cell in table.numbers or complete
                if run.place.split == split and row.paper and not row.variant and printed:
                    addressed[cell] += 1
        assert addressed == Counter(dict.fromkeys(table.numbers, 1))


def test_every_variant_stands_beside_a_number(table: Table) -> None:
    for runs in table.runs:
        assert not runs.variant or all(row.paper for row in table.rows(runs))


def test_the_paper_repeats_three_rows_in_table_3() -> None:
    """Tables 2 and 3 share these numbers in the paper, so a slip of the pen would show."""
    second, third = federated("easter-table2").numbers, federated("easter-table3").numbers
    for ours, theirs in {"Local": "Local", "Homo_aggVFL": "Agg_VFL", "EASTER": "EASTER"}.items():
        for (data, row, column), (value, deviation) in third.items():
            if row == ours:
                assert deviation is None and value == second[data, theirs, column][0]


def test_numbers_as_printed() -> None:
    numbers = federated("easter-table2").numbers
    assert numbers["MNIST", "C_VFL", "MLP"] == (95.33, 4.6)
    assert numbers["CIFAR10", "Agg_VFL", "ResNet18"] == (74.93, 1.25)
    assert federated("easter-table4").numbers["CIFAR10", "Adam", "LeNet"] == (67.95, None)
    numbers = federated("adptvfedconv-table2").numbers
    assert numbers["CIFAR100", "No model transfer", "VGG-16"] == (63.87, None)
    depths = federated("adptvfedconv-table3").numbers
    assert depths["CIFAR10", "7C+3M", "VGG-16"] == (73.11, None)
    for data in ("CIFAR10", "CIFAR100", "CINIC10"):  # the paper prints these twice
        assert numbers[data, "AdptVFedConv", "VGG-16"] == depths[data, "2C+1M", "VGG-16"]


def test_numbers_of_jovefl_as_printed() -> None:
    numbers = federated("jovefl-table3").numbers
    assert numbers["Experiment 1", "JoVe-FL", "smaller"] == (73.73, None)
    assert numbers["Experiment 3", "JoVe-FL", "mean"] == (81.1, None)
    alone = [numbers[f"Experiment {k}", "No communication", "smaller"] for k in (1, 4, 5)]
    assert alone == [(72.1, None)] * 3  # one view, printed three times


@pytest.mark.parametrize("size", ["fast", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_every_configuration_is_accepted(name: str, size: Size) -> None:
    runs = planned(name, size)
    assert len({run.key for run in runs}) == len(runs)
    digests = set()
    for run in [run for run in runs if run.config["method"] in methods.names()]:
        settings = config.load(run.config)
        assert settings.run.name == run.key
        assert settings.sha256() not in digests  # no run is made twice
        digests.add(settings.sha256())


def test_the_recipe_of_table_2() -> None:
    epochs = {"MNIST": 10, "FMNIST": 10, "CIFAR10": 15}
    for run in planned("easter-table2"):
        assert run.config["epochs"] == epochs[run.place.data]
        assert run.config["batch_size"] == 128 and run.config["schedule"] == "cosine"
        if "q-10" not in run.key:  # many local steps need smaller ones
            assert run.config["lr"] == 0.05 and run.config["momentum"] == 0.9
        kind = {"quadrants": "tiles", "strips": "strips"}[run.place.split]
        assert run.config["partition"]["kind"] == kind
        assert "train_rows" not in run.config["data"]


def test_the_networks_move_on_with_the_seed() -> None:
    firsts = {
        run.seed: [recipe["model"] for recipe in run.config["parties"].values()]
        for run in federated("easter-table2").plan("fast", 4, {"rows": ("EASTER",)}, "cpu")
        if run.place.data == "MNIST"
    }
    assert firsts[0] == ["cnn", "lenet", "mlp", "lenet"]
    assert firsts[1] == ["lenet", "mlp", "lenet", "cnn"]
    assert [firsts[seed][0] for seed in range(4)] == ["cnn", "lenet", "mlp", "lenet"]


def test_a_column_of_easter_is_the_mean_of_the_parties_with_its_network() -> None:
    (run,) = federated("easter-table2").plan(
        "fast",
        1,
        {"rows": ("EASTER",), "data": ("MNIST",)},
        "cpu",
    )
    holders = {fill.column: fill.parties for fill in run.fills}
    assert holders == {"CNN": ("party1",), "LeNet": ("party2", "party4"), "MLP": ("party3",)}


def test_a_row_of_table_4_is_the_party_with_its_optimiser() -> None:
    runs = {
        (r.place.block, r.place.data, r.fills[0].column): r for r in planned("easter-table4")[:18]
    }
    tuned = runs["learning rates by optimiser", "MNIST", "LeNet"]
    assert {fill.row: fill.parties for fill in tuned.fills} == {
        "SGD": ("party1",),
        "SGD+momentum": ("party2",),
        "Adagrad": ("party3",),
        "Adam": ("party4",),
    }
    recipes = list(tuned.config["parties"].values())
    assert [recipe["lr"] for recipe in recipes] == [0.05, 0.05, 0.01, 0.001]
    assert [recipe.get("momentum") for recipe in recipes[:2]] == [0.0, 0.9]
    settings = config.load({**tuned.config, "method": "splitnn"})
    assert {recipe.model for recipe in settings.parties.values()} == {"lenet"}
    printed = runs["0.05 for all, as printed", "MNIST", "LeNet"].config["parties"]
    assert [recipe["lr"] for recipe in printed.values()] == [0.05] * 4


def test_tables_share_runs() -> None:
    """What `--reuse` is for: Local, prediction aggregation and EASTER stand in both tables."""
    if not {"easter", "aggvfl"} <= set(methods.names()):
        pytest.skip("the methods are not there yet")
    rows = {"Local": "Local", "Homo_aggVFL": "Agg_VFL", "EASTER": "EASTER"}
    for size in SIZES:
        second = [r for r in planned("easter-table2", size) if r.fills[0].row in rows.values()]
        third = [r for r in planned("easter-table3", size) if r.fills[0].row in rows]
        assert {digest(run) for run in third} <= {digest(run) for run in second}
        fourth = {digest(run) for run in planned("easter-table4", size)}
        assert {digest(run) for run in planned("easter-fig4", size)} <= fourth


ADPTVFEDCONV = [
    f"adptvfedconv-{table}"
    for table in ("table2", "table3", "fig3", "fig4", "modes", "grids", "inversion")
]


@pytest.mark.parametrize("name", ADPTVFEDCONV)
def test_the_recipe_of_adptvfedconv(name: str) -> None:
    for run in planned(name):
        got = run.config
        assert (got["epochs"], got["batch_size"], got["lr"], got["warmup"]) == (24, 256, 0.1, 2.0)
        assert got["optimizer"] == "sgd" and got["nesterov"] and got["precision"] == "bfloat16"
        own = got["adptvfedconv"]
        assert (own["pretrain_epochs"], own["finetune_epochs"]) == (12, 5)
        assert got["data"]["flip"] and got["data"]["shift"] == 4
        assert got["evaluate_every"] == (1 if name.endswith("fig3") else 4)
    assert federated(name).full.seeds == (3 if name.endswith("table2") else 1)
    fast = planned(name, "fast")
    assert {run.place.data for run in fast} == {"CIFAR10"}
    assert {run.config["data"]["train_rows"] for run in fast} == {10000}
    assert {run.config["precision"] for run in fast} == {"float32"}


@pytest.mark.parametrize(("size", "width"), [("fast", [256]), ("full", [4096, 4096])])
def test_every_row_of_table_2_has_the_same_network(size: Size, width: list[int]) -> None:
    """Two methods have their last hidden layer in `dim`."""
    for run in planned("adptvfedconv-table2", size):
        hidden = list(run.config["model_options"]["fc"])
        if run.config["method"] in ("centralised", "local"):
            hidden.append(run.config[run.config["method"]]["dim"])
        assert hidden == width, run.key


def test_tables_of_adptvfedconv_share_runs() -> None:
    second = {run.fills[0].row: digest(run) for run in planned("adptvfedconv-table2")[:10]}
    modes = {run.fills[0].row: digest(run) for run in planned("adptvfedconv-modes")}
    assert modes["cached, 2 views"] == second["AdptVFedConv"]
    assert modes["oracle"] == second["AdptVFedConv, augmented across tiles"]
    assert modes["consistent, every epoch"] == second["AdptVFedConv, consistent"]
    assert digest(planned("adptvfedconv-grids")[0]) == second["AdptVFedConv"]
    for size in SIZES:
        third = {run.fills[0].row: digest(run) for run in planned("adptvfedconv-table3", size)[:10]}
        fourth = {run.fills[0].row: digest(run) for run in planned("adptvfedconv-fig4", size)[:10]}
        attack = {run.fills[0].row: digest(run) for run in planned("adptvfedconv-inversion", size)}
        assert third == fourth == {row: attack[row] for row in third}


def test_runs_that_share_their_start_do_not_begin_together() -> None:
    """One of each comes first: the others then find it made."""
    planned = federated("fedemb-table2").plan("fast", 2, {}, "cpu")
    ordered = flow._in_order(planned)
    assert Counter(run.key for run in ordered) == Counter(run.key for run in planned)
    starts = [config.load(run.config).start_sha256() for run in ordered]
    shared = [start for start in starts if start]
    assert len(set(shared)) == 6 < len(shared)  # three data sets, two seeds
    assert len(set(shared[:6])) == 6
    assert all(starts[: len(starts) - len(shared) + 6].count(start) == 1 for start in shared)
