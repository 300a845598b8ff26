"""A certified member that lies: patches what a plan says, then is `colonnade party` as it is.

python liar.py '{"party2": ["claim_accuracy"]}' --federation …
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from colonnade.cli.main import main as colonnade
from colonnade.deploy import member, records
from colonnade.deploy.records import Records
from colonnade.errors import ColonnadeError
from colonnade.methods import easter, fedemb
from colonnade.role import stopping
from colonnade.role.party import Party
from colonnade.runtime import fixed
from colonnade.runtime.control import TICK, Failure, Start
from colonnade.runtime.fixed import Fixed
from colonnade.runtime.network import Network
from colonnade.runtime.sealing import Sealing
from colonnade.runtime.session import Session
from colonnade.wire import Ledger, Message, Peer, codec

OUT = Path()  # the liar's own folder


def main(arguments: Sequence[str]) -> int:
    plan = json.loads(arguments[0])
    global OUT
    me = arguments[arguments.index("--name") + 1]
    OUT = Path(arguments[arguments.index("--out") + 1])
    for lie in plan.get(me, ()):
        globals()[lie](me)
    return colonnade(["party", *arguments[1:]])


# ---- lies about the end --------------------------------------------------------------------------


def stop_party3_before_the_others(me: str) -> None:
    """Its second epoch is the last one, the others hear that each is the best so far."""

    def decide(party: Party, others: Sequence[Peer] = ()) -> None:
        with party.evaluating():
            for peer in others:
                ends = peer.name == "party3" and party.position[1] == 1
                peer.send(stopping.VERDICT, torch.tensor([not ends, ends]))
        party.stopping.judge(party)
        party.stopping.take(party, True, False)

    stopping.decide = decide


def _forge(change: Any) -> None:
    """Change what is told to the hub, and leave the liar's own files as they are."""
    plain = Records.account

    def account(self: Records, *rest: Any) -> Any:
        return change(plain(self, *rest))

    Records.account = account  # type: ignore[method-assign]
    # An honest party looks at its own account too, which a liar does not.
    if hasattr(records, "check"):
        records.check = lambda told, *_: told


def tell_nothing(me: str) -> None:
    _forge(lambda told: {})


def claim_accuracy(me: str) -> None:
    """About itself, although it holds no labels."""
    _forge(lambda told: told | {"scores": {"test": {"per_party": {me: 0.999}}}})


def judge_in_the_holders_name(me: str) -> None:
    def change(told: dict[str, Any]) -> dict[str, Any]:
        scores = {
            "per_party": {"party1": 0.999},
            "confusion": [[9 if i == j else 0 for i in range(10)] for j in range(10)],
            "confusion_party": "party1",
        }
        return told | {"scores": {"test": scores}}

    _forge(change)


def rewrite_history(me: str) -> None:
    """The holder's losses, as another party would like them."""

    def change(told: dict[str, Any]) -> dict[str, Any]:
        return told | {
            "history": [
                {
                    "phase": "train",
                    "epoch": epoch,
                    "of": 2,
                    "seconds": 1e9,
                    "others": {"party1": {"loss": 0.0, "test_accuracy": 1.0}},
                }
                for epoch in (1, 2)
            ]
        }

    _forge(change)


def slow_clock(me: str) -> None:
    """Rows of its own that took a million seconds, in an epoch that everybody has."""

    def change(told: dict[str, Any]) -> dict[str, Any]:
        row = {"phase": "train", "epoch": 1, "of": 2, "seconds": 1e6, "loss": 0.5}
        return told | {"history": [row]}

    _forge(change)


def warn_in_the_runs_name(me: str) -> None:
    _forge(lambda told: told | {"remarks": ["party1's labels are wrong"], "warnings": ["stop it"]})


# ---- lies of a hub about what is to be learnt ----------------------------------------------------


def _tell(task: object) -> None:
    """Tell all others this task, and train on one's own."""
    plain = member.connect

    def connect(*given: Any, **how: Any) -> Any:
        return plain(*given, **how | {"told": {"task": task}})

    member.connect = connect


def tell_fewer_classes_when_it_comes_back(me: str) -> None:
    """It dies after its second checkpoint."""
    plain, before = member.connect, Records._before_checkpoint
    saved: list[None] = []

    def connect(*given: Any, **how: Any) -> Any:
        if how["run"]:
            saved.extend([None] * 1000)
            how |= {"told": {"task": {"kind": "multiclass", "classes": ["a", "b", "c"]}}}
        return plain(*given, **how)

    def checkpoint(records: Records) -> None:
        before(records)
        saved.append(None)
        if len(saved) == 3:
            os._exit(9)

    member.connect, Records._before_checkpoint = connect, checkpoint  # type: ignore[method-assign]


