"""Sends weights as the compressed difference from the weights that both ends already have.

    the sender                                              the receiver
    change = now − base + lost                              base: what arrived before
    code = C(change)                                  →     now' = base + C⁻¹(code)
    lost = change − C⁻¹(code)

A sender that remembers what compression lost sends it with the next difference (error feedback,
Seide et al. 2014). A server whose `base` is what arrived, not what it meant to send, catches up
without such a memory. Each end numbers its weights; a difference from weights that the receiver no
longer has cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.errors import Untrusted
from colonnade.methods.parts.aggregation import Tree, on_device, put_into
from colonnade.methods.parts.compression import Name, compressor, sent_by
from colonnade.methods.parts.options import bounded
from colonnade.methods.parts.trees import check_weights
from colonnade.role.seeds import derive


@dataclass(frozen=True)
class Told:
    """One difference: what crosses, what the receiver then has, and what was lost on the way."""

    coded: dict[str, Any]
    there: dict[str, Tensor]
    lost: dict[str, Tensor]


@dataclass(frozen=True)
class Coding:
    """How a difference is compressed. Both ends derive the dither from seed, place and name."""

    compress: Name
    bits: int
    seed: int = 0

    def __post_init__(self) -> None:
        bounded(self, "bits", least=1, most=8)

    def difference(self, now: Tree, base: Tree, place: str, lost: Tree | None = None) -> Told:
        """Tell `now` to someone who has `base`.

        place  names this message; never the same twice, else errors add up instead of cancelling
        lost   what the last message lost, and this one shall bring
        """
        change = {name: x - base[name] for name, x in now.items()}
        if lost is not None:
            change = {name: x + lost.get(name, 0.0) for name, x in change.items()}
        coder = compressor(self.compress, self.bits)
        coded = {name: coder.compress(x, self._seed(place, name)) for name, x in change.items()}
        arrived = self._decoded(coded, change, place)
        there = {name: base[name] + x for name, x in arrived.items()}
        return Told(coded, there, {name: change[name] - x for name, x in arrived.items()})

    def restored(self, coded: Any, base: Tree, place: str) -> dict[str, Tensor]:
        """What the sender's `difference` said, for a receiver that has `base`."""
        change = self._decoded(coded, base, place)
        return {name: base[name] + change[name] for name in base}

    def _decoded(self, coded: Any, like: Tree, place: str) -> dict[str, Tensor]:
        coder = compressor(self.compress, self.bits)
        return {
            name: coder.decompress(coded[name], x.shape, self._seed(place, name)).to(x.device)
            for name, x in like.items()
        }

    def _seed(self, place: str, name: str) -> int:
        return derive(self.seed, "dither", place, name)


