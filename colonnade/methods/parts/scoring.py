"""One party's own network, and its scores on its own rows."""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.errors import ConfigError
from colonnade.models import head, network
from colonnade.role.method import Circumstances
from colonnade.role.party import Party
from colonnade.task import Task


def whole_network(me: Party, dim: int) -> nn.Sequential:
    """The party's network with the decision layers of its family."""
    return me.keep(
        "model",
        lambda: nn.Sequential(
            network(me.recipe.model, me.shape, dim, **me.recipe.model_options),
            head(me.recipe.model, dim, me.task.outputs),
        ),
    )


def logits_of(me: Party, rows: str, *layers: nn.Module) -> Tensor:
    """What these modules, one after the other, say about all rows of a split: (rows, classes)."""
    with me.evaluating():
        return torch.cat([_through(layers, batch.x) for batch in me.rows(rows)])


def accuracy_and_loss(task: Task, outputs: Tensor, labels: Tensor) -> tuple[float, float]:
    """How good outputs are, as a share from 0 to 1, and their mean loss; all rows count alike.

    Of classes the share of rows that are right; of numbers the share of the labels' variance that
    is explained, max(0, R²), so that it has the same bounds, whatever unit the labels have.
    """
    if not task.classes:
        truth = task.scaled(labels, outputs)
        loss = F.mse_loss(outputs[:, 0], truth)
        variance = truth.var(correction=0)
        explained = float(1 - loss / variance) if variance > 0 else 0.0
        return (max(0.0, explained) if isfinite(explained) else 0.0), float(loss)
    right = int((outputs.argmax(1) == labels).sum())
    return right / len(labels), float(F.cross_entropy(outputs, labels))


def labels_of(me: Party, rows: str) -> Tensor:
    """The labels of a split of a party that brings them with its rows: (rows,)."""
    labels = me.splits[rows].y
    assert labels is not None
    return labels


def require_rows(me: Party, rows: str, why: str) -> None:
    """Refuse to begin without the rows by which something is decided."""
    if rows not in me.splits or not len(me.splits[rows]):
        needs = f"{why} decides by {rows} rows, and '{me.name}' has none"
        raise ConfigError([f"{needs}: set data.validation = 0.1, or bring more rows"])


def require_held_out(known: Circumstances, why: str) -> None:
    """Refuse a run that is to decide by validation rows and holds none out."""
    if why and known.options.judge == "validation" and known.validation == 0:
        raise ConfigError(
            [f"{why} decides by validation rows, and there are none: set data.validation = 0.1"]
        )


def _through(layers: tuple[nn.Module, ...], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x
