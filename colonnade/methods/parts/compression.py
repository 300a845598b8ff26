"""Lossy compression of tensors that cross the wire, at b bits per coordinate instead of 32.

    Scalar(b)    2^b levels of one width between min x and max x, with subtractive dither
    Lattice(b)   the same for pairs of coordinates: 4^b points of a hexagonal lattice
    TopK(b)      the share b/32 of the coordinates that are largest, exactly; the others are 0
    Float16()    half the bits
    Float32()    nothing is lost and nothing is saved

The dither u is drawn from a seed that both ends derive, so it is not sent. The receiver takes it
off again, which makes the error independent of x with mean 0: decompress(compress(x)) is unbiased.

What `compress` returns is what crosses: codes packed into bytes without gaps, and centre and half
width of the range. After a ReLU that range is half as wide as ± max|x|, which saves a whole bit.
The shape is not sent, as the receiver knows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from colonnade.errors import Diverged, WireError
from colonnade.wire import Value

Name = Literal["scalar", "lattice", "topk", "float16", "none"]


class Compressor(Protocol):
    """Two ends of one compression; `seed` must be the same at both, and new for every tensor."""

    def compress(self, x: Tensor, seed: int) -> dict[str, Tensor]: ...

    def decompress(self, message: Value, shape: Sequence[int], seed: int) -> Tensor: ...


def compressor(name: Name, bits: int) -> Compressor:
    """A compressor by the name it has in a configuration."""
    if name == "scalar":
        return Scalar(bits)
    if name == "lattice":
        return Lattice(bits)
    if name == "float16":
        return Float16()
    return TopK(bits) if name == "topk" else Float32()


@dataclass(frozen=True)
class Float32:
    """The tensor as it is."""

    def compress(self, x: Tensor, seed: int) -> dict[str, Tensor]:
        return {"values": x.detach().clone()}  # what is sent must not change with a later step

    def decompress(self, message: Value, shape: Sequence[int], seed: int) -> Tensor:
        return part(message, "values", torch.float32, shape).detach()


@dataclass(frozen=True)
class Float16:
    """Half precision; what lies beyond its range becomes its largest number."""

    def compress(self, x: Tensor, seed: int) -> dict[str, Tensor]:
        most = torch.finfo(torch.float16).max
        return {"values": x.detach().clamp(-most, most).half()}

    def decompress(self, message: Value, shape: Sequence[int], seed: int) -> Tensor:
        return part(message, "values", torch.float16, shape).float()


@dataclass(frozen=True)
class Scalar:
    """Dithered scalar quantisation: the error is uniform within ± (max − min) / 2 / (2^b − 1)."""

    bits: int

    def __post_init__(self) -> None:
        _check_bits(self.bits)

    def compress(self, x: Tensor, seed: int) -> dict[str, Tensor]:
        scaled, scale = normalised(x)  # (n,) in [-1, 1]
        last = (1 << self.bits) - 1
        # [0, last] + [0, 1) has exactly 2^b integer parts; rounding alone could reach one more.
        steps = (scaled + 1) * (last / 2) + uniform(scaled.shape, seed, x.device)
        return {"packed": pack(steps.clamp_(max=last).byte(), self.bits), "scale": scale}

    def decompress(self, message: Value, shape: Sequence[int], seed: int) -> Tensor:
        count = math.prod(shape)
        packed = part(message, "packed", torch.uint8, [packed_size(count, self.bits)])
        centre, half = part(message, "scale", torch.float32, [2])
        dither = uniform([count], seed, packed.device)
        steps = unpack(packed, self.bits, count) + 0.5 - dither
        scaled = steps * (2 / ((1 << self.bits) - 1)) - 1
        x: Tensor = scaled * half + centre
        return x.reshape(tuple(shape))


@dataclass(frozen=True)
class Lattice:
    """Dithered hexagonal quantisation of pairs: the error is uniform in a hexagon.

    Rows of points lie √3/2 of a step apart, every second row half a step to the right:

        row 1     ·   ·   ·   ·         columns × rows ≤ 4^b points cover [-1, 1]² and what
        row 0   ·   ·   ·   ·           the dither adds to it, so that none is ever missing
    """

    bits: int

    def __post_init__(self) -> None:
        _check_bits(self.bits)

    @cached_property
    def grid(self) -> tuple[int, int, float]:
        """(columns, rows, step): the finest lattice of at most 4^b points that covers all."""
        step, columns, rows = min(
            (max(2 / (columns - 3 / 2), 4 / math.sqrt(3) / (rows - 4 / 3)), columns, rows)
            for columns in range(2, 2**self.bits + 1)
            for rows in [4**self.bits // columns]
        )
        return columns, rows, step

    def compress(self, x: Tensor, seed: int) -> dict[str, Tensor]:
        scaled, scale = normalised(x)
        pairs = F.pad(scaled, (0, scaled.numel() % 2)).reshape(-1, 2)
        columns, rows, _ = self.grid
        across, up = (pairs + self._dither(len(pairs), seed, x.device)).unbind(1)
        # The nearest point is the nearer one of those in even and in odd rows.
        even, odd = (self._nearest(across, up, parity) for parity in (0, 1))
        nearer = even[2] <= odd[2]
        column = torch.where(nearer, even[0], odd[0]).clamp_(0, columns - 1)  # of roundings only
        row = torch.where(nearer, even[1], odd[1]).clamp_(0, rows - 1)
        return {"packed": pack((row * columns + column).int(), 2 * self.bits), "scale": scale}

    def decompress(self, message: Value, shape: Sequence[int], seed: int) -> Tensor:
        count = math.prod(shape)
        pairs = -(-count // 2)
        packed = part(message, "packed", torch.uint8, [packed_size(pairs, 2 * self.bits)])
        centre, half = part(message, "scale", torch.float32, [2])
        columns, _, _ = self.grid
        index = unpack(packed, 2 * self.bits, pairs)
        points = torch.stack(self._place(index % columns, index // columns), dim=1)
        points -= self._dither(pairs, seed, packed.device)
        x: Tensor = points.flatten()[:count] * half + centre
        return x.reshape(tuple(shape))

    def _place(self, column: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """Where a point lies, the whole lattice being centred at 0."""
        columns, rows, step = self.grid
        across = (column - (columns - 1) / 2 + (row % 2 - 0.5) / 2) * step
        return across, (row - (rows - 1) / 2) * (step * math.sqrt(3) / 2)

    def _nearest(self, across: Tensor, up: Tensor, parity: int) -> tuple[Tensor, Tensor, Tensor]:
        """Column and row of the nearest point in the even or odd rows, and its distance²."""
        columns, rows, step = self.grid
        height = step * math.sqrt(3) / 2
        row = ((up / height + (rows - 1) / 2 - parity) / 2).round() * 2 + parity
        column = (across / step + (columns - 1) / 2 - (parity - 0.5) / 2).round()
        x, y = self._place(column, row)
        return column, row, (across - x) ** 2 + (up - y) ** 2

    def _dither(self, pairs: int, seed: int, device: torch.device) -> Tensor:
        """Uniform in a brick of one step by one row: like the hexagons, such bricks tile."""
        step = self.grid[2]
        brick = torch.tensor([step, step * math.sqrt(3) / 2])
        return (uniform([pairs, 2], seed, torch.device("cpu")) - 0.5).mul_(brick).to(device)


@dataclass(frozen=True)
class TopK:
    """The share b/32 of the coordinates that are largest, as float32, and where they were.

    The positions come on top of the b bits per coordinate: as a mask of one bit per coordinate,
    or as packed indices where those are smaller (both ends know which).
    """

    bits: int

    def __post_init__(self) -> None:
        _check_bits(self.bits)

    def compress(self, x: Tensor, seed: int) -> dict[str, Tensor]:
        flat = _checked(x)
        kept, width = self._plan(flat.numel())
        positions = flat.abs().topk(kept, sorted=False).indices.sort().values
        if width:
            where = pack(positions, width)
        else:
            mask = torch.zeros(flat.numel(), dtype=torch.long, device=x.device)
            where = pack(mask.index_fill_(0, positions, 1), 1)
        return {"values": flat[positions], "where": where}

    def decompress(self, message: Value, shape: Sequence[int], seed: int) -> Tensor:
        count = math.prod(shape)
        kept, width = self._plan(count)
        values = part(message, "values", torch.float32, [kept])
        size = packed_size(kept, width) if width else packed_size(count, 1)
        where = part(message, "where", torch.uint8, [size])
        if width:
            positions = unpack(where, width, kept).clamp_(max=count - 1)
            return values.new_zeros(count).scatter_(0, positions, values).reshape(tuple(shape))
        mask = unpack(where, 1, count)
        order = (mask.cumsum(0) - 1).clamp_(0, max(kept - 1, 0))  # which value a coordinate gets
        return (values[order] * mask).reshape(tuple(shape))

    def _plan(self, count: int) -> tuple[int, int]:
        """How many coordinates are kept, and the bits of an index; 0: a mask is smaller."""
        kept = -(-count * self.bits // 32)
        width = max(count - 1, 1).bit_length()
        return kept, width if packed_size(kept, width) < packed_size(count, 1) else 0


# ---- what they are made of -----------------------------------------------------------------------


def pack(codes: Tensor, width: int) -> Tensor:
    """Whole numbers of `width` bits, without gaps, lowest bit first: uint8 (⌈n·width / 8⌉,)."""
    places = torch.arange(width, dtype=codes.dtype, device=codes.device)
    bits = ((codes[:, None] >> places) & 1).byte().flatten()  # (n·width,)
    whole = F.pad(bits, (0, -len(bits) % 8)).reshape(-1, 8)
    places = torch.arange(8, dtype=torch.uint8, device=codes.device)
    return (whole << places).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, width: int, count: int) -> Tensor:
    """The `count` numbers that `pack` put there: int64 (count,)."""
    bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    rows = bits.flatten()[: count * width].reshape(count, width)
    dtype = torch.uint8 if width <= 8 else torch.long
    places = torch.arange(width, dtype=dtype, device=packed.device)
    return (rows.to(dtype) << places).sum(1)


def packed_size(count: int, width: int) -> int:
    return -(-count * width // 8)


def uniform(shape: Sequence[int], seed: int, device: torch.device) -> Tensor:
    """Numbers in [0, 1) that two parties draw alike, also where only one has a GPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(tuple(shape), generator=generator).to(device)


def normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    """x moved and scaled into [-1, 1], as one row, and (centre, half width) of its range."""
    flat = _checked(x)
    if not flat.numel():
        return flat, flat.new_zeros(2)
    low, high = flat.aminmax()
    centre, half = low / 2 + high / 2, high / 2 - low / 2  # the sum of two extremes may overflow
    scaled = (flat - centre) / torch.where(half > 0, half, 1.0)
    return scaled.clamp_(-1, 1), torch.stack([centre, half])


def part(message: Value, name: str, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """One tensor of a received message, which must be what the compressor at this end expects."""
    value = message.get(name) if isinstance(message, Mapping) else None
    if not isinstance(value, Tensor) or value.dtype != dtype or value.shape != tuple(shape):
        found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else "not there"
        raise WireError(
            f"a compressed tensor came whose '{name}' is {found}, where {dtype} {tuple(shape)} was "
            "due: do both ends use the same compressor and bits, and the same rows?"
        )
    return value


@contextmanager
def sent_by(name: str) -> Iterator[None]:
    """What cannot be decompressed is a fault of the party that sent it."""
    try:
        yield
    except (WireError, LookupError, TypeError, AttributeError) as error:
        raise WireError(f"'{name}' sent what cannot be decompressed: {error}") from None


def _checked(x: Tensor) -> Tensor:
    """The coordinates in one row, if they can be compressed."""
    if x.dtype != torch.float32:
        raise WireError(f"a tensor of {x.dtype} cannot be compressed: give float32")
    flat = x.detach().reshape(-1)
    if not flat.isfinite().all():
        raise Diverged(
            "a tensor with NaN or infinite values cannot be compressed: the training has diverged; "
            "try a smaller lr"
        )
    return flat


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"bits = {bits}: from 1 to 8")
