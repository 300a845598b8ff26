"""AdptVFedConv: the stitched map against the map of the whole image, and what leaves a client."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import colonnade
from colonnade import assembly, config, data
from colonnade.data import Moves
from colonnade.errors import ConfigError, DataMissing, MethodError, PartitionError, Untrusted
from colonnade.methods import adptvfedconv
from colonnade.methods.adptvfedconv import METHOD, AdptVFedConv
from colonnade.methods.parts import tiles as tiles_part
from colonnade.methods.parts.tiles import Cut, mosaic_of
from colonnade.models import pools, split, vgg16
from colonnade.models.border import Border
from colonnade.partition import Mosaic, Rectangle, View, cut, paste, tiles
from colonnade.partition.mosaic import mirrored
from colonnade.report import load_schema, prose
from colonnade.role.batches import Batch
from colonnade.role.method import bind
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.runs.run import Result
from colonnade.runtime import local
from colonnade.runtime.checkpoint import Checkpoints
from colonnade.wire import Ledger, Wire, codec, ledger, store

CUTS = get_args(Cut)

ROWS, TEST, SIZE, EPOCHS, CHUNK = 120, 50, 50, 2, 70
STEPS = -(-ROWS // SIZE)
HALVES: dict[str, Any] = {"kind": "strips", "parties": 2}  # the cheapest federation: 8×4 each
MOVED = {"flip": True, "shift": 1}


def settings(options: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The digits, 8×8, in four tiles of 4×4: six channels of 2×2 cells each."""
    rows = {"name": "digits", "train_rows": ROWS, "test_rows": TEST} | changes.pop("data", {})
    base: dict[str, Any] = {
        "method": "adptvfedconv",
        "seed": 5,
        "epochs": EPOCHS,
        "batch_size": SIZE,
        "batching": "papers",  # as in the hand-written loops
        "model_options": {"width": 0.1, "fc": [16], "dropout": 0.1},
        "data": rows,
        "partition": {"kind": "tiles"},
        "checkpoint": {"epochs": 0},
        "absence": False,
        "adptvfedconv": {"pretrain_epochs": 1, "finetune_epochs": 1, "chunk": CHUNK}
        | (options or {}),
    }
    return base | changes


def recorded(folder: Path, kind: str) -> dict[str, list[tuple[int, Tensor]]]:
    """What each party sent of a Kind, in order, with the number of its row in the ledger."""
    found: dict[str, list[tuple[int, Tensor]]] = {}
    for file in sorted((folder / "record").glob(f"{kind}-*.safetensors")):
        for name, tensor in sorted(store.read_tensors(file).items()):
            row, sender, *_ = name.split("/")
            found.setdefault(sender, []).append((int(row), tensor))
    return found


def saved(folder: Path, name: str) -> dict[str, dict[str, Tensor]]:
    weights: dict[str, dict[str, Tensor]] = store.load(folder / "weights" / name)["weights"]
    return weights


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def fits_its_schema(result: Result) -> None:
    import jsonschema

    content = json.loads((result.path / "result.json").read_text())
    jsonschema.Draft202012Validator(load_schema()).validate(content)


def digest(weights: dict[str, Tensor]) -> str:
    return hashlib.sha256(codec.encode(dict(weights))).hexdigest()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Four tiles, everything as usual; trained long enough to look at what it gets."""
    tree = settings(record=["extractor", "maps"], batch_size=10)
    return colonnade.run(tree, out=tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Two parties, no evaluation but the last."""
    return colonnade.run(settings(partition=HALVES), out=tmp_path_factory.mktemp("halves") / "run")


# ---- (a) the stitched map is the map of the whole image, but for the cuts ------------------------


def untouched(cut: str, pixels: int) -> Tensor:
    """Along one side of an image in two tiles: the cells whose value no cut can have changed.

    A convolution looks one cell further; behind a max-pool that is two pixels, then four: so far
    from a cut one must be. Before the first pool that is one pixel per convolution.
    """
    tile = torch.arange(pixels) // (pixels // 2)
    dirty = torch.zeros(pixels, dtype=torch.bool)
    for name, before in zip(CUTS, ("", *CUTS), strict=False):
        if name.partition("+")[2] != before.partition("+")[2]:  # a max-pool
            dirty, tile = dirty.view(-1, 2).any(1), tile.view(-1, 2)[:, 0]
        else:
            seen = dirty.clone()
            foreign = tile[1:] != tile[:-1]
            seen[1:] |= dirty[:-1] | foreign
            seen[:-1] |= dirty[1:] | foreign
            dirty = seen
        if name == cut:
            return ~dirty
    raise AssertionError(cut)


# How many cells of a side are left, of 32 pixels and of 64.
LEFT = {
    "1C": (30, 62),
    "2C": (28, 60),
    "2C+1M": (14, 30),
    "3C+1M": (12, 28),
    "4C+1M": (10, 26),
    "4C+2M": (4, 12),
    "5C+2M": (2, 10),
    "6C+2M": (0, 8),
    "7C+2M": (0, 6),
    "7C+3M": (0, 2),
}


def whole_numbers(extractor: nn.Sequential) -> nn.Sequential:
    """Weights of -1, 0 and 1, and BatchNorm that does nothing: sums of any order are exact."""
    generator = torch.Generator().manual_seed(3)
    for layer in extractor.modules():
        if isinstance(layer, nn.Conv2d):
            drawn = torch.randint(-1, 2, layer.weight.shape, generator=generator)
            layer.weight.data.copy_(drawn)
        if isinstance(layer, nn.BatchNorm2d):
            layer.eps = 0.0
    return extractor.double().eval()


def in_tiles(images: Tensor, options: dict[str, Any], **changes: Any) -> list[Party]:
    """The parties of a run over these images, cut into 2×2 tiles."""
    side = images.shape[-1]
    parts = tiles(side, side)
    labels = torch.arange(len(images)) % 2
    rows = {f"party{k}": cut(images, part) for k, part in enumerate(parts)}
    tree = settings(options, **changes) | {
        "data": {"standardise": False},
        "partition": {
            "kind": "rectangles",
            "rectangles": [[p.top, p.left, p.height, p.width] for p in parts],
        },
    }
    given = {name: (x, labels) if name == "party0" else x for name, x in rows.items()}
    test = {name: (x[:4], labels[:4]) if name == "party0" else x[:4] for name, x in rows.items()}
    return list(assembly.from_memory(config.load(tree), given, test).parties.values())


