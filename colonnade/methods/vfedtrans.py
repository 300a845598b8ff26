"""VFedTrans: one exchange about shared rows, after which a party's own columns know more.

Paper: "Vertical Federated Knowledge Transfer via Representation Distillation". The task party has
labels; partners have other columns of some of its rows, the shared ones I_s. S = [S_1 | … | S_K].

    once: every pair of members agrees on a key, over the task party (privacy/keys.py)

    key generator              task party and partners k                 server
    1. A, B orthogonal    →    2. Ŝ_k = A S_k B_k (Eq. 2), masked   →    3. Σ_k Ŝ_k = A S B = Û Σ V̂ᵀ
       (A, B_k) to k, sealed   4. task party: U = Aᵀ Û (Eq. 3)      ←       q leading columns of Û
                               5. it distils U into Enc, over all its own rows (Eq. 5)
                               6. it trains a network on x* = ⟨x, Enc(x)⟩, and predicts alone

After step 4 nobody but the task party does anything. privacy/fedsvd.py says who learns what: the
server Σ, the task party U, and so how alike the shared rows are at all parties; key generator and
server together learn everything, so these must be two organisations. Before step 1 each partner
decides by itself (privacy/exchange.py). Without noise it refuses a q from which more than half of
its variance may follow, columns of categories, and rows that were exchanged before; take the other
half for known all the same, to whoever knows something of the rows. With `epsilon` it brings few
noisy columns instead of its own, and one row tells little, whoever sees them. `unsafe_q` refuses
nothing. Here all K parties take part in one FedSVD; the paper runs it with one partner at a time,
which shows the task party more.

I_s is what an alignment of own files finds, as far as it is among the training rows: by their ids
all parties agree which these are. Of one data set, whose rows all hold, `shared` is the part, drawn
with the seed, that the partners know about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from colonnade.errors import ConfigError, MethodError, Untrusted
from colonnade.methods.parts import enrichment as enrich
from colonnade.methods.parts.enriched import Enriched
from colonnade.methods.parts.enrichment import Enricher
from colonnade.methods.parts.transfer_messages import MASKED, MASKS, SHAPE, VECTORS, WIDTH
from colonnade.models import head, network
from colonnade.models.layers import Activation
from colonnade.privacy import budget, exchange, fedsvd, keys, release
from colonnade.privacy.determined import MOST
from colonnade.privacy.secure_sum import SecureSum
from colonnade.role import stopping
from colonnade.role.method import About, Circumstances, Learning, Membership, Method, Role, RowRules
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.toml import Bounds
from colonnade.wire import Peer

SERVER, KEY_GENERATOR = "server", "key_generator"
TRANSFER = "transfer"  # the phase of steps 1 to 5
GRID = 2.0**-12  # targets are rounded to it: fresh masks change U by 1e-13


@dataclass(frozen=True)
class VFedTrans:
    """Options of VFedTrans; those of the auto-encoder as in parts/enrichment.py."""

    # Simulation: |I_s| as a part of all training rows.
    shared: Annotated[float, Bounds(above=0, most=1)] = 0.6
    q: Annotated[int, Bounds(least=1)] = 2  # leading columns of U
    unsafe_q: bool = False  # also a q from which partners' columns can be computed
    # How often a partner's record may take part in an exchange without noise, in all runs
    exchanges: Annotated[int, Bounds(least=1)] = 1
    epsilon: Annotated[float, Bounds(least=0)] = 0.0  # of all runs together; 0: no guarantee
    delta: Annotated[float, Bounds(above=0, below=1)] = 1e-6
    # epsilon: rows of d standardised columns are shortened to clip · √d
    clip: Annotated[float, Bounds(above=0)] = 1.0
    block: int = fedsvd.BLOCK  # of A and B; 0: dense
    fraction: int = fedsvd.FRACTION
    theta: float = 10.0  # θ in Eq. 5; 0: the control without transfer
    reconstruction: float = 1.0  # the factor of L_recons; 0: regression to U only
    layers: int = 2
    hidden: int = 256
    activation: Activation = "relu"
    code: Literal["linear", "activated"] = "linear"
    distil: Literal["l2", "l1"] = "l2"
    target: Literal["unit", "raw"] = "unit"
    output: Literal["code", "decoder", "both"] = "code"  # what is appended to x
    scaling: Literal["standard", "minmax", "none"] = "standard"
    distil_lr: float = 2e-3
    distil_epochs: int = 40
    distil_batch: int = 200
    weight_decay: float = 1e-3
    dropout: float = 0.0
    held_out: float = 0.0
    members: int = 1
    stretch: float = 1.0
    dim: Annotated[int, Bounds(least=1)] = 128  # of the task network's last hidden layer

    def __post_init__(self) -> None:
        self.enricher(0)
        if self.epsilon and self.unsafe_q:
            raise ValueError("epsilon protects rows at every q: omit unsafe_q")

    def enricher(self, seed: int) -> Enricher:
        same = {field.name for field in fields(Enricher)} & {field.name for field in fields(self)}
        return Enricher(
            lr=self.distil_lr,
            epochs=self.distil_epochs,
            batch_size=self.distil_batch,
            seed=seed,
            **{name: getattr(self, name) for name in same},
        )


async def key_generator(
    me: Party, task: Peer, partners: list[Peer], server: Peer, cfg: VFedTrans
) -> None:
    for _ in me.epochs(TRANSFER, 1):
        secrets = await keys.passive_keys(me, task, [*partners, server], TRANSFER)
        parties = [task, *partners]
        told = [(peer.name, int(await peer.recv(WIDTH))) for peer in parties]
        widths = [fedsvd.checked_width(name, width, cfg.block) for name, width in told]
        seed = fedsvd.new_seed()  # of A; that of B is another one, and stays here
        masks = fedsvd.column_masks(fedsvd.new_seed(), widths, block=cfg.block)
        for peer, mask in zip(parties, masks, strict=True):  # 1.
            peer.send(MASKS, fedsvd.sealed(seed, mask, secrets[peer.name]))
    idle(me)


async def partner(
    me: Party,
    task: Peer,
    partners: list[Peer],
    server: Peer,
    key_generator: Peer,
    cfg: VFedTrans,
) -> None:
    for _ in me.epochs(TRANSFER, 1):
        own = partners_columns(me, cfg)
        members = [*partners, server, key_generator]
        total = await agree(me, task, members, server.name, cfg)
        await send_masked(me, own, server, key_generator, total, cfg)  # 2.
    me.pass_by("train", me.schedule.epochs)


async def server(
    me: Party, task: Peer, partners: list[Peer], key_generator: Peer, cfg: VFedTrans
) -> None:
    for _ in me.epochs(TRANSFER, 1):
        total = await agree(me, task, [*partners, key_generator], me.name, cfg)
        parties = [task, *partners]
        matrix = torch.empty(await agreed_shape(parties), dtype=torch.float64)
        for rows, moment in fedsvd.strips_of(matrix.shape):  # 3. Σ_k Ŝ_k
            matrix[rows] = await total.receive(parties, moment, shape=matrix[rows].shape)
        with me.timing("fedsvd"):
            vectors = fedsvd.left_vectors(matrix, cfg.q)  # 3. Û
        if vectors.shape[1] < cfg.q:
            raise MethodError(
                f"the shared rows have only {vectors.shape[1]} independent columns; q = {cfg.q} "
                f"is too many: set [vfedtrans] q, such as {max(1, vectors.shape[1] // 4)}"
            )
        task.send(VECTORS, vectors)
    idle(me)


async def task(
    me: Party, partners: list[Peer], server: Peer, key_generator: Peer, cfg: VFedTrans
) -> None:
    encoder = encoder_of(me, cfg)
    for _ in me.epochs(TRANSFER, 1):
        total = await agree(me, None, [*partners, server, key_generator], server.name, cfg)
        rows = shared_rows(me, cfg)
        own = fedsvd.standardised(own_rows(me)[rows])
        a = await send_masked(me, own, server, key_generator, total, cfg)  # 2.
        vectors = await server.recv(VECTORS)
        if vectors.shape != (len(rows), cfg.q) or not vectors.isfinite().all():
            raise Untrusted(f"'{server.name}' sent no {cfg.q} vectors of {len(rows)} shared rows")
        scale = len(rows) ** 0.5
        u = (fedsvd.unmask(vectors, a) * scale / GRID).round() * GRID / scale  # 4.
        with me.timing("distillation"):
            seed = derive(me.schedule.seed, "distil", me.name) % 2**31
            learnt = enrich.train(own_rows(me), rows, u, cfg.enricher(seed))  # 5.
            encoder.learn(enrich.stretched(learnt, own_rows(me)[rows]) if cfg.epsilon else learnt)
    model = model_of(me, cfg)
    optimizer = me.optimizer(model)
    for _ in me.epochs():
        for batch in me.batches(shared=False):
            loss = me.task.loss(model(encoder(batch.x)), batch)  # 6.
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            me.log(loss=loss)
        for split in me.evaluations:
            me.score(split, task_logits(me, encoder, model, split))
        stopping.decide(me)


async def task_predict(me: Party, cfg: VFedTrans, split: str) -> Tensor:
    return task_logits(me, encoder_of(me, cfg), model_of(me, cfg), split)


async def nothing_predict(me: Party, cfg: VFedTrans, split: str) -> None:
    """The task party predicts alone."""


# ---- steps 2 and 3, alike at all parties with columns --------------------------------------------


async def agree(
    me: Party, relay: Peer | None, others: Sequence[Peer], server: str, cfg: VFedTrans
) -> SecureSum:
    """Keys for all pairs of members; the key generator adds nothing to the sum at the server."""
    return await SecureSum.agree(
        me,
        relay,
        others,
        purpose=TRANSFER,
        receiver=server,
        kind=MASKED,
        ring=lambda terms: fedsvd.ring_for(terms, cfg.fraction),
        apart=(KEY_GENERATOR,),
    )


async def send_masked(
    me: Party, rows: Tensor, server: Peer, key_generator: Peer, total: SecureSum, cfg: VFedTrans
) -> fedsvd.RowMask:
    """Everything a party does until its masked matrix is at the server; A, for step 4."""
    key_generator.send(WIDTH, torch.tensor([rows.shape[1]]))
    secret = total.secrets[key_generator.name]
    seed, b = fedsvd.opened(await key_generator.recv(MASKS), secret, rows.shape[1])
    a = fedsvd.row_mask(seed, len(rows), block=cfg.block)
    with me.timing("fedsvd"):
        masked = fedsvd.mask_matrix(rows, a, b)
    server.send(SHAPE, torch.tensor(masked.shape))
    for strip, moment in fedsvd.strips_of(masked.shape):
        total.send(server, masked[strip], moment)
    return a


def partners_columns(me: Party, cfg: VFedTrans) -> Tensor:
    """Before anything is sent: a partner asks for nobody's word, see privacy/exchange.py."""
    rows = shared_rows(me, cfg)
    terms = exchange.Terms(cfg.q, cfg.unsafe_q, cfg.exchanges, cfg.epsilon, cfg.delta, cfg.clip)
    table = fedsvd.standardised(own_rows(me)[rows])
    return exchange.admitted(me, table, me.records()[rows.numpy()], terms)