def tell_a_spread_that_is_no_number(me: str) -> None:
    _tell({"kind": "regression", "mean": 0.0, "spread": float("nan")})


def tell_an_endless_mean(me: str) -> None:
    _tell({"kind": "regression", "mean": float("inf"), "spread": 1.0})


def tell_a_mean_in_words(me: str) -> None:
    _tell({"kind": "regression", "mean": "much", "spread": 1.0})


def tell_a_million_classes(me: str) -> None:
    _tell({"kind": "multiclass", "classes": [str(number) for number in range(10**6)]})


def tell_a_list(me: str) -> None:
    _tell(["regression", 0.0, 1.0])


# ---- lies of a hub about who takes part ----------------------------------------------------------


def note_embedding(me: str) -> None:
    """No lie: its first embedding, for the test to compare with."""
    plain = easter.passive_send

    def send(active: Any, part: Any, embedding: Any, moment: Any) -> None:
        if not (OUT / "embedding.npy").exists():
            np.save(OUT / "embedding.npy", embedding.numpy())
        plain(active, part, embedding, moment)

    easter.passive_send = send


def repeat_without(me: str) -> None:
    """The first step with everybody, and then once more without party4."""
    plain, choose, tick = easter.active_mean, Fixed._choose, Fixed.tick
    seen: list[int] = []

    async def mean(passives: Any, part: Any, embedding: Any, moment: Any, cfg: Any) -> Any:
        shared = await plain(passives, part, embedding, moment, cfg)
        if (moment.purpose, moment.epoch, moment.step) == ("train", 0, 0):
            count = len(passives) + 1
            total = shared * part.parties - embedding
            total = total if part.absent is None else total - part.absent
            np.save(OUT / f"sum-{count}.npy", total.numpy())
            seen.append(count)
        return shared

    def look(self: Fixed, session: Any, now: float) -> None:
        if seen == [4] and session.playing:
            seen.append(0)
            session.leave_out(["party4"])
            self._halt(session, "let us begin again")
        tick(self, session, now)

    def chosen(self: Fixed, session: Any) -> Start:
        start = choose(self, session)
        if seen:
            start = replace(start, label=None, skip=None)
        return start

    easter.active_mean, Fixed.tick, Fixed._choose = mean, look, chosen  # type: ignore[method-assign]


# ---- lies in messages ----------------------------------------------------------------------------


def _twist(change: Any) -> None:
    """Change one embedding in the middle of the second epoch, behind all checks of the sender."""
    plain = Network.seal

    def seal(self: Network, message: Message, size: int) -> Any:
        name, place = message.kind.name, (message.phase, message.epoch, message.step)
        if name == "embedding" and place == ("train", 1, 2):
            change(message)
        return plain(self, message, size)

    Network.seal = seal  # type: ignore[method-assign]


def _filled(number: float) -> None:
    def change(message: Message) -> None:
        message.value = message.value.clone()  # type: ignore[union-attr]
        message.value[0, 0] = number

    _twist(change)


def send_nan(me: str) -> None:
    _filled(float("nan"))


def send_infinity(me: str) -> None:
    _filled(float("-inf"))


def send_absurd_numbers(me: str) -> None:
    """Finite, so that nobody can refuse them."""
    _twist(lambda message: setattr(message, "value", torch.full_like(message.value, 3e38)))  # type: ignore[arg-type]


def _shaped(*shape: int, dtype: torch.dtype = torch.float32) -> None:
    _twist(lambda message: setattr(message, "value", torch.zeros(shape, dtype=dtype)))


def send_fewer_rows(me: str) -> None:
    _shaped(49, 8)


def send_one_row_for_all(me: str) -> None:
    """It would be added to every row without a word."""
    _shaped(1, 8)


def send_another_width(me: str) -> None:
    _shaped(50, 16)


def send_no_rows_of_absurd_width(me: str) -> None:
    codec.MAX_EMPTY = 1 << 60
    _shaped(0, 1 << 31)


def send_another_dtype(me: str) -> None:
    _shaped(50, 8, dtype=torch.float64)


def claim_another_epoch(me: str) -> None:
    _twist(lambda message: setattr(message, "epoch", 7))


def claim_its_set_up(me: str) -> None:
    _twist(lambda message: setattr(message, "phase", "setup"))


# ---- lies of a hub about what there is to go on from ---------------------------------------------