def stitched_and_whole(images: Tensor, cut_at: str, padding: str) -> tuple[Tensor, Tensor]:
    """With equal weights: what the server puts together, and what it would see of whole images."""
    width = {"width": 1 / 16, "fc": [8]}
    parties = in_tiles(images, {"cut": cut_at, "padding": padding}, model_options=width)
    cfg = AdptVFedConv(cut=cut_at, padding=padding)  # type: ignore[arg-type]
    views = tuple(tiles_part.place_of(party, cfg) for party in parties)
    maps = []
    for party in parties:
        extractor = whole_numbers(tiles_part.extractor_of(party, cfg))
        (rows,) = party.rows("train")
        with torch.no_grad():
            exact = Batch(rows.x.double(), rows.y, rows.ids)
            maps.append(tiles_part.extract(extractor, exact))
    side = images.shape[-1]
    sides: Any = {"zeros": "zeros", "replicate": "replicate"}.get(padding, (False,) * 4)
    full = vgg16((3, side, side), 1, width=1 / 16, fc=(), padding=sides)
    with torch.no_grad():
        wanted = whole_numbers(split(full, cut_at)[0])(images.double())
    return Mosaic(views, 2 ** pools(cut_at)).stitch(maps), wanted


@pytest.mark.parametrize("padding", ["replicate", "zeros", "replicate-at-cuts"])
@pytest.mark.parametrize(
    ("cut_at", "side"),
    [(cut_at, 32) for cut_at in CUTS]
    + [(cut_at, 64) for cut_at, (on_32, _) in LEFT.items() if not on_32],
)
def test_away_from_the_cuts_the_stitched_map_is_that_of_the_whole_image(
    cut_at: str, side: int, padding: str
) -> None:
    """To the last bit. In 32×32 images nothing lies far enough from a cut for 6C+2M and later ones:
    there the test only says so, and these are looked at on 64×64."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(-2, 3, (4, 3, side, side), generator=generator).float()
    found, wanted = stitched_and_whole(images, cut_at, padding)
    assert found.shape == wanted.shape
    assert float(wanted.abs().max()) < 2**53  # whole numbers up to here are exact
    clean = untouched(cut_at, side)
    assert int(clean.sum()) == LEFT[cut_at][side == 64]
    far = clean[:, None] & clean[None, :]
    assert torch.equal(found[..., far], wanted[..., far])
    if far.any():
        assert len(wanted[..., far].unique()) > 10  # there is something to see
    assert not torch.equal(found[..., ~far], wanted[..., ~far])


def test_before_a_pool_the_distance_from_a_cut_is_one_pixel_per_convolution() -> None:
    """Before the first max-pool a cell is a pixel."""
    for cut_at in ("1C", "2C"):
        convolutions = int(cut_at[0])
        distance = torch.arange(32).sub(15.5).abs() + 0.5  # of a pixel from the cut: 1, 2, …
        assert torch.equal(untouched(cut_at, 32), distance > convolutions)


@pytest.fixture(scope="module")
def photographs() -> Tensor:
    try:
        images = data.load("cifar10").test.x[:80]
    except DataMissing:
        pytest.skip("needs the data set 'cifar10': set COLONNADE_DATA to its folder")
    return data.Preparation.fit(images).to_float(images)


@pytest.mark.parametrize("cut_at", ["1C", "2C+1M"])
def test_repeated_pixels_come_nearer_to_natural_images_than_zeros(
    photographs: Tensor, cut_at: str
) -> None:
    """Fig. 2: the error at the cuts, of extractors with random weights."""
    error: dict[str, list[float]] = {"replicate": [], "zeros": []}
    views = tuple(View(part, 32, 32) for part in tiles(32, 32))
    clean = untouched(cut_at, 32)
    near = ~(clean[:, None] & clean[None, :])
    for seed in range(3):
        for padding, found in error.items():
            torch.manual_seed(seed)
            whole = vgg16((3, 32, 32), 1, width=1 / 4, fc=(), padding=padding)  # type: ignore[arg-type]
            extractor = split(whole.eval(), cut_at)[0]
            with torch.no_grad():
                wanted = extractor(photographs)
                maps = [extractor(cut(photographs, view.part)) for view in views]
            stitched = Mosaic(views, 2 ** pools(cut_at)).stitch(maps)
            found.append(float((stitched - wanted)[..., near].abs().mean()))
    assert all(a < b for a, b in zip(error["replicate"], error["zeros"], strict=True))
    assert sum(error["replicate"]) < 0.7 * sum(error["zeros"])


# ---- (b), (c) what the extractors are ------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"personalised": True}, {"augment": "consistent"}, {"finetune_server": True, "inversion": 1}],
    ids=str,
)
def test_extractors_do_not_change_after_the_upload(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and statistics, at the end of every epoch of every phase."""
    seen: dict[str, list[tuple[str, str]]] = {}

    def look(party: Party) -> None:
        if "extractor" in party.kept.weights():
            own = digest(party.kept.weights()["extractor"])
            seen.setdefault(party.name, []).append((party.position[0], own))

    monkeypatch.setattr(Party, "_checkpoint", look)
    tree = settings(options, data=MOVED, partition=HALVES, checkpoint={"epochs": 1, "steps": 1})
    result = colonnade.run(tree, out=tmp_path / "run")
    for name, role in result.content["roles"].items():
        last = digest(saved(result.path, name)["extractor"])
        after = {own for phase, own in seen[name] if phase in ("upload", "train", "inversion")}
        assert after == {last}
        phases = [phase for phase, _ in seen[name]]
        if role == "active" or "augment" in options or "personalised" in options:
            assert phases.count("train") == EPOCHS * (STEPS + 1)
        before = {own for phase, own in seen[name] if phase in ("pretrain", "finetune")}
        assert before - {last}  # it did change while it learnt


def test_clients_receive_the_extractor_of_the_server_with_its_statistics(plain: Result) -> None:
    (sender, sent), *others = recorded(plain.path, "extractor").items()
    assert (sender, others) == ("party1", [])
    served = saved(plain.path, "party1")["extractor"]
    assert len(sent) == 3 * len(served)
    for file in (plain.path / "record").glob("extractor-*.safetensors"):
        for place, tensor in store.read_tensors(file).items():
            _, _, receiver, key = place.split("/")
            assert receiver != "party1"
            assert torch.equal(tensor, served[key]), place
    assert int(served["1C.norm.num_batches_tracked"]) == ROWS // 10
    assert served["1C.norm.running_mean"].any()


def test_without_fine_tuning_a_client_keeps_what_it_received(tmp_path: Path) -> None:
    tree = settings({"finetune_epochs": 0}, partition=HALVES)
    result = colonnade.run(tree, out=tmp_path / "run")
    server, client = (saved(result.path, name)["extractor"] for name in ("party1", "party2"))
    assert same(server, client)


def test_fine_tuning_changes_weights_and_statistics_unless_these_are_frozen(
    halves: Result, tmp_path: Path
) -> None:
    frozen = colonnade.run(
        settings({"batchnorm": "frozen"}, partition=HALVES), out=tmp_path / "frozen"
    )
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    for result, stays in ((halves, False), (frozen, True)):
        server, client = (saved(result.path, name)["extractor"] for name in ("party1", "party2"))
        for key in server:
            if key.endswith(buffers):
                assert torch.equal(server[key], client[key]) is stays, key
            else:
                assert not torch.equal(server[key], client[key]), key
    assert same(*(saved(r.path, "party1")["extractor"] for r in (halves, frozen)))


