"""`colonnade certs`: an authority, the parties' keys and certificates, and what they say.

colonnade certs init authority                         whoever runs the authority
colonnade certs request keys --party bank              the bank; its keys stay there
colonnade certs issue authority bank.csr --name bank   the authority, with what the bank sent
colonnade certs revoke authority bank                  the authority, when a key was lost or stolen
colonnade certs issued authority                       the authority, to see what it has issued
colonnade certs show bank.pem bank.sign                anybody
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from colonnade.errors import CertificateError
from colonnade.net import certs, register


def init(arguments: argparse.Namespace) -> None:
    root = certs.init(arguments.folder, arguments.name, arguments.days)
    _tell(
        arguments,
        {"authority": str(root)} | _said(certs.facts(root)),
        str(root),
        f"authority    {root}: give it to every party\n"
        f"key          {root.with_suffix('.key')}: keep it to yourself",
    )


def request(arguments: argparse.Namespace) -> None:
    asked = certs.request(arguments.folder, arguments.party)
    public = certs.public_text(asked.with_suffix(".sign"))
    _tell(
        arguments,
        {"request": str(asked), "party": arguments.party, "signing_key": public},
        str(asked),
        f"request      {asked}: send it to the authority; the keys beside it stay here\n"
        f'signing_key  "{public}"\n'
        f"             goes into [parties.{arguments.party}] of the federation file",
    )


def issue(arguments: argparse.Namespace) -> None:
    folder, request, party = arguments.folder, arguments.request, arguments.party
    if (request is None) == (party is None):
        raise CertificateError(
            "colonnade certs issue: give either the REQUEST.csr that a party sent, or --party NAME "
            "to make its keys here too"
        )
    if request is not None and arguments.name is None:
        raise CertificateError(
            f"colonnade certs issue: say with --name whose request {request} is, to the best you "
            "know. Whoever has the certificate speaks as that party"
        )
    if party is None:
        made = certs.issue(
            folder,
            request,
            arguments.name,
            arguments.host,
            arguments.days,
            replace=arguments.replace,
        )
        text = f"certificate  {made}: send it back, with {folder / 'ca.pem'}"
        keys = {}
    else:
        made = certs.party(folder, party, arguments.host, arguments.days)
        keys = {"signing_key": certs.public_text(made.with_suffix(".sign"))}
        text = (
            f"certificate  {made}; ca.pem and the keys lie beside it\n"
            f'signing_key  "{keys["signing_key"]}"\n'
            f"             goes into [parties.{party}] of the federation file"
        )
    facts = certs.facts(made)
    earlier = [
        one
        for one in register.certificates_of(folder, facts.party, facts.tls_key)
        if one.serial != facts.serial
    ]
    said = [text, f"valid until  {facts.until:%Y-%m-%d}"]
    said += [
        f"note         '{facts.party}' had a certificate for this key already, serial "
        f"{one.serial}, valid until {one.until[:10]}: now both count"
        for one in earlier
    ]
    content = {"certificate": str(made)} | _said(facts) | keys
    content |= {"earlier": [one.serial for one in earlier]}
    _tell(arguments, content, str(made), "\n".join(said))


def revoke(arguments: argparse.Namespace) -> None:
    made, found = certs.revoke(arguments.folder, arguments.what, arguments.days)
    revoked = register.read(made, certs.load(arguments.folder / "ca.pem"))
    lines = [
        f"revoked      {one.party}, serial {one.serial}, valid until {one.until[:10]}"
        for one in found
    ]
    lines += [
        f"list         {made}: send it to every party, who puts it beside its ca.pem",
        f"number       {revoked.number}, of {len(revoked.serials)} certificates",
        f"valid until  {revoked.until:%Y-%m-%d}; make the next one before that day",
    ]
    content = {
        "list": str(made),
        "number": revoked.number,
        "valid_until": f"{revoked.until:%Y-%m-%dT%H:%M:%SZ}",
        "revoked": [one.serial for one in found],
    }
    _tell(arguments, content, str(made), "\n".join(lines))


def issued(arguments: argparse.Namespace) -> None:
    folder = arguments.folder
    root = certs.load(folder / "ca.pem")
    path = folder / register.REVOKED
    gone = register.read(path, root).serials if path.exists() else {}
    rows = [asdict(one) | {"revoked": one.number in gone} for one in register.entries(folder)]
    lines = [
        f"{row['party']:20} {row['serial']}  key {row['tls_key'][:16]}  {row['since'][:10]} to "
        f"{row['until'][:10]}{'  revoked' * row['revoked']}"
        for row in rows
    ]
    _tell(arguments, rows, "\n".join(row["serial"] for row in rows), "\n".join(lines) or "nothing")


def show(arguments: argparse.Namespace) -> None:
    shown = [{"file": str(path)} | _contents(path) for path in arguments.files]
    least = ("signing_key", "fingerprint", "number", "tls_key")
    _tell(
        arguments,
        shown,
        "\n".join(next(str(one[key]) for key in least if key in one) for one in shown),
        "\n".join(_lines(one) for one in shown),
    )


def _contents(path: Path) -> dict[str, Any]:
    """What one of the files around certificates says, whatever its name."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}") from None
    if path.suffix == ".sign":
        return {"signing_key": certs.public_text(path)}
    if "BEGIN X509 CRL" in text:
        return _list(path)
    if "BEGIN CERTIFICATE REQUEST" in text:
        party, key = certs.asked_for(path)
        return {"request_of": party, "tls_key": key}
    if "PRIVATE KEY" in text:
        raise CertificateError(
            f"{path} is a private key, and nothing of it should be shown. `colonnade certs show` "
            f"tells what {path.with_suffix('.pem').name}, its certificate, says"
        )
    return _said(certs.facts(path))


def _list(path: Path) -> dict[str, Any]:
    """What a list of revoked certificates says, and whether the ca.pem beside it has signed it."""
    revoked, root = register.shown(path), path.with_name("ca.pem")
    if root.exists():
        register.read(path, certs.load(root))  # an error, if it is forged
    return {
        "list_of": "certificates that were revoked, and count no more",
        "number": revoked.number,
        "replace_by": f"{revoked.until:%Y-%m-%d}",
        "signed": f"by the authority in {root}" if root.exists() else f"unknown: no {root}",
        "revoked": [f"{serial:x} on {since:%Y-%m-%d}" for serial, since in revoked.serials.items()],
    }


def _said(facts: certs.Facts) -> dict[str, Any]:
    return {
        "party": facts.party,
        "valid_from": f"{facts.since:%Y-%m-%dT%H:%M:%SZ}",
        "valid_until": f"{facts.until:%Y-%m-%dT%H:%M:%SZ}",
        "hosts": list(facts.hosts),
        "fingerprint": facts.fingerprint,
        "serial": facts.serial,
        "tls_key": facts.tls_key,
    }


def _lines(one: dict[str, Any]) -> str:
    rows = []
    for key, value in one.items():
        text = (", ".join(value) or "none") if isinstance(value, list) else str(value)
        rows.append(text if key == "file" else f"  {key.replace('_', ' '):12} {text}")
    return "\n".join(rows)


def _tell(arguments: argparse.Namespace, content: Any, least: str, text: str) -> None:
    """All of it as JSON, the one thing a script needs, or sentences for a person."""
    if arguments.json:
        sys.stdout.write(json.dumps(content) + "\n")
    elif arguments.quiet:
        sys.stdout.write(least + "\n")
    else:
        Console(highlight=False).print(Text(text), soft_wrap=True)
