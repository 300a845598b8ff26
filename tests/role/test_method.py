from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from colonnade.errors import MethodError
from colonnade.role.method import About, Circumstances, Membership, Method, RowRules


@dataclass(frozen=True)
class Options:
    least: int = 2


def check(known: Circumstances) -> None:
    if known.passives is not None and len(known.passives) < known.options.least:
        raise MethodError(f"{known.options.least} passive parties are needed")


METHOD = Method("mine", "a method", Options, {}, check=check, membership=Membership(absent=True))
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
    assert METHOD.told(Options()) == {"title": "mine", "trained": "", "repeats": True}
    about = About("My Method", "one tree each", repeats=lambda options: options.least > 2)
    told = replace(METHOD, about=about).told(Options())
    assert told == {"title": "My Method", "trained": "one tree each", "repeats": False}
