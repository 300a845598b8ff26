"""What the loss of answers costs a training step, against that of labels: the same step in turns.

    python benchmarks/privacy/label_cost.py --out benchmarks/privacy/results/label_cost.json

A CNN on images of 28 × 28 pixels, on one thread of the CPU and in its time; also how long the
answers of 60,000 rows take to draw. A ratio is the median over blocks, in which all kinds of steps
take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.models import head, network
from colonnade.privacy.draws import Keystream, answered
from colonnade.privacy.partitions import balanced
from colonnade.results.environment import commit
from colonnade.task import Task
from colonnade.task.response import Responses, Sightings

ROWS, BATCH, CLASSES, STEPS, BLOCKS = 60_000, 128, 10, 3, 40


@dataclass
class Batch:
    """What a loss sees of a batch."""

    labels: Tensor
    rows: Tensor
    weights: Tensor | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=torch.Generator().manual_seed(0))
    tasks = {"labels": Task("multiclass", tuple("abcdefghij"))}
    for kind in ("plain", "prior", "prior, gathering"):
        responses = answers_of(labels, grouped=kind != "plain")
        if "gathering" in kind:
            responses.seen = Sightings.none(ROWS, CLASSES, torch.device("cpu"))
        tasks[kind] = Task("multiclass", tuple("abcdefghij"), responses=responses)
    steps = {kind: Step(task, labels) for kind, task in tasks.items()}
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    kinds = list(steps)
    for block in range(given.blocks + 1):
        first = block % len(kinds)  # each kind is as often the first of a block
        for kind in kinds[first:] + kinds[:first]:
            times[kind].append(steps[kind].seconds())
    ratios = {
        kind: statistics.median(
            mine / plain for mine, plain in zip(found[1:], times["labels"][1:], strict=True)
        )
        for kind, found in times.items()
    }
    began = time.perf_counter()
    answers_of(labels, grouped=True)
    content: dict[str, Any] = {
        "ratio": ratios,
        "step": {kind: statistics.median(found[1:]) / STEPS for kind, found in times.items()},
        "seconds to answer 60,000 rows by groups": time.perf_counter() - began,
        "commit": commit(),
    }
    print(json.dumps(content["ratio"], indent=1))
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


def answers_of(labels: Tensor, *, grouped: bool) -> Responses:
    """Drawn at ε = 2."""
    rows = len(labels)
    stream = Keystream(bytes(32), np.arange(rows, dtype=np.uint64), np.zeros(rows, dtype=np.int64))
    counts, members = np.full(rows, CLASSES), None
    truth = labels.numpy()
    if grouped:
        ties = np.stack([stream.words(stream.everybody) for _ in range(CLASSES)], axis=1)
        groups, counts = balanced(np.full((rows, CLASSES), 1 / CLASSES), 2.0, ties)
        said = answered(stream, 2.0, groups[stream.everybody, truth], counts)
        members = torch.from_numpy(groups == said[:, None])
        truth = members.int().argmax(1).numpy()
    else:
        truth = answered(stream, 2.0, truth, counts)
    epsilon = torch.full((rows,), 2.0, dtype=torch.double)
    return Responses(torch.from_numpy(truth), epsilon, torch.from_numpy(counts), CLASSES, members)


class Step:
    """Training steps of one network with one loss."""

    def __init__(self, task: Task, labels: Tensor) -> None:
        self._task, self._labels = task, labels
        self._draw = torch.Generator().manual_seed(1)
        self._x = torch.randn(BATCH, 1, 28, 28, generator=self._draw)
        self._net = nn.Sequential(network("cnn", (1, 28, 28), 128), head("cnn", 128, CLASSES))
        self._optimizer = torch.optim.SGD(
            self._net.parameters(), lr=0.0, momentum=0.9
        )  # alike for ever

    def seconds(self) -> float:
        """Of so many steps, as the CPU has worked: others on the machine count nothing."""
        began = time.process_time()
        for _ in range(STEPS):
            rows = torch.randint(0, ROWS, (BATCH,), generator=self._draw)
            loss = self._task.loss(self._net(self._x), Batch(self._labels[rows], rows))
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
        return time.process_time() - began


if __name__ == "__main__":
    raise SystemExit(main())
