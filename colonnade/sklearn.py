"""VFedTrans as a scikit-learn transformer: own columns, enriched by what a partner's have taught.

    enricher = VerticalEnricher(partner=hospital)        # a DataFrame; its index says who is who
    model = make_pipeline(enricher, KNeighborsClassifier(8))
    model.fit(bank, y)                                   # the shared rows are found by the index
    model.predict(new_customers)                         # the partner is not needed any more

**Which rows are shared.** In a cross-validation `fit` is given some of the rows, so a position
means nothing there; rows must carry their identity with them. Own rows have it in their index (a
DataFrame) or in a column (`id_column`, which is used for nothing else); the partner's in theirs, or
in `shared`, one identity for each of its rows. Rows are matched again in every `fit`, so held-out
rows take no part in it, and a partner's rows that nobody asked about stay unused. Ids are compared
as `colonnade align` does it (`align/ids.py`): 7, 7.0 and "7" are one id, "007" is another.

A guess would pair the wrong people, so a plain array without `id_column` is refused, and so is an
index of whole numbers without a name, which looks like the positions of rows:
`X.rename_axis("customer")` says that they are ids. Only `fit` itself takes a mask,
`fit(X, partner=P, shared=mask)`, since there the rows are at hand.

**What a pickle holds.** A fitted enricher is pickled (joblib, copy.deepcopy) without the partner's
rows and without `shared`: it transforms as before, and whoever fits it again gives them anew. One
that was never fitted is pickled with them, since the workers of a cross-validation have to fit it;
so does a search keep them in its `estimator`. Keep `best_estimator_`, or use `save`.

**This is a simulation**: partner and task party are in one memory. The arithmetic is that of the
federation, FedSVD with all its masks (`privacy/fedsvd.py` says who would learn what), so the
codes are those that separate organisations would find. Nothing is refused here: between
organisations a partner refuses a `q` that tells too much of its columns.

**Through a federation**: let the organisations run the method `vfedtrans`, each with its own file,
and give the task party's folder to `FederatedEnricher(run)`, which appends what was learnt there.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data
from torch import Tensor

from colonnade.align import doubts, normalise
from colonnade.errors import DataCorrupt, DataError
from colonnade.methods.parts import enrichment as enrich
from colonnade.methods.parts.enriched import Enriched
from colonnade.methods.parts.enrichment import Encoder, Enricher
from colonnade.privacy import fedsvd
from colonnade.runs.predict import load

FORMAT, VERSION = "colonnade.VerticalEnricher", 1
Array = NDArray[Any]


class _LeftOut:
    """Stands where a pickle has left out what belongs to the partner."""

    def __repr__(self) -> str:
        return "left out of the pickle"


class VerticalEnricher(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """[X | Enc(X)], where Enc has learnt from the rows that are shared with a partner.

    Parameters
    ----------
    partner : array or DataFrame (rows, columns), or a list of them, default=None
        What the data party holds; an encoder for each. None: nobody, the auto-encoder alone.
    shared : sequence of ids, or a list of them, default=None
        Who each row of the partner is. Not needed for a DataFrame, which has an index.
    id_column : str or int, default=None
        The column of X with the ids, by name or position. None: the index of the DataFrame X.
    q : int, default=32
        Columns of U that are learnt, and width of the code.
    together : bool, default=False
        One encoder for all partners, from the rows that all of them share.
    keep : bool, default=True
        Own columns first; False: the codes alone.
    layers, hidden, activation, code, distil, reduction, theta, reconstruction, target, scaling, \
    output, optimizer, lr, weight_decay, epochs, batch_size, dropout, held_out, members, stretch
        As in `colonnade.methods.parts.enrichment.Enricher`.
    block : int, default=100
        Size of FedSVD's blocks; 0: dense masks.
    random_state : int, RandomState or None, default=None
        Initial weights, order of the rows, and FedSVD's masks.

    Attributes
    ----------
    encoders_ : list of `colonnade.methods.parts.enrichment.Encoder`
    n_shared_ : list of int, how many rows each of them could learn from
    n_features_in_, feature_names_in_ : without the id column
    """

    def __init__(
        self,
        partner: Any = None,
        shared: Any = None,
        id_column: str | int | None = None,
        *,
        q: int = 32,
        together: bool = False,
        keep: bool = True,
        layers: int = 2,
        hidden: int = 256,
        activation: str = "relu",
        code: str = "linear",
        distil: str = "l2",
        reduction: str = "mean",
        theta: float = 10.0,
        reconstruction: float = 1.0,
        target: str = "unit",
        scaling: str = "standard",
        output: str = "code",
        optimizer: str = "adamw",
        lr: float = 2e-3,
        weight_decay: float = 1e-3,
        epochs: int = 40,
        batch_size: int = 200,
        dropout: float = 0.0,
        held_out: float = 0.0,
        members: int = 1,
        stretch: float = 1.0,
        block: int = fedsvd.BLOCK,
        random_state: Any = None,
    ) -> None:
        self.partner = partner
        self.shared = shared
        self.id_column = id_column
        self.q = q
        self.together = together
        self.keep = keep
        self.layers = layers
        self.hidden = hidden
        self.activation = activation
        self.code = code
        self.distil = distil
        self.reduction = reduction
        self.theta = theta
        self.reconstruction = reconstruction
        self.target = target
        self.scaling = scaling
        self.output = output
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.epochs = epochs
        self.batch_size = batch_size
        self.dropout = dropout
        self.held_out = held_out
        self.members = members
        self.stretch = stretch
        self.block = block
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, partner: Any = None, shared: Any = None) -> Self:  # noqa: N803
        """Find the shared rows, run FedSVD over them, and distil U into an encoder.

        partner and shared stand for the constructor's. Here `shared` may also be a mask, bool
        (rows of X,): the partner's rows then belong to its True ones, in this order.
        """
        ids, own = self._without_ids(X)
        x = validate_data(self, own, dtype=[np.float64, np.float32])
        partner = self.partner if partner is None else partner
        if isinstance(partner, _LeftOut):
            raise DataError(
                "this enricher comes from a pickle, which holds no rows of the partner: give them "
                "again, fit(X, partner=…), or set_params(partner=…, shared=…) before a pipeline"
            )
        partners = partner if isinstance(partner, list | tuple) else [partner]
        partners = [one for one in partners if one is not None]
        mine = None if isinstance(self.shared, _LeftOut) else self.shared
        shareds = mine if shared is None else shared
        if shareds is None or not isinstance(partner, list | tuple):
            shareds = [shareds] * len(partners)
        if len(shareds) != len(partners):
            raise DataError(f"{len(partners)} partners, and `shared` for {len(shareds)}")
        numbered = self.id_column is None and ids is not None and _is_numbered(X.index)
        matched = [
            _matched(x, ids, one, whose, numbered=numbered)
            for one, whose in zip(partners, shareds, strict=True)
        ]
        groups = [matched] if self.together and matched else [[one] for one in matched]
        random = check_random_state(self.random_state)
        self.encoders_: list[Encoder] = []
        self.n_shared_: list[int] = []
        rows = torch.from_numpy(x.astype(np.float64))
        for group in groups or [[]]:
            positions, u = self._federated(rows, group, random.bytes(fedsvd.SEED_BYTES))
            options = self._options(int(random.randint(2**31 - 1)))
            self.encoders_.append(enrich.train(rows, positions, u, options))
            self.n_shared_.append(len(positions))
        return self

    def transform(self, X: Any) -> Array:  # noqa: N803
        """[X | Enc(X)] for any own rows, shared or not; ids are left out, if there are any."""
        check_is_fitted(self, "encoders_")
        _, own = self._without_ids(X, fitted=True)
        x: Array = validate_data(self, own, dtype=[np.float64, np.float32], reset=False)
        rows = torch.from_numpy(x.astype(np.float64))
        codes = [enrich.encode(encoder, rows).numpy() for encoder in self.encoders_]
        return np.hstack([x, *codes] if self.keep else codes).astype(x.dtype, copy=False)

    def __getstate__(self) -> dict[str, Any]:
        """Once it is fitted, without what belongs to the partner."""
        kept: dict[str, Any] = dict(super().__getstate__())
        if "encoders_" in kept:
            kept |= {n: _LeftOut() for n in ("partner", "shared") if kept[n] is not None}
        return kept

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """The own columns' names, then enriched0_0, enriched0_1, … for the first partner."""
        check_is_fitted(self, "encoders_")
        own = _check_feature_names_in(self, input_features) if self.keep else []
        codes = [f"enriched{k}_{j}" for k, e in enumerate(self.encoders_) for j in range(e.width)]
        return np.asarray([*own, *codes], dtype=object)

    def save(self, path: str | Path) -> None:
        """One safetensors file with a JSON header: what `transform` needs, no partner's rows."""
        check_is_fitted(self, "encoders_")
        tensors = {
            f"{k}/{name}": value.contiguous().clone()
            for k, encoder in enumerate(self.encoders_)
            for name, value in encoder.tensors().items()
        }
        names = getattr(self, "feature_names_in_", None)
        header = {
            "format": FORMAT,
            "version": VERSION,
            "parameters": {name: _plain(getattr(self, name)) for name in self._saved_names()},
            "features": int(self.n_features_in_),
            "feature_names": None if names is None else [str(name) for name in names],
            "shared": self.n_shared_,
            "encoders": [dataclasses.asdict(encoder.options) for encoder in self.encoders_],
        }
        save_file(tensors, Path(path), metadata={"header": json.dumps(header)})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """What `save` wrote, fitted; nothing in the file is executed."""
        header, tensors = _read(Path(path))
        try:
            enricher = cls(**header["parameters"])
            enricher.n_features_in_ = int(header["features"])
            if header["feature_names"] is not None:
                enricher.feature_names_in_ = np.asarray(header["feature_names"], dtype=object)
            enricher.n_shared_ = [int(count) for count in header["shared"]]
            enricher.encoders_ = [
                enrich.restored(
                    Enricher(**options),
                    {
                        n.removeprefix(f"{k}/"): t
                        for n, t in tensors.items()
                        if n.startswith(f"{k}/")
                    },
                )
                for k, options in enumerate(header["encoders"])
            ]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataCorrupt(f"{path}: not a whole VerticalEnricher ({error})") from error
        return enricher

    @classmethod
    def _saved_names(cls) -> list[str]:
        return [n for n in cls._get_param_names() if n not in ("partner", "shared")]

    def _options(self, seed: int) -> Enricher:
        names = {field.name for field in dataclasses.fields(Enricher)} - {"seed"}
        return Enricher(seed=seed, **{name: getattr(self, name) for name in names})

    def _federated(
        self, own: Tensor, group: Sequence[tuple[Array, Tensor]], seed: bytes
    ) -> tuple[Tensor, Tensor]:
        """The rows that the whole group shares with us, as positions, and their U."""
        if not group:
            return torch.empty(0, dtype=torch.int64), torch.empty(0, self.q)
        common = group[0][0]
        for positions, _ in group[1:]:
            common = np.intersect1d(common, positions)
        if not len(common):
            raise DataError("there is no row that all partners share with us: try together=False")
        rows = torch.from_numpy(common)
        matrices = [fedsvd.standardised(own[rows])]
        for positions, theirs in group:
            place = np.searchsorted(positions, common)  # both ascend
            matrices.append(fedsvd.standardised(theirs[torch.from_numpy(place)]))
        return rows, fedsvd.left_vectors_of(matrices, self.q, seed=seed, block=self.block)

    def _without_ids(self, X: Any, *, fitted: bool = False) -> tuple[list[Hashable] | None, Any]:  # noqa: N803
        """The ids of the rows, or None if there are none; and X without the column of ids."""
        framed = hasattr(X, "columns") and hasattr(X, "index")
        if self.id_column is None:
            return (list(X.index) if framed else None), X
        if framed:
            name = X.columns[self.id_column] if isinstance(self.id_column, int) else self.id_column
            if name in X.columns and not (fitted and X.shape[1] == self.n_features_in_):
                return list(X[name]), X.drop(columns=[name])
            if fitted:  # new rows need no ids
                return None, X
            raise DataError(f"X has no column '{name}' for the ids")
        array = np.asarray(X)
        if fitted and array.ndim == 2 and array.shape[1] == self.n_features_in_:
            return None, X
        if not isinstance(self.id_column, int) or array.ndim != 2:
            raise DataError(f"id_column = {self.id_column!r}: for an array, the column's number")
        return array[:, self.id_column].tolist(), np.delete(array, self.id_column, axis=1)


