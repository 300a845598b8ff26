"""Results as a run would write them, for the report's tests. Made up, but consistent."""

from __future__ import annotations

import hashlib
import math
from typing import Any

KINDS = {
    "embedding": ("batch × dim", "float32", "passive features, through h_k; masked"),
    "gradient": ("batch × dim", "float32", "labels, through dL/dh_k"),
    "test_embedding": ("batch × dim", "float32", "passive test features, through h_k"),
    "public_key": ("bytes", "uint8", "nothing; a fresh X25519 key"),
}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def example(
    name: str = "demo",
    method: str = "splitnn",
    *,
    parties: list[str] | None = None,
    classes: list[str] | None = None,
    epochs: int = 5,
    accuracy: float = 0.9861,
    messages: bool = True,
    everybody_predicts: bool = False,
    absent: dict[str, float] | None = None,
    status: str = "finished",
    **changed: Any,
) -> dict[str, Any]:
    """A whole result; `changed` replaces top-level keys."""
    parties = parties or ["party1", "party2", "party3", "party4"]
    classes = classes if classes is not None else [str(i) for i in range(10)]
    predicting = parties if everybody_predicts else parties[:1]
    each = {p: accuracy - 0.011 * i for i, p in enumerate(predicting)}
    result: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "method": method,
        "seed": 7,
        "runtime": "local",
        "status": status,
        "error": "",
        "warnings": [],
        "config": {
            "method": method,
            "seed": 7,
            "epochs": epochs,
            "batch_size": 128,
            "threads": 1,
            "record": None,
            "data": {"name": "mnist"},
            "partition": {"kind": "tiles", "grid": [2, 2]},
            "parties": {p: {"model": "cnn", "optimizer": "sgd", "lr": 0.05} for p in parties},
        },
        "config_sha256": sha256(name),
        "data": {
            "name": "mnist",
            "train_rows": 60_000,
            "test_rows": 10_000,
            "classes": classes,
            "partition": "tiles 2×2",
        },
        "parties": parties,
        "roles": {p: "passive" if i else "active" for i, p in enumerate(parties)},
        "metrics": {
            "test": {
                "accuracy": sum(each.values()) / len(each),
                "per_party": each,
                "confusion": confusion(len(classes), accuracy) if classes else None,
                "confusion_party": predicting[0] if classes else None,
            }
        },
        "history": [
            {
                "epoch": e,
                "phase": "train",
                "seconds": 12.3 + 0.2 * math.sin(e),
                "parties": {
                    p: {
                        "loss": 0.08 + (1.1 + 0.1 * i) * math.exp(-0.8 * e),
                        "test_accuracy": each[p] - 0.12 * math.exp(-0.9 * (e - 0.5)),
                    }
                    for i, p in enumerate(predicting)
                },
            }
            for e in range(1, epochs + 1)
        ],
        "wire": wire(parties if messages else parties[:0], epochs),
        "timing": {
            "seconds_total": 12.4 * epochs + 2.1,
            "seconds_per_epoch": [12.3 + 0.2 * math.sin(e) for e in range(1, epochs + 1)],
            "by_phase": {"train": sum(12.3 + 0.2 * math.sin(e) for e in range(1, epochs + 1))},
            "setup": 0.82,
        },
        "weights_sha256": {p: sha256(name + p) for p in parties},
        "environment": {
            "python": "3.11.7",
            "torch": "2.13.0",
            "device": "cpu",
            "commit": sha256("commit")[:40],
            "colonnade": "0.1.0",
            "threads": 1,
            "platform": "Linux x86_64",
        },
    }
    if absent is not None:
        result["metrics"]["test"]["absent"] = absent
    return result | changed


def phased(name: str = "phases", **changed: Any) -> dict[str, Any]:
    """A run of AdptVFedConv: party1 is the server, the others train in phases of their own."""
    result = example(name, "adptvfedconv", epochs=4, **changed)
    first, *others = result["parties"]
    busy = {"pretrain": ([first], 3), "transfer": (others, 2), "upload": ([], 1)}
    before = [
        {
            "epoch": e,
            "phase": phase,
            "seconds": 2.0,
            "parties": {p: {"loss": 10 * (i + 1) / e} for i, p in enumerate(parties)},
        }
        for phase, (parties, epochs) in busy.items()
        for e in range(1, epochs + 1)
    ]
    result["history"] = before + result["history"]
    result["timing"]["by_phase"] = {
        "pretrain": 6.0,
        "transfer": 4.0,
        "upload": 2.0,
        **result["timing"]["by_phase"],
    }
    return result


def failed(name: str = "broken") -> dict[str, Any]:
    """A run that ended before its first epoch did."""
    whole = example(name, epochs=0, messages=False, status="failed")
    return whole | {"metrics": {}, "weights_sha256": {}}


def confusion(classes: int, accuracy: float) -> list[list[int]]:
    """100 rows per class for many classes, 1000 for few; mistakes near the diagonal."""
    rows, matrix = 1000 if classes <= 20 else 100, []
    for i in range(classes):
        row = [0] * classes
        right = min(rows, round(rows * (accuracy - 0.004 * (i % 5))))
        row[i] = right
        wrong, step = rows - right, 1
        while wrong > 0:
            share = max(1, wrong // 2)
            row[(i + step * (1 + i % 3)) % classes] += share
            wrong, step = wrong - share, step + 1
        matrix.append(row)
    return matrix


def wire(parties: list[str], epochs: int) -> dict[str, Any]:
    """The first party exchanges embeddings and gradients with each of the others."""
    batches, size = 469, 128 * 64 * 4
    flows = []
    for other in parties[1:]:
        first = parties[0]
        flows.append((other, first, "public_key", 1, 32, "setup"))
        flows.append((other, first, "embedding", batches * epochs, size, "train"))
        flows.append((first, other, "gradient", batches * epochs, size, "train"))
        flows.append((other, first, "test_embedding", 79 * epochs, size, "eval"))
    by_phase = {p: {"bytes": 0, "messages": 0} for p in ("setup", "train", "eval")}
    empty = dict.fromkeys(("sent_bytes", "sent_messages", "received_bytes", "received_messages"), 0)
    by_party = {p: dict(empty) for p in parties}
    by_kind: dict[str, dict[str, Any]] = {}
    for sender, receiver, kind, count, each, phase in flows:
        shape, dtype, reveals = KINDS[kind]
        entry = by_kind.setdefault(
            kind, {"bytes": 0, "messages": 0, "shape": shape, "dtype": dtype, "reveals": reveals}
        )
        for total in (entry, by_phase[phase]):
            total["bytes"] += count * each
            total["messages"] += count
        for party, did in ((sender, "sent"), (receiver, "received")):
            by_party[party][f"{did}_bytes"] += count * each
            by_party[party][f"{did}_messages"] += count
    return {
        "bytes": sum(p["bytes"] for p in by_phase.values()),
        "messages": sum(p["messages"] for p in by_phase.values()),
        "rounds": 2 * batches * epochs if flows else 0,
        "by_kind": by_kind,
        "by_party": by_party,
        "by_phase": by_phase,
        "flows": [
            {"sender": s, "receiver": r, "kind": k, "messages": n, "bytes": n * each}
            for s, r, k, n, each, _ in flows
        ],
    }