def test_rates_of_fine_tuning(tmp_path: Path) -> None:
    """Adam moves a weight by about its rate a step: 1e-5, or decoder_lr without the transfer."""
    for number, (transfer, rate) in enumerate([(True, 1e-5), (False, 1e-3)]):
        moved = {}
        for epochs in (0, 1):
            options = {"transfer": transfer, "finetune_epochs": epochs}
            tree = settings(options, partition=HALVES, epochs=1, evaluate_every=0)
            result = colonnade.run(tree, out=tmp_path / f"{number}-{epochs}")
            moved[epochs] = saved(result.path, "party2")["extractor"]["1C.conv.weight"]
            assert ("extractor" in result.wire["by_kind"]) is transfer
        change = (moved[1] - moved[0]).abs()
        assert rate < float(change.max()) < 1.1 * STEPS * rate
        assert float(change.median()) > rate / 2


def test_without_transfer_the_client_begins_with_weights_of_its_own(tmp_path: Path) -> None:
    options = {"transfer": False, "finetune_epochs": 0, "pretrain_epochs": 0}
    tree = settings(options, partition=HALVES, epochs=1)
    result = colonnade.run(tree, out=tmp_path / "run")
    server, client = (saved(result.path, name)["extractor"] for name in ("party1", "party2"))
    assert not torch.equal(server["1C.conv.weight"], client["1C.conv.weight"])
    assert "alone" not in result.metrics["test"]  # nobody was pre-trained


# ---- (d) what crosses ----------------------------------------------------------------------------

HEADER = 3 + 4 * 8  # of a tensor of four dimensions
FLOATS = 6 * 4 * 2  # of the map of an 8×4 tile: channels × height × width


def kinds_of(result: Result) -> dict[str, tuple[int, int]]:
    return {k: (v["messages"], v["bytes"]) for k, v in result.wire["by_kind"].items()}


CROSSES: list[tuple[dict[str, Any], dict[str, Any], int]] = [  # options, data, uploads
    ({"augment": "none"}, MOVED, 1),
    ({}, {}, 1),
    ({}, MOVED, 2),  # the mirrored tiles too
    ({"views": 1}, MOVED, 1),
    ({"views": 4}, MOVED, 4),
    ({"augment": "consistent", "views": 3}, MOVED, 3),
]


