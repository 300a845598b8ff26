"""The messages of echo.py, in blocks of steps that begin when against.py says so.

Two federations of different commits are up at the same time and take turns, a block each: whatever
else the machine does then meets both alike. A party measures the CPU time of its own process, from
the middle of the first step of a block to the end of the last one, so that waiting for a turn does
not count.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from echo import EMBEDDING, GLOBAL, GRADIENT, PREDICTION

from colonnade import Method, Party, Peer, Role


@dataclass(frozen=True)
class Turns:
    folder: str = ""  # has two pipes, `go` and `done`; the measured times come here, too
    blocks: int = 30
    steps: int = 50  # of a block


async def passive(me: Party, active: Peer, cfg: Turns) -> None:
    embedding, prediction = torch.randn(128, 128), torch.randn(128, 10)
    spent = []
    for _ in me.epochs(count=1):
        for _ in range(cfg.blocks):
            for step in range(cfg.steps):
                active.send(EMBEDDING, embedding)
                await active.recv(GLOBAL)
                if step == 0:
                    busy = time.process_time()
                active.send(PREDICTION, prediction)
                await active.recv(GRADIENT)
            spent.append(time.process_time() - busy)
    tell(cfg, me.name, cpu=spent)


async def active(me: Party, passives: list[Peer], cfg: Turns) -> None:
    mean, gradient = torch.randn(128, 128), torch.randn(128, 10)
    spent, wall = [], []
    go, done = (os.open(Path(cfg.folder, name), os.O_RDWR) for name in ("go", "done"))
    os.write(done, b".")  # ready
    for _ in me.epochs(count=1):
        for _ in range(cfg.blocks):
            os.read(go, 1)
            began = time.perf_counter()
            for step in range(cfg.steps):
                for peer in passives:
                    await peer.recv(EMBEDDING)
                for peer in passives:
                    peer.send(GLOBAL, mean)
                if step == 0:
                    busy = time.process_time()
                for peer in passives:
                    await peer.recv(PREDICTION)
                for peer in passives:
                    peer.send(GRADIENT, gradient)
            spent.append(time.process_time() - busy)
            wall.append(time.perf_counter() - began)
            os.write(done, b".")
    tell(cfg, me.name, cpu=spent, wall=wall)


def tell(cfg: Turns, name: str, **times: list[float]) -> None:
    Path(cfg.folder, f"{name}.json").write_text(json.dumps(times))


async def nothing(me: Party, cfg: Turns, split: str) -> None: ...


METHOD = Method(
    name="turns",
    summary="messages without models, in turns with another run",
    options=Turns,
    roles={"active": Role(active, nothing), "passive": Role(passive, nothing)},
    kinds=(EMBEDDING, GLOBAL, PREDICTION, GRADIENT),
)
