"""One measurement of VFedTrans: do the added columns help, and is it the other party's doing?

    measure(Setting(name="hapt", rows=5000, shared=3000, task_columns=50, data_columns=250), seed=0)
    → {"local/knn": {"LOCAL": 0.84, "distilled": 0.88, …}, "all/knn": …}

The task party has `rows` rows of which the last `shared` are shared. Every variant appends columns
to its own, and the same classifier is trained on them. What is scored:

    local          80 % of the rows that are not shared train the classifier, the other 20 % test
                   it, and nothing has seen those: what the method is for
    all            80 / 20 of all the task party's rows, as the paper scores; the
                   auto-encoder has seen the columns of all of them, and fitted the shared to U
    new iid        trained on all of its rows, tested on 500 that it has never seen
    new dirichlet  the same, but drawn again to class shares from Dirichlet(0.1)
    new label      the last class is kept from steps 1 and 2; up to 100 rows of it are new, half of
                   them join the classifier's training and the others test it

Columns are standardised with the rows that may be seen; a missing number becomes the mean. Codes
are appended as they are; principal components to unit variance, as U is. Step 1 is FedSVD with all
its masks, in one process.
"""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade import data
from colonnade.data.sources import hapt
from colonnade.errors import DataError, InputError
from colonnade.methods.parts import enrichment as enrich
from colonnade.methods.parts.enrichment import Enricher
from colonnade.privacy import fedsvd
from colonnade.version import installing

TESTED = 0.2  # of the rows
FEW = 100  # labels of lr100
NEW, NEW_OF_LABEL = 500, 100
TEST_SUBJECTS = 6  # of the 30 people of HAPT
SCORED = ("local", "all", "new iid", "new dirichlet", "new label")
CLASSIFIERS = ("rf", "knn", "lr", "lr100", "xgboost", "mlp")
LOCAL, FULL = "LOCAL", "FULL"
BUILT_IN = (
    LOCAL,
    "distilled",
    "distilled, one FedSVD",
    "stronger",
    "paper's settings",
    "published code",
    "no distillation",
    "PCA",
    "random projection",
    "row-permuted U",
    "random U",
    FULL,
)
TIMES = ("step 1", "step 2", "steps 1 and 2")
Array = NDArray[Any]
Scores = dict[str, dict[str, float]]  # "local/knn": by variant


@dataclass(frozen=True)
class Setting:
    """What is divided how, and what is compared."""

    name: str  # of the data set
    rows: int  # the task party's
    shared: int  # of them, with every data party
    task_columns: int  # as published, before categories become columns; 0: all that fit
    data_columns: int  # of each data party; 0: all that are left
    parties: int = 1  # data parties
    columns: Literal["first", "random", "sensors"] = "first"  # sensors: gyroscope, accelerometer
    split: Literal["rows", "subject"] = "rows"  # subject: nobody is in training and in test
    scored: tuple[str, ...] = ("local", "all")
    variants: tuple[str, ...] = tuple(v for v in BUILT_IN if v != "distilled, one FedSVD")
    classifiers: tuple[str, ...] = ("rf",)
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # further variants
    options: Mapping[str, Any] = field(default_factory=dict)  # of Enricher, in all variants
    q: int = 32
    seconds: bool = False  # the time of steps 1 and 2 instead of accuracies
    read: int = 0  # rows of a very large set to read at all

    def __post_init__(self) -> None:
        known = {"scored": SCORED, "classifiers": CLASSIFIERS}
        known["variants"] = (*BUILT_IN, *self.recipes)
        for name, valid in known.items():
            if wrong := [v for v in getattr(self, name) if v not in valid]:
                raise ValueError(f"{name} = {wrong[0]!r}: one of {', '.join(valid)}")
        if self.name != "hapt" and (self.split == "subject" or self.columns == "sensors"):
            raise ValueError(f"name = {self.name!r}: subjects and sensors are known of hapt alone")
        if self.split == "subject" and not {*self.scored} <= {"local", "all"}:
            raise ValueError("split = 'subject': scored must be local or all")
        if not 0 < self.shared < self.rows:
            raise ValueError(f"shared = {self.shared}: from 1 to {self.rows - 1}, not all rows")


