"""Aggregation strategies against their formulas, written once more here in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from colonnade.methods.parts.aggregation import (
    Memory,
    Name,
    Server,
    Update,
    aggregate,
    blended,
    mean,
    on_device,
    pull_back,
    put_into,
    same_names,
    staleness_weight,
    trees_of,
    work_of,
)
from colonnade.wire import store

SHAPES = {"body.weight": (3, 4), "body.bias": (5,), "scale": ()}
SERVER = Server(lr=0.3, momentum=0.8, beta2=0.95, epsilon=0.01)
ROUNDS, CLIENTS = 6, 3
SHARES = (1.0, 4.0, 2.5)
WORK = (3.0, 11.0, 6.5)

Exact = NDArray[np.float64]


def drawn(generator: torch.Generator, around: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    noise = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    return noise if around is None else {k: around[k] + 0.3 * noise[k] for k in noise}


def exact(tree: dict[str, Tensor]) -> dict[str, Exact]:
    return {name: tensor.double().numpy() for name, tensor in tree.items()}


# One step of each strategy on one tensor: (θ, [θ_i], p_i, τ_i, memory) -> θ.
Formula = Callable[[Exact, list[Exact], list[float], list[float], dict[str, Any]], Exact]


def fedavg(
    theta: Exact, each: list[Exact], p: list[float], tau: list[float], memory: dict[str, Any]
) -> Exact:
    return np.asarray(sum(share * one for share, one in zip(p, each, strict=True)))


def fedavgm(
    theta: Exact, each: list[Exact], p: list[float], tau: list[float], memory: dict[str, Any]
) -> Exact:
    delta = fedavg(theta, each, p, tau, memory) - theta
    memory["v"] = SERVER.momentum * memory.get("v", 0.0) + delta
    return np.asarray(theta + SERVER.lr * memory["v"])


def fednova(
    theta: Exact, each: list[Exact], p: list[float], tau: list[float], memory: dict[str, Any]
) -> Exact:
    effective = sum(share * steps for share, steps in zip(p, tau, strict=True))
    per_step = [(one - theta) / steps for one, steps in zip(each, tau, strict=True)]
    return np.asarray(theta + effective * sum(s * d for s, d in zip(p, per_step, strict=True)))


def adaptive(square: Callable[[Any, Exact], Any]) -> Formula:
    def step(
        theta: Exact, each: list[Exact], p: list[float], tau: list[float], memory: dict[str, Any]
    ) -> Exact:
        delta = fedavg(theta, each, p, tau, memory) - theta
        beta = SERVER.momentum
        memory["m"] = beta * memory.get("m", 0.0) + (1 - beta) * delta
        memory["v"] = square(memory.get("v", np.zeros_like(delta)), delta**2)
        return np.asarray(theta + SERVER.lr * memory["m"] / (np.sqrt(memory["v"]) + SERVER.epsilon))

    return step


B2 = SERVER.beta2
FORMULAS: dict[Name, Formula] = {
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "fednova": fednova,
    "fedadagrad": adaptive(lambda v, d2: v + d2),
    "fedadam": adaptive(lambda v, d2: B2 * v + (1 - B2) * d2),
    "fedyogi": adaptive(lambda v, d2: v - (1 - B2) * d2 * np.sign(v - d2)),
}


@pytest.mark.parametrize("shares", [(1.0, 1.0, 1.0), SHARES], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", FORMULAS)
def test_several_rounds_follow_the_formula(
    name: Name, shares: tuple[float, ...], tmp_path: Path
) -> None:
    """The memory goes through a checkpoint in the middle."""
    generator = torch.Generator().manual_seed(4)
    old = drawn(generator)
    truth, remembered = exact(old), {key: dict[str, Any]() for key in SHAPES}
    memory: Memory = {}
    p = [share / sum(shares) for share in shares]
    for number in range(ROUNDS):
        each = [drawn(generator, old) for _ in range(CLIENTS)]
        updates = [Update(*parts) for parts in zip(each, shares, WORK, strict=True)]
        before = [{k: v.clone() for k, v in tree.items()} for tree in (old, *each)]
        new = aggregate(name, old, updates, SERVER, memory)
        for tree, copy in zip((old, *each), before, strict=True):
            assert all(torch.equal(tree[k], copy[k]) for k in SHAPES)  # nothing is changed in place
        for key in SHAPES:
            told = [exact(tree)[key] for tree in each]
            # From the same θ as ours, so that roundings do not add up over the rounds.
            truth[key] = FORMULAS[name](exact(old)[key], told, p, list(WORK), remembered[key])
            np.testing.assert_allclose(new[key].numpy(), truth[key], rtol=2e-5, atol=2e-6)
            assert new[key].dtype == torch.float32
        old = new
        if number == 2:
            store.save(memory, tmp_path / "memory")
            memory = store.load(tmp_path / "memory")
    if name not in ("fedavg", "fednova"):
        assert memory


def test_without_a_memory_a_strategy_is_what_it_is_made_of() -> None:
    """fedavgm with β = 0 and η = 1, and fednova with equal work, are fedavg."""
    generator = torch.Generator().manual_seed(1)
    old = drawn(generator)
    each = [drawn(generator, old) for _ in range(CLIENTS)]
    plain = aggregate("fedavg", old, [Update(t, 1.0) for t in each], SERVER, {})
    calm = Server(lr=1.0, momentum=0.0)
    same = aggregate("fedavgm", old, [Update(t, 1.0) for t in each], calm, {})
    equal = aggregate("fednova", old, [Update(t, 1.0, 7.0) for t in each], SERVER, {})
    for key in SHAPES:
        torch.testing.assert_close(same[key], plain[key], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(equal[key], plain[key], rtol=1e-5, atol=1e-6)


def test_only_fednova_looks_at_the_work() -> None:
    generator = torch.Generator().manual_seed(1)
    old = drawn(generator)
    each = [drawn(generator, old) for _ in range(CLIENTS)]
    for name in FORMULAS:
        first, second = (
            aggregate(
                name, old, [Update(t, 1.0, w) for t, w in zip(each, work, strict=True)], SERVER, {}
            )
            for work in (WORK, WORK[::-1])
        )
        same = all(torch.equal(first[key], second[key]) for key in SHAPES)
        assert same is (name != "fednova")


# ---- the mean ------------------------------------------------------------------------------------


def test_the_mean_of_one_is_that_one_bit_for_bit() -> None:
    tree = {"w": torch.randn(7, 3), "count": torch.tensor(2**40 + 1), "tiny": torch.tensor(1e-42)}
    for share in (1.0, 3.0, 0.1):
        found = mean([tree], [share])
        assert all(torch.equal(found[key], tree[key]) for key in tree)
        assert all(found[key].dtype == tree[key].dtype for key in tree)


def test_shares_are_relative() -> None:
    trees = [{"w": torch.tensor([1.0, 10.0])}, {"w": torch.tensor([3.0, 20.0])}]
    for factor in (1.0, 0.01, 600.0):
        found = mean(trees, [factor, 3 * factor])
        torch.testing.assert_close(found["w"], torch.tensor([2.5, 17.5]))


@pytest.mark.parametrize(
    ("counts", "shares", "wanted"),
    [
        ([4, 6], [1, 1], 5),
        ([4, 5], [1, 1], 4),  # to the even neighbour, as everywhere in torch
        ([5, 6], [1, 1], 6),
        ([10, 1], [1, 2], 4),
        ([0, 0, 1], [1, 1, 1], 0),
        ([2**40, 2**40 + 2], [1, 1], 2**40 + 1),
    ],
)
def test_counters_stay_whole_numbers(counts: list[int], shares: list[float], wanted: int) -> None:
    found = mean([{"num_batches_tracked": torch.tensor(n)} for n in counts], shares)
    assert found["num_batches_tracked"].dtype == torch.int64
    assert int(found["num_batches_tracked"]) == wanted


@pytest.mark.parametrize("part", [0.0, 0.25, 0.5, 1.0])
def test_a_blend_is_so_much_of_the_new(part: float) -> None:
    old = {"w": torch.tensor([1.0, -2.0, 0.3]), "n": torch.tensor(10)}
    new = {"w": torch.tensor([5.0, 2.0, 0.7]), "n": torch.tensor(20)}
    found = blended(old, new, part)
    wanted = (1 - part) * old["w"].double() + part * new["w"].double()
    torch.testing.assert_close(found["w"].double(), wanted, rtol=1e-6, atol=0)
    assert int(found["n"]) == {0.0: 10, 0.25: 12, 0.5: 15, 1.0: 20}[part]
    if part in (0.0, 1.0):
        assert torch.equal(found["w"], (new if part else old)["w"])


# ---- work, staleness, FedProx --------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
def test_work_is_how_far_a_constant_gradient_goes(momentum: float, steps: int) -> None:
    """‖a‖₁ by letting torch's own SGD take the steps: a gradient of 1, a rate of 1."""
    place = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([place], lr=1.0, momentum=momentum)
    for _ in range(steps):
        place.grad = torch.ones((), dtype=torch.float64)
        optimizer.step()
    assert work_of(steps, momentum) == pytest.approx(-float(place.detach()), rel=1e-9)


