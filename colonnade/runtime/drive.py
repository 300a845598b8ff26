"""Drives one role to its end by answering its requests; every runtime does so."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.errors import PeerLost, RoleFailed
from colonnade.role.checks import MOST_HOPS
from colonnade.role.party import Party
from colonnade.wire import Message, Recv, Value


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
        answer = None  # free a large answer before the next one comes
        try:
            request, answer = role.send, take(wanted)
        except PeerLost as lost:
            request, answer = role.throw, lost


@contextmanager
def reproducible(threads: int, cuda: bool) -> Iterator[None]:
    """Fix the number of threads and choose deterministic GPU kernels, then undo both."""
    before = torch.get_num_threads()
    strictly = torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filling = memory.fill_uninitialized_memory
    torch.set_num_threads(threads)
    if cuda:
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False  # it costs, and hides nothing
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(strictly, warn_only=lenient)
        memory.fill_uninitialized_memory = filling


def handed_over(message: Message, party: Party) -> Value:
    """The value of a message as its role receives it, if it may be fed with it."""
    party.checks.received(message, party.at_hand)
    if not message.kind.paces:
        party.progress.hop = max(party.progress.hop, min(message.hop, MOST_HOPS))
    return message.value if message.kind.host else to_device(message.value, party.device)


def to_device(value: Value, device: torch.device) -> Value:
    """A received value, on the receiver's device."""
    if isinstance(value, Tensor):
        return value if value.device == device else value.to(device)
    if isinstance(value, Mapping):
        return {name: to_device(child, device) for name, child in value.items()}
    return value


def where(party: Party, role: Coroutine[Any, Any, Any], error: BaseException) -> str:
    """The role's party, its position, and the line in the method's file."""
    return f"{party.name} ({party.role}), {_place(party)}{_line(error, party, role)}"


def failed(party: Party, role: Coroutine[Any, Any, Any], error: Exception) -> RoleFailed:
    """An error of the method itself, with the party, the position and the line."""
    name = type(error).__name__
    place = f"'{party.name}' ({party.role}) failed {_place(party)}"
    said = f"{place}: {name}: {error}{_line(error, party, role)}"
    return RoleFailed(said, party.name, name, str(error))


def _place(party: Party) -> str:
    phase, epoch, step = party.position
    return f"in '{phase}', epoch {epoch + 1}, step {step + 1}" if phase else "in its set-up"


def _line(error: BaseException, party: Party, role: Coroutine[Any, Any, Any]) -> str:
    """The innermost line in the method's own file; an alignment before the method has its own
    file."""
    frames = traceback.extract_tb(error.__traceback__)
    for file in (party.source, role.cr_code.co_filename):  # type: ignore[attr-defined]
        lines = [frame.lineno for frame in frames if frame.filename == file]
        if lines:
            return f" ({Path(file).name}, line {lines[-1]})"
    return ""
