"""Freeze the bits of every method, and tell later whether a change of the code has changed one.

    python benchmarks/freeze.py record
    python benchmarks/freeze.py check [--only easter] [--runtime local,strict,process]

Small runs of every registered method, and of the options that make the large ones what they are:
with all parties in one process ("local"), the same with every message through the codec
("strict"), and with a process for each party ("process"). `record` keeps digests of what each run
leaves: weights, predictions, metrics, the history without its times, and the sums of the wire. A
flow is all messages of one Kind from one party to another, in their order; it has one digest of
what the ledger says about them and one of their payloads. Fresh keys and masks make the payloads of
randomised Kinds differ, so these are left out. `check` runs everything again and says what differs.

It uses the package as a user does, and reads run folders by hand, so that it goes on working while
modules move. Sums in other orders have other bits: compare on the kind of machine that recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

import colonnade
from colonnade import methods

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "benchmarks" / "results" / "freeze.json"
RUNTIMES = ("local", "strict", "process")
# Metrics that follow from the frozen predictions, and were added after the records were made
DERIVED = ("metric", "value", "measures", "curves", "absent_value")
# The same of what is logged about evaluated rows
LOGGED = tuple(f"{split}_{name}" for split in ("validation", "test") for name in ("loss", "auc"))
SHORT = 16  # hexadecimal digits of a digest that is only compared
FLOW = ("shape", "dtype", "bytes", "phase", "epoch", "step")

Tree = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One configuration, and where it is run."""

    method: str
    name: str
    changes: Tree = field(default_factory=dict)  # of `toy`; a table changes what it names
    process: bool = False  # also with a process for each party
    files: bool = False  # the parties' own files; `changes` say no [data] name, no [partition]
    rows: tuple[int, ...] = ()  # of each party, handed over as arrays; `changes` as with files
    secret: bool = False  # what a party draws for itself alone decides its weights: fix it

    @property
    def title(self) -> str:
        return f"{self.method}/{self.name}"

    @property
    def runtimes(self) -> tuple[str, ...]:
        return RUNTIMES if self.process else RUNTIMES[:2]


# ---- the runs ------------------------------------------------------------------------------------

QUICK: dict[str, Tree] = {
    "splitnn": {"dim": 8, "hidden": 12},
    "aggvfl": {"dim": 8},
    "cvfl": {"dim": 8, "hidden": 12},
    "easter": {"dim": 8, "stand_in": "mean"},  # the default when this was recorded
    "adptvfedconv": {"pretrain_epochs": 1, "finetune_epochs": 1, "chunk": 70},
    "jovefl": {"dim": 8},
    "fedemb": {"groups": 20, "later_epochs": 1, "server_epochs": 2, "server_lr": 0.01},
    "heteronn": {"dim": 6, "width": 5},
    "vfedtrans": {
        "q": 6,
        "unsafe_q": True,  # recorded before so many were refused
        "layers": 2,
        "hidden": 12,
        "distil_epochs": 3,
        "dim": 10,
    },
}


def toy(method: str) -> Tree:
    """A small real data set, split over three parties: columns, or parts of images."""
    tree: Tree = {
        "method": method,
        "name": "toy",
        "seed": 3,
        "epochs": 2,
        "batch_size": 20,
        "batching": "papers",
        "threads": 1,
        "lr": 0.1,
        "model_options": {"hidden": [16]},
        "data": {"name": "digits", "train_rows": 300, "test_rows": 100},
        "partition": {"kind": "columns", "parties": 3},
        "checkpoint": {"epochs": 0},
        method: QUICK.get(method, {}),
    }
    if methods.find(method).method.network.images:
        tree["partition"] = {"kind": "strips", "parties": 3}
        tree["model_options"] = {"width": 0.1, "fc": [16], "dropout": 0.1}
    if method == "fedemb":
        tree["model_options"] = {"hidden": [16, 12, 10]}  # with something behind the cut
    return tree


STRIPS: Tree = {"partition": {"kind": "strips", "parties": 3}, "model_options": {}}
TILES: Tree = {"partition": {"kind": "tiles", "grid": [2, 2]}, "model_options": {}}
MOVED = {"flip": True, "shift": 1}
HYBRID = {"kind": "hybrid", "parties": 3}
HELD = {"validation": 0.2}
# Two views that overlap, of unequal size, of a network whose head has BatchNorm.
VIEWS = {"kind": "rectangles", "rectangles": [[0, 0, 5, 8], [0, 2, 8, 6]]}
CUT: Tree = {
    "model": "resnet8",
    "model_options": {"width": 0.25},
    "batch_size": 40,
    "partition": VIEWS,
}
WIDE = {"grouping": "class", "targets": "hard"}
RANDOM = {"public": "random", "grouping": "class", "targets": "class"}
NOISE = {"protect": {"simulate_noise_seed": 3}}  # else it is drawn afresh

