"""Networks in two parts: where they are cut, how views fit, and that they begin alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from colonnade import models, plugin
from colonnade.errors import ConfigError
from colonnade.models.divided import Division, Pair, Way
from colonnade.partition import Rectangle, View

NARROW: dict[str, Any] = {"width": 0.25}
TOP, RIGHT = (View(r, 8, 8) for r in (Rectangle(0, 0, 5, 8), Rectangle(0, 2, 8, 6)))


def drawn(
    division: Division,
    view: View | None = TOP,
    seed: int = 1,
    model: str = "resnet8",
    options: dict[str, Any] = NARROW,
    shape: tuple[int, ...] = (),
) -> Pair:
    shape = shape or (1, view.part.height, view.part.width) if view else shape
    return division.drawn(seed, model, options, shape, 10, view, "sky")


def images(view: View) -> Tensor:
    return torch.randn(20, 1, view.part.height, view.part.width)


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.parametrize("at", ["stem", "stage1", "stage2", "stage3"])
def test_where_a_network_is_cut(at: str) -> None:
    """What is in front of the cut embeds, what is behind it predicts; together they are whole."""
    embed, head = drawn(Division(cut=at, fit="none"))
    names = ["stem", "stage1", "stage2", "stage3", "embedding"]
    behind = names[names.index(at) + 1 :]
    assert [name for name, _ in head.named_children()] == behind
    assert len(list(embed.children())) == len(names) - len(behind)
    assert isinstance(list(head.modules())[-1], nn.Linear)  # and no ReLU behind it


@pytest.mark.parametrize(
    ("fit", "sizes"),
    [
        ("pool", [(3, 3), (3, 3)]),
        ("interpolate", [(3, 3), (3, 3)]),
        ("resize", [(4, 4), (4, 4)]),
        ("canvas", [(4, 4), (4, 4)]),
        ("none", [(3, 4), (4, 3)]),
    ],
)
def test_maps_of_two_views(fit: Way, sizes: list[tuple[int, int]]) -> None:
    """After stage2 a map is half as high and wide, rounded up."""
    for view, size in zip((TOP, RIGHT), sizes, strict=True):
        embed, head = drawn(Division("stage2", fit=fit, fit_size=3), view)
        with torch.no_grad():
            maps = embed.eval()(images(view))
            assert head.eval()(maps).shape == (20, 10)
        assert maps.shape == (20, 8, *size)


def test_a_canvas_shows_where_the_view_was() -> None:
    embed, _ = drawn(Division("stage2", fit="canvas"), RIGHT)
    x = images(RIGHT)
    seen = next(iter(embed.children()))(x)
    assert torch.equal(seen[..., 2:], x) and not seen[..., :2].any()


def test_without_a_cut_the_whole_network_embeds() -> None:
    embed, head = drawn(Division(dim=12, hidden=(7,)), model="mlp", options={"hidden": [5]})
    assert embed(images(TOP)).shape == (20, 12)
    assert [layer.out_features for layer in head.modules() if isinstance(layer, nn.Linear)] == [
        7,
        10,
    ]


@pytest.mark.parametrize("division", [Division(dim=12), Division("stage2", fit_size=3)], ids=str)
def test_parts_follow_from_the_seed_alone(division: Division) -> None:
    state = torch.random.get_rng_state()
    first, other = drawn(division), drawn(division, RIGHT)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert same(first[1], other[1])  # whatever is in front of it
    assert same(first[0], drawn(division)[0])
    assert not same(first[1], drawn(division, seed=2)[1])


def test_statistics_of_the_batch_at_hand_are_used_in_an_evaluation_too() -> None:
    embed, head = drawn(Division("stage2", fit_size=3, batch_norm="batch"))
    embed.eval(), head.eval()
    x = images(TOP)
    with torch.no_grad():
        few, many = head(embed(x[:10])), head(embed(x))[:10]
    assert not torch.allclose(few, many, atol=1e-3)
    assert not list(embed.buffers()) and not list(head.buffers())


def test_batch_statistics_of_own_networks(tmp_path: Path) -> None:
    """Not only BatchNorm2d forgets."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def build(shape, out):\n"
        "    size = shape[0] * shape[1] * shape[2]\n"
        "    norm = nn.BatchNorm1d(6)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(size, 6), norm, nn.Linear(6, out))\n"
    )
    model = f"{tmp_path / 'net.py'}:build"
    models.admit_network(model, plugin.own)
    _, head = drawn(Division("1", batch_norm="batch"), model=model, options={})
    assert [type(layer) for layer in head.children()] == [nn.BatchNorm1d, nn.Linear]
    assert not list(head.buffers())


def test_a_head_that_cannot_take_the_maps() -> None:
    with pytest.raises(ConfigError, match=r"'sky': behind the cut 'conv1' cnn cannot take maps of"):
        drawn(Division("conv1", fit_size=3), model="cnn", options={})


def test_where_the_view_lies_must_be_known() -> None:
    with pytest.raises(ConfigError, match=r"fit = 'canvas' needs .* whole image, and 'sky' has"):
        drawn(Division("stage2", fit="canvas"), None, shape=(1, 8, 8))


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"dim": 0}, "dim = 0: at least 1"),
        ({"fit_size": 0}, "fit_size = 0: at least 1"),
        ({"hidden": (8, 0)}, r"hidden = \[8, 0\]: widths"),
        ({"hidden": (8,), "cut": "stage2"}, "hidden describes θ"),
    ],
    ids=str,
)
def test_out_of_bounds(bad: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Division(**bad)
