"""Pictures of what was reconstructed: the right pixels, in the right rows, with words beside."""

from __future__ import annotations

import base64
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.image import imread
from report_examples import example
from test_report_html import HOSTILE, Page
from torch import Tensor

from colonnade.errors import RunError
from colonnade.report import write_report
from colonnade.wire import store


def tiles(seed: int, rows: int = 3, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, channels, 4, 6), generator=generator, dtype=torch.uint8)


def run(
    root: Path, name: str, parties: dict[str, tuple[Tensor, Tensor]], cut: int | None = None
) -> tuple[dict[str, Any], Path]:
    """A result that scored every one of `parties`, and its folder with their tiles."""
    result = example(name, "adptvfedconv", parties=["server", *parties])
    if cut is not None:
        result["config"]["adptvfedconv"] = {"cut": cut}
    values = {p: 0.871 - 0.1 * i for i, p in enumerate(parties)}
    psnr = {p: 24.06 - i for i, p in enumerate(parties)}
    result["metrics"]["test"] |= {"ssim": values, "psnr": psnr}
    folder = root / str(len(list(root.iterdir())))
    folder.mkdir()
    tensors = {f"truth/{p}": truth for p, (truth, _) in parties.items()}
    tensors |= {f"made/{p}": made for p, (_, made) in parties.items()}
    store.write_tensors(tensors, folder / "reconstruction.safetensors")
    return result, folder


def page(root: Path, *runs: tuple[dict[str, Any], Path]) -> tuple[str, Page]:
    out = write_report([r for r, _ in runs], root / "report.html", [folder for _, folder in runs])
    text = out.read_text(encoding="utf-8")
    return text, Page(text)


def pictures(text: str) -> list[tuple[str, Tensor]]:
    """(alternative text, pixels as (height, width, 4)) of every picture."""
    found = re.findall(r'<img src="data:image/png;base64,([^"]*)"[^>]*? alt="([^"]*)"', text)
    assert text.count("<img") == len(found)
    return [
        (alt, torch.tensor(imread(BytesIO(base64.b64decode(data))) * 255).round().byte())
        for data, alt in found
    ]


def test_true_tiles_stand_above_those_of_every_run(tmp_path: Path) -> None:
    truth = {"east": tiles(1), "west": tiles(2)}
    one = run(tmp_path, "shallow", {p: (t, tiles(3)) for p, t in truth.items()}, cut=1)
    two = run(tmp_path, "deep", {p: (t, tiles(4)) for p, t in truth.items()}, cut=7)
    text, parsed = page(tmp_path, one, two)
    assert [alt for alt, _ in pictures(text)] == [
        "3 true tiles of east",
        "3 tiles of east as reconstructed in shallow: cut 1, SSIM 0.87, 24.1 dB",
        "3 tiles of east as reconstructed in deep: cut 7, SSIM 0.87, 24.1 dB",
        "3 true tiles of west",
        "3 tiles of west as reconstructed in shallow: cut 1, SSIM 0.77, 23.1 dB",
        "3 tiles of west as reconstructed in deep: cut 7, SSIM 0.77, 23.1 dB",
    ]
    assert "west True tiles Reconstructed, shallow cut 1, SSIM 0.77, 23.1 dB" in parsed.text
    assert (
        "east west Run SSIM PSNR SSIM PSNR shallow cut 1 0.871 24.1 dB 0.771 23.1 dB deep cut 7"
    ) in parsed.text
    assert not re.search(r"https?://", text)
    sources = [value for name, value in parsed.attributes if name == "src" and value]
    assert sources and all(source.startswith("data:image/png;base64,") for source in sources)
    assert "87.10 %" not in parsed.text


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_has_the_pixels(tmp_path: Path, channels: int) -> None:
    truth = tiles(1, channels=channels)
    text, _ = page(tmp_path, run(tmp_path, "one", {"east": (truth, tiles(2, channels=channels))}))
    _, strip = pictures(text)[0]
    assert strip.shape == (4, 3 * 7 - 1, 4)
    for i in range(3):
        tile = strip[:, 7 * i : 7 * i + 6]
        assert torch.equal(tile[..., :3], truth[i].permute(1, 2, 0).expand(-1, -1, 3))
        assert (tile[..., 3] == 255).all()
    assert (strip[:, 6, 3] == 0).all()  # the gap lets the page through


def test_runs_on_other_rows_have_a_truth_of_their_own(tmp_path: Path) -> None:
    runs = [run(tmp_path, f"run{i}", {"east": (tiles(i), tiles(9))}) for i in (1, 1, 2)]
    text, _ = page(tmp_path, *runs)
    assert [alt[:6] for alt, _ in pictures(text)] == [
        "3 true",
        "3 tile",
        "3 tile",
        "3 true",
        "3 tile",
    ]


def test_no_more_than_a_dozen_tiles(tmp_path: Path) -> None:
    text, _ = page(tmp_path, run(tmp_path, "one", {"east": (tiles(1, 40), tiles(2, 40))}))
    assert [alt[:3] for alt, _ in pictures(text)] == ["12 ", "12 "]


def test_an_equal_cut_is_not_named(tmp_path: Path) -> None:
    east = {"east": (tiles(1), tiles(2))}
    baseline = example("local", "local"), tmp_path / "nowhere"
    _, parsed = page(
        tmp_path, run(tmp_path, "a", east, cut=3), run(tmp_path, "b", east, cut=3), baseline
    )
    assert "Reconstructed, a SSIM 0.87, 24.1 dB" in parsed.text


def test_scores_without_pictures_and_pictures_without_scores(tmp_path: Path) -> None:
    result, folder = run(tmp_path, "one", {"east": (tiles(1), tiles(2))})
    text, parsed = page(tmp_path, (result, tmp_path / "nowhere"))
    assert pictures(text) == []
    assert "one 0.871 24.1 dB" in parsed.text
    assert write_report([result], tmp_path / "plain.html").read_text(encoding="utf-8") == text
    for measure in ("ssim", "psnr"):
        del result["metrics"]["test"][measure]
    text, parsed = page(tmp_path, (result, folder))
    assert len(pictures(text)) == 2
    assert "PSNR" not in parsed.text


def test_nothing_is_said_where_nobody_tried(tmp_path: Path) -> None:
    _, parsed = page(tmp_path, (example(), tmp_path))
    assert "reconstructed" not in parsed.text


def test_hostile_names_are_text(tmp_path: Path) -> None:
    text, parsed = page(tmp_path, run(tmp_path, HOSTILE, {HOSTILE: (tiles(1), tiles(2))}))
    assert "<script" not in text
    assert any(n == "alt" and v == f"3 true tiles of {HOSTILE}" for n, v in parsed.attributes)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    result, folder = run(tmp_path, "one", {"east": (tiles(1), tiles(2, rows=2))})
    with pytest.raises(RunError, match=r"reconstruction\.safetensors is damaged: 'east'"):
        page(tmp_path, (result, folder))
    result, folder = run(tmp_path, "two", {"east": (tiles(1), tiles(2).float())})
    with pytest.raises(RunError, match="'east' are not uint8"):
        page(tmp_path, (result, folder))
    (folder / "reconstruction.safetensors").write_bytes(b"no")
    with pytest.raises(RunError, match=r"reconstruction\.safetensors: cannot be read"):
        page(tmp_path, (result, folder))
