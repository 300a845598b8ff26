"""Products with matrices that one cannot read: additively homomorphic encryption.

    the holder of the key                             the other party
    1. pack X                                    →    2. X·Y + mask, on what it cannot read
    3. open it, add something of its own         →    4. take the mask away

Three schemes do it, behind the same few calls:

    Paillier   one ciphertext per number, exact integers (Paillier 1999; needs gmpy2)
    CKKS       thousands of numbers per ciphertext, approximate (TenSEAL, which is SEAL)
    Clear      the same arithmetic on plain numbers: nothing is hidden, and nothing pretends to be

What is not claimed. Both ends must keep to the protocol: nobody proves that a ciphertext was made
as it should be. Paillier's answers are blinded anew and their masks hide a product but for 2^-50.
CKKS hides less: its masks are real numbers below `CKKS_MASK`, and the noise in an answer, which
nothing drowns, tells the holder something of Y, and the other party, who gets opened values back,
something of the key (Li and Micciancio 2021). It is here for its cost, not for its protection.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import secrets
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from colonnade.errors import MaskError, MethodError, Untrusted

Encryption = Literal["none", "paillier", "ckks"]
LIBRARIES = {"paillier": "gmpy2", "ckks": "tenseal"}

VALUE_BITS = 47  # of a number in fixed point, without its sign
PRODUCT_BITS = 2 * VALUE_BITS + 16  # of a sum of at most 2^16 products
MASK_BYTES = 20  # 160 bits: 50 more than a product has
WORDS = 2  # int64 words of an opened number, which is an integer modulo 2^128
WINDOW_BASES = 256  # ciphertexts whose powers are held at once

DEGREE, MODULI, SCALE = 8192, (60, 40, 60), 2.0**40  # 160 of the 218 bits that are 128-bit secure
SLOTS = DEGREE // 2
CKKS_MASK = 1024.0
CKKS_LIMIT = 2.0**17  # opened values wrap around at 2^19; what another key opens is far larger
MOST_BYTES = 1 << 20  # of one ciphertext or public key of CKKS
SEAL_BYTES = 8  # of the public key's digest, in front of every ciphertext


class Holder(Protocol):
    """The party that has the private key; `public` is what it gives away of it."""

    public: Tensor  # uint8 (bytes,)

    def pack(self, matrix: Tensor, *, both: bool = False) -> Tensor:
        """X (p, q) for products over q; both: also for products of its transpose, over p."""

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
        """What `open` made of a masked product, without the mask: float64 (p, r)."""


def require(encryption: Encryption) -> None:
    """Refuse a scheme whose library is not installed."""
    library = LIBRARIES.get(encryption)
    if library is not None and importlib.util.find_spec(library) is None:
        raise MethodError(
            f"encryption = '{encryption}' needs the package '{library}', which is not installed: "
            "pip install 'colonnade[he]'"
        )


def holder(encryption: Encryption, name: str, key_bits: int, fraction: int) -> Holder:
    """A fresh private key, of which nothing is ever written anywhere."""
    require(encryption)
    if encryption == "paillier":
        return PaillierHolder(name, key_bits, fraction)
    return CkksHolder(name) if encryption == "ckks" else Clear()


def multiplier(
    encryption: Encryption, public: Tensor, owner: str, key_bits: int, fraction: int
) -> Multiplier:
    """What the other party does with the public key of `owner`."""
    require(encryption)
    if encryption == "paillier":
        return PaillierMultiplier(public, owner, key_bits, fraction)
    return CkksMultiplier(public, owner) if encryption == "ckks" else Clear()


def rounded(values: Tensor, fraction: int) -> Tensor:
    """To multiples of 2^-fraction, as the encoding for Paillier does: float64."""
    return torch.round(values.double() * 2.0**fraction) * 2.0**-fraction


def noise(shape: Sequence[int], size: float, fraction: int, *, seeded: bool) -> Tensor:
    """Uniform between -size and size, in multiples of 2^-fraction: float64, on the CPU.

    seeded  from the party's own reproducible numbers, where nothing is protected; else from the
            operating system
    """
    steps = 2 * math.floor(size * 2.0**fraction) + 1
    if seeded:
        drawn = torch.randint(steps, tuple(shape))
    else:  # 63 bits modulo less than 2^48: no number is more likely by 2^-15 of its share
        raw = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), np.uint64) >> np.uint64(1)
        drawn = torch.from_numpy((raw % np.uint64(steps)).astype(np.int64)).reshape(tuple(shape))
    return (drawn - steps // 2).double() * 2.0**-fraction


# ---- plain numbers -------------------------------------------------------------------------------


class Clear:
    """No encryption: both roles on plain float64, masks from the party's seeded numbers."""

    def __init__(self) -> None:
        self.public = torch.empty(0, dtype=torch.uint8)

    def pack(self, matrix: Tensor, *, both: bool = False) -> Tensor:
        return matrix.double().clone()  # the sender may go on and change its own

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


