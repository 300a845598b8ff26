"""Pairwise masks: the receiver learns the sum of all parties' values, and no single party's.

    party i                                                            the active party 0
    1. x_i → fixed point in Z_2^b; NaN, Inf and too large values are refused
    2. for every other j: keystream under HKDF-Expand(K_ij, moment, shape)
       added for i < j, subtracted for i > j                      →    3. check every tag
       with a tag under K_i0 over the masked bytes                     4. Σ masked = Σ fixed point

The receiver learns this moment's sum, and what follows from it: no more, no less.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.errors import Diverged, MaskError, Untrusted
from colonnade.wire import Kind

MASKED = Kind(
    "masked_embedding",
    None,  # {"values": int32 or int64 (batch, dim), "tag": bytes}
    reveals="the sender's embedding only within the sum over all passive parties",
    dtype="any",
    randomised=True,
    host=True,
    about="batch",
    carries="sums",
)
WEAKLY_MASKED = replace(
    MASKED,
    carries="features",
    name="weakly_masked_embedding",
    reveals="all differences between the sender's embeddings, or all of them where it is alone",
)
Elements = NDArray[Any]  # uint32 or uint64, elements of the ring


class Moment(NamedTuple):
    """The moment of a mask; every party derives the same one, and none is used twice."""

    purpose: str  # "train", "eval/test"
    epoch: int
    step: int


@dataclass(frozen=True)
class Ring:
    """Fixed-point numbers modulo 2^bits, with room for a sum of `terms` of them."""

    bits: Literal[32, 64]
    fraction: int  # f: a unit is 2^-f
    terms: int  # K

    @property
    def limit(self) -> float:
        """The largest absolute value: K · limit · 2^f stays below half the ring."""
        largest: int = 2 ** (self.bits - 1) - 1
        return float(largest // self.terms) / float(2**self.fraction)

    def encode(self, values: Tensor) -> Elements:
        """Round to units of 2^-f; a value out of range is refused, never wrapped."""
        if not values.numel():
            raise MaskError("there are no rows to mask: omit the empty batch")
        scaled = values.detach().cpu().numpy().astype(np.float64, order="C")
        np.multiply(scaled, 2.0**self.fraction, out=scaled)
        np.rint(scaled, out=scaled)
        largest = max(scaled.max(initial=0.0), -scaled.min(initial=0.0)) / 2**self.fraction
        if not math.isfinite(largest):
            raise Diverged(
                f"a value of {largest:g} cannot be masked: the training has diverged, here or at "
                "another party; try a smaller lr"
            )
        if not largest < self.limit:
            raise Diverged(
                f"a value of {largest:g} cannot be masked: with {self.terms} passive parties, "
                f"{self.bits} bits and {self.fraction} of them for the fraction, it must stay "
                f"below {self.limit:g}. Lower the learning rate, normalise the embeddings, or "
                "take fewer fraction bits"
            )
        whole = scaled.astype(np.int64).view(np.uint64)
        return whole if self.bits == 64 else whole.astype(np.uint32)

    def holds(self, values: Tensor) -> bool:
        """Whether all are whole multiples of its unit, so that `encode` rounds none of them."""
        units = values.detach().double() * 2.0**self.fraction
        return bool((units == units.round()).all())

    def decode(self, total: Elements) -> Tensor:
        """The sum as float32."""
        signed = total.view(np.int64 if self.bits == 64 else np.int32).astype(np.float64)
        return torch.from_numpy((signed * 2.0**-self.fraction).astype(np.float32))


class Masks:
    """One party's secrets with the others; each moment's mask is used once."""

    def __init__(
        self,
        name: str,
        active: str,
        secrets: Mapping[str, bytes],
        ring: Ring,
        *,
        constant: bool = False,
    ) -> None:
        """constant: one ring element per pair for the whole run, as in EASTER's paper."""
        self.ring = ring
        self._name, self._active, self._constant = name, active, constant
        self._secrets = dict(secrets)
        self._partners = [other for other in secrets if other != active]
        self._spent: dict[str, tuple[int, int]] = {}  # purpose: the latest (epoch, step)
        self._zeros = b""

    def mask(self, values: Tensor, moment: Moment) -> dict[str, Tensor | bytes]:
        """Steps 1 and 2, for a passive party: a message of the Kind MASKED."""
        try:
            masked = self.ring.encode(values)
        except (Diverged, MaskError) as error:
            raise type(error)(f"'{self._name}', {_place(moment)}: {error}") from None
        self._spend(moment)  # before a single byte exists
        flat = masked.reshape(-1)
        stream = np.empty_like(flat)
        for other in self._partners:
            self._keystream(other, moment, masked.shape, stream)
            if self._name < other:
                np.add(flat, stream, out=flat)
            else:
                np.subtract(flat, stream, out=flat)
        signed = masked.view(np.int64 if self.ring.bits == 64 else np.int32)
        tag = _tag(self._secrets[self._active], self._name, moment, masked)
        return {"values": torch.from_numpy(signed), "tag": tag}

    def total(
        self,
        messages: Mapping[str, Mapping[str, Any]],
        moment: Moment,
        shape: Sequence[int] | None = None,
    ) -> Tensor:
        """Steps 3 and 4, for the active party: the sum over all passive parties, as float32."""
        if messages.keys() != self._secrets.keys():  # the sum of some would reveal the others
            raise MaskError(
                f"'{self._name}' has masked values of {', '.join(messages)}; only the sum over "
                f"{', '.join(self._secrets)} may be opened"
            )
        self._spend(moment)
        parts = [self._opened(name, message, moment) for name, message in messages.items()]
        due = parts[0].shape if shape is None else tuple(shape)
        if any(part.shape != due for part in parts):
            shapes = ", ".join(f"'{n}' {p.shape}" for n, p in zip(messages, parts, strict=True))
            raise Untrusted(f"the masked values have different shapes; {due} is due: {shapes}")
        total = parts[0].copy()
        for part in parts[1:]:
            np.add(total, part, out=total)
        return self.ring.decode(total)

    def _opened(self, name: str, message: Mapping[str, Any], moment: Moment) -> Elements:
        known = isinstance(message, Mapping) and message.keys() == {"values", "tag"}
        values, tag = (message["values"], message["tag"]) if known else (None, None)
        dtype = torch.int64 if self.ring.bits == 64 else torch.int32
        if (
            not isinstance(values, Tensor)
            or values.dtype != dtype
            or not values.numel()
            or not isinstance(tag, bytes)
        ):
            raise Untrusted(f"'{name}' sent no masked values of {self.ring.bits} bits with a tag")
        elements: Elements = (
            values.contiguous().numpy().view(np.uint64 if self.ring.bits == 64 else np.uint32)
        )
        if not hmac.compare_digest(tag, _tag(self._secrets[name], name, moment, elements)):
            raise Untrusted(
                f"'{self._name}' refuses the masked values of '{name}' at {_place(moment)}: they "
                "were changed on the way, belong to another moment, or come from another party"
            )
        return elements

    def _keystream(self, other: str, moment: Moment, shape: tuple[int, ...], out: Elements) -> None:
        """AES-256-CTR under a key for this pair and moment alone, straight into the buffer."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        if self._constant:
            out.fill(np.frombuffer(_expand(self._secrets[other], b"constant"), out.dtype)[0])
            return
        key = _expand(self._secrets[other], _context("mask", "embedding", moment, shape))
        if len(self._zeros) != out.nbytes:
            self._zeros = bytes(out.nbytes)
        cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16)))
        cipher.encryptor().update_into(self._zeros, out.data.cast("B"))

    def _spend(self, moment: Moment) -> None:
        place = (moment.epoch, moment.step)
        if place <= self._spent.get(moment.purpose, (-1, -1)):
            raise MaskError(
                f"'{self._name}' has already masked or opened values at {_place(moment)}: a second "
                "use would reveal their difference. Start again, with fresh keys"
            )
        self._spent[moment.purpose] = place


def _place(moment: Moment) -> str:
    return f"{moment.purpose}, epoch {moment.epoch + 1}, step {moment.step + 1}"


def _context(*parts: object) -> bytes:
    return json.dumps(parts).encode()  # unambiguous: names are quoted, shapes are lists


def _expand(secret: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    return HKDFExpand(SHA256(), 32, info).derive(secret)


def _tag(secret: bytes, sender: str, moment: Moment, elements: Elements) -> bytes:
    """A one-time Poly1305 tag: its key is for this sender, moment and shape alone."""
    from cryptography.hazmat.primitives.poly1305 import Poly1305

    key = _expand(secret, _context("tag", sender, moment, elements.shape, elements.itemsize))
    return Poly1305.generate_tag(key, elements.data.cast("B"))