VARIANTS: dict[str, dict[str, Tree]] = {
    "local": {
        "oracle": {"local": {"oracle": True}},
        "images": {**TILES, "model": "cnn", "data": MOVED | {"upside_down": True}},
        "adam-steps": {
            "optimizer": "adam",
            "lr": 0.01,
            "schedule": "steps",
            "warmup": 0.5,
            "data": HELD | {"standardise": False},
        },
    },
    "centralised": {
        "images": {**STRIPS, "model": "lenet", "data": MOVED},
        "official": {"data": {"official": False, "test": 0.3, "test_rows": 0}},
    },
    "splitnn": {
        "sum": {"splitnn": {"cut": "sum"}},
        "mean": {"splitnn": {"cut": "mean"}},
        "linear-top": {"splitnn": {"hidden": 0}},
        "label-only": {"label_only": True},
        "five": {"partition": {"parties": 5}, "label_holder": "party3"},
        "recipes": {
            "parties": {
                "party1": {"optimizer": "adamw", "schedule": "constant", "lr": 0.01},
                "party2": {"optimizer": "adagrad", "weight_decay": 1e-3, "lr": 0.02},
                "party3": {"nesterov": True, "warmup": 1.0, "lr": 0.02},
            }
        },
        "bfloat16": {"precision": "bfloat16"},
        "tiles": {**TILES, "model": "cnn", "data": MOVED | {"upside_down": True}},
        "shuffled-columns": {
            "partition": {"shuffle": True, "column_overlap": 0.2},
            "data": HELD,
            "evaluate_every": 2,
        },
    },
    "aggvfl": {
        "sum": {"aggvfl": {"aggregate": "sum"}},
        "steps": {"aggvfl": {"steps": 2, "local_steps": {"party2": 3}}},
        "label-only": {"label_only": True},
    },
    "cvfl": {
        "lattice": {"cvfl": {"compressor": "lattice"}},
        "topk": {"cvfl": {"compressor": "topk", "bits": 4}},
        "none": {"cvfl": {"compressor": "none"}},
        "local-steps": {"cvfl": {"local_steps": 2, "bits": 2}},
        "shared-labels": {"cvfl": {"labels": "shared", "local_steps": 2}},
        "plain-gradient": {"cvfl": {"compress_gradient": False}},
        "label-only": {"label_only": True, "cvfl": {"hidden": 0}},
    },
    "easter": {
        "paper": {"easter": {"mask": "paper"}},
        "unmasked": {"easter": {"mask": "none"}},
        "unmasked-weighted": {
            "easter": {"mask": "none", "aggregate": "weighted", "weights": {"party2": 2.0}}
        },
        "weighted": {"easter": {"aggregate": "weighted", "weights": {"party2": 2.0}}},
        "sum-joint": {"easter": {"aggregate": "sum", "gradient": "joint"}},
        "unit": {"easter": {"gradient": "unit", "normalise": True}},
        "no-gradient": {"easter": {"gradient": "none", "loss": "sigmoid"}},
        "ring-32": {"easter": {"ring": 32, "stand_in": "present"}},
        "fraction": {"easter": {"fraction": 12}},
        "five": {"partition": {"parties": 5}},
        "one-passive": {"easter": {"one_passive": True}, "partition": {"parties": 2}},
        "networks": {
            **TILES,
            "data": MOVED,
            "parties": {
                "party1": {"model": "cnn"},
                "party2": {"model": "mlp", "model_options": {"hidden": [12]}},
                "party3": {"model": "resnet8", "model_options": {"width": 0.25}},
                "party4": {"optimizer": "adam", "lr": 0.01},
            },
        },
    },
    "adptvfedconv": {
        "early": {"adptvfedconv": {"cut": "1C", "padding": "zeros"}},
        "late": {"adptvfedconv": {"cut": "4C+2M", "padding": "replicate-at-cuts"}},
        "views": {"data": MOVED, "adptvfedconv": {"views": 4}},
        "one-view": {"data": MOVED, "adptvfedconv": {"views": 1, "cut": "1C"}},
        "consistent": {"data": MOVED, "adptvfedconv": {"augment": "consistent"}},
        "consistent-views": {
            "data": MOVED,
            "adptvfedconv": {"augment": "consistent", "views": 2},
        },
        "oracle": {"data": MOVED, "adptvfedconv": {"augment": "oracle"}},
        "no-moves": {"data": HELD, "adptvfedconv": {"augment": "none"}},
        "int8": {"adptvfedconv": {"upload_dtype": "int8", "decoder": "relu"}},
        "float16": {"adptvfedconv": {"upload_dtype": "float16", "decoder": "sigmoid"}},
        "frozen": {"adptvfedconv": {"batchnorm": "frozen", "finetune_server": True}},
        "no-transfer": {"adptvfedconv": {"transfer": False, "pretrain_epochs": 0}},
        "personalised": {"adptvfedconv": {"personalised": True}},
        "personalised-stream": {
            "adptvfedconv": {"personalised": True, "augment": "consistent", "upload_dtype": "int8"}
        },
        "noise": {"adptvfedconv": {"noise": 0.2}, **NOISE},
        "inversion": {"adptvfedconv": {"inversion": 2, "noise": 0.1}, **NOISE},
        "rectangles": {"partition": VIEWS},
        "tiles": {"partition": {"kind": "tiles"}, "adptvfedconv": {"chunk": 500}},
    },
    "splitconv": {
        "early": {"splitconv": {"cut": "1C", "padding": "zeros"}},
        "at-cuts": {"splitconv": {"padding": "replicate-at-cuts"}, "data": MOVED},
    },
    "jovefl": {
        "nothing": {"jovefl": {"share": "nothing"}},
        "data": {"jovefl": {"share": "data"}},
        "networks": {"jovefl": {"share": "networks"}, "partition": {"kind": "rows", "parties": 3}},
        "insured": {"epochs": 3, "jovefl": {"adopt": "insured"}, "data": HELD},
        "insured-plateau": {
            "epochs": 6,
            "warmup": 1.0,
            "data": HELD,
            "jovefl": {"adopt": "insured", "rate": "plateau", "patience": 1, "reductions": 2},
        },
        "insured-cut": {**CUT, "jovefl": {"cut": "stage2", "adopt": "insured"}, "data": HELD},
        "plateau": {
            "epochs": 6,
            "lr": 0.5,
            "data": HELD,
            "jovefl": {"rate": "plateau", "patience": 1, "reductions": 2, "signal": "mean_loss"},
        },
        "plateau-ends": {
            "epochs": 12,
            "lr": 0.8,
            "data": HELD,
            "jovefl": {"rate": "plateau", "patience": 1, "reductions": 1, "judge": "test"},
        },
        "insured-ends": {
            "epochs": 12,
            "lr": 0.8,
            "data": HELD,
            "jovefl": {
                "adopt": "insured",
                "rate": "plateau",
                "patience": 1,
                "reductions": 1,
                "signal": "loss",
            },
        },
        "plateau-alone": {
            "epochs": 12,
            "lr": 0.8,
            "data": HELD,
            "jovefl": {
                "share": "nothing",
                "rate": "plateau",
                "patience": 1,
                "reductions": 1,
                "judge": "test",
            },
        },
        "float16": {"epochs": 3, "jovefl": {"compress": "float16", "momentum": "reset"}},
        "scalar": {"epochs": 3, "jovefl": {"compress": "scalar", "bits": 4}},
        "topk": {"epochs": 3, "jovefl": {"compress": "topk", "bits": 4, "prox": 0.1}},
        "fedavgm": {"epochs": 3, "jovefl": {"strategy": "fedavgm", "server_lr": 0.5}},
        "fednova": {
            "epochs": 3,
            "jovefl": {"strategy": "fednova", "weighted": True, "hidden": [10]},
            "partition": HYBRID | {"alpha": 0.5, "row_overlap": 0.2},
        },
        "fedadagrad": {"epochs": 3, "jovefl": {"strategy": "fedadagrad", "server_lr": 0.1}},
        "fedadam": {"epochs": 3, "jovefl": {"strategy": "fedadam", "server_lr": 0.1}},
        "fedyogi": {"epochs": 3, "jovefl": {"strategy": "fedyogi", "server_lr": 0.1, "every": 2}},
        "absence": {"epochs": 4, "jovefl": {"absence": 0.4, "stale": 1.0}},
        "away": {"epochs": 4, "jovefl": {"away": {"party2": [2, 3]}, "compress": "scalar"}},
        "deadline": {
            "epochs": 4,
            "jovefl": {"deadline": 1.5, "quorum": 2, "pace": {"party3": 2.0}},
        },
        "impatient": {
            "epochs": 4,
            "jovefl": {
                "deadline": 2.5,
                "quorum": 3,
                "contact": 0.4,
                "pace": {"party3": 2.0},
                "compress": "scalar",
            },
        },
        "async": {
            "epochs": 4,
            "jovefl": {
                "mode": "async",
                "mixing": 0.5,
                "contact": 3.0,
                "pace": {"party2": 1.7, "party3": 2.3},
            },
        },
        "cut-pool": {**CUT, "jovefl": {"cut": "stage2", "fit_size": 3}, "data": MOVED},
        "cut-resize": {
            **CUT,
            "jovefl": {"cut": "stage2", "fit": "resize", "batch_norm": "local", "prox": 0.1},
        },
        "cut-canvas": {
            **CUT,
            "jovefl": {"cut": "stage2", "fit": "canvas", "batch_norm": "batch", "same_start": True},
        },
        "cut-interpolate": {
            **CUT,
            "data": MOVED,
            "jovefl": {"cut": "stage1", "fit": "interpolate", "fit_size": 4, "whole": True},
        },
    },
    "fedemb": {
        "every-row": {"fedemb": {"groups": 0, "connect": "none"}},
        "kmeans": {"fedemb": {"grouping": "kmeans", "rounds": 2, "control": True}},
        "class": {"fedemb": {**WIDE, "widen": True, "server_schedule": "cosine"}},
        "soft": {"fedemb": {"targets": "soft", "connect": "low-rank", "rank": 3}},
        "proportions": {"fedemb": {"targets": "proportions", "connect": "sparse", "fan_in": 3}},
        "noise": {"fedemb": {"noise": 0.1, "generalise": 0.2, "rounds": 2}, **NOISE},
        "kept-blocks": {"fedemb": {"rounds": 2, "later_epochs": 2, "return_blocks": False}},
        "diverged": {"fedemb": {"server_lr": 1e12, "connect_start": 0.1}},
        "hybrid": {"fedemb": {"setting": "hybrid", "combinations": 2}, "partition": HYBRID},
        "hybrid-kmeans": {
            "fedemb": {"setting": "hybrid", "grouping": "kmeans", "rounds": 2},
            "partition": HYBRID | {"alpha": 1.0},
        },
        "hybrid-class": {
            "fedemb": {**WIDE, "setting": "hybrid", "match": "class", "widen": True},
            "partition": HYBRID,
        },
        "cut": {"fedemb": {"cut": "layer1", "rounds": 2}},
        "public": {"fedemb": {**RANDOM, "widen": True, "rounds": 2}},
        "untested": {"evaluate_every": 0, "fedemb": {"rounds": 2}},
    },
    "heteronn": {
        "fixed-point": {"heteronn": {"fixed_point": True, "fraction": 16}},
        "at-once": {"heteronn": {"in_turn": False, "hidden": [7], "mask": 0.5}},
        "label-only": {"label_only": True},
    },
    "vfedtrans": {
        "control": {"vfedtrans": {"theta": 0.0, "reconstruction": 0.5}},
        "dense": {"vfedtrans": {"block": 0, "shared": 1.0, "fraction": 30}},
        "decoder": {"vfedtrans": {"output": "decoder", "activation": "sigmoid", "layers": 1}},
        "both": {"vfedtrans": {"output": "both", "code": "activated", "stretch": 2.0}},
        "members": {"vfedtrans": {"members": 2, "dropout": 0.1, "held_out": 0.2}},
        "published": {"vfedtrans": {"target": "raw", "distil": "l1", "scaling": "minmax"}},
    },
}

