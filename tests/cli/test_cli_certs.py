"""`colonnade certs`: every action, for a person, for a script, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colonnade.cli import certs as commands
from colonnade.cli.options import parser
from colonnade.errors import CertificateError
from colonnade.net import certs


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    parsed = parser().parse_args(["certs", *map(str, arguments)])
    getattr(commands, parsed.function)(parsed)
    printed = capsys.readouterr()
    assert printed.err == "" and "\x1b" not in printed.out
    return printed.out


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    certs.init(tmp_path / "authority")
    return tmp_path / "authority"


def test_a_new_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(
        said(capsys, "init", tmp_path / "a", "--name", "Ours", "--days", 10, "--json")
    )
    assert content["authority"] == str(tmp_path / "a" / "ca.pem")
    assert (content["party"], content["hosts"]) == ("Ours", [])
    assert said(capsys, "init", tmp_path / "b", "--quiet") == f"{tmp_path / 'b' / 'ca.pem'}\n"
    text = said(capsys, "init", tmp_path / "c")
    assert "ca.pem: give it to every party" in text and "ca.key: keep it to yourself" in text
    with pytest.raises(CertificateError, match=r"ca\.key exists"):
        said(capsys, "init", tmp_path / "c")


def test_a_request_travels_and_a_certificate_comes_back(
    tmp_path: Path, authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    text = said(capsys, "request", home, "--party", "bank")
    pinned = certs.public_text(home / "bank.sign")
    assert f"{home / 'bank.csr'}: send it to the authority" in text
    assert f'signing_key  "{pinned}"' in text and "[parties.bank]" in text
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "sent.csr").write_bytes((home / "bank.csr").read_bytes())
    words = ("--name", "bank", "--host", "localhost", "10.0.0.7")
    text = said(capsys, "issue", authority, inbox / "sent.csr", *words)
    assert f"{inbox / 'bank.pem'}: send it back, with {authority / 'ca.pem'}" in text
    facts = certs.check(inbox / "bank.pem", authority / "ca.pem", "bank")
    assert facts.hosts == (certs.host_of("bank"), "localhost", "10.0.0.7")


def test_the_same_for_scripts(
    tmp_path: Path, authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = json.loads(said(capsys, "request", tmp_path, "--party", "bank", "--json"))
    assert made == {
        "request": str(tmp_path / "bank.csr"),
        "party": "bank",
        "signing_key": certs.public_text(tmp_path / "bank.sign"),
    }
    assert said(capsys, "request", tmp_path, "--party", "shop", "--quiet").endswith("shop.csr\n")
    content = json.loads(
        said(capsys, "issue", authority, tmp_path / "bank.csr", "--name", "bank", "--json")
    )
    assert content["certificate"] == str(tmp_path / "bank.pem") and content["party"] == "bank"
    assert "signing_key" not in content
    words = ("--name", "shop", "--quiet", "--days", "3")
    path = said(capsys, "issue", authority, tmp_path / "shop.csr", *words)
    assert path == f"{tmp_path / 'shop.pem'}\n"


def test_all_on_one_machine(authority: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(said(capsys, "issue", authority, "--party", "bank", "--json"))
    folder = authority / "bank"
    assert content["signing_key"] == certs.public_text(folder / "bank.sign")
    assert {path.name for path in folder.iterdir()} == {
        "bank.key", "bank.sign", "bank.csr", "bank.pem", "ca.pem",
    }  # fmt: skip
    assert certs.check(folder / "bank.pem", folder / "ca.pem", "bank").party == "bank"
    assert "[parties.shop]" in said(capsys, "issue", authority, "--party", "shop")


def test_either_a_request_or_a_party(
    tmp_path: Path, authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CertificateError, match="give either the REQUEST"):
        said(capsys, "issue", authority)
    with pytest.raises(CertificateError, match="give either the REQUEST"):
        said(capsys, "issue", authority, tmp_path / "bank.csr", "--party", "bank")


def test_what_files_say(authority: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certs.party(authority, "bank", hosts=["localhost"])
    files = [authority / "ca.pem", authority / "bank" / "bank.pem", authority / "bank/bank.sign"]
    root, bank, signing = json.loads(said(capsys, "show", *files, "--json"))
    assert root["party"] == "Colonnade authority" and root["hosts"] == []
    assert bank["hosts"] == [certs.host_of("bank"), "localhost"]
    assert bank["valid_from"] < bank["valid_until"] < root["valid_until"]
    assert signing == {"file": str(files[2]), "signing_key": certs.public_text(files[2])}
    text = said(capsys, "show", *files)
    assert (
        "party        bank" in text and bank["fingerprint"] in text and "hosts        none" in text
    )
    least = said(capsys, "show", *files, "--quiet").split()
    assert least == [root["fingerprint"], bank["fingerprint"], signing["signing_key"]]
    with pytest.raises(CertificateError, match=r"issued\.jsonl is not a certificate"):
        said(capsys, "show", authority / "issued.jsonl")


def test_what_else_lies_beside_certificates_is_shown(
    tmp_path: Path, authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = certs.party(authority, "bank")
    serial, key = certs.facts(made).serial, certs.facts(made).tls_key
    said(capsys, "revoke", authority, "bank")
    text = said(capsys, "show", authority / "revoked.pem")
    assert "certificates that were revoked" in text and f"{serial} on 20" in text
    assert f"by the authority in {authority / 'ca.pem'}" in text
    (content,) = json.loads(said(capsys, "show", authority / "revoked.pem", "--json"))
    assert content["number"] == 1 and len(content["revoked"]) == 1
    alone = tmp_path / "alone.pem"
    alone.write_bytes((authority / "revoked.pem").read_bytes())
    assert f"unknown: no {tmp_path / 'ca.pem'}" in said(capsys, "show", alone)
    certs.init(tmp_path / "other")
    forged = tmp_path / "other" / "revoked.pem"
    forged.write_bytes(alone.read_bytes())
    with pytest.raises(CertificateError, match="not a list of revoked certificates by this"):
        said(capsys, "show", forged)
    text = said(capsys, "show", made.with_suffix(".csr"))
    assert "request of   bank" in text and key in text
    with pytest.raises(CertificateError, match=r"is a private key.* bank\.pem"):
        said(capsys, "show", made.with_suffix(".key"))


def test_a_second_certificate_for_the_same_request_is_not_made_silently(
    tmp_path: Path, authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = certs.request(tmp_path / "keys", "bank")
    words = ("issue", authority, asked, "--name", "bank")
    assert "already" not in said(capsys, *words)
    first = certs.facts(asked.with_suffix(".pem")).serial
    text = said(capsys, *words)
    assert f"'bank' had a certificate for this key already, serial {first}" in text
    second = certs.facts(asked.with_suffix(".pem")).serial
    assert json.loads(said(capsys, *words, "--json"))["earlier"] == [first, second]
