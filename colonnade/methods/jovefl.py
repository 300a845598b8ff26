"""JoVe-FL: clients with different views of things share only their prediction heads.

Paper: "JoVe-FL: A Joint-Embedding Vertical Federated Learning Framework". Client i has its own
view, its own labels, an embedding model ξ_i of any kind, and a prediction head θ_i, built alike at
all clients; it predicts with θ_i∘ξ_i. No rows are matched. Training the heads on embeddings as if
these came from one space makes them do so.

    every client i                                    the server
    1. send θ_i and acc_i                         →   1. wait for θ_i and acc_i of all clients
                                                      2. θ := mean of the θ_i
                                                      3. η := warm-up; then ε·η at each plateau of
                                                         min acc_i; instead of the last, stop
    4. θ_i := θ, or stop                          ←   4. send θ and η, or the word to stop
    5. train θ_i∘ξ_i for q epochs of SGD at rate η
    6. acc_i := accuracy of θ_i∘ξ_i on held-out rows; of numbers max(0, R²)

Step 3 is `rate = "plateau"`; by default the recipe's schedule sets η. Reported is θ_i∘ξ_i after
step 6 ("per_party"), and θ∘ξ_i after step 4 ("merged").

Ours: clients may come and go. Nobody waits for one that is away: the server goes on when a quorum
is there and nobody else came for `deadline` seconds; with `mode = "async"` it answers whoever
comes. A client without contact trains alone, and predicts at any time. Late heads count less.

Also ours: `adopt = "insured"`. Each client trains a second network alone, on the same batches, and
predicts with both, mixed as its validation rows prefer. The aim is that nobody loses by sharing.

`share` also names what the paper compares with, trained by the same lines: "nothing" is no
communication, "data" one network on the union of the views, "networks" FedAvg on all of θ∘ξ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from colonnade.errors import ConfigError, MethodError, unknown
from colonnade.methods.parts import aggregation, masked_heads, optimizers, participation, rates
from colonnade.methods.parts.chains import (
    MEASURES,
    ONE_HEAD,
    SHARED,
    Chain,
    chains_of,
    pairs_of,
    predicted,
    score_all,
    why_judged,
)
from colonnade.methods.parts.coded import ClientEnd, Coding, ServerEnd, check_answer
from colonnade.methods.parts.head_messages import (
    GLOBAL,
    KINDS,
    client_sends,
    head_kind,
    server_sends,
)
from colonnade.methods.parts.merging import Merging, check_alike, weight_of
from colonnade.methods.parts.options import bounded, group
from colonnade.methods.parts.scoring import logits_of, require_held_out, require_rows
from colonnade.models.divided import Division, Way
from colonnade.privacy.secure_sum import SecureSum
from colonnade.role import stopping
from colonnade.role.method import About, Learning, Membership, Method, Network, Role, RowRules
from colonnade.role.party import Party
from colonnade.wire import Peer

SERVER = "server"


@dataclass(frozen=True)
class JoVeFL:
    """Options of JoVe-FL, by the steps that they belong to."""

    share: Literal["heads", "networks", "nothing", "data"] = "heads"
    # ---- networks: models/divided.py
    cut: str = ""  # ξ ends after this layer, such as "stage2"; empty: ξ is the whole network
    dim: int = 128  # k of Eq. 1, without a cut: the width of every embedding
    hidden: tuple[int, ...] = ()  # without a cut: hidden layers of θ, an MLP
    fit: Way = "pool"  # with a cut: how views of all sizes get embeddings of one (Eq. 1)
    fit_size: int = 8  # pool, interpolate: the map that θ gets is so high and wide
    batch_norm: Literal["shared", "local", "batch"] = "shared"  # θ's statistics
    same_start: bool = False  # also every ξ_i begins alike
    momentum: Literal["keep", "reset"] = "keep"  # of θ's optimiser, at each new head
    # ---- 1. and 4. what crosses, and who takes part: parts/coded.py, parts/participation.py
    every: int = 1  # q, epochs between two rounds
    secure: bool = False  # ours: θ_i under masks, so that the server learns the mean alone
    compress: Literal["none", "float16", "scalar", "topk"] = "none"
    bits: int = 8  # scalar, topk: per number, of 32
    mode: Literal["sync", "async"] = "sync"
    quorum: int = 1  # heads without which no round ends early
    deadline: float = 0.0  # seconds without another head that end a round; 0: wait for all
    contact: float = 0.0  # seconds a client waits for an answer, then trains alone; 0: no end
    absence: float = 0.0  # rehearsal: the probability of each client to miss a round
    away: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # rehearsal: epochs, from 1
    pace: Mapping[str, float] = field(default_factory=dict)  # rehearsal: seconds per epoch; else 1
    # ---- 2. the common head: parts/merging.py
    strategy: aggregation.Name = "fedavg"  # of the paper; server_… are for the others
    weighted: bool = False  # heads count by their rows
    server_lr: float = 1.0
    server_momentum: float = 0.9
    server_beta2: float = 0.99
    server_epsilon: float = 1e-3
    stale: float = 0.5  # a: a head begun s rounds ago counts (1 + s)^-a
    mixing: float = 0.6  # async: a new head's part in the mean
    adopt: Literal["always", "insured"] = "always"
    prox: float = 0.0  # μ of FedProx, in step 5
    # ---- 3. the rate of all: parts/rates.py
    rate: Literal["recipe", "plateau"] = "recipe"
    factor: float = 0.2  # ε
    patience: int = 15  # p, epochs
    reductions: int = 4  # the last of them ends the training
    signal: rates.Signal = "accuracy"  # the lowest acc_i; or of losses the lowest, or the mean
    judge: Literal["validation", "test"] = "validation"  # the held-out rows of step 6
    whole: bool = False  # move whole images before they are cut (simulation only)

    def __post_init__(self) -> None:
        bounded(self, "every", least=1)
        bounded(self, "prox", least=0)
        masked_heads.check(self)
        for part in (Division, Merging, Coding, participation.Participation, rates.Rates):
            group(self, part)  # each checks its own


# ---- the algorithm: a client ---------------------------------------------------------------------


async def client(me: Party, servers: list[Peer], clients: list[Peer], cfg: JoVeFL) -> None:
    chains = chains_of(me, pairs_of(me, cfg), whole=cfg.share == "networks")
    if why := why_judged(cfg):
        require_rows(me, cfg.judge, why)
    total = None
    if cfg.secure:
        total = await masked_heads.agreed(me, servers[0], clients, SERVER)
    for epoch in me.epochs():
        if me.position[2] == 0:  # else a resumed run goes on in the middle of an epoch
            await begin_epoch(me, servers, chains, cfg, epoch, total)  # 1. to 4.
        running = [chain for chain in chains if not rates.has_stopped(me.state, chain.name)]
        if not running:
            me.enough()
            continue
        for batch in me.batches(shared=False):  # 5. train θ_i∘ξ_i at rate η
            for chain in running:
                loss = me.task.loss(chain(batch.x), batch)
                chain.optimizer.zero_grad()
                loss.backward()
                if cfg.prox and chain.name == SHARED and "global" in me.state:
                    anchor = aggregation.on_device(me.state["global"]["parameters"], me.device)
                    aggregation.pull_back(chain.shared, anchor, cfg.prox)
                chain.optimizer.step()
                me.log(loss=loss) if chain.name == SHARED else me.log(loss_alone=loss)
        me.elapse(cfg.pace.get(me.name, 1.0))
        evaluate(me, chains, cfg)  # 6. acc_i := accuracy on held-out rows
        stopping.decide(me)
    participation.take_leave(me, servers, head_kind(cfg))


async def begin_epoch(
    me: Party,
    servers: list[Peer],
    chains: Sequence[Chain],
    cfg: JoVeFL,
    epoch: int,
    total: SecureSum | None = None,
) -> None:
    """Steps 1 to 4 of a client, as far as the server can be reached."""
    shared, *alone = chains
    for chain in alone if servers else chains:
        keep_own_rate(me, chain, cfg)  # 3. without others
    if not servers or rates.has_stopped(me.state, SHARED) or epoch % cfg.every:
        return
    answer = await participation.exchange(  # 1. send θ_i and acc_i
        me,
        servers[0],
        (head_kind(cfg), GLOBAL),
        lambda number: head_message(me, shared, number, cfg, total),
        epoch,
        group(cfg, participation.Participation),
    )
    if answer is None and cfg.secure:
        raise MethodError(f"'{me.name}' has no answer of '{SERVER}': with secure all come, or none")
    if answer is None:  # no contact: it goes on with its own head
        return
    check_answer(SERVER, answer)
    if answer["stop"]:  # 4. or stop
        rates.stop(me.state, SHARED)
    elif answer["forgotten"]:
        client_end(me, cfg).forget()
    else:
        adopt(me, shared, answer, cfg)  # 4. θ_i := θ
        for rows in me.evaluations:
            me.score(rows, logits_of(me, rows, *shared.layers), measure="merged")


def head_message(
    me: Party, chain: Chain, number: int, cfg: JoVeFL, total: SecureSum | None = None
) -> dict[str, Any]:
    """1. θ_i, acc_i, and what the server must know to weigh them."""
    parameters, buffers = aggregation.trees_of(chain.shared, cfg.batch_norm == "shared")
    about = weight_of(me, cfg.every) | {"buffers": buffers}
    about |= {key: me.state[key] for key in ("accuracy", "loss") if key in me.state}
    if total is not None:
        return masked_heads.message(me, total, number, parameters, **about)
    return client_end(me, cfg).message(number, parameters, **about)


def adopt(me: Party, chain: Chain, answer: Any, cfg: JoVeFL) -> None:
    """4. θ_i := θ, and the rate of all."""
    client_end(me, cfg).fill(chain.shared, answer, SERVER, keep=cfg.prox > 0)
    if cfg.momentum == "reset":
        optimizers.forget_momentum(chain.optimizer, chain.shared.parameters())
    if cfg.rate == "plateau":
        optimizers.set_rate(chain.optimizer, answer["rate"])


def keep_own_rate(me: Party, chain: Chain, cfg: JoVeFL) -> None:
    """3. The same rule, on this network's own signal."""
    if cfg.rate == "plateau":
        rule = group(cfg, rates.Rates, warmup=me.recipe.warmup)
        rule.keep_own(me.state, chain.name, chain.last(me, rule.measure), chain.optimizer)


