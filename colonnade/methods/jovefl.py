"""JoVe-FL: clients with different views of things share only their prediction heads.

Paper: "JoVe-FL: A Joint-Embedding Vertical Federated Learning Framework". Client i has a view of
its own, labels of its own, an embedding model ξ_i of any kind, and a head θ_i like all others'. No
rows are matched. Training heads on embeddings as if these came from one space makes them do so.

    every client i                                    the server
    1. θ_i, its accuracy, its counters           →    1. wait for the clients
                                                 ←    2. θ = mean of θ_i; the rate of all
    3. θ_i := θ; train θ_i∘ξ_i for `every` epochs

What is reported is θ_i∘ξ_i after its own training ("per_party"), and right after 2. ("merged").

Clients may come and go. Nobody waits for one that is away: the server goes on when a quorum is
there and nobody else came for `deadline` seconds; in `mode = "async"` it answers whoever comes. A
client without contact trains alone and predicts at any time. Late heads count less.

`share` also names what the paper compares with, trained by the same lines: "nothing" is no
communication, "data" one network on the union of the views, "networks" FedAvg on all of θ∘ξ.

`adopt = "insured"` answers the paper's open question, how not to lose: each client also trains
alone on the same batches, and predicts with both networks, mixed as its validation rows prefer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.errors import ConfigError, MethodError, PeerLost
from colonnade.methods.parts import aggregation
from colonnade.methods.parts.aggregation import Update
from colonnade.methods.parts.compression import compressor
from colonnade.methods.parts.plateau import Plateau
from colonnade.models import is_own, mlp, network, split
from colonnade.role.method import Method, Role
from colonnade.role.party import Party, derive
from colonnade.wire import Kind, Peer, recv_any

HEAD = Kind("head", None, reveals="what θ_i has learnt from the sender's rows", dtype="any")
GLOBAL = Kind("global_head", None, reveals="what all heads are together", dtype="any")
SERVER = "server"
SHARED, ALONE = "shared", "alone"  # a client's networks
BLENDS = (0.0, 0.25, 0.5, 0.75, 1.0)  # how much of the shared network to try
ADOPT, REMOVED = ("always", "insured"), ("better", "blend")


@dataclass(frozen=True)
class JoVeFL:
    """Options of JoVe-FL."""

    share: Literal["heads", "networks", "nothing", "data"] = "heads"
    # ---- models
    cut: str = ""  # ξ ends after this layer, such as "stage2"; empty: ξ is the whole network
    dim: int = 128  # without a cut: the width of every embedding
    hidden: tuple[int, ...] = ()  # without a cut: hidden layers of θ, an MLP
    fit: Literal["pool", "resize", "canvas", "interpolate", "none"] = "pool"  # images (spec 2.8, 5)
    fit_size: int = 8  # pool, interpolate: the map that θ gets is so high and wide
    batch_norm: Literal["shared", "local", "batch"] = "shared"  # θ's statistics
    same_start: bool = False  # also every ξ_i begins alike
    momentum: Literal["keep", "reset"] = "keep"  # of θ's optimiser, at each new head
    # ---- aggregation
    every: int = 1  # q, epochs between two rounds
    strategy: aggregation.Name = "fedavg"
    weighted: bool = False  # heads count by their rows
    server_lr: float = 1.0
    server_momentum: float = 0.9
    server_beta2: float = 0.99
    server_epsilon: float = 1e-3
    prox: float = 0.0  # μ of FedProx
    adopt: str = "always"  # or "insured"; no Literal, so that removed values get their own text
    compress: Literal["none", "float16", "scalar", "topk"] = "none"
    bits: int = 8  # scalar, topk: per number, of 32
    # ---- participation
    mode: Literal["sync", "async"] = "sync"
    quorum: int = 1  # heads without which no round ends early
    deadline: float = 0.0  # seconds without another head that end a round; 0: wait for all
    contact: float = 0.0  # seconds a client waits for an answer, then trains alone; 0: no end
    stale: float = 0.5  # a: a head begun s rounds ago counts (1 + s)^-a
    mixing: float = 0.6  # async: a new head's part in the mean
    absence: float = 0.0  # rehearsal: the probability of each client to miss a round
    away: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # rehearsal: epochs, from 1
    pace: Mapping[str, float] = field(default_factory=dict)  # rehearsal: seconds per epoch; else 1
    # ---- the rate of all clients
    rate: Literal["recipe", "plateau"] = "recipe"  # plateau: reduced by the server
    factor: float = 0.2
    patience: int = 15  # epochs
    reductions: int = 4  # the last of them ends the training
    signal: Literal["accuracy", "loss", "mean_loss"] = "accuracy"  # the lowest; or the mean
    judge: Literal["validation", "test"] = "validation"  # rows that it is measured on
    whole: bool = False  # move whole images before they are cut (simulation only)

    def __post_init__(self) -> None:
        if self.adopt in REMOVED:
            raise ValueError(
                f"adopt = '{self.adopt}': removed, as it made no significant difference. Use "
                "'always', or 'insured' so that no client loses by sharing"
            )
        if self.adopt not in ADOPT:
            raise ValueError(f"adopt = '{self.adopt}': must be one of {', '.join(ADOPT)}")
        for key in ("dim", "fit_size", "every", "quorum", "patience", "reductions"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} = {getattr(self, key)}: at least 1")
        for key in ("deadline", "contact", "stale", "prox"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise ValueError(f"{key} = {getattr(self, key)}: at least 0")
        for key in ("server_lr", "server_epsilon"):
            if not 0 < getattr(self, key) < float("inf"):
                raise ValueError(f"{key} = {getattr(self, key)}: a number above 0")
        for key in ("absence", "server_momentum", "server_beta2"):
            if not 0 <= getattr(self, key) < 1:
                raise ValueError(f"{key} = {getattr(self, key)}: from 0 up to, not including, 1")
        if not 0 < self.mixing <= 1:
            raise ValueError(f"mixing = {self.mixing}: above 0, at most 1")
        if not 0 < self.factor < 1:
            raise ValueError(f"factor = {self.factor}: between 0 and 1")
        if not 1 <= self.bits <= 8:
            raise ValueError(f"bits = {self.bits}: from 1 to 8")
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"hidden = {list(self.hidden)}: widths of at least 1")
        if self.cut and self.hidden:
            raise ValueError("hidden says what θ is where the networks are not cut: give no cut")
        if any(not seconds > 0 for seconds in self.pace.values()):
            raise ValueError(f"pace = {dict(self.pace)}: give seconds above 0")
        if self.mode == "async":
            for key, default in (("strategy", "fedavg"), ("weighted", False), ("deadline", 0.0)):
                if getattr(self, key) != default:
                    raise ValueError(
                        f"{key} = {getattr(self, key)!r} has no meaning for mode = 'async', which "
                        "answers every head by itself"
                    )


async def client(me: Party, servers: list[Peer], cfg: JoVeFL) -> None:
    chains = chains_of(me, cfg)
    if needs_judge(cfg):
        check_judge(me, cfg)
    for epoch in me.epochs():
        if me.position[2] == 0:  # else it goes on in the middle of an epoch
            await begin_epoch(me, servers, chains, cfg, epoch)
        running = [chain for chain in chains if chain.name not in me.state.get("stopped", [])]
        if not running:
            me.enough()
            continue
        for batch in me.batches(shared=False):  # 3.
            for chain in running:
                loss = F.cross_entropy(chain(batch.x), batch.labels)
                chain.optimizer.zero_grad()
                loss.backward()
                if cfg.prox and chain.name == SHARED and "global" in me.state:
                    anchor = on_device(me.state["global"]["parameters"], me)
                    aggregation.pull_back(chain.shared, anchor, cfg.prox)
                chain.optimizer.step()
                me.log(loss=loss) if chain.name == SHARED else me.log(loss_alone=loss)
        me.elapse(cfg.pace.get(me.name, 1.0))
        evaluate(me, chains, cfg)
    if servers:
        me.figure(attendance=me.state.get("answers", 0) / max(me.state.get("rounds", 0), 1))
    for server in servers:
        if server.reachable:
            server.send(HEAD, {"leaves": True})


async def server(me: Party, clients: list[Peer], cfg: JoVeFL) -> None:
    for epoch in me.epochs(count=longest(me, clients, cfg)):
        between = epoch % cfg.every and epoch < me.schedule.epochs
        if cfg.mode == "sync" and not cfg.deadline and between:
            continue  # nobody may be missing, so all of them are between two rounds
        heads = await gather(me, clients, epoch, cfg)  # 1.
        if not heads and len({*me.state["left"], *me.state["lost"]}) == len(clients):
            me.enough()
        if not heads:
            continue
        merge(me, heads, cfg)  # 2.
        rate = rate_of_all(me, heads, len(clients), cfg)
        me.state["round"] = me.state.get("round", 0) + 1
        for peer in clients:
            if peer.name in heads:
                peer.send(GLOBAL, answer_to(me, peer.name, heads[peer.name], rate, cfg))
        me.log(heads=float(len(heads)))
    if not me.state.get("round"):
        raise MethodError("no client ever sent a head: they failed or never came; see their logs")


async def client_predict(me: Party, cfg: JoVeFL, split: str) -> Tensor:
    names = {SHARED: "", ALONE: f"{ALONE} "} if is_insured(cfg) else {SHARED: ""}
    logits = {n: logits_of(me, models_of(me, cfg, prefix), split) for n, prefix in names.items()}
    return used(me, logits, cfg)


async def server_predict(me: Party, cfg: JoVeFL, split: str) -> None:
    """Every client predicts alone."""


def talks(cfg: JoVeFL, kind: Kind) -> tuple[Kind, ...]:
    return (kind,) if cfg.share in ("heads", "networks") else ()


# ---- a client's side of a round ------------------------------------------------------------------


async def begin_epoch(
    me: Party, servers: list[Peer], chains: Sequence[Chain], cfg: JoVeFL, epoch: int
) -> None:
    """Agree with the others on a head and a rate, as far as they can be reached."""
    shared, *alone = chains
    for chain in chains if not servers else alone:
        keep_own_rate(me, chain, cfg)
    if not servers or SHARED in me.state.get("stopped", []) or epoch % cfg.every:
        return
    me.state["rounds"] = me.state.get("rounds", 0) + 1
    if is_away(me, me.name, epoch, cfg) or not servers[0].reachable:
        return
    answer = await exchange(me, servers[0], shared, cfg)
    if answer is None:
        return
    me.state["answers"] = me.state.get("answers", 0) + 1
    if answer["stop"]:
        stop(me, shared)
        return
    if answer["forgotten"]:  # a server without memory cannot tell what a difference was made from
        for key in ("global", "error"):
            me.state.pop(key, None)
        return
    adopt(me, shared, answer, cfg)
    if cfg.rate == "plateau":
        set_rate(shared.optimizer, answer["rate"])
    for rows in me.evaluations:
        me.score(rows, logits_of(me, shared, rows), measure="merged")


async def exchange(me: Party, server: Peer, chain: Chain, cfg: JoVeFL) -> Any:
    """Send θ_i and wait for the answer to it; None where there is no contact."""
    number = me.state["sent"] = me.state.get("sent", 0) + 1
    server.send(HEAD, head_message(me, chain, number, cfg))  # 1.
    while True:
        try:
            if cfg.contact:
                found = await recv_any([server], GLOBAL, within=cfg.contact)
                if found is None:
                    return None
                answer = found[1]
            else:
                answer = await server.recv(GLOBAL)
        except PeerLost:
            return None
        if answer["to"] == number:  # else it comes late: this client had given up waiting for it
            return answer


def head_message(me: Party, chain: Chain, number: int, cfg: JoVeFL) -> dict[str, Any]:
    """θ_i, or how it differs from the last head that came; and what the server must know."""
    parameters, buffers = parts_of(chain.shared, cfg)
    steps = -(-len(me.splits["train"]) // me.schedule.batch_size) * cfg.every
    momentum = me.recipe.momentum if me.recipe.optimizer == "sgd" else 0.0
    message: dict[str, Any] = {
        "leaves": False,
        "number": number,
        "base": me.state.get("base", 0),
        "rows": len(me.splits["train"]),
        "work": aggregation.work_of(steps, momentum),
        "buffers": buffers,
        **{key: me.state[key] for key in ("accuracy", "loss") if key in me.state},
    }
    if cfg.compress == "none" or "global" not in me.state:
        return message | {"parameters": parameters}
    known = on_device(me.state["global"]["parameters"], me)
    error = on_device(me.state.get("error", {}), me)
    change = {k: p - known[k] + error.get(k, 0.0) for k, p in parameters.items()}
    coded, arrived = code(me, change, f"up/{me.name}/{number}", cfg)
    me.state["error"] = {k: change[k] - arrived[k] for k in change}  # sent with the next one
    return message | {"coded": coded}


def adopt(me: Party, chain: Chain, answer: Any, cfg: JoVeFL) -> None:
    """Take the common head."""
    if "coded" in answer:
        known = on_device(me.state["global"]["parameters"], me)
        change = decode(me, answer["coded"], known, f"down/{me.name}/{answer['number']}", cfg)
        parameters = {name: known[name] + change[name] for name in known}
    else:
        parameters = dict(answer["parameters"])
    me.state["base"] = answer["number"]
    if cfg.prox or cfg.compress != "none":
        me.state["global"] = {"parameters": parameters}
    put_into(chain.shared, parameters, answer["buffers"])
    if cfg.momentum == "reset":
        for parameter in chain.shared.parameters():
            for value in chain.optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor):
                    value.zero_()  # a fused optimiser does not take some with and some without


def is_away(me: Party, name: str, epoch: int, cfg: JoVeFL) -> bool:
    """Whether a client rehearses an absence: a draw that it and the server make alike."""
    if epoch + 1 in cfg.away.get(name, ()):
        return True
    if not cfg.absence:
        return False
    seed = derive(me.schedule.seed, "absence", name, epoch)
    return float(torch.rand((), generator=torch.Generator().manual_seed(seed))) < cfg.absence


def keep_own_rate(me: Party, chain: Chain, cfg: JoVeFL) -> None:
    """The same schedule, on this client's own signal."""
    if cfg.rate == "plateau" and chain.name not in me.state.get("stopped", []):
        seen = me.state.setdefault(f"plateau {chain.name}", {})
        signals = [me.state[key] for key in [signal_of(chain, cfg)] if key in me.state]
        rate = plateau_of(me, cfg).step(seen, signals[0] if signals else None)
        if rate is None:
            stop(me, chain)
        else:
            set_rate(chain.optimizer, rate)


