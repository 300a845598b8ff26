"""Speed of the one-process runtime, as ratios measured in one interleaved run.

    python benchmarks/speed/bench.py [ratio] [checks] [easter] [masking] [growth]
                                     [accuracy] [--device cuda] [--repeats 5]

ratio     splitnn against two hand-written loops (loops.py): MNIST quadrants, four parties
checks    the same runs with and without the checks of every message, taken in turns
easter    the same for EASTER without masks, CNN parties; what masks add to a step
masking   milliseconds to mask one 128×128 embedding and to open the sum, by parties and ring
growth    seconds per step with 2 … 64 parties and with the batch; peak memory
accuracy  splitnn, centralised and local on MNIST quadrants, four CNN parties, 5 epochs
Results go to the terminal and, as JSON, to benchmarks/speed/results/<device>.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import resource
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from loops import Timed, Work, easter, equal, plain
from rich.console import Console
from rich.table import Table

import colonnade
from colonnade import assembly, config, data
from colonnade.errors import DataMissing
from colonnade.privacy.masking import Masks, Moment, Ring
from colonnade.results.environment import commit
from colonnade.role.checks import Checks
from colonnade.runtime.drive import reproducible
from colonnade.wire import Ledger

RESULTS = Path(__file__).parent / "results"
console = Console(highlight=False, width=150)


def settings(**changes: Any) -> dict[str, Any]:
    """Training alone, without evaluation and checkpoints; the second epoch is the timed one."""
    base: dict[str, Any] = {
        "method": "splitnn",
        "epochs": 2,
        "evaluate_every": 0,
        "checkpoint": {"epochs": 0},
        "data": {"name": "mnist"},
        "partition": {"kind": "tiles"},
    }
    return base | changes


def ours(tree: dict[str, Any]) -> Timed:
    folder = Path(tempfile.mkdtemp())
    try:
        result = colonnade.run(tree, out=folder / "run")
    finally:
        shutil.rmtree(folder)
    last = result.history[-1]["parties"]
    timing = result.content["timing"]
    masks = sum(party.get("masking", 0.0) for party in timing["spent"].values())
    return Timed(timing["seconds_per_epoch"], next(iter(last.values()))["loss"], masks)


def reproducibly(loop: Callable[[Work], Timed], work: Work) -> Timed:
    """With one thread and, on a GPU, the deterministic kernels that a run of ours uses."""
    with reproducible(1, work.device.type == "cuda"):
        return loop(work)


def share_of(tree: dict[str, Any], what: type, *methods: str) -> float:
    """The part of the training time that is spent in these methods, in a run that measures it."""
    spent, inside = 0.0, False

    def measured(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any) -> Any:
            nonlocal spent, inside
            if inside:  # `write` may write a block out: counted once
                return function(*args)
            inside, began = True, time.perf_counter()
            try:
                return function(*args)
            finally:
                inside, spent = False, spent + time.perf_counter() - began

        return wrapper

    with ExitStack() as patched:
        for name in methods:
            patched.enter_context(mock.patch.object(what, name, measured(getattr(what, name))))
        timed = ours(tree)
    return spent / sum(timed.seconds)


def work_of(tree: dict[str, Any]) -> Work:
    """The very rows that the run will train on, for the hand-written loops."""
    checked = config.load(tree)
    federation = assembly.from_catalogue(checked)
    parties = list(federation.parties.values())
    labels = parties[0].splits["train"].y
    assert labels is not None
    scales = []
    for party in parties:
        p, device = party.preparation, party.device
        assert p is not None
        scales.append(None if p.columns else (p.scale.to(device), p.shift.to(device)))
    return Work(
        [party.name for party in parties],
        [party.splits["train"].x for party in parties],
        scales,
        labels,
        parties[0].task.outputs,
        checked.recipe.model,
        checked.run.batch_size,
        checked.run.epochs,
        checked.run.seed,
        parties[0].device,
    )


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f}–{max(values):.3f})"


def ratio(device: str, repeats: int, rows: int) -> list[dict[str, Any]]:
    table = Table(title=f"MNIST quadrants, four parties, batch 128, {rows} rows, {device}")
    for column in ("bottoms", "plain s/epoch", "equal s/epoch", "splitnn s/epoch"):
        table.add_column(column, justify="right")
    for column in ("splitnn / equal", "splitnn / plain", "same loss to the bit", "ledger"):
        table.add_column(column, justify="right")
    found = []
    for model in ("mlp", "cnn"):
        tree = settings(model=model, device=device, data={"name": "mnist", "train_rows": rows})
        work = work_of(tree)
        contenders: dict[str, Callable[[], Timed]] = {
            "plain": lambda work=work: reproducibly(plain, work),
            "equal": lambda work=work: reproducibly(equal, work),
            "splitnn": lambda tree=tree: ours(tree),
        }
        times: dict[str, list[float]] = {name: [] for name in contenders}
        losses: dict[str, float] = {}
        for _ in range(repeats + 1):
            for name, contender in contenders.items():
                timed = contender()
                times[name].append(timed.seconds[-1])
                losses[name] = timed.loss
        times = {name: values[1:] for name, values in times.items()}  # the first one warms up
        against = {
            other: [a / b for a, b in zip(times["splitnn"], times[other], strict=True)]
            for other in ("equal", "plain")
        }
        same = losses["splitnn"] == losses["equal"]
        share = share_of(tree, Ledger, "write", "_write_out")
        table.add_row(
            model,
            *(spread(times[name]) for name in contenders),
            spread(against["equal"]),
            spread(against["plain"]),
            "yes" if same else "no",
            f"{100 * share:.1f} %",
        )
        found.append(
            {
                "bottoms": model,
                "seconds": times,
                "ratios": against,
                "same_loss": same,
                "ledger_share": share,
            }
        )
    console.print(table)
    return found


def nothing(*_: object) -> None:
    """In place of a check."""


def checks_ratio(device: str, repeats: int, rows: int) -> list[dict[str, Any]]:
    table = Table(title=f"checks of messages: MNIST quadrants, splitnn, {rows} rows, {device}")
    for column in ("bottoms", "with s/epoch", "without s/epoch", "with / without", "share"):
        table.add_column(column, justify="right")
    found = []
    for model in ("mlp", "cnn"):
        tree = settings(model=model, device=device, data={"name": "mnist", "train_rows": rows})
        kept: list[float] = []
        left: list[float] = []
        for _ in range(repeats + 1):
            kept.append(ours(tree).seconds[-1])
            with (
                mock.patch.object(Checks, "sending", nothing),
                mock.patch.object(Checks, "received", nothing),
            ):
                left.append(ours(tree).seconds[-1])
        ratios = [a / b for a, b in zip(kept[1:], left[1:], strict=True)]  # the first one warms up
        share = share_of(tree, Checks, "sending", "received", "settle")
        cells = (spread(kept[1:]), spread(left[1:]), spread(ratios), f"{100 * share:.2f} %")
        table.add_row(model, *cells)
        seconds = {"with": kept[1:], "without": left[1:]}
        found.append({"bottoms": model, "seconds": seconds, "ratios": ratios, "share": share})
    console.print(table)
    return found


def easter_ratio(device: str, repeats: int, rows: int) -> list[dict[str, Any]]:
    data_ = {"name": "mnist", "train_rows": rows}
    base = settings(method="easter", model="cnn", device=device, data=data_)
    trees = {mask: base | {"easter": {"mask": mask}} for mask in ("none", "prg")}
    work = work_of(trees["none"])
    contenders: dict[str, Callable[[], Timed]] = {
        "plain": lambda: reproducibly(lambda w: easter(w, quick=False), work),
        "equal": lambda: reproducibly(lambda w: easter(w, quick=True), work),
        "unmasked": lambda: ours(trees["none"]),
        "masked": lambda: ours(trees["prg"]),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    losses: dict[str, float] = {}
    spent: list[float] = []
    for _ in range(repeats + 1):
        for name, contender in contenders.items():
            timed = contender()
            times[name].append(timed.seconds[-1])
            losses[name] = timed.loss
            if name == "masked":
                spent.append(timed.masking / sum(timed.seconds))
    times = {name: values[1:] for name, values in times.items()}

    def against(a: str, b: str) -> list[float]:
        return [x / y for x, y in zip(times[a], times[b], strict=True)]

    ratios = {
        "unmasked / plain": against("unmasked", "plain"),
        "unmasked / equal": against("unmasked", "equal"),
        "masked / unmasked": against("masked", "unmasked"),
    }
    table = Table(
        title=f"EASTER, MNIST quadrants, four CNN parties, batch 128, {rows} rows, {device}"
    )
    table.add_column("what")
    table.add_column("median (range)", justify="right")
    for name, values in times.items():
        table.add_row(f"{name}, s/epoch", spread(values))
    for name, values in ratios.items():
        table.add_row(name, spread(values))
    table.add_row("masking, share of the step time", spread(spent[1:]))
    table.add_row(
        "loss: equal loop, unmasked, masked",
        " ".join(f"{losses[k]:.9f}" for k in ("equal", "unmasked", "masked")),
    )
    console.print(table)
    return [{"seconds": times, "ratios": ratios, "masking_share": spent[1:], "losses": losses}]


def masking(device: str, repeats: int) -> list[dict[str, Any]]:
    """Time of one party's masks, and of the active party's sum, without any training."""
    table = Table(title=f"masking 128×128 on {device}, ms")
    for column in ("parties", "ring", "mask, per passive party", "sum, active party", "float sum"):
        table.add_column(column, justify="right")
    found = []
    for passives in (3, 9):
        for bits in (64, 32):
            case = mask_times(device, passives, bits, 20 * repeats)
            table.add_row(
                str(passives + 1), f"2^{bits}", *(spread(case[k]) for k in ("mask", "sum", "plain"))
            )
            found.append({"parties": passives + 1, "ring": bits} | case)
    console.print(table)
    return found


def mask_times(device: str, passives: int, bits: int, repeats: int) -> dict[str, list[float]]:
    names = ["active", *(f"passive{number}" for number in range(passives))]
    secret = {frozenset(pair): secrets.token_bytes(32) for pair in itertools.combinations(names, 2)}
    ring = Ring(64 if bits == 64 else 32, 24 if bits == 64 else 16, passives)
    masks = {
        name: Masks(
            name, "active", {o: secret[frozenset((name, o))] for o in names if o != name}, ring
        )
        for name in names
    }
    embeddings = {name: torch.randn(128, 128, device=device) for name in names[1:]}
    times: dict[str, list[float]] = {"mask": [], "sum": [], "plain": []}
    with reproducible(1, device == "cuda"):
        for step in range(repeats):
            moment = Moment("train", 0, step)
            began = time.perf_counter()
            messages = {name: masks[name].mask(e, moment) for name, e in embeddings.items()}
            masked = time.perf_counter()
            total = masks["active"].total(messages, moment, (128, 128)).to(device)
            opened = time.perf_counter()
            plain_sum = torch.stack(list(embeddings.values())).sum(0)
            added = time.perf_counter()
            times["mask"].append(1000 * (masked - began) / passives)
            times["sum"].append(1000 * (opened - masked))
            times["plain"].append(1000 * (added - opened))
            assert torch.allclose(total, plain_sum, atol=passives * 2.0**-ring.fraction)
    return {name: values[repeats // 10 :] for name, values in times.items()}


def growth(device: str, repeats: int, rows: int) -> list[dict[str, Any]]:
    found = []
    table = Table(title=f"splitnn, MNIST pixels in columns, MLP bottoms, {device}")
    for column in ("parties", "batch", "ms per step", "against the row above", "peak MB"):
        table.add_column(column, justify="right")
    cases = [(parties, 128) for parties in (2, 4, 8, 16, 32, 64)]
    cases += [(4, batch) for batch in (32, 64, 256, 512)]
    trees = {
        (parties, batch): settings(
            model="mlp",
            device=device,
            batch_size=batch,
            data={"name": "mnist", "train_rows": rows},
            partition={"kind": "columns", "parties": parties},
        )
        for parties, batch in cases
    }
    times: dict[tuple[int, int], list[float]] = {case: [] for case in cases}
    for repeat in range(repeats + 1):
        for case, tree in trees.items():
            seconds = ours(tree).seconds[-1]
            if repeat:
                times[case].append(1000 * seconds / -(-rows // case[1]))
    before: float | None = None
    for (parties, batch), values in times.items():
        middle = statistics.median(values)
        grown = "" if before is None or batch != 128 else f"{middle / before:.2f} ×"
        memory = peak(trees[parties, batch])
        table.add_row(str(parties), str(batch), spread(values), grown, f"{memory:.0f}")
        case = {"parties": parties, "batch": batch, "ms_per_step": values, "peak_mb": memory}
        found.append(case)
        before = middle if batch == 128 else None
    console.print(table)
    return found


def accuracy(device: str) -> list[dict[str, Any]]:
    found = []
    table = Table(title=f"MNIST quadrants, four CNN parties, 5 epochs, {device}")
    for column in ("method", "test accuracy", "s/epoch with evaluation", "peak MB"):
        table.add_column(column, justify="right")
    for method in ("splitnn", "centralised", "local"):
        tree = settings(method=method, model="cnn", device=device, epochs=5, evaluate_every=1)
        folder = Path(tempfile.mkdtemp())
        result = colonnade.run(tree, out=folder / "run")
        shutil.rmtree(folder)
        seconds = result.content["timing"]["seconds_per_epoch"]
        assert result.accuracy is not None
        memory = peak(tree | {"epochs": 1})
        table.add_row(method, f"{100 * result.accuracy:.2f} %", spread(seconds), f"{memory:.0f}")
        found.append(
            {
                "method": method,
                "accuracy": result.accuracy,
                "seconds_per_epoch": seconds,
                "peak_mb": memory,
                "weights_sha256": result.weights_sha256,
            }
        )
    console.print(table)
    return found


def peak(tree: dict[str, Any]) -> float:
    """Megabytes at the most, of a fresh process that does this run alone; of its GPU memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_here, (tree,))


def _peak_here(tree: dict[str, Any]) -> float:
    ours(tree)
    if tree["device"] == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    every = ["ratio", "checks", "easter", "masking", "growth", "accuracy"]
    parser.add_argument("what", nargs="*", default=every, help=f"of {', '.join(every)}")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20_000, help="training rows of a timed epoch")
    arguments = parser.parse_args()
    try:
        data.load("mnist")
    except DataMissing as error:
        raise SystemExit(str(error)) from None
    device, repeats = arguments.device, arguments.repeats
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "ratio": lambda: ratio(device, repeats, arguments.rows),
        "checks": lambda: checks_ratio(device, repeats, arguments.rows),
        "easter": lambda: easter_ratio(device, repeats, arguments.rows),
        "masking": lambda: masking(device, repeats),
        "growth": lambda: growth(device, repeats, 2560),
        "accuracy": lambda: accuracy(device),
    }
    path = RESULTS / f"{device}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for what in arguments.what:
        found[what] = {"commit": commit(), "torch": torch.__version__, "measured": parts[what]()}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    console.print(f"written to {path}")


if __name__ == "__main__":
    main()
