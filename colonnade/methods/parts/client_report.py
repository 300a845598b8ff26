"""A client's report to the server in a round: means over groups of rows, and its public part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from colonnade.errors import Untrusted
from colonnade.methods.parts.scoring import labels_of
from colonnade.models.joined import is_part, widths_of
from colonnade.privacy.grouping import Grouping
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer

EMBEDDINGS = Kind(
    "group_embeddings", ("groups", "width"), reveals="l_m: features, by group", carries="features"
)
OUTPUTS = Kind(
    "group_outputs", ("groups", "classes"), reveals="o_m: labels, by group", carries="features"
)
WITHIN = "within (ε, δ) for each row's vector; not what the networks learnt from it"
NOISY_EMBEDDINGS = replace(
    EMBEDDINGS, name="noisy_embeddings", reveals=f"l_m {WITHIN}", randomised=True
)
NOISY_OUTPUTS = replace(OUTPUTS, name="noisy_outputs", reveals=f"o_m {WITHIN}", randomised=True)
PROPORTIONS = Kind(
    "proportions", ("groups", "classes"), reveals="the labels of every group", carries="labels"
)
PUBLIC = Kind(
    "public_part",
    None,  # {"part": weights, "evaluations": a number, perhaps "rows": a number}
    reveals="what the public part has learnt; with widen also the number of rows",
    dtype="any",
    carries="models",
)
KINDS = (EMBEDDINGS, OUTPUTS, NOISY_EMBEDDINGS, NOISY_OUTPUTS, PROPORTIONS, PUBLIC)

MOST_EVALUATIONS = 16  # in one round: each is of another split


def report_kinds(*, noisy: bool, labelled: bool) -> list[Kind]:
    """In the order in which they are sent.

    noisy     means are released within a privacy budget
    labelled  the proportions of the labels are told as well
    """
    means = [NOISY_EMBEDDINGS, NOISY_OUTPUTS] if noisy else [EMBEDDINGS, OUTPUTS]
    return [*means, *[PROPORTIONS] * labelled, PUBLIC]


def label_proportions(me: Party, groups: Grouping) -> Tensor:
    """The share of each class in each group of training rows: (groups, classes).

    Of protected labels, what their answers say of it: without bias, but for what lies below 0.
    """
    labels = labels_of(me, "train")
    if me.task.responses is None:
        return groups.means(F.one_hot(labels, len(me.task.classes)).float())
    shares = groups.means(me.task.responses.shares(labels)).clamp(min=0.0)
    return shares / shares.sum(1, keepdim=True)


@dataclass(frozen=True)
class Told:
    """One client's report of one round."""

    embeddings: Tensor  # (groups, width)
    outputs: Tensor  # (groups, classes)
    proportions: Tensor | None  # (groups, classes)
    part: Mapping[str, Tensor]  # the weights of its public part
    evaluations: int  # that follow in this round
    rows: int = 0  # of which it tells the means, if it says so
    sender: str = ""
    alike: float | None = None  # rows in a group, as far as they differ by more than noise

    @property
    def rows_of_a_group(self) -> float:
        """For `widen`."""
        return self.rows / len(self.embeddings) if self.alike is None else self.alike

    def send(self, server: Peer, *, noisy: bool) -> None:
        count = {"rows": self.rows} if self.rows else {}
        public = {"part": self.part, "evaluations": self.evaluations, **count}
        labels = [] if self.proportions is None else [self.proportions]
        kinds = report_kinds(noisy=noisy, labelled=bool(labels))
        values: list[Any] = [self.embeddings, self.outputs, *labels, public]
        for kind, value in zip(kinds, values, strict=True):
            server.send(kind, value)

    @classmethod
    async def receive(cls, client: Peer, *, noisy: bool, labelled: bool) -> Told:
        kinds = report_kinds(noisy=noisy, labelled=labelled)
        got: list[Any] = [await client.recv(kind) for kind in kinds]
        embeddings, outputs, *labels, public = got
        proportions = labels[0] if labels else None
        _check(client.name, public)
        _check_sizes(client.name, [embeddings, outputs, *labels], public["part"])
        counts = public["evaluations"], public.get("rows", 0)
        return cls(embeddings, outputs, proportions, public["part"], *counts, client.name)


def _check(client: str, public: Any) -> None:
    """Refuse a public part without weights, or with counts that make no sense."""
    told: Mapping[str, Any] = public if isinstance(public, Mapping) else {}
    part, counts = told.get("part"), (told.get("evaluations"), told.get("rows", 0))
    if (
        not is_part(part)
        or not all(type(count) is int and count >= 0 for count in counts)
        or told["evaluations"] > MOST_EVALUATIONS
    ):
        raise Untrusted(f"'{client}' sent a public part without weights, or with absurd counts")


def _check_sizes(client: str, means: list[Tensor], part: Mapping[str, Tensor]) -> None:
    """Refuse means of other groups in one message than in another, or that its own public part
    does not take or make."""
    into, *_, out = widths_of(part)
    sizes = [tuple(matrix.shape) for matrix in means]
    groups = sizes[0][0]
    if not groups or sizes != [(groups, into), *[(groups, out)] * (len(means) - 1)]:
        raise Untrusted(
            f"'{client}' sent means of shapes {sizes} with a public part of {into} inputs and "
            f"{out} classes"
        )
