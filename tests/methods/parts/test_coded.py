"""Differences to what both ends have: nothing is lost for good, and what is forgotten is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from colonnade.methods.parts.coded import ClientEnd, Coding, ServerEnd
from colonnade.methods.parts.compression import Name

CPU = torch.device("cpu")


def tree(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(6, 4, generator=generator),
        "bias": torch.randn(4, generator=generator),
    }


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def ends(compress: Name, bits: int = 4) -> tuple[ClientEnd, ServerEnd]:
    coding = Coding(compress, bits, seed=3)
    return ClientEnd(coding, "a", {}, CPU), ServerEnd(coding, {"round": 0}, CPU)


def answered(server: ServerEnd, told: Any, head: dict[str, Tensor], number: int) -> dict[str, Any]:
    server.memory.update(round=number, head={"parameters": head, "buffers": {}})
    return server.answer("a", told, stop=False)


@pytest.mark.parametrize("compress", ["float16", "scalar", "topk"])
def test_both_ends_know_the_same_and_losses_are_told_later(compress: Name) -> None:
    client, server = ends(compress)
    lost = {name: torch.zeros_like(x) for name, x in tree(0).items()}
    for number in (1, 2, 3, 4):
        mine = tree(number)
        told = client.message(number, mine)
        assert ("coded" in told) is (number > 1)
        arrived = server.hear({"a": told})["a"]
        left = client.memory.get("error", lost)
        due = {name: mine[name] + lost[name] for name in mine}
        close({name: arrived[name] + left[name] for name in mine}, due)
        lost = left
        answer = answered(server, told, tree(10 + number), number)
        client.hear(answer, keep=False)
        assert client.memory["base"] == server.memory["known"]["a"]["number"] == number
        there = server.memory["known"]["a"]["parameters"]
        assert all(
            torch.equal(x, client.memory["global"]["parameters"][k]) for k, x in there.items()
        )
    assert any(x.any() for x in lost.values())


def test_without_compression_nothing_is_remembered_unless_asked() -> None:
    client, server = ends("none")
    told = client.message(1, tree(1), rows=7)
    assert {k: told[k] for k in ("leaves", "number", "base", "rows")} == {
        "leaves": False,
        "number": 1,
        "base": 0,
        "rows": 7,
    }
    answer = answered(server, told, tree(2), 1)
    assert client.hear(answer, keep=False).keys() == tree(2).keys()
    assert client.memory == {"base": 1} and "known" not in server.memory
    client.hear(answer, keep=True)
    close(client.memory["global"]["parameters"], tree(2))


def test_a_difference_to_something_unknown_is_left_out_and_all_is_told_again() -> None:
    client, server = ends("scalar")
    first = client.message(1, tree(1))
    client.hear(answered(server, first, tree(2), 1), keep=False)
    second = client.message(2, tree(3))
    answered(server, second, tree(4), 2)  # the client does not wait for this answer
    third = client.message(3, tree(5))
    assert server.hear({"a": third}) == {}
    answer = answered(server, third, tree(6), 3)
    assert "parameters" in answer
    close(client.hear(answer, keep=False), tree(6))
    assert list(server.hear({"a": client.message(4, tree(7))})) == ["a"]


def test_a_server_without_memory_says_so() -> None:
    client, server = ends("scalar")
    client.hear(answered(server, client.message(1, tree(1)), tree(2), 1), keep=False)
    told = client.message(2, tree(3))
    forgetful = ServerEnd(server.coding, {"round": 2}, CPU)
    assert forgetful.hear({"a": told}) == {}
    answer = forgetful.answer("a", told, stop=False)
    assert answer == {"to": 2, "number": 2, "stop": False, "forgotten": True}
    client.forget()
    assert "parameters" in client.message(3, tree(4))


def test_places_and_names_draw_their_own_dither() -> None:
    coding, base = Coding("scalar", 2, seed=3), {"x": torch.zeros(50), "y": torch.zeros(50)}
    now = {name: torch.linspace(-1, 1, 50) for name in base}
    one, other = (coding.difference(now, base, place) for place in ("up/a/1", "up/a/2"))
    assert not torch.equal(one.there["x"], other.there["x"])
    assert not torch.equal(one.there["x"], one.there["y"])
    close(coding.restored(one.coded, base, "up/a/1"), one.there)


def test_bits_out_of_bounds() -> None:
    with pytest.raises(ValueError, match="bits = 9"):
        Coding("scalar", 9)
