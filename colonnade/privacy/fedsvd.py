"""FedSVD: the left singular vectors of columns that several parties hold and do not show.

S = [S_1 | … | S_K] has the shared rows of all parties side by side, S = U Σ Vᵀ (Eq. 1 to 3
of the paper; the masks are those of Chai et al., KDD 2022).

    key generator   1. A, B random and orthogonal; A's seed to every party,    row_mask
                       and to party k only its own rows of B, B_k              column_masks
    party k         2. Ŝ_k = A S_k B_k                                         mask_matrix
                    3. fixed point in Z_2^64 plus pairwise masks, in strips    to_strips
    server          4. Σ_k Ŝ_k = A S B: only the sum can be opened             from_strips
                    5. A S B = Û Σ V̂ᵀ; the leading q columns of Û go back      left_vectors
    task party      6. U = Aᵀ Û, signs fixed                                   unmask

`left_vectors_of` runs all steps in one process.

**Who learns what**, as long as nobody colludes and everybody follows the protocol:

* The server sees A S B, so it learns the size of S, all singular values Σ, and Û; neither a row
  nor a column of S. It sees no Ŝ_k alone, only the sum: the printed concatenation [Ŝ_t | Ŝ_d]
  would show each party's singular values as well.
* The task party learns the leading q columns of U, and nothing of V or Σ. That is a lot: U tells
  how alike the shared rows are in all columns together. With two parties, U and Σ would give the
  Gram matrix of the other one, S_d S_dᵀ = U Σ² Uᵀ − S_t S_tᵀ, and so S_d up to a rotation. Σ is
  never returned, but **that alone does not help: where q is the full rank and no column depends
  on others, Σ follows from U and S_t**, by the linear equations S_tᵀ U Σ⁻² Uᵀ S_t = I, to the last
  digit. The paper returns all of U. Fewer vectors do not help where the partners have fewer
  directions than q. privacy/determined.py bounds what follows; each partner of the method refuses
  a q from which too much does.
* The key generator knows A and B, and sees no data. Together with the server it can reveal S, so
  these two must not be one organisation.
* A party that colludes with the server removes A and subtracts its own part: with two parties, the
  other's S_d B_d is left, that is S_d up to a rotation. To keep it at a rotation, no party gets the
  seed of B, or more of B than its own rows.

**Blocks.** A and B are block-diagonal behind a secret shuffle, in equal blocks of `block` rows or
a few more; 0 makes them dense. Blocks of size b leave the span of each block
visible: the server sees every b rows (b columns) of S up to a rotation among themselves, hence
the singular values of every such block, and, from the norms of its rows, which blocks hold large
values. No block is ever smaller than b: a single row would be sent as it is, up to its sign. The
columns of all parties are spread evenly over the blocks of B, because a block with columns of one
party alone would show them outside any sum.

**Precision.** 48 fractional bits leave ±2^15 / K for a value: standardise the columns. float64
finds U to about 1e-13 · σ₁ / (distance to the next singular value), float32 to 1e-7 of it.

**Memory**, for 5000 × 27648 in float64: an array of the size of S is 1.1 GB. A party needs 2.2 GB,
the server about 3 GB, two parties and the server in one process 4.6 GB (measured up to step 4).
Masks are 4 MB + 22 MB in blocks of 100, and 0.2 + 6.1 GB if dense. Strips are masked one at a time.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.errors import CodecError, DataError, MaskError, Untrusted
from colonnade.privacy import keys
from colonnade.privacy.masking import Elements, Masks, Moment, Ring
from colonnade.wire import codec

BLOCK = 100  # rows of a block of A and of B; the authors' later code takes 10 or 100
FRACTION = 48  # bits behind the point: 2^-48 is 4e-15
SEED_BYTES = 32
STRIP_BYTES = 2**26  # masked, sent and added at once
PURPOSE = "fedsvd"
MOST_COLUMNS = 1 << 18  # of one party
MOST_NUMBERS = 1 << 28  # of one party's B_k, counted as if it were alone: 2 GB
FEWEST = 2  # parties: the sum of one is its own matrix

Strip = dict[str, Tensor | bytes]  # what Masks.mask makes: int64 values and a tag


def new_seed() -> bytes:
    """A fresh seed for one mask of one run; whoever has the seed has the mask."""
    return secrets.token_bytes(SEED_BYTES)


# ---- 1. the key generator ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RowMask:
    """A = blocks · shuffle, (rows, rows), never written out."""

    order: Tensor  # int64 (rows,): row i of the shuffled matrix is row order[i]
    blocks: tuple[Tensor, ...]  # (b, b) each, orthogonal

    def apply(self, matrix: Tensor) -> Tensor:
        """A · matrix, (rows, width)."""
        self._check(matrix)
        masked = torch.empty_like(matrix)
        for block, (start, end) in zip(self.blocks, self._bounds(), strict=True):
            torch.mm(block, matrix[self.order[start:end]], out=masked[start:end])
        return masked

    def undo(self, masked: Tensor) -> Tensor:
        """Aᵀ · masked, (rows, width)."""
        self._check(masked)
        matrix = torch.empty_like(masked)
        for block, (start, end) in zip(self.blocks, self._bounds(), strict=True):
            matrix[self.order[start:end]] = block.mT @ masked[start:end]
        return matrix

    def _bounds(self) -> Iterator[tuple[int, int]]:
        return _bounds([len(block) for block in self.blocks])

    def _check(self, matrix: Tensor) -> None:
        if matrix.dim() != 2 or len(matrix) != len(self.order):
            raise DataError(
                f"a matrix of shape {tuple(matrix.shape)} for a mask of {len(self.order)} rows: "
                "all parties must hold the same shared rows, in the same order"
            )


@dataclass(frozen=True, eq=False)
class ColumnMask:
    """B_k: one party's rows of B, (own width, whole width); block by block, never written out."""

    columns: tuple[Tensor, ...]  # int64, the own columns that fall into each block of B
    blocks: tuple[Tensor, ...]  # (own columns in the block, b) each: rows of an orthogonal matrix

    def apply(self, matrix: Tensor) -> Tensor:
        """matrix · B_k: (rows, own width) → (rows, whole width)."""
        own = sum(len(columns) for columns in self.columns)
        if matrix.dim() != 2 or matrix.shape[1] != own:
            raise DataError(f"a matrix of shape {tuple(matrix.shape)} for a mask of {own} columns")
        widths = [block.shape[1] for block in self.blocks]
        masked = matrix.new_empty(len(matrix), sum(widths))
        places = zip(self.columns, self.blocks, _bounds(widths), strict=True)
        for columns, block, (start, end) in places:
            masked[:, start:end] = matrix[:, columns] @ block
        return masked


