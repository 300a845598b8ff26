"""Checks of a federation whose parts are valid one by one but may contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from colonnade.config.member import SIGNING_KEY, Entry, Member, split_address
from colonnade.config.settings import Config
from colonnade.errors import ConfigError, InputError, unknown
from colonnade.wire.policy import Policy

OnLost = Literal["wait", "stop", "continue"]


def check_entry(name: str, entry: Entry, problems: list[str]) -> None:
    where = f"parties.{name}"
    if entry.signing_key and not SIGNING_KEY.fullmatch(entry.signing_key):
        problems.append(
            f"{where}.signing_key = {entry.signing_key!r}: give 64 hex digits, as `colonnade "
            f"certs show {name}.sign` prints them"
        )
    problems += [
        f"{where}.tls_keys = {key!r}: give 64 hex digits, as `colonnade certs show {name}.pem` "
        "prints them as its tls key"
        for key in entry.tls_keys
        if not SIGNING_KEY.fullmatch(key)
    ]
    for key in ("address", "listen"):
        text = getattr(entry, key)
        try:
            host, _ = split_address(text) if text else ("", 0)
        except ValueError as error:
            problems.append(f"{where}.{key} = {text!r}: {error}")
            continue
        if key == "address" and text and not host.strip("0.:"):
            problems.append(f"{where}.address = {text!r}: nobody can dial that; is it `listen`?")
    if entry.listen and not entry.address:
        problems.append(f"{where}.listen without address: where would the others find '{name}'?")


def check_run(run: Config, members: Sequence[Member], on_lost: OnLost, problems: list[str]) -> None:
    method, names = run.found.method, [member.name for member in members]
    holder = run.run.label_holder or next(iter(names), "")
    if holder not in names:
        if run.run.label_holder:
            problems.append(unknown(holder, names, "as run.label_holder", "member"))
        return
    check_classes(run, problems)
    if method.membership.elastic and on_lost == "stop":
        problems.append(
            f'on_lost = "stop": the parties of {method.name} may come and go; choose "wait", to '
            'begin with all of them, or "continue", to begin after `deadline` with those that are '
            "present"
        )
    if on_lost == "continue" and not (method.membership.absent or method.membership.elastic):
        problems.append(
            f'on_lost = "continue": {method.name} cannot go on without a party; choose "wait" or '
            '"stop"'
        )
    if why := method.simulated(run.options):
        problems.append(f"[run] {why}: only a simulation may do that")
    if method.rows.pooled(run.options):
        problems.append(f"[run] {method.name} needs all rows in one place: it has no parties")
        return
    if len(names) < 2:
        return
    try:
        cast = method.cast(names, holder, run.options)
    except InputError as error:
        problems.append(f"[run] {error}")
        if method.membership.hub:
            return
        cast = dict.fromkeys(names, "")
    hub = check_hub(run, cast, names, problems) if method.membership.hub else holder
    if hub:
        check_reach(hub, method.membership.elastic, members, problems)


def check_hub(
    run: Config, cast: Mapping[str, str], names: Sequence[str], problems: list[str]
) -> str:
    """The only member that plays the hub's role; empty, and a problem, if there is none."""
    method = run.found.method
    playing = [name for name, role in cast.items() if role == method.membership.hub]
    missing = [name for name in cast if name not in names]  # a simulation would add them
    for name in missing:
        rows = "" if method.roles[cast[name]].rows else ", and needs no --data"
        problems.append(
            f"[run] {method.name} needs a member '{name}', which plays '{cast[name]}': add "
            f"[parties.{name}] with an address and the signing_key that `colonnade certs` makes "
            f"for it; it is started like the others{rows}"
        )
    problems += [
        f"[run] '{name}' has nothing to do in {method.name} with these options: remove it"
        for name in names
        if name not in cast
    ]
    if not playing:
        problems.append(
            f"[run] nobody plays '{method.membership.hub}', with which all others of {method.name} "
            "must talk: choose options with which a party does, or run it in one process"
        )
    if len(playing) > 1:
        problems.append(
            f"[run] {', '.join(map(repr, playing))} all play '{method.membership.hub}': "
            f"{method.name} has one hub; name the others differently"
        )
    return playing[0] if len(playing) == 1 and playing[0] in names else ""


def check_reach(hub: str, elastic: bool, members: Sequence[Member], problems: list[str]) -> None:
    """Check that every member can reach the hub, or be reached by it."""
    if next(member for member in members if member.name == hub).address:
        return
    silent = [member.name for member in members if not member.address and member.name != hub]
    if elastic:
        problems.append(
            f"'{hub}' cannot be dialled, and the others come and go: give [parties.{hub}] an "
            "address"
        )
    elif silent:
        problems.append(
            f"neither '{hub}', who holds the labels, nor {', '.join(map(repr, silent))} can be "
            f"dialled: give [parties.{hub}] an address"
        )


def check_classes(run: Config, problems: list[str]) -> None:
    """Require the list of classes if every party brings labels, as no party knows all classes."""
    method, classes = run.found.method, run.data.classes
    numbers = run.data.spread is not None
    if method.rows.own_labels and not classes and not numbers:
        problems.append(
            f"[run] data.classes is missing: in {method.name} every party brings labels of its "
            'own, and all must use the same classes: [run.data] classes = ["no", "yes"]; of '
            "numbers the same units: mean = 4000, spread = 2500"
        )
    elif classes and numbers:
        problems.append(
            "[run] data.classes and data.spread: labels are classes or numbers; omit one"
        )
    elif classes and not method.rows.own_labels:
        problems.append(
            f"[run] data.classes: in {method.name} the label holder's rows determine the classes; "
            "omit it"
        )


def check_policy(
    policy: Policy, run: Config, members: Sequence[Member], problems: list[str]
) -> None:
    names = [member.name for member in members]
    try:
        policy.check_kinds(run.kinds)
    except ConfigError as error:
        problems += error.problems
    for kind, rule in policy.allow.items():
        problems += [
            unknown(peer, names, f"in policy.allow.{kind}.to", "member")
            for peer in rule.to or ()
            if peer not in names
        ]