# With a process for each party, beside the base of every method; a refusal is recorded as well.
APART = {
    "splitnn/label-only",
    "cvfl/shared-labels",
    "easter/networks",
    "adptvfedconv/personalised-stream",
    "adptvfedconv/oracle",
    "adptvfedconv/inversion",
    "jovefl/nothing",
    "jovefl/data",
    "jovefl/insured-cut",
    "jovefl/scalar",
    "fedemb/kmeans",
    "fedemb/hybrid-class",
}

SPECIAL = [
    Case(
        "heteronn",
        "paillier",
        {
            "epochs": 1,
            "data": {"name": "breast-cancer", "train_rows": 40, "test_rows": 10},
            "heteronn": {
                "encryption": "paillier",
                "key_bits": 512,
                "short_key": True,
                "dim": 3,
                "width": 2,
            },
        },
        secret=True,
    ),
    Case(
        "fedemb",
        "budget",
        {
            "checkpoint": {"epochs": 1},
            "fedemb": {"epsilon": 20.0, "clip": 5.0, "rounds": 2, "groups": 10},
            **NOISE,
        },
    ),
    Case(
        "fedemb",
        "random",
        {
            "checkpoint": {"epochs": 1},
            "data": {"standardise": False},
            "fedemb": {**RANDOM, "private": "random", "epsilon": 20.0, "clip": "private"},
            **NOISE,
        },
    ),
    Case("splitnn", "own-files", process=True, files=True),
    Case("easter", "own-files", {"easter": {"one_passive": True, "stand_in": "mean"}}, files=True),
    Case("centralised", "own-files", files=True),
    Case("vfedtrans", "own-files", {"vfedtrans": {"q": 3, "unsafe_q": True}}, files=True),
    Case("splitnn", "memory", rows=(90, 90, 90)),
    Case("jovefl", "memory", rows=(60, 90, 50)),
    Case(
        "fedemb",
        "memory",
        {"evaluate_every": 0, "fedemb": {"setting": "hybrid"}},
        rows=(60, 90, 50),
    ),
]


