"""Changes rows before they are sent, and measures how much they change.

    generalise        FedEmb's Algorithm 2: the values of a column in steps
    laplace           its perturbation: additive noise, Laplace(0, b)
    secret_laplace    the same noise from a secret, for a receiver that knows everything else
    secret_steps      its whole-numbered counterpart, for whole numbers: what a budget counts
    secret_gaussian   N(0, σ²) from a secret, each row's own
    gaussian          N(0, 1) from a secret, for a whole message
    ppm               FedEmb's Eq. 4: the relative change, in L1

**Heuristics: no guarantee follows from b or from PPM.** A guarantee needs noise fitted to how much
a single sample can change a row, and a count of all releases: see `budget`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.errors import ColonnadeError
from colonnade.privacy.grouping import Grouping
from colonnade.role.party import Party

SECRET_BYTES = 32
MOST_SIGMAS = math.sqrt(2 * 54 * math.log(2))  # of 53 bits, 8.65
LEAST_DIGIT = 64.0  # a digit that is 1 with a probability below exp(-64) is not drawn


def secret_of(me: Party, *, lasting: bool = False) -> bytes:
    """32 bytes for noise that only this party has, in this run, or in all runs and predictions."""
    if me.journal is None:
        raise ColonnadeError(f"'{me.name}' has no journal: only a run gives it one")
    return me.journal.secret("noise", lasting=lasting)


def generalise(x: Tensor, share: float) -> Tensor:
    """Algorithm 2 on (R, width): groups of N_ε = share · R neighbours take their least value.

    Column by column: sort, cut into consecutive groups, replace, restore the order. N_ε is
    rounded to a whole number, half up. Rows left over at the upper end join the last group, so that
    no group is smaller than N_ε. If N_ε is 1 or less, nothing changes.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share = {share}: from 0 to 1")
    rows = len(x)
    size = max(1, math.floor(share * rows + 0.5))  # N_ε
    values, order = x.sort(dim=0, stable=True)
    groups = max(1, rows // size)
    lowest = (torch.arange(rows, device=x.device) // size).clamp_(max=groups - 1) * size
    return torch.empty_like(x).scatter_(0, order, values[lowest])


def laplace(x: Tensor, scale: float | Tensor, generator: torch.Generator) -> Tensor:
    """x with i.i.d. Laplace(0, b) noise, b = scale: one b, or a tensor that broadcasts over x.

    The generator is on the CPU, so all devices draw alike. Whoever knows its seed can subtract the
    noise, so a receiver must not know it; and PyTorch uses only 32 bits of a seed.
    """
    words = torch.empty(x.shape, dtype=torch.int64).random_(generator=generator)  # 63 bits each
    return _added(x, scale, words)


def secret_laplace(x: Tensor, scale: float | Tensor, secret: bytes, number: int = 0) -> Tensor:
    """The same noise from AES-256, under a key for this secret, number, b and x alone.

    Nobody can predict it without the secret, not even from all other values. The same x gives the
    same bytes, so a step that is repeated after a crash reveals nothing new; a different x or b
    gets different noise, so no two releases can be subtracted.

    number  of a release that is counted by itself
    """
    digest = hashlib.sha256(_bytes_of(x)).hexdigest()
    spread = torch.as_tensor(scale, dtype=torch.float64)
    size = hashlib.sha256(_bytes_of(spread)).hexdigest()
    context = json.dumps(["laplace", number, str(x.dtype), list(x.shape), digest, size])
    drawn = _drawn(secret, context, 8 * x.numel())
    words = torch.frombuffer(drawn, dtype=torch.int64).reshape(x.shape) & 2**63 - 1
    return _added(x, scale, words)


def gaussian(shape: Sequence[int], secret: bytes, context: str) -> Tensor:
    """N(0, 1) noise, float64, from a secret and a context alone: two of 53 random bits each.

    None is larger than MOST_SIGMAS: what a normal number has beyond that is less than 2⁻⁵⁷, and of
    the 2¹⁷ numbers of a record together less than 2⁻⁴⁰.
    """
    count = math.prod(shape)
    pairs = (count + 1) // 2
    drawn = _drawn(secret, json.dumps(["normal", context]), 16 * pairs)
    both = torch.empty(2, pairs, dtype=torch.float64)
    if pairs:
        words = torch.frombuffer(drawn, dtype=torch.int64)
        words.bitwise_right_shift_(11).bitwise_and_(2**53 - 1)
        uniform = words.double().add_(0.5).mul_(2.0**-53).view(2, pairs)
        distance, angle = uniform[0].log_().mul_(-2).sqrt_(), uniform[1].mul_(2 * math.pi)
        torch.cos(angle, out=both[0])
        torch.sin(angle, out=both[1])
        both.mul_(distance)
    return both.view(-1)[:count].reshape(tuple(shape))


def words(count: int, secret: bytes, context: str) -> NDArray[np.uint64]:
    """So many words of 64 random bits, from a secret and a context alone."""
    return np.frombuffer(_drawn(secret, json.dumps(["words", context]), 8 * count), dtype=np.uint64)


def secret_steps(x: Tensor, decay: float, secret: bytes, number: int = 0) -> Tensor:
    """Whole numbers x, int64, with i.i.d. noise z of probability ∝ exp(−decay · |z|), from a
    secret, number, decay and x as `secret_laplace`.

    Which sums there are does not depend on x, as it does with floats (Mironov 2012). The noise is
    the difference of two geometric numbers, whose binary digits are independent: digit i is 1 with
    probability 1 / (1 + exp(decay · 2^i)). Each is drawn from 63 bits, so that a release of 10⁵
    numbers differs from the exact law by less than 2⁻³⁹ in total variation.
    """
    digest, size = hashlib.sha256(_bytes_of(x)).hexdigest(), x.numel()
    noise = torch.zeros(size, dtype=torch.int64)
    for digit in range(max(1, math.ceil(math.log2(LEAST_DIGIT / decay)))):
        context = json.dumps(["steps", number, list(x.shape), digest, decay.hex(), digit])
        drawn = _drawn(secret, context, 16 * size)
        more, less = (torch.frombuffer(drawn, dtype=torch.int64) & 2**63 - 1).view(2, size)
        weight = math.exp(-decay * 2**digit)
        bar = math.floor(weight / (1 + weight) * 2.0**63)
        noise += ((more < bar).long() - (less < bar).long()) * 2**digit
    return x + noise.view(x.shape)


def secret_gaussian(x: Tensor, sigma: float, secret: bytes, names: Sequence[str]) -> Tensor:
    """x with i.i.d. N(0, σ²) noise, each row's own, from a secret, σ and the row's name alone.

    names  of the rows, (rows,): what x was computed from. The same name has the same noise in
           whichever message it leaves, so it cannot be averaged away; where x changes by more than
           rounding, the name must change.
    """
    size, noise = x[:1].numel(), torch.empty(x.shape, dtype=torch.float64)
    for name, row in zip(names, noise, strict=True):
        words = _drawn(secret, json.dumps(["gaussian", sigma, name]), 8 * ((size + 1) // 2))
        uniform = torch.frombuffer(words, dtype=torch.int32).double().add_(2**31 + 0.5) * 2.0**-32
        distance, angle = (-2 * uniform[::2].log()).sqrt(), 2 * math.pi * uniform[1::2]
        pairs = torch.stack([distance * angle.cos(), distance * angle.sin()], 1)
        row.copy_(pairs.flatten()[:size].view(row.shape))
    return (x.detach().double() + sigma * noise.to(x.device)).to(x.dtype)


def ppm(original: Tensor, processed: Tensor, grouping: Grouping | None = None) -> Tensor:
    """One term of Eq. 4, ‖q(l) − l‖₁ / ‖l‖₁ over all entries; 0: nothing was changed.

    Each sample's own vector, (rows, width), is compared with the row that was sent for its group,
    (groups, width). Without a grouping rows are compared one by one: ppm(grouping.means(x),
    processed) is the change by generalisation and noise alone.

    The caller takes the smaller of the terms of l and θ. This measures how much was changed, not
    what a receiver can find out.
    """
    if grouping is not None:
        processed = processed[grouping.membership.to(processed.device)]
    if processed.shape != original.shape:
        raise ValueError(f"{tuple(processed.shape)} against {tuple(original.shape)}")
    change, norm = (
        values.abs().sum(dtype=torch.float64) for values in (processed - original, original)
    )
    return torch.where(change == 0, 0.0, change / norm)


def _bytes_of(x: Tensor) -> bytes:
    return x.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def _drawn(secret: bytes, context: str, size: int) -> bytearray:
    """So many bytes, under a key for this secret and context alone."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes; {SECRET_BYTES} are needed")
    key = hmac.digest(secret, context.encode(), "sha256")
    return bytearray(
        Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))
    )


def _added(x: Tensor, scale: float | Tensor, words: Tensor) -> Tensor:
    """Inversion: of 63 random bits, 53 give the size of the noise and one its sign.

    The noise is added in float64, and only then is the sum rounded to x's own precision. This
    removes nearly all of the pattern in the last bits that reveals the terms (Mironov 2012).
    """
    size = -((words >> 10).double().add_(0.5).mul_(2.0**-53)).log()
    noise = torch.where(words & 1 == 1, size, -size).to(x.device)
    spread = scale.to(x.device).double() if isinstance(scale, Tensor) else scale
    return (x.detach().double() + noise * spread).to(x.dtype)
