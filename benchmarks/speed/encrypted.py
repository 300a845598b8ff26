"""One batch of Hetero-NN on real ciphertexts: its time, its bytes, and the same on plain numbers.

    python benchmarks/speed/encrypted.py [batch] [--batch 128] [--dim 128]
    python benchmarks/speed/encrypted.py steps [--limit 600]

The first trains one batch of MNIST with `method = "heteronn"`: an active and one passive party with
half of the pixels each, networks of four layers, embeddings and interactive layer 128 wide, keys of
2048 bits for Paillier, one thread. The same batch on plain numbers follows, and the weights of both
are compared. It takes twenty minutes or more.

`steps` times every step by itself, on drawn numbers, with the scheme objects of the method and
without networks and wire. Where the whole would not fit the limit, as many rows of a step are
measured as do, and the time is scaled up: the table says so. From it an epoch of MNIST is worked
out (60,000 rows, 469 batches): with eight passive parties one after another, and with all of them
at work at once while the active party, which multiplies for each of them, still serves one after
another. Worked out, not measured.
Results also go to benchmarks/speed/results/encrypted.json. What it says of "ckks" was measured
before that scheme was removed.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import colonnade
from colonnade import data
from colonnade.errors import DataMissing
from colonnade.privacy import homomorphic
from colonnade.privacy.homomorphic import Holder, Multiplier, noise, rounded
from colonnade.results.environment import commit
from colonnade.wire import store

HERE = Path(__file__).resolve().parent
FRACTION, RATE = 23, 0.05
BATCHES, HOSTS = 469, 8


class Steps:
    """Runs the steps on some of the rows, and remembers who took how long and sent how much."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def take(
        self, what: str, who: str, share: float, work: Callable[[], Tensor], *, sent: bool = True
    ) -> Tensor:
        began = time.perf_counter()
        made = work()
        seconds = time.perf_counter() - began
        size = made.numel() * made.element_size() if sent else 0
        self.rows.append(
            {
                "step": what,
                "who": who,
                "measured_share": share,
                "measured_s": seconds,
                "seconds": seconds / share,
                "bytes": round(size / share),
            }
        )
        print(
            f"  {what:42} {who:8} {seconds / share:9.2f} s  {size / share / 1e6:8.2f} MB"
            + (f"   (measured {share:.1%})" if share < 1 else ""),
            flush=True,
        )
        return made


def measure(batch: int, dim: int, width: int, limit: float) -> dict[str, Any]:
    """The seven messages of one batch. `rows` and `few` are what is measured of them."""
    began = time.perf_counter()
    holder: Holder = homomorphic.holder("paillier", "host", 2048, FRACTION)
    guest: Multiplier = homomorphic.multiplier("paillier", holder.public, "host", 2048, FRACTION)
    setup = time.perf_counter() - began
    whole = estimate(holder, guest, batch, dim, width)
    part = min(1.0, limit / whole)
    rows, few = max(2, int(part * batch)), max(2, int(part * dim))
    rows, few = (batch, dim) if part == 1 else (rows, few)
    print(f"  a whole batch should take {whole:.0f} s; measuring {part:.0%} of each step")
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int, size: float) -> Tensor:
        return rounded(size * torch.randn(*shape, generator=generator), FRACTION)

    # As large as in a training: embeddings behind a ReLU, masked weights, small errors.
    alpha = drawn(batch, dim, size=1.0).relu()
    weight, delta = drawn(dim, width, size=10.0), drawn(batch, width, size=2e-3)
    accumulated = noise((dim, width), 10.0, FRACTION, seeded=True)
    steps = Steps()
    share, side = rows / batch, few / dim
    # One part of the rows of X at a time: every step is row by row of what is packed.
    packed = steps.take("1. [α]", "passive", share, lambda: holder.pack(alpha[:rows]))
    mask = guest.mask((rows, width))
    product = steps.take(
        "2. [W α + ε_B]",
        "active",
        share,
        lambda: guest.multiply(packed, (rows, dim), weight, mask=mask),
    )
    opened = steps.take(
        "3. open, + ε_acc α",
        "passive",
        share,
        lambda: holder.open(product, (rows, width), alpha[:rows] @ accumulated),
    )
    z = steps.take(
        "3. take ε_B away", "active", share, lambda: guest.unmask(opened, mask), sent=False
    )
    close(z, alpha[:rows] @ (weight + accumulated))
    # The gradient has dim rows; `few` of them, over the whole batch.
    columns = packed if rows == batch and few == dim else holder.pack(alpha[:, :few])
    mask = guest.mask((few, width))
    product = steps.take(
        "5. [δᵀα + ε_B]",
        "active",
        side,
        lambda: guest.multiply(columns, (batch, few), delta, mask=mask, transposed=True),
    )
    fresh = noise((few, width), 1.0, FRACTION, seeded=True)
    opened = steps.take(
        "6. open, + ε_m/η",
        "passive",
        side,
        lambda: holder.open(product, (few, width), fresh / RATE),
    )
    noisy = steps.take("6. [ε_acc]", "passive", side, lambda: holder.pack(accumulated[:few]))
    error = steps.take(
        "6. [δ (W + ε_acc)]",
        "active",
        side,
        lambda: guest.multiply(noisy, (few, width), delta.T, plus=weight[:few] @ delta.T),
    )
    gradient = steps.take(
        "7. take ε_B away", "active", side, lambda: guest.unmask(opened, mask), sent=False
    )
    close(gradient, alpha[:, :few].T @ delta + fresh / RATE)
    read = steps.take(
        "7. open the error", "passive", side, lambda: holder.read(error, (few, batch)), sent=False
    )
    close(read, (weight + accumulated)[:few] @ delta.T)

    by_who = {
        who: sum(row["seconds"] for row in steps.rows if row["who"] == who)
        for who in ("passive", "active")
    }
    one = sum(by_who.values())
    together = HOSTS * by_who["active"] + by_who["passive"]
    size = sum(row["bytes"] for row in steps.rows)
    found = {
        "batch": batch,
        "dim": dim,
        "width": width,
        "key_bits": 2048,
        "public_key_bytes": holder.public.numel(),
        "setup_s": setup,
        "steps": steps.rows,
        "batch_s": one,
        "batch_bytes": size,
        "by_party_s": by_who,
        "worked_out": {
            "batches": BATCHES,
            "hosts": HOSTS,
            "epoch_in_turn_h": BATCHES * HOSTS * one / 3600,
            "epoch_hosts_at_once_h": BATCHES * together / 3600,
            "epoch_GB": BATCHES * HOSTS * size / 1e9,
        },
    }
    print(f"  {'a batch, one passive party':51} {one:9.2f} s  {size / 1e6:8.2f} MB")
    print(
        f"  an epoch of MNIST with {HOSTS} of them, worked out: "
        f"{BATCHES * HOSTS * one / 3600:,.1f} h in turn, {BATCHES * together / 3600:,.1f} h with "
        f"all of them at once, {BATCHES * HOSTS * size / 1e9:,.0f} GB"
    )
    return found