def stop(me: Party, chain: Chain) -> None:
    me.state["stopped"] = [*me.state.get("stopped", []), chain.name]


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """From now on the recipe's schedule leaves these groups alone."""
    for group in optimizer.param_groups:
        group["full_lr"] = group.pop("initial_lr", group.get("full_lr"))
        group["lr"] = group["full_lr"] * factor


# ---- the server's side ---------------------------------------------------------------------------


async def gather(me: Party, clients: list[Peer], epoch: int, cfg: JoVeFL) -> dict[str, Any]:
    """The heads of one round by client; who has nothing more to send is noted as left."""
    left: list[str] = me.state.setdefault("left", [])
    in_step = cfg.mode == "sync" and not cfg.deadline
    known_lost, expected = me.state.get("lost", []), clients
    if in_step and epoch < me.schedule.epochs:  # whose absence is rehearsed, is not waited for
        expected = [peer for peer in clients if not is_away(me, peer.name, epoch, cfg)]
    # Whom the runtime has given up is not waited for again until it is back.
    lost = me.state["lost"] = [p.name for p in clients if p.name in known_lost and not p.reachable]
    expected = [peer for peer in expected if peer.name not in lost]
    heads: dict[str, Any] = {}
    while missing := [p for p in expected if p.name not in heads and p.name not in left]:
        if heads and cfg.mode == "async":
            break
        enough = len(heads) >= min(cfg.quorum, len(clients) - len(left))
        if heads and enough and not any(peer.reachable for peer in missing):
            break  # who is not connected will not come in time
        if in_step:
            peer = missing[0]
            try:
                told = await peer.recv(HEAD)
            except PeerLost:
                lost.append(peer.name)
                expected = [other for other in expected if other is not peer]
                continue
        else:
            try:
                found = await recv_any(missing, HEAD, within=cfg.deadline or cfg.contact or None)
            except PeerLost:  # all of them
                lost += [peer.name for peer in missing]
                expected = [peer for peer in expected if peer not in missing]
                continue
            if found is None:
                if enough:
                    break
                if left and not heads and not any(peer.reachable for peer in missing):
                    left += [peer.name for peer in missing]  # gone for good, as far as can be seen
                continue
            peer, told = found
        if told["leaves"]:
            left.append(peer.name)
        else:
            heads[peer.name] = told
    return heads