@dataclass(frozen=True)
class ServerEnd:
    """A server's end: memory["known"] says what each client has, {"number", "parameters"}."""

    coding: Coding
    memory: dict[str, Any]
    device: torch.device

    def answer(self, client: str, message: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """The answer to a client's message: memory["head"] of memory["round"].

        A server that has lost its memory has no head, and says so.
        """
        number, head = self.memory["round"], self.memory.get("head")
        answer = {"to": message["number"], "number": number, **more, "forgotten": head is None}
        if head is None:
            return answer
        told = self.tell(client, head["parameters"], number, message["base"])
        return answer | {"buffers": head["buffers"]} | told

    def tell(self, client: str, parameters: Tree, number: int, base: int) -> dict[str, Any]:
        """{"coded"} for a client that has number `base`, else {"parameters"}.

        number  of what is told; the memory then says that the client has it
        """
        if self.coding.compress == "none":
            return {"parameters": parameters}
        known = self.memory.setdefault("known", {})
        before = known.get(client)
        if before is None or before["number"] != base:
            known[client] = {"number": number, "parameters": parameters}
            return {"parameters": parameters}
        there = on_device(before["parameters"], self.device)
        told = self.coding.difference(parameters, there, f"down/{client}/{number}")
        known[client] = {"number": number, "parameters": told.there}
        return {"coded": told.coded}

    def hear(self, messages: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
        """What clients told, without differences from a base that the server no longer has."""
        told = {client: self._heard(client, message) for client, message in messages.items()}
        return {client: tree for client, tree in told.items() if tree is not None}

    def _heard(self, client: str, message: Mapping[str, Any]) -> dict[str, Tensor] | None:
        _check(client, message)
        if "coded" not in message:
            return dict(message["parameters"])
        before = self.memory.get("known", {}).get(client)
        if before is None or before["number"] != message["base"]:
            return None
        base = on_device(before["parameters"], self.device)
        place = f"up/{client}/{message['number']}"
        with sent_by(client):
            return self.coding.restored(message["coded"], base, place)


def _check(client: str, message: Mapping[str, Any]) -> None:
    """Refuse a message from which no weights can be taken."""
    told: Any = message.get("parameters", {})
    named = "coded" in message or "parameters" in message
    numbers = [message.get(name) for name in ("number", "base")]
    if (
        not named
        or not isinstance(told, Mapping)
        or not all(isinstance(tensor, Tensor) for tensor in told.values())
        or not all(type(number) is int and number >= 0 for number in numbers)
    ):
        raise Untrusted(
            f"'{client}' sent weights without their numbers, or numbers without weights"
        )


def check_answer(server: str, message: Mapping[str, Any]) -> None:
    """Refuse an answer of which a client cannot say what it means."""
    words = [message.get(name) for name in ("stop", "forgotten")]
    number, rate = message.get("number"), message.get("rate", 0.0)
    whole = isinstance(message.get("buffers"), Mapping) and any(
        isinstance(message.get(name), Mapping) for name in ("coded", "parameters")
    )
    if (
        not all(isinstance(word, bool) for word in words)
        or not (whole or message["forgotten"])
        or type(number) is not int
        or type(rate) not in (int, float)
        or not rate >= 0
    ):
        raise Untrusted(f"'{server}' sent an answer without weights, their number or a rate")


@dataclass(frozen=True)
class ClientEnd:
    """A client's end: `memory` holds what came last ("global") and what was lost ("error")."""

    coding: Coding
    client: str
    memory: dict[str, Any]
    device: torch.device

    def message(self, number: int, parameters: Tree, **more: Any) -> dict[str, Any]:
        """A numbered message that says from which common network this one began."""
        base = self.memory.get("base", 0)
        start = {"leaves": False, "number": number, "base": base}
        return start | more | self.tell(parameters, number)

    def tell(self, parameters: Tree, number: int) -> dict[str, Any]:
        """{"coded"} where something has come from the server, else {"parameters"}."""
        if self.coding.compress == "none" or "global" not in self.memory:
            return {"parameters": parameters}
        base = on_device(self.memory["global"]["parameters"], self.device)
        lost = on_device(self.memory.get("error", {}), self.device)
        told = self.coding.difference(parameters, base, f"up/{self.client}/{number}", lost)
        self.memory["error"] = told.lost
        return {"coded": told.coded}

    def hear(self, message: Mapping[str, Any], keep: bool) -> dict[str, Tensor]:
        """What the server told.

        keep  remember it, also where no difference to it will be sent
        """
        if "coded" in message:
            base = on_device(self.memory["global"]["parameters"], self.device)
            place = f"down/{self.client}/{message['number']}"
            parameters = self.coding.restored(message["coded"], base, place)
        else:
            parameters = dict(message["parameters"])
        self.memory["base"] = message["number"]
        if keep or self.coding.compress != "none":
            self.memory["global"] = {"parameters": parameters}
        return parameters

    def fill(self, module: nn.Module, message: Mapping[str, Any], server: str, keep: bool) -> None:
        """Overwrite the module with what the server told, if it fits."""
        if "coded" in message and "global" not in self.memory:
            raise Untrusted(f"'{server}' sent a difference from weights that it never sent")
        with sent_by(server):
            parameters = self.hear(message, keep)
        named = dict(module.named_parameters()), dict(module.named_buffers())
        check_weights(server, "parameters", parameters, named[0])
        check_weights(server, "buffers", message["buffers"], named[1], some=True)
        put_into(module, parameters, message["buffers"])

    def forget(self) -> None:
        """The server no longer knows what it told: the next message brings everything."""
        for key in ("global", "error"):
            self.memory.pop(key, None)
