"""Values to bytes and back, without pickle: a closed, enumerated format.

    node   := map | tensor | bool | int | float | text | bytes
    map    := 0x01  count:u32  (length:u16 name:utf-8 node) × count      names strictly rising
    tensor := 0x02  dtype:u8   rank:u8  size:u64 × rank  raw little-endian elements, row-major
    bool   := 0x03  u8         int := 0x04 i64            float := 0x05 f64
    text   := 0x06  length:u32 utf-8                      bytes := 0x07 length:u32 raw

Every value has exactly one encoding, so equal values have equal digests. Decoding checks each
length against the bytes present, and the number of nodes against a limit, before it allocates
anything: a node of few bytes becomes an object of a thousand.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from colonnade.errors import CodecError
from colonnade.wire.kind import DTYPE_NAMES, DTYPES, Value

MAP, TENSOR, BOOL, INT, FLOAT, TEXT, BYTES = range(1, 8)
DTYPE_CODES = {name: code for code, name in enumerate(DTYPES)}
CODE_DTYPES = list(DTYPES.values())
_NUMPY = frozenset(DTYPES.values()) - {torch.bfloat16, torch.bool}  # as NumPy has them too
_HEADERS = [struct.Struct(f"<BBB{rank}Q") for rank in range(17)]

MAX_RANK = 16
MAX_DEPTH = 16
MAX_NODES = 1 << 14  # of a whole tree: the largest networks have a few thousand tensors
MAX_EMPTY = 1 << 20  # of the sizes that are not 0, where one is: what is made of it is as large
MIN_ENTRY = 4  # bytes of a name and its node
MAX_HEADER = 3 + 8 * MAX_RANK
ALIGNMENT = 64


def encode(value: Value) -> bytes:
    """The only encoding of `value`."""
    return b"".join(parts(value))


def parts(value: Value) -> list[bytes | memoryview]:
    """The encoding in pieces; the large pieces are the tensors' own memory, without a copy."""
    if sys.byteorder != "little":
        raise CodecError("this machine is big-endian; tensors are sent as they lie in memory")
    pieces: list[bytes | memoryview] = []
    _encode(value, pieces, 0, _Nodes())
    return pieces


def size(value: Value) -> int:
    """len(encode(value)), without encoding it."""
    if isinstance(value, Tensor):
        return 3 + 8 * value.dim() + value.numel() * value.element_size()
    if isinstance(value, bool):
        return 2
    if isinstance(value, int | float):
        return 9
    if isinstance(value, str):
        return 5 + len(value.encode())
    if isinstance(value, bytes):
        return 5 + len(value)
    return 5 + sum(2 + len(name.encode()) + size(child) for name, child in value.items())


def decode(data: bytes | memoryview, *, adopt: bool = False) -> Value:
    """Decode a whole message; anything else is refused with a CodecError.

    adopt  `data` comes from `room` and is handed over: a message of one tensor keeps that memory
    """
    view = memoryview(data).cast("B")
    value, end = _decode(view, 0, 0, _Nodes(), adopt)
    if end != len(view):
        raise CodecError(f"{len(view) - end} bytes follow the end of the message")
    return value


def room(size: int, begin: bytes) -> memoryview:
    """Memory for a message of `size` bytes with this beginning; a tensor in it is aligned as torch
    aligns it, because sums of misaligned numbers may differ in their last bits."""
    header = 3 + 8 * begin[2] if len(begin) > 2 and begin[0] == TENSOR else 0
    memory = np.empty(size + ALIGNMENT, np.uint8)  # pages are allocated as they are filled
    address: int = memory.__array_interface__["data"][0]
    start = -(address + header) % ALIGNMENT
    return memory[start : start + size].data


