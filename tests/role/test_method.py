from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from colonnade.errors import MethodError
from colonnade.role.method import About, Circumstances, Membership, Method, Role, RowRules
from colonnade.role.party import Party


@dataclass(frozen=True)
class Options:
    least: int = 2


def check(known: Circumstances) -> None:
    if known.passives is not None and len(known.passives) < known.options.least:
        raise MethodError(f"{known.options.least} passive parties are needed")


METHOD = Method("mine", "a method", Options, {}, check=check, membership=Membership(absent=True))


async def _idle(me: Party) -> None:
    """A role that does nothing."""


PLAYED = replace(METHOD, roles={"active": Role(_idle, _idle), "passive": Role(_idle, _idle)})
CAST = {"bank": "active", "shop": "passive", "post": "passive"}


def test_a_methods_own_check_is_asked_about_those_who_are_there() -> None:
    METHOD.check_absent((), CAST, Options())
    METHOD.check_absent({"shop"}, CAST, Options(least=1))
    with pytest.raises(MethodError, match="2 passive parties are needed"):
        METHOD.check_absent({"shop"}, CAST, Options())


def test_who_predicts_alone() -> None:
    assert not METHOD.predicts_alone
    assert replace(METHOD, membership=Membership(elastic=True)).predicts_alone
    assert replace(METHOD, rows=RowRules(all_rows=True)).predicts_alone


def test_a_method_without_a_word_is_told_by_its_name() -> None:
    told = PLAYED.told(Options(), CAST, "bank")
    assert (told["title"], told["trained"], told["repeats"]) == ("mine", "", True)
    assert told["labels"] == ["bank"] and told["helpers"] == {}
    about = About("My Method", "one tree each", repeats=lambda options: options.least > 2)
    told = replace(PLAYED, about=about).told(Options(), CAST, "bank")
    assert (told["title"], told["trained"], told["repeats"]) == (
        "My Method",
        "one tree each",
        False,
    )


def test_a_party_without_rows_is_a_helper_and_holds_no_labels() -> None:
    roles = {**PLAYED.roles, "key_server": Role(_idle, _idle, rows=False)}
    served = replace(PLAYED, roles=roles, rows=RowRules(own_labels=True))
    told = served.told(Options(), {**CAST, "notary": "key_server"}, "bank")
    assert told["helpers"] == {"notary": "a key server"}
    assert told["labels"] == ["bank", "shop", "post"]
