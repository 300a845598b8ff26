"""Numbers, classes that count differently, and rows that do: what methods make of a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_sample_weight
from torch import Tensor, nn
from torch.nn import functional as F

import colonnade
from colonnade import assembly, config
from colonnade.errors import Diverged, InputError
from colonnade.methods.parts.mixture import Mixture
from colonnade.methods.parts.scoring import accuracy_and_loss
from colonnade.models import network
from colonnade.role.recipe import make_optimizer, rate_factor
from colonnade.role.seeds import derive
from colonnade.runs.run import Result
from colonnade.task import Task
from colonnade.wire import ledger, store

ROWS = 160
DRAW = np.random.default_rng(8)
X = DRAW.normal(size=(ROWS, 6)).astype(np.float32)
PRICES = 4000 + 900 * (X @ np.array([1.0, -1.0, 0.5, 1.0, -0.5, 1.0])) + 0.25
FEW = (np.quantile(PRICES, 0.85) < PRICES).astype(int)  # 15 % are of class 1
ROW_WEIGHTS = DRAW.uniform(0.1, 3.0, size=ROWS)


def run(
    folder: Path, y: Any, method: str = "splitnn", runtime: str = "local", **changes: Any
) -> Result:
    tree = {
        "method": method,
        "seed": 5,
        "epochs": 2,
        "batch_size": 32,
        "batching": "papers",  # as in the hand-written loops
        "name": "run",
    }
    return colonnade.run(tree | changes, parties=parts(y, method), out=folder, runtime=runtime)


def parts(y: Any, method: str = "splitnn", span: slice = slice(0, ROWS)) -> dict[str, Any]:
    """Three parties, of which the first holds the labels, or all do."""
    labels = y if isinstance(y, tuple) else (y,)
    labels = tuple(part[span] for part in labels)
    everyone = method == "jovefl"
    tables = {"bank": X[span, :2], "shop": X[span, 2:4], "post": X[span, 4:]}
    return {name: (x, *labels) if everyone or name == "bank" else x for name, x in tables.items()}


def weights_of(result: Result, party: str, module: str) -> dict[str, Tensor]:
    tree = store.load(result.path / "weights" / party)["weights"][module]
    return dict(tree)


def recorded(result: Result, kind: str, sender: str) -> list[Tensor]:
    """The payloads of a Kind in training, in their order."""
    tensors: dict[str, Tensor] = {}
    for file in (result.path / "record").glob("*.safetensors"):
        tensors.update(store.read_tensors(file))
    by_row = {name.partition("/")[0]: tensor for name, tensor in tensors.items()}
    return [
        by_row[f"{row['row']:08d}"]
        for row in ledger.read(result.path / "ledger.jsonl")
        if (row["kind"], row["sender"], row["phase"]) == (kind, sender, "train")
    ]


def by_hand(tree: dict[str, Any], y: Any, loss_of: Any) -> list[nn.Module]:
    """The same split network as one graph; loss_of(outputs, rows) is the loss."""
    checked = config.load(tree)
    made = assembly.from_memory(checked, parts(y), None)
    members = list(made.parties.values())
    torch.set_num_threads(1)
    modules: list[nn.Module] = []
    for number, party in enumerate(members):
        torch.manual_seed(derive(5, "party", party.name))
        modules.append(network("mlp", party.shape, 128))
        if number == 0:
            outputs = party.task.outputs
            top = nn.Sequential(nn.Linear(384, 128), nn.ReLU(), nn.Linear(128, outputs))
    owned = [[*modules[0].parameters(), *top.parameters()]]
    owned += [list(module.parameters()) for module in modules[1:]]
    optimizers = [make_optimizer(checked.recipe, parameters) for parameters in owned]
    train = members[0].splits["train"]
    count, y = len(train), train.y
    batches = -(-count // 32)
    for epoch in range(2):
        seed = derive(5, "order", "train", epoch)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        for step, rows in enumerate(order.split(32)):
            for one in optimizers:
                for group in one.param_groups:
                    factor = rate_factor(checked.recipe, epoch + step / batches, 2)
                    group["lr"] = group["initial_lr"] * factor
            x = [party.splits["train"].x[rows] for party in members]
            cut = torch.cat([module(part) for module, part in zip(modules, x, strict=True)], 1)
            loss = loss_of(top(cut), y, rows)
            for one in optimizers:
                one.zero_grad()
            loss.backward()
            for one in optimizers:
                one.step()
    return [top, *modules]


# ---- weights -------------------------------------------------------------------------------------


def check_by_hand(result: Result, modules: list[nn.Module]) -> None:
    top, *bottoms = modules
    for name, value in top.state_dict().items():
        torch.testing.assert_close(weights_of(result, "bank", "top")[name], value)
    for party, bottom in zip(("bank", "shop", "post"), bottoms, strict=True):
        for name, value in bottom.state_dict().items():
            torch.testing.assert_close(weights_of(result, party, "bottom")[name], value)


TREE: dict[str, Any] = {"method": "splitnn", "seed": 5, "epochs": 2, "batch_size": 32}


def test_balanced_classes_are_rows_weighted_by_hand(tmp_path: Path) -> None:
    """As scikit-learn weighs them: rows / (classes × rows of the class), over all training rows."""
    result = run(tmp_path / "run", FEW, class_weight="balanced")

    def loss_of(outputs: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        weights = torch.from_numpy(compute_sample_weight("balanced", y.numpy())).float()
        assert float(weights.mean()) == pytest.approx(1)
        each = F.cross_entropy(outputs, y[rows], reduction="none")
        return (weights[rows] * each).mean()

    check_by_hand(result, by_hand(TREE | {"batching": "papers"}, FEW, loss_of))
    apart = run(tmp_path / "apart", FEW, runtime="process", class_weight="balanced")
    assert apart.weights_sha256 == result.weights_sha256


def test_numbers_are_learnt_in_units_of_their_spread(tmp_path: Path) -> None:
    result = run(tmp_path / "run", PRICES, task="regression")

    def loss_of(outputs: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        truth = (y - y.mean()) / y.std(correction=0)
        return F.mse_loss(outputs[:, 0], truth[rows].float())

    tree = TREE | {"batching": "papers", "task": "regression"}
    check_by_hand(result, by_hand(tree, PRICES, loss_of))


def test_weights_of_rows_multiply_those_of_their_classes(tmp_path: Path) -> None:
    settings = {"class_weight": {"1": 4.0, "0": 0.5}}
    result = run(tmp_path / "run", (FEW, ROW_WEIGHTS), **settings)
    tree = TREE | {"batching": "papers"} | settings
    train = assembly.from_memory(config.load(tree), parts((FEW, ROW_WEIGHTS)), None)
    own = train.parties["bank"].splits["train"].weights
    assert own is not None

    def loss_of(outputs: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        weights = own * torch.where(y == 1, 4.0, 0.5)
        weights = (weights / weights.mean()).float()
        each = F.cross_entropy(outputs, y[rows], reduction="none")
        return (weights[rows] * each).mean()

    check_by_hand(result, by_hand(tree, (FEW, ROW_WEIGHTS), loss_of))
    apart = run(tmp_path / "apart", (FEW, ROW_WEIGHTS), runtime="process", **settings)
    assert apart.weights_sha256 == result.weights_sha256


def test_weights_of_rows_also_count_for_numbers(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", PRICES, task="regression")
    ones = run(tmp_path / "ones", (PRICES, np.full(ROWS, 7.0)), task="regression")
    weighed = run(tmp_path / "weighed", (PRICES, ROW_WEIGHTS), task="regression")
    for name, value in weights_of(plain, "bank", "top").items():
        torch.testing.assert_close(weights_of(ones, "bank", "top")[name], value)
    assert weighed.weights_sha256["shop"] != plain.weights_sha256["shop"]


@pytest.mark.parametrize("method", ["splitnn", "aggvfl", "cvfl"])
def test_weights_change_nothing_of_what_others_send_first(method: str, tmp_path: Path) -> None:
    """They stay at the label holder: a passive party's first message is the same, and so are
    number, shape and size of all."""
    kind = "scores" if method == "aggvfl" else "embedding"
    options = {"cvfl": {"compressor": "none"}} if method == "cvfl" else {}
    both = [
        run(tmp_path / name, FEW, method, record=[kind], strict=True, class_weight=name, **options)
        for name in ("none", "balanced")
    ]
    first, second = (recorded(result, kind, "shop") for result in both)
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[-1], second[-1])  # what came back has changed what it learnt
    flows = [result.wire["flows"] for result in both]
    assert flows[0] == flows[1]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_masks_hide_what_weighted_rows_say_as_well(loss: str, tmp_path: Path) -> None:
    """EASTER's sum of masked embeddings is that of the bare ones, whatever the rows count."""
    found = [
        run(
            tmp_path / mask,
            FEW,
            "easter",
            class_weight="balanced",
            easter={"mask": mask, "loss": loss},
        )
        for mask in ("none", "prg")
    ]
    plain = run(tmp_path / "plain", FEW, "easter", easter={"mask": "none", "loss": loss})
    for party in ("bank", "shop", "post"):
        bare, masked = (weights_of(result, party, "decision") for result in found)
        for name, value in bare.items():
            torch.testing.assert_close(masked[name], value, atol=1e-4, rtol=1e-4)
        assert plain.weights_sha256[party] != found[0].weights_sha256[party]


