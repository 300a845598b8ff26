"""Draws for single records from a secret, each with integers alone: no float rounds a chance up.

    Keystream       AES-256 of (name, number, count) under the secret: the count-th word of a record
    answered        randomised response: the true number of m with a chance of at most a
    laplace         discrete Laplace noise, P(z) ∝ e^(-|z|/t), exactly

A chance is a threshold that a uniform word of 64 bits must stay below. a · 2^64 is computed with 60
digits and rounded down, so the truth is never likelier than ε allows. Whole numbers below a
bound come by rejection. Laplace noise is made of such numbers and of Bernoulli(e^(-x)) trials
(Canonne, Kamath and Steinke, 2020).
"""

from __future__ import annotations

import decimal

import numpy as np
from numpy.typing import NDArray

from colonnade.journal import Names

Numbers = NDArray[np.int64]
WORD = 1 << 64
BLOCK = np.dtype([("name", "<u8"), ("number", "<u4"), ("count", "<u4")])


class Keystream:
    """One stream of words for each record."""

    def __init__(self, secret: bytes, names: Names, numbers: NDArray[np.integer]) -> None:
        """
        secret   32 bytes
        numbers  tell records of one name apart
        """
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._blocks = np.zeros(len(names), dtype=BLOCK)
        self._blocks["name"], self._blocks["number"] = names, numbers
        # A block names its place, so none is encrypted twice: the mode needs no chain.
        self._cipher = Cipher(algorithms.AES(secret), modes.ECB())
        self.everybody: Numbers = np.arange(len(names))

    def words(self, which: Numbers) -> NDArray[np.uint64]:
        """The next word of each of these records."""
        cipher = self._cipher.encryptor()
        drawn = np.frombuffer(cipher.update(self._blocks[which].tobytes()), dtype="<u8")[::2]
        self._blocks["count"][which] += 1
        return drawn

    def below(self, bounds: Numbers, which: Numbers) -> Numbers:
        """A uniform whole number from 0 to its bound, excluded, for each of these records."""
        found, left = np.zeros(len(which), dtype=np.int64), np.arange(len(which))
        while len(left):
            bound = bounds[left].astype(np.uint64)
            word = self.words(which[left])
            # The words up to the last multiple of the bound: max - (max + 1) mod bound.
            most = np.uint64(WORD - 1)
            last = most - ((most % bound) + np.uint64(1)) % bound
            good = word <= last
            found[left[good]] = (word[good] % bound[good]).astype(np.int64)
            left = left[~good]
        return found

    def happens(self, chances: NDArray[np.uint64], which: Numbers) -> NDArray[np.bool_]:
        """Whether it does, each with its chance of so many in 2^64."""
        return self.words(which) < chances


def threshold(epsilon: float, groups: int) -> int:
    """a = e^ε / (e^ε + m - 1) as a number of 2^64, rounded down."""
    if groups == 1:
        return WORD - 1
    with decimal.localcontext(prec=60):
        grown = decimal.Decimal(epsilon).exp()
        share = grown / (grown + groups - 1)
        return min(int(share * WORD), WORD - 1)


def thresholds(epsilon: NDArray[np.float64], groups: int) -> NDArray[np.uint64]:
    """The same for each record, of equally many groups."""
    found, which = np.unique(epsilon, return_inverse=True)
    table = [threshold(float(one), groups) for one in found]
    return np.array(table, dtype=np.uint64)[which]


def answered(stream: Keystream, epsilon: float, truth: Numbers, groups: Numbers) -> Numbers:
    """One answer for each record, a number below m.

    truth   the number that is right
    groups  m
    """
    everybody, kinds = stream.everybody, np.unique(groups)
    table = np.array([threshold(epsilon, int(m)) for m in kinds], dtype=np.uint64)
    kept = stream.happens(table[np.searchsorted(kinds, groups)], everybody)
    other = stream.below(np.maximum(groups - 1, 1), everybody)
    other += other >= truth
    return np.where(kept | (groups == 1), truth, other)


def laplace(stream: Keystream, scale: int) -> Numbers:
    """One whole number z for each record, P(z) ∝ e^(-|z| / scale)."""
    found, left = np.zeros(len(stream.everybody), dtype=np.int64), stream.everybody
    while len(left):
        size = _geometric(stream, scale, left)
        negative = stream.below(np.full(len(left), 2), left) == 1
        good = ~(negative & (size == 0))  # zero has one sign
        found[left[good]] = np.where(negative, -size, size)[good]
        left = left[~good]
    return found


def _geometric(stream: Keystream, scale: int, which: Numbers) -> Numbers:
    """A whole number from 0 on, P(x) ∝ e^(-x / scale): a fraction of the scale, and whole ones."""
    part, left = np.zeros(len(which), dtype=np.int64), np.arange(len(which))
    bounds = np.full(len(which), scale, dtype=np.int64)
    while len(left):
        tried = stream.below(bounds[left], which[left])
        good = _falls(stream, tried, scale, which[left])
        part[left[good]] = tried[good]
        left = left[~good]
    whole, left = np.zeros(len(which), dtype=np.int64), np.arange(len(which))
    while len(left):
        left = left[_falls(stream, np.full(len(left), scale), scale, which[left])]
        whole[left] += 1
    found: Numbers = part + scale * whole
    return found


def _falls(stream: Keystream, x: Numbers, scale: int, which: Numbers) -> NDArray[np.bool_]:
    """True with the chance e^(-x / scale), for x from 0 to scale: trials of x / scale / n, n = 1, 2
    and so on, until one fails; the number of trials is odd."""
    trials, left = np.ones(len(which), dtype=np.int64), np.arange(len(which))
    while len(left):
        drawn = stream.below(scale * trials[left], which[left])
        left = left[drawn < x[left]]
        trials[left] += 1
    odd: NDArray[np.bool_] = trials % 2 == 1
    return odd
