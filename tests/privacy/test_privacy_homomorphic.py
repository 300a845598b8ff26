"""Products on ciphertexts are the products; foreign bytes are checked before they are used."""

from __future__ import annotations

import importlib.util
import secrets

import numpy as np
import pytest
import torch

from colonnade.errors import MaskError, MethodError, Untrusted
from colonnade.privacy import homomorphic
from colonnade.privacy.homomorphic import (
    Holder,
    Multiplier,
    noise,
    rounded,
)
from colonnade.privacy.paillier import SEAL_BYTES, PaillierHolder

F = 23
PRECISION = {"none": 1e-15, "paillier": 0.0}


def pair(encryption: str, bits: int = 512) -> tuple[Holder, Multiplier]:
    holder = homomorphic.holder(encryption, "host", bits, F)
    return holder, homomorphic.multiplier(encryption, holder.public, "host", bits, F)


def matrix(*shape: int, size: float = 1.0) -> torch.Tensor:
    return rounded(size * torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0])), F)


@pytest.mark.parametrize("encryption", ["none", "paillier"])
def test_products_are_the_products(encryption: str) -> None:
    holder, multiplier = pair(encryption)
    x, y, d = matrix(8, 16), matrix(16, 12), matrix(8, 5, size=1e-3)
    within = PRECISION[encryption]
    message = holder.pack(x)

    mask, plus = multiplier.mask((8, 12)), matrix(8, 12, size=9.0)
    product = multiplier.multiply(message, (8, 16), y, mask=mask)
    found = multiplier.unmask(holder.open(product, (8, 12), plus), mask)
    torch.testing.assert_close(found, x @ y + plus, rtol=0, atol=within)
    if encryption == "paillier":  # the mask is there
        with pytest.raises(Untrusted, match="too large for a product"):
            holder.read(product, (8, 12))

    mask, plus = multiplier.mask((16, 5)), matrix(16, 5, size=1e5)  # ε/η may be large
    product = multiplier.multiply(message, (8, 16), d, mask=mask, transposed=True)
    found = multiplier.unmask(holder.open(product, (16, 5), plus), mask)
    torch.testing.assert_close(found, x.T @ d + plus, rtol=1e-15, atol=within)

    product = multiplier.multiply(holder.pack(x), (8, 16), y, plus=x @ y)
    torch.testing.assert_close(
        holder.read(product, (8, 12)), 2 * x @ y, rtol=0, atol=within or 1e-13
    )


def test_paillier_with_a_real_key() -> None:
    holder, multiplier = pair("paillier", 2048)
    x, y = matrix(2, 3), matrix(3, 2)
    message, mask = holder.pack(x), multiplier.mask((2, 2))
    assert message.numel() == SEAL_BYTES + 6 * 512  # a 4096-bit number for every value
    product = multiplier.multiply(message, (2, 3), y, mask=mask)
    found = multiplier.unmask(holder.open(product, (2, 2), torch.zeros(2, 2)), mask)
    assert torch.equal(found, x @ y)


def test_paillier_is_the_paillier_of_others() -> None:
    """python-paillier opens what we encrypt, and we what it encrypts."""
    from phe import PaillierPrivateKey, PaillierPublicKey

    ours = PaillierHolder("host", 512, F)
    n = int.from_bytes(ours.public.numpy().tobytes(), "little")
    public = PaillierPublicKey(n)
    private = PaillierPrivateKey(public, int(ours._p), int(ours._q))
    for number in (0, 1, -1, 12345, -(1 << 90), 1 << 150):
        assert private.raw_decrypt(int(ours._encrypt(number))) == number % n
        assert ours._decrypt(ours._n * 0 + public.raw_encrypt(number % n)) == number % n


def test_two_encryptions_of_one_number_differ() -> None:
    holder, multiplier = pair("paillier")
    zeros = torch.zeros(4, 4)
    raw = [holder.pack(zeros).numpy().tobytes() for _ in range(3)]
    found = {line[at : at + 128] for line in raw for at in range(SEAL_BYTES, len(line), 128)}
    assert len(found) == 3 * 16
    message = holder.pack(zeros)
    answers = {
        multiplier.multiply(message, (4, 4), zeros).numpy().tobytes() for _ in range(3)
    }  # blinded with fresh numbers
    assert len(answers) == 3


def test_an_opened_masked_product_tells_nothing_of_it() -> None:
    """The bytes of mask and product: uniform, whatever the product is (chi-square, 255 cells)."""
    holder, multiplier = pair("paillier")
    message = holder.pack(torch.ones(64, 1))
    for factor in (0.0, 3.0):
        mask = multiplier.mask((64, 4))
        product = multiplier.multiply(message, (64, 1), torch.full((1, 4), factor), mask=mask)
        opened = holder.open(product, (64, 4), torch.zeros(64, 4)).numpy().view(np.uint8)
        counts = np.bincount(opened.reshape(-1), minlength=256)
        expected = opened.size / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * np.sqrt(2 * 255)


