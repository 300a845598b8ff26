"""An elastic method for the tests: clients with a linear model each, and a server that averages.

    every client, before each epoch                       the server
    1. send its weights and how often it has sent    →    1. wait for everybody who is in touch
    2. take the mean, if the answer is to these      ←    2. send the mean of what came
    3. train on its own rows

A client without contact leaves out 1. and 2. Its last message says that it leaves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade import Kind, Method, Party, Peer, Role, recv_any
from colonnade.role.method import Membership, RowRules

HEAD = Kind("head", None, reveals="what the sender's rows have taught it", dtype="any", late=True)
MEAN = Kind("mean", None, reveals="what all have learnt", dtype="any", late=True)
ROUNDS = 10**6


@dataclass(frozen=True)
class Swarm:
    plain: bool = False  # wait without a limit
    within: float = 60.0  # seconds, else
    rounds: int = 3  # so often nobody comes and nobody is in touch, and the server ends
    careless: bool = False  # clients send without asking whether anybody is there
    pause: float = 0.0  # seconds before each epoch
    until: str = ""  # clients train until this file is there


async def client(me: Party, server: Peer, cfg: Swarm) -> None:
    model = model_of(me)
    optimizer = me.optimizer(model)
    for _ in me.epochs():
        if cfg.until and Path(cfg.until).exists():
            break
        time.sleep(cfg.pause)
        if cfg.careless or server.reachable:
            await exchange(me, server, model, cfg)
        for batch in me.batches(shared=False):  # 3.
            optimizer.zero_grad()
            F.cross_entropy(model(batch.x.flatten(1)), batch.labels).backward()
            optimizer.step()
        for split in me.evaluations:
            me.score(split, await client_predict(me, cfg, split))
    server.send(HEAD, {"leaves": True})


async def exchange(me: Party, server: Peer, model: nn.Module, cfg: Swarm) -> None:
    number = me.state["sent"] = me.state.get("sent", 0) + 1
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    server.send(HEAD, {"weights": weights, "number": number, "leaves": False})  # 1.
    while True:
        if cfg.plain:
            answer = await server.recv(MEAN)
        else:
            found = await recv_any([server], MEAN, within=cfg.within)
            if found is None:
                return
            answer = found[1]
        if answer["to"] == number:
            model.load_state_dict(answer["weights"])  # 2.
            me.log(merged=1.0)
            return


async def server(me: Party, clients: list[Peer], cfg: Swarm) -> None:
    gone: list[str] = me.state.setdefault("gone", [])
    for _ in me.epochs("rounds", ROUNDS):
        heads = await heads_of(me, clients, gone, cfg)  # 1.
        if not heads:
            return
        mean = {
            name: torch.stack([heads[n]["weights"][name] for n in sorted(heads)]).mean(0)
            for name in next(iter(heads.values()))["weights"]
        }
        for peer in clients:
            if peer.name in heads:
                peer.send(MEAN, {"weights": mean, "to": heads[peer.name]["number"]})  # 2.
        me.log(heads=float(len(heads)))


async def heads_of(me: Party, clients: list[Peer], gone: list[str], cfg: Swarm) -> dict[str, Any]:
    heads: dict[str, Any] = {}
    quiet = 0
    while missing := [p for p in clients if p.name not in heads and p.name not in gone]:
        if cfg.plain:
            peer, head = missing[0], await missing[0].recv(HEAD)
        else:
            found = await recv_any(missing, HEAD, within=cfg.within)
            if found is None:
                quiet += 1
                if heads or (quiet >= cfg.rounds and not any(p.reachable for p in missing)):
                    break
                continue
            peer, head = found
        if head["leaves"]:
            gone.append(peer.name)
        else:
            heads[peer.name] = head
    return heads


async def client_predict(me: Party, cfg: Swarm, split: str) -> Tensor:
    with me.evaluating():
        return torch.cat([model_of(me)(batch.x.flatten(1)) for batch in me.rows(split)])


async def server_predict(me: Party, cfg: Swarm, split: str) -> None: ...


def model_of(me: Party) -> nn.Module:
    return me.keep("model", lambda: nn.Linear(torch.Size(me.shape).numel(), me.task.outputs))


def cast(parties: Sequence[str], holder: str, options: Swarm) -> dict[str, str]:
    return {name: "client" for name in parties if name != "server"} | {"server": "server"}


METHOD = Method(
    name="swarm",
    summary="clients that come and go",
    options=Swarm,
    roles={
        "client": Role(client, client_predict, sends=lambda cfg, passives: (HEAD,)),
        "server": Role(
            server,
            server_predict,
            features=False,
            rows=False,
            sends=lambda cfg, passives: (MEAN,),
        ),
    },
    kinds=(HEAD, MEAN),
    cast=cast,
    rows=RowRules(aligned=lambda options: False, own_labels=True),
    membership=Membership(hub="server", elastic=True),
)
