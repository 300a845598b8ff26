"""The settings of one run, as frozen dataclasses. `reader.py` makes them, `checks.py` checks them.

method = "splitnn"            top level: what all parties share, and their default recipe
[data] [partition] [checkpoint] [decision] [align] [protect]
[splitnn]                     the method's own options, in a table of its name
[parties.bank]                what one party does differently
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from colonnade import methods, models
from colonnade.align import KINDS, Alignment
from colonnade.data.own import OwnFile
from colonnade.partition import Partition
from colonnade.plugin import Source, admitted
from colonnade.privacy.settings import Protect
from colonnade.role.recipe import Batching, Recipe
from colonnade.role.stopping import VERDICT
from colonnade.toml import Bounds
from colonnade.wire import Kind

FITS = {  # which options of a partition apply to which kind
    "grid": ("tiles",),
    "parties": ("tiles", "strips", "columns", "rows", "hybrid", "rectangles", "whole"),
    "axis": ("strips",),
    "rectangles": ("rectangles", "hybrid"),
    "sizes": ("columns", "hybrid"),
    "groups": ("columns", "hybrid"),
    "shuffle": ("columns", "hybrid"),
    "alpha": ("rows", "hybrid"),
    "row_overlap": ("rows", "hybrid"),
    "column_overlap": ("columns", "hybrid"),
}


@dataclass(frozen=True)
class Data:
    """[data]: the rows of a run."""

    name: str = "mnist-sample"
    # The share of test rows, if the set has no official division.
    test: Annotated[float, Bounds(above=0, below=1)] = 0.2
    official: bool = True  # keep that division; false: divide all rows again, by `test`
    # The share of training rows held out for choices.
    validation: Annotated[float, Bounds(least=0, below=1)] = 0.0
    train_rows: Annotated[int, Bounds(least=0)] = 0  # 0: all; else a seeded sample
    test_rows: Annotated[int, Bounds(least=0)] = 0
    standardise: bool = True  # by each party, with its own statistics
    flip: bool = False  # mirror half of the training images, the same ones at every party
    # Move every training image by up to this many pixels, alike at every party.
    shift: Annotated[int, Bounds(least=0)] = 0
    upside_down: bool = False  # turn half of the training images, the same ones at every party
    classes: tuple[str, ...] = ()  # of a federation in which every party brings its own labels
    # Labels that are numbers are learnt in units of `spread` around `mean`. None: those of the
    # label holder's training rows, which all parties are then told
    mean: Annotated[float | None, Bounds()] = None
    spread: Annotated[float | None, Bounds(above=0)] = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.spread is None):
            raise ValueError("mean and spread belong together: give both, or omit both")


@dataclass(frozen=True)
class Checkpoint:
    """[checkpoint]: how often each party saves itself; 0 is never."""

    epochs: Annotated[int, Bounds(least=0)] = 1
    steps: Annotated[int, Bounds(least=0)] = 0


@dataclass(frozen=True)
class Deciding:
    """[decision]: how the label holder comes from probabilities to decisions.

    At most one of the first three; without any, the most probable class is predicted.
    """

    # A row is flagged as positive from this probability on.
    threshold: Annotated[float, Bounds(least=0, most=1)] | None = None
    # That threshold which flags this share of the validation rows
    rate: Annotated[float, Bounds(above=0, below=1)] | None = None
    # That whose mistakes on validation rows cost least: { false_positive = 1, false_negative = 5 }
    cost: Mapping[str, Annotated[float, Bounds(above=0)]] | None = None
    calibrate: Literal["none", "platt", "isotonic"] = "none"  # on validation rows, before that

    @property
    def ways(self) -> list[str]:
        """Which ways to a threshold are given."""
        return [way for way in ("threshold", "rate", "cost") if getattr(self, way) is not None]

    @property
    def asked(self) -> bool:
        """Whether there is anything to decide beyond the most probable class."""
        return bool(self.ways) or self.calibrate != "none"

    @property
    def chosen(self) -> list[str]:
        """What is chosen on validation rows, as it is written in the file."""
        return [
            *(f"decision.{way}" for way in self.ways if way != "threshold"),
            *(["decision.calibrate"] if self.calibrate != "none" else []),
        ]


@dataclass(frozen=True)
class Run:
    """The top level of the file, without the default recipe."""

    method: str
    name: str = ""  # of the run's folder; empty: the file's name, or the method's
    seed: Annotated[int, Bounds(least=0)] = 0
    epochs: Annotated[int, Bounds(least=1)] = 5
    batch_size: Annotated[int, Bounds(least=1)] = 128
    batching: Batching = "even"  # "papers": full batches and a rest, which may be one row
    evaluate_every: Annotated[int, Bounds(least=0)] = 1  # epochs; also at the end; 0: never
    task: Literal["auto", "binary", "multiclass", "regression"] = "auto"  # auto: by the labels
    metric: str = ""  # what decides; empty: accuracy, of two classes auc, of numbers rmse
    positive: str | int = ""  # of two classes the one that scores are about; empty: the last
    # How much classes count in training: "none" alike, "balanced", or { yes = 5, no = 1 }
    class_weight: Literal["none", "balanced"] | Mapping[str, Annotated[float, Bounds(above=0)]] = (
        "none"
    )
    # Epochs without a better one by the validation rows that end the training, which then goes back
    # to the best one; 0: all epochs, and the last one stays
    patience: Annotated[int, Bounds(least=0)] = 0
    # By how much the metric must be better; the unit is that of the metric.
    min_delta: Annotated[float, Bounds(least=0)] = 0.0
    # Per party; part of the config because sums depend on it.
    threads: Annotated[int, Bounds(least=1, most=1024)] = 1
    device: Literal["cpu", "cuda"] = "cpu"
    strict: bool = False  # every message through the codec, as over a network
    record: tuple[str, ...] = ()  # Kinds whose payloads are kept (simulation only)
    label_holder: str = ""  # empty: the first party
    label_only: bool = False  # the label holder is a further party, without features
    absence: bool = True  # then measure the accuracy without each passive party (one process)


@dataclass(frozen=True)
class Config:
    """A complete configuration, checked."""

    run: Run
    recipe: Recipe
    data: Data
    checkpoint: Checkpoint
    found: methods.Found
    options: Any  # the method's own dataclass
    partition: Partition | None = None  # None: tiles for images, columns for tables
    parties: Mapping[str, Recipe] = field(default_factory=dict)
    files: Mapping[str, OwnFile] = field(default_factory=dict)  # the parties' own
    align: Alignment | None = None  # first find the rows that all parties have
    asked: Alignment = field(default_factory=Alignment)  # [align], even if the method matches none
    decision: Deciding = field(default_factory=Deciding)
    protect: Protect = field(default_factory=Protect)  # what protects what

    @property
    def kinds(self) -> dict[str, Kind]:
        """All Kinds that may cross, by name."""
        first = KINDS if self.align is not None else ()
        last = (VERDICT,) if self.verdicts else ()
        return {kind.name: kind for kind in (*first, *self.found.method.kinds, *last)}

    @property
    def verdicts(self) -> bool:
        """Whether the label holder tells the others when to stop."""
        return self.run.patience > 0 and self.found.method.learning.stops == "together"

    def sent_by(self, role: str, holder: str, passives: int) -> tuple[Kind, ...]:
        """The Kinds that a party may send once rows are aligned; its policy must allow them.

        holder  the role of the label holder
        """
        sent = self.found.method.sent_by(role, self.options, passives)
        return (*sent, VERDICT) if self.verdicts and role == holder else sent

    def trained_by(self, role: str) -> Mapping[str, int]:
        """The optimisers that [protect] model_epsilon covers at a party: see Method.trained_by."""
        if not self.protect.model_epsilon:
            return {}
        return self.found.method.trained_by(role, self.options, self.run.epochs)

    @property
    def signs(self) -> bool:
        """Whether parties need their signing keys: for the method, or to align rows."""
        return self.align is not None or self.found.method.membership.signs(self.options)

    @property
    def caveats(self) -> list[str]:
        """What a run with these settings says about itself, before it begins and in its result."""
        return [*self.found.method.about.caveats(self.options), *self.protect.caveats]

    def resolved(self) -> dict[str, Any]:
        """All settings, defaults included, as in the file."""
        tables: dict[str, Any] = {
            **plain(self.run),
            # A file's folder is not a setting: the run folder holds a copy beside this config.
            "method": self.found.path.name if self.run.method.endswith(".py") else self.run.method,
            **_portable(self.recipe),
            "data": plain(self.data),
            "checkpoint": plain(self.checkpoint),
            "decision": plain(self.decision),
        }
        if self.partition is not None:
            kind = self.partition.kind
            tables["partition"] = {
                key: value
                for key, value in plain(self.partition).items()
                if kind in FITS.get(key, (kind,)) and value not in ([], {})
            }
        tables[self.found.method.name] = plain(self.options)
        if self.align is not None:
            tables["align"] = plain(self.align)
        if self.protect.given:  # a run without protection is what it was before there was any
            tables["protect"] = plain(self.protect)
        if self.parties:
            tables["parties"] = {name: _portable(recipe) for name, recipe in self.parties.items()}
        if self.files:
            del tables["data"]["name"]
        for name, file in self.files.items():
            given = {
                k: v for k, v in plain(file).items() if v != [] and (k, v) != ("delimiter", "")
            }
            tables["parties"][name] |= given
        return tables

    def to_align(self) -> Config:
        """The same parties, only to find their common rows, whatever the method is."""
        found = methods.find("alignment")
        kept = [name for name in self.run.record if name in {kind.name for kind in KINDS}]
        run = dataclasses.replace(
            self.run,
            method="alignment",
            name=f"{self.run.name[:58]}-align",
            record=tuple(kept),
            patience=0,
            min_delta=0.0,
        )
        return dataclasses.replace(
            self,
            run=run,
            found=found,
            options=found.method.options(),
            data=dataclasses.replace(self.data, classes=(), mean=None, spread=None),
            align=self.asked,
        )

    def own_models(self) -> list[str]:
        """The networks in the user's own files."""
        used = [self.recipe, *self.parties.values()]
        return sorted({recipe.model for recipe in used if models.is_own(recipe.model)})

    def code(self) -> list[Source]:
        """The files outside the package whose code this configuration executes."""
        found = [admitted(self.found.path)] if self.run.method.endswith(".py") else []
        found += [models.source_of(name) for name in self.own_models()]
        return list({source.path.name: source for source in found if source}.values())

    def pins(self) -> dict[str, str]:
        """The digest of each such file, by its name."""
        return {source.path.name: source.sha256 for source in self.code()}

    def sha256(self) -> str:
        """The digest of all that decides the result: the settings and the method's file."""
        decisive = self.resolved() | {"name": "", "method_sha256": self.found.sha256}
        decisive |= {"models_sha256": [models.source_of(name).sha256 for name in self.own_models()]}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def others_tested(self) -> bool:
        """Whether tested rows must be the same at all parties although their own rows differ."""
        method = self.found.method
        return method.rows.tested_together(self.options) and not method.rows.aligned(self.options)

    def held_out(self) -> float:
        """The share of a party's own rows that is kept for tests: 0 if they could not be used."""
        unused = self.others_tested() and not self.run.evaluate_every
        return 0.0 if unused else self.data.test

    def untested(self) -> str:
        """Why parties that bring their own rows cannot be tested; empty if they can."""
        method = self.found.method
        if not self.run.evaluate_every or not self.others_tested():
            return ""
        return (
            f"{method.name} tests all parties' values of a row together, and with these options "
            "each party brings different rows"
        )

    def start_sha256(self) -> str:
        """The digest of all that decides the long phase before the first message; empty if none."""
        start = self.found.method.start
        if start is None:
            return ""
        alone = type(self.options)()
        for name in start.options:  # one by one: without the others they need not go together
            object.__setattr__(alone, name, getattr(self.options, name))
        return replace(self, options=alone).sha256()


def dumps(config: Config) -> str:
    """The resolved configuration as TOML."""
    import tomli_w

    return "".join(f"# {line}\n" for line in config.caveats) + tomli_w.dumps(config.resolved())


def _portable(recipe: Recipe) -> dict[str, Any]:
    """A recipe that names its own network without its folder, because the run keeps a copy."""
    table = plain(recipe)
    if models.is_own(recipe.model):
        file, _, attribute = recipe.model.rpartition(":")
        table["model"] = f"{Path(file).name}:{attribute}"
    return table


def plain(value: Any) -> dict[str, Any]:
    """A dataclass as a table; values of None are omitted, because TOML has none."""
    plain: dict[str, Any] = {
        f.name: _simple(getattr(value, f.name)) for f in dataclasses.fields(value)
    }
    return {key: item for key, item in plain.items() if item is not None}


def _simple(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_simple(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _simple(v) for k, v in value.items()}
    return value
