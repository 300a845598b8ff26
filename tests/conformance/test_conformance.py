"""What every method must hold. A new method gets all of this by being registered."""

from __future__ import annotations

import gc
import hashlib
import json
import types
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import interrupt_after

import colonnade
from colonnade import config as configuration
from colonnade import methods
from colonnade.errors import MethodError
from colonnade.journal import Journal
from colonnade.report import load_schema
from colonnade.role.party import Party
from colonnade.runs.run import Result
from colonnade.runtime import local
from colonnade.wire import Kind, codec, ledger, store
from colonnade.wire.gate import Gate
from colonnade.wire.policy import Policy

ALL = methods.names()
COUNTS = (2, 3, 5)


def toy(method: str, parties: int = 3, **changes: Any) -> dict[str, Any]:
    """A small real data set, split over the parties, quick: columns, or parts of images."""
    base: dict[str, Any] = {
        "method": method,
        "name": "toy",
        "seed": 3,
        "epochs": 4,
        "batch_size": 20,
        "data": {"name": "digits", "train_rows": 400, "test_rows": 120},
        "partition": {"kind": "columns", "parties": parties},
    }
    if methods.find(method).method.network.images:
        base["partition"] = {"kind": "strips", "parties": parties}
        base["model_options"] = {"width": 0.2, "fc": [64], "dropout": 0.1}
    if method in SMALL:
        base[method] = SMALL[method]
    return base | changes


SMALL = {
    "adptvfedconv": {"pretrain_epochs": 2, "finetune_epochs": 1, "chunk": 150},
    "vfedtrans": {"unsafe_q": True},  # digits are whole numbers
}


def train(folder: Path, method: str, parties: int = 3, **changes: Any) -> Result:
    return colonnade.run(toy(method, parties, **changes), out=folder)


