"""Small runs of FedEmb, and what can be seen of them from all sides at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F

import colonnade
from colonnade.methods import fedemb
from colonnade.methods.fedemb import FedEmb
from colonnade.models.joined import Joined
from colonnade.results.result import Result
from colonnade.role.party import Party
from colonnade.runtime import local
from colonnade.wire import Message, store

SEED, ROWS, TEST, R, CLASSES = 5, 130, 60, 20, 10
WIDTH = 12  # of what is cut: 16 → 12 | 10 → 10
Weights = dict[str, dict[str, Tensor]]
Part = Mapping[str, Tensor]

HYBRID: dict[str, Any] = {"partition": {"kind": "hybrid", "parties": 3}}
EVERY_ROW = {"groups": 0, "connect": "none"}
WIDE: dict[str, Any] = {"widen": True, "grouping": "class", "targets": "hard"}
PRIVATE: dict[str, Any] = {"epsilon": 6.0, "delta": 0.0, "clip": 2.0}
REPEATED: dict[str, Any] = {"protect": {"simulate_noise_seed": SEED}}  # else noise is drawn afresh
UP = ["group_embeddings", "group_outputs", "public_part"]


def settings(options: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Three clients with columns of the digits and small MLPs; one epoch in every round."""
    rows = {"name": "digits", "train_rows": ROWS, "test_rows": TEST} | changes.pop("data", {})
    base: dict[str, Any] = {
        "method": "fedemb",
        "seed": SEED,
        "epochs": 1,
        "batch_size": 26,
        "batching": "papers",
        "optimizer": "adam",
        "lr": 0.01,
        "model": "mlp",
        "model_options": {"hidden": [16, WIDTH, 10]},
        "data": rows,
        "partition": columns(3),
        "checkpoint": {"epochs": int("epsilon" in (options or {}))},
    }
    small = {"groups": R, "later_epochs": 1, "server_epochs": 2, "server_lr": 0.01}
    return base | {"fedemb": small | (options or {})} | changes


def columns(parties: int) -> dict[str, Any]:
    return {"kind": "columns", "parties": parties}


@dataclass
class Tuned:
    """One tuning of one network at the server."""

    inputs: Tensor
    targets: Tensor
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    joined: Joined


@dataclass
class Seen:
    """A run, and what could be seen of it from all sides at once."""

    parties: dict[str, Party] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)  # as they were when they were sent
    tuned: list[Tuned] = field(default_factory=list)
    starts: dict[str, tuple[nn.Module, nn.Module]] = field(default_factory=dict)
    result: Result = field(default_factory=lambda: Result({}, Path()))

    @property
    def clients(self) -> dict[str, Party]:
        return {name: party for name, party in self.parties.items() if party.role == "client"}

    def values(self, kind: str, name: str) -> list[Any]:
        """What a client sent, or got, round by round."""
        found = [m for m in self.messages if m.kind.name == kind]
        return [m.value for m in found if name in (m.sender, m.receiver)]

    def parts(self, name: str) -> list[Part]:
        return [value["part"] for value in self.values("public_part", name)]

    def metrics(self, measure: str = "per_party") -> dict[str, float]:
        found: dict[str, float] = self.result.metrics["test"][measure]
        return found

    def weights(self, name: str) -> Weights:
        weights: Weights = store.load(self.result.path / "weights" / name)["weights"]
        return weights

    def block(self, number: int) -> dict[str, Tensor]:
        """As it lies in the server's saved u."""
        saved = self.weights("server")["joined"]
        found: dict[str, Tensor] = {}
        for layer in range(2):
            found[f"{layer}.weight"] = saved[f"weights.{layer}"][number]
            found[f"{layer}.bias"] = saved[f"biases.{layer}"][number]
        return found

    def logged(self, key: str) -> list[float]:
        rows = [row["parties"].get("server", {}) for row in self.result.history]
        return [row[key] for row in rows if key in row]


