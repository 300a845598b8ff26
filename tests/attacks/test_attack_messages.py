"""No role is fed with what its party can know to be wrong: rows, width, dtype, epoch, NaN.

The error names the sender, the Kind and the step. Honest parties stop with weights and checkpoints
that are finite, and an honest run goes on from there.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nursery import Nursery

import colonnade
from colonnade.deploy.supervisor import Options
from colonnade.errors import ColonnadeError, RoleFailed, Untrusted
from colonnade.methods import cvfl, jovefl, splitnn
from colonnade.net.frame import Frame, Part, pack, parse
from colonnade.role.checks import Checks
from colonnade.role.progress import Progress
from colonnade.role.recipe import Schedule
from colonnade.runs.run import Result
from colonnade.runtime.drive import handed_over
from colonnade.wire import Kind, Message, Peer, store
from colonnade.wire.kind import finite

LIAR = Path(__file__).with_name("liar.py")
NAN, INFINITY = float("nan"), float("inf")
TREE = {
    "method": "splitnn",
    "seed": 3,
    "epochs": 3,
    "batch_size": 50,
    "model_options": {"hidden": [16]},
    "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
    "partition": {"kind": "columns", "parties": 3},
    "absence": False,
    "checkpoint": {"epochs": 1},
    "splitnn": {"dim": 8, "cut": "mean"},
}


def trained(nursery: Nursery, folder: Path, resume: bool = False, **lies: list[str]) -> Result:
    program = (*nursery.program(Path("x"))[:-2], str(LIAR), json.dumps(lies))
    options = Options(restarts=0, program=program)
    run = folder / "run"
    if resume:
        return colonnade.run(TREE, resume=run, processes=options)
    return colonnade.run(TREE, out=run, runtime="process", processes=options)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The same in one process, to the last bit."""
    return colonnade.run(TREE, out=tmp_path_factory.mktemp("honest") / "run")


def check_finite(folder: Path) -> None:
    """All checkpoints of the honest parties."""
    files = [
        file
        for name in ("party1", "party2")
        for file in (folder / "run" / "parties" / name / "checkpoints").glob("*.safetensors")
    ]
    assert files
    for file in files:
        for name, tensor in store.read_tensors(file).items():
            assert not tensor.is_floating_point() or tensor.isfinite().all(), (file, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("send_nan", "sent a 'embedding' that is not finite in epoch 2, step 3"),
        ("send_infinity", "sent a 'embedding' that is not finite in epoch 2, step 3"),
        ("send_fewer_rows", "with batch = 49; 50 is due, in 'train', epoch 2, step 3"),
        ("send_one_row_for_all", "with batch = 1; 50 is due, in 'train', epoch 2, step 3"),
        ("send_another_width", "8 is due"),
        ("send_no_rows_of_absurd_width", "that is not a message: a tensor without elements"),
        ("send_another_dtype", "sent torch.float64 as 'embedding', declared as float32"),
        ("claim_another_epoch", "of epoch 8, step 3; 'party1' waits for that of epoch 2, step 3"),
        ("claim_its_set_up", "of its set-up; 'party1' waits for that of epoch 2, step 3"),
    ],
)
def test_what_cannot_be_right_is_refused_and_its_sender_named(
    lie: str, why: str, nursery: Nursery, tmp_path: Path
) -> None:
    """A certified member sends one wrong embedding, behind its own checks, in the second epoch."""
    try:
        trained(nursery, tmp_path, party3=[lie])
    except RoleFailed as refusal:
        said = str(refusal)
        assert "'party1' has stopped" in said or "party1" in said
        assert "'party3'" in said and "embedding" in said and why in said
        assert "Traceback" not in said
        check_finite(tmp_path)
        return
    raise AssertionError("the run went on")


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["send_nan", "send_absurd_numbers"])
def test_honest_parties_stop_unharmed_and_go_on_later(
    lie: str, honest: Result, nursery: Nursery, tmp_path: Path
) -> None:
    """Numbers that are finite but absurd look like any others to their receiver. What comes of them
    is not finite, and neither saved nor sent on."""
    try:
        trained(nursery, tmp_path, party3=[lie])
    except RoleFailed as refusal:
        assert "party1" in str(refusal)
    else:
        raise AssertionError("the run went on")
    check_finite(tmp_path)
    again = trained(nursery, tmp_path, resume=True)
    assert again.weights_sha256 == honest.weights_sha256