@pytest.fixture(scope="module", params=ALL)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plain(method: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return train(tmp_path_factory.mktemp(method) / "plain", method)


@pytest.fixture(scope="module")
def strict(method: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    kinds = [kind.name for kind in methods.find(method).method.kinds]
    return train(tmp_path_factory.mktemp(method) / "strict", method, strict=True, record=kinds)


def pooled(method: str) -> bool:
    return methods.find(method).method.rows.pooled(configuration.load(toy(method)).options)


def rows_of(result: Result) -> list[dict[str, Any]]:
    return list(ledger.read(result.path / "ledger.jsonl"))


def test_the_loss_falls_and_beats_guessing(plain: Result) -> None:
    losses = [
        numbers["loss"]
        for row in plain.history
        for numbers in row["parties"].values()
        if "loss" in numbers
    ]
    assert losses[-1] < 0.7 * losses[0]
    assert plain.accuracy is not None
    assert plain.accuracy > 0.4  # ten classes


def test_the_result_fits_its_schema(plain: Result, strict: Result) -> None:
    import jsonschema

    for result in (plain, strict):
        on_disk = json.loads((result.path / "result.json").read_text())
        jsonschema.Draft202012Validator(load_schema()).validate(on_disk)


def test_one_process_per_party_gives_the_same_bits(
    method: str, plain: Result, tmp_path: Path
) -> None:
    if pooled(method):
        pytest.skip("one party holds everything: there is nobody to talk to")
    apart = colonnade.run(toy(method), out=tmp_path / "apart", runtime="process")
    assert apart.content["runtime"] == "process"
    assert apart.weights_sha256 == plain.weights_sha256
    assert apart.metrics == plain.metrics
    for part in ("bytes", "messages", "rounds", "by_kind", "by_party", "by_phase"):
        assert apart.wire[part] == plain.wire[part], part
    told = [{k: v for k, v in row.items() if k != "seconds"} for row in apart.history]
    assert told == [{k: v for k, v in row.items() if k != "seconds"} for row in plain.history]
    truth = colonnade.load(apart.path).labels()
    for name, prediction in colonnade.load(apart.path).predict().items():
        right = int((prediction.codes == truth).sum()) / len(truth)
        assert right == apart.metrics["test"]["per_party"][name]


def test_a_role_sends_what_it_declares(method: str, plain: Result, strict: Result) -> None:
    """A policy is written from it: what is missing there would stop a federation."""
    declared = methods.find(method).method
    options = configuration.load(toy(method)).options
    roles = plain.content["roles"]
    passives = sum(role == "passive" for role in roles.values())
    sent: dict[str, set[str]] = {role: set() for role in roles.values()}
    for flow in [*plain.wire["flows"], *strict.wire["flows"]]:
        sent[roles[flow["sender"]]].add(flow["kind"])
    for role, kinds in sent.items():
        assert {kind.name for kind in declared.sent_by(role, options, passives)} == kinds


def test_strict_gives_the_same_bits(plain: Result, strict: Result) -> None:
    assert strict.weights_sha256 == plain.weights_sha256
    assert strict.wire["bytes"] == plain.wire["bytes"]


def test_only_declared_kinds_with_declared_shapes_cross(method: str, strict: Result) -> None:
    declared = {kind.name: kind for kind in methods.find(method).method.kinds}
    for row in rows_of(strict):
        kind = declared[row["kind"]]
        if kind.shape is None:
            continue
        assert kind.dtype in ("any", row["dtype"])
        assert len(row["shape"]) == len(kind.shape)
        for size, wanted in zip(row["shape"], kind.shape, strict=True):
            assert isinstance(wanted, str) or size == wanted


def test_payloads_are_what_the_ledger_says(strict: Result) -> None:
    recorded = {}
    for file in (strict.path / "record").glob("*.safetensors"):
        recorded.update(store.read_tensors(file))
    tensors = {name.partition("/")[0]: tensor for name, tensor in recorded.items()}
    flat = [row for row in rows_of(strict) if isinstance(row["shape"], list)]
    assert sum(row["bytes"] for row in rows_of(strict)) == strict.wire["bytes"]
    for row in flat:
        encoded = codec.encode(tensors[f"{row['row']:08d}"])
        assert len(encoded) == row["bytes"]
        assert hashlib.sha256(encoded).hexdigest() == row["sha256"]


def test_neither_features_nor_labels_cross(
    strict: Result, method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No recorded tensor holds the values of a party's rows or labels, in any batch."""
    parties = captured_parties(monkeypatch, tmp_path, method)
    private = set()
    for party in parties.values():
        for batch in party.rows("train", size=1) if party.splits else ():
            private.add(batch.x.flatten().numpy().tobytes())
    labels = {tuple(b.y.tolist()) for p in parties.values() if p.labelled for b in p.rows("test")}
    for file in (strict.path / "record").glob("*.safetensors"):
        for tensor in store.read_tensors(file).values():
            assert tuple(tensor.flatten().tolist()) not in labels
            for line in tensor.reshape(len(tensor), -1) if tensor.dim() else []:
                assert line.float().numpy().tobytes() not in private


def test_same_seed_same_ledger_and_weights(method: str, strict: Result, tmp_path: Path) -> None:
    again = train(tmp_path / "again", method, strict=True)
    randomised = {k.name for k in methods.find(method).method.kinds if k.randomised}

    def essence(result: Result) -> list[Any]:
        keys = ("sender", "receiver", "kind", "shape", "dtype", "bytes")
        return [
            [row[key] for key in keys] + [None if row["kind"] in randomised else row["sha256"]]
            for row in rows_of(result)
        ]

    assert essence(again) == essence(strict)
    assert again.weights_sha256 == strict.weights_sha256


def test_another_seed_gives_other_weights(method: str, plain: Result, tmp_path: Path) -> None:
    other = train(tmp_path / "other", method, seed=4)
    assert set(other.weights_sha256.values()).isdisjoint(
        digest for digest in plain.weights_sha256.values() if digest != EMPTY
    )


EMPTY = hashlib.sha256(codec.encode({})).hexdigest()  # a party without a model


@pytest.mark.parametrize("stop", [1, 19, 20, 33, 61, 75])
def test_resume_equals_uninterrupted(
    method: str, stop: int, plain: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at batch `stop` of some party, with a checkpoint every 4 steps, then resumed."""
    checkpoint = {"epochs": 1, "steps": 4}
    if stop == 75 and method == "adptvfedconv":
        stop = 90  # after its phases of pre-training, fine-tuning and upload
    with monkeypatch.context() as patch:
        interrupt_after(patch, stop)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run", method, checkpoint=checkpoint)
    stopped = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stopped["status"] == "stopped"
    resumed = colonnade.run(toy(method, checkpoint=checkpoint), resume=tmp_path / "run")
    assert resumed.weights_sha256 == plain.weights_sha256
    assert resumed.metrics == plain.metrics
    assert resumed.wire["rounds"] == plain.wire["rounds"]
    without_time = [{k: v for k, v in row.items() if k != "seconds"} for row in plain.history]
    assert [{k: v for k, v in r.items() if k != "seconds"} for r in resumed.history] == without_time


@pytest.mark.parametrize("count", COUNTS)
def test_any_number_of_parties(method: str, count: int, tmp_path: Path) -> None:
    if count == 2 and refuses_two(method):
        with pytest.raises(MethodError):
            train(tmp_path / "run", method, parties=count, epochs=1)
        return
    result = train(tmp_path / "run", method, parties=count, epochs=1)
    if not pooled(method):
        assert len(result.content["parties"]) >= count


def test_prediction_repeats_the_last_evaluation(plain: Result) -> None:
    predictions = colonnade.load(plain.path).predict()
    truth = colonnade.load(plain.path).labels()
    for name, accuracy in plain.metrics["test"]["per_party"].items():
        assert float((predictions[name].codes == truth).double().mean()) == accuracy


def test_a_party_may_be_absent_or_the_method_says_no(method: str, tmp_path: Path) -> None:
    result = train(tmp_path / "run", method, parties=4, epochs=2)
    passives = [name for name, role in result.content["roles"].items() if role == "passive"]
    trained = colonnade.load(result.path)
    if not methods.find(method).method.membership.absent:
        assert "absent" not in result.metrics["test"]
        for name in passives:
            with pytest.raises(MethodError, match=f"'{name}' cannot be absent: method '{method}'"):
                trained.predict(absent=[name])
        return
    truth, measured = trained.labels(), result.metrics["test"]["absent"]
    assert list(measured) == passives
    for name in passives:
        found = trained.predict(absent=[name])
        assert name not in found
        shares = [float((p.codes == truth).double().mean()) for p in found.values()]
        assert measured[name] == pytest.approx(sum(shares) / len(shares))
        rows = ledger.read(result.path / "ledger-predict.jsonl")
        assert not [row for row in rows if name in (row["sender"], row["receiver"])]
        (result.path / "ledger-predict.jsonl").unlink()
    again = train(tmp_path / "again", method, parties=4, epochs=2, absence=False)
    assert "absent" not in again.metrics["test"]
    assert again.weights_sha256 == result.weights_sha256  # the measurement left no trace
    assert again.wire["messages"] == result.wire["messages"]


def test_nothing_of_one_party_is_reachable_from_another(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walk everything a party and its running role hold on to, in the middle of the training."""
    tasks: list[local.Task] = []
    found: list[str] = []
    original = local.Task.__init__

    def remember(task: local.Task, *args: Any, **kwargs: Any) -> None:
        original(task, *args, **kwargs)
        tasks.append(task)

    def look(party: Party) -> None:
        for task in tasks:
            others = {id(t.party): t.party.name for t in tasks if t is not task}
            others |= {
                id(split.x): f"the rows of {t.party.name}"
                for t in tasks
                if t is not task
                for split in t.party.splits.values()
            }
            for thing in reachable(task.party, task.role):
                if id(thing) in others:
                    found.append(f"{others[id(thing)]} from {task.party.name}")

    monkeypatch.setattr(local.Task, "__init__", remember)
    monkeypatch.setattr(Party, "_checkpoint", look)
    train(tmp_path / "run", method, epochs=1, checkpoint={"epochs": 1})
    assert tasks
    assert not found


def test_every_message_about_rows_tells_the_gate_which(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that counts every record lets a method train and predict, and knows its rows."""
    limits = {"releases": 10**6, "predictions": 10**6, "numbers": 10**12}
    told: set[tuple[str, str]] = set()  # party and Kind
    plain = Gate.check

    def open_all(mail: local.Mailboxes, names: Collection[str]) -> None:
        rules = {n: {} if k.about == "nothing" else limits for n, k in mail.kinds.items()}
        policy = Policy.from_table({"allow": rules})
        mail.gates = {name: Gate(name, policy, 10**6, len(names)) for name in names}
        opened(mail, names)

    def check(gate: Gate, to: str, kind: Kind, value: Any, size: int, me: Any) -> None:
        if kind.about == "batch":
            if isinstance(value, torch.Tensor) and "batch" in (kind.shape or ()):
                assert value.shape[kind.shape.index("batch")] == me.at_hand.count
            told.add((gate.owner, kind.name))
        plain(gate, to, kind, value, size, me)

    opened = local.Mailboxes.open
    monkeypatch.setattr(local.Mailboxes, "open", open_all)
    monkeypatch.setattr(Gate, "check", check)
    result = train(tmp_path / "run", method, epochs=2, absence=False)
    found = methods.find(method).method
    passives = [name for name, role in result.content["roles"].items() if role == "passive"]
    for party, kind in told:
        entries = counted(result.path / "journal" / party, f"releases of {kind}")
        assert entries, (party, kind)
        role = result.content["roles"][party]
        if found.roles[role].every_epoch:  # as the doctor forecasts
            trained = sum(int(e["times"]) for e in entries if ", train, " in str(e["key"]))
            assert trained == 2 * (1 if role == "passive" else len(passives)), (party, kind)
    colonnade.load(result.path).predict()


# ---- helpers -----------------------------------------------------------------------------------


def counted(place: Path, name: str) -> list[Mapping[str, Any]]:
    """What a party's journal has counted under a name."""
    journal = Journal(place)
    found = list(journal.entries("count", name=name))
    journal.close()
    return found


def refuses_two(method: str) -> bool:
    """Some methods need three; none may need more."""
    try:
        found = methods.find(method).method
        found.cast(["a", "b"], "a", found.options())
    except MethodError:
        return True
    return False


def captured_parties(patch: pytest.MonkeyPatch, folder: Path, method: str) -> dict[str, Party]:
    kept: dict[str, Party] = {}
    original = local.run

    def spy(parties: dict[str, Party], *args: Any, **kwargs: Any) -> Any:
        kept.update(parties)
        return original(parties, *args, **kwargs)

    patch.setattr(local, "run", spy)
    train(folder / "spied", method, epochs=1)
    return kept


def reachable(*roots: object) -> Iterator[object]:
    """Every object that can be reached without going through modules, classes or globals."""
    module_dicts = {id(vars(m)) for m in list(__import__("sys").modules.values()) if m is not None}
    seen: set[int] = set()
    pending = list(roots)
    while pending:
        thing = pending.pop()
        if id(thing) in seen or id(thing) in module_dicts:
            continue
        seen.add(id(thing))
        yield thing
        if isinstance(thing, types.ModuleType | type | types.CodeType | torch.device):
            continue
        if isinstance(thing, types.FunctionType):
            pending.extend(cell.cell_contents for cell in thing.__closure__ or ())
            continue
        pending.extend(gc.get_referents(thing))


def test_reachable_sees_through_containers_and_closures() -> None:
    """The walk itself must be able to find something."""
    secret = torch.zeros(3)

    def closure() -> torch.Tensor:
        return secret

    assert any(thing is secret for thing in reachable({"a": [closure]}))
    assert any(thing is secret for thing in reachable(types.SimpleNamespace(x=(secret,))))
