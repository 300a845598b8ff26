"""The codec: every value has one encoding, and bytes that are no message are refused."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from colonnade.errors import CodecError
from colonnade.wire import DTYPES, codec

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any dtype, any bits (NaN payloads, -0.0), any layout in memory."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = int(np.prod(shape, dtype=np.int64))
    raw = bytearray(
        draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    )
    if dtype == torch.bool:
        raw = bytearray(byte & 1 for byte in raw)
    value = (
        torch.frombuffer(raw, dtype=dtype).reshape(shape) if count else torch.empty(shape).to(dtype)
    )
    layout = draw(st.sampled_from(["plain", "transposed", "channels last", "part", "expanded"]))
    if layout == "transposed" and value.dim() > 1:
        return value.transpose(0, -1)
    if layout == "channels last" and value.dim() == 4:
        return value.contiguous(memory_format=torch.channels_last)
    if layout == "part" and value.dim():
        return value[..., ::2]
    if layout == "expanded":
        return value[None].expand(3, *value.shape)
    return value


scalars = (
    st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.sampled_from([-(1 << 63), (1 << 63) - 1])
    | st.floats()
    | names
    | st.binary(max_size=20)
)
values = st.recursive(
    tensors() | scalars, lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=8
)


def raw(value: Tensor) -> bytes:
    """The bits of a tensor in row-major order, by another way than the codec's."""
    plain = torch.empty(value.shape, dtype=value.dtype).copy_(value)
    return bytes(plain.untyped_storage()) if plain.numel() else b""