def evaluate(me: Party, chains: Sequence[Chain], cfg: JoVeFL) -> None:
    """6. Accuracies for the report, and acc_i, by which step 3 decides."""
    due = me.evaluations
    if cfg.rate == "plateau" and me.schedule.evaluate_every:
        due = [name for name in me.splits if name != "train"]  # this epoch may be the last
    score_all(me, chains, due, cfg.judge if why_judged(cfg) else "")


async def client_predict(me: Party, cfg: JoVeFL, split: str) -> Tensor:
    pairs = pairs_of(me, cfg).items()
    return predicted(me, {name: logits_of(me, split, *pair) for name, pair in pairs})


# ---- the algorithm: the server -------------------------------------------------------------------


async def server(me: Party, clients: list[Peer], cfg: JoVeFL) -> None:
    rules, merging = group(cfg, participation.Participation), group(cfg, Merging)
    end = ServerEnd(group(cfg, Coding, seed=me.schedule.seed), me.state, me.device)
    total = None
    if cfg.secure:
        total = await masked_heads.agreed(me, None, clients, SERVER)
    for epoch in me.epochs(count=rules.most_rounds(me.schedule.epochs, len(clients))):
        if rules.in_step and epoch % cfg.every and epoch < me.schedule.epochs:
            continue  # all clients are between two rounds
        # 1. wait for θ_i and acc_i of all clients
        heads = await participation.gather(me, clients, head_kind(cfg), epoch, rules)
        if not heads:
            if participation.all_gone(me, clients):
                me.enough()
            continue
        if total is not None:  # 2. θ := mean of the θ_i
            masked_heads.merge(me, total, clients, heads)
        else:
            came = end.hear(heads)
            check_alike(came, heads, ONE_HEAD, me.state.get("head"))
            merging.merge(me.state, came, heads, me.device)  # 2. θ := mean of the θ_i
        rate = rate_of_all(me, heads, len(clients), cfg)  # 3. η := warm-up; then ε·η
        me.state["round"] = me.state.get("round", 0) + 1
        say: dict[str, Any] = {"stop": rate is None, "rate": rate or 0.0}
        for peer in (one for one in clients if one.name in heads):  # 4. send θ and η, or to stop
            peer.send(GLOBAL, end.answer(peer.name, heads[peer.name], **say))
        me.log(heads=float(len(heads)))
    if not me.state.get("round"):
        raise MethodError("no client ever sent a head: they failed or never came; see their logs")