# ---- Paillier ------------------------------------------------------------------------------------


class PaillierHolder:
    """n = p·q; [m] = (1 + n)^m · r^n mod n². Whoever knows p and q opens it."""

    def __init__(self, name: str, key_bits: int, fraction: int) -> None:
        import gmpy2

        self._name, self._fraction = name, fraction
        p = _prime(key_bits // 2)
        q = _prime(key_bits // 2)
        while q == p:
            q = _prime(key_bits // 2)
        self._n = p * q
        self._p, self._q = p, q
        self._squares = p * p, q * q
        self._inverse = gmpy2.invert(p, q)  # of p modulo q
        self._square_inverse = gmpy2.invert(p * p, q * q)
        self._h = [gmpy2.invert(self._logarithm(1 + self._n, prime), prime) for prime in (p, q)]
        self._bytes = key_bits // 4  # of a ciphertext, which is below n²
        self.public = _to_tensor(int(self._n).to_bytes(key_bits // 8, "little"))
        self._seal = _seal(self.public)

    def pack(self, matrix: Tensor, *, both: bool = False) -> Tensor:
        numbers = _encoded(matrix, self._fraction, self._name)  # one packing serves both
        sealed = [self._encrypt(number) for row in numbers for number in row]
        return _joined(self._seal, sealed, self._bytes)

    def open(self, message: Tensor, shape: tuple[int, int], plus: Tensor) -> Tensor:
        added = _at_product_scale(plus, self._fraction, self._name)
        opened = self._decrypted(message, shape)
        return _to_words([a + b for a, b in zip(opened, added, strict=True)], shape)

    def read(self, message: Tensor, shape: tuple[int, int]) -> Tensor:
        unit = 2.0 ** (-2 * self._fraction)
        opened = [float(number) * unit for number in self._decrypted(message, shape)]
        return torch.tensor(opened, dtype=torch.float64).reshape(shape)

    def _encrypt(self, number: int) -> Any:
        """With a random n-th power, drawn by halves: x^p mod p² is one modulo p², and so for q."""
        import gmpy2

        low, high = (
            gmpy2.powmod(1 + secrets.randbelow(int(prime) - 1), prime, square)
            for prime, square in zip((self._p, self._q), self._squares, strict=True)
        )
        first, second = self._squares
        blinding = low + first * ((high - low) * self._square_inverse % second)
        return (1 + self._n * number) * blinding % (first * second)

    def _decrypted(self, message: Tensor, shape: tuple[int, int]) -> list[int]:
        numbers = [
            self._decrypt(c)
            for c in _ciphertexts(message, self._seal, math.prod(shape), self._n, self._name)
        ]
        if any(not -(1 << PRODUCT_BITS) < m < 1 << 8 * MASK_BYTES + 1 for m in numbers):
            raise Untrusted(
                f"'{self._name}' opened a number that no product can be: the ciphertexts were "
                "made with another key, or changed on the way"
            )
        return numbers

    def _decrypt(self, ciphertext: Any) -> int:
        low, high = (
            self._logarithm(ciphertext, prime) * h % prime
            for prime, h in zip((self._p, self._q), self._h, strict=True)
        )
        whole = low + self._p * ((high - low) * self._inverse % self._q)
        return int(whole if 2 * whole < self._n else whole - self._n)

    def _logarithm(self, value: Any, prime: Any) -> Any:
        import gmpy2

        return (gmpy2.powmod(value, prime - 1, prime * prime) - 1) // prime


class PaillierMultiplier:
    """Sums of ciphertexts are products modulo n², products with a number are powers."""

    def __init__(self, public: Tensor, owner: str, key_bits: int, fraction: int) -> None:
        import gmpy2

        raw = _to_bytes(public, owner)
        n = int.from_bytes(raw, "little")
        if len(raw) != key_bits // 8 or n.bit_length() != key_bits or n % 2 == 0:
            raise Untrusted(f"'{owner}' sent no public key for Paillier of {key_bits} bits")
        self._n, self._square = gmpy2.mpz(n), gmpy2.mpz(n) ** 2
        self._owner, self._fraction, self._bytes = owner, fraction, key_bits // 4
        self._seal = _seal(public)

    def mask(self, shape: tuple[int, int]) -> Tensor:
        return _to_tensor(secrets.token_bytes(math.prod(shape) * MASK_BYTES))

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
        added = [0] * total if mask is None else _mask_numbers(mask)
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
        numbers, masks = _from_words(words, self._owner), _mask_numbers(mask)
        if len(numbers) != len(masks):
            raise Untrusted(f"'{self._owner}' opened {len(numbers)} numbers of {len(masks)}")
        uncovered = [_centred(a - b) * unit for a, b in zip(numbers, masks, strict=True)]
        return torch.tensor(uncovered, dtype=torch.float64).reshape(words.shape[:2])

    def _encrypt(self, number: int) -> Any:
        """Blinded anew, so that an answer does not show how it was made."""
        import gmpy2

        blinding = gmpy2.powmod(1 + secrets.randbelow(int(self._n) - 1), self._n, self._square)
        return (1 + self._n * number) * blinding % self._square

    def _products(self, rows: list[list[Any]], right: list[list[int]]) -> Iterator[list[Any]]:
        """Π_j c_j^y_jk for every row of ciphertexts c and every column k of y.

        All bases of a row are raised together (Straus 1964), with tables of their small powers,
        which all columns share. Exponents are made positive by a common 2^reach, which
        Π_j c_j^-(2^reach) takes back.
        """
        import gmpy2

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
            answers = [gmpy2.mpz(1)] * columns
            for start in range(0, len(row), WINDOW_BASES):
                some = row[start : start + WINDOW_BASES]
                together = gmpy2.mpz(1)
                for c in some:
                    together = together * c % self._square
                undo = gmpy2.invert(gmpy2.powmod(together, low, self._square), self._square)
                tables = [self._powers(c, small) for c in some]
                for k in range(columns):
                    answer = gmpy2.mpz(1)
                    for line in digits[k]:
                        answer = gmpy2.powmod(answer, 1 << window, self._square)
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


def _prime(bits: int) -> Any:
    """A random prime with its two highest bits set, so that a product of two has 2 · bits."""
    import gmpy2

    while True:
        candidate = gmpy2.mpz(secrets.randbits(bits) | 3 << (bits - 2) | 1)
        if gmpy2.is_prime(candidate, 40):
            return candidate


def _encoded(values: Tensor, fraction: int, name: str) -> list[list[int]]:
    """Fixed point, as whole numbers; what would not come back is refused, never wrapped."""
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
    """The same with twice the fraction bits, where products are; flat."""
    scaled = np.rint(values.detach().cpu().double().numpy().reshape(-1) * 2.0 ** (2 * fraction))
    if not np.abs(scaled).max(initial=0.0) < 2.0**126:
        raise MaskError(f"'{name}': a mask or value that is not finite, or far too large")
    return [int(value) for value in scaled.tolist()]


def _ciphertexts(message: Tensor, seal: bytes, count: int, n: Any, name: str) -> list[Any]:
    """Every one checked: so many, below n², and invertible."""
    import gmpy2

    raw = _unsealed(message, seal, name)
    size, square = 2 * (n.bit_length() // 8), n * n
    if len(raw) != count * size:
        raise Untrusted(
            f"'{name}': {len(raw)} bytes of ciphertext where {count} × {size} are due; the "
            "message is cut off, or of another shape"
        )
    found = [
        gmpy2.mpz(int.from_bytes(raw[at : at + size], "little")) for at in range(0, len(raw), size)
    ]
    together = gmpy2.mpz(1)
    for ciphertext in found:
        together = together * ciphertext % n
    if any(not 0 < c < square for c in found) or gmpy2.gcd(together, n) != 1:
        raise Untrusted(f"'{name}': a message with a number that is no ciphertext of this key")
    return found


def _joined(seal: bytes, ciphertexts: Sequence[Any], size: int) -> Tensor:
    return _to_tensor(seal + b"".join(int(c).to_bytes(size, "little") for c in ciphertexts))


def _mask_numbers(mask: Tensor) -> list[int]:
    raw = mask.numpy().tobytes()
    return [
        int.from_bytes(raw[at : at + MASK_BYTES], "little") for at in range(0, len(raw), MASK_BYTES)
    ]


def _to_words(numbers: Sequence[int], shape: tuple[int, int]) -> Tensor:
    raw = b"".join((number % (1 << 128)).to_bytes(16, "little") for number in numbers)
    return torch.frombuffer(bytearray(raw), dtype=torch.int64).reshape(*shape, WORDS)


def _from_words(words: Tensor, name: str) -> list[int]:
    if words.dtype != torch.int64 or words.dim() != 3 or words.shape[2] != WORDS:
        raise Untrusted(f"'{name}' sent no opened numbers of {WORDS} words")
    raw = words.cpu().contiguous().numpy().tobytes()
    return [int.from_bytes(raw[at : at + 16], "little") for at in range(0, len(raw), 16)]


def _centred(number: int) -> float:
    number %= 1 << 128
    return float(number - (1 << 128) if number >> 127 else number)


# ---- CKKS ----------------------------------------------------------------------------------------


class CkksHolder:
    """A column of X per ciphertext, repeated as often as it fits: then X·Y is Σ_j [x_j] ⊙ y_j."""

    def __init__(self, name: str) -> None:
        self._name, self._context = name, _context()
        self.public = _to_tensor(_public(self._context))
        self._seal = _seal(self.public)

    def pack(self, matrix: Tensor, *, both: bool = False) -> Tensor:
        import tenseal

        values = matrix.detach().cpu().double().numpy()
        if not np.abs(values).max(initial=0.0) < CKKS_LIMIT:
            raise MaskError(
                f"'{self._name}': a value of {float(np.abs(values).max()):g} cannot be encrypted "
                f"with CKKS; it must stay below {CKKS_LIMIT:g}. If the training has diverged, try "
                "a smaller lr"
            )
        sealed = []
        for one in (values, values.T) if both else (values,):
            for block in _blocks(one):
                copies = SLOTS // len(block)
                for column in block.T:
                    vector = tenseal.ckks_vector(self._context, _slots(np.tile(column, copies)))
                    sealed.append(vector.serialize())
        return _listed(self._seal, sealed)

    def open(self, message: Tensor, shape: tuple[int, int], plus: Tensor) -> Tensor:
        return (self.read(message, shape) + plus.cpu()).unsqueeze(-1)

    def read(self, message: Tensor, shape: tuple[int, int]) -> Tensor:
        p, r = shape
        heights = [min(SLOTS, p - at) for at in range(0, p, SLOTS)]
        groups = [math.ceil(r / (SLOTS // height)) for height in heights]
        vectors = iter(_vectors(message, self._seal, sum(groups), self._context, self._name))
        blocks = []
        for height, count in zip(heights, groups, strict=True):
            columns = SLOTS // height
            parts = [
                np.asarray(next(vectors).decrypt())[: height * columns].reshape(columns, height).T
                for _ in range(count)
            ]
            blocks.append(np.concatenate(parts, axis=1)[:, :r])
        found = np.concatenate(blocks)
        if not np.abs(found).max(initial=0.0) < CKKS_LIMIT:
            raise Untrusted(
                f"'{self._name}' opened a value beyond {CKKS_LIMIT:g}: the ciphertexts were made "
                "with another key, changed on the way, or the numbers have outgrown CKKS"
            )
        return torch.from_numpy(np.ascontiguousarray(found))


class CkksMultiplier:
    """Products of ciphertexts with plain vectors, and sums: no rotation, so no further keys."""

    def __init__(self, public: Tensor, owner: str) -> None:
        import tenseal

        raw = _to_bytes(public, owner)
        if len(raw) > MOST_BYTES:
            raise Untrusted(
                f"'{owner}' sent a public key of {len(raw)} bytes; {MOST_BYTES} is a lot"
            )
        try:
            self._context = tenseal.context_from(raw)
            parameters = self._context.seal_context().data.key_parms_id()
        except (RuntimeError, ValueError) as error:
            raise Untrusted(f"'{owner}' sent no public key for CKKS: {error}") from None
        if (
            parameters != _context().seal_context().data.key_parms_id()
            or self._context.has_secret_key()
            or not self._context.has_public_key()
            or self._context.global_scale != SCALE
            or _public(self._context) != raw  # nothing but the one public key
        ):
            raise Untrusted(f"'{owner}' sent a key of CKKS with other parameters than ours")
        self._owner, self._seal = owner, _seal(public)

    def mask(self, shape: tuple[int, int]) -> Tensor:
        return noise(shape, CKKS_MASK, 23, seeded=False)

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
        import tenseal

        p, q = shape
        straight, turned = q * math.ceil(p / SLOTS), p * math.ceil(q / SLOTS)
        count, skip = (turned, straight) if transposed else (straight, 0)
        vectors = _vectors(
            message, self._seal, count, self._context, self._owner, skip=skip, more=not transposed
        )
        p, q = (q, p) if transposed else (p, q)
        y = right.detach().cpu().double().numpy()  # (q, r)
        if not np.abs(y).max(initial=0.0) < CKKS_LIMIT:
            raise MaskError(f"a factor of {float(np.abs(y).max()):g} is too large for CKKS")
        added = np.zeros((p, y.shape[1]))
        for more in (mask, plus):
            added += 0.0 if more is None else more.detach().cpu().double().numpy()
        answers = []
        for number, block in enumerate(_blocks(added)):
            height = len(block)
            columns = SLOTS // height
            for start in range(0, y.shape[1], columns):
                few = slice(start, start + columns)
                # Encrypted, so that the answer is blinded at least by what a fresh one has.
                total = tenseal.ckks_vector(self._context, _slots(block[:, few].T.reshape(-1)))
                for j in range(q):
                    factor = _slots(np.repeat(y[j, few], height))
                    total = vectors[number * q + j] * factor + total
                answers.append(total.serialize())
        return _listed(self._seal, answers)

    def unmask(self, words: Tensor, mask: Tensor) -> Tensor:
        if words.dtype != torch.float64 or words.shape != (*mask.shape, 1):
            raise Untrusted(f"'{self._owner}' sent no opened values of shape {tuple(mask.shape)}")
        return words.cpu().squeeze(-1) - mask


def _context() -> Any:
    import tenseal

    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(MODULI), n_threads=1
    )
    context.global_scale = SCALE
    return context


def _public(context: Any) -> bytes:
    raw: bytes = context.serialize(
        save_public_key=True,
        save_secret_key=False,
        save_galois_keys=False,
        save_relin_keys=False,
    )
    return raw


def _blocks(matrix: Any) -> list[Any]:
    """Rows that fit the slots of one ciphertext."""
    return [matrix[at : at + SLOTS] for at in range(0, len(matrix), SLOTS)]


def _slots(values: Any) -> list[float]:
    full = np.zeros(SLOTS)
    full[: len(values)] = values
    listed: list[float] = full.tolist()
    return listed


def _listed(seal: bytes, ciphertexts: Sequence[bytes]) -> Tensor:
    parts = [seal]
    for one in ciphertexts:
        parts += [struct.pack("<I", len(one)), one]
    return _to_tensor(b"".join(parts))


def _vectors(
    message: Tensor,
    seal: bytes,
    count: int,
    context: Any,
    name: str,
    *,
    skip: int = 0,
    more: bool = False,
) -> list[Any]:
    """So many ciphertexts that fill all slots; `skip` go before them, `more` may follow."""
    import tenseal

    raw, at, found = _unsealed(message, seal, name), 0, []
    for number in range(skip + count):
        (size,) = struct.unpack_from("<I", raw, at) if len(raw) >= at + 4 else (0,)
        at += 4 + size
        if not 0 < size <= MOST_BYTES or at > len(raw):
            raise Untrusted(
                f"'{name}': {len(raw)} bytes of ciphertext end or are cut off after {number} "
                f"of {skip + count}; the message is damaged, or of another shape"
            )
        if number < skip:
            continue
        try:
            vector = tenseal.ckks_vector_from(context, raw[at - size : at])
        except (RuntimeError, ValueError) as error:
            raise Untrusted(f"'{name}': bytes that are no ciphertext of CKKS: {error}") from None
        if vector.size() != SLOTS:  # garbage may parse as an empty one
            raise Untrusted(f"'{name}': a ciphertext of {vector.size()} numbers, not {SLOTS}")
        found.append(vector)
    if at != len(raw) and not more:
        raise Untrusted(f"'{name}': {len(raw) - at} bytes follow the last of {count} ciphertexts")
    return found


# ---- bytes ---------------------------------------------------------------------------------------


def _seal(public: Tensor) -> bytes:
    """Which key a ciphertext belongs to: a mistake is then found before anything is opened."""
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