@pytest.mark.parametrize(("options", "moved", "uploads"), CROSSES, ids=str)
def test_maps_cross_once_for_every_view(
    options: dict[str, Any], moved: dict[str, Any], uploads: int, tmp_path: Path
) -> None:
    tree = settings(options, data=moved, partition=HALVES)
    result = colonnade.run(tree, out=tmp_path / "run")
    train, test = -(-ROWS // CHUNK), -(-TEST // CHUNK)
    messages = uploads * train + test
    rows = uploads * ROWS + TEST
    found = kinds_of(result)
    assert found["maps"] == (messages, rows * FLOATS * 4 + messages * HEADER)
    assert found["next"] == (messages, 2 * messages)
    assert found["place"] == (1, 3 + 8 + 7 * 8)
    weights = saved(result.path, "party1")["extractor"]
    assert found["extractor"] == (1, len(codec.encode(dict(weights))))
    assert set(found) == {"maps", "next", "place", "extractor"}
    assert result.wire["by_phase"]["eval"]["messages"] == 2 * test
    assert result.wire["rounds"] == 2
    assert result.content["warnings"] == []


def test_new_maps_every_epoch(tmp_path: Path) -> None:
    """Consistent and fresh: a message for every batch, as many rows as there are in all epochs."""
    for options in ({"augment": "consistent"}, {"augment": "consistent", "views": 0}):
        tree = settings(options, data=MOVED, partition=HALVES, evaluate_every=0)
        result = colonnade.run(tree, out=tmp_path / f"run{len(options)}")
        messages = EPOCHS * STEPS
        wanted = (messages, EPOCHS * ROWS * FLOATS * 4 + messages * HEADER)
        assert kinds_of(result)["maps"] == wanted
        assert kinds_of(result)["next"] == (messages, 2 * messages)
        assert result.content["warnings"] == []
        mean = saved(result.path, "party1")["mean map"]
        assert int(mean["rows"]) == ROWS  # of the first epoch
        assert mean["total"][..., 2:].any()


def test_one_upload_is_one_round_whatever_the_chunks(halves: Result, tmp_path: Path) -> None:
    """(g) and the chunks change nothing else, to the last bit. (A chunk of a single row is another
    matter: PyTorch convolves it with another kernel, which rounds in another way.)"""
    counts = set()
    for chunk in (1000, 8):
        tree = settings({"chunk": chunk}, partition=HALVES)
        result = colonnade.run(tree, out=tmp_path / str(chunk))
        assert result.wire["rounds"] == halves.wire["rounds"] == 2
        assert result.weights_sha256 == halves.weights_sha256
        counts.add(kinds_of(result)["maps"][0])
    assert counts == {1 + 1, 15 + 7}


@pytest.mark.parametrize(("transfer", "rounds"), [(True, 2), (False, 1)])
def test_to_ask_for_the_next_maps_is_no_round(transfer: bool, rounds: int, tmp_path: Path) -> None:
    """Also where no evaluation came before: then nobody had waited for anything yet."""
    tree = settings({"transfer": transfer}, partition=HALVES, evaluate_every=0)
    result = colonnade.run(tree, out=tmp_path / "run")
    assert result.wire["rounds"] == rounds


def test_halves_and_quarters_of_the_bytes(halves: Result, tmp_path: Path) -> None:
    messages, floats = kinds_of(halves)["maps"]
    floats -= messages * HEADER
    parties = {}
    for dtype, share in (("float16", 2), ("int8", 4)):
        tree = settings({"upload_dtype": dtype}, partition=HALVES, record=["maps"])
        result = colonnade.run(tree, out=tmp_path / dtype)
        found = kinds_of(result)
        assert found["maps"] == (messages, floats // share + messages * HEADER)
        if dtype == "int8":
            assert found["scale"] == (messages, messages * (3 + 8 + 6 * 4))
        else:
            assert "scale" not in found
        assert result.wire["rounds"] == 2
        rows = ledger.read(result.path / "ledger.jsonl")
        assert {row["dtype"] for row in rows if row["kind"] == "maps"} == {dtype}
        parties[dtype] = saved(result.path, "party1")
    exact = saved(halves.path, "party1")["mean map"]
    for weights in parties.values():  # little is lost
        torch.testing.assert_close(
            weights["mean map"]["total"], exact["total"], rtol=0.02, atol=0.02 * ROWS
        )


def test_noise_is_added_before_anything_leaves(halves: Result, tmp_path: Path) -> None:
    sent = {}
    for noise in (0.0, 0.5):
        tree = settings({"noise": noise}, partition=HALVES, record=["maps"])
        result = colonnade.run(tree, out=tmp_path / str(noise))
        messages = recorded(result.path, "maps")["party2"]
        sent[noise] = torch.cat([maps for _, maps in messages])
        if not noise:
            assert result.weights_sha256 == halves.weights_sha256
    added = sent[0.5] - sent[0.0]
    assert float(added.mean()) == pytest.approx(0, abs=0.03)
    assert float(added.std()) == pytest.approx(0.5, rel=0.05)
    assert len(added.unique()) > 0.9 * added.numel()  # drawn anew for every message


def test_no_gradient_and_no_weights_of_a_client(plain: Result) -> None:
    assert [kind.name for kind in METHOD.kinds] == ["place", "extractor", "next", "scale", "maps"]
    flows = {(flow["sender"] == "party1", flow["kind"]) for flow in plain.wire["flows"]}
    assert flows == {(True, "extractor"), (True, "next"), (False, "place"), (False, "maps")}
    between = [f for f in plain.wire["flows"] if "party1" not in (f["sender"], f["receiver"])]
    assert not between  # clients do not talk to each other


# ---- (e) whose pixels they are -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "legal"),
    [
        ({"augment": "none"}, True),
        ({"augment": "cached", "views": 4}, True),
        ({"augment": "consistent"}, True),
        ({"augment": "oracle"}, False),
    ],
    ids=str,
)
def test_no_pixel_crosses_a_cut(
    options: dict[str, Any], legal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other pixels in the strip of party3: no message of the others is another one."""
    original = data.load

    def altered(*args: Any, **kwargs: Any) -> data.Dataset:
        dataset = original(*args, **kwargs)
        splits = {}
        for name in ("train", "test"):
            rows = getattr(dataset, name)
            x = rows.x.clone()
            x[..., 6:] = 255 - x[..., 6:]
            splits[name] = replace(rows, x=x)
        return replace(dataset, **splits)

    strips = {"kind": "strips", "parties": 3}
    kinds = ["maps", "extractor"]
    tree = settings(options, data=MOVED, epochs=1, partition=strips, record=kinds)
    colonnade.run(tree, out=tmp_path / "before")
    monkeypatch.setattr(data, "load", altered)
    colonnade.run(tree, out=tmp_path / "after")
    alike = {}
    for kind in ("extractor", "maps"):
        before, after = (recorded(tmp_path / run, kind) for run in ("before", "after"))
        for name, messages in before.items():
            pairs = zip(messages, after[name], strict=True)
            alike[name] = all(torch.equal(a, b) for (_, a), (_, b) in pairs)
    assert not alike.pop("party3")
    assert list(alike) == ["party1", "party2"]
    if legal:
        assert all(alike.values())
    else:
        assert not any(alike.values())


def test_the_oracle_moves_whole_images_and_then_cuts_them() -> None:
    tree = settings({"augment": "oracle"}, data={"flip": True, "shift": 2, "standardise": False})
    checked = config.load(tree)
    federation = assembly.from_catalogue(checked)
    parties = list(federation.parties.values())
    assert [party.shape for party in parties] == [(1, 4, 4)] * 4
    (whole,) = {tuple(party.splits["train"].x.shape) for party in parties}
    assert whole == (ROWS, 1, 8, 8)
    images = parties[0].splits["train"].x.float() / 255
    generator = torch.Generator().manual_seed(derive(5, "order", "train", 0))
    order = torch.randperm(ROWS, generator=generator)
    moves = Moves.draw(ROWS, True, 2, generator)
    wanted = moves.apply(images[order])
    seen: list[list[Tensor]] = []
    for party in parties:
        epochs = party.epochs()
        next(epochs)
        batches = list(party.batches())
        assert not any(batch.flips.any() for batch in batches if batch.flips is not None)
        seen.append([torch.cat([batch.x for batch in batches])])
        epochs.close()  # type: ignore[attr-defined]
    parts = [party.view.part for party in parties if party.view is not None]
    together = paste([x for (x,) in seen], parts, 8, 8)
    torch.testing.assert_close(together, wanted)
    assert [len(b.x[0, 0]) for b in parties[0].rows("test")] == [4]  # test tiles were cut before


# ---- the augmentations ---------------------------------------------------------------------------


@pytest.mark.parametrize(("augment", "views"), [("cached", 2), ("consistent", 1)])
def test_mirrored_tiles_change_their_slots_in_the_store(
    augment: str, views: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Party2 has the right half: of a mirrored image its map lies on the left, as it was sent."""
    options = {"augment": augment, "views": views}
    tree = settings(
        options, data={"flip": True}, partition=HALVES, checkpoint={"epochs": 1}, record=["maps"]
    )
    interrupt_at(monkeypatch, "active", "train", 1, 0)
    with pytest.raises(KeyboardInterrupt):
        colonnade.run(tree, out=tmp_path / "run")
    shelf = tmp_path / "run" / "checkpoints" / "shelf"
    stored = store.read_array(shelf / "party1.train.npy").permute(0, 1, 4, 2, 3)
    sent = torch.cat([maps for _, maps in recorded(tmp_path / "run", "maps")["party2"]])
    assert len(sent) == TEST + views * ROWS
    uploads = sent[TEST:].split(ROWS)
    if augment == "cached":
        flips = [torch.zeros(ROWS, dtype=torch.bool), torch.ones(ROWS, dtype=torch.bool)]
    else:
        generator = torch.Generator().manual_seed(derive(5, "view", 0))
        flips = [Moves.draw(ROWS, True, 0, generator).flips]
        assert 0 < int(flips[0].sum()) < ROWS
    for one, maps, flipped in zip(stored, uploads, flips, strict=True):
        assert torch.equal(one[~flipped][..., 2:], maps[~flipped])
        assert torch.equal(one[flipped][..., :2], maps[flipped])
    tested = store.read_array(shelf / "party1.test.npy")[0].permute(0, 3, 1, 2)
    assert torch.equal(tested[..., 2:], sent[:TEST])  # never mirrored


def test_an_extractor_hears_which_tiles_are_mirrored() -> None:
    checked = config.load(settings({"padding": "replicate-at-cuts"}, partition=HALVES))
    client = assembly.from_catalogue(checked).parties["party2"]
    tiles_part.place_of(client, checked.options)
    extractor = tiles_part.extractor_of(client, checked.options)
    borders = [layer for layer in extractor.modules() if isinstance(layer, Border)]
    assert [border.repeated for border in borders] == [(True, False, False, False)] * 2
    x, flips = torch.zeros(3, 1, 8, 4), torch.tensor([True, False, True])
    tiles_part.extract(extractor, Batch(x, None, torch.arange(3), flips=flips))
    assert all(border.flips is flips for border in borders)
    tiles_part.extract(extractor, Batch(x, None, torch.arange(3)))
    assert all(border.flips is None for border in borders)


# ---- (f) only in a simulation --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"augment": "oracle"}, 'augment = "oracle" moves whole images before they are cut'),
        ({"inversion": 1}, "inversion is scored with the clients' true tiles"),
    ],
    ids=["oracle", "inversion"],
)
def test_what_no_protocol_can_do_needs_one_process(
    options: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{why}: only a simulation may do that"):
        colonnade.run(settings(options), out=tmp_path / "run", runtime="process")
    assert not (tmp_path / "run").exists()


# ---- (h) stopped and resumed ---------------------------------------------------------------------


def interrupt_at(patch: pytest.MonkeyPatch, role: str, phase: str, epoch: int, step: int) -> None:
    """Ctrl-C when a party of this role is about to take this step."""
    original = Party._set_rates

    def counted(party: Party, done: float) -> None:
        if party.role == role and party.position == (phase, epoch, step):
            raise KeyboardInterrupt
        original(party, done)

    patch.setattr(Party, "_set_rates", counted)


STOPS = [
    ("active", "pretrain", 1, 1),
    ("passive", "finetune", 0, 2),
    ("active", "train", 0, 1),
    ("active", "train", 1, 2),
]
RESUMED: dict[str, dict[str, Any]] = {
    "fresh": {"augment": "consistent", "noise": 0.1},
    "two views": {"views": 2, "personalised": True, "upload_dtype": "float16"},
}


@pytest.fixture(scope="module", params=RESUMED)
def uninterrupted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Result]:
    options = RESUMED[request.param] | {"pretrain_epochs": 2}
    tree = settings(options, data=MOVED, partition=HALVES, checkpoint={"epochs": 1, "steps": 2})
    tree["protect"] = {"simulate_noise_seed": 1}
    return tree, colonnade.run(tree, out=tmp_path_factory.mktemp("uninterrupted") / "run")


