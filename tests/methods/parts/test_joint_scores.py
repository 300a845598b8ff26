"""The server's side of a joint evaluation has no rows of its own to compare with."""

from __future__ import annotations

import pytest
import torch

from colonnade.errors import Untrusted
from colonnade.methods.parts.joint_scores import alike


@pytest.mark.parametrize("rows", [(5, 4), (1, 5), (0, 0), (6, 6)])
def test_embeddings_of_other_rows_than_are_due(rows: tuple[int, int]) -> None:
    parts = {"a": torch.zeros(rows[0], 3), "b": torch.zeros(rows[1], 3)}
    with pytest.raises(Untrusted, match=rf"'a' {rows[0]}, 'b' {rows[1]}"):
        alike(parts, 5)
    assert len(alike({"a": torch.zeros(5, 3), "b": torch.zeros(5, 3)}, 5)) == 2
