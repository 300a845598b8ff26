"""The distilled auto-encoder: it learns the target where there is one, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from colonnade.errors import DataError
from colonnade.methods.parts import enrichment as enrich
from colonnade.methods.parts.enrichment import Encoder, Enricher

ROWS, SHARED, Q = 600, 400, 3
QUICK = Enricher(q=Q, hidden=32, epochs=25, batch_size=100, lr=1e-2)


def table(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of 6 columns, which of them are shared, and a target that follows from the row."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, 6, generator=generator, dtype=torch.float64) * 3 + 5
    hidden = torch.tanh((x - 5) @ torch.randn(6, Q, generator=generator).double() / 3)
    shared = torch.randperm(ROWS, generator=generator)[:SHARED]
    u, _ = torch.linalg.qr(hidden - hidden.mean(0))
    u = u * SHARED**-0.5 * ROWS**0.5
    return x, shared, u


def gap(encoder: Encoder, x: Tensor, target: Tensor) -> float:
    """Mean square distance to √s · U, whose entries have variance 1."""
    return float((enrich.encode(encoder, x) - SHARED**0.5 * target).square().mean())


def same(one: Encoder, other: Encoder) -> bool:
    mine, theirs = one.tensors(), other.tensors()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


def test_it_learns_the_target_also_of_rows_that_are_not_shared() -> None:
    x, shared, u = table()
    local = torch.tensor([row not in set(shared.tolist()) for row in range(ROWS)])
    encoder = enrich.train(x, shared, u[shared], QUICK)
    assert encoder.width == Q and enrich.encode(encoder, x).shape == (ROWS, Q)
    assert gap(encoder, x[shared], u[shared]) < 0.15
    assert gap(encoder, x[local], u[local]) < 0.25  # 1 would be a guess
    for control in (enrich.permuted(u[shared], 0), enrich.noise_like(u[shared], 0)):
        assert gap(enrich.train(x, shared, control, QUICK), x[local], u[local]) > 0.7
    assert gap(enrich.train(x, shared, u[shared], replace(QUICK, theta=0)), x, u) > 0.7


def test_without_theta_it_is_the_plain_auto_encoder() -> None:
    x, shared, u = table()
    options = replace(QUICK, theta=0.0, epochs=2)
    plain = enrich.train(x, shared[:0], u[:0], options)
    assert same(enrich.train(x, shared, u[shared], options), plain)
    assert not same(enrich.train(x, shared, u[shared], replace(options, theta=1.0)), plain)
    # Nothing is shared: θ has nothing to weigh.
    assert same(enrich.train(x, shared[:0], u[:0], replace(options, theta=7.0)), plain)


def test_rows_that_are_not_shared_have_no_target() -> None:
    """One step on one batch: the gradient is that of Eq. 5, written out."""
    x, shared, u = table()
    options = replace(QUICK, epochs=1, batch_size=ROWS, optimizer="adam", weight_decay=0.0)
    start = enrich.train(x, shared, u[shared], replace(options, epochs=0))
    network = start.network.float().requires_grad_(True)
    inputs = start.scaled(x).float()
    code = network[0](inputs)
    loss = (network[1](code) - inputs).square().mean()
    wanted = (SHARED**0.5 * u[shared]).float()
    loss = loss + 10 * (code[shared] - wanted).square().mean() * SHARED / ROWS
    loss.backward()
    after = enrich.train(x, shared, u[shared], options)
    for before, moved in zip(network.parameters(), after.network.parameters(), strict=True):
        assert before.grad is not None
        clear = before.grad.abs() > 1e-4
        step = (moved - before)[clear]  # Adam's first step is lr · sign
        assert torch.allclose(step, -options.lr * before.grad[clear].sign().double(), rtol=1e-2)


def test_seeds_and_the_global_generator() -> None:
    x, shared, u = table()
    options = replace(QUICK, epochs=2)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = enrich.train(x, shared, u[shared], options)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert same(enrich.train(x, shared, u[shared], options), first)
    assert not same(enrich.train(x, shared, u[shared], replace(options, seed=1)), first)


def test_only_the_leading_columns_are_learnt_and_a_small_rank_is_enough() -> None:
    x, shared, u = table()
    options = replace(QUICK, epochs=1)
    wide = torch.cat([u, u.flip(1)], 1)
    assert same(
        enrich.train(x, shared, wide[shared], options), enrich.train(x, shared, u[shared], options)
    )
    narrow = enrich.train(x, shared, u[shared][:, :2], options)
    assert narrow.width == 2 and narrow.options.q == 2


@pytest.mark.parametrize(
    ("output", "width"), [("code", Q), ("decoder", 6), ("both", 6 + Q)], ids=str
)
def test_outputs(output: str, width: int) -> None:
    x, shared, u = table()
    options = Enricher(**{**vars(QUICK), "output": output, "epochs": 1})
    encoder = enrich.train(x, shared, u[shared], options)
    found = enrich.encode(encoder, x)
    assert found.shape == (ROWS, width) and encoder.width == width and found.dtype == torch.float64
    # A row's code does not depend on the others.
    assert torch.allclose(enrich.encode(encoder, x[7:9]), found[7:9], atol=1e-12)


def test_the_published_settings_can_be_had() -> None:
    x, shared, u = table()
    paper = Enricher(q=Q, **{**enrich.PAPER, "epochs": 1})
    encoder = enrich.train(x, shared, u[shared], paper)
    assert len(list(encoder.network[0].children())) == 3 and encoder.width == Q
    assert float(enrich.encode(encoder, x).min()) < 0  # a linear code
    published = Enricher(q=Q, **{**enrich.PUBLISHED, "epochs": 1})
    found = enrich.encode(enrich.train(x, shared, u[shared], published), x)
    assert found.shape == x.shape  # the decoder's output
    assert float(found.min()) >= 0 and float(found.max()) <= 1  # it ends in a sigmoid


def test_losses_and_scales_differ() -> None:
    x, shared, u = table()
    base = replace(QUICK, epochs=1)
    others = [
        replace(base, distil="l1"),
        replace(base, reduction="sum"),
        replace(base, target="raw"),
        replace(base, scaling="minmax"),
        replace(base, scaling="none"),
        replace(base, reconstruction=0.0),
        replace(base, activation="tanh"),
        replace(base, code="activated"),
    ]
    trained = [enrich.train(x, shared, u[shared], options) for options in (base, *others)]
    codes = [enrich.encode(encoder, x) for encoder in trained]
    assert all(not torch.equal(codes[0], code) for code in codes[1:])


def test_a_constant_column_does_no_harm() -> None:
    x, shared, u = table()
    x[:, 2] = 1e6
    for scaling in ("standard", "minmax"):
        options = Enricher(**{**vars(QUICK), "scaling": scaling, "epochs": 1})
        assert enrich.encode(enrich.train(x, shared, u[shared], options), x).isfinite().all()


def test_what_was_learnt_can_be_restored() -> None:
    x, shared, u = table()
    encoder = enrich.train(x, shared, u[shared], replace(QUICK, epochs=1))
    again = enrich.restored(encoder.options, encoder.tensors())
    assert torch.equal(enrich.encode(again, x), enrich.encode(encoder, x))
    with pytest.raises(RuntimeError):
        enrich.restored(replace(encoder.options, q=7), encoder.tensors())


def test_the_code_of_several_members_is_their_mean() -> None:
    x, shared, u = table()
    options = replace(QUICK, epochs=1, members=2, stretch=1.5)
    both = enrich.train(x, shared, u[shared], options)
    apart = [
        enrich.train(x, shared, u[shared], replace(QUICK, epochs=1, seed=seed))
        for seed in (0, enrich.SEEDS)
    ]
    one, other = (enrich.encode(encoder, x) for encoder in apart)
    assert not torch.allclose(one, other)
    assert torch.allclose(enrich.encode(both, x), 1.5 * (one + other) / 2)
    again = enrich.restored(both.options, both.tensors())
    assert torch.equal(enrich.encode(again, x), enrich.encode(both, x))


def test_the_stronger_settings_learn_the_target() -> None:
    x, shared, u = table()
    local = torch.tensor([row not in set(shared.tolist()) for row in range(ROWS)])
    options = replace(QUICK, **{**enrich.STRONGER, "epochs": 60, "stretch": 1.0})
    stronger = enrich.train(x, shared, u[shared], options)
    assert gap(stronger, x[local], u[local]) < 0.25
    assert torch.equal(enrich.encode(stronger, x), enrich.encode(stronger, x))  # no dropout left


def test_training_ends_when_rows_that_are_held_out_get_no_better() -> None:
    """With a target that belongs to no row, the best epoch is an early one."""
    x, shared, u = table()
    options = replace(QUICK, reconstruction=0.0, epochs=60, held_out=0.2)
    wrong = enrich.permuted(u[shared], 0)
    stopped = enrich.encode(enrich.train(x, shared, wrong, options), x[shared])
    fitted = enrich.encode(
        enrich.train(x, shared, wrong, replace(options, held_out=0.0)), x[shared]
    )
    assert float(stopped.square().mean()) < 0.5 * float(fitted.square().mean())


def test_controls() -> None:
    x, _, u = table()
    moved = enrich.permuted(u, 1)
    assert not torch.equal(moved, u) and torch.equal(moved.sort(0)[0], u.sort(0)[0])
    drawn = enrich.noise_like(u, 1)
    assert drawn.shape == u.shape and torch.allclose(drawn.norm(dim=0), torch.ones(Q).double(), 0.1)
    basis = enrich.pca(x, 4)
    assert (basis.mT @ basis - torch.eye(4)).abs().max() < 1e-12
    spread = ((x - x.mean(0)) @ basis).var(0)
    assert (spread.diff() <= 0).all()
    projection = enrich.random_projection(6, 2000, 1)
    lengths = (x @ projection).norm(dim=1) / x.norm(dim=1)
    assert abs(float(lengths.mean()) - 1) < 0.1


def test_bad_input_is_named() -> None:
    x, shared, u = table()
    with pytest.raises(DataError, match="every shared row"):
        enrich.train(x, shared, u[shared][1:], QUICK)
    with pytest.raises(DataError, match="twice"):
        enrich.train(x, torch.tensor([3, 3]), u[:2], QUICK)
    with pytest.raises(DataError, match="NaN"):
        enrich.train(x.index_fill(0, torch.tensor([4]), torch.nan), shared, u[shared], QUICK)
    with pytest.raises(DataError, match="rows of a table"):
        enrich.train(x[0], shared, u[shared], QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"q": 0}, "q = 0: at least 1"),
        ({"theta": -1.0}, "theta"),
        ({"lr": float("nan")}, "lr = nan"),
        ({"distil": "l3"}, "distil = 'l3': one of l2, l1"),
        ({"activation": "swish"}, "activation = 'swish'"),
        ({"optimizer": "adam"}, "set weight_decay = 0"),
        ({"held_out": 1.0}, "held_out = 1.0: at least 0"),
        ({"members": 0}, "members = 0: at least 1"),
        ({"stretch": 0.0}, "stretch = 0.0"),
        ({"members": 2, "output": "decoder"}, "set output = 'code'"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Enricher(**options)  # type: ignore[arg-type]
