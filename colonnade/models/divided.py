"""Divides networks in two so that one upper part fits the lower parts of all parties.

After the same layers, views of unequal size give maps of unequal size. Four ways make the maps
equal: two change the input of the lower part, two change its output.

    resize       the view is enlarged to the whole image's size
    canvas       the view lies at its place in an empty image
    pool         maps are pooled to fit_size × fit_size
    interpolate  maps are interpolated to fit_size × fit_size
    none         nothing: the upper part must take maps of any size
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from colonnade.errors import ConfigError
from colonnade.models.cuts import split
from colonnade.models.mlp import mlp
from colonnade.models.own import is_own
from colonnade.models.registry import network
from colonnade.partition import View

Way = Literal["pool", "resize", "canvas", "interpolate", "none"]
Pair = tuple[nn.Module, nn.Module]  # lower and upper part
Shape = tuple[int, ...]  # of one row: (channels, height, width) or (features,)


@dataclass(frozen=True)
class Division:
    """Where a network ends in an embedding, and what predicts from it."""

    cut: str = ""  # after this layer of a scoring network; empty: the whole network embeds
    dim: int = 128  # without a cut: the width of the embedding
    hidden: tuple[int, ...] = ()  # without a cut: hidden layers of the upper part, an MLP
    fit: Way = "pool"  # with a cut; tables have no maps, and nothing is done to them
    fit_size: int = 8
    batch_norm: Literal["shared", "local", "batch"] = "shared"  # batch: see use_batch_statistics

    def __post_init__(self) -> None:
        for name in ("dim", "fit_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: at least 1")
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"hidden = {list(self.hidden)}: widths of at least 1")
        if self.cut and self.hidden:
            raise ValueError("hidden describes θ of networks that are not cut: omit cut or hidden")

    def drawn(
        self,
        seed: int,
        model: str,
        options: Mapping[str, Any],
        shape: Shape,
        classes: int,
        view: View | None,
        who: str,
    ) -> Pair:
        """Parts whose weights follow from the seed alone; the generators' states do not change.

        The upper part is drawn again, because lower parts of different shapes draw a different
        number of values before it. (Not in a network from a file, which may initialise it
        differently.)
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            bottom, top = self.made(model, options, shape, classes, view, who)
            if not (self.cut and is_own(model)):
                torch.manual_seed(seed)
                draw_again(top)
            return bottom, top

    def made(
        self,
        model: str,
        options: Mapping[str, Any],
        shape: Shape,
        classes: int,
        view: View | None,
        who: str,
    ) -> Pair:
        """The lower and the upper part for one party; an error if they do not fit each other."""
        if not self.cut:
            bottom = network(model, shape, self.dim, **options)
            top: nn.Module = mlp((self.dim,), classes, hidden=self.hidden, activated=False)
        else:
            seen, before = self._in_front(shape, view, who)
            scores = {} if is_own(model) else {"activated": False}  # no ReLU behind class scores
            whole = network(model, seen, classes, **{**options, **scores})
            if not isinstance(whole, nn.Sequential):
                raise ConfigError(
                    [f"cut = '{self.cut}': only an nn.Sequential has cuts, not {model}"]
                )
            lower, top = split(whole, self.cut)
            bottom = nn.Sequential(*before, *lower, *self._behind(lower, seen))
        if self.batch_norm == "batch":
            use_batch_statistics(bottom)
            use_batch_statistics(top)
        check_fit(bottom, top, shape, who, model, self.cut)
        return bottom, top

    def _in_front(self, shape: Shape, view: View | None, who: str) -> tuple[Shape, list[nn.Module]]:
        """The shape that the lower part sees, and the layers that enlarge the view to it."""
        if len(shape) != 3 or self.fit not in ("resize", "canvas"):
            return shape, []
        if view is None:
            needs = f"fit = '{self.fit}' needs to know the whole image, and '{who}' has none"
            raise ConfigError([needs])
        part, height, width = view.part, view.height, view.width
        if self.fit == "resize":
            larger: nn.Module = nn.Upsample((height, width), mode="bilinear")
        else:
            right, below = width - part.right, height - part.bottom
            larger = nn.ZeroPad2d((part.left, right, part.top, below))
        return (shape[0], height, width), [larger]

    def _behind(self, bottom: nn.Module, shape: Shape) -> list[nn.Module]:
        """The layers that bring the lower part's maps to their common size."""
        if self.fit not in ("pool", "interpolate"):
            return []
        with torch.no_grad():
            maps = bottom.eval()(torch.zeros(1, *shape)).dim() == 4
        bottom.train()
        if not maps:
            return []
        size = (self.fit_size, self.fit_size)
        if self.fit == "pool":
            return [nn.AdaptiveAvgPool2d(size)]
        return [nn.Upsample(size, mode="bilinear")]


def check_fit(
    bottom: nn.Module, top: nn.Module, shape: Shape, who: str, model: str, cut: str
) -> None:
    """Refuse an upper part that cannot take the lower part's output for rows of this shape."""
    with torch.no_grad():
        embedding = bottom.eval()(torch.zeros(2, *shape))
        try:
            top.eval()(embedding)
        except RuntimeError as error:
            found = "×".join(str(size) for size in embedding.shape[1:])
            raise ConfigError(
                [
                    f"party '{who}': behind the cut '{cut}' {model} cannot take maps of {found} "
                    f"({error}). Choose another fit, fit_size or cut"
                ]
            ) from None
    bottom.train()
    top.train()


def draw_again(module: nn.Module) -> None:
    """Draw the initial weights of all layers again, from the generators' present states."""
    for layer in module.modules():
        reset = getattr(layer, "reset_parameters", None)
        if callable(reset):
            reset()


def use_batch_statistics(module: nn.Module) -> None:
    """Let every BatchNorm normalise by the batch at hand, also in an evaluation."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
