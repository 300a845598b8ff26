"""A log in which no peer can write without end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BURST = 50  # lines about one peer at once; later one a second


class Rationed:
    """Passes lines on; those about one peer only while it has some left."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log, self._lock = log, threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}  # lines, and when they were counted
        self._kept: dict[str, int] = {}  # how many were not passed on

    def __call__(self, text: str, peer: str = "") -> None:
        """peer: whose doing the line is; empty: this party's own."""
        if peer:
            with self._lock:
                now = time.monotonic()
                left, then = self._left.get(peer, (float(BURST), now))
                left = min(BURST, left + now - then)
                self._left[peer] = (left - 1 if left >= 1 else left), now
                if left < 1:
                    self._kept[peer] = self._kept.get(peer, 0) + 1
                    return
                kept = self._kept.pop(peer, 0)
            if kept:
                self._log(f"{kept:,} lines about '{peer}' were left out")
        self._log(text)
