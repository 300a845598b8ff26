"""Bootstrap intervals of all measures, against a loop that draws rows and asks scikit-learn.

    python benchmarks/speed/intervals.py

The loop measures what scikit-learn has a function for, as one would write it. It makes fewer draws,
and its time is scaled to as many; both take turns.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from sklearn import metrics

from colonnade.task.intervals import intervals
from colonnade.task.measures import BINARY, MULTICLASS, Codes, Floats, scored

ROWS, TURNS = 10_000, 5
LOOPED = 20  # draws of the loop
DRAWS = {2: 500, 10: 200}  # of `intervals`, by classes


def rows(classes: int) -> tuple[Codes, Floats]:
    generator = np.random.default_rng(1)
    truth = generator.integers(0, classes, ROWS)
    logits = generator.normal(size=(ROWS, classes))
    logits[np.arange(ROWS), truth] += 1
    shares = np.exp(logits)
    return truth, shares / shares.sum(1, keepdims=True)


def loop(truth: Codes, scores: Floats) -> None:
    generator = np.random.default_rng(1)
    classes = scores.shape[1]
    for _ in range(LOOPED):
        drawn = generator.integers(0, len(truth), len(truth))
        y, p = truth[drawn], scores[drawn]
        decided = p.argmax(1)
        metrics.log_loss(y, p)
        metrics.accuracy_score(y, decided)
        metrics.balanced_accuracy_score(y, decided)
        for average in ["binary"] if classes == 2 else ["macro", "weighted"]:
            metrics.f1_score(y, decided, average=average)
            metrics.precision_score(y, decided, average=average)
            metrics.recall_score(y, decided, average=average)
            if classes == 2:
                metrics.roc_auc_score(y, p[:, 1])
                metrics.average_precision_score(y, p[:, 1])
            else:
                metrics.roc_auc_score(y, p, multi_class="ovr", average=average)
                metrics.average_precision_score(np.eye(classes)[y], p, average=average)


def main() -> None:
    for classes, draws in DRAWS.items():
        truth, scores = rows(classes)
        predicted = scored(BINARY if classes == 2 else MULTICLASS, truth, scores)
        ours, theirs = [], []
        for turn in range(TURNS + 1):
            began = time.perf_counter()
            intervals(predicted)
            between = time.perf_counter()
            loop(truth, scores)
            if turn:  # the first one imports
                ours.append(between - began)
                theirs.append((time.perf_counter() - between) * draws / LOOPED)
        ratios = sorted(slow / quick for slow, quick in zip(theirs, ours, strict=True))
        print(
            f"{classes:3} classes, {ROWS:,} rows, {draws} draws: {statistics.median(ours):.2f} s, "
            f"the loop {statistics.median(theirs):.1f} s; "
            f"{statistics.median(ratios):.0f} times ({ratios[0]:.0f} to {ratios[-1]:.0f})"
        )


if __name__ == "__main__":
    main()