def test_parties_to_whom_labels_are_lent_weigh_them_alike(tmp_path: Path) -> None:
    """With labels = "shared" passive parties train on the loss themselves."""
    cvfl = {"cvfl": {"labels": "shared", "compressor": "none"}}
    weighed = run(tmp_path / "run", (FEW, ROW_WEIGHTS), "cvfl", class_weight="balanced", **cvfl)
    joint = run(tmp_path / "joint", (FEW, ROW_WEIGHTS), "splitnn", class_weight="balanced")
    # Shared labels and nothing compressed are split learning, but for the order at the cut.
    for row, other in zip(weighed.history, joint.history, strict=True):
        loss = row["parties"]["bank"]["loss"]
        assert loss == pytest.approx(other["parties"]["bank"]["loss"], rel=0.05)
    apart = run(
        tmp_path / "apart", (FEW, ROW_WEIGHTS), "cvfl", "process", class_weight="balanced", **cvfl
    )
    assert apart.weights_sha256 == weighed.weights_sha256


# ---- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *(("easter", {"gradient": way}) for way in ("own", "joint", "unit")),
        *(("easter", {"mask": mask}) for mask in ("prg", "paper", "none")),
        ("easter", {"aggregate": "weighted", "weights": {"shop": 2.0}, "stand_in": "present"}),
        ("aggvfl", {"aggregate": "sum"}),
        ("aggvfl", {"steps": 2}),
        ("cvfl", {"labels": "shared", "local_steps": 2}),
        ("cvfl", {"compressor": "topk"}),
        ("heteronn", {"fixed_point": True}),
        ("splitnn", {"cut": "sum", "hidden": 0}),
        ("local", {"oracle": True}),
        ("jovefl", {"adopt": "insured", "judge": "test"}),
        ("jovefl", {"rate": "plateau", "judge": "test"}),
        ("jovefl", {"rate": "plateau", "judge": "test", "signal": "loss"}),
        ("vfedtrans", {"q": 2, "unsafe_q": True, "distil_epochs": 2}),
    ],
)
def test_numbers_are_learnt_with_every_option(
    method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    result = run(tmp_path / "run", PRICES, method, task="regression", epochs=6, **{method: options})
    found = [row["parties"] for row in result.history if row["phase"] == "train"]
    losses = [sum(party.get("loss", 0.0) for party in row.values()) for row in found]
    assert losses[-1] < losses[0]
    # The bank's own columns make up half of the prices.
    assert found[-1]["bank"]["test_rmse"] < PRICES.std()
    assert not any("leak" in name for row in found for party in row.values() for name in party)


def losses(result: Result) -> list[list[float]]:
    """Of every party, epoch by epoch."""
    rows = [row["parties"] for row in result.history]
    return [[row[name]["loss"] for row in rows] for name in rows[0] if "loss" in rows[0][name]]


@pytest.mark.parametrize("share", ["nothing", "heads", "networks"])
def test_what_clients_share_of_numbers_depends_on_no_scale(share: str, tmp_path: Path) -> None:
    """Labels in another unit are the same labels to every network."""
    options = {"task": "regression", "jovefl": {"share": share}}
    euros = run(tmp_path / "euros", PRICES, "jovefl", **options)
    parts_of = run(tmp_path / "parts", PRICES / 1024, "jovefl", **options)
    assert losses(euros) == losses(parts_of)
    assert euros.weights_sha256 == parts_of.weights_sha256


def test_the_mean_of_one_network_is_that_network_for_numbers(tmp_path: Path) -> None:
    """What a loss does that nobody else has a part in, no averaging has done."""
    tree = {"method": "jovefl", "task": "regression", "epochs": 4, "batch_size": 32, "name": "run"}
    found = []
    for share in ("nothing", "networks"):
        whole = tree | {"jovefl": {"share": share, "same_start": True}}
        alone = {"bank": (X, PRICES)}
        found.append(colonnade.run(whole, parties=alone, out=tmp_path / share))
    assert losses(found[0]) == losses(found[1])


def clients(slopes: Mapping[str, list[float]]) -> dict[str, Any]:
    """Clients with other rows, whose two columns mean what the slopes say."""
    draw, found = np.random.default_rng(8), {}
    for name, slope in slopes.items():
        x = draw.normal(size=(ROWS, 2)).astype(np.float32)
        found[name] = (x, 4000 + 900 * (x @ np.array(slope) + draw.normal(size=ROWS)))
    return found


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_whole_networks_have_a_mean_only_where_columns_mean_the_same(
    task: str, tmp_path: Path
) -> None:
    """Otherwise it fits nobody, and losses rise as the rate falls: a client then hardly leaves the
    mean. That is said."""
    alike = clients({"bank": [1.0, 1.0], "shop": [1.0, 1.0], "post": [1.0, 1.0]})
    other = clients({"bank": [1.0, -1.0], "shop": [-1.0, 1.0], "post": [1.0, 1.0]})
    tree = {"method": "jovefl", "task": task, "epochs": 10, "batch_size": 32, "lr": 0.01}
    last: dict[tuple[str, str], float] = {}
    for named, parties in {"alike": alike, "other": other}.items():
        if task == "binary":
            parties = {name: (x, (y > 4000).astype(int)) for name, (x, y) in parties.items()}
        for share in ("nothing", "networks"):
            whole = tree | {"jovefl": {"share": share}}
            result = colonnade.run(whole, parties=parties, out=tmp_path / f"{named}-{share}")
            first, *_, last[named, share] = losses(result)[0]
            said = [text for text in result.content["warnings"] if "the mean fits nobody" in text]
            assert len(said) == (share == "networks")
            assert last[named, share] < first or (named, share) == ("other", "networks")
    assert last["alike", "networks"] < 1.2 * last["alike", "nothing"]
    assert last["other", "networks"] > 1.5 * last["other", "nothing"]


def test_sums_of_numbers_that_diverge_are_told_what_helps_and_it_does(tmp_path: Path) -> None:
    """Each party steps for the whole error, and twice: together they step too far."""
    options: dict[str, Any] = {"task": "regression", "epochs": 6}
    with pytest.raises(Diverged) as caught:
        run(tmp_path / "run", PRICES, "aggvfl", **options, aggvfl={"aggregate": "sum", "steps": 3})
    said = 'ry a smaller lr than 0.05, clip_norm = 1 or aggregate = "mean"'
    assert said in str(caught.value)
    for place, (advice, way) in enumerate(
        [({"lr": 0.01}, "sum"), ({"clip_norm": 1}, "sum"), ({}, "mean")]
    ):
        options["aggvfl"] = {"aggregate": way, "steps": 3}
        result = run(tmp_path / f"{place}", PRICES, "aggvfl", **options, **advice)
        assert result.history[-1]["parties"]["bank"]["test_rmse"] < PRICES.std()


def test_a_loss_of_classes_is_refused_for_numbers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"easter.*loss"):
        run(tmp_path / "run", PRICES, "easter", task="regression", easter={"loss": "sigmoid"})
    assert not (tmp_path / "run").exists()


