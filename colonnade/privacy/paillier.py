"""Paillier's encryption (Paillier 1999): sums and products of numbers that stay encrypted.

    [m] = (1 + n)^m · r^n mod n²     [a]·[b] = [a + b]     [a]^y = [a·y]

n = p·q is public, r is random; only the party that knows p and q can open [m]. Matrices are
encrypted number by number in fixed point, as whole numbers, so products are exact. Every answer is
blinded again with a fresh r.

A mask is uniform modulo n: whatever was packed into a ciphertext, a masked product is uniform as
well, and tells nothing. An answer that its receiver is to read has no mask, but a random multiple
of 2^128 on top, which covers all but the lowest 128 bits.

Powers with secret exponents are taken by `powmod_sec`, whose time does not depend on them. Products
with the other party's matrix are not: their time may tell something of it.

Messages are bytes: a digest of the public key, then every ciphertext in a fixed number of bytes.
Everything that arrives is checked before it is used.
"""

from __future__ import annotations

import functools
import hashlib
import math
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.errors import MaskError, Untrusted

VALUE_BITS = 47  # of a number in fixed point, without its sign
PRODUCT_BITS = 2 * VALUE_BITS + 16  # of a sum of at most 2^16 products
READ_BITS = 128  # of an answer that is read; a random multiple of 2^128 covers what is above
WINDOW_BASES = 256  # ciphertexts whose powers are held at once
SEAL_BYTES = 8  # of the public key's digest, in front of the ciphertexts


