"""The doctor: a healthy party is told so, and each thing that can be wrong is found and named."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import tempfile
import time
import tomllib
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from colonnade import assembly
from colonnade.align.ids import one_spelling
from colonnade.cli.main import main
from colonnade.config import federation
from colonnade.config.federation import Federation, Member
from colonnade.deploy.doctor import Check, Mine, examine, network
from colonnade.journal import Journal, Tally, default_place
from colonnade.net import certs
from colonnade.net.mesh import Keys, Mesh
from colonnade.results import folder
from colonnade.version import installing

Usage = namedtuple("Usage", "total used free")
NEEDED = {"bank": "[allow.gradient]\n", "shop": "[allow.embedding]\n"}


def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        number: int = one.getsockname()[1]
        return number


@dataclass
class Two:
    """bank, which listens and holds the labels, and shop, which dials it."""

    folder: Path
    address: str

    @property
    def file(self) -> Path:
        return self.folder / "federation.toml"

    def keys(self, name: str) -> Path:
        return self.folder / "authority" / name

    def write(self, *more: Member, run: dict[str, Any] | None = None, **member: str) -> None:
        """The federation file; `member` changes what it says of bank."""
        pinned = {n: certs.public_text(self.keys(n) / f"{n}.sign") for n in ("bank", "shop")}
        bank = replace(Member("bank", self.address, "", pinned["bank"]), **member)
        members = [bank, Member("shop", "", "", pinned["shop"]), *more]
        federation.write(self.file, "ours", members, run or {"method": "splitnn", "epochs": 3})

    def mine(self, name: str, **changes: Any) -> Mine:
        path = self.folder / f"{name}.csv"

        def read(shared: Federation) -> assembly.OwnRows:
            return assembly.from_file(path, name, shared.run, labelled=name == "bank")

        given = Mine(
            name, self.keys(name), read, self.folder / f"{name}.toml", self.folder / f"run-{name}"
        )
        return replace(given, **changes)

    def check(self, name: str, **changes: Any) -> dict[str, list[Check]]:
        found: dict[str, list[Check]] = {}
        for check in examine(self.file, self.mine(name, **changes)):
            found.setdefault(check.about, []).append(check)
            assert check.verdict in ("ok", "note") or check.move  # nobody is left without advice
        return found

    def only(self, name: str, about: str, **changes: Any) -> Check:
        (check,) = self.check(name, **changes)[about]
        return check


@pytest.fixture
def two(tmp_path: Path) -> Two:
    certs.init(tmp_path / "authority", "Ours")
    for name in ("bank", "shop"):
        certs.party(tmp_path / "authority", name)
        end = ",label" if name == "bank" else ""
        lines = [f"c{n},{n},{n * n}{(',' + 'ny'[n % 2] * 3) if end else ''}" for n in range(60)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"id,a,b{end}", *lines]))
        (tmp_path / f"{name}.toml").write_text(NEEDED[name])
    made = Two(tmp_path, f"127.0.0.1:{port()}")
    made.write()
    return made


@contextmanager
def listening(two: Two, keys: Path | None = None) -> Iterator[list[str]]:
    """A process of bank, as far as others can see; yields its log."""
    log: list[str] = []
    mesh = Mesh(
        "bank",
        Keys.of(keys or two.keys("bank"), "bank"),
        hub="bank",
        listen=two.address,
        dial={},
        accept=frozenset({"shop"}),
        relayed=frozenset(),
        agreed={},
        log=log.append,
    )
    mesh.start()
    try:
        yield log
        assert log == [] and mesh.inbox.empty()  # nobody has noticed anything
    finally:
        mesh.close(0.1)


def verdicts(checks: dict[str, list[Check]]) -> set[str]:
    """All but notes, which say what is so, and ask for nothing."""
    return {check.verdict for all_of in checks.values() for check in all_of} - {"note"}


# ---- the file ------------------------------------------------------------------------------------


def test_a_file_says_who_and_what(two: Two) -> None:
    found = {check.about: check.found for check in examine(two.file)}
    assert found["members"] == "bank, shop; bank holds the labels"
    assert found["listening"] == f"bank at {two.address}"
    assert found["dialling"] == "shop → bank" and "relayed" not in found
    assert found["run"] == "splitnn, 3 epochs, batches of 128, seed 0"
    assert "on_lost = wait, after 600 s" in found["lost party"]
    reveals = {name: found[f"{name} sends"] for name in ("bank", "shop")}
    assert reveals == {
        "bank": "gradient (batch × dim) reveals the labels, through dL/dh_k",
        "shop": "embedding (batch × dim) reveals the sender's features, through h_k",
    }
    digest = found["sha256"].partition(":")[0]
    assert digest.replace(" ", "") == federation.load(two.file).sha256

    assert "certificate" not in found
    for check in examine(two.file):  # what is revealed is not "ok": it is so
        assert check.verdict == ("note" if check.about.endswith("sends") else "ok")


def test_masks_and_a_loss_that_nobody_else_sees(two: Two) -> None:
    """A hub that may go on without a party can pretend that it lost one."""
    two.write(run={"method": "easter", "easter": {"one_passive": True}})
    plain = two.file.read_text()
    for mode, verdict in (("wait", "ok"), ("continue", "warning")):
        two.file.write_text(plain.replace('on_lost = "wait"', f'on_lost = "{mode}"'))
        (check,) = (check for check in examine(two.file) if check.about == "lost party")
        assert check.verdict == verdict and ("lies about a loss" in check.found) == (mode != "wait")


def test_two_silent_parties_talk_through_the_hub(two: Two) -> None:
    two.write(Member("post", "", "", "ab" * 32))
    found = {check.about: check.found for check in examine(two.file)}
    assert found["dialling"] == "shop → bank, post → bank"
    assert found["relayed"] == "shop – post, through bank, which can read what is not masked"
    assert two.only("shop", "peer post").found == "reached through 'bank'"


def test_all_mistakes_of_a_file(two: Two) -> None:
    two.file.write_text('name = "ours"\n[run]\nmethod = "splitn"\n[parties.bank]\n')
    found = examine(two.file, two.mine("bank"))
    assert {check.about for check in found} == {"file", "software"}
    assert any("splitnn" in check.found for check in found)
    assert any("signing_key is missing" in check.found for check in found)
    assert {check.verdict for check in found[:-1]} == {"problem"}
    assert "nowhere.toml: No such file" in examine(Path("nowhere.toml"))[0].found


def test_mistakes_of_a_run_do_not_hide_those_of_a_party(two: Two) -> None:
    """Both are said in one round, and each once."""
    two.file.write_text(two.file.read_text().replace("epochs = 3", "epoch = 3"))
    (two.keys("bank") / "bank.sign").chmod(0o640)
    found = two.check("bank")
    (file,) = found["file"]
    assert "did you mean 'epochs'" in file.found
    assert "bank.sign can be read" in found["keys"][0].found
    assert found["data"][0].verdict == "ok" and "60 rows" in found["data"][0].found


def test_a_name_that_is_no_member(two: Two) -> None:
    (check,) = (c for c in examine(two.file, two.mine("bnak")) if c.about == "name")
    assert check.verdict == "problem" and "did you mean 'bank'?" in check.found


# ---- the party -----------------------------------------------------------------------------------


def test_a_healthy_listener(two: Two) -> None:
    found = two.check("bank")
    assert verdicts(found) == {"ok"}
    assert "of 'bank', by 'Ours'" in found["certificate"][0].found
    assert "364 days left" in found["certificate"][0].found
    assert "2 classes (nnn, yyy)" in found["data"][0].found
    assert found["role"][0].found == "active, with the network 'mlp'"
    assert found["own port"][0].found.startswith(f"{two.address} is free")
    assert "dials this party" in found["peer shop"][0].found
    assert not (two.folder / "run-bank").exists()


def test_a_healthy_dialler_beside_a_process_that_runs(two: Two) -> None:
    with listening(two):
        found = two.check("shop")
    assert verdicts(found) == {"ok"}
    assert "answers, and each accepts" in found["peer bank"][0].found
    assert found["own port"][0].found == "none: shop dials out"
    assert "classes" not in found["data"][0].found


def test_the_row_digest_is_equal_everywhere(two: Two) -> None:
    said = {n: two.only(n, "data").found.partition("order: ")[2] for n in ("bank", "shop")}
    assert said["bank"] == said["shop"] != ""
    lines = (two.folder / "shop.csv").read_text().splitlines()
    (two.folder / "shop.csv").write_text("\n".join([lines[0], *lines[:0:-1]]))
    assert two.only("shop", "data").found.partition("order: ")[2] != said["bank"]


def issued(two: Two, days: int, since: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    """bank's certificate, as the authority would have made it at another time."""
    with monkeypatch.context() as then:
        then.setattr(certs, "_now", lambda: datetime.now(UTC) + since)
        certs.issue(two.folder / "authority", two.keys("bank") / "bank.csr", "bank", days=days)


