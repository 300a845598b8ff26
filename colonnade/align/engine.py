"""Ids as points of a group that nobody can read: hide one's own, lock another's.

    hide    H(id)·r   one's own ids, under a secret r that only their owner has
    lock    P·k       another party's points, under one's key k
    finish  P·k/r     one's own points, which all others have locked: then all keys are on, r is off

What all have locked is equal exactly where the ids are; without every single key nobody can make
it, and from it nobody can go back to an id (decisional Diffie-Hellman, H a random oracle). With
two parties r = k, and `finish` has nothing to do.

    ristretto  ristretto255 of libsodium, through rbcl. H(id) = from_hash(SHA-512(domain | id))
    openmined  P-256 of the openmined-psi package: its client hides, its server locks

Both refuse to multiply what is no point, or the neutral element, which any key leaves as it is; a
finished point of two parties is only compared, and a wrong one is equal to none. Secrets come from
the operating system, are drawn anew for every engine, and are never written anywhere.

A ctypes call per point costs about a hundredth of the multiplication itself (50 µs), so a loop in C
would gain nothing; nor did threads, on the two shared cores we had.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from colonnade.errors import MethodError

EngineName = Literal["ristretto", "openmined"]
PACKAGES = {"ristretto": "rbcl", "openmined": "private_set_intersection.python"}
DOMAIN = b"colonnade psi 1 ristretto255\0"
RISTRETTO_ORDER = 2**252 + 27742317777372353535851937790883648493
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class NoPoint(ValueError):
    """Bytes that are no point, or the neutral element."""


class Engine(Protocol):
    """One party's secrets; points are rows of uint8 (n, width)."""

    width: int

    def hide(self, ids: Sequence[str]) -> Tensor: ...

    def lock(self, points: Tensor) -> Tensor: ...

    def finish(self, points: Tensor) -> Tensor: ...


def make(name: EngineName, parties: int) -> Engine:
    """Fresh secrets for one intersection of the sets of so many parties."""
    if parties < 2:
        raise MethodError("rows can be aligned between two parties or more; there is one")
    if name == "openmined":
        if parties > 2:
            raise MethodError(
                f'engine = "openmined" is for two parties, and there are {parties}: '
                'use engine = "ristretto"'
            )
        return OpenMined(_package(name))
    return Ristretto(_package(name), blinded=parties > 2)


def _package(name: EngineName) -> Any:
    try:
        return importlib.import_module(PACKAGES[name])
    except ImportError as error:
        raise MethodError(
            f'engine = "{name}" needs a package that is not installed ({error}): '
            "pip install colonnade[psi]"
        ) from error


class Ristretto:
    """libsodium, called on the rows of one buffer."""

    width = 32

    def __init__(self, rbcl: Any, *, blinded: bool) -> None:
        """blinded: r is not k, so that the last one to lock a set does not see it finished"""
        key = 1 + secrets.randbelow(RISTRETTO_ORDER - 1)
        blind = 1 + secrets.randbelow(RISTRETTO_ORDER - 1) if blinded else key
        self._key, self._blind = _scalar(key), _scalar(blind)
        self._rest = (
            _scalar(key * pow(blind, -1, RISTRETTO_ORDER) % RISTRETTO_ORDER) if blinded else None
        )
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
        points = torch.empty(len(ids), self.width, dtype=torch.uint8)
        to = points.data_ptr()
        for text in ids:
            self._from_hash(to, hashlib.sha512(DOMAIN + text.encode()).digest())
            to += self.width
        return self._times(points, self._blind)

    def lock(self, points: Tensor) -> Tensor:
        return self._times(points, self._key)

    def finish(self, points: Tensor) -> Tensor:
        return points if self._rest is None else self._times(points, self._rest)

    def _times(self, points: Tensor, scalar: ctypes.Array[ctypes.c_char]) -> Tensor:
        points = points.contiguous()
        products = torch.empty_like(points)
        start, to, by = points.data_ptr(), products.data_ptr(), ctypes.addressof(scalar)
        multiply, width = self._multiply, self.width
        for offset in range(0, points.numel(), width):
            # Not 0 where the bytes are no point, or where the product is the neutral element.
            if multiply(to + offset, by, start + offset):
                raise NoPoint(f"number {offset // width} is no point of ristretto255")
        return products


class OpenMined:
    """P-256 points, compressed. One key for a client, who hides, and a server, who locks."""

    width = 33

    def __init__(self, package: Any) -> None:
        key = (1 + secrets.randbelow(P256_ORDER - 1)).to_bytes(32, "big")
        self._request = package.Request
        self._client = package.client.CreateFromKey(key, True)
        self._server = package.server.CreateFromKey(key, True)

    def hide(self, ids: Sequence[str]) -> Tensor:
        return self._points(self._client.CreateRequest(list(ids)).encrypted_elements)

    def lock(self, points: Tensor) -> Tensor:
        rows = points.contiguous().numpy().tobytes()
        elements = [rows[at : at + self.width] for at in range(0, len(rows), self.width)]
        request = self._request(reveal_intersection=True, encrypted_elements=elements)
        try:
            return self._points(self._server.ProcessRequest(request).encrypted_elements)
        except RuntimeError as error:
            raise NoPoint(f"one is no point of P-256 ({str(error).splitlines()[0]})") from error

    def finish(self, points: Tensor) -> Tensor:
        return points

    def _points(self, elements: Sequence[bytes]) -> Tensor:
        rows = bytearray(b"".join(elements))
        if not rows:
            return torch.empty(0, self.width, dtype=torch.uint8)
        return torch.frombuffer(rows, dtype=torch.uint8).view(len(elements), self.width)


def _scalar(number: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(number.to_bytes(32, "little"), 32)