class FederatedEnricher(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """[x | Enc(x)], by the encoder that a run of the method vfedtrans has taught its task party.

    Parameters
    ----------
    run : str or Path
        The run's folder, or the task party's own where it took part in a process of its own.
    keep : bool, default=True
        Own columns first, as the run prepared them; False: what the encoder makes alone.

    Nothing is learnt in `fit`: the run has, and its rows with it. So give `fit` and `predict` rows
    that were not among its training rows if a score is to be honest, or labels of another task.
    X is a DataFrame with the run's columns, in any order and among others; or an array of just
    these. Text becomes categories and gaps are filled as in the run.
    """

    def __init__(self, run: str | Path, *, keep: bool = True) -> None:
        self.run = run
        self.keep = keep

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Read the run, and see whether X fits it."""
        self._read()
        self.n_features_in_ = self._prepared(X).shape[1]
        return self

    def _read(self) -> None:
        trained = load(self.run)
        method = trained.config.found.method.name
        if method != "vfedtrans":
            raise DataError(f"{self.run} was trained by {method}: there is no encoder in it")
        (self.party_,) = (n for n, role in trained.result["roles"].items() if role == "task")
        saved = trained.saved(self.party_)
        options = trained.config.options.enricher(0)
        self.trained_, self.encoder_ = trained, Enriched(math.prod(saved["shape"]), options)
        self.encoder_.load_state_dict(saved["weights"]["encoder"])

    def transform(self, X: Any) -> Array:  # noqa: N803
        """[x | Enc(x)] for any own rows."""
        check_is_fitted(self, "encoder_")
        own = self._prepared(X)
        with torch.no_grad():
            found: Array = self.encoder_(own).numpy()
        return found if self.keep else found[:, own.shape[1] :]

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """x0, x1, … for the columns as the run prepared them, then enriched0, enriched1, …"""
        check_is_fitted(self, "encoder_")
        own = [f"x{n}" for n in range(self.n_features_in_)] if self.keep else []
        codes = [f"enriched{n}" for n in range(self.encoder_.width)]
        return np.asarray([*own, *codes], dtype=object)

    def __getstate__(self) -> dict[str, Any]:
        """Only the path of the run: its folder must still exist when this is loaded."""
        kept: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in kept.items() if name not in ("trained_", "encoder_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "party_"):
            self._read()

    def _prepared(self, X: Any) -> Tensor:  # noqa: N803
        return self.trained_.prepared(self.party_, X).flatten(1)


def _matched(
    x: Array, ids: list[Hashable] | None, partner: Any, shared: Any, *, numbered: bool
) -> tuple[Array, Tensor]:
    """Positions of the own rows that the partner has, ascending, and its rows for them.

    numbered  the ids of the own rows may be positions
    """
    theirs = check_array(partner, dtype=np.float64, input_name="partner")
    mask = None if shared is None else np.asarray(shared)
    if mask is not None and mask.dtype == bool:
        if mask.shape != (len(x),) or mask.sum() != len(theirs):
            raise DataError(
                f"a mask of {mask.shape} with {mask.sum()} shared rows, for {len(x)} own rows and "
                f"{len(theirs)} of the partner. In a cross-validation rows need ids: see `shared`"
            )
        return np.flatnonzero(mask), torch.tensor(theirs)
    if ids is None:
        raise DataError(
            "nothing says who the rows of X are, so they cannot be matched with the partner's. "
            "Give a DataFrame with an index, or id_column, or fit(X, partner=…, shared=mask). In a "
            "pipeline, set_output(transform='pandas') on the steps before keeps the index"
        )
    if numbered:
        raise DataError(
            "the index of X has whole numbers and no name, so nothing says whether these are ids "
            "or positions: give it ids, X.set_index('customer'), or id_column; or, if they are "
            "ids, X.rename_axis('customer')"
        )
    if shared is None and not hasattr(partner, "index"):
        raise DataError("nothing says who the partner's rows are: give `shared`, an id for each")
    if shared is None and _is_numbered(partner.index):
        raise DataError(
            "the partner's index has whole numbers and no name, so nothing says whether these are "
            "ids or positions: give it ids, partner.set_index('customer'); or, if they are ids, "
            "partner.rename_axis('customer'); or `shared`, an id for each row"
        )
    given = list(partner.index) if shared is None else np.asarray(shared).tolist()
    if len(given) != len(theirs):
        raise DataError(f"the partner has {len(theirs)} rows, and `shared` {len(given)} ids")
    whose = normalise(given, "partner", most=max(1, len(given)))
    own_ids = normalise(ids, "X", most=max(1, len(ids)))
    places = {who: place for place, who in enumerate(whose)}
    found = [(own, places[who]) for own, who in enumerate(own_ids) if who in places]
    if not found:
        raise DataError(
            f"none of the {len(ids)} ids of X is among the partner's {len(whose)}: they begin with "
            f"{own_ids[:3]} and {whose[:3]}. Has a step before changed the ids?"
            f"{_doubts(own_ids, whose)}"
        )
    own_places, their_places = (np.asarray(side) for side in zip(*found, strict=True))
    return own_places, torch.from_numpy(theirs[their_places])


def _doubts(own: list[str], theirs: list[str]) -> str:
    """What looks as if a program had changed the ids of one side."""
    sides = (("X", own), ("the partner", theirs))
    return "".join(f" Of {side}, {doubt}." for side, ids in sides for doubt in doubts(ids))


def _is_numbered(index: Any) -> bool:
    """Whether this may be a table's default index, or what a fold has left of one."""
    return index.name is None and getattr(index.dtype, "kind", "O") in "iu"


def _plain(value: Any) -> Any:
    """A parameter as JSON has it; a generator is not kept."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, bool | int | float | str) else None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("header", "{}"))
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise DataCorrupt(f"{path}: a safetensors file, but not of a VerticalEnricher")
            if header.get("version") != VERSION:
                raise DataError(
                    f"{path}: written in version {header.get('version')} of the format; this "
                    f"Colonnade reads version {VERSION}. Fit and save the enricher again"
                )
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise DataCorrupt(f"{path}: cannot be read as a VerticalEnricher ({error})") from error
