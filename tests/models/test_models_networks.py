"""Every network by name: shapes, sizes, cuts, gradients, memory formats, devices, mistakes."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import colonnade.models
from colonnade.errors import ConfigError
from colonnade.models import cuts, head, mlp, names, network, options, resnet, split

SLIM: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (16, 16)},
    "cnn": {"width": 0.25},
    "lenet": {"width": 0.5},
    "vgg16": {"width": 1 / 16, "fc": (16, 16)},
    "resnet8": {"width": 0.5},
    "resnet14": {"width": 0.5},
    "resnet20": {"width": 0.5},
    "resnet18": {"width": 1 / 16},
    "resnet50": {"width": 1 / 16},
    "resnet101": {"width": 1 / 16},
}
SHAPES = [(1, 14, 14), (3, 16, 16), (1, 28, 7), (3, 32, 32), (1, 14, 7), (1, 8, 8), (1, 4, 4)]


def slim(
    name: str, shape: tuple[int, ...] = (3, 8, 8), out: int = 12, **more: Any
) -> nn.Sequential:
    torch.manual_seed(0)
    return network(name, shape, out, **SLIM[name], **more)


def batch(*shape: int) -> Tensor:
    return torch.randn(4, *shape, generator=torch.Generator().manual_seed(1))


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_every_network_is_tested() -> None:
    assert names() == tuple(SLIM)


@pytest.mark.parametrize("name", SLIM)
def test_shapes(name: str) -> None:
    # The deepest have the same stages as ResNet-18, so the smallest image will do.
    for shape in SHAPES if name not in ("resnet50", "resnet101") else SHAPES[-1:]:
        embedded = slim(name, shape).eval()(batch(*shape))
        assert embedded.shape == (4, 12)
        assert (embedded >= 0).all()
        assert head(name, 12, 5)(embedded).shape == (4, 5)


@pytest.mark.parametrize("name", SLIM)
def test_scores_may_be_negative(name: str) -> None:
    assert (slim(name, activated=False).eval()(batch(3, 8, 8)) < 0).any()


@pytest.mark.parametrize("name", SLIM)
def test_a_cut_changes_nothing(name: str) -> None:
    whole, x = slim(name), batch(3, 8, 8)
    for training in (True, False):
        whole.train(training)
        torch.manual_seed(2)  # for the dropout; BatchNorm's running averages do not matter here
        expected = whole(x)
        for k, at in enumerate(cuts(whole), start=1):
            torch.manual_seed(2)
            bottom, top = split(whole, at)
            assert torch.equal(top(bottom(x)), expected), at
            assert split(whole, k)[0][-1] is bottom[-1]


@pytest.mark.parametrize("name", SLIM)
def test_a_cut_shares_the_parameters(name: str) -> None:
    whole = slim(name)
    for at in cuts(whole):
        bottom, top = split(whole, at)
        halves = [*bottom.named_parameters(), *top.named_parameters()]
        assert [n for n, _ in halves] == [n for n, _ in whole.named_parameters()]
        assert all(a is b for (_, a), b in zip(halves, whole.parameters(), strict=True))


@pytest.mark.parametrize("name", SLIM)
def test_the_gradient_reaches_every_parameter(name: str) -> None:
    model = nn.Sequential(slim(name), head(name, 12, 5))
    model(batch(3, 8, 8)).square().sum().backward()
    for parameter, value in model.named_parameters():
        assert value.grad is not None, parameter
        assert value.grad.abs().sum() > 0, parameter


@pytest.mark.parametrize("name", SLIM)
def test_channels_last_gives_the_same(name: str) -> None:
    model, x = slim(name, (3, 16, 16)).eval(), batch(3, 16, 16)
    expected = model(x)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    got = model(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SLIM)
def test_the_gpu_agrees_and_repeats_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only so
    x = batch(3, 16, 16)
    on_cpu = slim(name, (3, 16, 16)).eval()
    expected = on_cpu(x)
    model = copy.deepcopy(on_cpu).cuda()
    torch.testing.assert_close(model(x.cuda()).cpu(), expected, rtol=1e-2, atol=1e-2)

    def gradients() -> list[Tensor]:
        trained = copy.deepcopy(model).train()
        torch.manual_seed(3)
        trained(x.cuda()).square().sum().backward()
        return [p.grad for p in trained.parameters() if p.grad is not None]

    torch.use_deterministic_algorithms(True)
    try:
        first, second = gradients(), gradients()
    finally:
        torch.use_deterministic_algorithms(False)
    assert first
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_mlp_of_fedemb() -> None:
    client = mlp((98,), 10, hidden=(128,) * 7, activated=False)
    assert len(client) == 8
    weights = sum(p.numel() for p in client.parameters() if p.dim() == 2)
    assert weights == 98 * 128 + 6 * 128 * 128 + 128 * 10 == 112_128
    assert parameters(client) == weights + 7 * 128 + 10
    private, public = split(client, "layer4")
    assert private(batch(98)).shape == (4, 128)
    assert [len(private), len(public)] == [4, 4]
    assert (private(batch(98)) >= 0).all()


def test_the_small_networks_of_easter() -> None:
    # c×h×w = 1×14×14, d = 128; weights and biases of each layer
    assert parameters(network("mlp", (1, 14, 14), 128)) == 196 * 256 + 256 + 256 * 128 + 128
    assert parameters(network("cnn", (1, 14, 14), 128)) == (
        9 * 32 + 32 + 9 * 32 * 64 + 64 + 64 * 3 * 3 * 128 + 128
    )
    assert parameters(network("lenet", (1, 14, 14), 128)) == (
        25 * 6 + 6 + 25 * 6 * 16 + 16 + 25 * 16 * 120 + 120 + 120 * 7 * 7 * 128 + 128
    )
    assert parameters(head("cnn", 128, 10)) == 128 * 10 + 10
    assert parameters(head("lenet", 128, 10)) == 128 * 84 + 84 + 84 * 10 + 10


def test_resnet18_and_jove_s_cut() -> None:
    with torch.device("meta"):  # only shapes are needed
        model = resnet(18, (3, 32, 32), 10, activated=False)
    assert parameters(model) == 11_173_962
    below, above = split(model, "stage2")
    assert parameters(below) == 675_392
    assert parameters(above) == 10_498_570
    for h, w in (
        (12, 32),
        (20, 32),
        (16, 32),
        (32, 16),
        (32, 20),
    ):  # the views of JoVe-FL's experiments
        features = below(torch.empty(2, 3, h, w, device="meta"))
        assert features.shape == (2, 128, h // 2, w // 2)
        assert above(features).shape == (2, 10)


@pytest.mark.parametrize(
    ("depth", "millions"), [(8, 0.078), (14, 0.175), (20, 0.272), (50, 23.5), (101, 42.5)]
)
def test_resnet_sizes(depth: int, millions: float) -> None:
    with torch.device("meta"):
        model = resnet(depth, (3, 32, 32), 10)
    assert parameters(model) / 1e6 == pytest.approx(millions, rel=0.01)
    stages = 3 if depth <= 20 else 4
    assert cuts(model) == ("stem", *(f"stage{k}" for k in range(1, stages + 1)))
    convolutions = [
        m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)
    ]
    deep = len(convolutions) if depth < 50 else 3 * (len(convolutions) - 1) + 1
    assert deep + 1 == depth  # with the last layer; shortcuts do not count


def test_tables_and_flattened_images() -> None:
    assert network("mlp", (7,), 3)(batch(7)).shape == (4, 3)
    assert network("mlp", (3, 4, 4), 3, hidden=[])(batch(3, 4, 4)).shape == (4, 3)
    first = network("mlp", (7,), 3, activation="tanh").get_submodule("layer1.tanh")
    assert isinstance(first, nn.Tanh)


@pytest.mark.parametrize("name", [n for n in SLIM if n != "mlp"])
def test_images_are_needed(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' works on images .* Use 'mlp'"):
        network(name, (30,), 8)


@pytest.mark.parametrize(("name", "smallest"), [("cnn", 4), ("lenet", 2)])
def test_the_smallest_image_is_said(name: str, smallest: int) -> None:
    assert slim(name, (1, smallest, smallest))(batch(1, smallest, smallest)).shape == (4, 12)
    with pytest.raises(ConfigError, match=f"at least {smallest}×{smallest} .* these are 8×1"):
        network(name, (1, 8, 1), 8)


@pytest.mark.parametrize("name", [n for n in SLIM if n not in ("cnn", "lenet")])
def test_the_others_take_a_single_pixel(name: str) -> None:
    assert slim(name, (1, 1, 1)).eval()(batch(1, 1, 1)).shape == (4, 12)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("resnet19", {}, "no model 'resnet19': did you mean 'resnet1"),
        ("transformer", {}, "one of cnn, lenet, mlp"),
        ("cnn", {"widht": 2}, "no option 'widht' of model 'cnn': did you mean 'width'"),
        ("cnn", {"hidden": [3]}, "no option 'hidden' of model 'cnn': one of activated, width"),
        ("cnn", {"width": 0}, "width must be a number above 0, not 0"),
        ("cnn", {"width": True}, "width must be a number"),
        ("mlp", {"hidden": 12}, "hidden must be a list of widths, not 12"),
        ("mlp", {"hidden": [0]}, "hidden must be a list of widths"),
        ("mlp", {"activation": "step"}, "activation must be one of 'relu'"),
        ("mlp", {"activated": "no"}, "activated must be true or false"),
        ("vgg16", {"padding": "mirror"}, "padding must be one of 'zeros', 'replicate'"),
        ("vgg16", {"dropout": 1}, "dropout must be a number from 0"),
    ],
)
def test_mistakes(name: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        network(name, (3, 8, 8), 4, **given)


def test_all_mistakes_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        network("vgg16", (3, 8), 0, width=-1, depth=3)
    assert len(caught.value.problems) == 4
    with pytest.raises(ConfigError, match=r"no model 'lenett': did you mean 'lenet'"):
        head("lenett", 4, 2)
    with pytest.raises(ConfigError, match="no model"):
        options("lenett")


def test_cuts_that_do_not_exist() -> None:
    model = mlp((4,), 2, hidden=(3, 3))
    with pytest.raises(ConfigError, match=r"no cut 'layer3'.*are: layer1, layer2\."):
        split(model, "layer3")
    for at in (0, 3, -1):
        with pytest.raises(ConfigError, match=f"no cut after layer {at}"):
            split(model, at)
    with pytest.raises(ConfigError, match="one layer"):
        split(mlp((4,), 2, hidden=()), 1)


def test_a_layer_used_twice_is_cut_in_its_place() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(3, 3), relu, nn.Linear(3, 3), relu)
    bottom, top = split(model, "2")
    assert [len(bottom), len(top)] == [3, 1]


def test_the_public_names() -> None:
    assert sorted(colonnade.models.__all__) == sorted(
        name for name in colonnade.models.__all__ if hasattr(colonnade.models, name)
    )