def row_mask(
    seed: bytes, rows: int, *, block: int = BLOCK, dtype: torch.dtype = torch.float64
) -> RowMask:
    """A, the same at every party that has the seed. The seed must differ from that of B."""
    words = _Words(seed, "rows")
    order = words.shuffled(rows)
    return RowMask(order, tuple(words.orthogonal(size, dtype) for size in _sizes(rows, block)))


def checked_width(sender: str, width: int, block: int) -> int:
    """How many columns a party says that it has; refused where no memory would hold their mask."""
    if 1 <= width <= MOST_COLUMNS and width * (block or width) <= MOST_NUMBERS:
        return width
    raise Untrusted(
        f"'{sender}' sent {width} as the number of its columns; masks in blocks of "
        f"{block or 'all columns'} are made for 1 to "
        f"{min(MOST_COLUMNS, MOST_NUMBERS // block if block else isqrt(MOST_NUMBERS))}"
    )


def column_masks(
    seed: bytes, widths: Sequence[int], *, block: int = BLOCK, dtype: torch.dtype = torch.float64
) -> list[ColumnMask]:
    """B_1, …, B_K for parties with these widths. Each party gets its own B_k, never the seed."""
    words = _Words(seed, "columns")
    # Each party's columns in a random order, and all parties' spread evenly over the blocks.
    columns = [words.shuffled(width) for width in widths]
    places = [(torch.arange(width) + 0.5) / width for width in widths]
    spread = torch.cat(places).argsort(stable=True)
    owners = torch.cat([torch.full((width,), k) for k, width in enumerate(widths)])[spread]
    column = torch.cat(columns)[spread]
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in widths]
    for start, end in _bounds(_sizes(sum(widths), block)):
        whole = words.orthogonal(end - start, dtype)
        for k, parts in enumerate(found):
            mine = owners[start:end] == k
            parts.append((column[start:end][mine], whole[mine]))
    return [ColumnMask(*(tuple(part) for part in zip(*parts, strict=True))) for parts in found]


