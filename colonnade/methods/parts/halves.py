"""A client's network in two parts: one that stays with it, and one that can be joined."""

from __future__ import annotations

from torch import nn

from colonnade.methods.parts.class_report import public_seed
from colonnade.models import joined, network
from colonnade.models.drawn import draw_private, draw_public
from colonnade.role.party import Party
from colonnade.role.seeds import derive


def halves_of(me: Party, cut: str, private: str, public: str) -> tuple[nn.Module, nn.Module]:
    """f_m^L and f_m^S; what is "random" is drawn from the seed, and never learns."""

    def parts() -> tuple[nn.Module, nn.Module]:
        options = {**me.recipe.model_options, "activated": False}
        whole = network(me.recipe.model, me.shape, me.task.outputs, **options)
        found = joined.private_and_public(whole, cut, f"'{me.name}': {me.recipe.model}")
        if private == "random":
            draw_private(found[0], derive(me.schedule.seed, "private", me.name))
        if public == "random":
            draw_public(found[1], public_seed(me, me.name))
        return found

    return me.keep("private", lambda: parts()[0]), me.keep("public", lambda: parts()[1])


def warn_of_linear(me: Party, public: nn.Module) -> None:
    """Say where means over groups leave nothing to tune."""
    if len(joined.dense_layers(public)) == 1:
        me.remark(
            "one linear layer follows the cut: means pass through it unchanged, and with "
            "targets = 'mse' there is nothing to tune. Give networks more layers, or cut earlier"
        )
