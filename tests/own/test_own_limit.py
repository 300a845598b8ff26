"""Two organisations, and the limit of one over all runs: trainings and predictions of its file."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
from test_own_organisations import PARTIES, start
from test_own_runs import OVER, write

from colonnade import config
from colonnade.cli.main import main
from colonnade.config import federation
from colonnade.config.federation import Member
from colonnade.net import certs
from colonnade.wire.policy import Policy

RUN = {
    "method": "splitnn",
    "epochs": 2,
    "batch_size": 16,
    "align": {"minimum": 20},
    "protect": {"embedding_epsilon": 8.0},
}


@pytest.fixture(autouse=True)
def _quick_start(colonnade_path: str) -> Iterator[None]:
    """`colonnade` comes from the nursery."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", colonnade_path)
        yield


def organisations(folder: Path) -> dict[str, list[str]]:
    """What each says of its file, and shop of its policy."""
    write(folder)
    certs.init(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    members = []
    for name in PARTIES:
        certs.party(folder, name)
        key = certs.public_text(folder / name / f"{name}.sign")
        members.append(Member(name, address if name == "bank" else "", "", key))
    everything = Policy.allowing(config.load(RUN).kinds.values())
    federation.write(folder / "federation.toml", "limited", members, RUN, policy=everything)
    policy = {"journal": "kept", "privacy": {"features": 8.5}} | everything.table()
    (folder / "policy.toml").write_text(tomli_w.dumps(policy))
    shop = ["--data", str(folder / "shop.csv"), "--id", "customer"]
    bank = ["--data", str(folder / "bank.csv"), "--id", "customer", "--label", "verdict"]
    return {"bank": bank, "shop": [*shop, "--policy", str(folder / "policy.toml")]}


def ended(folder: Path, own: dict[str, list[str]], *more: str, out: str = "") -> tuple[int, str]:
    """How a run of both ends at shop, and what it says."""
    where = {name: ["--out", str(folder / out / name)] if out else [] for name in PARTIES}
    extra = {name: [text.replace("NAME", name) for text in more] for name in PARTIES}
    running = [start(folder, n, *own[n], *where[n], *extra[n]) for n in PARTIES]
    said = [process.communicate(timeout=90)[0] for process in running]
    return running[1].returncode, " ".join(said[1].split())


def embeddings(ledger: Path) -> int:
    rows = [json.loads(row) for row in ledger.read_text().splitlines()] if ledger.exists() else []
    return sum(row.get("kind") == "embedding" and "denied" not in row for row in rows)


@pytest.mark.slow
def test_a_second_run_and_a_prediction_of_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = organisations(tmp_path)
    code, said = ended(tmp_path, own, out="first")
    assert code == 0, said
    assert "The vectors of shop left with ε = 8 at δ = 1e-05" in said  # it is told no measures
    assert embeddings(tmp_path / "first" / "shop" / "ledger.jsonl") > 0
    words = ["privacy", str(tmp_path / "shop.csv"), "--id", "customer", "--name", "shop"]
    words += ["--federation", str(tmp_path / "federation.toml")]
    words += ["--policy", str(tmp_path / "policy.toml"), "--json"]
    assert main(words) == 0
    (listed,) = json.loads(capsys.readouterr().out)["journals"]
    lost = listed["lost"]["features"]
    assert lost["epsilon"] == pytest.approx(8.0, rel=1e-6) and lost["limit"] == 8.5
    assert lost["records"] == OVER  # the rows that both have; the others were never released

    code, said = ended(tmp_path, own, "--predict", str(tmp_path / "first" / "NAME"))
    assert code == 1 and "'shop' tells no more of the features of these records" in said
    assert embeddings(tmp_path / "first" / "shop" / "ledger-predict.jsonl") == 0

    code, said = ended(tmp_path, own, out="second")
    assert code == 1 and "warning" in said and "ε = 8.5 at δ = 1e-05" in said
    assert embeddings(tmp_path / "second" / "shop" / "ledger.jsonl") == 0
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["journals"] == [listed]
