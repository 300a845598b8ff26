"""Masks: the sum comes out to the bit, a single message tells nothing, and no mask serves twice."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from colonnade.errors import Diverged, MaskError, Untrusted
from colonnade.privacy import masking
from colonnade.privacy.keys import Agreement
from colonnade.privacy.masking import Masks, Moment, Ring
from colonnade.role import identity
from colonnade.wire import codec

ACTIVE = "m"  # in the middle of the alphabet: neither first nor last
FIRST = Moment("train", 0, 0)
RINGS = (Ring(64, 24, 3), Ring(32, 20, 3))
Messages = dict[str, dict[str, Any]]


def names_of(parties: int) -> list[str]:
    return [f"p{number}" if number % 2 else f"a{number}" for number in range(parties)]


def family(ring: Ring, seed: object = 0, constant: bool = False) -> tuple[dict[str, Masks], Masks]:
    """All passive parties, by name, and the active one; the same seed gives the same secrets."""
    names = names_of(ring.terms)

    def secret(a: str, b: str) -> bytes:
        return hashlib.sha256(f"{seed}/{sorted((a, b))}".encode()).digest()

    passives = {
        me: Masks(
            me,
            ACTIVE,
            {other: secret(me, other) for other in (*names, ACTIVE) if other != me},
            ring,
            constant=constant,
        )
        for me in names
    }
    return passives, Masks(ACTIVE, ACTIVE, {other: secret(ACTIVE, other) for other in names}, ring)


def elements(message: Mapping[str, Any]) -> NDArray[Any]:
    values = message["values"].numpy()
    return values.view(np.uint64 if values.itemsize == 8 else np.uint32)


def messages_of(passives: Mapping[str, Masks], values: list[Tensor], moment: Moment) -> Messages:
    return {
        name: masks.mask(value, moment)
        for (name, masks), value in zip(passives.items(), values, strict=True)
    }


# ---- (1) the sum -------------------------------------------------------------------------------


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    bits = draw(st.sampled_from((32, 64)))
    return Ring(bits, draw(st.integers(1, bits - 8)), draw(st.integers(2, 10)))


@given(
    ring=rings(),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    share=st.sampled_from((1e-6, 1e-3, 0.1, 0.999)),
    seed=st.integers(0, 1 << 30),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_the_sum_of_the_masked_is_the_sum_of_the_encoded(
    ring: Ring, shape: list[int], share: float, seed: int, data: st.DataObject
) -> None:
    random = np.random.default_rng(seed)
    bound = share * ring.limit
    values = [
        torch.from_numpy(random.uniform(-bound, bound, shape).astype(np.float32))
        for _ in range(ring.terms)
    ]
    passives, active = family(ring, seed)
    moment = Moment("train", seed % 7, seed % 11)
    messages = messages_of(passives, values, moment)

    # In the ring, to the bit, with integers that cannot wrap by accident.
    modulus = 1 << ring.bits
    encoded = sum(ring.encode(value).astype(object) for value in values) % modulus
    masked = sum(elements(message).astype(object) for message in messages.values()) % modulus
    assert (encoded == masked).all()

    # Whoever comes first.
    order = data.draw(st.permutations(list(messages)))
    total = active.total({name: messages[name] for name in order}, moment)
    _, again = family(ring, seed)
    assert torch.equal(total, again.total(messages, moment))
    assert total.dtype == torch.float32
    assert list(total.shape) == shape

    # Half a unit per party, and the rounding of the result to float32.
    for index in np.ndindex(*shape):
        exact = math.fsum(float(value[index]) for value in values)
        allowed = ring.terms * 2.0 ** -(ring.fraction + 1)
        allowed += (abs(exact) + allowed) * 2.0**-24 * (1 + 2.0**-20)
        assert abs(float(total[index]) - exact) <= allowed


@given(ring=rings(), seed=st.integers(0, 1 << 30))
@settings(max_examples=50, deadline=None)
def test_what_is_a_multiple_of_the_unit_comes_back_exactly(ring: Ring, seed: int) -> None:
    random = np.random.default_rng(seed)
    span = min(2**18, int(ring.limit * 2**ring.fraction) - 1)
    units = [random.integers(-span, span, (3, 2), endpoint=True) for _ in range(ring.terms)]
    values = [torch.from_numpy(u * 2.0**-ring.fraction).float() for u in units]
    passives, active = family(ring, seed)
    total = active.total(messages_of(passives, values, FIRST), FIRST)
    assert (total.double().numpy() == sum(units) * 2.0**-ring.fraction).all()


def test_a_message_crosses_the_wire_unchanged() -> None:
    for ring in RINGS:
        passives, active = family(ring)
        values = [torch.randn(5, 4) for _ in passives]
        messages = messages_of(passives, values, FIRST)
        crossed: Any = {n: codec.decode(codec.encode(m)) for n, m in messages.items()}
        total = active.total(crossed, FIRST)
        assert torch.allclose(total, torch.stack(values).sum(0), atol=3 * 2.0**-ring.fraction)


def test_the_values_that_were_given_are_not_touched() -> None:
    for dtype in (torch.float32, torch.float64):
        passives, _ = family(RINGS[0])
        values = torch.randn(4, 3, dtype=dtype)
        before = values.clone()
        next(iter(passives.values())).mask(values, FIRST)
        assert torch.equal(values, before)


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: x[:1].expand(4, 3),
        lambda x: torch.cat([x, x], 1)[:, ::2],
        lambda x: x[::2],
        lambda x: x.flip(0),
    ],
    ids=["transposed", "expanded", "every-other-column", "every-other-row", "flipped"],
)
def test_the_mask_reaches_the_message_whatever_the_memory_layout(
    layout: Callable[[Tensor], Tensor],
) -> None:
    """`reshape(-1)` of an array that is not row by row is a copy."""
    values = layout(torch.randn(4, 3))
    for ring in RINGS:
        passives, active = family(ring)
        messages = messages_of(passives, [values] * 3, FIRST)
        plain = ring.encode(values)
        for message in messages.values():
            assert not (elements(message) == plain).any()
        total = active.total(messages, FIRST)
        assert torch.allclose(total, 3 * values, atol=3 * 2.0**-ring.fraction)


def test_no_rows_are_refused_in_words() -> None:
    passives, _ = family(RINGS[0])
    with pytest.raises(MaskError, match="no rows to mask"):
        messages_of(passives, [torch.empty(0, 3)] * 3, FIRST)


def test_the_sum_must_have_the_shape_of_the_active_partys_own_values() -> None:
    passives, active = family(RINGS[0])
    messages = messages_of(passives, [torch.randn(1, 3) for _ in passives], FIRST)
    with pytest.raises(Untrusted, match=r"\(4, 3\) is due"):
        active.total(messages, FIRST, (4, 3))


# ---- (2) known answers -------------------------------------------------------------------------


def slow_expand(secret: bytes, context: list[Any]) -> bytes:
    """HKDF-Expand of RFC 5869 for one block."""
    return hmac.digest(secret, json.dumps(context).encode() + b"\1", "sha256")


def slow_keystream(key: bytes, length: int) -> bytes:
    """Counter mode, written out: block n is AES(n) with n as a big-endian number."""
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    blocks = [block.update(n.to_bytes(16, "big")) for n in range(-(-length // 16))]
    return b"".join(blocks)[:length]


def slow_poly1305(key: bytes, text: bytes) -> bytes:
    """RFC 8439, section 2.5, with Python's integers."""
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    accumulator = 0
    for at in range(0, len(text), 16):
        block = int.from_bytes(text[at : at + 16] + b"\1", "little")
        accumulator = (accumulator + block) * r % (2**130 - 5)
    accumulator += int.from_bytes(key[16:], "little")
    return (accumulator % 2**128).to_bytes(16, "little")