@dataclass(frozen=True, eq=False)
class Measured:
    """A whole data set as numbers."""

    x: Array  # float64 (rows, numbers)
    owner: Array  # (numbers,): the published column that each came from
    y: Array  # (rows,)
    names: list[str]  # of the published columns
    people: Array | None  # who each row is of, where that is known


@dataclass(frozen=True, eq=False)
class Matched:
    """Positions in the table, for one score."""

    seen: Array  # anything may be fitted to their columns; the shared ones come last
    shared: Array
    trained: Array  # the classifier's
    tested: Array


@dataclass(frozen=True, eq=False)
class Target:
    """What step 1 leaves the task party: x^fed, and the key generator's A."""

    u: Tensor  # (shared, r)
    mask: fedsvd.RowMask


def measure(setting: Setting, seed: int) -> Scores:
    """Accuracies from 0 to 1, or seconds."""
    table = load(setting)
    task, others = columns(table, setting, seed)
    if setting.seconds:
        return {"seconds": timed(table, setting, task, others, seed)}
    divided = rows_of(table, setting, seed)
    found: Scores = {}
    targets: dict[bytes, list[Target]] = {}
    codes: dict[tuple[str, bytes], Array] = {}
    for scored in setting.scored:
        rows = divided[scored]
        key = rows.shared.tobytes()
        if key not in targets:
            targets[key] = list(first_step(table, setting, task, others, rows.shared, seed))
        own = standardised(table.x[:, task], rows.seen)
        for variant in setting.variants:
            place = (variant, rows.seen.tobytes())
            if place not in codes:
                codes[place] = further(
                    variant, table, own, others, rows, targets[key], setting, seed
                )
            wide = np.hstack([own, codes[place]])
            for name in setting.classifiers:
                share = score(name, wide, table.y, rows, seed)
                found.setdefault(f"{scored}/{name}", {})[variant] = share
    return found


# ---- who has what --------------------------------------------------------------------------------


def load(setting: Setting) -> Measured:
    dataset = data.load(setting.name, rows=setting.read or None)
    parts = [part for part in (dataset.train, dataset.test) if part.y is not None]
    order = torch.cat([part.ids for part in parts]).argsort()  # as published
    x = torch.cat([part.x for part in parts])[order]
    y = torch.cat([part.y for part in parts if part.y is not None])[order].numpy()
    people = hapt.subjects() if setting.split == "subject" else None
    if dataset.is_image:
        flat = x.flatten(1).double().numpy() / 255
        return Measured(flat, np.arange(flat.shape[1]), y, [""] * flat.shape[1], people)
    numbers, owner = [], list[int]()
    for place, column in enumerate(dataset.columns):
        values = x[:, place].double().numpy()
        many = len(column.categories)
        numbers += [values == code for code in range(many)] if many else [values]
        owner += [place] * (many or 1)
    names = [column.name for column in dataset.columns]
    return Measured(np.stack(numbers, 1).astype(np.float64), np.array(owner), y, names, people)


def columns(table: Measured, setting: Setting, seed: int) -> tuple[Array, list[Array]]:
    """The task party's and each data party's: disjoint positions in `table.x`."""
    count = len(table.names)
    order = seeded(seed, "columns").permutation(count)
    if setting.columns == "first":  # "task columns first, data columns next"
        order = np.arange(count)
    own = other = order
    if setting.columns == "sensors":
        sensor = np.array(["Gyro" if "Gyro" in n else "Acc" * ("Acc" in n) for n in table.names])
        own, other = order[sensor[order] == "Gyro"], order[sensor[order] == "Acc"]
    task = own[: setting.task_columns or None]
    left = other[~np.isin(other, task)]
    width = setting.data_columns or len(left) // setting.parties
    wanted = max(setting.task_columns, 1), max(width, 1) * setting.parties
    if len(task) < wanted[0] or len(left) < wanted[1]:
        raise DataError(
            f"'{setting.name}' has {count} columns, too few for {setting.task_columns} of the "
            f"task party and {width} of each of {setting.parties} data parties"
        )
    parts = [left[k * width : (k + 1) * width] for k in range(setting.parties)]
    of = [np.flatnonzero(np.isin(table.owner, part)) for part in (task, *parts)]
    return of[0], of[1:]