def begin_from_nothing(me: str) -> None:
    """After the first round, and once more after the next: all begin again without a checkpoint."""
    choose, tune, play = Fixed._choose, fedemb.tune, Session.play
    sessions: list[Any] = []
    halted: list[int] = []

    def played(self: Session, *given: Any) -> bool:
        sessions[:] = [self]
        return play(self, *given)

    def tuned(*given: Any) -> Any:
        loss = tune(*given)
        if len(halted) < 2:
            halted.append(1)
            sessions[0].membership._halt(sessions[0], "let us begin again")
        return loss

    def chosen(self: Fixed, session: Any) -> Start:
        start = choose(self, session)
        return replace(start, label=None) if halted else start

    Fixed._choose, Session.play, fedemb.tune = chosen, played, tuned  # type: ignore[method-assign]


def call_every_run_the_same(me: str) -> None:
    """What a party has counted under the name of a run is not counted again."""
    fixed.choose_run = lambda *given: "00000000000000ab"
    records.check_head = lambda *given: None  # an honest hub would refuse that itself


# ---- lies about the ledger -----------------------------------------------------------------------


def sign_nothing(me: str) -> None:
    """It trains like everybody else, and gives nobody a proof of it."""
    Sealing.heard = lambda *given: None  # type: ignore[method-assign]
    Sealing.settle = lambda *given, **how: None  # type: ignore[method-assign]


def write_down_nothing_received(me: str) -> None:
    """It signs for a ledger in which nothing ever came, whatever others say."""
    plain = Ledger.write

    def write(self: Ledger, *given: Any, **how: Any) -> int:
        received = how.get("received", len(given) > 4 and given[4])
        return self.count if received else plain(self, *given, **how)

    Ledger.write = write  # type: ignore[method-assign]
    Sealing._check = lambda *given: None  # type: ignore[method-assign]


# ---- lies in texts -------------------------------------------------------------------------------

FORGED = (
    "\x1b[2J\x1b[31mbroken\r\n2026-11-19 12:00:00 finished: accuracy 0.999\n\u202edlrow [red]olleh "
    + "x" * 100_000
)


def fail_with_a_forged_log(me: str) -> None:
    """Its role fails, and the text of the failure pretends to be lines of the reader's log."""

    def change(message: Message) -> None:
        raise ColonnadeError(FORGED)

    _twist(change)
    fields = Failure.of

    def of(error: ColonnadeError, me: str) -> Failure:
        return replace(fields(error, me), error="Error\n2026-11-19 finished", text=FORGED)

    Failure.of = of  # type: ignore[method-assign,assignment]


def remark_escapes(me: str) -> None:
    _forge(lambda told: told | {"remarks": [FORGED[:1500]], "warnings": [FORGED[:1500]]})


# ---- what a hub can do all the same --------------------------------------------------------------


def note_embeddings(me: str) -> None:
    """No lie: its embeddings of the first epoch, for the test to compare with."""
    plain = easter.passive_send

    def send(active: Any, part: Any, embedding: Any, moment: Any) -> None:
        if (moment.purpose, moment.epoch) == ("train", 0):
            np.save(OUT / f"embedding-{moment.step}.npy", embedding.numpy())
        plain(active, part, embedding, moment)

    easter.passive_send = send


def keep_weights_and_lose(me: str) -> None:
    """All gradients are zero, so nobody learns. In the second epoch it says that party4 is lost."""
    plain, tick, seal = easter.active_mean, Fixed.tick, Network.seal
    lost: list[int] = []

    def sealed(self: Network, message: Message, size: int) -> Any:
        if message.kind.name == "gradient":
            message.value = torch.zeros_like(message.value)  # type: ignore[arg-type]
        return seal(self, message, size)

    async def mean(passives: Any, part: Any, embedding: Any, moment: Any, cfg: Any) -> Any:
        shared = await plain(passives, part, embedding, moment, cfg)
        if moment.purpose == "train":
            total = shared * part.parties - embedding
            total = total if part.absent is None else total - part.absent
            np.save(OUT / f"sum-{moment.epoch}-{moment.step}.npy", total.numpy())
            if moment.epoch == 1 and not lost:
                lost.append(0)
                time.sleep(2 * TICK)  # the clock is looked at before the next step: `look`
        return shared

    def look(self: Fixed, session: Any, now: float) -> None:
        if lost == [0] and session.playing:
            lost.append(1)
            session.leave_out(["party4"])
            self._lost = True
            self._halt(session, "going on without 'party4'")
        tick(self, session, now)

    easter.active_mean, Fixed.tick, Network.seal = mean, look, sealed  # type: ignore[method-assign]