def cases() -> list[Case]:
    """The base of every method with a process for each party, then variants in one process."""
    found = [Case(method, "base", process=True) for method in methods.names()]
    for method, variants in VARIANTS.items():
        for name, changes in variants.items():
            found.append(Case(method, name, changes, process=f"{method}/{name}" in APART))
    order = methods.names()
    return sorted([*found, *SPECIAL], key=lambda case: order.index(case.method))


def settings(case: Case, folder: Path) -> Tree:
    """The configuration of a case; its own files are written to the folder."""
    tree = toy(case.method)
    if case.files:
        del tree["data"], tree["partition"]
        tree["parties"] = own_files(folder)
    if case.rows:
        del tree["data"], tree["partition"]
    for key, value in case.changes.items():
        table = isinstance(value, dict) and key != "model_options"
        other = table and "kind" in value  # another partition: its options are others
        tree[key] = {**tree.get(key, {}), **value} if table and not other else value
    return tree


def own_files(folder: Path) -> Tree:
    """A bank and a shop with some customers in common, in orders of their own."""
    draw = np.random.default_rng(0)
    everybody = 130
    x = draw.normal(size=(everybody, 7)).round(4)
    held = {"bank": draw.permutation(100), "shop": draw.permutation(np.arange(30, everybody))}
    columns = {"bank": range(3), "shop": range(3, 7)}
    for party, rows in held.items():
        label = ",label" if party == "bank" else ""
        lines = [f"id,{','.join(f'{party} {n}' for n in columns[party])},kind{label}"]
        for row in rows.tolist():
            values = ["" if row % 17 == 5 and n == 1 else str(x[row, n]) for n in columns[party]]
            kind = "abc"[row % 3]  # a column of categories, beside one in which values are missing
            verdict = ["good" if x[row, 0] + x[row, 5] > 0 else "bad"] if label else []
            lines.append(",".join([f"person {row}", *values, kind, *verdict]))
        (folder / f"{party}.csv").write_text("\n".join(lines) + "\n")
    return {party: {"data": str(folder / f"{party}.csv")} for party in held}


