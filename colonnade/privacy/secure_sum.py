"""A sum whose receiver learns no single term: keys, masks and messages in one object.

    every member: agree on a secret with every other member, over a relay      (privacy/keys.py)
    every sender: mask its values for this moment and send them         →   the receiver adds all
                                                                            (privacy/masking.py)

Senders are all members except the receiver and those who take part only in the agreement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from colonnade.errors import MaskError
from colonnade.privacy import keys
from colonnade.privacy.masking import Masks, Moment, Ring
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer


@dataclass(frozen=True)
class SecureSum:
    """One party's side of sums of a Kind; without masks, a plain sum of values sent as they are."""

    me: Party
    kind: Kind
    masks: Masks | None = None
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)  # by member

    @staticmethod
    async def agree(
        me: Party,
        relay: Peer | None,
        others: Sequence[Peer],
        *,
        purpose: str,
        receiver: str,
        kind: Kind,
        ring: Callable[[int], Ring],
        apart: Sequence[str] = (),
        constant: bool = False,
    ) -> SecureSum:
        """Agree with all members, and be ready to send or to receive.

        relay     who relays the keys; None: this party
        others    the other members; their order is that of the relay's messages
        purpose   what all members sign: the same words at all of them
        ring      the numbers for a sum of so many terms
        apart     members who neither send nor receive
        constant  one mask per pair for the whole run, as EASTER's paper writes it
        """
        if relay is None:
            secrets = await keys.active_keys(me, others, purpose)
        else:
            secrets = await keys.passive_keys(me, relay, others, purpose)
        pairs = {name: secret for name, secret in secrets.items() if name not in apart}
        # For the receiver these are the senders; for a sender, the receiver and the other senders.
        masks = Masks(me.name, receiver, pairs, ring(len(pairs)), constant=constant)
        return SecureSum(me, kind, masks, secrets)

    def send(self, receiver: Peer, values: Tensor, moment: Moment) -> None:
        """This party's term."""
        if self.masks is None:
            receiver.send(self.kind, values)
            return
        if self.me.protection is not None:
            values = self._protected(values, self.masks.ring)
        with self.me.timing("masking"):
            message = self.masks.mask(values, moment)
        receiver.send(self.kind, message)

    def _protected(self, values: Tensor, ring: Ring) -> Tensor:
        """With this sender's share of the noise, which must get into the ring as it is: were each
        share rounded by itself, those that are small would be gone."""
        assert self.me.protection is not None
        term = self.me.protection.term(self.me, self.kind, values, len(self.secrets))
        if term is not values and not ring.holds(term):
            raise MaskError(
                f"'{self.me.name}' does not send '{self.kind.name}': its noise has smaller steps "
                f"than the 2^-{ring.fraction} of a masked number, and would be rounded off. Raise "
                "protect.embedding_clip, or give masked numbers more bits for the fraction"
            )
        return term

    async def receive(
        self,
        senders: Sequence[Peer],
        moment: Moment,
        *,
        own: Tensor | None = None,
        shape: Sequence[int] | None = None,
    ) -> Tensor:
        """The sum over all senders; `own` is the receiver's term, which needs no mask."""
        messages = {peer.name: await peer.recv(self.kind) for peer in senders}
        if own is not None and self.me.protection is not None:
            own = self.me.protection.own_term(self.me, self.kind, own, len(senders))
        if self.masks is None:
            terms = list(messages.values())
            return torch.stack(terms if own is None else [own, *terms]).sum(0)
        with self.me.timing("masking"):
            total = self.masks.total(messages, moment, shape)
            return total if own is None else own + total.to(own.device)
