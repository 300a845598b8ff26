"""VFedTrans in one process: the task party learns the joint U, and nothing else is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import colonnade
from colonnade.errors import ColonnadeError, ConfigError, MethodError, Untrusted
from colonnade.methods import vfedtrans
from colonnade.methods.parts import enrichment as enrich
from colonnade.methods.parts.enriched import Enriched
from colonnade.methods.parts.enrichment import Enricher
from colonnade.privacy import fedsvd
from colonnade.results.result import Result
from colonnade.role.party import Party
from colonnade.wire import store

ROWS, Q = 150, 2
OPTIONS = {"q": Q, "unsafe_q": True, "hidden": 16, "distil_epochs": 3, "block": 20, "shared": 0.6}


def settings(options: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Three parties with columns of the digits."""
    base: dict[str, Any] = {
        "method": "vfedtrans",
        "seed": 5,
        "epochs": 2,
        "batch_size": 64,
        "model": "mlp",
        "model_options": {"hidden": [12]},
        "data": {"name": "digits", "train_rows": ROWS, "test_rows": 60},
        "partition": {"kind": "columns", "parties": 3},
        "checkpoint": {"epochs": 0},
        "vfedtrans": OPTIONS | (options or {}),
    }
    return base | changes


def run(out: Path, options: dict[str, Any] | None = None, **changes: Any) -> Result:
    return colonnade.run(settings(options, **changes), out=out)


def weights(folder: Path, name: str) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = store.load(folder / "weights" / name)["weights"]
    return found


def same(one: dict[str, dict[str, Tensor]], other: dict[str, dict[str, Tensor]]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[m][k], other[m][k]) for m in one for k in one[m]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("vfedtrans") / "run"
    run(out, strict=True)
    return out


def watched_training(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor, Tensor]]:
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    true = enrich.train

    def train(x: Tensor, shared: Tensor, target: Tensor, options: Enricher) -> enrich.Encoder:
        if len(shared):
            seen.append((x, shared, target))
        return true(x, shared, target, options)

    monkeypatch.setattr(enrich, "train", train)
    return seen


