"""Split learning over tiles against one network, trained by one graph, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import colonnade
from colonnade import Batch, assembly, config
from colonnade.data import Moves
from colonnade.methods import splitconv
from colonnade.methods.splitconv import METHOD
from colonnade.models import split, vgg16
from colonnade.role.recipe import make_optimizer, rate_factor
from colonnade.role.seeds import derive
from colonnade.wire import ledger, store

ROWS, TEST, SIZE, EPOCHS = 120, 40, 50, 2
STEPS = -(-ROWS // SIZE)


def settings(options: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    rows = {"name": "digits", "train_rows": ROWS, "test_rows": TEST} | changes.pop("data", {})
    base: dict[str, Any] = {
        "method": "splitconv",
        "seed": 5,
        "epochs": EPOCHS,
        "batch_size": SIZE,
        "batching": "papers",  # as in the hand-written loops
        "model_options": {"width": 0.1, "fc": [16], "dropout": 0.2},
        "data": rows,
        "partition": {"kind": "tiles"},
        "checkpoint": {"epochs": 0},
        "splitconv": options or {},
    }
    return base | changes


def side_by_side(maps: list[Tensor], flips: Tensor | None) -> Tensor:
    """Four quarters; where the tiles are mirrored, left and right have changed places."""
    a, b, c, d = maps

    def square(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return torch.cat([torch.cat([a, b], -1), torch.cat([c, d], -1)], -2)

    if flips is None:
        return square(a, b, c, d)
    return torch.where(flips[:, None, None, None], square(b, a, d, c), square(a, b, c, d))


@pytest.mark.parametrize(
    ("options", "moved", "optimizer"),
    [
        ({}, {}, "sgd"),
        ({}, {"flip": True, "shift": 1}, "sgd"),
        ({"cut": "4C+1M", "padding": "zeros"}, {"flip": True}, "adam"),
    ],
    ids=str,
)
def test_equals_one_network_and_one_graph(
    options: dict[str, Any], moved: dict[str, Any], optimizer: str, tmp_path: Path
) -> None:
    tree = settings(options, data=moved, optimizer=optimizer)
    result = colonnade.run(tree, out=tmp_path / "run")
    checked = config.load(tree)
    parties = list(assembly.from_catalogue(checked).parties.values())
    torch.set_num_threads(1)
    cut, padding = options.get("cut", "2C+1M"), options.get("padding", "replicate")
    size: dict[str, Any] = {"width": 0.1, "dropout": 0.2}

    extractors: dict[str, nn.Sequential] = {}
    for party in reversed(parties):  # the active one last: it goes on drawing, for its dropout
        torch.manual_seed(derive(5, "party", party.name))
        tile = vgg16((1, 4, 4), 1, padding=padding, fc=(), **size)
        extractors[party.name] = split(tile, cut)[0]
    whole = vgg16((1, 8, 8), 10, activated=False, fc=(16,), **size)
    classifier = split(whole, cut)[1]
    networks = [extractors[party.name] for party in parties]
    for module in (*networks, classifier):
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    together = [p for module in (*networks, classifier) for p in module.parameters()]
    joint = make_optimizer(checked.recipe, together)

    y = parties[0].splits["train"].y
    assert y is not None
    inputs = []
    for party in parties:
        assert party.preparation is not None
        inputs.append(party.preparation.to_float(party.splits["train"].x))
    losses: list[Tensor] = []
    for epoch in range(EPOCHS):
        generator = torch.Generator().manual_seed(derive(5, "order", "train", epoch))
        order = torch.randperm(ROWS, generator=generator)
        moves = None
        if moved:
            moves = Moves.draw(ROWS, moved["flip"], moved.get("shift", 0), generator)
        losses = []
        for step, rows in enumerate(order.split(SIZE)):
            for group in joint.param_groups:
                factor = rate_factor(checked.recipe, epoch + step / STEPS, EPOCHS)
                group["lr"] = group["initial_lr"] * factor
            batch = [x[rows] for x in inputs]
            here = None if moves is None else moves.part(slice(step * SIZE, (step + 1) * SIZE))
            if here is not None:
                batch = [here.apply(x) for x in batch]
            batch = [x.contiguous(memory_format=torch.channels_last) for x in batch]
            maps = [network(x) for network, x in zip(networks, batch, strict=True)]
            stitched = side_by_side(maps, None if here is None else here.flips)
            loss = F.cross_entropy(classifier(stitched), y[rows])
            joint.zero_grad()
            loss.backward()
            joint.step()
            losses.append(loss.detach())

    logged = result.history[-1]["parties"]["party1"]["loss"]
    assert logged == float(torch.stack(losses).double().mean())
    for party in parties:
        weights = store.load(tmp_path / "run" / "weights" / party.name)["weights"]
        for name, value in extractors[party.name].state_dict().items():
            assert torch.equal(weights["extractor"][name], value), (party.name, name)
    weights = store.load(tmp_path / "run" / "weights" / "party1")["weights"]
    for name, value in classifier.state_dict().items():
        assert torch.equal(weights["classifier"][name], value), name


def test_a_saved_run_predicts_from_the_maps_of_its_last_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the statistics of the training, and not with those of the rows that are predicted. The
    predictions of this small network hardly show the difference; its maps do."""
    seen: list[Tensor] = []
    extract = splitconv.extract

    def noted(extractor: nn.Sequential, batch: Batch) -> Tensor:
        maps = extract(extractor, batch)
        if not maps.requires_grad:  # an evaluation, or a prediction
            seen.append(maps)
        return maps

    monkeypatch.setattr(splitconv, "extract", noted)
    result = colonnade.run(settings(), out=tmp_path / "run")
    evaluated = seen[-4:]  # all test rows are one batch at each of four parties
    seen.clear()
    colonnade.load(result.path).predict()
    assert len(seen) == 4
    for maps in seen:
        assert len(maps) == TEST and any(torch.equal(maps, known) for known in evaluated)


