"""VerticalEnricher: scikit-learn's own checks, and the right rows matched whatever the fold."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from colonnade.errors import DataCorrupt, DataError
from colonnade.privacy import fedsvd
from colonnade.sklearn import VerticalEnricher

Array = NDArray[Any]
QUICK: dict[str, Any] = {"q": 4, "hidden": 16, "epochs": 3, "batch_size": 50, "random_state": 0}


def expected_failures(estimator: VerticalEnricher) -> dict[str, str]:
    return {}  # none: without a partner it is a plain transformer


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [VerticalEnricher(epochs=1), VerticalEnricher(epochs=1, q=2, keep=False, output="both")],
    expected_failed_checks=expected_failures,
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def people(rows: int = 300, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """Own columns, a partner's for two thirds of the people in another order, and labels."""
    random = np.random.default_rng(seed)
    hidden = random.normal(size=(rows, 3))
    own = np.tanh(hidden @ random.normal(size=(3, 5))) + 0.1 * random.normal(size=(rows, 5))
    other = hidden @ random.normal(size=(3, 8)) + 0.1 * random.normal(size=(rows, 8))
    names = [f"person{n:03d}" for n in random.permutation(rows)]
    bank = pd.DataFrame(own, index=names, columns=[f"own{c}" for c in range(5)])
    hospital = pd.DataFrame(other, index=names).iloc[random.permutation(rows)[: 2 * rows // 3]]
    return bank, hospital, pd.Series((hidden[:, 0] > 0).astype(int), index=names)


def enriched(bank: Any, **settings: Any) -> Array:
    return np.asarray(VerticalEnricher(**{**QUICK, **settings}).fit(bank).transform(bank))


def test_own_columns_then_codes() -> None:
    bank, hospital, _ = people()
    found = enriched(bank, partner=hospital)
    assert found.shape == (300, 5 + 4)
    assert np.array_equal(found[:, :5], bank.to_numpy())
    assert np.array_equal(enriched(bank, partner=hospital, keep=False), found[:, 5:])
    assert np.array_equal(enriched(bank, partner=hospital), found)  # the same random_state
    assert not np.array_equal(enriched(bank, partner=hospital, random_state=1), found)
    assert not np.array_equal(enriched(bank), found)  # nobody to learn from


def test_it_runs_the_masked_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """U is FedSVD's over both parties' standardised shared rows, in one order."""
    bank, hospital, _ = people()
    seen: list[Any] = []
    true = fedsvd.left_vectors_of

    def watched(matrices: Any, q: int, **more: Any) -> Any:
        seen.append(matrices)
        return true(matrices, q, **more)

    monkeypatch.setattr(fedsvd, "left_vectors_of", watched)
    VerticalEnricher(hospital, **QUICK).fit(bank)
    ((own, theirs),) = seen
    common = [name for name in bank.index if name in hospital.index]
    for found, frame in ((own, bank.loc[common]), (theirs, hospital.loc[common])):
        assert np.allclose(found, StandardScaler().fit_transform(frame), atol=1e-12)


def test_all_ways_to_say_who_is_who_agree() -> None:
    bank, hospital, _ = people()
    by_index = enriched(bank, partner=hospital)
    ids = hospital.index.to_numpy()
    assert np.array_equal(enriched(bank, partner=hospital.to_numpy(), shared=ids), by_index)
    # A column of a DataFrame, by name and by place.
    column = bank.reset_index(names="who")
    assert np.array_equal(enriched(column, partner=hospital, id_column="who"), by_index)
    assert np.array_equal(enriched(column, partner=hospital, id_column=0), by_index)
    # Numbers in a column of an array.
    numbers = {name: n for n, name in enumerate(bank.index)}
    array = np.column_stack([bank.to_numpy(), np.arange(300)])
    shared = [numbers[name] for name in hospital.index]
    settings = {"partner": hospital.to_numpy(), "shared": shared, "id_column": 5}
    assert np.array_equal(enriched(array, **settings), by_index)
    # A mask, in `fit` alone.
    mask = bank.index.isin(hospital.index)
    ordered = hospital.loc[bank.index[mask]].to_numpy()
    model = VerticalEnricher(**QUICK).fit(bank.to_numpy(), partner=ordered, shared=mask)
    assert np.array_equal(model.transform(bank.to_numpy()), by_index)


def test_together_all_parties_rows_are_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, hospital, _ = people()
    shop = pd.DataFrame(np.arange(200.0)[:, None], index=bank.index[50:250])
    seen: list[Any] = []
    true = fedsvd.left_vectors_of

    def watched(matrices: Any, q: int, **more: Any) -> Any:
        seen.append(matrices)
        return true(matrices, q, **more)

    monkeypatch.setattr(fedsvd, "left_vectors_of", watched)
    VerticalEnricher([hospital, shop], together=True, **QUICK).fit(bank)
    common = [who for who in bank.index if who in hospital.index and who in shop.index]
    assert 100 < len(common) < 200 and len(seen) == 1
    for found, frame in zip(seen[0], (bank, hospital, shop), strict=True):
        assert np.allclose(found, StandardScaler().fit_transform(frame.loc[common]), atol=1e-12)


def test_folds_match_the_right_people(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, hospital, y = people()
    bank["key"] = hospital[0].reindex(bank.index).fillna(0.0)  # its column 0, to recognise a row
    pairs: list[tuple[Any, Any]] = []
    true = fedsvd.left_vectors_of

    def watched(matrices: Any, q: int, **more: Any) -> Any:
        pairs.append((matrices[0][:, 5], matrices[1][:, 0]))
        return true(matrices, q, **more)

    monkeypatch.setattr(fedsvd, "left_vectors_of", watched)
    model = make_pipeline(
        StandardScaler().set_output(transform="pandas"),
        VerticalEnricher(hospital, **QUICK),
        LogisticRegression(),
    )
    scores = cross_val_score(model, bank, y, cv=3, error_score="raise")
    assert scores.min() > 0.7
    assert len(pairs) == 3
    for own, theirs in pairs:
        assert 100 < len(own) < 200  # of this fold only
        assert np.allclose(own, theirs, atol=1e-9)


def test_grid_search_and_clone() -> None:
    bank, hospital, y = people(150)
    model = make_pipeline(VerticalEnricher(hospital, **QUICK), KNeighborsClassifier(8))
    grid = {"verticalenricher__q": [2, 3], "verticalenricher__theta": [0.0, 10.0]}
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(bank, y)
    assert search.best_estimator_[0].n_shared_ == [100]
    assert search.predict(bank).shape == (150,)
    copy = clone(VerticalEnricher(hospital, q=7))
    assert copy.q == 7 and copy.partner.equals(hospital)


def test_new_rows_need_no_partner_and_no_ids() -> None:
    bank, hospital, _ = people()
    column = bank.reset_index(names="who")
    model = VerticalEnricher(hospital, id_column="who", **QUICK).fit(column.iloc[:200])
    with_ids = model.transform(column.iloc[200:])
    without = model.transform(bank.iloc[200:].reset_index(drop=True))
    assert np.array_equal(with_ids, without) and with_ids.shape == (100, 9)
    array = np.column_stack([np.arange(300), bank.to_numpy()])
    model = VerticalEnricher(hospital.to_numpy(), list(range(200)), 0, **QUICK).fit(array)
    assert np.array_equal(model.transform(array), model.transform(array[:, 1:]))


def test_several_partners() -> None:
    bank, hospital, _ = people()
    shop = pd.DataFrame(hospital.to_numpy()[::-1, :3], index=bank.index[:200])
    apart = VerticalEnricher([hospital, shop], **QUICK).fit(bank)
    assert apart.n_shared_ == [200, 200]
    assert apart.transform(bank).shape == (300, 5 + 2 * 4)
    assert list(apart.get_feature_names_out()[4:7]) == ["own4", "enriched0_0", "enriched0_1"]
    alone = VerticalEnricher(hospital, **QUICK).fit(bank)
    assert np.array_equal(apart.transform(bank)[:, :9], alone.transform(bank))
    together = VerticalEnricher([hospital, shop], together=True, **QUICK).fit(bank)
    assert together.n_shared_ == [len(set(hospital.index) & set(shop.index))]
    assert together.transform(bank).shape == (300, 9)
    arrays = VerticalEnricher(
        [hospital.to_numpy(), shop.to_numpy()], [list(hospital.index), list(shop.index)], **QUICK
    )
    assert np.array_equal(arrays.fit(bank).transform(bank), apart.transform(bank))


def test_names_and_output() -> None:
    bank, hospital, _ = people()
    model = VerticalEnricher(hospital, **QUICK).set_output(transform="pandas")
    frame = model.fit_transform(bank)
    assert list(frame.columns) == [*bank.columns, *(f"enriched0_{k}" for k in range(4))]
    assert list(frame.index) == list(bank.index)
    assert model.n_features_in_ == 5


@pytest.mark.parametrize("settings", [{}, {"keep": False, "output": "both"}, {"id_column": 0}])
def test_save_and_load(settings: dict[str, Any], tmp_path: Path) -> None:
    bank, hospital, _ = people()
    rows = bank.reset_index(names="who") if settings.get("id_column") == 0 else bank
    model = VerticalEnricher([hospital, hospital], **QUICK, **settings).fit(rows)
    model.save(tmp_path / "enricher")
    again = VerticalEnricher.load(tmp_path / "enricher")
    assert np.array_equal(again.transform(rows), model.transform(rows))
    assert list(again.get_feature_names_out()) == list(model.get_feature_names_out())
    assert again.n_shared_ == [200, 200] and again.q == 4 and again.partner is None
    assert not any(
        name in (tmp_path / "enricher").read_bytes().decode("latin1") for name in bank.index
    )


def test_other_files_are_refused(tmp_path: Path) -> None:
    bank, hospital, _ = people()
    path = tmp_path / "enricher.safetensors"
    VerticalEnricher(hospital, **QUICK).fit(bank).save(path)
    tensors = load_file(path)
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(json.loads(raw[8 : 8 + size])["__metadata__"]["header"])

    def changed(**changes: Any) -> Path:
        save_file(tensors, path, metadata={"header": json.dumps({**header, **changes})})
        return path

    VerticalEnricher.load(changed())
    with pytest.raises(DataError, match=r"version 2 of the format; this Colonnade reads version 1"):
        VerticalEnricher.load(changed(version=2))
    broken: list[dict[str, Any]] = [
        {"format": "other"},
        {"encoders": [{}]},
        {"parameters": {"colour": 1}},
    ]
    for spoilt in broken:
        with pytest.raises(DataCorrupt, match="VerticalEnricher"):
            VerticalEnricher.load(changed(**spoilt))
    save_file(tensors, path)
    with pytest.raises(DataCorrupt, match="not of a VerticalEnricher"):
        VerticalEnricher.load(path)
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(DataCorrupt, match="cannot be read"):
        VerticalEnricher.load(path)
    with pytest.raises(DataCorrupt, match="cannot be read"):
        VerticalEnricher.load(tmp_path / "nowhere")


def test_rows_that_cannot_be_matched_are_refused() -> None:
    bank, hospital, _ = people(60)
    array, theirs = bank.to_numpy(), hospital.to_numpy()
    mask = np.zeros(60, bool)
    mask[:40] = True

    def refused(
        message: str, rows: Any, fit: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        with pytest.raises(DataError, match=message):
            VerticalEnricher(**{**QUICK, **settings}).fit(rows, **fit or {})

    refused("nothing says who the rows of X are", array, partner=hospital)
    refused("nothing says who the partner's rows are", bank, partner=theirs)
    refused("none of the 60 ids", bank.rename(lambda name: f"no {name}"), partner=hospital)
    refused("'X' has 60 rows that repeat an earlier id", pd.concat([bank] * 2), partner=hospital)
    twice = pd.concat([hospital, hospital])
    refused("'partner' has 40 rows that repeat an earlier id", bank, partner=twice)
    refused(
        "'X' has 1 ids that are empty: row 3", bank.rename({bank.index[3]: ""}), partner=hospital
    )
    refused("40 rows, and `shared` 3 ids", bank, partner=theirs, shared=["a", "b", "c"])
    refused("2 partners, and `shared` for 1", bank, partner=[theirs, theirs], shared=[["a"]])
    refused("need ids", array[:50], fit={"partner": theirs, "shared": mask})
    refused("need ids", array, fit={"partner": theirs[1:], "shared": mask})
    refused("no column 'who'", bank, partner=hospital, id_column="who")
    refused("the column's number", array, partner=hospital, id_column="who")
    halves = [hospital.iloc[:20], hospital.iloc[20:]]
    refused("no row that all partners share", bank, partner=halves, together=True)
    with pytest.raises(ValueError, match="NaN"):
        VerticalEnricher(hospital * np.nan, **QUICK).fit(bank)


def test_it_helps_where_the_partner_knows_more() -> None:
    """Two of twelve own columns matter, and the partner's rows tell which: local rows gain."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=(1600, 2))
    own = np.hstack([hidden, 2 * random.normal(size=(1600, 10))])
    people = pd.Index([f"person {n}" for n in range(1600)])
    bank = pd.DataFrame(StandardScaler().fit_transform(own), people)
    seen = hidden @ random.normal(size=(2, 6)) + 0.1 * random.normal(size=(1600, 6))
    clinic = pd.DataFrame(seen, people)
    y = (hidden.prod(1) > 0).astype(int)
    labelled, tested = slice(600, 800), slice(800, 1600)  # neither is shared
    scores = {}
    for theta in (0.0, 10.0):
        model = VerticalEnricher(
            clinic.iloc[:600], theta=theta, q=2, hidden=64, epochs=20, random_state=0
        ).fit(bank.iloc[:800])
        rows = model.transform(bank)
        knn = KNeighborsClassifier(8).fit(rows[labelled], y[labelled])
        scores[theta] = knn.score(rows[tested], y[tested])
    assert scores[10.0] > scores[0.0] + 0.05, scores


def test_positions_are_not_taken_for_ids() -> None:
    """Of two tables just read from files, row 0 of one is not row 0 of the other; and customer 7
    of one is not row 7 of the other, nor what a fold has left of a numbered table."""
    random = np.random.default_rng(0)
    bank, clinic = (pd.DataFrame(random.normal(size=(40, 3))) for _ in range(2))
    customers = clinic.set_index(pd.Index(range(10, 50), name="customer"))
    quick = {"q": 2, "epochs": 1}
    named = bank.rename_axis("customer")
    with pytest.raises(DataError, match=r"the partner's index has whole numbers and no name.*set_"):
        VerticalEnricher(clinic, **quick).fit(named)
    for rows in (bank, bank.iloc[::2], bank.set_axis(range(100, 140))):
        for partner in (customers, clinic.rename_axis("customer")):
            with pytest.raises(
                DataError, match=r"index of X has whole numbers and no name.*rename"
            ):
                VerticalEnricher(partner, **quick).fit(rows)
        with pytest.raises(DataError, match="index of X has whole numbers and no name"):
            VerticalEnricher(clinic, shared=range(40), **quick).fit(rows)
    assert VerticalEnricher(customers, **quick).fit(named).n_shared_ == [30]
    assert VerticalEnricher(**quick).fit(bank).n_shared_ == [0]  # nobody to be matched with


def test_ids_are_compared_as_in_an_alignment() -> None:
    random = np.random.default_rng(0)
    bank, clinic = (pd.DataFrame(random.normal(size=(30, 3))) for _ in range(2))
    bank = bank.rename_axis("customer")  # 0 to 29
    quick = {"q": 2, "epochs": 1}
    for theirs in (
        [float(n) for n in range(30)],
        [f" {n} " for n in range(30)],
        [chr(0xFF10 + n) if n < 10 else str(n) for n in range(30)],  # full-width digits
    ):
        assert VerticalEnricher(clinic, shared=theirs, **quick).fit(bank).n_shared_ == [30]
    zeros = [f"{n:03d}" for n in range(30)]
    with pytest.raises(DataError, match="none of the 30 ids of X"):
        VerticalEnricher(clinic, shared=zeros, **quick).fit(bank)
    with pytest.raises(DataError, match=r"Of the partner, 30 of 30 ids end in '\.0'"):
        VerticalEnricher(clinic, shared=[f"{n}.0" for n in range(30)], **quick).fit(bank)
    with pytest.raises(DataError, match="'partner' has 1 ids that are neither text nor whole"):
        VerticalEnricher(clinic, shared=[*range(29), 0.5], **quick).fit(bank)


def test_a_pickle_of_a_fitted_enricher_holds_nothing_of_the_partner() -> None:
    bank, hospital, _ = people()
    ids = hospital.index.to_numpy()
    marked = hospital.to_numpy(copy=True)
    marked[7, 3] = 1234.56789  # a number that can be found
    for settings in ({"partner": marked, "shared": ids}, {"partner": [marked], "shared": [ids]}):
        model = VerticalEnricher(**settings, **QUICK).fit(bank)
        raw = pickle.dumps(model)
        assert struct.pack("<d", 1234.56789) not in raw
        assert not any(str(name).encode() in raw for name in ids)
        again = pickle.loads(raw)  # noqa: S301
        assert np.array_equal(again.transform(bank), model.transform(bank))
        with pytest.raises(DataError, match=r"comes from a pickle, .* give them again"):
            clone(again).fit(bank)
        refitted = clone(again).fit(bank, partner=marked, shared=ids)
        assert np.array_equal(refitted.transform(bank), model.transform(bank))
        assert model.partner is settings["partner"]  # nothing was taken from the one in memory


def test_workers_of_a_cross_validation_have_the_partner() -> None:
    bank, hospital, y = people(90)
    unfitted = VerticalEnricher(hospital, **QUICK)
    sent = pickle.loads(pickle.dumps(unfitted))  # noqa: S301
    assert sent.partner.equals(hospital)
    model = make_pipeline(unfitted, LogisticRegression())
    with parallel_config("loky", n_jobs=2):
        scores = cross_val_score(model, bank, y, cv=2, error_score="raise")
    assert np.array_equal(scores, cross_val_score(model, bank, y, cv=2, error_score="raise"))
