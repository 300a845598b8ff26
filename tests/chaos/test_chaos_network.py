"""Networks that break, stall, corrupt, are slow, or lead through the label holder only."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from child import Plan
from federations import Field, toy, wait_for
from nursery import Nursery
from proxy import Proxy

from colonnade.net import certs
from colonnade.wire.reconcile import reconcile

Weights = Callable[[dict[str, Any]], dict[str, str]]
CHATTER = str(Path(__file__).parent / "chatter.py")
KB = 1000


@pytest.mark.usefixtures("no_orphans")
def test_a_network_that_breaks_in_every_way(
    nursery: Nursery, undisturbed: Weights, tmp_path: Path
) -> None:
    """One fault after the other, each repaired before the next: nobody starts anew."""
    tree = toy("splitnn", epochs=8)
    quick = {"DEAF_SECONDS": 1.5, "BEAT_SECONDS": 0.4, "RETRY_SECONDS": [0.05, 0.2]}
    plan = Plan(patched={f"net.mesh.{name}": value for name, value in quick.items()})
    program = nursery.program(plan.write(tmp_path / "plan"))
    with Proxy() as to_hub, Proxy() as to_other:
        field = Field(
            tmp_path / "field",
            tree,
            through={"party1": to_hub.in_front_of, "party2": to_other.in_front_of},
        )
        field.start_all(program)
        faults: list[Callable[[], None]] = [
            to_hub.reset,
            lambda: to_hub.flip(2),
            lambda: to_hub.cut(1.0),
            to_hub.half_open,
            to_other.reset,  # no message of this method goes there
        ]
        for fault in faults:
            before = to_hub.carried
            wait_for(lambda before=before: to_hub.carried > before + 20 * KB)
            fault()
        # Each time a dialler first looks at the certificate, over a connection of its own.
        wait_for(lambda: to_hub.connections >= 12 and to_other.connections >= 4)
        to_hub.latency, to_hub.jitter = 0.1, 0.02
        before = to_hub.carried
        wait_for(lambda: to_hub.carried > before + 5 * KB)
        to_hub.latency = to_hub.jitter = 0.0
        assert set(field.wait().values()) == {0}
    assert field.weights() == undisturbed(tree)
    for name in field.names:
        assert field.log(name).count("all start") == 1  # repaired by the links alone
        field.rows(name)
    assert any("was silent for 1.5 s: connecting again" in field.log(n) for n in field.names)


@pytest.mark.usefixtures("no_orphans")
def test_keys_are_replaced_while_a_run_goes_on(
    nursery: Nursery, undisturbed: Weights, tmp_path: Path
) -> None:
    """All parties change their TLS keys, the old ones are revoked, and the connections break."""
    tree = toy("splitnn", epochs=6)
    program = nursery.program(Plan().write(tmp_path / "plan"))
    with Proxy() as to_hub:
        field = Field(tmp_path / "field", tree, through={"party1": to_hub.in_front_of})
        authority = field.key("party1").parent
        field.start_all(program)
        wait_for(lambda: to_hub.carried > 20 * KB)
        old = [certs.facts(field.key(n) / f"{n}.pem").serial for n in field.names]
        for name in field.names:
            asked = certs.request(tmp_path / name, name)
            made = certs.issue(authority, asked, name, replace=True)
            for path in (asked.with_suffix(".key"), made):
                shutil.copyfile(path, field.key(name) / path.name)
        for serial in old:
            certs.revoke(authority, serial)
        for name in field.names:
            shutil.copyfile(authority / "revoked.pem", field.key(name) / "revoked.pem")
        to_hub.reset()
        assert set(field.wait().values()) == {0}
    assert field.weights() == undisturbed(tree)
    assert "was replaced, and is used from now on" in field.log("party1")
    for name in field.names:
        assert field.log(name).count("all start") == 1
        assert "refused" not in field.log(name)


def test_a_narrow_line_is_not_taken_for_a_dead_one(
    nursery: Nursery, undisturbed: Weights, tmp_path: Path
) -> None:
    """Messages that take longer than the beat of a link, at half a Mbit/s."""
    tree = toy(CHATTER, epochs=1, batch_size=100, evaluate_every=0, chatter={"rows": 4000})
    plan = Plan(patched={"net.mesh.DEAF_SECONDS": 8.0, "net.mesh.BEAT_SECONDS": 0.5})
    with Proxy() as proxy:
        field = Field(tmp_path / "field", tree, through={"party2": proxy.in_front_of})
        proxy.rate = 62 * KB
        field.start_all(nursery.program(plan.write(tmp_path / "plan")))
        assert set(field.wait().values()) == {0}
        assert proxy.carried > 4 * 128 * KB  # longer than DEAF_SECONDS
    for name in field.names:
        assert "connecting again" not in field.log(name)
    assert field.weights() == undisturbed(tree)


def test_parties_without_an_address_talk_through_the_hub(
    nursery: Nursery, undisturbed: Weights, tmp_path: Path
) -> None:
    tree = toy(CHATTER, parties=4, evaluate_every=0)
    program = nursery.program(Plan(part_bytes=64).write(tmp_path / "plan"))
    passives = ["party2", "party3", "party4"]
    field = Field(tmp_path / "field", tree, silent=passives)
    field.start_all(program)
    assert set(field.wait().values()) == {0}
    assert field.weights() == undisturbed(tree)
    for name in passives:
        assert "connected with 'party1'" in field.log(name)
        assert not [p for p in passives if f"connected with '{p}'" in field.log(name)]
        gossip = [row for row in field.rows(name) if row["kind"] == "gossip"]
        assert {row["sender"] for row in gossip} == set(passives)
    found = reconcile(field.out("party2"), field.out("party3"))  # who signed through the hub
    assert found.faults == [] and found.sealed == found.matched > 0 and found.open == 0
    assert not [row for row in field.rows("party1") if row["kind"] == "gossip"]


def test_a_hub_between_two_who_send_much_at_once_does_not_lock_up(
    nursery: Nursery, undisturbed: Weights, tmp_path: Path
) -> None:
    """Both windows full, and the acks that would open them behind the messages that fill them."""
    big = {"rows": 1_400_000, "slow": 0.7}  # 45 MB each way, in one step
    tree = toy(CHATTER, epochs=1, batch_size=200, evaluate_every=0, chatter=big)
    field = Field(tmp_path / "field", tree, silent=["party2", "party3"])
    field.start_all(nursery.program(Plan().write(tmp_path / "plan")))
    assert set(field.wait(40).values()) == {0}
    assert field.weights() == undisturbed(tree)
