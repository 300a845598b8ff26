"""The images that a receiver reconstructed from messages, below the true ones.

A run that tried leaves `reconstruction.safetensors` in its folder: `truth/<party>` and
`made/<party>`, both uint8 (rows, channels, height, width), for a few of the attacked rows.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.errors import RunError
from colonnade.report import units
from colonnade.report.overview import by_party
from colonnade.wire import store

Tiles = Mapping[str, tuple[Tensor, Tensor]]  # by party: true, reconstructed

MOST = 12  # tiles beside each other
WIDTH = 620  # of a strip of tiles in CSS pixels, at most: enlarged by a whole number


@dataclass(frozen=True)
class Attempt:
    """What one run reconstructed, by party."""

    name: str
    cut: str  # where the networks were cut; empty where all runs did it there
    tiles: Tiles
    ssim: Mapping[str, float]
    psnr: Mapping[str, float]


def read(folder: Path) -> Tiles:
    """The tiles in a run's folder; empty where no reconstruction was tried."""
    path = folder / "reconstruction.safetensors"
    if not path.exists():
        return {}
    tensors = store.read_tensors(path)
    tiles = {}
    for name, truth in tensors.items():
        if name.startswith("truth/"):
            party = name.removeprefix("truth/")
            made = tensors.get(f"made/{party}")
            if made is None or made.shape != truth.shape or truth.dim() != 4 or not truth.numel():
                raise RunError(
                    f"{path} is damaged: '{party}' has no reconstructed tile for each true one"
                )
            if not truth.dtype == made.dtype == torch.uint8:
                raise RunError(f"{path} is damaged: the tiles of '{party}' are not uint8")
            tiles[party] = truth[:MOST], made[:MOST]
    return tiles


def view(results: Sequence[Mapping[str, Any]], pictures: Sequence[Tiles]) -> dict[str, Any] | None:
    """By party a strip of true tiles and one per run below it; and the scores of all runs."""
    attempts = _attempts(results, pictures)
    if not attempts:
        return None
    parties = list(dict.fromkeys(p for result in results for p in result["parties"]))
    scored = [p for p in parties if any(p in a.ssim or p in a.psnr for a in attempts)]
    strips = {p: _strips(p, [a for a in attempts if p in a.tiles]) for p in parties}
    return {
        "parties": [{"name": party, "rows": rows} for party, rows in strips.items() if rows],
        "scored": scored,
        "scores": [
            {
                "name": a.name,
                "cut": a.cut,
                "cells": [(a.ssim.get(p), a.psnr.get(p)) for p in scored],
            }
            for a in attempts
            if scored
        ],
    }


def _attempts(results: Sequence[Mapping[str, Any]], pictures: Sequence[Tiles]) -> list[Attempt]:
    found = []
    for result, tiles in zip(results, pictures, strict=True):
        ssim, psnr = by_party(result, "ssim"), by_party(result, "psnr")
        if tiles or ssim or psnr:
            found.append((result, tiles, ssim, psnr))
    cuts = [result["config"].get(result["method"], {}).get("cut") for result, *_ in found]
    differ = any(cut != cuts[0] for cut in cuts)
    return [
        Attempt(result["name"], f"cut {cut}" if differ else "", tiles, ssim, psnr)
        for (result, tiles, ssim, psnr), cut in zip(found, cuts, strict=True)
    ]


def _strips(party: str, attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    above: Tensor | None = None
    for attempt in attempts:
        truth, made = attempt.tiles[party]
        if above is None or not torch.equal(truth, above):  # a run on other rows: its own truth
            rows.append(_strip(truth, "True tiles", "", f"true tiles of {party}"))
            above = truth
        detail = [attempt.cut] if attempt.cut else []
        if party in attempt.ssim:
            detail.append(f"SSIM {units.decimal(attempt.ssim[party])}")
        if party in attempt.psnr:
            detail.append(units.decibels(attempt.psnr[party]))
        alt = f"tiles of {party} as reconstructed in {attempt.name}"
        rows.append(_strip(made, f"Reconstructed, {attempt.name}", ", ".join(detail), alt))
    return rows


def _strip(tiles: Tensor, title: str, detail: str, alt: str) -> dict[str, Any]:
    rows, _, _, width = tiles.shape
    pixels = rows * (width + 1) - 1
    return {
        "title": title,
        "detail": detail,
        "source": f"data:image/png;base64,{base64.b64encode(_png(tiles)).decode()}",
        "width": pixels * max(1, WIDTH // pixels),
        "alt": f"{rows} {alt}" + (f": {detail}" if detail else ""),
    }


def _png(tiles: Tensor) -> bytes:
    """Tiles side by side, a transparent pixel between them.

    Matplotlib draws the report's other figures too; Pillow itself is no dependency of ours, and a
    writer of our own would be chunks and checksums for nothing.
    """
    from matplotlib.image import imsave

    rows, channels, height, width = tiles.shape
    colours = tiles if channels == 3 else tiles.float().mean(1, keepdim=True)
    strip = torch.zeros(height, rows, width + 1, 4, dtype=torch.uint8)
    strip[:, :, :-1, :3] = colours.permute(2, 0, 3, 1)
    strip[:, :, :-1, 3] = 255
    file = BytesIO()
    # no metadata: its default names the version and a web address
    imsave(file, strip.flatten(1, 2)[:, :-1].numpy(), format="png", pil_kwargs={"pnginfo": None})
    return file.getvalue()
