"""FedEmb: how many steps wait for each other, the bytes, and the time at the server.

    python benchmarks/speed/joining.py [steps] [tuning] [--groups 15000] [--out FOLDER]

steps    one round of fedemb against one epoch of heteronn on the same columns, for 2, 4 and 8
         clients: the longest chain of messages that waited for each other, and the bytes, both as
         the ledger has them. heteronn serves its passive parties in turn, as FATE does.
tuning   one round, 8 clients, MNIST: grouping at the clients and tuning at the server against a
         hand-written loop of the same work, on the same embeddings, one after the other.
Results also go to benchmarks/speed/results/joining.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import colonnade
from colonnade import data
from colonnade.errors import DataMissing
from colonnade.methods import fedemb
from colonnade.privacy import release
from colonnade.results.environment import commit

HERE = Path(__file__).resolve().parent
REPEATS = 3


def settings(method: str, clients: int, **options: Any) -> dict[str, Any]:
    try:
        data.load("mnist", seed=0)
        name = "mnist"
    except DataMissing:
        name = "mnist-sample"
    return {
        "method": method,
        "epochs": 1,
        "batch_size": 128,
        "optimizer": "adam",
        "lr": 1e-3,
        "evaluate_every": 0,
        "model": "mlp",
        "model_options": {"hidden": [128] * (7 if method == "fedemb" else 3)},
        "data": {"name": name},
        "partition": {"kind": "columns", "parties": clients},
        "checkpoint": {"epochs": 0},
        method: options,
    }


def train(tree: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return colonnade.run(tree, out=Path(folder) / "run").content


def steps(_: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    print("clients  method      chain  per batch      bytes")
    for clients in (2, 4, 8):
        for method, options in (
            ("fedemb", {"cut": "layer4", "groups": 600, "server_epochs": 1}),
            ("heteronn", {"dim": 128, "hidden": [128, 128, 128], "width": 128}),
        ):
            wire = train(settings(method, clients, **options))["wire"]
            batches = -(-wire_rows(settings(method, clients, **options)) // 128)
            row = {"clients": clients, "method": method, "chain": wire["rounds"]}
            row |= {"batches": batches, "bytes": wire["bytes"]}
            found.append(row)
            per_batch = f"{wire['rounds'] / batches:9.1f}" if method == "heteronn" else "        –"
            print(f"{clients:7}  {method:9} {wire['rounds']:7}  {per_batch}  {wire['bytes']:,}")
    return found


def wire_rows(tree: dict[str, Any]) -> int:
    return len(data.load(tree["data"]["name"], seed=0).train)


class Watch:
    """Times a function wherever it is called, and keeps what it was last called with."""

    def __init__(self, module: Any, name: str) -> None:
        self.seconds, self.given = 0.0, list[tuple[Any, ...]]()
        self._original: Callable[..., Any] = getattr(module, name)
        setattr(module, name, self)

    def __call__(self, *given: Any) -> Any:
        began = time.perf_counter()
        found = self._original(*given)
        self.seconds += time.perf_counter() - began
        self.given.append(given)
        return found


def by_hand(rows: list[tuple[Tensor, Tensor]], networks: list[nn.Sequential], groups: int) -> float:
    """The same means, and the same epochs of Adam on one plain network of eight times the width."""
    began = time.perf_counter()
    members = torch.randperm(len(rows[0][0])) % groups
    count = members.bincount(minlength=groups)[:, None]

    def mean(x: Tensor) -> Tensor:
        return torch.zeros(groups, x.shape[1]).index_add_(0, members, x) / count

    inputs = torch.cat([mean(embeddings) for embeddings, _ in rows], 1)
    targets = torch.stack([mean(o) for _, o in rows]).sum(0)
    layers: list[nn.Module] = []
    for depth in range(len(networks[0])):
        parts = [p for network in networks if isinstance(p := network[depth], nn.Linear)]
        if parts:
            last = depth == len(networks[0]) - 1
            weights = [part.weight.detach() for part in parts]
            biases = [part.bias.detach() for part in parts]
            joined = torch.cat(weights, 1) if last else torch.block_diag(*weights)
            layer = nn.Linear(joined.shape[1], joined.shape[0])
            with torch.no_grad():
                layer.weight.copy_(joined)
                layer.bias.copy_(torch.stack(biases).sum(0) if last else torch.cat(biases))
            layers.append(layer)
        else:
            layers.append(nn.ReLU())
    joint = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(joint.parameters(), lr=1e-4)
    for _ in range(5):
        for batch in torch.randperm(groups).split(128):
            loss = F.mse_loss(joint(inputs[batch]), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return time.perf_counter() - began


def tuning(arguments: argparse.Namespace) -> dict[str, Any]:
    groups = arguments.groups
    grouped, protected = Watch(release, "random_groups"), Watch(release, "protected")
    tuned = Watch(fedemb, "tune")
    ratios, ours, theirs = [], [], []
    for _ in range(REPEATS):
        for watch in (grouped, protected, tuned):
            watch.seconds, watch.given = 0.0, []
        content = train(settings("fedemb", 8, cut="layer4", groups=groups))
        ours.append(grouped.seconds + protected.seconds + tuned.seconds)
        values = [given[1] for given in protected.given]  # l_m and o_m in turn
        rows = list(zip(values[::2], values[1::2], strict=True))
        joined = tuned.given[0][1]
        networks = [plain(joined.block(number)) for number in range(8)]
        torch.set_num_threads(content["environment"]["threads"])
        theirs.append(by_hand(rows, networks, groups))
        ratios.append(ours[-1] / theirs[-1])
        local = content["timing"]["seconds_total"] - ours[-1]
        print(
            f"grouping and tuning {ours[-1]:.2f} s, by hand {theirs[-1]:.2f} s: "
            f"{ratios[-1]:.2f}; all else, above all the clients' training, {local:.1f} s"
        )
    ratio = sorted(ratios)[REPEATS // 2]
    print(f"median ratio {ratio:.2f}")
    return {"groups": groups, "seconds": ours, "by_hand": theirs, "ratios": ratios, "ratio": ratio}


def plain(part: dict[str, Tensor]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number in range(len(part) // 2):
        weight = part[f"{number}.weight"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": part[f"{number}.bias"]})
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["steps", "tuning"])
    parser.add_argument("--groups", type=int, default=15000)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    parts = {"steps": steps, "tuning": tuning}
    if unknown := [name for name in arguments.what if name not in parts]:
        parser.error(f"{unknown[0]}: one of {', '.join(parts)}")
    file = arguments.out / "joining.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    for name in arguments.what:
        print(f"\n{name}")
        found = parts[name](arguments)
        known[name] = {"command": f"joining.py {name}", "commit": commit(), "found": found}
        file.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