class _Words:
    """Random numbers that nobody can predict without the seed: AES-256 in counter mode.

    The generators of NumPy and PyTorch are not made for this; PyTorch uses 32 bits of a seed.
    """

    def __init__(self, seed: bytes, purpose: str) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

        if len(seed) != SEED_BYTES:
            raise ValueError(f"a seed of {len(seed)} bytes; {SEED_BYTES} are needed")
        key = HKDFExpand(SHA256(), 32, f"fedsvd {purpose}".encode()).derive(seed)
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def _draw(self, count: int) -> NDArray[Any]:
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")

    def shuffled(self, count: int) -> Tensor:
        # 64-bit keys: two equal ones are practically impossible, and would be harmless.
        return torch.from_numpy(np.argsort(self._draw(count), kind="stable"))

    def orthogonal(self, size: int, dtype: torch.dtype) -> Tensor:
        """Uniform over all orthogonal matrices: QR of a Gaussian one, the diagonal of R positive.

        Computed in float64 for any dtype, so that masks of two precisions are the same masks.
        """
        uniform = ((self._draw(2 * size * size) >> 11) + 0.5) * 2.0**-53  # within (0, 1)
        radius, angle = uniform.reshape(2, size, size)
        gaussian = torch.from_numpy(np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle))
        q, r = torch.linalg.qr(gaussian)
        signed: Tensor = q * r.diagonal().sign()
        return signed.to(dtype)