def rows_of(table: Measured, setting: Setting, seed: int) -> dict[str, Matched]:
    """The rows of every score; the task party's are shuffled, and its last ones shared."""
    order = seeded(seed, "rows").permutation(len(table.y))
    if len(order) < setting.rows:
        raise DataError(f"'{setting.name}' has {len(order)} rows, not {setting.rows}")
    tested = math.ceil(TESTED * (setting.rows - setting.shared))
    if table.people is not None:
        people = seeded(seed, "people").permutation(np.unique(table.people))[:TEST_SUBJECTS]
        held = np.isin(table.people[order], people)
        order = np.concatenate([order[held][:tested], order[~held]])
    task, unseen = order[: setting.rows], order[setting.rows :]
    shared, local = task[-setting.shared :], task[: -setting.shared]
    test = local[:tested]
    found = {"local": Matched(task[tested:], shared, local[tested:], test)}
    if table.people is not None:
        return found | {"all": Matched(task[tested:], shared, task[tested:], test)}
    mixed = seeded(seed, "all").permutation(task)
    cut = math.ceil(TESTED * len(task))
    found["all"] = Matched(task, shared, mixed[cut:], mixed[:cut])
    if "new iid" in setting.scored:
        found["new iid"] = Matched(task, shared, task, unseen[:NEW])
    if "new dirichlet" in setting.scored:
        generator = seeded(seed, "dirichlet")
        classes = np.unique(table.y[unseen])
        shares = generator.dirichlet([0.1] * len(classes))
        labels = generator.choice(classes, NEW, p=shares)
        drawn = [generator.choice(unseen[table.y[unseen] == label]) for label in labels]
        found["new dirichlet"] = Matched(task, shared, task, np.array(drawn))
    if "new label" in setting.scored:
        last = table.y[order] == table.y.max()
        task, new = order[~last][: setting.rows], order[last][:NEW_OF_LABEL]
        joined = np.concatenate([task, new[: len(new) // 2]])
        found["new label"] = Matched(task, task[-setting.shared :], joined, new[len(new) // 2 :])
    return found


def seeded(seed: int, purpose: str) -> np.random.Generator:
    """Draws for one purpose do not depend on what else is drawn."""
    return np.random.default_rng(int.from_bytes(_digest(f"{purpose}/{seed}")[:8], "little"))


def standardised(x: Array, seen: Array) -> Array:
    """Every row, by the mean and deviation of those that may be seen; a gap becomes the mean."""
    some = x[seen]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without any number
        mean, spread = np.nanmean(some, 0), np.nanstd(some, 0)
    scaled = (x - mean) / np.where(spread > 1e-12, spread, 1.0)
    return np.asarray(np.nan_to_num(scaled))


# ---- steps 1 and 2 -------------------------------------------------------------------------------


def first_step(
    table: Measured, setting: Setting, task: Array, others: list[Array], shared: Array, seed: int
) -> Iterator[Target]:
    """FedSVD with each data party, and finally with all of them if there are several."""
    every = np.arange(len(shared))
    own, *parts = (
        torch.from_numpy(standardised(table.x[np.ix_(shared, part)], every))
        for part in (task, *others)
    )
    groups = [[part] for part in parts] + ([parts] if len(parts) > 1 else [])
    for number, group in enumerate(groups):
        key = _digest(f"masks/{seed}/{number}")
        u = fedsvd.left_vectors_of([own, *group], seed=key)
        yield Target(u, fedsvd.row_mask(key, len(shared)))


def further(
    variant: str,
    table: Measured,
    own: Array,
    others: list[Array],
    rows: Matched,
    targets: list[Target],
    setting: Setting,
    seed: int,
) -> Array:
    """The columns that a variant appends, for every row of the table."""
    x, seen = torch.from_numpy(own), torch.from_numpy(rows.seen)
    width = setting.q * setting.parties
    if variant == LOCAL:
        return np.empty((len(own), 0))
    if variant == FULL:
        return standardised(table.x[:, np.concatenate(others)], rows.seen)
    if variant == "PCA":
        scores = (x - x[seen].mean(0)) @ enrich.pca(x[seen], width)
        return np.asarray((scores / scores[seen].std(0)).nan_to_num(0.0).numpy())
    if variant == "random projection":
        return np.asarray((x @ enrich.random_projection(x.shape[1], width, seed)).numpy())
    chosen = targets[: setting.parties]
    if variant == "distilled, one FedSVD":
        chosen = targets[-1:]
    # The rows that are seen end with the shared ones, in the order of the target.
    shared = torch.arange(len(seen))[-len(rows.shared) :]
    codes = []
    for number, target in enumerate(chosen):
        drawn = seed + 1000 * number
        options, u = _second_step(variant, target, setting, drawn)
        encoder = enrich.train(x[seen], shared, u, options)
        codes.append(np.asarray(enrich.encode(encoder, x).numpy()))
    return np.hstack(codes)


def _second_step(
    variant: str, target: Target, setting: Setting, seed: int
) -> tuple[Enricher, Tensor]:
    """How the auto-encoder is trained, and to what."""
    u, q = target.u, setting.q
    recipe = dict(setting.recipes.get(variant, {}))
    base = recipe.pop("base", "")
    if variant == "paper's settings" or base == "paper":
        recipe, q = {**enrich.PAPER, **recipe}, u.shape[1]  # as wide as U: Eq. 4
    elif variant == "published code":
        # Unmasked twice: the rows of Aᵀ U belong to no sample.
        recipe, q, u = dict(enrich.PUBLISHED), u.shape[1], target.mask.undo(u)
    elif variant == "stronger":
        recipe = dict(enrich.STRONGER)
    elif variant == "no distillation":
        recipe = {"theta": 0.0}
    elif variant == "row-permuted U":
        u = enrich.permuted(u, seed)
    elif variant == "random U":
        u = enrich.noise_like(u, seed)
    return Enricher(**{"q": q, "seed": seed, **recipe, **setting.options}), u


def timed(
    table: Measured, setting: Setting, task: Array, others: list[Array], seed: int
) -> dict[str, float]:
    """Seconds of FedSVD and of the auto-encoders, once for each data party."""
    rows = rows_of(table, setting, seed)["all"]
    own = standardised(table.x[:, task], rows.seen)
    # What is loaded at first use is not counted.
    warm = fedsvd.left_vectors_of([torch.eye(4)] * 2)
    enrich.train(torch.eye(4), torch.arange(4), warm, Enricher(epochs=1))
    began = time.process_time()  # of one thread: what else the machine does is not counted
    groups = [list(first_step(table, setting, task, [one], rows.shared, seed)) for one in others]
    between = time.process_time()
    for group in groups:
        further("distilled", table, own, others, rows, group, replace(setting, parties=1), seed)
    ended = time.process_time()
    return dict(zip(TIMES, (between - began, ended - between, ended - began), strict=True))


# ---- step 3 --------------------------------------------------------------------------------------


def score(name: str, x: Array, y: Array, rows: Matched, seed: int) -> float:
    """The share of the tested rows that a classifier names rightly."""
    trained = rows.trained
    if name == "lr100":
        trained = seeded(seed, f"few/{len(trained)}").permutation(trained)[:FEW]
    classes, labels = np.unique(y[trained], return_inverse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's: not yet converged, a class of one row
        model = classifier(name, seed).fit(x[trained], labels)
        found = classes[model.predict(x[rows.tested])]
    return float(np.mean(found == y[rows.tested]))


def classifier(name: str, seed: int) -> Any:
    """The settings of the published code where it has them."""
    if name == "knn":
        from sklearn.neighbors import KNeighborsClassifier

        return KNeighborsClassifier(8)
    if name == "rf":
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(200, max_depth=20, random_state=seed)
    if name == "mlp":
        from sklearn.neural_network import MLPClassifier

        return MLPClassifier((100, 100, 50), alpha=0.01, max_iter=400, random_state=seed)
    if name == "xgboost":
        try:
            from xgboost import XGBClassifier
        except ImportError:
            raise InputError(
                f"the classifier xgboost needs its package: {installing('xgboost')}; or omit it "
                "with --only"
            ) from None
        return XGBClassifier(n_jobs=1, random_state=seed)
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=3000)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