def test_staleness_weights() -> None:
    assert [staleness_weight(s, 0.5) for s in (0, 1, 3, 8)] == pytest.approx(
        [1.0, 1 / math.sqrt(2), 0.5, 1 / 3]
    )
    assert [staleness_weight(s, 2.0) for s in (0, 1, 2)] == pytest.approx([1.0, 1 / 4, 1 / 9])
    assert [staleness_weight(s, 0.0) for s in (0, 1, 9)] == [1.0, 1.0, 1.0]
    assert staleness_weight(-3, 0.5) == 1.0  # begun from a head of the future: no older than now


def test_fedprox_pulls_as_autograd_says() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model[0].bias.requires_grad_(False)
    x, anchor = torch.randn(6, 4), {k: torch.randn_like(p) for k, p in model.named_parameters()}
    mu = 0.37
    plain = model(x).square().mean()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    distance = sum((p - anchor[name]).square().sum() for name, p in trained.items())
    wanted = torch.autograd.grad(plain + mu / 2 * distance, list(trained.values()))
    model(x).square().mean().backward()
    pull_back(model, anchor, mu)
    for (name, parameter), gradient in zip(trained.items(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, msg=name)
    assert model[0].bias.grad is None  # what has no gradient gets none


def test_same_names() -> None:
    tree = {"a": torch.zeros(2, 3), "b": torch.zeros(4)}
    assert same_names([tree, {"b": torch.ones(4), "a": torch.ones(2, 3)}])
    assert not same_names([tree, {"a": torch.zeros(2, 3)}])
    assert not same_names([tree, tree | {"b": torch.zeros(5)}])
    assert not same_names([tree, tree, tree | {"c": torch.zeros(1)}])


def test_a_module_as_two_trees_and_back() -> None:
    """What is told does not change with a later step; statistics that do not come stay."""
    net, other = (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2))
    net(torch.randn(5, 3))
    parameters, buffers = trees_of(net)
    assert parameters.keys() | buffers.keys() == net.state_dict().keys()
    assert trees_of(net, buffers=False)[1] == {}
    before = other.state_dict()["1.running_mean"].clone()
    put_into(other, parameters, {})
    assert all(torch.equal(p, parameters[name]) for name, p in other.named_parameters())
    assert torch.equal(other.state_dict()["1.running_mean"], before)
    put_into(other, parameters, buffers)
    assert all(torch.equal(x, net.state_dict()[name]) for name, x in other.state_dict().items())
    with torch.no_grad():
        net[0].weight.zero_()
    assert parameters["0.weight"].any()
    moved = on_device(parameters, torch.device("meta"))
    assert {name: x.device.type for name, x in moved.items()} == dict.fromkeys(parameters, "meta")
