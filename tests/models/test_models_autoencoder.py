"""The fully connected auto-encoders of VFedTrans."""

import pytest
import torch
from torch import nn

from colonnade.errors import ConfigError
from colonnade.models import mlp_autoencoder, split


def widths(model: nn.Module) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize("layers", [1, 2, 3, 6])
@pytest.mark.parametrize("activation", ["sigmoid", "relu", "tanh", "leaky_relu"])
def test_depth_and_activation(layers: int, activation: str) -> None:
    model = mlp_autoencoder(20, 8, layers=layers, activation=activation)  # type: ignore[arg-type]
    assert len(widths(model)) == 2 * layers
    x = torch.randn(5, 20, generator=torch.Generator().manual_seed(0))
    encoder, decoder = split(model, "encoder")
    code = encoder(x)
    assert code.shape == (5, 8)
    assert torch.equal(decoder(code), model(x))
    model(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_widths_go_linearly_and_mirror() -> None:
    model = mlp_autoencoder(250, 100)
    assert widths(model) == [(250, 200), (200, 150), (150, 100), (100, 150), (150, 200), (200, 250)]
    over_complete = mlp_autoencoder(250, 500, layers=2)  # HAPT: r exceeds the input width
    assert widths(over_complete) == [(250, 375), (375, 500), (500, 375), (375, 250)]


def test_linear_and_activated_ends() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 60)
    encoder, decoder = mlp_autoencoder(60, 40, activation="relu")
    assert (encoder(x) < 0).any()
    assert (decoder(encoder(x)) < 0).any()
    encoder, decoder = mlp_autoencoder(60, 40, code_activated=True, output_activated=True)
    for y in (encoder(x), decoder(encoder(x))):
        assert ((y > 0) & (y < 1)).all()


def test_no_layers() -> None:
    with pytest.raises(ConfigError, match="at least one encoder layer"):
        mlp_autoencoder(6, 4, layers=0)
