"""Records the payloads of named Kinds, for leakage studies in simulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from colonnade.wire import store
from colonnade.wire.kind import Value
from colonnade.wire.ledger import Message

PART_BYTES = 64 << 20


class Recorder:
    """Writes record/<kind>-<part>.safetensors; a tensor's name begins with its ledger row."""

    def __init__(self, folder: Path, kinds: Iterable[str]) -> None:
        self._folder = folder
        self._pending: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}
        self._bytes = dict.fromkeys(self._pending, 0)

    def keep(self, row: int, message: Message) -> None:
        kind = message.kind.name
        pending = self._pending.get(kind)
        if pending is None:
            return
        place = f"{row:08d}/{message.sender}/{message.receiver}"
        for name, tensor in _tensors(message.value, place):
            pending[name] = tensor.detach().cpu().clone()
            self._bytes[kind] += tensor.numel() * tensor.element_size()
        if self._bytes[kind] >= PART_BYTES:
            self._write(kind)

    def flush(self) -> None:
        for kind in self._pending:
            self._write(kind)

    def _write(self, kind: str) -> None:
        pending = self._pending[kind]
        if pending:
            self._folder.mkdir(parents=True, exist_ok=True)
            first = next(iter(pending)).partition("/")[0]
            store.write_tensors(pending, self._folder / f"{kind}-{first}.safetensors")
            pending.clear()
            self._bytes[kind] = 0


def _tensors(value: Value, place: str) -> Iterable[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, Mapping):
        for name, child in value.items():
            yield from _tensors(child, f"{place}/{name}")