def slow_message(
    name: str, secrets: Mapping[str, bytes], ring: Ring, values: Tensor, moment: Moment
) -> tuple[bytes, bytes]:
    """Masked bytes and tag, element by element from the description."""
    size = ring.bits // 8
    numbers = [round(v * 2**ring.fraction) for v in values.double().flatten().tolist()]
    for other, secret in secrets.items():
        if other == ACTIVE:
            continue
        key = slow_expand(secret, ["mask", "embedding", list(moment), list(values.shape)])
        stream = slow_keystream(key, size * len(numbers))
        sign = 1 if name < other else -1
        for n in range(len(numbers)):
            numbers[n] += sign * int.from_bytes(stream[n * size : (n + 1) * size], "little")
    masked = b"".join((n % (1 << ring.bits)).to_bytes(size, "little") for n in numbers)
    context = ["tag", name, list(moment), list(values.shape), size]
    return masked, slow_poly1305(slow_expand(secrets[ACTIVE], context), masked)


ANSWERS = {  # sha256 of the masked bytes, the tag: both of the slow functions above
    (64, "a0"): (
        "88ab8294a3a3238edae03129b91bc9ce6a7effaebf19b5bbf7fc9e81684e5432",
        "f7ce635a368ed4036e28b12f9354ed30",
    ),
    (64, "p1"): (
        "39ce95eab52e90ef09d4b4bd0b323898cedb80b24063890af639abc9a4597ddb",
        "730fc63f7d56382c83cd43d42824d106",
    ),
    (64, "a2"): (
        "06ec18ce93b9d005f88537d5557fbc56667d2fab5fb0199819a1f6670b03d848",
        "160d531a858c72827823e4f4f86a70c4",
    ),
    (32, "a0"): (
        "86d04eea67d686935b9a6575ebd36ec7aa3712ba2a59d6d29af0daad24c35a62",
        "643b1f4ae5450be01c5eeb2135b0f427",
    ),
    (32, "p1"): (
        "31c9a2e5bf5f18be0862fb382421812a36cb9669894d764595db2d251c5fcc1c",
        "0859b03cbebc7fe9279ce100d73700fa",
    ),
    (32, "a2"): (
        "e44ac82e958fb0bdf26ec4148f969692ab8d15860127152fc02088892b488d89",
        "f8f61086d4b318947840852f75200d67",
    ),
}


