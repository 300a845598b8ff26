"""How well an attack gave private images back, which only somebody who has them can say.

A role leaves what it made in `me.exhibits`, by party. In a simulation all parties live in one
process, so the truth is at hand: similarity and a few pictures are kept with the run.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from colonnade import store
from colonnade.assembly import Assembly
from colonnade.metrics.images import psnr, ssim

PICTURES = 12  # of every party, in the report
FILE = "reconstruction.safetensors"


def measure(assembly: Assembly, folder: Path) -> dict[str, dict[str, float]]:
    """The mean over the rows, by measure and party; empty where nothing was attacked."""
    similar: dict[str, float] = {}
    decibels: dict[str, float] = {}
    pictures: dict[str, Tensor] = {}
    for attacker in assembly.parties.values():
        for name, made in attacker.exhibits.items():
            truth = assembly.parties[name].splits["test"].x[: len(made)].cpu()
            shares = [x.float() / 255 for x in (truth, made)]
            similar[name] = float(ssim(*shares).mean())
            decibels[name] = float(psnr(*shares).mean())
            pictures[f"truth/{name}"] = truth[:PICTURES]
            pictures[f"made/{name}"] = made[:PICTURES]
    if not pictures:
        return {}
    store.write_tensors(pictures, folder / FILE)
    return {"ssim": similar, "psnr": decibels}