class Head(NamedTuple):
    """What a message of one tensor says of itself before the elements come."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    length: int  # of the head itself
    size: int  # of the whole message


def announced(begin: memoryview) -> Head:
    """The head of a message that is to be a tensor, from its first MAX_HEADER bytes."""
    (tag,), at = _unpack("<B", begin, 0)
    if tag != TENSOR:
        raise CodecError(f"tag {tag} is not a tensor")
    dtype, shape, at = _header(begin, at)
    return Head(dtype, shape, at, at + math.prod(shape) * dtype.itemsize)


def decode_tensor(data: bytes | memoryview, head: Head, *, adopt: bool = False) -> Tensor:
    """As `decode`, of a message whose head was read before."""
    view = memoryview(data).cast("B")
    if len(view) != head.size:
        raise CodecError(f"{len(view)} bytes of a tensor that has {head.size}")
    return _filled(view[head.length :], head.dtype, head.shape, adopt)


class _Nodes:
    """Counts the nodes of a tree before they are made."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 1

    def add(self, names: int) -> None:
        self._count += names
        if self._count > MAX_NODES:
            raise CodecError(f"a tree of {self._count} nodes or more; {MAX_NODES} at most")


def _encode(value: object, parts: list[bytes | memoryview], depth: int, nodes: _Nodes) -> None:
    if isinstance(value, Tensor):
        _encode_tensor(value, parts)
    elif isinstance(value, bool):
        parts.append(struct.pack("<BB", BOOL, value))
    elif isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise CodecError(f"the integer {value} does not fit 64 bits")
        parts.append(struct.pack("<Bq", INT, value))
    elif isinstance(value, float):
        parts.append(struct.pack("<Bd", FLOAT, value))
    elif isinstance(value, str):
        text = _utf8(value)
        parts += [struct.pack("<BI", TEXT, _u32(text)), text]
    elif isinstance(value, bytes):
        parts += [struct.pack("<BI", BYTES, _u32(value)), value]
    elif isinstance(value, Mapping):
        if depth >= MAX_DEPTH:
            raise CodecError(f"names nested deeper than {MAX_DEPTH}")
        nodes.add(len(value))
        parts.append(struct.pack("<BI", MAP, len(value)))
        for raw, name in sorted((_raw_name(name), name) for name in value):
            parts += [struct.pack("<H", len(raw)), raw]
            _encode(value[name], parts, depth + 1, nodes)
    else:
        raise CodecError(f"{type(value).__name__} cannot cross the wire")


def _raw_name(name: object) -> bytes:
    if not isinstance(name, str):
        raise CodecError(f"the name {name!r} is not text")
    raw = _utf8(name)
    if len(raw) > 0xFFFF:
        raise CodecError(f"a name of {len(raw)} bytes; 65535 at most")
    return raw


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise CodecError(f"a text that UTF-8 cannot encode: {error}") from None


def _u32(raw: bytes) -> int:
    if len(raw) > 0xFFFFFFFF:
        raise CodecError(f"{len(raw)} bytes in one value; {0xFFFFFFFF} at most")
    return len(raw)


def _encode_tensor(value: Tensor, parts: list[bytes | memoryview]) -> None:
    name = DTYPE_NAMES.get(value.dtype)
    if name is None or value.layout != torch.strided or value.is_meta:
        raise CodecError(
            f"a tensor of {value.dtype}, {value.layout}, on {value.device} cannot cross the wire"
        )
    if value.dim() > MAX_RANK:
        raise CodecError(f"a tensor of {value.dim()} dimensions; {MAX_RANK} at most")
    _check_empty(value.shape)
    header = _HEADERS[value.dim()]
    parts.append(header.pack(TENSOR, DTYPE_CODES[name], value.dim(), *value.shape))
    if value.dtype in _NUMPY and value.is_contiguous() and value.is_cpu and not value.is_neg():
        if value.numel():
            plain = value.detach() if value.requires_grad else value
            parts.append(plain.numpy().data.cast("B"))
    elif value.numel():
        plain = value.detach().resolve_neg().to("cpu")  # no lazy sign: bytes as they are read
        # A single element may have any stride, which view would refuse.
        flat = plain.contiguous().as_strided((plain.numel(),), (1,)).view(torch.uint8)
        parts.append(flat.numpy().data)


