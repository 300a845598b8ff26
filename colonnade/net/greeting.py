"""Checks the first frame of a peer: whether the two parties fit together, and if not, why not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from colonnade.errors import CodecError, foreign
from colonnade.net.frame import PROTOCOL, Body, Hello, parse

SAID = 300  # letters of what a peer says
AGREE = "Correct that at one of them, and start both again with the same commands"
WAITING = (  # of who has refused, and is still there
    ". '{me}' goes on waiting: correct it at '{who}', and start that again; or correct it here, "
    "with Ctrl-C and then the same command"
)
ANY = "*"  # a fact that does not apply to a party: a server has no rows


class Unfit(Exception):
    """The reasons why this party cannot talk with a peer."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(*reasons)
        self.reasons = reasons


def first_words(data: bytes, peer: str) -> Body:
    """The first frame of a connection. A peer of another version may send anything; the error tells
    it so."""
    try:
        return parse(data, f"'{peer}'")[0].body
    except CodecError as error:
        raise Unfit(
            f"{error}, which does not begin protocol {PROTOCOL}: does it run another version of "
            "Colonnade?"
        ) from None


def fitting(body: Body, peer: str, me: str, agreed: Mapping[str, str]) -> Hello:
    """The hello of a peer whose certificate names it; Unfit unless all agreed facts are equal."""
    if not isinstance(body, Hello):
        raise Unfit(f"'{peer}' did not begin with a hello")
    if body.protocol != PROTOCOL:  # nothing else of such a hello was read
        raise Unfit(f"protocol {body.protocol} at '{peer}', {PROTOCOL} at '{me}'")
    if body.party != peer:
        raise Unfit(
            f"the certificate is that of '{peer}', the hello that of '{foreign(body.party, SAID)}'"
        )
    try:
        theirs = json.loads(body.agreed)
    except (ValueError, RecursionError):
        theirs = None
    if not isinstance(theirs, dict):
        raise Unfit(f"the facts in the hello of '{peer}' are not JSON")
    reasons = [
        f"{foreign(key, SAID)} is {_said(theirs, key)} at '{peer}', {_said(agreed, key)} at '{me}'"
        for key in sorted({*agreed, *theirs})
        if theirs.get(key) != agreed.get(key) and ANY not in (theirs.get(key), agreed.get(key))
    ]
    if reasons:
        raise Unfit(*reasons)
    return body


def _said(facts: Mapping[str, Any], key: str) -> str:
    return foreign(facts[key], SAID) if key in facts else "missing"
