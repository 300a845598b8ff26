"""AdptVFedConv against a hand-written loop that does the same work.

    python benchmarks/speed/tiles.py [--epochs 100] [--device cuda] [--small] [--out DIR]

Both pre-train the extractor on the server's tile, fine-tune it as an auto-encoder for three
clients, store two views of all maps, and train the classifier on them; one after the other in one
process, CIFAR-10, VGG-16 cut at 2C+1M. The loop knows nothing of parties, messages and ledgers:
one function, all tensors at hand. Prints seconds by phase, their ratio and both accuracies.
--small is for a CPU: a narrow network, 2,000 images.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import colonnade
from colonnade import data
from colonnade.models import split, vgg16, vgg_decoder
from colonnade.results.environment import commit
from colonnade.runtime.drive import reproducible

CUT = "2C+1M"


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    small = arguments.small
    return {
        "method": "adptvfedconv",
        "seed": 0,
        "epochs": arguments.epochs,
        "batch_size": 256,
        "lr": 0.1,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 5e-4,
        "warmup": 2,
        "evaluate_every": arguments.epochs,
        "absence": False,
        "device": arguments.device,
        "precision": "float32" if small else "bfloat16",
        "model_options": {"width": 0.25, "fc": [256]} if small else {},
        "checkpoint": {"epochs": 0},
        "data": {"name": "cifar10", "flip": True, "shift": 4}
        | ({"train_rows": 2000, "test_rows": 1000} if small else {}),
        "adptvfedconv": {
            "pretrain_epochs": arguments.pretrain,
            "finetune_epochs": arguments.finetune,
        },
    }


# ---- the hand-written loop -----------------------------------------------------------------------


class Loop:
    """The same arithmetic in the plainest form."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.device = config, torch.device(config["device"])
        self.options, self.size = config["model_options"], config["batch_size"]
        self.half = config["precision"] == "bfloat16"
        torch.manual_seed(1)
        found = data.load("cifar10", seed=0)
        rows = config["data"].get("train_rows", len(found.train)), config["data"].get("test_rows")
        self.x, self.y = (t[: rows[0]].to(self.device) for t in (found.train.x, found.train.y))
        self.test_x, self.test_y = (
            t[: rows[1]].to(self.device) for t in (found.test.x, found.test.y)
        )
        corners = [(0, 0), (0, 16), (16, 0), (16, 16)]
        self.tiles = [self.x[..., t : t + 16, left : left + 16] for t, left in corners]
        self.test_tiles = [self.test_x[..., t : t + 16, left : left + 16] for t, left in corners]
        self.places = [(t // 2, left // 2) for t, left in corners]
        self.norm = []
        for tile in self.tiles:
            pixels = tile.float() / 255
            mean, std = pixels.mean((0, 2, 3), keepdim=True), pixels.std((0, 2, 3), keepdim=True)
            self.norm.append((mean, std))

    def input(self, tile: int, pixels: Tensor, move: bool) -> Tensor:
        mean, std = self.norm[tile]
        x = (pixels.float() / 255 - mean) / std
        if move:
            n = len(x)
            down, right = torch.randint(-4, 5, (2, n), device=self.device)
            flips = torch.rand(n, device=self.device) < 0.5
            y = (torch.arange(16, device=self.device) - down[:, None]).clamp(0, 15)
            z = (torch.arange(16, device=self.device) - right[:, None]).clamp(0, 15)
            z = torch.where(flips[:, None], 15 - z, z)
            number = torch.arange(n, device=self.device)[:, None, None, None]
            channel = torch.arange(3, device=self.device)[None, :, None, None]
            x = x[number, channel, y[:, None, :, None], z[:, None, None, :]]
        return x.contiguous(memory_format=torch.channels_last)

    def forward(self, network: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            out: Tensor = network(x)
        return out.float()

    def batches(self) -> Iterator[Tensor]:
        yield from torch.randperm(len(self.x), device=self.device).split(self.size)

    def fit(self, epochs: int, parameters: list[nn.Parameter], loss: Callable[[Tensor], Tensor],
            rate: float = 0.1) -> None:  # fmt: skip
        optimizer = torch.optim.SGD(
            parameters, lr=rate, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True
        )
        total = -(-len(self.x) // self.size)
        for epoch in range(epochs):
            for number, index in enumerate(self.batches()):
                done = epoch + number / total
                factor = (done + 1e-3) / 2
                if done >= 2:
                    factor = 0.5 * (1 + math.cos(math.pi * (done - 2) / max(epochs - 2, 1e-9)))
                optimizer.param_groups[0]["lr"] = rate * factor
                value = loss(index)
                optimizer.zero_grad()
                value.backward()
                optimizer.step()

    def run(self) -> tuple[dict[str, float], float]:
        marks = [("", self.now())]
        own = self.config["adptvfedconv"]
        tile = split(vgg16((3, 16, 16), 10, activated=False, padding="replicate",
                           **self.options), CUT)  # fmt: skip
        extractor, rest = (m.to(self.device, memory_format=torch.channels_last) for m in tile)

        def pretrain(index: Tensor) -> Tensor:
            x = self.input(0, self.tiles[0][index], True)
            return F.cross_entropy(self.forward(rest, self.forward(extractor, x)), self.y[index])

        parameters = [*extractor.parameters(), *rest.parameters()]
        self.fit(own["pretrain_epochs"], parameters, pretrain)
        marks.append(("pretrain", self.now()))
        extractors = [extractor]
        for number in range(1, 4):
            extractors.append(self.fine_tune(number, extractor, own["finetune_epochs"]))
        marks.append(("finetune", self.now()))
        for each in extractors:
            each.eval().requires_grad_(False)
        with torch.no_grad():
            maps = torch.stack([self.maps(extractors, self.tiles, flip) for flip in (False, True)])
            test = self.maps(extractors, self.test_tiles, False)
        marks.append(("upload", self.now()))
        accuracy = self.classify(maps, test)
        marks.append(("train", self.now()))
        spans = {name: at - marks[n][1] for n, (name, at) in enumerate(marks[1:])}
        return spans, accuracy

    def fine_tune(self, number: int, base: nn.Sequential, epochs: int) -> nn.Sequential:
        fresh = vgg16((3, 16, 16), 1, padding="replicate", **{**self.options, "fc": ()})
        extractor = split(fresh, CUT)[0].to(self.device, memory_format=torch.channels_last)
        extractor.load_state_dict(base.state_dict())
        decoder = vgg_decoder(extractor, (3, 16, 16)).to(
            self.device, memory_format=torch.channels_last
        )
        groups = [
            {"params": extractor.parameters(), "lr": 1e-5},
            {"params": decoder.parameters(), "lr": 1e-3},
        ]
        optimizer = torch.optim.Adam(groups, fused=True)
        for _ in range(epochs):
            for index in self.batches():
                x = self.input(number, self.tiles[number][index], True)
                loss = F.mse_loss(self.forward(decoder, self.forward(extractor, x)), x)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return extractor

    def maps(self, extractors: list[nn.Sequential], tiles: list[Tensor], flip: bool) -> Tensor:
        """(rows, 16, 16, channels), of mirrored images where `flip`."""
        found = []
        for start in range(0, len(tiles[0]), 500):
            whole: Tensor | None = None
            for number, (extractor, (top, left)) in enumerate(
                zip(extractors, self.places, strict=True)
            ):
                x = self.input(number, tiles[number][start : start + 500], False)
                part = self.forward(extractor, x.flip(-1) if flip else x)
                if whole is None:
                    whole = part.new_empty(len(part), part.shape[1], 16, 16)
                at = 8 - left if flip else left
                whole[..., top : top + 8, at : at + 8] = part
            assert whole is not None
            found.append(whole.permute(0, 2, 3, 1))
        return torch.cat(found).contiguous()

    def classify(self, maps: Tensor, test: Tensor) -> float:
        whole = vgg16((3, 32, 32), 10, activated=False, **self.options)
        classifier = split(whole, CUT)[1].to(self.device, memory_format=torch.channels_last)

        def loss(index: Tensor) -> Tensor:
            n = len(index)
            view = torch.randint(2, (n,), device=self.device)
            down, right = torch.randint(-2, 3, (2, n), device=self.device)
            y = (torch.arange(16, device=self.device) - down[:, None]).clamp(0, 15)
            x = (torch.arange(16, device=self.device) - right[:, None]).clamp(0, 15)
            batch = maps[view[:, None, None], index[:, None, None], y[:, :, None], x[:, None, :]]
            logits = self.forward(classifier, batch.permute(0, 3, 1, 2))
            return F.cross_entropy(logits, self.y[index])

        self.fit(self.config["epochs"], list(classifier.parameters()), loss)
        classifier.eval()
        with torch.no_grad():
            logits = [self.forward(classifier, m.permute(0, 3, 1, 2)) for m in test.split(1000)]
        return float((torch.cat(logits).argmax(1) == self.test_y).double().mean())

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--pretrain", type=int, default=12)
    parser.add_argument("--finetune", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    config = settings(arguments)
    warm = config | {"epochs": 1, "adptvfedconv": {"pretrain_epochs": 1, "finetune_epochs": 1}}
    with TemporaryDirectory() as folder:
        colonnade.run(warm, out=Path(folder) / "warm")  # kernels, memory pools, the data's cache
        result = colonnade.run(config, out=Path(folder) / "run")
    timing = result.content["timing"]
    ours = {name: timing["by_phase"][name] for name in ("pretrain", "upload", "train")}
    # The rest: fine-tuning of one client after the other, and what belongs to no phase.
    ours["finetune"] = timing["seconds_total"] - timing["setup"] - sum(ours.values())
    with reproducible(1, arguments.device == "cuda"):  # the same kernels for both
        theirs, accuracy = Loop(config).run()
    ratios = {name: ours[name] / theirs[name] for name in theirs}
    ratio = sum(ours.values()) / sum(theirs.values())
    for name in theirs:
        print(f"{name:10} {ours[name]:8.1f} s {theirs[name]:8.1f} s   {ratios[name]:.2f}")
    print(f"{'all':10} {sum(ours.values()):8.1f} s {sum(theirs.values()):8.1f} s   {ratio:.2f}")
    print(f"accuracy {result.accuracy:.4f} and {accuracy:.4f}")
    found = {
        "command": f"tiles.py --epochs {arguments.epochs} --pretrain {arguments.pretrain} "
        f"--finetune {arguments.finetune} --device {arguments.device}",
        "commit": commit(),
        "device": result.content["environment"]["device"],
        "seconds": ours,
        "seconds_total": result.content["timing"]["seconds_total"],
        "loop_seconds": theirs,
        "ratio": ratio,
        "accuracy": result.accuracy,
        "loop_accuracy": accuracy,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    kind = "small" if arguments.small else arguments.device
    (arguments.out / f"tiles-{kind}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
