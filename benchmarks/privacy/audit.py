"""A lower bound on ε from the noise itself, beside the ε that is stated.

    python benchmarks/privacy/audit.py --out benchmarks/privacy/results/audit.json

Two neighbouring data sets that differ as much as the clip allows: a row whose vector is x, or −x,
in every release of a run. What leaves is made by the protection of a party, with its journal. The
optimal test of one against the other is the likelihood ratio, which for these two is the sum of
all released numbers along x. Its threshold is chosen on one half of the trials; on the other half
Clopper–Pearson intervals of both error rates give an ε that the mechanism has at least, with 95 %
confidence. It must never exceed the stated one.

`at least` assumes nothing about the noise. `as Gaussian` uses that the two distributions are normal
and differ in their mean: then the error rates give a lower bound on the distance of the means, and
this an ε at the same δ, which comes near to the stated one.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import stats

from colonnade.data import Split
from colonnade.journal import Journal, RunJournal
from colonnade.privacy import accountant
from colonnade.privacy.protection import protect
from colonnade.privacy.settings import Protect
from colonnade.results.environment import commit
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.task import Task
from colonnade.wire import Kind

KIND = Kind("embedding", ("batch", "dim"), reveals="features", carries="features")
CONFIDENCE = 0.95
Numbers = NDArray[np.float64]


def released(
    how: Protect, epochs: int, trials: int, sign: int, folder: Path, root: bytes
) -> Numbers:
    """By trial: the sum, over all releases of a run, of what leaves in the direction of x.

    root  of the noise; empty: it is drawn
    """
    rows = torch.arange(trials, dtype=torch.float32)[:, None]
    me = Party(
        "shop",
        "passive",
        Recipe(),
        Schedule(seed=1, epochs=epochs, batch_size=trials, evaluate_every=0),
        {"train": Split(rows, None, torch.arange(trials))},
        None,
        Task.of(("no", "yes")),
        torch.device("cpu"),
    )
    journal = Journal(folder / f"{sign}", simulated=True)
    me.journal = RunJournal(lambda: journal, "audit", root=root + root[:1] * (sign > 0))
    protect(me, how)
    assert me.protection is not None
    me.protection.begin(me)
    direction = torch.tensor([3.0, -4.0]) / 5
    total = np.zeros(trials)
    vectors = (sign * 2 * how.embedding_clip * direction).expand(trials, -1)  # longer than the clip
    for _ in me.epochs():
        for _ in me.batches():
            sent = me.protection.applied(me, KIND, vectors)
            assert isinstance(sent, torch.Tensor)
            total += (sent.double() @ direction.double()).numpy()
    told = me.protection.told()["embeddings"]
    journal.close()
    assert abs(told["epsilon"] - how.embedding_epsilon) < 1e-6 * how.embedding_epsilon
    return total


def lower_bounds(one: Numbers, other: Numbers, delta: float) -> tuple[float, float]:
    """ε that these two distributions of the test have at least, with CONFIDENCE: whatever they
    are, and as normal ones."""
    half = len(one) // 2
    level = 1 - (1 - CONFIDENCE) / 4  # two directions, two rates
    free = distance = 0.0
    for x, y in ((one, other), (-other, -one)):  # either may be the one that is guessed
        grid = np.quantile(np.concatenate([x[:half], y[:half]]), np.linspace(0.001, 0.9999, 400))
        hits, falses = ((part[:half, None] > grid).mean(0) for part in (x, y))
        guess = np.log(np.maximum(hits - delta, 1e-12) / np.maximum(falses, 3 / half))
        for threshold, normal in ((grid[int(guess.argmax())], False), (0.0, True)):
            tests = len(one) - half
            low = clopper_pearson(int((x[half:] > threshold).sum()), tests, level)[0]
            high = clopper_pearson(int((y[half:] > threshold).sum()), tests, level)[1]
            if normal:
                distance = max(distance, float(stats.norm.ppf(low) - stats.norm.ppf(high)))
            elif low > delta:
                free = max(free, math.log((low - delta) / high))
    return free, accountant.gaussian_epsilon(1 / distance, delta) if distance else 0.0


def clopper_pearson(count: int, of: int, level: float) -> tuple[float, float]:
    """One-sided bounds of a share, from below and from above, each at this level."""
    low = 0.0 if count == 0 else float(stats.beta.ppf(1 - level, count, of - count + 1))
    high = 1.0 if count == of else float(stats.beta.ppf(level, count + 1, of - count))
    return low, high


def audit(
    epsilon: float, epochs: int, trials: int, delta: float = 1e-5, root: bytes = b""
) -> dict[str, Any]:
    """The stated ε of so many releases, and what the noise shows."""
    how = Protect(embedding_epsilon=epsilon, delta=delta)
    with tempfile.TemporaryDirectory() as folder:
        one, other = (released(how, epochs, trials, sign, Path(folder), root) for sign in (1, -1))
    free, normal = lower_bounds(one, other, delta)
    told = {"epsilon": epsilon, "delta": delta, "releases": epochs}
    return told | {"lower": free, "lower_as_gaussian": normal}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=400_000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    cases = [(epsilon, epochs) for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0) for epochs in (1, 10)]
    found = [audit(epsilon, epochs, asked.trials) for epsilon, epochs in cases]
    shown = Table(title=f"{asked.trials:,} trials, {CONFIDENCE:.0%} confidence")
    for title in ("releases", "stated ε", "at least", "as Gaussian"):
        shown.add_column(title)
    for one in found:
        bounds = [f"{one[key]:.3f}" for key in ("lower", "lower_as_gaussian")]
        shown.add_row(str(one["releases"]), f"{one['epsilon']:g}", *bounds)
    Console().print(shown)
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        content = {"trials": asked.trials, "confidence": CONFIDENCE, "cases": found}
        asked.out.write_text(json.dumps(content | {"commit": commit()}, indent=1) + "\n")
    bounds = ("lower", "lower_as_gaussian")
    return int(any(one[key] > one["epsilon"] for one in found for key in bounds))


if __name__ == "__main__":
    raise SystemExit(main())