async def agreed_shape(parties: Sequence[Peer]) -> tuple[int, int]:
    said = {peer.name: tuple((await peer.recv(SHAPE)).tolist()) for peer in parties}
    if len(set(said.values())) > 1:
        raise Untrusted(f"the parties' masked matrices have different shapes: {said}")
    rows, width = next(iter(said.values()))
    return rows, width


def shared_rows(me: Party, cfg: VFedTrans) -> Tensor:
    """I_s, as positions in the training rows: the same rows in the same order at all parties."""
    train = me.splits["train"]
    if me.common is not None:
        place = {row: position for position, row in enumerate(train.ids.tolist())}
        found = [place[row] for row in me.common.tolist() if row in place]
        if len(found) < 2:
            raise MethodError(f"{len(found)} of the common rows are for training; 2 are needed")
        return torch.tensor(found)
    count = len(train)
    generator = torch.Generator().manual_seed(derive(me.schedule.seed, "shared"))
    return torch.randperm(count, generator=generator)[: max(2, round(cfg.shared * count))]


def own_rows(me: Party) -> Tensor:
    return torch.cat([batch.x.flatten(1) for batch in me.rows("train")]).double().cpu()


def idle(me: Party) -> None:
    """A helper lets the training go by; all have checkpoints at the same places."""
    for _ in me.epochs():
        pass


