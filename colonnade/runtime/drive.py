"""One role, driven to its end by answering its requests: for a party in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from colonnade.errors import PeerLost
from colonnade.wire import Recv


def drive(role: Coroutine[Any, Any, Any], take: Callable[[Recv], Any]) -> Any:
    """Run `role`; `take` blocks until a request can be answered, or raises PeerLost.

    The loss is thrown into the role at its `await`: a method may catch it and go on.
    """
    request = role.send
    answer: Any = None
    while True:
        try:
            wanted = request(answer)
        except StopIteration as finished:
            return finished.value
        try:
            request, answer = role.send, take(wanted)
        except PeerLost as lost:
            request, answer = role.throw, lost