def _sizes(count: int, block: int) -> list[int]:
    """Blocks of `block` or a little more, so that they add up; 0: one block."""
    if block < 0 or block == 1:
        raise ValueError(
            f"block = {block}: 0 for dense masks, or at least 2 (1 would mask nothing)"
        )
    if count < 1:
        raise DataError("there is nothing to mask: no shared rows, or no columns")
    number = max(1, count // block) if block else 1
    return [count // number + (i < count % number) for i in range(number)]


def _bounds(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    return itertools.pairwise([0, *itertools.accumulate(sizes)])


# ---- 2., 3. a party ------------------------------------------------------------------------------


def standardised(matrix: Tensor) -> Tensor:
    """Standardise by the matrix's own statistics, so that all parties' scales are alike."""
    spread = matrix.std(0, correction=0)
    flat = spread <= 1e-12 * matrix.abs().amax(0)
    return (matrix - matrix.mean(0)) / torch.where(flat, 1.0, spread)


def mask_matrix(matrix: Tensor, a: RowMask, b: ColumnMask) -> Tensor:
    """Ŝ_k = A S_k B_k (Eq. 2): (rows, own width) → (rows, whole width)."""
    return b.apply(a.apply(matrix))


@dataclass(frozen=True)
class WideRing(Ring):
    """A ring for matrices: it decodes to float64, and its errors say how to avoid large values."""

    def encode(self, values: Tensor) -> Elements:
        scaled = values.detach().cpu().numpy().astype(np.float64, order="C")
        largest = float(max(scaled.max(initial=0.0), -scaled.min(initial=0.0)))
        if not largest < self.limit:  # also NaN
            raise MaskError(
                f"a masked matrix with a value of {largest:g} does not fit: with {self.terms} "
                f"parties and {self.fraction} fractional bits of 64, values must stay below "
                f"{self.limit:g}. Standardise the columns, look for outliers and missing values, "
                "or take fewer fractional bits"
            )
        np.multiply(scaled, 2.0**self.fraction, out=scaled)
        np.rint(scaled, out=scaled)
        return scaled.astype(np.int64).view(np.uint64)

    def decode(self, total: Elements) -> Tensor:
        return torch.from_numpy(total.view(np.int64) * 2.0**-self.fraction)


def ring_for(parties: int, fraction: int = FRACTION) -> WideRing:
    """Fixed point for a sum of so many matrices."""
    if parties < FEWEST:
        raise MaskError("FedSVD needs at least two parties: the sum of one is its own matrix")
    if not 1 <= fraction <= 60:
        raise ValueError(f"fraction = {fraction}: from 1 to 60 bits")
    return WideRing(64, fraction, parties)


def to_strips(masked: Tensor, masks: Masks) -> Iterator[Strip]:
    """Ŝ_k in the ring, under the pairwise masks, in strips of rows."""
    for rows, moment in strips_of(masked.shape):
        yield masks.mask(masked[rows], moment)


# ---- 4., 5. the server ---------------------------------------------------------------------------


def from_strips(
    strips: Mapping[str, Iterable[Mapping[str, Any]]], masks: Masks, shape: tuple[int, int]
) -> Tensor:
    """Σ_k Ŝ_k = A S B, float64 (rows, whole width), from every party's strips, in their order."""
    total = torch.empty(shape, dtype=torch.float64)
    due = list(strips_of(shape))
    coming = {name: iter(own) for name, own in strips.items()}
    for number, (rows, moment) in enumerate(due):
        messages = {}
        for name, own in coming.items():
            if (strip := next(own, None)) is None:
                raise Untrusted(f"'{name}' sent {number} strips; {len(due)} are due")
            messages[name] = strip
        total[rows] = masks.total(messages, moment, total[rows].shape)
    return total


def strips_of(shape: Sequence[int]) -> Iterator[tuple[slice, Moment]]:
    """The strips of a matrix: rows that are masked at once, and the moment of their mask."""
    rows, width = shape
    step = max(1, STRIP_BYTES // (8 * max(1, width)))
    for number, start in enumerate(range(0, rows, step)):
        yield slice(start, min(rows, start + step)), Moment(PURPOSE, 0, number)


def left_vectors(matrix: Tensor, q: int = 0) -> Tensor:
    """Û: the leading q left singular vectors, (rows, q); 0, or more than the rank: all there are.

    Computed by the singular value decomposition itself. The eigenvectors of matrix · matrixᵀ would
    be quicker, but squaring loses everything below 1e-8 · σ₁, and the rest is not exact to 1e-9.
    """
    rows, width = matrix.shape
    # A wide matrix is L Q with Q orthogonal, so that L, (rows, rows), has its singular vectors.
    core = torch.linalg.qr(matrix.mT, mode="r").R.mT if width > rows else matrix
    u, sigma, _ = torch.linalg.svd(core, full_matrices=False)
    noise = torch.finfo(matrix.dtype).eps * max(rows, width) * sigma[:1]
    rank = int((sigma > noise).sum())
    leading: Tensor = u[:, : min(q, rank) if q else rank]
    return leading.contiguous()


# ---- 6. the task party ---------------------------------------------------------------------------


def unmask(vectors: Tensor, a: RowMask, q: int = 0) -> Tensor:
    """U = Aᵀ Û (Eq. 3), its leading q columns, (rows, q)."""
    return fix_signs(a.undo(vectors[:, :q] if q else vectors))


def fix_signs(vectors: Tensor) -> Tensor:
    """Of u and −u, which are both singular vectors, the one with a positive largest entry."""
    if not len(vectors):
        return vectors
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return vectors * torch.where(largest < 0, -1.0, 1.0).to(vectors.dtype)


# ---- all roles in one process --------------------------------------------------------------------


def pairwise_masks(names: Sequence[str], server: str, fraction: int = FRACTION) -> dict[str, Masks]:
    """Masks for every party and the server with fresh secrets, as after an agreement on keys.

    For one process. Over a network each pair agrees on its own secret: see `keys`.
    """
    ring = ring_for(len(names), fraction)
    everybody = [*names, server]
    pairs = {frozenset(pair): new_seed() for pair in itertools.combinations(everybody, 2)}
    return {
        me: Masks(
            me,
            server,
            {other: pairs[frozenset((me, other))] for other in everybody if other != me},
            ring,
        )
        for me in everybody
    }


def left_vectors_of(
    matrices: Sequence[Tensor],
    q: int = 0,
    *,
    seed: bytes | None = None,
    block: int = BLOCK,
    fraction: int = FRACTION,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Steps 1 to 6 in one process: the leading q columns of U, (rows, q), of all side by side.

    q         0, all of U, is for checks: it reveals the others' Gram matrix, see above
    matrices  (shared rows, own columns) of each party, the task party's first
    seed      for A and B, to repeat a result to the last bit; without it they are fresh
    block     rows in a block of A and of B; 0: dense
    dtype     torch.float32 halves the memory; U is then good to 1e-4 where σ is not small
    """
    names = [f"party {k}" for k in range(len(matrices))]
    masks = pairwise_masks(names, "server", fraction)
    rows = len(matrices[0])
    if any(matrix.dim() != 2 or len(matrix) != rows for matrix in matrices):
        shapes = ", ".join(str(tuple(matrix.shape)) for matrix in matrices)
        raise DataError(f"the parties' matrices must have the same rows; their shapes: {shapes}")
    # 1.
    seed = new_seed() if seed is None else seed
    a = row_mask(seed, rows, block=block, dtype=dtype)
    widths = [matrix.shape[1] for matrix in matrices]
    bs = column_masks(seed, widths, block=block, dtype=dtype)
    # 2., 3.
    strips = {
        name: to_strips(mask_matrix(matrix.to(dtype), a, b), masks[name])
        for name, matrix, b in zip(names, matrices, bs, strict=True)
    }
    # 4., 5.
    total = from_strips(strips, masks["server"], (rows, sum(widths)))
    # 6.
    return unmask(left_vectors(total.to(dtype), q), a)


def sealed(seed: bytes, mask: ColumnMask, secret: bytes) -> Tensor:
    """The seed of A and one party's rows of B, in a form that only this party can read."""
    blocks = zip(mask.columns, mask.blocks, strict=True)
    parts = {f"{k}": {"columns": c, "block": b} for k, (c, b) in enumerate(blocks)}
    text = keys.seal(secret, "masks", codec.encode({"seed": seed, "parts": parts}))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def opened(message: Tensor, secret: bytes, width: int) -> tuple[bytes, ColumnMask]:
    """What `sealed` was given, for a party with so many columns; anything else is refused."""
    try:
        found: Any = codec.decode(keys.unseal(secret, "masks", message.numpy().tobytes()))
        seed, parts = found["seed"], [found["parts"][f"{k}"] for k in range(len(found["parts"]))]
        columns, blocks = ([part[key] for part in parts] for key in ("columns", "block"))
        order = torch.cat(columns).sort().values
        fits = len(seed) == SEED_BYTES and torch.equal(order, torch.arange(width))
        fits &= all(b.dim() == 2 and b.dtype == torch.float64 for b in blocks)
        fits &= all(len(b) == len(c) for c, b in zip(columns, blocks, strict=True))
    except (CodecError, LookupError, TypeError, ValueError, AttributeError, RuntimeError):
        fits = False
    if not fits:
        raise Untrusted(f"the key generator's masks do not fit {width} columns")
    return seed, ColumnMask(tuple(columns), tuple(blocks))
