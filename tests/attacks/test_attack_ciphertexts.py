"""Ciphertexts that carry more than a number do not open the other party's matrix."""

from __future__ import annotations

from typing import Any

import gmpy2
import pytest
import torch
from torch import Tensor

from colonnade.errors import Untrusted
from colonnade.methods.heteronn import HeteroNN
from colonnade.privacy import paillier
from colonnade.privacy.paillier import PaillierHolder, PaillierMultiplier

BITS, FRACTION, ROWS, COLUMNS = 1024, 23, 6, 2
APART = 64  # bits from one packed number to the next; a weight in fixed point has fewer


def pair() -> tuple[PaillierHolder, PaillierMultiplier]:
    holder = PaillierHolder("shop", BITS, FRACTION)
    return holder, PaillierMultiplier(holder.public, "shop", BITS, FRACTION)


def packed(holder: PaillierHolder) -> Tensor:
    """One row of six numbers of the liar's: 2^200, 2^264, 2^328, …"""
    numbers = [holder._encrypt(1 << (200 + APART * j)) for j in range(ROWS)]
    return paillier._joined(holder._seal, numbers, holder._bytes)


def unpacked(opened: int) -> list[float]:
    """What stands at 2^200, 2^264, …, from the lowest on."""
    found, rest = [], opened >> 200
    for _ in range(ROWS):
        digit = (rest + (1 << APART - 1)) % (1 << APART) - (1 << APART - 1)
        found.append(digit * 2.0**-FRACTION)
        rest = (rest - digit) >> APART
    return found


def read_off(holder: PaillierHolder, answer: Tensor) -> Tensor:
    """What the liar makes of an answer, with its private key and nothing else: (ROWS, COLUMNS)."""
    square = holder._n**2
    numbers = paillier._ciphertexts(answer, holder._seal, COLUMNS, holder._n, "shop")
    assert all(0 < number < square for number in numbers)
    return torch.tensor([unpacked(holder._decrypt(number)) for number in numbers]).T


@pytest.mark.parametrize("masked", [True, False])
def test_a_packed_ciphertext_tells_nothing(masked: bool) -> None:
    """A passive party packs 2^(200 + 64 j) where a number of its own is due; without more, one
    answer holds the whole matrix above the bits of the mask. Errors have no mask of their own."""
    torch.manual_seed(1)
    holder, multiplier = pair()
    weight = torch.randn(ROWS, COLUMNS, dtype=torch.float64)
    mask = multiplier.mask((1, COLUMNS)) if masked else None
    answer = multiplier.multiply(packed(holder), (1, ROWS), weight, mask=mask)
    found = read_off(holder, answer).double()
    close = ((found - weight).abs() < 1e-3).double().mean()
    assert float(close) < 0.1


def test_whoever_packs_is_refused_and_named() -> None:
    """What the liar opens is not within the range of a product, which the mask's owner sees."""
    holder, multiplier = pair()
    mask = multiplier.mask((1, COLUMNS))
    weight = torch.randn(ROWS, COLUMNS, dtype=torch.float64)
    answer = multiplier.multiply(packed(holder), (1, ROWS), weight, mask=mask)
    raw = paillier._ciphertexts(answer, holder._seal, COLUMNS, holder._n, "shop")
    n = int(holder._n)
    opened = paillier._to_words([holder._decrypt(number) for number in raw], (1, COLUMNS), n)
    try:
        multiplier.unmask(opened, mask)
    except Untrusted as refusal:
        assert "'shop'" in str(refusal) and "too large" in str(refusal)
        return
    raise AssertionError("the packed number was taken")


def test_secret_exponents_take_the_same_time_whatever_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Encrypting and opening raise to p, q, p - 1 and q - 1: by the power without branches."""
    holder, _ = pair()
    seen: list[Any] = []
    power = gmpy2.powmod_sec

    def watched(base: Any, exponent: Any, modulus: Any) -> Any:
        seen.append(exponent)
        return power(base, exponent, modulus)

    monkeypatch.setattr(gmpy2, "powmod_sec", watched)
    p, q = holder._p, holder._q
    assert holder._decrypt(holder._encrypt(5)) == 5
    assert {p, q, p - 1, q - 1} <= set(seen)


def test_a_key_that_can_be_broken_is_refused() -> None:
    for bits in (512, 1024, 1984):
        try:
            HeteroNN(encryption="paillier", key_bits=bits)
        except ValueError as refusal:
            assert "2048" in str(refusal)
            continue
        raise AssertionError(f"{bits} bits were taken")