@pytest.mark.parametrize(("bits", "name"), ANSWERS)
def test_known_answers(bits: int, name: str) -> None:
    """A change of these is a change of the protocol: parties of two versions could not talk."""
    ring = next(ring for ring in RINGS if ring.bits == bits)
    passives, _ = family(ring, "known answers")
    moment = Moment("eval/test", 3, 14)
    values = (torch.arange(35).reshape(5, 7) - 17) / 7
    message = passives[name].mask(values, moment)
    raw = elements(message).tobytes()
    assert slow_message(name, passives[name]._secrets, ring, values, moment) == (
        raw,
        message["tag"],
    )
    assert (hashlib.sha256(raw).hexdigest(), message["tag"].hex()) == ANSWERS[bits, name]


def test_the_slow_poly1305_is_that_of_the_rfc() -> None:
    key = bytes.fromhex("85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b")
    tag = slow_poly1305(key, b"Cryptographic Forum Research Group")
    assert tag.hex() == "a8061dc1305136c6c22b8baf0c0127a9"


def test_a_constant_mask_is_one_element_per_pair() -> None:
    ring = RINGS[0]
    passives, active = family(ring, 1, constant=True)
    messages = messages_of(passives, [torch.zeros(2, 3)] * 3, FIRST)
    for name, message in messages.items():
        expected = 0
        for other, secret in passives[name]._secrets.items():
            if other != ACTIVE:
                element = hmac.digest(secret, b"constant\1", "sha256")[:8]
                expected += (1 if name < other else -1) * int.from_bytes(element, "little")
        assert (elements(message) == expected % 2**64).all()
    assert not active.total(messages, FIRST).any()


def test_every_pair_moment_shape_and_purpose_has_a_keystream_of_its_own() -> None:
    ring = RINGS[0]
    seen: set[bytes] = set()
    moments = [FIRST, Moment("train", 0, 1), Moment("train", 1, 0), Moment("eval/test", 0, 0)]
    moments += [Moment("eval/validation", 0, 0), Moment("train", 0, 10), Moment("train", 1, 11)]
    for moment in moments:
        for shape in ((2, 6), (6, 2), (12,), (1, 2, 6)):
            passives, _ = family(ring)
            for masks in passives.values():
                seen.add(elements(masks.mask(torch.zeros(shape), moment)).tobytes())
    assert len(seen) == len(moments) * 4 * 3


# ---- (3) what a single message tells -----------------------------------------------------------

FALSE_ALARM = 1e-9  # per look; a few hundred looks in this file
OVERWHELMING = 1e-50
ROWS, WIDTH = 64, 128


def plaintext(sort: str) -> Tensor:
    if sort == "zero":
        return torch.zeros(ROWS, WIDTH)
    if sort == "constant":
        return torch.full((ROWS, WIDTH), 1.25)
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(8)).relu()


def p_of_bytes(found: NDArray[Any]) -> float:
    counts = np.bincount(np.frombuffer(found.tobytes(), np.uint8), minlength=256)
    return float(stats.chisquare(counts).pvalue)


def p_of_values(found: NDArray[Any]) -> float:
    scaled = found.ravel().astype(np.float64) / 2.0 ** (8 * found.itemsize)
    return float(stats.kstest(scaled, "uniform", mode="asymp").pvalue)


