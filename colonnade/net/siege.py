"""Limits on connections, so that neither strangers nor one member take the descriptors, threads and
time that the others need.

gRPC closes a connection whose handshake takes too long, and one that comes when too many are open.
A descriptor is kept back for whatever else a party opens: its ledger, its checkpoints, its peers.
"""

from __future__ import annotations

import ctypes
import os
import resource
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HANDSHAKE_SECONDS = 5.0
KEPT_BACK = 256  # descriptors for everything but connections that come
MOST_CONNECTIONS = 4096  # each takes some 50 kB until its handshake ends
ARENAS = 2
_M_ARENA_MAX = -8  # in glibc's malloc.h
MANY = 100  # connections, beyond those of members, that are worth a line in the log
REMARK = (
    f"more than {MANY} connections without a certificate are open at {{}}; each is closed after "
    f"{HANDSHAKE_SECONDS:g} s, and members still get in. Does a firewall keep strangers away from "
    "this port?"
)


def options() -> list[tuple[str, int]]:
    """For a gRPC server; raises this process's limit on open files as far as it may."""
    with suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MOST_CONNECTIONS + KEPT_BACK
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, wanted)), hard))
    free = max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - KEPT_BACK, MANY)
    return [
        ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE_SECONDS)),
        ("grpc.max_allowed_incoming_connections", min(free, MOST_CONNECTIONS)),
    ]


def limit_arenas() -> None:
    """Let all threads share a few arenas of memory. Every connection brings threads of its own;
    with an arena for each, a process whose connections break often keeps 50 MB for nothing."""
    with suppress(OSError, AttributeError):  # where the C library is not glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)


class Calls:
    """How many calls of each peer are being answered."""

    def __init__(self) -> None:
        self._count, self._lock = Counter[str](), threading.Lock()

    @contextmanager
    def of(self, who: str) -> Iterator[int]:
        """Count one more; gives how many there are."""
        with self._lock:
            self._count[who] += 1
            count = self._count[who]
        try:
            yield count
        finally:
            with self._lock:
                self._count[who] -= 1


def open_files() -> int:
    """How many descriptors this process has open; 0 where the system does not say."""
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - once a second, and names only
    except OSError:
        return 0