def in_memory(rows: tuple[int, ...]) -> dict[str, tuple[np.ndarray[Any, Any], list[str]]]:
    """Three parties with columns, rows and labels of their own."""
    draw = np.random.default_rng(1)
    found = {}
    for party, count, width in zip(("north", "south", "west"), rows, (4, 4, 6), strict=True):
        x = draw.normal(size=(count, width)).astype(np.float32)
        found[party] = (x, ["low" if row[0] + row[1] < 0 else "high" for row in x])
    return found


@contextmanager
def fixed_secrets() -> Iterator[None]:
    """What a party would draw for itself alone is the same in every run."""
    with mock.patch("secrets.token_bytes", lambda count=32: b"\x5a" * count):
        yield


# ---- what a run leaves ---------------------------------------------------------------------------


def record(case: Case, runtime: str) -> Tree:
    """Run a case and describe what it leaves; who refuses it leaves the name of the error."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = settings(case, folder) | {"strict": runtime == "strict"}
        apart: Literal["local", "process"] = "process" if runtime == "process" else "local"
        given = in_memory(case.rows) if case.rows else None
        with fixed_secrets() if case.secret else nullcontext():
            try:
                colonnade.run(tree, out=folder / "run", runtime=apart, parties=given)
            except colonnade.ColonnadeError as error:
                return {"refused": type(error).__name__, "why": str(error)}
            asked = {party: x[:40] for party, (x, _) in given.items()} if given else None
            predictions = predicted(folder / "run", asked)
        return left(case.method, folder / "run") | {"predictions": predictions}


def predicted(folder: Path, rows: Mapping[str, Any] | None) -> dict[str, str]:
    """By party, a digest of the classes and their probabilities; which error, if there is one."""
    try:
        found = colonnade.load(folder).predict(rows)
    except colonnade.ColonnadeError as error:
        return {"refused": type(error).__name__}
    digests = {}
    for party, prediction in found.items():
        told = digest([party, prediction.classes, prediction.ids.tolist(), prediction.labels])
        shares = prediction.probabilities.contiguous().numpy().tobytes()
        digests[party] = digest([told, hashlib.sha256(shares).hexdigest()])
    return digests


def left(method: str, folder: Path) -> Tree:
    """What lies in a run folder, but for times, places and words."""
    result = json.loads((folder / "result.json").read_text())
    wire = result["wire"]
    history = [{k: v for k, v in row.items() if k != "seconds"} for row in result["history"]]
    for row in history:
        row["parties"] = {
            party: {name: value for name, value in numbers.items() if name not in LOGGED}
            for party, numbers in row["parties"].items()
        }
    return {
        "weights": result["weights_sha256"],
        "accuracy": result["metrics"].get("test", {}).get("accuracy"),
        "metrics": digest(
            {
                split: {name: value for name, value in found.items() if name not in DERIVED}
                for split, found in result["metrics"].items()
            }
        ),
        "history": digest(history),
        "wire": {
            **{key: wire[key] for key in ("bytes", "messages", "rounds", "by_phase")},
            "by_kind": {
                kind: {"bytes": sums["bytes"], "messages": sums["messages"]}
                for kind, sums in wire["by_kind"].items()
            },
        },
        **flows(method, folder / "ledger.jsonl"),
    }


def flows(method: str, ledger: Path) -> dict[str, dict[str, str]]:
    """By sender, receiver and Kind: digests of all its messages, in their order.

    "payloads" is empty where the ledger has none ("local"). What a method does not declare belongs
    to the alignment of rows, which draws fresh keys.
    """
    fixed = {kind.name for kind in methods.find(method).method.kinds if not kind.randomised}
    said: dict[str, list[Any]] = {}
    payloads: dict[str, list[str]] = {}
    with ledger.open() as file:
        for row in map(json.loads, file):
            if "kind" not in row:
                continue  # a note
            flow = f"{row['sender']} > {row['receiver']}: {row['kind']}"
            said.setdefault(flow, []).append([row[key] for key in FLOW])
            if row["kind"] in fixed and row["sha256"]:
                payloads.setdefault(flow, []).append(row["sha256"])
    return {
        "flows": {flow: digest(messages) for flow, messages in said.items()},
        "payloads": {flow: digest(found) for flow, found in payloads.items()},
    }


def digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:SHORT]


# ---- two records ---------------------------------------------------------------------------------


def differences(before: Tree, now: Tree) -> list[str]:
    """What is not the same, by name."""
    if "refused" in before or "refused" in now:
        told = [record.get("refused", "a result") for record in (before, now)]
        why = f" ({now['why']})" if "why" in now else ""
        return [] if told[0] == told[1] else [f"was {told[0]}, is {told[1]}{why}"]
    found = []
    for part in sorted(before.keys() | now.keys()):
        one, other = before.get(part), now.get(part)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
            found += [f"{part} of {name}" for name in names]
        else:
            found.append(part)
    return found


def shortened(records: dict[str, Tree]) -> dict[str, Tree]:
    """What is as in "strict" is written once."""
    strict = records["strict"]
    return {
        runtime: now
        if runtime == "strict"
        else {part: value for part, value in now.items() if value != strict.get(part)}
        for runtime, now in records.items()
    }


def whole(records: dict[str, Tree], runtime: str) -> Tree:
    """A record as it was before it was shortened."""
    now = records[runtime]
    return now if "refused" in now else {**records["strict"], **now}


def environment() -> Tree:
    """What the bits depend on beside the code."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def commit() -> str:
    """Of the source tree, with a + where it was changed."""
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


