"""Declared messages between named parties, their encoding, and the record of all that crossed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from colonnade.wire.kind import DTYPES, Kind, Value
    from colonnade.wire.ledger import Ledger, Message
    from colonnade.wire.peer import Peer, Recv, Wire, recv_any

__all__ = ["DTYPES", "Kind", "Ledger", "Message", "Peer", "Recv", "Value", "Wire", "recv_any"]

# Imported on first use, because reading a ledger needs no PyTorch.
_MODULES = {
    "DTYPES": "kind",
    "Kind": "kind",
    "Ledger": "ledger",
    "Message": "ledger",
    "Peer": "peer",
    "Recv": "peer",
    "Value": "kind",
    "Wire": "peer",
    "recv_any": "peer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'colonnade.wire' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
