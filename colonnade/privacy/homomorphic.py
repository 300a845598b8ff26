"""Products with matrices that one cannot read: additively homomorphic encryption.

    the holder of the key                             the other party
    1. pack X                                    →    2. X·Y + mask, on what it cannot read
    3. open it, add something of its own         →    4. subtract the mask

Two schemes have this interface:

    Paillier   one ciphertext per number, exact integers: paillier.py
    Clear      the same arithmetic on plain numbers: it hides nothing, and says so

**Not claimed**: protection against a party that breaks the protocol. Nobody proves that a
ciphertext was made correctly.
"""

from __future__ import annotations

import importlib.util
import math
import secrets
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from colonnade.errors import MethodError
from colonnade.privacy.paillier import PaillierHolder, PaillierMultiplier
from colonnade.version import installing

SCHEMES = ("none", "paillier")
REMOVED = {
    "ckks": "because it was there for its cost, not for its protection. Take 'paillier', which "
    "protects embeddings and is far slower, or 'none', which is the same arithmetic and protects "
    "nothing"
}
LIBRARIES = {"paillier": "gmpy2"}  # what a scheme needs to be installed


class Holder(Protocol):
    """The party that has the private key; `public` is the public key."""

    public: Tensor  # uint8 (bytes,)

    def pack(self, matrix: Tensor) -> Tensor:
        """X (p, q), for products of it and of its transpose."""

    def open(self, message: Tensor, shape: tuple[int, int], plus: Tensor) -> Tensor:
        """A product with something added, for the other party: words (p, r, words)."""

    def read(self, message: Tensor, shape: tuple[int, int]) -> Tensor:
        """A product for the holder itself: float64 (p, r)."""


class Multiplier(Protocol):
    """The other party."""

    def mask(self, shape: tuple[int, int]) -> Tensor:
        """A fresh one, to be used once."""

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
        """X·Y + mask + plus for a packed X of this shape, (p, q); transposed: Xᵀ·Y + …"""

    def unmask(self, words: Tensor, mask: Tensor) -> Tensor:
        """Subtract the mask from a masked product that `open` opened: float64 (p, r)."""


def require(encryption: str) -> None:
    """Refuse a scheme whose library is not installed."""
    library = LIBRARIES.get(encryption)
    if library is not None and importlib.util.find_spec(library) is None:
        raise MethodError(
            f"encryption = '{encryption}' needs the package '{library}', which is not installed",
            installing("he"),
        )


def holder(encryption: str, name: str, key_bits: int, fraction: int) -> Holder:
    """A fresh private key, which is never written anywhere."""
    require(encryption)
    return PaillierHolder(name, key_bits, fraction) if encryption == "paillier" else Clear()


def multiplier(
    encryption: str, public: Tensor, owner: str, key_bits: int, fraction: int
) -> Multiplier:
    """The other party's side, with the public key of `owner`."""
    require(encryption)
    if encryption == "paillier":
        return PaillierMultiplier(public, owner, key_bits, fraction)
    return Clear()


def rounded(values: Tensor, fraction: int) -> Tensor:
    """Round to multiples of 2^-fraction, as Paillier's encoding does: float64."""
    return torch.round(values.double() * 2.0**fraction) * 2.0**-fraction


def noise(shape: Sequence[int], size: float, fraction: int, *, seeded: bool) -> Tensor:
    """Uniform between -size and size, in multiples of 2^-fraction: float64, on the CPU.

    seeded  drawn from the party's own reproducible numbers, where nothing is protected; otherwise
            from the operating system
    """
    steps = 2 * math.floor(size * 2.0**fraction) + 1
    if seeded:
        drawn = torch.randint(steps, tuple(shape))
    else:  # 63 bits modulo less than 2^48: the bias of any number is below a factor of 2^-15
        raw = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), np.uint64) >> np.uint64(1)
        drawn = torch.from_numpy((raw % np.uint64(steps)).astype(np.int64)).reshape(tuple(shape))
    return (drawn - steps // 2).double() * 2.0**-fraction


# ---- plain numbers -------------------------------------------------------------------------------


class Clear:
    """No encryption: both roles on plain float64, masks from the party's seeded numbers."""

    def __init__(self) -> None:
        self.public = torch.empty(0, dtype=torch.uint8)

    def pack(self, matrix: Tensor) -> Tensor:
        return matrix.double().clone()  # the sender may change its own afterwards

    def open(self, message: Tensor, shape: tuple[int, int], plus: Tensor) -> Tensor:
        return (message + plus).unsqueeze(-1)

    def read(self, message: Tensor, shape: tuple[int, int]) -> Tensor:
        return message

    def mask(self, shape: tuple[int, int]) -> Tensor:
        return noise(shape, 1.0, 23, seeded=True)

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
        product = (message.T if transposed else message) @ right
        for more in (mask, plus):
            product = product if more is None else product + more.to(product.device)
        return product

    def unmask(self, words: Tensor, mask: Tensor) -> Tensor:
        return words.squeeze(-1) - mask.to(words.device)
