"""The inversion attack: what a receiver of feature maps can reconstruct of the senders' images.

    1. The attacker trains a decoder W_g of its own extractor on its own rows: W_g(W_e(x)) ≈ x.
    2. It applies W_g to the maps that its victims sent.
    3. The reconstructions are compared with the victims' pixels: SSIM, PSNR, a few pictures.

Steps 1 and 2 need only what the attacker has. Step 3 needs the true images, which are available
only in a simulation, where all parties live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.errors import MethodError
from colonnade.metrics.images import psnr, ssim
from colonnade.partition import Mosaic, Rectangle, margin
from colonnade.role.batches import Batch
from colonnade.role.party import Party
from colonnade.wire import store

RECONSTRUCTED = 1000  # test rows of each victim
PICTURES = 12  # of every victim, in the report
FILE = "reconstruction.safetensors"


def check(me: Party) -> None:
    """Refuse an attack that could not be scored: it needs maps of test rows, and pixels."""
    if "test" not in me.splits or not me.schedule.evaluate_every:
        raise MethodError(
            "inversion attacks the maps of the test rows, and with evaluate_every = 0 there are "
            "none: set it to at least 1"
        )
    if me.preparation is None or me.preparation.unit != 255:
        raise MethodError(
            f"inversion is scored in pixels from 0 to 255, and the images of '{me.name}' are not "
            "uint8: give them as uint8"
        )


def attack(
    me: Party,
    victims: Sequence[str],
    mosaic: Mosaic,
    maps: Tensor,
    *,
    extract: Callable[[Batch], Tensor],
    decoder_for: Callable[[tuple[int, int, int]], nn.Module],
    epochs: int,
    lr: float,
    noise: float,
) -> None:
    """Steps 1 and 2: reconstruct the tiles of these parties, whose places follow one's own.

    maps         the stitched maps of test rows, (rows, height, width, channels)
    extract      W_e, over one batch
    decoder_for  a new W_g for tiles of a shape; its weights fit tiles of any shape
    noise        the σ that the attacker expects in its victims' maps
    """
    decoder = me.keep("inversion", lambda: decoder_for(_enlarged(me, mosaic, 0)[0]))
    _train(me, decoder, extract, epochs, lr, noise)
    for number, victim in enumerate(victims, start=1):
        shape, tile = _enlarged(me, mosaic, number)
        theirs = decoder_for(shape).to(me.device)
        theirs.load_state_dict(decoder.state_dict())
        slot = mosaic.slots[number]
        seen = maps[:RECONSTRUCTED, slot.top : slot.bottom, slot.left : slot.right]
        with torch.no_grad():
            made = theirs.eval()(seen.permute(0, 3, 1, 2).float())
        assert me.preparation is not None
        made = made[..., tile.top : tile.bottom, tile.left : tile.right]
        me.reconstructions[victim] = me.preparation.to_pixels(made).cpu()


def _enlarged(me: Party, mosaic: Mosaic, number: int) -> tuple[tuple[int, int, int], Rectangle]:
    """The shape of a party's tiles when enlarged to whole cells, and where the tile lies in it."""
    left, right, top, bottom = margin(mosaic.views[number], mosaic.stride)
    tile = Rectangle(top, left, *mosaic.views[number].part.size)
    return (me.shape[0], tile.bottom + bottom, tile.right + right), tile


def _train(
    me: Party,
    decoder: nn.Module,
    extract: Callable[[Batch], Tensor],
    epochs: int,
    lr: float,
    noise: float,
) -> None:
    """Step 1."""
    optimizer = me.keep(
        "inversion optimizer", lambda: torch.optim.Adam(decoder.parameters(), lr=lr, fused=True)
    )
    for _ in me.epochs("inversion", epochs):
        for batch in me.batches(shared=False):
            maps = extract(batch)
            loss = F.mse_loss(decoder(maps + noise * torch.randn_like(maps)), batch.x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            me.log(inversion=loss)
    me.drop("inversion optimizer")


def score(parties: Mapping[str, Party], folder: Path) -> dict[str, dict[str, float]]:
    """Step 3: the mean over the rows, by measure and victim; empty if nothing was attacked."""
    similar: dict[str, float] = {}
    decibels: dict[str, float] = {}
    pictures: dict[str, Tensor] = {}
    for attacker in parties.values():
        for victim, made in attacker.reconstructions.items():
            truth = parties[victim].splits["test"].x[: len(made)].cpu()
            shares = [x.float() / 255 for x in (truth, made)]
            similar[victim] = float(ssim(*shares).mean())
            decibels[victim] = float(psnr(*shares).mean())
            pictures[f"truth/{victim}"] = truth[:PICTURES]
            pictures[f"made/{victim}"] = made[:PICTURES]
    if not pictures:
        return {}
    store.write_tensors(pictures, folder / FILE)
    return {"ssim": similar, "psnr": decibels}