def test_the_dates_of_a_certificate(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    issued(two, 20, timedelta(0), monkeypatch)
    check = two.only("bank", "certificate")
    assert check.verdict == "warning" and "19 days left" in check.found
    issued(two, 20, timedelta(days=-30), monkeypatch)
    check = two.only("bank", "certificate")
    assert check.verdict == "problem" and "expired on" in check.found
    issued(two, 20, timedelta(days=30), monkeypatch)
    assert "is the clock right?" in two.only("bank", "certificate").found


def test_the_list_of_revoked_certificates(two: Two) -> None:
    list_, own = two.folder / "authority" / "revoked.pem", two.keys("bank") / "revoked.pem"
    for days, verdict in ((20, "warning"), (365, "ok")):
        certs.revoke(two.folder / "authority", "shop", days)
        shutil.copyfile(list_, own)
        check = two.only("bank", "revoked")
        assert check.verdict == verdict and "1 certificates" in check.found
    certs.revoke(two.folder / "authority", "bank")
    shutil.copyfile(list_, own)
    check = two.only("bank", "certificate")
    assert check.verdict == "problem" and "was revoked on" in check.found


def test_a_peer_whose_certificate_does_not_count(two: Two) -> None:
    certs.revoke(two.folder / "authority", "bank")
    for name in ("bank", "shop"):
        shutil.copyfile(two.folder / "authority" / "revoked.pem", two.keys(name) / "revoked.pem")
    with listening(two):
        check = two.only("shop", "peer bank")
    assert check.verdict == "problem" and "was revoked on" in check.found


def test_a_key_that_the_federation_file_does_not_pin(two: Two) -> None:
    tree = tomllib.loads(two.file.read_text())
    tree["parties"]["bank"]["tls_keys"] = ["ab" * 32]
    two.file.write_text(tomli_w.dumps(tree))
    check = two.only("bank", "role")
    assert check.verdict == "problem" and "does not name in tls_keys of 'bank'" in check.found
    key = certs.facts(two.keys("bank") / "bank.pem").tls_key
    tree["parties"]["bank"]["tls_keys"].append(key)
    two.file.write_text(tomli_w.dumps(tree))
    assert two.only("bank", "role").verdict == "ok"


def test_the_dates_of_the_authority(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    certs.init(two.folder / "short", "Short", days=10)
    certs.issue(two.folder / "short", two.keys("bank") / "bank.csr", "bank")
    shutil.copyfile(two.folder / "short" / "ca.pem", two.keys("bank") / "ca.pem")
    check = two.only("bank", "authority")
    assert check.verdict == "warning" and "'Short'" in check.found


def test_a_certificate_of_somebody_else(two: Two) -> None:
    certs.init(two.folder / "other")
    shutil.copyfile(two.folder / "other" / "ca.pem", two.keys("bank") / "ca.pem")
    check = two.only("bank", "certificate")
    assert check.verdict == "problem" and "was not issued by the authority" in check.found
    shutil.copyfile(two.keys("shop") / "shop.pem", two.keys("bank") / "bank.pem")
    assert "is the certificate of 'shop'" in two.only("bank", "certificate").found


def test_a_list_of_revoked_certificates_that_went_missing(two: Two) -> None:
    """The party's own certificate is good, so it is not told to ask for another one."""
    certs.revoke(two.folder / "authority", None)
    place = two.keys("bank") / "revoked.pem"
    shutil.copyfile(two.folder / "authority" / "revoked.pem", place)
    assert two.only("bank", "revoked").verdict == "ok"
    place.unlink()
    check = two.only("bank", "revoked")
    assert check.verdict == "problem" and "list 1 was here before" in check.found
    assert "revoked.pem beside" in check.move and "request" not in check.move


def test_keys_that_others_can_read(two: Two) -> None:
    (two.keys("bank") / "bank.sign").chmod(0o640)
    check = two.only("bank", "keys")
    assert check.verdict == "problem" and "bank.sign can be read" in check.found
    assert check.move.startswith("chmod 600 ")


def test_keys_that_are_missing_or_do_not_fit(two: Two) -> None:
    key = two.keys("bank") / "bank.key"
    shutil.copyfile(two.keys("shop") / "shop.key", key)
    check = two.only("bank", "keys")
    assert check.verdict == "problem" and "is not the key of" in check.found
    key.unlink()
    assert "No such file" in two.only("bank", "keys").found
    found = two.check("shop", keys=two.folder / "nowhere")
    assert found["certificate"][0].verdict == "problem" and len(found["keys"]) == 2
    assert "not dialled" in found["peer bank"][0].found


def test_a_key_with_a_passphrase_is_not_asked_for(two: Two) -> None:
    from cryptography.hazmat.primitives import serialization as form

    key = two.keys("bank") / "bank.key"
    secret = form.load_pem_private_key(key.read_bytes(), None)
    hidden = form.BestAvailableEncryption(b"secret")
    key.write_bytes(secret.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, hidden))
    check = two.only("bank", "keys")
    assert check.verdict == "problem" and "passphrase" in check.move


def test_the_authoritys_key_lies_about(two: Two) -> None:
    shutil.copyfile(two.folder / "authority" / "ca.key", two.keys("bank") / "ca.key")
    assert two.only("bank", "keys").verdict == "warning"


def test_a_signing_key_that_is_not_pinned(two: Two) -> None:
    two.write(signing_key="ab" * 32)
    check = two.only("bank", "signing key")
    assert check.verdict == "problem"
    assert certs.public_text(two.keys("bank") / "bank.sign") in check.move


@pytest.mark.parametrize(
    ("text", "verdict", "said"),
    [
        (None, "problem", "there is none"),
        ("[allow.embeding]", "problem", "did you mean 'embedding'?"),
        ("allow = 3", "problem", "must be tables"),
        ("", "problem", "keeps inside gradient, which this party must send"),
        (NEEDED["bank"], "ok", "allows what is sent: gradient"),
        (NEEDED["bank"] + 'to = ["nobody"]', "problem", "names 'nobody', which is not a member"),
        (NEEDED["bank"] + 'to = ["bank"]', "problem", "names nobody but 'bank' itself"),
        (NEEDED["bank"] + 'to = ["bank", "shop"]', "ok", "allows what is sent: gradient"),
        (NEEDED["bank"] + "min_members = 3", "problem", "asks for 3 members; there are 2"),
        (NEEDED["bank"] + "width = 127", "problem", "lets out 127 numbers per row; 128 would be"),
        (NEEDED["bank"] + "width_ratio = 63.9", "problem", "lets out 127 numbers per row; 128"),
        (NEEDED["bank"] + "width = 128\nwidth_ratio = 64", "ok", "allows what is sent: gradient"),
        (NEEDED["bank"] + "epsilon = 8", "problem", "gradient.epsilon asks for ε = 8 or less"),
    ],
)
def test_policies(two: Two, text: str | None, verdict: str, said: str) -> None:
    path = two.folder / "policy.toml"
    path.write_text(text or "")
    checks = two.check("bank", policy=None if text is None else path)["policy"]
    assert {check.verdict for check in checks} == {verdict}
    assert any(said in check.found for check in checks)


def test_all_that_is_wrong_with_a_policy_is_said_at_once(two: Two) -> None:
    """Keys, Kinds and limits, in one round."""
    path = two.folder / "policy.toml"
    path.write_text('jornal = "x"\n[allow.gradient]\nreleases = 2\nwidht = 3\n[allow.embeding]\n')
    said = " ".join(check.found for check in two.check("bank", policy=path)["policy"])
    for words in ("no key 'jornal'", "no key 'widht'", "no Kind 'embeding'", "releases = 2; 3 ep"):
        assert words in said


def test_what_leaves_is_told_against_the_policy(two: Two) -> None:
    """As many bytes as the ledger of such a run counts: see tests/own/test_own_costs.py."""
    two.write(run={"method": "splitnn", "epochs": 3, "batch_size": 16, "splitnn": {"dim": 4}})
    (two.folder / "shop.toml").write_text("[allow.embedding]\nreleases = 5\nbytes = 1000_000\n")
    check = two.only("shop", "will send")
    assert check.verdict == "note"
    assert "leaves 3 times of the 5 that may, in all runs, 4 numbers each time" in check.found
    assert "1.00 MB may leave in a run" in check.found
    two.write(run=ALIGNED)
    text = f"{PSI}[allow.embedding]\n[allow.psi_points]\nbytes = 9_000\n"
    (two.folder / "shop.toml").write_text(text)
    batches, points = two.check("shop")["will send"]
    assert "rows to train on if all are common" in batches.found
    assert points.found == (
        "psi_points: 3.88 kB if the others bring 60 ids, too; 9.00 kB may leave in a run"
    )


@pytest.mark.parametrize(("limit", "enough"), [(20_000, False), (40_000, True)])
def test_bytes_that_are_too_few_if_most_rows_are_common(two: Two, limit: int, enough: bool) -> None:
    """How many are common is not known yet: a warning, before the run stops in the middle."""
    two.write(run=ALIGNED)
    text = f"{PSI}[allow.psi_points]\n[allow.embedding]\nbytes = {limit}\n"
    (two.folder / "shop.toml").write_text(text)
    checks = two.check("shop")["policy"]
    said = [check for check in checks if check.verdict == "warning"]
    assert {check.verdict for check in checks} <= {"ok", "warning"} and len(said) == (not enough)
    for check in said:
        assert "lets out 20.0 kB; if all" in check.found and "40 epochs take more" in check.found
        assert "% of them" in check.move


def test_a_run_that_stops_by_itself_needs_one_kind_more(two: Two) -> None:
    """Only at the label holder, which tells the others."""
    run = {"method": "splitnn", "epochs": 9, "patience": 3, "data": {"validation": 0.3}}
    two.write(run=run)
    assert two.only("shop", "policy").verdict == "ok"
    check = two.only("bank", "policy")
    assert check.verdict == "problem" and "verdict" in check.found
    (two.folder / "bank.toml").write_text("[allow.gradient]\n[allow.verdict]\nreleases = 3\n")
    check = two.only("bank", "policy")
    assert "allow.verdict.releases = 3" in check.found and "9 times" in check.found
    (two.folder / "bank.toml").write_text("[allow.gradient]\n[allow.verdict]\n")
    assert two.only("bank", "policy").verdict == "ok"
    sends = " ".join(check.found for check in two.check("bank")["will send"])
    assert "verdict: two answers about all validation rows together, at most 9 times" in sends


def test_embeddings_far_wider_than_the_rows(two: Two) -> None:
    """128 numbers, the default, about rows of two."""
    check = two.only("shop", "width")
    assert check.verdict == "note" and "128 numbers about each row of 2" in check.found
    assert check.move == "try dim = 4, an option of splitnn"
    assert "width" not in two.check("bank")  # it sends gradients
    two.write(run={"method": "splitnn", "splitnn": {"dim": 8}})
    assert "width" not in two.check("shop")


def test_a_limit_by_record_on_the_alignment(two: Two) -> None:
    two.write(run=ALIGNED)
    text = f"{PSI}[allow.embedding]\n[allow.psi_points]\nreleases = 3\n"
    (two.folder / "shop.toml").write_text(text)
    check = two.only("shop", "policy")
    assert check.verdict == "problem" and check.move.startswith("remove it: ")
    assert "`times` and `most_in_all` in [run.align]" in check.move


def test_code_that_is_neither_approved_nor_agreed_on(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are said in one round, and what needs no code is looked at all the same."""
    monkeypatch.setenv("XDG_DATA_HOME", str(two.folder / "home"))
    example = Path(__file__).parents[2] / "examples" / "my_method.py"
    shutil.copyfile(example, two.folder / "my_method.py")
    two.write(run={"method": "my_method.py"})
    (two.keys("bank") / "bank.sign").chmod(0o640)
    (two.folder / "bank.toml").write_text("[allow.gradient]\nwidht = 3\n")
    (two.folder / "bank.csv").write_text("id,a\nx,1\nx,2\n")
    found = two.check("bank")
    (code,) = found["code my_method.py"]
    assert code.verdict == "problem"
    assert "nobody has approved" in code.move and "all must agree on [code]" in code.move
    assert "bank.sign can be read" in found["keys"][0].found
    assert "no key 'widht'" in found["policy"][0].found
    assert found["data"][0].verdict == "problem"
    assert found["certificate"][0].verdict == found["signing key"][0].verdict == "ok"
    assert "'nobody'" in two.only("nobody", "file").found


ALIGNED = {
    "method": "splitnn",
    "epochs": 40,
    "batch_size": 32,
    "splitnn": {"dim": 4},
    "align": {"minimum": 10},
}
PSI = "".join(f"[allow.psi_{name}]\n" for name in ("opening", "announcement", "places"))


@pytest.mark.parametrize(
    ("limits", "aligned", "said", "move"),
    [
        ("releases = 40", False, "", ""),
        ("releases = 15", False, "40 epochs release a row 40 times", "allow `releases` = 40"),
        ("releases = 15", True, "40 epochs release a row 40 times", "or train 15 epochs"),
        ("numbers = 159", True, "40 releases of 4 numbers are 160", "allow `numbers` = 160"),
        ("min_batch = 33", True, "no batch has more than 32", "batch_size = 65 or more"),
        ("min_batch = 30", False, "rows in batches of 32 make one of 2", "batch_size = 59"),
        ("bytes = 20_000", False, "40 epochs of", "more `bytes`"),
    ],
)
def test_what_a_run_will_need_is_known_before_it(
    two: Two, limits: str, aligned: bool, said: str, move: str
) -> None:
    """40 epochs over 60 rows, of which about 50 train."""
    run = {**ALIGNED, "data": {"test": 0.15}}
    if not aligned:
        del run["align"]
    two.write(run=run)
    points = f"{PSI}[allow.psi_points]\n" if aligned else ""
    (two.folder / "shop.toml").write_text(f"{points}[allow.embedding]\n{limits}\n")
    first, *_ = two.check("shop")["policy"]
    assert first.verdict == ("problem" if said else "ok")
    assert said in first.found and move in first.move


def test_an_alignment_is_told_its_bytes_and_never_to_train_less(two: Two) -> None:
    two.write(run=ALIGNED)
    for limit, said in (
        (1_000, "60 own ids alone take 1,939"),
        (3_000, "the alignment needs 3,878 if all have 60 ids"),
        (3_878, ""),
    ):
        text = f"{PSI}[allow.embedding]\n[allow.psi_points]\nbytes = {limit}\n"
        (two.folder / "shop.toml").write_text(text)
        (check,) = two.check("shop")["policy"]
        assert check.verdict == ("problem" if said else "ok") and said in check.found
        assert "epochs" not in check.move
        assert not said or "allow `bytes` = 3878" in check.move


def test_what_earlier_runs_have_left(two: Two) -> None:
    """Ten of the records that train have left 12 times; 3 of 15 remain, and the run needs 10."""
    two.write(run={"method": "splitnn", "epochs": 10, "splitnn": {"dim": 4}})
    limits = f'journal = "{two.folder / "journal"}"\n[allow.embedding]\nreleases = 15\n'
    (two.folder / "shop.toml").write_text(limits)
    assert two.only("shop", "policy").verdict == "ok"
    assert not (two.folder / "journal").exists()  # looking leaves nothing behind
    rows = two.mine("shop").rows(federation.load(two.file))  # type: ignore[misc]
    journal = Journal(two.folder / "journal")
    names = journal.names(one_spelling(rows.names))[rows.splits["train"].ids[:10].numpy()]
    Tally(journal, "releases of embedding", names).book("then", times=12)
    journal.close()
    check = two.only("shop", "policy")
    assert check.verdict == "problem" and f"10 of {len(rows.splits['train'])} rec" in check.found
    assert "up to 12 times, and this run needs 10 more" in check.found
    assert "allow `releases` = 22" in check.move


@pytest.mark.parametrize("known", [0, 10])
def test_a_federation_of_another_name_has_counted_the_same_records(
    known: int, two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes the federation file may call it otherwise: the journal that is found by its
    name is empty then."""
    monkeypatch.setenv("XDG_DATA_HOME", str(two.folder / "home"))
    rows = two.mine("shop").rows(federation.load(two.file))  # type: ignore[misc]
    assert "journal" not in two.check("shop")
    for name in ("ours", "theirs"):
        with closing(Journal(default_place(name, "shop"))) as journal:
            names = journal.names(one_spelling([*rows.names[:known], "x1", "x2"]))
            Tally(journal, "releases of embedding", names).book("then", times=12)
    found = two.check("shop").get("journal", [])
    assert len(found) == (known > 0)
    for check in found:
        assert check.verdict == "warning" and "10 of these 60 records" in check.found
        assert "the federation 'theirs' have" in check.found
        assert f'journal = "{default_place("theirs", "shop")}"' in check.move
    with closing(Journal(default_place("theirs", "shop"))) as journal:
        path = journal.folder / "journal.jsonl"
    path.write_text("cut")  # somebody else's matter
    assert "journal" not in two.check("shop")


def test_an_alignment_without_its_package(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    two.write(run=ALIGNED)
    text = f"{PSI}[allow.embedding]\n[allow.psi_points]\n"
    (two.folder / "shop.toml").write_text(text)
    monkeypatch.setitem(sys.modules, "rbcl", None)
    check = two.only("shop", "alignment")
    assert check.verdict == "problem" and "not installed" in check.found
    assert check.move == installing("psi")


def test_a_policy_for_all_in_the_federation_file(two: Two) -> None:
    text = two.file.read_text() + "\n[policy.allow.embedding]\n[policy.allow.gradient]\n"
    two.file.write_text(text)
    check = two.only("bank", "policy", policy=None)
    assert check.verdict == "ok" and "federation.toml allows what is sent" in check.found


def test_a_policy_that_allows_more_than_is_sent(two: Two) -> None:
    (two.folder / "bank.toml").write_text(NEEDED["bank"] + NEEDED["shop"])
    good, spare = two.check("bank")["policy"]
    assert (good.verdict, spare.verdict) == ("ok", "warning")
    assert "also allows embedding, which is never sent here" in spare.found


def test_rows_that_cannot_be_used(two: Two) -> None:
    check = two.only("bank", "data", rows=None)
    assert check.verdict == "warning" and "--data" in check.move
    shutil.copyfile(two.folder / "shop.csv", two.folder / "bank.csv")
    check = two.only("bank", "data")
    assert check.verdict == "problem" and "has no 'label'" in check.found
    assert "--label" in check.found and "--id" in check.move


def test_a_network_that_cannot_take_the_rows(two: Two) -> None:
    two.write(run={"method": "splitnn", "parties": {"shop": {"model": "cnn"}}})
    check = two.only("shop", "role")
    assert check.verdict == "problem" and "'shop'" in check.found


# ---- the machine ---------------------------------------------------------------------------------


def test_run_folders(two: Two) -> None:
    out = two.folder / "run-bank"
    out.mkdir()
    assert two.only("bank", "run folder").verdict == "ok"
    (out / "thesis.tex").touch()
    assert "is not a run" in two.only("bank", "run folder").found
    (out / "thesis.tex").unlink()
    out.rmdir()
    settings = federation.load(two.file).run
    folder.create(out, settings, overwrite=False, run="", party="bank")
    assert "was made for a run that has not begun" in two.only("bank", "run folder").found
    shutil.rmtree(out)
    folder.create(out, settings, overwrite=False)
    assert "will go on after attempt 1" in two.only("bank", "run folder").found
    two.write(run={"method": "splitnn", "epochs": 4})
    assert "of other settings" in two.only("bank", "run folder").found
    (out / "weights").mkdir()
    assert two.only("bank", "run folder").verdict == "warning"
    (out / "run.json").write_text("{")
    assert two.only("bank", "run folder").verdict == "problem"


@pytest.mark.parametrize(("free", "verdict"), [(5e9, "ok"), (5e8, "warning"), (5e7, "problem")])
def test_disk_space(two: Two, monkeypatch: pytest.MonkeyPatch, free: float, verdict: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0, 0, int(free)))
    assert two.only("bank", "disk", out=Path("a/b/c")).verdict == verdict


def test_a_folder_that_cannot_be_written(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**more: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    check = two.only("bank", "disk")
    assert check.verdict == "problem" and "Permission denied" in check.found


# ---- the network ---------------------------------------------------------------------------------


def test_a_port_that_is_taken(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", int(two.address.rpartition(":")[2]))):
        check = two.only("bank", "own port")
    assert check.verdict == "problem" and "is taken" in check.found


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_taken_by_oneself(two: Two, host: str) -> None:
    two.write(listen=f"{host}:{two.address.rpartition(':')[2]}")
    with listening(two):
        check = two.only("bank", "own port")
    assert check.verdict == "warning" and "a process of 'bank' listens there" in check.found


def test_an_address_that_is_not_this_machines(two: Two) -> None:
    two.write(address="192.0.2.1:7443")
    check = two.only("bank", "own port")
    assert check.verdict == "problem" and 'listen = "0.0.0.0:…"' in check.move


def test_a_peer_that_does_not_run_yet(two: Two) -> None:
    check = two.only("shop", "peer bank")
    assert check.verdict == "warning" and "nothing listens there yet" in check.found


def test_a_peer_of_another_authority(two: Two) -> None:
    certs.init(two.folder / "other")
    certs.party(two.folder / "other", "bank")
    with listening(two, two.folder / "other" / "bank"):
        check = two.only("shop", "peer bank")
    assert check.verdict == "problem" and "its certificate is refused here" in check.found


def timed(work: Callable[[], Check]) -> tuple[Check, float]:
    began = time.monotonic()
    return work(), time.monotonic() - began


def test_a_peer_that_says_nothing(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", int(two.address.rpartition(":")[2]))):
        check, seconds = timed(lambda: two.only("shop", "peer bank"))
        assert check.verdict == "problem" and "no answer within" in check.found
    assert seconds < 1.5


def unanswered(*some: object, **more: object) -> None:
    time.sleep(1.5)
    raise socket.gaierror(-3, "Temporary failure in name resolution")


def test_a_name_that_does_not_resolve_holds_nothing_up(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "SECONDS", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", unanswered)
    two.write(address="bank.example.org:7443")
    check, seconds = timed(lambda: two.only("shop", "peer bank"))
    assert check.verdict == "problem" and seconds < 1.2
    check, seconds = timed(lambda: two.only("bank", "own port"))
    assert check.verdict == "problem" and seconds < 1.2


# ---- the command ---------------------------------------------------------------------------------


def test_the_command(
    two: Two, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two.folder)
    shutil.copytree(two.keys("shop"), "keys")
    assert main(["doctor", "federation.toml"]) == 0
    text = capsys.readouterr().out
    assert "bank holds the labels" in text and "certificate" not in text

    arguments = ["doctor", "federation.toml", "--name", "shop", "--data", "shop.csv"]
    assert main([*arguments, "--policy", "shop.toml"]) == 0
    text = capsys.readouterr().out
    assert "warning" in text and "→ start 'bank'" in text and "runs/ours-shop" in text
    assert main([*arguments, "--policy", "shop.toml", "--quiet"]) == 0
    assert capsys.readouterr().out.count("warning") == 1

    assert main([*arguments, "--json"]) == 1  # no policy
    content = json.loads(capsys.readouterr().out)
    assert content["verdict"] == "problem"
    (policy,) = (check for check in content["checks"] if check["about"] == "policy")
    assert policy["verdict"] == "problem" and "--policy" in policy["move"]

    for secret in (two.keys("shop") / "shop.key", two.keys("shop") / "shop.sign"):
        body = secret.read_text().splitlines()[1]
        assert body not in text and body not in json.dumps(content)


def test_what_is_of_one_party_needs_its_name(two: Two, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(two.file), "--data", "shop.csv"]) == 2
    assert "say whose with --name" in capsys.readouterr().err
    assert main(["doctor", str(two.folder / "nowhere.toml")]) == 1
    assert "problem" in capsys.readouterr().out
