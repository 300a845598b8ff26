"""A method for the attacks: parties send what nobody reads yet.

    every passive party                        the active party
    1. sends its heap, in so many messages  →
    2. sends a word, after some seconds     →  waits for the word of the first
    3.                                         reads all heaps, then the other words

With `swap` all parties first send each other their heaps, and only then read any.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from colonnade import Kind, Method, Party, Peer, Role

HEAP = Kind("heap", ("rows", "dim"), reveals="nothing: zeros")
WORD = Kind("word", (), reveals="nothing: a number")


@dataclass(frozen=True)
class Hoard:
    messages: int = 1
    rows: int = 1000  # of each message: a kilobyte a row
    seconds: float = 0.0  # before the first passive party says its word
    swap: bool = False


def heap(cfg: Hoard) -> Tensor:
    return torch.zeros(cfg.rows, 256)


async def swap(me: Party, peers: list[Peer], cfg: Hoard) -> None:
    for _ in me.epochs(count=1):
        for peer in peers:
            for _ in range(cfg.messages):
                peer.send(HEAP, heap(cfg))
        for peer in peers:
            for _ in range(cfg.messages):
                await peer.recv(HEAP)


async def passive(me: Party, active: Peer, passives: list[Peer], cfg: Hoard) -> None:
    me.keep("model", lambda: nn.Linear(1, 1))
    if cfg.swap:
        await swap(me, [active, *passives], cfg)
        return
    for _ in me.epochs(count=1):
        if me.name < min(peer.name for peer in passives):
            time.sleep(cfg.seconds)
        else:
            for _ in range(cfg.messages):
                active.send(HEAP, heap(cfg))
        active.send(WORD, torch.tensor(1.0))


async def active(me: Party, passives: list[Peer], cfg: Hoard) -> None:
    me.keep("model", lambda: nn.Linear(1, 1))
    if cfg.swap:
        await swap(me, passives, cfg)
        return
    first, *others = sorted(passives, key=lambda peer: peer.name)
    for _ in me.epochs(count=1):
        await first.recv(WORD)
        for peer in others:
            for _ in range(cfg.messages):
                await peer.recv(HEAP)
            await peer.recv(WORD)


async def nothing(me: Party, cfg: Hoard, split: str) -> None: ...


METHOD = Method(
    name="hoard",
    summary="parties send what nobody reads yet",
    options=Hoard,
    roles={"active": Role(active, nothing), "passive": Role(passive, nothing)},
    kinds=(HEAP, WORD),
)
