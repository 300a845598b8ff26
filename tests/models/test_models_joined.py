"""Networks side by side: their sum while nothing connects them, and what connections may do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from colonnade.errors import ConfigError
from colonnade.models import cnn, mlp, resnet, split
from colonnade.models.joined import (
    Connect,
    Joined,
    dense_layers,
    from_first_linear,
    part_of,
    take_back,
)

COUNT, WIDTH, CLASSES = 3, 8, 4
CONNECTED: tuple[Connect, ...] = ("dense", "low-rank", "sparse")


def parts(seed: int = 0) -> list[nn.Module]:
    torch.manual_seed(seed)
    return [mlp((WIDTH,), CLASSES, hidden=(8, 8), activated=False) for _ in range(COUNT)]


def joined(connect: Connect, networks: list[nn.Module], start: float = 0.0) -> Joined:
    torch.manual_seed(1)
    made = Joined(COUNT, [WIDTH, 8, 8, CLASSES], connect, rank=2, fan_in=3, start=start)
    for number, network in enumerate(networks):
        made.load(number, part_of(network))
    return made


def inputs() -> Tensor:
    return torch.randn(5, COUNT, WIDTH, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("connect", [*CONNECTED, "none"])
def test_without_connections_it_is_the_sum(connect: Connect) -> None:
    networks, x = parts(), inputs()
    total = sum(network(x[:, number]) for number, network in enumerate(networks))
    assert isinstance(total, Tensor)
    torch.testing.assert_close(joined(connect, networks)(x), total)


@pytest.mark.parametrize("connect", CONNECTED)
def test_a_connection_leads_to_others_only(connect: Connect) -> None:
    """What a block's first layer makes of its own input does not depend on α."""
    made = joined(connect, parts(), start=1.0)
    x = inputs()
    for number in range(COUNT):
        alone = torch.zeros_like(x)
        alone[:, number] = x[:, number]
        heard = made.links[0](alone)
        assert not heard[:, number].any()
        others = [other for other in range(COUNT) if other != number]
        assert heard[:, others].abs().sum() > 0


@pytest.mark.parametrize("connect", CONNECTED)
def test_connections_learn_from_zero(connect: Connect) -> None:
    made = joined(connect, parts())
    made(inputs()).square().sum().backward()
    moved = [p.grad for name, p in made.links.named_parameters() if not name.endswith("down")]
    assert moved and all(g is not None and g.abs().sum() > 0 for g in moved)


def test_a_dense_connection_never_moves_its_diagonal() -> None:
    made = joined("dense", parts())
    optimizer = torch.optim.Adam(made.parameters(), lr=0.1)
    made(inputs()).square().sum().backward()
    optimizer.step()
    alpha = made.links[0].alpha
    assert isinstance(alpha, Tensor) and alpha.any()
    for number in range(COUNT):
        assert not alpha.view(COUNT, 8, COUNT, WIDTH)[number, :, number].any()


def test_a_block_comes_back_bit_for_bit() -> None:
    networks = parts()
    made = joined("dense", networks, start=0.5)
    for number, network in enumerate(networks):
        before = {name: p.clone() for name, p in network.state_dict().items()}
        take_back(network, made.block(number))
        assert all(torch.equal(before[name], p) for name, p in network.state_dict().items())


def test_a_tuned_block_comes_back_as_it_is_there() -> None:
    networks = parts()
    made = joined("none", networks)
    with torch.no_grad():
        made.weights[1][2].add_(1.0)
    take_back(networks[2], made.block(2))
    x = inputs()
    total = sum(network(x[:, number]) for number, network in enumerate(networks))
    assert isinstance(total, Tensor)
    torch.testing.assert_close(made(x), total)


def test_drawn_anew_as_linear_layers_are() -> None:
    made = joined("none", parts())
    made.draw(torch.Generator().manual_seed(3))
    bound = WIDTH**-0.5
    for tensor in (*made.weights, *made.biases):
        assert tensor.abs().max() <= bound and tensor.abs().max() > 0.5 * bound


def test_memory_grows_with_the_square_only_if_dense() -> None:
    def size(connect: Connect, count: int) -> int:
        made = Joined(count, [16, 16, 16, 2], connect, rank=2, fan_in=2)
        return sum(p.numel() for p in made.links.parameters())

    assert size("dense", 8) == 4 * size("dense", 4)
    assert size("low-rank", 8) == 2 * size("low-rank", 4)
    assert size("sparse", 8) == 2 * size("sparse", 4)
    assert size("none", 8) == 0


def test_only_linear_layers_can_be_joined() -> None:
    network = cnn((1, 8, 8), CLASSES, activated=False)
    _, dense = split(network, "conv2")
    with pytest.raises(ConfigError, match="Flatten"):
        dense_layers(dense)
    before, after = from_first_linear(dense)
    assert len(dense_layers(after)) == 1
    x = torch.randn(2, 64, 2, 2)
    assert torch.equal(after(before(x)), dense(x))
    with pytest.raises(ConfigError, match="Conv2d"):
        dense_layers(split(network, "conv1")[1])
    assert len(dense_layers(mlp((4,), 3, hidden=(5,), activated=False))) == 2


def test_a_residual_block_stays_whole() -> None:
    _, top = split(resnet(8, (1, 8, 8), CLASSES, width=0.25, activated=False), "stage1")
    before, after = from_first_linear(top)
    x = torch.randn(2, 4, 8, 8)
    top.eval(), before.eval()
    assert torch.equal(after(before(x)), top(x))
    assert len(dense_layers(after)) == 1
