"""Declared messages between named parties, their encoding, and the record of all that crossed."""

from colonnade.wire.kind import DTYPES, Kind, Value
from colonnade.wire.ledger import Ledger, Message
from colonnade.wire.peer import Peer, Recv, Wire, recv_any

__all__ = ["DTYPES", "Kind", "Ledger", "Message", "Peer", "Recv", "Value", "Wire", "recv_any"]
