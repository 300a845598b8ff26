"""What a party can know about its messages; tests/attacks/ has the attacks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from colonnade.errors import Diverged, KindError, Untrusted
from colonnade.role.checks import Checks
from colonnade.wire import Kind, Message
from colonnade.wire.counting import RowsAtHand

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="noise")
WEIGHTS = Kind("weights", None, reveals="noise", dtype="any")
MAPS = Kind("maps", ("batch", "channels", 3), reveals="noise", dtype="any")


class OnDevice(Tensor):
    """As if it lay on a GPU: looking at its numbers would mean waiting."""

    is_cpu = False


def checks(phase: str = "train", place: tuple[str, int, int] = ("train", 1, 2)) -> Checks:
    progress: Any = SimpleNamespace(phase=phase, position=place)
    made = Checks("bank", 100, progress)
    made.know({"dim": 8})
    return made


def at_hand(rows: int) -> RowsAtHand:
    return RowsAtHand("train", slice(0, rows), rows)


def message(kind: Kind, value: Any, *place: Any) -> Message:
    phase, epoch, step = place or ("train", 1, 2)
    return Message("shop", "bank", kind, value, 0, phase, epoch, step, 0, 0.0)


def test_rows_are_those_of_the_batch_at_hand() -> None:
    here = checks()
    here.received(message(EMBEDDING, torch.zeros(5, 8)), at_hand(5))
    here.received(message(EMBEDDING, torch.zeros(4, 8)), at_hand(4))  # the last batch
    with pytest.raises(KindError, match="'shop' sent 'embedding' to 'bank' with batch = 5; 4 is"):
        here.received(message(EMBEDDING, torch.zeros(5, 8)), at_hand(4))
    here.received(message(EMBEDDING, torch.zeros(7, 8)), None)  # it works on no batch
    with pytest.raises(KindError, match="'bank' sent 'embedding' to 'shop' with batch = 5; 4 is"):
        here.sending("shop", EMBEDDING, torch.zeros(5, 8), at_hand(4))


def test_a_shape_is_refused_before_its_numbers_come() -> None:
    """A batch of it has no more rows than it holds, and `dim` is known."""
    here = checks()
    here.announced(EMBEDDING, (100, 8), "shop")
    for shape in ((101, 8), (100, 9), (1 << 40, 8)):
        with pytest.raises(KindError, match="'shop'"):
            here.announced(EMBEDDING, shape, "shop")
    here.announced(MAPS, (100, 1 << 40, 3), "shop")  # nobody knows how many channels there are


def test_what_is_not_known_stays_as_it_was() -> None:
    here = checks()
    here.received(message(MAPS, torch.zeros(5, 2, 3)), at_hand(5))
    for value in (torch.zeros(5, 4, 3), torch.zeros(5, 2, 3, dtype=torch.float64)):
        with pytest.raises(KindError, match="is due, in 'train', epoch 2, step 3"):
            here.received(message(MAPS, value), at_hand(5))
    other = replace(message(MAPS, torch.zeros(5, 4, 3)), sender="telco")
    here.received(other, at_hand(5))  # another party has channels of its own
    free = replace(MAPS, name="free", varies=True)
    for value in (torch.zeros(5, 2, 3), torch.zeros(5, 4, 3).half()):
        here.received(message(free, value), at_hand(5))
    with pytest.raises(KindError, match="batch = 6"):
        here.received(message(free, torch.zeros(6, 4, 3)), at_hand(5))


@pytest.mark.parametrize(
    ("place", "fits"),
    [
        (("train", 1, 2), True),
        (("eval", 1, 2), True),
        (("train", 0, 2), False),
        (("train", 1, 3), False),
        (("setup", 0, 0), False),
        (("setup", 1, 2), False),
    ],
)
def test_the_place_is_that_of_the_receiver(place: tuple[str, int, int], fits: bool) -> None:
    value = torch.zeros(5, 8)
    late = replace(EMBEDDING, name="late", late=True)
    checks().received(message(late, value, *place), at_hand(5))
    checks("setup", ("", 0, 0)).received(message(EMBEDDING, value, *place), None)
    if fits:
        checks().received(message(EMBEDDING, value, *place), at_hand(5))
    else:
        with pytest.raises(Untrusted, match=r"'shop' says that its 'embedding' is of .*late=True"):
            checks().received(message(EMBEDDING, value, *place), at_hand(5))


def test_weights_are_of_an_epoch_and_of_no_step() -> None:
    checks().received(message(WEIGHTS, {"a": torch.zeros(3)}, "train", 1, 9), at_hand(5))
    with pytest.raises(Untrusted):
        checks().received(message(WEIGHTS, {"a": torch.zeros(3)}, "train", 2, 2), at_hand(5))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_not_sent(bad: float) -> None:
    here, tree = checks(), {"a": {"b": torch.tensor([1.0, bad])}}
    with pytest.raises(Diverged, match="'bank' does not send a 'weights' that is not finite"):
        here.sending("shop", WEIGHTS, tree, None)
    here.sending("shop", replace(WEIGHTS, name="any", finite=False), tree, None)
    here.settle(())


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_on_a_gpu_nothing_is_read_before_the_next_checkpoint(bad: float) -> None:
    here = checks()
    for number in (1.0, bad, 2.0, 3e38):
        value = torch.full((5, 8), number).as_subclass(OnDevice)  # type: ignore[arg-type]
        here.sending("shop", EMBEDDING, value, at_hand(5))
    with pytest.raises(Diverged, match="'bank' sent a 'embedding' that is not finite to 'shop'"):
        here.settle(())
    fine = checks()
    fine.sending("shop", EMBEDDING, torch.full((5, 8), 3e38).as_subclass(OnDevice), at_hand(5))  # type: ignore[arg-type]
    fine.settle(())


def test_weights_that_others_had_a_part_in_are_not_kept_if_they_are_not_finite() -> None:
    spoilt = [torch.zeros(3), torch.tensor([1.0, float("nan")]), torch.ones(2, dtype=torch.int64)]
    alone = checks()
    alone.settle(spoilt)  # the user is warned of its loss
    fed = checks()
    fed.received(message(WEIGHTS, {}), None)
    fed.settle([torch.full((4,), 3e38)])
    with pytest.raises(Diverged, match="the weights of 'bank', or its optimiser, are not finite"):
        fed.settle(spoilt)