class PaillierHolder:
    """n = p·q; [m] = (1 + n)^m · r^n mod n². Whoever knows p and q opens it."""

    def __init__(self, name: str, key_bits: int, fraction: int) -> None:
        self._name, self._fraction = name, fraction
        p, q = _prime(key_bits // 2), _prime(key_bits // 2)
        while q == p:
            q = _prime(key_bits // 2)
        self._p, self._q, self._n = p, q, p * q
        self._h = [pow(_logarithm(1 + self._n, prime), -1, prime) for prime in (p, q)]
        self._inverse, self._square_inverse = pow(p, -1, q), pow(p * p, -1, q * q)
        self._bytes = key_bits // 4  # of a ciphertext, which is below n²
        self.public = _to_tensor(_written([self._n], key_bits // 8))
        self._seal = _seal(self.public)

    def pack(self, matrix: Tensor) -> Tensor:
        numbers = _encoded(matrix, self._fraction, self._name)
        return _joined(self._seal, [self._encrypt(m) for row in numbers for m in row], self._bytes)

    def open(self, message: Tensor, shape: tuple[int, int], plus: Tensor) -> Tensor:
        added = _at_product_scale(plus, self._fraction, self._name)
        opened = self._decrypted(message, shape)
        n = int(self._n)
        numbers = [(a + b) % n for a, b in zip(opened, added, strict=True)]
        return _to_words(numbers, shape, n)

    def read(self, message: Tensor, shape: tuple[int, int]) -> Tensor:
        unit = 2.0 ** (-2 * self._fraction)
        numbers = [_centred(a, 1 << READ_BITS) for a in self._decrypted(message, shape)]
        if any(abs(number) >= 2 << PRODUCT_BITS for number in numbers):
            raise Untrusted(
                f"'{self._name}' opened a number that is too large for a product: the ciphertexts "
                "were made with another key, or changed on the way"
            )
        opened = [float(number) * unit for number in numbers]
        return torch.tensor(opened, dtype=torch.float64).reshape(shape)

    def _encrypt(self, number: int) -> Any:
        """r^n modulo n² by halves: x^p mod p² is a random one modulo p², and likewise for q."""
        import gmpy2

        squares = self._p**2, self._q**2
        low, high = (
            gmpy2.powmod_sec(1 + secrets.randbelow(int(prime) - 1), prime, square)
            for prime, square in zip((self._p, self._q), squares, strict=True)
        )
        blinding = _combined(low, high, squares, self._square_inverse)
        return (1 + self._n * number) * blinding % self._n**2

    def _decrypted(self, message: Tensor, shape: tuple[int, int]) -> list[int]:
        raw = _ciphertexts(message, self._seal, math.prod(shape), self._n, self._name)
        return [self._decrypt(c) for c in raw]

    def _decrypt(self, ciphertext: Any) -> int:
        """From 0 to n - 1."""
        low, high = (
            _logarithm(ciphertext, prime) * h % prime
            for prime, h in zip((self._p, self._q), self._h, strict=True)
        )
        return int(_combined(low, high, (self._p, self._q), self._inverse))


class PaillierMultiplier:
    """Sums of ciphertexts are products modulo n², products with a number are powers."""

    def __init__(self, public: Tensor, owner: str, key_bits: int, fraction: int) -> None:
        import gmpy2

        raw = _to_bytes(public, owner)
        n = int.from_bytes(raw, "little")
        if len(raw) != key_bits // 8 or n.bit_length() != key_bits or n % 2 == 0:
            raise Untrusted(
                f"'{owner}' sent a malformed public key: Paillier's has {key_bits} bits"
            )
        self._n, self._square = gmpy2.mpz(n), gmpy2.mpz(n) ** 2
        self._owner, self._fraction, self._bytes = owner, fraction, key_bits // 4
        self._seal = _seal(public)

    def mask(self, shape: tuple[int, int]) -> Tensor:
        n = int(self._n)
        drawn = [secrets.randbelow(n) for _ in range(math.prod(shape))]
        return _to_tensor(_written(drawn, self._bytes // 2))

    def multiply(
        self,
        message: Tensor,
        shape: tuple[int, int],
        right: Tensor,
        *,
        mask: Tensor | None = None,
        plus: Tensor | None = None,
        transposed: bool = False,
    ) -> Tensor:
        p, q = shape
        flat = _ciphertexts(message, self._seal, p * q, self._n, self._owner)
        rows = [flat[i * q : (i + 1) * q] for i in range(p)]
        if transposed:
            rows = [list(column) for column in zip(*rows, strict=True)]
        numbers = _encoded(right, self._fraction, "the active party")
        total = len(rows) * right.shape[1]
        added = self._covers(total) if mask is None else self._mask_numbers(mask)
        if plus is not None:
            more = _at_product_scale(plus, self._fraction, "the active party")
            added = [a + b for a, b in zip(added, more, strict=True)]
        products = [product for row in self._products(rows, numbers) for product in row]
        answers = [
            product * self._encrypt(number) % self._square
            for product, number in zip(products, added, strict=True)
        ]
        return _joined(self._seal, answers, self._bytes)

    def unmask(self, words: Tensor, mask: Tensor) -> Tensor:
        unit = 2.0 ** (-2 * self._fraction)
        n, masks = int(self._n), self._mask_numbers(mask)
        numbers = _from_words(words, n, self._owner)
        if len(numbers) != len(masks):
            raise Untrusted(f"'{self._owner}' opened {len(numbers)} numbers of {len(masks)}")
        products = [_centred(a - b, n) for a, b in zip(numbers, masks, strict=True)]
        if any(abs(product) >> READ_BITS for product in products):
            raise Untrusted(
                f"'{self._owner}' opened a number that is too large for a product: it has packed "
                "more than a number into a ciphertext, or opened another one"
            )
        uncovered = [float(product) * unit for product in products]
        return torch.tensor(uncovered, dtype=torch.float64).reshape(words.shape[:2])

    def _mask_numbers(self, mask: Tensor) -> list[int]:
        return _numbers(mask.numpy().tobytes(), self._bytes // 2)

    def _covers(self, count: int) -> list[int]:
        """Random multiples of 2^128, so large that the sum with a product stays within n."""
        most = (int(self._n) >> READ_BITS) - 2
        return [(1 + secrets.randbelow(most)) << READ_BITS for _ in range(count)]

    def _encrypt(self, number: int) -> Any:
        """Blinded with a fresh r^n, so that an answer does not show how it was made."""
        blinding = pow(1 + secrets.randbelow(int(self._n) - 1), self._n, self._square)
        return (1 + self._n * number) * blinding % self._square

    def _products(self, rows: list[list[Any]], right: list[list[int]]) -> Iterator[list[Any]]:
        """Π_j c_j^y_jk for every row of ciphertexts c and every column k of y.

        All bases of a row are raised together (Straus 1964), with tables of their small powers,
        which all columns share. Exponents are made positive by a common 2^reach, which
        Π_j c_j^-(2^reach) takes back.
        """
        columns = len(right[0])
        reach = max(abs(y) for line in right for y in line).bit_length()
        bits = reach + 1
        window = min(range(1, 9), key=lambda w: 2**w + columns * math.ceil(bits / w))
        places = range(window * (math.ceil(bits / window) - 1), -1, -window)
        small, low = (1 << window) - 1, 1 << reach
        # digits[column][place][j]
        digits = [
            [[(line[k] + low) >> place & small for line in right] for place in places]
            for k in range(columns)
        ]
        for row in rows:
            answers: list[Any] = [1] * columns
            for start in range(0, len(row), WINDOW_BASES):
                some = row[start : start + WINDOW_BASES]
                undo = pow(_product(some, self._square), -low, self._square)
                tables = [self._powers(c, small) for c in some]
                for k in range(columns):
                    answer: Any = 1
                    for line in digits[k]:
                        answer = pow(answer, 1 << window, self._square)
                        for table, digit in zip(tables, line[start:], strict=False):
                            if digit:
                                answer = answer * table[digit] % self._square
                    answers[k] = answers[k] * answer % self._square * undo % self._square
            yield answers

    def _powers(self, base: Any, highest: int) -> list[Any]:
        powers = [base**0, base]
        for _ in range(highest - 1):
            powers.append(powers[-1] * base % self._square)
        return powers


def _logarithm(value: Any, prime: Any) -> Any:
    """L(value^(prime - 1) mod prime²), with L(u) = (u - 1) / prime."""
    import gmpy2

    return (gmpy2.powmod_sec(value, prime - 1, prime * prime) - 1) // prime


def _combined(low: Any, high: Any, moduli: tuple[Any, Any], inverse: Any) -> Any:
    """The Chinese remainder: `low` modulo the first and `high` modulo the second.

    inverse  of the first modulo the second
    """
    first, second = moduli
    return low + first * ((high - low) * inverse % second)


def _product(numbers: Sequence[Any], modulus: Any) -> Any:
    return functools.reduce(lambda one, other: one * other % modulus, numbers, 1)


def _prime(bits: int) -> Any:
    """A random prime with its two highest bits set, so that a product of two has 2 · bits."""
    import gmpy2

    while True:
        candidate = gmpy2.mpz(secrets.randbits(bits) | 3 << (bits - 2) | 1)
        if gmpy2.is_prime(candidate, 40):
            return candidate


def _encoded(values: Tensor, fraction: int, name: str) -> list[list[int]]:
    """Fixed point, as whole numbers; a value out of range is refused, never wrapped."""
    scaled = np.rint(values.detach().cpu().double().numpy() * 2.0**fraction)
    if not np.abs(scaled).max(initial=0.0) < 2.0**VALUE_BITS:  # also NaN
        raise MaskError(
            f"'{name}': a value of {float(np.abs(scaled).max()) / 2.0**fraction:g} cannot be "
            f"encrypted; with {fraction} fraction bits it must stay below "
            f"{2.0 ** (VALUE_BITS - fraction):g}. If the training has diverged, try a smaller lr"
        )
    encoded: list[list[int]] = scaled.astype(np.int64).tolist()
    return encoded


def _at_product_scale(values: Tensor, fraction: int, name: str) -> list[int]:
    """The same with twice the fraction bits, as products have; flat."""
    scaled = np.rint(values.detach().cpu().double().numpy().reshape(-1) * 2.0 ** (2 * fraction))
    if not np.abs(scaled).max(initial=0.0) < 2.0**126:
        raise MaskError(f"'{name}': a mask or value that is not finite, or far too large")
    return [int(value) for value in scaled.tolist()]


def _ciphertexts(message: Tensor, seal: bytes, count: int, n: Any, name: str) -> list[Any]:
    """The ciphertexts of a message, checked: their count, each below n² and invertible."""
    import gmpy2

    raw = _unsealed(message, seal, name)
    size, square = 2 * (n.bit_length() // 8), n * n
    if len(raw) != count * size:
        raise Untrusted(
            f"'{name}': {len(raw)} bytes of ciphertext where {count} × {size} are due; the "
            "message is cut off, or of another shape"
        )
    found = [gmpy2.mpz(number) for number in _numbers(raw, size)]
    if any(not 0 < c < square for c in found) or math.gcd(_product(found, n), n) != 1:
        raise Untrusted(f"'{name}': a message with an invalid ciphertext for this key")
    return found


def _joined(seal: bytes, ciphertexts: Sequence[Any], size: int) -> Tensor:
    return _to_tensor(seal + _written(ciphertexts, size))


def _to_words(numbers: Sequence[int], shape: tuple[int, int], n: int) -> Tensor:
    count = n.bit_length() // 64
    raw = _written(numbers, 8 * count)
    return torch.frombuffer(bytearray(raw), dtype=torch.int64).reshape(*shape, count)


def _from_words(words: Tensor, n: int, name: str) -> list[int]:
    count = n.bit_length() // 64
    if words.dtype != torch.int64 or words.dim() != 3 or words.shape[2] != count:
        raise Untrusted(f"'{name}' sent malformed opened numbers: each must be {count} words")
    return _numbers(words.cpu().contiguous().numpy().tobytes(), 8 * count)


def _centred(number: int, modulus: int) -> int:
    number %= modulus
    return number if 2 * number < modulus else number - modulus


# ---- bytes ---------------------------------------------------------------------------------------


def _seal(public: Tensor) -> bytes:
    """A digest of the public key, to find ciphertexts of another key before any is opened."""
    return hashlib.sha256(public.numpy().tobytes()).digest()[:SEAL_BYTES]


def _unsealed(message: Tensor, seal: bytes, name: str) -> bytes:
    raw = _to_bytes(message, name)
    if raw[:SEAL_BYTES] != seal:
        raise Untrusted(
            f"'{name}': ciphertexts that do not belong to this key: they were made with another "
            "one, in an earlier session, or are damaged"
        )
    return raw[SEAL_BYTES:]


def _to_tensor(raw: bytes) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _to_bytes(message: Tensor, name: str) -> bytes:
    if message.dtype != torch.uint8 or message.dim() != 1:
        raise Untrusted(f"'{name}': a tensor of {message.dtype} where bytes are due")
    return message.cpu().numpy().tobytes()


def _numbers(raw: bytes, size: int) -> list[int]:
    return [int.from_bytes(raw[at : at + size], "little") for at in range(0, len(raw), size)]


def _written(numbers: Sequence[Any], size: int) -> bytes:
    return b"".join(int(number).to_bytes(size, "little") for number in numbers)