def _decode(
    view: memoryview, at: int, depth: int, nodes: _Nodes, adopt: bool = False
) -> tuple[Value, int]:
    (tag,), at = _unpack("<B", view, at)
    if tag == TENSOR:
        return _decode_tensor(view, at, adopt)
    if tag == BOOL:
        (flag,), at = _unpack("<B", view, at)
        if flag > 1:
            raise CodecError(f"{flag} is not a truth value")
        return bool(flag), at
    if tag in (INT, FLOAT):
        (number,), at = _unpack("<q" if tag == INT else "<d", view, at)
        return number, at
    if tag in (TEXT, BYTES):
        (length,), at = _unpack("<I", view, at)
        raw, at = _take(view, at, length)
        return (_text(raw) if tag == TEXT else bytes(raw)), at
    if tag == MAP:
        return _decode_map(view, at, depth, nodes)
    raise CodecError(f"byte {at - 1}: no node has the tag {tag}")


def _decode_map(view: memoryview, at: int, depth: int, nodes: _Nodes) -> tuple[Value, int]:
    if depth >= MAX_DEPTH:
        raise CodecError(f"names nested deeper than {MAX_DEPTH}")
    (count,), at = _unpack("<I", view, at)
    nodes.add(count)
    if count * MIN_ENTRY > len(view) - at:
        raise CodecError(f"a map of {count} names in {len(view) - at} bytes")
    tree: dict[str, Value] = {}
    previous: bytes | None = None
    for _ in range(count):
        (length,), at = _unpack("<H", view, at)
        raw, at = _take(view, at, length)
        name = bytes(raw)
        if previous is not None and name <= previous:
            raise CodecError(f"the name {name[:40]!r} comes twice or out of order")
        previous = name
        tree[_text(raw)], at = _decode(view, at, depth + 1, nodes)
    return tree, at


def _decode_tensor(view: memoryview, at: int, adopt: bool = False) -> tuple[Tensor, int]:
    dtype, shape, at = _header(view, at)
    raw, at = _take(view, at, math.prod(shape) * dtype.itemsize)
    return _filled(raw, dtype, shape, adopt), at


def _filled(raw: memoryview, dtype: torch.dtype, shape: tuple[int, ...], adopt: bool) -> Tensor:
    """A tensor of these elements, which are as many as its shape says."""
    if not len(raw):
        return torch.empty(shape, dtype=dtype)
    if dtype == torch.bool and np.frombuffer(raw, np.uint8).max() > 1:
        raise CodecError("a truth value that is neither 0 nor 1")
    if adopt:
        return torch.frombuffer(raw, dtype=dtype).view(shape)
    tensor = torch.empty(shape, dtype=dtype)  # aligned, as `room` is
    plain = tensor if dtype in _NUMPY else tensor.view(-1).view(torch.uint8)
    plain.numpy().data.cast("B")[:] = raw
    return tensor


def _header(view: memoryview, at: int) -> tuple[torch.dtype, tuple[int, ...], int]:
    (code, rank), at = _unpack("<BB", view, at)
    if code >= len(CODE_DTYPES):
        raise CodecError(f"no dtype has the code {code}")
    if rank > MAX_RANK:
        raise CodecError(f"a tensor of {rank} dimensions; {MAX_RANK} at most")
    shape, at = _unpack(f"<{rank}Q", view, at)
    _check_empty(shape)
    return CODE_DTYPES[code], shape, at


def _check_empty(shape: Sequence[int]) -> None:
    """A tensor without elements has no bytes that would bound its other sizes."""
    if 0 in shape and math.prod(length for length in shape if length) > MAX_EMPTY:
        raise CodecError(f"a tensor without elements of shape {tuple(shape)}")


def _unpack(layout: str, view: memoryview, at: int) -> tuple[tuple[int, ...], int]:
    raw, end = _take(view, at, struct.calcsize(layout))
    return struct.unpack(layout, raw), end


def _take(view: memoryview, at: int, length: int) -> tuple[memoryview, int]:
    if length > len(view) - at:
        raise CodecError(f"byte {at}: {length} bytes announced, {len(view) - at} there")
    return view[at : at + length], at + length


def _text(raw: memoryview) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise CodecError(f"a text that is not UTF-8: {error}") from None
