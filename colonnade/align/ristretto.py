"""Ids as group elements that nobody can read: hide one's own, lock another's.

    hide    H(id)·r   one's own ids, under a secret r that only their owner has
    lock    P·k       another party's points, under one's key k
    finish  P·k/r     one's own points after all others have locked them: applies k, removes r

Points that all parties have locked are equal exactly where the ids are. Nobody can compute such a
point without every single key, and nobody can get from it back to an id (decisional Diffie-Hellman,
H a random oracle). With two parties r = k, and `finish` has nothing to do.

The group is ristretto255 of libsodium, through rbcl: H(id) = from_hash(SHA-512(domain | id)). It
refuses bytes that are not a point, and the neutral element, which no key would change. Secrets come
from the operating system, are drawn again for every intersection, and are never written anywhere.

A ctypes call per point costs about a hundredth of the multiplication itself (50 µs), so a loop in C
would gain nothing. Threads gained nothing on two shared cores.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from colonnade.errors import MethodError
from colonnade.version import installing

DOMAIN = b"colonnade psi 1 ristretto255\0"
ORDER = 2**252 + 27742317777372353535851937790883648493
WIDTH = 32  # bytes of a point
TOLD = 1000  # points between two words about how far it is: 50 ms


class NotAPoint(ValueError):
    """Bytes that are not a point, or the neutral element."""


def make(parties: int, tell: Callable[[int], None] = lambda points: None) -> Secrets:
    """Fresh secrets for one intersection of the sets of so many parties.

    tell  is called now and then with how many points more have been multiplied
    """
    return Secrets(library(), tell, blinded=parties > 2)


def library() -> Any:
    """The group's library; without it no rows can be aligned, so ask for it before a run begins."""
    try:
        return importlib.import_module("rbcl")
    except ImportError as error:
        raise MethodError(
            f"to find the common rows a package is needed that is not installed ({error})",
            installing("psi"),
        ) from error


class Secrets:
    """One party's key and blind. Points are rows of uint8 (n, 32), in one buffer."""

    def __init__(self, rbcl: Any, tell: Callable[[int], None], *, blinded: bool) -> None:
        """blinded: r differs from k, so that the last party to lock a set does not see F(S_i)."""
        self._tell = tell
        key = 1 + secrets.randbelow(ORDER - 1)
        blind = 1 + secrets.randbelow(ORDER - 1) if blinded else key
        self._key, self._blind = _scalar(key), _scalar(blind)
        self._rest = _scalar(key * pow(blind, -1, ORDER) % ORDER) if blinded else None
        # Prototypes of our own: rbcl's have none, and would cut addresses to 32 bits.
        library, address = rbcl.rbcl._sodium, ctypes.c_void_p
        point_of = ctypes.CFUNCTYPE(ctypes.c_int, address, ctypes.c_char_p)
        product = ctypes.CFUNCTYPE(ctypes.c_int, address, address, address)
        self._from_hash: Callable[[int, bytes], int] = point_of(
            ("crypto_core_ristretto255_from_hash", library)
        )
        self._multiply: Callable[[int, int, int], int] = product(
            ("crypto_scalarmult_ristretto255", library)
        )

    def hide(self, ids: Sequence[str]) -> Tensor:
        points = torch.empty(len(ids), WIDTH, dtype=torch.uint8)
        to = points.data_ptr()
        for text in ids:
            self._from_hash(to, hashlib.sha512(DOMAIN + text.encode()).digest())
            to += WIDTH
        return self._times(points, self._blind)

    def lock(self, points: Tensor) -> Tensor:
        return self._times(points, self._key)

    def finish(self, points: Tensor) -> Tensor:
        return points if self._rest is None else self._times(points, self._rest)

    def _times(self, points: Tensor, scalar: ctypes.Array[ctypes.c_char]) -> Tensor:
        points = points.contiguous()
        products = torch.empty_like(points)
        start, to, by = points.data_ptr(), products.data_ptr(), ctypes.addressof(scalar)
        multiply, size = self._multiply, points.numel()
        for begin in range(0, size, TOLD * WIDTH):
            end = min(begin + TOLD * WIDTH, size)
            for offset in range(begin, end, WIDTH):
                # Not 0 where the bytes are not a point, or the product is the neutral element.
                if multiply(to + offset, by, start + offset):
                    raise NotAPoint(f"number {offset // WIDTH} is not a point of ristretto255")
            self._tell((end - begin) // WIDTH)
        return products


def _scalar(number: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(number.to_bytes(32, "little"), 32)