# ---- the command ---------------------------------------------------------------------------------


def main() -> int:
    # The parties' processes take the package from the same tree.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--runtime", default=",".join(RUNTIMES), help="local,strict,process")
    parser.add_argument("--file", type=Path, default=FILE)
    arguments = parser.parse_args()
    runtimes = tuple(arguments.runtime.split(","))
    if strangers := [name for name in runtimes if name not in RUNTIMES]:
        parser.error(f"--runtime {strangers[0]}: one of {', '.join(RUNTIMES)}")
    if arguments.what == "record":
        if arguments.only or runtimes != RUNTIMES:
            parser.error("record runs everything: leave --only and --runtime out")
        return keep(arguments.file)
    return check(arguments.file, arguments.only, runtimes)


def keep(file: Path) -> int:
    """Run everything and write it down."""
    began = time.perf_counter()
    found: dict[str, dict[str, Tree]] = {}

    def note(case: Case, runtime: str, seconds: float, now: Tree) -> None:
        found.setdefault(case.title, {})[runtime] = {k: v for k, v in now.items() if k != "why"}
        strict = found[case.title].get("strict", {})
        other = differences(strict, now) if runtime == "process" and "flows" in now else []
        said = f"{now['refused']}: {now['why']}" if "why" in now else f"accuracy {now['accuracy']}"
        apart = f", NOT AS strict: {', '.join(other)}" if other else ""
        print(f"{case.title} {runtime}: {seconds:.1f} s, {said}{apart}", flush=True)

    runs = run_all(cases(), RUNTIMES, note)
    refused = [
        f"{title} {runtime}"
        for title, records in found.items()
        for runtime, now in records.items()
        if "refused" in now and runtime != "process"
    ]
    if refused:
        print(f"refused, so nothing was written: {', '.join(refused)}")
        return 1
    content = {
        "commit": commit(),
        "environment": environment(),
        "cases": {title: shortened(records) for title, records in found.items()},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    print(f"{runs} runs of {len(found)} cases, {time.perf_counter() - began:.0f} s")
    return 0


def check(file: Path, only: str, runtimes: tuple[str, ...]) -> int:
    """Run again, and say what is not as it was written down."""
    began = time.perf_counter()
    content = json.loads(file.read_text())
    here = environment()
    for key, recorded in content["environment"].items():
        if recorded != here.get(key):
            print(f"recorded with {key} {recorded}, this is {here.get(key)}: bits may differ by it")
    wrong = 0

    def compare(case: Case, runtime: str, seconds: float, now: Tree) -> None:
        nonlocal wrong
        records = content["cases"].get(case.title, {})
        known = runtime in records
        found = differences(whole(records, runtime), now) if known else ["not recorded"]
        wrong += bool(found)
        said = f"DIFFERENT: {', '.join(found)}" if found else "same"
        print(f"{case.title} {runtime}: {said}", flush=True)

    chosen = [case for case in cases() if only in case.title]
    runs = run_all(chosen, runtimes, compare)
    gone = sorted(title for title in content["cases"].keys() - {c.title for c in cases()})
    for title in gone if not only else []:
        print(f"{title}: recorded, and there is no such case any more")
        wrong += 1
    print(
        f"{runs - wrong} of {runs} runs as recorded at {content['commit']}, {wrong} different; "
        f"{time.perf_counter() - began:.0f} s"
    )
    return 1 if wrong or not runs else 0


def run_all(
    chosen: list[Case],
    runtimes: tuple[str, ...],
    told: Callable[[Case, str, float, Tree], None],
) -> int:
    """Every case in each of its runtimes; how many runs that were."""
    count = 0
    for case in chosen:
        for runtime in case.runtimes:
            if runtime in runtimes:
                began = time.perf_counter()
                try:
                    now = record(case, runtime)
                except Exception as error:  # noqa: BLE001 - of a broken change; others may work
                    now = {"refused": type(error).__name__, "why": str(error)}
                told(case, runtime, time.perf_counter() - began, now)
                count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