# ---- the task party's networks -------------------------------------------------------------------


def encoder_of(me: Party, cfg: VFedTrans) -> Enriched:
    return me.keep("encoder", lambda: Enriched(prod(me.shape), cfg.enricher(0)))


def model_of(me: Party, cfg: VFedTrans) -> nn.Module:
    """The party's network on its enriched rows, with the decision layers of its family."""
    shape = (prod(me.shape) + encoder_of(me, cfg).width,)
    return me.keep(
        "model",
        lambda: nn.Sequential(
            network(me.recipe.model, shape, cfg.dim, **me.recipe.model_options),
            head(me.recipe.model, cfg.dim, me.task.outputs),
        ),
    )


def task_logits(me: Party, encoder: nn.Module, model: nn.Module, split: str) -> Tensor:
    with me.evaluating():
        return torch.cat([model(encoder(batch.x)) for batch in me.rows(split)])  # (rows, classes)


# ---- what the framework needs to know ------------------------------------------------------------


def cast(parties: Sequence[str], holder: str, options: VFedTrans) -> dict[str, str]:
    helpers = {SERVER: "server", KEY_GENERATOR: "key_generator"}
    roles = {n: "task" if n == holder else "partner" for n in parties if n not in helpers}
    if len(roles) < 2:
        raise MethodError("vfedtrans transfers between a task party and at least one partner")
    return roles | helpers