@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_a_resumed_run_ends_with_the_same_weights(
    stop: tuple[str, str, int, int],
    uninterrupted: tuple[dict[str, Any], Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, whole = uninterrupted
    with monkeypatch.context() as patch:
        interrupt_at(patch, *stop)
        with pytest.raises(KeyboardInterrupt):
            colonnade.run(tree, out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "stopped"
    resumed = colonnade.run(tree, resume=tmp_path / "run")
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.metrics == whole.metrics
    assert resumed.wire["rounds"] == whole.wire["rounds"]

    def told(result: Result) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]

    assert told(resumed) == told(whole)


ATTACKED = settings({"inversion": 2}, partition=HALVES, checkpoint={"epochs": 1})


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return colonnade.run(ATTACKED, out=tmp_path_factory.mktemp("attacked") / "run")


@pytest.mark.parametrize("phase", ["train", "inversion"])
def test_a_run_resumed_after_the_upload_keeps_the_networks_that_made_it(
    phase: str, attacked: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody needs an extractor again in such a run; whoever predicts with it later does."""
    tree, whole = ATTACKED, attacked
    with monkeypatch.context() as patch:
        interrupt_at(patch, "active", phase, 1, 1)
        with pytest.raises(KeyboardInterrupt):
            colonnade.run(tree, out=tmp_path / "run")
    resumed = colonnade.run(tree, resume=tmp_path / "run")
    assert set(saved(resumed.path, "party2")) == {"extractor"}
    assert {"extractor", "classifier", "mean map"} < set(saved(resumed.path, "party1"))
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.metrics == whole.metrics  # those of the attack too
    for absent in ([], ["party2"]):
        found, wanted = (
            colonnade.load(r.path).predict(absent=absent)["party1"].probabilities
            for r in (resumed, whole)
        )
        assert torch.equal(found, wanted)


def test_stored_maps_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with every checkpoint: they are by far the largest thing that a server keeps."""
    seen: list[tuple[str, dict[str, tuple[int, int, int]]]] = []
    original = Checkpoints.save

    def save(self: Checkpoints, party: Party) -> None:
        original(self, party)
        shelf = tmp_path / "run" / "checkpoints" / "shelf"
        files = {file.name: file.stat() for file in shelf.glob("*")}
        facts = {name: (s.st_ino, s.st_mtime_ns, s.st_size) for name, s in files.items()}
        seen.append((party.position[0], facts))

    monkeypatch.setattr(Checkpoints, "save", save)
    tree = settings({"views": 2}, data=MOVED, partition=HALVES, checkpoint={"steps": 1})
    interrupt_at(monkeypatch, "active", "train", 1, 2)
    with pytest.raises(KeyboardInterrupt):
        colonnade.run(tree, out=tmp_path / "run")
    before = [facts for phase, facts in seen if phase in ("pretrain", "transfer", "finetune")]
    assert before
    assert not any(before)
    after = [facts for phase, facts in seen if phase == "train"]
    assert len(after) == STEPS + 1 + 2  # every step, and the end of the first epoch
    assert all(facts == after[0] for facts in after)
    arrays = {"party1.test.npy", "party1.train.npy"}
    assert set(after[0]) == arrays | {f"{name}.sha256" for name in arrays}
    stored = store.read_array(tmp_path / "run" / "checkpoints" / "shelf" / "party1.train.npy")
    assert stored.shape == (2, ROWS, 4, 4, 6)  # views, rows, height, width, channels
    snapshot = next((tmp_path / "run" / "checkpoints").glob("*-train-*/party1.safetensors"))
    kept = store.read_tensors(snapshot)
    assert not any("shelf" in name for name in kept)


# ---- (j) personalised ----------------------------------------------------------------------------


def test_personalised_classifiers_are_scored_and_predict(tmp_path: Path) -> None:
    tree = settings({"personalised": True}, partition={"kind": "strips", "parties": 3})
    result = colonnade.run(tree | {"absence": True}, out=tmp_path / "run")
    fits_its_schema(result)
    shares = result.metrics["test"]["personalised"]
    assert list(shares) == ["party2", "party3"]
    assert list(result.metrics["test"]["per_party"]) == ["party1"]  # what counts is the server's
    assert result.accuracy == result.metrics["test"]["per_party"]["party1"]
    trained = colonnade.load(result.path)
    found, truth = trained.predict(), trained.labels()
    assert list(found) == ["party1", "party2", "party3"]
    for name, share in shares.items():
        assert float((found[name].codes == truth).double().mean()) == share
    assert not torch.equal(found["party2"].probabilities, found["party3"].probabilities)
    left = trained.predict(absent=["party2"])
    assert list(left) == ["party1", "party3"]
    absent = float((left["party1"].codes == truth).double().mean())
    assert result.metrics["test"]["absent"]["party2"] == absent  # of the server alone, too
    assert "lent to every party" in prose.sentences(result.content)
    kinds = {row["kind"] for row in ledger.read(result.path / "ledger.jsonl")}
    assert kinds == {"place", "extractor", "next", "maps"}  # nothing of it is sent


# ---- (k) absent ----------------------------------------------------------------------------------


def test_the_mean_map_stands_in_the_slot_of_an_absent_client(plain: Result) -> None:
    """Means and test maps are those that were recorded, on the server's side all is by hand."""
    phases = {row["row"]: row["phase"] for row in ledger.read(plain.path / "ledger.jsonl")}
    sent: dict[str, dict[str, Tensor]] = {}
    for name, messages in recorded(plain.path, "maps").items():
        for phase in ("train", "eval"):
            some = [tensor for row, tensor in messages if phases[row] == phase]
            sent.setdefault(name, {})[phase] = torch.cat(some)
    checked = config.load(settings(batch_size=10))
    server = assembly.from_catalogue(checked).parties["party1"]
    server.kept.load(saved(plain.path, "party1"))
    cfg = checked.options
    tiles_part.place_of(server, cfg)
    extractor = tiles_part.frozen(tiles_part.extractor_of(server, cfg))
    mosaic = Mosaic(tuple(View(part, 8, 8) for part in tiles(8, 8)), 2)
    classifier = tiles_part.classifier_of(server, mosaic, cfg).eval()
    assert server.preparation is not None
    own = extractor(server.preparation.to_float(server.splits["test"].x))
    trained = colonnade.load(plain.path)
    corners = {"party2": (0, 2), "party3": (2, 0), "party4": (2, 2)}
    everybody = trained.predict()["party1"].probabilities
    for absent in (["party3"], ["party2", "party4"], list(corners), []):
        whole = torch.zeros(TEST, 6, 4, 4)
        whole[..., :2, :2] = own
        for name, (top, left) in corners.items():
            maps = sent[name]["eval"]
            if name in absent:
                maps = sent[name]["train"].double().mean(0).float().expand(TEST, 6, 2, 2)
            whole[..., top : top + 2, left : left + 2] = maps
        with torch.no_grad():
            wanted = classifier(whole).softmax(1)
        found = trained.predict(absent=absent)["party1"].probabilities
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
        assert (float((found - everybody).abs().max()) > 0.01) is bool(absent)


@pytest.mark.parametrize("views", [0, 1])
def test_the_mean_of_mirrored_tiles_lies_in_the_slot_of_whoever_sent_them(
    views: int, tmp_path: Path
) -> None:
    """Of a mirrored image the right half is seen on the left; absent, it is missed on the right."""
    tree = settings(
        {"augment": "consistent", "views": views},
        data={"flip": True},
        partition=HALVES,
        evaluate_every=0,
        epochs=1,
        record=["maps"],
    )
    result = colonnade.run(tree, out=tmp_path / "run")
    sent = torch.cat([maps for _, maps in recorded(result.path, "maps")["party2"]])
    seed = derive(5, "view", 0) if views else derive(5, "order", "train", 0)
    generator = torch.Generator().manual_seed(seed)
    if not views:
        torch.randperm(ROWS, generator=generator)  # the order of the rows is drawn first
    flips = Moves.draw(ROWS, True, 0, generator).flips
    mean = saved(result.path, "party1")["mean map"]
    assert int(mean["rows"]) == len(sent) == ROWS
    found = mean["total"][..., 2:] / ROWS
    torch.testing.assert_close(found.float(), mirrored(sent, flips).mean(0), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found.float(), sent.mean(0), rtol=1e-2)


def train(
    tree: dict[str, Any], absent: set[str], since: dict[str, Any] | None = None
) -> tuple[dict[str, Party], dict[str, Any]]:
    """All roles but those of the absent; the parties, and their states after the first epoch."""
    checked = config.load(tree)
    federation = assembly.from_catalogue(checked)
    there = {name: party for name, party in federation.parties.items() if name not in absent}
    first: dict[str, Any] = {}

    def keep(party: Party) -> None:
        if party.position == ("train", 1, 0):
            first[party.name] = copy.deepcopy(party.snapshot() | {"shelf": dict(party.shelf)})

    for name, party in there.items():
        party.on_checkpoint = keep
        if since is not None:
            party.resume(copy.deepcopy(since[name]))

    def start(party: Party, wire: Wire) -> Any:
        program = METHOD.roles[party.role].train
        return bind(program, party, federation.cast, wire, checked.options, absent)

    kinds = {kind.name: kind for kind in METHOD.kinds}
    local.run(there, start, local.Mailboxes(kinds, Ledger(None)))
    return there, first


def test_training_goes_on_without_a_client() -> None:
    """From the start: nothing in its slot. Later: the mean of what it sent, which stays."""
    tree = settings({"augment": "consistent"}, data=MOVED, checkpoint={"epochs": 1})
    below_left = (slice(None), slice(2, 4), slice(0, 2))  # the slot of party3
    never, _ = train(tree, {"party3"})
    mean = never["party1"].kept.weights()["mean map"]["total"]
    assert not mean[below_left].any()
    assert mean[:, 2:, 2:].any()
    everybody, first = train(tree, set())
    later, _ = train(tree, {"party3"}, since=first)
    assert list(later) == ["party1", "party2", "party4"]
    means = [
        parties["party1"].kept.weights()["mean map"]["total"] for parties in (everybody, later)
    ]
    assert torch.equal(*means)
    assert means[0][below_left].any()
    losses = [
        [row["loss"] for row in parties["party1"].history if row["phase"] == "train"]
        for parties in (everybody, later)
    ]
    assert losses[0][0] == losses[1][0]
    assert losses[0][1] != losses[1][1]


# ---- (l) tiles of all sorts, and what is refused -------------------------------------------------

SORTS: dict[str, dict[str, Any]] = {
    "nine tiles": {"partition": {"kind": "tiles", "grid": [3, 3]}},
    "nine tiles behind three pools": {
        "partition": {"kind": "tiles", "grid": [3, 3]},
        "adptvfedconv": {"cut": "7C+3M", "pretrain_epochs": 1, "finetune_epochs": 1},
        "model_options": {"width": 0.05, "fc": [16]},
    },
    "unequal, overlapping, with a gap": {
        "partition": {
            "kind": "rectangles",
            "rectangles": [[0, 0, 5, 8], [3, 0, 5, 5], [6, 5, 2, 2]],
        },
        "data": MOVED,
    },
    "another label holder": {"label_holder": "party2"},
}


@pytest.mark.parametrize("sort", SORTS)
def test_tiles_of_all_sorts(sort: str, tmp_path: Path) -> None:
    result = colonnade.run(settings(**SORTS[sort], epochs=1), out=tmp_path / "run")
    holder = SORTS[sort].get("label_holder", "party1")
    assert [n for n, role in result.content["roles"].items() if role == "active"] == [holder]
    assert list(result.metrics["test"]["per_party"]) == [holder]
    trained = colonnade.load(result.path)
    found = trained.predict()[holder]
    share = float((found.codes == trained.labels()).double().mean())
    assert share == result.metrics["test"]["per_party"][holder]
    losses = [row["parties"][holder]["loss"] for row in result.history if row["phase"] == "train"]
    assert all(math.isfinite(loss) for loss in losses)


def test_the_slots_follow_the_parties_whoever_is_the_server(tmp_path: Path) -> None:
    """The server's map comes first, the others as they are called; each lies where it says."""
    tree = settings(label_holder="party3", epochs=1, record=["place"])
    colonnade.run(tree, out=tmp_path / "run")
    told = {name: sent[0][1].tolist() for name, sent in recorded(tmp_path / "run", "place").items()}
    assert told == {
        "party1": [1, 0, 0, 4, 4, 8, 8],
        "party2": [1, 0, 4, 4, 4, 8, 8],
        "party4": [1, 4, 4, 4, 4, 8, 8],
    }


def images_of(rows: int = 60, side: int = 8) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    labels = np.arange(rows) % 3
    noisy = rng.random((rows, 1, side, side)) * 120 + labels[:, None, None, None] * 60
    return noisy.astype(np.uint8), labels


def in_memory(images: np.ndarray[Any, Any], labels: Any) -> dict[str, Any]:
    """A tall part with labels on the left, a flat one at the upper right; the rest is nobody's."""
    return {"clinic": (images[..., :, :5], labels), "lab": images[..., :3, 4:]}


PLACES = {"kind": "rectangles", "rectangles": [[0, 0, 8, 5], [0, 4, 3, 4]]}


def memory_settings(options: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return settings(options, epochs=1, **changes) | {"data": changes.get("data", {})}


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_in_memory_with_their_places(dtype: str, tmp_path: Path) -> None:
    images, labels = images_of()
    pixels = images if dtype == "uint8" else (images / 255).astype(np.float32)
    given = in_memory(pixels, labels)
    tree = memory_settings(partition=PLACES, record=["place"])
    result = colonnade.run(tree, parties=given, out=tmp_path / "run")
    told = recorded(result.path, "place")["lab"][0][1]
    assert told.tolist() == [1, 0, 4, 3, 4, 8, 8]
    rows = {"clinic": given["clinic"][0][:9], "lab": given["lab"][:9]}
    trained = colonnade.load(result.path)
    assert len(trained.predict(rows)["clinic"]) == 9
    assert len(trained.predict({"clinic": rows["clinic"]}, absent=["lab"])["clinic"]) == 9


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "views with cached": (settings({"views": 0}), r'views = 0: augment = "cached" uploads once'),
    "views with none": (
        settings({"views": 2, "augment": "none"}),
        r'views = 2: augment = "none" has one',
    ),
    "views with oracle": (
        settings({"views": 2, "augment": "oracle"}),
        r'views = 2: augment = "oracle" uploads every epoch',
    ),
    "negative views": (settings({"views": -1}), "views = -1: at least 0"),
    "empty chunks": (settings({"chunk": 0}), "chunk = 0: at least 1"),
    "noise": (settings({"noise": -0.5}), r"noise = -0\.5: at least 0"),
    "a cut that is none": (settings({"cut": "8C"}), r"cut = '8C': must be one of '1C'.*'7C\+3M'"),
    "another network": (
        settings(model="mlp", model_options={}),
        "model = 'mlp': adptvfedconv works only with vgg16",
    ),
    "another network of one party": (
        settings(parties={f"party{i}": {"model": "cnn", "model_options": {}} for i in range(1, 5)}),
        r"parties\.party2\.model = 'cnn': adptvfedconv works only with vgg16",
    ),
    "columns of pixels": (
        settings(partition={"kind": "columns", "parties": 2}),
        r"party 'party1': adptvfedconv joins parts of images by their places.*\"tiles\", \"str",
    ),
    "a table": (
        settings(
            data={"name": "breast-cancer", "train_rows": 0, "test_rows": 0},
            partition={"kind": "columns", "parties": 2},
        ),
        r"party 'party1' has a table of \d+ columns, and adptvfedconv needs images",
    ),
    "labels alone": (
        settings(label_only=True),
        "party 'party1' has no features, and adptvfedconv needs images",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_a_reason(what: str, tmp_path: Path) -> None:
    tree, why = REFUSED[what]
    with pytest.raises(ConfigError, match=why):
        colonnade.run(tree, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


REFUSED_ROWS: dict[str, tuple[dict[str, Any] | None, dict[str, Any], type[Exception], str]] = {
    "no places": (None, {}, ConfigError, "for rows in memory, list their rectangles there"),
    "nothing to cut": (
        {"kind": "tiles"},
        {},
        ConfigError,
        r"nothing to divide.*kind = \"rectangles\" with 2 rectangles",
    ),
    "too few": (
        {"kind": "rectangles", "rectangles": [[0, 0, 8, 5]]},
        {},
        ConfigError,
        "with 2 rectangles, one .top, left, height, width. for each party",
    ),
    "too many": (
        {"kind": "rectangles", "rectangles": [[0, 0, 8, 5]] * 3},
        {},
        ConfigError,
        "with 2 rectangles",
    ),
    "another size": (
        {"kind": "rectangles", "rectangles": [[0, 0, 8, 5], [0, 4, 4, 4]]},
        {},
        ConfigError,
        r"party 'lab' has images of 3×4 pixels, and \[partition\] gives it 4×4 at \(top 0, left 4",
    ),
    "outside": (
        {"kind": "rectangles", "rectangles": [[0, 0, 8, 5], [-1, 4, 3, 4]]},
        {},
        PartitionError,
        r"3×4 at \(top -1, left 4\) does not lie inside",
    ),
    "no whole image": (
        PLACES,
        {"augment": "oracle"},
        ConfigError,
        'augment = "oracle" moves whole images before they are cut: in memory there is no whole',
    ),
}


@pytest.mark.parametrize("what", REFUSED_ROWS)
def test_rows_in_memory_refused_with_a_reason(what: str, tmp_path: Path) -> None:
    places, options, error, why = REFUSED_ROWS[what]
    tree = memory_settings(options, partition=places) if places else memory_settings(options)
    if places is None:
        del tree["partition"]
    with pytest.raises(error, match=why):
        colonnade.run(tree, parties=in_memory(*images_of()), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tables_in_memory_are_no_images(tmp_path: Path) -> None:
    labels = np.arange(60) % 3
    given = {"clinic": (np.ones((60, 5)), labels), "lab": np.ones((60, 4))}
    places = {"kind": "rectangles", "rectangles": [[0, 0, 1, 5], [0, 5, 1, 4]]}
    with pytest.raises(ConfigError, match="'clinic' has a table of 5 columns"):
        colonnade.run(memory_settings(partition=places), parties=given, out=tmp_path / "run")


def test_one_extractor_must_fit_all(tmp_path: Path) -> None:
    images, labels = images_of()
    given = in_memory(images, labels)
    given["lab"] = given["lab"].repeat(3, axis=1)
    tree = memory_settings(partition=PLACES)
    with pytest.raises(ConfigError, match=r"channels must be the same.*'clinic' 1, 'lab' 3"):
        colonnade.run(tree, parties=given, out=tmp_path / "colours")
    unlike = {"party1": {}, "party2": {"model_options": {"width": 0.2, "fc": [16]}}}
    tree = settings(partition=HALVES, parties=unlike, epochs=1)
    with pytest.raises(ConfigError, match=r"width must be the same.*'party2' 0.2"):
        colonnade.run(tree, out=tmp_path / "widths")


# ---- (m) the attack ------------------------------------------------------------------------------


def test_the_attack_leaves_pictures_and_numbers(tmp_path: Path) -> None:
    result = colonnade.run(settings({"inversion": 1}), out=tmp_path / "run")
    fits_its_schema(result)
    on_disk = json.loads((result.path / "result.json").read_text())["metrics"]["test"]
    clients = ["party2", "party3", "party4"]
    for measure in ("ssim", "psnr"):
        assert list(on_disk[measure]) == clients
        assert all(math.isfinite(value) for value in on_disk[measure].values())
    pictures = store.read_tensors(result.path / "reconstruction.safetensors")
    assert set(pictures) == {f"{what}/{name}" for what in ("truth", "made") for name in clients}
    parties = assembly.from_catalogue(config.load(settings())).parties
    for name in clients:
        made, truth = pictures[f"made/{name}"], pictures[f"truth/{name}"]
        assert made.shape == truth.shape == (12, 1, 4, 4)
        assert made.dtype == truth.dtype == torch.uint8
        assert torch.equal(truth, parties[name].splits["test"].x[:12])
        assert not torch.equal(made, truth)
    phases = [row["phase"] for row in result.history]
    assert phases[-1] == "inversion"
    assert "inversion" not in kinds_of(result)  # nothing crosses for it


def test_noise_makes_the_attack_see_less(tmp_path: Path) -> None:
    seen = {}
    for noise in (0.0, 2.0):
        options = {"inversion": 15, "cut": "1C", "noise": noise, "decoder_lr": 0.01}
        tree = settings(options, epochs=1, batch_size=20, data={"train_rows": 200})
        result = colonnade.run(tree, out=tmp_path / str(noise))
        seen[noise] = result.metrics["test"]
    for name, similar in seen[0.0]["ssim"].items():
        assert similar > 0.5  # behind one convolution, a tile is nearly all there
        assert seen[2.0]["ssim"][name] < similar - 0.15
        assert seen[2.0]["psnr"][name] < seen[0.0]["psnr"][name] - 1


class Numbered(nn.Module):
    """A decoder whose picture numbers its own pixels."""

    def __init__(self, extractor: nn.Module, shape: tuple[int, ...], output: str) -> None:
        super().__init__()
        self.shape, self.nothing = shape, nn.Parameter(torch.zeros(1))

    def forward(self, maps: Tensor) -> Tensor:
        numbers = torch.arange(math.prod(self.shape)).reshape(self.shape) / 255
        return numbers.expand(len(maps), *self.shape) + self.nothing


def test_tiles_of_other_sizes_are_given_back_in_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile that was enlarged to whole cells, on the left or on the right, is cut out again."""
    monkeypatch.setattr(adptvfedconv, "vgg_decoder", Numbered)
    parts = {"kind": "rectangles", "rectangles": [[0, 0, 5, 8], [5, 0, 3, 3], [3, 3, 5, 5]]}
    options = {"inversion": 1, "finetune_epochs": 0, "decoder_lr": 0.0}
    tree = settings(options, partition=parts, data={"standardise": False})
    result = colonnade.run(tree, out=tmp_path / "run")
    pictures = store.read_tensors(result.path / "reconstruction.safetensors")
    second = torch.arange(4 * 4).reshape(4, 4)[1:, :3]  # one row above, one column on the right
    third = torch.arange(6 * 6).reshape(6, 6)[1:, 1:]
    for name, wanted in (("party2", second), ("party3", third)):
        assert pictures[f"made/{name}"].shape == (12, 1, *wanted.shape)
        assert (pictures[f"made/{name}"] == wanted).all()
        assert pictures[f"truth/{name}"].shape == pictures[f"made/{name}"].shape


# ---- (n) what it is for --------------------------------------------------------------------------


def test_the_stitched_map_is_worth_more_than_a_tile_alone(tmp_path: Path) -> None:
    tree = settings(
        {"pretrain_epochs": 4, "chunk": 500},
        epochs=5,
        batch_size=20,
        optimizer="adam",
        evaluate_every=5,
        model_options={"width": 0.15, "fc": [32], "dropout": 0.0},
        data={"train_rows": 400, "test_rows": 300},
    )
    result = colonnade.run(tree, out=tmp_path / "run")
    alone = result.metrics["test"]["alone"]["party1"]
    assert result.accuracy is not None
    assert result.accuracy > alone + 0.15
    assert result.accuracy > 0.6


def test_the_mosaic_is_what_the_clients_say() -> None:
    """A view that lies outside its image is refused as soon as it comes."""
    server = assembly.from_catalogue(config.load(settings(partition=HALVES))).parties["party1"]

    class Client:
        name, present = "party2", True

        def __init__(self, numbers: list[int]) -> None:
            self.numbers = numbers

        async def recv(self, kind: Any) -> Tensor:
            return torch.tensor(self.numbers)

    def mosaic(numbers: list[int]) -> Mosaic:
        role: Any = mosaic_of(server, [Client(numbers)], AdptVFedConv(), one_extractor=True)  # type: ignore[list-item]
        try:
            role.send(None)
        except StopIteration as end:
            found: Mosaic = end.value
            return found
        raise AssertionError("it waits")

    assert mosaic([1, 0, 4, 8, 4, 8, 8]).slots == (Rectangle(0, 0, 4, 2), Rectangle(0, 2, 4, 2))
    with pytest.raises(Untrusted, match=r"'party2' sent .*does not lie inside an image of 8×8"):
        mosaic([1, 0, 6, 8, 4, 8, 8])
    with pytest.raises(MethodError, match="'party2' has tiles of 1 channels from images of 8×9"):
        mosaic([1, 0, 4, 8, 4, 8, 9])
