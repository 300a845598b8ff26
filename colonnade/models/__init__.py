"""Networks that can be cut in two: MLP, CNN, LeNet, VGG, ResNet and auto-encoders."""

from colonnade.models.autoencoder import mlp_autoencoder, vgg_decoder
from colonnade.models.border import EVERYWHERE, Sides, tell_flips
from colonnade.models.cnn import cnn, lenet
from colonnade.models.cuts import cuts, split
from colonnade.models.mlp import mlp
from colonnade.models.own import (
    admit_network,
    find_builder,
    is_admitted,
    is_own,
    path_of,
    source_of,
)
from colonnade.models.registry import check, head, names, network, options
from colonnade.models.resnet import resnet
from colonnade.models.vgg import pools, vgg16

__all__ = [
    "EVERYWHERE",
    "Sides",
    "admit_network",
    "check",
    "cnn",
    "cuts",
    "find_builder",
    "head",
    "is_admitted",
    "is_own",
    "lenet",
    "mlp",
    "mlp_autoencoder",
    "names",
    "network",
    "options",
    "path_of",
    "pools",
    "resnet",
    "source_of",
    "split",
    "tell_flips",
    "vgg16",
    "vgg_decoder",
]
