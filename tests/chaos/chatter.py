"""A method for the tests: all parties talk to each other, and every word changes the weights.

    every passive party                                  the active party
    1. send its weights to every other passive party
    2. wait for theirs; add them up; send the sum   →    2. wait for every sum
    3. add the answer to the weights                ←    3. send their mean

`stuck` makes parties wait for what nobody sends.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from colonnade import Kind, Method, Party, Peer, Role

GOSSIP = Kind("gossip", ("rows", "dim"), reveals="nothing: weights that learnt nothing")
SUM = Kind("sum", ("dim",), reveals="nothing: their sum")
ANSWER = Kind("answer", ("dim",), reveals="nothing: its mean")
DIM = 8


@dataclass(frozen=True)
class Chatter:
    rows: int = 4  # of a message between passive parties
    slow: float = 0.0  # seconds that the last party is busy before each step
    stuck: Literal["", "all", "passives"] = ""
    diary: int = 0  # epochs of which nothing is kept but numbers with long names


async def passive(me: Party, active: Peer, passives: list[Peer], cfg: Chatter) -> None:
    weights = weights_of(me)
    write_diary(me, cfg)
    for _ in me.epochs():
        for _ in me.batches():
            if me.name > max(peer.name for peer in passives):
                time.sleep(cfg.slow)
            for peer in passives:
                peer.send(GOSSIP, weights.expand(cfg.rows, -1).contiguous())  # 1.
            heard = [await peer.recv(GOSSIP) for peer in passives]
            total = weights + sum(each[-1] for each in heard)
            active.send(SUM, total)  # 2.
            if cfg.stuck == "passives":
                await passives[0].recv(ANSWER)
            weights.add_(0.1 * torch.tanh(await active.recv(ANSWER) - total))  # 3.


async def active(me: Party, passives: list[Peer], cfg: Chatter) -> None:
    weights = weights_of(me)
    write_diary(me, cfg)
    for _ in me.epochs():
        for _ in me.batches():
            sums = [await peer.recv(SUM) for peer in passives]
            if cfg.stuck == "passives":
                return
            if cfg.stuck == "all":
                await passives[0].recv(ANSWER)
            mean = torch.stack(sums).mean(0)
            weights.add_(mean)
            for peer in passives:
                peer.send(ANSWER, mean + weights)


def write_diary(me: Party, cfg: Chatter) -> None:
    for _ in me.epochs("diary", cfg.diary):
        me.log(**{f"{'number' * 20}{i}": 0.1 for i in range(20)})


def weights_of(me: Party) -> Tensor:
    return me.keep("model", lambda: nn.Linear(DIM, 1, bias=False)).weight.data[0]


async def nothing(me: Party, cfg: Chatter, split: str) -> None: ...


METHOD = Method(
    name="chatter",
    summary="messages between all parties",
    options=Chatter,
    roles={"active": Role(active, nothing), "passive": Role(passive, nothing)},
    kinds=(GOSSIP, SUM, ANSWER),
)