def estimate(holder: Holder, guest: Multiplier, batch: int, dim: int, width: int) -> float:
    """Seconds of a whole batch, from a product of two rows."""
    began = time.perf_counter()
    message = holder.pack(torch.ones(2, 64))
    pack = (time.perf_counter() - began) / 128
    began = time.perf_counter()
    factor = rounded(10 * torch.randn(64, 32), FRACTION)
    product = guest.multiply(message, (2, 64), factor)
    multiply = (time.perf_counter() - began) / 64
    began = time.perf_counter()
    holder.read(product, (2, 32))
    read = (time.perf_counter() - began) / 64
    answers = batch * width + dim * width + dim * batch
    return pack * (batch * dim + dim * width) + (multiply * max(dim, batch) / 64 + read) * answers


def close(found: Tensor, wanted: Tensor) -> None:
    """A time for a wrong number would be worth nothing."""
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def trained(batch: int, dim: int) -> dict[str, Any]:
    """One batch of the method itself, and the same on plain numbers."""
    try:
        data.load("mnist", seed=0)
        name = "mnist"
    except DataMissing:
        name = "mnist-sample"
    tree = {
        "method": "heteronn",
        "epochs": 1,
        "batch_size": batch,
        "evaluate_every": 0,
        "lr": RATE,
        "model": "mlp",
        "model_options": {"hidden": [dim] * 3},
        "data": {"name": name, "train_rows": batch},
        "partition": {"kind": "columns", "parties": 2},
        "checkpoint": {"epochs": 0},
    }
    options: dict[str, Any] = {
        "dim": dim,
        "width": dim,
        "hidden": [dim] * 3,
        "encryption": "paillier",
    }
    plain = {**options, "encryption": "none", "fixed_point": True}
    runs, processor = [], []
    with tempfile.TemporaryDirectory() as folder:
        for given in (options, plain):
            began = time.process_time()
            runs.append(
                colonnade.run(tree | {"heteronn": given}, out=Path(folder) / given["encryption"])
            )
            processor.append(time.process_time() - began)
        sealed, clear = runs
        apart = max(
            float((one - other).abs().max())
            for one, other in zip(weights(sealed), weights(clear), strict=True)
        )
    found = {
        "data": name,
        "batch": batch,
        "dim": dim,
        "width": dim,
        "key_bits": 2048,
        "seconds": sealed.content["timing"]["seconds_per_epoch"][0],
        "processor_seconds": processor[0] - processor[1],  # more than the plain run
        "plain_seconds": clear.content["timing"]["seconds_per_epoch"][0],
        "bytes": sealed.wire["by_phase"]["train"]["bytes"],
        "plain_bytes": clear.wire["by_phase"]["train"]["bytes"],
        "weights_apart": apart,
    }
    print(
        f"  {batch} rows of {name}, one passive party: {found['seconds']:.2f} s "
        f"({found['processor_seconds']:.2f} s of a core) and "
        f"{found['bytes'] / 1e6:.1f} MB; on plain numbers {found['plain_seconds']:.3f} s and "
        f"{found['plain_bytes'] / 1e6:.1f} MB; weights {apart:.1e} apart at most",
        flush=True,
    )
    return found


def weights(result: colonnade.Result) -> list[Tensor]:
    """All weights of a run, those of the interactive layer without their mask."""
    parties = result.content["parties"]
    first, *passive = parties
    kept = {name: store.load(result.path / "weights" / name)["weights"] for name in parties}
    whole = [
        kept[first][f"masked weight of {name}"]["weight"] + kept[name]["accumulated mask"]["total"]
        for name in passive
    ]
    bottoms = [kept[name]["bottom"] for name in parties]
    return whole + [tensor for bottom in bottoms for tensor in bottom.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="batch", choices=["batch", "steps"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for all steps")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "encrypted.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    content = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    load, size = os.getloadavg()[0], (arguments.batch, arguments.dim)
    if arguments.what == "steps":
        found = measure(*size, arguments.dim, arguments.limit)
    else:
        found = trained(*size)
    more = {"commit": commit(), "load_before": load, "load_after": os.getloadavg()[0]}
    content.setdefault(arguments.what, {})["paillier"] = found | more
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