def look_at_bytes(first: NDArray[Any], second: NDArray[Any]) -> float:
    return min(p_of_bytes(first), p_of_bytes(second))


def look_at_values(first: NDArray[Any], second: NDArray[Any]) -> float:
    return min(p_of_values(first), p_of_values(second))


def look_at_rows(first: NDArray[Any], second: NDArray[Any]) -> float:
    difference = first[0::2] - first[1::2]
    return min(p_of_bytes(difference), p_of_values(difference))


def look_at_batches(first: NDArray[Any], second: NDArray[Any]) -> float:
    return min(p_of_bytes(first - second), p_of_values(first - second))


LOOKS = [look_at_bytes, look_at_values, look_at_rows, look_at_batches]
Look = Callable[[NDArray[Any], NDArray[Any]], float]


def two_messages_of_everybody(
    ring: Ring, sort: str, constant: bool
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    passives, _ = family(ring, os.urandom(16), constant)
    x = plaintext(sort)
    moments = FIRST, Moment("train", 0, 1)
    return [
        (elements(masks.mask(x, moments[0])), elements(masks.mask(x, moments[1])))
        for masks in passives.values()
    ]


@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
@pytest.mark.parametrize("sort", ["real", "zero", "constant"])
@pytest.mark.parametrize("look", LOOKS)
def test_a_message_looks_like_noise_and_in_paper_mode_it_does_not(
    look: Look, sort: str, ring: Ring
) -> None:
    for pair in two_messages_of_everybody(ring, sort, constant=False):
        assert look(*pair) > FALSE_ALARM
    for pair in two_messages_of_everybody(ring, sort, constant=True):
        assert look(*pair) < OVERWHELMING


@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
def test_all_parties_but_one_together_still_see_noise(ring: Ring) -> None:
    """Two of three passive parties' messages added up: the third one's masks remain."""
    (a, _), (b, _), (c, _) = two_messages_of_everybody(ring, "zero", constant=False)
    for two in (a + b, b + c, a + c):
        assert look_at_values(two, two) > FALSE_ALARM
        assert p_of_bytes(two) > FALSE_ALARM
    assert not (a + b + c).any()


@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
def test_differences_between_rows_and_batches_are_in_clear_in_paper_mode_only(ring: Ring) -> None:
    generator = torch.Generator().manual_seed(9)
    x, y = (torch.randn(256, 256, generator=generator).relu() for _ in range(2))
    differences = (x[1:] - x[:-1]).double().numpy(), (y - x).double().numpy()
    for constant in (False, True):
        passives, _ = family(ring, os.urandom(16), constant)
        for masks in passives.values():
            first = elements(masks.mask(x, FIRST))
            second = elements(masks.mask(y, Moment("train", 0, 1)))
            signed = np.int64 if ring.bits == 64 else np.int32
            for seen, true in zip(
                ((first[1:] - first[:-1]), second - first), differences, strict=True
            ):
                r = np.corrcoef(seen.view(signed).astype(np.float64).ravel(), true.ravel())[0, 1]
                if constant:
                    assert r > 0.9999999
                else:
                    assert abs(r) < 0.035  # seven standard deviations and more


def guess(seen: NDArray[Any], candidates: tuple[NDArray[Any], NDArray[Any]]) -> int:
    """Which of two plaintext differences lies nearer, on the circle of the ring."""
    signed = np.int64 if seen.itemsize == 8 else np.int32
    far = [np.abs((seen - one).view(signed).astype(np.float64)).sum() for one in candidates]
    return int(far[1] < far[0])


@pytest.mark.parametrize("between", ["rows", "batches"])
@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
def test_a_distinguisher_is_at_chance_and_in_paper_mode_always_right(
    ring: Ring, between: str
) -> None:
    """It knows both plaintexts of the party, and all that the other parties send."""
    trials = 200
    coins = np.random.default_rng(3).integers(0, 2, trials)
    generator = torch.Generator().manual_seed(10)
    worlds = [[torch.randn(2, 8, generator=generator).relu() for _ in range(2)] for _ in range(2)]

    def difference(batches: list[NDArray[Any]]) -> NDArray[Any]:
        return batches[0][0] - batches[0][1] if between == "rows" else batches[1] - batches[0]

    candidates = tuple(difference([ring.encode(x) for x in world]) for world in worlds)
    for constant in (False, True):
        right = 0
        for trial, coin in enumerate(coins):
            passives, _ = family(ring, (trial, os.urandom(16)), constant)
            victim = passives["p1"]
            sent = [
                elements(victim.mask(x, Moment("train", 0, step)))
                for step, x in enumerate(worlds[coin])
            ]
            right += guess(difference(sent), candidates) == coin  # type: ignore[arg-type]
        if constant:
            assert right == trials
        else:
            assert stats.binomtest(right, trials).pvalue > FALSE_ALARM


# ---- (4) what cannot be masked -----------------------------------------------------------------


@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, 1e30, -1e30, 3e38], ids=lambda bad: f"{bad:g}"
)
def test_what_has_no_fixed_point_form_is_refused_and_nothing_is_spent(
    ring: Ring, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    passives, active = family(ring)
    values = [torch.randn(4, 3) for _ in passives]
    spoilt = values[0].clone()
    spoilt[2, 1] = bad
    used = watch(monkeypatch)
    with pytest.raises(Diverged, match=r"a value of .* cannot be masked: .*(3 passive|smaller lr)"):
        passives["a0"].mask(spoilt, FIRST)
    assert not used  # not a byte of keystream
    total = active.total(messages_of(passives, values, FIRST), FIRST)  # the moment is still free
    assert torch.allclose(total, torch.stack(values).sum(0), atol=3 * 2.0**-ring.fraction)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("terms", range(1, 11))
@pytest.mark.parametrize(("bits", "fraction"), [(64, 24), (64, 56), (64, 1), (32, 20), (32, 1)])
def test_the_largest_value_comes_back_and_the_next_one_is_refused(
    bits: Any, fraction: int, terms: int, sign: int
) -> None:
    ring = Ring(bits, fraction, terms)
    unit = 2.0**-fraction
    if bits == 32:
        boundary = (2**31 - 1) // terms * unit
        largest = boundary - unit
        assert boundary == ring.limit
        just_refused = [boundary, boundary - 0.4 * unit]  # the second is rounded up to the first
    else:
        boundary = ring.limit  # the nearest double; half of the ring is not to be reached
        largest = math.nextafter(boundary, 0)
        assert terms * int(largest * 2**fraction) < 2**63
        just_refused = [boundary]
    passives, active = family(ring)
    values = torch.full((1, 2), sign * largest, dtype=torch.float64)
    total = active.total(messages_of(passives, [values] * terms, FIRST), FIRST)
    exact = terms * sign * largest
    assert torch.allclose(total.double(), torch.full((1, 2), exact, dtype=torch.float64), rtol=1e-7)
    for refused in (*just_refused, boundary + unit, 2 * boundary, 2.0**bits, 2.0**bits * unit):
        with pytest.raises(Diverged, match=r"must stay below"):
            ring.encode(torch.full((1, 2), sign * refused, dtype=torch.float64))


@given(ring=rings(), value=st.floats(width=64))
@settings(max_examples=200, deadline=None)
@pytest.mark.filterwarnings("ignore:overflow encountered in multiply")
def test_a_value_comes_back_within_half_a_unit_or_is_refused(ring: Ring, value: float) -> None:
    """There is no third way: no value is ever wrapped into another one."""
    try:
        encoded = ring.encode(torch.tensor([value], dtype=torch.float64))
    except Diverged:
        assert not abs(value) < ring.limit - 2.0**-ring.fraction
        return
    signed = int(encoded.view(np.int64 if ring.bits == 64 else np.int32)[0])
    assert abs(signed * 2.0**-ring.fraction - value) <= 2.0 ** -(ring.fraction + 1)
    assert ring.terms * abs(signed) < 2 ** (ring.bits - 1)


# ---- (5) one mask, one plaintext ---------------------------------------------------------------


def watch(patch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """Every (secret, context) from which a key is derived, as it happens."""
    used: list[tuple[bytes, bytes]] = []
    original = masking._expand

    def expand(secret: bytes, info: bytes) -> bytes:
        used.append((secret, info))
        return original(secret, info)

    patch.setattr(masking, "_expand", expand)
    return used


@pytest.mark.parametrize(
    "again",
    [FIRST, Moment("train", 2, 4), Moment("train", 2, 3), Moment("train", 1, 9)],
    ids=["first", "same", "a step back", "an epoch back"],
)
def test_a_moment_is_masked_once_and_time_goes_forward(
    again: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    passives, _ = family(RINGS[0])
    masks = passives["a0"]
    values = torch.randn(3, 2)
    masks.mask(values, Moment("train", 2, 4))
    used = watch(monkeypatch)
    for retry in (values, values + 1, values[:2]):  # not even the same, nor in another shape
        with pytest.raises(MaskError, match=r"'a0' has already masked .* at train, epoch .*fresh"):
            masks.mask(retry, again)
    assert not used
    masks.mask(values, Moment("eval/test", 0, 0))  # an evaluation counts for itself
    masks.mask(values, Moment("train", 3, 0))


class Discipline(RuleBasedStateMachine):
    """Parties that mask, try again, go back, crash, evaluate, in any order.

    What is kept over all sessions: for which plaintext each (secret, context) was used by whom.
    """

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.used = watch(self.patch)
        self.plaintexts: dict[tuple[str, bytes, bytes], bytes] = {}
        self.users: dict[tuple[bytes, bytes], set[str]] = {}
        self.attempt = 0

    def teardown(self) -> None:
        self.patch.undo()

    @initialize()
    def begin(self) -> None:
        self.known = identity.simulated(("a", "b", "c", ACTIVE), "attempt 0")
        self.agree()

    def agree(self) -> None:
        members = {name: Agreement(one, list(self.known), "t") for name, one in self.known.items()}
        publics = {name: member.public for name, member in members.items()}
        signatures = {name: member.sign(publics) for name, member in members.items()}
        ring = Ring(64, 24, 3)
        self.masks = {
            name: Masks(name, ACTIVE, member.secrets(signatures), ring)
            for name, member in members.items()
        }
        self.reached: dict[tuple[str, str], tuple[int, int]] = {}  # (party, purpose): the latest
        self.last = dict.fromkeys(self.known, FIRST)

    @rule(renamed=st.booleans())
    def crash_and_start_anew(self, renamed: bool) -> None:
        """All positions may be taken again, as after a checkpoint; the keys are new."""
        self.attempt += renamed
        session = f"attempt {self.attempt}"
        self.known = {name: replace(one, session=session) for name, one in self.known.items()}
        self.agree()

    @rule(
        name=st.sampled_from("abc"),
        purpose=st.sampled_from(("train", "eval/test")),
        epoch=st.integers(0, 2),
        step=st.integers(0, 3),
        value=st.integers(0, 2),
        rows=st.integers(1, 2),
    )
    def mask(self, name: str, purpose: str, epoch: int, step: int, value: int, rows: int) -> None:
        self.attempt_to(name, torch.full((rows, 2), float(value)), Moment(purpose, epoch, step))

    @rule(name=st.sampled_from("abc"), value=st.integers(0, 2))
    def retry_the_same_moment(self, name: str, value: int) -> None:
        self.attempt_to(name, torch.full((1, 2), float(value)), self.last[name])

    @rule(name=st.sampled_from("abc"), value=st.integers(0, 2))
    def take_the_next_step(self, name: str, value: int) -> None:
        moment = self.last[name]
        self.attempt_to(
            name, torch.full((1, 2), float(value)), moment._replace(step=moment.step + 1)
        )

    @rule(name=st.sampled_from("abc"), bad=st.sampled_from((math.nan, math.inf, -1e30)))
    def diverge(self, name: str, bad: float) -> None:
        moment = self.last[name]
        self.attempt_to(name, torch.tensor([[0.0, bad]]), moment._replace(epoch=moment.epoch + 1))

    @rule(purpose=st.sampled_from(("train", "eval/test")), value=st.integers(0, 2))
    def all_together(self, purpose: str, value: int) -> None:
        """A whole step: everybody masks, the active party opens the sum, once."""
        epoch = 1 + max((place[0] for place in self.reached.values()), default=0)
        moment = Moment(purpose, epoch, 0)
        x = torch.full((1, 2), float(value))
        messages = {name: self.attempt_to(name, x, moment) for name in "abc"}
        total = self.masks[ACTIVE].total(messages, moment)  # type: ignore[arg-type]
        assert torch.equal(total, 3 * x)
        with pytest.raises(MaskError, match=r"already"):
            self.masks[ACTIVE].total(messages, moment)  # type: ignore[arg-type]

    def attempt_to(self, name: str, values: Tensor, moment: Moment) -> dict[str, Any] | None:
        self.used.clear()
        place = (moment.epoch, moment.step)
        latest = self.reached.get((name, moment.purpose))
        allowed = bool(values.abs().max() < 1e9) and (latest is None or place > latest)
        try:
            message = self.masks[name].mask(values, moment)
        except (Diverged, MaskError):
            assert not allowed
            assert not self.used  # no keystream, no tag
            return None
        assert allowed
        self.reached[name, moment.purpose] = place
        self.last[name] = moment
        assert len(self.used) == 3  # a mask with each partner, and a tag
        for secret, context in self.used:
            assert (name, secret, context) not in self.plaintexts
            self.plaintexts[name, secret, context] = values.numpy().tobytes()
            users = self.users.setdefault((secret, context), set())
            users.add(name)
            assert len(users) <= (1 if b'"tag"' in context else 2)  # added once, subtracted once
        return message


TestDiscipline = Discipline.TestCase
TestDiscipline.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


# ---- (6) the active party ----------------------------------------------------------------------


@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
def test_every_flipped_bit_of_values_and_tag_is_refused(ring: Ring) -> None:
    passives, _ = family(ring)
    messages = messages_of(passives, [torch.randn(2, 3) for _ in passives], FIRST)
    raw, tag = elements(messages["p1"]).tobytes(), messages["p1"]["tag"]
    changed: list[dict[str, Any]] = []
    for bit in range(8 * len(raw)):
        flipped = np.frombuffer(raw, np.uint8).copy()
        flipped[bit // 8] ^= 1 << bit % 8
        values = torch.from_numpy(flipped.view(messages["p1"]["values"].numpy().dtype))
        changed.append({"values": values.reshape(2, 3), "tag": tag})
    for bit in range(8 * len(tag)):
        whole = bytearray(tag)
        whole[bit // 8] ^= 1 << bit % 8
        changed.append({"values": messages["p1"]["values"], "tag": bytes(whole)})
    assert len(changed) == ring.bits * 6 + 128
    for message in changed:
        _, active = family(ring)
        with pytest.raises(Untrusted, match=r"'m' refuses the masked values of 'p1' at train"):
            active.total({**messages, "p1": message}, FIRST)
    _, active = family(ring)
    active.total(messages, FIRST)  # unchanged, they are taken


def test_two_changes_that_leave_the_sum_as_it_is_are_refused() -> None:
    passives, active = family(RINGS[0])
    messages = messages_of(passives, [torch.randn(2, 3) for _ in passives], FIRST)
    messages["a0"]["values"] = messages["a0"]["values"] + 1
    messages["p1"]["values"] = messages["p1"]["values"] - 1
    with pytest.raises(Untrusted, match=r"'a0'"):
        active.total(messages, FIRST)


@pytest.mark.parametrize(
    "later",
    [Moment("train", 0, 1), Moment("train", 1, 0), Moment("eval/test", 0, 0)],
    ids=lambda moment: "-".join(map(str, moment)),
)
@pytest.mark.parametrize("constant", [False, True])
def test_a_message_of_an_earlier_moment_is_refused(later: Moment, constant: bool) -> None:
    passives, active = family(RINGS[0], constant=constant)
    values = [torch.randn(2, 3) for _ in passives]
    earlier = messages_of(passives, values, FIRST)
    now = messages_of(passives, values, later)
    with pytest.raises(Untrusted, match=r"'a2' at .*belong to another moment"):
        active.total({**now, "a2": earlier["a2"]}, later)
    _, active = family(RINGS[0])
    with pytest.raises(Untrusted):
        active.total(earlier, later)


def test_a_message_of_another_session_is_refused() -> None:
    passives, _ = family(RINGS[0], "before the crash")
    renewed, active = family(RINGS[0], "after it")
    values = [torch.randn(2, 3) for _ in passives]
    old, new = (messages_of(some, values, FIRST) for some in (passives, renewed))
    with pytest.raises(Untrusted, match=r"'a0'"):
        active.total({**new, "a0": old["a0"]}, FIRST)


def test_a_message_of_one_sender_under_the_name_of_another_is_refused() -> None:
    for claimed, true in (("a0", "p1"), ("p1", "a0"), ("a2", "p1")):
        passives, active = family(RINGS[0])
        messages = messages_of(passives, [torch.randn(2, 3) for _ in passives], FIRST)
        with pytest.raises(Untrusted, match=rf"refuses the masked values of '{claimed}'"):
            active.total({**messages, claimed: messages[true]}, FIRST)


def test_only_the_sum_over_all_is_opened() -> None:
    passives, active = family(RINGS[0])
    messages = messages_of(passives, [torch.randn(2, 3) for _ in passives], FIRST)
    for some in (
        {name: m for name, m in messages.items() if name != "p1"},
        {**messages, "stranger": messages["p1"]},
        {("q" if name == "p1" else name): m for name, m in messages.items()},
        {},
    ):
        with pytest.raises(MaskError, match=r"only the sum over a0, p1, a2 may be opened"):
            active.total(some, FIRST)
    active.total(messages, FIRST)  # the refusals have spent nothing
    with pytest.raises(MaskError, match=r"'m' has already masked or opened values at train"):
        active.total(messages, FIRST)


def test_different_shapes_are_refused() -> None:
    passives, active = family(RINGS[0])
    values = [torch.randn(2, 3), torch.randn(1, 3), torch.randn(2, 3)]
    messages = messages_of(passives, values, FIRST)
    with pytest.raises(Untrusted, match=r"is due: 'a0' \(2, 3\), 'p1' \(1, 3\)"):
        active.total(messages, FIRST)


@pytest.mark.parametrize("shape", [(3, 2), (6,), (1, 6), (1, 2, 3)])
def test_the_same_bytes_in_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    passives, active = family(RINGS[0])
    messages = messages_of(passives, [torch.randn(2, 3) for _ in passives], FIRST)
    for message in messages.values():
        message["values"] = message["values"].reshape(shape)
    with pytest.raises(Untrusted, match=r"refuses the masked values"):
        active.total(messages, FIRST)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m | {"values": m["values"].double()},
        lambda m: m | {"values": m["values"].int()},
        lambda m: m | {"values": m["values"].view(torch.uint64)},
        lambda m: m | {"values": m["values"].view(torch.float64)},
        lambda m: m | {"values": m["values"].numpy().tobytes()},
        lambda m: m | {"values": {"values": m["values"]}},
        lambda m: m | {"tag": m["tag"].hex()},
        lambda m: m | {"tag": torch.frombuffer(bytearray(m["tag"]), dtype=torch.uint8)},
        lambda m: {"values": m["values"]},
        lambda m: {"tag": m["tag"]},
        lambda m: {},
    ],
)
def test_another_dtype_or_a_missing_part_is_refused(change: Any) -> None:
    passives, active = family(RINGS[0])
    messages = messages_of(passives, [torch.randn(2, 3) for _ in passives], FIRST)
    with pytest.raises(Untrusted, match=r"'p1' sent no masked values of 64 bits with a tag"):
        active.total({**messages, "p1": change(messages["p1"])}, FIRST)


@pytest.mark.parametrize("tag", [b"", b"\0" * 16, b"\0" * 15, b"\0" * 32])
def test_a_tag_of_no_worth_is_refused(tag: bytes) -> None:
    passives, active = family(RINGS[0])
    messages = messages_of(passives, [torch.randn(2, 3) for _ in passives], FIRST)
    with pytest.raises(Untrusted, match=r"'p1'"):
        active.total({**messages, "p1": messages["p1"] | {"tag": tag}}, FIRST)
    _, active = family(RINGS[0])
    cut = messages["p1"]["tag"][:12]
    with pytest.raises(Untrusted, match=r"'p1'"):
        active.total({**messages, "p1": messages["p1"] | {"tag": cut}}, FIRST)


@pytest.mark.parametrize(
    "sent",
    [b"masked", 7, torch.zeros(2, 3, dtype=torch.int64), {"values": torch.empty(0, 3).long()}],
    ids=["bytes", "number", "tensor", "no-rows"],
)
def test_what_is_no_masked_message_is_refused(sent: Any) -> None:
    passives, active = family(RINGS[0])
    messages = messages_of(passives, [torch.randn(2, 3) for _ in passives], FIRST)
    if isinstance(sent, dict):
        sent = sent | {"tag": b"\0" * 16}
    with pytest.raises(Untrusted):
        active.total({**messages, "p1": sent}, FIRST)


# ---- (7) cost ----------------------------------------------------------------------------------


def test_the_number_of_calls_does_not_depend_on_the_size() -> None:
    """Nothing is done element by element."""

    def calls(shape: tuple[int, int]) -> int:
        count = 0

        def counted(frame: FrameType, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        passives, active = family(Ring(64, 24, 4))
        values = [torch.zeros(shape) for _ in passives]
        before = sys.getprofile()
        sys.setprofile(counted)
        try:
            active.total(messages_of(passives, values, FIRST), FIRST)
        finally:
            sys.setprofile(before)
        return count

    calls((1, 1))  # imports
    assert calls((128, 128)) == calls((2, 2))