def test_the_task_party_learns_the_joint_u(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched_training(monkeypatch)
    matrices: dict[int, Tensor] = {}
    true = fedsvd.mask_matrix

    def mask_matrix(matrix: Tensor, a: fedsvd.RowMask, b: fedsvd.ColumnMask) -> Tensor:
        matrices[len(matrices)] = matrix
        return true(matrix, a, b)

    monkeypatch.setattr(fedsvd, "mask_matrix", mask_matrix)
    run(tmp_path / "run")
    ((x, shared, target),) = seen
    assert x.shape == (ROWS, 22) and len(shared) == 90 and target.shape == (90, Q)
    assert [len(matrix) for matrix in matrices.values()] == [90] * 3
    # The task party's own matrix is that of its shared rows, in their order.
    assert torch.allclose(matrices[0], fedsvd.standardised(x[shared]))
    u, _, _ = torch.linalg.svd(torch.cat(list(matrices.values()), 1), full_matrices=False)
    due = fedsvd.fix_signs(u)[:, :Q]
    assert float((target - due).abs().max()) <= vfedtrans.GRID / 90**0.5
    assert float((target - due).abs().max()) > 0


def test_fresh_masks_and_equal_weights(folder: Path, tmp_path: Path) -> None:
    run(tmp_path / "again")  # not strict: neither the codec nor the masks change a weight
    first, again = (weights(out, "party1") for out in (folder, tmp_path / "again"))
    assert set(first) == {"encoder", "model"} and same(first, again)
    run(tmp_path / "other", {"theta": 0.0})
    assert not same(first, weights(tmp_path / "other", "party1"))


def test_what_crosses_the_wire(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    sent = [(row["sender"], row["receiver"], row["kind"]) for row in rows if "kind" in row]
    parties = {"party1", "party2", "party3"}
    assert {(s, r) for s, r, kind in sent if kind == "masked_matrix"} == {
        (party, "server") for party in parties
    }
    assert [(s, r) for s, r, kind in sent if kind == "left_vectors"] == [("server", "party1")]
    assert {(s, r) for s, r, kind in sent if kind == "sealed_masks"} == {
        ("key_generator", party) for party in parties
    }
    # Server and key generator never talk; partners only with the task party, about keys.
    assert not {("server", "key_generator"), ("key_generator", "server")} & {m[:2] for m in sent}
    between = {m for m in sent if m[0] in parties and m[1] in parties}
    assert {kind for *_, kind in between} == {"public_keys", "signatures"}
    assert all("party1" in pair for *pair, _ in between)
    assert all(row["phase"] == "train" and row["step"] == 0 for row in rows if "kind" in row)


def test_too_many_columns_of_u_are_refused(tmp_path: Path) -> None:
    """Before anything is sent where all can be counted; by the server where some say the same."""
    with pytest.raises(ConfigError, match=r"q = 80, and the parties have 64 columns .* such as 11"):
        run(tmp_path / "run", {"q": 80})
    with pytest.raises(ColonnadeError, match=r"only \d+ independent columns; q = 63 is too many"):
        run(tmp_path / "rank", {"q": 63, "unsafe_q": True})


@pytest.mark.parametrize("options", [{"shared": 0.0}, {"q": 0}, {"theta": -1.0}, {"dim": 0}])
def test_options_that_make_no_sense(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        run(tmp_path / "run", options)


def test_a_task_party_alone_is_refused() -> None:
    with pytest.raises(MethodError, match="at least one partner"):
        vfedtrans.cast(["bank"], "bank", vfedtrans.VFedTrans())


@pytest.mark.parametrize("stop", [1, 4])  # of 6 batches: in the first epoch, and in the second
def test_a_resumed_run_ends_with_the_same_weights(
    stop: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, checkpoint, count = tmp_path / "run", {"epochs": 1}, 0
    original = Party._set_rates

    def counted(party: Party, done: float) -> None:
        nonlocal count
        count += 1
        if count > stop:
            raise KeyboardInterrupt
        original(party, done)

    with monkeypatch.context() as patch:
        patch.setattr(Party, "_set_rates", counted)
        with pytest.raises(KeyboardInterrupt):
            run(out, checkpoint=checkpoint)
    seen = watched_training(monkeypatch)
    colonnade.run(settings(checkpoint=checkpoint), resume=out)
    assert not seen  # the transfer is not done again
    assert same(weights(out, "party1"), weights(folder, "party1"))


def test_masks_that_do_not_fit_are_refused() -> None:
    """A key generator with a mistake, or worse, is named before anything is masked with them."""
    secret, seed = b"k" * 32, fedsvd.new_seed()
    mask = fedsvd.column_masks(fedsvd.new_seed(), [5, 4], block=3)[0]
    back_seed, back = fedsvd.opened(fedsvd.sealed(seed, mask, secret), secret, 5)
    assert back_seed == seed
    for one, other in zip(
        (*mask.columns, *mask.blocks), (*back.columns, *back.blocks), strict=True
    ):
        assert torch.equal(one, other)
    short = fedsvd.ColumnMask(mask.columns, tuple(block[:1] for block in mask.blocks))
    for bad, said, width in ((seed, mask, 4), (seed[:-1], mask, 5), (seed, short, 5)):
        with pytest.raises(Untrusted, match=f"do not fit {width} columns"):
            fedsvd.opened(fedsvd.sealed(bad, said, secret), secret, width)


def test_epsilon_is_told_and_what_is_sent_is_noisy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every q, and of whole numbers: the partners bring q columns each, which they did not have;
    the task party's code has variance 1 on the shared rows."""
    matrices: list[Tensor] = []
    true = fedsvd.mask_matrix

    def mask_matrix(matrix: Tensor, a: fedsvd.RowMask, b: fedsvd.ColumnMask) -> Tensor:
        matrices.append(matrix)
        return true(matrix, a, b)

    monkeypatch.setattr(fedsvd, "mask_matrix", mask_matrix)
    seen = watched_training(monkeypatch)
    budget = {"q": 3, "unsafe_q": False, "epsilon": 2.0, "delta": 1e-5}
    found = run(tmp_path / "run", budget)
    assert sorted(matrix.shape[1] for matrix in matrices) == [3, 3, 22]
    told = found.content["metrics"]["test"]["epsilon"]
    assert told["party2"] == pytest.approx(2.0, rel=1e-3) and "party1" not in told
    (said,) = [text for text in found.content["warnings"] if "epsilon" in text]
    assert "epsilon = 2, delta = 1e-05: replaced by any other row" in said and "not covered" in said
    ((x, shared, _),) = seen
    encoder = Enriched(22, vfedtrans.VFedTrans(**OPTIONS | budget).enricher(0))
    encoder.load_state_dict(weights(tmp_path / "run", "party1")["encoder"])
    code = encoder(x[shared])[:, 22:]
    assert torch.allclose(code.std(0, correction=0), torch.ones(3).double(), rtol=1e-3)


def test_epsilon_and_unsafe_q_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="omit unsafe_q"):
        run(tmp_path / "run", {"epsilon": 1.0})