def test_two_messages_per_batch_and_passive_party(tmp_path: Path) -> None:
    result = colonnade.run(settings(), out=tmp_path / "run")
    batches = EPOCHS * STEPS
    kinds = {name: kind["messages"] for name, kind in result.wire["by_kind"].items()}
    assert kinds == {"place": 3, "maps": 3 * (batches + EPOCHS), "gradient": 3 * batches}
    assert result.wire["by_phase"]["train"]["messages"] == 2 * 3 * batches
    assert result.wire["by_phase"]["eval"]["messages"] == 3 * EPOCHS  # maps only
    assert result.wire["by_phase"]["setup"]["messages"] == 3
    assert result.wire["rounds"] == 2 * batches
    floats = 6 * 2 * 2  # of the map of one tile
    size = (3 + 4 * 8) * batches + EPOCHS * ROWS * floats * 4
    assert result.wire["by_kind"]["gradient"]["bytes"] == 3 * size
    rows = list(ledger.read(tmp_path / "run" / "ledger.jsonl"))
    assert {row["sender"] for row in rows if row["kind"] == "gradient"} == {"party1"}
    assert [kind.name for kind in METHOD.kinds] == ["place", "maps", "gradient"]
    assert result.content["warnings"] == []


def test_every_extractor_is_its_own(tmp_path: Path) -> None:
    """Nobody sends weights: they begin apart and stay apart. Uneven, overlapping tiles will do."""
    parts = {"kind": "rectangles", "rectangles": [[0, 0, 5, 8], [3, 1, 5, 4], [3, 4, 5, 3]]}
    tree = settings(partition=parts, label_holder="party2", data={"flip": True})
    result = colonnade.run(tree, out=tmp_path / "run")
    seen = []
    for name in result.content["parties"]:
        weights = store.load(tmp_path / "run" / "weights" / name)["weights"]
        assert ("classifier" in weights) is (name == "party2")
        seen.append(weights["extractor"]["1C.conv.weight"])
    assert not any(torch.equal(seen[i], seen[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    trained = colonnade.load(result.path)
    right = (trained.predict()["party2"].codes == trained.labels()).double().mean()
    assert float(right) == result.accuracy
