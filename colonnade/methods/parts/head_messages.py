"""The messages of JoVe-FL, and which of them a client and the server send."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from colonnade.privacy import keys
from colonnade.wire import Kind

HEAD = Kind(
    "head",
    None,
    reveals="what θ_i learnt from the sender's rows",
    dtype="any",
    late=True,
    carries="models",
)
GLOBAL = Kind(
    "global_head",
    None,
    reveals="what all heads are together",
    dtype="any",
    late=True,
    carries="models",
)
MASKED_HEAD = replace(
    HEAD,
    name="masked_head",
    reveals="θ_i only within the sum over all clients; the sender's rows and layers",
    randomised=True,
    host=True,
)
KINDS = (HEAD, MASKED_HEAD, GLOBAL, *keys.KINDS)


class Sharing(Protocol):
    """The options that decide what crosses."""

    @property
    def share(self) -> str: ...

    @property
    def secure(self) -> bool: ...


def head_kind(cfg: Sharing) -> Kind:
    """As what θ_i leaves a client."""
    return MASKED_HEAD if cfg.secure else HEAD


def client_sends(cfg: Sharing, _: int) -> tuple[Kind, ...]:
    return _told(cfg, head_kind(cfg))


def server_sends(cfg: Sharing, _: int) -> tuple[Kind, ...]:
    return _told(cfg, GLOBAL)


def _told(cfg: Sharing, kind: Kind) -> tuple[Kind, ...]:
    if cfg.share not in ("heads", "networks"):
        return ()
    return (kind, *keys.KINDS) if cfg.secure else (kind,)