def identical(a: Any, b: Any) -> bool:
    """The same types, names, shapes, dtypes and bits."""
    if isinstance(a, Tensor):
        same = isinstance(b, Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return same and raw(a) == raw(b)
    if isinstance(a, Mapping):
        return (
            isinstance(b, Mapping)
            and a.keys() == b.keys()
            and all(identical(a[name], b[name]) for name in a)
        )
    if isinstance(a, float):
        return type(b) is float and struct.pack("<d", a) == struct.pack("<d", b)
    return type(a) is type(b) and bool(a == b)


def backwards(value: Any) -> Any:
    """The same tree with all names in the opposite order."""
    if isinstance(value, Mapping):
        return {name: backwards(value[name]) for name in reversed(value)}
    return value


def message(*parts: bytes) -> bytes:
    return b"".join(parts)


def tensor_header(dtype: str, *shape: int) -> bytes:
    return struct.pack(
        f"<BBB{len(shape)}Q", codec.TENSOR, codec.DTYPE_CODES[dtype], len(shape), *shape
    )


def entry(name: bytes, node: bytes) -> bytes:
    return struct.pack("<H", len(name)) + name + node


TRUE = bytes([codec.BOOL, 1])

EXAMPLE: dict[str, Any] = {
    "bits": torch.tensor([True, False, True]),
    "half": torch.tensor([[1.5, -0.0], [float("nan"), float("inf")]], dtype=torch.bfloat16),
    "inner": {"": b"\x00\xff", "zähler": 2**63 - 1, "ε": -0.5, "μ": "naïve ∇"},
    "none": torch.empty(0, 3),
    "one": torch.tensor(7, dtype=torch.uint64),
    "yes": True,
}


# --- round trip -----------------------------------------------------------------------------------


@given(values)
def test_round_trip_to_the_last_bit(value: Any) -> None:
    assert identical(codec.decode(codec.encode(value)), value)


@given(values)
def test_size_is_the_length_of_the_encoding(value: Any) -> None:
    assert codec.size(value) == len(codec.encode(value))


@given(values)
def test_equal_values_have_equal_encodings(value: Any) -> None:
    assert codec.encode(backwards(value)) == codec.encode(value)


@given(values)
def test_the_encoding_of_what_was_decoded_is_the_same(value: Any) -> None:
    data = codec.encode(value)
    assert codec.encode(codec.decode(data)) == data


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_with_every_byte(name: str) -> None:
    dtype = DTYPES[name]
    bits = torch.arange(256, dtype=torch.uint8)
    value = (bits % 2).bool() if name == "bool" else bits.view(dtype)
    decoded = codec.decode(codec.encode(value))
    assert isinstance(decoded, Tensor) and decoded.dtype == dtype
    assert torch.equal(decoded.view(torch.uint8), value.view(torch.uint8))


def test_the_layout_in_memory_leaves_no_trace() -> None:
    plain = torch.randn(2, 3, 4, 5)
    last = plain.contiguous(memory_format=torch.channels_last)
    assert last.stride() != plain.stride()
    assert codec.encode(last) == codec.encode(plain)
    assert codec.encode(plain.mT) == codec.encode(plain.mT.contiguous())


def test_one_element_of_any_stride() -> None:
    one = torch.arange(8.0)[1::2][:1]  # shape (1,), stride (2,): "contiguous", and no plain view
    assert one.stride() == (2,)
    assert identical(codec.decode(codec.encode(one)), torch.tensor([1.0]))


def test_a_lazy_minus_sign_is_sent() -> None:
    imaginary = torch.tensor([1 + 2j, 3 + 4j]).conj().imag
    assert imaginary.is_neg()
    for value in (imaginary, imaginary[:1]):
        assert identical(codec.decode(codec.encode(value)), -torch.tensor([2.0, 4.0])[: len(value)])


def test_a_tensor_in_a_graph_is_sent_without_it() -> None:
    decoded = codec.decode(codec.encode(torch.ones(2, requires_grad=True) * 2))
    assert isinstance(decoded, Tensor) and not decoded.requires_grad


def test_decoded_tensors_own_writable_memory() -> None:
    data = bytearray(codec.encode({"a": torch.ones(4), "b": torch.ones(4)}))
    before = bytes(data)
    decoded: Any = codec.decode(memoryview(data))
    decoded["a"].zero_()
    assert bytes(data) == before
    assert decoded["b"].tolist() == [1.0] * 4
    data[:] = bytes(len(data))
    assert decoded["b"].tolist() == [1.0] * 4


def test_as_deep_as_allowed() -> None:
    value: Any = {}
    for _ in range(codec.MAX_DEPTH - 1):
        value = {"a": value}
    assert identical(codec.decode(codec.encode(value)), value)
    with pytest.raises(CodecError, match="deeper than 16"):
        codec.encode({"a": value})


def test_a_known_message() -> None:
    """The format itself: a change of it breaks every peer and every recorded digest."""
    value = {"b": torch.tensor([[1, -1]], dtype=torch.int16), "a": True}
    expected = message(
        b"\x01\x02\0\0\0",
        entry(b"a", b"\x03\x01"),
        entry(b"b", b"\x02\x05\x02" + struct.pack("<QQ", 1, 2) + b"\x01\0\xff\xff"),
    )
    assert codec.encode(value) == expected


# --- what cannot be sent --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "NoneType cannot cross"),
        ([1, 2], "list cannot cross"),
        ((1,), "tuple cannot cross"),
        ({1, 2}, "set cannot cross"),
        (object(), "object cannot cross"),
        (np.zeros(3), "ndarray cannot cross"),
        (1j, "complex cannot cross"),
        (bytearray(b"a"), "bytearray cannot cross"),
        ({"a": {"b": None}}, "NoneType cannot cross"),
        ({1: True}, "the name 1 is not text"),
        ({b"a": True}, "is not text"),
        ({"n" * 65536: True}, "a name of 65536 bytes"),
        (1 << 63, "does not fit 64 bits"),
        (-(1 << 63) - 1, "does not fit 64 bits"),
        ("\ud800", "UTF-8"),
        ({"\ud800": True}, "UTF-8"),
        (torch.zeros(2, dtype=torch.complex64), "complex64"),
        (torch.zeros(2, dtype=torch.float8_e4m3fn), "float8_e4m3fn"),
        (torch.eye(3).to_sparse(), "sparse_coo"),
        (torch.zeros(3, device="meta"), "on meta"),
        (torch.zeros([1] * 17), "17 dimensions; 16 at most"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value[:20],
)
def test_refused_values(value: Any, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        codec.encode(value)


@pytest.mark.filterwarnings("ignore")  # torch announces the end of its quantised tensors
def test_quantised_tensors_are_refused() -> None:
    with pytest.raises(CodecError, match="quint8"):
        codec.encode(torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.quint8))


def test_bytes_beyond_the_length_field_are_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 32

    with pytest.raises(CodecError, match="4294967296 bytes"):
        codec.encode(Huge())


# --- what is refused on arrival -------------------------------------------------------------------


def test_every_truncation() -> None:
    data = codec.encode(EXAMPLE)
    for end in range(len(data)):
        with pytest.raises(CodecError):
            codec.decode(data[:end])


def test_every_flipped_byte_is_refused_or_another_value() -> None:
    data = codec.encode(EXAMPLE)
    refused = 0
    for place in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[place] ^= mask
            try:
                value = codec.decode(changed)
            except CodecError:
                refused += 1
            else:
                # One encoding per value: what decodes is a message, and not the one that was sent.
                assert codec.encode(value) == bytes(changed) != data
    assert refused > len(data) // 2


@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    try:
        value = codec.decode(data)
    except CodecError:
        return
    assert codec.encode(value) == data


@given(st.data(), values)
def test_random_damage(data: st.DataObject, value: Any) -> None:
    whole = bytearray(codec.encode(value))
    low = data.draw(st.integers(0, len(whole)))
    high = data.draw(st.integers(low, len(whole)))
    whole[low:high] = data.draw(st.binary(max_size=12))
    try:
        decoded = codec.decode(whole)
    except CodecError:
        return
    assert codec.encode(decoded) == bytes(whole)


@pytest.mark.parametrize(
    "pickled",  # {"a": [1, 2]} in the six protocols, written out: no file of ours imports pickle
    [
        b"(dp0\nVa\np1\n(lp2\nI1\naI2\nas.",
        b"}q\x00X\x01\x00\x00\x00aq\x01]q\x02(K\x01K\x02es.",
        b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01]q\x02(K\x01K\x02es.",
        b"\x80\x03}q\x00X\x01\x00\x00\x00aq\x01]q\x02(K\x01K\x02es.",
        b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94]\x94(K\x01K\x02es.",
        b"\x80\x05\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94]\x94(K\x01K\x02es.",
    ],
)
def test_pickles(pickled: bytes) -> None:
    with pytest.raises(CodecError):
        codec.decode(pickled)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "1 bytes announced, 0 there"),
        (b"\x00", "no node has the tag 0"),
        (b"\x08", "no node has the tag 8"),
        (TRUE + b"\0", "1 bytes follow the end"),
        (b"\x03\x02", "2 is not a truth value"),
        (struct.pack("<BI", codec.TEXT, 2) + b"\xff\xfe", "not UTF-8"),
        (struct.pack("<BI", codec.TEXT, 3) + b"\xed\xa0\x80", "not UTF-8"),  # a surrogate
        (struct.pack("<BI", codec.MAP, 1) + entry(b"\xff", TRUE), "not UTF-8"),
        (struct.pack("<BI", codec.MAP, 2) + entry(b"a", TRUE) * 2, "twice or out of order"),
        (
            struct.pack("<BI", codec.MAP, 2) + entry(b"b", TRUE) + entry(b"a", TRUE),
            "twice or out of order",
        ),
        (tensor_header("bool", 2) + b"\x01\x02", "neither 0 nor 1"),
        (b"\x02\x0d\x00", "no dtype has the code 13"),
        (b"\x02\x00\x11", "17 dimensions; 16 at most"),
    ],
)
def test_refused_messages(data: bytes, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        codec.decode(data)


@pytest.mark.parametrize(
    "data",
    [
        tensor_header("float32", 1 << 40),
        tensor_header("float64", 1 << 20, 1 << 20),
        tensor_header("uint8", 1 << 63),
        tensor_header("uint8", 1 << 63, 2),  # wraps to 0 in 64 bits
        tensor_header("uint8", 0, codec.MAX_EMPTY + 1),
        tensor_header("uint8", 0, 1 << 62),  # empty, with sizes that torch cannot hold
        tensor_header("uint8", 0, 1 << 63),
        tensor_header("uint8", *[1 << 32] * 16, 0),
        struct.pack("<BI", codec.TEXT, 0xFFFFFFFF),
        struct.pack("<BI", codec.BYTES, 0xFFFFFFFF),
        struct.pack("<BI", codec.MAP, 0xFFFFFFFF),
        struct.pack("<BI", codec.MAP, codec.MAX_NODES - 1),
        struct.pack("<BI", codec.MAP, codec.MAX_NODES),
        struct.pack("<BI", codec.MAP, 1) + b"\xff\xff",
    ],
)
def test_announced_sizes_allocate_nothing(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Tensor:
        raise AssertionError("a tensor was made before its size was checked")

    monkeypatch.setattr(torch, "empty", refuse)  # tracemalloc does not see torch's memory
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            codec.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def test_deep_nesting_is_refused_long_before_the_stack_ends() -> None:
    level = struct.pack("<BI", codec.MAP, 1) + struct.pack("<H", 0)
    with pytest.raises(CodecError, match="deeper than 16"):
        codec.decode(level * 100_000 + TRUE)
