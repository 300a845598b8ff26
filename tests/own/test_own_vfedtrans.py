"""VFedTrans on two files: all rows of the task party are used, the common ones teach."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import colonnade
from colonnade.errors import ColonnadeError
from colonnade.methods import vfedtrans
from colonnade.methods.parts import enrichment as enrich
from colonnade.privacy import fedsvd

ROWS, OVER, Q = 150, 90, 1
KINDS = [kind.name for kind in vfedtrans.METHOD.kinds]


def people(seed: int = 1) -> dict[str, tuple[list[str], Any, list[str]]]:
    """ids, features and labels of a bank and a shop, in orders of their own."""
    draw = np.random.default_rng(seed)
    names = [f"person {n}" for n in range(2 * ROWS - OVER)]
    x = draw.normal(size=(len(names), 9)) + 50
    y = ["good" if row[0] + row[6] > 100 else "bad" for row in x]
    mine = draw.permutation(ROWS)
    theirs = draw.permutation(np.arange(ROWS - OVER, len(names)))
    return {
        "bank": ([names[n] for n in mine], x[mine][:, :4], [y[n] for n in mine]),
        "shop": ([names[n] for n in theirs], x[theirs][:, 4:], [y[n] for n in theirs]),
    }


def write(folder: Path, options: str = "", **changes: Any) -> Path:
    for party, (ids, x, labels) in people().items():
        lines = ["customer," + ",".join(f"{party}{n}" for n in range(x.shape[1]))]
        lines += [f"{who}," + ",".join(map(repr, map(float, row))) for who, row in zip(ids, x)]  # noqa: B905
        if party == "bank":
            lines = [f"{a},{b}" for a, b in zip(lines, ["verdict", *labels], strict=True)]
        (folder / f"{party}.csv").write_text("\n".join(lines) + "\n")
    settings = {"method": '"vfedtrans"', "epochs": 2, "batch_size": 32} | changes
    top = "\n".join(f"{key} = {value}" for key, value in settings.items())
    (folder / "run.toml").write_text(
        f"""{top}