def merge(me: Party, heads: Mapping[str, Any], cfg: JoVeFL) -> None:
    """2. The common head of the next round, from those that came."""
    here = me.state
    trees = {name: parameters_from(me, name, told, cfg) for name, told in heads.items()}
    found = {name: tree for name, tree in trees.items() if tree is not None}
    if not found:
        return  # they began from heads that are no longer known, and are told the present one
    buffers_of = {name: heads[name]["buffers"] for name in found}
    check_alike(found, buffers_of)
    fresh = {
        name: aggregation.staleness_weight(here.get("round", 0) - heads[name]["base"], cfg.stale)
        for name in found
    }
    shares = [fresh[n] * (heads[n]["rows"] if cfg.weighted else 1.0) for n in found]
    buffers = aggregation.mean(list(buffers_of.values()), shares)
    if "head" not in here:  # nothing was trained yet, or the server has lost its memory
        parameters = aggregation.mean(list(found.values()), shares)
    elif cfg.mode == "async":
        ((name, parameters),) = found.items()
        part = cfg.mixing * fresh[name]
        old = on_device(here["head"]["parameters"], me)
        parameters = aggregation.blended(old, parameters, part)
        buffers = aggregation.blended(on_device(here["head"]["buffers"], me), buffers, part)
    else:
        updates = [
            Update(tree, share, heads[name]["work"])
            for (name, tree), share in zip(found.items(), shares, strict=True)
        ]
        step = aggregation.Server(
            cfg.server_lr, cfg.server_momentum, cfg.server_beta2, cfg.server_epsilon
        )
        old, memory = on_device(here["head"]["parameters"], me), here.setdefault("memory", {})
        parameters = aggregation.aggregate(cfg.strategy, old, updates, step, memory)
    here["head"] = {"parameters": parameters, "buffers": buffers}


