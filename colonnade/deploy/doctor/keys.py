"""The doctor on a party's certificate and keys."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from colonnade.deploy.doctor.check import Case, Check
from colonnade.errors import ColonnadeError
from colonnade.net import certs
from colonnade.net.keys import Keys

FEW_DAYS = 30


def keys_of(case: Case) -> Keys:
    """Those of its startup kit, or those in its folder of keys."""
    keys = case.mine.tls or Keys.of(case.mine.keys, case.me.name)
    return replace(keys, pins=case.federation.pins)


def certificates(case: Case) -> Iterator[Check]:
    """The party's certificate and the authority's: whether they fit, and for how long."""
    keys = keys_of(case)
    try:
        issuer = certs.facts(keys.authority)
        try:
            revoked = certs.revoked_by(keys.authority)
        except ColonnadeError as error:  # its own certificate may be good
            move = f"put the authority's newest revoked.pem beside {keys.authority}"
            yield Check("revoked", "problem", str(error), move)
            return
        own = certs.check(keys.certificate, keys.authority, keys.common_name(case.me.name))
    except ColonnadeError as error:
        move = (
            f"`colonnade certs request {case.mine.keys} --party {case.me.name}`, send the .csr "
            "to the authority, and put what comes back there"
        )
        if case.mine.tls is not None:
            move = "ask whoever made the startup kit for another"
        yield Check("certificate", "problem", str(error), move)
        return
    for about, facts, who in (
        ("certificate", own, f"of '{own.party}', by '{issuer.party}'"),
        ("authority", issuer, f"'{issuer.party}'"),
    ):
        yield _dates(about, facts, who)
    if revoked is not None:
        days = (revoked.until - datetime.now(UTC)).days
        said = f"list {revoked.number} of the authority, {len(revoked.serials)} certificates, "
        said += f"counts for {days} days more"
        if days < FEW_DAYS:
            yield Check("revoked", "warning", said, "ask the authority for the next one in time")
        else:
            yield Check("revoked", "ok", said)


def _dates(about: str, facts: certs.Facts, who: str) -> Check:
    now = datetime.now(UTC)
    days = (facts.until - now).days
    said = f"{who}, {facts.since:%Y-%m-%d} to {facts.until:%Y-%m-%d}, {days} days left"
    if not facts.since <= now <= facts.until:
        move = f"here it is {now:%Y-%m-%d %H:%M} UTC: is the clock right? Else ask for another"
        return Check(about, "problem", said, move)
    if days < FEW_DAYS:
        return Check(about, "warning", said, "ask the authority for another in time")
    return Check(about, "ok", said)


def key_files(case: Case) -> Iterator[Check]:
    """The private keys: that only their owner can read them, and which certificate they fit."""
    keys, good = keys_of(case), True
    for path in (keys.key, _signing_file(case)):
        try:
            mode = path.stat().st_mode
        except OSError as error:
            move = "`colonnade certs request` makes it; if it is lost, ask for a new certificate"
            yield Check("keys", "problem", f"{path}: {error.strerror}", move)
            good = False
            continue
        if mode & 0o077:
            said = f"{path} can be read or written by others than its owner"
            move = f"chmod 600 {path}; if somebody may have read it, make new keys"
            yield Check("keys", "problem", said, move)
            good = False
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(keys.certificate, keys.key, password="")
    except OSError as error:  # also ssl.SSLError
        said = f"{keys.key} is not the key of {keys.certificate} ({error})"
        if keys.key.exists() and keys.certificate.exists():
            move = "use the pair that belongs together; keys with a passphrase cannot be used"
            yield Check("keys", "problem", said, move)
            good = False
    if (case.mine.keys / "ca.key").exists():
        said = f"{case.mine.keys / 'ca.key'} lies with the party's own keys"
        move = "keep the authority's key elsewhere: whoever has it can be any party"
        yield Check("keys", "warning", said, move)
    elif good:
        yield Check("keys", "ok", "readable by their owner alone, and fit the certificate")


def signing_key(case: Case) -> Check:
    """The signing key: whether it is the one that the federation file names."""
    path = _signing_file(case)
    try:
        public = certs.public_text(path)
    except ColonnadeError as error:
        return Check("signing key", "problem", str(error), "`colonnade certs request` makes it")
    if public != case.me.signing_key:
        return Check(
            "signing key",
            "problem",
            f"{path} is not the one that {case.federation.path} pins",
            "is it the right folder of keys? Only if the key was renewed, and all know so by "
            f'telephone: signing_key = "{public}" in [parties.{case.me.name}], everywhere',
        )
    return Check("signing key", "ok", f"{public[:16]}…, as the federation file pins it")


def _signing_file(case: Case) -> Path:
    return case.mine.keys / f"{case.me.name}.sign"
