"""Which moved views are uploaded, and which of them an epoch takes."""

from __future__ import annotations

from typing import Any

import torch

from colonnade.data import Moves
from colonnade.methods.parts.views import Choice, Views

ROWS = 120


def test_stored_maps_are_gathered_and_moved_by_hand() -> None:
    store = torch.randn(3, 10, 4, 5, 2, generator=torch.Generator().manual_seed(0))
    view = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    moves = Moves.draw(10, True, 2, torch.Generator().manual_seed(4))
    rows = torch.tensor([7, 2, 2, 9])
    chosen = torch.stack([store[view[row], row] for row in rows.tolist()]).permute(0, 3, 1, 2)
    assert torch.equal(Choice(view, None).maps(store, rows), chosen)
    moved = Choice(view, moves).maps(store, rows)
    assert torch.equal(moved, moves.part(rows).apply(chosen))
    assert not torch.equal(moved, chosen)


def test_every_view_is_used_and_maps_move_by_whole_cells() -> None:
    def drawn(options: dict[str, Any], moved: dict[str, Any], epoch: int) -> Any:
        """Behind one pool, where a cell is two pixels wide."""
        augment, count = options.get("augment", "cached"), options.get("views")
        flip, shift = moved.get("flip", False), moved.get("shift", 0)
        views = Views(augment, count, ROWS, 5, flip, shift)
        choice = views.choose(epoch, 2, torch.device("cpu"))
        return choice.view, choice.moves

    view, moves = drawn({"views": 4}, {"flip": True, "shift": 3}, 0)
    assert set(view.tolist()) == {0, 1, 2, 3}
    assert set(moves.down.tolist()) == {-1, 0, 1}  # three pixels are one cell of 2×2
    assert not moves.flips.any()  # there are mirrored views
    assert not torch.equal(view, drawn({"views": 4}, {"flip": True, "shift": 3}, 1)[0])
    view, moves = drawn({"views": 1}, {"flip": True}, 0)
    assert not view.any()
    assert 0 < int(moves.flips.sum()) < ROWS
    assert drawn({"augment": "none"}, {"flip": True, "shift": 3}, 0)[1] is None
    assert drawn({"augment": "consistent", "views": 2}, {"flip": True, "shift": 3}, 0)[1] is None
    assert drawn({}, {}, 0)[1] is None
