"""One batch of Hetero-NN on real ciphertexts: the time of every step, and the bytes.

    python benchmarks/speed/encrypted.py [paillier] [ckks] [--batch 128] [--dim 128] [--limit 600]

One passive party, a batch of 128 rows, embeddings and interactive layer 128 wide, keys of 2048
bits for Paillier, one thread. The steps are those of colonnade/methods/heteronn.py, with its own
scheme objects and without the networks and the wire. Where a whole step of Paillier would not fit
the limit, as many rows of it are measured as do, and the time is scaled up: the table says so.

From one batch an epoch of MNIST is worked out (60,000 rows, 469 batches): with eight passive
parties one after another, and with all of them at work at once while the active party, which
multiplies for each of them, still serves one after another. Worked out, not measured.
Results also go to benchmarks/speed/results/encrypted.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.privacy import homomorphic
from colonnade.privacy.homomorphic import Holder, Multiplier, noise, rounded
from colonnade.result import commit

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


def measure(encryption: Any, batch: int, dim: int, width: int, limit: float) -> dict[str, Any]:
    """The seven messages of one batch. `rows` and `few` are what is measured of them."""
    began = time.perf_counter()
    holder: Holder = homomorphic.holder(encryption, "host", 2048, FRACTION)
    guest: Multiplier = homomorphic.multiplier(encryption, holder.public, "host", 2048, FRACTION)
    setup = time.perf_counter() - began
    rows, few = batch, dim
    if encryption == "paillier":
        whole = paillier_estimate(holder, guest, batch, dim, width)
        part = min(1.0, limit / whole)
        rows, few = max(2, int(part * batch)), max(2, int(part * dim))
        rows, few = (batch, dim) if part == 1 else (rows, few)
        print(
            f"  a whole batch should take {whole:.0f} s; measuring {min(part, 1):.0%} of each step"
        )
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
    packed = steps.take("1. [α]", "passive", share, lambda: holder.pack(alpha[:rows], both=True))
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
    close(z, alpha[:rows] @ (weight + accumulated), encryption)
    # The gradient has dim rows; `few` of them, over the whole batch.
    columns = packed if rows == batch and few == dim else holder.pack(alpha[:, :few], both=True)
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
    close(gradient, alpha[:, :few].T @ delta + fresh / RATE, encryption)
    read = steps.take(
        "7. open the error", "passive", side, lambda: holder.read(error, (few, batch)), sent=False
    )
    close(read, (weight + accumulated)[:few] @ delta.T, encryption)

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
        "key_bits": 2048 if encryption == "paillier" else None,
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


def paillier_estimate(holder: Holder, guest: Multiplier, batch: int, dim: int, width: int) -> float:
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


def close(found: Tensor, wanted: Tensor, encryption: str) -> None:
    """A time for a wrong number would be worth nothing."""
    torch.testing.assert_close(
        found, wanted, rtol=0, atol=1e-9 if encryption == "paillier" else 2e-3
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("schemes", nargs="*", metavar="paillier|ckks")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for Paillier")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "encrypted.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    content = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for scheme in arguments.schemes or ["ckks", "paillier"]:
        print(f"{scheme}:", flush=True)
        load = os.getloadavg()[0]
        found = measure(scheme, arguments.batch, arguments.dim, arguments.dim, arguments.limit)
        more = {"commit": commit(), "load_before": load, "load_after": os.getloadavg()[0]}
        content[scheme] = found | more
        arguments.out.parent.mkdir(exist_ok=True)
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