# ---- in one process ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "number", "optimizer"),
    [
        *[(kind, x, "sgd") for kind in ("embedding", "gradient") for x in (NAN, -INFINITY, 3e38)],
        ("gradient", 1e25, "adam"),  # its square is infinite, and the weights stay as they are
    ],
)
def test_a_role_that_sends_nonsense_stops_the_run_before_it_is_saved(
    kind: str, number: float, optimizer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A faulty party in the same process: what it has spoilt is not saved, and the run goes on from
    its last checkpoint to the same weights."""
    plain, tree = splitnn.Peer.send, TREE | {"optimizer": optimizer}

    def send(self: Any, of: Any, value: Any) -> None:
        sent.append(of.name)
        if of.name == kind and sent.count(kind) == 12:  # in the second epoch
            value = torch.full_like(value, number)
        plain(self, of, value)

    sent: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(splitnn.Peer, "send", send)
        try:
            colonnade.run(tree, out=tmp_path / "run")
        except ColonnadeError as error:
            assert "not finite" in str(error)
        else:
            raise AssertionError("the run went on")
    for file in (tmp_path / "run" / "checkpoints").glob("*.safetensors"):
        for tensor in store.read_tensors(file).values():
            assert not tensor.is_floating_point() or tensor.isfinite().all()
    again = colonnade.run(tree, resume=tmp_path / "run")
    assert again.weights_sha256 == colonnade.run(tree, out=tmp_path / "honest").weights_sha256


@pytest.mark.parametrize("hop", [(1 << 62) - 1, (1 << 40) + 1, 1 << 40])
def test_an_absurd_chain_of_messages_makes_nobody_blame_an_honest_party(hop: int) -> None:
    """Each message says how many were waited for before it, and its receiver counts on from there.
    A liar begins where one more no longer fits a frame: the next receiver would blame the honest
    party in between."""
    progress = Progress(Schedule(1, 1, 1), torch.device("cpu"), labelled=False)
    party: Any = SimpleNamespace(progress=progress, checks=Checks("bank", None, progress))
    party.device, party.at_hand = torch.device("cpu"), None
    kind = Kind("x", (), reveals="nothing")
    message = Message("shop", "bank", kind, torch.zeros(()), 0, "setup", 0, 0, hop, 0.0)
    try:
        handed_over(message, party)
    except Untrusted as refusal:
        assert "'shop'" in str(refusal)
    next_ = Part(7, 1, "bank", "telco", "x", 0, "train", 0, 0, progress.hop + 1, 3, bytes(32))
    try:
        parse(pack(Frame(1, 0, 0, next_)), "'bank'")
        message = replace(message, sender="bank", hop=progress.hop + 1)
        handed_over(message, party)
    except ColonnadeError as error:
        raise AssertionError(f"an honest party is blamed: {error}") from None


VIEWS = {"kind": "rectangles", "rectangles": [[0, 0, 5, 8], [0, 2, 8, 6]]}
HEADS = {
    "does not say": lambda told: {},
    "leaves in three ways": lambda told: told | {"leaves": torch.ones(3)},
    "has no rows": lambda told: told | {"rows": 0},
    "has rows to take away": lambda told: told | {"rows": -50},
    "tells of its rows": lambda told: told | {"rows": "x"},
    "has done less than nothing": lambda told: told | {"work": -1.0},
    "began in the future of words": lambda told: told | {"base": "x"},
    "has numbers for weights": lambda told: told | {"parameters": dict.fromkeys("ab", 3)},
    "has one number for weights": lambda told: told | {"parameters": 5},
    "has no buffers": lambda told: told | {"buffers": 3},
    "has no weights": lambda told: {k: v for k, v in told.items() if k != "parameters"},
}


@pytest.mark.parametrize("lie", HEADS)
def test_a_head_that_is_none_is_its_clients(
    lie: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A Kind that is a tree allows any tree. What JoVe-FL's server needs of it is looked at before
    it is used, and the client is named: no error is the server's own."""
    plain = jovefl.head_message

    def told(me: Any, *given: Any) -> Any:
        head = plain(me, *given)
        return HEADS[lie](head) if me.name == "party2" else head

    monkeypatch.setattr(jovefl, "head_message", told)
    tree = {**TREE, "method": "jovefl", "epochs": 1, "partition": VIEWS}
    del tree["splitnn"]
    try:
        colonnade.run(tree | {"jovefl": {"dim": 4, "weighted": True}}, out=tmp_path / "run")
    except ColonnadeError as error:
        assert isinstance(error, Untrusted) and "'party2' sent" in str(error)
    else:
        raise AssertionError("the head was taken")


@pytest.mark.parametrize("lie", [{}, {"packed": torch.zeros(3, dtype=torch.uint8)}, {"packed": 3}])
def test_compressed_rows_that_are_none_are_their_senders(
    lie: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In C-VFL the rows of a batch are inside a tree."""
    coder = cvfl.compressors(cvfl.CVFL())[0]
    compress, dither, seeds = coder.compress, cvfl.dither, [0]

    def told(self: Any, x: torch.Tensor, seed: int) -> Any:
        return compress(x, seed) if seed != seeds[-1] else lie

    def drawn(me: Any, sender: str, what: str = "") -> int:
        seed = dither(me, sender, what)
        if me.name == sender == "party3":
            seeds.append(seed)
        return seed

    monkeypatch.setattr(cvfl, "dither", drawn)
    monkeypatch.setattr(type(coder), "compress", told)
    tree = {**TREE, "method": "cvfl", "epochs": 1}
    del tree["splitnn"]
    with pytest.raises(ColonnadeError) as caught:
        colonnade.run(tree | {"cvfl": {"dim": 8}}, out=tmp_path / "run")
    assert "'party3' sent" in str(caught.value)


REPORTS = {
    "nothing": lambda said: {},
    "no count of evaluations": lambda said: said | {"evaluations": "x"},
    "evaluations without end": lambda said: said | {"evaluations": 1 << 62},
    "rows to take away": lambda said: said | {"rows": -50},
    "numbers for weights": lambda said: said | {"part": dict.fromkeys("ab", 3)},
    "one number for weights": lambda said: said | {"part": 5},
}


@pytest.mark.parametrize("lie", REPORTS)
def test_a_report_that_is_none_is_its_clients(
    lie: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same for what FedEmb's clients tell beside their means."""
    plain = Peer.send

    def send(self: Any, of: Any, value: Any) -> None:
        if of.name == "public_part":
            sent.append(value)
            value = REPORTS[lie](value) if len(sent) == 2 else value
        plain(self, of, value)

    sent: list[Any] = []
    monkeypatch.setattr(Peer, "send", send)
    tree = {**TREE, "method": "fedemb", "epochs": 1, "batching": "papers"}
    del tree["splitnn"]
    options = {"groups": 20, "server_epochs": 1, "grouping": "class", "targets": "hard"}
    try:
        colonnade.run(tree | {"fedemb": options | {"widen": True}}, out=tmp_path / "run")
    except ColonnadeError as error:
        assert isinstance(error, Untrusted) and "'party2' sent" in str(error), error
    else:
        raise AssertionError("the report was taken")


SIGNALS = {
    "tells its accuracy in words": {"accuracy": "good"},
    "tells its accuracy as a tensor": {"accuracy": torch.ones(3)},
    "is more accurate than can be": {"accuracy": 1e9},
    "loses less than nothing": {"loss": -1e9},
    "has no work to be weighed by": {"work": 0.0},
}


@pytest.mark.parametrize("lie", SIGNALS)
def test_an_accuracy_that_is_none_is_its_clients(
    lie: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By what clients tell of themselves JoVe-FL's server sets the rate of all."""
    plain = jovefl.head_message

    def told(me: Any, *given: Any) -> Any:
        head = plain(me, *given)
        return head | SIGNALS[lie] if me.name == "party2" else head

    monkeypatch.setattr(jovefl, "head_message", told)
    tree = {**TREE, "method": "jovefl", "epochs": 2, "partition": VIEWS}
    del tree["splitnn"]
    tree["data"] = {**TREE["data"], "validation": 0.2}  # type: ignore[dict-item]
    signal = "loss" if "loses" in lie else "accuracy"
    options = {"dim": 4, "rate": "plateau", "signal": signal, "strategy": "fednova"}
    with pytest.raises(ColonnadeError) as caught:
        colonnade.run(tree | {"jovefl": options}, out=tmp_path / "run")
    assert isinstance(caught.value, Untrusted) and "'party2' sent" in str(caught.value)


def test_a_head_that_does_not_fit_the_common_one_is_its_clients(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Later than the first round the server knows what it has, and blames nobody beside."""
    plain, rounds = jovefl.head_message, list[str]()

    def told(me: Any, *given: Any) -> Any:
        head = plain(me, *given)
        rounds.append(me.name)
        if me.name == "party1" and rounds.count(me.name) == 2:
            head["parameters"] = {k: v.double() for k, v in head["parameters"].items()}
        return head

    monkeypatch.setattr(jovefl, "head_message", told)
    tree = {**TREE, "method": "jovefl", "epochs": 2, "partition": VIEWS}
    del tree["splitnn"]
    with pytest.raises(ColonnadeError) as caught:
        colonnade.run(tree | {"jovefl": {"dim": 4}}, out=tmp_path / "run")
    assert isinstance(caught.value, Untrusted) and "'party1' sent" in str(caught.value)
    assert "'party2'" not in str(caught.value)


def fedemb(out: Path, nth: int, kind: str, lie: Any, **more: Any) -> ColonnadeError:
    """The error of a run of FedEmb whose nth message of this kind is a lie."""
    plain, sent = Peer.send, list[str]()

    def send(self: Any, of: Any, value: Any) -> None:
        sent.append(of.name)
        if of.name == kind and sent.count(kind) == nth:
            value = lie(value)
        plain(self, of, value)

    tree = {**TREE, "method": "fedemb", "epochs": 1, "batching": "papers"}
    del tree["splitnn"]
    tree["checkpoint"] = {"epochs": more.pop("checkpoint", 0)}
    options = {"groups": 20, "server_epochs": 1, **more}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Peer, "send", send)
        try:
            colonnade.run(tree | {"fedemb": options}, out=out)
        except ColonnadeError as error:
            return error
    raise AssertionError("it was taken")


COUNTS = {
    "nothing": {},
    "a number": 3,
    "words": {"rows": "many"},
    "less than nothing": {"rows": -1},
    "a truth": {"rows": True},
    "a tensor": {"rows": torch.ones(3)},
}


RANDOM = {"public": "random", "grouping": "class", "targets": "class"}
SHAPES: dict[str, Any] = {  # of a public part that both ends draw
    "no widths": lambda said: {key: value for key, value in said.items() if key != "widths"},
    "one width": lambda said: said | {"widths": torch.tensor([8])},
    "widths that take all memory": lambda said: said | {"widths": torch.tensor([1 << 40, 10])},
    "less than no width": lambda said: said | {"widths": -said["widths"]},
    "fractions": lambda said: said | {"widths": said["widths"].double()},
    "another width than its sums": lambda said: said | {"widths": said["widths"] + 1},
    "no rows": lambda said: said | {"rows": 0},
    "rows in words": lambda said: said | {"rows": "many"},
    "endless evaluations": lambda said: said | {"evaluations": 1 << 30},
}


@pytest.mark.parametrize("lie", SHAPES)
def test_a_shape_that_is_none_is_its_clients(lie: str, tmp_path: Path) -> None:
    error = fedemb(tmp_path / "run", 2, "public_shape", SHAPES[lie], **RANDOM)
    assert isinstance(error, Untrusted) and "'party2' sent" in str(error), error
    assert "'party1'" not in str(error) and "'party3'" not in str(error)


@pytest.mark.parametrize("scale", [[0.0, 1.0], [1.0, -1.0], [-1.0, 1.0]], ids=str)
def test_a_scale_that_is_none_is_its_clients(scale: list[float], tmp_path: Path) -> None:
    more = RANDOM | {"epsilon": 50.0, "checkpoint": 1}
    wrong = torch.tensor(scale, dtype=torch.float64)
    error = fedemb(tmp_path / "run", 2, "noise_scale", lambda said: wrong, **more)
    assert isinstance(error, Untrusted) and "'party2' sent" in str(error), error


def test_sums_of_no_group_are_their_clients(tmp_path: Path) -> None:
    error = fedemb(tmp_path / "run", 2, "class_sums", lambda sums: sums[:-1], **RANDOM)
    assert isinstance(error, Untrusted) and "'party2' sent" in str(error), error


@pytest.mark.parametrize("lie", COUNTS)
def test_a_count_of_rows_that_is_none_is_its_clients(lie: str, tmp_path: Path) -> None:
    error = fedemb(tmp_path / "run", 2, "row_count", lambda said: COUNTS[lie])
    assert isinstance(error, Untrusted) and "'party2' sent" in str(error), error
    assert "'party1'" not in str(error) and "'party3'" not in str(error)


WIDER = {
    # From its first message on, so that there is no earlier one to compare with.
    "embedding": lambda rows: torch.zeros(len(rows), rows.shape[1] + 1),
    "group_embeddings": lambda rows: torch.zeros(len(rows), rows.shape[1] + 1),
    "public_part": lambda said: said | {"part": {k: v[:1] for k, v in said["part"].items()}},
}


@pytest.mark.parametrize("kind", WIDER)
def test_another_width_from_the_first_message_on_is_its_clients(kind: str, tmp_path: Path) -> None:
    error = fedemb(tmp_path / "run", 2, kind, WIDER[kind])
    assert isinstance(error, Untrusted) and "'party2' sent" in str(error), error
    assert "'party1'" not in str(error) and "'party3'" not in str(error)


PARTS = {
    "gap": lambda part: {k: v for k, v in part.items() if k != "0.bias"},
    "other names": lambda part: {f"x{k}": v for k, v in part.items()},
    "layers that do not follow": lambda part: part | {"1.weight": torch.zeros(10, 3)},
    "no dimension": lambda part: dict.fromkeys(part, torch.zeros(())),
    "whole numbers": lambda part: {k: v.long() for k, v in part.items()},
    "nothing": lambda part: {},
}


@pytest.mark.parametrize("lie", PARTS)
def test_a_public_part_that_is_no_network_is_its_clients(lie: str, tmp_path: Path) -> None:
    def told(said: Any) -> Any:
        return said | {"part": PARTS[lie](said["part"])}

    error = fedemb(tmp_path / "run", 2, "public_part", told)
    assert isinstance(error, Untrusted) and "'party2' sent" in str(error), error


@pytest.mark.parametrize("kind", ["group_embeddings", "group_outputs", "proportions"])
def test_fewer_groups_here_than_there_are_their_clients(kind: str, tmp_path: Path) -> None:
    """One client tells means of as many groups in each of its messages."""
    more = {"targets": "proportions"}
    error = fedemb(tmp_path / "run", 2, kind, lambda rows: rows[:-1], **more)
    assert isinstance(error, Untrusted) and "'party2' sent" in str(error), error
    assert "'party1'" not in str(error) and "'party3'" not in str(error)


def test_sums_that_overflow_are_no_reason_to_refuse() -> None:
    """Large numbers of an honest party, whose sum is infinite and of which each one is finite."""
    assert finite(torch.full((4, 4), 3e38)) and finite({"a": {"b": torch.full((9,), 3e38)}})
    for bad in (NAN, INFINITY, -INFINITY):
        for value in (torch.tensor([1.0, bad]), {"a": {"b": bad}}, {"a": torch.tensor(bad)}):
            assert not finite(value)  # type: ignore[arg-type]
