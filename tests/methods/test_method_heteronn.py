"""The interactive layer against a plain split network, masks that cancel, and real ciphertexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import colonnade
from colonnade import assembly, config
from colonnade.errors import ConfigError, MethodError, RoleFailed, Untrusted
from colonnade.methods import heteronn
from colonnade.methods.heteronn import HeteroNN
from colonnade.methods.parts.interactive_messages import CLEAR, ENCRYPTED
from colonnade.models import network
from colonnade.models.mlp import mlp
from colonnade.privacy import homomorphic
from colonnade.privacy.paillier import SEAL_BYTES, PaillierHolder, PaillierMultiplier
from colonnade.role.method import bind
from colonnade.role.party import Party
from colonnade.role.recipe import make_optimizer, rate_factor
from colonnade.role.seeds import derive
from colonnade.runtime import local
from colonnade.wire import Ledger, Wire, ledger, store

DIM, WIDTH, ROWS, BATCH = 16, 16, 100, 32


def settings(parties: int = 3, options: dict[str, Any] | None = None, **more: Any) -> Any:
    base: dict[str, Any] = {
        "method": "heteronn",
        "seed": 5,
        "epochs": 3,
        "batch_size": BATCH,
        "batching": "papers",  # as in the hand-written loops
        "momentum": 0.0,
        "model_options": {"hidden": [24]},
        "data": {"name": "digits", "train_rows": ROWS, "test_rows": 60},
        "partition": {"kind": "columns", "parties": parties},
        "heteronn": {"dim": DIM, "width": WIDTH} | (options or {}),
    }
    return base | more


# ---- against plain networks ----------------------------------------------------------------------


class Joint(nn.Module):
    """The split network in one piece: bottoms, z = Σ W_k α_k + b, and a top."""

    def __init__(self, shapes: list[tuple[int, ...]], hidden: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.bottoms = nn.ModuleList([network("mlp", s, DIM, hidden=[24]) for s in shapes])
        self.weights = nn.ModuleList([nn.Linear(DIM, WIDTH, bias=False) for _ in shapes])
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.top = mlp((WIDTH,), 10, hidden=hidden, activated=False)

    def forward(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        parts = [w(b(x)) for w, b, x in zip(self.weights, self.bottoms, inputs, strict=True)]
        logits: torch.Tensor = self.top(F.relu(torch.stack(parts).sum(0) + self.bias))
        return logits

    def as_heteronn(self, names: list[str]) -> dict[str, Any]:
        """What every party would begin with."""
        own: Any = self.weights[0]
        found: dict[str, Any] = {
            name: {"bottom": copied(bottom)}
            for name, bottom in zip(names, self.bottoms, strict=True)
        }
        found[names[0]] |= {
            "top": copied(self.top),
            "layer": {"bias": self.bias.detach().clone(), "own.weight": copied(own)["weight"]},
        }
        for name, weight in zip(names[1:], self.weights[1:], strict=True):  # type: ignore[arg-type]
            first = copied(weight)["weight"].T.double().contiguous()
            found[names[0]][f"masked weight of {name}"] = {"weight": first}
        return found

    def as_splitnn(self, names: list[str]) -> dict[str, Any]:
        """`cut = "concat"`: its first layer is all W_k side by side."""
        found: dict[str, Any] = {
            name: {"bottom": copied(bottom)}
            for name, bottom in zip(names, self.bottoms, strict=True)
        }
        last = copied(self.top)
        found[names[0]]["top"] = {
            "0.weight": torch.cat([copied(w)["weight"] for w in self.weights], dim=1),
            "0.bias": self.bias.detach().clone(),
            "2.weight": last["layer1.linear.weight"],
            "2.bias": last["layer1.linear.bias"],
        }
        return found


def copied(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def train(tree: Any, weights: str, hidden: tuple[int, ...] = ()) -> dict[str, Party]:
    """All roles, from the weights of a Joint network."""
    torch.set_num_threads(1)
    checked = config.load(tree)
    federation = assembly.from_catalogue(checked)
    names, parties = list(federation.parties), federation.parties
    joint = Joint([party.shape for party in parties.values()], hidden)
    for name, start in getattr(joint, weights)(names).items():
        parties[name].kept.load(start)
    method = checked.found.method

    def begin(party: Party, wire: Wire) -> Any:
        program = method.roles[party.role].train
        return bind(program, party, federation.cast, wire, checked.options)

    kinds = {kind.name: kind for kind in method.kinds}
    local.run(parties, begin, local.Mailboxes(kinds, Ledger(None)))
    return parties


def by_hand(tree: Any, hidden: tuple[int, ...] = ()) -> tuple[Joint, list[float]]:
    """The same training as one graph: the recipe's optimiser, and plain SGD for every host's W."""
    checked = config.load(tree)
    parties = list(assembly.from_catalogue(checked).parties.values())
    joint = Joint([party.shape for party in parties], hidden)
    inputs = []
    for party in parties:
        assert party.preparation is not None
        inputs.append(party.preparation.to_float(party.splits["train"].x))
    y = parties[0].splits["train"].y
    assert y is not None
    hosts = [p for w in list(joint.weights)[1:] for p in w.parameters()]
    rest = [p for p in joint.parameters() if all(p is not w for w in hosts)]
    optimizers = [
        make_optimizer(checked.recipe, rest),
        torch.optim.SGD(hosts, lr=checked.options.lr),
    ]
    optimizers[1].param_groups[0]["initial_lr"] = checked.options.lr
    losses: list[float] = []
    for epoch in range(3):
        seed = derive(5, "order", "train", epoch)
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))
        total = []
        for step, index in enumerate(order.split(BATCH)):
            for one in optimizers:
                for group in one.param_groups:
                    factor = rate_factor(checked.recipe, epoch + step / 4, 3)
                    group["lr"] = group["initial_lr"] * factor
                one.zero_grad()
            loss = F.cross_entropy(joint([x[index] for x in inputs]), y[index])
            loss.backward()
            for one in optimizers:
                one.step()
            total.append(float(loss.detach()))
        losses.append(sum(total) / len(total))
    return joint, losses


def true_weight(parties: dict[str, Party], host: str) -> torch.Tensor:
    guest = next(iter(parties.values())).kept.weights()[f"masked weight of {host}"]["weight"]
    return guest + parties[host].kept.weights()["accumulated mask"]["total"]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("fixed_point", [False, True])
def test_equals_a_split_network_written_by_hand(optimizer: str, fixed_point: bool) -> None:
    tree = settings(
        options={"fixed_point": fixed_point, "hidden": [12], "lr": 0.2},
        optimizer=optimizer,
        lr=0.1 if optimizer == "sgd" else 0.01,
        momentum=0.9 if optimizer == "sgd" else 0.0,
    )
    parties = train(tree, "as_heteronn", hidden=(12,))
    joint, losses = by_hand(tree, hidden=(12,))
    within = 2e-5
    logged = [row["loss"] for row in parties["party1"].history]
    assert logged == pytest.approx(losses, rel=1e-5)
    assert logged[-1] < logged[0]
    for number, name in enumerate(parties):
        bottom: Any = joint.bottoms[number]
        for key, value in bottom.state_dict().items():
            mine = parties[name].kept.weights()["bottom"][key]
            torch.testing.assert_close(mine, value, rtol=0, atol=within)
        if number:
            weight: Any = joint.weights[number]
            wanted = weight.weight.detach().T.double()
            torch.testing.assert_close(true_weight(parties, name), wanted, rtol=0, atol=within)
            first: Any = Joint([p.shape for p in parties.values()], (12,)).weights[number]
            assert (first.weight.detach().T - wanted).abs().max() > 50 * within  # it has learnt
    for key, value in joint.top.state_dict().items():
        mine = parties["party1"].kept.weights()["top"][key]
        torch.testing.assert_close(mine, value, rtol=0, atol=within)


def test_equals_splitnn_with_the_cut_concat() -> None:
    """Its first layer over all embeddings side by side is Σ_k W_k α_k + b, and all of it is SGD."""
    tree = settings(options={"fixed_point": True})
    ours = train(tree, "as_heteronn")
    theirs = train(
        tree | {"method": "splitnn", "splitnn": {"cut": "concat", "dim": DIM, "hidden": WIDTH}},
        "as_splitnn",
    )
    assert [row["loss"] for row in ours["party1"].history] == pytest.approx(
        [row["loss"] for row in theirs["party1"].history], rel=1e-5
    )
    joined = theirs["party1"].kept.weights()["top"]["0.weight"]
    for number, name in enumerate(ours):
        for key, value in theirs[name].kept.weights()["bottom"].items():
            mine = ours[name].kept.weights()["bottom"][key]
            torch.testing.assert_close(mine, value, rtol=1e-4, atol=2e-6)
        if number:
            wanted = joined[:, number * DIM : (number + 1) * DIM].T.double()
            torch.testing.assert_close(true_weight(ours, name), wanted, rtol=1e-4, atol=2e-6)


# ---- masks ---------------------------------------------------------------------------------------


def test_masks_cancel_and_the_active_party_alone_has_no_true_weight() -> None:
    plain = train(settings(options={"mask": 0.0}), "as_heteronn")
    masked = train(settings(options={"mask": 1.0}), "as_heteronn")
    begun = Joint([p.shape for p in plain.values()], ())
    for number, host in enumerate(list(masked)[1:], start=1):
        true = plain["party1"].kept.weights()[f"masked weight of {host}"]["weight"]
        torch.testing.assert_close(true_weight(masked, host), true, rtol=1e-4, atol=1e-6)
        held = masked["party1"].kept.weights()[f"masked weight of {host}"]["weight"]
        assert (held - true).std() > 1.0  # the sum of twelve masks
        first: Any = begun.weights[number]
        learnt = true - first.weight.detach().T  # what training made of it …
        seen = held - first.weight.detach().T  # … and what the active party sees of that
        together = torch.corrcoef(torch.stack([learnt.flatten(), seen.flatten()]))[0, 1]
        assert abs(float(together)) < 0.25  # 256 numbers: four standard deviations
        for module in masked["party1"].kept.weights().values():
            for value in module.values():
                if value.shape == true.shape:
                    assert not torch.allclose(value.double(), true, atol=0.05)


# ---- what crosses --------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_rounds(hosts: int, tmp_path: Path) -> None:
    """4m + 2 waits per batch in turn, six at once, for the same weights."""
    tree = settings(hosts + 1, epochs=1, data={"name": "digits", "train_rows": 64})
    found = {}
    for in_turn in (True, False):
        tree["heteronn"] = {"dim": 4, "width": 4, "in_turn": in_turn}
        result = colonnade.run(tree, out=tmp_path / str(in_turn))
        found[in_turn] = result.weights_sha256
        batches = 2
        assert result.wire["rounds"] == batches * (4 * hosts + 2 if in_turn else 6)
        assert result.wire["by_phase"]["train"]["messages"] == batches * hosts * 7
        assert result.wire["by_phase"]["eval"]["messages"] == hosts * 3
    assert found[True] == found[False]


def test_without_encryption_every_message_says_so(tmp_path: Path) -> None:
    result = colonnade.run(settings(epochs=1), out=tmp_path / "run")
    assert set(result.wire["by_kind"]) == {kind.name for kind in vars(CLEAR).values()}
    for kind in (CLEAR.embedding, CLEAR.gradient, CLEAR.noise):
        assert "nothing is encrypted" in kind.reveals
    assert "unprotected" in heteronn.METHOD.summary


# ---- with real ciphertexts -----------------------------------------------------------------------


def small(encryption: str, hosts: int = 1, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """16 training rows and 8 test rows of made-up tables, two batches of 8, width 16."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(24, 6 * (hosts + 1), generator=generator).numpy()
    y = (x[:, 0] + x[:, -1] > 0).astype("int64")
    tree = {
        "method": "heteronn",
        "seed": 2,
        "epochs": 1,
        "batch_size": 8,
        "data": {"test": 1 / 3},
        "model_options": {"hidden": []},
        "heteronn": {"dim": DIM, "width": WIDTH, "encryption": encryption, **options},
    }
    names = ["guest", *(f"host{i}" for i in range(hosts))]
    parties = {name: x[:, 6 * i : 6 * i + 6] for i, name in enumerate(names)}
    return tree, parties | {"guest": (x[:, :6], y)}


