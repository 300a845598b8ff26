"""Messages of the interactive layer are checked before they are used."""

from __future__ import annotations

import pytest
import torch

from colonnade.errors import Untrusted
from colonnade.methods.parts.interactive_messages import CLEAR, check_shape, gradient_of


def test_a_larger_rate_would_shrink_the_mask_and_is_refused() -> None:
    product = torch.zeros(2, 2)
    assert gradient_of({"product": product, "rate": 0.05}, "bank", 0.05) == (product, 0.05)
    for rate in (0.06, 1e9, 0.0, -0.05, float("nan")):
        with pytest.raises(Untrusted, match="'bank' sent the rate"):
            gradient_of({"product": product, "rate": rate}, "bank", 0.05)
    for message in (product, {"product": product}, {"product": 1.0, "rate": 0.05}):
        with pytest.raises(Untrusted, match="'bank' sent a malformed gradient"):
            gradient_of(message, "bank", 0.05)


def test_opened_numbers_of_another_shape_are_refused() -> None:
    check_shape(torch.zeros(2, 3, 2), (2, 3), "shop", CLEAR.output)
    with pytest.raises(Untrusted, match=r"'shop' sent 'output' of shape \(3, 2\); \(2, 3\) is due"):
        check_shape(torch.zeros(3, 2, 2), (2, 3), "shop", CLEAR.output)