def check(known: Circumstances) -> None:
    """Refuse a q of which it is clear from the numbers of columns that it tells too much.

    Of w columns q vectors determine the share q / w or more; partners look at their rows later.
    """
    cfg = known.options
    if cfg.epsilon:
        budget.require()
    if known.widths is None:
        return
    columns, most = sum(known.widths), int(max(known.widths) * MOST)
    if cfg.q >= columns:
        raise ConfigError(
            [
                f"vfedtrans.q = {cfg.q}, and the parties have {columns} columns together: so many "
                "singular vectors do not exist. Set [vfedtrans] q, such as "
                f"{max(1, min(most, columns // 4))}"
            ]
        )
    if cfg.q > most and not (cfg.unsafe_q or cfg.epsilon):
        raise ConfigError(
            [
                f"vfedtrans.q = {cfg.q}: no party has more than {max(known.widths)} columns, and "
                "so many singular vectors may determine more than half of what they say. "
                + (
                    f"Set [vfedtrans] q from 1 to {most} at most"
                    if most
                    else "This data cannot be enriched privately by vfedtrans without epsilon"
                )
                + "; or set epsilon, which protects every row; or unsafe_q = true, if everybody "
                "may see the partners' columns"
            ]
        )


def caveats(cfg: VFedTrans) -> list[str]:
    if cfg.epsilon:
        told = (
            f"epsilon = {cfg.epsilon:g}, delta = {cfg.delta:g}: replaced by any other row, a row "
            "of one partner changes no probability of what this partner sends, in all runs that "
            "its journal knows, by more than that, whoever sees it; given the means and spreads "
            "of the partner's columns and which rows are shared, which are not covered. Who is "
            "known to several partners has so much at each of them"
        )
    elif cfg.unsafe_q:
        told = (
            f"unsafe_q: from q = {cfg.q} singular vectors and its own columns the task party may "
            "compute partners' columns of the shared rows, to the last digit"
        )
    else:
        told = (
            f"no guarantee: q = {cfg.q} singular vectors leave at least half of the variance of "
            "each partner's columns undetermined by algebra, and protect no single column. The "
            "leading directions and columns that resemble others can be read off; a task party "
            "that knows a column of some rows, and brings them as columns of its own, gets much "
            f"of it for all rows. A partner's row takes part in {cfg.exchanges} such exchanges at "
            "most. epsilon would give a guarantee"
        )
    whose = "the task party's" if cfg.epsilon else "every party's"
    return [
        f"'{SERVER}' and '{KEY_GENERATOR}' together could read {whose} shared rows: let two "
        "organisations play them that do not talk to each other",
        told,
    ]


PARTY_SENDS = (*keys.KINDS, WIDTH, SHAPE, MASKED)

METHOD = Method(
    name="vfedtrans",
    summary="an encoder of own columns, taught by the joint SVD of shared rows",
    options=VFedTrans,
    roles={
        "task": Role(task, task_predict, sends=lambda *_: PARTY_SENDS),
        "partner": Role(partner, nothing_predict, sends=lambda *_: PARTY_SENDS),
        "server": Role(
            server,
            nothing_predict,
            features=False,
            rows=False,
            sends=lambda *_: (*keys.KINDS, VECTORS),
        ),
        "key_generator": Role(
            key_generator,
            nothing_predict,
            features=False,
            rows=False,
            sends=lambda *_: (*keys.KINDS, MASKS),
        ),
    },
    kinds=(*keys.KINDS, WIDTH, MASKS, SHAPE, MASKED, VECTORS),
    cast=cast,
    rows=RowRules(all_rows=True),
    membership=Membership(signs=lambda options: True),
    check=check,
    learning=Learning(
        tasks=("binary", "multiclass", "regression"),
        stops="alone",
        unprotected=lambda options: (
            "never lets labels leave the task party, so nothing needs protection: what leaves is "
            "made of features"
        ),
        counted=lambda options: frozenset({MASKED.name} if options.epsilon else ()),
    ),
    about=About(
        title="VFedTrans",
        reference="Vertical Federated Knowledge Transfer via Representation Distillation",
        numbers={"epsilon": release.NUMBERS["epsilon"]},
        caveats=caveats,
    ),
)