[vfedtrans]
q = {Q}
hidden = 16
distil_epochs = 3
block = 20
{options}
[parties.bank]
data = "bank.csv"
id = "customer"
label = "verdict"
[parties.shop]
data = "shop.csv"
id = "customer"
"""
    )
    return folder / "run.toml"


def test_common_training_rows_teach_and_all_own_rows_are_used(tmp_path: Path) -> None:
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    matrices: list[Tensor] = []
    train, mask = enrich.train, fedsvd.mask_matrix

    def watched(x: Tensor, shared: Tensor, target: Tensor, options: Any) -> enrich.Encoder:
        if len(shared):
            seen.append((x, shared, target))
        return train(x, shared, target, options)

    def masked(matrix: Tensor, a: Any, b: Any) -> Tensor:
        matrices.append(matrix)
        return mask(matrix, a, b)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enrich, "train", watched)
        patch.setattr(fedsvd, "mask_matrix", masked)
        result = colonnade.run(write(tmp_path), out=tmp_path / "run")
    facts = result.content["data"]
    assert facts["common_rows"] == OVER and facts["own_rows"] == {"bank": ROWS, "shop": ROWS}
    assert facts["train_rows"] + facts["test_rows"] == ROWS
    ((x, shared, target),) = seen
    assert len(x) == facts["train_rows"] and 2 <= len(shared) < OVER
    assert [matrix.shape for matrix in matrices] == [(len(shared), 4), (len(shared), 5)]
    # By hand: whose rows these are, at the bank and at the shop.
    (ids, own, _), (other_ids, theirs, _) = people().values()
    common = set(ids) & set(other_ids)
    assert torch.allclose(matrices[0], fedsvd.standardised(x[shared]))

    def who(matrix: Tensor, names: list[str], values: Any) -> list[str]:
        scaled = fedsvd.standardised(matrix)
        places = {name: place for place, name in enumerate(names)}
        best = {}
        for name in common:
            best[name] = torch.tensor(values[places[name]])
        order = torch.stack(list(best.values()))
        order = (order - order.mean(0)) / order.std(0)
        near = torch.cdist(scaled, order).argmin(1)
        return [list(best)[int(n)] for n in near]

    assert who(matrices[0], ids, own) == who(matrices[1], other_ids, theirs)
    u, _, _ = torch.linalg.svd(torch.cat(matrices, 1), full_matrices=False)
    assert float((target - fedsvd.fix_signs(u)[:, :Q]).abs().max()) < 1e-3


def test_the_same_bits_in_processes_and_nothing_of_the_files_on_the_wire(tmp_path: Path) -> None:
    file = write(tmp_path, record=json.dumps([*KINDS, "psi_points", "psi_places"]))
    here = colonnade.run(file, out=tmp_path / "here")
    recorded = b"".join(
        path.read_bytes()
        for path in sorted((tmp_path / "here" / "record").rglob("*"))
        if path.is_file()
    )
    assert len(recorded) > 10_000 and b"person" not in recorded
    for _, x, _ in people().values():
        for column in np.asarray(x).T:
            for values in (column, (column - column.mean()) / column.std()):
                for kind in (np.float32, np.float64):
                    raw = values.astype(kind)
                    assert not any(raw[n : n + 2].tobytes() in recorded for n in range(ROWS - 1))
    # Without a recording, which belongs to one process.
    (tmp_path / "p").mkdir()
    there = colonnade.run(write(tmp_path / "p"), out=tmp_path / "there", runtime="process")
    assert here.weights_sha256 == there.weights_sha256 and here.metrics == there.metrics
    assert here.content["data"]["common_rows"] == there.content["data"]["common_rows"]


def test_the_task_party_predicts_new_rows_alone(tmp_path: Path) -> None:
    result = colonnade.run(write(tmp_path), out=tmp_path / "run")
    new = tmp_path / "new.csv"
    lines = (tmp_path / "bank.csv").read_text().splitlines()[:21]
    new.write_text("\n".join(line.rsplit(",", 1)[0] for line in lines) + "\n")
    run = colonnade.load(result.path)
    (predicted,) = run.predict(run.read_files({"bank": new})).values()
    assert len(predicted) == 20 and predicted.party == "bank"
    assert list(predicted.names) == people()["bank"][0][:20]


def test_too_little_in_common_is_said(tmp_path: Path) -> None:
    file = write(tmp_path)
    lines = (tmp_path / "shop.csv").read_text().splitlines()
    ids = set(people()["bank"][0])
    kept = [line for line in lines[1:] if line.split(",")[0] not in ids]
    (tmp_path / "shop.csv").write_text("\n".join([lines[0], *kept]) + "\n")
    with pytest.raises(ColonnadeError, match="common"):
        colonnade.run(file, out=tmp_path / "run")


def test_what_a_run_has_learnt_is_a_step_of_a_pipeline(tmp_path: Path) -> None:
    """From the folder of a run, and from that of the task party's own process."""
    pandas = pytest.importorskip("pandas")
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from colonnade.sklearn import FederatedEnricher

    result = colonnade.run(write(tmp_path), out=tmp_path / "run", runtime="process")
    bank = pandas.read_csv(tmp_path / "bank.csv")
    columns = [f"bank{n}" for n in range(4)]
    enricher = FederatedEnricher(result.path).fit(bank)
    found = enricher.transform(bank)
    assert found.shape == (ROWS, 4 + Q)
    assert list(enricher.get_feature_names_out())[3:5] == ["x3", "enriched0"]
    assert np.array_equal(enricher.transform(bank[columns[::-1]]), found)
    assert np.array_equal(enricher.transform(bank[columns].to_numpy()), found)
    alone = FederatedEnricher(result.path / "parties" / "bank", keep=False).fit(bank)
    assert np.array_equal(alone.transform(bank), found[:, 4:])
    # By hand: what the run's own network is given for its test rows.
    trained = colonnade.load(result.path)
    own = trained.prepared("bank", bank)
    assert np.array_equal(found[:, :4], own.numpy())
    model = make_pipeline(clone(enricher), LogisticRegression(max_iter=500))
    model.fit(bank, bank["verdict"])
    assert set(model.predict(bank)) <= {"good", "bad"}
    again = copy.deepcopy(model)  # what is kept of it is where the run lies
    assert list(again.predict(bank)) == list(model.predict(bank))
    with pytest.raises(ColonnadeError, match=r"missing: \['bank3'\]"):
        enricher.transform(bank.drop(columns="bank3"))
    other = colonnade.run(write(tmp_path, method='"local"'), out=tmp_path / "other")
    with pytest.raises(ColonnadeError, match="trained by local"):
        FederatedEnricher(other.path).fit(bank)


@pytest.mark.parametrize("method", ["vfedtrans", "splitnn", "local", "centralised"])
def test_predicted_test_rows_have_the_ids_of_their_file(method: str, tmp_path: Path) -> None:
    """Whoever joins predictions with the file by id must find the same people."""
    file = write(tmp_path, method=f'"{method}"')
    run = colonnade.load(colonnade.run(file, out=tmp_path / "run").path)
    (found,) = [p for p in run.predict().values() if p.party in ("bank", "all")]
    ids, _, labels = people()["bank"]
    assert found.names and set(found.names) <= set(ids)
    true = [found.classes[code] for code in run.labels().tolist()]
    assert [labels[ids.index(name)] for name in found.names] == true
    if method == "vfedtrans":
        again = run.predict(run.read_files({"bank": tmp_path / "bank.csv"}))["bank"]
        place = [again.names.index(name) for name in found.names]
        assert torch.equal(again.probabilities[place], found.probabilities)


def test_one_class_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path)
    text = (tmp_path / "bank.csv").read_text().replace(",bad", ",good")
    (tmp_path / "bank.csv").write_text(text)
    with pytest.raises(ColonnadeError, match=r"'bank': .*'verdict': the labels of all .* 'good'"):
        colonnade.run(file, out=tmp_path / "run")


def test_a_mistyped_key_of_a_party_gets_the_right_one(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text() + 'delimeter = ";"\n')
    with pytest.raises(ColonnadeError, match=r"'delimeter' in \[parties.shop\]: .*'delimiter'"):
        colonnade.run(file, out=tmp_path / "run")
