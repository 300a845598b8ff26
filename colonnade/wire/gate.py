"""The gate of a party: it applies the policy to every message before it leaves, and counts.

What counts in one run (`bytes`) is read again from the ledger after a restart. What counts per
record is in the party's journal, so neither another run nor another folder gives it back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from torch import Tensor

from colonnade.errors import Denied
from colonnade.wire.counting import ALL, Counted, RowsAtHand, Sender, held, learnt_from, measure
from colonnade.wire.kind import Kind, Value
from colonnade.wire.policy import Allow, Policy, quoted, times

KNOWN_SHAPES = 4096  # verdicts that are remembered


@dataclass(slots=True)
class _Account:
    """How much has left as one Kind, and how much may."""

    rule: Allow
    counts: bool  # something per record
    messages: int = 0
    bytes: int = 0
    most_bytes: float = math.inf
    widest: float = math.inf  # against the party's own features


Verdict = tuple[int, int, _Account]  # records that a message speaks of, numbers about each


class Gate:
    """Every message of one party passes here before it leaves, and is counted.

    features  numbers per row of the party's own features
    members   parties that take part, itself included
    task      whether it trains or predicts, which have limits of their own
    counted   Kinds that tell of records within a budget of the method's own, in the journal
    """

    def __init__(
        self,
        owner: str,
        policy: Policy,
        features: int,
        members: int,
        task: Literal["train", "predict"] = "train",
        counted: frozenset[str] = frozenset(),
    ) -> None:
        self.owner, self.policy, self.task, self._within = owner, policy, task, counted
        self._features, self._members = features, members
        self._accounts: dict[str, _Account] = {}
        # (receiver, Kind, shape, rows of the batch) of messages that only what is counted can deny
        self._known: dict[tuple[str, Kind, Sequence[int], int], Verdict] = {}
        self._sender: Sender | None = None  # of whom the next line speaks
        self._counted: dict[tuple[str, str], list[tuple[str, Counted]]] = {}  # by Kind and split

    def check(self, receiver: str, kind: Kind, value: Value, size: int, sender: Sender) -> None:
        """Let a message of `size` bytes pass and count it, or raise Denied and count nothing."""
        at_hand = sender.at_hand if kind.about == "batch" else None
        if isinstance(value, Tensor):
            key = (receiver, kind, value.shape, at_hand.count if at_hand is not None else -1)
            found = self._known.get(key)
            if found is None:
                found = self._judge(receiver, kind, value, at_hand, sender)
                if len(self._known) >= KNOWN_SHAPES:
                    self._known.clear()
                self._known[key] = found
        else:
            found = self._judge(receiver, kind, value, at_hand, sender)
        _, width, account = found
        if account.bytes + size > account.most_bytes:
            self._deny_bytes(receiver, kind, size, account)
        if account.counts:
            self._count(receiver, kind, width, at_hand, sender, account.rule)
        account.messages += 1
        account.bytes += size

    def attend(self, members: int) -> None:
        """From now on so many take part: others were left out."""
        self._members = members
        self._known.clear()

    def spent(self) -> dict[str, dict[str, int]]:
        """What has left so far, by Kind."""
        return {
            name: {"messages": one.messages, "bytes": one.bytes}
            for name, one in self._accounts.items()
            if one.messages
        }

    def restore(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count again from the ledger what counts in one run; every prediction is one of its own.
        What counts per record is in the journal."""
        self._accounts.clear()
        self._known.clear()
        for row in rows if self.task == "train" else ():
            if row.get("sender") != self.owner or "denied" in row:
                continue
            account = self._account(row["kind"])
            account.messages += 1
            account.bytes += row["bytes"]

    def _judge(
        self, receiver: str, kind: Kind, value: Value, at_hand: RowsAtHand | None, sender: Sender
    ) -> Verdict:
        """Apply all rules that depend on the message alone."""
        account = self._addressed(receiver, kind)
        if kind.about == "nothing" and (idle := account.rule.counts):
            self._deny(
                receiver,
                kind,
                f"its policy limits `{idle[0]}`, by record, and the Kind says that it speaks of no "
                f"record, so nothing would be limited. If that is true, remove `{idle[0]}` in "
                f"{self.policy.source}; if not, do not run that method",
            )
        if account.rule.epsilon:
            self._check_protected(receiver, kind, account.rule, sender)
        if self.policy.privacy.given and sender.splits:
            self._check_counted(receiver, kind, sender)
        rule, training = account.rule, held(sender, learnt_from(sender))
        rows, width = measure(kind, value, at_hand, training)
        if kind.about == "batch" and at_hand is None and sender.splits:
            self._deny(
                receiver,
                kind,
                "the Kind speaks of the rows of a batch, and the role works on none, so nobody can "
                "tell which: send it inside me.batches() or me.rows(), or declare it with "
                'about = "training"',
            )
        if at_hand is not None and rows > at_hand.count:
            self._deny(
                receiver,
                kind,
                f"it has {rows} rows and the batch has {at_hand.count}, so its policy cannot tell "
                "which records it speaks of. Send as many rows as the batch has",
            )
        fewest = "min_batch" if self.task == "train" else "min_prediction"
        least = rule.min_batch if self.task == "train" else rule.min_prediction
        if rows < least and kind.about != "nothing" and (at_hand is not None or training):
            self._deny(
                receiver,
                kind,
                f"its policy requires {least} rows in a message and this one has {rows}. "
                + (
                    "Choose a batch_size that leaves no smaller batch, also of the rows to test on"
                    if self.task == "train"
                    else "Predict more rows at once"
                ),
                fewest,
            )
        if rule.width and width > rule.width:
            self._deny(
                receiver,
                kind,
                f"its policy allows {rule.width} numbers per row and this message has {width}. "
                "Choose a smaller embedding",
                "width",
            )
        if width > account.widest:
            self._deny(
                receiver,
                kind,
                f"its policy allows {rule.width_ratio:g} times as many numbers per row as the "
                f"party's features have ({self._features}), and this message has {width}. Choose "
                "a smaller embedding",
                "width_ratio",
            )
        return rows, width, account

    def _addressed(self, receiver: str, kind: Kind) -> _Account:
        """Whether the Kind may go to that receiver at all."""
        rule = self.policy.allow.get(kind.name)
        if rule is None:
            self._deny(
                receiver,
                kind,
                f"its policy does not name that Kind, which reveals: {kind.reveals}. If it may "
                f"leave, add [allow.{quoted(kind.name)}] to {self.policy.source}",
            )
        if rule.to is not None and receiver not in rule.to:
            allowed = ", ".join(f"'{name}'" for name in rule.to) or "nobody"
            self._deny(
                receiver,
                kind,
                f"its policy allows that to {allowed} only. If '{receiver}' may have it, name it "
                f"in `to`, in {self.policy.source}",
            )
        if self._members < rule.min_members:
            self._deny(
                receiver,
                kind,
                f"its policy requires {rule.min_members} members and {self._members} take part. "
                "Let others join",
                "min_members",
            )
        return self._account(kind.name)

    def _check_protected(self, receiver: str, kind: Kind, rule: Allow, sender: Sender) -> None:
        """Whether noise keeps the Kind within the policy's ε."""
        protection = sender.protection
        promised = None if protection is None else protection.guaranteed(kind)
        if why := rule.unprotected(promised):
            self._deny(
                receiver,
                kind,
                f"its policy {why}. Let all parties agree on such a [protect]",
                "epsilon",
            )

    def _check_counted(self, receiver: str, kind: Kind, sender: Sender) -> None:
        """Whether what the Kind tells counts against what all runs together may tell."""
        about = self.policy.privacy.uncounted(kind)
        if about is None or kind.name in self._within:
            return
        protection = sender.protection
        if protection is None or protection.guaranteed(kind) is None:
            self._deny(
                receiver,
                kind,
                f"its policy limits what all runs together may tell of a record's {about}, and "
                "without a [protect] that covers this Kind nobody can say how much that is. Let "
                "all parties agree on one",
                about,
            )

    def _account(self, kind: str) -> _Account:
        account = self._accounts.get(kind)
        if account is None:
            rule = self.policy.allow.get(kind, Allow())  # the ledger may hold a Kind now denied
            account = self._accounts[kind] = _Account(rule, bool(rule.counts))
            if rule.bytes:
                account.most_bytes = rule.bytes
            if rule.width_ratio:
                account.widest = times(rule.width_ratio, self._features)
        return account

    # ---- what is counted per record ------------------------------------------------------------

    def _count(
        self,
        receiver: str,
        kind: Kind,
        width: int,
        at_hand: RowsAtHand | None,
        sender: Sender,
        rule: Allow,
    ) -> None:
        """Count the message for every record that it speaks of, or raise Denied."""
        of = at_hand or RowsAtHand(learnt_from(sender), ALL, 0)
        split, rows = of.split, of.rows
        if not held(sender, split):  # a server's
            return
        if sender is not self._sender:  # a new attempt, perhaps on other rows
            self._sender = sender
            self._counted.clear()
        counted = self._counted.get((kind.name, split))
        if counted is None:
            counted = self._counted[kind.name, split] = self._limited(kind, split, sender, rule)
        phase, epoch, _ = sender.position
        key = f"{phase or self.task} {epoch}, {split}"
        wanted = [(limit, one, width if limit == "numbers" else 1) for limit, one in counted]
        if any(one.books(key, rows, amount) for _, one, amount in wanted):
            with counted[0][1].turn():  # no other run books between this look and the entry
                for limit, one, amount in wanted:
                    over = one.beyond(key, rows, amount)
                    if over:
                        records = held(sender, split)
                        self._deny_record(receiver, kind, limit, one.limit, over, records)
                for _, one, amount in wanted:
                    one.book(rows, amount)
        for _, one, amount in wanted:
            one.use(rows, amount)

    def _limited(
        self, kind: Kind, split: str, sender: Sender, rule: Allow
    ) -> list[tuple[str, Counted]]:
        """What the policy limits about each record of a split."""
        often = "releases" if self.task == "train" else "predictions"
        found = []
        for limit in (often, "numbers"):
            most = getattr(rule, limit)
            if most:
                assert sender.journal is not None, "only a run has rows to send"
                records = sender.records(split)
                run, tally = sender.journal.tally(f"{limit} of {kind.name}", records)
                found.append((limit, Counted(most, run, tally, len(records))))
        return found

    def _deny_record(
        self, receiver: str, kind: Kind, limit: str, most: int, over: int, records: int
    ) -> NoReturn:
        what = {"numbers": "numbers about", "releases": "releases of", "predictions": "predictions"}
        move = "Predict other rows"
        if self.task == "train":
            move = (
                "What has left stays counted, so a run of fewer epochs does not help these "
                "records: train on others"
            )
        of = "of " if limit == "predictions" else ""
        self._deny(
            receiver,
            kind,
            f"its policy allows {most:,} {what[limit]} {of}each record, in all runs together, and "
            f"with this message {over:,} of its records, of {records:,}, would pass that. {move}",
            limit,
        )

    def _deny_bytes(self, receiver: str, kind: Kind, size: int, account: _Account) -> NoReturn:
        if kind.about == "nothing":
            move = "`colonnade doctor` says how many are needed: allow more bytes"
        elif self.task == "predict":
            move = "Predict fewer rows"
        else:
            move = "Train for fewer epochs"
        self._deny(
            receiver,
            kind,
            f"its policy allows {account.rule.bytes:,} bytes in a run, {account.bytes:,} have "
            f"left, and this message has {size:,}. {move}",
            "bytes",
        )

    def _deny(self, receiver: str, kind: Kind, why: str, limit: str = "") -> NoReturn:
        move = f", or change `{limit}` in {self.policy.source}" if limit else ""
        raise Denied(f"'{self.owner}' does not send '{kind.name}' to '{receiver}': {why}{move}")