def rate_of_all(me: Party, heads: Mapping[str, Any], clients: int, cfg: JoVeFL) -> float | None:
    """3. What every client's rate is multiplied by; None: the training is over."""
    if cfg.rate == "recipe":
        return 1.0
    rule, left = group(cfg, rates.Rates, warmup=me.recipe.warmup), me.state["left"]
    return rule.of_all(me.state, heads, clients - len(left), cfg.every)


async def server_predict(me: Party, cfg: JoVeFL, split: str) -> None:
    """Every client predicts alone."""


# ---- what the algorithm works with ---------------------------------------------------------------


def client_end(me: Party, cfg: JoVeFL) -> ClientEnd:
    return ClientEnd(group(cfg, Coding, seed=me.schedule.seed), me.name, me.state, me.device)


def trained_before_sent(cfg: JoVeFL, epochs: int) -> dict[str, int]:
    """θ_i and ξ_i have one optimiser. What else a client would tell of its rows is refused."""
    if why := why_judged(cfg):
        raise MethodError(f"{why} tells others how right a client is on held-out rows. Omit it")
    if cfg.prox:
        raise MethodError(f"jovefl.prox = {cfg.prox:g} adds to gradients without noise. Omit it")
    return {"optimizer": epochs}


def cast(parties: Sequence[str], holder: str, options: JoVeFL) -> dict[str, str]:
    """All are clients but the party called "server", which brings no rows."""
    clients = {name: "client" for name in parties if name != SERVER}
    if strangers := [n for n in (*options.away, *options.pace) if n not in clients]:
        raise ConfigError([unknown(n, clients, "in [jovefl]", "client") for n in strangers])
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
        "client": Role(client, client_predict, sends=client_sends, trains=trained_before_sent),
        "server": Role(server, server_predict, features=False, rows=False, sends=server_sends),
    },
    kinds=KINDS,
    cast=cast,
    rows=RowRules(
        aligned=lambda cfg: False, own_labels=True, pooled=lambda cfg: cfg.share == "data"
    ),
    network=Network(moved_whole=lambda cfg: cfg.whole and cfg.share != "data"),
    membership=Membership(hub="server", elastic=True, signs=lambda cfg: cfg.secure),
    simulated=simulated,
    check=lambda known: require_held_out(known, why_judged(known.options)),
    learning=Learning(
        tasks=("binary", "multiclass", "regression"),
        stops="alone",
        unprotected=lambda options: (
            "weighs and mixes networks by labels in ways that are not corrected for answers"
        ),
    ),
    about=About(
        title="JoVe-FL",
        reference="JoVe-FL: A Joint-Embedding Vertical Federated Learning Framework",
        measures=MEASURES,
    ),
)