def parameters_from(me: Party, name: str, told: Any, cfg: JoVeFL) -> dict[str, Tensor] | None:
    """A client's θ_i; None where it is told as the difference to what is no longer known."""
    if "coded" not in told:
        return dict(told["parameters"])
    known = me.state.get("known", {}).get(name)
    if known is None or known["number"] != told["base"]:
        return None
    base = on_device(known["parameters"], me)
    change = decode(me, told["coded"], base, f"up/{name}/{told['number']}", cfg)
    return {key: base[key] + change[key] for key in base}


def answer_to(me: Party, name: str, told: Any, rate: float | None, cfg: JoVeFL) -> dict[str, Any]:
    """θ, or how it differs from what this client has; a rate, or that it is over."""
    here = me.state
    message: dict[str, Any] = {
        "to": told["number"],
        "number": here["round"],
        "stop": rate is None,
        "rate": 0.0 if rate is None else rate,
        "forgotten": "head" not in here,
    }
    if message["forgotten"]:
        return message
    message["buffers"] = here["head"]["buffers"]
    parameters = here["head"]["parameters"]
    if cfg.compress == "none":
        return message | {"parameters": parameters}
    known = here.setdefault("known", {}).get(name)
    if known is None or known["number"] != told["base"]:
        here["known"][name] = {"number": here["round"], "parameters": parameters}
        return message | {"parameters": parameters}
    base = on_device(known["parameters"], me)
    change = {key: parameters[key] - base[key] for key in base}
    coded, arrived = code(me, change, f"down/{name}/{here['round']}", cfg)
    there = {key: base[key] + arrived[key] for key in base}
    here["known"][name] = {"number": here["round"], "parameters": there}
    return message | {"coded": coded}