def train(
    folder: Path,
    tree: dict[str, Any],
    watch: Callable[[pytest.MonkeyPatch], None] = lambda patch: None,
    seen: Seen | None = None,
    **named: Any,
) -> Seen:
    """Run it; keep the parties, copies of all messages, and what the server tuned to what."""
    seen = Seen() if seen is None else seen
    run, send = local.run, local.Mailboxes.send
    tune, models_of = fedemb.tune, fedemb.models_of

    def spied_run(members: dict[str, Party], *given: Any, **more: Any) -> Any:
        seen.parties.update(members)
        return run(members, *given, **more)

    def spied_send(mail: local.Mailboxes, message: Message, *given: Any) -> None:
        seen.messages.append(replace(message, value=copy.deepcopy(message.value)))
        send(mail, message, *given)

    def spied_tune(
        me: Party, joined: Joined, inputs: Tensor, targets: Tensor, cfg: FedEmb
    ) -> Tensor:
        before = copied(joined)
        loss = tune(me, joined, inputs, targets, cfg)
        seen.tuned.append(Tuned(inputs, targets, before, copied(joined), joined))
        return loss

    def spied_models(me: Party, cfg: FedEmb) -> tuple[nn.Module, nn.Module]:
        made = models_of(me, cfg)
        seen.starts.setdefault(me.name, copy.deepcopy(made))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "run", spied_run)
        patch.setattr(local.Mailboxes, "send", spied_send)
        patch.setattr(fedemb, "tune", spied_tune)
        patch.setattr(fedemb, "models_of", spied_models)
        watch(patch)
        seen.result = colonnade.run(tree, out=None if "resume" in named else folder, **named)
    return seen


def copied(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def same(one: Part, other: Part) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def as_part(saved: Part) -> dict[str, Tensor]:
    """A client's saved public part, numbered by its linear layers."""
    numbers = sorted({int(key.partition(".")[0]) for key in saved})
    return {
        f"{layer}.{what}": saved[f"{number}.{what}"]
        for layer, number in enumerate(numbers)
        for what in ("weight", "bias")
    }


def forward(part: Part, x: Tensor) -> Tensor:
    """What a public part makes of embeddings."""
    for layer in range(len(part) // 2):
        x = F.linear(torch.relu(x) if layer else x, part[f"{layer}.weight"], part[f"{layer}.bias"])
    return x


def embeddings(party: Party, split: str = "train") -> Tensor:
    """As its private part is now: after the last round."""
    with party.evaluating():
        return torch.cat([party.kept.modules()["private"](batch.x) for batch in party.rows(split)])


def means(values: Tensor, membership: Tensor) -> Tensor:
    return torch.stack(
        [values[membership == group].mean(0) for group in range(int(membership.max()) + 1)]
    )


def close(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def without_time(result: Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]


def apart(rows: Sequence[int], test: Sequence[int] = (40, 40)) -> tuple[dict[str, Any], Any]:
    """In-memory clients with halves of the digits, other rows each; the same test rows."""
    x, y = datasets.load_digits(return_X_y=True)
    halves = (np.s_[:, :32], np.s_[:, 32:])
    parties: dict[str, Any] = {}
    tests: dict[str, Any] = {}
    for number, (count, later) in enumerate(zip(rows, test, strict=True)):
        some = slice(200 * number, 200 * number + count)
        parties[f"c{number}"] = (x[some][halves[number]], y[some])
        tests[f"c{number}"] = (x[1000 : 1000 + later][halves[number]], y[1000 : 1000 + later])
    return parties, tests


def in_memory(options: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    tree = settings(options, **changes)
    return {key: value for key, value in tree.items() if key not in ("data", "partition")}


def stopped(folder: Path, tree: dict[str, Any], place: str, batches: int = 3 * 5 + 7) -> Seen:
    """Ctrl-C in the second round: among the batches of some client, or when the server tunes;
    "first": when it would tune for the first time."""
    seen = Seen()
    calls = {"training": batches, "tuning": 1, "first": 0}[place]

    def watch(patch: pytest.MonkeyPatch) -> None:
        rates, joined_rows, count = Party._set_rates, fedemb.joined_rows, 0

        def counted(*given: Any) -> Any:
            nonlocal count
            count += 1
            if count > calls:
                raise KeyboardInterrupt
            return rates(*given) if place == "training" else joined_rows(*given)

        if place == "training":
            patch.setattr(Party, "_set_rates", counted)
        else:
            patch.setattr(fedemb, "joined_rows", counted)

    with pytest.raises(KeyboardInterrupt):
        train(folder, tree, watch, seen)
    return seen