def test_labels_that_are_numbers_are_no_secret_in_easter(tmp_path: Path) -> None:
    """A passive party computes each from what it is told, what it has sent and what comes back."""
    kinds = ["prediction", "gradient"]
    options = {"record": kinds, "strict": True, "task": "regression"}
    result = run(tmp_path / "run", PRICES, "easter", **options)
    told = result.content["data"]["task"]
    said = torch.cat(recorded(result, "prediction", "shop"))[:, 0]
    sent = recorded(result, "gradient", "bank")[0::2]  # to shop; every other one is post's
    returned = torch.cat([gradient[:, 0] * len(gradient) / 2 for gradient in sent])
    read = (said - returned) * told["spread"] + told["mean"]
    train = (
        assembly.from_memory(config.load(TREE | {"task": "regression"}), parts(PRICES), None)
        .parties["bank"]
        .splits["train"]
    )
    truth = train.y
    assert truth is not None
    seed = derive(5, "order", "train", 0)
    order = torch.randperm(len(truth), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(read[: len(truth)].double(), truth[order], atol=0.1, rtol=1e-4)


def test_how_good_numbers_are_is_a_share_like_an_accuracy() -> None:
    """So that a server can check it, and the same rule follows both."""
    task = Task("regression", mean=10.0, spread=2.0)
    labels = torch.tensor([8.0, 10.0, 12.0], dtype=torch.double)
    right = torch.tensor([[-1.0], [0.0], [1.0]])
    assert accuracy_and_loss(task, right, labels) == (1.0, 0.0)
    share, loss = accuracy_and_loss(task, right / 2, labels)  # R² = 1 - 0.5 / 2
    assert (share, loss) == (pytest.approx(0.75), pytest.approx(1 / 6))
    assert accuracy_and_loss(task, -right, labels)[0] == 0.0  # worse than the mean
    assert accuracy_and_loss(task, right, torch.full((3,), 10.0).double())[0] == 0.0


def test_the_insured_mix_numbers_as_the_judging_rows_prefer() -> None:
    task = Task("regression", mean=1.0, spread=1.0)
    mixture = Mixture(task)
    first, second = torch.zeros(4, 1), torch.ones(4, 1)
    mixture.choose(first, second, torch.full((4,), 1.25).double())
    assert float(mixture.part) == 0.75
    assert torch.equal(mixture(first, second), torch.full((4, 1), 0.25))


# ---- what is agreed on ---------------------------------------------------------------------------


def test_public_numbers_are_told_instead_of_those_of_the_labels(tmp_path: Path) -> None:
    public = {"mean": 4000.0, "spread": 1000.0}
    result = run(tmp_path / "run", PRICES, task="regression", data=public, epochs=8)
    assert result.content["data"]["task"] == {"kind": "regression", **public}
    assert result.history[-1]["parties"]["bank"]["test_rmse"] < PRICES.std()
    apart = run(
        tmp_path / "apart", PRICES, runtime="process", task="regression", data=public, epochs=8
    )
    assert apart.weights_sha256 == result.weights_sha256