def rate_of_all(me: Party, heads: Mapping[str, Any], clients: int, cfg: JoVeFL) -> float | None:
    """What every client's learning rate is multiplied by; None: the training is over."""
    if cfg.rate == "recipe":
        return 1.0
    key = "accuracy" if cfg.signal == "accuracy" else "loss"
    known = me.state.setdefault("signals", {})
    known |= {name: told[key] for name, told in heads.items() if key in told}
    signal = None
    if known:
        values = list(known.values())
        signal = sum(values) / len(values) if cfg.signal == "mean_loss" else min(values)
    # One head of m is the m-th part of a round.
    part = len(heads) / max(len(heads), clients - len(me.state["left"]))
    return plateau_of(me, cfg).step(me.state.setdefault("plateau", {}), signal, cfg.every * part)


def longest(me: Party, clients: Sequence[Peer], cfg: JoVeFL) -> int:
    """Rounds that there may be at most, and one in which all leave."""
    if cfg.mode == "sync" and not cfg.deadline:
        return me.schedule.epochs + 1
    return me.schedule.epochs * len(clients) + 1


def check_alike(heads: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
    (first, reference), *others = heads.items()
    for name, head in others:
        alike = aggregation.same_names([reference, head])
        if not alike or not aggregation.same_names([buffers[first], buffers[name]]):
            raise MethodError(
                f"the heads of '{first}' and '{name}' have different layers, so there is no mean. "
                "All clients need one θ: with a cut the same model and width behind it, else "
                "[jovefl] dim and hidden say what it is"
            )


# ---- what both sides do --------------------------------------------------------------------------


def code(
    me: Party, change: Mapping[str, Tensor], place: str, cfg: JoVeFL
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What crosses instead of `change`, and what arrives of it."""
    coder = compressor(cfg.compress, cfg.bits)
    coded = {k: coder.compress(x, seed_of(me, place, k)) for k, x in change.items()}
    return coded, decode(me, coded, change, place, cfg)


def decode(
    me: Party, coded: Any, like: Mapping[str, Tensor], place: str, cfg: JoVeFL
) -> dict[str, Tensor]:
    coder = compressor(cfg.compress, cfg.bits)
    return {
        k: coder.decompress(coded[k], x.shape, seed_of(me, place, k)).to(x.device)
        for k, x in like.items()
    }


def seed_of(me: Party, place: str, name: str) -> int:
    return derive(me.schedule.seed, "dither", place, name)


def parts_of(module: nn.Module, cfg: JoVeFL) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers that are shared, as they are now."""
    parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    if cfg.batch_norm != "shared":
        return parameters, {}
    return parameters, {name: b.detach().clone() for name, b in module.named_buffers()}


def put_into(
    module: nn.Module, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> None:
    """Let the module be the common head; what of its statistics is its own stays."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(parameters[name])
        for name, buffer in module.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])


def on_device(tree: Mapping[str, Tensor], me: Party) -> dict[str, Tensor]:
    return {name: tensor.to(me.device) for name, tensor in tree.items()}  # a checkpoint's is not


def plateau_of(me: Party, cfg: JoVeFL) -> Plateau:
    rising = cfg.signal == "accuracy"
    return Plateau(me.recipe.warmup, cfg.factor, cfg.patience, cfg.reductions, rising)


# ---- networks, and how good they are -------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """θ∘ξ, and what trains it."""

    name: str
    embed: nn.Module
    head: nn.Module
    shared: nn.Module  # what is told to others: θ, or all of it
    optimizer: torch.optim.Optimizer

    def __call__(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(x))
        return logits


class Mixture(nn.Module):
    """What an insured client predicts: so much from its shared network, the rest from its own."""

    part: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("part", torch.tensor(0.5))

    def forward(self, shared: Tensor, alone: Tensor) -> Tensor:
        """The logarithms of the mixed probabilities."""
        ours = shared.log_softmax(1) + self.part.log()
        return torch.logaddexp(ours, alone.log_softmax(1) + (1 - self.part).log())

    def choose(self, shared: Tensor, alone: Tensor, labels: Tensor) -> None:
        """The part with the lowest loss on rows that trained neither; of equals, the evenest."""
        found = []
        for part in BLENDS:
            self.part.fill_(part)
            loss = float(F.nll_loss(self(shared, alone), labels))
            found.append((round(loss, 6), abs(part - 0.5), part))
        self.part.fill_(min(found)[2])


def mixture_of(me: Party) -> Mixture:
    return me.keep("mixture", Mixture)


def used(me: Party, logits: Mapping[str, Tensor], cfg: JoVeFL) -> Tensor:
    """What the client predicts, from what its networks say."""
    if not is_insured(cfg):
        return logits[SHARED]
    mixed: Tensor = mixture_of(me)(logits[SHARED], logits[ALONE])
    return mixed


def is_insured(cfg: JoVeFL) -> bool:
    return cfg.adopt == "insured" and cfg.share in ("heads", "networks")


def chains_of(me: Party, cfg: JoVeFL) -> list[Chain]:
    """The network whose head is shared; with adopt = "insured" also one that never is."""
    names = (SHARED, ALONE) if is_insured(cfg) else (SHARED,)
    return [chain_of(me, cfg, name) for name in names]


def chain_of(me: Party, cfg: JoVeFL, name: str) -> Chain:
    prefix = "" if name == SHARED else f"{name} "
    embed, head = models_of(me, cfg, prefix)
    shared = nn.ModuleList([embed, head]) if cfg.share == "networks" else head
    return Chain(name, embed, head, shared, me.optimizer(embed, head, name=f"{prefix}optimizer"))


def models_of(me: Party, cfg: JoVeFL, prefix: str = "") -> tuple[nn.Module, nn.Module]:
    """ξ_i and θ_i. All θ_i begin alike; how they are drawn does not depend on anything else."""
    alike = cfg.same_start or cfg.share == "networks"
    seed, owner = me.schedule.seed, "" if alike else me.name

    def drawn(which: int, *names: str) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, *names))
            part = made(me, cfg)[which]
            if which == 1 and not (cfg.cut and is_own(me.recipe.model)):
                torch.manual_seed(derive(seed, *names))  # ξ_i of another shape drew other numbers
                draw_again(part)
            return part

    embed = me.keep(f"{prefix}embedding", lambda: drawn(0, "embedding", owner))
    return embed, me.keep(f"{prefix}head", lambda: drawn(1, "head"))


def draw_again(head: nn.Module) -> None:
    for layer in head.modules():
        reset = getattr(layer, "reset_parameters", None)
        if callable(reset):
            reset()


def made(me: Party, cfg: JoVeFL) -> tuple[nn.Module, nn.Module]:
    """A pair of ξ and θ for this client's rows."""
    recipe, classes = me.recipe, len(me.classes)
    if not cfg.cut:
        embed = network(recipe.model, me.shape, cfg.dim, **recipe.model_options)
        head: nn.Module = mlp((cfg.dim,), classes, hidden=cfg.hidden, activated=False)
    else:
        shape, before = seen(me, cfg)
        scores = {} if is_own(recipe.model) else {"activated": False}
        options = {**recipe.model_options, **scores}
        whole = network(recipe.model, shape, classes, **options)
        if not isinstance(whole, nn.Sequential):
            raise ConfigError([f"cut = '{cfg.cut}': {recipe.model} is no nn.Sequential to be cut"])
        bottom, head = split(whole, cfg.cut)
        embed = nn.Sequential(*before, *bottom, *behind(bottom, shape, cfg))
    if cfg.batch_norm == "batch":
        for module in (*embed.modules(), *head.modules()):
            forget_statistics(module)
    check_fits(me, embed, head, cfg)
    return embed, head


def seen(me: Party, cfg: JoVeFL) -> tuple[tuple[int, ...], list[nn.Module]]:
    """The shape of what the network gets to see, and what makes the view so large."""
    if len(me.shape) != 3 or cfg.fit not in ("resize", "canvas") or cfg.share == "data":
        return me.shape, []
    if me.view is None:
        raise ConfigError(
            [f"fit = '{cfg.fit}' needs to know the whole image, and '{me.name}' has none"]
        )
    part, height, width = me.view.part, me.view.height, me.view.width
    right, below = width - part.right, height - part.bottom
    larger = {
        "resize": nn.Upsample((height, width), mode="bilinear"),
        "canvas": nn.ZeroPad2d((part.left, right, part.top, below)),
    }
    return (me.shape[0], height, width), [larger[cfg.fit]]


def behind(bottom: nn.Module, shape: tuple[int, ...], cfg: JoVeFL) -> list[nn.Module]:
    """What makes the maps of all clients equally large."""
    size = (cfg.fit_size, cfg.fit_size)
    after = {"pool": nn.AdaptiveAvgPool2d(size), "interpolate": nn.Upsample(size, mode="bilinear")}
    if cfg.fit not in after:
        return []
    with torch.no_grad():
        maps = bottom.eval()(torch.zeros(1, *shape)).dim() == 4
    bottom.train()
    return [after[cfg.fit]] if maps else []


def check_fits(me: Party, embed: nn.Module, head: nn.Module, cfg: JoVeFL) -> None:
    """Whether θ can take what ξ makes of this client's rows."""
    with torch.no_grad():
        embedding = embed.eval()(torch.zeros(2, *me.shape))
        try:
            head.eval()(embedding)
        except RuntimeError as error:
            shape = "×".join(str(size) for size in embedding.shape[1:])
            raise ConfigError(
                [
                    f"party '{me.name}': behind the cut '{cfg.cut}' {me.recipe.model} cannot take "
                    f"maps of {shape} ({error}). Choose another fit, fit_size or cut"
                ]
            ) from None
    embed.train()
    head.train()


def forget_statistics(module: nn.Module) -> None:
    """BatchNorm by the batch at hand, also in an evaluation."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        module.track_running_stats = False
        module.running_mean = module.running_var = module.num_batches_tracked = None


def evaluate(me: Party, chains: Sequence[Chain], cfg: JoVeFL) -> None:
    """Accuracies for the report, and those that decide about rates and heads."""
    due = me.evaluations
    if cfg.rate == "plateau" and me.schedule.evaluate_every:
        due = [name for name in me.splits if name != "train"]  # this epoch may be the last
    first = [cfg.judge] if needs_judge(cfg) else []
    for rows in dict.fromkeys([*first, *due]):
        logits = {chain.name: logits_of(me, chain, rows) for chain in chains}
        for chain in chains:
            if rows in first:
                accuracy, loss = judged(me, logits[chain.name], cfg)
                me.state[of(chain, "accuracy")], me.state[of(chain, "loss")] = accuracy, loss
        if is_insured(cfg) and rows in first:
            mixture_of(me).choose(logits[SHARED], logits[ALONE], labels_of(me, rows))
            me.log(mixture=float(mixture_of(me).part))
        if rows in due:
            me.score(rows, used(me, logits, cfg))
            for name in logits if is_insured(cfg) else ():
                me.score(rows, logits[name], measure=name)


def logits_of(me: Party, chain: Chain | tuple[nn.Module, nn.Module], split: str) -> Tensor:
    embed, head = (chain.embed, chain.head) if isinstance(chain, Chain) else chain
    with me.evaluating():
        return torch.cat([head(embed(batch.x)) for batch in me.rows(split)])  # (rows, classes)


def judged(me: Party, logits: Tensor, cfg: JoVeFL) -> tuple[float, float]:
    """Accuracy and loss on the rows that decide."""
    labels = labels_of(me, cfg.judge)
    right = int((logits.argmax(1) == labels).sum())
    return right / len(labels), float(F.cross_entropy(logits, labels))


def labels_of(me: Party, rows: str) -> Tensor:
    labels = me.splits[rows].y
    assert labels is not None
    return labels


def of(chain: Chain, what: str) -> str:
    return what if chain.name == SHARED else f"{what} {chain.name}"


def signal_of(chain: Chain, cfg: JoVeFL) -> str:
    return of(chain, "accuracy" if cfg.signal == "accuracy" else "loss")


def needs_judge(cfg: JoVeFL) -> bool:
    return cfg.rate == "plateau" or is_insured(cfg)


def check_judge(me: Party, cfg: JoVeFL) -> None:
    if cfg.judge not in me.splits or not len(me.splits[cfg.judge]):
        needs = f"{why_judged(cfg)} decides by {cfg.judge} rows, and '{me.name}' has none"
        raise ConfigError([f"{needs}: set data.validation = 0.1, or bring more rows"])


def why_judged(cfg: JoVeFL) -> str:
    return "jovefl.rate = 'plateau'" if cfg.rate == "plateau" else f"jovefl.adopt = '{cfg.adopt}'"


def validates(cfg: JoVeFL) -> str:
    by_validation = needs_judge(cfg) and cfg.judge == "validation"
    return f"{why_judged(cfg)} decides by validation rows" if by_validation else ""


def cast(parties: Sequence[str], holder: str, options: JoVeFL) -> dict[str, str]:
    """All are clients but the party called "server", which brings no rows."""
    clients = {name: "client" for name in parties if name != SERVER}
    if strangers := [n for n in (*options.away, *options.pace) if n not in clients]:
        there = ", ".join(clients)
        raise ConfigError([f"jovefl: no client '{n}'; there are {there}" for n in strangers])
    if options.share in ("nothing", "data"):
        return clients
    if options.quorum > len(clients):
        raise ConfigError([f"jovefl.quorum = {options.quorum}: there are {len(clients)} clients"])
    return clients | {SERVER: "server"}


def simulated(cfg: JoVeFL) -> str:
    if cfg.whole:
        return "whole = true moves whole images"
    return "share = 'data' puts all views in one place" if cfg.share == "data" else ""


METHOD = Method(
    name="jovefl",
    summary="different views, own labels: only the prediction heads are averaged",
    options=JoVeFL,
    roles={
        "client": Role(client, client_predict, sends=lambda cfg, _: talks(cfg, HEAD)),
        "server": Role(
            server,
            server_predict,
            features=False,
            rows=False,
            sends=lambda cfg, _: talks(cfg, GLOBAL),
        ),
    },
    kinds=(HEAD, GLOBAL),
    cast=cast,
    hub="server",
    aligned=lambda options: False,
    loose=True,
    own_labels=True,
    validates=validates,
    pooled=lambda cfg: cfg.share == "data",
    simulated=simulated,
    moved_whole=lambda cfg: cfg.whole and cfg.share != "data",  # there they are whole
    reference="JoVe-FL: A Joint-Embedding Vertical Federated Learning Framework",
)