def weights_of(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = store.load(folder / "weights" / name)["weights"]
    return found


def summed(folder: Path, host: str) -> torch.Tensor:
    masked = weights_of(folder, "guest")[f"masked weight of {host}"]["weight"]
    total: torch.Tensor = masked + weights_of(folder, host)["accumulated mask"]["total"]
    return total


def test_ciphertexts_give_what_plain_numbers_give(tmp_path: Path) -> None:
    within = 1e-7
    tree, parties = small("paillier", hosts=2, key_bits=512, short_key=True)
    sealed = colonnade.run(tree, parties=parties, out=tmp_path / "sealed")
    tree, parties = small("none", hosts=2, fixed_point=True)
    plain = colonnade.run(tree, parties=parties, out=tmp_path / "plain")
    for host in list(parties)[1:]:
        mine, wanted = summed(tmp_path / "sealed", host), summed(tmp_path / "plain", host)
        torch.testing.assert_close(mine, wanted, rtol=0, atol=within)
        seen = weights_of(tmp_path / "sealed", "guest")[f"masked weight of {host}"]["weight"]
        assert (seen - wanted).std() > 0.5
    for name in parties:
        for key, value in weights_of(tmp_path / "plain", name)["bottom"].items():
            mine = weights_of(tmp_path / "sealed", name)["bottom"][key]
            torch.testing.assert_close(mine, value, rtol=0, atol=within)
    assert sealed.accuracy == plain.accuracy
    assert sealed.history[0]["parties"]["guest"]["loss"] == pytest.approx(
        plain.history[0]["parties"]["guest"]["loss"], abs=within
    )
    rows = {name: (x[0] if name == "guest" else x)[:4] for name, x in parties.items()}
    again, wanted = (
        colonnade.load(tmp_path / run).predict(rows)["guest"].probabilities  # with fresh keys
        for run in ("sealed", "plain")
    )
    torch.testing.assert_close(again, wanted, rtol=0, atol=10 * within)


def test_bytes_of_ciphertexts_are_on_the_ledger(tmp_path: Path) -> None:
    tree, parties = small("paillier", key_bits=512, short_key=True)
    result = colonnade.run(tree, parties=parties, out=tmp_path / "run")
    sizes: dict[str, set[int]] = {}
    for row in ledger.read(tmp_path / "run" / "ledger.jsonl"):
        sizes.setdefault(row["kind"], set()).add(row["bytes"])
    head, one = 3 + 8 + SEAL_BYTES, 512 // 4  # of the codec; a ciphertext below n²
    assert sizes["encrypted_embedding"] == {head + 8 * DIM * one}
    assert sizes["encrypted_product"] == {head + 8 * WIDTH * one}
    assert sizes["encrypted_noise"] == {head + DIM * WIDTH * one}
    assert sizes["encrypted_error"] == {head + DIM * 8 * one}
    assert sizes["opened_output"] == {3 + 3 * 8 + 8 * WIDTH * 512 // 8}
    assert sizes["public_key"] == {3 + 8 + 64}
    assert result.wire["by_kind"]["public_key"]["messages"] == 1
    assert result.wire["by_phase"]["setup"]["messages"] == 1
    assert set(sizes) == {"public_key", *(kind.name for kind in vars(ENCRYPTED).values())}


def test_a_key_of_2048_bits(tmp_path: Path) -> None:
    tree, parties = small("paillier")
    tree |= {"batch_size": 16, "evaluate_every": 0}
    tree["heteronn"] |= {"dim": 2, "width": 2}
    assert HeteroNN().key_bits == 2048
    colonnade.run(tree, parties=parties, out=tmp_path / "sealed")
    tree["heteronn"] |= {"encryption": "none", "fixed_point": True}
    colonnade.run(tree, parties=parties, out=tmp_path / "plain")
    mine, wanted = summed(tmp_path / "sealed", "host0"), summed(tmp_path / "plain", "host0")
    torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-9)


def test_the_private_key_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a message nor a file of the run has one of its primes."""
    made: list[PaillierHolder] = []
    original = PaillierHolder.__init__

    def remember(self: PaillierHolder, *arguments: Any) -> None:
        original(self, *arguments)
        made.append(self)

    monkeypatch.setattr(PaillierHolder, "__init__", remember)
    tree, parties = small("paillier", key_bits=512, short_key=True)
    tree |= {"strict": True, "record": [kind.name for kind in heteronn.METHOD.kinds]}
    colonnade.run(
        tree,
        parties=parties,
        out=tmp_path / "run",
    )
    (holder,) = made
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert any("record" in file.parts for file in files)
    for file in files:
        content = file.read_bytes()
        for prime in (holder._p, holder._q):
            for order in ("little", "big"):
                assert int(prime).to_bytes(32, order) not in content  # type: ignore[arg-type]
            assert str(int(prime)).encode() not in content


def test_the_first_batch_can_be_solved_for_and_later_ones_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the docstring admits: W_m begins as the active party's own draw."""
    packed: list[torch.Tensor] = []
    opened: list[torch.Tensor] = []
    weights: list[torch.Tensor] = []
    pack, unmask = PaillierHolder.pack, PaillierMultiplier.unmask
    multiply = PaillierMultiplier.multiply

    def spied_pack(self: Any, matrix: torch.Tensor) -> torch.Tensor:
        packed.append(matrix.clone())  # α, and ε_acc in turn
        return pack(self, matrix)

    def spied_multiply(self: Any, *arguments: Any, **more: Any) -> torch.Tensor:
        if "transposed" not in more and "mask" in more:
            weights.append(arguments[2].clone())  # what the active party holds of W
        return multiply(self, *arguments, **more)

    def spied_unmask(self: Any, *arguments: Any) -> torch.Tensor:
        found = unmask(self, *arguments)
        opened.append(found)
        return found

    monkeypatch.setattr(PaillierHolder, "pack", spied_pack)
    monkeypatch.setattr(PaillierMultiplier, "multiply", spied_multiply)
    monkeypatch.setattr(PaillierMultiplier, "unmask", spied_unmask)
    tree, parties = small("paillier", key_bits=512, short_key=True, dim=4, width=4)
    tree["evaluate_every"] = 0
    colonnade.run(tree, parties=parties, out=tmp_path / "run")
    outputs = opened[::2]  # every other one is a gradient
    alphas = packed[::2]
    guesses = [
        torch.linalg.lstsq(weight.T, output.T).solution.T
        for weight, output in zip(weights, outputs, strict=True)
    ]
    torch.testing.assert_close(guesses[0], alphas[0], rtol=0, atol=1e-4)
    assert (guesses[1] - alphas[1]).abs().max() > 0.1


@pytest.mark.parametrize("where", ["active", "passive"])
def test_a_damaged_ciphertext_stops_the_run_with_a_word(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: Any = PaillierHolder.pack if where == "active" else PaillierMultiplier.multiply

    def cut_off(*arguments: Any, **more: Any) -> torch.Tensor:
        message: torch.Tensor = broken(*arguments, **more)
        return message[:-1]

    owner, name = (
        (PaillierHolder, "pack") if where == "active" else (PaillierMultiplier, "multiply")
    )
    monkeypatch.setattr(owner, name, cut_off)
    tree, parties = small("paillier", key_bits=512, short_key=True)
    with pytest.raises((RoleFailed, Untrusted)) as caught:
        colonnade.run(tree, parties=parties, out=tmp_path / "run")
    story = f"{caught.value} {caught.value.__cause__}"
    assert "cut off" in story
    assert "host0" in story


# ---- options -------------------------------------------------------------------------------------


def test_a_label_holder_without_features(tmp_path: Path) -> None:
    tree = settings(label_only=True, epochs=8, batch_size=10, momentum=0.9)
    tree["parties"] = {"clinic": {}, "a": {}, "b": {}, "c": {}}
    result = colonnade.run(tree, out=tmp_path / "run")
    assert list(weights_of(tmp_path / "run", "clinic")["layer"]) == ["bias"]
    losses = [row["parties"]["clinic"]["loss"] for row in result.history]
    assert losses[-1] < 0.8 * losses[0]
    assert len(colonnade.load(tmp_path / "run").predict()["clinic"]) == 60


def test_options_out_of_range_are_refused() -> None:
    options = {
        "key_bits": 256,
        "fraction": 40,
        "mask": -1.0,
        "lr": 0.0,
        "dim": 0,
        "width": 0,
        "hidden": [0],
    }
    for name, value in options.items():
        with pytest.raises(ConfigError, match=name):
            config.load(settings(options={name: value}))
    with pytest.raises(ConfigError, match="fixed_point"):
        config.load(settings(options={"encryption": "paillier", "fixed_point": True}))
    with pytest.raises(ConfigError, match="mask = 0"):
        config.load(settings(options={"encryption": "paillier", "mask": 0.0}))
    with pytest.raises(ConfigError, match="encryption = 'rot13': must be one of none, paillier"):
        config.load(settings(options={"encryption": "rot13"}))


def test_ckks_is_gone_and_the_error_says_why() -> None:
    removed = r"encryption = 'ckks': removed, .*not for its protection\. Take 'paillier'.*or 'none'"
    with pytest.raises(ConfigError, match=removed):
        config.load(settings(options={"encryption": "ckks"}))


def test_a_missing_library_is_told_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(homomorphic.LIBRARIES, "paillier", "gmpy2_is_not_there")
    with pytest.raises(MethodError, match="pip install"):
        colonnade.run(settings(options={"encryption": "paillier"}), out=tmp_path / "run")
