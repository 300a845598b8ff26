"""What left with noise in other runs counts in VFedTrans' epsilon, whichever noise it had: vectors,
and shares in EASTER's masked sums."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from covert import shop

from colonnade.errors import BudgetSpent
from colonnade.journal import Spending
from colonnade.journal.spendings import Mechanism
from colonnade.privacy.exchange import Terms, admitted

TERMS = Terms(q=1, unsafe_q=False, exchanges=1, epsilon=2.0, delta=1e-5, clip=1.0)


@pytest.mark.parametrize("mechanism", ["gaussian", "discrete"])
def test_rows_whose_noisy_vectors_have_left_have_less_left(
    mechanism: Mechanism, tmp_path: Path
) -> None:
    table = torch.randn(30, 4, generator=torch.Generator().manual_seed(1)).double()
    for number, size in enumerate((10.0, 0.5)):  # little was spent, and more than there is
        me = shop(tmp_path / str(number), "a1", 1, 30, {})
        assert me.journal is not None
        names = me.records()
        me.journal.spendings(names).book("before", Spending(mechanism, size), "vectors", "training")
        if size < 1:
            with pytest.raises(BudgetSpent, match="earlier runs"):
                admitted(me, table, names, TERMS)
            continue
        admitted(me, table, names, TERMS)
        assert me.figures["epsilon"] <= 2.0 * (1 + 1e-6)
        sizes = [use.size for use, _ in me.journal.spendings(names).spent()]
        alone = shop(tmp_path / "alone", "a1", 1, 30, {})
        assert alone.journal is not None
        admitted(alone, table, alone.records(), TERMS)
        (fresh,) = [use.size for use, _ in alone.journal.spendings(alone.records()).spent()]
        assert min(sizes) > fresh  # more noise than if nothing had left before
