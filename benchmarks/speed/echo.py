"""Messages without models: the four of EASTER's step, for timing the runtimes alone.

    every passive party          the active party
    64 KiB embedding        →
                            ←    64 KiB global embedding
    5 KiB prediction        →
                            ←    5 KiB gradient

With `megabytes` above 0 instead one large tensor goes from the first passive party to the active
one, a few times.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from colonnade import Kind, Method, Party, Peer, Role

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="nothing: noise", about="training")
GLOBAL = Kind("global_embedding", ("batch", "dim"), reveals="nothing: noise", about="training")
PREDICTION = Kind("prediction", ("batch", "classes"), reveals="nothing: noise", about="training")
GRADIENT = Kind("gradient", ("batch", "classes"), reveals="nothing: noise", about="training")
BULK = Kind("bulk", ("rows", "dim"), reveals="nothing: noise", about="training")
TAKEN = Kind("taken", (), reveals="nothing: a number")


@dataclass(frozen=True)
class Echo:
    steps: int = 1000
    megabytes: int = 0
    repeats: int = 4


async def passive(me: Party, active: Peer, passives: list[Peer], cfg: Echo) -> None:
    embedding, prediction = torch.randn(128, 128), torch.randn(128, 10)
    if cfg.megabytes:
        if me.name != min([me.name, *(peer.name for peer in passives)]):
            return
        tensor = torch.randn(cfg.megabytes * 1000, 250)  # 1 MB = 1000 rows of 1000 bytes
        for _ in me.epochs(count=1):
            before = memory("VmRSS", reset=True)
            for _ in range(cfg.repeats):
                active.send(BULK, tensor)
                await active.recv(TAKEN)
            me.log(sender_megabytes_above=memory("VmHWM") - before)
        return
    for _ in me.epochs(count=1):
        busy = time.process_time()
        for _ in range(cfg.steps):
            active.send(EMBEDDING, embedding)
            await active.recv(GLOBAL)
            active.send(PREDICTION, prediction)
            await active.recv(GRADIENT)
        me.log(cpu_seconds=time.process_time() - busy)


async def active(me: Party, passives: list[Peer], cfg: Echo) -> None:
    mean, gradient = torch.randn(128, 128), torch.randn(128, 10)
    if cfg.megabytes:
        sender = min(passives, key=lambda peer: peer.name)
        for _ in me.epochs(count=1):
            before = memory("VmRSS", reset=True)
            for number in range(cfg.repeats):
                began = time.perf_counter()
                tensor = await sender.recv(BULK)
                seconds = time.perf_counter() - began
                size = tensor.numel() * 4 / 1e6
                del tensor
                sender.send(TAKEN, torch.tensor(0.0))
                if number:  # the first one also warms up
                    me.log(megabytes_per_second=size / seconds)
            me.log(receiver_megabytes_above=memory("VmHWM") - before - size)
        return
    for _ in me.epochs(count=1):
        began, busy = time.perf_counter(), time.process_time()
        for _ in range(cfg.steps):
            for peer in passives:
                await peer.recv(EMBEDDING)
            for peer in passives:
                peer.send(GLOBAL, mean)
            for peer in passives:
                await peer.recv(PREDICTION)
            for peer in passives:
                peer.send(GRADIENT, gradient)
        me.log(steps_per_second=cfg.steps / (time.perf_counter() - began))
        me.log(cpu_seconds=time.process_time() - busy)


def memory(what: str, reset: bool = False) -> float:
    """MB that this process holds (VmRSS), or has held at most since the last reset (VmHWM)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(what)


async def nothing(me: Party, cfg: Echo, split: str) -> None: ...


METHOD = Method(
    name="echo",
    summary="messages without models",
    options=Echo,
    roles={"active": Role(active, nothing), "passive": Role(passive, nothing)},
    kinds=(EMBEDDING, GLOBAL, PREDICTION, GRADIENT, BULK, TAKEN),
)