def test_the_private_key_is_not_in_the_public_one() -> None:
    holder, _ = pair("paillier")
    assert isinstance(holder, PaillierHolder)
    raw = holder.public.numpy().tobytes()
    for prime in (holder._p, holder._q):
        assert int(prime).to_bytes(32, "little") not in raw
    assert len(raw) == 64


def test_another_key_and_damaged_bytes_are_refused() -> None:
    (holder, multiplier), (other, others) = pair("paillier"), pair("paillier")
    x, y = matrix(8, 4), matrix(4, 4)
    message = holder.pack(x)
    with pytest.raises(Untrusted, match="do not belong to this key"):
        others.multiply(message, (8, 4), y)
    product = multiplier.multiply(message, (8, 4), y)
    with pytest.raises(Untrusted, match=r"'host'.*do not belong to this key"):
        other.read(product, (8, 4))
    forged = product.clone()
    forged[:SEAL_BYTES] = other.pack(x)[:SEAL_BYTES]  # as if it were of the other key
    with pytest.raises(Untrusted, match=r"another key|invalid ciphertext"):
        other.read(forged, (8, 4))
    for short in (0, 5, SEAL_BYTES, SEAL_BYTES + 3, len(message) // 2, len(message) - 1):
        with pytest.raises(Untrusted, match=r"cut off|do not belong"):
            multiplier.multiply(message[:short], (8, 4), y)
    with pytest.raises(Untrusted, match="cut off"):
        holder.read(torch.cat([product, product[:1]]), (8, 4))
    with pytest.raises(Untrusted, match=r"shape"):
        multiplier.multiply(message, (8, 5), matrix(5, 4))
    with pytest.raises(Untrusted, match="bytes are due"):
        holder.read(product.float(), (8, 4))


def test_random_bytes_are_no_ciphertext_and_no_key() -> None:
    holder, multiplier = pair("paillier")
    message = holder.pack(matrix(2, 2))
    garbage = message.clone()
    garbage[SEAL_BYTES:] = 255  # not below n²
    with pytest.raises(Untrusted):
        multiplier.multiply(garbage, (2, 2), matrix(2, 2))
    garbage[SEAL_BYTES:] = 0
    with pytest.raises(Untrusted, match="invalid ciphertext"):
        multiplier.multiply(garbage, (2, 2), matrix(2, 2))
    public = holder.public
    noisy = torch.frombuffer(bytearray(secrets.token_bytes(len(public))), dtype=torch.uint8)
    noisy[0] &= 254  # an even number is no modulus
    for bad in (public[:0], public[:-1], noisy, torch.cat([public, public])):
        with pytest.raises(Untrusted, match="'host' sent"):
            homomorphic.multiplier("paillier", bad, "host", 512, F)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e9])
def test_values_that_would_not_come_back_are_refused(value: float) -> None:
    holder, multiplier = pair("paillier")
    x = torch.ones(2, 2)
    x[1, 1] = value
    with pytest.raises(MaskError, match=r"'host': a value of (nan|inf|1e\+09) cannot be encrypted"):
        holder.pack(x)
    with pytest.raises(MaskError):
        multiplier.multiply(holder.pack(torch.ones(2, 2)), (2, 2), x)


def test_noise_is_uniform_and_in_units() -> None:
    for seeded in (True, False):
        drawn = noise((200, 200), 2.0, F, seeded=seeded)
        assert drawn.dtype == torch.float64
        assert torch.equal(drawn, rounded(drawn, F))
        assert drawn.abs().max() <= 2.0
        assert abs(float(drawn.mean())) < 0.03
        assert float(drawn.std()) == pytest.approx(2 / np.sqrt(3), rel=0.02)
    assert not noise((3, 3), 0.0, F, seeded=True).any()
    torch.manual_seed(1)
    first = noise((3, 3), 1.0, F, seeded=True)
    torch.manual_seed(1)
    assert torch.equal(noise((3, 3), 1.0, F, seeded=True), first)
    torch.manual_seed(1)
    secret = noise((3, 3), 1.0, F, seeded=False)
    torch.manual_seed(1)
    assert not torch.equal(noise((3, 3), 1.0, F, seeded=False), secret)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    homomorphic.require("none")
    with pytest.raises(MethodError, match=r"'gmpy2'.* -m pip install .*\[he\]"):
        homomorphic.require("paillier")
